//! Both formats: any item and any result survives them, and what is malformed is an error.

use std::num::NonZeroU64;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use minicbor::{Decoder, Encoder};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::http::v1::batch::item::Op;
use crate::http::v1::batch::result::{Answered, Found};
use crate::http::v1::metadata;
use crate::limits::{METADATA_BYTES_MAX, METADATA_ENTRIES_MAX};
use klad_storage::operation::{Attributes, Condition, Value};

const FORMATS: [Format; 2] = [Format::Ndjson, Format::Cbor];

fn options() -> Options {
    Options {
        key_bytes_max: 100,
        value_bytes_max: 1_000,
        durability: Durability::Sync,
        batch_items_max: 10,
        batch_bytes_max: 10_000,
        scan_time_max: Duration::from_secs(1),
        heartbeat: Duration::from_secs(1),
    }
}

/// Reads all items of a body.
fn read(format: Format, body: &[u8]) -> Result<Vec<(Op, Change)>, ApiError> {
    let body = Bytes::copy_from_slice(body);
    let (mut from, mut items) = (0, Vec::new());
    loop {
        let next = match format {
            Format::Ndjson => ndjson::next(&body, from)?,
            Format::Cbor => cbor::next(&body, from)?,
        };
        let Some((members, end)) = next else { return Ok(items) };
        assert!(end > from && end <= body.len(), "an item has at least one byte");
        from = end;
        items.push(members.into_change(&options(), None)?);
    }
}

/// An item as a client means it.
#[derive(Clone, Debug)]
struct Meant {
    op: Op,
    key: Vec<u8>,
    value: Vec<u8>,
    content_type: Option<String>,
    content_encoding: Option<String>,
    meta: Vec<(String, Vec<u8>)>,
    by: i64,
    condition: Option<Condition>,
}

impl Meant {
    fn change(&self) -> Change {
        let attributes = || {
            let mut encoder = metadata::Encoder::default();
            if let Some(content_type) = &self.content_type {
                encoder.content_type(content_type.as_bytes()).expect("valid");
            }
            if let Some(content_encoding) = &self.content_encoding {
                encoder.content_encoding(content_encoding.as_bytes()).expect("valid");
            }
            for (name, value) in &self.meta {
                encoder.user(name, value).expect("valid");
            }
            Attributes { metadata: encoder.finish(), ..Attributes::default() }
        };
        let effect = match self.op {
            Op::Put => {
                Effect::Put(Value { payload: self.value.clone().into(), attributes: Some(Box::new(attributes())) })
            }
            Op::Get => Effect::Read,
            Op::Delete => Effect::Delete,
            Op::Add => super::super::add(self.by, None),
            Op::Expire => Effect::Expire(None),
        };
        Change { key: self.key.clone().into(), condition: self.condition, effect, reports_existence: false }
    }

    fn if_match(&self) -> Option<String> {
        match self.condition? {
            Condition::Is(version) => Some(format!("\"{version}\"")),
            Condition::Present => Some("*".to_owned()),
            Condition::Never => Some("\"none-of-ours\"".to_owned()),
            Condition::Absent => None,
        }
    }

    /// As a line of JSON. `as_text`: what can be text is text.
    fn json(&self, as_text: bool) -> Vec<u8> {
        let mut item = json!({ "op": self.op.as_str() });
        let mut put = |name: &str, bytes: &[u8]| match std::str::from_utf8(bytes) {
            Ok(text) if as_text => item[name] = text.into(),
            _ => item[format!("{name}64")] = BASE64_STANDARD.encode(bytes).into(),
        };
        put("key", &self.key);
        if self.op == Op::Put {
            put("value", &self.value);
            if let Some(content_type) = &self.content_type {
                item["content_type"] = content_type.as_str().into();
            }
            if let Some(content_encoding) = &self.content_encoding {
                item["content_encoding"] = content_encoding.as_str().into();
            }
            // The order of both objects together is the order of the entries.
            let texts = self.meta.iter().take_while(|(_, value)| std::str::from_utf8(value).is_ok());
            let texts: Vec<_> = texts.map(|(name, value)| (name, String::from_utf8_lossy(value))).collect();
            if as_text && texts.len() == self.meta.len() && texts.is_sorted() {
                item["meta"] =
                    texts.into_iter().map(|(name, value)| (name.clone(), serde_json::Value::from(&*value))).collect();
            } else {
                item["meta64"] = json!({});
                for (name, value) in &self.meta {
                    item["meta64"][name] = BASE64_URL_SAFE_NO_PAD.encode(value).into();
                }
            }
        }
        if self.op == Op::Add {
            item["by"] = self.by.into();
        }
        if self.op == Op::Expire {
            item["ttl"] = serde_json::Value::Null;
        }
        if let Some(tag) = self.if_match() {
            item["if_match"] = tag.into();
        } else if self.condition.is_some() {
            item["if_none_match"] = "*".into();
        }
        format!("  {item} \r\n\n").into_bytes()
    }

