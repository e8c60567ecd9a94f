//! Keys: from the command line to bytes, and from bytes to the target of a request. Called by `commands`, `list`,
//! `watch`, `upload`, `import_state` and `entry`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use percent_encoding::percent_decode;

use crate::client::Error;
use crate::client::args::KeyForm;

/// Base64 with or without padding.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Returns the bytes that an argument stands for; they may be empty.
///
/// # Errors
/// The argument does not have the given form.
pub(super) fn decode(argument: &OsStr, form: KeyForm) -> Result<Vec<u8>, Error> {
    let bytes = argument.as_bytes();
    let decoded = match form {
        KeyForm { key_hex: true, .. } => hex(bytes),
        KeyForm { key_base64: true, .. } => from_base64(bytes),
        KeyForm { percent: true, .. } => percent(bytes),
        KeyForm { .. } => Some(bytes.to_vec()),
    };
    let name = match form {
        KeyForm { key_hex: true, .. } => "an even number of hexadecimal digits",
        KeyForm { key_base64: true, .. } => "base64",
        _ => "bytes and %XX",
    };
    decoded.ok_or_else(|| Error::Usage(format!("the key {} is not {name}", argument.display())))
}

/// Like [`decode`], for a key that must not be empty.
///
/// # Errors
/// Like [`decode`], or the key is empty.
pub(super) fn decode_key(argument: &OsStr, form: KeyForm) -> Result<Vec<u8>, Error> {
    let key = decode(argument, form)?;
    if key.is_empty() { Err(Error::Usage("a key has at least one byte".to_owned())) } else { Ok(key) }
}

/// Returns the first key after all keys that begin with `prefix`; `None` if there is no such key.
pub(super) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// Returns the path of a key, followed by `query` if it is not empty. `query` begins with neither `?` nor `&`.
///
/// On its way, a proxy could change a key with `//`, a segment `..` or an encoded byte. Such a key is sent as `key64`.
pub(super) fn target(key: &[u8], query: &str) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(byte);
    let is_segment = |segment: &[u8]| !matches!(segment, b"" | b"." | b"..");
    if key.iter().all(is_plain) && key.split(|byte| *byte == b'/').all(is_segment) {
        let key = std::str::from_utf8(key).expect("ASCII");
        return if query.is_empty() { format!("/v1/kv/{key}") } else { format!("/v1/kv/{key}?{query}") };
    }
    let separator = if query.is_empty() { "" } else { "&" };
    format!("/v1/kv?key64={}{separator}{query}", to_base64url(key))
}

/// Returns bytes as base64url without padding.
pub(super) fn to_base64url(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes base64 in either alphabet, with or without padding.
pub(super) fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    let standard: Vec<u8> = text.iter().map(|byte| standard_letter(*byte)).collect();
    LENIENT.decode(standard).ok()
}

/// Maps the URL-safe alphabet of base64 to the standard one.
fn standard_letter(byte: u8) -> u8 {
    match byte {
        b'-' => b'+',
        b'_' => b'/',
        other => other,
    }
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

fn hex(text: &[u8]) -> Option<Vec<u8>> {
    let pairs = text.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

fn percent(text: &[u8]) -> Option<Vec<u8>> {
    // The library leaves a `%` without two digits as it is.
    let is_valid = |after: &[u8]| after.len() >= 2 && after[..2].iter().all(u8::is_ascii_hexdigit);
    text.split(|byte| *byte == b'%').skip(1).all(is_valid).then(|| percent_decode(text).collect())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;

    use proptest::prelude::*;

    use super::*;

    const HEX: KeyForm = KeyForm { key_hex: true, key_base64: false, percent: false };
    const BASE64: KeyForm = KeyForm { key_hex: false, key_base64: true, percent: false };
    const PERCENT: KeyForm = KeyForm { key_hex: false, key_base64: false, percent: true };

    fn decoded(text: &str, form: KeyForm) -> Option<Vec<u8>> {
        decode(OsStr::new(text), form).ok()
    }

    #[test]
    fn keys_have_four_forms() {
        assert_eq!(decoded("a%41+ ", KeyForm::default()), Some(b"a%41+ ".to_vec()));
        assert_eq!(decoded("00fF", HEX), Some(vec![0, 255]));
        assert_eq!(decoded("-_8=", BASE64), Some(vec![0xfb, 0xff]));
        assert_eq!(decoded("+/8", BASE64), Some(vec![0xfb, 0xff]));
        assert_eq!(decoded("a%41+%00", PERCENT), Some(b"aA+\0".to_vec()));
        for (wrong, form) in
            [("0", HEX), ("0x", HEX), ("é", HEX), ("a", BASE64), ("%", PERCENT), ("%4", PERCENT), ("%%41", PERCENT)]
        {
            assert_eq!(decoded(wrong, form), None, "{wrong}");
        }
        assert!(decode_key(OsStr::new(""), HEX).is_err());
    }

    #[test]
    fn proxies_cannot_change_a_target() {
        assert_eq!(target(b"a/b.c", ""), "/v1/kv/a/b.c");
        assert_eq!(target(b"a", "op=add"), "/v1/kv/a?op=add");
        for key in ["a//b", "/a", "a/", "..", "a/./b", "a b", "a%", "a+b", "a?b", "\u{e9}"] {
            assert!(target(key.as_bytes(), "x=1").starts_with("/v1/kv?key64="), "{key}");
        }
    }

    #[test]
    fn the_end_of_a_prefix_is_after_all_its_keys() {
        assert_eq!(after_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(after_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(after_prefix(b"\xff"), None);
        assert_eq!(after_prefix(b""), None);
    }

    proptest! {
        #[test]
        fn any_key_survives_its_target(key in prop::collection::vec(any::<u8>(), 1..64)) {
            let target = target(&key, "");
            let decoded = match target.strip_prefix("/v1/kv?key64=") {
                Some(encoded) => from_base64(encoded.as_bytes()),
                None => target.strip_prefix("/v1/kv/").map(|plain| plain.as_bytes().to_vec()),
            };
            prop_assert!(target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'%' && byte != b'+'));
            prop_assert_eq!(decoded, Some(key.clone()));
            prop_assert_eq!(decode(&OsString::from_vec(key.clone()), KeyForm::default()).ok(), Some(key));
        }

        #[test]
        fn no_argument_makes_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..16)) {
            for form in [HEX, BASE64, PERCENT] {
                let _ = decode(&OsString::from_vec(bytes.clone()), form);
            }
        }
    }
}
