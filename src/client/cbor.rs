//! Items of a CBOR sequence: maps with the same members as in JSON. Keys and values are byte strings, or text if
//! another program wrote them. Called by `entry`.

use std::borrow::Cow;

use minicbor::data::Type;
use minicbor::decode::Error;
use minicbor::{Decoder, Encoder};

use crate::client::entry::{End, Entry, Item};

/// Appends an item.
pub(super) fn encode(item: &Item<'_>, out: &mut Vec<u8>) {
    match item {
        Item::Entry(entry) => encode_entry(None, entry, false, out),
        Item::Prefix(prefix) => Map::new().bytes("prefix", Some(prefix)).finish(out),
        Item::End(end) => {
            let mut map = Map::new();
            map.text("next", end.next.as_deref());
            map.pair("complete", |encoder| encoder.bool(end.complete).map(drop));
            map.number("entries", end.entries).finish(out);
        }
    }
}

/// Appends the item of a batch that stores an entry.
pub(super) fn encode_put(entry: &Entry<'_>, if_absent: bool, out: &mut Vec<u8>) {
    encode_entry(Some("put"), entry, if_absent, out);
}

fn encode_entry(op: Option<&str>, entry: &Entry<'_>, if_absent: bool, out: &mut Vec<u8>) {
    let mut map = Map::new();
    map.text("op", op).bytes("key", Some(&entry.key)).bytes("value", entry.value.as_deref());
    map.text("etag", entry.etag.as_deref()).text("content_type", entry.content_type.as_deref());
    map.text("content_encoding", entry.content_encoding.as_deref());
    if !entry.meta.is_empty() {
        map.pair("meta", |encoder| {
            encoder.map(entry.meta.len() as u64)?;
            for (name, value) in &entry.meta {
                encoder.str(name)?;
                match std::str::from_utf8(value) {
                    Ok(text) => encoder.str(text)?,
                    Err(_) => encoder.bytes(value)?,
                };
            }
            Ok(())
        });
    }
    if let Some(ttl_s) = entry.ttl_s {
        map.pair("ttl", |encoder| encoder.f64(ttl_s).map(drop));
    }
    map.number("expires_at_ms", entry.expires_at_ms).number("modified_ms", entry.modified_ms);
    map.number("bytes", entry.bytes).text("if_none_match", if_absent.then_some("*")).finish(out);
}

type Never = std::convert::Infallible;

/// A map that is being encoded. Members without a value are left out.
struct Map {
    count: u64,
    members: Encoder<Vec<u8>>,
}

impl Map {
    fn new() -> Map {
        Map { count: 0, members: Encoder::new(Vec::new()) }
    }

    fn pair(
        &mut self,
        name: &str,
        value: impl FnOnce(&mut Encoder<Vec<u8>>) -> Result<(), minicbor::encode::Error<Never>>,
    ) -> &mut Map {
        self.count += 1;
        let written = self.members.str(name).map(drop).and_then(|()| value(&mut self.members));
        written.expect("writing to memory does not fail");
        self
    }

    fn bytes(&mut self, name: &str, value: Option<&[u8]>) -> &mut Map {
        let Some(value) = value else { return self };
        self.pair(name, |encoder| encoder.bytes(value).map(drop))
    }

    fn text(&mut self, name: &str, value: Option<&str>) -> &mut Map {
        let Some(value) = value else { return self };
        self.pair(name, |encoder| encoder.str(value).map(drop))
    }

    fn number(&mut self, name: &str, value: Option<u64>) -> &mut Map {
        let Some(value) = value else { return self };
        self.pair(name, |encoder| encoder.u64(value).map(drop))
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        Encoder::new(&mut *out).map(self.count).expect("writing to memory does not fail");
        out.extend_from_slice(self.members.writer());
    }
}

/// Reads an item.
///
/// # Errors
/// The bytes are not an item. The error is a text for people.
pub(super) fn decode(bytes: &[u8]) -> Result<Item<'_>, String> {
    item(&mut Decoder::new(bytes)).map_err(|error| error.to_string())
}

fn item<'a>(decoder: &mut Decoder<'a>) -> Result<Item<'a>, Error> {
    let mut entry = Entry::default();
    let (mut prefix, mut end, mut complete, mut has_key) = (None, End::default(), None, false);
    let mut left = decoder.map()?;
    loop {
        match &mut left {
            Some(0) => break,
            Some(left) => *left -= 1,
            None if decoder.datatype()? == Type::Break => break,
            None => {}
        }
        let name = decoder.str()?;
        if decoder.datatype()? == Type::Null {
            decoder.skip()?;
            continue;
        }
        match name {
            "key" => {
                has_key = true;
                entry.key = bytes(decoder)?;
            }
            "value" => entry.value = Some(bytes(decoder)?),
            "prefix" => prefix = Some(bytes(decoder)?),
            "etag" => entry.etag = Some(Cow::Borrowed(decoder.str()?)),
            "content_type" => entry.content_type = Some(Cow::Borrowed(decoder.str()?)),
            "content_encoding" => entry.content_encoding = Some(Cow::Borrowed(decoder.str()?)),
            "meta" => meta(decoder, &mut entry)?,
            "ttl" => entry.ttl_s = Some(seconds(decoder)?),
            "expires_at_ms" => entry.expires_at_ms = Some(decoder.u64()?),
            "modified_ms" => entry.modified_ms = Some(decoder.u64()?),
            "bytes" => entry.bytes = Some(decoder.u64()?),
            "next" => end.next = Some(decoder.str()?.to_owned()),
            "complete" => complete = Some(decoder.bool()?),
            "entries" => end.entries = Some(decoder.u64()?),
            other => return Err(Error::message(format!("unknown member {other:?}"))),
        }
    }
    Ok(match (complete, prefix) {
        (Some(complete), _) => Item::End(End { complete, ..end }),
        (None, Some(prefix)) => Item::Prefix(prefix),
        (None, None) if has_key => Item::Entry(entry),
        (None, None) => return Err(Error::message("there is no key")),
    })
}

fn meta(decoder: &mut Decoder<'_>, entry: &mut Entry<'_>) -> Result<(), Error> {
    let count = decoder.map()?.ok_or_else(|| Error::message("meta has no length"))?;
    for _ in 0..count {
        let name = decoder.str()?.to_owned();
        entry.meta.insert(name, bytes(decoder)?.into_owned());
    }
    Ok(())
}

/// Reads a byte string or a text.
fn bytes<'a>(decoder: &mut Decoder<'a>) -> Result<Cow<'a, [u8]>, Error> {
    match decoder.datatype()? {
        Type::String => decoder.str().map(|text| Cow::Borrowed(text.as_bytes())),
        _ => decoder.bytes().map(Cow::Borrowed),
    }
}

/// Reads an integer or a floating-point number.
fn seconds(decoder: &mut Decoder<'_>) -> Result<f64, Error> {
    match decoder.datatype()? {
        Type::F16 | Type::F32 | Type::F64 => decoder.f64(),
        _ => decoder.u32().map(f64::from),
    }
}
