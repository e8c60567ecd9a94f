//! What a run has found, as data: the definitions of `--json` and of its schema, and what every other form of output is
//! made from.
//!
//! Numbers are finite: what was not measured is `null` or absent, never NaN. Durations are microseconds with three decimals,
//! which are the nanoseconds that were recorded. A change that breaks readers counts [`SCHEMA`] up.

use std::collections::BTreeMap;

use anyhow::{Context as _, anyhow, ensure};
use base64::Engine as _;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::recorder::{self, Operation, Outcome};
use crate::schedule::{Mode, Nanos};
use crate::slo::Concern;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "klad.bench/1";

/// The percentiles that every table shows: those of wrk2, and 95.
pub const PERCENTILES: [f64; 9] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999, 100.0];

/// A percentile with fewer samples above it than this is marked: its value is that of single requests.
pub const SAMPLES_ABOVE_MIN: u64 = 10;

/// One run, whole.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RunResult {
    /// `klad.bench/1`.
    pub schema: String,
    /// Version of klad that made the load.
    pub klad_version: String,
    /// The command, as it was typed.
    pub command: Vec<String>,
    /// When the schedule began.
    pub started: Started,
    /// Where the load was made.
    pub machine: Machine,
    /// What it was sent to.
    pub target: Target,
    /// What was asked for.
    pub load: Load,
    /// When somebody ended the run early, from the start of the schedule; lengths and rates are those of what was run.
    pub interrupted_s: Option<f64>,
    /// `false`: at least one check failed, and the figures are not to be believed.
    pub valid: bool,
    /// The generator's judgement on itself.
    pub checks: Vec<Check>,
    /// What `--slo` asked for, and whether it was met.
    pub slo: Option<Slo>,
    /// Requests whose intended start lies after the warm-up.
    pub measured: Section,
    /// Requests whose intended start lies in the warm-up; `null` without one.
    pub warm_up: Option<Section>,
    /// The stages of the measured part, each for itself; empty when there is one only.
    pub stages: Vec<Section>,
    /// The longest time in the measured part without a good answer (served or not found within `good_within_us`), from its
    /// beginning, between two, or to its end; looked at in hundredths of an interval, and at most two of them too short.
    pub longest_gap_s: f64,
    /// The run in pieces of equal length, warm-up included, by the time of completion.
    pub intervals: Vec<Interval>,
    /// The measured part in at most ten equal groups of whole intervals, by the time of completion: what `klad bench compare`
    /// has for repeats where there is one run. Empty where there is no whole interval, and in results of older versions.
    #[serde(default)]
    pub pieces: Vec<Piece>,
}

/// When the schedule began.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Started {
    /// Wall clock, RFC 3339, UTC.
    pub utc: String,
    /// The same moment on this machine's `CLOCK_MONOTONIC`, nanoseconds.
    pub monotonic_ns: u64,
}

/// Where the load was made.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// Name of the host.
    pub host: String,
    /// Name and release of the kernel.
    pub kernel: String,
    /// Model of the CPU.
    pub cpu: String,
    /// Cores that the generator may use.
    pub cores: usize,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// CPU time that the hypervisor kept from this machine during the run, percent of all cores.
    pub steal_percent: Option<f64>,
}

/// What the load was sent to.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Target {
    /// As it was given.
    pub url: String,
    /// The address that was connected to.
    pub address: String,
    /// Whether that is this machine: generator and server then compete for its cores.
    pub same_machine: bool,
}

/// What was asked for.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Load {
    /// Open: starts follow a schedule. Closed: a start follows each answer.
    pub mode: Mode,
    /// `constant` or `poisson`; `null` in closed mode.
    pub arrival: Option<String>,
    /// Of arrivals, keys and values.
    pub seed: u64,
    /// Stages with rates and lengths, the warm-up not included.
    pub stages: Vec<Stage>,
    /// Length of the warm-up.
    pub warm_up_s: f64,
    /// Length of the measured part.
    pub duration_s: f64,
    /// How long the run waited, at its end, for answers that were under way.
    pub drain_s: f64,
    /// Deadline of each request, from its intended start.
    pub timeout_s: f64,
    /// Connections that were opened before the start.
    pub connections: usize,
    /// Connections that could be opened on demand; equal to `connections` when the number is fixed.
    pub connections_max: usize,
    /// Threads of the generator.
    pub threads: usize,
    /// Whether they ask for the ends of their waits, instead of being woken, where they have a core for it.
    #[serde(default = "yes")]
    pub polls: bool,
    /// The script that wrote the requests, as its path was given; `null`: there was none. Each thread runs it for itself.
    #[serde(default)]
    pub script: Option<String>,
    /// Requests of each start: more than 1 where a script sends several in a pipeline. All figures count starts, whose
    /// status is the highest of their answers'.
    #[serde(default = "one")]
    pub requests_per_start: u32,
    /// Operations and their weights, keys and values, in words.
    pub workload: String,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

