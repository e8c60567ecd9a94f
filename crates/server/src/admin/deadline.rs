//! The time at which an admin connection ends. `listener` creates a deadline for each connection. Long requests and
//! endless answers postpone the deadline of their connection.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::limits::ADMIN_CONNECTION_TIMEOUT;
use klad_base::clock;

/// The deadline of one connection. A new deadline is [`ADMIN_CONNECTION_TIMEOUT`] from now.
#[derive(Clone, Debug)]
pub struct Deadline(Rc<Cell<Instant>>);

impl Deadline {
    pub(super) fn new() -> Deadline {
        Deadline(Rc::new(Cell::new(from_now())))
    }

    pub(super) fn get(&self) -> Instant {
        self.0.get()
    }

    pub(super) fn has_passed(&self) -> bool {
        self.0.get() <= Instant::from_std(clock::now())
    }

    /// Postpones the deadline by `time`. For example, a profile takes as long as its client asked for.
    pub(super) fn postpone(&self, time: Duration) {
        self.0.set(self.0.get() + time);
    }

    /// Postpones the deadline to at least [`ADMIN_CONNECTION_TIMEOUT`] from now. klad calls this when the connection
    /// transfers data, so that a long answer is cut only if its client stops reading.
    pub(super) fn progress(&self) {
        self.0.set(self.0.get().max(from_now()));
    }
}

fn from_now() -> Instant {
    Instant::from_std(clock::now() + ADMIN_CONNECTION_TIMEOUT)
}
