//! What the admin listener answers: whether klad lives, and whether it is ready. It has a thread of its own, so that it
//! answers whatever the data plane does.
//!
//! Called by `server::admin`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use super::refusal::Refusal;
use crate::execution::Executor;
use crate::logs;
use crate::metrics::requests::Requests;
use crate::metrics::text::{self, Page};
use crate::storage::ChangeKind;

/// What the answers are made from.
pub struct Admin {
    executor: Arc<Executor>,
    stopping: Arc<AtomicBool>,
    requests: Arc<Requests>,
}

impl Admin {
    /// Answers about `executor`; `stopping` is set when klad is asked to stop.
    #[must_use]
    pub fn new(executor: Arc<Executor>, stopping: Arc<AtomicBool>, requests: Arc<Requests>) -> Admin {
        Admin { executor, stopping, requests }
    }

    /// Answers one request.
    pub async fn answer(&self, request: Request<Incoming>) -> Response<String> {
        let answered = self.route(&request).await;
        match answered {
            Ok(answer) => answer,
            Err(Refusal::UnknownPath) => {
                let mut answer = Response::new("there is nothing at this path; try /livez or /readyz\n".to_owned());
                *answer.status_mut() = StatusCode::NOT_FOUND;
                answer
            }
            Err(refusal) => {
                let (parts, document) = refusal.into_parts();
                Response::from_parts(parts, document)
            }
        }
    }

    #[expect(clippy::unused_async, reason = "answers to come read bodies and wait for storage")]
    async fn route(&self, request: &Request<Incoming>) -> Result<Response<String>, Refusal> {
        let text = |text: &str| Ok(Response::new(text.to_owned()));
        match (request.uri().path(), request.method()) {
            ("/livez", &Method::GET) => text("ok\n"),
            ("/readyz", &Method::GET) => self.ready().and_then(|()| text("ready\n")),
            ("/metrics", &Method::GET) => Ok(self.metrics()),
            ("/livez" | "/readyz" | "/metrics", _) => Err(Refusal::MethodNotAllowed("GET")),
            _ => Err(Refusal::UnknownPath),
        }
    }

    /// What became of requests, what the commit section did, what the log lost.
    fn metrics(&self) -> Response<String> {
        let mut page = Page::new();
        self.requests.write(&mut page);
        if let Some(commits) = self.executor.commits() {
            commits.write(&mut page);
        }
        logs::write(&mut page);
        let mut answer = Response::new(page.finish());
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(text::CONTENT_TYPE));
        answer
    }

    /// Ready means that reads and writes are taken; the refusal says what is not.
    fn ready(&self) -> Result<(), Refusal> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(crate::operation::Error::Stopping.into());
        }
        Ok(self.executor.writable(ChangeKind::Put)?)
    }
}
