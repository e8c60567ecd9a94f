//! Answers one request. A PUT has all the steps: route, check that writes are possible, body budget, body, operation,
//! answer. Each step before the operation may reject the request, and then nothing has happened.
//!
//! A connection calls this on a worker, directly or through hyper.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::EXPECT;
use hyper::{HeaderMap, Request, StatusCode};

use crate::exchange::Exchange;
use crate::execution::admission::{BodyBudget, BodyPermit};
use crate::execution::{Deadline, WorkerContext};
use crate::http::answer::{Answer, Fields, Reply};
use crate::http::api_error::ApiError;
use crate::http::authorization::{self, Authorization};
use crate::http::body::{Content, ResponseBody};
use crate::http::consistency;
use crate::http::duration;
use crate::http::framing;
use crate::http::plain::PlainRequest;
use crate::http::range::RangeBody;
use crate::http::route::{Head, Route, op, route};
use crate::http::upload::{self, RequestBody, UnwantedBody, Upload};
use crate::http::v1;
use crate::limits::TIMEOUT_RANGE;
use crate::tokens::Access;
use klad_base::clock;
use klad_storage::ChangeKind;
use klad_storage::limits::CACHED_VALUE_BYTES_MAX;
use klad_storage::operation::{Consistency, Durability, Effect, Outcome, Version, Write};

/// The header that says how long a request may wait until its operation begins. klad counts from when it has read the
/// head.
pub const TIMEOUT_HEADER: &str = "klad-timeout";

/// Limits and defaults of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// klad answers a longer key with 414.
    pub key_bytes_max: u64,
    /// klad answers a longer value with 413.
    pub value_bytes_max: u64,
    /// The durability of writes that do not ask for one.
    pub durability: Durability,
    /// klad answers a batch of more items with 413.
    pub batch_items_max: u64,
    /// klad answers a batch with a longer body with 413.
    pub batch_bytes_max: u64,
    /// A scan that takes longer than this ends early, with a cursor.
    pub scan_time_max: Duration,
    /// A change feed without changes sends a heartbeat after this time.
    pub heartbeat: Duration,
}

/// Answers requests. The connections of a worker share it.
pub struct Service {
    worker_context: Rc<WorkerContext>,
    options: Cell<Options>,
    authorization: Authorization,
}

/// A request whose head was processed.
pub enum StartedRequest {
    /// The request is answered, because the worker itself could do the read, or because the framing is invalid.
    Answered(Answer),
    /// A PUT whose body can be read.
    Put(PutRequest),
    /// A request of `/v1`.
    V1(Box<V1Request>),
    /// Any other request.
    Other(Box<OtherRequest>),
}

/// A request of `/v1` whose body can be read.
pub struct V1Request {
    request: v1::Request,
    access: Access,
    deadline: Deadline,
    consistency: Consistency,
    body: UnwantedBody,
    permit: Option<BodyPermit>,
    body_bytes_max: u64,
}

/// A PUT whose value can be read.
pub struct PutRequest {
    key: Bytes,
    durability: Durability,
    deadline: Deadline,
    consistency: Consistency,
    body: RequestBody,
    permit: Option<BodyPermit>,
    value_bytes_max: u64,
}

/// A request whose body klad does not use. klad discards the body, then does `action`.
pub struct OtherRequest {
    body: UnwantedBody,
    action: Action,
}

enum Action {
    /// `asked` is true if the worker has already tried to read the key itself.
    Get {
        key: Bytes,
        deadline: Deadline,
        consistency: Consistency,
        asked: bool,
    },
    Delete {
        key: Bytes,
        durability: Durability,
        deadline: Deadline,
        consistency: Consistency,
    },
    Range {
        start: Bytes,
        end: Option<Bytes>,
        consistency: Consistency,
    },
    Status,
    Reject(ApiError),
}

impl Service {
    /// Creates the service of the worker with this context.
    #[must_use]
    pub fn new(worker_context: Rc<WorkerContext>, options: Options, authorization: Authorization) -> Service {
        Service { worker_context, options: Cell::new(options), authorization }
    }

    pub(super) fn worker_context(&self) -> &WorkerContext {
        &self.worker_context
    }

    pub(super) fn authorization(&self) -> &Authorization {
        &self.authorization
    }

    pub(super) fn options(&self) -> Options {
        self.options.get()
    }

    /// Changes limits and defaults for new requests.
    pub fn set_options(&self, options: Options) {
        self.options.set(options);
    }

    /// Returns the memory budget for bodies and large answers.
    #[must_use]
    pub fn budget(&self) -> &BodyBudget {
        self.worker_context.executor().budget()
    }

