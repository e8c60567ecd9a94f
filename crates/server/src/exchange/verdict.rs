//! The sweep's part of the state machine: decides which client is late, and what klad does about it.

use std::time::Duration;

use crate::exchange::meter::Flow;
use crate::exchange::{Exchange, Phase, State};
use crate::limits::{DRAIN_PATIENCE, EVICTION_AGE_MIN, GROWN_IDLE_TIMEOUT, LINGER_TIMEOUT};

/// How long a connection may wait for its client. The precision is
/// [`SWEEP_INTERVAL`](crate::limits::SWEEP_INTERVAL).
#[derive(Clone, Debug)]
pub struct Deadlines {
    /// The maximum time from the first byte of a head to the last. After that time klad answers 408. Also the maximum
    /// time of a TLS handshake, after which klad closes the connection without an answer.
    pub head: Duration,
    /// The maximum time between two requests. After that time klad closes the connection without an answer.
    pub idle: Duration,
    /// klad answers 408 if no byte of an expected body arrives for this time, or if the body takes longer than this
    /// time and its average rate is below the minimum rate.
    pub body: Duration,
    /// klad closes the connection if the client takes no byte of an answer for this time. klad also closes it if all
    /// waits for the client during an answer together exceed this time, and the average rate over these waits is below
    /// the minimum rate.
    pub write: Duration,
    /// The minimum rate of a request's body and of an answer, bytes per second. 0 means no minimum.
    pub body_rate_bytes_min: u64,
}

/// A decision of the sweep. The connection's own task carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Close after the request in progress.
    FinishRequest,
    /// Answer an incomplete head with 408, and close.
    HeadTimedOut,
    /// Check whether hyper's buffer holds the beginning of a head. If it does, the head is late.
    CheckHead,
    /// Close, unless a request has arrived since the sweep decided.
    CloseIfIdle,
    /// Close.
    Close,
}

/// Why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The client has closed the connection, or has asked klad to close it. Also, klad has closed it after an
    /// answer, because it had not read the whole body of the request, or because the framing was invalid.
    ByClient,
    /// The request was malformed, or the connection broke.
    Error,
    /// A head did not arrive in time (408), or a TLS handshake took too long.
    HeadTimeout,
    /// A body did not arrive in time (408).
    BodyTimeout,
    /// The client did not take an answer in time.
    WriteTimeout,
    /// There was no request for longer than the idle timeout.
    Idle,
    /// The connection's buffers had grown, and only closing frees that memory.
    Grown,
    /// A request held body budget that other requests needed.
    Evicted,
    /// klad stops.
    Stopping,
}

/// The state of klad while it stops.
#[derive(Clone, Copy, Debug)]
pub struct Draining {
    /// When the stop began, on the worker's clock.
    pub since_ms: u64,
    /// See [`Drain::idle_patience`](crate::Drain::idle_patience).
    pub idle_patience: Duration,
}

impl Draining {
    /// Returns which part of a wait was after the stop began. The wait has the length `waited`, and ends now.
    fn of(self, waited: Duration, now_ms: u64) -> Duration {
        waited.min(Duration::from_millis(now_ms.saturating_sub(self.since_ms)))
    }
}

/// A request that klad may end to free body budget.
#[derive(Clone, Copy, Debug)]
pub struct EvictionCandidate {
    /// The bytes of the body budget that ending the request would free.
    pub permit_bytes: u64,
    /// The average rate at which the client sends its body; 0 if the client does not take the answer now.
    pub bytes_per_second: u64,
    /// How long klad has waited for the client: for its body, or for it to take the next byte of the answer.
    pub waited: Duration,
}

