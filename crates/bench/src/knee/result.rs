//! What a search has found, as data: the definitions of `klad bench knee --json`. Called by `knee`.

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

/// One search, whole.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct KneeResult {
    /// `klad.knee/1`.
    pub schema: String,
    /// Version of klad that made the load.
    pub klad_version: String,
    /// The command, as it was typed.
    pub command: Vec<String>,
    /// When the first level began.
    pub started: Started,
    /// Where the load was made.
    pub machine: Machine,
    /// What it was sent to.
    pub target: Target,
    /// What each level asked for, at the rate of the first.
    pub load: Load,
    /// The objectives.
    pub slo: String,
    /// The first bad rate is at most so much above the last good one, as a share.
    pub precision: f64,
    /// What was found.
    pub found: Found,
    /// Every level, in the order of their runs.
    pub levels: Vec<Level>,
    /// What was seen of the server at the last good and the first bad rate, in runs of their own.
    pub evidence: Vec<Evidence>,
}

/// What was found.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Found {
    /// How the search ended.
    pub outcome: Outcome,
    /// The highest rate that was good more often than not, per second; `null` when none was.
    pub good: Option<Edge>,
    /// The lowest rate above it that was not; `null` when all were good.
    pub bad: Option<Edge>,
    /// What kept the search, or the runs for evidence after it, from their end; `null`: nothing.
    #[serde(default)]
    pub broken_off: Option<String>,
}

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Between `good` and `bad` is no more than the precision.
    Found,
    /// The highest rate that was allowed is good.
    NotReached,
    /// The lowest rate is bad.
    NoneGood,
    /// Runs at the same rate differed so much that the search was given up.
    Unsteady,
    /// It was interrupted, or the server could not be reached any more.
    BrokenOff,
}

/// A rate at the edge.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Edge {
    /// Per second.
    pub rate_per_s: f64,
    /// Runs that were good.
    pub good_runs: usize,
    /// Runs that were not.
    pub bad_runs: usize,
}

/// Why a level was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// To find a bad rate.
    Ramp,
    /// To narrow what is between good and bad.
    Bisect,
    /// To see whether it was chance.
    Repeat,
    /// To look at the server; does not count in the search, because looking costs the server time.
    Evidence,
}

/// What stands against a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The generator was not up to it: what the server would have done is not known.
    Generator,
    /// Response times.
    Latency,
    /// Requests that were refused.
    Refusals,
    /// Requests that failed, timed out, or were not served.
    Failures,
    /// Too few answers.
    Throughput,
}

/// What was seen of the server in one run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// Whether the rate is the last good one; else it is the first bad one.
    pub good: bool,
    /// The run.
    pub level: Level,
    /// File with the CPU profile; `null` when it could not be taken.
    pub profile: Option<String>,
    /// The server's queues, once a second.
    pub queues: Vec<QueueSample>,
    /// What could not be had, and why.
    pub missing: Vec<String>,
    /// The profile itself; empty when there is none.
    #[serde(skip)]
    pub taken: Vec<u8>,
}

/// The queues at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueSample {
    /// Since the run began, seconds.
    pub at_s: f64,
    /// What waits, what is under way and what was refused, by series as the server names them: `klad_queue_…`,
    /// `klad_operations_in_use`, `klad_http_requests_in_flight`, `klad_body_room_used_bytes`, `klad_refused_total`.
    pub values: BTreeMap<String, f64>,
}

impl Found {
    pub(super) fn of(found: search::Found, broken_off: Option<String>, tally: impl Fn(f64) -> (usize, usize)) -> Found {
        let edge = |rate_per_s| {
            let (good_runs, bad_runs) = tally(rate_per_s);
            Edge { rate_per_s, good_runs, bad_runs }
        };
        let (outcome, good, bad) = match found {
            search::Found::Knee { good, bad } => (Outcome::Found, Some(good), Some(bad)),
            search::Found::NotReached { good } => (Outcome::NotReached, Some(good), None),
            search::Found::NoneGood { bad } => (Outcome::NoneGood, None, Some(bad)),
            search::Found::Unsteady { good, bad } => (Outcome::Unsteady, good, bad),
        };
        let outcome = if broken_off.is_some() { Outcome::BrokenOff } else { outcome };
        Found { outcome, good: good.map(edge), bad: bad.map(edge), broken_off }
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
    /// As in JSON.
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

impl Stop {
    pub(super) fn of(concern: Concern) -> Stop {
        match concern {
            Concern::Latency => Stop::Latency,
            Concern::Refusals => Stop::Refusals,
            Concern::Failures => Stop::Failures,
            Concern::Throughput => Stop::Throughput,
        }
    }

    /// As in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Stop::Generator => "generator",
            Stop::Latency => "latency",
            Stop::Refusals => "refusals",
            Stop::Failures => "failures",
            Stop::Throughput => "throughput",
        }
    }
}

impl KneeResult {
    pub(super) fn new(
        args: &KneeArgs,
        first: RunResult,
        found: Found,
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

    /// With a line feed at its end.
    #[must_use]
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("its maps have keys that are text");
        text.push('\n');
        text
    }

    /// What stood against the first bad rate, in all its runs.
    #[must_use]
    pub fn stopped_by(&self) -> Vec<Stop> {
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

    /// What the exit code says.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let generator = self.stopped_by().contains(&Stop::Generator);
        match self.found.outcome {
            Outcome::Unsteady | Outcome::BrokenOff => Verdict::NotValid,
            Outcome::Found | Outcome::NoneGood if generator => Verdict::NotValid,
            Outcome::Found | Outcome::NotReached => Verdict::Met,
            Outcome::NoneGood => Verdict::Missed,
        }
    }
}
