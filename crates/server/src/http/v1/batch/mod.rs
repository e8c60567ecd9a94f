//! Batches: many changes and reads in one request. `route` and `v1` call this.
//!
//! ```text
//!   body ─▶ read ─▶ ndjson, cbor ─▶ item ─▶ changes ─▶ storage ─▶ result ─▶ ndjson, cbor ─▶ answer
//! ```
//!
//! Nothing happens until all items have been read. Then all changes are one write of storage. A batch that only reads
//! is one read of many keys. A batch never blocks its worker for long, because the worker's other requests run between
//! slices of the batch.

use hyper::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, StatusCode};

use crate::execution::admission::BodyPermit;
use crate::http::answer::{Fields, Reply};
use crate::http::api_error::ApiError;
use crate::http::service::Options;
use crate::http::upload::Upload;
use crate::http::v1::Context;
use crate::http::v1::batch::read::Items;
use crate::http::v1::batch::result::ItemResult;
use crate::http::v1::parameters::Parameters;
use crate::http::v1::route::durability;
use crate::limits::{BATCH_READ_BYTES_MAX, BATCH_RESULT_BYTES_MAX};
use klad_storage::operation::{Change, ChangeError, ChangeResult, Durability, Effect, Outcome, Version, Write};

mod answer;
mod cbor;
mod item;
mod ndjson;
mod read;
mod result;
#[cfg(test)]
mod tests;

pub(in crate::http) use answer::ResultsBody;

/// What the head of a batch says.
pub(super) struct Request {
    body: Format,
    answer: Format,
    atomic: bool,
    durability: Durability,
}

/// The format of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// One JSON object on each line.
    Ndjson,
    /// A CBOR sequence of maps (RFC 8742).
    Cbor,
}

impl Format {
    const fn media_type(self) -> &'static str {
        match self {
            Format::Ndjson => "application/x-ndjson",
            Format::Cbor => "application/cbor-seq",
        }
    }

    const fn other(self) -> Format {
        match self {
            Format::Ndjson => Format::Cbor,
            Format::Cbor => Format::Ndjson,
        }
    }

    /// The format that `Content-Type` names.
    fn of_body(headers: &HeaderMap) -> Option<Format> {
        let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let essence = value.split(';').next()?.trim();
        [Format::Ndjson, Format::Cbor].into_iter().find(|format| essence.eq_ignore_ascii_case(format.media_type()))
    }

    /// The format of the answer to a body of this format: the same, unless `Accept` prefers the other one.
    fn of_answer(self, headers: &HeaderMap) -> Format {
        if quality(headers, self.other()) > quality(headers, self) { self.other() } else { self }
    }

    /// The bytes of a value in an answer are at most its size times this, apart from a constant number of bytes.
    /// `ndjson` writes a text as base64 if escapes would make it larger than that.
    const fn value_factor(self) -> usize {
        match self {
            Format::Ndjson => 2,
            Format::Cbor => 1,
        }
    }

    fn write(self, result: &ItemResult, out: &mut Vec<u8>) {
        match self {
            Format::Ndjson => ndjson::write(result, out),
            Format::Cbor => cbor::write(result, out),
        }
    }
}

/// How much `Accept` wants a format, from 0 to 1: the quality of the most specific range (RFC 9110, 12.5.1).
fn quality(headers: &HeaderMap, format: Format) -> f32 {
    let mut found = (0, if headers.contains_key(ACCEPT) { 0.0 } else { 1.0 });
    let ranges =
        headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
    for range in ranges {
        let mut parts = range.split(';').map(str::trim);
        let specificity = match parts.next().unwrap_or_default() {
            "*/*" => 1,
            "application/*" => 2,
            exact if exact.eq_ignore_ascii_case(format.media_type()) => 3,
            _ => continue,
        };
        let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        let weight = weight.map_or(1.0, |text| text.parse().unwrap_or(0.0));
        if specificity > found.0 {
            found = (specificity, weight);
        }
    }
    found.1
}

/// Reads the head of a batch.
pub(super) fn route(query: &str, headers: &HeaderMap, options: &Options) -> Result<Request, ApiError> {
    let parameters = Parameters::read(query, &["atomic", "durability", "ack", "from", "replicas"])?;
    let atomic = parameters.switch("atomic")?;
    let durability = durability(&parameters, headers)?.unwrap_or(options.durability);
    let body = Format::of_body(headers)
        .ok_or(ApiError::UnsupportedMediaType("application/x-ndjson or application/cbor-seq"))?;
    if headers.contains_key(CONTENT_ENCODING) {
        return Err(ApiError::UnsupportedMediaType("without Content-Encoding, which klad does not decode"));
    }
    Ok(Request { body, answer: body.of_answer(headers), atomic, durability })
}

/// What storage has done.
struct Done {
    results: Results,
    /// The durability of the changes, if there were any.
    durability: Option<Durability>,
}

enum Results {
    /// All changes have taken effect. The first has this version.
    AllDone(Version),
    /// One result for each item.
    Each(Vec<ChangeResult>),
}

