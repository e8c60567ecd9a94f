//! Requests for one key: reads with conditions and ranges, and changes with conditions. `v1` calls this.

use bytes::Bytes;
use hyper::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_RANGE, CONTENT_TYPE, HeaderName, HeaderValue, LAST_MODIFIED,
};
use hyper::{HeaderMap, StatusCode};

use crate::execution::admission::BodyPermit;
use crate::http::answer::{Fields, Reply};
use crate::http::api_error::ApiError;
use crate::http::body::Content;
use crate::http::v1::byte_range::{self, Part};
use crate::http::v1::condition::{self, Answer};
use crate::http::v1::expiry::{self, TTL_HEADER};
use crate::http::v1::{Context, metadata};
use klad_storage::ChangeKind;
use klad_storage::limits::CACHED_VALUE_BYTES_MAX;
use klad_storage::operation::{Change, ChangeResult, Durability, Effect, Outcome, Value, Version, Write};

/// Reads one value.
pub(super) async fn get(context: &Context<'_>, key: Bytes, headers: &HeaderMap) -> Result<Reply, ApiError> {
    let phases = context.exchange.phases();
    let (outcome, permit) = match context.worker.get_here(&key, context.deadline, phases) {
        Some(outcome) => (outcome?, None),
        None => context.worker.get(key, context.consistency, context.deadline, phases).await?,
    };
    match outcome {
        Outcome::Found { version, value } => found(context, version, &value, permit, headers),
        Outcome::NotFound if condition::fails_if_absent(headers) => Err(ApiError::PreconditionFailed { current: None }),
        Outcome::NotFound => Err(ApiError::NotFound),
        other => unreachable!("a read returns a value or none, not {other:?}"),
    }
}

fn found(
    context: &Context<'_>,
    version: Version,
    value: &Value,
    permit: Option<BodyPermit>,
    headers: &HeaderMap,
) -> Result<Reply, ApiError> {
    let modified_s = value.attributes.as_ref().and_then(|own| own.modified_ms).map(|time| time.get() / 1_000);
    let mut others = HeaderMap::new();
    others.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Some(seconds) = modified_s {
        let date = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        others.insert(LAST_MODIFIED, text(&httpdate::fmt_http_date(date)));
    }
    if let Some(left_s) = expiry::left_s(value) {
        others.insert(HeaderName::from_static(TTL_HEADER), text(&format!("{left_s}s")));
    }
    let reply = |status, content, others| {
        Reply::new(status, content).with(Fields {
            tag: Some(version),
            others: Some(Box::new(others)),
            ..Fields::default()
        })
    };
    match condition::of_read(headers, version, modified_s) {
        Answer::NotModified => {
            return Ok(reply(StatusCode::NOT_MODIFIED, Content::bytes(Bytes::new()), others));
        }
        Answer::Failed => return Err(ApiError::PreconditionFailed { current: Some(version) }),
        Answer::Value => {}
    }
    others.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    metadata::write_headers(value.attributes.as_ref().map_or(&[], |own| &own.metadata), &mut others);
    let length = value.payload.len();
    let part = if condition::allows_range(headers, version) { byte_range::part(headers, length) } else { Part::Whole };
    let permit = match permit {
        // A slow client can hold the value in memory until the write timeout, so a large value needs a permit.
        None if length > CACHED_VALUE_BYTES_MAX => Some(context.reserve(length, "answer")?),
        permit => permit,
    };
    let (status, rest) = match part {
        Part::Whole => (StatusCode::OK, value.payload.clone()),
        Part::Unsatisfiable => return Err(ApiError::RangeNotSatisfiable { length: length as u64 }),
        Part::Bytes(range) => {
            others.insert(CONTENT_RANGE, text(&format!("bytes {}-{}/{length}", range.start, range.end - 1)));
            (StatusCode::PARTIAL_CONTENT, value.payload.slice(range))
        }
    };
    Ok(reply(status, Content::Bytes { rest, permit }, others))
}

