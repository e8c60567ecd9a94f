//! An engine that takes its time: a slow disk to rehearse with (`--engine-delay`), or one that is slow now and then
//! (`--engine-delay-every`). Made by `main`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::commits::Commits;
use crate::operation::{Durability, Error, Operation};
use crate::{Capabilities, ChangeKind, Check, Engine, LocalDisk, Observation, Pending, Reply, Result, maintenance};

/// Any engine, whose calls, or some of them, take a while longer.
pub struct Delayed {
    inner: Arc<dyn Engine>,
    delay: Duration,
    every: u64,
    calls: AtomicU64,
}

impl Delayed {
    /// `inner`, with `delay` before every `every`th call, at least 1, that may wait for a disk.
    #[must_use]
    pub fn new(inner: Arc<dyn Engine>, delay: Duration, every: u64) -> Delayed {
        Delayed { inner, delay, every, calls: AtomicU64::new(0) }
    }

    fn wait(&self) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if !call.is_multiple_of(self.every) {
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "to take time is what it is for")]
        thread::sleep(self.delay);
    }
}

impl Engine for Delayed {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { blocks: true, ..self.inner.capabilities() }
    }

    fn durability(&self, asked: Durability) -> Durability {
        self.inner.durability(asked)
    }

    /// Nothing is in memory.
    fn read_cached(&self, _key: &[u8]) -> Option<Result> {
        None
    }

    fn execute(&self, operation: Operation, reply: Arc<dyn Reply>) {
        self.wait();
        self.inner.execute(operation, reply);
    }

    fn commit(&self, writes: Vec<Pending>) {
        self.wait();
        self.inner.commit(writes);
    }

    fn writable(&self, change: ChangeKind) -> std::result::Result<(), Error> {
        self.inner.writable(change)
    }

    fn set_cache_bytes(&self, bytes: u64) {
        self.inner.set_cache_bytes(bytes);
    }

    fn checks(&self) -> Vec<Check> {
        self.inner.checks()
    }

    fn observe(&self) -> Arc<Observation> {
        self.inner.observe()
    }

    fn local_disk(&self) -> Option<&dyn LocalDisk> {
        self.inner.local_disk().map(|_| self as &dyn LocalDisk)
    }
}

impl Delayed {
    fn disk(&self) -> &dyn LocalDisk {
        self.inner.local_disk().expect("asked for only where there is one")
    }
}

impl LocalDisk for Delayed {
    fn sync(&self) -> std::result::Result<(), String> {
        self.wait();
        self.disk().sync()
    }

    fn housekeeping(&self) {
        self.disk().housekeeping();
    }

    fn commits(&self) -> &Commits {
        self.disk().commits()
    }

    fn set_disk_reserve(&self, bytes: u64) {
        self.disk().set_disk_reserve(bytes);
    }

    fn checkpoint(&self, target: &Path) -> std::result::Result<maintenance::Checkpoint, maintenance::Error> {
        self.disk().checkpoint(target)
    }

    fn compact(
        &self,
        bottommost: bool,
        go_on: &dyn Fn(u64, u64) -> bool,
    ) -> std::result::Result<maintenance::Compaction, maintenance::Error> {
        self.disk().compact(bottommost, go_on)
    }

    fn interrupt_compaction(&self) {
        self.disk().interrupt_compaction();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryEngine;
    use klad_base::clock;

    #[test]
    fn only_every_so_manyth_call_waits() {
        let slow = |every| {
            let engine = Delayed::new(Arc::new(MemoryEngine::new(1 << 20)), Duration::from_millis(2), every);
            let begin = clock::now();
            (0..9).for_each(|_| engine.wait());
            clock::now() - begin
        };
        assert!(slow(1) >= Duration::from_millis(18));
        // Nine calls of which none is the tenth sleep not once; the bound is for a machine that does something else.
        assert!((0..20).any(|_| slow(10) < Duration::from_millis(2)));
        assert!(slow(9) >= Duration::from_millis(2));
    }
}
