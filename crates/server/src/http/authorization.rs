//! Who may do what: from the `Authorization` header to an access. Without `--token-file` everybody may do everything, at the
//! cost of one comparison.
//!
//! Called by `service` and `admin`, before they look at anything else of a request.

use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

use crate::http::api_error::ApiError;
use crate::tokens::{Access, Tokens, View};

/// The tokens as one thread sees them.
pub struct Authorization(Option<View>);

impl Authorization {
    /// By `tokens`; `None`: everybody may do everything.
    #[must_use]
    pub fn new(tokens: Option<Arc<Tokens>>) -> Authorization {
        Authorization(tokens.map(View::new))
    }

    /// What a request with these headers may do.
    ///
    /// # Errors
    /// [`ApiError::Unauthorized`].
    pub fn grant(&self, headers: &HeaderMap) -> Result<Access, ApiError> {
        let Some(tokens) = &self.0 else { return Ok(Access::ReadWrite) };
        bearer(headers).and_then(|token| tokens.access(token)).ok_or(ApiError::Unauthorized)
    }
}

/// Whether `access` is enough for a request that `changes` something or not.
///
/// # Errors
/// [`ApiError::ReadOnlyToken`].
pub fn may(access: Access, changes: bool) -> Result<(), ApiError> {
    match access {
        Access::ReadOnly if changes => Err(ApiError::ReadOnlyToken),
        Access::ReadOnly | Access::ReadWrite => Ok(()),
    }
}

/// The token of the one `Authorization` header. With two of them, a proxy in front may have looked at the other one.
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
        assert_eq!(header(&["Bearer "]), Some(Vec::new()), "which no file holds");
    }
}
