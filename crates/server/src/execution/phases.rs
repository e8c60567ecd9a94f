//! Where the time of one request's operations goes. The worker's side is [`Phases`], in plain cells; an operation on its way
//! carries [`Clockings`], which whoever takes it and whoever ends it write.
//!
//! ```text
//!   since ──────── queue ────────▶ taken ──────── engine, and sync in it ────────▶ ended
//! ```
//!
//! Called by `http`, `pending` and the strategies.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use klad_base::clock;
use klad_storage::Perf;

/// Who has answered a request's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The worker itself, from what the engine has in memory.
    Memory,
    /// The engine, on whatever thread may call it.
    Storage,
}

impl AnsweredBy {
    /// As it stands in labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            AnsweredBy::Memory => "memory",
            AnsweredBy::Storage => "storage",
        }
    }
}

/// The phases of a request, of all its operations together.
#[derive(Debug)]
pub struct Phases {
    /// From when the next operation could be begun: it waits from then on.
    since: Cell<Instant>,
    queue_ns: Cell<u64>,
    engine_ns: Cell<u64>,
    sync_ns: Cell<u64>,
    /// Reads that memory answers are timed too: somebody wants to see this request's phases.
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
    /// A request's head has come.
    pub fn begin(&self, now: Instant) {
        self.since.set(now);
        self.queue_ns.set(0);
        self.engine_ns.set(0);
        self.sync_ns.set(0);
        self.exact.set(false);
        self.answered_by.set(None);
        self.perf.set(None);
    }

    /// Everything that the next operation needs was there at `now`.
    pub fn go_on(&self, now: Instant) {
        self.since.set(now);
    }

    /// From when the next operation could be begun.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.since.get()
    }

    /// Reads that memory answers are to be timed, at the price of two looks at the clock.
    pub fn be_exact(&self) {
        self.exact.set(true);
    }

    /// The request waited `time` before it was seen.
    pub fn waited_outside(&self, time: Duration) {
        self.queue_ns.set(self.queue_ns.get() + nanoseconds(time));
    }

    /// Memory is about to be asked, on the calling thread: when, if somebody wants to know.
    pub(super) fn asks_memory(&self) -> Option<Instant> {
        self.exact.get().then(clock::now)
    }

    /// It was asked at `began`.
    pub(super) fn asked_memory(&self, began: Option<Instant>) {
        if let Some(began) = began {
            self.engine_ns.set(self.engine_ns.get() + clock::nanoseconds_between(began, clock::now()));
        }
    }

    /// Memory has answered.
    pub(super) fn answered_from_memory(&self) {
        self.answered_by.set(Some(AnsweredBy::Memory));
    }

    pub(super) fn add(&self, spent: Spent) {
        self.answered_by.set(Some(AnsweredBy::Storage));
        self.queue_ns.set(self.queue_ns.get() + spent.queue);
        self.engine_ns.set(self.engine_ns.get() + spent.engine);
        self.sync_ns.set(self.sync_ns.get() + spent.sync);
    }

    /// What the engine had to do for one of its operations.
    pub(super) fn measured(&self, perf: &Perf) {
        let sum = self.perf.get().map_or(*perf, |mut sum| {
            sum.add(perf);
            sum
        });
        self.perf.set(Some(sum));
    }

    /// What the engine had to do, where it has said so.
    #[must_use]
    pub fn perf(&self) -> Option<Perf> {
        self.perf.get()
    }

    /// Waiting for storage to begin, ns.
    #[must_use]
    pub fn queue_ns(&self) -> u64 {
        self.queue_ns.get()
    }

    /// In storage, without the sync, ns.
    #[must_use]
    pub fn engine_ns(&self) -> u64 {
        self.engine_ns.get()
    }

    /// Who has answered; `None`: nothing was asked, or was not answered yet.
    #[must_use]
    pub fn answered_by(&self) -> Option<AnsweredBy> {
        self.answered_by.get()
    }

    /// In the log write with sync, ns.
    #[must_use]
    pub fn sync_ns(&self) -> u64 {
        self.sync_ns.get()
    }
}

/// What one operation spent, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    pub(super) queue: u64,
    pub(super) engine: u64,
    pub(super) sync: u64,
}

/// The clock readings of one operation, written by one thread after the other; the ticket's lock lies between them.
#[derive(Debug)]
pub(super) struct Clockings {
    since: Instant,
    /// When it was taken, after `since`; `NEVER` until then.
    taken_ns: AtomicU64,
    /// When the engine was done with it, if it said so; else `NEVER`.
    done_ns: AtomicU64,
    sync_ns: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl Clockings {
    pub(super) fn new(since: Instant) -> Clockings {
        Clockings { since, taken_ns: AtomicU64::new(NEVER), done_ns: AtomicU64::new(NEVER), sync_ns: AtomicU64::new(0) }
    }

    /// It has left its queue; what is given back is taken again later.
    pub(super) fn taken(&self, now: Instant) {
        self.taken_ns.store(clock::nanoseconds_between(self.since, now), Ordering::Relaxed);
    }

    /// The engine was done with it at `now`; so much of it was the log write with sync.
    pub(super) fn clocked(&self, now: Instant, sync: Duration) {
        self.done_ns.store(clock::nanoseconds_between(self.since, now), Ordering::Relaxed);
        self.sync_ns.store(nanoseconds(sync), Ordering::Relaxed);
    }

    /// It has ended; `now` is asked where the engine has not said when.
    pub(super) fn ended(&self, now: impl FnOnce() -> Instant) -> Spent {
        let ended_ns = match self.done_ns.load(Ordering::Relaxed) {
            NEVER => clock::nanoseconds_between(self.since, now()),
            done_ns => done_ns,
        };
        let queue_ns = self.taken_ns.load(Ordering::Relaxed).min(ended_ns);
        let in_storage_ns = ended_ns - queue_ns;
        let sync_ns = self.sync_ns.load(Ordering::Relaxed).min(in_storage_ns);
        Spent { queue: queue_ns, engine: in_storage_ns - sync_ns, sync: sync_ns }
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
        let clockings = Clockings::new(since);
        assert_eq!(clockings.ended(|| after(7)), Spent { queue: 7_000_000, ..Spent::default() }, "never taken");
        clockings.taken(after(2));
        assert_eq!(clockings.ended(|| after(7)), Spent { queue: 2_000_000, engine: 5_000_000, sync: 0 });
        clockings.clocked(after(7), Duration::from_millis(4));
        let expected = Spent { queue: 2_000_000, engine: 1_000_000, sync: 4_000_000 };
        assert_eq!(clockings.ended(|| after(9)), expected, "the engine has said when it was done");
        let phases = Phases::default();
        phases.add(expected);
        phases.add(expected);
        assert_eq!((phases.queue_ns(), phases.engine_ns(), phases.sync_ns()), (4_000_000, 2_000_000, 8_000_000));
    }
}
