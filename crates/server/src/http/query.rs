//! Query parameters as bytes. A key may have any bytes, so this module never converts to text.
//!
//! This module decodes the raw query once: `%xx` is a byte, `+` is a space, and every other byte is itself. An invalid
//! escape is an error. `route`, `consistency`, `v1` and `admin` call this.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use crate::http::api_error::ApiError;

/// A `%` without two hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadEscape;

/// Decodes one name or value. Borrows `raw` if nothing is escaped.
///
/// # Errors
/// [`BadEscape`] if a `%` is not followed by two hexadecimal digits.
pub fn decode(raw: &[u8]) -> Result<Cow<'_, [u8]>, BadEscape> {
    if !raw.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Ok(Cow::Borrowed(raw));
    }
    if has_bad_escape(raw) {
        return Err(BadEscape);
    }
    let spaced: Vec<u8> = raw.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    Ok(Cow::Owned(percent_decode(&spaced).collect()))
}

/// Decodes the bytes of a path, in which a `+` stays a `+`. Borrows `raw` if nothing is escaped.
///
/// # Errors
/// [`BadEscape`] if a `%` is not followed by two hexadecimal digits.
pub fn decode_path(raw: &[u8]) -> Result<Cow<'_, [u8]>, BadEscape> {
    if !raw.contains(&b'%') {
        return Ok(Cow::Borrowed(raw));
    }
    if has_bad_escape(raw) { Err(BadEscape) } else { Ok(Cow::Owned(percent_decode(raw).collect())) }
}

fn has_bad_escape(raw: &[u8]) -> bool {
    let is_escape = |rest: &[u8]| matches!(rest, [a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit());
    !raw.split(|byte| *byte == b'%').skip(1).all(is_escape)
}

/// Returns the decoded value of the first parameter called `name`, or `None`. A parameter without `=` has the empty
/// value. This function ignores errors in other parameters.
///
/// # Errors
/// [`BadEscape`] in that parameter's value.
pub fn first<'q>(query: &'q str, name: &str) -> Result<Option<Cow<'q, [u8]>>, BadEscape> {
    for parameter in query.split('&') {
        let (raw_name, raw_value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if raw_name == name || decode(raw_name.as_bytes()).is_ok_and(|decoded| *decoded == *name.as_bytes()) {
            return decode(raw_value.as_bytes()).map(Some);
        }
    }
    Ok(None)
}

/// Returns the decoded value of the first parameter of each name, in one pass.
///
/// # Errors
/// [`ApiError::BadEscape`] in one of these values.
pub fn first_of_each<'q, const N: usize>(
    query: &'q str,
    names: [&'static str; N],
) -> Result<[Option<Cow<'q, [u8]>>; N], ApiError> {
    let mut values = [const { None }; N];
    for parameter in query.split('&') {
        let (raw_name, raw_value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let Ok(name) = decode(raw_name.as_bytes()) else { continue };
        let Some(index) = names.iter().position(|known| known.as_bytes() == &*name) else { continue };
        if values[index].is_none() {
            let value = decode(raw_value.as_bytes()).map_err(|BadEscape| ApiError::BadEscape(names[index]))?;
            values[index] = Some(value);
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_byte_string_survives_encoding(
            key in proptest::collection::vec(any::<u8>(), 0..64),
            plain in any::<bool>(),
        ) {
            let encoded: String = key
                .iter()
                .map(|byte| match byte {
                    b' ' if plain => "+".to_owned(),
                    b if plain && b.is_ascii_alphanumeric() => char::from(*b).to_string(),
                    b => format!("%{b:02x}"),
                })
                .collect();
            let decoded = decode(encoded.as_bytes()).expect("well encoded");
            prop_assert_eq!(&*decoded, &key[..]);
        }
    }

    #[test]
    fn bad_escapes_are_errors() {
        for bad in ["%", "%4", "%zz", "a%4", "%+1", "%-1", "%%41"] {
            assert_eq!(decode(bad.as_bytes()), Err(BadEscape), "{bad}");
        }
    }

    #[test]
    fn first_of_repeated_parameters_wins() {
        let value = |query| first(query, "id").map(|value| value.map(Cow::into_owned));
        assert_eq!(value("id=a&id=b"), Ok(Some(b"a".to_vec())));
        assert_eq!(value("id=&id=b"), Ok(Some(Vec::new())));
        assert_eq!(value("id&id=b"), Ok(Some(Vec::new())));
        assert_eq!(value("x=%zz&%69d=a+b%2b"), Ok(Some(b"a b+".to_vec())));
        assert_eq!(value("idx=1&xid=2"), Ok(None));
        assert_eq!(value(""), Ok(None));
    }
}