/// One stage of the schedule.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Stage {
    /// Requests per second at its start; `null` in closed mode.
    pub from_per_s: Option<f64>,
    /// Requests per second at its end.
    pub to_per_s: Option<f64>,
    /// Its length.
    pub duration_s: f64,
}

/// One judgement of the generator on its own run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// `send_lag`, `generator_cpu`, `rate`, `connections`, `machine_limits`.
    pub name: String,
    /// Whether it holds.
    pub passed: bool,
    /// The figure and its bound, in words.
    pub detail: String,
}

/// The outcome of `--slo`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Slo {
    /// As it was given.
    pub text: String,
    /// Whether every objective is met.
    pub met: bool,
    /// Each objective.
    pub objectives: Vec<Objective>,
}

/// One objective.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Objective {
    /// As it was given.
    pub text: String,
    /// What it is about.
    #[serde(default)]
    pub concern: Concern,
    /// What was measured, in words; `null` when there is nothing to measure it by.
    pub measured: Option<String>,
    /// Whether it is met.
    pub met: bool,
}

/// A part of the run: all requests whose *intended start* lies in it, however late they ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Section {
    /// Its length.
    pub duration_s: f64,
    /// Requests that were intended to start.
    pub scheduled: u64,
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that were not sent by the end of the schedule; among `timed_out` or `unfinished`, at their age at that time.
    pub unsent: u64,
    /// Requests that were sent and had no answer at the end of the drain; among `unfinished`, at their age at that time.
    pub in_flight_at_end: u64,
    /// `scheduled` by the length.
    pub scheduled_per_s: f64,
    /// `sent` by the length.
    pub sent_per_s: f64,
    /// Answers of any kind that came in this part, whenever their requests were to start, by the length.
    pub answered_per_s: f64,
    /// Of these, served, or for a workload of keys not found, within `good_within_us` of their intended start, by the length.
    pub goodput_per_s: f64,
    /// Longest response time of a good answer.
    pub good_within_us: f64,
    /// Bytes of answers, heads included.
    pub bytes_received: u64,
    /// Bytes of requests, heads included.
    pub bytes_sent: u64,
    /// Requests by outcome; all outcomes are there, and together they are `scheduled`.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Answers by HTTP status.
    pub statuses: BTreeMap<u16, u64>,
    /// Failures by kind.
    pub errors: BTreeMap<String, u64>,
    /// Response time, from the intended start, of requests served, not found, timed out and unfinished (these two at their
    /// age): neither refusals nor failures improve it, and nothing that was waited for is missing.
    pub response: Distribution,
    /// Service time, from the actual send, of the same requests, as far as they were sent.
    pub service: Distribution,
    /// How late the generator itself was: from the moment when a request could be sent to the moment when it was.
    pub send_lag: Distribution,
    /// Each operation and outcome for itself.
    pub cells: Vec<Cell>,
}

/// One operation with one outcome.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Cell {
    /// The operation.
    pub operation: Operation,
    /// The outcome.
    pub outcome: Outcome,
    /// From the intended start.
    pub response: Distribution,
    /// From the actual send.
    pub service: Distribution,
}

/// A piece of the run, by the time of completion.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// Its start, from the start of the schedule.
    pub start_s: f64,
    /// Its length.
    pub length_s: f64,
    /// Whether it begins in the warm-up.
    pub warm_up: bool,
    /// What the schedule asked for, per second; `null` in closed mode.
    pub scheduled_per_s: Option<f64>,
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that ended, by outcome; those that are 0 are left out.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Answers served or not found within `good_within_us`.
    pub good: u64,
    /// Response time as in [`Section::response`]; `null` when nothing ended.
    pub response: Option<Summary>,
    /// The generator's lag; `null` when nothing was sent.
    pub send_lag: Option<Summary>,
}

