//! What one connection is doing, shared between the service that answers, the IO wrapper that moves bytes, and the sweep
//! that keeps deadlines. One worker's, so plain cells suffice.
//!
//! ```text
//!   Idle ──first byte──▶ Head ──whole head──▶ Busy ◀──▶ Body        (Body: waiting for the client's bytes)
//!    ▲                                          │
//!    └──────────────── answered ────────────────┘          Linger: closed for writing, until the client closes
//! ```
//!
//! Called by `service`, `upload` and `body`, and by `server`.

use std::cell::Cell;

use crate::limits::{GROWN_BYTES, OVERSIZED_BYTES};

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// For the first byte of a request.
    Idle,
    /// For the rest of a head.
    Head,
    /// For klad.
    Busy,
    /// For the rest of a body.
    Body,
    /// For the client's end, after the last answer.
    Linger,
}

/// The state of one connection. Times are milliseconds of the worker's coarse clock.
#[derive(Debug)]
pub struct Exchange {
    phase: Cell<Phase>,
    /// Begin of the phase; in `Body`, of the wait for the next byte.
    since_ms: Cell<u64>,
    /// Bytes came in that the current request has not used: the next head has begun.
    read_ahead: Cell<bool>,
    /// Since when the peer has taken no byte of what klad wants to write.
    write_blocked_since_ms: Cell<Option<u64>>,
    /// The sweep found that the body does not come.
    body_timed_out: Cell<bool>,
    /// The answer is given before the body was read: linger when closing.
    body_unread: Cell<bool>,
    /// hyper's buffers have grown.
    grown: Cell<bool>,
    /// They have grown so far that the connection must end after the answer.
    oversized: Cell<bool>,
    /// The worker's clock.
    now_ms: std::rc::Rc<Cell<u64>>,
}

impl Exchange {
    /// A fresh connection.
    #[must_use]
    pub fn new(now_ms: std::rc::Rc<Cell<u64>>) -> Exchange {
        Exchange {
            phase: Cell::new(Phase::Idle),
            since_ms: Cell::new(now_ms.get()),
            read_ahead: Cell::new(false),
            write_blocked_since_ms: Cell::new(None),
            body_timed_out: Cell::new(false),
            body_unread: Cell::new(false),
            grown: Cell::new(false),
            oversized: Cell::new(false),
            now_ms,
        }
    }

    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.since_ms.set(self.now_ms.get());
    }

    /// `count` bytes came in.
    pub fn bytes_read(&self, count: usize) {
        match self.phase.get() {
            Phase::Idle => self.enter(Phase::Head),
            Phase::Body => self.since_ms.set(self.now_ms.get()),
            Phase::Busy => self.read_ahead.set(true),
            Phase::Head | Phase::Linger => {}
        }
        if count > GROWN_BYTES {
            self.grown.set(true);
        }
    }

    /// The peer took bytes of `offered`, or (`taken` false) none.
    pub fn bytes_written(&self, taken: bool, offered: usize) {
        if taken {
            self.write_blocked_since_ms.set(None);
        } else if self.write_blocked_since_ms.get().is_none() {
            self.write_blocked_since_ms.set(Some(self.now_ms.get()));
        }
        if offered > GROWN_BYTES {
            self.grown.set(true);
        }
        if offered > OVERSIZED_BYTES {
            self.oversized.set(true);
        }
    }

    /// A whole head was read.
    pub fn request_begins(&self) {
        self.read_ahead.set(false);
        self.enter(Phase::Busy);
    }

    /// The service waits for the client's bytes, until [`Exchange::body_ends`].
    pub fn body_begins(&self) {
        self.enter(Phase::Body);
    }

    /// The service waits for the client's bytes no longer.
    pub fn body_ends(&self) {
        self.enter(Phase::Busy);
    }

    /// The answer was handed over; the next request may come, or has begun to.
    pub fn answered(&self) {
        self.enter(if self.read_ahead.replace(false) { Phase::Head } else { Phase::Idle });
    }

    /// The last answer was given; what still comes is thrown away.
    pub fn lingers(&self) {
        self.enter(Phase::Linger);
    }

    /// The sweep found that the body does not come; the service asks by [`Exchange::body_timed_out`].
    pub fn set_body_timed_out(&self) {
        self.body_timed_out.set(true);
    }

    /// Whether the body does not come.
    #[must_use]
    pub fn body_timed_out(&self) -> bool {
        self.body_timed_out.get()
    }

    /// The answer is given before the body was read.
    pub fn set_body_unread(&self) {
        self.body_unread.set(true);
    }

    /// Whether an answer was given before its request's body was read.
    #[must_use]
    pub fn body_unread(&self) -> bool {
        self.body_unread.get()
    }

    /// The waits begin anew: klad itself has read nothing for a while.
    pub fn restart_clock(&self) {
        self.since_ms.set(self.now_ms.get());
    }

    /// What is waited for, and since when.
    #[must_use]
    pub fn phase(&self) -> (Phase, u64) {
        (self.phase.get(), self.since_ms.get())
    }

    /// Since when the peer takes nothing.
    #[must_use]
    pub fn write_blocked_since_ms(&self) -> Option<u64> {
        self.write_blocked_since_ms.get()
    }

    /// Whether the connection must end after the answer, because only that gives its memory back.
    #[must_use]
    pub fn oversized(&self) -> bool {
        self.oversized.get()
    }

    /// Whether the connection holds more memory than an idle one is charged.
    #[must_use]
    pub fn grown(&self) -> bool {
        self.grown.get()
    }
}
