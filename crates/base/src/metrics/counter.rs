//! A number that only grows.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts events. Any thread can read it at any time.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Returns a counter at 0.
    #[must_use]
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Adds `count`. Only one thread, the counter's owner, may call this: the addition is a load and a store, without a
    /// locked instruction, so an addition by another thread could be lost.
    pub fn add_owned(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Adds `count` with a locked instruction. Any thread may call this, if no thread calls `add_owned`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the count.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
