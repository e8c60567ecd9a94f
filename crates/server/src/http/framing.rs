//! Rejects heads that hyper accepts, but that another program may read differently (RFC 9112, sections 3.2 and 6.1). A
//! proxy could then see another host, or take a part of a body for the next request. `service` and `admin` call this.

use hyper::header::{HOST, TRANSFER_ENCODING};
use hyper::{HeaderMap, Version};

use crate::http::api_error::ApiError;

/// Checks whether all programs find the same host and the same end of the request as hyper does. If the check fails,
/// the connection must close after the answer.
///
/// # Errors
/// [`ApiError::BadHost`], [`ApiError::BadTransferEncoding`].
pub(crate) fn check(version: Version, headers: &HeaderMap) -> Result<(), ApiError> {
    if version == Version::HTTP_11 && headers.get_all(HOST).iter().count() != 1 {
        return Err(ApiError::BadHost);
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(ApiError::BadTransferEncoding),
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    fn code(version: Version, headers: &[(&'static str, &'static str)]) -> Option<&'static str> {
        let of = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        check(version, &headers.iter().map(of).collect()).err().map(|api_error| api_error.code())
    }

    #[test]
    fn one_host_and_one_coding() {
        let coded = |coding| code(Version::HTTP_11, &[("host", "a"), ("transfer-encoding", coding)]);
        for coding in ["chunked", "Chunked", " CHUNKED "] {
            assert_eq!(coded(coding), None, "{coding}");
        }
        for coding in ["gzip, chunked", "foo, chunked", "chunked, chunked", "identity, chunked", ",chunked", "", "gzip"]
        {
            assert_eq!(coded(coding), Some("bad-transfer-encoding"), "{coding}");
        }
        let twice = [("host", "a"), ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")];
        assert_eq!(code(Version::HTTP_11, &twice), Some("bad-transfer-encoding"));
        assert_eq!(code(Version::HTTP_11, &[]), Some("bad-host"));
        assert_eq!(code(Version::HTTP_11, &[("host", "a"), ("host", "a")]), Some("bad-host"));
        assert_eq!(code(Version::HTTP_10, &[]), None);
        assert_eq!(code(Version::HTTP_11, &[("host", "")]), None);
    }
}
