//! Answers one request. The way of a PUT, which has all the steps: route, is a write possible, body room, body, operation,
//! answer; each step may refuse, and nothing has happened then.
//!
//! Called by hyper, on a worker.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, ETAG, HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, Response, StatusCode};

use super::authorization::{self, Authorization};
use super::body::{Content, ResponseBody};
use super::exchange::Exchange;
use super::range::RangeBody;
use super::refusal::Refusal;
use super::route::{DURABILITY_HEADER, Route, route};
use super::upload;
use crate::clock;
use crate::execution::admission::{Room, RoomPermit};
use crate::execution::{Deadline, Local};
use crate::limits::{CACHED_VALUE_BYTES_MAX, TIMEOUT_RANGE};
use crate::operation::{Change, Durability, Outcome, Version};
use crate::storage::ChangeKind;

/// The version of a removal, which leaves nothing that could have an `ETag`.
pub const VERSION_HEADER: &str = "klad-version";

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
    local: Rc<Local>,
    options: Cell<Options>,
    authorization: Authorization,
}

type Answer = Response<ResponseBody>;

impl Service {
    /// Answers from the executor of this worker.
    #[must_use]
    pub fn new(local: Rc<Local>, options: Options, authorization: Authorization) -> Service {
        Service { local, options: Cell::new(options), authorization }
    }

    /// Changes bounds and defaults, for requests that come from now on.
    pub fn set_options(&self, options: Options) {
        self.options.set(options);
    }

    /// Room for bodies and large answers.
    #[must_use]
    pub fn room(&self) -> &Room {
        self.local.executor().room()
    }

    /// Answers one request of the connection that `exchange` belongs to.
    pub async fn answer(&self, request: Request<Incoming>, exchange: &Rc<Exchange>) -> Answer {
        let now = exchange.request_begins(self.local.turn_began());
        self.local.request_begins(now);
        let options = self.options.get();
        let (head, body) = request.into_parts();
        exchange.observed().head(&head);
        // The token first: whoever has none learns nothing about paths, keys or limits.
        let granted = self.authorization.grant(&head.headers);
        let routed = granted.and_then(|access| {
            let route = route(&head.method, &head.uri, &head.headers, options.key_bytes_max)?;
            authorization::may(access, route.changes())?;
            Ok((route, deadline(&head.headers)?))
        });
        let (route, deadline) = match routed {
            Ok(both) => both,
            Err(refusal) => return refuse(refusal, body, &head.headers, exchange).await,
        };
        if deadline.is_some() {
            self.local.request_hurries();
        }
        match route {
            Route::Put { key, durability } => {
                exchange.observed().key(key.len());
                let key = Bytes::copy_from_slice(&key);
                self.put(key, durability, deadline, body, &head.headers, exchange).await
            }
            // A body that came with it means nothing, but must be out of the way of the next request.
            other => {
                let keep = match upload::drain(body, &head.headers, exchange).await {
                    Ok(keep) => keep,
                    Err(refusal) => return answer_or_refuse(Err(refusal), false, exchange),
                };
                let answered = self.without_body(other, deadline, exchange).await;
                answer_or_refuse(answered, keep, exchange)
            }
        }
    }

    async fn put(
        &self,
        key: Bytes,
        durability: Option<Durability>,
        deadline: Deadline,
        body: Incoming,
        headers: &HeaderMap,
        exchange: &Rc<Exchange>,
    ) -> Answer {
        let Options { value_bytes_max, durability: default, .. } = self.options.get();
        let admitted = self
            .local
            .executor()
            .writable(ChangeKind::Put)
            .map_err(Refusal::from)
            .and_then(|()| upload::admit(&body, self.local.executor().room(), value_bytes_max));
        let room = match admitted {
            Ok(room) => room,
            Err(refusal) => return refuse(refusal, body, headers, exchange).await,
        };
        match upload::read(body, room, value_bytes_max, exchange).await {
            Ok(upload) => {
                let durability = durability.unwrap_or(default);
                let change = Change::Put(upload.value);
                let phases = exchange.observed().phases();
                let written = self.local.write(key, change, durability, upload.room, deadline, phases).await;
                let answered = written.map_err(Refusal::from).map(|outcome| put_answer(&outcome, exchange));
                answer_or_refuse(answered, true, exchange)
            }
            // The rest of this body would be taken for the next request.
            Err(refusal) => answer_or_refuse(Err(refusal), false, exchange),
        }
    }

    async fn without_body(
        &self,
        route: Route<'_>,
        deadline: Deadline,
        exchange: &Rc<Exchange>,
    ) -> Result<Reply, Refusal> {
        let observed = exchange.observed();
        match route {
            Route::Get { key } => {
                observed.key(key.len());
                let (outcome, room) = self.local.get(&key, deadline, observed.phases()).await?;
                self.get_answer(outcome, room)
            }
            Route::Delete { key, durability } => {
                observed.key(key.len());
                self.local.executor().writable(ChangeKind::Delete)?;
                let durability = durability.unwrap_or(self.options.get().durability);
                let key = Bytes::copy_from_slice(&key);
                let phases = observed.phases();
                let outcome = self.local.write(key, Change::Delete, durability, None, deadline, phases).await?;
                Ok(delete_answer(&outcome, exchange))
            }
            Route::Range { start, end } => {
                observed.key(start.len());
                let start = Bytes::copy_from_slice(&start);
                let end = end.map(|end| Bytes::copy_from_slice(&end));
                let range = RangeBody::begin(self.local.clone(), exchange.clone(), start, end).await?;
                Ok(Reply::new(StatusCode::OK, Content::Range(range)).with(CONTENT_TYPE, OCTETS))
            }
            Route::Status => Ok(Reply::new(StatusCode::OK, Content::bytes(Bytes::new()))),
            Route::Put { .. } => unreachable!("a PUT has a body"),
        }
    }

