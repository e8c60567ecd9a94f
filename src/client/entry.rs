//! Entries of scans, exports and batches, which this module decodes from JSON and CBOR, and encodes without loss of
//! bytes. `docs/http-api.md` has the members. Called by `list`, `scan`, `export` and `import`.
//!
//! A member that klad does not know is an error: an export that left it out would be incomplete.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

use crate::client::items::Format;
use crate::client::{cbor, key};

/// An entry of a scan or of an export.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Entry<'a> {
    pub(super) key: Cow<'a, [u8]>,
    /// `None` if only keys were asked for.
    pub(super) value: Option<Cow<'a, [u8]>>,
    /// The `ETag` with its quotes, as in headers.
    pub(super) etag: Option<Cow<'a, str>>,
    pub(super) content_type: Option<Cow<'a, str>>,
    pub(super) content_encoding: Option<Cow<'a, str>>,
    /// User metadata by name.
    pub(super) meta: BTreeMap<String, Vec<u8>>,
    /// The time that the value has left, seconds. Exports have `expires_at_ms` instead.
    pub(super) ttl_s: Option<f64>,
    /// When the value expires, milliseconds since 1970. Only exports have it.
    pub(super) expires_at_ms: Option<u64>,
    pub(super) modified_ms: Option<u64>,
    /// The size of the value, if only keys were asked for.
    pub(super) bytes: Option<u64>,
}

/// An item of a scan or of an export.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item<'a> {
    Entry(Entry<'a>),
    /// A common prefix, with a delimiter.
    Prefix(Cow<'a, [u8]>),
    /// The end of an answer or of an export.
    End(End),
}

/// The last item of a scan or of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct End {
    /// The cursor from which the scan continues.
    pub(super) next: Option<String>,
    /// Whether there are no more entries.
    pub(super) complete: bool,
    /// The number of entries before this item. Only exports have it.
    pub(super) entries: Option<u64>,
}

/// Reads an item.
///
/// # Errors
/// The bytes are not an item. The error is a text for people.
pub(super) fn decode(format: Format, bytes: &[u8]) -> Result<Item<'_>, String> {
    match format {
        Format::Ndjson => serde_json::from_slice::<Json<'_>>(bytes).map_err(|error| error.to_string())?.item(),
        Format::Cbor => cbor::decode(bytes),
    }
}

/// Appends an item.
pub(super) fn encode(format: Format, item: &Item<'_>, out: &mut Vec<u8>) {
    match format {
        Format::Ndjson => json(&Json::of(item), out),
        Format::Cbor => cbor::encode(item, out),
    }
}

/// Appends the item of a batch that stores an entry for `ttl_s` seconds. If `if_absent` is set, the item stores the
/// entry only if the key does not exist.
pub(super) fn encode_put(format: Format, entry: &Entry<'_>, ttl_s: Option<f64>, if_absent: bool, out: &mut Vec<u8>) {
    let entry = Entry { etag: None, modified_ms: None, expires_at_ms: None, bytes: None, ttl_s, ..entry.clone() };
    match format {
        Format::Ndjson => {
            let item = Item::Entry(entry);
            let if_none_match = if_absent.then_some("*");
            json(&Json { op: Some("put"), if_none_match, ..Json::of(&item) }, out);
        }
        Format::Cbor => cbor::encode_put(&entry, if_absent, out),
    }
}

fn json(object: &Json<'_>, out: &mut Vec<u8>) {
    serde_json::to_writer(&mut *out, object).expect("text and numbers always serialize");
    out.push(b'\n');
}

/// The members of a JSON object.
#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct Json<'a> {
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    op: Option<&'static str>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key64: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix64: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value64: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_encoding: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    meta: BTreeMap<String, String>,
    /// Values of metadata that are not UTF-8, in base64.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    meta64: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    if_none_match: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    complete: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<u64>,
}

impl<'a> Json<'a> {
    fn item(self) -> Result<Item<'a>, String> {
        if let Some(complete) = self.complete {
            return Ok(Item::End(End { next: self.next, complete, entries: self.entries }));
        }
        if let Some(prefix) = bytes("prefix", self.prefix, self.prefix64)? {
            return Ok(Item::Prefix(prefix));
        }
        let mut meta: BTreeMap<_, _> = self.meta.into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
        for (name, value) in self.meta64 {
            let value = key::from_base64(value.as_bytes()).ok_or("meta64 is not base64")?;
            meta.insert(name, value);
        }
        Ok(Item::Entry(Entry {
            key: bytes("key", self.key, self.key64)?.ok_or("there is no key")?,
            value: bytes("value", self.value, self.value64)?,
            etag: self.etag,
            content_type: self.content_type,
            content_encoding: self.content_encoding,
            meta,
            ttl_s: self.ttl,
            expires_at_ms: self.expires_at_ms,
            modified_ms: self.modified_ms,
            bytes: self.bytes,
        }))
    }

    fn of(item: &'a Item<'a>) -> Json<'a> {
        match item {
            Item::End(end) => {
                Json { next: end.next.clone(), complete: Some(end.complete), entries: end.entries, ..Json::default() }
            }
            Item::Prefix(prefix) => {
                let (prefix, prefix64) = text(prefix, key::to_base64url);
                Json { prefix, prefix64, ..Json::default() }
            }
            Item::Entry(entry) => Json::of_entry(entry),
        }
    }

    fn of_entry(entry: &'a Entry<'a>) -> Json<'a> {
        let (key, key64) = text(&entry.key, key::to_base64url);
        let (value, value64) = match &entry.value {
            Some(value) => text(value, |bytes| BASE64_STANDARD.encode(bytes)),
            None => (None, None),
        };
        let mut object = Json {
            key,
            key64,
            value,
            value64,
            etag: entry.etag.as_deref().map(Cow::Borrowed),
            content_type: entry.content_type.as_deref().map(Cow::Borrowed),
            content_encoding: entry.content_encoding.as_deref().map(Cow::Borrowed),
            ttl: entry.ttl_s,
            expires_at_ms: entry.expires_at_ms,
            modified_ms: entry.modified_ms,
            bytes: entry.bytes,
            ..Json::default()
        };
        for (name, value) in &entry.meta {
            match std::str::from_utf8(value) {
                Ok(text) => object.meta.insert(name.clone(), text.to_owned()),
                Err(_) => object.meta64.insert(name.clone(), BASE64_STANDARD.encode(value)),
            };
        }
        object
    }
}

