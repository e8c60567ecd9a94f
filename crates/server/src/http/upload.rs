//! Reads request bodies, within room that was taken before the first byte, and throws away those that nobody wants.
//!
//! Called by `service`.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use hyper::body::{Body as _, Incoming, SizeHint};

use crate::exchange::Exchange;
use crate::execution::admission::{BodyBudget, BodyPermit};
use crate::http::api_error::ApiError;
use klad_base::limits::DRAIN_BYTES_MAX;

/// The body of a request.
pub(super) enum RequestBody {
    /// As it comes, from hyper.
    Streamed(Incoming),
    /// It has come.
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

/// A body that was read whole, and the room it takes.
pub(super) struct Upload {
    pub(super) value: Bytes,
    pub(super) budget: Option<BodyPermit>,
}

/// A body that means nothing, or that comes with a request that was refused.
pub(super) struct UnwantedBody {
    pub(super) body: RequestBody,
    /// The client waits for a go-ahead before it sends it.
    pub(super) waits: bool,
}

/// Takes room for the body: for its length where that is known, else for the largest value, of which the rest is given back
/// when the length is known.
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

/// Reads the whole body into `budget`.
pub(super) async fn read(
    body: RequestBody,
    mut budget: Option<BodyPermit>,
    value_bytes_max: u64,
    exchange: &Exchange,
) -> Result<Upload, ApiError> {
    if body.is_end_stream() {
        return Ok(Upload { value: Bytes::new(), budget: None });
    }
    let mut body = match body {
        RequestBody::Streamed(body) => body,
        RequestBody::Whole(value) => {
            exchange.request().received(value.len());
            return Ok(Upload { value, budget });
        }
    };
    let expected = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    let mut value = Vec::with_capacity(expected.unwrap_or(0));
    exchange.body_begins(budget.as_ref().map_or(0, BodyPermit::bytes));
    while let Some(data) = next_data(&mut body, exchange).await? {
        // Metered as it comes: a chunked body says its length only at its end.
        if (value.len() + data.len()) as u64 > value_bytes_max {
            return Err(ApiError::ValueTooLarge { limit_bytes: value_bytes_max });
        }
        value.extend_from_slice(&data);
    }
    exchange.body_ends();
    if expected.is_none() {
        value.shrink_to_fit();
        if let Some(budget) = &mut budget {
            budget.shrink(value.len() as u64);
        }
    }
    Ok(Upload { value: value.into(), budget })
}

/// Reads and throws away what is left of a body that nobody wants, so that the connection can live on. `false`: there is
/// too much of it, or the client waits for a go-ahead, and the connection must be closed after the answer.
///
/// Fails where the body is none: a request of which a part is missing is not carried out.
pub(super) async fn drain(unwanted: UnwantedBody, exchange: &Exchange) -> Result<bool, ApiError> {
    let UnwantedBody { body, waits } = unwanted;
    let mut body = match body {
        RequestBody::Streamed(body) if !body.is_end_stream() => body,
        RequestBody::Streamed(_) => return Ok(true),
        RequestBody::Whole(bytes) => {
            exchange.request().received(bytes.len());
            return Ok(true);
        }
    };
    // Asking for the body would send the 100 that tells the client to go ahead.
    if waits || body.size_hint().lower() > DRAIN_BYTES_MAX {
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

/// The next bytes of the body; trailers are of no use here.
async fn next_data(body: &mut Incoming, exchange: &Exchange) -> Result<Option<Bytes>, ApiError> {
    poll_fn(|context| {
        loop {
            // The sweep sets this and wakes the connection.
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
