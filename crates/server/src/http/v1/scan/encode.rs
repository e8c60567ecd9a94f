//! The entries of a scan as JSON lines, as a CBOR sequence (RFC 8742), or as the members of a JSON page.
//!
//! ```text
//!   {"key":"a","etag":"\"7\"","modified_ms":1,"ttl":0.5,"content_type":"text/plain","meta":{"n":"v"},"value":"..."}
//!   {"prefix":"a/"}
//!   {"next":null,"complete":true}          the end of JSON lines and of a CBOR sequence
//! ```
//!
//! In JSON, bytes that are not UTF-8 are base64, and their member is called `key64`, `prefix64` or `value64`. In CBOR,
//! keys, prefixes and values are always byte strings. The value is the last member, so that a large value is encoded
//! piece by piece: the encoder never holds more than one frame and one piece. `stream` and `scan` call this.

use std::io::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;

use crate::http::v1::expiry;
use crate::http::v1::metadata::Metadata;
use crate::http::v1::parameters::BASE64URL;
use crate::http::v1::scan::pages::Item;
use klad_storage::operation::Entry;

/// The number of bytes of a value that klad encodes at once. JSON needs at most six bytes for each of them. The number
/// is a multiple of 3, so that base64 has no padding between two pieces.
const PIECE_BYTES: usize = 9 << 10;

/// How the items of a scan are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// `application/x-ndjson`.
    JsonLines,
    /// `application/cbor-seq`.
    CborSequence,
    /// The entries of a JSON page, separated by commas.
    JsonPage,
}

/// The rest of a value that is being written.
enum Rest {
    Text(Bytes),
    Base64(Bytes),
    Raw(Bytes),
}

/// Encodes the items of a scan.
pub(super) struct Encoder {
    format: Format,
    keys_only: bool,
    /// Encoded bytes that were not taken yet.
    out: Vec<u8>,
    value: Option<Rest>,
    first: bool,
}

impl Encoder {
    pub(super) fn new(format: Format, keys_only: bool) -> Encoder {
        Encoder { format, keys_only, out: Vec::new(), value: None, first: true }
    }

    /// Returns the number of encoded bytes that were not taken yet.
    pub(super) fn len(&self) -> usize {
        self.out.len()
    }

    /// Takes the encoded bytes. Reserves as much memory for the next ones, because the caller will take about as much
    /// next time.
    pub(super) fn take(&mut self) -> Bytes {
        let next = Vec::with_capacity(self.out.len());
        std::mem::replace(&mut self.out, next).into()
    }

    /// Appends text to a JSON page.
    pub(super) fn raw(&mut self, text: &[u8]) {
        self.out.extend_from_slice(text);
    }

    /// Writes an item without its value. [`Encoder::value`] must write the value before the next item.
    pub(super) fn item(&mut self, item: Item) {
        match (item, self.format) {
            (Item::Prefix(prefix), Format::CborSequence) => {
                let mut map = Cbor::map(&mut self.out, 1);
                map.bytes("prefix", &prefix);
            }
            (Item::Prefix(prefix), _) => {
                self.comma();
                self.out.push(b'{');
                name(&mut self.out, "prefix", &prefix);
                self.out.push(b'}');
                self.line_ends();
            }
            (Item::Entry(entry), Format::CborSequence) => {
                let more = cbor_head(&mut self.out, &entry, self.keys_only);
                self.value = more.then_some(Rest::Raw(entry.value.payload));
            }
            (Item::Entry(entry), _) => {
                self.comma();
                json_head(&mut self.out, &entry);
                if self.keys_only {
                    self.out.extend_from_slice(b",\"bytes\":");
                    number(&mut self.out, entry.value_bytes as u64);
                    self.out.push(b'}');
                    self.line_ends();
                } else if std::str::from_utf8(&entry.value.payload).is_ok() {
                    self.out.extend_from_slice(b",\"value\":\"");
                    self.value = Some(Rest::Text(entry.value.payload));
                } else {
                    self.out.extend_from_slice(b",\"value64\":\"");
                    self.value = Some(Rest::Base64(entry.value.payload));
                }
            }
        }
    }

