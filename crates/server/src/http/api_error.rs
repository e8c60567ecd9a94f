//! Everything that a request can be answered with instead of what it asked for, and the one table of statuses.
//!
//! A refusal below 500, and 503, 504 and 507, says that nothing has happened. 500 on a write says that the outcome is
//! undetermined. Called by all of `http`.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};

use klad_base::limits::{RETRY_AFTER_MAX, RETRY_AFTER_MIN, RETRY_AFTER_UNKNOWN};
use klad_storage::operation::Error;

/// `Retry-After`, in milliseconds.
const RETRY_AFTER_MS_HEADER: &str = "klad-retry-after-ms";

/// Why a request gets no other answer.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// No such path under the contract, which says 400 and not 404.
    #[error("there is nothing at this path")]
    UnknownPath,
    /// The path has no such method.
    #[error("this path takes only {0}")]
    MethodNotAllowed(&'static str),
    /// What came is not the head of a request.
    #[error(
        "this is not a request of HTTP/1.1: its first line, a header or its framing is malformed, or of another version"
    )]
    MalformedHead,
    /// HTTP/1.1 without `Host`, or with two.
    #[error("a request of HTTP/1.1 has one Host header")]
    BadHost,
    /// A body that is coded in another way than in chunks.
    #[error("Transfer-Encoding can only be chunked, said once")]
    BadTransferEncoding,
    /// Longer than `--head-max`, or more headers than [`HEADERS_MAX`](klad_base::limits::HEADERS_MAX).
    #[error("the request line and headers are longer than this server takes, or too many")]
    HeadTooLarge,
    /// The client stopped sending in the middle of a head.
    #[error("the request's head did not arrive in time")]
    HeadTimeout,
    /// The address has `--connections-per-peer` of them.
    #[error("this address has as many connections as it may have")]
    TooManyConnections,
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
    /// The configuration that was asked for is wrong.
    #[error("{0}")]
    BadConfiguration(String),
    /// The configuration that was asked for holds only from a start on.
    #[error("{0}")]
    NeedsRestart(String),
    /// Said by the admin listener alone: something that no operation is refused for is not as it should be.
    #[error("{0}")]
    NotReady(String),
    /// Said by the admin listener alone: a parameter of a profile that is unknown or malformed.
    #[error("{0}")]
    BadParameter(String),
    /// Said by the admin listener alone: other profiles are being taken, and this one cannot be beside them.
    #[error("{0}")]
    ProfileBusy(String),
    /// Said by the admin listener alone: this machine does not let klad take such a profile.
    #[error("{0}")]
    ProfileRefused(String),
    /// A page in a browser asks the admin listener to do something: pages of klad's own there are none.
    #[error("requests from pages in a browser change nothing here")]
    CrossOrigin,
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