/// A part of the measured part: all requests that *ended* in it, whenever they were to start.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Piece {
    /// Its start, from the start of the schedule.
    pub start_s: f64,
    /// Its length, the same for all.
    pub length_s: f64,
    /// Of these, served, or for a workload of keys not found, within `good_within_us` of their intended start, by the length.
    pub goodput_per_s: f64,
    /// Requests that ended in it, by outcome; those that are 0 are left out.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Response time as in [`Section::response`].
    pub response: Distribution,
}

/// A distribution in few words.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Largest.
    pub max_us: f64,
}

/// A distribution.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Distribution {
    /// Samples.
    pub count: u64,
    /// `null` without samples, as all that follows.
    pub mean_us: Option<f64>,
    /// Standard deviation.
    pub stddev_us: Option<f64>,
    /// Smallest.
    pub min_us: Option<f64>,
    /// Largest.
    pub max_us: Option<f64>,
    /// 50, 75, 90, 95, 99, 99.9, 99.99, 99.999, 100; empty without samples.
    pub percentiles: Vec<Percentile>,
    /// The histogram itself, nanoseconds: HdrHistogram V2, compressed, base64. `null` without samples.
    pub histogram: Option<String>,
}

/// A point of a distribution.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Percentile {
    /// Percent.
    pub percentile: f64,
    /// The value that so many percent do not exceed.
    pub value_us: f64,
    /// Samples that lie above it, by rank: what the value rests on.
    pub samples_above: u64,
    /// `false`: fewer than 10 samples lie above, so the value is that of single requests. Always `true` at 100.
    pub enough: bool,
}

/// Nanoseconds as microseconds.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 ns, which are 104 days")]
pub fn micros(nanos: Nanos) -> f64 {
    nanos as f64 / 1e3
}

impl Summary {
    /// Of a histogram in nanoseconds; `None` without samples.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Option<Summary> {
        let at = |percentile| micros(value_at(histogram, percentile));
        (!histogram.is_empty()).then(|| Summary {
            p50_us: at(50.0),
            p90_us: at(90.0),
            p99_us: at(99.0),
            p999_us: at(99.9),
            max_us: micros(histogram.max()),
        })
    }
}

impl Distribution {
    /// Of a histogram in nanoseconds.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Distribution {
        if histogram.is_empty() {
            return Distribution::default();
        }
        Distribution {
            count: histogram.len(),
            mean_us: Some(histogram.mean() / 1e3),
            stddev_us: Some(histogram.stdev() / 1e3),
            min_us: Some(micros(histogram.min())),
            max_us: Some(micros(histogram.max())),
            percentiles: PERCENTILES.iter().map(|percentile| Percentile::of(histogram, *percentile)).collect(),
            histogram: Some(encode(histogram)),
        }
    }

    /// The histogram, nanoseconds, which is empty without samples.
    ///
    /// # Errors
    /// When it is not what [`Distribution::of`] has written, or does not hold as many samples as it should.
    pub fn to_histogram(&self) -> anyhow::Result<Histogram<u64>> {
        let histogram = match &self.histogram {
            None => recorder::histogram(),
            Some(text) => {
                let bytes = base64::engine::general_purpose::STANDARD.decode(text).context("no base64")?;
                Deserializer::new()
                    .deserialize(&mut bytes.as_slice())
                    .map_err(|error| anyhow!("no compressed HdrHistogram: {error:?}"))?
            }
        };
        ensure!(histogram.len() == self.count, "{} samples instead of {}", histogram.len(), self.count);
        Ok(histogram)
    }

    /// The value at one of [`PERCENTILES`]; `None` without samples.
    #[must_use]
    pub fn at(&self, percentile: f64) -> Option<&Percentile> {
        self.percentiles.iter().find(|point| (point.percentile - percentile).abs() < 1e-9)
    }
}

impl Percentile {
    /// One point of a histogram in nanoseconds, which must not be empty.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>, percentile: f64) -> Percentile {
        let samples_above = samples_above(histogram.len(), percentile);
        Percentile {
            percentile,
            value_us: micros(value_at(histogram, percentile)),
            samples_above,
            enough: percentile >= 100.0 || samples_above >= SAMPLES_ABOVE_MIN,
        }
    }
}

