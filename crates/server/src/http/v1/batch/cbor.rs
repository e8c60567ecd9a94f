//! Batches as `application/cbor-seq` (RFC 8742): one map after the other, with the member names of the JSON form. Keys
//! and values are byte strings or text, and stay slices of the body. `read` and `result` call this.

use std::borrow::Cow;

use bytes::Bytes;
use minicbor::data::Type;
use minicbor::{Decoder, Encoder};

use crate::http::api_error::ApiError;
use crate::http::v1::batch::item::{Members, Meta, Op, Ttl, add_meta, bad};
use crate::http::v1::batch::result::{Answered, ItemResult};

/// Reads the item of `body` that begins at byte `from`. Returns the item and its end, or `None` at the end of the body.
pub(super) fn next(body: &Bytes, from: usize) -> Result<Option<(Members<'_>, usize)>, ApiError> {
    if from == body.len() {
        return Ok(None);
    }
    let mut decoder = Decoder::new(&body[from..]);
    let mut members = Members::default();
    map(&mut decoder, |decoder, name| member(&mut members, decoder, &name, body))?;
    Ok(Some((members, from + decoder.position())))
}

/// Reads a map whose keys are texts. `read` reads the value of each key.
fn map<'b>(
    decoder: &mut Decoder<'b>,
    mut read: impl FnMut(&mut Decoder<'b>, Cow<'b, str>) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let mut left = decoder.map().map_err(broken)?;
    loop {
        match &mut left {
            Some(0) => return Ok(()),
            Some(left) => *left -= 1,
            None if decoder.datatype().map_err(broken)? == Type::Break => {
                decoder.set_position(decoder.position() + 1);
                return Ok(());
            }
            None => {}
        }
        let name = text(decoder)?;
        read(decoder, name)?;
    }
}

fn member<'b>(members: &mut Members<'b>, decoder: &mut Decoder<'b>, name: &str, body: &Bytes) -> Result<(), ApiError> {
    match name {
        "op" => once(&mut members.op, Op::from_word(&text(decoder)?)?, name),
        "key" => once(&mut members.key, shared(bytes(decoder)?, body), name),
        "value" => once(&mut members.value, shared(bytes(decoder)?, body), name),
        "content_type" => once(&mut members.content_type, text(decoder)?, name),
        "content_encoding" => once(&mut members.content_encoding, text(decoder)?, name),
        "meta" => {
            let mut meta = Meta::new();
            map(decoder, |decoder, name| add_meta(&mut meta, name, bytes(decoder)?).map_err(bad))?;
            once(&mut members.meta, meta, name)
        }
        "ttl" => once(&mut members.ttl, ttl(decoder)?, name),
        "by" => once(&mut members.by, decoder.i64().map_err(broken)?, name),
        "if_match" => once(&mut members.if_match, text(decoder)?, name),
        "if_none_match" => once(&mut members.if_none_match, text(decoder)?, name),
        unknown => Err(bad(format!("unknown member `{unknown}`"))),
    }
}

fn once<T>(member: &mut Option<T>, value: T, name: &str) -> Result<(), ApiError> {
    match member.replace(value) {
        None => Ok(()),
        Some(_) => Err(bad(format!("member `{name}` is given twice"))),
    }
}

/// Reads a text. The text may have an indefinite length.
fn text<'b>(decoder: &mut Decoder<'b>) -> Result<Cow<'b, str>, ApiError> {
    if decoder.datatype().map_err(broken)? == Type::StringIndef {
        let parts = decoder.str_iter().map_err(broken)?;
        return parts.collect::<Result<String, _>>().map(Cow::Owned).map_err(broken);
    }
    decoder.str().map(Cow::Borrowed).map_err(broken)
}

