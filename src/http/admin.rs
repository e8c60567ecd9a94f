//! What the admin listener answers: whether klad lives, and whether it is ready. It has a thread of its own, so that it
//! answers whatever the data plane does.
//!
//! Called by `server::admin`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};

use super::authorization::{self, Authorization};
use super::refusal::Refusal;
use crate::execution::Executor;
use crate::storage::ChangeKind;

/// What the answers are made from.
pub struct Admin {
    executor: Arc<Executor>,
    stopping: Arc<AtomicBool>,
    authorization: Authorization,
}

impl Admin {
    /// Answers about `executor`; `stopping` is set when klad is asked to stop.
    #[must_use]
    pub fn new(executor: Arc<Executor>, stopping: Arc<AtomicBool>, authorization: Authorization) -> Admin {
        Admin { executor, stopping, authorization }
    }

    /// Answers one request.
    pub async fn answer(&self, request: Request<Incoming>) -> Response<String> {
        let answered = match self.admit(&request) {
            Ok(()) => self.route(&request).await,
            Err(refusal) => Err(refusal),
        };
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

    /// Before the route, and by the method alone, so that no route can be forgotten. Whoever only asks whether klad lives needs
    /// no token: load balancers and supervisors have none.
    fn admit(&self, request: &Request<Incoming>) -> Result<(), Refusal> {
        if matches!(request.uri().path(), "/livez" | "/readyz") {
            return Ok(());
        }
        let access = self.authorization.grant(request.headers())?;
        authorization::may(access, !matches!(*request.method(), Method::GET | Method::HEAD))
    }

    #[expect(clippy::unused_async, reason = "answers to come read bodies and wait for storage")]
    async fn route(&self, request: &Request<Incoming>) -> Result<Response<String>, Refusal> {
        let text = |text: &str| Ok(Response::new(text.to_owned()));
        match (request.uri().path(), request.method()) {
            ("/livez", &Method::GET) => text("ok\n"),
            ("/readyz", &Method::GET) => self.ready().and_then(|()| text("ready\n")),
            ("/livez" | "/readyz", _) => Err(Refusal::MethodNotAllowed("GET")),
            _ => Err(Refusal::UnknownPath),
        }
    }

    /// Ready means that reads and writes are taken; the refusal says what is not.
    fn ready(&self) -> Result<(), Refusal> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(crate::operation::Error::Stopping.into());
        }
        Ok(self.executor.writable(ChangeKind::Put)?)
    }
}
