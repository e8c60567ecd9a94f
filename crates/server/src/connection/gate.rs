//! The gate through which all connections of a worker read. Each worker has its own gate, so a gate needs no locks.
//!
//! ```text
//!   open      every connection reads as soon as it has bytes
//!   closed    a connection with a request waits; each loop iteration admits as many as ITERATION_TARGET serves,
//!             alternating between
//!               the oldest, if it has waited for REQUEST_AGED, and
//!               the newest
//!             if the client has closed its side, klad closes the connection: the client has given up
//! ```
//!
//! The gate closes when both are true:
//!
//! * A loop iteration took longer than `--iteration-max` and had at least [`ITERATION_REQUESTS_MIN`] requests. So a
//!   ready request would wait longer than `--iteration-max`.
//! * Clients are impatient: in the last [`IMPATIENCE_LIFETIME`] a client has sent a deadline, or has left before its
//!   answer.
//!
//! While the gate is closed, the order matters. The newest requests go first, because clients that have waited long are
//! about to give up. The newest alternate with the oldest, because a client that has waited for a second is patient and
//! must not wait for ever. Requests that are not admitted wait in the kernel at no cost. Rejecting a request would cost
//! almost as much as answering it. If clients are patient, klad serves all of them in order, however many there are.
//!
//! The gate opens when no connection waits. While the gate is closed, klad closes no idle connection, because a request
//! may have arrived that klad has not read. `io` and `worker` call this; the acceptor reads [`GateStatus`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::execution::LoopIteration;
use crate::limits::{IMPATIENCE_LIFETIME, ITERATION_REQUESTS_MIN, ITERATION_TARGET, REQUEST_AGED};
use klad_base::clock;
use klad_base::metrics::Counter;

/// The gate of one worker: open or closed, and the waiting connections.
#[derive(Debug)]
pub struct Gate {
    closed: Cell<bool>,
    /// The gate may close after a loop iteration that is longer than this. `None`: the gate never closes.
    iteration_max: Cell<Option<Duration>>,
    /// Waiting connections by their order of arrival.
    waiting: RefCell<BTreeMap<u64, Waiter>>,
    arrivals: Cell<u64>,
    /// How many connections each loop iteration admits while the gate is closed.
    quota: Cell<u32>,
    aged_is_next: Cell<bool>,
    /// The end of the time in which clients count as impatient.
    impatient_until: Cell<Option<Instant>>,
    status: Arc<GateStatus>,
}

/// The state of a gate as the acceptor and the metrics page see it.
#[derive(Debug, Default)]
pub struct GateStatus {
    closed: AtomicBool,
    /// Whether the gate was closed during the last loop iteration, or the iteration had at least
    /// [`ITERATION_REQUESTS_MIN`] requests and was longer than [`ITERATION_TARGET`] while clients were impatient. While
    /// the gate is open, each sweep resets this.
    strained: AtomicBool,
    /// The number of connections that waited at the end of the last loop iteration.
    waiting: AtomicUsize,
    closings: Counter,
}

impl GateStatus {
    /// The number of connections with a request that waited when the last loop iteration ended.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How many times the gate has closed since the start.
    #[must_use]
    pub fn closings(&self) -> u64 {
        self.closings.get()
    }

    /// Whether the gate is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether the worker is so slow with its connections that it should get new ones only if all workers are strained.
    #[must_use]
    pub fn is_strained(&self) -> bool {
        self.strained.load(Ordering::Relaxed)
    }
}

/// A connection that waits at the gate.
#[derive(Debug)]
struct Waiter {
    waker: Waker,
    since: Instant,
    state: Rc<Cell<State>>,
}

/// The state of a connection at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Outside,
    Waits(u64),
    /// May read one request although the gate is closed. The time is when the connection began to wait.
    Passed(Instant),
}

/// One connection's access to the gate.
#[derive(Debug)]
pub struct Pass {
    gate: Rc<Gate>,
    state: Rc<Cell<State>>,
}

