//! The record of one request: when its head arrived, the times of its phases, and when the socket took the last byte of
//! its answer. klad makes the metrics, `/debug/slow`, the slow-request log, the access log and `Server-Timing` from
//! these records.
//!
//! ```text
//!   Idle ──head──▶ Running ──answer handed over──▶ HandedOver ──last byte taken──▶ Idle
//!                     └───────── connection ends: aborted ─┘
//! ```
//!
//! If memory answers a request and the socket takes the answer at once, the record needs no allocation and one clock
//! reading, at the end of the request. The first request of a loop iteration needs one more, at its head. klad stores
//! details such as method and path only if the access log is on, or if the client has sent a request id or a trace, or
//! asks for `Server-Timing`. Log lines have the length of a key, never the key, which may be secret or personal.
//! `http`, `exchange` and `connection` call this.

use std::cell::Cell;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};

use self::lines::{RequestLine, logged_path};
use crate::execution::Phases;
use crate::logs;
use crate::observe::identity::{REQUEST_ID_HEADER, TRACE_HEADER, request_id, trace_id};
use crate::observe::slowest::{SlowRequest, Slowest, WorkerSlowest};
use crate::request_metrics::{EndedRequest, Op, Outcome, Phase, Requests, WorkerRequests};
use klad_base::clock;
use klad_storage::operation::{Consistency, Durability};

pub mod identity;
mod lines;
pub mod slowest;

/// The request header that, with the value `on`, asks for `Server-Timing` in the answer.
pub const TIMING_HEADER: &str = "klad-server-timing";

/// The header that asks for a consistency level. An answer to such a request repeats it.
pub const CONSISTENCY_HEADER: &str = "klad-consistency";

/// The answer's header with the times of the request's phases so far, in milliseconds (W3C Server Timing).
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// What the requests of one worker share: its counters, its slowest requests, and new ids for requests without one.
#[derive(Debug)]
pub struct Observer {
    requests: Arc<Requests>,
    slowest: Arc<Slowest>,
    worker: usize,
    /// The next id. The first is random, so that two processes do not use the same ids.
    next_id: Cell<u64>,
    /// When a request of this worker last ended.
    last: Cell<Instant>,
}

impl Observer {
    /// Creates the observer of worker `worker`, on its thread.
    #[must_use]
    pub fn new(requests: Arc<Requests>, slowest: Arc<Slowest>, worker: usize) -> Rc<Observer> {
        let next_id = Cell::new(RandomState::new().build_hasher().finish());
        Rc::new(Observer { requests, slowest, worker, next_id, last: Cell::new(clock::now()) })
    }

    fn counters(&self) -> &WorkerRequests {
        self.requests.worker(self.worker)
    }

    fn slowest(&self) -> &WorkerSlowest {
        self.slowest.worker(self.worker)
    }

    /// Counts a rejection of a request, or of a client whose request klad could not read. `reason` is the code in the
    /// answer.
    pub fn rejected(&self, reason: &'static str) {
        self.counters().rejected(reason);
    }

    /// Begins a new window of the slowest requests if it is time. Logs how many lines about slow requests the rate
    /// limit did not allow. Called several times a second.
    pub fn tick(&self) {
        self.slowest().tick(clock::now());
        if let Some(requests) = logs::SLOW_REQUESTS.take_held_back() {
            tracing::warn!(requests, "more slow requests than klad logs in a second; /debug/slow shows the slowest");
        }
    }

    fn new_id(&self) -> String {
        let id = self.next_id.get();
        self.next_id.set(id.wrapping_add(1));
        format!("{id:016x}")
    }
}

/// The state of the current request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    Running,
    HandedOver,
}

/// The record of a connection's current request. The next request of the connection reuses the record.
#[derive(Debug)]
pub struct RequestRecord {
    observer: Rc<Observer>,
    peer: Option<SocketAddr>,
    stage: Stage,
    begun: Instant,
    /// Since when the next request has waited at the gate, if the gate was closed.
    at_gate: Option<Instant>,
    op: Op,
    facts: Facts,
    /// Since when the socket has taken no byte of the answer. `None`: klad does not wait for the socket.
    blocked_since: Option<Instant>,
    details: Option<Box<Details>>,
}

