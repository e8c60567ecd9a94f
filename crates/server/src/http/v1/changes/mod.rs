//! The change feed: `GET /v1/changes`. The client gets every committed change in commit order, as server-sent events or
//! JSON lines, until the client leaves, klad stops, or the feed must end.
//!
//! ```text
//!   head ─▶ route ─▶ answer: a place among the feeds, the first step ─▶ 410, or 200 and FeedBody
//!                                  FeedBody: step ─▶ chunk ─▶ step ─▶ … nothing new: sleep until the bell rings
//! ```
//!
//! Between two steps a feed holds only its position. So a slow reader costs no thread, and no memory beyond the chunk
//! that it has not taken yet. The feed ends with `version-gone` when klad no longer keeps the changes that the feed has
//! not read. `route` and `v1` call this.

use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};

use crate::http::answer::{Fields, Reply};
use crate::http::api_error::ApiError;
use crate::http::body::Content;
use crate::http::service::Options;
use crate::http::v1::Context;
use crate::http::v1::parameters::{Parameters, bad};

mod encode;
mod feed;

pub use feed::FeedBody;

/// The header with the version that a client has received last.
const LAST_EVENT_ID: &str = "last-event-id";

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// `text/event-stream`.
    ServerSentEvents,
    /// `application/x-ndjson`.
    JsonLines,
}

/// The parameters and headers of a request for a feed.
#[derive(Debug)]
pub(super) struct Request {
    prefix: Vec<u8>,
    /// The feed has the changes after this version. `None` means after the last version that is committed now.
    from: Option<u64>,
    values: bool,
    format: Format,
}

/// Reads the head of a request.
pub(super) fn route(query: &str, headers: &HeaderMap, options: &Options) -> Result<Request, ApiError> {
    let parameters = Parameters::read(query, &["prefix", "prefix64", "from", "values"])?;
    let version = |text: &str| text.parse().map_err(|_| bad("from", "a version, a decimal number"));
    let from = parameters.text("from")?.map(version).transpose()?;
    // A client that reconnects sends the parameters of its first request again, and this header.
    let last = headers.get(LAST_EVENT_ID).filter(|value| !value.is_empty());
    let last = last.map(|value| {
        let version = value.to_str().ok().and_then(|text| text.parse().ok());
        version.ok_or_else(|| ApiError::BadParameter("Last-Event-ID must be a version, a decimal number".to_owned()))
    });
    let accepts_lines = headers
        .get_all(ACCEPT)
        .iter()
        .any(|accept| accept.to_str().is_ok_and(|accept| accept.contains("application/x-ndjson")));
    Ok(Request {
        prefix: parameters.binary("prefix", "prefix64", options.key_bytes_max)?.unwrap_or_default(),
        from: last.transpose()?.or(from),
        values: parameters.switch("values")?,
        format: if accepts_lines { Format::JsonLines } else { Format::ServerSentEvents },
    })
}

/// Begins a feed.
pub(super) async fn answer(context: &Context<'_>, request: Request) -> Result<Reply, ApiError> {
    let format = request.format;
    let feed = FeedBody::begin(context, request).await?;
    let content_type = match format {
        Format::ServerSentEvents => "text/event-stream",
        Format::JsonLines => "application/x-ndjson",
    };
    let others = [
        (CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        // Without this header, nginx would hold events back until its buffer is full.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    let fields = Fields { others: Some(Box::new(others.into_iter().collect())), ..Fields::default() };
    Ok(Reply::new(StatusCode::OK, Content::Feed(Box::new(feed))).with(fields))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn options() -> Options {
        Options {
            key_bytes_max: 8,
            value_bytes_max: 8,
            durability: klad_storage::operation::Durability::Async,
            batch_items_max: 1,
            batch_bytes_max: 1,
            scan_time_max: Duration::from_secs(1),
            heartbeat: Duration::from_secs(1),
        }
    }

    fn code(query: &str, headers: &[(&'static str, &'static str)]) -> &'static str {
        let headers =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        route(query, &headers.collect(), &options()).err().map_or("ok", |error| error.code())
    }

    #[test]
    fn bad_requests_are_rejected() {
        for (query, expected) in [
            ("", "ok"),
            ("from=0&prefix=a&values=true", "ok"),
            ("from=x", "bad-parameter"),
            ("from=-1", "bad-parameter"),
            ("values=maybe", "bad-parameter"),
            ("form=1", "unknown-parameter"),
            ("prefix=a&prefix64=YQ", "repeated-parameter"),
            ("prefix=123456789", "key-too-long"),
        ] {
            assert_eq!(code(query, &[]), expected, "{query}");
        }
        assert_eq!(code("", &[("last-event-id", "x")]), "bad-parameter");
    }

    #[test]
    fn the_last_event_id_wins_over_the_parameter() {
        let headers = [(HeaderName::from_static("last-event-id"), HeaderValue::from_static("7"))].into_iter().collect();
        let request = route("from=3", &headers, &options()).expect("valid");
        assert_eq!((request.from, request.format), (Some(7), Format::ServerSentEvents));
        let headers = [(ACCEPT, HeaderValue::from_static("application/x-ndjson"))].into_iter().collect();
        let request = route("from=3", &headers, &options()).expect("valid");
        assert_eq!((request.from, request.format), (Some(3), Format::JsonLines));
    }
}
