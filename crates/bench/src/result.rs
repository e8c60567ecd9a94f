//! The result of a run as data: the definitions of `--json` and of its schema. The text and the HTML page show the same
//! data; they also use the histograms of the run.
//!
//! Numbers are finite: a value that was not measured is `null` or absent, never NaN. The names of times and rates end
//! with their units, such as `_us`, `_s` and `_per_s`. Response times, service times and send lags were recorded in
//! nanoseconds, in histograms with three digits. A change that breaks programs which read the JSON increments the
//! number in [`SCHEMA`].

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

/// The percentiles of every [`Distribution`]: those that wrk2 prints, and p95.
pub const PERCENTILES: [f64; 9] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999, 100.0];

/// A percentile with fewer samples above it is marked: its value depends on single requests.
pub const SAMPLES_ABOVE_MIN: u64 = 10;

/// The result of one run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RunResult {
    /// Always `klad.bench/1`, the name and version of this JSON form.
    pub schema: String,
    /// The version of klad that made the load.
    pub klad_version: String,
    /// The command line, without the values of headers that hold credentials.
    pub command: Vec<String>,
    /// The time at which the schedule began.
    pub started: Started,
    /// The machine that made the load.
    pub machine: Machine,
    /// The server that received the load.
    pub target: Target,
    /// The load that was requested.
    pub load: Load,
    /// The time, from the start of the schedule, at which the run was ended early; `null` if the run was not ended
    /// early. If the run was ended early, the lengths and rates in `measured`, `warm_up` and `stages` are those of the
    /// part that was run. `load` has the planned lengths and rates.
    pub interrupted_s: Option<f64>,
    /// `false` if at least one check failed: the figures are not reliable.
    pub valid: bool,
    /// The generator's checks of its own run.
    pub checks: Vec<Check>,
    /// The objectives of `--slo`, and whether they were met; `null` without `--slo`.
    pub slo: Option<Slo>,
    /// Requests with an intended start after the warm-up.
    pub measured: Section,
    /// Requests with an intended start in the warm-up; `null` without a warm-up.
    pub warm_up: Option<Section>,
    /// The stages of the measured part, one section for each that was begun; empty if there is only one stage.
    pub stages: Vec<Section>,
    /// The longest time in the measured part without a good answer: from the beginning, between two good answers, or
    /// to the end. `measured.goodput_per_s` says which answers are good. The resolution is a hundredth of an
    /// interval, so the value may be too short by up to two hundredths of an interval.
    pub longest_gap_s: f64,
    /// The run in intervals, including the warm-up and the drain, by the time at which requests ended. All are equally
    /// long, but the last interval of the schedule may be shorter.
    pub intervals: Vec<Interval>,
    /// The measured part in at most ten equal groups of whole intervals, by the time at which requests ended. `klad
    /// bench compare` uses them as repeats if one of its sides is a single run. Empty if there is no whole interval,
    /// and in results of older versions.
    #[serde(default)]
    pub pieces: Vec<Piece>,
}

/// The time at which the schedule began.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Started {
    /// Wall clock, RFC 3339, UTC.
    pub utc: String,
    /// The same moment on this machine's `CLOCK_MONOTONIC`, nanoseconds.
    pub monotonic_ns: u64,
}

/// The machine that made the load.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// Host name.
    pub host: String,
    /// Name and release of the kernel.
    pub kernel: String,
    /// Model of the CPU.
    pub cpu: String,
    /// The number of cores that the generator may use.
    pub cores: usize,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// CPU time that the hypervisor gave to others during the run, percent of the time of all cores; `null` if unknown.
    pub steal_percent: Option<f64>,
}

/// The server that received the load.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Target {
    /// The URL as given.
    pub url: String,
    /// The address to which the generator connected, unless a script chose other addresses.
    pub address: String,
    /// Whether the address belongs to this machine: generator and server then compete for its cores.
    pub same_machine: bool,
}

/// The load that was requested.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Load {
    /// Open: requests start by a schedule. Closed: a request starts after each answer.
    pub mode: Mode,
    /// `constant` or `poisson`; `null` in closed mode.
    pub arrival: Option<String>,
    /// The seed of arrivals, keys and values.
    pub seed: u64,
    /// Stages with rates and lengths, without the warm-up.
    pub stages: Vec<Stage>,
    /// Length of the warm-up.
    pub warm_up_s: f64,
    /// Length of the measured part.
    pub duration_s: f64,
    /// The longest time that the run waits, at its end, for answers to requests in flight.
    pub drain_s: f64,
    /// Deadline of each request, from its intended start.
    pub timeout_s: f64,
    /// The number of connections to open before the start. If some could not be opened, the check `connections` failed.
    pub connections: usize,
    /// The largest number of connections; equal to `connections` if the number is fixed.
    pub connections_max: usize,
    /// The number of generator threads.
    pub threads: usize,
    /// Whether threads poll at the end of a wait, if their core is nearly free, instead of sleeping.
    #[serde(default = "yes")]
    pub polls: bool,
    /// The path of the script that wrote the requests; `null` without a script. Each thread runs the script
    /// separately.
    #[serde(default)]
    pub script: Option<String>,
    /// The number of requests in each start: more than 1 with `--pipeline`, or if a script sends several requests at
    /// once. For a script, this is the number in its first start. If the number is more than 1, all counts and rates of
    /// requests and answers in this result count starts, and the status of a start is the highest status among its
    /// answers.
    #[serde(default = "one")]
    pub requests_per_start: u32,
    /// The requests in words: operations, keys and values, or the fixed request, or the script.
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
    /// Requests per second at the beginning; `null` in closed mode.
    pub from_per_s: Option<f64>,
    /// Requests per second at the end; `null` in closed mode.
    pub to_per_s: Option<f64>,
    /// Length of the stage.
    pub duration_s: f64,
}

