//! Decides whether a worker itself does a read that memory cannot answer, and does it.
//!
//! To hand a read over to a storage thread and back costs more CPU time than a read from the kernel's page cache. So a
//! worker does reads itself while storage is quick, and hands them over when it is not:
//!
//! ```text
//!   handed over ──QUICK_READS_MIN reads of storage threads in a row take < QUICK_READ_MAX──▶ on the worker
//!        ▲                                                                                          │
//!        ├──────────────────── reads on the worker have slept longer than a budget ─────────────────┤
//!        ├──────────────────── SLOW_READS_MAX in a row take ≥ QUICK_READ_MAX ───────────────────────┤
//!        └──────────────────── the value is large ──────────────────────────────────────────────────┘
//! ```
//!
//! The budgets limit how long reads from a slow disk may sleep on a worker: at most [`WORKER_READ_SLEEP_MAX`] at once,
//! and in the long run one part in [`LONG_SLEEP_PARTS`] of the time. Sleeps below [`SHORT_SLEEP_MAX`] have a separate
//! budget, one part in [`SHORT_SLEEP_PARTS`] of the time. One read may exceed a budget; the excess becomes a debt. The
//! kernel counts the sleeps of a thread, so a read that took long because other threads had the core does not count as
//! a sleep. `worker_context` and `adaptive` call this.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::execution::phases::{OperationTimes, Phases};
use crate::limits::{
    CACHED_READ_MAX, LONG_SLEEP_PARTS, LOOK_EVERY, LOOKS_AVERAGED, LOOKS_FOUND_MIN, QUICK_READ_MAX, QUICK_READS_MIN,
    SHORT_SLEEP_MAX, SHORT_SLEEP_PARTS, SLOW_READS_MAX, WORKER_READ_SLEEP_MAX,
};
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

/// How long reads on a worker may still sleep.
#[derive(Debug)]
struct SleepBudget {
    /// How long reads may still sleep, nanoseconds. A negative value is a debt.
    left_ns: Cell<i64>,
    /// The budget grows by one part in this many of the time that passes.
    parts: u32,
}

impl SleepBudget {
    fn new(parts: u32) -> SleepBudget {
        SleepBudget { left_ns: Cell::new(nanoseconds(WORKER_READ_SLEEP_MAX)), parts }
    }

    fn refill(&self, passed: Duration) {
        let left_ns = self.left_ns.get().saturating_add(nanoseconds(passed / self.parts));
        self.left_ns.set(left_ns.min(nanoseconds(WORKER_READ_SLEEP_MAX)));
    }

    fn spend(&self, time: Duration) {
        self.left_ns.set(self.left_ns.get().saturating_sub(nanoseconds(time)));
    }

    fn is_spent(&self) -> bool {
        self.left_ns.get() <= 0
    }
}

/// One worker's decision whether it reads storage itself.
#[derive(Debug)]
pub(super) struct WorkerReads {
    on: Cell<bool>,
    short_sleeps: SleepBudget,
    long_sleeps: SleepBudget,
    /// When the budgets were last refilled.
    refilled: Cell<Instant>,
    /// How often the thread had slept when klad last checked that in this loop iteration: at the first read, or after a
    /// read that took [`CACHED_READ_MAX`] or longer. `None`: there was no read yet.
    sleeps: Cell<Option<u64>>,
    /// The number of reads in a row that took [`QUICK_READ_MAX`] or longer.
    slow: Cell<u32>,
    /// The number of reads, modulo 2^32.
    number: Cell<u32>,
    /// The share of looks in memory that found the answer, averaged over the last looks of one read in [`LOOK_EVERY`].
    looks_found: Cell<f32>,
}

impl WorkerReads {
    pub(super) fn new() -> WorkerReads {
        WorkerReads {
            on: Cell::new(false),
            short_sleeps: SleepBudget::new(SHORT_SLEEP_PARTS),
            long_sleeps: SleepBudget::new(LONG_SLEEP_PARTS),
            refilled: Cell::new(clock::now()),
            sleeps: Cell::new(None),
            slow: Cell::new(0),
            number: Cell::new(0),
            looks_found: Cell::new(1.0),
        }
    }

    /// Whether the worker looks in memory before it reads storage itself or hands the read over. A worker that reads
    /// storage itself need not look, because the read itself looks in memory too.
    pub(super) fn looks_in_memory(&self) -> bool {
        self.number.set(self.number.get().wrapping_add(1));
        !self.on.get() || self.looks_found.get() >= LOOKS_FOUND_MIN || self.is_sampled()
    }

    /// Records that the worker has looked in memory, and whether it found the answer there.
    pub(super) fn looked_in_memory(&self, found: bool) {
        // Only sampled looks count, because the worker makes them regardless of what earlier looks have found.
        if self.is_sampled() {
            let before = self.looks_found.get();
            self.looks_found.set(before + (f32::from(u8::from(found)) - before) / LOOKS_AVERAGED);
        }
    }

    fn is_sampled(&self) -> bool {
        self.number.get().is_multiple_of(LOOK_EVERY)
    }

    /// Whether the worker does its next read itself.
    pub(super) fn are_on(&self, quick_reads: &QuickReads) -> bool {
        if !self.on.get() && quick_reads.are_enough() {
            self.refill(clock::now());
            self.on.set(!self.is_spent());
        }
        self.on.get()
    }

