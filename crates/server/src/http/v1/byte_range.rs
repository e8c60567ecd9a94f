//! The part of a value that `Range` asks for (RFC 9110, section 14). klad supports one range of bytes. It answers other
//! forms of the header with the whole value, as the standard allows. `point` calls this.

use std::ops::Range;

use hyper::HeaderMap;
use hyper::header::RANGE;

/// What the header asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The whole value: there is no header, or klad does not know its form.
    Whole,
    /// These bytes of the value, at least one.
    Bytes(Range<usize>),
    /// The range contains no byte of the value.
    Unsatisfiable,
}

/// Returns the part of a value of `length` bytes that a request asks for.
pub(super) fn part(headers: &HeaderMap, length: usize) -> Part {
    let mut all = headers.get_all(RANGE).iter();
    let (Some(header), None) = (all.next(), all.next()) else { return Part::Whole };
    let range = header.to_str().ok().and_then(|text| text.strip_prefix("bytes="));
    let Some((first, last)) = range.and_then(|range| range.trim().split_once('-')) else { return Part::Whole };
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A number that does not fit into `usize` is beyond the end of every value.
        digits.then(|| text.parse().unwrap_or(usize::MAX))
    };
    let range = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(length),
        (Some(first), None) if last.is_empty() => first..length,
        (None, Some(suffix)) if first.is_empty() => length.saturating_sub(suffix)..length,
        _ => return Part::Whole,
    };
    if range.is_empty() { Part::Unsatisfiable } else { Part::Bytes(range) }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn ranges_of_ten_bytes() {
        let of = |text| part(&[(RANGE, HeaderValue::from_static(text))].into_iter().collect(), 10);
        assert_eq!(part(&HeaderMap::new(), 10), Part::Whole);
        for (text, range) in [
            ("bytes=0-0", 0..1),
            ("bytes=2-4", 2..5),
            ("bytes=2-", 2..10),
            ("bytes=9-99999999999999999999999", 9..10),
            ("bytes=-3", 7..10),
            ("bytes=-30", 0..10),
        ] {
            assert_eq!(of(text), Part::Bytes(range), "{text}");
        }
        for text in ["bytes=10-", "bytes=99999999999999999999999-", "bytes=-0"] {
            assert_eq!(of(text), Part::Unsatisfiable, "{text}");
        }
        for text in ["bytes=", "bytes=-", "bytes=3-2", "bytes=0-1,3-4", "lines=0-1", "bytes=a-b", "bytes=+1-2", ""] {
            assert_eq!(of(text), Part::Whole, "{text}");
        }
    }
}
