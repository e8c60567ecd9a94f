//! Cursors: the place at which a scan continues, as an opaque text that fits into a URL.
//!
//! ```text
//!   base64url of:  version 1 │ flags 1 │ length of the prefix 2 │ checksum of start 4 │ checksum of end 4
//!                  │ length of the delimiter 1, its bytes │ length of from 2, its bytes │ end │ checksum of all 4
//!   flags: bit 0 reverse, bit 1 there is an end. Numbers are little-endian.
//! ```
//!
//! A cursor has the bounds of the keys that are left, so the server keeps nothing between two pages. The bounds have at
//! most as many bytes as two keys. The checksum finds damage. It need not stop forgery, because a cursor names only
//! what its client may read anyway. Parameters that come with a cursor must be those of the first request. klad
//! compares `prefix` and `delimiter` themselves, and only the checksums of `start` and `end`. `scan` calls this.

use base64::Engine as _;
use bytes::Bytes;

use crate::http::api_error::ApiError;
use crate::http::v1::parameters::BASE64URL;
use crate::http::v1::scan::keys::{Keys, Range};

const VERSION: u8 = 1;
const REVERSE: u8 = 1 << 0;
const HAS_END: u8 = 1 << 1;

/// Returns the checksum of a bound that the client gave. An absent bound has the checksum of an empty text.
pub(super) fn checksum(bound: Option<&[u8]>) -> u32 {
    crc32c::crc32c(bound.unwrap_or_default())
}

/// Encodes a cursor for a scan of `keys` of which `rest` is left.
pub(super) fn encode(keys: &Keys, rest: &Range) -> String {
    let length = |bytes: usize| u16::try_from(bytes).expect("a key is shorter than 64 KiB").to_le_bytes();
    let end = rest.end.as_deref();
    let mut raw = vec![VERSION, u8::from(keys.reverse) * REVERSE + u8::from(end.is_some()) * HAS_END];
    raw.extend_from_slice(&length(keys.prefix_bytes));
    raw.extend_from_slice(&keys.start_checksum.to_le_bytes());
    raw.extend_from_slice(&keys.end_checksum.to_le_bytes());
    raw.push(u8::try_from(keys.delimiter.len()).expect("the limits exclude longer delimiters"));
    raw.extend_from_slice(&keys.delimiter);
    raw.extend_from_slice(&length(rest.from.len()));
    raw.extend_from_slice(&rest.from);
    raw.extend_from_slice(end.unwrap_or_default());
    raw.extend_from_slice(&crc32c::crc32c(&raw).to_le_bytes());
    BASE64URL.encode(raw)
}

/// Decodes a cursor to the keys that are left.
pub(super) fn decode(text: &[u8]) -> Result<Keys, ApiError> {
    let raw = BASE64URL.decode(text).map_err(|_| ApiError::BadCursor)?;
    read(&raw).ok_or(ApiError::BadCursor)
}

fn read(raw: &[u8]) -> Option<Keys> {
    let (body, sum) = raw.split_last_chunk::<4>()?;
    if u32::from_le_bytes(*sum) != crc32c::crc32c(body) {
        return None;
    }
    let (&[version, flags], body) = body.split_first_chunk::<2>()?;
    if version != VERSION || flags & !(REVERSE | HAS_END) != 0 {
        return None;
    }
    let (prefix_bytes, body) = body.split_first_chunk::<2>()?;
    let (start_checksum, body) = body.split_first_chunk::<4>()?;
    let (end_checksum, body) = body.split_first_chunk::<4>()?;
    let (&delimiter_bytes, body) = body.split_first()?;
    let (delimiter, body) = body.split_at_checked(usize::from(delimiter_bytes))?;
    let (from_bytes, body) = body.split_first_chunk::<2>()?;
    let (from, end) = body.split_at_checked(usize::from(u16::from_le_bytes(*from_bytes)))?;
    let prefix_bytes = usize::from(u16::from_le_bytes(*prefix_bytes));
    let has_end = flags & HAS_END != 0;
    if prefix_bytes > from.len() || (!has_end && !end.is_empty()) {
        return None;
    }
    Some(Keys {
        range: Range { from: Bytes::copy_from_slice(from), end: has_end.then(|| Bytes::copy_from_slice(end)) },
        reverse: flags & REVERSE != 0,
        prefix_bytes,
        delimiter: Bytes::copy_from_slice(delimiter),
        start_checksum: u32::from_le_bytes(*start_checksum),
        end_checksum: u32::from_le_bytes(*end_checksum),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(from: &[u8], end: Option<&[u8]>, reverse: bool, delimiter: &[u8]) -> Keys {
        Keys {
            range: Range { from: Bytes::copy_from_slice(from), end: end.map(Bytes::copy_from_slice) },
            reverse,
            prefix_bytes: from.len() / 2,
            delimiter: Bytes::copy_from_slice(delimiter),
            start_checksum: checksum(Some(from)),
            end_checksum: checksum(end),
        }
    }

    proptest! {
        #[test]
        fn a_cursor_carries_everything(
            from in proptest::collection::vec(any::<u8>(), 0..40),
            end in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40)),
            reverse in any::<bool>(),
            delimiter in proptest::collection::vec(any::<u8>(), 0..16),
        ) {
            let keys = keys(&from, end.as_deref(), reverse, &delimiter);
            let text = encode(&keys, &keys.range);
            prop_assert_eq!(decode(text.as_bytes()).ok(), Some(keys));
        }

        #[test]
        fn no_text_makes_the_decoder_panic(text in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode(&text);
            let _ = read(&text);
        }
    }

    #[test]
    fn a_damaged_cursor_is_rejected() {
        let keys = keys(b"from", Some(b"end"), true, b"/");
        let text = encode(&keys, &keys.range);
        for position in 0..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[position] = if damaged[position] == b'A' { b'B' } else { b'A' };
            assert_eq!(decode(&damaged).err().map(|error| error.code()), Some("bad-cursor"), "byte {position}");
        }
        for cut in 0..text.len() {
            assert!(decode(&text.as_bytes()[..cut]).is_err(), "cut to {cut} bytes");
        }
    }

    #[test]
    fn a_cursor_of_another_version_is_rejected() {
        let keys = keys(b"from", None, false, b"");
        let mut raw = BASE64URL.decode(encode(&keys, &keys.range)).expect("base64url");
        raw.truncate(raw.len() - 4);
        raw[0] = VERSION + 1;
        raw.extend_from_slice(&crc32c::crc32c(&raw).to_le_bytes());
        assert_eq!(read(&raw), None);
    }
}
