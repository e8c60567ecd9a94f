//! Scans and removals of ranges. `route` and `v1` call this.

use bytes::Bytes;
use hyper::HeaderMap;

use crate::http::answer::Reply;
use crate::http::api_error::ApiError;
use crate::http::service::Options;
use crate::http::v1::Context;
use crate::http::v1::route::Action;
use klad_storage::operation::Durability;

/// What the head of a scan says.
pub(super) struct Request {}

/// Reads the head of a scan.
pub(super) fn route(_query: &str, _headers: &HeaderMap, _options: &Options) -> Result<Request, ApiError> {
    Err(ApiError::NoSuchPath)
}

/// Reads the head of a removal.
pub(super) fn route_removal(_query: &str, _headers: &HeaderMap, _options: &Options) -> Result<Action, ApiError> {
    Err(ApiError::NoSuchPath)
}

/// Reads a range.
pub(super) async fn answer(_context: &Context<'_>, _request: Request) -> Result<Reply, ApiError> {
    Err(ApiError::NoSuchPath)
}

/// Removes a range.
pub(super) async fn remove(
    _context: &Context<'_>,
    _from: Bytes,
    _end: Option<Bytes>,
    _durability: Durability,
) -> Result<Reply, ApiError> {
    Err(ApiError::NoSuchPath)
}