/// The facts about the current request. Each request begins with the default.
#[derive(Debug, Default)]
struct Facts {
    /// The status of the answer. 0: there is none yet.
    status: u16,
    /// If set, replaces the outcome that follows from the status.
    outcome: Option<Outcome>,
    durability: Option<Durability>,
    /// The consistency that the request asks for. A header of the answer repeats it.
    consistency: Consistency,
    key_bytes: usize,
    received_bytes: u64,
    sent_bytes: u64,
    /// Whether some of the body arrived after the head.
    body_was_waited_for: bool,
    receive_ns: u64,
    write_ns: u64,
}

/// The details that only log lines and headers of the answer need.
#[derive(Debug)]
struct Details {
    method: Method,
    path: &'static str,
    request_id: Option<String>,
    trace_id: Option<String>,
    server_timing: bool,
}

impl RequestRecord {
    /// Creates the record of a new connection with `peer`.
    #[must_use]
    pub fn new(observer: Rc<Observer>, peer: Option<SocketAddr>) -> RequestRecord {
        RequestRecord {
            observer,
            peer,
            stage: Stage::Idle,
            begun: clock::now(),
            at_gate: None,
            op: Op::Other,
            facts: Facts::default(),
            blocked_since: None,
            details: None,
        }
    }

    /// Creates the record of another request of the same connection.
    #[must_use]
    pub fn of_same_connection(&self) -> RequestRecord {
        RequestRecord::new(self.observer.clone(), self.peer)
    }

    /// Records that the next request has waited at the gate since `since`.
    pub fn waited_at_gate(&mut self, since: Instant) {
        self.at_gate = Some(since);
    }

    /// Begins the record of a request whose whole head was read. Returns the time that counts as the arrival of the
    /// head. The duration counts from this time, or from the beginning of the wait at the gate. In a loop iteration,
    /// which began at `iteration_began`, a worker serves one request after the other. So this time is the end of the
    /// previous request or the beginning of the iteration, whichever is later, and klad need not read the clock. klad
    /// reads it only if `iteration_began` is `None`, or if the record of the previous request has not ended yet.
    pub fn begins(&mut self, phases: &Phases, iteration_began: Option<Instant>) -> Instant {
        let iteration_began = iteration_began.filter(|_| self.stage == Stage::Idle);
        let now = iteration_began.map_or_else(clock::now, |began| began.max(self.observer.last.get()));
        if self.stage != Stage::Idle {
            // The client has pipelined the request behind another request, whose answer the socket has not taken yet.
            // The socket gets both answers together. The wait so far belongs to the earlier request.
            if let Some(since) = self.blocked_since.take() {
                self.facts.write_ns += clock::nanoseconds_between(since, now);
                self.blocked_since = Some(now);
            }
            self.ends(phases, now);
        }
        self.stage = Stage::Running;
        self.observer.counters().begins();
        phases.begin(now);
        let begun = self.at_gate.take().unwrap_or(now);
        self.begun = begun;
        if begun != now {
            phases.waited_outside(now.saturating_duration_since(begun));
        }
        self.facts = Facts::default();
        now
    }

    /// Records the contents of the head.
    pub fn head(&mut self, phases: &Phases, op: Op, method: &Method, path: &str, headers: &HeaderMap) {
        self.op = op;
        // Most requests have none of these headers. Walking over a few names costs less than three look-ups.
        let mut names = headers.keys().map(HeaderName::as_str);
        let named = names.any(|name| matches!(name, REQUEST_ID_HEADER | TRACE_HEADER | TIMING_HEADER));
        if named || logs::access_log() {
            self.details = self.gather(phases, method, path, headers);
        }
    }

    #[cold]
    fn gather(&self, phases: &Phases, method: &Method, path: &str, headers: &HeaderMap) -> Option<Box<Details>> {
        let header = |name: &str| headers.get(name);
        let request_id = header(REQUEST_ID_HEADER).and_then(request_id).map(str::to_owned);
        let trace_id = header(TRACE_HEADER).and_then(trace_id).map(str::to_owned);
        let server_timing = header(TIMING_HEADER).is_some_and(|value| value == "on");
        let access_log = logs::access_log();
        if request_id.is_none() && trace_id.is_none() && !server_timing && !access_log {
            return None;
        }
        if server_timing || access_log {
            phases.be_exact();
        }
        let request_id = request_id.or_else(|| access_log.then(|| self.observer.new_id()));
        let path = logged_path(path);
        Some(Box::new(Details { method: method.clone(), path, request_id, trace_id, server_timing }))
    }