impl Exchange {
    /// Decides whether the client is late. Returns whether the connection's task has something to do.
    pub fn check(&self, deadlines: &Deadlines, draining: Option<Draining>) -> bool {
        let state = &mut *self.change();
        let (verdict, close_reason) = match state.judge(self.now_ms.get(), deadlines, draining) {
            Judgement::Continue => return false,
            Judgement::BodyTimedOut => {
                state.body_timed_out = true;
                (None, Some(CloseReason::BodyTimeout))
            }
            Judgement::Act(verdict, close_reason) => (Some(verdict), close_reason),
        };
        state.verdict = verdict.or(state.verdict);
        state.close_reason = close_reason.or(state.close_reason);
        true
    }

    /// Returns what [`Exchange::evict`] would free. Returns `None` if it would free nothing, if klad is not waiting for
    /// the client, or if klad has not waited long enough to know the client's rate.
    #[must_use]
    pub fn eviction_candidate(&self) -> Option<EvictionCandidate> {
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
        let eviction_candidate = EvictionCandidate { permit_bytes: state.body_permit_bytes, bytes_per_second, waited };
        (waited > EVICTION_AGE_MIN).then_some(eviction_candidate)
    }

    /// Ends a request to free body budget: klad answers an upload with 408, and closes a connection whose client does
    /// not take its answer.
    pub fn evict(&self) {
        let mut state = self.change();
        state.close_reason = Some(CloseReason::Evicted);
        if state.taken.waits_since_ms().is_some() {
            state.verdict = Some(Verdict::Close);
        } else {
            state.body_timed_out = true;
        }
    }
}

enum Judgement {
    /// The connection continues.
    Continue,
    /// The service answers 408.
    BodyTimedOut,
    /// The connection's task carries out the verdict. The reason is `None` if the verdict gives no reason of its own.
    Act(Verdict, Option<CloseReason>),
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
            _ if answer_is_late => Judgement::Act(Verdict::Close, Some(CloseReason::WriteTimeout)),
            // The client has not taken the last answer completely.
            Phase::Idle | Phase::Head if blocked_since_ms.is_some() => Judgement::Continue,
            Phase::Idle if let Some(draining) = draining => match draining.idle_patience {
                Duration::ZERO => Judgement::Act(Verdict::Close, Some(CloseReason::Stopping)),
                patience if draining.of(waited, now_ms) >= patience => {
                    Judgement::Act(Verdict::CloseIfIdle, Some(CloseReason::Stopping))
                }
                _ => Judgement::Continue,
            },
            // This check closes the connection only if hyper's buffer holds the beginning of a head.
            Phase::Idle if waited > deadlines.idle.min(deadlines.head) && std::mem::take(&mut self.unlooked) => {
                Judgement::Act(Verdict::CheckHead, None)
            }
            Phase::Idle if waited > deadlines.idle => Judgement::Act(Verdict::CloseIfIdle, Some(CloseReason::Idle)),
            Phase::Idle if self.grown && waited > GROWN_IDLE_TIMEOUT => {
                Judgement::Act(Verdict::CloseIfIdle, Some(CloseReason::Grown))
            }
            Phase::Linger if waited > draining.map_or(LINGER_TIMEOUT, |draining| draining.idle_patience) => {
                Judgement::Act(Verdict::Close, None)
            }
            Phase::Handshake if late(waited, deadlines.head) => {
                Judgement::Act(Verdict::Close, Some(CloseReason::HeadTimeout))
            }
            Phase::Head if late(waited, deadlines.head) => {
                Judgement::Act(Verdict::HeadTimedOut, Some(CloseReason::HeadTimeout))
            }
            Phase::Body if late(waited, deadlines.body) || too_slow(self.sent.flow(now_ms), deadlines.body) => {
                Judgement::BodyTimedOut
            }
            Phase::Idle | Phase::Busy if self.oversized => {
                Judgement::Act(Verdict::FinishRequest, Some(CloseReason::Grown))
            }
            Phase::Handshake | Phase::Idle | Phase::Head | Phase::Busy | Phase::Body | Phase::Linger => {
                Judgement::Continue
            }
        }
    }
}