    /// Processes the head of a request. Answers a GET of `/v0` if the worker itself can do the read now, and a request
    /// with invalid framing. [`Service::end`] answers all others. `exchange` belongs to the request's connection. This
    /// function is not `async`, because a future is copied with its contents, and a head is large.
    pub fn begin(&self, request: Request<Incoming>, exchange: &Rc<Exchange>) -> StartedRequest {
        let (head, body) = request.into_parts();
        if let Err(api_error) = framing::check(head.version, &head.headers) {
            let now = exchange.request_begins(self.worker_context.iteration_began());
            self.worker_context.request_begins(now);
            begin_record(exchange, &Head::from(&head));
            return StartedRequest::Answered(answer_from(Err(api_error), false, exchange));
        }
        self.begin_with(&Head::from(&head), RequestBody::Streamed(body), exchange)
    }

    /// Does what [`Service::begin`] does, for a request that was read without hyper.
    pub fn begin_plain(&self, request: &PlainRequest<'_>, exchange: &Rc<Exchange>) -> StartedRequest {
        let body = if request.body.is_empty() { Bytes::new() } else { Bytes::copy_from_slice(request.body) };
        self.begin_with(&request.head(), RequestBody::Whole(body), exchange)
    }

    fn begin_with(&self, head: &Head<'_>, body: RequestBody, exchange: &Rc<Exchange>) -> StartedRequest {
        let now = exchange.request_begins(self.worker_context.iteration_began());
        self.worker_context.request_begins(now);
        let options = self.options.get();
        begin_record(exchange, head);
        let other = |body, action| {
            let expects_continue = head.headers.contains_key(EXPECT);
            StartedRequest::Other(Box::new(OtherRequest { body: UnwantedBody { body, expects_continue }, action }))
        };
        // Check the token first, so that a client without one learns nothing about paths, keys or limits.
        let granted = self.authorization.grant(head.headers);
        if head.path.starts_with(v1::PREFIX) {
            return self.begin_v1(head, body, granted, exchange);
        }
        let routed = granted.and_then(|access| {
            let route = route(head, options.key_bytes_max)?;
            let consistency = self.consistency(head, !matches!(route, Route::Status), exchange)?;
            authorization::may(access, route.changes())?;
            Ok((route, deadline(head.headers)?, consistency))
        });
        let (route, deadline, consistency) = match routed {
            Ok(routed) => routed,
            Err(api_error) => return other(body, Action::Reject(api_error)),
        };
        if deadline.is_some() {
            self.worker_context.request_has_deadline();
        }
        match route {
            Route::Put { key, durability } => {
                exchange.request().key(key.len());
                match self.admit(&body, options) {
                    Ok(permit) => {
                        let durability = durability.unwrap_or(options.durability);
                        let key = Bytes::copy_from_slice(&key);
                        let value_bytes_max = options.value_bytes_max;
                        let put = PutRequest { key, durability, deadline, consistency, body, permit, value_bytes_max };
                        StartedRequest::Put(put)
                    }
                    Err(api_error) => other(body, Action::Reject(api_error)),
                }
            }
            Route::Get { key } => {
                exchange.request().key(key.len());
                let asked = body.is_end_stream();
                let ask = || self.worker_context.get_here(&key, deadline, exchange.phases());
                let answered = if asked { ask() } else { None };
                if let Some(outcome) = answered {
                    let answered = outcome.map_err(ApiError::from).and_then(|outcome| self.get_answer(outcome, None));
                    StartedRequest::Answered(answer_from(answered, true, exchange))
                } else {
                    let key = Bytes::copy_from_slice(&key);
                    other(body, Action::Get { key, deadline, consistency, asked })
                }
            }
            Route::Delete { key, durability } => {
                exchange.request().key(key.len());
                let durability = durability.unwrap_or(options.durability);
                let key = Bytes::copy_from_slice(&key);
                other(body, Action::Delete { key, durability, deadline, consistency })
            }
            Route::Range { start, end } => {
                exchange.request().key(start.len());
                let end = end.map(|end| Bytes::copy_from_slice(&end));
                let start = Bytes::copy_from_slice(&start);
                other(body, Action::Range { start, end, consistency })
            }
            Route::Status => other(body, Action::Status),
        }
    }

    /// Returns how many copies must answer a request. The header says this. If `of_keys` is true, the parameters may
    /// say it too.
    pub(super) fn consistency(
        &self,
        head: &Head<'_>,
        of_keys: bool,
        exchange: &Exchange,
    ) -> Result<Consistency, ApiError> {
        let asked = if of_keys {
            consistency::of_keys(head, || self.worker_context.executor().copies())?
        } else {
            consistency::level(head)?
        };
        exchange.asks(asked);
        Ok(asked)
    }

