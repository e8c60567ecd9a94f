//! Answers one request. The way of a PUT, which has all the steps: route, is a write possible, body room, body, operation,
//! answer; each step may refuse, and nothing has happened then.
//!
//! Called by a connection, for hyper or in its place, on a worker.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::EXPECT;
use hyper::{HeaderMap, Request, StatusCode};

use crate::exchange::Exchange;
use crate::execution::admission::{BodyBudget, BodyPermit};
use crate::execution::{Deadline, WorkerContext};
use crate::http::answer::{Answer, Fields};
use crate::http::api_error::ApiError;
use crate::http::authorization::{self, Authorization};
use crate::http::body::{Content, ResponseBody};
use crate::http::framing;
use crate::http::plain::Plain;
use crate::http::range::RangeBody;
use crate::http::route::{Head, Route, op, route};
use crate::http::upload::{self, RequestBody, UnwantedBody};
use klad_base::clock;
use klad_base::limits::{CACHED_VALUE_BYTES_MAX, TIMEOUT_RANGE};
use klad_storage::ChangeKind;
use klad_storage::operation::{Durability, Effect, Outcome, Version, Write};

/// How long a request may wait before it is begun, counted from the arrival of its head.
pub const TIMEOUT_HEADER: &str = "klad-timeout";

/// Bounds and defaults of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Longer keys are answered 414.
    pub key_bytes_max: u64,
    /// Longer values are answered 413.
    pub value_bytes_max: u64,
    /// Of writes that ask for none.
    pub durability: Durability,
}

/// What all connections of a worker share.
pub struct Service {
    worker_context: Rc<WorkerContext>,
    options: Cell<Options>,
    authorization: Authorization,
}

/// A request whose head was looked at.
pub enum Begun {
    /// Memory had all that it asks for.
    Answered(Answer),
    /// A PUT that may read its body.
    Put(Put),
    /// All others.
    Rest(Box<Rest>),
}

/// A PUT whose value is to be read into `budget`.
pub struct Put {
    key: Bytes,
    durability: Durability,
    deadline: Deadline,
    body: RequestBody,
    budget: Option<BodyPermit>,
    value_bytes_max: u64,
}

/// What is done when a body that nobody wants is out of the way.
pub struct Rest {
    body: UnwantedBody,
    todo: Todo,
}

enum Todo {
    /// `looked`: memory has been asked.
    Get {
        key: Bytes,
        deadline: Deadline,
        looked: bool,
    },
    Delete {
        key: Bytes,
        durability: Durability,
        deadline: Deadline,
    },
    Range {
        start: Bytes,
        end: Option<Bytes>,
    },
    Status,
    Refuse(ApiError),
}

impl Service {
    /// Answers from the executor of this worker.
    #[must_use]
    pub fn new(worker_context: Rc<WorkerContext>, options: Options, authorization: Authorization) -> Service {
        Service { worker_context, options: Cell::new(options), authorization }
    }

    /// Changes bounds and defaults, for requests that come from now on.
    pub fn set_options(&self, options: Options) {
        self.options.set(options);
    }

    /// Room for bodies and large answers.
    #[must_use]
    pub fn budget(&self) -> &BodyBudget {
        self.worker_context.executor().budget()
    }

    /// Looks at the head of a request of the connection that `exchange` belongs to, and answers what needs no more than that.
    /// Not `async`: what a future holds is copied with it, and a head is large.
    pub fn begin(&self, request: Request<Incoming>, exchange: &Rc<Exchange>) -> Begun {
        let (head, body) = request.into_parts();
        if let Err(api_error) = framing::check(head.version, &head.headers) {
            let now = exchange.request_begins(self.worker_context.iteration_began());
            self.worker_context.request_begins(now);
            begin_record(exchange, &Head::from(&head));
            return Begun::Answered(answer_or_refuse(Err(api_error), false, exchange));
        }
        self.begin_with(&Head::from(&head), RequestBody::Streamed(body), exchange)
    }

    /// The same for a request that did not come by way of hyper.
    pub fn begin_plain(&self, request: &Plain<'_>, exchange: &Rc<Exchange>) -> Begun {
        let body = if request.body.is_empty() { Bytes::new() } else { Bytes::copy_from_slice(request.body) };
        self.begin_with(&request.head(), RequestBody::Whole(body), exchange)
    }