    /// Records the length of the request's key, or of the start of its range.
    pub fn key(&mut self, bytes: usize) {
        self.facts.key_bytes = bytes;
    }

    /// Records the consistency level that the request asks for.
    pub fn consistency(&mut self, asked: Consistency) {
        self.facts.consistency = asked;
    }

    /// Counts bytes of the request's body.
    pub fn received(&mut self, bytes: usize) {
        self.facts.received_bytes += bytes as u64;
    }

    /// Records that the request had to wait for its body: bytes of the body arrived after the head, or did not arrive
    /// in time.
    pub fn waits_for_body(&mut self) {
        self.facts.body_was_waited_for = true;
    }

    /// Records the end of the wait for the body, if the request had to wait for it.
    pub fn body_ended(&mut self, phases: &Phases) {
        if std::mem::take(&mut self.facts.body_was_waited_for) {
            let now = clock::now();
            self.facts.receive_ns = clock::nanoseconds_between(phases.since(), now);
            phases.go_on(now);
        }
    }

    /// Records the durability of a completed write.
    pub fn written(&mut self, durability: Durability) {
        self.facts.durability = Some(durability);
    }

    /// Counts the items of a batch that was carried out.
    pub fn batch_items(&self, items: usize) {
        self.observer.counters().batch_items(items);
    }

    /// Counts a rejection of the request, by the code in the answer.
    pub fn rejected(&self, code: &'static str) {
        self.observer.rejected(code);
    }

    /// Records that the answer is about to be handed over. Adds the headers `Klad-Consistency`, `X-Request-Id` and
    /// `Server-Timing`, if the answer should have them.
    pub fn answers(&mut self, phases: &Phases, status: StatusCode, headers: &mut Option<Box<HeaderMap>>) {
        self.facts.status = status.as_u16();
        if self.facts.consistency != Consistency::Default
            && let Some(word) = self.facts.consistency.word()
        {
            headers.get_or_insert_default().insert(CONSISTENCY_HEADER, HeaderValue::from_static(word));
        }
        if let Some(details) = &self.details {
            self.label(phases, details, headers.get_or_insert_default());
        }
    }

    #[cold]
    fn label(&self, phases: &Phases, details: &Details, headers: &mut HeaderMap) {
        let id = details.request_id.as_ref().and_then(|id| HeaderValue::try_from(id).ok());
        if let Some(id) = id {
            headers.insert(HeaderName::from_static(REQUEST_ID_HEADER), id);
        }
        if details.server_timing {
            let total_ns = clock::nanoseconds_between(self.begun, clock::now());
            let milliseconds = |time_ns| Duration::from_nanos(time_ns).as_secs_f64() * 1e3;
            let timing = format!(
                "receive;dur={:.3}, queue;dur={:.3}, engine;dur={:.3}, sync;dur={:.3}, total;dur={:.3}",
                milliseconds(self.facts.receive_ns),
                milliseconds(phases.queue_ns()),
                milliseconds(phases.engine_ns()),
                milliseconds(phases.sync_ns()),
                milliseconds(total_ns)
            );
            let timing = HeaderValue::try_from(timing).expect("digits and names are a header value");
            headers.insert(SERVER_TIMING, timing);
        }
    }

    /// Counts bytes of the answer's body that were handed over.
    pub fn sent(&mut self, bytes: usize) {
        self.facts.sent_bytes += bytes as u64;
    }

    /// Records that the answer ends early, with `outcome`, unless an outcome was already recorded.
    pub fn cut(&mut self, outcome: Outcome) {
        if self.facts.outcome.is_none() {
            self.facts.outcome = Some(outcome);
        }
    }

    /// Records that the whole answer was handed over.
    pub fn answer_handed_over(&mut self) {
        if self.stage == Stage::Running {
            self.stage = Stage::HandedOver;
        }
    }

    /// Records that the socket took `taken` of `offered` bytes. `taken` is `None` if the socket is full.
    pub fn socket_took(&mut self, phases: &Phases, taken: Option<usize>, offered: usize) {
        match taken {
            None => {
                if self.stage != Stage::Idle && self.blocked_since.is_none() {
                    self.blocked_since = Some(clock::now());
                }
            }
            Some(count) => {
                let all = count == offered && count > 0 && self.stage == Stage::HandedOver;
                let blocked_since = self.blocked_since.take();
                if !all && blocked_since.is_none() {
                    return;
                }
                let now = clock::now();
                if let Some(since) = blocked_since {
                    let waited_ns = clock::nanoseconds_between(since, now);
                    self.facts.write_ns += waited_ns;
                }
                if all {
                    self.ends(phases, now);
                }
            }
        }
    }

