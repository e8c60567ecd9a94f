//! The gate that all connections of a worker read through. One worker's, so plain cells suffice.
//!
//! ```text
//!   open      whoever has bytes is read
//!   closed    a connection that has a request waits; each turn lets in as many as TURN_TARGET serves:
//!               one that has waited REQUEST_AGED, the oldest first, and the newest, by turns
//!             whose client has closed its side is closed: it has given up
//! ```
//!
//! It closes when a turn was longer than `--iteration-max` (what is ready would wait longer than that) and clients are in a hurry:
//! one has named a deadline, or has left before its answer, within [`HURRY`]. Then it matters who is served: the newest,
//! because those who have waited long are about to give up; by turns with the oldest, because who has waited a second has no
//! such haste and must not wait for ever. What is kept out waits in the kernel, which costs nothing, where a refusal would
//! cost most of what an answer does. Clients without haste are served in order, however many there are.
//!
//! It opens when nobody waits. While it is closed nobody is closed for being idle: what klad does not read cannot be late.
//! Called by `io` and `worker`; the acceptor sees its [`Sign`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::execution::LoopIteration;
use klad_base::clock;
use klad_base::limits::{HURRY, ITERATION_REQUESTS_MIN, ITERATION_TARGET, REQUEST_AGED};
use klad_base::metrics::Counter;

/// Open or closed, and who waits.
#[derive(Debug)]
pub struct Gate {
    closed: Cell<bool>,
    /// It closes after a longer turn; `None`: never.
    iteration_max: Cell<Option<Duration>>,
    /// By time of arrival.
    waiting: RefCell<BTreeMap<u64, Place>>,
    arrivals: Cell<u64>,
    /// Let in at each turn.
    quota: Cell<u32>,
    aged_is_next: Cell<bool>,
    /// Clients are in a hurry until then.
    hurry: Cell<Option<Instant>>,
    sign: Arc<Sign>,
}

/// What the acceptor sees of a gate, and the metrics page.
#[derive(Debug, Default)]
pub struct Sign {
    closed: AtomicBool,
    /// The last turn was long, and clients are in a hurry.
    strained: AtomicBool,
    /// As of the end of the last turn.
    waiting: AtomicUsize,
    closings: Counter,
}

impl Sign {
    /// Connections with a request that waited when the last turn ended.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How often the gate has closed.
    #[must_use]
    pub fn closings(&self) -> u64 {
        self.closings.get()
    }

