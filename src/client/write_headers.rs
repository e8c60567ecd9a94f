//! Headers of writes: durability, condition, time to live, content type and encoding, and metadata. Called by
//! `commands`, `batch` and `upload`.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use crate::client::Error;
use crate::client::args::{ConditionArgs, Durability};
use crate::client::exchange::{Header, header};

/// Returns the header for a durability.
pub(super) fn durability(wanted: Option<Durability>) -> Vec<Header> {
    let word = |durability| match durability {
        Durability::Sync => "sync",
        Durability::Async => "async",
    };
    wanted.map(|wanted| header("Klad-Durability", word(wanted))).into_iter().collect()
}

/// Returns the header for a condition.
///
/// # Errors
/// Like [`if_match`].
pub(super) fn condition(args: &ConditionArgs) -> Result<Option<Header>, Error> {
    if args.if_absent { Ok(Some(header("If-None-Match", "*"))) } else { if_match(args.if_match.as_deref()) }
}

/// Returns the header for a version, with or without quotes, or for `*`.
///
/// # Errors
/// The text is not an `ETag`.
pub(super) fn if_match(etag: Option<&str>) -> Result<Option<Header>, Error> {
    let Some(etag) = etag else { return Ok(None) };
    let inner = etag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(etag);
    if inner.is_empty() || !inner.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"') || etag.starts_with("W/")
    {
        return Err(Error::Usage(format!("--if-match {etag:?} is neither * nor an ETag such as \"7\"")));
    }
    let value = if etag == "*" { "*".to_owned() } else { format!("\"{inner}\"") };
    Ok(Some(header("If-Match", value)))
}

/// Returns the header for a time to live.
pub(super) fn ttl(ttl: Duration) -> Header {
    header("Klad-TTL", ttl.as_secs_f64().to_string())
}

/// Returns the headers for a content type, a content encoding and metadata of the command line.
///
/// # Errors
/// A header cannot contain them.
pub(super) fn described(
    content_type: Option<&str>,
    content_encoding: Option<&str>,
    meta: &[OsString],
) -> Result<Vec<Header>, Error> {
    let mut headers = Vec::new();
    let texts = [
        ("--content-type", "Content-Type", content_type),
        ("--content-encoding", "Content-Encoding", content_encoding),
    ];
    for (option, name, text) in texts {
        let Some(text) = text else { continue };
        if !text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(Error::Usage(format!("{option} {text:?} contains more than visible ASCII")));
        }
        headers.push(header(name, text));
    }
    for entry in meta {
        let bytes = entry.as_bytes();
        let (name, value) = match memchr::memchr(b'=', bytes) {
            Some(at) => (std::str::from_utf8(&bytes[..at]).unwrap_or_default(), &bytes[at + 1..]),
            None => ("", bytes),
        };
        let header = metadata(name, value);
        headers.push(header.ok_or_else(|| Error::Usage(format!("--meta {} is not NAME=VALUE", entry.display())))?);
    }
    Ok(headers)
}

/// Returns the header for an entry of metadata; `None` if a header cannot contain it.
pub(super) fn metadata(name: &str, value: &[u8]) -> Option<Header> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_value = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
    let valid = !name.is_empty() && name.bytes().all(is_token) && value.iter().all(is_value);
    valid.then(|| (Cow::Owned(format!("Klad-Meta-{name}")), value.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etag_has_quotes_or_none() {
        let sent = |etag| if_match(Some(etag)).ok().flatten().map(|(_, value)| value);
        assert_eq!(sent("7"), Some(b"\"7\"".to_vec()));
        assert_eq!(sent("\"7\""), Some(b"\"7\"".to_vec()));
        assert_eq!(sent("*"), Some(b"*".to_vec()));
        for wrong in ["", "\"\"", "W/\"7\"", "7\"", "a b", "\"7\", \"8\"", "7\r\nX: y"] {
            assert_eq!(sent(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_what_a_header_can_contain_is_sent() {
        let sent = |entry: &str| described(None, None, &[entry.into()]).ok();
        assert_eq!(sent("a=b=c"), Some(vec![(Cow::Borrowed("Klad-Meta-a"), b"b=c".to_vec())]));
        assert_eq!(sent("a="), Some(vec![(Cow::Borrowed("Klad-Meta-a"), Vec::new())]));
        for wrong in ["a", "=b", "a b=c", "a=b\nc", "a:=b"] {
            assert_eq!(sent(wrong), None, "{wrong}");
        }
        assert!(described(Some("text/plain\r\nX: y"), None, &[]).is_err());
        assert!(described(None, Some("gzip\r\nX: y"), &[]).is_err());
    }
}
