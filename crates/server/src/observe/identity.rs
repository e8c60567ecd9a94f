//! The identity of a request: its `X-Request-Id`, and the trace of its `traceparent` (W3C Trace Context).
//!
//! klad writes both into log lines, and the request id also into the answer. So klad accepts only harmless values. It
//! ignores other values instead of rejecting the request. `observe` calls this.

use hyper::header::HeaderValue;

use crate::limits::REQUEST_ID_BYTES_MAX;

/// The header with a client's name for its request. klad returns the name in the answer.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// The header with the id of the trace to which a request belongs.
pub const TRACE_HEADER: &str = "traceparent";

/// Returns the id if it has 1 to [`REQUEST_ID_BYTES_MAX`] characters, and only letters, digits and `-_.:/+=@`. UUIDs,
/// ULIDs, Base64 and the ids of proxies consist of these characters, and none of these characters ends a field of a log
/// line.
#[must_use]
pub fn request_id(header: &HeaderValue) -> Option<&str> {
    let sane = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(byte);
    let bytes = header.as_bytes();
    let fits = (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len());
    (fits && bytes.iter().all(sane)).then(|| header.to_str().ok()).flatten()
}

/// Returns the trace's id, 32 hexadecimal digits, if the header is valid: `version-trace-parent-flags` in lower case,
/// with ids that are not all zeros. A later version than 00 may have more parts.
#[must_use]
pub fn trace_id(header: &HeaderValue) -> Option<&str> {
    let text = header.to_str().ok()?;
    let mut parts = text.splitn(5, '-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hexadecimal =
        |part: &str, length| part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let id = |part: &str, length| hexadecimal(part, length) && part.bytes().any(|byte| byte != b'0');
    let valid = hexadecimal(version, 2)
        && version != "ff"
        && id(trace, 32)
        && id(parent, 16)
        && hexadecimal(flags, 2)
        && (version != "00" || parts.next().is_none());
    valid.then_some(trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> HeaderValue {
        HeaderValue::from_bytes(text.as_bytes()).expect("a header value")
    }

    #[test]
    fn only_harmless_request_ids_are_accepted() {
        let longest = "x".repeat(REQUEST_ID_BYTES_MAX);
        for sane in ["7", "0b9e5a3c-2d0f-4a8e", "Root=1-67891233-abcdef012345678912345678", "a/b+c==", &longest] {
            assert_eq!(request_id(&value(sane)), Some(sane));
        }
        let too_long = "x".repeat(REQUEST_ID_BYTES_MAX + 1);
        for other in ["", "a b", "a\"b", "a\\b", "a;b", "h\u{e4}", "a\tb", "{}", &too_long] {
            assert_eq!(request_id(&value(other)), None, "{other}");
        }
    }

    #[test]
    fn only_valid_traces_are_accepted() {
        const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
        for valid in [format!("00-{TRACE}-00f067aa0ba902b7-01"), format!("cc-{TRACE}-00f067aa0ba902b7-01-what-comes")] {
            assert_eq!(trace_id(&value(&valid)), Some(TRACE));
        }
        for other in [
            String::new(),
            TRACE.to_owned(),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{TRACE}-00f067aa0ba902b7"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{}-00f067aa0ba902b7-01", &TRACE[1..]),
            format!("0x-{TRACE}-00f067aa0ba902b7-01"),
        ] {
            assert_eq!(trace_id(&value(&other)), None, "{other}");
        }
    }
}
