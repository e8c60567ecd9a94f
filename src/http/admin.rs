//! What the admin listener answers: whether klad lives, and whether it is ready. It has a thread of its own, so that it
//! answers whatever the data plane does.
//!
//! Called by `server::admin`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::{Method, Response, StatusCode};

use super::refusal::Refusal;
use crate::execution::Executor;
use crate::storage::ChangeKind;

/// What the answers are made from.
pub struct Admin {
    executor: Arc<Executor>,
    stopping: Arc<AtomicBool>,
}

impl Admin {
    /// Answers about `executor`; `stopping` is set when klad is asked to stop.
    #[must_use]
    pub fn new(executor: Arc<Executor>, stopping: Arc<AtomicBool>) -> Admin {
        Admin { executor, stopping }
    }

    /// Answers one request.
    #[must_use]
    pub fn answer(&self, method: &Method, path: &str) -> Response<String> {
        let answered = match path {
            "/livez" | "/readyz" if method != Method::GET => Err(Refusal::MethodNotAllowed("GET")),
            "/livez" => Ok("ok\n".to_owned()),
            "/readyz" => self.ready().map(|()| "ready\n".to_owned()),
            _ => Err(Refusal::UnknownPath),
        };
        match answered {
            Ok(text) => Response::new(text),
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

    /// Ready means that reads and writes are taken; the refusal says what is not.
    fn ready(&self) -> Result<(), Refusal> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(crate::operation::Error::Stopping.into());
        }
        Ok(self.executor.writable(ChangeKind::Put)?)
    }
}