    fn begin_with(&self, head: &Head<'_>, body: RequestBody, exchange: &Rc<Exchange>) -> Begun {
        let now = exchange.request_begins(self.worker_context.iteration_began());
        self.worker_context.request_begins(now);
        let options = self.options.get();
        begin_record(exchange, head);
        let rest = |body, todo| {
            let waits = head.headers.contains_key(EXPECT);
            Begun::Rest(Box::new(Rest { body: UnwantedBody { body, waits }, todo }))
        };
        // The token first: whoever has none learns nothing about paths, keys or limits.
        let granted = self.authorization.grant(head.headers);
        let routed = granted.and_then(|access| {
            let route = route(head, options.key_bytes_max)?;
            authorization::may(access, route.changes())?;
            Ok((route, deadline(head.headers)?))
        });
        let (route, deadline) = match routed {
            Ok(both) => both,
            Err(api_error) => return rest(body, Todo::Refuse(api_error)),
        };
        if deadline.is_some() {
            self.worker_context.request_hurries();
        }
        match route {
            Route::Put { key, durability } => {
                exchange.request().key(key.len());
                match self.admit(&body, options) {
                    Ok(budget) => {
                        let durability = durability.unwrap_or(options.durability);
                        let key = Bytes::copy_from_slice(&key);
                        let value_bytes_max = options.value_bytes_max;
                        Begun::Put(Put { key, durability, deadline, body, budget, value_bytes_max })
                    }
                    Err(api_error) => rest(body, Todo::Refuse(api_error)),
                }
            }
            Route::Get { key } => {
                exchange.request().key(key.len());
                let looked = body.is_end_stream();
                let look = || self.worker_context.get_from_memory(&key, exchange.phases());
                let answered = if looked { look() } else { None };
                match answered {
                    Some(outcome) => {
                        let answered =
                            outcome.map_err(ApiError::from).and_then(|outcome| self.get_answer(outcome, None));
                        Begun::Answered(answer_or_refuse(answered, true, exchange))
                    }
                    None => rest(body, Todo::Get { key: Bytes::copy_from_slice(&key), deadline, looked }),
                }
            }
            Route::Delete { key, durability } => {
                exchange.request().key(key.len());
                let durability = durability.unwrap_or(options.durability);
                rest(body, Todo::Delete { key: Bytes::copy_from_slice(&key), durability, deadline })
            }
            Route::Range { start, end } => {
                exchange.request().key(start.len());
                let end = end.map(|end| Bytes::copy_from_slice(&end));
                rest(body, Todo::Range { start: Bytes::copy_from_slice(&start), end })
            }
            Route::Status => rest(body, Todo::Status),
        }
    }

    /// Answers the request that has begun.
    pub async fn end(&self, begun: Begun, exchange: &Rc<Exchange>) -> Answer {
        match begun {
            Begun::Answered(answer) => answer,
            Begun::Put(put) => self.put(put, exchange).await,
            // Seldom, or long: their state is not to be part of what is copied for each request.
            Begun::Rest(rest) => Box::pin(self.rest(*rest, exchange)).await,
        }
    }

    fn admit(&self, body: &RequestBody, options: Options) -> Result<Option<BodyPermit>, ApiError> {
        let executor = self.worker_context.executor();
        executor.writable(ChangeKind::Put)?;
        upload::admit(body, executor.budget(), options.value_bytes_max)
    }

    async fn put(&self, put: Put, exchange: &Rc<Exchange>) -> Answer {
        let Put { key, durability, deadline, body, budget, value_bytes_max } = put;
        match upload::read(body, budget, value_bytes_max, exchange).await {
            Ok(upload) => {
                let write = Write::of(key, Effect::Put(upload.value.into()), durability);
                let phases = exchange.phases();
                let written = match self.worker_context.write(write, upload.budget, deadline, phases) {
                    Ok(writing) => writing.await,
                    Err(error) => Err(error),
                };
                let answered = written.map_err(ApiError::from).map(|outcome| put_answer(&outcome, exchange));
                answer_or_refuse(answered, true, exchange)
            }
            // The rest of this body would be taken for the next request.
            Err(api_error) => answer_or_refuse(Err(api_error), false, exchange),
        }
    }

    async fn rest(&self, rest: Rest, exchange: &Rc<Exchange>) -> Answer {
        let Rest { body, todo } = rest;
        let drained = upload::drain(body, exchange).await;
        if let Todo::Refuse(api_error) = todo {
            // What else is wrong with the request does not matter any more.
            return answer_or_refuse(Err(api_error), drained.unwrap_or(false), exchange);
        }
        // A body that came with it means nothing, but had to be out of the way of the next request.
        match drained {
            Ok(keep) => answer_or_refuse(self.without_body(todo, exchange).await, keep, exchange),
            Err(api_error) => answer_or_refuse(Err(api_error), false, exchange),
        }
    }

