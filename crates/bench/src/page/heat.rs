//! The heat map of a page. It shows response times over time, as counts in logarithmic buckets.
//!
//! The map has a bounded number of columns, each for one or more intervals. If all columns are used, neighbours are
//! merged, and no count is lost. So a run of a day needs no more memory than a run of an hour. Called by `runner`
//! (adds) and `page` (draws).

use hdrhistogram::Histogram;

use crate::recorder::Tally;
use crate::result::Interval;
use crate::schedule::Nanos;
use klad_page::{Axis, HeatMap, Unit};

/// The largest number of columns of a map. It is even, so that all columns can be merged in pairs.
const COLUMNS_MAX: usize = 600;

/// The number of buckets for each power of ten. Each bucket is 12 % wider than the previous one.
const BUCKETS_PER_DECADE: f64 = 20.0;

/// The counts of the heat map so far.
#[derive(Debug)]
pub struct HeatCounts {
    columns: Vec<Column>,
    /// The number of intervals that are merged into a column.
    per_column: usize,
}

#[derive(Debug)]
struct Column {
    intervals: usize,
    from_s: f64,
    to_s: f64,
    /// The counts of all buckets from 1 ns up to the highest bucket with a count.
    counts: Vec<u64>,
}

impl HeatCounts {
    /// Creates an empty map.
    #[must_use]
    pub fn new() -> HeatCounts {
        HeatCounts { columns: Vec::new(), per_column: 1 }
    }

    /// Adds the response times of an interval. Intervals must be added in order.
    pub fn add(&mut self, interval: &Interval, tally: &Tally) {
        let mut column = Column {
            intervals: 1,
            from_s: interval.start_s,
            to_s: interval.start_s + interval.length_s,
            counts: vec![],
        };
        for (_, outcome, cell) in tally.cells() {
            if outcome.counts_for_latency() {
                column.record(&cell.response);
            }
        }
        self.push(column);
    }

    fn push(&mut self, column: Column) {
        if let Some(last) = self.columns.last_mut()
            && last.intervals < self.per_column
        {
            last.merge(column);
            return;
        }
        if self.columns.len() == COLUMNS_MAX {
            self.per_column *= 2;
            let mut rest = std::mem::take(&mut self.columns).into_iter();
            while let Some(mut first) = rest.next() {
                rest.next().into_iter().for_each(|second| first.merge(second));
                self.columns.push(first);
            }
        }
        self.columns.push(column);
    }

    /// Draws the map with this time axis.
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

impl Default for HeatCounts {
    fn default() -> Self {
        HeatCounts::new()
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

    fn merge(&mut self, next: Column) {
        self.intervals += next.intervals;
        self.to_s = next.to_s;
        if self.counts.len() < next.counts.len() {
            self.counts.resize(next.counts.len(), 0);
        }
        self.counts.iter_mut().zip(next.counts).for_each(|(into, from)| *into += from);
    }
}

/// Returns the number of the bucket for a time. There are at most 386 buckets.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "20 times the logarithm of what fits 64 bits, not below 0"
)]
fn bucket_of(time: Nanos) -> usize {
    ((time.max(1) as f64).log10() * BUCKETS_PER_DECADE + 1e-9) as usize
}

/// Returns the lower edge of a bucket, microseconds.
#[expect(clippy::cast_precision_loss, reason = "at most 386")]
fn edge_us(bucket: usize) -> f64 {
    10_f64.powf(bucket as f64 / BUCKETS_PER_DECADE - 3.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::testing::interval;
    use crate::recorder::{Operation, Outcome, Recorder, RequestEnd};

    /// A map of this many intervals, each with 3 requests of 1 ms and of the given outcome.
    fn map(intervals: u32, outcome: Outcome) -> HeatCounts {
        let mut heat = HeatCounts::new();
        let mut recorder = Recorder::new(1);
        for _ in 0..3 {
            let ended = RequestEnd { phase: 0, operation: Operation::Get, outcome, response: 1_000_000, service: None };
            recorder.record(&ended, 0);
        }
        for number in 0..intervals {
            heat.add(&interval(f64::from(number), 1.0), recorder.phase(0));
        }
        heat
    }

    /// Describes an error in a map of this many intervals with 3 requests each; `None` if there is no error.
    fn fault(heat: &HeatCounts, intervals: u64) -> Option<String> {
        let counted: u64 = heat.columns.iter().flat_map(|column| &column.counts).sum();
        if counted != 3 * intervals {
            return Some(format!("{counted} requests"));
        }
        if heat.columns.len() > COLUMNS_MAX {
            return Some(format!("{} columns", heat.columns.len()));
        }
        let adjacent = heat.columns.windows(2).all(|pair| (pair[0].to_s - pair[1].from_s).abs() < 1e-9);
        (!adjacent).then(|| "columns with gaps".to_owned())
    }

    #[test]
    fn neighbouring_columns_are_merged_without_losing_a_count() {
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
    fn rejections_are_left_out_and_an_empty_map_can_be_drawn() {
        let refused = map(2, Outcome::Refused);
        assert_eq!(fault(&refused, 0), None);
        for heat in [refused, HeatCounts::new()] {
            let _ = heat.figure(Axis::time(0.0, 2.0));
        }
    }
}
