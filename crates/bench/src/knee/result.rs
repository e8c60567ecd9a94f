//! The result of a search as data: the definitions of `klad bench knee --json`. Called by `knee` and `klad_lab`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::knee::args::KneeArgs;
pub use crate::knee::level::Level;
use crate::knee::search;
use crate::result::{Load, Machine, RunResult, Started, Target};
use crate::runner::Verdict;
use crate::slo::Concern;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "klad.knee/1";

/// The result of one search.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct KneeResult {
    /// Always `klad.knee/1`, the name and version of this JSON form.
    pub schema: String,
    /// The version of klad that made the load.
    pub klad_version: String,
    /// The command line, without the values of headers that hold credentials.
    pub command: Vec<String>,
    /// The time at which the first level began.
    pub started: Started,
    /// The machine that made the load.
    pub machine: Machine,
    /// The server that received the load.
    pub target: Target,
    /// The load of the first level. The other levels differ only in the rate.
    pub load: Load,
    /// The objectives as given.
    pub slo: String,
    /// The precision of the search, from `--precision`: the first bad rate is at most this share, from 0 to 1, above
    /// the last good rate.
    pub precision: f64,
    /// The finding.
    pub found: SearchResult,
    /// All levels of the search, in the order of their runs.
    pub levels: Vec<Level>,
    /// What was recorded about the server at the last good and the first bad rate, in separate runs. Empty without
    /// `--admin`.
    pub evidence: Vec<Evidence>,
}

/// The finding of a search.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SearchResult {
    /// How the search ended.
    pub outcome: Outcome,
    /// The last good rate: the highest rate below `bad` with more good than bad runs. `null` if there is none.
    pub good: Option<Edge>,
    /// The first bad rate: the lowest rate at which good runs were not the majority. `null` if all rates were good.
    pub bad: Option<Edge>,
    /// Why the search ended early, or the runs for evidence after the search; `null` if all were completed.
    #[serde(default)]
    pub broken_off: Option<String>,
}

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// `good` and `bad` differ by no more than the precision.
    Found,
    /// The highest allowed rate is good.
    NotReached,
    /// The lowest allowed rate is bad.
    NoneGood,
    /// Runs at the same rate differed so much that the search gave up.
    Unsteady,
    /// The search was interrupted, the server became unreachable, or another error ended the search.
    BrokenOff,
}

/// The last good or the first bad rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Edge {
    /// Requests per second.
    pub rate_per_s: f64,
    /// The number of good runs.
    pub good_runs: usize,
    /// The number of bad runs.
    pub bad_runs: usize,
}

/// Why a level was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// To find a bad rate, or a good rate below the first bad one.
    Ramp,
    /// To narrow the range between the last good and the first bad rate.
    Bisect,
    /// To confirm that an earlier run was not an outlier.
    Repeat,
    /// To record the server. The run does not count in the search, because recording costs the server time.
    Evidence,
}

/// Why a run at a rate is not good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The generator could not make the load, so the server's limit is unknown.
    Generator,
    /// An objective for response times was missed.
    Latency,
    /// An objective for rejected requests was missed.
    Refusals,
    /// An objective for other outcomes was missed (failed, timed out or unserved requests), or connections were not
    /// made before the start.
    Failures,
    /// The server gave too few answers per second.
    Throughput,
}

/// What was recorded about the server in one run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// `true` for the last good rate, `false` for the first bad one.
    pub good: bool,
    /// The run in which the server was recorded.
    pub level: Level,
    /// The file of the CPU profile; `null` if no profile was taken, or without `--evidence`.
    pub profile: Option<String>,
    /// The server's queues, once a second.
    pub queues: Vec<QueueSample>,
    /// What could not be recorded, and why.
    pub missing: Vec<String>,
    /// The bytes of the profile; empty if no profile was taken.
    #[serde(skip)]
    pub profile_bytes: Vec<u8>,
}