    async fn without_body(&self, todo: Todo, exchange: &Rc<Exchange>) -> Result<Reply, ApiError> {
        let phases = exchange.phases();
        match todo {
            Todo::Get { key, deadline, looked } => {
                if !looked && let Some(answered) = self.worker_context.get_from_memory(&key, phases) {
                    return self.get_answer(answered?, None);
                }
                let (outcome, budget) = self.worker_context.get(key, deadline, phases).await?;
                self.get_answer(outcome, budget)
            }
            Todo::Delete { key, durability, deadline } => {
                self.worker_context.executor().writable(ChangeKind::Delete)?;
                let write = Write::of(key, Effect::Delete, durability);
                let outcome = self.worker_context.write(write, None, deadline, phases)?.await?;
                Ok(delete_answer(&outcome, exchange))
            }
            Todo::Range { start, end } => {
                let range = RangeBody::begin(self.worker_context.clone(), exchange.clone(), start, end).await?;
                Ok(Reply::new(StatusCode::OK, Content::Range(range)).with(Fields { octets: true, ..Fields::default() }))
            }
            Todo::Status => Ok(Reply::new(StatusCode::OK, Content::bytes(Bytes::new()))),
            Todo::Refuse(api_error) => Err(api_error),
        }
    }

    fn get_answer(&self, outcome: Outcome, mut budget: Option<BodyPermit>) -> Result<Reply, ApiError> {
        match outcome {
            Outcome::Found { version, value } => {
                if budget.is_none() && value.len() > CACHED_VALUE_BYTES_MAX {
                    // A slow reader holds it for as long as the write deadline lets it.
                    let bytes = value.len() as u64;
                    budget = Some(
                        self.worker_context
                            .executor()
                            .budget()
                            .try_take(bytes)
                            .ok_or(ApiError::NoRoom { bytes, of: "answer" })?,
                    );
                }
                let reply = Reply::new(StatusCode::OK, Content::Bytes { rest: value, budget });
                Ok(reply.with(Fields { octets: true, tag: Some(version), ..Fields::default() }))
            }
            Outcome::NotFound => Ok(Reply::new(StatusCode::NOT_FOUND, Content::bytes(Bytes::new()))),
            Outcome::Written { .. } | Outcome::Page(_) => unreachable!("a read is answered with a value or without"),
        }
    }
}

/// When the request, whose head has just arrived, is not worth beginning any more.
fn deadline(headers: &HeaderMap) -> Result<Deadline, ApiError> {
    let Some(header) = headers.get(TIMEOUT_HEADER) else { return Ok(None) };
    let timeout = header.to_str().ok().and_then(|text| humantime::parse_duration(text).ok());
    let timeout = timeout.filter(|timeout| TIMEOUT_RANGE.contains(timeout)).ok_or(ApiError::BadTimeout)?;
    Ok(Some(clock::now() + timeout))
}

/// An answer before it knows its connection.
struct Reply {
    status: StatusCode,
    fields: Fields,
    content: Content,
}

impl Reply {
    fn new(status: StatusCode, content: Content) -> Reply {
        Reply { status, fields: Fields::default(), content }
    }

    fn with(self, fields: Fields) -> Reply {
        Reply { fields, ..self }
    }
}

fn written(outcome: &Outcome) -> (Version, Durability) {
    match outcome {
        Outcome::Written { version, durability } => (*version, *durability),
        Outcome::Found { .. } | Outcome::NotFound | Outcome::Page(_) => {
            unreachable!("a write is answered with its version")
        }
    }
}

/// Puts what the head says into the request's record.
fn begin_record(exchange: &Exchange, head: &Head<'_>) {
    exchange.head(op(head.method, head.path), head.method, head.path, head.headers);
}

fn put_answer(outcome: &Outcome, exchange: &Exchange) -> Reply {
    let (version, durability) = written(outcome);
    exchange.request().written(durability);
    Reply::new(StatusCode::CREATED, Content::bytes(Bytes::new())).with(Fields {
        durability: Some(durability),
        tag: Some(version),
        ..Fields::default()
    })
}

fn delete_answer(outcome: &Outcome, exchange: &Exchange) -> Reply {
    let (version, durability) = written(outcome);
    exchange.request().written(durability);
    Reply::new(StatusCode::ACCEPTED, Content::bytes(Bytes::new())).with(Fields {
        durability: Some(durability),
        removal: Some(version),
        ..Fields::default()
    })
}

fn answer_or_refuse(answered: Result<Reply, ApiError>, keep: bool, exchange: &Rc<Exchange>) -> Answer {
    let Reply { status, mut fields, content } = answered.unwrap_or_else(|api_error| {
        exchange.request().refused(api_error.code());
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
