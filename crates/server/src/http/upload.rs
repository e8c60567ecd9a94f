//! Reads request bodies, with a memory permit that was taken before the first byte, and discards useless bodies.
//!
//! `service` calls this.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use hyper::body::{Body as _, Incoming, SizeHint};

use crate::exchange::Exchange;
use crate::execution::admission::{BodyBudget, BodyPermit};
use crate::http::api_error::ApiError;
use crate::limits::DRAIN_BYTES_MAX;

/// The body of a request.
pub(super) enum RequestBody {
    /// hyper streams the body.
    Streamed(Incoming),
    /// The whole body has arrived.
    Whole(Bytes),
}

impl RequestBody {
    pub(super) fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Streamed(body) => body.is_end_stream(),
            RequestBody::Whole(bytes) => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Streamed(body) => body.size_hint(),
            RequestBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

/// A complete body and its memory permit.
pub(super) struct Upload {
    pub(super) value: Bytes,
    pub(super) permit: Option<BodyPermit>,
}

/// A body that klad discards if it has no meaning, or if klad rejects the request. klad reads the body of a `/v1` PUT
/// or batch.
pub(super) struct UnwantedBody {
    pub(super) body: RequestBody,
    /// Whether the client sends the body only after `100 Continue`.
    pub(super) expects_continue: bool,
}

/// Takes a memory permit for the length of the body. If the length is unknown, takes a permit for the largest value.
/// [`read`] then gives the rest back when it knows the length.
pub(super) fn admit(
    body: &RequestBody,
    budget: &BodyBudget,
    value_bytes_max: u64,
) -> Result<Option<BodyPermit>, ApiError> {
    let hint = body.size_hint();
    if hint.lower() > value_bytes_max {
        return Err(ApiError::ValueTooLarge { limit_bytes: value_bytes_max });
    }
    let bytes = hint.exact().unwrap_or(value_bytes_max);
    if bytes == 0 {
        return Ok(None);
    }
    budget.try_take(bytes).map(Some).ok_or(ApiError::NoRoom { bytes, of: "request body" })
}

/// Reads the whole body. `permit` covers the memory of the body.
pub(super) async fn read(
    body: RequestBody,
    mut permit: Option<BodyPermit>,
    value_bytes_max: u64,
    exchange: &Exchange,
) -> Result<Upload, ApiError> {
    if body.is_end_stream() {
        return Ok(Upload { value: Bytes::new(), permit: None });
    }
    let mut body = match body {
        RequestBody::Streamed(body) => body,
        RequestBody::Whole(value) => {
            exchange.request().received(value.len());
            return Ok(Upload { value, permit });
        }
    };
    let expected = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    let mut value = Vec::with_capacity(expected.unwrap_or(0));
    exchange.body_begins(permit.as_ref().map_or(0, BodyPermit::bytes));
    while let Some(data) = next_data(&mut body, exchange).await? {
        // Check while reading: the length of a chunked body is known only at its end.
        if (value.len() + data.len()) as u64 > value_bytes_max {
            return Err(ApiError::ValueTooLarge { limit_bytes: value_bytes_max });
        }
        value.extend_from_slice(&data);
    }
    exchange.body_ends();
    if expected.is_none() {
        value.shrink_to_fit();
        if let Some(permit) = &mut permit {
            permit.shrink(value.len() as u64);
        }
    }
    Ok(Upload { value: value.into(), permit })
}

/// Reads and discards the rest of a useless body, so that the connection can continue. Returns `false` if the body is
/// too long, or if the client waits for `100 Continue`. Then the connection must close after the answer.
///
/// Fails if the body is malformed or incomplete, because klad does not carry out such a request.
pub(super) async fn drain(unwanted: UnwantedBody, exchange: &Exchange) -> Result<bool, ApiError> {
    let UnwantedBody { body, expects_continue } = unwanted;
    let mut body = match body {
        RequestBody::Streamed(body) if !body.is_end_stream() => body,
        RequestBody::Streamed(_) => return Ok(true),
        RequestBody::Whole(bytes) => {
            exchange.request().received(bytes.len());
            return Ok(true);
        }
    };
    // Polling the body would send `100 Continue`.
    if expects_continue || body.size_hint().lower() > DRAIN_BYTES_MAX {
        return Ok(false);
    }
    let mut drained = 0;
    exchange.body_begins(0);
    while let Some(data) = next_data(&mut body, exchange).await? {
        drained += data.len() as u64;
        if drained > DRAIN_BYTES_MAX {
            exchange.body_ends();
            return Ok(false);
        }
    }
    exchange.body_ends();
    Ok(true)
}

/// Returns the next bytes of the body. Ignores trailers.
async fn next_data(body: &mut Incoming, exchange: &Exchange) -> Result<Option<Bytes>, ApiError> {
    poll_fn(|context| {
        loop {
            // The sweep, which checks deadlines, sets this and wakes the connection.
            if exchange.body_timed_out() {
                exchange.request().waits_for_body();
                exchange.body_time_ends();
                return Poll::Ready(Err(ApiError::BodyTimeout));
            }
            return match Pin::new(&mut *body).poll_frame(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(None) => {
                    exchange.body_time_ends();
                    Poll::Ready(Ok(None))
                }
                Poll::Ready(Some(Err(error))) => {
                    exchange.body_time_ends();
                    Poll::Ready(Err(ApiError::BodyBroken(error.to_string())))
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        exchange.request().received(data.len());
                        Poll::Ready(Ok(Some(data)))
                    }
                    Err(_trailers) => continue,
                },
            };
        }
    })
    .await
}
