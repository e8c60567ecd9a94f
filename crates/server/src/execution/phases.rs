//! The times of one request's operations. The worker's side is [`Phases`], in plain cells. An operation in progress
//! carries [`OperationTimes`], written by the thread that takes it and the thread that completes it.
//!
//! ```text
//!   since ──────── queue ────────▶ taken ──────── engine, including sync ────────▶ ended
//! ```
//!
//! `http`, `pending_operation` and the strategies call this.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use klad_base::clock;
use klad_storage::Perf;

/// What has answered an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The engine's data in memory, which the worker read itself.
    Memory,
    /// A call of the engine that may wait, usually on another thread than the worker.
    Storage,
}

impl AnsweredBy {
    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            AnsweredBy::Memory => "memory",
            AnsweredBy::Storage => "storage",
        }
    }
}

/// The times of all operations of a request together.
#[derive(Debug)]
pub struct Phases {
    /// When the next operation could begin. The operation's wait counts from then on.
    since: Cell<Instant>,
    queue_ns: Cell<u64>,
    engine_ns: Cell<u64>,
    sync_ns: Cell<u64>,
    /// Whether reads from memory are timed too.
    exact: Cell<bool>,
    answered_by: Cell<Option<AnsweredBy>>,
    perf: Cell<Option<Perf>>,
}

impl Default for Phases {
    fn default() -> Phases {
        Phases {
            since: Cell::new(clock::now()),
            queue_ns: Cell::new(0),
            engine_ns: Cell::new(0),
            sync_ns: Cell::new(0),
            exact: Cell::new(false),
            answered_by: Cell::new(None),
            perf: Cell::new(None),
        }
    }
}

impl Phases {
    /// Resets everything when a request's head has arrived at `now`.
    pub fn begin(&self, now: Instant) {
        self.since.set(now);
        self.queue_ns.set(0);
        self.engine_ns.set(0);
        self.sync_ns.set(0);
        self.exact.set(false);
        self.answered_by.set(None);
        self.perf.set(None);
    }

    /// Sets when the next operation could begin.
    pub fn go_on(&self, now: Instant) {
        self.since.set(now);
    }

    /// When the next operation could begin.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.since.get()
    }

    /// From now on reads of this request from memory are timed too, which costs two clock readings each.
    pub fn be_exact(&self) {
        self.exact.set(true);
    }

    /// Adds `time`, which the request waited before klad read it, to the time in the queue.
    pub fn waited_outside(&self, time: Duration) {
        self.queue_ns.set(self.queue_ns.get() + nanoseconds(time));
    }

    /// Called before the worker reads from memory. Returns the time if reads from memory are timed.
    pub(super) fn asks_memory(&self) -> Option<Instant> {
        self.exact.get().then(clock::now)
    }

    /// Called after the worker has read from memory, with the time from [`Phases::asks_memory`].
    pub(super) fn asked_memory(&self, began: Option<Instant>) {
        if let Some(began) = began {
            self.engine_ns.set(self.engine_ns.get() + clock::nanoseconds_between(began, clock::now()));
        }
    }

    /// Records that memory has answered.
    pub(super) fn answered_from_memory(&self) {
        self.answered_by.set(Some(AnsweredBy::Memory));
    }

    pub(super) fn add(&self, spent: PhaseTimes) {
        self.answered_by.set(Some(AnsweredBy::Storage));
        self.queue_ns.set(self.queue_ns.get() + spent.queue);
        self.engine_ns.set(self.engine_ns.get() + spent.engine);
        self.sync_ns.set(self.sync_ns.get() + spent.sync);
    }

    /// Adds the engine's measurements of one operation.
    pub(super) fn measured(&self, perf: &Perf) {
        let sum = self.perf.get().map_or(*perf, |mut sum| {
            sum.add(perf);
            sum
        });
        self.perf.set(Some(sum));
    }

    /// The engine's measurements, if there are any.
    #[must_use]
    pub fn perf(&self) -> Option<Perf> {
        self.perf.get()
    }

    /// The time that operations waited until storage began them, plus the time that the request waited at the gate, ns.
    #[must_use]
    pub fn queue_ns(&self) -> u64 {
        self.queue_ns.get()
    }

    /// Time in storage without the sync, ns.
    #[must_use]
    pub fn engine_ns(&self) -> u64 {
        self.engine_ns.get()
    }

    /// What has answered the last operation. `None`: there was no operation, or none was answered yet.
    #[must_use]
    pub fn answered_by(&self) -> Option<AnsweredBy> {
        self.answered_by.get()
    }

    /// Time in log writes with sync, ns.
    #[must_use]
    pub fn sync_ns(&self) -> u64 {
        self.sync_ns.get()
    }
}

