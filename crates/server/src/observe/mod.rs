//! What became of one request: when its head came, where its time went, when the socket took the last byte of its answer;
//! and then its place in the metrics and, if it is among the slowest, in `/debug/slow`, its line in the slow-request log or the
//! access log, its `Server-Timing`.
//!
//! ```text
//!   Idle ──head──▶ Running ──answer handed over──▶ Given ──last byte taken──▶ Idle
//!                     └───────── connection ends: aborted ─┘
//! ```
//!
//! A request that memory answers, and whose answer the socket takes at once, costs a look at the clock at its end, one at its
//! head if it is the first of the worker's turn, and no allocation. What only a log line or a header needs is gathered only
//! where there will be one. Keys are never logged, only their length: they may be secret, or personal data. Called by `service`, `exchange` and `server`.

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
use crate::request_metrics::{Ended, Op, Outcome, Phase, Requests, WorkerRequests};
use klad_base::clock;
use klad_storage::operation::Durability;

pub mod identity;
mod lines;
pub mod slowest;

/// `on` asks for `Server-Timing`.
pub const TIMING_HEADER: &str = "klad-server-timing";

/// Where a request's time has gone so far, in milliseconds (W3C Server Timing).
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// A worker's side: its counters, and names for requests that have none.
#[derive(Debug)]
pub struct Observer {
    requests: Arc<Requests>,
    slowest: Arc<Slowest>,
    worker: usize,
    /// Of the next request that needs a name; begins at a random place, so that no two processes share names.
    next_id: Cell<u64>,
    /// When a request of this worker was last seen to end.
    last: Cell<Instant>,
}

impl Observer {
    /// Of worker `worker`, on whose thread it stays.
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

    /// Something was refused that never became a request.
    pub fn refused(&self, reason: &'static str) {
        self.counters().refused(reason);
    }

    /// Says, now and then, what the bound on lines has held back, and lets go of what was slow long ago.
    pub fn tick(&self) {
        self.slowest().tick(clock::now());
        if let Some(requests) = logs::SLOW_REQUESTS.take_held_back() {
            tracing::warn!(requests, "more slow requests than are logged in a second");
        }
    }

    fn new_id(&self) -> String {
        let id = self.next_id.get();
        self.next_id.set(id.wrapping_add(1));
        format!("{id:016x}")
    }
}

/// Where the request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    Running,
    Given,
}

/// What became of the current request of one connection. The next request of the connection uses the same record.
#[derive(Debug)]
pub struct RequestRecord {
    observer: Rc<Observer>,
    peer: Option<SocketAddr>,
    stage: Stage,
    begun: Instant,
    /// When the request came to the gate, if the gate was closed.
    at_gate: Option<Instant>,
    op: Op,
    facts: Facts,
    /// Since when the socket has taken none of the answer.
    blocked_since: Option<Instant>,
    details: Option<Box<Details>>,
}

/// What is known of one request; all of it starts anew with the next.
#[derive(Debug, Default)]
struct Facts {
    /// 0: not answered yet.
    status: u16,
    /// Known before the status says it, or in spite of the status.
    outcome: Option<Outcome>,
    durability: Option<Durability>,
    key_bytes: usize,
    received_bytes: u64,
    sent_bytes: u64,
    /// Some of the body came after the head had been read.
    body_was_waited_for: bool,
    receive_ns: u64,
    write_ns: u64,
}

/// What only lines and headers need.
#[derive(Debug)]
struct Details {
    method: Method,
    path: &'static str,
    request_id: Option<String>,
    trace_id: Option<String>,
    server_timing: bool,
}

impl RequestRecord {
    /// The record of a new connection with `peer`.
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

    /// The next request's bytes have waited at the gate since then.
    pub fn let_in(&mut self, since: Instant) {
        self.at_gate = Some(since);
    }

