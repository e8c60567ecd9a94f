//! The state that all threads of a run share: its phases, the source of starts, its end. Called by `generator`,
//! `threads` and `runner`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::author::Authors;
use crate::recorder::{Outcome, Recorder, RequestEnd};
use crate::schedule::{Mode, Nanos, Phases, Source, Start};
use crate::workload::{Requests, Workload};
use klad_base::sync::Mutex;

/// The state that all threads of a run share.
#[derive(Debug)]
pub struct Shared {
    /// The phases of the run.
    pub phases: Phases,
    /// The source of starts.
    pub source: Source,
    /// The requests to send.
    pub workload: Arc<Workload>,
    /// Deadline of a request, from its intended start.
    pub timeout: Nanos,
    /// How long to wait at the end for answers to requests in flight.
    pub drain: Nanos,
    /// Whether threads may poll at the end of a wait.
    pub polls: bool,
    /// Longest response time that counts as goodput.
    pub good_within: Nanos,
    /// Length of an interval.
    pub interval: Nanos,
    /// The largest number of connections of all threads; `None` if the number is fixed.
    pub connections_max: Option<usize>,
    /// The present number of connections of all threads.
    pub connections: AtomicUsize,
    /// The authors of the requests, if a script writes them instead of `workload`.
    pub authors: Authors,
    /// Why the run was aborted.
    pub failure: Mutex<Option<String>>,
    /// When the run was ended early; [`NEVER`] if it was not.
    pub interrupted: AtomicU64,
    /// Starts that were taken from the source by threads that will not send them.
    pub returned: ReturnedStarts,
    /// A defect that the tests must notice.
    #[cfg(test)]
    pub planted: Option<crate::simulated::GeneratorDefect>,
}

/// Starts that another thread must send, because the script of the thread that took them has stopped.
#[derive(Debug, Default)]
pub struct ReturnedStarts {
    starts: Mutex<Vec<Start>>,
    /// The number of `starts`. Threads read it before each start, without taking the lock.
    count: AtomicUsize,
}

/// The value of `interrupted` in a run that was not ended early.
pub const NEVER: Nanos = Nanos::MAX;

impl Shared {
    /// The end of the schedule, or the earlier time at which it was ended.
    #[must_use]
    pub fn end(&self) -> Nanos {
        self.phases.end().min(self.interrupted.load(Ordering::Relaxed))
    }

    /// Whether the run was interrupted during the drain, so that it must not wait for more answers.
    pub(super) fn was_interrupted_in_drain(&self) -> bool {
        let at = self.interrupted.load(Ordering::Relaxed);
        at != NEVER && at >= self.phases.end()
    }

    /// Whether the load is open or closed.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self.source {
            Source::Open(_) => Mode::Open,
            Source::Closed | Source::Count(_) => Mode::Closed,
        }
    }

    /// Ends the schedule at `at`, unless it ends earlier. If `at` is after the schedule, ends the drain.
    pub(super) fn end_early(&self, at: Nanos) {
        self.interrupted.fetch_min(at, Ordering::Relaxed);
    }

    /// Takes the next start: a returned one if there is any, else one from the source. In closed mode the start is
    /// `now`.
    pub(super) fn take_start(&self, now: Nanos) -> Option<Start> {
        if self.returned.count.load(Ordering::Acquire) > 0
            && let Some(start) = self.returned.starts.lock().pop()
        {
            self.returned.count.fetch_sub(1, Ordering::Release);
            return Some(start);
        }
        self.source.take(now, &self.phases)
    }

    /// Returns a start of an open schedule that this thread will not send.
    pub(super) fn return_start(&self, start: Start) {
        #[cfg(test)]
        if self.planted == Some(crate::simulated::GeneratorDefect::StartsLost) {
            return;
        }
        let mut starts = self.returned.starts.lock();
        starts.push(start);
        self.returned.count.fetch_add(1, Ordering::Release);
    }

    /// Aborts the run for the reason `why`.
    pub(super) fn abort(&self, why: String) {
        self.failure.lock().get_or_insert(why);
        self.end_early(0);
    }

    /// Counts a thread whose script has stopped; the last one ends the run.
    pub(super) fn thread_stopped(&self, now: Nanos) {
        if self.authors.stopped() {
            self.end_early(now);
        }
    }

    /// Counts one more connection, if the limit is not reached. Returns whether the caller may open it.
    pub(super) fn try_grow(&self) -> bool {
        let Some(max) = self.connections_max else { return false };
        let grown = self
            .connections
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < max).then_some(count + 1));
        grown.is_ok()
    }

    pub(super) fn can_grow(&self) -> bool {
        self.connections_max.is_some_and(|max| self.connections.load(Ordering::Relaxed) < max)
    }

    /// Returns the end of a request that never had a connection: at the end of the schedule, or at the request's
    /// deadline if that is earlier. The end of the drain does not matter, because no request is started during the
    /// drain. The request would have taken at least this time.
    pub(super) fn unsent(&self, start: Start, requests: &mut Requests) -> RequestEnd {
        let age = self.end().saturating_sub(start.intended);
        let outcome = if age >= self.timeout { Outcome::TimedOut } else { Outcome::Unfinished };
        let operation = requests.operation();
        RequestEnd { phase: start.phase, operation, outcome, response: age.min(self.timeout), service: None }
    }

    /// Records the starts that no thread has taken or that a thread has returned, as requests that were never sent.
    /// Must be called after all threads have ended.
    pub fn record_untaken_starts(&self, recorder: &mut Recorder) {
        let mut requests = Requests::new(self.workload.clone(), 0);
        let end = self.end();
        // There may be millions of such starts. Neighbours that differ by at most a quarter of the histogram's
        // resolution are recorded together.
        let mut alike: Option<(RequestEnd, u64)> = None;
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
