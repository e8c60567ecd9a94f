//! Decides whether a worker itself does a read that memory cannot answer, and does it.
//!
//! To hand a read over to a storage thread and back costs more CPU time than a read from the kernel's page cache. So a
//! worker does reads itself while storage is quick, and hands them over when it is not:
//!
//! ```text
//!   handed over ──QUICK_READS_MIN reads of storage threads in a row take < QUICK_READ_MAX──▶ on the worker
//!        ▲                                                                                          │
//!        └──────────────────── reads on the worker have slept longer than the budget ───────────────┘
//! ```
//!
//! The budget limits what a slow disk costs a worker: [`WORKER_READ_SLEEP_MAX`] at once, and one part in
//! [`WORKER_READ_SLEEP_PARTS`] of the time. One read may exceed it, and becomes a debt. A read that was long because other threads had the core
//! does not count: the kernel tells how often a thread has slept. `worker_context` and `adaptive` call this.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::execution::phases::{OperationTimes, Phases};
use crate::limits::{QUICK_READ_MAX, QUICK_READS_MIN, WORKER_READ_SLEEP_MAX, WORKER_READ_SLEEP_PARTS};
use klad_base::clock;
use klad_base::os::scheduler;
use klad_base::sync::Mutex;
use klad_storage::operation::{Consistency, Error, Operation};
use klad_storage::{Engine, Perf, Reply, Result};

/// The number of quick reads in a row that the storage threads have done.
#[derive(Debug, Default)]
pub(super) struct QuickReads(AtomicU32);

impl QuickReads {
    /// Records that a storage thread has read one key in `time`.
    pub(super) fn took(&self, time: Duration) {
        if time >= QUICK_READ_MAX {
            self.0.store(0, Ordering::Relaxed);
        } else if !self.are_enough() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn are_enough(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= QUICK_READS_MIN
    }
}

/// One worker's decision.
#[derive(Debug)]
pub(super) struct WorkerReads {
    on: Cell<bool>,
    /// How long reads on this worker may still sleep, ns. Negative: a debt.
    left_ns: Cell<i64>,
    /// When `left_ns` was last updated.
    updated: Cell<Instant>,
    /// How often the thread had slept at its first read of this loop iteration.
    sleeps: Cell<Option<u64>>,
}

impl WorkerReads {
    pub(super) fn new() -> WorkerReads {
        WorkerReads {
            on: Cell::new(false),
            left_ns: Cell::new(nanoseconds(WORKER_READ_SLEEP_MAX)),
            updated: Cell::new(clock::now()),
            sleeps: Cell::new(None),
        }
    }

    /// Whether the worker does its next read itself.
    pub(super) fn are_on(&self, quick_reads: &QuickReads) -> bool {
        if !self.on.get() && quick_reads.are_enough() {
            self.refill(clock::now());
            self.on.set(self.left_ns.get() > 0);
        }
        self.on.get()
    }

    /// Reads a key on the calling worker. `None`: a storage thread must read it, because the value is large.
    pub(super) fn read(
        &self,
        quick_reads: &QuickReads,
        engine: &dyn Engine,
        key: Bytes,
        phases: &Phases,
    ) -> Option<Result> {
        let began = self.begins();
        let reply = Arc::<OwnReply>::default();
        engine.execute(Operation::Get { key, consistency: Consistency::Default }, reply.clone());
        let times = OperationTimes::new(phases.since());
        times.taken(began);
        let now = clock::now();
        self.ended(quick_reads, began, now);
        let result = reply.result.lock().take().expect("the calls of this engine block");
        if let Err(Error::NoRoom { .. }) = result {
            return None;
        }
        phases.add(times.ended(|| now));
        if let Some(perf) = &*reply.perf.lock() {
            phases.measured(perf);
        }
        Some(result)
    }

    /// The worker begins a read. Returns the time.
    fn begins(&self) -> Instant {
        if self.sleeps.get().is_none() {
            self.sleeps.set(Some(scheduler::thread_sleeps()));
        }
        clock::now()
    }

