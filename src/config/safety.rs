//! Whether klad may listen where it is told to, and with which tokens and certificate.
//!
//! Called by `config`.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use crate::cli::{AdminTlsName, ServeArgs};
use klad_server::Safety;
use klad_server::net::tls::{self, TlsSettings};
use klad_server::tokens::{self, Tokens};

/// Why klad would not be safe, or cannot be.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Everybody could do everything.
    #[error(
        "--{option} {given}{} is reached from other machines, and whoever reaches it could {what}. Give --token-file FILE, so \
         that only holders of a token can; or, where something else keeps strangers out, --insecure-listen",
        resolved(given, address)
    )]
    Exposed {
        /// Without the dashes.
        option: &'static str,
        /// As given.
        given: String,
        /// What that is.
        address: SocketAddr,
        /// What could happen.
        what: &'static str,
    },
    /// One half of two.
    #[error("--{given} needs --{missing} as well")]
    HalfOf {
        /// Without the dashes.
        given: &'static str,
        /// Without the dashes.
        missing: &'static str,
    },
    /// The file of tokens.
    #[error("--token-file: {0}")]
    Tokens(#[from] tokens::Error),
    /// Certificate, key, or authorities.
    #[error("TLS: {0}")]
    Tls(#[from] tls::Error),
}

fn resolved(given: &str, address: &SocketAddr) -> String {
    if given == address.to_string() { String::new() } else { format!(" ({address})") }
}

/// What is safe, where klad listens, and what must be said about it.
pub(super) struct Judged {
    pub(super) safety: Safety,
    pub(super) listen: String,
    pub(super) admin_listen: String,
    pub(super) warnings: Vec<String>,
}

/// Reads the files that `args` name, and judges the addresses.
pub(super) fn judge(args: &ServeArgs) -> Result<Judged, Error> {
    let listen = resolve(&args.listen);
    let admin_listen = resolve(&args.admin_listen);
    let (data, admin) = (off_loopback(&listen), off_loopback(&admin_listen));
    if args.token_file.is_none() && !args.insecure_listen {
        for (option, given, address, what) in [
            ("listen", &args.listen, data, "read and write everything"),
            ("admin-listen", &args.admin_listen, admin, "see and operate klad"),
        ] {
            if let Some(address) = address {
                return Err(Error::Exposed { option, given: given.clone(), address, what });
            }
        }
    }
    let tls = tls_files(args)?.map(TlsSettings::load).transpose()?.map(Arc::new);
    let tokens = args.token_file.as_deref().map(Tokens::load).transpose()?.map(Arc::new);
    let safety = Safety { tokens, tls, admin_tls: args.admin_tls == AdminTlsName::On };
    let in_clear = [data.filter(|_| safety.tls.is_none()), admin.filter(|_| safety.tls.is_none() || !safety.admin_tls)];
    let warnings = match &safety.tokens {
        Some(_) => in_clear.iter().flatten().map(|address| clear_warning(*address)).collect(),
        None => [data, admin].iter().flatten().map(|address| open_warning(*address)).collect(),
    };
    let or_as_given = |addresses: Vec<SocketAddr>, given: &str| {
        // The one that was judged, not what the name may stand for a moment later. What is no address `listen` will say.
        addresses.first().map_or_else(|| given.to_owned(), SocketAddr::to_string)
    };
    let (listen, admin_listen) = (or_as_given(listen, &args.listen), or_as_given(admin_listen, &args.admin_listen));
    Ok(Judged { safety, listen, admin_listen, warnings })
}

fn clear_warning(address: SocketAddr) -> String {
    format!(
        "tokens and data travel in clear to and from {address}: whoever sees them can use them. Give --tls-cert and --tls-key, \
         or let a proxy in front speak TLS"
    )
}

fn open_warning(address: SocketAddr) -> String {
    format!("--insecure-listen: whoever reaches {address} can do everything, as there is no --token-file")
}

fn tls_files(args: &ServeArgs) -> Result<Option<tls::Files>, Error> {
    let half = |given, missing| Err(Error::HalfOf { given, missing });
    match (&args.tls_cert, &args.tls_key, &args.tls_client_ca) {
        (Some(certificate), Some(key), client_ca) => {
            Ok(Some(tls::Files { certificate: certificate.clone(), key: key.clone(), client_ca: client_ca.clone() }))
        }
        (Some(_), None, _) => half("tls-cert", "tls-key"),
        (None, Some(_), _) => half("tls-key", "tls-cert"),
        (None, None, Some(_)) => half("tls-client-ca", "tls-cert"),
        (None, None, None) => Ok(None),
    }
}

/// Every address that `given` stands for; none where it is no address.
fn resolve(given: &str) -> Vec<SocketAddr> {
    given.to_socket_addrs().map_or_else(|_| Vec::new(), Iterator::collect)
}

/// The first of `addresses` that others than this machine may reach. Unspecified ones (`0.0.0.0`, `::`) are all addresses.
fn off_loopback(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    addresses.iter().find(|address| !address.ip().to_canonical().is_loopback()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_loopback() {
        for (given, loopback) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("localhost:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("192.0.2.1:1", false),
            ("10.0.0.1:1", false),
            ("[::ffff:192.0.2.1]:1", false),
            ("[fe80::1]:1", false),
        ] {
            let addresses = resolve(given);
            assert!(!addresses.is_empty(), "{given}");
            assert_eq!(off_loopback(&addresses).is_none(), loopback, "{given}");
        }
        // One of several is enough.
        let addresses = [resolve("127.0.0.1:1"), resolve("192.0.2.1:1")].concat();
        assert_eq!(off_loopback(&addresses), Some(addresses[1]));
        assert!(resolve("nowhere").is_empty());
    }
}
