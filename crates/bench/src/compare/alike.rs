//! Finds differences between the settings of the two sides, such as another rate or another machine. They are reported
//! before the figures, because they may have caused a difference in the figures. Called by `judge`.

use std::collections::BTreeSet;

use crate::compare::figures::Observed;
use crate::compare::sides::{Run, Side};
use crate::recorder::Outcome;
use crate::result::{RunResult, Stage};
use crate::schedule::Mode;
use crate::text::time_us;

/// The largest difference between the sides' shares of requests that were not found. If the difference is larger, the
/// servers did not hold the same data.
const NOT_FOUND_APART: f64 = 0.001;

/// Lists the runs of `a` and `b` that are not valid, with the checks that failed.
#[must_use]
pub fn not_valid(a: &Side, b: &Side) -> Vec<String> {
    let all = a.runs.iter().chain(&b.runs).filter(|run| !run.result.valid);
    let why = |run: &Run| {
        let failed: Vec<_> =
            run.result.checks.iter().filter(|check| !check.passed).map(|check| check.name.as_str()).collect();
        format!("{}: {}", run.path.display(), if failed.is_empty() { "not valid".into() } else { failed.join(", ") })
    };
    all.map(why).collect()
}

/// Lists, in words, the differences between the settings of the sides, such as another rate, and other warnings.
#[must_use]
pub fn warnings(a: &Side, b: &Side, together: (&Observed, &Observed)) -> Vec<String> {
    let mut warnings = Vec::new();
    let facts = |side: &Side| side.runs.iter().map(|run| facts(&run.result)).collect::<Vec<_>>();
    let (of_a, of_b) = (facts(a), facts(b));
    for (index, (name, _)) in of_a[0].iter().enumerate() {
        let values =
            |side: &[Vec<(&str, String)>]| side.iter().map(|facts| facts[index].1.clone()).collect::<BTreeSet<_>>();
        let (one, other) = (values(&of_a), values(&of_b));
        if one.union(&other).count() > 1 {
            let words = |values: BTreeSet<String>| values.into_iter().collect::<Vec<_>>().join(" | ");
            warnings.push(format!("different {name}: A {}; B {}", words(one), words(other)));
        }
    }
    for run in a.runs.iter().chain(&b.runs) {
        if let Some(at) = run.result.interrupted_s {
            warnings.push(format!("{} was ended early, {at:.1}s after the start", run.path.display()));
        }
    }
    if a.runs.iter().any(|run| b.runs.iter().any(|other| other.is_same_as(run))) {
        warnings.push("a run is on both sides: it is compared with itself".to_owned());
    }
    let [not_found_a, not_found_b] = [together.0, together.1].map(|side| side.share(Outcome::NotFound).unwrap_or(0.0));
    if (not_found_a - not_found_b).abs() > NOT_FOUND_APART {
        let percent = |share: f64| format!("{:.2} %", share * 100.0);
        let (one, other) = (percent(not_found_a), percent(not_found_b));
        warnings.push(format!("different data: {one} of the requests of A and {other} of those of B were not found"));
    }
    if a.runs.iter().chain(&b.runs).any(|run| run.result.load.mode == Mode::Closed) {
        warnings
            .push("closed load: response times suffer from coordinated omission; compare goodput instead".to_owned());
    }
    warnings
}

/// Returns the names and values of the facts that should be equal for all runs.
fn facts(run: &RunResult) -> Vec<(&'static str, String)> {
    let (load, machine) = (&run.load, &run.machine);
    let mode = match load.mode {
        Mode::Open => "open",
        Mode::Closed => "closed",
    };
    let connections = match (load.connections, load.connections_max) {
        (fixed, max) if fixed == max => fixed.to_string(),
        (from, to) => format!("{from} to {to}"),
    };
    let memory = format!("{:.1} GiB", gib(machine.memory_bytes));
    vec![
        ("load", mode.to_owned()),
        ("rate and length", stages(&load.stages)),
        ("arrivals", load.arrival.clone().unwrap_or_else(|| "none".to_owned())),
        ("connections", connections),
        ("workload", workload(run)),
        ("deadline", time_us(load.timeout_s * 1e6)),
        ("time for goodput", time_us(run.measured.good_within_us)),
        ("length of the warm-up", format!("{}s", load.warm_up_s)),
        ("threads of the generator", load.threads.to_string()),
        ("version of the generator", run.klad_version.clone()),
        ("machine", format!("{} ({}, {} cores, {memory})", machine.host, machine.cpu, machine.cores)),
        ("kernel", machine.kernel.clone()),
        ("location of the server", if run.target.same_machine { "this machine" } else { "another machine" }.to_owned()),
    ]
}

