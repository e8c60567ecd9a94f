//! Tokens and certificates, and whether klad may listen on the given addresses. Without tokens klad listens on loopback
//! only, unless the operator sets `--insecure-listen`. Called by `config`.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use crate::cli::{AdminTlsName, ServeArgs};
use klad_server::Safety;
use klad_server::net::tls::{self, TlsSettings};
use klad_server::tokens::{self, Tokens};

/// Why klad rejects the options of security.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Every client on the network could do everything.
    #[error(
        "other machines can reach --{option} {given}{}, and any of them could {what}. Give --token-file FILE, so that \
         only clients with a token can, or --insecure-listen if your network keeps other clients out",
        resolved(given, address)
    )]
    Exposed {
        /// Name of the option, without the dashes.
        option: &'static str,
        /// The given address.
        given: String,
        /// The address that it resolves to.
        address: SocketAddr,
        /// What a client could do.
        what: &'static str,
    },
    /// An option is given without another option that it needs.
    #[error("--{given} needs --{missing} as well")]
    HalfOf {
        /// Name of the given option, without the dashes.
        given: &'static str,
        /// Name of the missing option, without the dashes.
        missing: &'static str,
    },
    /// The token file cannot be used.
    #[error("--token-file: {0}")]
    Tokens(#[from] tokens::Error),
    /// The certificate, the key or the authorities cannot be used.
    #[error("TLS: {0}")]
    Tls(#[from] tls::Error),
}

fn resolved(given: &str, address: &SocketAddr) -> String {
    if given == address.to_string() { String::new() } else { format!(" ({address})") }
}

/// Tokens and TLS of the listeners, their addresses, and warnings about who can reach the addresses.
pub(super) struct Exposure {
    pub(super) safety: Safety,
    pub(super) listen: String,
    pub(super) admin_listen: String,
    pub(super) warnings: Vec<String>,
}

/// Reads the files that `args` name, and checks who could reach the addresses.
pub(super) fn check(args: &ServeArgs) -> Result<Exposure, Error> {
    let listen = resolve(&args.listen);
    let admin_listen = resolve(&args.admin_listen);
    let (data, admin) = (off_loopback(&listen), off_loopback(&admin_listen));
    if args.token_file.is_none() && !args.insecure_listen {
        for (option, given, address, what) in [
            ("listen", &args.listen, data, "read and write everything"),
            ("admin-listen", &args.admin_listen, admin, "read and write everything, and operate klad"),
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
        // klad listens on the address that was checked, because the name may resolve to another address later. If
        // `given` is not an address, `listen` reports this.
        addresses.first().map_or_else(|| given.to_owned(), SocketAddr::to_string)
    };
    let (listen, admin_listen) = (or_as_given(listen, &args.listen), or_as_given(admin_listen, &args.admin_listen));
    Ok(Exposure { safety, listen, admin_listen, warnings })
}

fn clear_warning(address: SocketAddr) -> String {
    format!(
        "tokens and data travel unencrypted to and from {address}, and others on the network can read them. Give \
         --tls-cert and --tls-key, or put a proxy with TLS in front of klad"
    )
}

fn open_warning(address: SocketAddr) -> String {
    format!("--insecure-listen without --token-file: every client that reaches {address} can do everything")
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

/// Returns every address that `given` resolves to; none if it is not an address.
fn resolve(given: &str) -> Vec<SocketAddr> {
    given.to_socket_addrs().map_or_else(|_| Vec::new(), Iterator::collect)
}

/// Returns the first of `addresses` that other machines may reach. The unspecified ones (`0.0.0.0`, `::`) stand for all
/// addresses of the machine.
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
