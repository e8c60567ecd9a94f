//! Authorization: from the `Authorization` header to an access level. Without `--token-file` every client may do
//! everything, and the check is one comparison.
//!
//! `service` and `admin` call this before they route a request. `write_run` and `batch` call this too.

use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

use crate::http::api_error::ApiError;
use crate::tokens::{Access, Tokens, View};

/// Decides what a request may do. Holds one thread's copy of the tokens, or `None` if no token is needed.
pub struct Authorization(Option<View>);

impl Authorization {
    /// Creates the check. With `None`, every client may do everything.
    #[must_use]
    pub fn new(tokens: Option<Arc<Tokens>>) -> Authorization {
        Authorization(tokens.map(View::new))
    }

    /// Whether a request needs a token.
    #[must_use]
    pub fn needs_token(&self) -> bool {
        self.0.is_some()
    }

    /// Returns what a request with these headers may do.
    ///
    /// # Errors
    /// [`ApiError::Unauthorized`] if the headers have no known token.
    pub fn grant(&self, headers: &HeaderMap) -> Result<Access, ApiError> {
        let Some(tokens) = &self.0 else { return Ok(Access::ReadWrite) };
        bearer(headers).and_then(|token| tokens.access(token)).ok_or(ApiError::Unauthorized)
    }
}

/// Checks whether `access` allows a request that `changes` something, or only reads.
///
/// # Errors
/// [`ApiError::ReadOnlyToken`] if the request changes something and `access` allows only reads.
pub fn may(access: Access, changes: bool) -> Result<(), ApiError> {
    match access {
        Access::ReadOnly if changes => Err(ApiError::ReadOnlyToken),
        Access::ReadOnly | Access::ReadWrite => Ok(()),
    }
}

/// Returns the token of the only `Authorization` header. If there are two headers, a proxy may have checked the other
/// one, so the request gets no access.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (header, None) = (all.next()?, all.next()) else { return None };
    let (scheme, token) = header.as_bytes().split_first_chunk::<7>()?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_bearer_token_is_one() {
        let header = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, value.parse().expect("a header"));
            }
            bearer(&headers).map(<[u8]>::to_vec)
        };
        for value in ["Bearer abc", "bearer abc", "BEARER   abc "] {
            assert_eq!(header(&[value]), Some(b"abc".to_vec()), "{value}");
        }
        for values in [&[][..], &["abc"], &["Basic abc"], &["Bearerabc"], &["Bearer"], &["Bearer abc", "Bearer abc"]] {
            assert_eq!(header(values), None, "{values:?}");
        }
        assert_eq!(header(&["Bearer "]), Some(Vec::new()), "no token file can have it");
    }
}
