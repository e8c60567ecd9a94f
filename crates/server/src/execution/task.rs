//! An operation on its way to the engine, also while it waits in a queue. The strategies call this.

use std::sync::Arc;
use std::time::Instant;

use crate::execution::completion_queue::CompletionQueue;
use crate::execution::pending_operation::PendingOperation;
use klad_base::clock;
use klad_storage::operation::{Durability, Error, Operation};
use klad_storage::{Engine, Pending, Reply as _};

/// An operation, and where its result goes.
pub(super) struct Task {
    pub(super) operation: Operation,
    pub(super) pending: Arc<PendingOperation>,
}

impl Task {
    /// The completion queue of the worker that asked for the operation.
    pub(super) fn completions(&self) -> &Arc<CompletionQueue> {
        self.pending.completions()
    }

    /// Whether the operation is a step of a range or of a change feed. Steps may exceed the limits of queues.
    pub(super) fn is_scan(&self) -> bool {
        matches!(self.operation, Operation::Scan(_) | Operation::Changes(_))
    }

    /// Whether the operation's deadline has passed.
    pub(super) fn is_late(&self) -> bool {
        self.pending.deadline_has_passed()
    }

    /// Records that the operation has left its queue.
    pub(super) fn begins(&self, now: Instant) {
        self.pending.begins(now);
    }

    /// Rejects the operation, which has not begun.
    pub(super) fn reject(self, error: Error) {
        self.pending.complete(Err(error));
    }

    /// Checks the deadline of an operation that has left its queue. Returns the task if the operation may begin.
    /// `None`: the deadline has passed, and the operation was rejected with [`Error::DeadlinePassed`].
    pub(super) fn take(self) -> Option<Task> {
        if !self.is_late() {
            return Some(self);
        }
        self.reject(Error::DeadlinePassed);
        None
    }

    /// Runs the operation on the calling thread. If the engine answers later, this only begins the operation.
    pub(super) fn run(self, engine: &dyn Engine) {
        engine.execute(self.operation, self.pending);
    }

    /// Converts a write for a batch. Returns the write, and its pending operation. `None`: the operation is not a
    /// write.
    pub(super) fn into_write(self) -> Option<(Pending, Arc<PendingOperation>)> {
        let Task { operation: Operation::Write(write), pending } = self else { return None };
        Some((Pending { write, reply: pending.clone() }, pending))
    }

    /// Whether the operation is a write that needs a sync.
    pub(super) fn needs_sync(&self) -> bool {
        matches!(&self.operation, Operation::Write(write) if write.durability == Durability::Sync)
    }

    /// The number of changes that the operation adds to a batch; 0 if it is not a write.
    pub(super) fn changes(&self) -> usize {
        if let Operation::Write(write) = &self.operation { write.changes.len() } else { 0 }
    }

    /// The bytes that the operation adds to a batch; 0 if it is not a write.
    pub(super) fn write_bytes(&self) -> usize {
        if let Operation::Write(write) = &self.operation { write.bytes() } else { 0 }
    }
}

/// The time after which an operation that still waits should not begin. `None`: there is no deadline.
pub type Deadline = Option<Instant>;

/// Whether the deadline has passed. Reads the clock only if there is a deadline.
pub(super) fn has_passed(deadline: Deadline) -> bool {
    deadline.is_some_and(|deadline| clock::now() >= deadline)
}
