//! The URL of a server: `http://HOST[:PORT][/PATH]`, with `{key}` in the place of the key. Called by `plan`, `runner`,
//! `scripts`, `admin` and `knee`.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

/// The placeholder for the key in a path.
const KEY: &str = "{key}";

/// The target of klad's own operations on a key.
const KLAD_TARGET: &str = "/v0/entity?id={key}";

/// The target of klad's batches.
const KLAD_BATCH_TARGET: &str = "/v1/batch";

/// The longest wait for one address, if the name has several.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Host and port as given, for the `Host` header.
    pub authority: String,
    /// The name or address, without brackets.
    host: String,
    port: u16,
    /// Path and query; empty if there are none.
    target: String,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Url, String> {
        let hint = || format!("{text:?} is not a URL such as http://127.0.0.1:8080");
        if text.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("https:")) {
            return Err("klad bench supports plain HTTP only, not https".to_owned());
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(hint)?;
        if !scheme.eq_ignore_ascii_case("http") {
            return Err(hint());
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let split = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(split);
        let (host, port) = match authority.rfind(':').filter(|colon| !authority[*colon..].contains(']')) {
            Some(colon) => (&authority[..colon], authority[colon + 1..].parse().map_err(|_| hint())?),
            None => (authority, 80),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if port == 0
            || host.is_empty()
            || host.contains(['[', ']'])
            || authority.contains('@')
            || text.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            return Err(hint());
        }
        let target = if target.starts_with('?') { format!("/{target}") } else { target.to_owned() };
        Ok(Url { authority: authority.to_owned(), host: host.to_owned(), port, target })
    }
}

impl Url {
    /// Returns the target of requests, split at each `{key}`. With `keys`, the target must have a `{key}`, and a URL
    /// without a path gets the target of klad's own operations.
    ///
    /// # Errors
    /// If `keys` is set and the path has no `{key}`.
    pub fn target(&self, keys: bool) -> anyhow::Result<Vec<Vec<u8>>> {
        let target = match self.target.as_str() {
            _ if keys && !self.has_path() => KLAD_TARGET,
            "" => "/",
            target => target,
        };
        ensure!(
            !keys || target.contains(KEY),
            "the URL's path must contain {KEY} in the place of the key, such as http://{}{}",
            self.authority,
            KLAD_TARGET
        );
        Ok(target.split(KEY).map(|piece| piece.as_bytes().to_vec()).collect())
    }

    /// The target of requests with many operations: the URL's own path, or klad's.
    #[must_use]
    pub fn batch_target(&self) -> Vec<u8> {
        if self.has_path() { self.target.clone().into_bytes() } else { KLAD_BATCH_TARGET.as_bytes().to_vec() }
    }

    /// Whether the URL names more than the server.
    #[must_use]
    pub fn has_path(&self) -> bool {
        !matches!(self.target.as_str(), "" | "/")
    }

    /// The name or address, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port as given; `None` if the URL has none.
    #[must_use]
    pub fn given_port(&self) -> Option<String> {
        let after_host = self.authority.rsplit(']').next().unwrap_or_default();
        after_host.contains(':').then(|| self.port.to_string())
    }

    /// Path and query as given; `/` if there are none.
    #[must_use]
    pub fn path(&self) -> &str {
        if self.target.is_empty() { "/" } else { &self.target }
    }

    /// Resolves the host to an address. If the host has several addresses, as `localhost` may have, returns the first
    /// one that accepts a connection.
    ///
    /// # Errors
    /// If the host has no address, or if it has several and none accepts a connection.
    pub fn reach(&self) -> anyhow::Result<SocketAddr> {
        let addresses: Vec<_> = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .with_context(|| format!("cannot resolve {}", self.host))?
            .collect();
        if let [only] = addresses[..] {
            return Ok(only);
        }
        let mut failure = None;
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(_) => return Ok(address),
                Err(error) => failure = Some((address, error)),
            }
        }
        match failure {
            Some((address, error)) => Err(error).with_context(|| format!("cannot connect to {address}")),
            None => bail!("{} has no address", self.host),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (String, u16, String) {
        let url: Url = text.parse().expect("valid");
        (url.host, url.port, url.target)
    }

    #[test]
    fn urls_are_parsed() {
        assert_eq!(parts("http://h:8080"), ("h".into(), 8080, String::new()));
        assert_eq!(parts("http://h/a?b={key}#c"), ("h".into(), 80, "/a?b={key}".into()));
        assert_eq!(parts("HTTP://h"), ("h".into(), 80, String::new()));
        assert_eq!(parts("http://[::1]:81/"), ("::1".into(), 81, "/".into()));
        assert_eq!(parts("http://[::1]?q"), ("::1".into(), 80, "/?q".into()));
        for wrong in [
            "h:8080",
            "https://h",
            "http://",
            "http://:80",
            "http://h:99999",
            "http://a@h",
            "http://h/a b",
            "http://[::1",
            "http://h:0",
        ] {
            assert!(wrong.parse::<Url>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_have_a_place() {
        let target = |text: &str, keys| text.parse::<Url>().expect("valid").target(keys);
        assert_eq!(target("http://h", true).expect("klad's"), [b"/v0/entity?id=".to_vec(), Vec::new()]);
        assert_eq!(target("http://h/kv/{key}?raw", true).expect("its own"), [b"/kv/".to_vec(), b"?raw".to_vec()]);
        assert_eq!(target("http://h", false).expect("the root"), [b"/".to_vec()]);
        assert!(target("http://h/kv", true).is_err());
    }
}
