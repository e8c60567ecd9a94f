//! The generator's judgement on its own run: whether the figures are the server's and not its own. Called by `runner`.

use crate::recorder::Failure;
use crate::result::{Check, Section, micros};
use crate::schedule::{Mode, Nanos};
use crate::text::time_us;
use crate::threads::CpuShares;

/// A thread of the generator that used more of a core than this may have been what was measured.
const CPU_SHARE_MAX: f64 = 0.9;

/// Less of the schedule than this having been sent, the load was not the one that was asked for.
const SENT_SHARE_MIN: f64 = 0.99;

/// What is judged.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// Open or closed.
    pub mode: Mode,
    /// The measured part.
    pub section: &'a Section,
    /// `--lag-max`.
    pub lag_max: Nanos,
    /// CPU time by time, of each thread, from 0 to 1.
    pub cpu_shares: &'a [CpuShares],
    /// Connections that were asked for at the start.
    pub connections: usize,
    /// Connections that were made by then.
    pub connected: usize,
    /// Why others were not.
    pub unconnected: Option<Failure>,
    /// Connections at the end, and how many there could be, where they are opened on demand.
    pub grown: Option<(usize, usize)>,
}

/// All checks, each with its figure.
#[must_use]
pub fn judge(evidence: &Evidence) -> Vec<Check> {
    vec![send_lag(evidence), generator_cpu(evidence), rate(evidence), connections(evidence), machine_limits(evidence)]
}

fn check(name: &str, passed: bool, detail: String) -> Check {
    Check { name: name.to_owned(), passed, detail }
}

fn send_lag(evidence: &Evidence) -> Check {
    if evidence.mode == Mode::Closed {
        return check("send_lag", true, "closed load has no schedule to be late for".to_owned());
    }
    let bound = micros(evidence.lag_max);
    let lags = &evidence.section.send_lag;
    let in_a_thousand = lags.at(99.9).filter(|lag| lag.enough);
    let Some(lag) = in_a_thousand.or_else(|| lags.at(99.0)) else {
        return check("send_lag", true, "nothing was sent".to_owned());
    };
    let passed = lag.value_us <= bound;
    let relation = if passed { "within" } else { "more than" };
    check(
        "send_lag",
        passed,
        format!(
            "{}% of sends were at most {} late, {relation} {}",
            lag.percentile,
            time_us(lag.value_us),
            time_us(bound)
        ),
    )
}

