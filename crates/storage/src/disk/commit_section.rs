//! Shared parts of the engines' commit sections: entering a section, and completing the replies of a batch. Called by
//! the engines on disk.

use std::time::{Duration, Instant};

use crate::operation::Error;
use crate::plan::Plan;
use crate::{Pending, Perf};
use klad_base::clock;
use klad_base::sync::{Mutex, MutexGuard};

/// A batch that the commit section has written.
pub(crate) struct CommittedBatch {
    /// The plan, which has the outcome of each write.
    pub(crate) plan: Plan,
    /// The time at which the batch was written.
    pub(crate) now: Instant,
    /// The duration of the log write if it included a sync, else zero.
    pub(crate) sync_time: Duration,
    /// The engine's work for the batch, if it was measured.
    pub(crate) perf: Option<Perf>,
}

/// Enters a commit section. Also returns how long the call waited for another thread to leave the section.
pub(crate) fn enter<S>(section: &Mutex<S>) -> (MutexGuard<'_, S>, Duration) {
    if let Some(guard) = section.try_lock() {
        return (guard, Duration::ZERO);
    }
    let began = clock::now();
    let guard = section.lock();
    (guard, clock::now().saturating_duration_since(began))
}

/// Completes the reply of each write of a batch.
pub(crate) fn complete_all(writes: &[Pending], committed: Result<CommittedBatch, Error>) {
    match committed {
        Ok(CommittedBatch { plan, now, sync_time, perf }) => {
            for (Pending { reply, .. }, outcome) in writes.iter().zip(plan.outcomes(writes)) {
                reply.clocked(now, sync_time);
                if let Some(perf) = &perf {
                    reply.measured(perf);
                }
                reply.complete(outcome);
            }
        }
        Err(error) => writes.iter().for_each(|one| one.reply.complete(Err(error.clone()))),
    }
}