/// The value that `percentile` of the samples do not exceed, nanoseconds; 0 without samples.
#[must_use]
pub fn value_at(histogram: &Histogram<u64>, percentile: f64) -> Nanos {
    // 99.9 / 100 is a little more than 0.999, which would make rank 19,981 of 19,980; the allowance is below one rank for
    // any count that a run can reach.
    let quantile = percentile / 100.0 * (1.0 - 1e-13);
    histogram.value_at_quantile(quantile).min(histogram.max())
}

/// How many of `count` samples have a higher rank than the one at `percentile`.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank between 0 and the count"
)]
fn samples_above(count: u64, percentile: f64) -> u64 {
    let rank = (percentile / 100.0 * (1.0 - 1e-13) * count as f64).ceil().max(1.0) as u64;
    count.saturating_sub(rank)
}

fn encode(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(histogram, &mut bytes).expect("a vector takes every byte");
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// A result of 100 requests, for tests.
#[doc(hidden)]
#[must_use]
pub fn sample() -> RunResult {
    let measured = Section {
        duration_s: 1.0,
        scheduled: 100,
        sent: 100,
        statuses: BTreeMap::from([(200, 90), (404, 10)]),
        ..Section::default()
    };
    let load = Load {
        mode: Mode::Open,
        arrival: Some("constant".to_owned()),
        seed: 1,
        stages: Vec::new(),
        warm_up_s: 0.0,
        duration_s: 1.0,
        drain_s: 1.0,
        timeout_s: 30.0,
        connections: 64,
        connections_max: 64,
        threads: 1,
        polls: true,
        script: None,
        requests_per_start: 1,
        workload: "get".to_owned(),
    };
    RunResult {
        schema: SCHEMA.to_owned(),
        klad_version: "0".to_owned(),
        command: Vec::new(),
        started: Started::default(),
        machine: Machine::default(),
        target: Target::default(),
        load,
        interrupted_s: None,
        valid: true,
        checks: Vec::new(),
        slo: None,
        measured,
        warm_up: None,
        stages: Vec::new(),
        longest_gap_s: 0.0,
        intervals: Vec::new(),
        pieces: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_above_a_percentile_are_counted_by_rank() {
        assert_eq!(samples_above(1_000, 50.0), 500);
        assert_eq!(samples_above(1_000, 99.0), 10);
        assert_eq!(samples_above(1_000, 99.9), 1);
        assert_eq!(samples_above(1_000, 99.99), 0);
        assert_eq!(samples_above(1_000_000, 99.999), 10);
        assert_eq!(samples_above(1, 50.0), 0);
        assert_eq!(samples_above(1_000, 100.0), 0);
    }

    #[test]
    fn nothing_measured_is_null_and_not_a_number_that_is_none() {
        let json = serde_json::to_value(Distribution::of(&Histogram::new(3).expect("3 digits"))).expect("json");
        assert_eq!(json["count"], 0);
        assert!(json["mean_us"].is_null());
    }

    #[test]
    fn a_histogram_is_read_back_and_one_that_is_damaged_is_noticed() {
        let mut histogram = recorder::histogram();
        histogram.record_n(123_456, 7).expect("in range");
        let distribution = Distribution::of(&histogram);
        assert_eq!(distribution.to_histogram().expect("as it was written"), histogram);
        assert!(Distribution::default().to_histogram().expect("empty").is_empty());
        for text in ["!", "aGVsbG8=", ""] {
            let damaged = Distribution { histogram: Some(text.to_owned()), ..distribution.clone() };
            assert!(damaged.to_histogram().is_err(), "{text}");
        }
        assert!(Distribution { histogram: None, ..distribution }.to_histogram().is_err(), "7 samples are missing");
    }

    #[test]
    fn a_percentile_without_enough_samples_is_marked() {
        let mut histogram = Histogram::new(3).expect("3 digits");
        histogram.record_n(1_000_000, 9_999).expect("in range");
        let distribution = Distribution::of(&histogram);
        assert!(distribution.at(99.0).expect("there").enough);
        let point = distribution.at(99.9).expect("there");
        assert_eq!((point.samples_above, point.enough), (9, false));
        assert!(distribution.at(100.0).expect("there").enough);
    }
}