    /// Records the end of the connection. A request in progress is aborted.
    pub fn connection_ends(&mut self, phases: &Phases) {
        if self.stage == Stage::Idle {
            return;
        }
        let now = clock::now();
        if let Some(since) = self.blocked_since.take() {
            self.facts.write_ns += clock::nanoseconds_between(since, now);
        }
        self.cut(Outcome::Aborted);
        self.ends(phases, now);
    }

    /// Records at `now` the end of a request whose answer goes to the socket together with those of later requests.
    pub fn ends_before_others(&mut self, phases: &Phases, now: Instant) {
        self.ends(phases, now);
    }

    fn ends(&mut self, phases: &Phases, now: Instant) {
        self.observer.last.set(now);
        self.stage = Stage::Idle;
        let status = self.facts.status;
        let outcome = self.facts.outcome.unwrap_or_else(|| outcome(status));
        let mut phases_ns = [0; Phase::ALL.len()];
        phases_ns[Phase::Receive as usize] = self.facts.receive_ns;
        phases_ns[Phase::Queue as usize] = phases.queue_ns();
        phases_ns[Phase::Engine as usize] = phases.engine_ns();
        phases_ns[Phase::Sync as usize] = phases.sync_ns();
        phases_ns[Phase::Write as usize] = self.facts.write_ns;
        let ended = EndedRequest {
            op: self.op,
            outcome,
            durability: self.facts.durability.map(Durability::as_str),
            total_ns: clock::nanoseconds_between(self.begun, now),
            phases_ns,
            received_bytes: self.facts.received_bytes,
            sent_bytes: self.facts.sent_bytes,
        };
        // A change feed lasts as long as its client wants, so it is never slow.
        let is_timed = ended.op != Op::Changes;
        let slow = is_timed && logs::is_slow(ended.total_ns);
        let kept = is_timed && self.observer.slowest().is_among(ended.op, ended.total_ns);
        if slow || kept || logs::access_log() || self.details.is_some() {
            self.log_and_keep(phases, &ended, now, slow, kept);
        }
        // Last, so that whoever sees the request as ended also finds it among the slowest.
        self.observer.counters().ends(&ended);
    }

    /// Writes the log lines of the request, and, with `kept`, keeps the request among the slowest.
    #[cold]
    fn log_and_keep(&mut self, phases: &Phases, ended: &EndedRequest, now: Instant, slow: bool, kept: bool) {
        let details = self.details.take();
        let (mut request_id, mut trace_id) = (None, None);
        let (mut method, mut path) = (None, None);
        if let Some(details) = details {
            (request_id, trace_id) = (details.request_id, details.trace_id);
            (method, path) = (Some(details.method), Some(details.path));
        }
        if slow {
            self.observer.counters().was_slow();
        }
        let logs_slow = slow && logs::SLOW_REQUESTS.allows();
        let access_log = logs::access_log();
        if logs_slow || access_log {
            let line = RequestLine {
                ended,
                peer: self.peer,
                status: self.facts.status,
                method: method.as_ref().map(Method::as_str),
                path,
                key_bytes: self.facts.key_bytes,
                // An id that is created here connects the two lines of a slow request with each other and with
                // `/debug/slow`.
                request_id: request_id.get_or_insert_with(|| self.observer.new_id()),
                trace_id: trace_id.as_deref(),
            };
            if logs_slow {
                line.write_slow();
            }
            if access_log {
                line.write_access();
            }
        }
        if kept {
            self.keep(phases, ended, now, request_id, trace_id);
        }
    }

    fn keep(
        &self,
        phases: &Phases,
        ended: &EndedRequest,
        now: Instant,
        request_id: Option<String>,
        trace_id: Option<String>,
    ) {
        self.observer.slowest().keep(SlowRequest {
            ended: *ended,
            ended_at: now,
            started_unix_ms: clock::unix_ms().saturating_sub(ended.total_ns / 1_000_000),
            status: self.facts.status,
            key_bytes: self.facts.key_bytes,
            answered_by: phases.answered_by(),
            perf: phases.perf(),
            peer: self.peer,
            request_id,
            trace_id,
            worker: self.observer.worker,
        });
    }
}