impl Gate {
    /// Creates an open gate that may close after a loop iteration longer than `iteration_max`. The gate writes its
    /// state to `status`, for the acceptor and the metrics page.
    #[must_use]
    pub fn new(iteration_max: Option<Duration>, status: Arc<GateStatus>) -> Rc<Gate> {
        Rc::new(Gate {
            closed: Cell::new(false),
            iteration_max: Cell::new(iteration_max),
            waiting: RefCell::default(),
            arrivals: Cell::new(0),
            quota: Cell::new(1),
            aged_is_next: Cell::new(false),
            impatient_until: Cell::new(None),
            status,
        })
    }

    /// Changes the length of a loop iteration after which the gate may close.
    pub fn set_iteration_max(&self, iteration_max: Option<Duration>) {
        self.iteration_max.set(iteration_max);
    }

    /// Whether requests must wait.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Notes that a client is impatient: it has sent a deadline, or has left before its answer.
    pub fn note_impatient_client(&self) {
        self.impatient_until.set(Some(clock::now() + IMPATIENCE_LIFETIME));
    }

    /// Closes or opens the gate after a loop iteration, or admits connections. Returns whether another iteration must
    /// follow soon.
    pub fn iteration_ended(&self, iteration: LoopIteration) -> bool {
        let Some(iteration_max) = self.iteration_max.get() else { return false };
        if iteration.has_deadline {
            self.note_impatient_client();
        }
        // A long iteration with few requests was delayed by something else, for example by other programs on the core.
        let long = |bound| iteration.length > bound && iteration.requests >= ITERATION_REQUESTS_MIN;
        let strained = self.closed.get() || (long(ITERATION_TARGET) && self.has_impatient_clients());
        if strained != self.status.is_strained() {
            self.status.strained.store(strained, Ordering::Relaxed);
        }
        if !self.closed.get() {
            if !strained || !long(iteration_max) {
                return false;
            }
            // No connection waits yet. Connections with a request will wait in the next iteration.
            self.set_closed(true);
            self.quota.set(next_quota(iteration.requests, iteration.length, iteration.requests));
            return true;
        }
        self.quota.set(next_quota(self.quota.get(), iteration.length, iteration.requests));
        for _ in 0..self.quota.get() {
            let Some(waiter) = self.take_next() else {
                // No other connection waits.
                self.set_closed(false);
                return false;
            };
            waiter.state.set(State::Passed(waiter.since));
            waiter.waker.wake();
        }
        self.status.waiting.store(self.waiting.borrow().len(), Ordering::Relaxed);
        true
    }

    /// Marks the worker as no longer strained, if the gate is open. The next long loop iteration marks it as strained
    /// again. Each sweep calls this, because an idle worker, which has no loop iterations, must not stay strained.
    pub fn rested(&self) {
        if !self.closed.get() && self.status.is_strained() {
            self.status.strained.store(false, Ordering::Relaxed);
        }
    }

    fn has_impatient_clients(&self) -> bool {
        self.impatient_until.get().is_some_and(|until| clock::now() < until)
    }

    fn set_closed(&self, closed: bool) {
        self.closed.set(closed);
        self.status.closed.store(closed, Ordering::Relaxed);
        if closed {
            self.status.closings.add_owned(1);
        } else {
            self.status.waiting.store(0, Ordering::Relaxed);
        }
    }

    fn take_next(&self) -> Option<Waiter> {
        let mut waiting = self.waiting.borrow_mut();
        let aged = |waiter: &Waiter| clock::now().saturating_duration_since(waiter.since) > REQUEST_AGED;
        let aged_is_next = self.aged_is_next.replace(!self.aged_is_next.get());
        if aged_is_next && waiting.first_key_value().is_some_and(|(_, waiter)| aged(waiter)) {
            return waiting.pop_first().map(|(_, waiter)| waiter);
        }
        waiting.pop_last().map(|(_, waiter)| waiter)
    }
}

