//! A bounded queue between producers of events, which may run in a signal handler, and the one thread that collects
//! the events.
//!
//! ```text
//!   slot      0          1          2          3
//!   sequence  │ 4: free  │ 2: full  │ 3: full  │ 3: free │      a slot is free at its position, full at position + 1
//!                          ▲ next to pop         ▲ next to push
//! ```
//!
//! This is Dmitry Vyukov's queue. Items have positions 0, 1, 2 and so on, and position p uses slot p modulo the
//! capacity. A slot's sequence is p while the slot is free for the item of position p, and p + 1 while it holds that
//! item.
//!
//! A producer takes a position by one compare-and-swap, writes the item into the slot, and then sets the slot's
//! sequence, which gives the item to the consumer. No thread ever waits for another one. If a signal interrupts a
//! producer between these steps, the signal's handler takes the next position. While the oldest item is not completely
//! written, the consumer finds the queue empty, and tries again later. If the slot of the next position still holds an
//! old item, the queue is full; the new event is lost, and counted. Called by `signal` and `waits`.

#![expect(unsafe_code, reason = "the producer that took a slot's position writes it, and no type expresses that")]

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

/// A bounded queue. `push` is async-signal-safe and lock-free. Items are copied and need no destructor.
pub struct Ring<T: Copy> {
    slots: Box<[Slot<T>]>,
    /// The capacity minus 1. The capacity is a power of two, so `position & mask` is the index of the slot.
    mask: u64,
    pushed: Line,
    popped: Line,
    lost: Line,
}

struct Slot<T> {
    /// The state of the slot: p while a producer may write the item of position p, p + 1 while that item waits for the
    /// consumer, and p + capacity, the slot's next position, after the consumer has read the item.
    sequence: AtomicU64,
    item: UnsafeCell<MaybeUninit<T>>,
}

/// A counter in a cache line of its own, so that producers and the consumer do not slow each other down.
#[repr(align(64))]
struct Line(AtomicU64);

// SAFETY: only the thread that has moved `pushed` or `popped` past a slot's position touches the slot's item. It
// passes the item on by the slot's sequence, with release and acquire.
unsafe impl<T: Copy + Send> Sync for Ring<T> {}

impl<T: Copy> std::fmt::Debug for Ring<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Ring")
            .field("capacity", &self.slots.len())
            .field("lost", &self.lost())
            .finish_non_exhaustive()
    }
}

impl<T: Copy> Ring<T> {
    /// Returns an empty ring with `capacity` slots, a power of two of at least 2. This writes to each slot, so the ring
    /// takes all of its memory from then on.
    #[must_use]
    pub fn new(capacity: usize) -> Ring<T> {
        assert!(capacity >= 2 && capacity.is_power_of_two(), "a mask maps positions to slots");
        let slot = |index| Slot { sequence: AtomicU64::new(index), item: UnsafeCell::new(MaybeUninit::uninit()) };
        let capacity = capacity as u64;
        let line = || Line(AtomicU64::new(0));
        Ring {
            slots: (0..capacity).map(slot).collect(),
            mask: capacity - 1,
            pushed: line(),
            popped: line(),
            lost: line(),
        }
    }

    /// Appends an item. Returns `false` if the ring is full; the item is then lost, and counted.
    pub fn push(&self, item: T) -> bool {
        let mut position = self.pushed.0.load(Ordering::Relaxed);
        loop {
            let slot = self.slot(position);
            let sequence = slot.sequence.load(Ordering::Acquire);
            if sequence < position {
                self.lost.0.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            if sequence == position {
                let next = position + 1;
                match self.pushed.0.compare_exchange_weak(position, next, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => {
                        // SAFETY: only this call has the position, and its slot was emptied.
                        unsafe { (*slot.item.get()).write(item) };
                        slot.sequence.store(next, Ordering::Release);
                        return true;
                    }
                    Err(now) => position = now,
                }
            } else {
                // Another producer has taken the position.
                position = self.pushed.0.load(Ordering::Relaxed);
            }
        }
    }

    /// Takes the oldest item. Returns `None` if the ring is empty or the oldest item is still being written.
    pub fn pop(&self) -> Option<T> {
        let mut position = self.popped.0.load(Ordering::Relaxed);
        loop {
            let slot = self.slot(position);
            let sequence = slot.sequence.load(Ordering::Acquire);
            let next = position + 1;
            if sequence < next {
                return None;
            }
            if sequence == next {
                match self.popped.0.compare_exchange_weak(position, next, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => {
                        // SAFETY: only this call has the position, and the sequence shows that its slot was written.
                        let item = unsafe { (*slot.item.get()).assume_init_read() };
                        slot.sequence.store(position + self.mask + 1, Ordering::Release);
                        return Some(item);
                    }
                    Err(now) => position = now,
                }
            } else {
                position = self.popped.0.load(Ordering::Relaxed);
            }
        }
    }

    /// Takes the items that were pushed before the call, and passes each to `seen`. Leaves later items, so that the
    /// call ends even with busy producers. A slot that is still being written hides the slots behind it. Then the call
    /// retries as long as `again` returns `true`. Returns how many items it could not take.
    pub fn drain(&self, mut again: impl FnMut() -> bool, mut seen: impl FnMut(T)) -> u64 {
        let end = self.pushed.0.load(Ordering::Acquire);
        loop {
            while self.popped.0.load(Ordering::Relaxed) < end
                && let Some(item) = self.pop()
            {
                seen(item);
            }
            let behind = end.saturating_sub(self.popped.0.load(Ordering::Relaxed));
            if behind == 0 || !again() {
                return behind;
            }
        }
    }

    /// Returns how many items were lost since the start because the ring was full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.0.load(Ordering::Relaxed)
    }

