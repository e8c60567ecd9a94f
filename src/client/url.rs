//! URLs of servers: `http://HOST[:PORT][/PATH]` or `https://`. Called by `exchange`.

use crate::client::Error;

/// A parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) https: bool,
    /// Host and port as given, for the `Host` header.
    pub(super) authority: String,
    /// Name or address, without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// The prefix of the path of each request: empty, or begins with `/` and does not end with one.
    pub(super) base: String,
}

impl Url {
    /// Parses `text`.
    ///
    /// # Errors
    /// `text` is not such a URL.
    pub(super) fn parse(text: &str) -> Result<Url, Error> {
        let wrong = || Error::Usage(format!("{text:?} is not a URL such as http://127.0.0.1:8080"));
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let https = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(wrong()),
        };
        let (authority, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match authority.rfind(':').filter(|colon| !authority[*colon..].contains(']')) {
            Some(colon) => (&authority[..colon], authority[colon + 1..].parse().map_err(|_| wrong())?),
            None => (authority, if https { 443 } else { 80 }),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let odd = |c: char| !c.is_ascii_graphic() || "?#\"<>\\^`{|}".contains(c);
        if port == 0 || bare.is_empty() || bare.contains(['[', ']', '@']) || rest.contains(odd) {
            return Err(wrong());
        }
        Ok(Url {
            https,
            authority: authority.to_owned(),
            host: bare.to_owned(),
            port,
            base: base.trim_end_matches('/').to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (bool, String, String, u16, String) {
        let url = Url::parse(text).expect("valid");
        (url.https, url.authority, url.host, url.port, url.base)
    }

    #[test]
    fn urls_are_parsed() {
        let owned = |https, authority: &str, host: &str, port, base: &str| {
            (https, authority.to_owned(), host.to_owned(), port, base.to_owned())
        };
        assert_eq!(parts("http://h:8080"), owned(false, "h:8080", "h", 8080, ""));
        assert_eq!(parts("HTTPS://h/"), owned(true, "h", "h", 443, ""));
        assert_eq!(parts("http://h/store/a/"), owned(false, "h", "h", 80, "/store/a"));
        assert_eq!(parts("https://[::1]:81/x"), owned(true, "[::1]:81", "::1", 81, "/x"));
    }

    #[test]
    fn invalid_urls_are_rejected() {
        for text in [
            "h:8080",
            "ftp://h",
            "http://",
            "http://:80",
            "http://h:99999",
            "http://h:0",
            "http://u@h",
            "http://h/a b",
            "http://h/?x",
            "http://h#x",
            "http://[::1",
            "http://h/\r\nX: y",
            "http://é",
        ] {
            assert!(matches!(Url::parse(text), Err(Error::Usage(_))), "{text}");
        }
    }
}