/// Returns the bytes that a member, or its form in base64, stands for.
fn bytes<'a>(
    name: &str,
    plain: Option<Cow<'a, str>>,
    encoded: Option<Cow<'a, str>>,
) -> Result<Option<Cow<'a, [u8]>>, String> {
    match (plain, encoded) {
        (Some(_), Some(_)) => Err(format!("both {name} and {name}64 are given")),
        (Some(Cow::Borrowed(text)), None) => Ok(Some(Cow::Borrowed(text.as_bytes()))),
        (Some(Cow::Owned(text)), None) => Ok(Some(Cow::Owned(text.into_bytes()))),
        (None, Some(text)) => {
            let decoded = key::from_base64(text.as_bytes()).ok_or_else(|| format!("{name}64 is not base64"))?;
            Ok(Some(Cow::Owned(decoded)))
        }
        (None, None) => Ok(None),
    }
}

/// Returns bytes as text if they are UTF-8, and otherwise encoded.
fn text(bytes: &[u8], encoded: impl Fn(&[u8]) -> String) -> (Option<Cow<'_, str>>, Option<Cow<'_, str>>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(Cow::Borrowed(text)), None),
        Err(_) => (None, Some(Cow::Owned(encoded(bytes)))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry() -> Entry<'static> {
        Entry {
            key: Cow::Borrowed(b"k\xff"),
            value: Some(Cow::Borrowed(b"v")),
            etag: Some(Cow::Borrowed("\"7\"")),
            content_type: Some(Cow::Borrowed("text/plain")),
            content_encoding: Some(Cow::Borrowed("gzip")),
            meta: [("a".to_owned(), b"1".to_vec()), ("b".to_owned(), vec![0xe9])].into(),
            expires_at_ms: Some(1_700_000_000_000),
            ttl_s: Some(1.5),
            modified_ms: Some(5),
            bytes: None,
        }
    }

    fn again(format: Format, item: &Item<'_>) {
        let mut bytes = Vec::new();
        encode(format, item, &mut bytes);
        assert_eq!(decode(format, &bytes).as_ref(), Ok(item), "{}", String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn items_survive_both_forms() {
        let end = End { next: Some("c".to_owned()), complete: false, entries: Some(3) };
        for format in [Format::Ndjson, Format::Cbor] {
            again(format, &Item::Entry(entry()));
            again(format, &Item::Prefix(Cow::Borrowed(b"a/")));
            again(format, &Item::Prefix(Cow::Borrowed(b"\xff/")));
            again(format, &Item::End(end.clone()));
            again(format, &Item::End(End { complete: true, ..End::default() }));
            again(format, &Item::Entry(Entry { key: Cow::Borrowed(b"k"), bytes: Some(9), ..Entry::default() }));
        }
    }

    #[test]
    fn an_entry_becomes_a_put() {
        let mut line = Vec::new();
        encode_put(Format::Ndjson, &Entry { meta: BTreeMap::new(), ..entry() }, Some(2.25), true, &mut line);
        let expected = concat!(
            r#"{"op":"put","key64":"a_8","value":"v","content_type":"text/plain","content_encoding":"gzip","#,
            r#""ttl":2.25,"if_none_match":"*"}"#,
            "\n"
        );
        assert_eq!(String::from_utf8(line).as_deref(), Ok(expected));
    }

    #[test]
    fn what_an_export_would_lose_is_an_error() {
        for wrong in [
            r#"{"key":"k","value":"v","colour":1}"#,
            r#"{"key":"k","key64":"aw","value":"v"}"#,
            r#"{"value":"v"}"#,
            r#"{"key":"k","value64":"?"}"#,
            r#"{"key":"k","value":1}"#,
            "[]",
        ] {
            assert!(decode(Format::Ndjson, wrong.as_bytes()).is_err(), "{wrong}");
        }
        // A member that klad does not know, a key that is a number, an array.
        for wrong in [&b"\xa2\x63key\x41k\x61x\x01"[..], b"\xa1\x63key\x01", b"\x80", b"\xa0"] {
            assert!(decode(Format::Cbor, wrong).is_err(), "{wrong:?}");
        }
        let null = br#"{"key":"k","value":"v","ttl":null,"next":null}"#;
        assert!(matches!(decode(Format::Ndjson, null), Ok(Item::Entry(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_survive(key in prop::collection::vec(any::<u8>(), 1..16),
                             value in prop::collection::vec(any::<u8>(), 0..64)) {
            let entry = Entry { key: key.into(), value: Some(value.into()), ..Entry::default() };
            for format in [Format::Ndjson, Format::Cbor] {
                again(format, &Item::Entry(entry.clone()));
            }
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..32)) {
            let _ = decode(Format::Cbor, &bytes);
            let _ = decode(Format::Ndjson, &bytes);
        }
    }
}