    /// Completes a request that [`Service::begin`] returned.
    pub async fn end(&self, started: StartedRequest, exchange: &Rc<Exchange>) -> Answer {
        match started {
            StartedRequest::Answered(answer) => answer,
            StartedRequest::Put(put) => self.put(put, exchange).await,
            StartedRequest::V1(request) => Box::pin(self.v1(*request, exchange)).await,
            // These requests are boxed, because they are rare or slow, and their state must not be copied for each
            // request.
            StartedRequest::Other(other) => Box::pin(self.other(*other, exchange)).await,
        }
    }

    /// Processes the head of a request of `/v1`.
    fn begin_v1(
        &self,
        head: &Head<'_>,
        body: RequestBody,
        granted: Result<Access, ApiError>,
        exchange: &Exchange,
    ) -> StartedRequest {
        let options = self.options.get();
        let routed = granted.and_then(|access| {
            let request = v1::route(head, &options)?;
            let consistency = self.consistency(head, request.takes_replicas(), exchange)?;
            authorization::may(access, request.changes())?;
            let deadline = deadline(head.headers)?;
            exchange.request().key(request.key_bytes());
            let body_bytes_max = request.body_bytes_max(&options);
            let permit = if request.needs_body() {
                let executor = self.worker_context.executor();
                if request.stores() {
                    executor.writable(ChangeKind::Put)?;
                }
                upload::admit(&body, executor.budget(), body_bytes_max).map_err(|error| request.too_large(error))?
            } else {
                None
            };
            Ok((access, request, deadline, consistency, permit, body_bytes_max))
        });
        let body = UnwantedBody { body, expects_continue: head.headers.contains_key(EXPECT) };
        match routed {
            Ok((access, request, deadline, consistency, permit, body_bytes_max)) => {
                if deadline.is_some() {
                    self.worker_context.request_has_deadline();
                }
                let request = V1Request { request, access, deadline, consistency, body, permit, body_bytes_max };
                StartedRequest::V1(Box::new(request))
            }
            Err(api_error) => StartedRequest::Other(Box::new(OtherRequest { body, action: Action::Reject(api_error) })),
        }
    }

    async fn v1(&self, started: V1Request, exchange: &Rc<Exchange>) -> Answer {
        let V1Request { request, access, deadline, consistency, body, permit, body_bytes_max } = started;
        let read = if request.needs_body() {
            let read = upload::read(body.body, permit, body_bytes_max, exchange).await;
            read.map(|upload| (upload, true)).map_err(|error| request.too_large(error))
        } else {
            let drained = upload::drain(body, exchange).await;
            drained.map(|keep| (Upload { value: Bytes::new(), permit: None }, keep))
        };
        // After an error the connection must close, because the rest of the body would be read as the next request.
        let (upload, keep) = match read {
            Ok(read) => read,
            Err(api_error) => return answer_from(Err(api_error), false, exchange),
        };
        let (worker, options) = (&self.worker_context, self.options.get());
        let context = v1::Context { worker, exchange, options, deadline, consistency, access };
        answer_from(v1::answer(&context, request, upload).await, keep, exchange)
    }

    fn admit(&self, body: &RequestBody, options: Options) -> Result<Option<BodyPermit>, ApiError> {
        let executor = self.worker_context.executor();
        executor.writable(ChangeKind::Put)?;
        upload::admit(body, executor.budget(), options.value_bytes_max)
    }

    async fn put(&self, put: PutRequest, exchange: &Rc<Exchange>) -> Answer {
        let PutRequest { key, durability, deadline, consistency, body, permit, value_bytes_max } = put;
        match upload::read(body, permit, value_bytes_max, exchange).await {
            Ok(upload) => {
                let write = Write { consistency, ..Write::of(key, Effect::Put(upload.value.into()), durability) };
                let phases = exchange.phases();
                let written = match self.worker_context.write(write, upload.permit, deadline, phases) {
                    Ok(writing) => writing.await,
                    Err(error) => Err(error),
                };
                let answered = written.map_err(ApiError::from).map(|outcome| write_answer(true, &outcome, exchange));
                answer_from(answered, true, exchange)
            }
            // The connection must close, because the rest of this body would be read as the next request.
            Err(api_error) => answer_from(Err(api_error), false, exchange),
        }
    }

    async fn other(&self, other: OtherRequest, exchange: &Rc<Exchange>) -> Answer {
        let OtherRequest { body, action } = other;
        let drained = upload::drain(body, exchange).await;
        if let Action::Reject(api_error) = action {
            // klad rejects the request anyway, so errors of its body no longer matter.
            return answer_from(Err(api_error), drained.unwrap_or(false), exchange);
        }
        // The body has no meaning, but klad must read it to reach the next request.
        match drained {
            Ok(keep) => answer_from(self.without_body(action, exchange).await, keep, exchange),
            Err(api_error) => answer_from(Err(api_error), false, exchange),
        }
    }

