//! What an experiment has found, as data: the definitions of `lab.json`, and what the report is made from.
//!
//! Results of the load tester and profiles are files beside it, named by their paths from the report's directory; [`LabRun::bench`]
//! is read back from them. Numbers are finite: what was not measured is `null`. Called by `runner` (writes), `report` (reads).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::{ProfileKind, Scenario};
use klad_bench::knee::result::QueueSample;
use klad_bench::result::{Machine, RunResult, Started};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "klad.lab/1";

/// One experiment, whole.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LabResult {
    /// `klad.lab/1`.
    pub schema: String,
    /// Version of klad that ran it, and that served, where a variant has no program of its own.
    pub klad_version: String,
    /// The command, as it was typed.
    pub command: Vec<String>,
    /// When it began.
    pub started: Started,
    /// How long it took.
    pub took_s: f64,
    /// Whether it has come to its end, and not only to the end of a stage.
    pub finished: bool,
    /// Lengths and numbers of keys are those of the scenario times this, 0 to 1.
    pub scale: f64,
    /// Runs of each variant in each stage.
    pub repeats: usize,
    /// Keys of filled data, after the scale.
    pub keys: u64,
    /// Where it ran.
    pub machine: Machine,
    /// Cores of the server and of the load; `null`: wherever the kernel put them.
    pub cores: Option<CoresUsed>,
    /// File system of the databases, such as `ext4`, where it is known.
    pub file_system: Option<String>,
    /// What must be known of how it was run.
    pub remarks: Vec<String>,
    /// What was asked for.
    pub scenario: Scenario,
    /// What came of each stage, in their order; stages below the capacity follow those they are for.
    pub stages: Vec<StageResult>,
    /// What could not be run, or not to its end.
    pub failures: Vec<Failed>,
}

/// Who ran where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CoresUsed {
    /// The server's.
    pub server: Vec<usize>,
    /// The load's.
    pub load: Vec<usize>,
}

/// One stage.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StageResult {
    /// Its name; one that was added because of another's rate ends in `-at-70`.
    pub name: String,
    /// The stage of the scenario that it is, or was made from.
    pub of: String,
    /// What is looked at.
    pub about: String,
    /// Requests per second that were asked for; `null`: the load was closed.
    pub rate_per_s: Option<f64>,
    /// What a variant can do of the same requests, where it was measured: good answers a second of a closed load.
    pub capacity_per_s: Option<f64>,
    /// Which: the first, unless that could not be loaded.
    pub capacity_of: Option<String>,
    /// Of the capacity, so much was asked for, where the rate follows from it.
    pub share_of_capacity: Option<f64>,
    /// Connections.
    pub connections: usize,
    /// Length of the measured part of each run, after `--scale`.
    pub duration_s: f64,
    /// What came of each variant, in the scenario's order.
    pub variants: Vec<VariantResult>,
}

/// One variant in one stage.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct VariantResult {
    /// Its name.
    pub name: String,
    /// Its runs, in order; fewer than asked for where some have failed.
    pub runs: Vec<LabRun>,
    /// What was taken in windows of their own.
    pub profiles: Vec<TakenProfile>,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LabRun {
    /// Which of the repeats, from 1.
    pub repeat: usize,
    /// File with the result of `klad bench`.
    pub file: String,
    /// That result.
    #[serde(skip)]
    #[schemars(skip)]
    pub bench: Option<Box<RunResult>>,
    /// CPU time of the server's process during the run, warm-up included, by requests that were served, microseconds. Whoever
    /// refuses is not cheaper by that.
    pub server_cpu_us_per_served: Option<f64>,
    /// Largest resident set of the server until the end of the run.
    pub server_memory_max_bytes: Option<u64>,
    /// The number of RocksDB's compactions that ended during the run, warm-up included; `null` for other engines and servers.
    #[serde(default)]
    pub compactions: Option<u64>,
    /// From its start to its first answer.
    pub start_s: f64,
    /// The server's queues, once a second.
    pub queues: Vec<QueueSample>,
    /// The slowest requests that the server itself saw, slowest first.
    pub slowest: Vec<Slowest>,
}

/// A slow request, as the server saw it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Slowest {
    /// What it was.
    pub op: String,
    /// HTTP status.
    pub status: u16,
    /// From its first byte to the end of its answer.
    pub total_us: f64,
    /// Where the time went, in the order of the path; parts of nothing are left out.
    pub parts: Vec<Part>,
}

/// A part of a request's time.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Part {
    /// As `/debug/slow` names it.
    pub name: String,
    /// How long.
    pub us: f64,
}

/// A profile, and what taking it has cost.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TakenProfile {
    /// What is seen.
    pub kind: ProfileKind,
    /// File, gzipped protobuf.
    pub file: String,
    /// Good answers per second while it was taken.
    pub goodput_per_s: f64,
    /// Events that it has: CPU samples, allocations, waits.
    pub events: u64,
    /// 99 % of response times while it was taken, microseconds.
    pub p99_us: Option<f64>,
    /// CPU time of the server by requests that were served while it was taken, microseconds.
    pub server_cpu_us_per_served: Option<f64>,
}

/// Something that could not be run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Failed {
    /// The stage.
    pub stage: String,
    /// The variant.
    pub variant: String,
    /// What was being done: `run 2`, `profile cpu`, `capacity`.
    pub what: String,
    /// Why it failed.
    pub why: String,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        let at = [&self.stage, &self.variant, &self.what].into_iter().filter(|part| !part.is_empty());
        let at: Vec<&str> = at.map(String::as_str).collect();
        write!(formatter, "{}: {}", at.join(", "), self.why)
    }
}

impl LabResult {
    /// With a line feed at its end.
    #[must_use]
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("its maps have keys that are text");
        text.push('\n');
        text
    }
}

impl VariantResult {
    /// The results of the load tester, of runs that have one.
    pub fn benches(&self) -> impl Iterator<Item = &RunResult> {
        self.runs.iter().filter_map(|run| run.bench.as_deref())
    }
}
