//! Content type, content encoding and user metadata of a value. Encodes them from headers, a batch item or an imported
//! entry to the bytes that klad stores, and decodes these bytes.
//!
//! ```text
//!   stored: entries, each │ length of name (1 byte) │ length of value (2 bytes, little-endian) │ name │ value │
//!           the entry with the empty name is the content type, the one with the name ":" the content encoding
//! ```
//!
//! klad returns metadata values as they came, and names in lower case, as HTTP reads them. klad does not encode or
//! decode the stored value: the content encoding only describes it. `docs/storage-format.md` describes the form too.
//! `route`, `point`, `batch`, `scan` and `changes` call this, and so do `klad export` and `klad import`.

use std::borrow::Cow;

use bytes::{BufMut as _, Bytes, BytesMut};
use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue};

use crate::http::api_error::ApiError;
use crate::limits::{CONTENT_TYPE_BYTES_MAX, METADATA_BYTES_MAX, METADATA_ENTRIES_MAX, METADATA_NAME_BYTES_MAX};

/// The beginning of the names of headers with user metadata.
pub const META_PREFIX: &str = "klad-meta-";

/// What klad answers as the type of a value that was stored without one.
pub(super) const DEFAULT_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// The names of the entries that are not user metadata. No header has such a name.
const TYPE_NAME: &[u8] = b"";
const ENCODING_NAME: &[u8] = b":";

/// Metadata that is being encoded.
#[derive(Debug, Default)]
pub struct Encoder {
    encoded: BytesMut,
    user_entries: usize,
    user_bytes: usize,
}

impl Encoder {
    /// Adds the content type.
    ///
    /// # Errors
    /// [`ApiError::BadMetadata`].
    pub fn content_type(&mut self, value: &[u8]) -> Result<(), ApiError> {
        if !is_short_text(value) {
            return Err(ApiError::BadMetadata("a content type has at most 256 visible ASCII characters"));
        }
        self.put(TYPE_NAME, value);
        Ok(())
    }

    /// Adds the content encoding.
    ///
    /// # Errors
    /// [`ApiError::BadMetadata`].
    pub fn content_encoding(&mut self, value: &[u8]) -> Result<(), ApiError> {
        if !is_short_text(value) {
            return Err(ApiError::BadMetadata("a content encoding has at most 256 visible ASCII characters"));
        }
        self.put(ENCODING_NAME, value);
        Ok(())
    }

    /// Adds an entry of user metadata, whose name has no prefix.
    ///
    /// # Errors
    /// [`ApiError::BadMetadata`] or [`ApiError::MetadataTooLarge`].
    pub fn user(&mut self, name: &str, value: &[u8]) -> Result<(), ApiError> {
        let name = name.to_ascii_lowercase();
        let named = format!("{META_PREFIX}{name}");
        if name.is_empty() || HeaderName::from_bytes(named.as_bytes()).is_err() {
            return Err(ApiError::BadMetadata("the name of a metadata entry must be a valid part of a header name"));
        }
        if name.len() > METADATA_NAME_BYTES_MAX {
            return Err(ApiError::BadMetadata("the name of a metadata entry has at most 255 bytes"));
        }
        if HeaderValue::from_bytes(value).is_err() {
            return Err(ApiError::BadMetadata("the value of a metadata entry must be a valid value of a header"));
        }
        self.user_entries += 1;
        self.user_bytes += name.len() + value.len();
        if self.user_entries > METADATA_ENTRIES_MAX || self.user_bytes > METADATA_BYTES_MAX {
            return Err(ApiError::MetadataTooLarge { limit_bytes: METADATA_BYTES_MAX as u64 });
        }
        self.put(name.as_bytes(), value);
        Ok(())
    }

    fn put(&mut self, name: &[u8], value: &[u8]) {
        self.encoded.put_u8(u8::try_from(name.len()).expect("the limits exclude longer names"));
        self.encoded.put_u16_le(u16::try_from(value.len()).expect("the limits exclude longer values"));
        self.encoded.put_slice(name);
        self.encoded.put_slice(value);
    }

    /// Returns the bytes to store.
    #[must_use]
    pub fn finish(self) -> Bytes {
        self.encoded.freeze()
    }
}

fn is_short_text(value: &[u8]) -> bool {
    value.len() <= CONTENT_TYPE_BYTES_MAX && value.iter().all(|byte| matches!(byte, b' '..=b'~'))
}

/// Encodes the metadata in the headers of a request.
pub(super) fn from_headers(headers: &HeaderMap) -> Result<Bytes, ApiError> {
    let mut encoder = Encoder::default();
    if let Some(value) = only(headers, &CONTENT_TYPE, "a value has one content type")? {
        encoder.content_type(value.as_bytes())?;
    }
    if let Some(value) = only(headers, &CONTENT_ENCODING, "several content encodings belong into one header")? {
        encoder.content_encoding(value.as_bytes())?;
    }
    for (name, value) in headers {
        if let Some(name) = name.as_str().strip_prefix(META_PREFIX) {
            encoder.user(name, value.as_bytes())?;
        }
    }
    Ok(encoder.finish())
}

/// Returns the value of a header that may be given only once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName, why: &'static str) -> Result<Option<&'h HeaderValue>, ApiError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(ApiError::BadMetadata(why)),
        (value, None) => Ok(value),
    }
}

/// Decoded metadata.
#[derive(Debug, Default)]
pub struct Metadata<'m> {
    /// The content type.
    pub content_type: Option<&'m str>,
    /// The content encoding.
    pub content_encoding: Option<&'m str>,
    /// User metadata: each name once, with its value. Values with the same name are joined by a comma, as in a list of
    /// headers (RFC 9110, 5.3).
    pub user: Vec<(&'m str, Cow<'m, [u8]>)>,
}

