//! `/console/data/v1/...`: passes requests on to a worker. The worker answers them as if they had come to the data
//! listener, with the same admission, tokens and limits. The admin thread only moves bytes.
//!
//! ```text
//!   browser ─▶ admin thread: hyper's client ─▶ pair of Unix sockets ─▶ worker: the same path as a client's connection
//! ```
//!
//! Each request has its own pair of sockets. `console` calls this.

use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, EXPECT, HeaderName, HeaderValue,
    TRANSFER_ENCODING, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::sync::OwnedSemaphorePermit;

use crate::admin::deadline::Deadline;
use crate::admin::page::Page;
use crate::connection::worker::ConsoleHandles;
use crate::http::api_error::ApiError;
use crate::limits::CONNECTION_BUFFER_BYTES_MAX;
use klad_storage::operation::Error;

/// The prefix before the path of the data listener.
const PREFIX: &str = "/console/data";

/// The headers of every answer. A value may be a hostile HTML page, and a link may lead a browser to the URL of this
/// value. The browser must not run the page with the rights of the console. So the headers make the browser download
/// the value. A browser that shows the value all the same gives it no scripts and no origin.
const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox; frame-ancestors 'none'"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (CONTENT_DISPOSITION, "attachment"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (CACHE_CONTROL, "no-store"),
];

/// Whether [`answer`] answers this path.
pub(in crate::admin) fn is_path(path: &str) -> bool {
    path.strip_prefix(PREFIX).is_some_and(|path| path.starts_with("/v1/"))
}

/// A body on its way through the admin thread.
pub struct Forwarded {
    body: Incoming,
    deadline: Deadline,
    /// The place of the request, which is free again when the answer's body is dropped. `None` for the body of a
    /// request.
    _place: Option<OwnedSemaphorePermit>,
}

/// Hands the request to a worker, and returns the worker's answer.
pub(super) async fn answer(
    workers: &ConsoleHandles,
    request: Request<Incoming>,
    deadline: &Deadline,
    place: OwnedSemaphorePermit,
) -> Result<Response<Page>, ApiError> {
    let unavailable = |error: std::io::Error| ApiError::NotReady(format!("cannot pass the request on: {error}"));
    let (own, theirs) = UnixStream::pair().map_err(unavailable)?;
    own.set_nonblocking(true).map_err(unavailable)?;
    let own = tokio::net::UnixStream::from_std(own).map_err(unavailable)?;
    if !workers.hand(theirs) {
        return Err(Error::Stopping.into());
    }
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
    let lost = |error: hyper::Error| {
        let why = format!("the worker's connection was lost: {error}");
        if changes { Error::Undetermined { why }.into() } else { ApiError::NotReady(why) }
    };
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(CONNECTION_BUFFER_BYTES_MAX)
        .handshake(TokioIo::new(own))
        .await
        .map_err(lost)?;
    // This task ignores errors of the connection, because the request or the body reports the same errors.
    tokio::task::spawn_local(async { drop(connection.await) });
    let answer = sender.send_request(forward(request, deadline)).await.map_err(lost)?;
    let mut answer =
        answer.map(|body| Page::Forwarded(Forwarded { body, deadline: deadline.clone(), _place: Some(place) }));
    let headers = answer.headers_mut();
    headers.remove(CONNECTION);
    headers.remove(TRANSFER_ENCODING);
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(answer)
}

/// Returns the request for the data listener: without the prefix of its path, and without headers that are about the
/// connection of the browser.
fn forward(request: Request<Incoming>, deadline: &Deadline) -> Request<Forwarded> {
    let (mut parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
    let target = target.strip_prefix(PREFIX).unwrap_or(target);
    parts.uri = Uri::try_from(target).expect("the end of a valid target, from a slash on");
    parts.version = Version::HTTP_11;
    for name in [CONNECTION, EXPECT, TRANSFER_ENCODING] {
        parts.headers.remove(name);
    }
    Request::from_parts(parts, Forwarded { body, deadline: deadline.clone(), _place: None })
}

impl Body for Forwarded {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_ready() {
            self.deadline.progress();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
