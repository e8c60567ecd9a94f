//! Response times over time, as counts in logarithmic buckets: what the heat map of a page shows.
//!
//! It takes what each interval has recorded and keeps a bounded number of columns: when they are full, neighbours become one,
//! and no count is lost. So a day costs no more memory than an hour. Filled by `runner`, drawn by `page`.

use hdrhistogram::Histogram;

use crate::recorder::Tally;
use crate::result::Interval;
use crate::schedule::Nanos;
use klad_page::{Axis, HeatMap, Unit};

/// Columns of a map at the most; even, so that all of them have a neighbour to become one with.
const COLUMNS_MAX: usize = 600;

/// Buckets for each power of ten: each is 12 % wider than the one below.
const BUCKETS_PER_DECADE: f64 = 20.0;

/// The map so far.
#[derive(Debug)]
pub struct Heat {
    columns: Vec<Column>,
    /// Intervals that a full column holds.
    per_column: usize,
}

#[derive(Debug)]
struct Column {
    intervals: usize,
    from_s: f64,
    to_s: f64,
    /// By bucket, from 1 ns upwards; no longer than its highest.
    counts: Vec<u64>,
}

impl Heat {
    /// Nothing has been recorded.
    #[must_use]
    pub fn new() -> Heat {
        Heat { columns: Vec::new(), per_column: 1 }
    }

    /// Adds the response times of an interval; intervals come in their order.
    pub fn add(&mut self, interval: &Interval, tally: &Tally) {
        let mut column = Column {
            intervals: 1,
            from_s: interval.start_s,
            to_s: interval.start_s + interval.length_s,
            counts: vec![],
        };
        for (_, outcome, cell) in tally.cells() {
            if outcome.is_waited_for() {
                column.record(&cell.response);
            }
        }
        self.push(column);
    }

    fn push(&mut self, column: Column) {
        if let Some(last) = self.columns.last_mut()
            && last.intervals < self.per_column
        {
            last.take_in(column);
            return;
        }
        if self.columns.len() == COLUMNS_MAX {
            self.per_column *= 2;
            let mut rest = std::mem::take(&mut self.columns).into_iter();
            while let Some(mut first) = rest.next() {
                rest.next().into_iter().for_each(|second| first.take_in(second));
                self.columns.push(first);
            }
        }
        self.columns.push(column);
    }

    /// As a figure with this axis of time.
    #[must_use]
    pub fn figure(&self, time: Axis) -> HeatMap {
        let used = |column: &Column| column.counts.iter().position(|count| *count > 0);
        let lowest = self.columns.iter().filter_map(used).min().unwrap_or(0);
        let highest = self.columns.iter().map(|column| column.counts.len()).max().unwrap_or(0).max(lowest + 1);
        let columns: Vec<_> =
            self.columns.iter().map(|one| one.counts.get(lowest..).unwrap_or_default().to_vec()).collect();
        let mut x_edges: Vec<f64> = self.columns.iter().map(|column| column.from_s).collect();
        x_edges.push(self.columns.last().map_or(0.0, |last| last.to_s));
        let y_edges = (lowest..=highest).map(edge_us).collect();
        let axes = [time, Axis::log(Unit::Micros)];
        HeatMap::new("heat", "Response times over time", "requests", axes, [x_edges, y_edges], &columns)
    }
}

impl Default for Heat {
    fn default() -> Self {
        Heat::new()
    }
}

impl Column {
    fn record(&mut self, histogram: &Histogram<u64>) {
        for point in histogram.iter_recorded() {
            let bucket = bucket_of(point.value_iterated_to().min(histogram.max()));
            if self.counts.len() <= bucket {
                self.counts.resize(bucket + 1, 0);
            }
            self.counts[bucket] += point.count_at_value();
        }
    }

