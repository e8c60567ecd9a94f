//! Runs of writes: klad joins consecutive PUTs and DELETEs of a pipeline (requests that a client sends without waiting
//! for answers) into one write of storage.
//!
//! So the requests of a run share a commit and a sync. The order of the requests is the order of the changes.
//! `connection` calls this.

use std::rc::Rc;

use bytes::Bytes;
use hyper::Method;

use crate::exchange::Exchange;
use crate::execution::Phases;
use crate::execution::admission::BodyPermit;
use crate::http::answer::{Date, Fields};
use crate::http::api_error::ApiError;
use crate::http::authorization;
use crate::http::plain::{self, PlainRequest};
use crate::http::route::{Route, op, route};
use crate::http::service::{Service, TIMEOUT_HEADER};
use crate::limits::{PIPELINE_REQUESTS_MAX, PLAIN_REQUEST_BYTES_MAX, SMALL_BODY_BYTES};
use crate::observe::RequestRecord;
use klad_base::clock;
use klad_storage::ChangeKind;
use klad_storage::operation::{Change, Consistency, Durability, Effect, Outcome, Version, Write};

/// Several writes of one connection. Dropping the run without [`WriteRun::answers`] counts its requests as aborted.
pub struct WriteRun {
    /// The records of all requests but the first. `exchange` has the record of the first request.
    others: Vec<RequestRecord>,
    exchange: Rc<Exchange>,
    write: Write,
    permit: Option<BodyPermit>,
    /// For each request, whether it is a PUT.
    puts: Vec<bool>,
    /// The length of all requests together.
    pub bytes: usize,
}

/// A request that can be part of a run.
struct Member {
    change: Change,
    durability: Durability,
}

impl Service {
    /// Begins the run of writes at the start of `bytes`. Returns `None` if the run has fewer than two writes, or if
    /// there is no free memory for their bodies. Also returns `None` if the engine's calls do not block, because the
    /// writes of such an engine share no commit and no sync, or if the engine takes only one change in a write. After
    /// `None`, the connection serves the requests one by one, which also gives all errors.
    pub fn begin_run(&self, bytes: &[u8], head_bytes_max: usize, exchange: &Rc<Exchange>) -> Option<WriteRun> {
        let executor = self.worker_context().executor();
        if !executor.capabilities().blocks || !executor.capabilities().batches {
            return None;
        }
        // A run takes only free slots and free memory. If more is needed, klad serves the other requests one by one.
        let most = PIPELINE_REQUESTS_MAX.min(executor.free_slots());
        let whole = PLAIN_REQUEST_BYTES_MAX as u64;
        let body_bytes_max = if executor.budget().has_free(whole) { whole } else { SMALL_BODY_BYTES };
        let (mut requests, mut changes, mut length, mut body_bytes) = (Vec::new(), Vec::new(), 0, 0);
        let mut durability = None;
        while requests.len() < most
            && let Some(request) = plain::read(&bytes[length..], head_bytes_max)
            && request.writes()
            && body_bytes + request.body.len() as u64 <= body_bytes_max
            && let Some(member) = self.member(&request, exchange)
            && *durability.get_or_insert(member.durability) == member.durability
        {
            length += request.bytes;
            body_bytes += request.body.len() as u64;
            changes.push(member.change);
            requests.push(request);
        }
        if requests.len() < 2 {
            return None;
        }
        let permit = if body_bytes > 0 { Some(executor.budget().try_take(body_bytes)?) } else { None };
        let now = exchange.request_begins(self.worker_context().iteration_began());
        // All requests of the run share the phases of the one write. The exchange's record has begun these phases.
        let unused = Phases::default();
        let mut others = Vec::with_capacity(requests.len() - 1);
        for (index, request) in requests.iter().enumerate() {
            let head = request.head();
            self.worker_context().request_begins(now);
            if index > 0 {
                let mut record = exchange.request().of_same_connection();
                record.begins(&unused, Some(now));
                others.push(record);
            }
            let mut own = exchange.request();
            let record = if index == 0 { &mut *own } else { &mut others[index - 1] };
            record.head(exchange.phases(), op(head.method, head.path), head.method, head.path, head.headers);
            record.key(changes[index].key.len());
            record.received(request.body.len());
        }
        let puts = requests.iter().map(|request| *request.head().method == Method::PUT).collect();
        let durability = durability.unwrap_or_default();
        let write = Write { changes, atomic: true, durability, ..Write::default() };
        Some(WriteRun { others, exchange: exchange.clone(), write, permit, puts, bytes: length })
    }

