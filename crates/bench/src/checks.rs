//! The generator's checks of its own run, which tell whether the figures describe the server or the generator. Called
//! by `runner`.

use crate::recorder::Failure;
use crate::result::{Check, Section, micros};
use crate::schedule::{Mode, Nanos};
use crate::text::time_us;
use crate::threads::CpuShares;

/// The largest share of a core that a generator thread may use. Above it, the generator may have been the bottleneck.
const CPU_SHARE_MAX: f64 = 0.9;

/// The smallest share of the scheduled requests that must be sent. Below this share the check fails, because the load
/// was not the requested one. The exception: the unsent requests waited for new connections that the server did not
/// accept.
const SENT_SHARE_MIN: f64 = 0.99;

/// The facts about a run that the checks use.
#[derive(Debug)]
pub struct CheckInputs<'a> {
    /// Whether the load was open or closed.
    pub mode: Mode,
    /// The figures of the measured part of the run.
    pub section: &'a Section,
    /// The largest send lag, from `--lag-max`.
    pub lag_max: Nanos,
    /// The CPU shares of each thread, from 0 to 1.
    pub cpu_shares: &'a [CpuShares],
    /// The number of connections that were requested at the start.
    pub connections: usize,
    /// The number of connections that were made before the start.
    pub connected: usize,
    /// Why the other connections were not made; `None` if all were made.
    pub unconnected: Option<Failure>,
    /// The number of connections at the end, and its limit `--connections-max`. `None` if the number is fixed.
    pub grown: Option<(usize, usize)>,
}

/// Makes all checks, and returns the result of each.
#[must_use]
pub fn judge(inputs: &CheckInputs) -> Vec<Check> {
    vec![send_lag(inputs), generator_cpu(inputs), rate(inputs), connections(inputs), machine_limits(inputs)]
}

fn check(name: &str, passed: bool, detail: String) -> Check {
    Check { name: name.to_owned(), passed, detail }
}