/// One of the generator's checks of its own run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// `send_lag`, `generator_cpu`, `rate`, `connections` or `machine_limits`.
    pub name: String,
    /// Whether the check passed.
    pub passed: bool,
    /// The figure and its bound, in words.
    pub detail: String,
}

/// The objectives of `--slo`, and whether they were met.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Slo {
    /// The objectives as given.
    pub text: String,
    /// Whether every objective is met.
    pub met: bool,
    /// Each objective.
    pub objectives: Vec<Objective>,
}

/// One objective.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Objective {
    /// The objective as given.
    pub text: String,
    /// The aspect of the server that the objective is about.
    #[serde(default)]
    pub concern: Concern,
    /// The measured value, in words; `null` if nothing was measured.
    pub measured: Option<String>,
    /// Whether the objective is met.
    pub met: bool,
}

/// A part of the run: all requests whose *intended start* lies in it, no matter when they ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Section {
    /// Length of the part.
    pub duration_s: f64,
    /// The number of intended starts.
    pub scheduled: u64,
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that were never sent, because no connection was free or open in time. They are among `timed_out` if
    /// they reached their deadline, else among `unfinished`. Requests whose connection failed are not among them.
    pub unsent: u64,
    /// Requests that were sent and had no answer at the end of the drain. They are among `unfinished`, with their age
    /// at the end of the drain.
    pub in_flight_at_end: u64,
    /// `scheduled` divided by the length.
    pub scheduled_per_s: f64,
    /// `sent` divided by the length.
    pub sent_per_s: f64,
    /// All answers that arrived in this part, no matter when their requests should have started, divided by the
    /// length.
    pub answered_per_s: f64,
    /// All good answers that arrived in this part, divided by the length. An answer is good if it arrived within
    /// `good_within_us` of the intended start, and the outcome is `served` (with `--workload` also `not_found`).
    pub goodput_per_s: f64,
    /// The limit for good answers: the longest response time that counts as goodput (`--good-within`).
    pub good_within_us: f64,
    /// Bytes of answers, including heads.
    pub bytes_received: u64,
    /// Bytes of requests, including heads.
    pub bytes_sent: u64,
    /// Requests by outcome. All outcomes are present, and their sum is `scheduled`.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Answers by HTTP status.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests that failed without a complete answer, by kind: `connect`, `reset`, `closed`, `malformed`,
    /// `no_port_left`, `no_descriptor_left`.
    pub errors: BTreeMap<String, u64>,
    /// Response time, from the intended start, of requests that were served, not found, timed out or unfinished (the
    /// last two with their age, if they had no answer). Rejected and failed requests are left out, so they do not
    /// improve the distribution.
    pub response: Distribution,
    /// Service time, from the actual send, of the requests in `response`, without those that were never sent.
    pub service: Distribution,
    /// The lateness of the generator itself: from the moment at which a request could be sent to the moment at which
    /// it was sent.
    pub send_lag: Distribution,
    /// One cell for each operation and outcome that occurred.
    pub cells: Vec<Cell>,
}

impl Section {
    /// Returns the number of requests that had no complete answer by their deadline. The outcome `timed_out` also
    /// counts every answer with status 504; wrk counts these by their status.
    pub(crate) fn timeouts_without_answer(&self) -> u64 {
        self.outcomes.get(&Outcome::TimedOut).copied().unwrap_or(0) - self.statuses.get(&504).copied().unwrap_or(0)
    }
}

/// The requests of one operation with one outcome.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Cell {
    /// The operation.
    pub operation: Operation,
    /// The outcome.
    pub outcome: Outcome,
    /// Response time, from the intended start.
    pub response: Distribution,
    /// Service time, from the actual send.
    pub service: Distribution,
}

