//! The figures of an experiment, as data: the definitions of `lab.json`, from which the report is made.
//!
//! Results of the load tester and profiles are files beside it, with paths relative to the report's directory;
//! [`LabRun::bench`] is read from them. Numbers are finite: what was not measured is `null`. Written by `runner`,
//! read by `conclusion` and `report`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::{ProfileKind, Scenario};
use klad_bench::knee::result::QueueSample;
use klad_bench::result::{Machine, RunResult, Started};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "klad.lab/1";

/// An experiment.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LabResult {
    /// `klad.lab/1`.
    pub schema: String,
    /// The version of the klad that ran it. It also served, unless a variant has another program.
    pub klad_version: String,
    /// The command, as it was typed.
    pub command: Vec<String>,
    /// When it started.
    pub started: Started,
    /// How long it took, seconds.
    pub took_s: f64,
    /// Whether the lab ended the experiment, after its last stage or after Ctrl-C. `false` in the file that the lab
    /// writes after each stage.
    pub finished: bool,
    /// The factor by which the scenario's lengths and numbers of keys were multiplied, above 0 and at most 1.
    pub scale: f64,
    /// The number of runs of each variant in each stage.
    pub repeats: usize,
    /// The number of keys of filled data, after `--scale`.
    pub keys: u64,
    /// The machine.
    pub machine: Machine,
    /// The cores of the server and of the load; `null` where the kernel chose.
    pub cores: Option<CoresUsed>,
    /// The file system of the databases, such as `ext4`; `null` where it is unknown.
    pub file_system: Option<String>,
    /// Remarks on how it was run.
    pub remarks: Vec<String>,
    /// The scenario, without the variants and stages that were left out.
    pub scenario: Scenario,
    /// The stages in their order. A stage below the capacity follows the stage that it was added for.
    pub stages: Vec<StageResult>,
    /// What failed.
    pub failures: Vec<Failure>,
}

/// The cores of the server and of the load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CoresUsed {
    /// The cores of the server.
    pub server: Vec<usize>,
    /// The cores of the load.
    pub load: Vec<usize>,
}

/// The figures of a stage.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StageResult {
    /// Its name; that of a stage that the lab added ends in `-at-70`.
    pub name: String,
    /// The name of its stage in the scenario.
    pub of: String,
    /// What it measures.
    pub about: String,
    /// The offered rate, requests per second; `null` for a closed load.
    pub rate_per_s: Option<f64>,
    /// The capacity for the same requests, good answers per second in a closed load; `null` where it was not measured.
    pub capacity_per_s: Option<f64>,
    /// The variant whose capacity `capacity_per_s` is: the stage's first, unless that could not be loaded.
    pub capacity_of: Option<String>,
    /// The offered rate as a share of the capacity, if the rate was computed from the capacity; otherwise `null`.
    pub share_of_capacity: Option<f64>,
    /// The number of connections.
    pub connections: usize,
    /// The length of the measured part of each run, after `--scale`, seconds.
    pub duration_s: f64,
    /// The variants, in the scenario's order.
    pub variants: Vec<VariantResult>,
}

/// The figures of a variant in a stage.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct VariantResult {
    /// Its name.
    pub name: String,
    /// Its runs, in order; fewer than `repeats` where some failed.
    pub runs: Vec<LabRun>,
    /// Its profiles, taken in runs of their own.
    pub profiles: Vec<TakenProfile>,
}

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LabRun {
    /// The number of the repeat, from 1.
    pub repeat: usize,
    /// The path of the file with the result of `klad bench`, relative to the report's directory.
    pub file: String,
    /// The result of `klad bench`, which is read from `file`.
    #[serde(skip)]
    #[schemars(skip)]
    pub bench: Option<Box<RunResult>>,
    /// CPU time of the server's process during the run, warm-up included, divided by the number of served requests,
    /// microseconds. Refused requests do not make it smaller.
    pub server_cpu_us_per_served: Option<f64>,
    /// The largest resident set of the server until the end of the run, bytes.
    pub server_memory_max_bytes: Option<u64>,
    /// The number of RocksDB's compactions that ended during the run, warm-up included; `null` for other engines and
    /// servers.
    #[serde(default)]
    pub compactions: Option<u64>,
    /// The time from the start of the server until it was ready, seconds.
    pub start_s: f64,
    /// The server's queues, once a second; empty for a peer.
    pub queues: Vec<QueueSample>,
    /// The slowest requests of the last minute, as the server saw them: at most 20, slowest first. Empty for a peer.
    pub slowest: Vec<Slowest>,
}

/// A slow request, as the server saw it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Slowest {
    /// The operation.
    pub op: String,
    /// The HTTP status.
    pub status: u16,
    /// The time from its first byte to the end of its answer, microseconds.
    pub total_us: f64,
    /// What the time was spent on, longest first; parts of zero are left out.
    pub parts: Vec<Part>,
}

/// A part of a request's time.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Part {
    /// Its name in `/debug/slow`, without `_ms`.
    pub name: String,
    /// Its length, microseconds.
    pub us: f64,
}

/// A profile, and figures of the run in which it was taken.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TakenProfile {
    /// What it shows.
    pub kind: ProfileKind,
    /// The file of the profile, in the format of pprof: a gzipped protobuf.
    pub file: String,
    /// Good answers per second.
    pub goodput_per_s: f64,
    /// The number of events in the profile: sampling periods of CPU time, allocations, or waits.
    pub events: u64,
    /// The 99th percentile of the response times, microseconds.
    pub p99_us: Option<f64>,
    /// CPU time of the server during the run, divided by the number of served requests, microseconds. Both include the
    /// warm-up.
    pub server_cpu_us_per_served: Option<f64>,
}

/// Something that failed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// The stage; empty if the failure concerns the whole experiment.
    pub stage: String,
    /// The variant; empty if the failure concerns the whole experiment.
    pub variant: String,
    /// The step that failed: `run 2`, `profile cpu`, `capacity`, ….
    pub what: String,
    /// The reason.
    pub why: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        let at = [&self.stage, &self.variant, &self.what].into_iter().filter(|part| !part.is_empty());
        let at: Vec<&str> = at.map(String::as_str).collect();
        write!(formatter, "{}: {}", at.join(", "), self.why)
    }
}

impl LabResult {
    /// Returns `lab.json`, with a line feed at its end.
    #[must_use]
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("the keys of its maps are text");
        text.push('\n');
        text
    }
}

impl VariantResult {
    /// Returns the load tester's result of each run that has one.
    pub fn benches(&self) -> impl Iterator<Item = &RunResult> {
        self.runs.iter().filter_map(|run| run.bench.as_deref())
    }
}
