//! One run of `klad bench`: started on a core of its own, bounded in time, and what it says of itself.
//!
//! The definitions are ours, of the fields that chores read: a field that klad renames is an error here and not a zero.
//! Called by `bench_truth` and `bench_cost`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use crate::cores;
use crate::process::{Ended, Running};

/// The form that is understood.
const SCHEMA: &str = "klad.bench/1";

/// Exit code of a run that is complete, and that klad bench itself does not believe.
const NOT_VALID: i32 = 4;

/// The result, as far as chores read it.
#[derive(Debug, Deserialize)]
pub(crate) struct RunResult {
    schema: String,
    /// The start of the schedule.
    pub(crate) started: Started,
    /// Whether klad bench believes its own figures.
    pub(crate) valid: bool,
    /// Why, or why not.
    pub(crate) checks: Vec<Check>,
    /// After the warm-up.
    pub(crate) measured: Section,
    /// The warm-up.
    pub(crate) warm_up: Option<Section>,
    /// Without a good answer, seconds.
    pub(crate) longest_gap_s: f64,
    /// Pieces of the run, warm-up included.
    pub(crate) intervals: Vec<Interval>,
    /// Where it ran.
    pub(crate) machine: Machine,
}

/// The machine that made the load.
#[derive(Debug, Deserialize)]
pub(crate) struct Machine {
    /// Of the time of all cores, what the host kept for others, percent; nothing where that is not known.
    pub(crate) steal_percent: Option<f64>,
}

/// A piece of a run.
#[derive(Debug, Deserialize)]
pub(crate) struct Interval {
    /// Not measured.
    pub(crate) warm_up: bool,
    /// Nothing when nothing has ended.
    pub(crate) response: Option<Summary>,
}

/// Of the response times in a piece.
#[derive(Debug, Deserialize)]
pub(crate) struct Summary {
    /// Microseconds.
    pub(crate) p999_us: f64,
}

/// The start of the schedule.
#[derive(Debug, Deserialize)]
pub(crate) struct Started {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub(crate) monotonic_ns: u64,
}

/// A judgement of klad bench on itself.
#[derive(Debug, Deserialize)]
pub(crate) struct Check {
    /// What was looked at.
    pub(crate) name: String,
    /// Whether it is as it should be.
    pub(crate) passed: bool,
    /// Figures, in words.
    pub(crate) detail: String,
}

/// Requests by the time of their intended start.
#[derive(Debug, Deserialize)]
pub(crate) struct Section {
    /// Length of the part, seconds.
    pub(crate) duration_s: f64,
    /// Requests that were to be.
    pub(crate) scheduled: u64,
    /// Served or not found in time, by the length.
    pub(crate) goodput_per_s: f64,
    /// Of them, sent.
    pub(crate) sent: u64,
    /// Of them, not sent.
    pub(crate) unsent: u64,
    /// Sent, and without an answer at the end.
    pub(crate) in_flight_at_end: u64,
    /// By name.
    pub(crate) outcomes: BTreeMap<String, u64>,
    /// Answers by status.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// From the intended start; neither refusals nor failures.
    pub(crate) response: Distribution,
    /// From the actual send.
    pub(crate) service: Distribution,
    /// By operation and outcome.
    pub(crate) cells: Vec<Cell>,
}

/// One operation with one outcome.
#[derive(Debug, Deserialize)]
pub(crate) struct Cell {
    /// By name.
    pub(crate) outcome: String,
    /// From the intended start.
    pub(crate) response: Distribution,
}

/// A distribution.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Distribution {
    /// Samples.
    pub(crate) count: u64,
    /// Empty without samples.
    pub(crate) percentiles: Vec<Percentile>,
}

/// A point of a distribution.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Percentile {
    /// Percent.
    pub(crate) percentile: f64,
    /// Microseconds.
    pub(crate) value_us: f64,
}

impl Distribution {
    /// The value at `percent`, microseconds; `None` without samples.
    pub(crate) fn at(&self, percent: f64) -> Option<f64> {
        let point = self.percentiles.iter().find(|point| (point.percentile - percent).abs() < 1e-9)?;
        Some(point.value_us)
    }
}

impl Section {
    /// Requests with the outcome `name`.
    pub(crate) fn outcome(&self, name: &str) -> u64 {
        self.outcomes.get(name).copied().unwrap_or_default()
    }
}

