//! Batches as `application/x-ndjson`: one JSON object on each line. Empty lines have no meaning.
//!
//! Keys and values are text (`key`, `value`) or base64 (`key64`, `value64`). A text without escapes stays a slice of
//! the body. `read` and `result` call this.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use crate::http::api_error::ApiError;
use crate::http::v1::batch::item::{Members, Meta, Op, Ttl, add_meta, bad};
use crate::http::v1::batch::result::{Answered, ItemResult};
use crate::http::v1::parameters::BASE64URL;

/// Reads and writes base64 with `+` and `/`. Reads it with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The members of a line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with the members of an item")]
struct Line<'l> {
    #[serde(borrow, default, deserialize_with = "given")]
    op: Option<Text<'l>>,
    #[serde(borrow, default, deserialize_with = "given")]
    key: Option<Text<'l>>,
    #[serde(borrow, default, deserialize_with = "given")]
    key64: Option<Text<'l>>,
    #[serde(borrow, default, deserialize_with = "given")]
    value: Option<Text<'l>>,
    #[serde(borrow, default, deserialize_with = "given")]
    value64: Option<Text<'l>>,
    #[serde(borrow, default, deserialize_with = "given")]
    content_type: Option<Text<'l>>,
    #[serde(borrow, default, deserialize_with = "given")]
    content_encoding: Option<Text<'l>>,
    #[serde(borrow, default, deserialize_with = "given")]
    meta: Option<Texts<'l>>,
    #[serde(borrow, default, deserialize_with = "given")]
    meta64: Option<Texts<'l>>,
    #[serde(borrow, default, deserialize_with = "given")]
    ttl: Option<Ttl<'l>>,
    #[serde(default, deserialize_with = "given")]
    by: Option<i64>,
    #[serde(borrow, default, deserialize_with = "given")]
    if_match: Option<Text<'l>>,
    #[serde(borrow, default, deserialize_with = "given")]
    if_none_match: Option<Text<'l>>,
}

/// Reads a member that is present. `Option` itself would treat `null` as an absent member.
fn given<'l, D: Deserializer<'l>, T: Deserialize<'l>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A text, which borrows from the line if it has no escapes.
struct Text<'l>(Cow<'l, str>);

impl<'l> Deserialize<'l> for Text<'l> {
    fn deserialize<D: Deserializer<'l>>(deserializer: D) -> Result<Text<'l>, D::Error> {
        struct OfText;

        impl<'l> Visitor<'l> for OfText {
            type Value = Text<'l>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'l str) -> Result<Text<'l>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'l>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(OfText)
    }
}

impl<'l> Deserialize<'l> for Ttl<'l> {
    fn deserialize<D: Deserializer<'l>>(deserializer: D) -> Result<Ttl<'l>, D::Error> {
        struct OfTtl;

        #[expect(clippy::cast_precision_loss, reason = "the longest time to live has 32 bits")]
        impl<'l> Visitor<'l> for OfTtl {
            type Value = Ttl<'l>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number of seconds, or null")
            }

            fn visit_borrowed_str<E>(self, text: &'l str) -> Result<Ttl<'l>, E> {
                Ok(Ttl::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Ttl<'l>, E> {
                Ok(Ttl::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_f64<E>(self, seconds: f64) -> Result<Ttl<'l>, E> {
                Ok(Ttl::Seconds(seconds))
            }

            fn visit_u64<E>(self, seconds: u64) -> Result<Ttl<'l>, E> {
                Ok(Ttl::Seconds(seconds as f64))
            }

            fn visit_i64<E>(self, seconds: i64) -> Result<Ttl<'l>, E> {
                Ok(Ttl::Seconds(seconds as f64))
            }

            fn visit_unit<E>(self) -> Result<Ttl<'l>, E> {
                Ok(Ttl::Never)
            }
        }

        deserializer.deserialize_any(OfTtl)
    }
}

/// An object whose members are texts.
struct Texts<'l>(Meta<'l>);

