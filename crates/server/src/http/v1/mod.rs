//! `/v1`: keys in paths, conditions, expiry, counters, batches and scans. `docs/http-api.md` is its contract.
//!
//! ```text
//!   head ─▶ route ─▶ point   one key
//!                 ├▶ batch   many changes in one request
//!                 ├▶ scan    ranges, and their removal
//!                 ├▶ changes the change feed
//!                 └▶ description   this interface as OpenAPI, and as a page
//! ```
//!
//! `condition`, `expiry`, `metadata`, `byte_range` and `parameters` read the parts of a head. If an engine lacks a
//! feature, klad answers 501 and never emulates the feature. `service` calls this.

use std::num::NonZeroU64;
use std::rc::Rc;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};

use crate::exchange::Exchange;
use crate::execution::admission::BodyPermit;
use crate::execution::{Deadline, WorkerContext};
use crate::http::answer::{Fields, Reply};
use crate::http::api_error::ApiError;
use crate::http::body::Content;
use crate::http::service::Options;
use crate::http::upload::Upload;
use crate::http::v1::route::Action;
use crate::limits::{METADATA_BYTES_MAX, METADATA_ENTRIES_MAX, SCAN_PAGE_BYTES_MAX, SCAN_PAGE_ENTRIES_MAX, TTL_RANGE};
use crate::tokens::Access;
use klad_base::clock;
use klad_storage::operation::{Attributes, Change, Consistency, Effect, RangeRemoval, Value};

pub mod route;

mod batch;
mod changes;
mod description;
mod point;
mod scan;

mod byte_range;
mod condition;
mod expiry;
pub mod metadata;
mod parameters;

pub(super) use batch::ResultsBody;
pub use changes::FeedBody;
pub use expiry::TTL_HEADER;
pub use metadata::META_PREFIX;
pub use route::{PREFIX, Request, op, route};
pub(super) use scan::ScanBody;

/// What the functions of `/v1` need to answer one request.
pub(super) struct Context<'c> {
    pub(super) worker: &'c Rc<WorkerContext>,
    pub(super) exchange: &'c Rc<Exchange>,
    pub(super) options: Options,
    pub(super) deadline: Deadline,
    pub(super) consistency: Consistency,
    /// What the request's token allows.
    pub(super) access: Access,
}

impl Context<'_> {
    /// Takes a permit of the body budget.
    fn reserve(&self, bytes: usize, of: &'static str) -> Result<BodyPermit, ApiError> {
        let bytes = bytes as u64;
        self.worker.executor().budget().try_take(bytes).ok_or(ApiError::NoRoom { bytes, of })
    }
}

/// Answers a request. `upload` is its body, empty if it needs none.
pub(super) async fn answer(context: &Context<'_>, request: Request, upload: Upload) -> Result<Reply, ApiError> {
    let change = |key, condition, effect| Change { key, condition, effect, reports_existence: true };
    match request.action {
        Action::Get { key, headers } => point::get(context, key, &headers).await,
        Action::Put { key, condition, metadata, ttl, durability } => {
            // The time to live begins when the whole body has arrived.
            let expires_at_ms = ttl.and_then(expiry::at);
            let attributes = Box::new(Attributes { modified_ms: now(), expires_at_ms, metadata });
            let value = Value { payload: upload.value, attributes: Some(attributes) };
            point::put(context, change(key, condition, Effect::Put(value)), upload.permit, durability).await
        }
        Action::Delete { key, condition, durability } => {
            point::delete(context, change(key, condition, Effect::Delete), durability).await
        }
        Action::Update { key, condition, effect, durability } => {
            point::update(context, change(key, condition, effect), durability).await
        }
        Action::Batch(request) => batch::answer(context, request, upload).await,
        Action::Scan(request) => scan::answer(context, *request).await,
        Action::RemoveRange { from, end, durability } => {
            let consistency = context.consistency;
            scan::remove(context, RangeRemoval { from, end, durability, consistency }).await
        }
        Action::Changes(request) => changes::answer(context, *request).await,
        Action::Limits => Ok(limits(context)),
        Action::Describe(description) => Ok(description::answer(description)),
    }
}

/// Answers with the limits of this server, as JSON.
fn limits(context: &Context<'_>) -> Reply {
    let executor = context.worker.executor();
    let options = context.options;
    json(&serde_json::json!({
        "engine": executor.engine_name(),
        "capabilities": executor.capabilities(),
        "copies": executor.copies(),
        "durability": options.durability.as_str(),
        "key_bytes_max": options.key_bytes_max,
        "value_bytes_max": options.value_bytes_max,
        "metadata_entries_max": METADATA_ENTRIES_MAX,
        "metadata_bytes_max": METADATA_BYTES_MAX,
        "ttl_s_max": TTL_RANGE.end().as_secs(),
        "batch_items_max": options.batch_items_max,
        "batch_bytes_max": options.batch_bytes_max,
        "scan_page_entries_max": SCAN_PAGE_ENTRIES_MAX,
        "scan_page_bytes_max": SCAN_PAGE_BYTES_MAX,
        "scan_time_s_max": options.scan_time_max.as_secs_f64(),
        "changes_heartbeat_s": options.heartbeat.as_secs_f64(),
    }))
}

/// Returns an answer with a JSON document.
fn json(document: &serde_json::Value) -> Reply {
    let others = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))].into_iter().collect();
    let fields = Fields { others: Some(Box::new(others)), ..Fields::default() };
    Reply::new(StatusCode::OK, Content::bytes(Bytes::from(format!("{document}\n")))).with(fields)
}

/// The time now, milliseconds since 1970.
fn now() -> Option<NonZeroU64> {
    NonZeroU64::new(clock::unix_ms())
}

/// Returns the effect of adding `by` to a counter. If this creates the counter, its type is text, and it expires at
/// `expires_at_ms`.
fn add(by: i64, expires_at_ms: Option<NonZeroU64>) -> Effect {
    let mut metadata = metadata::Encoder::default();
    metadata.content_type(b"text/plain").expect("a short text");
    let created = Attributes { modified_ms: now(), expires_at_ms, metadata: metadata.finish() };
    Effect::Add { by, created: Some(Box::new(created)) }
}
