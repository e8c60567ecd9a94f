//! Certificate and key: loads PEM files for rustls, at the start and on each reload.
//!
//! `config` loads the files, `Safety` reloads them, and `handshake` takes the current settings for each connection. A
//! reload does not change existing connections. Session tickets from before a reload become invalid, so that a client
//! must show its certificate again if klad requires one.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, InconsistentKeys, RootCertStore, ServerConfig};

use crate::limits::{CERTIFICATE_EXPIRES_SOON, TLS_FILE_BYTES_MAX};
use klad_base::clock;
use klad_base::metrics::Counter;
use klad_base::sync::RwLock;

/// The paths of the files.
#[derive(Clone, Debug)]
pub struct Files {
    /// The certificate, followed by the certificates between it and its authority.
    pub certificate: PathBuf,
    /// The certificate's private key, not encrypted.
    pub key: PathBuf,
    /// The authorities of client certificates. `None`: clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

/// Why klad cannot use these files for TLS.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {path}: {why}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The file is too large for a certificate or a key.
    #[error("{path} is larger than {TLS_FILE_BYTES_MAX} bytes; is it a certificate or a key?", path = path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file contains no certificate or no private key, as `what` says.
    #[error("{path} holds no {what} in PEM", path = path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// `certificate` or `private key`.
        what: &'static str,
    },
    /// The file's contents are unusable.
    #[error("{path} cannot be used: {why}", path = path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Key and certificate do not belong together.
    #[error("the key in {key} does not match the certificate in {certificate}",
        key = key.display(), certificate = certificate.display())]
    Mismatch {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        certificate: PathBuf,
    },
    /// The certificate has expired.
    #[error("the certificate in {path} expired at {at}", path = path.display())]
    Expired {
        /// The file.
        path: PathBuf,
        /// The time in RFC 3339.
        at: String,
    },
    /// The certificate is not valid yet.
    #[error("the certificate in {path} is not valid yet; is the clock right?", path = path.display())]
    NotYetValid {
        /// The file.
        path: PathBuf,
    },
}

/// The results of handshakes on all threads.
#[derive(Debug, Default)]
pub struct Handshakes {
    /// The number of handshakes that succeeded.
    pub done: Counter,
    /// The number of handshakes that failed. For example, the client did not use TLS, used a TLS version that klad does
    /// not support, or had no trusted certificate.
    pub failed: Counter,
    /// The number of handshakes that klad ended because they took too long: longer than `--head-timeout`, or, on the
    /// admin listener, longer than [`HEAD_TIMEOUT`](crate::limits::HEAD_TIMEOUT).
    pub late: Counter,
}

/// The TLS settings for new connections.
#[derive(Debug)]
pub struct TlsSettings {
    files: Files,
    current: RwLock<Loaded>,
    /// The results of handshakes.
    pub handshakes: Handshakes,
}

#[derive(Clone, Debug)]
struct Loaded {
    config: Arc<ServerConfig>,
    expires: Option<UnixTime>,
}

impl TlsSettings {
    /// Whether only clients with a certificate can connect.
    #[must_use]
    pub fn needs_client_certificate(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`Error`] if the files are unusable.
    pub fn load(files: Files) -> Result<TlsSettings, Error> {
        let current = RwLock::new(read(&files)?);
        Ok(TlsSettings { files, current, handshakes: Handshakes::default() })
    }

    /// Reads the files again. New connections use the new contents.
    ///
    /// # Errors
    /// [`Error`] if the files are unusable. The previous settings then remain in use.
    pub fn reload(&self) -> Result<(), Error> {
        let loaded = read(&self.files)?;
        *self.current.write() = loaded;
        Ok(())
    }

    /// Returns the settings for a new connection.
    #[must_use]
    pub fn current(&self) -> Arc<ServerConfig> {
        self.current.read().config.clone()
    }

    /// Returns when the certificate in use expires, in seconds since 1970. Returns `None` if klad could not find the
    /// time.
    #[must_use]
    pub fn expires_unix_s(&self) -> Option<u64> {
        self.current.read().expires.map(|time| time.as_secs())
    }
}