    /// As a map of CBOR. `indefinite`: without lengths.
    fn cbor(&self, indefinite: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let mut members = 2;
        let mut to = Encoder::new(&mut out);
        let string = |to: &mut Encoder<&mut Vec<u8>>, name: &str, bytes: &[u8]| {
            to.str(name).unwrap();
            match std::str::from_utf8(bytes) {
                Ok(text) if !indefinite => drop(to.str(text).unwrap()),
                _ if indefinite => {
                    to.begin_bytes().unwrap();
                    for part in bytes.chunks(3) {
                        to.bytes(part).unwrap();
                    }
                    to.end().unwrap();
                }
                _ => drop(to.bytes(bytes).unwrap()),
            }
        };
        let mut body = Vec::new();
        {
            let mut to = Encoder::new(&mut body);
            to.str("op").unwrap().str(self.op.as_str()).unwrap();
            string(&mut to, "key", &self.key);
            if self.op == Op::Put {
                members += 2;
                string(&mut to, "value", &self.value);
                to.str("meta").unwrap().map(self.meta.len() as u64).unwrap();
                for (name, value) in &self.meta {
                    string(&mut to, name, value);
                }
                if let Some(content_type) = &self.content_type {
                    members += 1;
                    to.str("content_type").unwrap().str(content_type).unwrap();
                }
                if let Some(content_encoding) = &self.content_encoding {
                    members += 1;
                    to.str("content_encoding").unwrap().str(content_encoding).unwrap();
                }
            }
            if self.op == Op::Add {
                members += 1;
                to.str("by").unwrap().i64(self.by).unwrap();
            }
            if self.op == Op::Expire {
                members += 1;
                to.str("ttl").unwrap().null().unwrap();
            }
            if let Some(tag) = self.if_match() {
                members += 1;
                to.str("if_match").unwrap().str(&tag).unwrap();
            } else if self.condition.is_some() {
                members += 1;
                to.str("if_none_match").unwrap().str("*").unwrap();
            }
        }
        if indefinite {
            to.begin_map().unwrap();
        } else {
            to.map(members).unwrap();
        }
        out.extend_from_slice(&body);
        if indefinite {
            Encoder::new(&mut out).end().unwrap();
        }
        out
    }
}

fn meant() -> impl Strategy<Value = Meant> {
    let bytes =
        |length| prop_oneof![vec(any::<u8>(), length), "[a-z\"\\\\/é\u{0}\n ]{1,20}".prop_map(String::into_bytes)];
    let condition = prop_oneof![
        Just(None),
        Just(Some(Condition::Present)),
        Just(Some(Condition::Never)),
        Just(Some(Condition::Absent)),
        (1..u64::MAX).prop_map(|version| Some(Condition::Is(Version::new(version)))),
    ];
    let value_of_meta = vec(prop_oneof![Just(b'\t'), b' '..=b'~', 0x80_u8..=0xFF], 0..20);
    let meta = proptest::collection::btree_map("[a-z0-9_-]{1,8}", value_of_meta, 0..5);
    let op = proptest::sample::select(Op::ALL.to_vec());
    let texts = (proptest::option::of("[ -~]{0,20}"), proptest::option::of("[ -~]{0,20}"), meta);
    (op, bytes(1..60), bytes(0..200), texts, any::<i64>(), condition).prop_map(
        |(op, key, value, (content_type, content_encoding, meta), by, condition)| {
            let takes = match op {
                Op::Get => false,
                Op::Delete => condition != Some(Condition::Absent),
                Op::Put | Op::Add | Op::Expire => true,
            };
            let condition = condition.filter(|_| takes);
            let meta = meta.into_iter().collect();
            Meant { op, key, value, content_type, content_encoding, meta, by, condition }
        },
    )
}