    /// Writes the value of the last item until the encoder holds about `bytes`. Returns whether the value is complete.
    pub(super) fn value(&mut self, bytes: usize) -> bool {
        while let Some(value) = &mut self.value {
            let rest = match value {
                Rest::Raw(rest) => {
                    let piece = rest.split_to(rest.len().min(PIECE_BYTES));
                    self.out.extend_from_slice(&piece);
                    rest
                }
                Rest::Text(rest) => {
                    let piece = rest.split_to(text_piece(rest, PIECE_BYTES));
                    escaped(&mut self.out, std::str::from_utf8(&piece).expect("checked, and cut between characters"));
                    rest
                }
                Rest::Base64(rest) => {
                    let piece = rest.split_to(rest.len().min(PIECE_BYTES));
                    base64(&mut self.out, &piece);
                    rest
                }
            };
            if rest.is_empty() {
                self.value = None;
                if self.format != Format::CborSequence {
                    self.out.extend_from_slice(b"\"}");
                    self.line_ends();
                }
            } else if self.out.len() >= bytes {
                return false;
            }
        }
        true
    }

    /// Writes the last item of a stream.
    pub(super) fn end(&mut self, next: Option<&str>) {
        match self.format {
            Format::CborSequence => {
                let mut map = Cbor::map(&mut self.out, 2);
                match next {
                    Some(next) => map.text("next", next),
                    None => map.null("next"),
                }
                map.bool("complete", next.is_none());
            }
            Format::JsonLines | Format::JsonPage => {
                self.out.extend_from_slice(b"{");
                end_to(&mut self.out, next);
            }
        }
    }

    fn comma(&mut self) {
        if self.format == Format::JsonPage && !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
    }

    fn line_ends(&mut self) {
        if self.format == Format::JsonLines {
            self.out.push(b'\n');
        }
    }
}

/// Writes the members `next` and `complete`, the end of the object, and the end of the line.
pub(super) fn end_to(out: &mut Vec<u8>, next: Option<&str>) {
    out.extend_from_slice(b"\"next\":");
    match next {
        // A cursor is base64url.
        Some(next) => quoted(out, next),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(if next.is_none() { b",\"complete\":true}\n" } else { b",\"complete\":false}\n" });
}

/// Writes an entry as JSON up to its value.
fn json_head(out: &mut Vec<u8>, entry: &Entry) {
    out.push(b'{');
    name(out, "key", &entry.key);
    out.extend_from_slice(b",\"etag\":\"\\\"");
    number(out, entry.version.get());
    out.extend_from_slice(b"\\\"\"");
    let Some(own) = &entry.value.attributes else { return };
    if let Some(modified_ms) = own.modified_ms {
        out.extend_from_slice(b",\"modified_ms\":");
        number(out, modified_ms.get());
    }
    if let Some(left_s) = expiry::left_s(&entry.value) {
        write!(out, ",\"ttl\":{left_s}").expect("a vector takes everything");
    }
    let stored = Metadata::read(&own.metadata);
    for (member, text) in stored.texts() {
        write!(out, ",\"{member}\":").expect("a vector takes everything");
        quoted(out, text);
    }
    for (member, texts) in [("meta", true), ("meta64", false)] {
        let mut entries =
            stored.user.iter().filter(|(_, value)| std::str::from_utf8(value).is_ok() == texts).peekable();
        if entries.peek().is_none() {
            continue;
        }
        write!(out, ",\"{member}\":").expect("a vector takes everything");
        for (position, (name, value)) in entries.enumerate() {
            out.push(if position == 0 { b'{' } else { b',' });
            quoted(out, name);
            out.push(b':');
            match std::str::from_utf8(value) {
                Ok(text) => quoted(out, text),
                Err(_) => quoted(out, &BASE64_STANDARD.encode(value)),
            }
        }
        out.push(b'}');
    }
}

/// Writes an entry as CBOR up to the bytes of its value. Returns whether the bytes of the value must follow.
fn cbor_head(out: &mut Vec<u8>, entry: &Entry, keys_only: bool) -> bool {
    let own = entry.value.attributes.as_deref();
    let stored = own.map(|own| Metadata::read(&own.metadata)).unwrap_or_default();
    let (modified_ms, left_s) = (own.and_then(|own| own.modified_ms), expiry::left_s(&entry.value));
    let optional = [modified_ms.is_some(), left_s.is_some(), !stored.user.is_empty()];
    let members = 3 + optional.iter().filter(|present| **present).count() + stored.texts().count();
    let mut map = Cbor::map(out, members);
    map.bytes("key", &entry.key);
    map.etag(entry.version.get());
    if let Some(modified_ms) = modified_ms {
        map.number("modified_ms", modified_ms.get());
    }
    if let Some(left_s) = left_s {
        map.float("ttl", left_s);
    }
    for (member, text) in stored.texts() {
        map.text(member, text);
    }
    if !stored.user.is_empty() {
        let mut user = map.inner("meta", stored.user.len());
        for (name, value) in &stored.user {
            match std::str::from_utf8(value) {
                Ok(text) => user.text(name, text),
                Err(_) => user.bytes(name, value),
            }
        }
    }
    if keys_only {
        map.number("bytes", entry.value_bytes as u64);
    } else {
        map.bytes_follow("value", entry.value.payload.len());
    }
    !keys_only && !entry.value.payload.is_empty()
}

/// Writes a member with bytes: as text, or as base64url under the name with `64`.
fn name(out: &mut Vec<u8>, member: &str, bytes: &[u8]) {
    out.push(b'"');
    out.extend_from_slice(member.as_bytes());
    if let Ok(text) = std::str::from_utf8(bytes) {
        out.extend_from_slice(b"\":");
        quoted(out, text);
    } else {
        out.extend_from_slice(b"64\":\"");
        out.extend_from_slice(BASE64URL.encode(bytes).as_bytes());
        out.push(b'"');
    }
}

/// Writes a JSON string.
fn quoted(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a vector takes everything");
}

/// Writes the inner part of a JSON string.
fn escaped(out: &mut Vec<u8>, text: &str) {
    let start = out.len();
    quoted(out, text);
    out.pop();
    // Remove the first quote. This moves at most one piece.
    out.remove(start);
}

fn base64(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    BASE64_STANDARD.encode_slice(bytes, &mut out[start..]).expect("the space is as long as the text");
}

fn number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Returns the length of the next piece of a text, at most `bytes_max`. The piece ends between two characters.
pub(in crate::http::v1) fn text_piece(text: &[u8], bytes_max: usize) -> usize {
    if text.len() <= bytes_max {
        return text.len();
    }
    let is_inner = |position: usize| text[position] & 0xC0 == 0x80;
    (0..=bytes_max).rev().find(|position| !is_inner(*position)).unwrap_or(bytes_max)
}

/// Writes the members of one CBOR map.
struct Cbor<'o>(minicbor::Encoder<&'o mut Vec<u8>>);

