//! Conditions of requests (RFC 9110, section 13). For a read, this module compares the stored value with the
//! conditions. A write hands its condition to the engine, which evaluates the condition together with the change. In a
//! `/v1` write of a key or a range, and in an item of a batch, klad never ignores a condition: if klad cannot honour
//! it, klad answers with an error. `route`, `point`, `batch` and `scan` call this.

use hyper::HeaderMap;
use hyper::header::{
    HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE,
};

use crate::http::api_error::ApiError;
use klad_storage::operation::{Condition, Version};

/// Returns the condition of a write, from `If-Match: *`, `If-Match: "tag"` or `If-None-Match: *`.
pub(super) fn of_write(headers: &HeaderMap) -> Result<Option<Condition>, ApiError> {
    for name in [IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE, IF_RANGE] {
        if headers.contains_key(&name) {
            return Err(ApiError::BadCondition("a write takes only If-Match and If-None-Match"));
        }
    }
    match (single(headers, &IF_MATCH)?, single(headers, &IF_NONE_MATCH)?) {
        (None, None) => Ok(None),
        (Some(tag), None) => if_match(tag).map(Some),
        (None, Some(b"*")) => Ok(Some(Condition::Absent)),
        (None, Some(_)) => Err(ApiError::BadCondition("If-None-Match of a write must be *")),
        (Some(_), Some(_)) => Err(ApiError::BadCondition("If-Match and If-None-Match exclude each other")),
    }
}

/// Returns the condition of `If-Match: *` or `If-Match: "tag"`.
pub(super) fn if_match(value: &[u8]) -> Result<Condition, ApiError> {
    if value == b"*" {
        return Ok(Condition::Present);
    }
    let tag = strong_tag(value).ok_or(ApiError::BadCondition("If-Match of a write must be * or one quoted ETag"))?;
    Ok(version(tag).map_or(Condition::Never, Condition::Is))
}

/// Returns the value of the only header called `name`. Fails if there are two such headers.
fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h [u8]>, ApiError> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (first, None) => Ok(first.map(|value| value.as_bytes().trim_ascii())),
        (_, Some(_)) => Err(ApiError::BadCondition("a write takes one condition")),
    }
}

/// Returns the text between the quotes of one strong tag.
fn strong_tag(value: &[u8]) -> Option<&[u8]> {
    let tag = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    tag.iter().all(|byte| matches!(byte, 0x21 | 0x23..=0x7E | 0x80..)).then_some(tag)
}

/// Returns the version that a tag names, or `None` if no version has this tag.
fn version(tag: &[u8]) -> Option<Version> {
    let text = std::str::from_utf8(tag).ok()?;
    let number = text.parse().ok().filter(|number: &u64| *number > 0 && number.to_string() == text)?;
    Some(Version::new(number))
}

/// How klad answers a read with conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The value.
    Value,
    /// The status 304, because the client already has the value.
    NotModified,
    /// The status 412, because a condition does not hold.
    Failed,
}

/// Compares the stored value with the conditions of a read, in the order of RFC 9110, 13.2.2.
pub(super) fn of_read(headers: &HeaderMap, tag: Version, modified_s: Option<u64>) -> Answer {
    let date = |name: HeaderName| headers.get(name).and_then(seconds);
    if headers.contains_key(IF_MATCH) {
        if !matches(headers, &IF_MATCH, tag, false) {
            return Answer::Failed;
        }
    } else if let (Some(since), Some(modified)) = (date(IF_UNMODIFIED_SINCE), modified_s)
        && modified > since
    {
        return Answer::Failed;
    }
    if headers.contains_key(IF_NONE_MATCH) {
        if matches(headers, &IF_NONE_MATCH, tag, true) {
            return Answer::NotModified;
        }
    } else if let (Some(since), Some(modified)) = (date(IF_MODIFIED_SINCE), modified_s)
        && modified <= since
    {
        return Answer::NotModified;
    }
    Answer::Value
}

/// Whether a read of an absent key fails with 412: `If-Match` needs a value.
pub(super) fn fails_if_absent(headers: &HeaderMap) -> bool {
    headers.contains_key(IF_MATCH)
}

/// Whether klad may answer with a part of the value, because `If-Range` is absent or has the value's tag. A date never
/// suffices: the value may have changed twice within a second, and the client would join parts of two values (RFC 9110,
/// section 13.1.5).
pub(super) fn allows_range(headers: &HeaderMap, tag: Version) -> bool {
    let Some(value) = headers.get(IF_RANGE) else { return true };
    strong_tag(value.as_bytes().trim_ascii()).is_some_and(|given| version(given) == Some(tag))
}