fn text(value: &str) -> HeaderValue {
    HeaderValue::try_from(value).expect("digits, letters and punctuation are valid")
}

/// Does one change. Returns its result and its durability.
async fn change(
    context: &Context<'_>,
    change: Change,
    permit: Option<BodyPermit>,
    durability: Durability,
) -> Result<(ChangeResult, Durability), ApiError> {
    // klad has asked whether storage takes a PUT before it read the body. A change in place stores a value too.
    match change.effect {
        Effect::Put(_) => {}
        Effect::Delete => context.worker.executor().writable(ChangeKind::Delete)?,
        _ => context.worker.executor().writable(ChangeKind::Put)?,
    }
    let write = Write { consistency: context.consistency, ..Write::one(change, durability) };
    let written = context.worker.write_on_state(write, permit, context.deadline, context.exchange.phases());
    match written.await? {
        Outcome::Written { durability, results, .. } => {
            context.exchange.request().written(durability);
            Ok((results.into_iter().next().expect("the change depends on the state"), durability))
        }
        Outcome::Failed { error, .. } => Err(error.into()),
        other => unreachable!("a write is written or fails, not {other:?}"),
    }
}

/// Stores a value. Answers 201 if the key had no value before, otherwise 204.
pub(super) async fn put(
    context: &Context<'_>,
    put: Change,
    permit: Option<BodyPermit>,
    durability: Durability,
) -> Result<Reply, ApiError> {
    let expires = match &put.effect {
        Effect::Put(value) => expiry::left_s(value),
        _ => None,
    };
    let (result, durability) = change(context, put, permit, durability).await?;
    let ChangeResult::Done { version, existed, .. } = result else { unreachable!("a put is done or fails") };
    let status = if existed == Some(true) { StatusCode::NO_CONTENT } else { StatusCode::CREATED };
    let mut others = HeaderMap::new();
    if let Some(left_s) = expires {
        others.insert(HeaderName::from_static(TTL_HEADER), text(&format!("{left_s}s")));
    }
    let fields = Fields {
        durability: Some(durability),
        tag: Some(version),
        others: Some(Box::new(others)),
        ..Fields::default()
    };
    Ok(Reply::new(status, Content::bytes(Bytes::new())).with(fields))
}

/// Removes a value and answers 204. If the key has no value, answers 404, or 412 if the request has a condition.
pub(super) async fn delete(
    context: &Context<'_>,
    mut delete: Change,
    durability: Durability,
) -> Result<Reply, ApiError> {
    let conditional = delete.condition.is_some();
    if !conditional {
        delete.condition = Some(klad_storage::operation::Condition::Present);
    }
    let (result, durability) = match change(context, delete, None, durability).await {
        Err(ApiError::PreconditionFailed { .. }) if !conditional => return Err(ApiError::NotFound),
        changed => changed?,
    };
    let ChangeResult::Done { version, .. } = result else { unreachable!("a removal is done or fails") };
    let fields = Fields { durability: Some(durability), removal: Some(version), ..Fields::default() };
    Ok(Reply::new(StatusCode::NO_CONTENT, Content::bytes(Bytes::new())).with(fields))
}

/// Adds to a counter, or changes the expiry of a value.
pub(super) async fn update(context: &Context<'_>, update: Change, durability: Durability) -> Result<Reply, ApiError> {
    let (result, durability) = change(context, update, None, durability).await?;
    let ChangeResult::Done { version, number, .. } = result else { unreachable!("an update is done or fails") };
    let fields = Fields { durability: Some(durability), tag: Some(version), ..Fields::default() };
    let Some(number) = number else {
        return Ok(Reply::new(StatusCode::NO_CONTENT, Content::bytes(Bytes::new())).with(fields));
    };
    let others = [(CONTENT_TYPE, HeaderValue::from_static("text/plain"))].into_iter().collect();
    let fields = Fields { others: Some(Box::new(others)), ..fields };
    Ok(Reply::new(StatusCode::OK, Content::bytes(number.to_string())).with(fields))
}