/// Returns how many requests fit into [`ITERATION_TARGET`] at the speed of the last loop iteration. The result is at
/// least half and at most twice `quota`, the previous result. After an iteration without requests, returns twice
/// `quota`.
fn next_quota(quota: u32, iteration: Duration, requests: u32) -> u32 {
    if requests == 0 {
        return quota.saturating_mul(2).clamp(1, QUOTA_MAX);
    }
    let fits = f64::from(requests) * ITERATION_TARGET.as_secs_f64() / iteration.as_secs_f64().max(1e-6);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let fits = fits.clamp(1.0, f64::from(QUOTA_MAX)) as u32;
    fits.clamp(quota / 2, quota.saturating_mul(2)).clamp(1, QUOTA_MAX)
}

/// The largest quota of a loop iteration. A larger quota would be no limit.
const QUOTA_MAX: u32 = 100_000;

impl Pass {
    /// Creates the pass of a new connection.
    #[must_use]
    pub fn new(gate: Rc<Gate>) -> Pass {
        Pass { gate, state: Rc::new(Cell::new(State::Outside)) }
    }

    /// Notes that the connection's client has left before its answer.
    pub fn client_has_left(&self) {
        self.gate.note_impatient_client();
    }

    /// Whether the gate is open, so that a connection may read a request without [`Pass::poll`].
    #[must_use]
    pub fn is_free(&self) -> bool {
        !self.gate.is_closed()
    }

    /// Returns `Ready` if the connection may read a request. Otherwise the connection waits, and the gate wakes it when
    /// it may read.
    pub fn poll(&self, context: &Context<'_>) -> Poll<()> {
        if self.is_passed() || self.is_free() {
            return Poll::Ready(());
        }
        let (arrival, since) = self.leave().unwrap_or_else(|| {
            let arrival = self.gate.arrivals.get();
            self.gate.arrivals.set(arrival + 1);
            (arrival, clock::now())
        });
        let waiter = Waiter { waker: context.waker().clone(), since, state: self.state.clone() };
        self.gate.waiting.borrow_mut().insert(arrival, waiter);
        self.state.set(State::Waits(arrival));
        Poll::Pending
    }