    /// The worker has done a read.
    fn ended(&self, quick_reads: &QuickReads, began: Instant, now: Instant) {
        let time = now.saturating_duration_since(began);
        if time < QUICK_READ_MAX {
            return;
        }
        let sleeps = scheduler::thread_sleeps();
        if self.sleeps.replace(Some(sleeps)) == Some(sleeps) {
            return;
        }
        self.refill(now);
        self.left_ns.set(self.left_ns.get().saturating_sub(nanoseconds(time)));
        if self.left_ns.get() <= 0 {
            self.on.set(false);
            quick_reads.0.store(0, Ordering::Relaxed);
        }
    }

    /// The loop iteration ends. The thread may sleep until the next one.
    pub(super) fn iteration_ends(&self) {
        self.sleeps.set(None);
    }

    fn refill(&self, now: Instant) {
        let passed = now.saturating_duration_since(self.updated.replace(now));
        let left_ns = self.left_ns.get().saturating_add(nanoseconds(passed / WORKER_READ_SLEEP_PARTS));
        self.left_ns.set(left_ns.min(nanoseconds(WORKER_READ_SLEEP_MAX)));
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Takes the result of a read on the worker. Admits no large value.
#[derive(Default)]
struct OwnReply {
    result: Mutex<Option<Result>>,
    perf: Mutex<Option<Perf>>,
}

impl Reply for OwnReply {
    fn complete(&self, result: Result) {
        *self.result.lock() = Some(result);
    }

    fn measured(&self, perf: &Perf) {
        *self.perf.lock() = Some(*perf);
    }

    fn admits(&self, _value_bytes: usize) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick() -> QuickReads {
        let quick_reads = QuickReads::default();
        (0..QUICK_READS_MIN).for_each(|_| quick_reads.took(Duration::ZERO));
        quick_reads
    }

    /// A read that sleeps for `time`.
    fn sleeps(worker_reads: &WorkerReads, quick_reads: &QuickReads, time: Duration) {
        let began = worker_reads.begins();
        klad_base::sync::Signal::default().wait_timeout(Duration::from_millis(1));
        worker_reads.ended(quick_reads, began, began + time);
    }

    #[test]
    fn a_worker_reads_after_enough_quick_ones_in_a_row() {
        let (worker_reads, quick_reads) = (WorkerReads::new(), QuickReads::default());
        for _ in 1..QUICK_READS_MIN {
            quick_reads.took(QUICK_READ_MAX / 2);
        }
        assert!(!worker_reads.are_on(&quick_reads));
        quick_reads.took(QUICK_READ_MAX);
        quick_reads.took(QUICK_READ_MAX / 2);
        assert!(!worker_reads.are_on(&quick_reads), "a slow one ends the row");
        assert!(worker_reads.are_on(&quick()));
    }

    #[test]
    fn a_slow_disk_costs_a_worker_the_budget_and_one_read() {
        let (worker_reads, quick_reads) = (WorkerReads::new(), quick());
        assert!(worker_reads.are_on(&quick_reads));
        sleeps(&worker_reads, &quick_reads, WORKER_READ_SLEEP_MAX / 2);
        assert!(worker_reads.are_on(&quick_reads), "half of the budget is left");
        let hour = Duration::from_hours(1);
        sleeps(&worker_reads, &quick_reads, hour + WORKER_READ_SLEEP_MAX);
        assert!(!worker_reads.are_on(&quick_reads), "the storage threads must have been quick again");
        assert!(!worker_reads.are_on(&quick()), "an hour is owed");
        let began = worker_reads.updated.get();
        worker_reads.refill(began + hour / 2 * WORKER_READ_SLEEP_PARTS);
        worker_reads.updated.set(clock::now());
        assert!(!worker_reads.are_on(&quick()), "half of it is paid");
        worker_reads.refill(worker_reads.updated.get() + hour * WORKER_READ_SLEEP_PARTS);
        assert_eq!(worker_reads.left_ns.get(), nanoseconds(WORKER_READ_SLEEP_MAX), "never more than this");
        worker_reads.updated.set(clock::now());
        assert!(worker_reads.are_on(&quick()));
    }

    #[test]
    fn a_long_read_without_a_sleep_costs_nothing() {
        let (worker_reads, quick_reads) = (WorkerReads::new(), quick());
        assert!(worker_reads.are_on(&quick_reads));
        let began = worker_reads.begins();
        worker_reads.ended(&quick_reads, began, began + WORKER_READ_SLEEP_MAX * 2);
        assert!(worker_reads.are_on(&quick_reads));
    }
}