/// Does what the items of the body say.
pub(super) async fn answer(context: &Context<'_>, request: Request, upload: Upload) -> Result<Reply, ApiError> {
    let Upload { value: body, permit } = upload;
    let items = read::all(context, request.body, &body).await?;
    drop(body);
    let Items { ops, changes, gets, permits } = items;
    // Taken before anything happens: without memory for the results, the client would not learn what has happened.
    let results_bytes = ops.len() * BATCH_RESULT_BYTES_MAX;
    let read_bytes_max = if gets > 0 { read_bytes_max(context) } else { 0 };
    let mut answer_permit = context.reserve(results_bytes + read_bytes_max, "answer")?;
    let mut done = execute(context, &request, changes, read_bytes_max, permit).await?;
    context.exchange.request().batch_items(ops.len());
    let needed = match &mut done.results {
        Results::Each(results) => {
            let factor = request.answer.value_factor();
            let only_reads = done.durability.is_none();
            if let Some(larger) = memory_for(context, results, results_bytes, factor, &answer_permit, only_reads)? {
                answer_permit = larger;
            }
            results_bytes + results.iter().map(|result| factor * value_bytes(result)).sum::<usize>()
        }
        Results::AllDone(_) => results_bytes,
    };
    answer_permit.shrink(needed as u64);
    drop(permits);
    let content = answer::content(request.answer, ops, done.results, answer_permit).await;
    let others = [(CONTENT_TYPE, HeaderValue::from_static(request.answer.media_type()))].into_iter().collect();
    let fields = Fields { durability: done.durability, others: Some(Box::new(others)), ..Fields::default() };
    Ok(Reply::new(StatusCode::OK, content).with(fields))
}

/// The bytes that a batch may read: [`BATCH_READ_BYTES_MAX`], or a quarter of the body budget if that is less. Without
/// the second limit, a batch could read nothing on a server with a small body budget.
fn read_bytes_max(context: &Context<'_>) -> usize {
    let quarter = context.worker.executor().budget().bytes() / 4;
    usize::try_from(quarter).map_or(BATCH_READ_BYTES_MAX, |quarter| quarter.min(BATCH_READ_BYTES_MAX))
}

/// Hands the changes to storage. `permit` covers the body, of which they are slices.
async fn execute(
    context: &Context<'_>,
    request: &Request,
    changes: Vec<Change>,
    read_bytes_max: usize,
    permit: Option<BodyPermit>,
) -> Result<Done, ApiError> {
    let (worker_context, phases, consistency) = (context.worker, context.exchange.phases(), context.consistency);
    let failed = |item, error| {
        let error = match error {
            ChangeError::NoRoom => ApiError::AnswerTooLarge { limit_bytes: read_bytes_max as u64 },
            error => error.into(),
        };
        ApiError::Item { item, error: Box::new(error) }
    };
    if changes.is_empty() {
        return Ok(Done { results: Results::Each(Vec::new()), durability: None });
    }
    if changes.iter().all(|change| change.effect == Effect::Read) {
        let keys = changes.into_iter().map(|change| change.key).collect();
        let reading = worker_context.get_many(keys, read_bytes_max, consistency, permit, context.deadline, phases);
        let Outcome::FoundMany(results) = reading.await? else { unreachable!("a read of many keys returns each") };
        if request.atomic {
            for (item, result) in results.iter().enumerate() {
                if let ChangeResult::Failed(error) = result {
                    return Err(failed(item, *error));
                }
            }
        }
        return Ok(Done { results: Results::Each(results), durability: None });
    }
    let (atomic, durability) = (request.atomic, request.durability);
    let write = Write { changes, atomic, read_bytes_max, durability, consistency };
    match worker_context.write_on_state(write, permit, context.deadline, phases).await? {
        Outcome::Written { version, durability, results } => {
            context.exchange.request().written(durability);
            let results = if results.is_empty() { Results::AllDone(version) } else { Results::Each(results) };
            Ok(Done { results, durability: Some(durability) })
        }
        Outcome::Failed { index, error } => Err(failed(index, error)),
        other => unreachable!("a write is written or fails, not {other:?}"),
    }
}

/// The bytes of the value that an item has read.
fn value_bytes(result: &ChangeResult) -> usize {
    match result {
        ChangeResult::Read(Some((_, value))) => {
            value.payload.len() + value.attributes.as_ref().map_or(0, |own| own.metadata.len())
        }
        _ => 0,
    }
}

/// Takes a larger permit for the answer if the answer may need more than `permit`. In the answer, a value takes up to
/// `factor` times its size. If there is no larger permit, klad rejects a batch that `only_reads`. klad must answer a
/// batch that has changed something, so there it lets the gets fail whose values do not fit.
fn memory_for(
    context: &Context<'_>,
    results: &mut [ChangeResult],
    results_bytes: usize,
    factor: usize,
    permit: &BodyPermit,
    only_reads: bool,
) -> Result<Option<BodyPermit>, ApiError> {
    let bytes = |result: &ChangeResult| factor * value_bytes(result);
    let needed = results_bytes + results.iter().map(bytes).sum::<usize>();
    if needed as u64 <= permit.bytes() {
        return Ok(None);
    }
    match context.reserve(needed, "answer") {
        Ok(larger) => return Ok(Some(larger)),
        Err(error) if only_reads => return Err(error),
        Err(_) => {}
    }
    let mut left = usize::try_from(permit.bytes()).unwrap_or(usize::MAX) - results_bytes;
    for result in results {
        match left.checked_sub(bytes(result)) {
            Some(rest) => left = rest,
            None => *result = ChangeResult::Failed(ChangeError::NoRoom),
        }
    }
    Ok(None)
}