/// Reads a byte string or a text.
fn bytes<'b>(decoder: &mut Decoder<'b>) -> Result<Cow<'b, [u8]>, ApiError> {
    match decoder.datatype().map_err(broken)? {
        Type::String | Type::StringIndef => Ok(match text(decoder)? {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        }),
        Type::BytesIndef => {
            let mut all = Vec::new();
            for part in decoder.bytes_iter().map_err(broken)? {
                all.extend_from_slice(part.map_err(broken)?);
            }
            Ok(Cow::Owned(all))
        }
        _ => decoder.bytes().map(Cow::Borrowed).map_err(broken),
    }
}

/// Returns `bytes` as a slice of the body if they are part of it. Otherwise `bytes` are a copy already.
fn shared(bytes: Cow<'_, [u8]>, body: &Bytes) -> Bytes {
    match bytes {
        Cow::Borrowed(bytes) => body.slice_ref(bytes),
        Cow::Owned(bytes) => bytes.into(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "the longest time to live has 32 bits")]
fn ttl<'b>(decoder: &mut Decoder<'b>) -> Result<Ttl<'b>, ApiError> {
    match decoder.datatype().map_err(broken)? {
        Type::Null => decoder.null().map(|()| Ttl::Never).map_err(broken),
        Type::String | Type::StringIndef => text(decoder).map(Ttl::Text),
        Type::F16 | Type::F32 | Type::F64 => decoder.f64().map(Ttl::Seconds).map_err(broken),
        _ => decoder.i64().map(|seconds| Ttl::Seconds(seconds as f64)).map_err(broken),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn broken(error: minicbor::decode::Error) -> ApiError {
    bad(format!("the item is not the expected CBOR: {error}"))
}

/// Appends the map of a result.
pub(super) fn write(result: &ItemResult, out: &mut Vec<u8>) {
    encode(result, &mut Encoder::new(out)).expect("a Vec takes all bytes");
}

type Written = Result<(), minicbor::encode::Error<std::convert::Infallible>>;

fn encode(result: &ItemResult, to: &mut Encoder<&mut Vec<u8>>) -> Written {
    let ItemResult { status, etag, answered } = result;
    let members = 1 + u64::from(etag.is_some());
    let head = |to: &mut Encoder<&mut Vec<u8>>, more: u64| -> Written {
        to.map(members + more)?.str("status")?.u16(*status)?;
        if let Some(version) = etag {
            to.str("etag")?.str(&format!("\"{version}\""))?;
        }
        Ok(())
    };
    match answered {
        Answered::Nothing => head(to, 0)?,
        Answered::Number(number) => {
            head(to, 1)?;
            to.str("value")?.i64(*number)?;
        }
        Answered::Value(value) => {
            let stored = value.metadata();
            let more = [!stored.user.is_empty(), value.left_s.is_some()];
            head(to, 1 + stored.texts().count() as u64 + more.into_iter().map(u64::from).sum::<u64>())?;
            to.str("value")?.bytes(&value.payload)?;
            for (member, text) in stored.texts() {
                to.str(member)?.str(text)?;
            }
            if !stored.user.is_empty() {
                to.str("meta")?.map(stored.user.len() as u64)?;
                for (name, value) in &stored.user {
                    string(to.str(name)?, value)?;
                }
            }
            if let Some(left_s) = value.left_s {
                to.str("ttl")?.f64(left_s)?;
            }
        }
        Answered::Failed(code) => {
            head(to, 1)?;
            to.str("code")?.str(code)?;
        }
        Answered::ConditionFailed { code, current } => {
            head(to, 2)?;
            to.str("code")?.str(code)?.str("current_etag")?;
            match current {
                Some(version) => to.str(&format!("\"{version}\""))?,
                None => to.null()?,
            };
        }
    }
    Ok(())
}

/// Appends a text if the bytes are one, otherwise a byte string.
fn string(to: &mut Encoder<&mut Vec<u8>>, bytes: &[u8]) -> Written {
    match std::str::from_utf8(bytes) {
        Ok(text) => to.str(text)?,
        Err(_) => to.bytes(bytes)?,
    };
    Ok(())
}