    fn slot(&self, position: u64) -> &Slot<T> {
        #[expect(clippy::cast_possible_truncation, reason = "the mask is below a length")]
        let index = (position & self.mask) as usize;
        &self.slots[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::spawn_thread;
    use std::sync::Arc;

    #[test]
    fn items_keep_their_order_and_lost_items_are_counted() {
        let ring = Ring::new(4);
        for lap in 0..3 {
            for item in 0..4 {
                assert!(ring.push(lap * 10 + item));
            }
            assert!(!ring.push(99), "the ring is full");
            for item in 0..4 {
                assert_eq!(ring.pop(), Some(lap * 10 + item));
            }
            assert_eq!(ring.pop(), None);
        }
        assert_eq!(ring.lost(), 3);
    }

    #[test]
    fn a_slot_that_is_being_written_does_not_block_other_producers() {
        let ring = Ring::new(4);
        // A producer that is interrupted after it has taken its position leaves this state.
        ring.pushed.0.fetch_add(1, Ordering::Relaxed);
        assert!(ring.push(1) && ring.push(2) && ring.push(3));
        assert!(!ring.push(4), "the unfinished item takes the last slot");
        assert_eq!(ring.pop(), None, "the oldest item is not written yet");
        // SAFETY: the position was taken above.
        unsafe { (*ring.slots[0].item.get()).write(0) };
        ring.slots[0].sequence.store(1, Ordering::Release);
        assert_eq!(std::iter::from_fn(|| ring.pop()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn drain_waits_for_an_unfinished_slot_and_then_counts_the_items_behind_it() {
        let ring = Ring::new(4);
        ring.pushed.0.fetch_add(1, Ordering::Relaxed);
        assert!(ring.push(1) && ring.push(2));
        let (mut seen, mut rounds) = (Vec::new(), 0);
        let again = || {
            rounds += 1;
            rounds < 3
        };
        assert_eq!((ring.drain(again, |item| seen.push(item)), rounds), (3, 3));
        let finish = || {
            // SAFETY: the position was taken above.
            unsafe { (*ring.slots[0].item.get()).write(0) };
            ring.slots[0].sequence.store(1, Ordering::Release);
            true
        };
        assert_eq!(ring.drain(finish, |item| seen.push(item)), 0);
        assert_eq!(seen, [0, 1, 2]);
    }

    #[test]
    fn items_pushed_during_a_drain_stay_for_the_next_drain() {
        let ring = Ring::new(4);
        assert!(ring.push(1));
        let mut seen = 0;
        let behind = ring.drain(|| false, |item| seen += u64::from(ring.push(item)));
        assert_eq!((behind, seen, ring.pop()), (0, 1, Some(1)));
    }

    /// Returns the items that came out of a small ring, and how many its producers pushed successfully. An item has 64
    /// equal words, so that a torn item is noticed.
    fn popped_items(producers: u64, each: u64) -> (Vec<[u64; 64]>, u64) {
        let ring = Arc::new(Ring::new(64));
        let threads: Vec<_> = (0..producers)
            .map(|producer| {
                let ring = ring.clone();
                spawn_thread("test-producer", move || {
                    (0..each).filter(|number| ring.push([producer * each + number; 64])).count() as u64
                })
            })
            .collect();
        let mut popped = Vec::new();
        while !threads.iter().all(std::thread::JoinHandle::is_finished) {
            popped.extend(std::iter::from_fn(|| ring.pop()));
        }
        popped.extend(std::iter::from_fn(|| ring.pop()));
        let pushed: u64 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        assert_eq!(pushed + ring.lost(), producers * each, "each item was popped or counted as lost");
        (popped, pushed)
    }

    /// Checks that each pushed item came out once and intact, and in the order of its producer.
    fn check_items(popped: &[[u64; 64]], pushed: u64, each: u64) -> Result<(), String> {
        if popped.len() as u64 != pushed {
            return Err(format!("{} of {pushed} items came out", popped.len()));
        }
        let mut last = std::collections::HashMap::new();
        for item in popped {
            if item.iter().any(|word| *word != item[0]) {
                return Err("an item was torn".to_owned());
            }
            if last.insert(item[0] / each, item[0]).is_some_and(|before| before >= item[0]) {
                return Err("the order of one producer is lost".to_owned());
            }
        }
        Ok(())
    }

    #[test]
    fn with_many_producers_every_lost_item_is_counted() {
        let each = 50_000;
        let (popped, pushed) = popped_items(4, each);
        assert_eq!(check_items(&popped, pushed, each), Ok(()));
    }

    #[test]
    fn twin_loss_repetition_and_tears_are_noticed() {
        let (mut popped, pushed) = popped_items(2, 100);
        let last = popped.pop().expect("there is an item");
        assert!(check_items(&popped, pushed, 100).is_err(), "an item is missing");
        popped.push(popped[0]);
        assert!(check_items(&popped, pushed, 100).is_err(), "an item came out twice");
        popped.pop();
        let mut torn = last;
        torn[63] += 1;
        popped.push(torn);
        assert!(check_items(&popped, pushed, 100).is_err(), "an item is torn");
    }
}
