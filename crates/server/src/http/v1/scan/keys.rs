//! The keys of a scan: their bounds, and how they are grouped by a delimiter. `scan` calls this.

use bytes::Bytes;

/// A range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    /// The start, inclusive.
    pub(super) from: Bytes,
    /// The end, exclusive. `None` means that the range includes the last key.
    pub(super) end: Option<Bytes>,
}

/// The keys that a scan returns, and their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) range: Range,
    /// Whether the scan begins at the last key.
    pub(super) reverse: bool,
    /// The length of the parameter `prefix`, with which all keys of the range begin.
    pub(super) prefix_bytes: usize,
    /// The text that ends a common prefix. If it is empty, keys are not grouped.
    pub(super) delimiter: Bytes,
    /// The checksums of the parameters `start` and `end`. See [`checksum`](super::cursor::checksum).
    pub(super) start_checksum: u32,
    pub(super) end_checksum: u32,
}

impl Range {
    /// Returns the range of keys that begin with `prefix`, are not before `start`, and are before `end`.
    pub(super) fn of(prefix: &[u8], start: &[u8], end: Option<Vec<u8>>) -> Range {
        let end = match (behind(prefix), end) {
            (Some(behind), Some(end)) => Some(behind.min(end)),
            (behind, end) => behind.or(end),
        };
        Range { from: Bytes::copy_from_slice(prefix.max(start)), end: end.map(Bytes::from) }
    }

    /// Whether the range can contain no key.
    pub(super) fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| self.from >= *end)
    }
}

impl Keys {
    /// Returns the part of `rest` that the scan reads after `bound`, or `None` if nothing is left.
    pub(super) fn left(&self, rest: &Range, bound: Bytes) -> Option<Range> {
        let left = if self.reverse {
            Range { from: rest.from.clone(), end: Some(bound) }
        } else {
            Range { from: bound, end: rest.end.clone() }
        };
        (!left.is_empty()).then_some(left)
    }

    /// Returns the common prefix to which `key` belongs. It ends with the first delimiter after the parameter `prefix`.
    pub(super) fn common_prefix<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        let (delimiter, rest) = (&*self.delimiter, key.get(self.prefix_bytes..)?);
        if delimiter.is_empty() {
            return None;
        }
        let position = rest.windows(delimiter.len()).position(|window| window == delimiter)?;
        Some(&key[..self.prefix_bytes + position + delimiter.len()])
    }

    /// Returns the part of `rest` that the scan reads after all keys with `common_prefix`.
    pub(super) fn left_behind(&self, rest: &Range, common_prefix: &[u8]) -> Option<Range> {
        if self.reverse {
            return self.left(rest, Bytes::copy_from_slice(common_prefix));
        }
        self.left(rest, behind(common_prefix)?.into())
    }
}

/// Returns the first key after all keys that begin with `prefix`. Returns `None` if no key can be after them.
fn behind(prefix: &[u8]) -> Option<Vec<u8>> {
    let length = prefix.iter().rposition(|byte| *byte != 0xFF)? + 1;
    let mut behind = prefix[..length].to_vec();
    behind[length - 1] += 1;
    Some(behind)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_range_has_exactly_the_keys_of_its_parameters(
            prefix in proptest::collection::vec(prop_oneof![Just(0_u8), Just(7), Just(0xFE), Just(0xFF)], 0..4),
            start in proptest::collection::vec(prop_oneof![Just(0_u8), Just(7), Just(0xFF)], 0..4),
            end in proptest::option::of(proptest::collection::vec(prop_oneof![Just(0_u8), Just(7), Just(0xFF)], 0..4)),
            key in proptest::collection::vec(prop_oneof![Just(0_u8), Just(7), Just(8), Just(0xFE), Just(0xFF)], 1..6),
        ) {
            let range = Range::of(&prefix, &start, end.clone());
            let inside = *range.from <= *key && range.end.as_ref().is_none_or(|end| *key < **end);
            let asked = key.starts_with(&prefix) && key >= start && end.is_none_or(|end| key < end);
            prop_assert_eq!(inside, asked);
            prop_assert!(!(inside && range.is_empty()));
        }
    }

    #[test]
    fn common_prefixes_end_with_the_first_delimiter_behind_the_prefix() {
        let keys = |prefix: &[u8], delimiter: &'static [u8], reverse| Keys {
            range: Range::of(prefix, b"", None),
            reverse,
            prefix_bytes: prefix.len(),
            delimiter: Bytes::from_static(delimiter),
            start_checksum: 0,
            end_checksum: 0,
        };
        let slash = keys(b"", b"/", false);
        assert_eq!(slash.common_prefix(b"a/b/c"), Some(&b"a/"[..]));
        assert_eq!(slash.common_prefix(b"/"), Some(&b"/"[..]));
        assert_eq!(slash.common_prefix(b"a"), None);
        assert_eq!(keys(b"a/", b"/", false).common_prefix(b"a/b/c"), Some(&b"a/b/"[..]));
        assert_eq!(keys(b"a/", b"/", false).common_prefix(b"a/b"), None);
        assert_eq!(keys(b"", b"::", false).common_prefix(b"a:::b"), Some(&b"a::"[..]));
        assert_eq!(keys(b"", b"", false).common_prefix(b"a/b"), None);
        let from = |from: &'static [u8], end: Option<&'static [u8]>| Range {
            from: Bytes::from_static(from),
            end: end.map(Bytes::from_static),
        };
        let all = from(b"", None);
        assert_eq!(slash.left_behind(&all, b"a/"), Some(from(b"a0", None)));
        assert_eq!(slash.left_behind(&from(b"", Some(b"a0")), b"a/"), None);
        assert_eq!(slash.left_behind(&all, b"\xFF"), None);
        assert_eq!(keys(b"", b"/", true).left_behind(&all, b"a/"), Some(from(b"", Some(b"a/"))));
    }
}
