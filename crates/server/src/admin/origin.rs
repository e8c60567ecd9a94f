//! Detects requests that may come from a page in a browser other than the console.
//!
//! ```text
//!   another site's page sends a change      Origin differs from Host                          rejected
//!   another site's name resolves to klad    Origin equals Host, and both are a foreign name   rejected without tokens
//!   the console                             Origin equals Host                                allowed
//!   curl, scripts, klad's commands          no Origin                                         allowed
//! ```
//!
//! If klad listens on a loopback address, any page in a browser on this machine can send requests to klad. Browsers add
//! the header `Origin` to changes, and a page cannot forge this header. But the owner of a domain can make its name
//! resolve to klad's address (DNS rebinding). Then a page of that domain has the same origin as klad. If klad requires
//! tokens, such a page has no token. If klad requires none, it trusts only hosts that cannot be redirected: IP
//! addresses and `localhost`. `admin` calls this for each request.

use std::net::{Ipv4Addr, Ipv6Addr};

use hyper::HeaderMap;
use hyper::header::{HOST, HeaderName, ORIGIN};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether the request comes, or may come, from a page of another origin.
pub(super) fn is_foreign(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let Some(origin) = text(ORIGIN) else { return false };
    // `Origin: null` has no authority, and differs from every host.
    let authority = origin.split_once("://").map(|(_, authority)| authority);
    let is_same = authority.zip(text(HOST)).is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host));
    !is_same || text(SEC_FETCH_SITE).is_some_and(|site| site != "same-origin")
}

/// Whether the request's host is an IP address or `localhost`, with or without a port.
pub(super) fn is_trusted_host(headers: &HeaderMap) -> bool {
    let Some(Ok(host)) = headers.get(HOST).map(|value| value.to_str()) else { return false };
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
    }
    let name = host.split(':').next().unwrap_or_default();
    name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("a value"))).collect()
    }

    #[test]
    fn only_the_console_is_of_the_same_origin() {
        let foreign = |pairs: &[(&'static str, &str)]| is_foreign(&headers(pairs));
        let host = ("host", "127.0.0.1:8081");
        assert!(!foreign(&[host]) && !foreign(&[]), "not from a page");
        assert!(!foreign(&[host, ("origin", "http://127.0.0.1:8081")]));
        assert!(!foreign(&[host, ("origin", "http://127.0.0.1:8081"), ("sec-fetch-site", "same-origin")]));
        assert!(!foreign(&[("host", "Klad.example"), ("origin", "https://klad.example")]), "behind a proxy with TLS");
        for origin in ["http://127.0.0.1:8080", "http://localhost:8081", "http://127.0.0.1", "null", "", "x"] {
            assert!(foreign(&[host, ("origin", origin)]), "{origin}");
        }
        assert!(foreign(&[("origin", "http://127.0.0.1:8081")]), "no host");
        for site in ["cross-site", "same-site", "none"] {
            assert!(foreign(&[host, ("origin", "http://127.0.0.1:8081"), ("sec-fetch-site", site)]), "{site}");
        }
    }

    #[test]
    fn only_addresses_and_localhost_are_trusted_hosts() {
        let trusted = |host: &str| is_trusted_host(&headers(&[("host", host)]));
        for host in ["127.0.0.1", "127.0.0.1:8081", "10.1.2.3:1", "localhost", "LOCALHOST:80", "[::1]", "[::1]:8081"] {
            assert!(trusted(host), "{host}");
        }
        for host in ["", "klad.example:8081", "localhost.evil.example", "127.0.0.1.evil.example:80", "[::1", "::1", "1"]
        {
            assert!(!trusted(host), "{host}");
        }
        assert!(!is_trusted_host(&HeaderMap::new()));
    }
}
