//! The gate that all connections of a worker read through: closed, nothing is read, and the clients' bytes wait in the
//! kernel, which costs nothing. One worker's, so plain cells suffice.
//!
//! Deadlines do not run while it is closed: what klad does not read cannot be late. Called by `io` and `worker`.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

/// Open or closed.
#[derive(Debug, Default)]
pub struct Gate {
    closed: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl Gate {
    /// Ready when the gate is open; else the task is woken when it opens.
    pub fn poll_open(&self, context: &mut Context<'_>) -> Poll<()> {
        if !self.closed.get() {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Nothing is read from now on.
    pub fn close(&self) {
        self.closed.set(true);
    }

    /// Lets all read again.
    pub fn open(&self) {
        self.closed.set(false);
        for waker in self.waiting.take() {
            waker.wake();
        }
    }

    /// Whether nothing is read.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_closed_gate_holds_readers_until_it_opens() {
        let gate = Gate::default();
        let mut context = Context::from_waker(Waker::noop());
        assert!(gate.poll_open(&mut context).is_ready());
        gate.close();
        assert!(gate.poll_open(&mut context).is_pending());
        assert!(gate.poll_open(&mut context).is_pending());
        assert_eq!(gate.waiting.borrow().len(), 1, "one task waits once");
        gate.open();
        assert!(gate.waiting.borrow().is_empty());
        assert!(gate.poll_open(&mut context).is_ready());
    }
}