/// Runs `program` with `bench` and `arguments` on `core`, at most for `wall_max`; `directory` holds the result for a while.
pub(crate) fn run(
    program: &Path,
    arguments: &[String],
    core: usize,
    wall_max: Duration,
    directory: &Path,
) -> Result<(RunResult, Ended)> {
    cores::on(core, || run_anywhere(program, arguments, wall_max, directory))
}

/// The same on any core.
pub(crate) fn run_anywhere(
    program: &Path,
    arguments: &[String],
    wall_max: Duration,
    directory: &Path,
) -> Result<(RunResult, Ended)> {
    let json = directory.join("bench.json");
    let mut command = Command::new(program);
    command.arg("bench").args(arguments).args(["--progress", "never"]).arg("--json").arg(&json);
    // The text, which says the same. What klad bench warns of comes with the checks of its result.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let ended = Running::start(&mut command)?.wait(wall_max).context("klad bench")?;
    match ended.status.code() {
        Some(0 | NOT_VALID) => {}
        _ => bail!("klad bench has failed with {}: klad bench {}", ended.status, arguments.join(" ")),
    }
    let text = fs::read_to_string(&json).with_context(|| format!("cannot read {}", json.display()))?;
    let result = parse(&text)?;
    ensure!(result.valid == ended.status.success(), "the result has valid {}, and {}", result.valid, ended.status);
    fs::remove_file(&json)?;
    Ok((result, ended))
}

fn parse(text: &str) -> Result<RunResult> {
    let result: RunResult = serde_json::from_str(text).context("the result of klad bench is not as expected")?;
    ensure!(result.schema == SCHEMA, "the result of klad bench is {} instead of {SCHEMA}", result.schema);
    Ok(result)
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A distribution with these values, microseconds, at the percentiles that are asked for.
    pub(crate) fn distribution(count: u64, values: &[(f64, f64)]) -> Distribution {
        let percentiles =
            values.iter().map(|(percentile, value_us)| Percentile { percentile: *percentile, value_us: *value_us });
        Distribution { count, percentiles: percentiles.collect() }
    }

    /// A valid run with this distribution.
    pub(crate) fn with_response(response: Distribution) -> RunResult {
        let mut result = parse(&result(SCHEMA).to_string()).expect("as expected");
        result.measured.response = response;
        result
    }

    fn result(schema: &str) -> Value {
        let distribution =
            json!({ "count": 1, "percentiles": [{ "percentile": 99.9, "value_us": 1.5, "enough": true }] });
        let section = json!({
            "duration_s": 10.0, "scheduled": 1, "goodput_per_s": 0.1, "sent": 1, "unsent": 0, "in_flight_at_end": 0,
            "outcomes": { "served": 1, "refused": 0 }, "statuses": { "200": 1 },
            "response": distribution, "service": distribution,
            "cells": [{ "operation": "get", "outcome": "served", "response": distribution }],
        });
        json!({
            "schema": schema, "started": { "utc": "", "monotonic_ns": 7 }, "valid": true, "warm_up": null, "longest_gap_s": 0.0,
            "intervals": [{ "warm_up": false, "response": { "p999_us": 1.5 } }, { "warm_up": false, "response": null }],
            "checks": [{ "name": "send_lag", "passed": true, "detail": "" }], "measured": section,
            "machine": { "steal_percent": 0.5 },
        })
    }

    #[test]
    fn a_result_is_read() {
        let result = parse(&result(SCHEMA).to_string()).expect("as expected");
        assert_eq!((result.measured.outcome("served"), result.measured.outcome("failed")), (1, 0));
        assert_eq!(result.measured.statuses[&200], 1);
        assert_eq!(result.measured.response.at(99.9), Some(1.5));
        assert_eq!(result.measured.response.at(50.0), None);
        let seconds: Vec<_> =
            result.intervals.iter().map(|one| one.response.as_ref().map(|found| found.p999_us)).collect();
        assert_eq!(seconds, [Some(1.5), None]);
    }

    #[test]
    fn another_form_of_result_is_an_error() {
        assert!(parse(&result("klad.bench/2").to_string()).is_err());
        let mut renamed = result(SCHEMA);
        let section = renamed["measured"].as_object_mut().expect("an object");
        let sent = section.remove("sent").expect("there");
        section.insert("sends".to_owned(), sent);
        assert!(parse(&renamed.to_string()).is_err());
    }
}
