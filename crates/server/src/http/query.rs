//! Query parameters as bytes: a key is any bytes, so nothing here goes through text.
//!
//! Decoding is done once, on the raw request target: `%xx` is a byte, `+` is a space, everything else stands for itself, and
//! an escape that is none is an error rather than a guess. Called by `route`.

use std::borrow::Cow;

/// A `%` that is not followed by two hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadEscape;

/// Decodes one name or value; borrows where nothing is escaped.
///
/// # Errors
/// [`BadEscape`].
pub fn decode(raw: &[u8]) -> Result<Cow<'_, [u8]>, BadEscape> {
    let Some(first) = raw.iter().position(|byte| matches!(byte, b'%' | b'+')) else {
        return Ok(Cow::Borrowed(raw));
    };
    let (plain, mut rest) = raw.split_at(first);
    let mut decoded = Vec::with_capacity(raw.len());
    decoded.extend_from_slice(plain);
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let (digits, after) = rest.split_first_chunk::<2>().ok_or(BadEscape)?;
                rest = after;
                hex(digits[0])? << 4 | hex(digits[1])?
            }
            other => other,
        });
    }
    Ok(Cow::Owned(decoded))
}

fn hex(digit: u8) -> Result<u8, BadEscape> {
    let value = char::from(digit).to_digit(16).ok_or(BadEscape)?;
    Ok(u8::try_from(value).expect("a hexadecimal digit is below 16"))
}

/// The decoded value of the first parameter called `name`; `None` where there is none. A parameter without `=` has the
/// empty value. Other parameters are not looked into, so what is wrong with them does not matter.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_byte_string_survives_encoding(key in proptest::collection::vec(any::<u8>(), 0..64), plain in any::<bool>()) {
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
