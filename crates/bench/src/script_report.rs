//! The report of a run for a script's `done`: `summary`, `latency` and `requests`, in wrk's units. Called by
//! `scripts` and `script`.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use mlua::{Lua, MetaMethod, Table, UserData, UserDataFields, UserDataMethods};

use crate::recorder::Failure;
use crate::result::{Interval, RunResult};
use crate::script::missing_field;

/// The report of a run in wrk's terms.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Length of the measured part, microseconds.
    duration: u64,
    /// The number of answered requests.
    requests: u64,
    /// Bytes of answers, including heads.
    bytes: u64,
    /// The numbers of errors, with their names in `summary.errors`.
    errors: Vec<(&'static str, u64)>,
    /// Response times, microseconds.
    latency: Stats,
    /// Requests that ended per second and thread, with one sample for each interval.
    rates: Stats,
}

impl Report {
    /// Makes the report of a run with these response times of its measured part, in nanoseconds.
    #[must_use]
    pub fn of(result: &RunResult, response: &Histogram<u64>) -> Report {
        let measured = &result.measured;
        let failures = |kinds: &[Failure]| -> u64 {
            kinds.iter().filter_map(|kind| measured.errors.get(kind.name())).copied().sum()
        };
        let refused: u64 = measured.statuses.iter().filter(|(status, _)| **status > 399).map(|(_, count)| count).sum();
        let mut latency = BTreeMap::new();
        for value in response.iter_recorded() {
            *latency.entry(value.value_iterated_to().min(response.max()) / 1_000).or_insert(0) +=
                value.count_at_value();
        }
        let mut rates = BTreeMap::new();
        let end = result.load.warm_up_s + result.load.duration_s;
        for interval in result.intervals.iter().filter(|interval| !interval.warm_up && interval.start_s < end) {
            *rates.entry(rate(interval, result.load.threads)).or_insert(0) += 1;
        }
        Report {
            duration: whole(measured.duration_s * 1e6),
            requests: measured.statuses.values().sum::<u64>() * u64::from(result.load.requests_per_start),
            bytes: measured.bytes_received,
            errors: vec![
                ("connect", failures(&[Failure::Connect, Failure::Ports, Failure::Descriptors])),
                ("read", failures(&[Failure::Reset, Failure::Closed, Failure::Malformed])),
                ("write", 0),
                ("status", refused),
                ("timeout", measured.timeouts_without_answer()),
            ],
            latency: Stats::new(latency),
            rates: Stats::new(rates),
        }
    }

    /// Returns the arguments of `done`.
    pub(super) fn in_lua(&self, lua: &Lua) -> mlua::Result<(Table, Stats, Stats)> {
        let summary = lua.create_table()?;
        summary.set("duration", self.duration)?;
        summary.set("requests", self.requests)?;
        summary.set("bytes", self.bytes)?;
        let errors = lua.create_table()?;
        for (name, count) in &self.errors {
            errors.set(*name, *count)?;
        }
        summary.set("errors", errors)?;
        Ok((summary, self.latency.clone(), self.rates.clone()))
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn rate(interval: &Interval, threads: usize) -> u64 {
    let ended: u64 = interval.outcomes.values().sum();
    whole(ended as f64 / interval.length_s / threads.max(1) as f64)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and far below 2^53")]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// Values in ascending order, with the number of their occurrences.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Stats {
    values: Vec<(u64, u64)>,
    count: u64,
}

impl Stats {
    fn new(values: BTreeMap<u64, u64>) -> Stats {
        let count = values.values().sum();
        Stats { values: values.into_iter().collect(), count }
    }

    fn min(&self) -> u64 {
        self.values.first().map_or(0, |(value, _)| *value)
    }

    fn max(&self) -> u64 {
        self.values.last().map_or(0, |(value, _)| *value)
    }

    #[expect(clippy::cast_precision_loss, reason = "microseconds and counts")]
    fn sum_of(&self, term: impl Fn(f64) -> f64) -> f64 {
        self.values.iter().map(|(value, count)| term(*value as f64) * *count as f64).sum()
    }

    #[expect(clippy::cast_precision_loss, reason = "a count")]
    fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum_of(|value| value) / self.count as f64 }
    }

