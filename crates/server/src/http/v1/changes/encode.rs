//! Events as server-sent events (WHATWG HTML, 9.2) or as JSON lines.
//!
//! ```text
//!   id: 7                                                            {"op":"put","key":"a","version":7,...}
//!   data: {"op":"put","key":"a","version":7,"etag":"\"7\"",...}
//!
//!   : heartbeat                                                      {"heartbeat":7}
//!   id: 7
//!
//!   event: error                                                     {"error":{"code":"stopping",...}}
//!   data: {"code":"stopping",...}
//! ```
//!
//! Bytes that are not UTF-8 are base64: base64url in members that name keys, the standard alphabet for values. `feed`
//! calls this.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value as Json};

use crate::http::api_error::ApiError;
use crate::http::v1::changes::Format;
use crate::http::v1::expiry;
use crate::http::v1::metadata::Metadata;
use crate::http::v1::parameters::BASE64URL;
use crate::http::v1::scan::text_piece;
use crate::limits::FEED_STEP_BYTES_MAX;
use klad_storage::changes::{Changed, What};
use klad_storage::operation::Value;

/// The number of bytes of a value that klad encodes at once. JSON needs at most six bytes for each of them. The number
/// is a multiple of 3, so that base64 has no padding between two pieces.
const PIECE_BYTES: usize = 9 << 10;

/// The rest of a change whose value is large.
pub(super) struct Tail {
    format: Format,
    value: Bytes,
    is_text: bool,
}

impl Tail {
    /// Returns the number of bytes of the value that were not written yet.
    pub(super) fn len(&self) -> usize {
        self.value.len()
    }

    /// Writes the next piece of the value, and after the last piece the end of the event. Returns whether this was the
    /// last piece.
    pub(super) fn write(&mut self, out: &mut Vec<u8>) -> bool {
        if self.is_text {
            let piece = self.value.split_to(text_piece(&self.value, PIECE_BYTES));
            escape(out, std::str::from_utf8(&piece).expect("checked, and cut between characters"));
        } else {
            let piece = self.value.split_to(self.value.len().min(PIECE_BYTES));
            out.extend_from_slice(BASE64_STANDARD.encode(&piece).as_bytes());
        }
        if self.value.is_empty() {
            end_of_event(out, self.format);
        }
        self.value.is_empty()
    }
}

/// Appends a change, with its value if `values` is true. If the value is large, returns it, and the caller must write
/// it before anything else.
pub(super) fn change(out: &mut Vec<u8>, format: Format, changed: &Changed, values: bool) -> Option<Tail> {
    if format == Format::ServerSentEvents {
        out.extend_from_slice(format!("id: {}\ndata: ", changed.version).as_bytes());
    }
    let members = Json::Object(members(changed, values)).to_string();
    let members = members.strip_suffix('}').expect("an object ends so");
    out.extend_from_slice(members.as_bytes());
    let mut tail = None;
    if let (What::Put { value, .. }, true) = (&changed.what, values) {
        let value = value.payload.clone();
        let is_text = std::str::from_utf8(&value).is_ok();
        out.extend_from_slice(if is_text { b",\"value\":\"" } else { b",\"value64\":\"" });
        let is_large = value.len() > FEED_STEP_BYTES_MAX;
        let mut rest = Tail { format, value, is_text };
        if is_large {
            tail = Some(rest);
        } else {
            while !rest.write(out) {}
        }
    } else {
        out.extend_from_slice(b"}");
        end_of_line(out, format);
    }
    tail
}

fn end_of_event(out: &mut Vec<u8>, format: Format) {
    out.extend_from_slice(b"\"}");
    end_of_line(out, format);
}

fn end_of_line(out: &mut Vec<u8>, format: Format) {
    out.extend_from_slice(if format == Format::ServerSentEvents { b"\n\n" } else { b"\n" });
}

/// Appends text as the inside of a JSON string.
fn escape(out: &mut Vec<u8>, text: &str) {
    let quoted = Json::from(text).to_string();
    out.extend_from_slice(&quoted.as_bytes()[1..quoted.len() - 1]);
}

/// Returns the members of a change without its value.
fn members(changed: &Changed, values: bool) -> Map<String, Json> {
    let version = changed.version.get();
    let mut event = Map::new();
    let op = match &changed.what {
        What::Put { .. } => "put",
        What::Delete { .. } => "delete",
        What::DeleteRange { .. } => "delete_range",
    };
    event.insert("op".to_owned(), op.into());
    match &changed.what {
        What::Put { key, .. } | What::Delete { key } => named(&mut event, "key", key),
        What::DeleteRange { start, end } => {
            named(&mut event, "start", start);
            if let Some(end) = end {
                named(&mut event, "end", end);
            }
        }
    }
    event.insert("version".to_owned(), version.into());
    event.insert("etag".to_owned(), format!("\"{version}\"").into());
    if let What::Put { value, value_bytes, .. } = &changed.what {
        attributes(&mut event, value);
        if !values {
            event.insert("bytes".to_owned(), (*value_bytes).into());
        }
    }
    event
}

