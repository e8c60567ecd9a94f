//! The state machine of one connection. The service that answers, the socket that moves bytes and the sweep that enforces
//! deadlines tell it what happened; it decides whether the connection goes on.
//!
//! ```text
//!   Handshake, in TLS
//!    ▼
//!   Idle ──first byte──▶ Head ──whole head──▶ Busy ◀──▶ Body        (Body: waiting for the client's bytes)
//!    ▲                                          │
//!    └──────────────── answered ────────────────┘          Linger: closed for writing, until the client closes
//! ```
//!
//! All of the state is in [`State`]; each method of [`Exchange`] is one event. A connection belongs to one worker thread, so
//! nothing here is locked. Knows neither HTTP nor sockets. Called by `http` and `connection`.

mod meter;
mod verdict;

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::rc::Rc;
use std::time::Instant;

use hyper::{HeaderMap, Method, StatusCode};

use crate::exchange::meter::Meter;
use crate::execution::Phases;
use crate::observe::RequestRecord;
use crate::request_metrics::Op;
use klad_base::limits::{GROWN_BYTES, OVERSIZED_BYTES};

pub use verdict::{Closed, Deadlines, Draining, Evictable, Verdict};

/// What the connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The end of the TLS handshake, before the first request.
    Handshake,
    /// The first byte of a request.
    Idle,
    /// The rest of a head.
    Head,
    /// An answer from klad.
    Busy,
    /// The rest of a body.
    Body,
    /// The client's close, after the last answer.
    Linger,
}

/// One connection.
#[derive(Debug)]
pub struct Exchange {
    state: RefCell<State>,
    /// The times of the current request's operations. An operation in progress writes to them, so they are not part of the state.
    phases: Phases,
    /// The worker's coarse clock, in milliseconds.
    now_ms: Rc<Cell<u64>>,
}

/// Times are milliseconds of the worker's coarse clock.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own that lasts beyond the phase")]
struct State {
    phase: Phase,
    /// The begin of the phase; in `Body`, of the wait for the next byte.
    since_ms: u64,
    /// Bytes of the next request came in while the current one is not answered.
    read_ahead: bool,
    /// hyper's buffer may hold the begin of the next head: nothing has looked since the last answer.
    unlooked: bool,
    /// The client's bytes of a body. Throughout `Body` the time counts.
    sent: Meter,
    /// The bytes of an answer that the client took. The time counts while the client takes none.
    taken: Meter,
    /// The bytes of the body budget that end with this connection: of a body that comes in, or of an answer on its way out.
    body_permit_bytes: u64,
    /// The sweep found that the body does not come.
    body_timed_out: bool,
    /// An answer was given before the request's body was read: linger at the close.
    body_unread: bool,
    /// hyper's buffers have grown.
    grown: bool,
    /// They have grown so far that the connection must end after the answer.
    oversized: bool,
    /// The answer was handed over, and is still in hyper's buffer.
    answer_leaves: bool,
    /// Something that hyper wanted to write was kept from the client.
    hyper_muted: bool,
    /// What the sweep decided; the connection's task has not seen it yet.
    verdict: Option<Verdict>,
    /// Why the connection ends, if that was decided here.
    closed: Option<Closed>,
    request: RequestRecord,
}

impl State {
    fn enter(&mut self, phase: Phase, now_ms: u64) {
        self.phase = phase;
        self.since_ms = now_ms;
    }
}

impl Exchange {
    /// A new connection; `now_ms` is the worker's clock.
    #[must_use]
    pub fn new(now_ms: Rc<Cell<u64>>, request: RequestRecord) -> Exchange {
        let state = State {
            phase: Phase::Idle,
            since_ms: now_ms.get(),
            read_ahead: false,
            unlooked: false,
            sent: Meter::default(),
            taken: Meter::default(),
            body_permit_bytes: 0,
            body_timed_out: false,
            body_unread: false,
            grown: false,
            oversized: false,
            answer_leaves: false,
            hyper_muted: false,
            verdict: None,
            closed: None,
            request,
        };
        Exchange { state: RefCell::new(state), phases: Phases::default(), now_ms }
    }

