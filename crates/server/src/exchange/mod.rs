//! What one connection is doing, shared between the service that answers, the IO wrapper that moves bytes, and the sweep
//! that keeps deadlines. One worker's, so plain cells suffice.
//!
//! ```text
//!   Handshake, in TLS
//!    ▼
//!   Idle ──first byte──▶ Head ──whole head──▶ Busy ◀──▶ Body        (Body: waiting for the client's bytes)
//!    ▲                                          │
//!    └──────────────── answered ────────────────┘          Linger: closed for writing, until the client closes
//! ```
//!
//! Called by `service`, `upload` and `body`, and by `server`.

pub mod meter;

use std::cell::Cell;
use std::time::Instant;

use crate::exchange::meter::{Flow, Meter};
use crate::http::observe::Observed;
use klad_base::limits::{GROWN_BYTES, OVERSIZED_BYTES};

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// For the end of the handshake, before the first request.
    Handshake,
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
    /// The next head may have begun in hyper's buffer, unseen: nobody has looked since the last answer.
    unlooked: Cell<bool>,
    /// What the client sends of a body; waited for throughout `Body`.
    sent: Meter,
    /// What it takes of an answer; waited for while it takes nothing.
    taken: Meter,
    /// Bytes of room that end with this connection: those of a body that comes in, or of an answer on its way out.
    body_permit_bytes: Cell<u64>,
    /// The sweep found that the body does not come.
    body_timed_out: Cell<bool>,
    /// The answer is given before the body was read: linger when closing.
    body_unread: Cell<bool>,
    /// hyper's buffers have grown.
    grown: Cell<bool>,
    /// They have grown so far that the connection must end after the answer.
    oversized: Cell<bool>,
    /// The answer was handed over, and has not left hyper's buffer.
    answer_leaves: Cell<bool>,
    /// hyper has said something by itself.
    hyper_muted: Cell<bool>,
    /// What becomes of its requests.
    observed: Observed,
    /// The worker's clock.
    now_ms: std::rc::Rc<Cell<u64>>,
}

impl Exchange {
    /// A fresh connection.
    #[must_use]
    pub fn new(now_ms: std::rc::Rc<Cell<u64>>, observed: Observed) -> Exchange {
        Exchange {
            phase: Cell::new(Phase::Idle),
            since_ms: Cell::new(now_ms.get()),
            read_ahead: Cell::new(false),
            unlooked: Cell::new(false),
            sent: Meter::default(),
            taken: Meter::default(),
            body_permit_bytes: Cell::new(0),
            body_timed_out: Cell::new(false),
            body_unread: Cell::new(false),
            grown: Cell::new(false),
            oversized: Cell::new(false),
            answer_leaves: Cell::new(false),
            hyper_muted: Cell::new(false),
            observed,
            now_ms,
        }
    }

    /// There can be no request yet.
    pub fn handshake_begins(&self) {
        self.enter(Phase::Handshake);
    }