    /// A whole head has come; when? In a turn that began at `iteration_began` the worker does one request after the other, so this
    /// one came at the end of the one before, or when the turn began, and no clock need be read.
    pub fn begins(&mut self, phases: &Phases, iteration_began: Option<Instant>) -> Instant {
        let now = iteration_began.map_or_else(clock::now, |began| began.max(self.observer.last.get()));
        if self.stage != Stage::Idle {
            // It came behind another whose answer was not taken at once: hyper gives both to the socket as one. What was
            // waited for until now was the other's.
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

    /// What the head says.
    pub fn head(&mut self, phases: &Phases, op: Op, method: &Method, path: &str, headers: &HeaderMap) {
        self.op = op;
        // Most requests have none of these; a walk over a few names costs less than three look-ups.
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

    /// Its key, or a range's first, has so many bytes.
    pub fn key(&mut self, bytes: usize) {
        self.facts.key_bytes = bytes;
    }

    /// So many bytes of its body have come.
    pub fn received(&mut self, bytes: usize) {
        self.facts.received_bytes += bytes as u64;
    }

    /// Bytes of the body came in after the head, or were waited for in vain.
    pub fn waits_for_body(&mut self) {
        self.facts.body_was_waited_for = true;
    }

    /// The body is waited for no longer.
    pub fn body_ended(&mut self, phases: &Phases) {
        if std::mem::take(&mut self.facts.body_was_waited_for) {
            let now = clock::now();
            self.facts.receive_ns = clock::nanoseconds_between(phases.since(), now);
            phases.go_on(now);
        }
    }

    /// The write was done.
    pub fn written(&mut self, durability: Durability) {
        self.facts.durability = Some(durability);
    }

    /// It is refused.
    pub fn refused(&self, code: &'static str) {
        self.observer.refused(code);
    }

    /// Its answer is about to be handed over, and may get headers.
    pub fn answers(&mut self, phases: &Phases, status: StatusCode, headers: &mut Option<Box<HeaderMap>>) {
        self.facts.status = status.as_u16();
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

    /// So many bytes of the answer's body were handed over to be sent.
    pub fn sent(&mut self, bytes: usize) {
        self.facts.sent_bytes += bytes as u64;
    }

    /// The answer is cut in its middle, by klad or, where it knows no reason, by its client.
    pub fn cut(&mut self, outcome: Outcome) {
        if self.facts.outcome.is_none() {
            self.facts.outcome = Some(outcome);
        }
    }

    /// All of the answer was handed over.
    pub fn given(&mut self) {
        if self.stage == Stage::Running {
            self.stage = Stage::Given;
        }
    }

    /// The socket took `taken` bytes of `offered`, or none now.
    pub fn socket_took(&mut self, phases: &Phases, taken: Option<usize>, offered: usize) {
        match taken {
            None => {
                if self.stage != Stage::Idle && self.blocked_since.is_none() {
                    self.blocked_since = Some(clock::now());
                }
            }
            Some(count) => {
                let all = count == offered && count > 0 && self.stage == Stage::Given;
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

    /// The connection has ended; what was under way is aborted.
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
        let ended = Ended {
            op: self.op,
            outcome,
            durability: self.facts.durability.map(Durability::as_str),
            total_ns: clock::nanoseconds_between(self.begun, now),
            phases_ns,
            received_bytes: self.facts.received_bytes,
            sent_bytes: self.facts.sent_bytes,
        };
        self.observer.counters().ends(&ended);
        let slow = logs::is_slow(ended.total_ns);
        let kept = self.observer.slowest().is_among(ended.op, ended.total_ns);
        if slow || kept || logs::access_log() || self.details.is_some() {
            self.tell(phases, &ended, now, slow, kept);
        }
    }

    /// Of a slow one, or where every request has a line; `kept`: it is among the slowest.
    #[cold]
    fn tell(&mut self, phases: &Phases, ended: &Ended, now: Instant, slow: bool, kept: bool) {
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
        let says_slow = slow && logs::SLOW_REQUESTS.allows();
        let access_log = logs::access_log();
        if says_slow || access_log {
            let line = RequestLine {
                ended,
                peer: self.peer,
                status: self.facts.status,
                method: method.as_ref().map(Method::as_str),
                path,
                key_bytes: self.facts.key_bytes,
                // One that klad makes up here was told to nobody, but ties the two lines of a slow request together, and to
                // what `/debug/slow` shows.
                request_id: request_id.get_or_insert_with(|| self.observer.new_id()),
                trace_id: trace_id.as_deref(),
            };
            if says_slow {
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

    fn keep(&self, phases: &Phases, ended: &Ended, now: Instant, request_id: Option<String>, trace_id: Option<String>) {
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

/// What a status says of a request's end; 0 is none.
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
    use crate::observe::slowest::Extent;
    use klad_base::metrics::Source as _;
    use klad_base::metrics::text::Page;

    fn recorded() -> (Arc<Requests>, RequestRecord, Phases) {
        let requests = Arc::new(Requests::new(1, &[]));
        let slowest = Arc::new(Slowest::new(1, Extent::USUAL));
        (requests.clone(), RequestRecord::new(Observer::new(requests, slowest, 0), None), Phases::default())
    }

    fn answered(record: &mut RequestRecord, phases: &Phases, status: StatusCode) {
        record.answers(phases, status, &mut None);
        record.given();
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
        assert_eq!(count(&requests, IN_FLIGHT), 1, "that was a 100");
        answered(&mut record, &phases, StatusCode::OK);
        record.socket_took(&phases, Some(10), 100);
        record.socket_took(&phases, None, 90);
        assert_eq!(count(&requests, OK), 0);
        record.socket_took(&phases, Some(90), 90);
        assert_eq!((count(&requests, OK), count(&requests, IN_FLIGHT)), (1, 0));
        assert!(sample(&requests, r#"klad_http_request_phase_seconds_sum{op="other",phase="write"}"#) > 0.0);
        record.connection_ends(&phases);
        assert_eq!(count(&requests, ABORTED), 0, "nothing was under way");
    }

    #[test]
    fn a_request_behind_one_that_is_still_on_its_way_ends_that() {
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
        let wait = Duration::from_secs(2);
        record.let_in(clock::now().checked_sub(wait).expect("the machine has run for longer"));
        for _ in 0..2 {
            record.begins(&phases, None);
            answered(&mut record, &phases, StatusCode::OK);
            record.socket_took(&phases, Some(1), 1);
        }
        let phase = sample(&requests, r#"klad_http_request_phase_seconds_sum{op="other",phase="queue"}"#);
        let total = sample(&requests, r#"klad_http_request_duration_seconds_sum{op="other",outcome="ok"}"#);
        assert!((2.0..4.0).contains(&phase) && (phase..4.0).contains(&total), "{phase} of {total}");
    }
}
