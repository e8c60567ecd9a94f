//! One operation on its way to the engine, in any queue. The strategies call this.

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
    /// The completion queue of the worker that asked.
    pub(super) fn completions(&self) -> &Arc<CompletionQueue> {
        self.pending.completions()
    }

    /// Whether it is a step of a range. Ranges in progress may exceed the limits of queues.
    pub(super) fn is_scan(&self) -> bool {
        matches!(self.operation, Operation::Scan(_))
    }

    /// Whether its deadline has passed.
    pub(super) fn is_late(&self) -> bool {
        self.pending.deadline_has_passed()
    }

    /// Records that it has left its queue.
    pub(super) fn begins(&self, now: Instant) {
        self.pending.begins(now);
    }

    /// Rejects it before it has begun.
    pub(super) fn reject(self, error: Error) {
        self.pending.complete(Err(error));
    }

    /// Takes the operation out of its queue, unless its deadline has passed. `None`: it was rejected with that error,
    /// and nothing has happened.
    pub(super) fn take(self) -> Option<Task> {
        if !self.is_late() {
            return Some(self);
        }
        self.reject(Error::DeadlinePassed);
        None
    }

    /// Runs it on the calling thread. If the engine answers later, this only begins it.
    pub(super) fn run(self, engine: &dyn Engine) {
        engine.execute(self.operation, self.pending);
    }

    /// Converts a write for a batch. `None`: it is not a write.
    pub(super) fn into_write(self) -> Option<(Pending, Arc<PendingOperation>)> {
        let Task { operation: Operation::Write(write), pending } = self else { return None };
        Some((Pending { write, reply: pending.clone() }, pending))
    }

    /// Whether it is a write that needs a sync.
    pub(super) fn needs_sync(&self) -> bool {
        matches!(&self.operation, Operation::Write(write) if write.durability == Durability::Sync)
    }

    /// The number of changes that it adds to a batch.
    pub(super) fn changes(&self) -> usize {
        if let Operation::Write(write) = &self.operation { write.changes.len() } else { 0 }
    }

    /// The bytes that it adds to a batch.
    pub(super) fn write_bytes(&self) -> usize {
        if let Operation::Write(write) = &self.operation { write.bytes() } else { 0 }
    }
}

/// The time after which an operation that still waits should not begin. `None`: never.
pub type Deadline = Option<Instant>;

/// Whether the deadline has passed. Reads the clock only if there is one.
pub(super) fn has_passed(deadline: Deadline) -> bool {
    deadline.is_some_and(|deadline| clock::now() >= deadline)
}
