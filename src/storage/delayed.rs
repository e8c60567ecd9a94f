//! An engine that takes its time: a slow disk to rehearse with (`--engine-delay`). Made by `main`.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::{ChangeKind, Check, Engine, Observation, Reply, Result, Write};
use crate::operation::{Durability, Error, ScanStep};

/// Any engine, each of whose calls takes a while longer.
pub struct Delayed {
    inner: Arc<dyn Engine>,
    delay: Duration,
}

impl Delayed {
    /// `inner`, with `delay` before each call that may wait for a disk.
    #[must_use]
    pub fn new(inner: Arc<dyn Engine>, delay: Duration) -> Delayed {
        Delayed { inner, delay }
    }

    fn wait(&self) {
        #[expect(clippy::disallowed_methods, reason = "to take time is what it is for")]
        thread::sleep(self.delay);
    }
}

impl Engine for Delayed {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn durability(&self, asked: Durability) -> Durability {
        self.inner.durability(asked)
    }

    fn blocks(&self) -> bool {
        true
    }

    /// Nothing is in memory.
    fn read_cached(&self, _key: &[u8]) -> Option<Result> {
        None
    }

    fn read(&self, key: &[u8], reply: &dyn Reply) {
        self.wait();
        self.inner.read(key, reply);
    }

    fn scan(&self, step: &ScanStep, reply: &dyn Reply) {
        self.wait();
        self.inner.scan(step, reply);
    }

    fn commit(&self, writes: Vec<Write>) {
        self.wait();
        self.inner.commit(writes);
    }

    fn sync(&self) -> std::result::Result<(), String> {
        self.wait();
        self.inner.sync()
    }

    fn writable(&self, change: ChangeKind) -> std::result::Result<(), Error> {
        self.inner.writable(change)
    }

    fn set_disk_reserve(&self, bytes: u64) {
        self.inner.set_disk_reserve(bytes);
    }

    fn set_cache_bytes(&self, bytes: u64) {
        self.inner.set_cache_bytes(bytes);
    }

    fn upkeep(&self) {
        self.inner.upkeep();
    }

    fn checks(&self) -> Vec<Check> {
        self.inner.checks()
    }

    fn observe(&self) -> Arc<Observation> {
        self.inner.observe()
    }
}
