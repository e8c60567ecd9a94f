//! The sweep's part of the state machine: which client is late, and what follows from it.

use std::time::Duration;

use crate::exchange::meter::Flow;
use crate::exchange::{Exchange, Phase, State};
use klad_base::limits::{DRAIN_PATIENCE, EVICTION_AGE_MIN, GROWN_IDLE_TIMEOUT, LINGER_TIMEOUT};

/// How long a connection may wait for its client. All are kept to within
/// [`SWEEP_INTERVAL`](klad_base::limits::SWEEP_INTERVAL).
#[derive(Clone, Debug)]
pub struct Deadlines {
    /// From the first byte of a head to its last; then 408.
    pub head: Duration,
    /// Between two requests; then the connection closes silently.
    pub idle: Duration,
    /// Without a byte of an expected body, or below the rate; then 408.
    pub body: Duration,
    /// Without the client taking a byte of an answer, or below the rate; then the connection closes.
    pub write: Duration,
    /// The minimum rate of a body in either direction, bytes per second. 0: no client is ended for being slow.
    pub body_rate_bytes_min: u64,
}

/// What the sweep decided; the connection's own task carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// End after the request in progress.
    Finish,
    /// Answer 408 to an incomplete head, and close.
    HeadTimedOut,
    /// Look whether a head has begun in hyper's buffer.
    Look,
    /// Close, unless a request has come since the sweep looked.
    Leave,
    /// Close.
    Close,
}

/// Why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The client has closed, or has asked for it.
    ByClient,
    /// A malformed request, or a broken connection.
    Error,
    /// A head that did not come, 408.
    HeadTimeout,
    /// A body that did not come, 408.
    BodyTimeout,
    /// An answer that the client did not take.
    WriteTimeout,
    /// No request for longer than the idle timeout.
    Idle,
    /// Only closing gives back the memory that the connection's buffers have grown to.
    Grown,
    /// It held memory of the body budget that others needed.
    Evicted,
    /// klad stops.
    Stopping,
}

/// klad stops.
#[derive(Clone, Copy, Debug)]
pub struct Draining {
    /// When it began to.
    pub since_ms: u64,
    /// See [`Drain::idle_patience`](crate::Drain::idle_patience).
    pub idle_patience: Duration,
}

impl Draining {
    /// The part of a wait of length `waited` until now that falls into the stop.
    fn of(self, waited: Duration, now_ms: u64) -> Duration {
        waited.min(Duration::from_millis(now_ms.saturating_sub(self.since_ms)))
    }
}

/// What ending a connection would free.
#[derive(Clone, Copy, Debug)]
pub struct Evictable {
    /// Of the body budget.
    pub permit_bytes: u64,
    /// At which rate the client sends or takes.
    pub bytes_per_second: u64,
    /// For how long klad has waited for the client.
    pub waited: Duration,
}

impl Exchange {
    /// Decides whether the client is late. Returns whether there is something for the connection's task to do.
    pub fn check(&self, deadlines: &Deadlines, draining: Option<Draining>) -> bool {
        let state = &mut *self.change();
        let (verdict, closed) = match state.judge(self.now_ms.get(), deadlines, draining) {
            Judgement::Goes => return false,
            Judgement::BodyTimedOut => {
                state.body_timed_out = true;
                (None, Some(Closed::BodyTimeout))
            }
            Judgement::Of(verdict, closed) => (Some(verdict), closed),
        };
        state.verdict = verdict.or(state.verdict);
        state.closed = closed.or(state.closed);
        true
    }

    /// What [`Exchange::evict`] would free; `None` where that is nothing, or where it is too early to tell.
    #[must_use]
    pub fn evictable(&self) -> Option<Evictable> {
        let (state, now_ms) = (self.state(), self.now_ms.get());
        let ends = state.verdict == Some(Verdict::Close) || state.body_timed_out;
        if state.body_permit_bytes == 0 || ends {
            return None;
        }
        let (bytes_per_second, waited) = match state.taken.waits_since_ms() {
            Some(since_ms) => (0, Duration::from_millis(now_ms.saturating_sub(since_ms))),
            None if state.phase == Phase::Body => {
                let sent = state.sent.flow(now_ms);
                (sent.bytes_per_second(), sent.waited)
            }
            None => return None,
        };
        let evictable = Evictable { permit_bytes: state.body_permit_bytes, bytes_per_second, waited };
        (waited > EVICTION_AGE_MIN).then_some(evictable)
    }