    /// Reads a request that can be part of a run. Returns `None` if klad must serve the request by itself.
    fn member(&self, request: &PlainRequest<'_>, exchange: &Exchange) -> Option<Member> {
        let (head, options) = (request.head(), self.options());
        let access = self.authorization().grant(head.headers).ok()?;
        authorization::may(access, true).ok()?;
        if head.headers.contains_key(TIMEOUT_HEADER) || request.body.len() as u64 > options.value_bytes_max {
            return None;
        }
        let executor = self.worker_context().executor();
        let (key, durability, kind, effect) = match route(&head, options.key_bytes_max).ok()? {
            Route::Put { key, durability } => {
                let value = Bytes::copy_from_slice(request.body);
                (key, durability, ChangeKind::Put, Effect::Put(value.into()))
            }
            Route::Delete { key, durability } => (key, durability, ChangeKind::Delete, Effect::Delete),
            Route::Get { .. } | Route::Range { .. } | Route::Status => return None,
        };
        executor.writable(kind).ok()?;
        if self.consistency(&head, true, exchange).ok()? != Consistency::Default {
            return None;
        }
        let change = Change::of(Bytes::copy_from_slice(&key), effect);
        Some(Member { change, durability: durability.unwrap_or(options.durability) })
    }

    /// Carries out the writes of a run. Returns what storage answers.
    ///
    /// # Errors
    /// Those of [`WorkerContext::write`](crate::execution::WorkerContext::write).
    pub async fn execute_run(&self, run: &mut WriteRun) -> klad_storage::Result {
        let (write, permit) = (std::mem::take(&mut run.write), run.permit.take());
        self.worker_context().write(write, permit, None, run.exchange.phases())?.await
    }
}

impl WriteRun {
    /// The number of requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.puts.len() as u64
    }

    /// Appends the answers to `out`. `closes` says whether the connection ends after the last answer. The first request
    /// ends when the socket has taken the answers. The other requests end now.
    pub fn answers(mut self, written: &klad_storage::Result, closes: bool, date: &Date, out: &mut Vec<u8>) {
        let (exchange, others, now) = (self.exchange.clone(), std::mem::take(&mut self.others), clock::now());
        self.answer(0, &mut exchange.request(), written, closes && others.is_empty(), date, out);
        let last = others.len();
        for (index, mut record) in (1..).zip(others) {
            self.answer(index, &mut record, written, closes && index == last, date, out);
            record.ends_before_others(exchange.phases(), now);
        }
        exchange.answered();
    }

    fn answer(
        &self,
        index: usize,
        record: &mut RequestRecord,
        written: &klad_storage::Result,
        closes: bool,
        date: &Date,
        out: &mut Vec<u8>,
    ) {
        let (status, mut fields, document) = match written {
            Ok(Outcome::Written { version, durability, .. }) => {
                record.written(*durability);
                // The changes of one write have consecutive versions.
                let version = Version::new(version.get() + index as u64);
                let (status, fields) = Fields::of_write(self.puts[index], version, *durability);
                (status, fields, Bytes::new())
            }
            Ok(other) => unreachable!("a write without conditions returns its version, not {other:?}"),
            Err(error) => {
                let api_error = ApiError::from(error.clone());
                record.rejected(api_error.code());
                let (parts, document) = api_error.into_parts();
                let others = Some(Box::new(parts.headers));
                (parts.status, Fields { others, ..Fields::default() }, Bytes::from(document))
            }
        };
        record.answers(self.exchange.phases(), status, &mut fields.others);
        fields.closes = closes;
        fields.write_head(status, document.len(), date, out);
        out.extend_from_slice(&document);
        record.sent(document.len());
    }
}

impl Drop for WriteRun {
    fn drop(&mut self) {
        for record in &mut self.others {
            record.connection_ends(self.exchange.phases());
        }
    }
}
