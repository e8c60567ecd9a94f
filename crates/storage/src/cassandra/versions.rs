//! Versions and write timestamps of one klad.
//!
//! A version is unique among all klads of a cluster: its upper 13 bits are the number of the klad (`schema` gives each
//! start a new one), its lower 51 bits are the timestamp of the write in microseconds since 2020, which lasts until 2091.
//! The timestamp decides which of two writes of a key is the newer one, as everywhere in Cassandra. If two klads write a
//! key in the same microsecond, Cassandra keeps the larger bytes of each column. Each column begins with the version,
//! so all columns keep the same write, and all reads agree.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::operation::{Error, Version};
use klad_base::clock;

/// The start of 2020 in microseconds since 1970.
const EPOCH_US: u64 = 1_577_836_800_000_000;

/// Bits of a version that hold the time.
const TIME_BITS: u32 = 51;

/// The number of klads that versions can tell apart. After so many starts, the numbers begin again at the first.
pub(super) const WRITERS: u64 = 1 << (u64::BITS - TIME_BITS);

/// The largest difference between the clocks of klads and nodes that klad allows for.
pub(super) const CLOCK_SKEW: Duration = Duration::from_millis(10);

/// If the timestamp of a value is further in the future than this, a clock is wrong, and klad rejects writes that must
/// replace the value.
pub(super) const CLOCK_ERROR: Duration = Duration::from_secs(1);

/// Gives out timestamps, each greater than all before.
pub(super) struct Versions {
    writer: u64,
    last_us: AtomicU64,
}

impl Versions {
    /// Makes the versions of the klad with the number `writer`.
    pub(super) fn new(writer: u64) -> Versions {
        Versions { writer: writer % WRITERS, last_us: AtomicU64::new(0) }
    }

    /// Reserves `count` consecutive versions, at least one, with timestamps after `after_us`. Returns the first.
    ///
    /// # Errors
    /// `after_us` is more than [`CLOCK_ERROR`] in the future. Without this limit, one wrong clock would move the
    /// timestamps of all klads.
    pub(super) fn reserve_after(&self, count: usize, after_us: i64) -> Result<Version, Error> {
        let after_us = u64::try_from(after_us).unwrap_or(0);
        let ahead_us = after_us.saturating_sub(now_us());
        if ahead_us > micros(CLOCK_ERROR) {
            return Err(wrong_clock(ahead_us));
        }
        Ok(self.reserve_from(count, after_us + 1))
    }

    /// Reserves `count` consecutive versions, at least one. Returns the first.
    pub(super) fn reserve(&self, count: usize) -> Version {
        self.reserve_from(count, 0)
    }

    fn reserve_from(&self, count: usize, least_us: u64) -> Version {
        let count = count.max(1) as u64;
        let least = now_us().max(least_us).max(EPOCH_US + 1);
        let mut last = self.last_us.load(Ordering::Relaxed);
        loop {
            let first = least.max(last + 1);
            match self.last_us.compare_exchange_weak(last, first + count - 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Version::new(self.writer << TIME_BITS | (first - EPOCH_US)),
                Err(newer) => last = newer,
            }
        }
    }
}

/// The error for a value that was written `ahead_us` microseconds in the future.
pub(super) fn wrong_clock(ahead_us: u64) -> Error {
    let why = format!("the value was written {ahead_us} microseconds in the future: the clock of a klad is wrong");
    Error::ReadFailed { why }
}

/// Returns a duration in microseconds.
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("at most some seconds")
}

/// Returns the time now, microseconds since 1970.
pub(super) fn now_us() -> u64 {
    clock::unix_ns() / 1_000
}

/// Returns the timestamp of a version, microseconds since 1970.
pub(super) fn timestamp_us(version: Version) -> i64 {
    let since_epoch = version.get() & ((1 << TIME_BITS) - 1);
    i64::try_from(since_epoch + EPOCH_US).expect("it has 52 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_one_klad_grow_and_those_of_two_differ() {
        let (one, other) = (Versions::new(7), Versions::new(8));
        let mut last = 0;
        for count in [1, 3, 1, 1_000, 1, 1] {
            let (mine, theirs) = (one.reserve(count), other.reserve(count));
            assert!(timestamp_us(mine) > last, "{mine}");
            assert_ne!(mine, theirs);
            last = timestamp_us(mine) + i64::try_from(count).expect("small") - 1;
        }
    }

    #[test]
    fn a_timestamp_is_after_the_value_that_it_replaces() {
        let versions = Versions::new(1);
        let future = i64::try_from(now_us() + micros(CLOCK_ERROR) / 2).expect("63 bits");
        let version = versions.reserve_after(2, future).expect("a small difference");
        assert_eq!(timestamp_us(version), future + 1);
        assert_eq!(timestamp_us(versions.reserve(1)), future + 3);
        assert_eq!(timestamp_us(Version::new(version.get() + 1)), future + 2);
    }

    #[test]
    fn a_wrong_clock_does_not_move_those_of_others() {
        let versions = Versions::new(1);
        let future = i64::try_from(now_us() + 60 * micros(CLOCK_ERROR)).expect("63 bits");
        let error = versions.reserve_after(1, future).expect_err("too far ahead");
        assert!(matches!(&error, Error::ReadFailed { why } if why.contains("clock")), "{error}");
        assert!(timestamp_us(versions.reserve(1)) < future);
    }

    #[test]
    fn the_number_of_a_klad_wraps() {
        let (first, same) = (Versions::new(5), Versions::new(5 + WRITERS));
        assert_eq!(first.reserve(1).get() >> TIME_BITS, same.reserve(1).get() >> TIME_BITS);
    }
}
