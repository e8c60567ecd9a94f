//! Made-up results for the tests of the page.

use std::collections::BTreeMap;

use crate::recorder::Outcome;
use crate::result::{Interval, Load, RunResult, Section, Stage, Summary, sample};

/// An interval with ten served requests.
pub(super) fn interval(start_s: f64, length_s: f64) -> Interval {
    Interval {
        start_s,
        length_s,
        warm_up: false,
        scheduled_per_s: Some(10.0),
        sent: 10,
        outcomes: BTreeMap::from([(Outcome::Served, 10)]),
        good: 10,
        response: None,
        send_lag: None,
    }
}

/// A distribution around a median, in microseconds.
pub(super) fn summary(p50_us: f64) -> Summary {
    Summary { p50_us, p90_us: p50_us * 2.1, p99_us: p50_us * 4.7, p999_us: p50_us * 9.3, max_us: p50_us * 21.7 }
}

/// A valid run of this many seconds at 10/s, without a warm-up.
pub(super) fn result(intervals: u32) -> RunResult {
    let duration_s = f64::from(intervals);
    let sample = sample();
    let stages = vec![Stage { from_per_s: Some(10.0), to_per_s: Some(10.0), duration_s }];
    RunResult {
        load: Load { stages, duration_s, ..sample.load },
        measured: Section { duration_s, ..Section::default() },
        intervals: (0..intervals).map(|second| interval(f64::from(second), 1.0)).collect(),
        ..sample
    }
}