    fn take_in(&mut self, next: Column) {
        self.intervals += next.intervals;
        self.to_s = next.to_s;
        if self.counts.len() < next.counts.len() {
            self.counts.resize(next.counts.len(), 0);
        }
        self.counts.iter_mut().zip(next.counts).for_each(|(into, from)| *into += from);
    }
}

/// The bucket of a time; there are at most 386.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "20 times the logarithm of what fits 64 bits, not below 0"
)]
fn bucket_of(time: Nanos) -> usize {
    ((time.max(1) as f64).log10() * BUCKETS_PER_DECADE + 1e-9) as usize
}

/// Where a bucket begins, microseconds.
#[expect(clippy::cast_precision_loss, reason = "at most 386")]
fn edge_us(bucket: usize) -> f64 {
    10_f64.powf(bucket as f64 / BUCKETS_PER_DECADE - 3.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::testing::interval;
    use crate::recorder::{Ended, Operation, Outcome, Recorder};

    /// A map of so many intervals; each has 3 requests of 1 ms, and of the outcome.
    fn map(intervals: u32, outcome: Outcome) -> Heat {
        let mut heat = Heat::new();
        let mut recorder = Recorder::new(1);
        for _ in 0..3 {
            let ended = Ended { phase: 0, operation: Operation::Get, outcome, response: 1_000_000, service: None };
            recorder.record(&ended, 0);
        }
        for number in 0..intervals {
            heat.add(&interval(f64::from(number), 1.0), recorder.phase(0));
        }
        heat
    }

    /// What of a map of so many such intervals is not as it should be.
    fn fault(heat: &Heat, intervals: u64) -> Option<String> {
        let counted: u64 = heat.columns.iter().flat_map(|column| &column.counts).sum();
        if counted != 3 * intervals {
            return Some(format!("{counted} requests"));
        }
        if heat.columns.len() > COLUMNS_MAX {
            return Some(format!("{} columns", heat.columns.len()));
        }
        let touch = heat.columns.windows(2).all(|pair| (pair[0].to_s - pair[1].from_s).abs() < 1e-9);
        (!touch).then(|| "columns with gaps".to_owned())
    }

    #[test]
    fn columns_become_one_with_their_neighbours_and_no_count_is_lost() {
        for intervals in [1, 2, 599, 600, 601, 602, 1_199, 1_200, 1_201, 3_600, 3_601] {
            assert_eq!(fault(&map(intervals, Outcome::Served), intervals.into()), None, "{intervals} intervals");
        }
        let heat = map(3_600, Outcome::Served);
        assert_eq!((heat.per_column, heat.columns.len()), (8, 450));
    }

    #[test]
    fn twin_a_lost_count_and_a_lost_column_are_noticed() {
        let mut heat = map(700, Outcome::Served);
        heat.columns[3].counts[120] -= 1;
        assert!(fault(&heat, 700).is_some());
        let mut heat = map(700, Outcome::Served);
        heat.columns.remove(3);
        assert!(fault(&heat, 700).is_some());
    }

    #[test]
    fn every_time_lies_between_the_edges_of_its_bucket() {
        for time in [1, 2, 9, 10, 999, 1_000, 1_001, 123_456, 1_000_000, 30_000_000_000] {
            let bucket = bucket_of(time);
            let us = crate::result::micros(time);
            assert!(edge_us(bucket) <= us * (1.0 + 1e-9) && us < edge_us(bucket + 1), "{time} is in {bucket}");
        }
        assert_eq!((bucket_of(0), bucket_of(1), bucket_of(1_000_000)), (0, 0, 120));
        assert_eq!(bucket_of(u64::MAX), 385);
    }

    #[test]
    fn refusals_are_no_response_times_and_nothing_at_all_is_a_map_too() {
        let refused = map(2, Outcome::Refused);
        assert_eq!(fault(&refused, 0), None);
        for heat in [refused, Heat::new()] {
            let _ = heat.figure(Axis::time(0.0, 2.0));
        }
    }
}