    fn get_answer(&self, outcome: Outcome, mut room: Option<RoomPermit>) -> Result<Reply, Refusal> {
        match outcome {
            Outcome::Found { version, value } => {
                if room.is_none() && value.len() > CACHED_VALUE_BYTES_MAX {
                    // A slow reader holds it for as long as the write deadline lets it.
                    let bytes = value.len() as u64;
                    room = Some(
                        self.local.executor().room().try_take(bytes).ok_or(Refusal::NoRoom { bytes, of: "answer" })?,
                    );
                }
                let reply = Reply::new(StatusCode::OK, Content::Bytes { rest: value, room });
                Ok(reply.with(CONTENT_TYPE, OCTETS).with(ETAG, entity_tag(version)))
            }
            Outcome::NotFound => Ok(Reply::new(StatusCode::NOT_FOUND, Content::bytes(Bytes::new()))),
            Outcome::Written { .. } | Outcome::Page(_) => unreachable!("a read is answered with a value or without"),
        }
    }
}

/// When the request, whose head has just arrived, is not worth beginning any more.
fn deadline(headers: &HeaderMap) -> Result<Deadline, Refusal> {
    let Some(header) = headers.get(TIMEOUT_HEADER) else { return Ok(None) };
    let timeout = header.to_str().ok().and_then(|text| humantime::parse_duration(text).ok());
    let timeout = timeout.filter(|timeout| TIMEOUT_RANGE.contains(timeout)).ok_or(Refusal::BadTimeout)?;
    Ok(Some(clock::now() + timeout))
}

const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// An answer before it knows its connection.
struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    content: Content,
}

impl Reply {
    fn new(status: StatusCode, content: Content) -> Reply {
        Reply { status, headers: HeaderMap::new(), content }
    }

    fn with(mut self, name: HeaderName, value: HeaderValue) -> Reply {
        self.headers.insert(name, value);
        self
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

fn put_answer(outcome: &Outcome, exchange: &Exchange) -> Reply {
    let (version, durability) = written(outcome);
    exchange.observed().written(durability);
    Reply::new(StatusCode::CREATED, Content::bytes(Bytes::new()))
        .with(HeaderName::from_static(DURABILITY_HEADER), HeaderValue::from_static(durability.as_str()))
        .with(ETAG, entity_tag(version))
}

fn delete_answer(outcome: &Outcome, exchange: &Exchange) -> Reply {
    let (version, durability) = written(outcome);
    exchange.observed().written(durability);
    Reply::new(StatusCode::ACCEPTED, Content::bytes(Bytes::new()))
        .with(HeaderName::from_static(DURABILITY_HEADER), HeaderValue::from_static(durability.as_str()))
        .with(HeaderName::from_static(VERSION_HEADER), HeaderValue::from(version.0))
}

/// Without `format!`, whose buffer grows digit by digit: it was a thirtieth of a GET from memory.
fn entity_tag(version: Version) -> HeaderValue {
    // The digits of the largest number, and two quotes.
    let mut text = [b'"'; 22];
    let (mut first, mut left) = (text.len() - 1, version.0);
    loop {
        first -= 1;
        text[first] = b'0' + u8::try_from(left % 10).expect("a digit");
        left /= 10;
        if left == 0 {
            break;
        }
    }
    HeaderValue::from_bytes(&text[first - 1..]).expect("digits and quotes are a header value")
}

/// Refuses a request whose body has not been read: reads it to its end where that is cheap, else closes.
async fn refuse(refusal: Refusal, body: Incoming, headers: &HeaderMap, exchange: &Rc<Exchange>) -> Answer {
    // What else is wrong with the request does not matter any more.
    let keep = upload::drain(body, headers, exchange).await.unwrap_or(false);
    answer_or_refuse(Err(refusal), keep, exchange)
}

fn answer_or_refuse(answered: Result<Reply, Refusal>, keep: bool, exchange: &Rc<Exchange>) -> Answer {
    let Reply { status, headers, content } = answered.unwrap_or_else(|refusal| {
        exchange.observed().refused(&refusal);
        let (parts, document) = refusal.into_parts();
        Reply { status: parts.status, headers: parts.headers, content: Content::bytes(document) }
    });
    let mut answer = Response::new(ResponseBody::new(content, exchange.clone()));
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    if !keep {
        exchange.set_body_unread();
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    exchange.observed().answers(&mut answer);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_the_version_in_quotes() {
        for version in [0, 7, 10, 1_700_000_000_000_000, u64::MAX] {
            assert_eq!(entity_tag(Version(version)), format!("\"{version}\"").as_str());
        }
    }
}