    /// Reads a key on the calling worker. `None`: a storage thread must read it again, because the value is large.
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
            // Other values may be large too, and would be read twice.
            self.stop(quick_reads);
            return None;
        }
        phases.add(times.ended(|| now));
        if let Some(perf) = &*reply.perf.lock() {
            phases.measured(perf);
        }
        Some(result)
    }

    /// Records that the worker begins a read. Returns the current time.
    fn begins(&self) -> Instant {
        if self.sleeps.get().is_none() {
            self.sleeps.set(Some(scheduler::thread_sleeps()));
        }
        clock::now()
    }

    /// Records that the worker has done a read.
    fn ended(&self, quick_reads: &QuickReads, began: Instant, now: Instant) {
        let time = now.saturating_duration_since(began);
        if time < CACHED_READ_MAX {
            self.slow.set(0);
            return;
        }
        self.slow.set(if time < QUICK_READ_MAX { 0 } else { self.slow.get() + 1 });
        let sleeps = scheduler::thread_sleeps();
        if self.sleeps.replace(Some(sleeps)) != Some(sleeps) {
            self.refill(now);
            let budget = if time < SHORT_SLEEP_MAX { &self.short_sleeps } else { &self.long_sleeps };
            budget.spend(time);
        }
        if self.is_spent() || self.slow.get() >= SLOW_READS_MAX {
            self.stop(quick_reads);
        }
    }

    /// Hands the next reads over to storage threads, until these have been quick again.
    fn stop(&self, quick_reads: &QuickReads) {
        self.slow.set(0);
        self.on.set(false);
        quick_reads.0.store(0, Ordering::Relaxed);
    }

    /// Records the end of a loop iteration, because the thread may sleep until the next one.
    pub(super) fn iteration_ends(&self) {
        self.sleeps.set(None);
    }

    fn is_spent(&self) -> bool {
        self.short_sleeps.is_spent() || self.long_sleeps.is_spent()
    }

    fn refill(&self, now: Instant) {
        let passed = now.saturating_duration_since(self.refilled.replace(now));
        self.short_sleeps.refill(passed);
        self.long_sleeps.refill(passed);
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
        // However long that took, nothing is added to the budgets.
        worker_reads.refilled.set(clock::now() + Duration::from_hours(1));
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
        let began = worker_reads.refilled.get();
        worker_reads.refill(began + hour / 2 * LONG_SLEEP_PARTS);
        worker_reads.refilled.set(clock::now());
        assert!(!worker_reads.are_on(&quick()), "half of it is paid");
        worker_reads.refill(worker_reads.refilled.get() + hour * LONG_SLEEP_PARTS);
        assert_eq!(worker_reads.long_sleeps.left_ns.get(), nanoseconds(WORKER_READ_SLEEP_MAX), "never more than this");
        worker_reads.refilled.set(clock::now());
        assert!(worker_reads.are_on(&quick()));
    }

    /// A read that takes `time` without a sleep.
    fn computes(worker_reads: &WorkerReads, quick_reads: &QuickReads, time: Duration) {
        let began = worker_reads.begins();
        worker_reads.ended(quick_reads, began, began + time);
    }

    #[test]
    fn short_and_long_sleeps_have_a_budget_each() {
        let us = Duration::from_micros;
        // 13 sleeps of 400 µs and 10 of 520 µs are 5.2 ms. After 2 ms and 100 ms the debt of 200 µs is paid.
        for (time, number, other, other_number, debt, paid) in
            [(us(400), 13, us(500), 9, us(200), us(2_000)), (us(520), 10, us(400), 12, us(200), us(100_000))]
        {
            let (worker_reads, quick_reads) = (WorkerReads::new(), quick());
            assert!(worker_reads.are_on(&quick_reads));
            for time in std::iter::repeat_n(other, other_number).chain(std::iter::repeat_n(time, number)) {
                assert!(worker_reads.on.get(), "a worker that sleeps for {time:?} each stops early");
                // A read from memory, so that the sleeps are not in a row.
                computes(&worker_reads, &quick_reads, Duration::ZERO);
                sleeps(&worker_reads, &quick_reads, time);
            }
            assert!(!worker_reads.on.get(), "sleeps of {time:?} have no end");
            let budget = if time < SHORT_SLEEP_MAX { &worker_reads.short_sleeps } else { &worker_reads.long_sleeps };
            assert_eq!(budget.left_ns.get(), -nanoseconds(debt));
            worker_reads.refill(worker_reads.refilled.get() + paid);
            assert_eq!(budget.left_ns.get(), 0);
        }
    }

    #[test]
    fn a_worker_seldom_looks_in_memory_that_seldom_has_the_answer() {
        let worker_reads = WorkerReads::new();
        worker_reads.on.set(true);
        let looks = |found_every: u32| {
            let mut looks = 0;
            for number in 0..10_000_u32 {
                if worker_reads.looks_in_memory() {
                    looks += 1;
                    worker_reads.looked_in_memory(number.is_multiple_of(found_every));
                }
            }
            looks
        };
        assert!((1_250..2_500).contains(&looks(53)), "memory has one in 53");
        worker_reads.on.set(false);
        assert_eq!(looks(53), 10_000, "a hand-over delays an answer that memory has");
        worker_reads.on.set(true);
        assert!(looks(3) > 8_000, "it notices when memory has a third of the answers");
    }

    #[test]
    fn long_reads_without_a_sleep_end_reads_on_a_worker() {
        let (worker_reads, quick_reads) = (WorkerReads::new(), quick());
        for time in [WORKER_READ_SLEEP_MAX * 2, Duration::ZERO] {
            assert!(worker_reads.are_on(&quick_reads));
            (1..SLOW_READS_MAX).for_each(|_| computes(&worker_reads, &quick_reads, QUICK_READ_MAX));
            assert!(worker_reads.are_on(&quick_reads), "few of them may have waited for the core");
            computes(&worker_reads, &quick_reads, time);
            assert_eq!(worker_reads.on.get(), time.is_zero(), "a quick one ends the row");
            worker_reads.on.set(false);
            quick_reads.0.store(QUICK_READS_MIN, Ordering::Relaxed);
        }
    }
}
