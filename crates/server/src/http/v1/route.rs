//! Routing of `/v1`: from the head of a request to what it asks for, before a byte of its body is read.
//!
//! A key is everything after `/v1/kv/`, decoded exactly once from the raw target. klad does nothing else to the key: a
//! segment `..` and `//` stay, and `+` is a plus. `service` calls this.

use std::time::Duration;

use bytes::Bytes;
use hyper::header::RANGE;
use hyper::{HeaderMap, Method};

use crate::http::api_error::ApiError;
use crate::http::query::{self, BadEscape};
use crate::http::route::{DURABILITY_HEADER, Head};
use crate::http::service::Options;
use crate::http::v1::description::Description;
use crate::http::v1::parameters::{Parameters, bad};
use crate::http::v1::{batch, changes, condition, expiry, metadata, scan};
use crate::request_metrics::Op;
use klad_storage::operation::{Condition, Durability, Effect};

/// The prefix of all paths of this version.
pub const PREFIX: &str = "/v1/";

const KEYS: &str = "/v1/kv";

const METHODS_OF_KEY: &str = "GET, HEAD, PUT, DELETE, POST";

/// What a request asks for.
pub(super) enum Action {
    /// Reads one value. The headers have the conditions and the range.
    Get { key: Bytes, headers: Box<HeaderMap> },
    /// Stores the body as a value.
    Put { key: Bytes, condition: Option<Condition>, metadata: Bytes, ttl: Option<Duration>, durability: Durability },
    /// Removes a value.
    Delete { key: Bytes, condition: Option<Condition>, durability: Durability },
    /// Changes a value in place.
    Update { key: Bytes, condition: Option<Condition>, effect: Effect, durability: Durability },
    /// Does the changes and reads that the items of the body describe.
    Batch(batch::Request),
    /// Reads a range.
    Scan(Box<scan::Request>),
    /// Removes a range.
    RemoveRange { from: Bytes, end: Option<Bytes>, durability: Durability },
    /// Watches changes.
    Changes(Box<changes::Request>),
    /// Answers with the limits of this server.
    Limits,
    /// Describes this interface.
    Describe(Description),
}

/// A routed request.
pub struct Request {
    pub(super) action: Action,
}

impl Request {
    /// Whether the request changes something, so that a read-only token does not allow it. The items of a batch are
    /// not known yet: `batch` checks them.
    #[must_use]
    pub fn changes(&self) -> bool {
        match &self.action {
            Action::Put { .. } | Action::Delete { .. } | Action::Update { .. } | Action::RemoveRange { .. } => true,
            Action::Get { .. }
            | Action::Batch(_)
            | Action::Scan(_)
            | Action::Changes(_)
            | Action::Limits
            | Action::Describe(_) => false,
        }
    }

    /// Whether the request may have the parameters `ack`, `from` and `replicas`, which say how many copies must answer.
    #[must_use]
    pub fn takes_replicas(&self) -> bool {
        match &self.action {
            Action::Get { .. }
            | Action::Put { .. }
            | Action::Delete { .. }
            | Action::Update { .. }
            | Action::Batch(_) => true,
            Action::Scan(_)
            | Action::RemoveRange { .. }
            | Action::Changes(_)
            | Action::Limits
            | Action::Describe(_) => false,
        }
    }

    /// Whether klad uses the body of the request.
    pub(in crate::http) fn needs_body(&self) -> bool {
        matches!(self.action, Action::Put { .. } | Action::Batch(_))
    }

    /// Whether the request stores its body. If it does, klad asks whether storage takes writes, before it reads the
    /// body. A batch is not included, because all its items may be reads.
    pub(in crate::http) fn stores(&self) -> bool {
        matches!(self.action, Action::Put { .. })
    }

    /// The longest body that klad reads for this request.
    pub(in crate::http) fn body_bytes_max(&self, options: &Options) -> u64 {
        match self.action {
            Action::Batch(_) => options.batch_bytes_max,
            _ => options.value_bytes_max,
        }
    }

    /// If the request is a batch, replaces the error of a body that is too long by the error of a batch.
    pub(in crate::http) fn too_large(&self, error: ApiError) -> ApiError {
        match (error, &self.action) {
            (ApiError::ValueTooLarge { limit_bytes }, Action::Batch(_)) => {
                ApiError::BatchTooLarge { limit: limit_bytes, of: "bytes" }
            }
            (error, _) => error,
        }
    }

