//! Adds up what was seen, for each stack, in bounded memory.
//!
//! Called by `cpu` and `locks`.

use std::collections::HashMap;
use std::hash::Hash;

use crate::Address;

/// Bytes of the different stacks of one profile; what comes after is only counted, in [`Totals::beyond`]. A stack takes 0.1 to
/// 1.1 KiB, by its depth, so that there is room for 14,000 at least. A server under mixed load shows two or three thousand.
pub const STACKS_BYTES_MAX: usize = 16 << 20;

/// Whose stack, and what happened there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The thread's name, as [`klad_base::sampling::walk::thread_name`] has it. Threads of one name are one.
    pub thread: [u8; 16],
    /// What, as the profile numbers it.
    pub kind: u32,
    /// The running function first.
    pub frames: Box<[Address]>,
}

impl Key {
    /// What it takes in [`Totals`], with its figures: the table is never emptier than 7/16, as it grows by doubling.
    fn bytes(&self) -> usize {
        const IN_TABLE: usize = (size_of::<Key>() + size_of::<[u64; 2]>() + 1) * 16 / 7;
        IN_TABLE + size_of_val(&*self.frames)
    }
}

/// Two figures for each key.
#[derive(Clone, Debug)]
pub struct Totals<K: Hash + Eq> {
    figures: HashMap<K, [u64; 2]>,
    /// Of all keys together, and at most, as `size` has it.
    size_now: usize,
    size_max: usize,
    size: fn(&K) -> usize,
    beyond: [u64; 2],
}

impl Totals<Key> {
    /// Nothing yet, and never more than [`STACKS_BYTES_MAX`].
    #[must_use]
    pub fn of_stacks() -> Totals<Key> {
        Totals::new(STACKS_BYTES_MAX, Key::bytes)
    }
}

impl<K: Hash + Eq> Totals<K> {
    /// Nothing yet, and never more keys than together have a `size` of `size_max`.
    #[must_use]
    pub fn new(size_max: usize, size: fn(&K) -> usize) -> Totals<K> {
        Totals { figures: HashMap::new(), size_now: 0, size_max, size, beyond: [0; 2] }
    }

    /// Adds `figures` to those of `key`.
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

    /// What belongs to keys that found no room.
    #[must_use]
    pub fn beyond(&self) -> [u64; 2] {
        self.beyond
    }

    /// Each key with its figures, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, [u64; 2])> {
        self.figures.iter().map(|(key, figures)| (key, *figures))
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.figures.len()
    }

    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.figures.is_empty()
    }
}

impl<K: Hash + Eq + Clone> Totals<K> {
    /// What was added since `earlier`, a former state of the same; keys without anything new are left out.
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
    fn beyond_the_bound_only_a_count_grows() {
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
    fn deep_stacks_find_room_for_fewer() {
        let kept = |depth: usize| {
            let mut totals = Totals::of_stacks();
            for number in 0..300_000_u64 {
                totals.add(Key { thread: [0; 16], kind: 0, frames: vec![number; depth].into() }, [1, 1]);
            }
            assert_eq!(totals.len() as u64 + totals.beyond()[0], 300_000, "each is kept or counted");
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
