//! One operation on its way to the engine, in whatever queue it waits. Called by the strategies.

use std::sync::Arc;
use std::time::Instant;

use crate::execution::completion_queue::CompletionQueue;
use crate::execution::pending_operation::PendingOperation;
use klad_base::clock;
use klad_storage::operation::{Durability, Error, Operation};
use klad_storage::{Engine, Pending, Reply as _};

/// What is to be done, and whom to tell.
pub(super) struct Task {
    pub(super) operation: Operation,
    pub(super) pending: Arc<PendingOperation>,
}

impl Task {
    /// Of the worker that asked.
    pub(super) fn completions(&self) -> &Arc<CompletionQueue> {
        self.pending.completions()
    }

    /// Whether it is a step of a range: those under way find a place beyond the bounds of queues.
    pub(super) fn is_scan(&self) -> bool {
        matches!(self.operation, Operation::Scan(_))
    }

    /// Whether its deadline has passed.
    pub(super) fn is_late(&self) -> bool {
        self.pending.deadline_has_passed()
    }

    /// It has left its queue, and its real outcome is awaited.
    pub(super) fn begins(&self, now: Instant) {
        self.pending.begins(now);
    }

    /// Ends it before it was begun.
    pub(super) fn refuse(self, error: Error) {
        self.pending.complete(Err(error));
    }

    /// Takes the operation out of its queue: from here on its real outcome is awaited. `None`: its deadline has passed, it
    /// was told so, and nothing has happened.
    pub(super) fn take(self) -> Option<Task> {
        if !self.is_late() {
            return Some(self);
        }
        self.refuse(Error::DeadlinePassed);
        None
    }

    /// Does it, on the calling thread, or begins to, if the engine answers later.
    pub(super) fn run(self, engine: &dyn Engine) {
        engine.execute(self.operation, self.pending);
    }

    /// The write that it is, on its way into a batch; `None`: it is none.
    pub(super) fn into_write(self) -> Option<(Pending, Arc<PendingOperation>)> {
        let Task { operation: Operation::Write(write), pending } = self else { return None };
        Some((Pending { write, reply: pending.clone() }, pending))
    }

    /// Whether it is a write that needs a sync.
    pub(super) fn needs_sync(&self) -> bool {
        matches!(&self.operation, Operation::Write(write) if write.durability == Durability::Sync)
    }

    /// Bytes that it brings into a batch.
    pub(super) fn write_bytes(&self) -> usize {
        if let Operation::Write(write) = &self.operation { write.bytes() } else { 0 }
    }
}

/// When an operation that still waits is not worth doing any more; `None`: never.
pub type Deadline = Option<Instant>;

/// Whether it has passed. Without one no clock is read.
pub(super) fn has_passed(deadline: Deadline) -> bool {
    deadline.is_some_and(|deadline| clock::now() >= deadline)
}
