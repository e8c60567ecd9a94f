//! All errors with which klad answers a request, and the only table of their statuses.
//!
//! A request has had no effect if its error has a code other than `undetermined` or `not-enough-replicas`. A write with
//! one of these two codes (status 500 or 504) may have taken effect. All of `http` calls this.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{ALLOW, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};

use crate::limits::{BATCH_READ_BYTES_MAX, RETRY_AFTER_MAX, RETRY_AFTER_MIN, RETRY_AFTER_UNKNOWN};
use klad_storage::limits::COMMIT_BYTES_MAX;
use klad_storage::operation::{ChangeError, Error, Version};

/// `Retry-After` in milliseconds.
const RETRY_AFTER_MS_HEADER: &str = "klad-retry-after-ms";

/// Why a request fails.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The path does not exist. The contract says that the status is 400 and not 404.
    #[error("there is nothing at this path; a value is at /v1/kv/KEY, and the console is on the admin address")]
    UnknownPath,
    /// The path does not support the method.
    #[error("this path accepts only {0}")]
    MethodNotAllowed(&'static str),
    /// The bytes are not the head of a request.
    #[error("this is not an HTTP/1.1 request: the first line, a header, the framing or the version is wrong")]
    MalformedHead,
    /// The request is HTTP/1.1 and has no `Host` header, or has two.
    #[error("an HTTP/1.1 request must have exactly one Host header")]
    BadHost,
    /// `Transfer-Encoding` is not exactly `chunked`, or appears twice.
    #[error("Transfer-Encoding must be chunked, and must appear once")]
    BadTransferEncoding,
    /// The head is longer than `--head-max`, or has more headers than [`HEADERS_MAX`](crate::limits::HEADERS_MAX).
    #[error("the request line and headers are too long, or there are too many headers")]
    HeadTooLarge,
    /// The client did not send the whole head in time.
    #[error("the request's head did not arrive in time")]
    HeadTimeout,
    /// The address already has `--connections-per-peer` connections.
    #[error("this address already has the maximum number of connections")]
    TooManyConnections,
    /// A required parameter is missing or empty.
    #[error("parameter {0} is missing or empty")]
    MissingParameter(&'static str),
    /// A request for one key has no key, or an empty one.
    #[error("the key is missing or empty: add it to the path (/v1/kv/KEY), or give it as parameter key64")]
    MissingKey,
    /// A change in place lacks the parameter `op`.
    #[error("parameter op is missing: it is add or expire; PUT stores a value")]
    MissingOp,
    /// An optional parameter is empty.
    #[error("parameter {0} is empty")]
    EmptyParameter(&'static str),
    /// A parameter contains a `%` that is not followed by two hexadecimal digits.
    #[error("parameter {0} contains a % that is not followed by two hexadecimal digits")]
    BadEscape(&'static str),
    /// The header `klad-timeout` is not a time such as `250ms`.
    #[error("klad-timeout must be a time from 1ms to 1h, such as 250ms or 10s")]
    BadTimeout,
    /// The durability is neither `sync` nor `async`.
    #[error("durability must be sync or async")]
    BadDurability,
    /// The consistency level is unknown, or is given together with `ack`, `from` or `replicas`.
    #[error("klad-consistency must be one, quorum, local_quorum, all or serial, without ack, from and replicas")]
    BadConsistency,
    /// The store cannot wait for the numbers of copies that the request gives.
    #[error("ack=A&from=F and replicas=A/F need 1 <= A <= F <= {copies}, the number of copies of each key")]
    BadReplicas {
        /// The number of copies that the store keeps.
        copies: u8,
    },
    /// The key is longer than `--key-max`.
    #[error("the key is longer than {limit_bytes} bytes (--key-max)")]
    KeyTooLong {
        /// The limit.
        limit_bytes: u64,
    },
    /// The value is longer than `--value-max`.
    #[error("the value is longer than {limit_bytes} bytes (--value-max)")]
    ValueTooLarge {
        /// The limit.
        limit_bytes: u64,
    },
    /// The body budget has too few free bytes, because other request bodies and large answers use it.
    #[error("not enough memory for {bytes} bytes of {of} now")]
    NoRoom {
        /// The number of bytes that were asked for.
        bytes: u64,
        /// `request body` or `answer`.
        of: &'static str,
    },
    /// The client stopped sending the body or sent it too slowly, or klad needed the body budget of this slow request.
    #[error("the request body did not arrive in time")]
    BodyTimeout,
    /// The body is malformed, or the connection ended.
    #[error("the request body cannot be read: {0}")]
    BodyBroken(String),
    /// A requested change of the configuration is invalid.
    #[error("{0}")]
    BadConfiguration(String),
    /// A requested change of the configuration needs a restart.
    #[error("{0}")]
    NeedsRestart(String),
    /// klad is not ready, although it rejects no operation. Only the admin listener says this.
    #[error("{0}")]
    NotReady(String),
    /// A parameter, or the header `Last-Event-ID`, has an invalid value. The admin listener also uses this error for an
    /// unknown parameter, but `/v1` uses [`ApiError::UnknownParameter`].
    #[error("{0}")]
    BadParameter(String),
    /// Other profiles are running, and this one cannot run at the same time. Only the admin listener says this.
    #[error("{0}")]
    ProfileBusy(String),
    /// This machine does not allow such a profile. Only the admin listener says this.
    #[error("{0}")]
    ProfileRefused(String),
    /// A page in a browser asks for a change, and the page is not klad's console. Only the admin listener says this.
    #[error("klad rejects changes that a page in a browser asks for, other than its console")]
    CrossOrigin,
    /// The request may come from a page whose domain was made to resolve to this server's address (DNS rebinding).
    #[error(
        "without tokens, this needs a URL with an IP address or localhost: any page could have another name lead here"
    )]
    UntrustedHost,
    /// The maximum of consoles is open, or the maximum of requests of consoles is in progress. Only the admin listener
    /// says this.
    #[error("{0}; try again when one has ended")]
    ConsoleBusy(&'static str),
    /// The request has no token, or an unknown one. klad checks the token before the path, so that a client without a
    /// token learns nothing about paths and keys.
    #[error("send the header Authorization: Bearer TOKEN, with a token that this server knows")]
    Unauthorized,
    /// The token allows only reads.
    #[error("this token allows only reads; a change needs a token with read-write")]
    ReadOnlyToken,
    /// The path begins with `/v1/`, and nothing is at this path.
    #[error("there is nothing at this path")]
    NoSuchPath,
    /// The key has no value. Only `/v1` answers this with a problem document.
    #[error("the key has no value")]
    NotFound,
    /// A parameter of `/v1` is unknown.
    #[error("parameter {name} is unknown here; known are: {known}")]
    UnknownParameter {
        /// The name as it was sent, shortened.
        name: String,
        /// The parameters that this request takes.
        known: String,
    },
    /// A parameter of `/v1` is given twice, or in two forms.
    #[error("parameter {0} is given more than once")]
    RepeatedParameter(&'static str),
    /// The parameter's value is not base64url.
    #[error("{0} must be base64url (RFC 4648, section 5)")]
    BadBase64(&'static str),
    /// klad cannot honour the condition of a write.
    #[error("{0}")]
    BadCondition(&'static str),
    /// The time to live is malformed, or too short or long.
    #[error("the time to live must be a time from 1ms to 100 years, such as 60s, and given once")]
    BadTtl,
    /// Content type or user metadata is malformed.
    #[error("{0}")]
    BadMetadata(&'static str),
    /// There is too much user metadata.
    #[error("the user metadata has more than {limit_bytes} bytes, or too many entries")]
    MetadataTooLarge {
        /// The limit of its bytes.
        limit_bytes: u64,
    },
    /// The condition of the request does not hold.
    #[error("the condition does not hold: {}", describe(*.current))]
    PreconditionFailed {
        /// The version of the present value. `None` if the key has no value.
        current: Option<Version>,
    },
    /// The value is not a number, so nothing can be added to it.
    #[error("the value is not a decimal number from -2^63 to 2^63 - 1")]
    NotANumber,
    /// The sum does not fit into 64 bits.
    #[error("the sum is not between -2^63 and 2^63 - 1")]
    NumberOverflow,
    /// The range contains no byte of the value.
    #[error("the value has {length} bytes, and none of them is in the range")]
    RangeNotSatisfiable {
        /// The length of the value.
        length: u64,
    },
    /// The body of a batch has an unsupported type or encoding.
    #[error("the body must be {0}")]
    UnsupportedMediaType(&'static str),
    /// An item of a batch is malformed.
    #[error("{0}")]
    BadItem(String),
    /// The batch has too many items or bytes.
    #[error("the batch has more than {limit} {of}")]
    BatchTooLarge {
        /// The limit.
        limit: u64,
        /// What is limited, such as `items`.
        of: &'static str,
    },
    /// The values that a batch reads are together too large for an answer.
    #[error("the values that the batch reads have more than {limit_bytes} bytes")]
    AnswerTooLarge {
        /// The limit.
        limit_bytes: u64,
    },
    /// The cursor is damaged, or does not fit the other parameters of the scan.
    #[error("the cursor is damaged, or belongs to another scan")]
    BadCursor,
    /// An item of a batch is the reason for the error.
    #[error("item {item}: {error}")]
    Item {
        /// The number of the item, from 0.
        item: usize,
        /// The error of the item.
        error: Box<ApiError>,
    },
    /// Changes after the version that the client names are no longer kept.
    #[error("changes before version {oldest} are no longer kept; read the present state, then watch from there")]
    VersionGone {
        /// The version of the oldest change that is kept.
        oldest: u64,
    },
    /// Storage rejected the operation, or the operation failed.
    #[error(transparent)]
    Operation(#[from] Error),
}

impl ApiError {
    /// Returns the status, from the only table of statuses.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            ApiError::UnknownPath
            | ApiError::MalformedHead
            | ApiError::BadHost
            | ApiError::BadTransferEncoding
            | ApiError::MissingParameter(_)
            | ApiError::MissingKey
            | ApiError::MissingOp
            | ApiError::EmptyParameter(_)
            | ApiError::BadEscape(_)
            | ApiError::BadDurability
            | ApiError::BadConsistency
            | ApiError::BadReplicas { .. }
            | ApiError::BadTimeout
            | ApiError::BadConfiguration(_)
            | ApiError::BadParameter(_)
            | ApiError::UnknownParameter { .. }
            | ApiError::RepeatedParameter(_)
            | ApiError::BadBase64(_)
            | ApiError::BadCondition(_)
            | ApiError::BadTtl
            | ApiError::BadMetadata(_)
            | ApiError::MetadataTooLarge { .. }
            | ApiError::BadItem(_)
            | ApiError::BadCursor
            | ApiError::BodyBroken(_) => StatusCode::BAD_REQUEST,
            ApiError::NoSuchPath | ApiError::NotFound => StatusCode::NOT_FOUND,
            ApiError::VersionGone { .. } => StatusCode::GONE,
            ApiError::PreconditionFailed { .. } => StatusCode::PRECONDITION_FAILED,
            ApiError::RangeNotSatisfiable { .. } => StatusCode::RANGE_NOT_SATISFIABLE,
            ApiError::UnsupportedMediaType(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ApiError::Item { error, .. } => error.status(),
            ApiError::NeedsRestart(_) | ApiError::ProfileBusy(_) | ApiError::NotANumber | ApiError::NumberOverflow => {
                StatusCode::CONFLICT
            }
            ApiError::ProfileRefused(_) => StatusCode::NOT_IMPLEMENTED,
            ApiError::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            ApiError::HeadTimeout | ApiError::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            ApiError::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            ApiError::Unauthorized => StatusCode::UNAUTHORIZED,
            ApiError::ReadOnlyToken | ApiError::CrossOrigin | ApiError::UntrustedHost => StatusCode::FORBIDDEN,
            ApiError::ValueTooLarge { .. } | ApiError::BatchTooLarge { .. } | ApiError::AnswerTooLarge { .. } => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            ApiError::KeyTooLong { .. } => StatusCode::URI_TOO_LONG,
            ApiError::TooManyConnections
            | ApiError::NoRoom { .. }
            | ApiError::NotReady(_)
            | ApiError::ConsoleBusy(_) => StatusCode::SERVICE_UNAVAILABLE,
            ApiError::Operation(error) => match error {
                Error::Overloaded { .. }
                | Error::NoRoom { .. }
                | Error::Stopping
                | Error::Stalled
                | Error::WritesStopped { .. }
                | Error::NoVersion { .. } => StatusCode::SERVICE_UNAVAILABLE,
                Error::NotSupported { .. } => StatusCode::NOT_IMPLEMENTED,
                Error::RangeTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                Error::DeadlinePassed | Error::NotEnoughReplicas { .. } => StatusCode::GATEWAY_TIMEOUT,
                Error::NoSpace { .. } | Error::MemoryFull { .. } => StatusCode::INSUFFICIENT_STORAGE,
                Error::ReadFailed { .. }
                | Error::Unreadable { .. }
                | Error::RejectedByCluster { .. }
                | Error::Undetermined { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            },
        }
    }

    /// The stable code for programs, in the problem document's `code`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            ApiError::UnknownPath | ApiError::NoSuchPath => "unknown-path",
            ApiError::NotFound => "not-found",
            ApiError::UnknownParameter { .. } => "unknown-parameter",
            ApiError::RepeatedParameter(_) => "repeated-parameter",
            ApiError::BadBase64(_) => "bad-base64",
            ApiError::BadCondition(_) => "bad-condition",
            ApiError::BadTtl => "bad-ttl",
            ApiError::BadMetadata(_) => "bad-metadata",
            ApiError::MetadataTooLarge { .. } => "metadata-too-large",
            ApiError::PreconditionFailed { .. } => "precondition-failed",
            ApiError::NotANumber => "not-a-number",
            ApiError::NumberOverflow => "number-overflow",
            ApiError::RangeNotSatisfiable { .. } => "range-not-satisfiable",
            ApiError::UnsupportedMediaType(_) => "unsupported-media-type",
            ApiError::BadItem(_) => "bad-item",
            ApiError::BatchTooLarge { .. } => "batch-too-large",
            ApiError::AnswerTooLarge { .. } => "answer-too-large",
            ApiError::BadCursor => "bad-cursor",
            ApiError::VersionGone { .. } => "version-gone",
            ApiError::Item { error, .. } => error.code(),
            ApiError::MethodNotAllowed(_) => "method-not-allowed",
            ApiError::MalformedHead => "malformed-head",
            ApiError::BadHost => "bad-host",
            ApiError::BadTransferEncoding => "bad-transfer-encoding",
            ApiError::HeadTooLarge => "head-too-large",
            ApiError::HeadTimeout => "head-timeout",
            ApiError::TooManyConnections => "too-many-connections",
            ApiError::MissingParameter(_) | ApiError::MissingKey | ApiError::MissingOp => "missing-parameter",
            ApiError::EmptyParameter(_) => "empty-parameter",
            ApiError::BadEscape(_) => "bad-escape",
            ApiError::BadDurability => "bad-durability",
            ApiError::BadConsistency => "bad-consistency",
            ApiError::BadReplicas { .. } => "bad-replicas",
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
            ApiError::UntrustedHost => "untrusted-host",
            ApiError::ConsoleBusy(_) => "console-busy",
            ApiError::Operation(error) => match error {
                Error::Overloaded { .. } => "overloaded",
                Error::NotSupported { .. } => "not-supported-by-engine",
                Error::RangeTooLarge { .. } => "range-too-large",
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
                Error::RejectedByCluster { .. } => "rejected-by-cluster",
                Error::NotEnoughReplicas { .. } => "not-enough-replicas",
                Error::Undetermined { .. } => "undetermined",
            },
        }
    }

    /// The label values of the counters of errors: all codes that the data listener answers with, except
    /// `too-many-connections`.
    pub const CODES: &[&str] = &[
        "unknown-path",
        "method-not-allowed",
        "missing-parameter",
        "empty-parameter",
        "bad-escape",
        "bad-durability",
        "bad-consistency",
        "bad-replicas",
        "bad-timeout",
        "key-too-long",
        "value-too-large",
        "no-room",
        "body-timeout",
        "body-broken",
        "overloaded",
        "not-supported-by-engine",
        "range-too-large",
        "deadline-passed",
        "stopping",
        "stalled",
        "no-space",
        "memory-full",
        "writes-stopped",
        "no-version",
        "read-failed",
        "unreadable-record",
        "rejected-by-cluster",
        "not-enough-replicas",
        "undetermined",
        "malformed-head",
        "bad-host",
        "bad-transfer-encoding",
        "head-too-large",
        "head-timeout",
        "unauthorized",
        "read-only-token",
        "not-found",
        "bad-parameter",
        "unknown-parameter",
        "repeated-parameter",
        "bad-base64",
        "bad-condition",
        "bad-ttl",
        "bad-metadata",
        "metadata-too-large",
        "precondition-failed",
        "not-a-number",
        "number-overflow",
        "range-not-satisfiable",
        "unsupported-media-type",
        "bad-item",
        "batch-too-large",
        "answer-too-large",
        "bad-cursor",
        "version-gone",
    ];

    /// Whether the same request may succeed later.
    fn is_retryable(&self) -> bool {
        matches!(
            self.status(),
            StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
                | StatusCode::REQUEST_TIMEOUT
                | StatusCode::INSUFFICIENT_STORAGE
        ) || matches!(self, ApiError::ProfileBusy(_))
    }

    /// The limit that the request has exceeded.
    fn limit(&self) -> Option<u64> {
        match self {
            ApiError::KeyTooLong { limit_bytes }
            | ApiError::ValueTooLarge { limit_bytes }
            | ApiError::MetadataTooLarge { limit_bytes }
            | ApiError::AnswerTooLarge { limit_bytes } => Some(*limit_bytes),
            ApiError::BatchTooLarge { limit, .. }
            | ApiError::Operation(Error::Overloaded { limit, .. } | Error::RangeTooLarge { limit }) => Some(*limit),
            ApiError::BadReplicas { copies } => Some((*copies).into()),
            ApiError::Item { error, .. } => error.limit(),
            _ => None,
        }
    }

    /// If a condition has failed, returns the tag of the present value, or null if the key has no value.
    fn failed_condition(&self) -> Option<serde_json::Value> {
        match self {
            ApiError::PreconditionFailed { current } => Some(current.map(|version| format!("\"{version}\"")).into()),
            ApiError::Item { error, .. } => error.failed_condition(),
            _ => None,
        }
    }

    /// Returns how long a client should wait before it tries again, after a 503 or after a rejected profile.
    fn retry_after(&self) -> Duration {
        match self {
            // Only a restart by an operator can help.
            ApiError::Operation(Error::WritesStopped { .. }) => RETRY_AFTER_MAX,
            ApiError::Operation(Error::Overloaded { retry_after: Some(wait), .. }) => *wait,
            _ => RETRY_AFTER_UNKNOWN,
        }
    }

    /// Converts to an answer: a problem document (RFC 9457) with the headers of its status.
    pub fn into_parts(self) -> (hyper::http::response::Parts, String) {
        let status = self.status();
        let mut document = serde_json::json!({
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "code": self.code(),
            "detail": self.to_string(),
            "retryable": self.is_retryable(),
        });
        if let Some(limit) = self.limit() {
            document["limit"] = limit.into();
        }
        if let ApiError::Item { item, .. } = self {
            document["item"] = item.into();
        }
        if let ApiError::Operation(Error::NotEnoughReplicas { answered, asked }) = self {
            (document["answered"], document["asked"]) = (answered.into(), asked.into());
        }
        if let ApiError::VersionGone { oldest } = self {
            document["oldest"] = oldest.into();
        }
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
        if let Some(tag) = self.failed_condition() {
            if let Some(tag) = tag.as_str() {
                parts.headers.insert(ETAG, HeaderValue::try_from(tag).expect("digits and quotes are valid"));
            }
            document["current_etag"] = tag;
        }
        if let ApiError::RangeNotSatisfiable { length } = self {
            let range = HeaderValue::try_from(format!("bytes */{length}")).expect("digits and spaces are valid");
            parts.headers.insert(CONTENT_RANGE, range);
        }
        if let ApiError::MethodNotAllowed(allow) = self {
            parts.headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        (parts, format!("{document}\n"))
    }

    /// Converts to the bytes of an HTTP/1.1 answer. For a connection that is not served by hyper, and ends after this
    /// answer.
    #[must_use]
    pub fn into_closing_response(self) -> Vec<u8> {
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

/// Describes the present value to a client whose condition has failed.
fn describe(version: Option<Version>) -> String {
    version.map_or_else(|| "the key has no value".to_owned(), |version| format!("the value has ETag \"{version}\""))
}

impl From<ChangeError> for ApiError {
    fn from(error: ChangeError) -> ApiError {
        match error {
            ChangeError::Condition { current } => ApiError::PreconditionFailed { current },
            ChangeError::Absent => ApiError::NotFound,
            ChangeError::NotANumber => ApiError::NotANumber,
            ChangeError::Overflow => ApiError::NumberOverflow,
            ChangeError::ExpiriesTooLarge => ApiError::BatchTooLarge {
                limit: COMMIT_BYTES_MAX as u64,
                of: "bytes of values whose expiry it changes",
            },
            ChangeError::NoRoom => ApiError::AnswerTooLarge { limit_bytes: BATCH_READ_BYTES_MAX as u64 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_a_whole_answer() {
        let words = String::from_utf8(ApiError::TooManyConnections.into_closing_response()).expect("text");
        let (head, body) = words.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n"), "{head}");
        assert!(head.contains("retry-after: 1\r\n"), "{head}");
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head} {}", body.len());
        assert!(body.contains(r#""code":"too-many-connections""#), "{body}");
    }
}