    /// Returns the length of the key, or of the start of a range.
    pub(in crate::http) fn key_bytes(&self) -> usize {
        match &self.action {
            Action::Get { key, .. }
            | Action::Put { key, .. }
            | Action::Delete { key, .. }
            | Action::Update { key, .. }
            | Action::RemoveRange { from: key, .. } => key.len(),
            Action::Batch(_) | Action::Scan(_) | Action::Changes(_) | Action::Limits | Action::Describe(_) => 0,
        }
    }
}

/// Returns the op under which klad counts a request. The op depends only on method and target, so a rejected request
/// has one too.
#[must_use]
pub fn op(method: &Method, path: &str, query: &str) -> Op {
    let one_key = path.starts_with("/v1/kv/") || query.contains("key64=");
    match (path, method) {
        ("/v1/batch", &Method::POST) => Op::Batch,
        ("/v1/changes", &Method::GET) => Op::Changes,
        _ if path != KEYS && !path.starts_with("/v1/kv/") => Op::Other,
        (_, &Method::GET | &Method::HEAD) => {
            if one_key {
                Op::Get
            } else {
                Op::Range
            }
        }
        (_, &Method::DELETE) => {
            if one_key {
                Op::Delete
            } else {
                Op::RemoveRange
            }
        }
        (_, &Method::PUT) => Op::Put,
        (_, &Method::POST) => Op::Update,
        _ => Op::Other,
    }
}

/// Decides what a request asks for.
///
/// # Errors
/// [`ApiError`] for an unknown path, a wrong method, bad parameters, or a key that is longer than `--key-max`.
pub fn route(head: &Head<'_>, options: &Options) -> Result<Request, ApiError> {
    let action = match head.path {
        KEYS if has_key64(head.query) => {
            let allowed = parameters_of_key(head.method)?;
            let mut parameters = Parameters::read(head.query, allowed)?;
            let key = parameters.binary("key", "key64", options.key_bytes_max)?.unwrap_or_default();
            parameters.take("key64");
            key_action(head, key.into(), &parameters, options)?
        }
        KEYS => match *head.method {
            Method::GET | Method::HEAD => Action::Scan(Box::new(scan::route(head.query, head.headers, options)?)),
            Method::DELETE => scan::route_removal(head.query, head.headers, options)?,
            Method::PUT | Method::POST => return Err(ApiError::MissingKey),
            _ => return Err(ApiError::MethodNotAllowed(METHODS_OF_KEY)),
        },
        "/v1/batch" if *head.method == Method::POST => Action::Batch(batch::route(head.query, head.headers, options)?),
        "/v1/batch" => return Err(ApiError::MethodNotAllowed("POST")),
        "/v1/changes" if *head.method == Method::GET => {
            Action::Changes(Box::new(changes::route(head.query, head.headers, options)?))
        }
        "/v1/changes" => return Err(ApiError::MethodNotAllowed("GET")),
        "/v1/limits" => without_parameters(head, Action::Limits)?,
        "/v1/openapi.json" => without_parameters(head, Action::Describe(Description::OpenApi))?,
        "/v1/docs" => without_parameters(head, Action::Describe(Description::Page))?,
        path => {
            let raw = path.strip_prefix("/v1/kv/").ok_or(ApiError::NoSuchPath)?;
            let allowed = parameters_of_key(head.method)?;
            let key = query::decode_path(raw.as_bytes()).map_err(|BadEscape| ApiError::BadEscape("key"))?;
            if key.len() as u64 > options.key_bytes_max {
                return Err(ApiError::KeyTooLong { limit_bytes: options.key_bytes_max });
            }
            let parameters = Parameters::read(head.query, &allowed[1..])?;
            key_action(head, Bytes::copy_from_slice(&key), &parameters, options)?
        }
    };
    Ok(Request { action })
}

/// Returns `action` if the request is a GET or HEAD without parameters.
fn without_parameters(head: &Head<'_>, action: Action) -> Result<Action, ApiError> {
    if !matches!(*head.method, Method::GET | Method::HEAD) {
        return Err(ApiError::MethodNotAllowed("GET, HEAD"));
    }
    Parameters::read(head.query, &[])?;
    Ok(action)
}

fn has_key64(query: &str) -> bool {
    query.split('&').any(|parameter| parameter.split_once('=').map_or(parameter, |(name, _)| name) == "key64")
}