    fn state(&self) -> Ref<'_, State> {
        self.state.borrow()
    }

    fn change(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    fn enter(&self, phase: Phase) {
        self.change().enter(phase, self.now_ms.get());
    }

    /// What the connection waits for, and since when.
    #[must_use]
    pub fn phase(&self) -> (Phase, u64) {
        let state = self.state();
        (state.phase, state.since_ms)
    }

    /// The record of the current request. The caller drops it before it calls another method.
    pub fn request(&self) -> RefMut<'_, RequestRecord> {
        RefMut::map(self.change(), |state| &mut state.request)
    }

    /// The times of the current request's operations.
    #[must_use]
    pub fn phases(&self) -> &Phases {
        &self.phases
    }

    // What a client sends.

    /// The TLS handshake begins: there can be no request yet.
    pub fn handshake_begins(&self) {
        self.enter(Phase::Handshake);
    }

    /// The handshake is done: the first request may come.
    pub fn handshake_ends(&self) {
        self.enter(Phase::Idle);
    }

    /// `count` bytes came in.
    pub fn bytes_read(&self, count: usize) {
        let (mut state, now_ms) = (self.change(), self.now_ms.get());
        match state.phase {
            Phase::Idle => state.enter(Phase::Head, now_ms),
            Phase::Body => {
                state.since_ms = now_ms;
                state.sent.add(count);
                state.request.waits_for_body();
            }
            Phase::Busy => state.read_ahead = true,
            Phase::Handshake | Phase::Head | Phase::Linger => {}
        }
        state.grown |= count > GROWN_BYTES;
    }

    /// A whole head was read. Returns when that was, as [`RequestRecord::begins`] does.
    pub fn request_begins(&self, iteration_began: Option<Instant>) -> Instant {
        let mut state = self.change();
        state.read_ahead = false;
        state.taken.begin_anew();
        state.enter(Phase::Busy, self.now_ms.get());
        state.request.begins(&self.phases, iteration_began)
    }

    /// The head says this.
    pub fn head(&self, op: Op, method: &Method, path: &str, headers: &HeaderMap) {
        self.request().head(&self.phases, op, method, path, headers);
    }

    /// The service waits for the client's bytes until [`Exchange::body_ends`], and holds `permit_bytes` of the body budget for
    /// them.
    pub fn body_begins(&self, permit_bytes: u64) {
        let (mut state, now_ms) = (self.change(), self.now_ms.get());
        state.body_permit_bytes = permit_bytes;
        state.sent.begin_waiting(now_ms);
        state.enter(Phase::Body, now_ms);
    }

    /// The service waits for the client's bytes no longer.
    pub fn body_ends(&self) {
        let mut state = self.change();
        state.body_permit_bytes = 0;
        state.enter(Phase::Busy, self.now_ms.get());
    }

    /// The time that the request waited for its body is complete.
    pub fn body_time_ends(&self) {
        self.request().body_ended(&self.phases);
    }

    /// Whether the sweep found that the body does not come.
    #[must_use]
    pub fn body_timed_out(&self) -> bool {
        self.state().body_timed_out
    }

    // What klad answers.

    /// The answer was given before the request's body was read.
    pub fn set_body_unread(&self) {
        self.change().body_unread = true;
    }

    /// Whether an answer was given before its request's body was read.
    #[must_use]
    pub fn body_unread(&self) -> bool {
        self.state().body_unread
    }

    /// An answer is about to be handed over, and may get headers.
    pub fn answers(&self, status: StatusCode, headers: &mut Option<Box<HeaderMap>>) {
        self.request().answers(&self.phases, status, headers);
    }

    /// The end of the connection would free `bytes` of the body budget.
    pub fn set_body_permit(&self, bytes: u64) {
        self.change().body_permit_bytes = bytes;
    }

    /// The answer was handed over; the next request may come, or has begun to.
    pub fn answered(&self) {
        let mut state = self.change();
        state.body_permit_bytes = 0;
        state.answer_leaves = true;
        state.unlooked = true;
        state.request.given();
        let next = if std::mem::take(&mut state.read_ahead) { Phase::Head } else { Phase::Idle };
        state.enter(next, self.now_ms.get());
    }

    /// The socket took `taken` of `offered` bytes, or `None` now.
    pub fn socket_took(&self, taken: Option<usize>, offered: usize) {
        self.request().socket_took(&self.phases, taken, offered);
    }

    /// The client took `taken` bytes, or `None` now; the connection holds a buffer of `held` bytes for what it sends.
    pub fn bytes_carried(&self, taken: Option<usize>, held: usize) {
        let (mut state, now_ms) = (self.change(), self.now_ms.get());
        match taken {
            Some(count) => {
                state.taken.wait_ends(now_ms);
                state.taken.add(count);
            }
            None => state.taken.wait_begins(now_ms),
        }
        state.grown |= held > GROWN_BYTES;
        state.oversized |= held > OVERSIZED_BYTES;
    }

    /// Everything that was handed over has been written.
    pub fn answer_has_left(&self) {
        self.change().answer_leaves = false;
    }

    /// The last answer was given; what still comes is thrown away.
    pub fn lingers(&self) {
        self.enter(Phase::Linger);
    }

    /// The connection has ended; a request in progress is aborted.
    pub fn connection_ends(&self) {
        self.request().connection_ends(&self.phases);
    }

    // What hyper does.

    /// hyper is about to write. Returns whether that is hyper's own answer to a head that it cannot read, and not klad's.
    #[must_use]
    pub fn mutes_hyper(&self) -> bool {
        let mut state = self.change();
        let own = matches!(state.phase, Phase::Idle | Phase::Head) && !state.answer_leaves;
        state.hyper_muted |= own;
        own
    }

    /// Whether something that hyper wanted to write was kept from the client.
    #[must_use]
    pub fn hyper_was_muted(&self) -> bool {
        self.state().hyper_muted
    }

    /// Whether the connection must end after the answer, because only that gives its memory back.
    #[must_use]
    pub fn oversized(&self) -> bool {
        self.state().oversized
    }

    /// The connection is served without buffers of its own from now on.
    pub fn buffers_are_gone(&self) {
        self.change().grown = false;
    }

    // What the connection's task asks.

    /// Whether the next bytes begin a request.
    #[must_use]
    pub fn awaits_request(&self) -> bool {
        self.state().phase == Phase::Idle
    }

    /// Whether the connection waits for a request, and its last answer is not stuck on the way to the client.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        state.phase == Phase::Idle && state.taken.waits_since_ms().is_none()
    }

    /// The wait for a request begins anew: klad itself reads none.
    pub fn restart_idle_clock(&self) {
        let mut state = self.change();
        if state.phase == Phase::Idle {
            state.since_ms = self.now_ms.get();
        }
    }

    /// Takes what the sweep decided.
    pub fn take_verdict(&self) -> Option<Verdict> {
        self.change().verdict.take()
    }

    /// Why the connection ends, if that was decided here.
    #[must_use]
    pub fn closed(&self) -> Option<Closed> {
        self.state().closed
    }

    /// Sets why the connection ends; `None`: it goes on after all.
    pub fn set_closed(&self, closed: Option<Closed>) {
        self.change().closed = closed;
    }
}