    /// The sample standard deviation, as in wrk.
    #[expect(clippy::cast_precision_loss, reason = "a count")]
    fn stdev(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let mean = self.mean();
        (self.sum_of(|value| (value - mean).powi(2)) / (self.count - 1) as f64).sqrt()
    }

    #[expect(clippy::cast_precision_loss, reason = "a count")]
    fn percentile(&self, percent: f64) -> u64 {
        let rank = whole(percent / 100.0 * self.count as f64).clamp(1, self.count.max(1));
        let mut through = 0;
        let at = self.values.iter().find(|(_, count)| {
            through += count;
            through >= rank
        });
        at.map_or(0, |(value, _)| *value)
    }
}

impl UserData for Stats {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_field_method_get("min", |_, this| Ok(this.min()));
        fields.add_field_method_get("max", |_, this| Ok(this.max()));
        fields.add_field_method_get("mean", |_, this| Ok(this.mean()));
        fields.add_field_method_get("stdev", |_, this| Ok(this.stdev()));
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_meta_method(MetaMethod::Index, missing_field);
        methods.add_method("percentile", |_, this, percent: f64| Ok(this.percentile(percent)));
        methods.add_meta_method(MetaMethod::Len, |_, this, ()| Ok(this.values.len()));
        // Returns the value with this number, from 1, and its count. After the last value both are 0, as in wrk.
        methods.add_meta_method(MetaMethod::Call, |_, this, number: i64| {
            let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
            Ok(index.and_then(|index| this.values.get(index)).copied().unwrap_or((0, 0)))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{Outcome, histogram};

    #[test]
    fn an_answer_504_is_a_status_and_not_also_a_timeout() {
        let mut result = crate::result::sample();
        result.measured.statuses = BTreeMap::from([(200, 90), (504, 3)]);
        result.measured.outcomes = BTreeMap::from([(Outcome::Served, 90), (Outcome::TimedOut, 10)]);
        let report = Report::of(&result, &histogram());
        let errors = [("connect", 0), ("read", 0), ("write", 0), ("status", 3), ("timeout", 7)];
        assert_eq!(report.errors, errors);
    }

    #[test]
    fn statistics_follow_from_the_values() {
        let stats = Stats::new(BTreeMap::from([(10, 98), (20, 1), (1_000, 1)]));
        assert_eq!((stats.min(), stats.max(), stats.percentile(50.0), stats.percentile(99.0)), (10, 1_000, 10, 20));
        assert_eq!(stats.percentile(100.0), 1_000);
        assert!((stats.mean() - 20.0).abs() < 1e-9);
        let variance: f64 = (98.0 * 100.0 + 980.0 * 980.0) / 99.0;
        assert!((stats.stdev() - variance.sqrt()).abs() < 1e-9);
        let none = Stats::default();
        assert_eq!((none.min(), none.percentile(99.0)), (0, 0));
        assert!(none.mean().abs() + none.stdev().abs() < 1e-9);
    }

    #[test]
    fn scripts_read_statistics_as_in_wrk() {
        let lua = Lua::new();
        let stats = Stats::new(BTreeMap::from([(10, 98), (1_000, 2)]));
        lua.globals().set("latency", stats).expect("set");
        let script = "local v, c = latency(2); return latency.max, latency:percentile(99), #latency, v, c, latency(3)";
        let found: (u64, u64, usize, u64, u64, u64) = lua.load(script).eval().expect("it runs");
        assert_eq!(found, (1_000, 1_000, 2, 1_000, 2, 0));
        let unknown: (String, String) = lua.load("return latency.p99, latency[7]").eval().expect("it runs");
        assert_eq!(unknown, ("p99".to_owned(), "7".to_owned()));
    }
}