/// Appends a heartbeat. The client has received all changes up to `version`.
pub(super) fn heartbeat(out: &mut Vec<u8>, format: Format, version: u64) {
    let text = match format {
        // A message without data is no event, but the client remembers the id for its next request.
        Format::ServerSentEvents => format!(": heartbeat\nid: {version}\n\n"),
        Format::JsonLines => format!("{{\"heartbeat\":{version}}}\n"),
    };
    out.extend_from_slice(text.as_bytes());
}

/// Appends the last event, which says why the feed ends.
pub(super) fn end(out: &mut Vec<u8>, format: Format, why: ApiError) {
    let (_, document) = why.into_parts();
    let document = document.trim_end();
    let text = match format {
        Format::ServerSentEvents => format!("event: error\ndata: {document}\n\n"),
        Format::JsonLines => format!("{{\"error\":{document}}}\n"),
    };
    out.extend_from_slice(text.as_bytes());
}

/// Adds a member with bytes of a key: as text, or as base64url under the name with `64`.
fn named(event: &mut Map<String, Json>, member: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => event.insert(member.to_owned(), text.into()),
        Err(_) => event.insert(format!("{member}64"), BASE64URL.encode(bytes).into()),
    };
}

/// Adds the attributes that are stored with a value.
fn attributes(event: &mut Map<String, Json>, value: &Value) {
    let Some(own) = &value.attributes else { return };
    if let Some(modified_ms) = own.modified_ms {
        event.insert("modified_ms".to_owned(), modified_ms.get().into());
    }
    if let Some(left_s) = expiry::left_s(value) {
        event.insert("ttl".to_owned(), left_s.into());
    }
    let stored = Metadata::read(&own.metadata);
    for (member, text) in stored.texts() {
        event.insert(member.to_owned(), text.into());
    }
    let (mut texts, mut encoded) = (Map::new(), Map::new());
    for (name, value) in stored.user {
        match std::str::from_utf8(&value) {
            Ok(text) => texts.insert(name.to_owned(), text.into()),
            Err(_) => encoded.insert(name.to_owned(), BASE64_STANDARD.encode(&value).into()),
        };
    }
    for (member, entries) in [("meta", texts), ("meta64", encoded)] {
        if !entries.is_empty() {
            event.insert(member.to_owned(), entries.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use klad_storage::operation::Version;

    fn written(format: Format, what: What, values: bool) -> String {
        let mut out = Vec::new();
        let tail = change(&mut out, format, &Changed { version: Version::new(7), what }, values);
        if let Some(mut tail) = tail {
            while !tail.write(&mut out) {}
        }
        String::from_utf8(out).expect("JSON is text")
    }

    fn put(value: &[u8]) -> What {
        let value = Bytes::copy_from_slice(value);
        What::Put { key: Bytes::from_static(b"a\nb"), value_bytes: value.len() as u64, value: value.into() }
    }

    #[test]
    fn changes_are_written_in_both_formats() {
        assert_eq!(
            written(Format::JsonLines, put(b"v"), true),
            "{\"etag\":\"\\\"7\\\"\",\"key\":\"a\\nb\",\"op\":\"put\",\"version\":7,\"value\":\"v\"}\n"
        );
        let data = written(Format::ServerSentEvents, put(b"\xFF"), true);
        assert!(data.starts_with("id: 7\ndata: {") && data.ends_with("}\n\n"), "{data}");
        assert_eq!(data.lines().count(), 3, "data is one line");
        assert!(data.contains("\"value64\":\"/w==\""), "{data}");
        assert!(written(Format::JsonLines, put(b"v"), false).contains("\"bytes\":1"));
        let range = What::DeleteRange { start: Bytes::from_static(b"a"), end: None };
        let range = written(Format::JsonLines, range, false);
        assert!(range.contains("\"start\":\"a\"") && !range.contains("end"), "{range}");
    }

    #[test]
    fn large_values_are_written_in_pieces() {
        for length in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES + 2] {
            let text = "a\"\n\u{e9}\u{20ac}".chars().cycle().take(length).collect::<String>();
            let binary: Vec<u8> = (0..length).map(|n| n.to_le_bytes()[0] | 0x80).collect();
            let read = |value: &[u8]| -> Json {
                serde_json::from_str(&written(Format::JsonLines, put(value), true)).expect("JSON")
            };
            assert_eq!(read(text.as_bytes())["value"], text, "{length}");
            if length > 0 {
                assert_eq!(read(&binary)["value64"], BASE64_STANDARD.encode(&binary), "{length}");
            }
        }
    }
}