    /// Ends what holds memory of the body budget: an upload by 408, an answer by closing.
    pub fn evict(&self) {
        let mut state = self.change();
        state.closed = Some(Closed::Evicted);
        if state.taken.waits_since_ms().is_some() {
            state.verdict = Some(Verdict::Close);
        } else {
            state.body_timed_out = true;
        }
    }
}

enum Judgement {
    /// The connection goes on.
    Goes,
    /// The service answers 408.
    BodyTimedOut,
    /// The connection's task acts; the reason is `None` where there is one already.
    Of(Verdict, Option<Closed>),
}

impl State {
    fn judge(&mut self, now_ms: u64, deadlines: &Deadlines, draining: Option<Draining>) -> Judgement {
        let waited = Duration::from_millis(now_ms.saturating_sub(self.since_ms));
        let late = |waited: Duration, deadline| {
            waited > deadline || draining.is_some_and(|draining| draining.of(waited, now_ms) > DRAIN_PATIENCE)
        };
        let too_slow =
            |flow: Flow, deadline| flow.waited > deadline && flow.bytes_per_second() < deadlines.body_rate_bytes_min;
        let blocked_since_ms = self.taken.waits_since_ms();
        let answer_is_late = blocked_since_ms.is_some_and(|since_ms| {
            let stalled = late(Duration::from_millis(now_ms.saturating_sub(since_ms)), deadlines.write);
            stalled || too_slow(self.taken.flow(now_ms), deadlines.write)
        });
        match self.phase {
            _ if answer_is_late => Judgement::Of(Verdict::Close, Some(Closed::WriteTimeout)),
            // Not while the last answer is still on its way out.
            Phase::Idle | Phase::Head if blocked_since_ms.is_some() => Judgement::Goes,
            Phase::Idle if let Some(draining) = draining => match draining.idle_patience {
                Duration::ZERO => Judgement::Of(Verdict::Close, Some(Closed::Stopping)),
                patience if draining.of(waited, now_ms) >= patience => {
                    Judgement::Of(Verdict::Leave, Some(Closed::Stopping))
                }
                _ => Judgement::Goes,
            },
            // Unless hyper shows that a head has begun, the connection is not closed for this.
            Phase::Idle if waited > deadlines.idle.min(deadlines.head) && std::mem::take(&mut self.unlooked) => {
                Judgement::Of(Verdict::Look, None)
            }
            Phase::Idle if waited > deadlines.idle => Judgement::Of(Verdict::Leave, Some(Closed::Idle)),
            Phase::Idle if self.grown && waited > GROWN_IDLE_TIMEOUT => {
                Judgement::Of(Verdict::Leave, Some(Closed::Grown))
            }
            Phase::Linger if waited > draining.map_or(LINGER_TIMEOUT, |draining| draining.idle_patience) => {
                Judgement::Of(Verdict::Close, None)
            }
            Phase::Handshake if late(waited, deadlines.head) => {
                Judgement::Of(Verdict::Close, Some(Closed::HeadTimeout))
            }
            Phase::Head if late(waited, deadlines.head) => {
                Judgement::Of(Verdict::HeadTimedOut, Some(Closed::HeadTimeout))
            }
            Phase::Body if late(waited, deadlines.body) || too_slow(self.sent.flow(now_ms), deadlines.body) => {
                Judgement::BodyTimedOut
            }
            Phase::Idle | Phase::Busy if self.oversized => Judgement::Of(Verdict::Finish, Some(Closed::Grown)),
            Phase::Handshake | Phase::Idle | Phase::Head | Phase::Busy | Phase::Body | Phase::Linger => Judgement::Goes,
        }
    }
}