    /// Whether the connection may read one request although the gate is closed.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        matches!(self.state.get(), State::Passed(_))
    }

    /// Uses up the admission, after bytes of a request were read. Returns since when the connection had waited; `None`
    /// if it had not waited.
    #[must_use]
    pub fn used(&self) -> Option<Instant> {
        let State::Passed(since) = self.state.get() else { return None };
        self.state.set(State::Outside);
        Some(since)
    }

    /// Removes the connection from the queue. Returns the connection's place in the queue, and since when it has
    /// waited; `None` if it did not wait.
    fn leave(&self) -> Option<(u64, Instant)> {
        let State::Waits(arrival) = self.state.replace(State::Outside) else { return None };
        self.gate.waiting.borrow_mut().remove(&arrival).map(|waiter| (arrival, waiter.since))
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::limits::ITERATION_MAX;

    fn iteration(length: Duration, requests: u32, has_deadline: bool) -> LoopIteration {
        LoopIteration { length, requests, has_deadline }
    }

    fn long(requests: u32, has_deadline: bool) -> LoopIteration {
        iteration(2 * ITERATION_MAX, requests, has_deadline)
    }

    fn gate() -> Rc<Gate> {
        Gate::new(Some(ITERATION_MAX), Arc::default())
    }

    fn closed() -> Rc<Gate> {
        let gate = gate();
        gate.set_closed(true);
        gate
    }

    fn poll(pass: &Pass) -> bool {
        pass.poll(&Context::from_waker(Waker::noop())).is_ready()
    }

    /// Ends `iteration`. Returns whether the worker is strained after it.
    fn strains(gate: &Gate, iteration: LoopIteration) -> bool {
        gate.iteration_ended(iteration);
        gate.status.is_strained()
    }

    /// Repeats observations that took so long that the gate may have forgotten impatience.
    fn in_time<T>(observe: impl Fn() -> T) -> T {
        let attempt = || {
            let begun = clock::now();
            let seen = observe();
            (clock::now() - begun < IMPATIENCE_LIFETIME).then_some(seen)
        };
        (0..5).find_map(|_| attempt()).expect("one of the attempts is in time")
    }

    #[test]
    fn only_a_long_iteration_with_many_requests_of_impatient_clients_strains() {
        assert!(!strains(&gate(), iteration(ITERATION_TARGET, 1_000, true)));
        assert!(!strains(&gate(), long(1, true)));
        assert!(!strains(&gate(), long(1_000, false)));
        assert!(!strains(&Gate::new(None, Arc::default()), long(1_000, true)));
        let short = |has_deadline| iteration(ITERATION_TARGET / 2, 1_000, has_deadline);
        let seen = in_time(|| {
            let gate = gate();
            [long(1_000, true), short(false), long(1_000, false), short(true), short(true)]
                .map(|iteration| (strains(&gate, iteration), gate.is_closed()))
        });
        // The second is short, but the gate was closed during it, and no connection waited. At the third, impatience is
        // remembered.
        assert_eq!(seen, [(true, true), (true, false), (true, true), (true, false), (false, false)]);
        let (left, is_strained) = in_time(|| {
            let left = gate();
            Pass::new(left.clone()).client_has_left();
            let is_strained = strains(&left, long(1_000, false));
            (left, is_strained)
        });
        assert!(is_strained);
        left.rested();
        assert!(left.status.is_strained(), "it is closed");
        left.set_closed(false);
        left.rested();
        assert!(!left.status.is_strained());
    }

    #[test]
    fn the_newest_goes_first() {
        let gate = closed();
        let passes: Vec<Pass> = (0..3).map(|_| Pass::new(gate.clone())).collect();
        assert!(passes.iter().all(|pass| !poll(pass)));
        assert!(!poll(&passes[0]), "asking again does not make it newer");
        // None of them becomes an old one if the test pauses.
        gate.waiting.borrow_mut().values_mut().for_each(|waiter| waiter.since += Duration::from_hours(1));
        assert_eq!(gate.status.closings(), 1);
        let admitted = || passes.iter().position(Pass::is_passed);
        for expected in [2, 1, 0] {
            gate.quota.set(1);
            assert!(gate.iteration_ended(iteration(ITERATION_TARGET, 1, true)));
            assert_eq!(admitted(), Some(expected));
            assert_eq!(gate.status.waiting(), expected, "those that arrived before it");
            assert!(poll(&passes[expected]));
            assert!(passes[expected].used().is_some());
        }
        assert!(!gate.iteration_ended(iteration(ITERATION_TARGET, 1, true)), "no connection waits");
        assert!(!gate.is_closed());
    }

    #[test]
    fn a_connection_that_ends_leaves_no_place_behind() {
        let gate = closed();
        let pass = Pass::new(gate.clone());
        assert!(!poll(&pass));
        drop(pass);
        assert!(gate.waiting.borrow().is_empty());
    }

    #[test]
    fn a_loop_iteration_admits_as_many_requests_as_the_target_serves() {
        assert_eq!(next_quota(1_000, 2 * ITERATION_TARGET, 1_000), 500);
        assert_eq!(next_quota(100, ITERATION_TARGET, 150), 150);
        assert_eq!(next_quota(100, ITERATION_TARGET, 1_000), 200, "at most twice as many");
        assert_eq!(next_quota(1_000, ITERATION_TARGET, 1), 500, "at least half as many");
        assert_eq!(next_quota(1, 100 * ITERATION_TARGET, 1), 1);
        assert_eq!(next_quota(8, ITERATION_TARGET, 0), 16);
    }
}