/// The items without the times that the machine's clock has given them.
fn timeless(mut items: Vec<(Op, Change)>) -> Vec<(Op, Change)> {
    for (_, change) in &mut items {
        let attributes = match &mut change.effect {
            Effect::Put(value) => value.attributes.as_mut(),
            Effect::Add { created, .. } => created.as_mut(),
            Effect::Expire(at) => {
                *at = at.and(NonZeroU64::new(1));
                None
            }
            Effect::Delete | Effect::Read => None,
        };
        if let Some(own) = attributes {
            own.modified_ms = own.modified_ms.and(NonZeroU64::new(1));
            own.expires_at_ms = own.expires_at_ms.and(NonZeroU64::new(1));
        }
    }
    items
}

proptest! {
    #[test]
    fn any_item_survives_both_formats(items in vec(meant(), 0..8)) {
        let expected = timeless(items.iter().map(|item| (item.op, item.change())).collect());
        for flag in [false, true] {
            let lines: Vec<u8> = items.iter().flat_map(|item| item.json(flag)).collect();
            let maps: Vec<u8> = items.iter().flat_map(|item| item.cbor(flag)).collect();
            for (format, body) in [(Format::Ndjson, lines), (Format::Cbor, maps)] {
                let read = read(format, &body).map_err(|error| TestCaseError::fail(format!("{format:?}: {error}")))?;
                prop_assert_eq!(timeless(read), expected.clone());
            }
        }
    }

    #[test]
    fn no_body_makes_a_reader_panic(item in meant(), noise in vec(any::<u8>(), 0..50), at in 0_usize..100) {
        for (format, mut body) in [(Format::Ndjson, item.json(true)), (Format::Cbor, item.cbor(true))] {
            let _ = read(format, &noise);
            let at = at.min(body.len());
            let end = (at + noise.len()).min(body.len());
            body.splice(at..end, noise.iter().copied());
            let _ = read(format, &body);
            body.truncate(at);
            let _ = read(format, &body);
        }
    }

    #[test]
    fn any_value_survives_both_formats(
        payload in prop_oneof![vec(any::<u8>(), 0..100), "[a-z\n\u{1}\"é]{0,50}".prop_map(String::into_bytes)],
        meta in proptest::collection::btree_map("[a-z]{1,5}", vec(prop_oneof![b' '..=b'~', 0x80_u8..=0xFF], 0..9), 0..4),
        left_s in proptest::option::of(0.001..1e9),
    ) {
        let mut encoder = metadata::Encoder::default();
        encoder.content_type(b"text/plain").expect("valid");
        encoder.content_encoding(b"gzip").expect("valid");
        for (name, value) in &meta {
            encoder.user(name, value).expect("valid");
        }
        let found = Found { payload: payload.clone().into(), metadata: encoder.finish(), left_s };
        let (bytes, etag) = (found.payload.len() + found.metadata.len(), Some(Version::new(u64::MAX)));
        let result = ItemResult { status: 200, etag, answered: Answered::Value(found) };
        for format in FORMATS {
            let mut out = Vec::new();
            format.write(&result, &mut out);
            prop_assert!(out.len() <= format.value_factor() * bytes + BATCH_RESULT_BYTES_MAX, "{}", out.len());
            let document = if format == Format::Ndjson { serde_json::from_slice(&out).unwrap() } else { plain(&out) };
            let bytes_of = |object: &serde_json::Value, name: &str, encoded: &serde_json::Value| match &object[name] {
                serde_json::Value::String(text) => text.as_bytes().to_vec(),
                _ => BASE64_STANDARD.decode(encoded.as_str().unwrap()).unwrap(),
            };
            prop_assert_eq!(bytes_of(&document, "value", &document["value64"]), payload.clone());
            prop_assert_eq!(document["content_type"].as_str(), Some("text/plain"));
            prop_assert_eq!(document["content_encoding"].as_str(), Some("gzip"));
            prop_assert_eq!(document["etag"].as_str(), Some("\"18446744073709551615\""));
            for (name, value) in &meta {
                prop_assert_eq!(&bytes_of(&document["meta"], name, &document["meta64"][name]), value);
            }
            prop_assert_eq!(document["ttl"].as_f64(), left_s);
        }
    }
}

