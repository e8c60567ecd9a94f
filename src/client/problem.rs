//! Unexpected answers: code and detail of the problem document, whether a write happened, and when to try again. Called
//! by the commands.

use std::time::Duration;

use crate::client::Error;
use crate::client::answer::{Answer, AnswerError};
use crate::client::connection::Connection;
use crate::client::limits::{CLIENT_PAUSE_RANGE, CLIENT_PROBLEM_BYTES_MAX};
use crate::client::output::CopyError;

/// An unexpected answer.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) status: u16,
    /// `None` if the answer does not come from klad.
    pub(super) code: Option<String>,
    detail: Option<String>,
    /// The number of the item of a batch, from 0.
    pub(super) item: Option<u64>,
    /// The beginning of the message, which says what the answer is about; may be empty.
    pub(super) about: String,
    /// The current `ETag`, for a condition that does not hold.
    current_etag: Option<String>,
    /// Seconds, as the server wrote them.
    retry_after: Option<String>,
    retry_after_ms: Option<u64>,
}

impl Problem {
    /// Reads the rest of an answer.
    pub(super) fn read(connection: &mut Connection, answer: &mut Answer) -> Problem {
        let mut body = Vec::new();
        // A part of the document is enough.
        let _ = answer.copy_body::<CopyError>(connection, |piece| {
            let left = CLIENT_PROBLEM_BYTES_MAX - body.len();
            body.extend_from_slice(&piece[..piece.len().min(left)]);
            if body.len() < CLIENT_PROBLEM_BYTES_MAX { Ok(()) } else { Err(CopyError::Answer(AnswerError::Ended)) }
        });
        let document: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = |name: &str| document[name].as_str().map(str::to_owned);
        let etag = || answer.header("etag").map(str::to_owned);
        Problem {
            status: answer.status,
            code: text("code"),
            detail: text("detail"),
            item: document["item"].as_u64(),
            about: String::new(),
            current_etag: text("current_etag").or_else(etag),
            retry_after: answer.header("retry-after").map(str::to_owned),
            retry_after_ms: answer.header("klad-retry-after-ms").and_then(|text| text.parse().ok()),
        }
    }

    /// Returns whether the answer says that the key does not exist. Any other 404 means an unknown path.
    pub(super) fn is_not_found(&self) -> bool {
        self.status == 404 && self.code.as_deref() == Some("not-found")
    }

    /// Returns how long to wait before the request is repeated.
    pub(super) fn pause(&self) -> Duration {
        let seconds = || self.retry_after.as_deref()?.parse().ok().map(Duration::from_secs);
        let told = self.retry_after_ms.map(Duration::from_millis).or_else(seconds);
        told.unwrap_or_default().clamp(*CLIENT_PAUSE_RANGE.start(), *CLIENT_PAUSE_RANGE.end())
    }

    /// Returns the answer as the error of a command.
    pub(super) fn into_error(self, is_write: bool) -> Error {
        if self.is_not_found() && self.about.is_empty() {
            return Error::NotFound;
        }
        let detail = self.detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        let status = self.status;
        let about = &self.about;
        let text = match &self.code {
            Some(code) => format!("{about}{code}{detail} (status {status})"),
            None => format!("{about}the answer has status {status} and no reason"),
        };
        // klad's own rejections had no effect, except those with these codes. The answer of a proxy says nothing about
        // what klad did.
        let code = self.code.as_deref();
        let may_have_happened = matches!(code, Some("undetermined" | "not-enough-replicas"));
        if is_write && (may_have_happened || status < 400 || (status >= 500 && code.is_none())) {
            return Error::Undetermined(text);
        }
        if code == Some("precondition-failed") {
            let current = match self.current_etag {
                Some(etag) => format!("the current ETag is {etag}"),
                None => "the key does not exist".to_owned(),
            };
            return Error::Unmet(format!("{text}; nothing has happened; {current}"));
        }
        let later = match self.retry_after {
            Some(seconds) => format!("; try again after {seconds} s"),
            None => String::new(),
        };
        let nothing = if is_write { "; nothing has happened" } else { "" };
        Error::Refused(format!("{text}{nothing}{later}"))
    }
}

/// Returns an unexpected answer as an error.
pub(super) fn rejection(connection: &mut Connection, answer: &mut Answer, is_write: bool) -> Error {
    Problem::read(connection, answer).into_error(is_write)
}
