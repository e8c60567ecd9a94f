//! Everything that a request can be answered with instead of what it asked for, and the one table of statuses.
//!
//! A refusal below 500, and 503, 504 and 507, says that nothing has happened. 500 on a write says that the outcome is
//! undetermined. Called by all of `http`.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};

use crate::limits::{RETRY_AFTER_MAX, RETRY_AFTER_MIN, RETRY_AFTER_UNKNOWN};
use crate::operation::Error;

/// `Retry-After`, in milliseconds.
const RETRY_AFTER_MS_HEADER: &str = "klad-retry-after-ms";

/// Why a request gets no other answer.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// No such path under the contract, which says 400 and not 404.
    #[error("there is nothing at this path")]
    UnknownPath,
    /// The path has no such method.
    #[error("this path takes only {0}")]
    MethodNotAllowed(&'static str),
    /// A parameter that must be there is not, or is empty.
    #[error("parameter {0} is missing or empty")]
    MissingParameter(&'static str),
    /// A parameter that may be left out is there, but empty.
    #[error("parameter {0} is empty")]
    EmptyParameter(&'static str),
    /// A `%` without two hexadecimal digits.
    #[error("parameter {0} holds a % that is not followed by two hexadecimal digits")]
    BadEscape(&'static str),
    /// Not a time such as `250ms`.
    #[error("klad-timeout is a time from 1ms to 1h, such as 250ms or 10s")]
    BadTimeout,
    /// Neither `sync` nor `async`.
    #[error("durability is sync or async")]
    BadDurability,
    /// Longer than `--key-max`.
    #[error("the key is longer than {limit_bytes} bytes")]
    KeyTooLong {
        /// The limit.
        limit_bytes: u64,
    },
    /// Longer than `--value-max`.
    #[error("the value is longer than {limit_bytes} bytes")]
    ValueTooLarge {
        /// The limit.
        limit_bytes: u64,
    },
    /// Request bodies and large answers take all the room there is.
    #[error("no room for {bytes} bytes of {of} now")]
    NoRoom {
        /// What was asked for.
        bytes: u64,
        /// `request body` or `answer`.
        of: &'static str,
    },
    /// The client stopped sending in the middle of a body.
    #[error("the request body did not arrive in time")]
    BodyTimeout,
    /// The body is not one: bad chunks, or the connection ended.
    #[error("the request body cannot be read: {0}")]
    BodyBroken(String),
    /// No token, or none of `--token-file`. Decided before anything else, so that it tells nothing else.
    #[error("this needs the header Authorization: Bearer TOKEN, with a token that this server knows")]
    Unauthorized,
    /// A token that may only read.
    #[error("this token may only read")]
    ReadOnlyToken,
    /// Storage said no, or failed.
    #[error(transparent)]
    Operation(#[from] Error),
}

impl Refusal {
    /// The one status table.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Refusal::UnknownPath
            | Refusal::MissingParameter(_)
            | Refusal::EmptyParameter(_)
            | Refusal::BadEscape(_)
            | Refusal::BadDurability
            | Refusal::BadTimeout
            | Refusal::BodyBroken(_) => StatusCode::BAD_REQUEST,
            Refusal::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Refusal::Unauthorized => StatusCode::UNAUTHORIZED,
            Refusal::ReadOnlyToken => StatusCode::FORBIDDEN,
            Refusal::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Refusal::ValueTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Refusal::KeyTooLong { .. } => StatusCode::URI_TOO_LONG,
            Refusal::NoRoom { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Refusal::Operation(error) => match error {
                Error::Overloaded { .. }
                | Error::NoRoom { .. }
                | Error::Stopping
                | Error::Stalled
                | Error::WritesStopped { .. }
                | Error::NoVersion { .. } => StatusCode::SERVICE_UNAVAILABLE,
                Error::DeadlinePassed => StatusCode::GATEWAY_TIMEOUT,
                Error::NoSpace { .. } | Error::MemoryFull { .. } => StatusCode::INSUFFICIENT_STORAGE,
                Error::ReadFailed { .. } | Error::Unreadable { .. } | Error::Undetermined { .. } => {
                    StatusCode::INTERNAL_SERVER_ERROR
                }
            },
        }
    }

    /// The stable word for programs, in the problem document's `code`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::UnknownPath => "unknown-path",
            Refusal::MethodNotAllowed(_) => "method-not-allowed",
            Refusal::MissingParameter(_) => "missing-parameter",
            Refusal::EmptyParameter(_) => "empty-parameter",
            Refusal::BadEscape(_) => "bad-escape",
            Refusal::BadDurability => "bad-durability",
            Refusal::BadTimeout => "bad-timeout",
            Refusal::KeyTooLong { .. } => "key-too-long",
            Refusal::ValueTooLarge { .. } => "value-too-large",
            Refusal::NoRoom { .. } => "no-room",
            Refusal::BodyTimeout => "body-timeout",
            Refusal::BodyBroken(_) => "body-broken",
            Refusal::Unauthorized => "unauthorized",
            Refusal::ReadOnlyToken => "read-only-token",
            Refusal::Operation(error) => match error {
                Error::Overloaded { .. } => "overloaded",
                Error::NoRoom { .. } => "no-room",
                Error::DeadlinePassed => "deadline-passed",
                Error::Stopping => "stopping",
                Error::Stalled => "stalled",
                Error::NoSpace { .. } => "no-space",
                Error::MemoryFull { .. } => "memory-full",
                Error::WritesStopped { .. } => "writes-stopped",
                Error::NoVersion { .. } => "no-version",
                Error::ReadFailed { .. } => "read-failed",
                Error::Unreadable { .. } => "unreadable-record",
                Error::Undetermined { .. } => "undetermined",
            },
        }
    }

    /// The wait until it may be worth trying again, for a 503.
    fn retry_after(&self) -> Duration {
        match self {
            // Only a restart helps, and that takes an operator.
            Refusal::Operation(Error::WritesStopped { .. }) => RETRY_AFTER_MAX,
            Refusal::Operation(Error::Overloaded { retry_after: Some(wait), .. }) => *wait,
            _ => RETRY_AFTER_UNKNOWN,
        }
    }

    /// The answer: a problem document (RFC 9457) with the headers that the status calls for.
    pub fn into_parts(self) -> (hyper::http::response::Parts, String) {
        let status = self.status();
        let document = serde_json::json!({
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "code": self.code(),
            "detail": self.to_string(),
        });
        let (mut parts, ()) = hyper::Response::new(()).into_parts();
        parts.status = status;
        parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            let wait = self.retry_after().clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX);
            let wait_ms = u64::try_from(wait.as_millis()).expect("at most half a minute");
            parts.headers.insert(RETRY_AFTER, HeaderValue::from(wait_ms.div_ceil(1_000)));
            parts.headers.insert(RETRY_AFTER_MS_HEADER, HeaderValue::from(wait_ms));
        }
        if status == StatusCode::UNAUTHORIZED {
            parts.headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(r#"Bearer realm="klad""#));
        }
        if let Refusal::MethodNotAllowed(allow) = self {
            parts.headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        (parts, format!("{document}\n"))
    }
}