fn generator_cpu(evidence: &Evidence) -> Check {
    let most = |of: fn(&CpuShares) -> f64| evidence.cpu_shares.iter().map(of).fold(0.0, f64::max);
    let (share, polled) = (most(|thread| thread.used), most(|thread| thread.polled));
    let passed = share <= CPU_SHARE_MAX;
    let advice = if passed {
        ""
    } else {
        ": the server may be faster than these figures; give --threads, or a machine of its own"
    };
    let detail = format!(
        "the busiest thread of the generator used {:.0}% of a core, bound {:.0}%; at most {:.0}% went into polls, not sleep{advice}",
        share * 100.0,
        CPU_SHARE_MAX * 100.0,
        polled * 100.0
    );
    check("generator_cpu", passed, detail)
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn rate(evidence: &Evidence) -> Check {
    let section = evidence.section;
    if evidence.mode == Mode::Closed {
        let answered: u64 = section.statuses.values().sum();
        let detail = format!("closed load: {} requests were sent, {answered} answered", section.sent);
        return check("rate", answered > 0, detail);
    }
    if section.scheduled == 0 {
        return check(
            "rate",
            false,
            "no request fell into the measured part: it was too short for the rate, or the run ended in its warm-up"
                .to_owned(),
        );
    }
    let share = section.sent as f64 / section.scheduled as f64;
    let unmade = section.errors.get(Failure::Connect.name()).copied().unwrap_or(0);
    // Each request that finds all connections busy asks for one: whether it gets it is for the server to say.
    let asked = evidence.grown.is_some_and(|(open, max)| open < max) && unmade == 0;
    let passed = share >= SENT_SHARE_MIN || asked;
    let mut detail = format!(
        "{} of {} requests were sent ({:.2}%), at least {:.0}% are wanted",
        section.sent,
        section.scheduled,
        share * 100.0,
        SENT_SHARE_MIN * 100.0
    );
    if !passed && unmade > 0 {
        detail.push_str(": ");
        detail.push_str(&unmade.to_string());
        detail.push_str(" found no server to connect to");
    } else if share < SENT_SHARE_MIN {
        detail.push_str(match evidence.grown {
            Some((open, max)) if open >= max => {
                ": all connections were busy, and there were as many as --connections-max allows"
            }
            Some(_) => ": the others waited for connections that the server did not take in time",
            None => ": all connections were busy; with --connections-max the load would not wait for the server",
        });
    }
    check("rate", passed, detail)
}

fn connections(evidence: &Evidence) -> Check {
    let Evidence { connections, connected, unconnected, .. } = *evidence;
    let grown =
        evidence.grown.map_or_else(String::new, |(open, max)| format!(", {open} at the end, {max} at the most"));
    let why = unconnected.map_or("", |failure| match failure {
        Failure::Ports => ": no local port was left (net.ipv4.ip_local_port_range)",
        Failure::Descriptors => ": no descriptor was left (ulimit -n)",
        _ => ": the server did not take the others in time",
    });
    let detail = format!("{connected} of {connections} were made before the start{why}{grown}");
    check("connections", connected == connections, detail)
}

fn machine_limits(evidence: &Evidence) -> Check {
    let count = |failure: Failure| evidence.section.errors.get(failure.name()).copied().unwrap_or(0);
    // One that was missing before the start is in no phase.
    let before = |failure: Failure| u64::from(evidence.unconnected == Some(failure));
    let of = |failure: Failure| count(failure) + before(failure);
    let (ports, descriptors) = (of(Failure::Ports), of(Failure::Descriptors));
    let detail = match (ports, descriptors) {
        (0, 0) => "neither ports nor descriptors ran out".to_owned(),
        (0, _) => format!("{descriptors} connections found no descriptor left (ulimit -n)"),
        _ => format!(
            "{ports} connections found no local port left (net.ipv4.ip_local_port_range), {descriptors} no descriptor"
        ),
    };
    check("machine_limits", ports + descriptors == 0, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::histogram;
    use crate::result::Distribution;

    fn section(lag: Nanos) -> Section {
        section_with(10_000, 20, lag)
    }

    fn section_with(sent: u64, late: u64, lag: Nanos) -> Section {
        let mut lags = histogram();
        lags.record_n(1_000, sent - late).expect("in range");
        lags.record_n(lag, late).expect("in range");
        Section { scheduled: sent, sent, send_lag: Distribution::of(&lags), ..Section::default() }
    }

    fn failed(section: &Section, change: impl FnOnce(&mut Evidence)) -> Vec<String> {
        let mut evidence = Evidence {
            mode: Mode::Open,
            section,
            lag_max: 1_000_000,
            cpu_shares: &[CpuShares { used: 0.5, polled: 0.5 }],
            connections: 64,
            connected: 64,
            unconnected: None,
            grown: None,
        };
        change(&mut evidence);
        judge(&evidence).into_iter().filter(|check| !check.passed).map(|check| check.name).collect()
    }

    #[test]
    fn a_run_that_is_well_passes() {
        assert_eq!(failed(&section(900_000), |_| {}), Vec::<String>::new());
    }

    /// Where nothing is said of one request in a thousand, because there are not enough, one late send does not say it.
    #[test]
    fn a_short_run_is_judged_at_the_percentile_that_it_can_have() {
        assert_eq!(failed(&section_with(900, 1, 20_000_000), |_| {}), Vec::<String>::new());
        assert_eq!(failed(&section_with(9_999, 99, 20_000_000), |_| {}), Vec::<String>::new());
        assert_eq!(failed(&section_with(900, 10, 20_000_000), |_| {}), ["send_lag"]);
        assert_eq!(failed(&section_with(50, 1, 20_000_000), |_| {}), ["send_lag"]);
        assert_eq!(failed(&section_with(10_000, 11, 20_000_000), |_| {}), ["send_lag"]);
    }

    const ONE_BUSY: &[CpuShares] = &[CpuShares { used: 0.1, polled: 0.0 }, CpuShares { used: 0.95, polled: 0.0 }];

    #[test]
    fn twin_each_check_can_fail() {
        let well = section(0);
        assert_eq!(failed(&section(1_100_000), |_| {}), ["send_lag"]);
        assert_eq!(failed(&well, |evidence| evidence.cpu_shares = ONE_BUSY), ["generator_cpu"]);
        assert_eq!(failed(&Section { sent: 9_800, unsent: 200, ..well.clone() }, |_| {}), ["rate"]);
        let waited = Section { sent: 1_000, unsent: 9_000, ..well.clone() };
        assert_eq!(failed(&waited, |evidence| evidence.grown = Some((500, 500))), ["rate"]);
        assert!(
            failed(&waited, |evidence| evidence.grown = Some((499, 500))).is_empty(),
            "each had a connection asked for"
        );
        assert_eq!(failed(&well, |evidence| evidence.connected = 63), ["connections"]);
        let unmade = |why| move |evidence: &mut Evidence| (evidence.connected, evidence.unconnected) = (63, Some(why));
        assert_eq!(failed(&well, unmade(Failure::Connect)), ["connections"]);
        assert_eq!(failed(&well, unmade(Failure::Ports)), ["connections", "machine_limits"]);
        let mut out_of_ports = well.clone();
        out_of_ports.errors.insert(Failure::Ports.name().to_owned(), 1);
        assert_eq!(failed(&out_of_ports, |_| {}), ["machine_limits"]);
        assert_eq!(failed(&Section::default(), |evidence| evidence.mode = Mode::Closed), ["rate"]);
    }
}
