//! What the scripted server does, and how `klad bench` is sent against it. Called by `bench_truth` and its `server`.

use std::time::Duration;

use clap::ValueEnum;

use super::server::Ending;
use super::truth::{Nanos, SECOND, nanos};

/// Time that an answer takes when the scenario asks for nothing else: longer than any noise of this machine, so that what is
/// left out or counted twice shows.
const SERVICE: Nanos = SECOND / 1_000;

/// Time until a refusal or a reset; more than [`SERVICE`], so that one that slips into the response times shows there.
const UNWANTED: Nanos = 20 * SECOND / 1_000;

/// Time that a slow answer takes.
const SLOW: Nanos = 50 * SECOND / 1_000;

/// Length of a freeze.
const FREEZE: Nanos = SECOND;

/// `--timeout` where deadlines are met.
const DEADLINE: Duration = Duration::from_millis(500);

/// `--timeout` where they are not.
const DEADLINE_NEVER: Duration = Duration::from_secs(30);

/// How the server behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// Every answer takes 1 ms.
    Constant,
    /// For 1 s, in the middle of the run, nothing is answered; then everything that has arrived is.
    Freeze,
    /// One answer in a hundred takes 50 ms.
    Slow,
    /// One request in ten is answered 503.
    Refused,
    /// For one request in a hundred the connection is reset.
    Resets,
    /// From the middle of the run on nothing is answered.
    Silence,
    /// As silence, with a deadline of 500 ms.
    Deadline,
}

/// `--connections` and `--connections-max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connections {
    /// So many.
    Fixed(u64),
    /// From so many to so many.
    OnDemand(u64, u64),
}

/// A scenario with its connections: one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// The server's side.
    pub(crate) scenario: Scenario,
    /// The client's.
    pub(crate) connections: Connections,
}

/// When and how the server is done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// From its arrival.
    pub(crate) after: Nanos,
    /// What is done.
    pub(crate) ending: Ending,
}

/// A scenario in a run of a certain length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    /// Which.
    pub(crate) scenario: Scenario,
    /// The middle of the measured part, from the start of the run.
    pub(crate) middle: Nanos,
}

impl Scenario {
    /// Its name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().expect("none is skipped").get_name().to_owned()
    }

    /// `--timeout`.
    pub(crate) fn timeout(self) -> Duration {
        if self == Scenario::Deadline { DEADLINE } else { DEADLINE_NEVER }
    }
}

impl Connections {
    /// In words.
    pub(crate) fn words(self) -> String {
        match self {
            Connections::Fixed(count) => format!("{count} connections"),
            Connections::OnDemand(count, max) => format!("{count} to {max} connections"),
        }
    }

    /// The options of klad bench.
    pub(crate) fn arguments(self) -> Vec<String> {
        match self {
            Connections::Fixed(count) => vec![format!("--connections={count}")],
            Connections::OnDemand(count, max) => {
                vec![format!("--connections={count}"), format!("--connections-max={max}")]
            }
        }
    }
}

impl Case {
    /// All runs of the scenarios `only`, or of all: with connections on demand too where a request may find all busy, or
    /// loses the one that it has.
    pub(crate) fn all(only: &[Scenario]) -> Vec<Case> {
        let chosen = |scenario: &&Scenario| only.is_empty() || only.contains(scenario);
        let cases = |scenario: &Scenario| {
            // With a fixed number, requests are given up before they are sent, and the numbers that the server sees no longer
            // tell which.
            let fixed = (*scenario != Scenario::Deadline).then_some(Connections::Fixed(64)).into_iter();
            let waits = !matches!(scenario, Scenario::Constant | Scenario::Slow | Scenario::Refused);
            let scenario = *scenario;
            fixed
                .chain(waits.then_some(Connections::OnDemand(16, 4096)))
                .map(move |connections| Case { scenario, connections })
        };
        Scenario::value_variants().iter().filter(chosen).flat_map(cases).collect()
    }

