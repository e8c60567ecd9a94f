//! A histogram with fixed buckets, as Prometheus sums them.

use std::time::Duration;

use crate::metrics::Counter;

/// Counts values by bucket. `N` bounds make `N` buckets and one beyond them; a value belongs to the first bucket whose bound
/// it does not exceed.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    bounds: &'static [u64; N],
    buckets: [Counter; N],
    beyond: Counter,
    sum: Counter,
}

/// What a histogram held at one moment; sums of several are made with [`Snapshot::add`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// In the unit of the values, ascending.
    pub bounds: &'static [u64],
    /// Values of each bucket, not cumulative; one more than there are bounds.
    pub counts: Vec<u64>,
    /// Of all values.
    pub sum: u64,
}

/// Bounds for times in nanoseconds, 50 µs to 60 s, in steps of 1, 2.5 and 5 (and 10 µs, 25 µs below, where a cached read is).
static TIMES_NS: [u64; 21] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
];

/// Bounds for numbers of things, 1 to 1,024 in powers of two.
static COUNTS: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024];

impl Histogram<21> {
    /// For times, recorded in nanoseconds.
    #[must_use]
    pub const fn times() -> Histogram<21> {
        Histogram::new(&TIMES_NS)
    }
}

impl Histogram<11> {
    /// For numbers of things.
    #[must_use]
    pub const fn counts() -> Histogram<11> {
        Histogram::new(&COUNTS)
    }
}

impl<const N: usize> Histogram<N> {
    /// With `bounds`, which ascend.
    #[must_use]
    pub const fn new(bounds: &'static [u64; N]) -> Histogram<N> {
        Histogram { bounds, buckets: [const { Counter::new() }; N], beyond: Counter::new(), sum: Counter::new() }
    }

    /// Records `value`, on the one thread that owns this histogram.
    pub fn record_owned(&self, value: u64) {
        self.bucket(value).add_owned(1);
        self.sum.add_owned(value);
    }

    /// Records `value`, on any thread.
    pub fn record(&self, value: u64) {
        self.bucket(value).add(1);
        self.sum.add(value);
    }

    /// As [`Histogram::record_owned`], in nanoseconds.
    pub fn record_time_owned(&self, time: Duration) {
        self.record_owned(nanoseconds(time));
    }

    /// As [`Histogram::record`], in nanoseconds.
    pub fn record_time(&self, time: Duration) {
        self.record(nanoseconds(time));
    }

    fn bucket(&self, value: u64) -> &Counter {
        self.buckets.get(self.bounds.partition_point(|bound| *bound < value)).unwrap_or(&self.beyond)
    }

    /// What it holds now. Values that are recorded meanwhile may be in the sum and not in a bucket, or the other way round.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let counts = self.buckets.iter().chain([&self.beyond]).map(Counter::get).collect();
        Snapshot { bounds: self.bounds, counts, sum: self.sum.get() }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Snapshot {
    /// Adds what another histogram with the same bounds held.
    ///
    /// # Panics
    /// When the bounds differ.
    pub fn add(&mut self, other: &Snapshot) {
        assert!(std::ptr::eq(self.bounds, other.bounds), "histograms of different shape are not added");
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// How many values were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let histogram = Histogram::counts();
        for value in [0, 1, 2, 3, 1_024, 1_025] {
            histogram.record_owned(value);
        }
        histogram.record(4);
        let mut snapshot = histogram.snapshot();
        assert_eq!(snapshot.counts, [2, 1, 2, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((snapshot.count(), snapshot.sum), (7, 2_059));
        snapshot.add(&histogram.snapshot());
        assert_eq!((snapshot.count(), snapshot.sum), (14, 4_118));
    }

    #[test]
    fn bounds_ascend() {
        assert!(TIMES_NS.is_sorted() && COUNTS.is_sorted());
    }
}
