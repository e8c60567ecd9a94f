//! What the admin listener answers: whether klad lives, whether it is ready, and what `care` is asked for. It has a thread of its own, so that it
//! answers whatever the data plane does.
//!
//! Called by `server::admin`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};

use super::care;
use super::refusal::Refusal;
use crate::execution::Executor;
use crate::execution::care::Care;
use crate::storage::ChangeKind;

/// What the answers are made from.
pub struct Admin {
    executor: Arc<Executor>,
    care: Arc<Care>,
    stopping: Arc<AtomicBool>,
}

impl Admin {
    /// Answers about `executor`, and passes on what `care` is asked for; `stopping` is set when klad is asked to stop.
    #[must_use]
    pub fn new(executor: Arc<Executor>, care: Arc<Care>, stopping: Arc<AtomicBool>) -> Admin {
        Admin { executor, care, stopping }
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

    async fn route(&self, request: &Request<Incoming>) -> Result<Response<String>, Refusal> {
        let text = |text: &str| Ok(Response::new(text.to_owned()));
        match (request.uri().path(), request.method()) {
            ("/livez", &Method::GET) => text("ok\n"),
            ("/readyz", &Method::GET) => self.ready().and_then(|()| text("ready\n")),
            (path, _) if care::is_path(path) => care::answer(&self.care, request).await,
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
