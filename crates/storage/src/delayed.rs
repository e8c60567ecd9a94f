//! A wrapper that delays the calls of an engine, to test klad with a slow disk (`--engine-delay`) or with a disk that
//! is slow from time to time (`--engine-delay-every`). `main` makes it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::changes::Changes;
use crate::commits::Commits;
use crate::operation::{Durability, Error, Operation};
use crate::{Capabilities, ChangeKind, Check, Engine, LocalDisk, Observation, Pending, Reply, Result, maintenance};

/// An engine whose calls are delayed.
pub struct Delayed {
    inner: Arc<dyn Engine>,
    delay: Duration,
    every: u64,
    calls: AtomicU64,
}

impl Delayed {
    /// Wraps `inner`. Sleeps for `delay` before one in `every` operations, commits and syncs. `every` is at least 1.
    #[must_use]
    pub fn new(inner: Arc<dyn Engine>, delay: Duration, every: u64) -> Delayed {
        Delayed { inner, delay, every, calls: AtomicU64::new(0) }
    }

    fn wait(&self) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if !call.is_multiple_of(self.every) {
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "the delay is the purpose of this engine")]
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

    fn copies(&self) -> u8 {
        self.inner.copies()
    }

    fn durability(&self, asked: Durability) -> Durability {
        self.inner.durability(asked)
    }

    /// Always `None` (unknown), so that every read is delayed.
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

    fn changes(&self) -> Option<&dyn Changes> {
        self.inner.changes()
    }

    fn local_disk(&self) -> Option<&dyn LocalDisk> {
        self.inner.local_disk().map(|_| self as &dyn LocalDisk)
    }
}

impl Delayed {
    fn disk(&self) -> &dyn LocalDisk {
        self.inner.local_disk().expect("local_disk returned this object because the inner engine has a disk")
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
    fn one_call_in_every_n_is_delayed() {
        let time_of_nine_calls = |every| {
            let engine = Delayed::new(Arc::new(MemoryEngine::new(1 << 20)), Duration::from_millis(2), every);
            let begin = clock::now();
            (0..9).for_each(|_| engine.wait());
            clock::now() - begin
        };
        assert!(time_of_nine_calls(1) >= Duration::from_millis(18));
        // None of nine calls is the tenth, so none sleeps. It is tried several times because the machine may be busy.
        assert!((0..20).any(|_| time_of_nine_calls(10) < Duration::from_millis(2)));
        assert!(time_of_nine_calls(9) >= Duration::from_millis(2));
    }
}