/// Returns the workload in words. The server's address is removed, because two servers have different addresses.
fn workload(run: &RunResult) -> String {
    let url = run.target.url.as_str();
    let path = url.split_once("://").and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..])).unwrap_or("/");
    if url.is_empty() { run.load.workload.clone() } else { run.load.workload.replace(url, path) }
}

/// Describes stages in words: their rates and lengths.
#[must_use]
pub fn stages(stages: &[Stage]) -> String {
    let words = |stage: &Stage| match (stage.from_per_s, stage.to_per_s) {
        (Some(from), Some(to)) if (from - to).abs() < f64::EPSILON => format!("{from}/s for {}s", stage.duration_s),
        (Some(from), Some(to)) => format!("{from}..{to}/s for {}s", stage.duration_s),
        _ => format!("{}s", stage.duration_s),
    };
    stages.iter().map(words).collect::<Vec<_>>().join(", ")
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::trials::{run_of, side_of};

    /// A change of a run, and the words that must be in a warning about it.
    type Change = (fn(&mut RunResult), &'static str);

    /// Returns the warnings when `change` is applied to B's run.
    fn said(change: impl FnOnce(&mut RunResult)) -> Vec<String> {
        let (a, mut b) = (side_of(vec![run_of(1, vec![])]), side_of(vec![run_of(2, vec![])]));
        change(&mut b.runs[0].result);
        let together = |side: &Side| Observed::of_section(&side.runs[0].result.measured).expect("a section");
        warnings(&a, &b, (&together(&a), &together(&b)))
    }

    #[test]
    fn equal_loads_on_one_machine_cause_no_warning() {
        assert_eq!(said(|_| {}), Vec::<String>::new());
        assert_eq!(said(|run| run.load.seed = 99), Vec::<String>::new(), "repeats should have different seeds");
    }

    #[test]
    fn the_workload_includes_the_path_of_the_url_but_not_its_address() {
        let sent_to = |url: &str| {
            let mut run = run_of(1, vec![]);
            run.target.url = url.to_owned();
            run.load.workload = format!("GET {url}");
            workload(&run)
        };
        assert_eq!((sent_to("http://a:1/x"), sent_to("http://b:2/x")), ("GET /x".to_owned(), "GET /x".to_owned()));
        assert_eq!((sent_to("http://a:1"), sent_to("http://a:1/")), ("GET /".to_owned(), "GET /".to_owned()));
    }

    #[test]
    fn every_difference_causes_a_warning() {
        let changes: [Change; 16] = [
            (|run| run.load.mode = Mode::Closed, "different load: A open; B closed"),
            (
                |run| run.load.stages[0].to_per_s = Some(2e3),
                "different rate and length: A 1000/s for 20s; B 1000..2000/s",
            ),
            (|run| run.load.arrival = Some("poisson".into()), "different arrivals"),
            (|run| run.load.connections_max = 99, "different connections: A 64; B 64 to 99"),
            (|run| run.load.workload = "put".into(), "different workload: A get; B put"),
            (|run| run.load.timeout_s = 1.0, "different deadline: A 30.00s; B 1.00s"),
            (|run| run.measured.good_within_us = 1.0, "different time for goodput"),
            (|run| run.load.warm_up_s = 7.0, "different length of the warm-up"),
            (|run| run.load.threads = 7, "different threads of the generator"),
            (|run| run.klad_version = "9.9".into(), "different version of the generator"),
            (|run| run.machine.host = "other".into(), "different machine"),
            (|run| run.machine.kernel = "other".into(), "different kernel"),
            (|run| run.target.same_machine = true, "different location of the server"),
            (|run| run.interrupted_s = Some(3.0), "was ended early, 3.0s"),
            (|run| run.started = run_of(1, vec![]).started, "compared with itself"),
            (
                |run| {
                    run.measured.outcomes.insert(Outcome::NotFound, 500);
                },
                "different data",
            ),
        ];
        for (change, words) in changes {
            let said = said(change);
            assert!(said.iter().any(|warning| warning.contains(words)), "{words}: {said:?}");
        }
    }
}