    /// For the report.
    pub(crate) fn name(self) -> String {
        format!("{}, {}", self.scenario.name(), self.connections.words())
    }

    /// Whether requests wait for a connection long enough that the time from the actual send is another than the time from
    /// the intended start: the case in which a load tester with coordinated omission is found out.
    pub(crate) fn has_twin(self) -> bool {
        self.scenario == Scenario::Freeze && matches!(self.connections, Connections::Fixed(_))
    }
}

impl Script {
    /// A run of `scenario` with this warm-up and measured part.
    pub(crate) fn new(scenario: Scenario, warm_up: Duration, duration: Duration) -> Script {
        Script { scenario, middle: nanos(warm_up) + nanos(duration) / 2 }
    }

    /// What becomes of request `number`, which arrives at `at` after the start of the run; `None`: nothing, ever.
    pub(crate) fn plan(&self, number: u64, at: Nanos) -> Option<Plan> {
        let served = |after| Some(Plan { after, ending: Ending::Answered(200) });
        match self.scenario {
            Scenario::Freeze => {
                // A frozen server answers neither what arrives nor what it has begun.
                let (from, until) = (self.middle.saturating_sub(FREEZE / 2), self.middle + FREEZE / 2);
                let frozen = (from..until).contains(&(at + SERVICE));
                served(if frozen { until - at } else { SERVICE })
            }
            Scenario::Slow if number % 100 == 50 => served(SLOW),
            Scenario::Refused if number % 10 == 5 => Some(Plan { after: UNWANTED, ending: Ending::Answered(503) }),
            Scenario::Resets if number % 100 == 50 => Some(Plan { after: UNWANTED, ending: Ending::Reset }),
            Scenario::Silence | Scenario::Deadline if at + SERVICE >= self.middle => None,
            _ => served(SERVICE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(scenario: Scenario, number: u64, at_ms: u64) -> Option<Plan> {
        let script = Script::new(scenario, Duration::from_secs(1), Duration::from_secs(4));
        script.plan(number, at_ms * SECOND / 1_000)
    }

    fn after_ms(scenario: Scenario, number: u64, at_ms: u64) -> u64 {
        plan(scenario, number, at_ms).expect("an end").after * 1_000 / SECOND
    }

    #[test]
    fn what_meets_the_freeze_is_answered_at_its_end() {
        assert_eq!(after_ms(Scenario::Freeze, 0, 2_498), 1);
        assert_eq!(after_ms(Scenario::Freeze, 0, 2_499), 1_001);
        assert_eq!(after_ms(Scenario::Freeze, 0, 3_000), 500);
        assert_eq!(after_ms(Scenario::Freeze, 0, 3_499), 1);
        assert_eq!(after_ms(Scenario::Freeze, 0, 3_500), 1);
    }

    #[test]
    fn one_in_so_many_is_not_as_the_others() {
        let count =
            |scenario| (0..1_000).filter(|number| plan(scenario, *number, 0) != plan(Scenario::Constant, 0, 0)).count();
        assert_eq!(
            [Scenario::Slow, Scenario::Refused, Scenario::Resets, Scenario::Constant].map(count),
            [10, 100, 10, 0]
        );
    }

    #[test]
    fn silence_is_for_good() {
        assert_eq!(after_ms(Scenario::Silence, 0, 2_998), 1);
        assert_eq!(plan(Scenario::Silence, 0, 2_999), None);
        assert_eq!(plan(Scenario::Silence, 0, 60_000), None);
    }

    #[test]
    fn every_scenario_is_run_and_one_has_a_twin() {
        let cases = Case::all(&[]);
        assert!(Scenario::value_variants().iter().all(|scenario| cases.iter().any(|case| case.scenario == *scenario)));
        assert_eq!(cases.iter().filter(|case| case.has_twin()).count(), 1);
        assert_eq!(Case::all(&[Scenario::Silence]).len(), 2);
    }
}