fn send_lag(inputs: &CheckInputs) -> Check {
    if inputs.mode == Mode::Closed {
        return check("send_lag", true, "closed load has no schedule, so no send can be late".to_owned());
    }
    let bound = micros(inputs.lag_max);
    let lags = &inputs.section.send_lag;
    let in_a_thousand = lags.at(99.9).filter(|lag| lag.enough);
    let Some(lag) = in_a_thousand.or_else(|| lags.at(99.0)) else {
        return check("send_lag", true, "nothing was sent".to_owned());
    };
    let passed = lag.value_us <= bound;
    let relation = if passed { "within the limit of" } else { "more than the limit of" };
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

fn generator_cpu(inputs: &CheckInputs) -> Check {
    let most = |of: fn(&CpuShares) -> f64| inputs.cpu_shares.iter().map(of).fold(0.0, f64::max);
    let (share, polled) = (most(|thread| thread.used), most(|thread| thread.polled));
    let passed = share <= CPU_SHARE_MAX;
    let advice = if passed {
        ""
    } else {
        ": the server may be faster than these figures show; increase --threads, or run klad bench on another machine"
    };
    let detail = format!(
        "the busiest generator thread used {:.0}% of a core, limit {:.0}%; polling took at most {:.0}% of a core{advice}",
        share * 100.0,
        CPU_SHARE_MAX * 100.0,
        polled * 100.0
    );
    check("generator_cpu", passed, detail)
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn rate(inputs: &CheckInputs) -> Check {
    let section = inputs.section;
    if inputs.mode == Mode::Closed {
        let answered: u64 = section.statuses.values().sum();
        let detail = format!("closed load: {} requests were sent, {answered} answered", section.sent);
        return check("rate", answered > 0, detail);
    }
    if section.scheduled == 0 {
        return check(
            "rate",
            false,
            "no request was scheduled in the measured part: it was too short for the rate, or the run ended in its warm-up"
                .to_owned(),
        );
    }
    let share = section.sent as f64 / section.scheduled as f64;
    let unmade = section.errors.get(Failure::Connect.name()).copied().unwrap_or(0);
    // If all connections are busy, a request asks for another connection. If the server does not accept that
    // connection, the generator is not at fault.
    let asked = inputs.grown.is_some_and(|(open, max)| open < max) && unmade == 0;
    let passed = share >= SENT_SHARE_MIN || asked;
    let mut detail = format!(
        "{} of {} requests were sent ({:.2}%); at least {:.0}% are required",
        section.sent,
        section.scheduled,
        share * 100.0,
        SENT_SHARE_MIN * 100.0
    );
    if !passed && unmade > 0 {
        detail.push_str(": ");
        detail.push_str(&unmade.to_string());
        detail.push_str(" could not connect to the server");
    } else if share < SENT_SHARE_MIN {
        detail.push_str(match inputs.grown {
            Some((open, max)) if open >= max => {
                ": all connections were busy, and there were as many as --connections-max allows"
            }
            Some(_) => ": the others waited for connections that the server did not accept in time",
            None => ": all connections were busy; use --connections-max so that the load does not wait for the server",
        });
    }
    check("rate", passed, detail)
}

fn connections(inputs: &CheckInputs) -> Check {
    let CheckInputs { connections, connected, unconnected, .. } = *inputs;
    let grown = inputs.grown.map_or_else(String::new, |(open, max)| format!("; {open} at the end, limit {max}"));
    let why = unconnected.map_or("", |failure| match failure {
        Failure::Ports => ": no local port was left (net.ipv4.ip_local_port_range)",
        Failure::Descriptors => ": no file descriptor was left (ulimit -n)",
        _ => ": the server did not accept the others in time",
    });
    let detail = format!("{connected} of {connections} connections were made before the start{why}{grown}");
    check("connections", connected == connections, detail)
}

fn machine_limits(inputs: &CheckInputs) -> Check {
    let count = |failure: Failure| inputs.section.errors.get(failure.name()).copied().unwrap_or(0);
    // Failures before the start belong to no section.
    let before = |failure: Failure| u64::from(inputs.unconnected == Some(failure));
    let of = |failure: Failure| count(failure) + before(failure);
    let (ports, descriptors) = (of(Failure::Ports), of(Failure::Descriptors));
    let detail = match (ports, descriptors) {
        (0, 0) => "neither ports nor descriptors ran out".to_owned(),
        (0, _) => format!("no file descriptor was left for {descriptors} connections (ulimit -n)"),
        _ => format!(
            "no local port was left for {ports} connections (net.ipv4.ip_local_port_range), no file descriptor for {descriptors}"
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

    fn failed(section: &Section, change: impl FnOnce(&mut CheckInputs)) -> Vec<String> {
        let mut inputs = CheckInputs {
            mode: Mode::Open,
            section,
            lag_max: 1_000_000,
            cpu_shares: &[CpuShares { used: 0.5, polled: 0.5 }],
            connections: 64,
            connected: 64,
            unconnected: None,
            grown: None,
        };
        change(&mut inputs);
        judge(&inputs).into_iter().filter(|check| !check.passed).map(|check| check.name).collect()
    }

    #[test]
    fn a_run_without_problems_passes() {
        assert_eq!(failed(&section(900_000), |_| {}), Vec::<String>::new());
    }

    /// In a short run no statement about p99.9 is possible, so p99 is checked, and one late send does not fail the
    /// check.
    #[test]
    fn a_short_run_is_checked_at_p99() {
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
        assert_eq!(failed(&well, |inputs| inputs.cpu_shares = ONE_BUSY), ["generator_cpu"]);
        assert_eq!(failed(&Section { sent: 9_800, unsent: 200, ..well.clone() }, |_| {}), ["rate"]);
        let waited = Section { sent: 1_000, unsent: 9_000, ..well.clone() };
        assert_eq!(failed(&waited, |inputs| inputs.grown = Some((500, 500))), ["rate"]);
        assert!(
            failed(&waited, |inputs| inputs.grown = Some((499, 500))).is_empty(),
            "each unsent request had asked for a connection"
        );
        assert_eq!(failed(&well, |inputs| inputs.connected = 63), ["connections"]);
        let unmade = |why| move |inputs: &mut CheckInputs| (inputs.connected, inputs.unconnected) = (63, Some(why));
        assert_eq!(failed(&well, unmade(Failure::Connect)), ["connections"]);
        assert_eq!(failed(&well, unmade(Failure::Ports)), ["connections", "machine_limits"]);
        let mut out_of_ports = well.clone();
        out_of_ports.errors.insert(Failure::Ports.name().to_owned(), 1);
        assert_eq!(failed(&out_of_ports, |_| {}), ["machine_limits"]);
        assert_eq!(failed(&Section::default(), |inputs| inputs.mode = Mode::Closed), ["rate"]);
    }
}