fn read(files: &Files) -> Result<Loaded, Error> {
    let chain = certificates(&files.certificate)?;
    let key = private_key(&files.key)?;
    let expires = check_validity(&chain[0], &files.certificate)?;
    let provider = Arc::new(default_provider());
    let unusable = |path: &Path| {
        let path = path.to_owned();
        move |why: String| Error::Unusable { path, why }
    };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for both versions");
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(client_verifier(path, provider)?),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            Error::Mismatch { key: files.key.clone(), certificate: files.certificate.clone() }
        }
        error @ rustls::Error::InvalidCertificate(_) => unusable(&files.certificate)(error.to_string()),
        error => unusable(&files.key)(error.to_string()),
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Session tickets keep the session's state at the client. So klad needs no memory for it, and no lock that workers
    // would hold for long.
    config.ticketer = Ticketer::new().map_err(|error| unusable(&files.key)(error.to_string()))?;
    Ok(Loaded { config: Arc::new(config), expires })
}

fn client_verifier(
    path: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, Error> {
    let unusable = |why: String| Error::Unusable { path: path.to_owned(), why };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| unusable(error.to_string()))
}

/// Reads the certificates in a file. Returns at least one, or an error.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bytes = read_file(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|error| Error::Unusable { path: path.to_owned(), why: error.to_string() })?;
    if all.is_empty() { Err(Error::Missing { path: path.to_owned(), what: "certificate" }) } else { Ok(all) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    use rustls::pki_types::pem::Error as Pem;
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o007 != 0) {
        tracing::warn!(
            path = %path.display(),
            "any user of this machine can read or change the private key; chmod 640 or 600 prevents that"
        );
    }
    let bytes = read_file(path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        Pem::NoItemsFound => Error::Missing { path: path.to_owned(), what: "private key (that is not encrypted)" },
        error => Error::Unusable { path: path.to_owned(), why: error.to_string() },
    })
}

fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    let unreadable = |why: std::io::Error| Error::Unreadable { path: path.to_owned(), why: why.to_string() };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(TLS_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > TLS_FILE_BYTES_MAX { Err(Error::TooLarge { path: path.to_owned() }) } else { Ok(bytes) }
}

/// Rejects a certificate that is not valid now, warns if it expires soon, and returns when it expires.
///
/// rustls gives no access to the dates, but its error for an expired certificate contains the date. So klad verifies
/// the certificate a second time, for the latest possible time. The verifier trusts no authority, so the error "unknown
/// authority" means that nothing else is wrong.
fn check_validity(certificate: &CertificateDer<'_>, path: &Path) -> Result<Option<UnixTime>, Error> {
    let parsed = ParsedCertificate::try_from(certificate)
        .map_err(|error| Error::Unusable { path: path.to_owned(), why: error.to_string() })?;
    let expiry_seen_at = |now| {
        let no_authorities = RootCertStore::empty();
        match verify_server_cert_signed_by_trust_anchor(&parsed, &no_authorities, &[], now, &[]) {
            Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
                Ok(Some(not_after))
            }
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
            )) => Err(Error::NotYetValid { path: path.to_owned() }),
            _ => Ok(None),
        }
    };
    let now = Duration::from_millis(clock::unix_ms());
    if let Some(not_after) = expiry_seen_at(UnixTime::since_unix_epoch(now))? {
        return Err(Error::Expired { path: path.to_owned(), at: date(not_after) });
    }
    let expires = expiry_seen_at(UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX)))?;
    if let Some(expires) = expires.filter(|expires| expires.as_secs() < (now + CERTIFICATE_EXPIRES_SOON).as_secs()) {
        let expires = date(expires);
        tracing::warn!(path = %path.display(), %expires, "the certificate expires soon; renew it, then reload");
    }
    Ok(expires)
}

fn date(time: UnixTime) -> String {
    let since_epoch = Duration::from_secs(time.as_secs());
    let time = std::time::UNIX_EPOCH.checked_add(since_epoch);
    time.map_or_else(|| "an unknown time".to_owned(), |time| humantime::format_rfc3339_seconds(time).to_string())
}
