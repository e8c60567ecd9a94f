//! The query parameters of `/v1`. klad is strict about them: an unknown parameter is an error, and so is a parameter
//! that is given twice. Otherwise, a misspelled `ttl` would store a value for ever. `route` calls this.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::http::api_error::ApiError;
use crate::http::query::{self, BadEscape};

/// Reads base64url with or without padding, and writes it without padding.
pub(super) const BASE64URL: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_encode_padding(false).with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The decoded parameters of one request.
pub(super) struct Parameters<'q> {
    given: Vec<(&'static str, Cow<'q, [u8]>)>,
}

impl<'q> Parameters<'q> {
    /// Decodes a query whose parameters must all be among `known`.
    pub(super) fn read(query: &'q str, known: &[&'static str]) -> Result<Parameters<'q>, ApiError> {
        let mut given: Vec<(&'static str, Cow<'q, [u8]>)> = Vec::new();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (raw_name, raw_value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let name = query::decode(raw_name.as_bytes()).map_err(|BadEscape| unknown(raw_name, known))?;
            let name = known.iter().find(|known| known.as_bytes() == &*name).ok_or_else(|| unknown(raw_name, known))?;
            if given.iter().any(|(before, _)| before == name) {
                return Err(ApiError::RepeatedParameter(name));
            }
            given.push((name, query::decode(raw_value.as_bytes()).map_err(|BadEscape| ApiError::BadEscape(name))?));
        }
        Ok(Parameters { given })
    }

    /// The value of a parameter, as bytes.
    pub(super) fn bytes(&self, name: &'static str) -> Option<&[u8]> {
        self.given.iter().find(|(given, _)| *given == name).map(|(_, value)| &**value)
    }

    /// Takes the value of a parameter, as bytes.
    pub(super) fn take(&mut self, name: &'static str) -> Option<Cow<'q, [u8]>> {
        let index = self.given.iter().position(|(given, _)| *given == name)?;
        Some(self.given.swap_remove(index).1)
    }

    /// The value of a parameter, as text.
    pub(super) fn text(&self, name: &'static str) -> Result<Option<&str>, ApiError> {
        let Some(value) = self.bytes(name) else { return Ok(None) };
        std::str::from_utf8(value).map(Some).map_err(|_| bad(name, "UTF-8 text"))
    }

    /// Returns the value of a switch: `true` or `false`. An absent parameter means `false`, and the name alone means
    /// `true`.
    pub(super) fn switch(&self, name: &'static str) -> Result<bool, ApiError> {
        match self.bytes(name) {
            None | Some(b"false" | b"0") => Ok(false),
            Some(b"" | b"true" | b"1") => Ok(true),
            Some(_) => Err(bad(name, "true or false")),
        }
    }

    /// Returns the value of a parameter with arbitrary bytes. The client gives `name`, or `name64` in base64url.
    pub(super) fn binary(
        &self,
        name: &'static str,
        name64: &'static str,
        bytes_max: u64,
    ) -> Result<Option<Vec<u8>>, ApiError> {
        let value = match (self.bytes(name), self.bytes(name64)) {
            (Some(_), Some(_)) => return Err(ApiError::RepeatedParameter(name)),
            (Some(plain), None) => plain.to_vec(),
            (None, Some(encoded)) => BASE64URL.decode(encoded).map_err(|_| ApiError::BadBase64(name64))?,
            (None, None) => return Ok(None),
        };
        if value.len() as u64 > bytes_max {
            return Err(ApiError::KeyTooLong { limit_bytes: bytes_max });
        }
        Ok(Some(value))
    }
}

/// The error for a parameter with a wrong value.
pub(super) fn bad(name: &'static str, expected: &str) -> ApiError {
    ApiError::BadParameter(format!("parameter {name} must be {expected}"))
}

fn unknown(name: &str, known: &[&str]) -> ApiError {
    let mut name = name.to_owned();
    name.truncate(name.floor_char_boundary(64));
    ApiError::UnknownParameter { name, known: known.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code<T>(result: Result<T, ApiError>) -> &'static str {
        result.err().map_or("ok", |error| error.code())
    }

    #[test]
    fn parameters_are_strict() {
        let read = |query| Parameters::read(query, &["ttl", "key64"]);
        assert_eq!(code(read("")), "ok");
        assert_eq!(code(read("ttl=1&&key64=")), "ok");
        assert_eq!(code(read("tll=1")), "unknown-parameter");
        assert_eq!(code(read("ttl=1&ttl=1")), "repeated-parameter");
        assert_eq!(code(read("ttl=1&%74tl=1")), "repeated-parameter");
        assert_eq!(code(read("ttl=%zz")), "bad-escape");
        assert_eq!(code(read("%zz=1")), "unknown-parameter");
    }

    #[test]
    fn base64url_is_read_with_and_without_padding() {
        let read = |query| {
            let parameters = Parameters::read(query, &["key", "key64"]).expect("known");
            parameters.binary("key", "key64", 4)
        };
        assert_eq!(read("key64=_w").ok(), Some(Some(vec![0xFF])));
        assert_eq!(read("key64=_w%3D%3D").ok(), Some(Some(vec![0xFF])));
        assert_eq!(read("key=a%00b").ok(), Some(Some(b"a\0b".to_vec())));
        assert_eq!(code(read("key64=/w")), "bad-base64");
        assert_eq!(code(read("key64=AAAAAAAA")), "key-too-long");
        assert_eq!(code(read("key=a&key64=YQ")), "repeated-parameter");
    }
}