/// Returns the outcome that follows from the status of an answer. Status 0 means that there was no answer.
fn outcome(status: u16) -> Outcome {
    match StatusCode::from_u16(status) {
        Err(_) => Outcome::Aborted,
        Ok(StatusCode::NOT_FOUND) => Outcome::NotFound,
        Ok(StatusCode::GATEWAY_TIMEOUT) => Outcome::Deadline,
        Ok(StatusCode::SERVICE_UNAVAILABLE | StatusCode::INSUFFICIENT_STORAGE) => Outcome::Refused,
        Ok(status) if status.is_client_error() => Outcome::ClientError,
        Ok(status) if status.is_server_error() => Outcome::Error,
        Ok(_) => Outcome::Ok,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::slowest::Retention;
    use klad_base::metrics::Source as _;
    use klad_base::metrics::text::Page;

    fn recorded() -> (Arc<Requests>, RequestRecord, Phases) {
        let requests = Arc::new(Requests::new(1, &[]));
        let slowest = Arc::new(Slowest::new(1, Retention::DEFAULT));
        (requests.clone(), RequestRecord::new(Observer::new(requests, slowest, 0), None), Phases::default())
    }

    fn answered(record: &mut RequestRecord, phases: &Phases, status: StatusCode) {
        record.answers(phases, status, &mut None);
        record.answer_handed_over();
    }

    fn count(requests: &Requests, series: &str) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters are whole")]
        let count = sample(requests, series) as u64;
        count
    }

    fn sample(requests: &Requests, series: &str) -> f64 {
        let mut page = Page::new();
        requests.write(&mut page);
        let text = page.finish();
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.unwrap_or_else(|| panic!("no {series} in:\n{text}")).trim().parse().expect("a number")
    }

    const OK: &str = r#"klad_http_request_duration_seconds_count{op="other",outcome="ok"}"#;
    const ABORTED: &str = r#"klad_http_request_duration_seconds_count{op="other",outcome="aborted"}"#;
    const IN_FLIGHT: &str = "klad_http_requests_in_flight";

    #[test]
    fn a_request_ends_when_the_socket_has_taken_all_of_its_answer() {
        let (requests, mut record, phases) = recorded();
        record.begins(&phases, None);
        record.socket_took(&phases, Some(25), 25);
        assert_eq!(count(&requests, IN_FLIGHT), 1, "the bytes were `100 Continue`");
        answered(&mut record, &phases, StatusCode::OK);
        record.socket_took(&phases, Some(10), 100);
        record.socket_took(&phases, None, 90);
        assert_eq!(count(&requests, OK), 0);
        record.socket_took(&phases, Some(90), 90);
        assert_eq!((count(&requests, OK), count(&requests, IN_FLIGHT)), (1, 0));
        assert!(sample(&requests, r#"klad_http_request_phase_seconds_sum{op="other",phase="write"}"#) > 0.0);
        record.connection_ends(&phases);
        assert_eq!(count(&requests, ABORTED), 0, "no request was in progress");
    }

    #[test]
    fn a_pipelined_request_ends_the_one_before_it() {
        let (requests, mut record, phases) = recorded();
        record.begins(&phases, None);
        answered(&mut record, &phases, StatusCode::OK);
        record.begins(&phases, None);
        answered(&mut record, &phases, StatusCode::OK);
        assert_eq!(count(&requests, OK), 1);
        record.connection_ends(&phases);
        assert_eq!((count(&requests, OK), count(&requests, ABORTED)), (1, 1));
    }

    #[test]
    fn the_wait_at_the_gate_is_part_of_the_queue_and_of_the_total_of_one_request() {
        let (requests, mut record, phases) = recorded();
        let (wait, begun) = (Duration::from_secs(2), clock::now());
        record.waited_at_gate(clock::now().checked_sub(wait).expect("the machine has run for longer"));
        for _ in 0..2 {
            record.begins(&phases, None);
            answered(&mut record, &phases, StatusCode::OK);
            record.socket_took(&phases, Some(1), 1);
        }
        let phase = sample(&requests, r#"klad_http_request_phase_seconds_sum{op="other",phase="queue"}"#);
        let total = sample(&requests, r#"klad_http_request_duration_seconds_sum{op="other",outcome="ok"}"#);
        let most = (wait + (clock::now() - begun)).as_secs_f64();
        assert!((2.0..=most).contains(&phase) && (phase..=most).contains(&total), "{phase} of {total}");
    }
}