impl<'l> Deserialize<'l> for Texts<'l> {
    fn deserialize<D: Deserializer<'l>>(deserializer: D) -> Result<Texts<'l>, D::Error> {
        struct OfTexts;

        impl<'l> Visitor<'l> for OfTexts {
            type Value = Texts<'l>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<Texts<'l>, A::Error> {
                let mut meta = Meta::new();
                while let Some((Text(name), Text(value))) = map.next_entry()? {
                    let value = match value {
                        Cow::Borrowed(value) => Cow::Borrowed(value.as_bytes()),
                        Cow::Owned(value) => Cow::Owned(value.into_bytes()),
                    };
                    add_meta(&mut meta, name, value).map_err(A::Error::custom)?;
                }
                Ok(Texts(meta))
            }
        }

        deserializer.deserialize_map(OfTexts)
    }
}

/// Reads the next item of `body`, from byte `from` on. Returns the item and the end of its line, or `None` if no item
/// is left.
pub(super) fn next(body: &Bytes, mut from: usize) -> Result<Option<(Members<'_>, usize)>, ApiError> {
    // Skip all blank lines at once. One pass of the loop below for each would keep the worker busy without an item.
    from += body[from..].iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(body.len() - from);
    while from < body.len() {
        let rest = &body[from..];
        let length = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let line = rest[..length].trim_ascii();
        let end = (from + length + 1).min(body.len());
        if !line.is_empty() {
            // Check this, because serde would also accept a list with the values of all members.
            if line[0] != b'{' {
                return Err(bad("a line must be a JSON object"));
            }
            let line = serde_json::from_slice(line).map_err(|error| bad(error.to_string()))?;
            return Ok(Some((members(body, line)?, end)));
        }
        from = end;
    }
    Ok(None)
}

fn members<'l>(body: &Bytes, line: Line<'l>) -> Result<Members<'l>, ApiError> {
    Ok(Members {
        op: line.op.map(|text| Op::from_word(&text.0)).transpose()?,
        key: either(body, line.key, line.key64, "key")?,
        value: either(body, line.value, line.value64, "value")?,
        content_type: line.content_type.map(|text| text.0),
        content_encoding: line.content_encoding.map(|text| text.0),
        meta: both(line.meta, line.meta64)?,
        ttl: line.ttl,
        by: line.by,
        if_match: line.if_match.map(|text| text.0),
        if_none_match: line.if_none_match.map(|text| text.0),
    })
}

/// Returns the bytes of a member that is given as text or as base64.
fn either(
    body: &Bytes,
    text: Option<Text<'_>>,
    base64: Option<Text<'_>>,
    name: &'static str,
) -> Result<Option<Bytes>, ApiError> {
    match (text, base64) {
        (None, None) => Ok(None),
        (Some(Text(Cow::Borrowed(text))), None) => Ok(Some(body.slice_ref(text.as_bytes()))),
        (Some(Text(Cow::Owned(text))), None) => Ok(Some(text.into())),
        (None, Some(Text(base64))) => decode(&base64, name).map(|bytes| Some(bytes.into())),
        (Some(_), Some(_)) => Err(bad(format!("{name} and {name}64 exclude each other"))),
    }
}

/// Joins the entries of `meta` and `meta64`.
fn both<'l>(meta: Option<Texts<'l>>, meta64: Option<Texts<'l>>) -> Result<Option<Meta<'l>>, ApiError> {
    let Some(Texts(encoded)) = meta64 else { return Ok(meta.map(|texts| texts.0)) };
    let mut meta = meta.map_or_else(Meta::new, |texts| texts.0);
    for (name, value) in encoded {
        let value = std::str::from_utf8(&value).expect("it was a text");
        add_meta(&mut meta, name, Cow::Owned(decode(value, "meta")?)).map_err(bad)?;
    }
    Ok(Some(meta))
}