    /// The first request may come.
    pub fn handshake_ends(&self) {
        self.enter(Phase::Idle);
    }

    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.since_ms.set(self.now_ms.get());
    }

    /// What becomes of its requests.
    #[must_use]
    pub fn observed(&self) -> &Observed {
        &self.observed
    }

    /// Whether the next bytes begin a request.
    #[must_use]
    pub fn awaits_request(&self) -> bool {
        self.phase.get() == Phase::Idle
    }

    /// Whether no request is in progress, though a part of one's head may be there, or of an answer on its way.
    #[must_use]
    pub fn awaits_head(&self) -> bool {
        matches!(self.phase.get(), Phase::Idle | Phase::Head)
    }

    /// `count` bytes came in.
    pub fn bytes_read(&self, count: usize) {
        match self.phase.get() {
            Phase::Idle => self.enter(Phase::Head),
            Phase::Body => {
                self.since_ms.set(self.now_ms.get());
                self.sent.add(count);
                self.observed.waits_for_body();
            }
            Phase::Busy => self.read_ahead.set(true),
            Phase::Handshake | Phase::Head | Phase::Linger => {}
        }
        if count > GROWN_BYTES {
            self.grown.set(true);
        }
    }

    /// The peer took `taken` bytes, or `None` now; the connection holds a buffer of `held` bytes for what it is sent.
    pub fn bytes_carried(&self, taken: Option<usize>, held: usize) {
        match taken {
            Some(count) => {
                self.taken.wait_ends(self.now_ms.get());
                self.taken.add(count);
            }
            None => self.taken.wait_begins(self.now_ms.get()),
        }
        if held > GROWN_BYTES {
            self.grown.set(true);
        }
        if held > OVERSIZED_BYTES {
            self.oversized.set(true);
        }
    }

    /// A whole head was read, in a turn of the worker that began then, if one has begun; when?
    pub fn request_begins(&self, iteration_began: Option<Instant>) -> Instant {
        self.read_ahead.set(false);
        self.taken.begin_anew();
        self.enter(Phase::Busy);
        self.observed.begins(iteration_began)
    }

    /// The service waits for the client's bytes, until [`Exchange::body_ends`]; `permit_bytes` are held for them.
    pub fn body_begins(&self, permit_bytes: u64) {
        self.set_body_permit(permit_bytes);
        self.sent.begin_waiting(self.now_ms.get());
        self.enter(Phase::Body);
    }

    /// The service waits for the client's bytes no longer.
    pub fn body_ends(&self) {
        self.set_body_permit(0);
        self.enter(Phase::Busy);
    }

    /// So many bytes of room would be free if the connection ended.
    pub fn set_body_permit(&self, bytes: u64) {
        self.body_permit_bytes.set(bytes);
    }

    /// How many bytes of room would be free if the connection ended.
    #[must_use]
    pub fn body_permit_bytes(&self) -> u64 {
        self.body_permit_bytes.get()
    }

    /// The answer was handed over; the next request may come, or has begun to.
    pub fn answered(&self) {
        self.set_body_permit(0);
        self.answer_leaves.set(true);
        self.unlooked.set(true);
        self.observed.given();
        self.enter(if self.read_ahead.replace(false) { Phase::Head } else { Phase::Idle });
    }

    /// Everything that was handed over has been written.
    pub fn answer_has_left(&self) {
        self.answer_leaves.set(false);
    }

    /// hyper is about to write: whether that is its own and not klad's answer, because it cannot read a head.
    #[must_use]
    pub fn mutes_hyper(&self) -> bool {
        let own = self.awaits_head() && !self.answer_leaves.get();
        self.hyper_muted.set(self.hyper_muted.get() || own);
        own
    }

    /// Whether something that hyper wanted to say was kept from the client.
    #[must_use]
    pub fn hyper_was_muted(&self) -> bool {
        self.hyper_muted.get()
    }

    /// Whether the next head may have begun unseen, in the same segment as the end of the request before it; asked once for
    /// each answer.
    pub fn take_unlooked(&self) -> bool {
        self.unlooked.replace(false)
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

    /// The wait for a request begins anew: klad itself reads none.
    pub fn restart_idle_clock(&self) {
        if self.phase.get() == Phase::Idle {
            self.since_ms.set(self.now_ms.get());
        }
    }

    /// What is waited for, and since when.
    #[must_use]
    pub fn phase(&self) -> (Phase, u64) {
        (self.phase.get(), self.since_ms.get())
    }

    /// Since when the peer takes nothing.
    #[must_use]
    pub fn write_blocked_since_ms(&self) -> Option<u64> {
        self.taken.waits_since_ms()
    }

    /// What has come of the body that is waited for.
    #[must_use]
    pub fn sent(&self) -> Flow {
        self.sent.flow(self.now_ms.get())
    }

    /// What was taken of the answer since it was first waited for.
    #[must_use]
    pub fn taken(&self) -> Flow {
        self.taken.flow(self.now_ms.get())
    }

    /// Whether the connection must end after the answer, because only that gives its memory back.
    #[must_use]
    pub fn oversized(&self) -> bool {
        self.oversized.get()
    }

    /// Whatever had grown was given back: the connection is served without buffers of its own.
    pub fn buffers_are_gone(&self) {
        self.grown.set(false);
    }

    /// Whether the connection holds more memory than an idle one is charged.
    #[must_use]
    pub fn grown(&self) -> bool {
        self.grown.get()
    }
}
