//! Batches: many changes and reads in one request. `route` and `v1` call this.

use hyper::HeaderMap;

use crate::http::answer::Reply;
use crate::http::api_error::ApiError;
use crate::http::service::Options;
use crate::http::upload::Upload;
use crate::http::v1::Context;

/// What the head of a batch says.
pub(super) struct Request {}

/// Reads the head of a batch.
pub(super) fn route(_query: &str, _headers: &HeaderMap, _options: &Options) -> Result<Request, ApiError> {
    Err(ApiError::NoSuchPath)
}

/// Does what the items of the body say.
pub(super) async fn answer(_context: &Context<'_>, _request: Request, _upload: Upload) -> Result<Reply, ApiError> {
    Err(ApiError::NoSuchPath)
}
