//! The entries that chores write and expect back: key and value follow from an index, so that nothing need be remembered.
//!
//! Called by `fill`, `range` and the chores.

use std::io::Write as _;

/// Close to 2^64 divided by the golden ratio, and odd: multiples of it modulo a power of two meet every number once, and
/// neighbours lie far apart.
const SCRAMBLE: u64 = 0x9E37_79B9_7F4A_7C15;

/// `count` entries, whose keys `key0000000`, `key0000001` … are in order of their indices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entries {
    /// How many; at least 1.
    pub(crate) count: u64,
    /// Bytes of each value.
    pub(crate) value_bytes: usize,
}

impl Entries {
    /// The key of entry `index`. All have the same length, so that bytewise order is that of the indices.
    pub(crate) fn key(self, index: u64) -> String {
        let digits = (self.count - 1).checked_ilog10().map_or(1, |log| log as usize + 1).max(7);
        format!("key{index:0digits$}")
    }

    /// Where a point operation on entry `index` goes; keys have no byte that would need an escape.
    pub(crate) fn target(self, index: u64) -> String {
        format!("/v0/entity?id={}", self.key(index))
    }

    /// Appends the value of entry `index`: pseudo-random bytes, which no compression makes smaller.
    pub(crate) fn push_value(self, index: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.value_bytes, 0);
        fastrand::Rng::with_seed(index).fill(&mut out[start..]);
    }

    /// The value of entry `index`.
    pub(crate) fn value(self, index: u64) -> Vec<u8> {
        let mut value = Vec::with_capacity(self.value_bytes);
        self.push_value(index, &mut value);
        value
    }

    /// Appends the request that writes entry `index`.
    pub(crate) fn push_put(self, index: u64, out: &mut Vec<u8>) {
        let (target, length) = (self.target(index), self.value_bytes);
        write!(out, "PUT {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n")
            .expect("a vector takes every byte");
        self.push_value(index, out);
    }

    /// The indices that the connection `lane` of `lanes` writes, scrambled; all lanes together write each index once.
    pub(crate) fn order(self, lane: u64, lanes: u64) -> Order {
        let range = self.count.next_power_of_two();
        Order { count: self.count, range, step: lanes, next: lane }
    }
}

/// The indices of one connection, in the order of writing. A clone looks ahead.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    count: u64,
    /// The power of two that is not below `count`.
    range: u64,
    step: u64,
    next: u64,
}

impl Iterator for Order {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        while self.next < self.range {
            let index = self.next.wrapping_mul(SCRAMBLE) & (self.range - 1);
            self.next += self.step;
            if index < self.count {
                return Some(index);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_together_write_every_entry_once() {
        for count in [1, 2, 3, 4, 5, 64, 1000] {
            let entries = Entries { count, value_bytes: 0 };
            let mut all: Vec<u64> = (0..4).flat_map(|lane| entries.order(lane, 4)).collect();
            assert!(count < 64 || !all.is_sorted(), "the order of {count} is not scrambled");
            all.sort_unstable();
            assert!(all.into_iter().eq(0..count), "{count} entries");
        }
    }

    #[test]
    fn keys_are_in_order_of_their_indices() {
        assert_eq!(Entries { count: 1, value_bytes: 0 }.key(0), "key0000000");
        assert_eq!(Entries { count: 10_000_000, value_bytes: 0 }.key(9_999_999), "key9999999");
        let entries = Entries { count: 10_000_001, value_bytes: 0 };
        assert_eq!(entries.key(10_000_000), "key10000000");
        assert!(entries.key(9_999_999) < entries.key(10_000_000));
    }

    #[test]
    fn values_follow_from_the_index() {
        let entries = Entries { count: 10, value_bytes: 100 };
        assert_eq!(entries.value(3), entries.value(3));
        assert_ne!(entries.value(3), entries.value(4));
        assert_eq!(entries.value(3).len(), 100);
    }
}