/// Whether a list of tags, or `*`, contains `tag`.
fn matches(headers: &HeaderMap, name: &HeaderName, tag: Version, weak: bool) -> bool {
    let wanted = tag.get().to_string();
    headers.get_all(name).iter().any(|value| {
        // A tag cannot contain a quote, so splitting at quotes gives separators and tags in turn.
        let mut parts = value.as_bytes().split(|byte| *byte == b'"');
        let mut before = parts.next().unwrap_or_default();
        if value.as_bytes().trim_ascii() == b"*" {
            return true;
        }
        while let (Some(given), Some(after)) = (parts.next(), parts.next()) {
            let is_weak = before.ends_with(b"W/");
            if given == wanted.as_bytes() && (weak || !is_weak) {
                return true;
            }
            before = after;
        }
        false
    })
}

/// The seconds since 1970 of an HTTP date.
fn seconds(value: &HeaderValue) -> Option<u64> {
    let date = httpdate::parse_http_date(value.to_str().ok()?).ok()?;
    date.duration_since(std::time::UNIX_EPOCH).ok().map(|since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn conditions_of_writes() {
        let of = |lines: &[_]| of_write(&headers(lines)).map_err(|error| error.code());
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[("if-none-match", "*")]), Ok(Some(Condition::Absent)));
        assert_eq!(of(&[("if-match", "*")]), Ok(Some(Condition::Present)));
        assert_eq!(of(&[("if-match", " \"7\" ")]), Ok(Some(Condition::Is(Version::new(7)))));
        for never in ["\"x\"", "\"07\"", "\"0\"", "\"-1\"", "\"+1\"", "\"\""] {
            assert_eq!(of(&[("if-match", never)]), Ok(Some(Condition::Never)), "{never}");
        }
        for bad in ["7", "W/\"7\"", "\"7\", \"8\"", "\"7", "", "\"a b\""] {
            assert_eq!(of(&[("if-match", bad)]), Err("bad-condition"), "{bad}");
        }
        assert_eq!(of(&[("if-none-match", "\"7\"")]), Err("bad-condition"));
        assert_eq!(of(&[("if-match", "\"7\""), ("if-match", "\"7\"")]), Err("bad-condition"));
        assert_eq!(of(&[("if-match", "*"), ("if-none-match", "*")]), Err("bad-condition"));
        assert_eq!(of(&[("if-unmodified-since", "Sun, 06 Nov 1994 08:49:37 GMT")]), Err("bad-condition"));
    }

    #[test]
    fn conditions_of_reads() {
        let of = |lines: &[_]| of_read(&headers(lines), Version::new(7), Some(784_111_777));
        let (date, before) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:36 GMT");
        assert_eq!(of(&[]), Answer::Value);
        for tags in ["*", "\"7\"", "W/\"7\"", "\"a,b\" , \"7\"", "\"6\", W/\"7\""] {
            assert_eq!(of(&[("if-none-match", tags)]), Answer::NotModified, "{tags}");
        }
        for tags in ["\"8\"", "7", "\"77\"", ""] {
            assert_eq!(of(&[("if-none-match", tags)]), Answer::Value, "{tags}");
        }
        assert_eq!(of(&[("if-match", "\"7\"")]), Answer::Value);
        assert_eq!(of(&[("if-match", "W/\"7\"")]), Answer::Failed);
        assert_eq!(of(&[("if-modified-since", date)]), Answer::NotModified);
        assert_eq!(of(&[("if-modified-since", before)]), Answer::Value);
        assert_eq!(of(&[("if-none-match", "\"8\""), ("if-modified-since", date)]), Answer::Value);
        assert_eq!(of(&[("if-unmodified-since", before)]), Answer::Failed);
        assert_eq!(of(&[("if-modified-since", "yesterday")]), Answer::Value);
    }

    #[test]
    fn a_range_needs_the_same_value() {
        let allows = |value| allows_range(&headers(&[("if-range", value)]), Version::new(7));
        assert!(allows("\"7\""));
        assert!(!allows("W/\"7\"") && !allows("\"8\"") && !allows("Sun, 06 Nov 1994 08:49:37 GMT") && !allows("x"));
    }
}