/// A map of CBOR as JSON, with byte strings in base64 under `name64`.
fn plain(body: &[u8]) -> serde_json::Value {
    let mut decoder = Decoder::new(body);
    let mut document = json!({});
    for _ in 0..decoder.map().unwrap().expect("a length") {
        let name = decoder.str().unwrap().to_owned();
        match decoder.datatype().unwrap() {
            minicbor::data::Type::Bytes => {
                document[format!("{name}64")] = BASE64_STANDARD.encode(decoder.bytes().unwrap()).into();
            }
            minicbor::data::Type::String => document[name] = decoder.str().unwrap().into(),
            minicbor::data::Type::F64 => document[name] = decoder.f64().unwrap().into(),
            minicbor::data::Type::Null => decoder.null().unwrap(),
            minicbor::data::Type::Map => {
                let begin = decoder.position();
                decoder.skip().unwrap();
                let inner = plain(&body[begin..decoder.position()]);
                for (key, value) in inner.as_object().unwrap() {
                    let (to, key) = key.strip_suffix("64").map_or(("meta", key.as_str()), |key| ("meta64", key));
                    document[to][key] = value.clone();
                }
            }
            _ => document[name] = decoder.i64().unwrap().into(),
        }
    }
    assert_eq!(decoder.position(), body.len());
    document
}

fn code(format: Format, body: &[u8]) -> &'static str {
    read(format, body).err().map_or("ok", |error| error.code())
}

