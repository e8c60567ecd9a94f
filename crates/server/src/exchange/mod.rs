//! The state machine of one connection. The service that answers, the socket that moves bytes and the sweep that checks
//! deadlines report events to the state machine. It decides whether the connection continues.
//!
//! ```text
//!   Handshake, with TLS
//!    ▼
//!   Idle ──first byte──▶ Head ──whole head──▶ Busy ◀──▶ Body        (Body: waits for the client's bytes)
//!    ▲                                          │
//!    └──────────────── answered ────────────────┘          Linger: closed for writing; waits until the client closes
//! ```
//!
//! [`State`] holds the state; each method of [`Exchange`] reports an event or answers a question. A connection belongs
//! to one worker thread, so nothing needs a lock. This module uses no sockets, and from hyper only the types of HTTP.
//! `http` and `connection` call it.

mod meter;
mod verdict;

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::rc::Rc;
use std::time::Instant;

use hyper::{HeaderMap, Method, StatusCode};

use crate::exchange::meter::Meter;
use crate::execution::Phases;
use crate::limits::{GROWN_BYTES, OVERSIZED_BYTES};
use crate::observe::RequestRecord;
use crate::request_metrics::Op;
use klad_storage::operation::Consistency;

pub use verdict::{CloseReason, Deadlines, Draining, EvictionCandidate, Verdict};

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

/// The state of one connection.
#[derive(Debug)]
pub struct Exchange {
    state: RefCell<State>,
    /// The times of the current request's operations. A running operation writes to them, so they are not part of
    /// `state`.
    phases: Phases,
    /// The worker's coarse clock in milliseconds.
    now_ms: Rc<Cell<u64>>,
}

/// The state that events change. All times are milliseconds of the worker's coarse clock.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own that lasts beyond the phase")]
struct State {
    phase: Phase,
    /// The beginning of the phase. In `Body`, the beginning of the wait for the next byte.
    since_ms: u64,
    /// Whether bytes of the next request arrived before the current one was answered.
    read_ahead: bool,
    /// Whether hyper's buffer may hold the beginning of the next head. This is so if the buffer was not checked since
    /// the last answer.
    unlooked: bool,
    /// Counts the bytes of a body that the client sent, and the time in `Body`.
    sent: Meter,
    /// Counts the bytes of an answer that the client took, and the time in which it took none.
    taken: Meter,
    /// Bytes of the body budget that become free when the connection ends. They belong to a body that arrives, or to an
    /// answer that leaves.
    body_permit_bytes: u64,
    /// Whether the sweep has decided that the body is late.
    body_timed_out: bool,
    /// Whether klad answered before it had read the request's body. Then klad must linger when it closes the
    /// connection.
    body_unread: bool,
    /// Whether hyper's buffers have grown beyond what the memory budget charges for a connection.
    grown: bool,
    /// Whether hyper's buffers have grown so much that the connection must end after the answer.
    oversized: bool,
    /// Whether an answer was handed over to hyper, and is still in hyper's buffer.
    answer_leaves: bool,
    /// Whether klad has discarded something that hyper wrote by itself.
    hyper_muted: bool,
    /// The sweep's decision, until the connection's task takes it.
    verdict: Option<Verdict>,
    /// Why the connection ends, if this state machine decided that.
    close_reason: Option<CloseReason>,
    request: RequestRecord,
}

impl State {
    fn enter(&mut self, phase: Phase, now_ms: u64) {
        self.phase = phase;
        self.since_ms = now_ms;
    }
}

impl Exchange {
    /// Creates the state of a new connection; `now_ms` is the worker's clock.
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
            close_reason: None,
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

    /// Returns the current phase, and when it began, in milliseconds of the worker's coarse clock.
    #[must_use]
    pub fn phase(&self) -> (Phase, u64) {
        let state = self.state();
        (state.phase, state.since_ms)
    }

