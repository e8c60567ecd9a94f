//! One operation on its way to the engine, in whatever queue it waits. Called by the strategies.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::inbox::Inbox;
use super::ticket::Ticket;
use crate::clock;
use crate::operation::{Change, Error, ScanStep};
use crate::storage::{Engine, Reply as _, Write};

/// What is to be done, and whom to tell.
pub(super) enum Task {
    /// Read a key.
    Get { key: Bytes, ticket: Arc<Ticket> },
    /// One step of a range.
    Scan { step: ScanStep, ticket: Arc<Ticket> },
    /// Write a key; its reply is the ticket.
    Write { write: Write, ticket: Arc<Ticket> },
}

impl Task {
    fn ticket(&self) -> &Arc<Ticket> {
        match self {
            Task::Get { ticket, .. } | Task::Scan { ticket, .. } | Task::Write { ticket, .. } => ticket,
        }
    }

    /// Of the worker that asked.
    pub(super) fn inbox(&self) -> &Arc<Inbox> {
        self.ticket().inbox()
    }

    /// Whether its deadline has passed.
    pub(super) fn is_late(&self) -> bool {
        self.ticket().deadline_has_passed()
    }

    /// It has left its queue, and its real outcome is awaited.
    pub(super) fn begins(&self, now: Instant) {
        self.ticket().begins(now);
    }

    /// Ends it before it was begun.
    pub(super) fn refuse(self, error: Error) {
        self.ticket().complete(Err(error));
    }

    /// Takes the operation out of its queue: from here on its real outcome is awaited. `None`: its deadline has passed, it
    /// was told so, and nothing has happened.
    pub(super) fn take(self) -> Option<Task> {
        if !self.ticket().deadline_has_passed() {
            return Some(self);
        }
        self.refuse(Error::DeadlinePassed);
        None
    }

    /// Does it, on the calling thread.
    pub(super) fn run(self, engine: &dyn Engine) {
        match self {
            Task::Get { key, ticket } => engine.read(&key, &*ticket),
            Task::Scan { step, ticket } => engine.scan(&step, &*ticket),
            Task::Write { write, .. } => engine.commit(vec![write]),
        }
    }

    /// Bytes that it brings into a batch.
    pub(super) fn write_bytes(&self) -> usize {
        let Task::Write { write, .. } = self else { return 0 };
        let value_bytes = match &write.change {
            Change::Put(value) => value.len(),
            Change::Delete => 0,
        };
        write.key.len() + value_bytes
    }
}

/// When an operation that still waits is not worth doing any more; `None`: never.
pub type Deadline = Option<Instant>;

/// Whether it has passed. Without one no clock is read.
pub(super) fn has_passed(deadline: Deadline) -> bool {
    deadline.is_some_and(|deadline| clock::now() >= deadline)
}