#[test]
fn lines_are_strict() {
    let key = "k".repeat(101);
    let value = "v".repeat(1_001);
    for (line, expected) in [
        (r#"{"op":"get","key":"k"}"#, "ok"),
        ("\n \r\n\t\n", "ok"),
        (r#"{"op":"put","key":"k","value64":"_-8"}"#, "ok"),
        (r#"{"op":"put","key":"k","value64":"/+8="}"#, "ok"),
        (r#"{"op":"put","key64":"aw","value":"","ttl":60}"#, "ok"),
        (r#"{"op":"put","key":"k","value":"","ttl":"1h 30m"}"#, "ok"),
        (r#"{"op":"add","key":"k","by":-9223372036854775808,"if_none_match":"*"}"#, "ok"),
        ("{}", "bad-item"),
        ("[]", "bad-item"),
        ("null", "bad-item"),
        (r#"["get","k"]"#, "bad-item"),
        (r#"{"op":{"get":null},"key":"k"}"#, "bad-item"),
        (r#"{"op":"put","key":"k","value":"v","meta":[]}"#, "bad-item"),
        ("{", "bad-item"),
        (r#"{"op":"get","key":"k"} {"op":"get","key":"k"}"#, "bad-item"),
        (r#"{"op":"get","key":"k","op":"get"}"#, "bad-item"),
        (r#"{"op":"get","key":"k","key":"k"}"#, "bad-item"),
        (r#"{"op":"get","key":"k","key64":"aw"}"#, "bad-item"),
        (r#"{"op":"get","key":""}"#, "bad-item"),
        (r#"{"op":"get","key":1}"#, "bad-item"),
        (r#"{"op":"get","key":null}"#, "bad-item"),
        (r#"{"op":"get"}"#, "bad-item"),
        (r#"{"op":"GET","key":"k"}"#, "bad-item"),
        (r#"{"op":null,"key":"k"}"#, "bad-item"),
        (r#"{"op":"get","key64":"a"}"#, "bad-item"),
        (r#"{"op":"get","key64":"%"}"#, "bad-item"),
        (r#"{"op":"get","key":"k","value":"v"}"#, "bad-item"),
        (r#"{"op":"get","key":"k","if_match":"*"}"#, "bad-item"),
        (r#"{"op":"put","key":"k"}"#, "bad-item"),
        (r#"{"op":"put","key":"k","value":1}"#, "bad-item"),
        (r#"{"op":"put","key":"k","value":"v","tll":"60s"}"#, "bad-item"),
        (r#"{"op":"put","key":"k","value":"v","ttl":null}"#, "bad-item"),
        (r#"{"op":"put","key":"k","value":"v","ttl":true}"#, "bad-item"),
        (r#"{"op":"put","key":"k","value":"v","by":1}"#, "bad-item"),
        (r#"{"op":"put","key":"k","value":"v","meta":{"a":1}}"#, "bad-item"),
        (r#"{"op":"put","key":"k","value":"v","meta":{"a":"1","a":"2"}}"#, "bad-item"),
        (r#"{"op":"put","key":"k","value":"v","meta":{"a":"1"},"meta64":{"a":""}}"#, "bad-item"),
        (r#"{"op":"put","key":"k","value":"v","ttl":"0s"}"#, "bad-ttl"),
        (r#"{"op":"put","key":"k","value":"v","ttl":-1}"#, "bad-ttl"),
        (r#"{"op":"put","key":"k","value":"v","ttl":1e300}"#, "bad-ttl"),
        (r#"{"op":"put","key":"k","value":"v","content_type":"é"}"#, "bad-metadata"),
        (r#"{"op":"put","key":"k","value":"v","content_encoding":"é"}"#, "bad-metadata"),
        (r#"{"op":"get","key":"k","content_encoding":"gzip"}"#, "bad-item"),
        (r#"{"op":"put","key":"k","value":"v","meta":{"a b":""}}"#, "bad-metadata"),
        (r#"{"op":"put","key":"k","value":"v","if_match":"7"}"#, "bad-condition"),
        (r#"{"op":"put","key":"k","value":"v","if_match":"*","if_none_match":"*"}"#, "bad-condition"),
        (r#"{"op":"put","key":"k","value":"v","if_none_match":"\"7\""}"#, "bad-condition"),
        (r#"{"op":"delete","key":"k","if_none_match":"*"}"#, "bad-item"),
        (r#"{"op":"delete","key":"k","ttl":1}"#, "bad-item"),
        (r#"{"op":"add","key":"k"}"#, "bad-item"),
        (r#"{"op":"add","key":"k","by":1.0}"#, "bad-item"),
        (r#"{"op":"add","key":"k","by":"1"}"#, "bad-item"),
        (r#"{"op":"add","key":"k","by":9223372036854775808}"#, "bad-item"),
        (r#"{"op":"add","key":"k","by":1,"ttl":null}"#, "bad-item"),
        (r#"{"op":"expire","key":"k"}"#, "bad-item"),
        (r#"{"op":"expire","key":"k","ttl":1,"value":""}"#, "bad-item"),
        ("{\"op\":\"get\",\"key\":\"\u{FEFF}", "bad-item"),
        (&format!(r#"{{"op":"get","key":"{key}"}}"#), "key-too-long"),
        (&format!(r#"{{"op":"put","key":"k","value":"{value}"}}"#), "value-too-large"),
    ] {
        assert_eq!(code(Format::Ndjson, line.as_bytes()), expected, "{line}");
    }
    assert_eq!(code(Format::Ndjson, b"{\"op\":\"get\",\"key\":\"\xFF\"}"), "bad-item");
    let long = format!(r#"{{"{}":1}}"#, "x".repeat(5_000));
    let told = read(Format::Ndjson, long.as_bytes()).expect_err("unknown").to_string();
    assert!(told.len() < 400, "an error does not repeat the item: {told}");
}

#[test]
fn maps_are_strict() {
    // Each is the end of a map that begins with op and key.
    let get: &[u8] = b"\xA2\x62op\x63get\x63key\x41k";
    let put = |members: u8, rest: &[u8]| [&[0xA0 | members], &b"\x62op\x63put\x63key\x41k"[..], rest].concat();
    for (body, expected) in [
        (Vec::new(), "ok"),
        (get.to_vec(), "ok"),
        ([get, get].concat(), "ok"),
        (put(3, b"\x65value\x40"), "ok"),
        (put(3, b"\x65value\x61v"), "ok"),
        // Numbers of 16, 32 and 64 bits, and an integer.
        (put(4, b"\x65value\x40\x63ttl\xF9\x38\x00"), "ok"),
        (put(4, b"\x65value\x40\x63ttl\xFA\x3F\x00\x00\x00"), "ok"),
        (put(4, b"\x65value\x40\x63ttl\xFB\x3F\xE0\x00\x00\x00\x00\x00\x00"), "ok"),
        (put(4, b"\x65value\x40\x63ttl\x18\x3C"), "ok"),
        (put(4, b"\x65value\x40\x63ttl\x6360s"), "ok"),
        (put(4, b"\x65value\x40\x63ttl\xF6"), "bad-item"),
        (put(4, b"\x65value\x40\x63ttl\x20"), "bad-ttl"),
        (put(4, b"\x65value\x40\x63ttl\x1B\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"), "bad-item"),
        (put(3, b"\x65value\x01"), "bad-item"),
        (put(3, b"\x67value64\x60"), "bad-item"),
        (put(4, b"\x65value\x40\x65value\x40"), "bad-item"),
        (put(3, b"\x65value\x5B\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"), "bad-item"),
        (put(3, b"\x65value\x7A\x00\x00\x00\x01\xFF"), "bad-item"),
        (get[..get.len() - 1].to_vec(), "bad-item"),
        ([get, b"\x00"].concat(), "bad-item"),
        (b"\xF6".to_vec(), "bad-item"),
        (b"\xFF".to_vec(), "bad-item"),
        (b"\x80".to_vec(), "bad-item"),
        (b"\xBF".to_vec(), "bad-item"),
        (b"\xBB\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF".to_vec(), "bad-item"),
        (b"\xA1\x01\x01".to_vec(), "bad-item"),
        (b"\xA2\x62op\x63got\x63key\x41k".to_vec(), "bad-item"),
    ] {
        assert_eq!(code(Format::Cbor, &body), expected, "{body:x?}");
    }
    let count = u8::try_from(METADATA_ENTRIES_MAX).expect("below 256") + 1;
    let meta: Vec<u8> = (0..count).flat_map(|number| [0x61, b'A' + number, 0x40]).collect();
    let body = put(4, &[&b"\x65value\x40\x64meta\xB8"[..], &[count], &meta].concat());
    assert_eq!(code(Format::Cbor, &body), "bad-item");
    let length = u16::try_from(METADATA_BYTES_MAX).expect("two bytes hold it").to_be_bytes();
    let value = vec![b'v'; METADATA_BYTES_MAX];
    let body = put(4, &[&b"\x65value\x40\x64meta\xA1\x61a\x59"[..], &length, &value].concat());
    assert_eq!(code(Format::Cbor, &body), "metadata-too-large");
}

#[test]
fn keys_and_values_stay_slices_of_the_body() {
    let line = Bytes::from_static(br#"{"op":"put","key":"key","value":"value"}"#);
    let map = Bytes::from_static(b"\xA3\x62op\x63put\x63key\x43key\x65value\x45value");
    for (body, read) in [(&line, ndjson::next(&line, 0)), (&map, cbor::next(&map, 0))] {
        let (members, _) = read.expect("valid").expect("an item");
        for slice in [members.key, members.value] {
            assert!(body.as_ptr_range().contains(&slice.expect("given").as_ptr()));
        }
    }
}

#[test]
fn results_stay_below_their_limit() {
    let etag = Some(Version::new(u64::MAX));
    let code = "precondition-failed";
    let longest = ApiError::CODES.iter().copied().max_by_key(|code| code.len()).expect("codes");
    for (etag, answered) in [
        (None, Answered::Nothing),
        (etag, Answered::Nothing),
        (etag, Answered::Number(i64::MIN)),
        (None, Answered::ConditionFailed { code, current: etag }),
        (None, Answered::ConditionFailed { code, current: None }),
        (None, Answered::Failed(longest)),
    ] {
        let result = ItemResult { status: 412, etag, answered };
        let mut line = Vec::new();
        Format::Ndjson.write(&result, &mut line);
        let document: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
        assert_eq!(document.get("etag").is_some(), etag.is_some());
        let mut map = Vec::new();
        Format::Cbor.write(&result, &mut map);
        let mut decoder = Decoder::new(&map);
        decoder.skip().expect("one item");
        assert_eq!(decoder.position(), map.len());
        assert!(line.len() <= BATCH_RESULT_BYTES_MAX && map.len() <= line.len(), "{document}");
    }
}

#[test]
fn the_answer_has_the_format_that_the_client_prefers() {
    let headers = |name, value: &str| [(name, HeaderValue::from_str(value).expect("valid"))].into_iter().collect();
    for (accept, of_ndjson, of_cbor) in [
        ("*/*", Format::Ndjson, Format::Cbor),
        ("text/html", Format::Ndjson, Format::Cbor),
        ("application/*;q=0.5", Format::Ndjson, Format::Cbor),
        ("application/cbor-seq", Format::Cbor, Format::Cbor),
        ("Application/X-NDJSON", Format::Ndjson, Format::Ndjson),
        ("application/x-ndjson, */*;q=0.1", Format::Ndjson, Format::Ndjson),
        ("application/x-ndjson;q=0.2, application/cbor-seq; q=0.3", Format::Cbor, Format::Cbor),
        ("application/x-ndjson;q=0, */*", Format::Cbor, Format::Cbor),
    ] {
        let headers = headers(ACCEPT, accept);
        assert_eq!(Format::Ndjson.of_answer(&headers), of_ndjson, "{accept}");
        assert_eq!(Format::Cbor.of_answer(&headers), of_cbor, "{accept}");
    }
    for (content_type, expected) in [
        ("application/x-ndjson", Some(Format::Ndjson)),
        ("Application/CBOR-seq ; a=b", Some(Format::Cbor)),
        ("application/json", None),
        ("application/cbor", None),
        ("", None),
    ] {
        assert_eq!(Format::of_body(&headers(CONTENT_TYPE, content_type)), expected, "{content_type}");
    }
    assert_eq!(Format::of_body(&HeaderMap::new()), None);
}
