//! The options that `main` gives the engine: how to reach the cluster, and the consistency to ask for.

use std::fmt;
use std::time::Duration;

use scylla::client::session::TlsContext;

use crate::operation::Consistency;

/// How to reach the cluster.
#[derive(Clone)]
pub struct Contact {
    /// The nodes, as `host:port`, that klad asks for the addresses of all nodes.
    pub(super) points: Vec<String>,
    /// The data centre whose nodes are asked first.
    pub(super) local_datacenter: Option<String>,
    /// The keyspace, a name that CQL takes without quotes.
    pub(super) keyspace: String,
    /// User name and password.
    pub(super) user: Option<(String, String)>,
    pub(super) tls: Option<TlsContext>,
    /// The timeout of one request.
    pub(super) timeout: Duration,
}

/// Leaves out the password.
impl fmt::Debug for Contact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contact")
            .field("points", &self.points)
            .field("keyspace", &self.keyspace)
            .finish_non_exhaustive()
    }
}

impl Contact {
    /// Makes a contact. `points` has at least one node, as `host` or `host:port`.
    ///
    /// # Errors
    /// The keyspace's name is no plain CQL name.
    pub fn new(
        points: &[String],
        local_datacenter: Option<String>,
        keyspace: String,
        timeout: Duration,
    ) -> Result<Contact, BadName> {
        let points = points.iter().map(|point| with_port(point)).collect();
        if is_name(&keyspace) {
            Ok(Contact { points, local_datacenter, keyspace, user: None, tls: None, timeout })
        } else {
            Err(BadName(keyspace))
        }
    }

    /// Authenticates with a user name and a password.
    #[must_use]
    pub fn with_user(self, user: String, password: String) -> Contact {
        Contact { user: Some((user, password)), ..self }
    }

    /// Speaks TLS to the nodes.
    #[must_use]
    pub fn with_tls(self, tls: std::sync::Arc<rustls::ClientConfig>) -> Contact {
        Contact { tls: Some(tls.into()), ..self }
    }
}

/// The name of a keyspace is not one that CQL takes without quotes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no name of a keyspace: use up to 48 small letters, digits and _, beginning with a letter")]
pub struct BadName(pub String);

/// The consistency that klad asks the cluster for.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The consistency of requests that do not name one.
    pub consistency: Consistency,
    /// Whether conditional writes need only a majority of the copies in the local data centre.
    pub local_serial: bool,
}

/// Whether CQL takes `name` without quotes.
fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.len() <= 48
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Appends CQL's usual port unless `point` has a port.
fn with_port(point: &str) -> String {
    let has_port = match point.rsplit_once(':') {
        Some((host, port)) => !port.is_empty() && (!host.contains(':') || host.ends_with(']')),
        None => false,
    };
    if has_port {
        point.to_owned()
    } else if point.contains(':') && !point.starts_with('[') {
        format!("[{point}]:9042")
    } else {
        format!("{point}:9042")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contact_point_without_a_port_gets_that_of_cql() {
        for (given, expected) in [
            ("node1", "node1:9042"),
            ("node1:9043", "node1:9043"),
            ("127.0.0.1", "127.0.0.1:9042"),
            ("::1", "[::1]:9042"),
            ("[::1]", "[::1]:9042"),
            ("[::1]:9043", "[::1]:9043"),
        ] {
            assert_eq!(with_port(given), expected);
        }
    }

    #[test]
    fn names_that_would_need_quotes_are_rejected() {
        for (name, valid) in
            [("klad", true), ("k_1", true), ("", false), ("1k", false), ("Klad", false), ("a b", false)]
        {
            assert_eq!(is_name(name), valid, "{name}");
        }
    }
}
