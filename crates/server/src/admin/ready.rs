//! `/readyz`: whether klad accepts reads and writes, and if not, why.
//!
//! ```text
//!   /readyz            200 ready, or a problem document: 503 (also in a drain), or 507 (disk or memory full)
//!   /readyz?verbose    200 or 503, and a line for each check with its state, as in etcd and Kubernetes
//! ```
//!
//! `/drain` lets an operator make `/readyz` answer 503, while klad continues to serve.
//!
//! `admin` calls this module.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use hyper::{Response, StatusCode};
use serde_json::json;

use crate::admin::{Admin, control, text};
use crate::http::api_error::ApiError;
use crate::limits::HOUSEKEEPING_LATE;
use klad_base::clock;
use klad_storage::operation::Error;
use klad_storage::{ChangeKind, Check};

impl Admin {
    /// Answers 200 if klad accepts reads and writes. Otherwise returns the error that says why not.
    pub(super) fn ready(&self) -> Result<Response<String>, ApiError> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(Error::Stopping.into());
        }
        match self.executor.writable(ChangeKind::Put) {
            // The error `NotEnoughReplicas` would answer 504, which says that this request has taken too long. A check
            // below reports the reason instead.
            Ok(()) | Err(Error::NotEnoughReplicas { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        // Then come the checks whose failures are not errors of an operation.
        match self.checks().into_iter().find_map(|check| check.fault) {
            Some(fault) => Err(ApiError::NotReady(fault)),
            None => Ok(text("ready\n".to_owned())),
        }
    }

    /// Begins or ends a drain. During a drain klad serves as before, but `/readyz` answers 503, so that load balancers
    /// send their requests to other servers.
    pub(super) fn drain(&self, begins: bool) -> Response<String> {
        if self.draining.replace(begins) != begins {
            tracing::info!(draining = begins, "an operator has changed whether klad reports that it is ready");
        }
        self.drain_answer()
    }

    /// Answers whether klad is draining.
    pub(super) fn drain_answer(&self) -> Response<String> {
        control::json(&json!({ "draining": self.draining.get() }))
    }

    /// Answers with each check and its state.
    pub(super) fn ready_verbosely(&self) -> Response<String> {
        let mut lines = String::new();
        let mut ready = true;
        for check in self.checks() {
            let _ = match check.fault {
                None => writeln!(lines, "[+]{} ok", check.name),
                Some(fault) => {
                    ready = false;
                    writeln!(lines, "[-]{} failed: {fault}", check.name)
                }
            };
        }
        lines += if ready { "readyz check passed\n" } else { "readyz check failed\n" };
        let mut answer = text(lines);
        if !ready {
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        answer
    }

    /// Returns all conditions for being ready, with their current state.
    pub(super) fn checks(&self) -> Vec<Check> {
        let stopping = self.stopping.load(Ordering::Acquire);
        let mut checks = vec![Check::of("not-stopping", if stopping { Err(Error::Stopping) } else { Ok(()) })];
        let drained = self.draining.get().then(|| "an operator has asked for it; DELETE /drain ends it".to_owned());
        checks.push(Check { name: "not-draining", fault: drained });
        checks.extend(self.executor.checks());
        if let Some(taken) = self.executor.observe().taken {
            let silent = clock::now().saturating_duration_since(taken);
            let late = silent > HOUSEKEEPING_LATE;
            let fault = late.then(|| format!("storage has not answered for {} s", silent.as_secs()));
            checks.push(Check { name: "storage-answers", fault });
        }
        checks
    }
}