/// The times of one operation, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PhaseTimes {
    pub(super) queue: u64,
    pub(super) engine: u64,
    pub(super) sync: u64,
}

/// The clock readings of one operation. Several threads write them one after the other, and the operation's lock
/// orders the writes.
#[derive(Debug)]
pub(super) struct OperationTimes {
    since: Instant,
    /// The time from `since` until the operation left its queue; `NEVER` before that.
    taken_ns: AtomicU64,
    /// The time from `since` until the engine was done, if the engine has reported that; otherwise `NEVER`.
    done_ns: AtomicU64,
    sync_ns: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl OperationTimes {
    pub(super) fn new(since: Instant) -> OperationTimes {
        OperationTimes {
            since,
            taken_ns: AtomicU64::new(NEVER),
            done_ns: AtomicU64::new(NEVER),
            sync_ns: AtomicU64::new(0),
        }
    }

    /// Records that the operation has left its queue. If the operation goes back to a queue, this is called again when
    /// it leaves that queue.
    pub(super) fn taken(&self, now: Instant) {
        self.taken_ns.store(clock::nanoseconds_between(self.since, now), Ordering::Relaxed);
    }

    /// Records that the engine was done at `now`, and how long the log write with sync took.
    pub(super) fn clocked(&self, now: Instant, sync: Duration) {
        self.done_ns.store(clock::nanoseconds_between(self.since, now), Ordering::Relaxed);
        self.sync_ns.store(nanoseconds(sync), Ordering::Relaxed);
    }

    /// Returns the operation's times. Called when the operation ends. Calls `now` only if the engine has not reported
    /// when it was done.
    pub(super) fn ended(&self, now: impl FnOnce() -> Instant) -> PhaseTimes {
        let ended_ns = match self.done_ns.load(Ordering::Relaxed) {
            NEVER => clock::nanoseconds_between(self.since, now()),
            done_ns => done_ns,
        };
        let queue_ns = self.taken_ns.load(Ordering::Relaxed).min(ended_ns);
        let in_storage_ns = ended_ns - queue_ns;
        let sync_ns = self.sync_ns.load(Ordering::Relaxed).min(in_storage_ns);
        PhaseTimes { queue: queue_ns, engine: in_storage_ns - sync_ns, sync: sync_ns }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_spent_adds_up_to_the_time_until_the_end() {
        let since = clock::now();
        let after = |ms| since + Duration::from_millis(ms);
        let times = OperationTimes::new(since);
        assert_eq!(
            times.ended(|| after(7)),
            PhaseTimes { queue: 7_000_000, ..PhaseTimes::default() },
            "it never left its queue"
        );
        times.taken(after(2));
        assert_eq!(times.ended(|| after(7)), PhaseTimes { queue: 2_000_000, engine: 5_000_000, sync: 0 });
        times.clocked(after(7), Duration::from_millis(4));
        let expected = PhaseTimes { queue: 2_000_000, engine: 1_000_000, sync: 4_000_000 };
        assert_eq!(times.ended(|| after(9)), expected, "the engine has said when it was done");
        let phases = Phases::default();
        phases.add(expected);
        phases.add(expected);
        assert_eq!((phases.queue_ns(), phases.engine_ns(), phases.sync_ns()), (4_000_000, 2_000_000, 8_000_000));
    }
}
