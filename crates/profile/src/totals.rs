//! Sums recorded values for each stack, in bounded memory.
//!
//! Called by `cpu` and `locks`.

use std::collections::HashMap;
use std::hash::Hash;

use crate::Address;

/// The most memory for the different stacks of one profile, bytes. The values of further stacks are only added to
/// [`Totals::beyond`]. A stack takes 0.1 to 1.1 KiB, by its depth, so at least 14,000 fit. A server under mixed load
/// shows two or three thousand.
pub const STACKS_BYTES_MAX: usize = 16 << 20;

/// The thread, the kind of event and the stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The thread's name, as from [`klad_base::sampling::walk::thread_name`]. Threads with the same name are summed
    /// together.
    pub thread: [u8; 16],
    /// The kind of event, in the profile's own numbering.
    pub kind: u32,
    /// The frames, the running function first.
    pub frames: Box<[Address]>,
}

impl Key {
    /// Returns the memory that the key and its values take in [`Totals`]. The table grows by doubling, so it is
    /// always at least 7/16 full.
    fn bytes(&self) -> usize {
        const IN_TABLE: usize = (size_of::<Key>() + size_of::<[u64; 2]>() + 1) * 16 / 7;
        IN_TABLE + size_of_val(&*self.frames)
    }
}

/// Two sums for each key.
#[derive(Clone, Debug)]
pub struct Totals<K: Hash + Eq> {
    figures: HashMap<K, [u64; 2]>,
    /// The size of all keys together, as measured by `size`, and its limit.
    size_now: usize,
    size_max: usize,
    size: fn(&K) -> usize,
    beyond: [u64; 2],
}

impl Totals<Key> {
    /// Returns empty totals of at most [`STACKS_BYTES_MAX`].
    #[must_use]
    pub fn of_stacks() -> Totals<Key> {
        Totals::new(STACKS_BYTES_MAX, Key::bytes)
    }
}

impl<K: Hash + Eq> Totals<K> {
    /// Returns empty totals. The sum of the `size` of all keys is at most `size_max`.
    #[must_use]
    pub fn new(size_max: usize, size: fn(&K) -> usize) -> Totals<K> {
        Totals { figures: HashMap::new(), size_now: 0, size_max, size, beyond: [0; 2] }
    }

    /// Adds `figures` to the sums of `key`.
    pub fn add(&mut self, key: K, figures: [u64; 2]) {
        if let Some(known) = self.figures.get_mut(&key) {
            *known = sum(*known, figures);
            return;
        }
        let size_now = self.size_now.saturating_add((self.size)(&key));
        if size_now <= self.size_max {
            self.size_now = size_now;
            self.figures.insert(key, figures);
        } else {
            self.beyond = sum(self.beyond, figures);
        }
    }

    /// Returns the sums of the keys that did not fit.
    #[must_use]
    pub fn beyond(&self) -> [u64; 2] {
        self.beyond
    }

    /// Returns each key with its sums, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, [u64; 2])> {
        self.figures.iter().map(|(key, figures)| (key, *figures))
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.figures.len()
    }

    /// Returns whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.figures.is_empty()
    }
}

impl<K: Hash + Eq + Clone> Totals<K> {
    /// Returns what was added since `earlier`, which is an earlier state of the same totals. Keys without a change
    /// are left out.
    #[must_use]
    pub fn since(&self, earlier: &Totals<K>) -> Totals<K> {
        let less = |now: [u64; 2], before: [u64; 2]| [0, 1].map(|index| now[index].saturating_sub(before[index]));
        let figures: HashMap<K, [u64; 2]> = self
            .figures
            .iter()
            .map(|(key, now)| (key, less(*now, earlier.figures.get(key).copied().unwrap_or_default())))
            .filter(|(_, new)| *new != [0; 2])
            .map(|(key, new)| (key.clone(), new))
            .collect();
        let size_now = figures.keys().map(self.size).sum();
        Totals { figures, size_now, beyond: less(self.beyond, earlier.beyond), ..*self }
    }
}

fn sum(one: [u64; 2], other: [u64; 2]) -> [u64; 2] {
    [0, 1].map(|index| one[index].saturating_add(other[index]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_beyond_the_limit_are_only_counted() {
        let mut totals = Totals::new(2, |_| 1);
        for key in [1, 2, 3, 1, 4] {
            totals.add(key, [1, 10]);
        }
        assert_eq!((totals.len(), totals.beyond()), (2, [2, 20]));
        let mut all: Vec<_> = totals.iter().collect();
        all.sort_unstable();
        assert_eq!(all, [(&1, [2, 20]), (&2, [1, 10])]);
    }

    #[test]
    fn fewer_deep_stacks_than_shallow_ones_fit() {
        let kept = |depth: usize| {
            let mut totals = Totals::of_stacks();
            for number in 0..300_000_u64 {
                totals.add(Key { thread: [0; 16], kind: 0, frames: vec![number; depth].into() }, [1, 1]);
            }
            assert_eq!(totals.len() as u64 + totals.beyond()[0], 300_000, "each stack is kept or counted");
            let frames = totals.iter().map(|(key, _)| size_of_val(&*key.frames)).sum::<usize>();
            assert!(frames + totals.figures.capacity() * (size_of::<Key>() + 16) <= STACKS_BYTES_MAX);
            totals.len()
        };
        let (shallow, deep) = (kept(1), kept(127));
        assert!(shallow > 4 * deep && deep > 10_000, "{shallow}, {deep}");
    }

    proptest! {
        #[test]
        fn a_difference_is_what_was_added_in_between(
            before in proptest::collection::vec((0..20_u8, 1..9_u64), 0..60),
            after in proptest::collection::vec((0..20_u8, 1..9_u64), 0..60),
            keys_max in 1..30_usize,
        ) {
            let mut totals = Totals::new(keys_max, |_| 1);
            for (key, figure) in &before {
                totals.add(*key, [1, *figure]);
            }
            let earlier = totals.clone();
            for (key, figure) in &after {
                totals.add(*key, [1, *figure]);
            }
            let new = totals.since(&earlier);
            let mut added = new.iter().fold(new.beyond(), |all, (_, figures)| sum(all, figures));
            prop_assert_eq!(added[0], after.len() as u64);
            added[1] -= after.iter().map(|(_, figure)| figure).sum::<u64>();
            prop_assert_eq!(added[1], 0);
        }
    }
}