impl ApiError {
    /// The one status table.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            ApiError::UnknownPath
            | ApiError::MalformedHead
            | ApiError::BadHost
            | ApiError::BadTransferEncoding
            | ApiError::MissingParameter(_)
            | ApiError::EmptyParameter(_)
            | ApiError::BadEscape(_)
            | ApiError::BadDurability
            | ApiError::BadTimeout
            | ApiError::BadConfiguration(_)
            | ApiError::BadParameter(_)
            | ApiError::BodyBroken(_) => StatusCode::BAD_REQUEST,
            ApiError::NeedsRestart(_) | ApiError::ProfileBusy(_) => StatusCode::CONFLICT,
            ApiError::ProfileRefused(_) => StatusCode::NOT_IMPLEMENTED,
            ApiError::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            ApiError::HeadTimeout | ApiError::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            ApiError::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            ApiError::Unauthorized => StatusCode::UNAUTHORIZED,
            ApiError::ReadOnlyToken | ApiError::CrossOrigin => StatusCode::FORBIDDEN,
            ApiError::ValueTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            ApiError::KeyTooLong { .. } => StatusCode::URI_TOO_LONG,
            ApiError::TooManyConnections | ApiError::NoRoom { .. } | ApiError::NotReady(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ApiError::Operation(error) => match error {
                Error::Overloaded { .. }
                | Error::NoRoom { .. }
                | Error::Stopping
                | Error::Stalled
                | Error::WritesStopped { .. }
                | Error::NoVersion { .. } => StatusCode::SERVICE_UNAVAILABLE,
                Error::NotSupported { .. } => StatusCode::NOT_IMPLEMENTED,
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
            ApiError::UnknownPath => "unknown-path",
            ApiError::MethodNotAllowed(_) => "method-not-allowed",
            ApiError::MalformedHead => "malformed-head",
            ApiError::BadHost => "bad-host",
            ApiError::BadTransferEncoding => "bad-transfer-encoding",
            ApiError::HeadTooLarge => "head-too-large",
            ApiError::HeadTimeout => "head-timeout",
            ApiError::TooManyConnections => "too-many-connections",
            ApiError::MissingParameter(_) => "missing-parameter",
            ApiError::EmptyParameter(_) => "empty-parameter",
            ApiError::BadEscape(_) => "bad-escape",
            ApiError::BadDurability => "bad-durability",
            ApiError::BadTimeout => "bad-timeout",
            ApiError::KeyTooLong { .. } => "key-too-long",
            ApiError::ValueTooLarge { .. } => "value-too-large",
            ApiError::NoRoom { .. } => "no-room",
            ApiError::BodyTimeout => "body-timeout",
            ApiError::BodyBroken(_) => "body-broken",
            ApiError::BadConfiguration(_) => "bad-configuration",
            ApiError::NeedsRestart(_) => "needs-restart",
            ApiError::NotReady(_) => "not-ready",
            ApiError::BadParameter(_) => "bad-parameter",
            ApiError::ProfileBusy(_) => "profile-busy",
            ApiError::ProfileRefused(_) => "profile-refused",
            ApiError::Unauthorized => "unauthorized",
            ApiError::ReadOnlyToken => "read-only-token",
            ApiError::CrossOrigin => "cross-origin",
            ApiError::Operation(error) => match error {
                Error::Overloaded { .. } => "overloaded",
                Error::NotSupported { .. } => "not-supported",
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

    /// Every code, and what connections are refused for before there is a request; each is counted on its own.
    pub const CODES: &[&str] = &[
        "unknown-path",
        "method-not-allowed",
        "missing-parameter",
        "empty-parameter",
        "bad-escape",
        "bad-durability",
        "bad-timeout",
        "key-too-long",
        "value-too-large",
        "no-room",
        "body-timeout",
        "body-broken",
        "overloaded",
        "not-supported",
        "deadline-passed",
        "stopping",
        "stalled",
        "no-space",
        "memory-full",
        "writes-stopped",
        "no-version",
        "read-failed",
        "unreadable-record",
        "undetermined",
        "malformed-head",
        "bad-host",
        "bad-transfer-encoding",
        "head-too-large",
        "head-timeout",
        "unauthorized",
        "read-only-token",
    ];

    /// The wait until it may be worth trying again, for a 503 and for a profile.
    fn retry_after(&self) -> Duration {
        match self {
            // Only a restart helps, and that takes an operator.
            ApiError::Operation(Error::WritesStopped { .. }) => RETRY_AFTER_MAX,
            ApiError::Operation(Error::Overloaded { retry_after: Some(wait), .. }) => *wait,
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
        if status == StatusCode::SERVICE_UNAVAILABLE || matches!(self, ApiError::ProfileBusy(_)) {
            let wait = self.retry_after().clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX);
            let wait_ms = u64::try_from(wait.as_millis()).expect("at most half a minute");
            parts.headers.insert(RETRY_AFTER, HeaderValue::from(wait_ms.div_ceil(1_000)));
            parts.headers.insert(RETRY_AFTER_MS_HEADER, HeaderValue::from(wait_ms));
        }
        if status == StatusCode::UNAUTHORIZED {
            parts.headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(r#"Bearer realm="klad""#));
        }
        if let ApiError::MethodNotAllowed(allow) = self {
            parts.headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        (parts, format!("{document}\n"))
    }

    /// The same as bytes of HTTP/1.1, where the connection ends after it and hyper has no say.
    #[must_use]
    pub fn into_last_words(self) -> Vec<u8> {
        let (parts, document) = self.into_parts();
        let reason = parts.status.canonical_reason().unwrap_or_default();
        let mut words = format!("HTTP/1.1 {} {reason}\r\nconnection: close\r\n", parts.status.as_u16()).into_bytes();
        for (name, value) in &parts.headers {
            words.extend_from_slice(name.as_str().as_bytes());
            words.extend_from_slice(b": ");
            words.extend_from_slice(value.as_bytes());
            words.extend_from_slice(b"\r\n");
        }
        words.extend_from_slice(format!("content-length: {}\r\n\r\n{document}", document.len()).as_bytes());
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_a_whole_answer() {
        let words = String::from_utf8(ApiError::TooManyConnections.into_last_words()).expect("text");
        let (head, body) = words.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n"), "{head}");
        assert!(head.contains("retry-after: 1\r\n"), "{head}");
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head} {}", body.len());
        assert!(body.contains(r#""code":"too-many-connections""#), "{body}");
    }
}