impl<'m> Metadata<'m> {
    /// Decodes stored bytes.
    #[must_use]
    pub fn read(stored: &'m [u8]) -> Metadata<'m> {
        let mut read = Metadata::default();
        for (name, value) in entries(stored) {
            match name {
                TYPE_NAME => read.content_type = std::str::from_utf8(value).ok(),
                ENCODING_NAME => read.content_encoding = std::str::from_utf8(value).ok(),
                _ => {
                    let Ok(name) = std::str::from_utf8(name) else { continue };
                    match read.user.iter_mut().find(|(before, _)| *before == name) {
                        Some((_, before)) => before.to_mut().extend_from_slice(&[b", ", value].concat()),
                        None => read.user.push((name, Cow::Borrowed(value))),
                    }
                }
            }
        }
        read
    }

    /// Returns `content_type` and `content_encoding`, if the value has them, each as a name and a text. JSON objects
    /// and CBOR maps have members with these names.
    pub fn texts(&self) -> impl Iterator<Item = (&'static str, &'m str)> + use<'m> {
        let texts = [("content_type", self.content_type), ("content_encoding", self.content_encoding)];
        texts.into_iter().filter_map(|(name, text)| Some((name, text?)))
    }
}

/// Returns the stored entries as names and values. The list ends at the first bytes that are not a whole entry.
fn entries(mut stored: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = stored.split_first_chunk::<3>()?;
        let (name, rest) = rest.split_at_checked(usize::from(head[0]))?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([head[1], head[2]])))?;
        stored = rest;
        Some((name, value))
    })
}

/// Adds the headers of a value to an answer.
pub(super) fn write_headers(stored: &[u8], headers: &mut HeaderMap) {
    headers.insert(CONTENT_TYPE, DEFAULT_CONTENT_TYPE);
    for (name, value) in entries(stored) {
        let Ok(value) = HeaderValue::from_bytes(value) else { continue };
        if name == TYPE_NAME {
            headers.insert(CONTENT_TYPE, value);
        } else if name == ENCODING_NAME {
            headers.insert(CONTENT_ENCODING, value);
        } else if let Ok(name) = HeaderName::from_bytes(&[META_PREFIX.as_bytes(), name].concat()) {
            headers.append(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_given_back() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip, br"));
        headers.append("klad-meta-owner", HeaderValue::from_bytes(b"\xC3\xA9\ttab").expect("a value"));
        headers.append("klad-meta-empty", HeaderValue::from_static(""));
        let encoded = from_headers(&headers).expect("it fits");
        let mut given = HeaderMap::new();
        write_headers(&encoded, &mut given);
        assert_eq!(given, headers);
        let mut none = HeaderMap::new();
        write_headers(b"", &mut none);
        assert_eq!(none.get(CONTENT_TYPE), Some(&DEFAULT_CONTENT_TYPE));
    }

    #[test]
    fn metadata_is_bounded() {
        let code = |result: Result<(), ApiError>| result.err().map_or("ok", |error| error.code());
        let mut encoder = Encoder::default();
        assert_eq!(code(encoder.user("a", &[b'v'; METADATA_BYTES_MAX - 1])), "ok");
        assert_eq!(code(encoder.user("b", b"")), "metadata-too-large");
        let mut encoder = Encoder::default();
        for number in 0..METADATA_ENTRIES_MAX {
            assert_eq!(code(encoder.user(&number.to_string(), b"")), "ok");
        }
        assert_eq!(code(encoder.user("more", b"")), "metadata-too-large");
        for (name, value) in [("", ""), (":", ""), ("a b", ""), ("a", "line\nfeed")] {
            assert_eq!(code(Encoder::default().user(name, value.as_bytes())), "bad-metadata", "{name:?}");
        }
        let named = |bytes| Encoder::default().user(&"n".repeat(bytes), b"");
        assert_eq!(code(named(METADATA_NAME_BYTES_MAX)), "ok");
        assert_eq!(code(named(METADATA_NAME_BYTES_MAX + 1)), "bad-metadata");
        assert_eq!(code(Encoder::default().content_type(&[b'a'; CONTENT_TYPE_BYTES_MAX + 1])), "bad-metadata");
        assert_eq!(code(Encoder::default().content_type(b"a\tb")), "bad-metadata");
        assert_eq!(code(Encoder::default().content_encoding(b"gzip\n")), "bad-metadata");
    }

    #[test]
    fn values_of_one_name_are_joined() {
        let mut encoder = Encoder::default();
        encoder.content_encoding(b"gzip").expect("short");
        for (name, value) in [("a", "1"), ("b", "2"), ("A", "3")] {
            encoder.user(name, value.as_bytes()).expect("short");
        }
        let encoded = encoder.finish();
        let read = Metadata::read(&encoded);
        assert_eq!(read.texts().collect::<Vec<_>>(), [("content_encoding", "gzip")]);
        assert_eq!(read.user, [("a", Cow::Borrowed(&b"1, 3"[..])), ("b", Cow::Borrowed(b"2"))]);
    }

    #[test]
    fn damaged_bytes_end_the_list() {
        assert_eq!(entries(&[1, 0, 0]).count(), 0);
        assert_eq!(entries(&[0, 1, 0]).count(), 0);
        assert_eq!(entries(&[0, 1, 0, b'x', 9]).count(), 1);
    }
}