/// The server's queues at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueSample {
    /// The time since sampling began, seconds. Sampling begins shortly before the run.
    pub at_s: f64,
    /// The values of the server's metrics, by the names of their series: operations and requests that wait or are in
    /// flight, memory used by bodies, and rejected requests. The names begin with `klad_queue_…`,
    /// `klad_operations_in_use`, `klad_http_requests_in_flight`, `klad_body_budget_used_bytes`, `klad_refused_total`.
    pub values: BTreeMap<String, f64>,
}

impl SearchResult {
    pub(super) fn of(
        found: search::SearchOutcome,
        broken_off: Option<String>,
        tally: impl Fn(f64) -> (usize, usize),
    ) -> SearchResult {
        let edge = |rate_per_s| {
            let (good_runs, bad_runs) = tally(rate_per_s);
            Edge { rate_per_s, good_runs, bad_runs }
        };
        let (outcome, good, bad) = match found {
            search::SearchOutcome::Knee { good, bad } => (Outcome::Found, Some(good), Some(bad)),
            search::SearchOutcome::NotReached { good } => (Outcome::NotReached, Some(good), None),
            search::SearchOutcome::NoneGood { bad } => (Outcome::NoneGood, None, Some(bad)),
            search::SearchOutcome::Unsteady { good, bad } => (Outcome::Unsteady, good, bad),
        };
        let outcome = if broken_off.is_some() { Outcome::BrokenOff } else { outcome };
        SearchResult { outcome, good: good.map(edge), bad: bad.map(edge), broken_off }
    }
}

impl From<search::Purpose> for Purpose {
    fn from(purpose: search::Purpose) -> Purpose {
        match purpose {
            search::Purpose::Ramp => Purpose::Ramp,
            search::Purpose::Bisect => Purpose::Bisect,
            search::Purpose::Repeat => Purpose::Repeat,
        }
    }
}

impl Purpose {
    /// The name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Ramp => "ramp",
            Purpose::Bisect => "bisect",
            Purpose::Repeat => "repeat",
            Purpose::Evidence => "evidence",
        }
    }
}

impl StopReason {
    pub(super) fn of(concern: Concern) -> StopReason {
        match concern {
            Concern::Latency => StopReason::Latency,
            Concern::Refusals => StopReason::Refusals,
            Concern::Failures => StopReason::Failures,
            Concern::Throughput => StopReason::Throughput,
        }
    }

    /// The name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StopReason::Generator => "generator",
            StopReason::Latency => "latency",
            StopReason::Refusals => "refusals",
            StopReason::Failures => "failures",
            StopReason::Throughput => "throughput",
        }
    }
}

impl KneeResult {
    pub(super) fn new(
        args: &KneeArgs,
        first: RunResult,
        found: SearchResult,
        levels: Vec<Level>,
        evidence: Vec<Evidence>,
    ) -> KneeResult {
        KneeResult {
            schema: SCHEMA.to_owned(),
            klad_version: first.klad_version,
            command: first.command,
            started: first.started,
            machine: first.machine,
            target: first.target,
            load: first.load,
            slo: args.slo.to_string(),
            precision: args.precision,
            found,
            levels,
            evidence,
        }
    }

    /// Returns the result as JSON, with a line feed at the end.
    #[must_use]
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("all map keys are text");
        text.push('\n');
        text
    }

    /// Returns the reasons why the first bad rate is not good, from all its runs.
    #[must_use]
    pub fn stopped_by(&self) -> Vec<StopReason> {
        let Some(bad) = self.found.bad else { return Vec::new() };
        let runs = self
            .levels
            .iter()
            .filter(|level| !level.good && level.counted && level.rate_per_s.total_cmp(&bad.rate_per_s).is_eq());
        let mut all: Vec<_> = runs.flat_map(|level| level.stopped_by.iter().copied()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Returns the verdict, which decides the exit code.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let generator = self.stopped_by().contains(&StopReason::Generator);
        match self.found.outcome {
            Outcome::Unsteady | Outcome::BrokenOff => Verdict::NotValid,
            Outcome::Found | Outcome::NoneGood if generator => Verdict::NotValid,
            Outcome::Found | Outcome::NotReached => Verdict::Met,
            Outcome::NoneGood => Verdict::Missed,
        }
    }
}
