//! A number that only grows.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts events. Readable from any thread at any time.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Nothing counted yet.
    #[must_use]
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Counts `count` more, on the one thread that owns this counter: a load and a store, no locked instruction.
    pub fn add_owned(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Counts `count` more, on any thread.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// What was counted.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