/// Returns the parameters that a method takes on one key. The first parameter is `key64`.
fn parameters_of_key(method: &Method) -> Result<&'static [&'static str], ApiError> {
    match *method {
        Method::GET | Method::HEAD => Ok(&["key64", "ack", "from", "replicas"]),
        Method::PUT => Ok(&["key64", "ttl", "durability", "ack", "from", "replicas"]),
        Method::DELETE => Ok(&["key64", "durability", "ack", "from", "replicas"]),
        Method::POST => Ok(&["key64", "op", "by", "ttl", "durability", "ack", "from", "replicas"]),
        _ => Err(ApiError::MethodNotAllowed(METHODS_OF_KEY)),
    }
}

fn key_action(head: &Head<'_>, key: Bytes, parameters: &Parameters<'_>, options: &Options) -> Result<Action, ApiError> {
    if key.is_empty() {
        return Err(ApiError::MissingKey);
    }
    if matches!(*head.method, Method::GET | Method::HEAD) {
        let mut headers = head.headers.clone();
        if *head.method == Method::HEAD {
            // Only GET may ask for a range of bytes (RFC 9110, section 14.2).
            headers.remove(RANGE);
        }
        return Ok(Action::Get { key, headers: Box::new(headers) });
    }
    let condition = condition::of_write(head.headers)?;
    let durability = durability(parameters, head.headers)?.unwrap_or(options.durability);
    match *head.method {
        Method::PUT => {
            let ttl = ttl(parameters, head.headers)?;
            let metadata = metadata::from_headers(head.headers)?;
            Ok(Action::Put { key, condition, metadata, ttl, durability })
        }
        Method::DELETE if condition == Some(Condition::Absent) => {
            Err(ApiError::BadCondition("a removal needs a value, so If-None-Match: * cannot hold"))
        }
        Method::DELETE => Ok(Action::Delete { key, condition, durability }),
        _ => {
            let effect = update(parameters, head.headers)?;
            Ok(Action::Update { key, condition, effect, durability })
        }
    }
}

/// Returns the effect of a POST on one key.
fn update(parameters: &Parameters<'_>, headers: &HeaderMap) -> Result<Effect, ApiError> {
    match parameters.text("op")? {
        Some("add") => {
            let by = parameters.text("by")?.ok_or(ApiError::MissingParameter("by"))?;
            let by = by.parse().map_err(|_| bad("by", "a decimal number from -2^63 to 2^63 - 1"))?;
            let expires_at_ms = ttl(parameters, headers)?.and_then(expiry::at);
            Ok(super::add(by, expires_at_ms))
        }
        Some("expire") => {
            if parameters.bytes("by").is_some() {
                return Err(bad("by", "absent with op=expire"));
            }
            match parameters.text("ttl")? {
                Some("" | "none") if headers.contains_key(expiry::TTL_HEADER) => Err(ApiError::BadTtl),
                Some("" | "none") => Ok(Effect::Expire(None)),
                _ => {
                    let ttl = ttl(parameters, headers)?.ok_or(ApiError::MissingParameter("ttl"))?;
                    Ok(Effect::Expire(expiry::at(ttl)))
                }
            }
        }
        Some(_) => Err(bad("op", "add or expire")),
        None => Err(ApiError::MissingOp),
    }
}

/// Returns the time to live that the parameter or the header asks for.
fn ttl(parameters: &Parameters<'_>, headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let parameter = parameters.text("ttl")?.map(expiry::parse).transpose()?;
    let mut all = headers.get_all(expiry::TTL_HEADER).iter();
    let header = all.next().map(|value| value.to_str().map_err(|_| ApiError::BadTtl));
    let header = header.transpose()?.map(expiry::parse).transpose()?;
    if all.next().is_some() {
        return Err(ApiError::BadTtl);
    }
    match (parameter, header) {
        (Some(parameter), Some(header)) if parameter != header => Err(ApiError::BadTtl),
        (parameter, header) => Ok(parameter.or(header)),
    }
}

/// Returns the durability that the parameter asks for. Without the parameter, returns the one of the header. Both must
/// be valid.
pub(super) fn durability(parameters: &Parameters<'_>, headers: &HeaderMap) -> Result<Option<Durability>, ApiError> {
    let read = |asked: &[u8]| {
        let word = std::str::from_utf8(asked).ok();
        word.and_then(Durability::from_request).ok_or(ApiError::BadDurability)
    };
    let parameter = parameters.bytes("durability").map(read).transpose()?;
    let header = headers.get(DURABILITY_HEADER).map(|value| read(value.as_bytes())).transpose()?;
    Ok(parameter.or(header))
}
