//! A histogram with fixed buckets that Prometheus can sum.

use std::time::Duration;

use crate::metrics::Counter;

/// Counts values by bucket. `N` bounds make `N` buckets and one more for larger values. A value belongs to the first
/// bucket whose bound is not below the value.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    bounds: &'static [u64; N],
    buckets: [Counter; N],
    beyond: Counter,
    sum: Counter,
}

/// The contents of a histogram at one moment. [`Snapshot::add`] sums several of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The upper bounds of the buckets, ascending, in the unit of the values.
    pub bounds: &'static [u64],
    /// The number of values in each bucket, not cumulative. There is one more count than there are bounds.
    pub counts: Vec<u64>,
    /// The sum of all values.
    pub sum: u64,
}

/// Bounds for times in nanoseconds: 10 µs to 10 s in steps of 1, 2.5 and 5, then 30 s and 60 s. Cached reads need the
/// smallest two.
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

/// Bounds for counts, 1 to 1,024 in powers of two.
static COUNTS: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024];

impl Histogram<21> {
    /// Returns a histogram of times, recorded in nanoseconds.
    #[must_use]
    pub const fn times() -> Histogram<21> {
        Histogram::new(&TIMES_NS)
    }
}

impl Histogram<11> {
    /// Returns a histogram of counts.
    #[must_use]
    pub const fn counts() -> Histogram<11> {
        Histogram::new(&COUNTS)
    }
}

impl<const N: usize> Histogram<N> {
    /// Returns an empty histogram with these bounds, which must ascend.
    #[must_use]
    pub const fn new(bounds: &'static [u64; N]) -> Histogram<N> {
        Histogram { bounds, buckets: [const { Counter::new() }; N], beyond: Counter::new(), sum: Counter::new() }
    }

    /// Records `value`. Only one thread, the histogram's owner, may call this.
    pub fn record_owned(&self, value: u64) {
        self.bucket(value).add_owned(1);
        self.sum.add_owned(value);
    }

    /// Records `value`. Any thread may call this, if no thread calls `record_owned`.
    pub fn record(&self, value: u64) {
        self.bucket(value).add(1);
        self.sum.add(value);
    }

    /// Records `time` in nanoseconds, as [`Histogram::record_owned`] does.
    pub fn record_time_owned(&self, time: Duration) {
        self.record_owned(nanoseconds(time));
    }

    /// Records `time` in nanoseconds, as [`Histogram::record`] does.
    pub fn record_time(&self, time: Duration) {
        self.record(nanoseconds(time));
    }

    fn bucket(&self, value: u64) -> &Counter {
        self.buckets.get(self.bounds.partition_point(|bound| *bound < value)).unwrap_or(&self.beyond)
    }

    /// Returns the current contents. A value that another thread is recording may be in the sum and not yet in a
    /// bucket, or the other way round.
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
    /// Adds the contents of another histogram. Both must have been created with the same static bounds.
    ///
    /// # Panics
    /// If the two histograms do not share their bounds.
    pub fn add(&mut self, other: &Snapshot) {
        assert!(std::ptr::eq(self.bounds, other.bounds), "only histograms with the same bounds can be added");
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// Returns the number of recorded values.
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