fn decode(text: &str, name: &str) -> Result<Vec<u8>, ApiError> {
    let is_standard = memchr::memchr2(b'+', b'/', text.as_bytes()).is_some();
    let decoded = if is_standard { BASE64.decode(text) } else { BASE64URL.decode(text) };
    decoded.map_err(|error| bad(format!("{name}64 is not base64: {error}")))
}

/// Appends the line of a result.
pub(super) fn write(result: &ItemResult, out: &mut Vec<u8>) {
    let ItemResult { status, etag, answered } = result;
    out.extend_from_slice(b"{\"status\":");
    out.extend_from_slice(itoa::Buffer::new().format(*status).as_bytes());
    if let Some(version) = etag {
        out.extend_from_slice(b",\"etag\":\"\\\"");
        out.extend_from_slice(itoa::Buffer::new().format(version.get()).as_bytes());
        out.extend_from_slice(b"\\\"\"");
    }
    match answered {
        Answered::Nothing => {}
        Answered::Number(number) => {
            out.extend_from_slice(b",\"value\":");
            out.extend_from_slice(itoa::Buffer::new().format(*number).as_bytes());
        }
        Answered::Value(value) => {
            write_bytes("value", &value.payload, out);
            let stored = value.metadata();
            for (member, text) in stored.texts() {
                write_member(member, text, out);
            }
            let (texts, others): (Vec<_>, Vec<_>) = stored.user.iter().partition(|(_, value)| text(value).is_some());
            for (name, entries) in [(",\"meta\":{", texts), (",\"meta64\":{", others)] {
                for (index, (key, value)) in entries.iter().enumerate() {
                    out.extend_from_slice(if index == 0 { name.as_bytes() } else { b"," });
                    write_text(key, out);
                    out.push(b':');
                    match text(value) {
                        Some(value) => write_text(value, out),
                        None => write_base64(value, out),
                    }
                }
                if !entries.is_empty() {
                    out.push(b'}');
                }
            }
            if let Some(left_s) = value.left_s {
                out.extend_from_slice(format!(",\"ttl\":{left_s}").as_bytes());
            }
        }
        Answered::Failed(code) => write_member("code", code, out),
        Answered::ConditionFailed { code, current } => {
            write_member("code", code, out);
            match current {
                Some(version) => write_member("current_etag", &format!("\"{version}\""), out),
                None => out.extend_from_slice(b",\"current_etag\":null"),
            }
        }
    }
    out.extend_from_slice(b"}\n");
}

/// Appends a member with bytes: as text if they can be one, otherwise as base64.
fn write_bytes(name: &str, bytes: &[u8], out: &mut Vec<u8>) {
    if let Some(text) = text(bytes) {
        write_member(name, text, out);
    } else {
        write_name(name, "64", out);
        write_base64(bytes, out);
    }
}

fn write_member(name: &str, text: &str, out: &mut Vec<u8>) {
    write_name(name, "", out);
    write_text(text, out);
}

fn write_name(name: &str, ending: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(ending.as_bytes());
    out.extend_from_slice(b"\":");
}

/// Returns the bytes as text, if they are UTF-8 and their JSON form has at most twice as many bytes. The JSON form of
/// text with many control characters would have up to six times as many bytes, for which there may be no memory.
fn text(bytes: &[u8]) -> Option<&str> {
    let count = |is: fn(u8) -> bool| bytes.iter().map(|byte| usize::from(is(*byte))).sum::<usize>();
    let controls = count(|byte| byte < b' ');
    let escaped = count(|byte| byte == b'"' || byte == b'\\');
    let short = if controls == 0 { 0 } else { count(|byte| (8..=13).contains(&byte) && byte != 11) };
    let more = escaped + short + 5 * (controls - short);
    if more > bytes.len() { None } else { std::str::from_utf8(bytes).ok() }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("a Vec takes all bytes");
}

fn write_base64(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let begin = out.len();
    out.resize(begin + bytes.len().div_ceil(3) * 4, 0);
    let written = BASE64.encode_slice(bytes, &mut out[begin..]).expect("there is space for it");
    out.truncate(begin + written);
    out.push(b'"');
}