    /// Whether the gate is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether the worker takes so long for what it has that it should have no more.
    #[must_use]
    pub fn is_strained(&self) -> bool {
        self.strained.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Place {
    waker: Waker,
    since: Instant,
    passed: Rc<Cell<State>>,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Outside,
    Waits(u64),
    /// May read one request, though the gate be closed; came then.
    Passed(Instant),
}

/// One connection's way through the gate.
#[derive(Debug)]
pub struct Pass {
    gate: Rc<Gate>,
    state: Rc<Cell<State>>,
}

impl Gate {
    /// An open gate that closes after a turn longer than `iteration_max`; `sign` tells the acceptor.
    #[must_use]
    pub fn new(iteration_max: Option<Duration>, sign: Arc<Sign>) -> Rc<Gate> {
        Rc::new(Gate {
            closed: Cell::new(false),
            iteration_max: Cell::new(iteration_max),
            waiting: RefCell::default(),
            arrivals: Cell::new(0),
            quota: Cell::new(1),
            aged_is_next: Cell::new(false),
            hurry: Cell::new(None),
            sign,
        })
    }

    /// Changes after how long a turn it closes.
    pub fn set_iteration_max(&self, iteration_max: Option<Duration>) {
        self.iteration_max.set(iteration_max);
    }

    /// Whether requests must wait.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// A client has named a deadline, or has left before its answer.
    pub fn hurry(&self) {
        self.hurry.set(Some(clock::now() + HURRY));
    }

    /// A turn has ended: closes, lets in, or opens. `true`: there must be another turn soon.
    pub fn iteration_ended(&self, iteration: LoopIteration) -> bool {
        let Some(iteration_max) = self.iteration_max.get() else { return false };
        if iteration.hurried {
            self.hurry();
        }
        // A long turn with few requests was held up by something else, such as a core given to others.
        let long = |bound| iteration.length > bound && iteration.requests >= ITERATION_REQUESTS_MIN;
        let strained = self.closed.get() || (long(ITERATION_TARGET) && self.is_hurried());
        if strained != self.sign.is_strained() {
            self.sign.strained.store(strained, Ordering::Relaxed);
        }
        if !self.closed.get() {
            if !strained || !long(iteration_max) {
                return false;
            }
            // Nobody waits yet: those who come in the next turn will.
            self.set_closed(true);
            self.quota.set(next_quota(iteration.requests, iteration.length, iteration.requests));
            return true;
        }
        self.quota.set(next_quota(self.quota.get(), iteration.length, iteration.requests));
        for _ in 0..self.quota.get() {
            let Some(place) = self.take_next() else {
                // Who was let in is served; there is room for whoever comes.
                self.set_closed(false);
                return false;
            };
            place.passed.set(State::Passed(place.since));
            place.waker.wake();
        }
        self.sign.waiting.store(self.waiting.borrow().len(), Ordering::Relaxed);
        true
    }

    /// The worker has had nothing to do for a while.
    pub fn rested(&self) {
        if !self.closed.get() && self.sign.is_strained() {
            self.sign.strained.store(false, Ordering::Relaxed);
        }
    }

    fn is_hurried(&self) -> bool {
        self.hurry.get().is_some_and(|until| clock::now() < until)
    }

    fn set_closed(&self, closed: bool) {
        self.closed.set(closed);
        self.sign.closed.store(closed, Ordering::Relaxed);
        if closed {
            self.sign.closings.add_owned(1);
        } else {
            self.sign.waiting.store(0, Ordering::Relaxed);
        }
    }

    fn take_next(&self) -> Option<Place> {
        let mut waiting = self.waiting.borrow_mut();
        let aged = |place: &Place| clock::now().saturating_duration_since(place.since) > REQUEST_AGED;
        let aged_is_next = self.aged_is_next.replace(!self.aged_is_next.get());
        if aged_is_next && waiting.first_key_value().is_some_and(|(_, place)| aged(place)) {
            return waiting.pop_first().map(|(_, place)| place);
        }
        waiting.pop_last().map(|(_, place)| place)
    }
}

/// As many as [`ITERATION_TARGET`] serves at the pace of the last turn; from turn to turn at most twice or half as many.
fn next_quota(quota: u32, iteration: Duration, requests: u32) -> u32 {
    if requests == 0 {
        return quota.saturating_mul(2).clamp(1, QUOTA_MAX);
    }
    let fits = f64::from(requests) * ITERATION_TARGET.as_secs_f64() / iteration.as_secs_f64().max(1e-6);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let fits = fits.clamp(1.0, f64::from(QUOTA_MAX)) as u32;
    fits.clamp(quota / 2, quota.saturating_mul(2)).clamp(1, QUOTA_MAX)
}

/// More would be no bound.
const QUOTA_MAX: u32 = 100_000;

impl Pass {
    /// For a new connection.
    #[must_use]
    pub fn new(gate: Rc<Gate>) -> Pass {
        Pass { gate, state: Rc::new(Cell::new(State::Outside)) }
    }

    /// The connection's client has left before its answer.
    pub fn client_has_left(&self) {
        self.gate.hurry();
    }

    /// Whether a request may be read without asking [`Pass::poll`].
    #[must_use]
    pub fn is_free(&self) -> bool {
        !self.gate.is_closed()
    }

    /// Ready when the connection, which has a request to be read, may read it; else it waits, and is woken when it may.
    pub fn poll(&self, context: &Context<'_>) -> Poll<()> {
        if self.is_passed() || self.is_free() {
            return Poll::Ready(());
        }
        let place = self.leave().unwrap_or_else(|| {
            let arrival = self.gate.arrivals.get();
            self.gate.arrivals.set(arrival + 1);
            (arrival, clock::now())
        });
        let (arrival, since) = place;
        let place = Place { waker: context.waker().clone(), since, passed: self.state.clone() };
        self.gate.waiting.borrow_mut().insert(arrival, place);
        self.state.set(State::Waits(arrival));
        Poll::Pending
    }

    /// Whether one request may be read though the gate be closed.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        matches!(self.state.get(), State::Passed(_))
    }

    /// A request was read: the next must ask again. Since when it waited, if it did.
    #[must_use]
    pub fn used(&self) -> Option<Instant> {
        let State::Passed(since) = self.state.get() else { return None };
        self.state.set(State::Outside);
        Some(since)
    }

    /// Gives up the place, and says which it was.
    fn leave(&self) -> Option<(u64, Instant)> {
        let State::Waits(arrival) = self.state.replace(State::Outside) else { return None };
        self.gate.waiting.borrow_mut().remove(&arrival).map(|place| (arrival, place.since))
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
    use klad_base::limits::ITERATION_MAX;

    fn iteration(length: Duration, requests: u32, hurried: bool) -> LoopIteration {
        LoopIteration { length, requests, hurried }
    }

    fn long(requests: u32, hurried: bool) -> LoopIteration {
        iteration(2 * ITERATION_MAX, requests, hurried)
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

    /// Whether `iteration` strains it.
    fn strains(gate: &Gate, iteration: LoopIteration) -> bool {
        gate.iteration_ended(iteration);
        gate.sign.is_strained()
    }

    #[test]
    fn only_a_long_turn_with_many_requests_of_clients_in_a_hurry_strains() {
        assert!(!strains(&gate(), iteration(ITERATION_TARGET, 1_000, true)));
        assert!(!strains(&gate(), long(1, true)));
        assert!(!strains(&gate(), long(1_000, false)));
        assert!(!strains(&Gate::new(None, Arc::default()), long(1_000, true)));
        let strained = gate();
        assert!(strains(&strained, long(1_000, true)));
        assert!(strained.is_closed());
        assert!(strains(&strained, iteration(ITERATION_TARGET / 2, 1_000, false)), "it was closed during this turn");
        assert!(!strained.is_closed(), "nobody waited");
        assert!(strains(&strained, long(1_000, false)), "the hurry of a moment ago is remembered");
        strained.iteration_ended(iteration(ITERATION_TARGET / 2, 1_000, true));
        assert!(!strains(&strained, iteration(ITERATION_TARGET / 2, 1_000, true)));
        let left = gate();
        Pass::new(left.clone()).client_has_left();
        assert!(strains(&left, long(1_000, false)));
        left.rested();
        assert!(left.sign.is_strained(), "it is closed");
        left.set_closed(false);
        left.rested();
        assert!(!left.sign.is_strained());
    }

    #[test]
    fn the_newest_goes_first() {
        let gate = closed();
        let passes: Vec<Pass> = (0..3).map(|_| Pass::new(gate.clone())).collect();
        assert!(passes.iter().all(|pass| !poll(pass)));
        assert!(!poll(&passes[0]), "asking again does not make it newer");
        assert_eq!(gate.sign.closings(), 1);
        let let_in = || passes.iter().position(Pass::is_passed);
        for expected in [2, 1, 0] {
            gate.quota.set(1);
            assert!(gate.iteration_ended(iteration(ITERATION_TARGET, 1, true)));
            assert_eq!(let_in(), Some(expected));
            assert_eq!(gate.sign.waiting(), expected, "those who came before it");
            assert!(poll(&passes[expected]));
            assert!(passes[expected].used().is_some());
        }
        assert!(!gate.iteration_ended(iteration(ITERATION_TARGET, 1, true)), "nobody waits any more");
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
    fn as_many_are_let_in_as_the_target_serves() {
        assert_eq!(next_quota(1_000, 2 * ITERATION_TARGET, 1_000), 500);
        assert_eq!(next_quota(100, ITERATION_TARGET, 150), 150);
        assert_eq!(next_quota(100, ITERATION_TARGET, 1_000), 200, "at most twice as many");
        assert_eq!(next_quota(1_000, ITERATION_TARGET, 1), 500, "at least half as many");
        assert_eq!(next_quota(1, 100 * ITERATION_TARGET, 1), 1);
        assert_eq!(next_quota(8, ITERATION_TARGET, 0), 16);
    }
}
