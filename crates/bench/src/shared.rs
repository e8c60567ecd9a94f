//! What all threads of a run share: its parts, where starts come from, when it ends. Called by `generator`, `threads` and
//! `runner`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::author::Authors;
use crate::recorder::{Ended, Outcome, Recorder};
use crate::schedule::{Mode, Nanos, Phases, Source, Start};
use crate::workload::{Requests, Workload};
use klad_base::sync::Mutex;

/// What all threads of a run share.
#[derive(Debug)]
pub struct Shared {
    /// The run's parts.
    pub phases: Phases,
    /// Where starts come from.
    pub source: Source,
    /// What is sent.
    pub workload: Arc<Workload>,
    /// Deadline of a request, from its intended start.
    pub timeout: Nanos,
    /// How long to wait at the end for answers under way.
    pub drain: Nanos,
    /// The ends of waits are polled.
    pub polls: bool,
    /// Longest response time of goodput.
    pub good_within: Nanos,
    /// Length of an interval.
    pub interval: Nanos,
    /// Connections of all threads may grow to so many; `None`: their number is fixed.
    pub connections_max: Option<usize>,
    /// Connections of all threads.
    pub connections: AtomicUsize,
    /// Who writes the requests of each thread, where it is not `workload`.
    pub authors: Authors,
    /// Why the run was given up.
    pub failure: Mutex<Option<String>>,
    /// When somebody has asked the run to end early; [`NEVER`] while nobody has.
    pub interrupted: AtomicU64,
    /// Starts that were taken from the source, by threads that will not send them.
    pub returned: Returned,
    /// A mistake that the tests must notice.
    #[cfg(test)]
    pub planted: Option<crate::simulated::Planted>,
}

/// Starts that wait for another thread: those which the threads held that their scripts have stopped.
#[derive(Debug, Default)]
pub struct Returned {
    starts: Mutex<Vec<Start>>,
    /// Of them, read before each start of the run: that takes no lock.
    count: AtomicUsize,
}

/// No interruption.
pub const NEVER: Nanos = Nanos::MAX;

impl Shared {
    /// When the schedule ends, or has been ended.
    #[must_use]
    pub fn end(&self) -> Nanos {
        self.phases.end().min(self.interrupted.load(Ordering::Relaxed))
    }

    /// Whether somebody has had enough of waiting for the last answers.
    pub(super) fn was_interrupted_in_drain(&self) -> bool {
        let at = self.interrupted.load(Ordering::Relaxed);
        at != NEVER && at >= self.phases.end()
    }

    /// Open or closed.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self.source {
            Source::Open(_) => Mode::Open,
            Source::Closed | Source::Count(_) => Mode::Closed,
        }
    }

    /// Ends the schedule at `at`, unless it ends before.
    pub(super) fn end_early(&self, at: Nanos) {
        self.interrupted.fetch_min(at, Ordering::Relaxed);
    }

    /// The next start: one that another thread was to send, or of the source; `now` is when a closed one begins.
    pub(super) fn take_start(&self, now: Nanos) -> Option<Start> {
        if self.returned.count.load(Ordering::Acquire) > 0
            && let Some(start) = self.returned.starts.lock().pop()
        {
            self.returned.count.fetch_sub(1, Ordering::Release);
            return Some(start);
        }
        self.source.take(now, &self.phases)
    }

    /// A start of an open schedule that this thread will not send.
    pub(super) fn return_start(&self, start: Start) {
        #[cfg(test)]
        if self.planted == Some(crate::simulated::Planted::StartsLost) {
            return;
        }
        let mut starts = self.returned.starts.lock();
        starts.push(start);
        self.returned.count.fetch_add(1, Ordering::Release);
    }

    /// Ends the run, which has come to nothing.
    pub(super) fn give_up(&self, why: String) {
        self.failure.lock().get_or_insert(why);
        self.end_early(0);
    }

    /// A thread starts nothing more; the last one ends the run.
    pub(super) fn thread_stopped(&self, now: Nanos) {
        if self.authors.stopped() {
            self.end_early(now);
        }
    }

    /// One more connection, if there may be.
    pub(super) fn grow(&self) -> bool {
        let Some(max) = self.connections_max else { return false };
        let grown = self
            .connections
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < max).then_some(count + 1));
        grown.is_ok()
    }

    pub(super) fn can_grow(&self) -> bool {
        self.connections_max.is_some_and(|max| self.connections.load(Ordering::Relaxed) < max)
    }

    /// How a request that was never sent ends: with the schedule, or with its deadline if that was earlier. Its age is taken
    /// at the end of the schedule and not of the drain, in which nothing is sent: it is to be the least that it would have
    /// taken.
    pub(super) fn unsent(&self, start: Start, requests: &mut Requests) -> Ended {
        let age = self.end().saturating_sub(start.intended);
        let outcome = if age >= self.timeout { Outcome::TimedOut } else { Outcome::Unfinished };
        let operation = requests.operation();
        Ended { phase: start.phase, operation, outcome, response: age.min(self.timeout), service: None }
    }

    /// Records what no thread has taken from the schedule by the end of the run. To be called when all threads have ended.
    pub fn record_rest(&self, recorder: &mut Recorder) {
        let mut requests = Requests::new(self.workload.clone(), 0);
        let end = self.end();
        // There may be millions, and those that follow each other differ by less than the histogram can tell.
        let mut alike: Option<(Ended, u64)> = None;
        if self.mode() == Mode::Closed {
            return;
        }
        let returned = std::mem::take(&mut *self.returned.starts.lock());
        let returned = returned.into_iter().filter(|start| start.intended < end);
        let untaken = std::iter::from_fn(|| self.source.take(end, &self.phases));
        for start in returned.chain(untaken.take_while(|start| start.intended < end)) {
            let unsent = self.unsent(start, &mut requests);
            alike = match alike {
                Some((first, count)) if first.is_alike(&unsent) => Some((first, count + 1)),
                Some((first, count)) => {
                    recorder.record_unsent(&first, count);
                    Some((unsent, 1))
                }
                None => Some((unsent, 1)),
            };
        }
        if let Some((first, count)) = alike {
            recorder.record_unsent(&first, count);
        }
    }
}