    async fn without_body(&self, action: Action, exchange: &Rc<Exchange>) -> Result<Reply, ApiError> {
        let phases = exchange.phases();
        match action {
            Action::Get { key, deadline, consistency, asked } => {
                if !asked && let Some(answered) = self.worker_context.get_here(&key, deadline, phases) {
                    return self.get_answer(answered?, None);
                }
                let (outcome, permit) = self.worker_context.get(key, consistency, deadline, phases).await?;
                self.get_answer(outcome, permit)
            }
            Action::Delete { key, durability, deadline, consistency } => {
                self.worker_context.executor().writable(ChangeKind::Delete)?;
                let write = Write { consistency, ..Write::of(key, Effect::Delete, durability) };
                let outcome = self.worker_context.write(write, None, deadline, phases)?.await?;
                Ok(write_answer(false, &outcome, exchange))
            }
            Action::Range { start, end, consistency } => {
                let (worker_context, exchange) = (self.worker_context.clone(), exchange.clone());
                let range = RangeBody::begin(worker_context, exchange, start, end, consistency).await?;
                Ok(Reply::new(StatusCode::OK, Content::Range(range)).with(Fields { octets: true, ..Fields::default() }))
            }
            Action::Status => Ok(Reply::new(StatusCode::OK, Content::bytes(Bytes::new()))),
            Action::Reject(api_error) => Err(api_error),
        }
    }

    fn get_answer(&self, outcome: Outcome, mut permit: Option<BodyPermit>) -> Result<Reply, ApiError> {
        match outcome {
            Outcome::Found { version, value } => {
                let value = value.payload;
                if permit.is_none() && value.len() > CACHED_VALUE_BYTES_MAX {
                    // A slow client can hold the value in memory until the write timeout, so a large value needs a
                    // permit.
                    let bytes = value.len() as u64;
                    permit = Some(
                        self.worker_context
                            .executor()
                            .budget()
                            .try_take(bytes)
                            .ok_or(ApiError::NoRoom { bytes, of: "answer" })?,
                    );
                }
                let reply = Reply::new(StatusCode::OK, Content::Bytes { rest: value, permit });
                Ok(reply.with(Fields { octets: true, tag: Some(version), ..Fields::default() }))
            }
            Outcome::NotFound => Ok(Reply::new(StatusCode::NOT_FOUND, Content::bytes(Bytes::new()))),
            other => unreachable!("a read returns a value or none, not {other:?}"),
        }
    }
}

/// Returns the deadline of a request whose head has just arrived.
fn deadline(headers: &HeaderMap) -> Result<Deadline, ApiError> {
    let Some(header) = headers.get(TIMEOUT_HEADER) else { return Ok(None) };
    let timeout = header.to_str().ok().and_then(duration::parse);
    let timeout = timeout.filter(|timeout| TIMEOUT_RANGE.contains(timeout)).ok_or(ApiError::BadTimeout)?;
    Ok(Some(clock::now() + timeout))
}

fn written(outcome: &Outcome) -> (Version, Durability) {
    match outcome {
        Outcome::Written { version, durability, .. } => (*version, *durability),
        other => unreachable!("a write without a condition returns its version, not {other:?}"),
    }
}

/// Records the contents of the head.
fn begin_record(exchange: &Exchange, head: &Head<'_>) {
    let op = if head.path.starts_with(v1::PREFIX) {
        v1::op(head.method, head.path, head.query)
    } else {
        op(head.method, head.path)
    };
    exchange.head(op, head.method, head.path, head.headers);
}

fn write_answer(put: bool, outcome: &Outcome, exchange: &Exchange) -> Reply {
    let (version, durability) = written(outcome);
    exchange.request().written(durability);
    let (status, fields) = Fields::of_write(put, version, durability);
    Reply::new(status, Content::bytes(Bytes::new())).with(fields)
}

fn answer_from(answered: Result<Reply, ApiError>, keep: bool, exchange: &Rc<Exchange>) -> Answer {
    let Reply { status, mut fields, content } = answered.unwrap_or_else(|api_error| {
        exchange.request().rejected(api_error.code());
        let (parts, document) = api_error.into_parts();
        let fields = Fields { others: Some(Box::new(parts.headers)), ..Fields::default() };
        Reply { status: parts.status, fields, content: Content::bytes(document) }
    });
    if !keep {
        exchange.set_body_unread();
        fields.closes = true;
    }
    exchange.answers(status, &mut fields.others);
    Answer { status, fields, body: ResponseBody::new(content, exchange.clone()) }
}
