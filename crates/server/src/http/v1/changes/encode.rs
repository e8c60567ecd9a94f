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

use std::borrow::Cow;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value as Json};

use crate::http::api_error::ApiError;
use crate::http::v1::changes::Format;
use crate::http::v1::parameters::BASE64URL;
use crate::http::v1::{expiry, metadata};
use klad_storage::changes::{Changed, What};
use klad_storage::operation::Value;

/// Appends a change. `values`: whether it comes with its value.
pub(super) fn change(out: &mut Vec<u8>, format: Format, changed: &Changed, values: bool) {
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
        match (values, std::str::from_utf8(&value.payload)) {
            (false, _) => event.insert("bytes".to_owned(), (*value_bytes).into()),
            (true, Ok(text)) => event.insert("value".to_owned(), text.into()),
            (true, Err(_)) => event.insert("value64".to_owned(), BASE64_STANDARD.encode(&value.payload).into()),
        };
    }
    let event = Json::Object(event);
    match format {
        Format::ServerSentEvents => out.extend_from_slice(format!("id: {version}\ndata: {event}\n\n").as_bytes()),
        Format::JsonLines => out.extend_from_slice(format!("{event}\n").as_bytes()),
    }
}

/// Appends a heartbeat. The client has received all changes up to `version`.
pub(super) fn heartbeat(out: &mut Vec<u8>, format: Format, version: u64) {
    let text = match format {
        // Without data it is no event, but the client remembers the id for its next request.
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

/// Adds what is stored beside a value's bytes.
fn attributes(event: &mut Map<String, Json>, value: &Value) {
    let Some(own) = &value.attributes else { return };
    if let Some(modified_ms) = own.modified_ms {
        event.insert("modified_ms".to_owned(), modified_ms.get().into());
    }
    if let Some(left_s) = expiry::left_s(value) {
        event.insert("ttl".to_owned(), left_s.into());
    }
    let mut user: Vec<(&[u8], Cow<'_, [u8]>)> = Vec::new();
    for (name, value) in metadata::entries(&own.metadata) {
        if name.is_empty() {
            event.insert("content_type".to_owned(), String::from_utf8_lossy(value).into());
        } else if let Some((_, before)) = user.iter_mut().find(|(known, _)| *known == name) {
            // Values of one name are one value, as in a list of headers (RFC 9110, 5.3).
            before.to_mut().extend_from_slice(&[b", ", value].concat());
        } else {
            user.push((name, Cow::Borrowed(value)));
        }
    }
    let (mut texts, mut encoded) = (Map::new(), Map::new());
    for (name, value) in user {
        let name = String::from_utf8_lossy(name).into_owned();
        match std::str::from_utf8(&value) {
            Ok(text) => texts.insert(name, text.into()),
            Err(_) => encoded.insert(name, BASE64_STANDARD.encode(&value).into()),
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
    use bytes::Bytes;

    use super::*;
    use klad_storage::operation::Version;

    fn written(format: Format, what: What, values: bool) -> String {
        let mut out = Vec::new();
        change(&mut out, format, &Changed { version: Version::new(7), what }, values);
        String::from_utf8(out).expect("JSON is text")
    }

    #[test]
    fn changes_are_written_in_both_formats() {
        let put = |value: &'static [u8]| What::Put {
            key: Bytes::from_static(b"a\nb"),
            value: Bytes::from_static(value).into(),
            value_bytes: value.len() as u64,
        };
        assert_eq!(
            written(Format::JsonLines, put(b"v"), true),
            "{\"etag\":\"\\\"7\\\"\",\"key\":\"a\\nb\",\"op\":\"put\",\"value\":\"v\",\"version\":7}\n"
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
}