/// An interval of the run, by the time at which requests ended.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// Beginning of the interval, from the start of the schedule.
    pub start_s: f64,
    /// Length of the interval.
    pub length_s: f64,
    /// Whether the interval begins in the warm-up.
    pub warm_up: bool,
    /// The mean scheduled rate, requests per second; `null` in closed mode.
    pub scheduled_per_s: Option<f64>,
    /// Requests that were sent in the interval.
    pub sent: u64,
    /// Requests that ended in the interval, by outcome; outcomes without a request are absent.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Good answers, as in [`Section::goodput_per_s`].
    pub good: u64,
    /// Response time of the outcomes in [`Section::response`]; `null` if no request ended with one of them.
    pub response: Option<Summary>,
    /// Send lag; `null` if no request was sent.
    pub send_lag: Option<Summary>,
}

/// A piece of the measured part: all requests that *ended* in it, no matter when they should have started.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Piece {
    /// Beginning of the piece, from the start of the schedule.
    pub start_s: f64,
    /// Length of the piece, the same for all pieces.
    pub length_s: f64,
    /// Good answers, as in [`Section::goodput_per_s`], divided by the length.
    pub goodput_per_s: f64,
    /// Requests that ended in the piece, by outcome; outcomes without a request are absent.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Response time as in [`Section::response`].
    pub response: Distribution,
}

/// A distribution in five figures.
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
    /// Maximum.
    pub max_us: f64,
}

/// A distribution.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Distribution {
    /// The number of samples.
    pub count: u64,
    /// Mean; `null` without samples.
    pub mean_us: Option<f64>,
    /// Standard deviation; `null` without samples.
    pub stddev_us: Option<f64>,
    /// Minimum; `null` without samples.
    pub min_us: Option<f64>,
    /// Maximum; `null` without samples.
    pub max_us: Option<f64>,
    /// The percentiles 50, 75, 90, 95, 99, 99.9, 99.99, 99.999 and 100; empty without samples.
    pub percentiles: Vec<Percentile>,
    /// The histogram in nanoseconds: HdrHistogram V2, compressed, base64. `null` without samples.
    pub histogram: Option<String>,
}

/// A point of a distribution.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Percentile {
    /// The percentile, 0 to 100.
    pub percentile: f64,
    /// The value that this percentage of the samples does not exceed.
    pub value_us: f64,
    /// The number of samples above the value, by rank.
    pub samples_above: u64,
    /// `false` if `samples_above` is less than 10: single requests then decide the value. Always `true` for percentile
    /// 100, the maximum.
    pub enough: bool,
}

/// Converts nanoseconds to microseconds.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 ns, which are 104 days")]
pub fn micros(nanos: Nanos) -> f64 {
    nanos as f64 / 1e3
}

impl Summary {
    /// Summarizes a histogram of nanoseconds; `None` without samples.
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
    /// Makes a distribution from a histogram of nanoseconds.
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

    /// Returns the histogram, in nanoseconds; empty without samples.
    ///
    /// # Errors
    /// If the text was not written by [`Distribution::of`], or if its number of samples is not `count`.
    pub fn to_histogram(&self) -> anyhow::Result<Histogram<u64>> {
        let histogram = match &self.histogram {
            None => recorder::histogram(),
            Some(text) => {
                let bytes = base64::engine::general_purpose::STANDARD.decode(text).context("it is not base64")?;
                Deserializer::new()
                    .deserialize(&mut bytes.as_slice())
                    .map_err(|error| anyhow!("it is not a compressed HdrHistogram: {error:?}"))?
            }
        };
        ensure!(histogram.len() == self.count, "it has {} samples instead of {}", histogram.len(), self.count);
        Ok(histogram)
    }

    /// Returns the point at a percentile, which must be one of [`PERCENTILES`]; `None` without samples.
    #[must_use]
    pub fn at(&self, percentile: f64) -> Option<&Percentile> {
        self.percentiles.iter().find(|point| (point.percentile - percentile).abs() < 1e-9)
    }
}

impl Percentile {
    /// Makes one point from a histogram of nanoseconds, which must not be empty.
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

/// Returns the value, in nanoseconds, that `percentile` of the samples do not exceed; 0 without samples.
#[must_use]
pub fn value_at(histogram: &Histogram<u64>, percentile: f64) -> Nanos {
    // 99.9 / 100 is slightly more than 0.999, which would select rank 19,981 instead of 19,980 of 20,000 samples. The
    // correction is less than one rank for any count that a run can reach.
    let quantile = percentile / 100.0 * (1.0 - 1e-13);
    histogram.value_at_quantile(quantile).min(histogram.max())
}

/// The number of samples among `count` with a higher rank than the one at `percentile`.
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

/// Makes a result of 100 requests, for tests.
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
    fn a_distribution_without_samples_has_null_and_not_nan() {
        let json = serde_json::to_value(Distribution::of(&Histogram::new(3).expect("3 digits"))).expect("json");
        assert_eq!(json["count"], 0);
        assert!(json["mean_us"].is_null());
    }

    #[test]
    fn a_histogram_is_read_back_and_a_damaged_one_is_noticed() {
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
