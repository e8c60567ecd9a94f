//! When an admin connection ends. `listener` creates a deadline for each connection; requests that take long, and
//! answers without an end, postpone it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::limits::ADMIN_CONNECTION_TIMEOUT;
use klad_base::clock;

/// The deadline of one connection: at first [`ADMIN_CONNECTION_TIMEOUT`] from now.
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

    /// Lets the connection live longer by `time`: a profile takes as long as the client asked for.
    pub(super) fn postpone(&self, time: Duration) {
        self.0.set(self.0.get() + time);
    }

    /// The connection transfers something. So an answer of any length ends only when its client takes nothing.
    pub(super) fn progress(&self) {
        self.0.set(self.0.get().max(from_now()));
    }
}

fn from_now() -> Instant {
    Instant::from_std(clock::now() + ADMIN_CONNECTION_TIMEOUT)
}
