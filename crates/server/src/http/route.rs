//! Routing of `/v0`: from the head of a request to what it asks for, before a byte of its body is read. This module
//! decides about the statuses 400, 405 and 414. `v1::route` routes `/v1`.
//!
//! The checks follow the contract's order: path, then method, then parameters. `service` calls this module.

use std::borrow::Cow;

use hyper::http::request;
use hyper::{HeaderMap, Method};

use crate::http::api_error::ApiError;
use crate::http::query::{self, BadEscape};
use crate::request_metrics::Op;
use klad_storage::operation::Durability;

/// The header that asks for a durability, and reports the durability of a write.
pub const DURABILITY_HEADER: &str = "klad-durability";

/// The head of a request, read with hyper or without.
#[derive(Clone, Copy, Debug)]
pub struct Head<'h> {
    /// The method.
    pub method: &'h Method,
    /// The path of the target.
    pub path: &'h str,
    /// The query of the target, undecoded; empty if there is none.
    pub query: &'h str,
    /// The headers; for a plain request, without those that `plain` uses or ignores.
    pub headers: &'h HeaderMap,
}

impl<'h> From<&'h request::Parts> for Head<'h> {
    fn from(parts: &'h request::Parts) -> Head<'h> {
        let query = parts.uri.query().unwrap_or("");
        Head { method: &parts.method, path: parts.uri.path(), query, headers: &parts.headers }
    }
}

/// The operation that a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Route<'r> {
    /// `GET /v0/entity`.
    Get {
        /// The decoded key.
        key: Cow<'r, [u8]>,
    },
    /// `PUT /v0/entity`; the body is the value.
    Put {
        /// The decoded key.
        key: Cow<'r, [u8]>,
        /// The durability of the write. `None` means the server's default.
        durability: Option<Durability>,
    },
    /// `DELETE /v0/entity`.
    Delete {
        /// The decoded key.
        key: Cow<'r, [u8]>,
        /// The durability of the removal. `None` means the server's default.
        durability: Option<Durability>,
    },
    /// `GET /v0/entities`.
    Range {
        /// The first key.
        start: Cow<'r, [u8]>,
        /// The first key after the range. `None` means that the range has no end.
        end: Option<Cow<'r, [u8]>>,
    },
    /// `GET /v0/status`.
    Status,
}

impl Route<'_> {
    /// Whether the request changes something, so that a read-only token does not allow it.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self {
            Route::Put { .. } | Route::Delete { .. } => true,
            Route::Get { .. } | Route::Range { .. } | Route::Status => false,
        }
    }
}

/// Returns the op under which klad counts a request. The op depends only on path and method, so a rejected request has
/// one too.
#[must_use]
pub fn op(method: &Method, path: &str) -> Op {
    match (path, method) {
        ("/v0/entity", &Method::GET) => Op::Get,
        ("/v0/entity", &Method::PUT) => Op::Put,
        ("/v0/entity", &Method::DELETE) => Op::Delete,
        ("/v0/entities", &Method::GET) => Op::Range,
        ("/v0/status", &Method::GET) => Op::Status,
        _ => Op::Other,
    }
}

/// Decides what a request asks for.
///
/// # Errors
/// [`ApiError`] for an unknown path, a wrong method, bad parameters, or a key that is longer than `key_bytes_max`.
pub fn route<'r>(head: &Head<'r>, key_bytes_max: u64) -> Result<Route<'r>, ApiError> {
    let Head { method, path, query, headers } = *head;
    match path {
        "/v0/entity" => {
            if !matches!(*method, Method::GET | Method::PUT | Method::DELETE) {
                return Err(ApiError::MethodNotAllowed("GET, PUT, DELETE"));
            }
            let key = required(query, "id", key_bytes_max)?;
            if *method == Method::GET {
                return Ok(Route::Get { key });
            }
            let durability = durability(query, headers)?;
            if *method == Method::PUT {
                Ok(Route::Put { key, durability })
            } else {
                Ok(Route::Delete { key, durability })
            }
        }
        "/v0/entities" => {
            only_get(method)?;
            let start = required(query, "start", key_bytes_max)?;
            let end = parameter(query, "end", key_bytes_max)?;
            if end.as_ref().is_some_and(|end| end.is_empty()) {
                return Err(ApiError::EmptyParameter("end"));
            }
            Ok(Route::Range { start, end })
        }
        "/v0/status" => only_get(method).map(|()| Route::Status),
        _ => Err(ApiError::UnknownPath),
    }
}

fn only_get(method: &Method) -> Result<(), ApiError> {
    if *method == Method::GET { Ok(()) } else { Err(ApiError::MethodNotAllowed("GET")) }
}

fn required<'r>(query: &'r str, name: &'static str, bytes_max: u64) -> Result<Cow<'r, [u8]>, ApiError> {
    parameter(query, name, bytes_max)?.filter(|value| !value.is_empty()).ok_or(ApiError::MissingParameter(name))
}

fn parameter<'r>(query: &'r str, name: &'static str, bytes_max: u64) -> Result<Option<Cow<'r, [u8]>>, ApiError> {
    let value = query::first(query, name).map_err(|BadEscape| ApiError::BadEscape(name))?;
    if value.as_ref().is_some_and(|value| value.len() as u64 > bytes_max) {
        return Err(ApiError::KeyTooLong { limit_bytes: bytes_max });
    }
    Ok(value)
}

/// Returns the durability that the parameter asks for. Without the parameter, returns the durability that the header
/// asks for.
fn durability(query: &str, headers: &HeaderMap) -> Result<Option<Durability>, ApiError> {
    // A query with one parameter has only the key.
    let query = if query.contains('&') { query } else { "" };
    let asked = match query::first(query, "durability").map_err(|BadEscape| ApiError::BadEscape("durability"))? {
        Some(parameter) => Some(parameter),
        None => headers.get(DURABILITY_HEADER).map(|header| Cow::Borrowed(header.as_bytes())),
    };
    let Some(asked) = asked else { return Ok(None) };
    let word = std::str::from_utf8(&asked).map_err(|_| ApiError::BadDurability)?;
    Durability::from_request(word).map(Some).ok_or(ApiError::BadDurability)
}