    /// The record of the current request. The caller must drop the returned guard before it calls another method.
    pub fn request(&self) -> RefMut<'_, RequestRecord> {
        RefMut::map(self.change(), |state| &mut state.request)
    }

    /// The times of the current request's operations.
    #[must_use]
    pub fn phases(&self) -> &Phases {
        &self.phases
    }

    // Events of the client.

    /// The TLS handshake begins. No request can arrive yet.
    pub fn handshake_begins(&self) {
        self.enter(Phase::Handshake);
    }

    /// The handshake has succeeded. The first request may arrive.
    pub fn handshake_ends(&self) {
        self.enter(Phase::Idle);
    }

    /// `count` bytes have arrived.
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

    /// A whole head has been read. Returns when the head arrived: see [`RequestRecord::begins`].
    pub fn request_begins(&self, iteration_began: Option<Instant>) -> Instant {
        let mut state = self.change();
        state.read_ahead = false;
        state.taken.begin_anew();
        state.enter(Phase::Busy, self.now_ms.get());
        state.request.begins(&self.phases, iteration_began)
    }

    /// Bytes of the next request have arrived together with the current one.
    pub fn next_has_begun(&self) {
        self.change().read_ahead = true;
    }

    /// Records the contents of the head.
    pub fn head(&self, op: Op, method: &Method, path: &str, headers: &HeaderMap) {
        self.request().head(&self.phases, op, method, path, headers);
    }

    /// Records the consistency that the request asks for, if it asks for one.
    pub fn asks(&self, consistency: Consistency) {
        if consistency != Consistency::Default {
            self.request().consistency(consistency);
        }
    }

    /// The service waits for the client's bytes until [`Exchange::body_ends`]. The service holds `permit_bytes` of the
    /// body budget for these bytes.
    pub fn body_begins(&self, permit_bytes: u64) {
        let (mut state, now_ms) = (self.change(), self.now_ms.get());
        state.body_permit_bytes = permit_bytes;
        state.sent.begin_waiting(now_ms);
        state.enter(Phase::Body, now_ms);
    }

    /// The service no longer waits for the client's bytes.
    pub fn body_ends(&self) {
        let mut state = self.change();
        state.body_permit_bytes = 0;
        state.enter(Phase::Busy, self.now_ms.get());
    }

    /// Records the time that the request waited for its body.
    pub fn body_time_ends(&self) {
        self.request().body_ended(&self.phases);
    }

    /// Whether the sweep has decided that the body is late.
    #[must_use]
    pub fn body_timed_out(&self) -> bool {
        self.state().body_timed_out
    }

    // Events of the answer.

    /// klad answers before it has read the request's body.
    pub fn set_body_unread(&self) {
        self.change().body_unread = true;
    }

    /// Whether klad has answered before it had read the request's body.
    #[must_use]
    pub fn body_unread(&self) -> bool {
        self.state().body_unread
    }

    /// klad is about to hand over an answer, which hyper or the fast path writes. May add headers to the answer.
    pub fn answers(&self, status: StatusCode, headers: &mut Option<Box<HeaderMap>>) {
        self.request().answers(&self.phases, status, headers);
    }

    /// Sets how many bytes of the body budget the answer holds. These bytes become free when the connection ends.
    pub fn set_body_permit(&self, bytes: u64) {
        self.change().body_permit_bytes = bytes;
    }

    /// klad has handed over the whole answer. The next request may arrive, or has begun to arrive.
    pub fn answered(&self) {
        let mut state = self.change();
        state.body_permit_bytes = 0;
        state.answer_leaves = true;
        state.unlooked = true;
        state.request.answer_handed_over();
        let next = if std::mem::take(&mut state.read_ahead) { Phase::Head } else { Phase::Idle };
        state.enter(next, self.now_ms.get());
    }

    /// The socket took `taken` of `offered` bytes. `None` means that the socket is full.
    pub fn socket_took(&self, taken: Option<usize>, offered: usize) {
        self.request().socket_took(&self.phases, taken, offered);
    }

    /// The client took `taken` bytes. `None` means that the client takes none now. The connection holds a buffer of
    /// `held` bytes for its answer.
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

    /// All bytes that were handed over have been written.
    pub fn answer_has_left(&self) {
        self.change().answer_leaves = false;
    }

    /// The last answer was sent. klad discards whatever arrives.
    pub fn lingers(&self) {
        self.enter(Phase::Linger);
    }

    /// The connection has ended. A request in progress counts as aborted.
    pub fn connection_ends(&self) {
        self.request().connection_ends(&self.phases);
    }

    // Events of hyper.

    /// hyper is about to write. Returns whether hyper writes its own answer to a head that it cannot read. klad must
    /// discard this answer.
    #[must_use]
    pub fn mutes_hyper(&self) -> bool {
        let mut state = self.change();
        let own = matches!(state.phase, Phase::Idle | Phase::Head) && !state.answer_leaves;
        state.hyper_muted |= own;
        own
    }

    /// Whether klad has discarded something that hyper wrote by itself.
    #[must_use]
    pub fn hyper_was_muted(&self) -> bool {
        self.state().hyper_muted
    }

    /// Whether the connection must end after the answer, because hyper's buffers have grown so much that only the end
    /// frees enough memory.
    #[must_use]
    pub fn oversized(&self) -> bool {
        self.state().oversized
    }

    /// From now on the fast path serves the connection. hyper's buffers were freed.
    pub fn buffers_are_gone(&self) {
        self.change().grown = false;
    }

    // Questions of the connection's task.

    /// Whether the next bytes begin a request.
    #[must_use]
    pub fn awaits_request(&self) -> bool {
        self.state().phase == Phase::Idle
    }

    /// Whether the connection waits for a request, and the client has taken the last answer.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        state.phase == Phase::Idle && !state.answer_leaves && state.taken.waits_since_ms().is_none()
    }

    /// Restarts the idle time. klad calls this while the gate is closed, because a request may have arrived that klad
    /// has not read.
    pub fn restart_idle_clock(&self) {
        let mut state = self.change();
        if state.phase == Phase::Idle {
            state.since_ms = self.now_ms.get();
        }
    }

    /// Takes the sweep's decision.
    pub fn take_verdict(&self) -> Option<Verdict> {
        self.change().verdict.take()
    }

    /// Returns why the connection ends, if this state machine decided that.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.state().close_reason
    }

    /// Sets why the connection ends. `None` means that the connection continues.
    pub fn set_close_reason(&self, close_reason: Option<CloseReason>) {
        self.change().close_reason = close_reason;
    }
}
