//! Keys: from the command line to bytes, and from bytes to a request's target. Called by `commands`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::client::Error;
use crate::client::args::KeyForm;

/// Takes what `base64` prints, and what stands in URLs once its two letters are those of the other alphabet.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The bytes that an argument means; may be none.
///
/// # Errors
/// When it is not in the form that was announced.
pub(super) fn decode(argument: &OsStr, form: KeyForm) -> Result<Vec<u8>, Error> {
    let bytes = argument.as_bytes();
    let decoded = match form {
        KeyForm { key_hex: true, .. } => hex(bytes),
        KeyForm { key_base64: true, .. } => {
            let standard: Vec<u8> = bytes.iter().map(|byte| standard_letter(*byte)).collect();
            LENIENT.decode(standard).ok()
        }
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

/// As `decode`, for a key that must be one.
///
/// # Errors
/// As `decode`, and when the key is empty, which no server takes.
pub(super) fn decode_key(argument: &OsStr, form: KeyForm) -> Result<Vec<u8>, Error> {
    let key = decode(argument, form)?;
    if key.is_empty() { Err(Error::Usage("a key has at least one byte".to_owned())) } else { Ok(key) }
}

/// The first key behind all those that begin with `prefix`; `None`: there is no such key, the list goes to its end.
pub(super) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// A key as it stands in a target: letters, digits and `-._~` as they are, every other byte as `%XX`.
pub(super) fn encode(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len());
    for byte in key {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(char::from(*byte)),
            _ => {
                text.push('%');
                for digit in [byte >> 4, byte & 15] {
                    let digit = char::from_digit(u32::from(digit), 16).expect("four bits are a digit");
                    text.push(digit.to_ascii_uppercase());
                }
            }
        }
    }
    text
}

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
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        if *first == b'%' {
            let [high, low, after @ ..] = after else { return None };
            bytes.push(digit(*high)? << 4 | digit(*low)?);
            rest = after;
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    Some(bytes)
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
        for (wrong, form) in [("0", HEX), ("0x", HEX), ("é", HEX), ("a", BASE64), ("%", PERCENT), ("%4", PERCENT)] {
            assert_eq!(decoded(wrong, form), None, "{wrong}");
        }
        assert!(decode_key(OsStr::new(""), HEX).is_err());
    }

    #[test]
    fn the_end_of_a_prefix_is_behind_all_its_keys() {
        assert_eq!(after_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(after_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(after_prefix(b"\xff"), None);
        assert_eq!(after_prefix(b""), None);
    }

    proptest! {
        #[test]
        fn any_key_survives_its_encoding(key in prop::collection::vec(any::<u8>(), 0..64)) {
            let encoded = encode(&key);
            prop_assert!(encoded.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'+' && byte != b'&'));
            prop_assert_eq!(decoded(&encoded, PERCENT), Some(key.clone()));
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