type Written<'e, 'o> =
    Result<&'e mut minicbor::Encoder<&'o mut Vec<u8>>, minicbor::encode::Error<std::convert::Infallible>>;

fn written(written: Written<'_, '_>) {
    written.expect("a vector takes everything");
}

impl<'o> Cbor<'o> {
    fn map(out: &'o mut Vec<u8>, members: usize) -> Cbor<'o> {
        let mut encoder = minicbor::Encoder::new(out);
        written(encoder.map(members as u64));
        Cbor(encoder)
    }

    fn text(&mut self, name: &str, text: &str) {
        written(self.0.str(name).and_then(|encoder| encoder.str(text)));
    }

    fn bytes(&mut self, name: &str, bytes: &[u8]) {
        written(self.0.str(name).and_then(|encoder| encoder.bytes(bytes)));
    }

    fn bytes_follow(&mut self, name: &str, length: usize) {
        written(self.0.str(name).and_then(|encoder| encoder.bytes_len(length as u64)));
    }

    fn number(&mut self, name: &str, number: u64) {
        written(self.0.str(name).and_then(|encoder| encoder.u64(number)));
    }

    fn float(&mut self, name: &str, number: f64) {
        written(self.0.str(name).and_then(|encoder| encoder.f64(number)));
    }

    fn bool(&mut self, name: &str, value: bool) {
        written(self.0.str(name).and_then(|encoder| encoder.bool(value)));
    }

    fn null(&mut self, name: &str) {
        written(self.0.str(name).and_then(minicbor::Encoder::null));
    }

    fn etag(&mut self, version: u64) {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(version);
        written(self.0.str("etag").and_then(|encoder| encoder.str_len(digits.len() as u64 + 2)));
        let out = self.0.writer_mut();
        out.push(b'"');
        out.extend_from_slice(digits.as_bytes());
        out.push(b'"');
    }

    fn inner(&mut self, name: &str, members: usize) -> Cbor<'_> {
        written(self.0.str(name));
        Cbor::map(self.0.writer_mut(), members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use klad_storage::operation::{Value, Version};

    fn entry(key: &[u8], value: &[u8]) -> Item {
        Item::Entry(Entry {
            key: Bytes::copy_from_slice(key),
            version: Version::new(7),
            value: Value::from(Bytes::copy_from_slice(value)),
            value_bytes: value.len(),
        })
    }

    /// Encodes an entry in frames of at least one piece. Returns all bytes, and the number of frames.
    fn encoded(format: Format, key: &[u8], value: &[u8]) -> (Vec<u8>, usize) {
        let mut encoder = Encoder::new(format, false);
        encoder.item(entry(key, value));
        let (mut all, mut frames) = (Vec::new(), 0);
        loop {
            let whole = encoder.value(1);
            all.extend_from_slice(&encoder.take());
            frames += 1;
            if whole {
                return (all, frames);
            }
        }
    }

    #[test]
    fn a_value_is_the_same_in_one_piece_and_in_many() {
        let text = "a\u{1}\"é€😀\\\n".repeat(5_000);
        let bytes: Vec<u8> = (0..=255).cycle().take(50_000).collect();
        for length in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, PIECE_BYTES + 2, 4 * PIECE_BYTES + 1] {
            let text = &text[..text.floor_char_boundary(length)];
            let (line, frames) = encoded(Format::JsonLines, b"k", text.as_bytes());
            let read: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
            assert_eq!(read, serde_json::json!({"key": "k", "etag": "\"7\"", "value": text}));
            assert!(frames >= text.len().div_ceil(PIECE_BYTES) && line.ends_with(b"}\n"));
            // The first byte is no text.
            let bytes = [&[0xFF], &bytes[..length]].concat();
            let (line, _) = encoded(Format::JsonPage, b"\xFF\xFE", &bytes);
            let read: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
            let encoded64 = BASE64_STANDARD.encode(&bytes);
            assert_eq!(read, serde_json::json!({"key64": "__4", "etag": "\"7\"", "value64": encoded64}));
            let (item, _) = encoded(Format::CborSequence, b"k", &bytes);
            let mut decoder = minicbor::Decoder::new(&item);
            assert_eq!(decoder.map().expect("a map"), Some(3));
            let mut next = |name: &str| {
                assert_eq!(decoder.str().expect("a name"), name);
                let is_text = decoder.datatype().expect("a type") == minicbor::data::Type::String;
                if is_text { decoder.str().map(str::as_bytes) } else { decoder.bytes() }.expect("a value").to_vec()
            };
            assert_eq!((next("key"), next("etag"), next("value")), (b"k".to_vec(), b"\"7\"".to_vec(), bytes));
            assert_eq!(decoder.position(), item.len());
        }
    }

    #[test]
    fn a_sequence_ends_with_the_place_to_go_on() {
        let end = |format, next| {
            let mut encoder = Encoder::new(format, false);
            encoder.end(next);
            encoder.take().to_vec()
        };
        assert_eq!(end(Format::JsonLines, None), b"{\"next\":null,\"complete\":true}\n");
        assert_eq!(end(Format::JsonLines, Some("AQ")), b"{\"next\":\"AQ\",\"complete\":false}\n");
        assert_eq!(end(Format::CborSequence, None), b"\xA2dnext\xF6hcomplete\xF5");
        assert_eq!(end(Format::CborSequence, Some("AQ")), b"\xA2dnextbAQhcomplete\xF4");
    }

    #[test]
    fn entries_of_a_page_are_between_commas() {
        let mut encoder = Encoder::new(Format::JsonPage, true);
        for key in [b"a", b"b"] {
            encoder.item(entry(key, b"1"));
            assert!(encoder.value(0));
        }
        encoder.item(Item::Prefix(Bytes::from_static(b"c/")));
        let expected = r#"{"key":"a","etag":"\"7\"","bytes":1},{"key":"b","etag":"\"7\"","bytes":1},{"prefix":"c/"}"#;
        assert_eq!(encoder.take(), expected);
    }
}
