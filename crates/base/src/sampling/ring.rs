//! A bounded queue between whoever sees an event, perhaps in a signal handler, and the one thread that adds events up.
//!
//! ```text
//!   slot      0          1          2          3
//!   sequence  │ 4: free  │ 2: full  │ 3: full  │ 3: free │      of the position that may be written or, one more, read
//!                          ▲ next to pop         ▲ next to push
//! ```
//!
//! Dmitry Vyukov's queue. A producer takes a position by one compare-and-swap, writes its slot and then sets the slot's
//! sequence, which gives it to the consumer. Nobody ever waits for somebody else: a signal that interrupts a producer between
//! the two finds the next position free and takes that one, and a consumer that meets the unfinished slot says that there
//! is nothing, and comes again later. When the slot that is next was not emptied yet, the queue is full: the event is lost, and
//! counted. Called by `signal`, and by the hooks in locks.

#![expect(unsafe_code, reason = "slots are written by whoever has taken their position, which no type says")]

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

/// The queue. `push` is async-signal-safe and lock-free; items are copied, and need no destructor.
pub struct Ring<T: Copy> {
    slots: Box<[Slot<T>]>,
    /// Capacity less one: capacities are powers of two.
    mask: u64,
    pushed: Line,
    popped: Line,
    lost: Line,
}

struct Slot<T> {
    /// The position that may be written; one more when it is written; the one of the next lap when it is read.
    sequence: AtomicU64,
    item: UnsafeCell<MaybeUninit<T>>,
}

/// A counter alone in its cache line: producers and the consumer do not slow each other down.
#[repr(align(64))]
struct Line(AtomicU64);

// SAFETY: a slot's item is only touched by the one that has moved `pushed` or `popped` past its position, and given on by the
// slot's sequence, with release and acquire.
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
    /// Room for `capacity` items, a power of two of at least 2. Its memory is taken here, and touched as it is used.
    #[must_use]
    pub fn new(capacity: usize) -> Ring<T> {
        assert!(capacity >= 2 && capacity.is_power_of_two(), "positions become slots by a mask");
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

    /// Appends; `false`: there is no room, and the item counts as lost.
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
                        // SAFETY: the position is this call's alone, and its slot was emptied.
                        unsafe { (*slot.item.get()).write(item) };
                        slot.sequence.store(next, Ordering::Release);
                        return true;
                    }
                    Err(now) => position = now,
                }
            } else {
                // Somebody has taken it since.
                position = self.pushed.0.load(Ordering::Relaxed);
            }
        }
    }

    /// Takes the oldest; `None`: there is none, or the oldest is still being written.
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
                        // SAFETY: the position is this call's alone, and its slot was written: its sequence says so.
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

    /// Takes what was pushed before the call, and no more, so that busy producers keep nobody here. A slot that is still being
    /// written hides what is behind it: as long as `again` says so, it is waited for. How many could not be taken.
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

    /// Items that found no room, since the beginning.
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
    fn keeps_order_and_counts_what_finds_no_room() {
        let ring = Ring::new(4);
        for lap in 0..3 {
            for item in 0..4 {
                assert!(ring.push(lap * 10 + item));
            }
            assert!(!ring.push(99), "it is full");
            for item in 0..4 {
                assert_eq!(ring.pop(), Some(lap * 10 + item));
            }
            assert_eq!(ring.pop(), None);
        }
        assert_eq!(ring.lost(), 3);
    }

    #[test]
    fn a_slot_that_is_being_written_holds_up_nobody() {
        let ring = Ring::new(4);
        // As a producer that was interrupted after it had taken its position.
        ring.pushed.0.fetch_add(1, Ordering::Relaxed);
        assert!(ring.push(1) && ring.push(2) && ring.push(3));
        assert!(!ring.push(4), "the unfinished one has the last slot");
        assert_eq!(ring.pop(), None, "the oldest is not there yet");
        // SAFETY: the position was taken above.
        unsafe { (*ring.slots[0].item.get()).write(0) };
        ring.slots[0].sequence.store(1, Ordering::Release);
        assert_eq!(std::iter::from_fn(|| ring.pop()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn a_slot_that_is_being_written_is_waited_for_and_then_counted_with_what_it_hides() {
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
    fn what_comes_while_the_ring_is_emptied_stays_for_the_next_time() {
        let ring = Ring::new(4);
        assert!(ring.push(1));
        let mut seen = 0;
        let behind = ring.drain(|| false, |item| seen += u64::from(ring.push(item)));
        assert_eq!((behind, seen, ring.pop()), (0, 1, Some(1)));
    }

    /// What a number of producers have pushed through a small ring: an item is as large as a stack, of one value
    /// throughout, so that a torn one shows.
    fn what_comes_through(producers: u64, each: u64) -> (Vec<[u64; 64]>, u64) {
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
        assert_eq!(pushed + ring.lost(), producers * each, "each was taken or counted");
        (popped, pushed)
    }

    /// Whether all came through once, whole, and in the order of each producer.
    fn judge(popped: &[[u64; 64]], pushed: u64, each: u64) -> Result<(), String> {
        if popped.len() as u64 != pushed {
            return Err(format!("{} of {pushed} came through", popped.len()));
        }
        let mut last = std::collections::HashMap::new();
        for item in popped {
            if item.iter().any(|word| *word != item[0]) {
                return Err("one was torn".to_owned());
            }
            if last.insert(item[0] / each, item[0]).is_some_and(|before| before >= item[0]) {
                return Err("the order of one producer is lost".to_owned());
            }
        }
        Ok(())
    }

    #[test]
    fn many_producers_lose_nothing_that_is_not_counted() {
        let each = 50_000;
        let (popped, pushed) = what_comes_through(4, each);
        assert_eq!(judge(&popped, pushed, each), Ok(()));
    }

    #[test]
    fn twin_loss_repetition_and_tears_are_noticed() {
        let (mut popped, pushed) = what_comes_through(2, 100);
        let last = popped.pop().expect("there was one");
        assert!(judge(&popped, pushed, 100).is_err(), "one is missing");
        popped.push(popped[0]);
        assert!(judge(&popped, pushed, 100).is_err(), "one came twice");
        popped.pop();
        let mut torn = last;
        torn[63] += 1;
        popped.push(torn);
        assert!(judge(&popped, pushed, 100).is_err(), "one is torn");
    }
}
