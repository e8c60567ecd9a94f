//! Certificate and key: from PEM files to what rustls needs, at start and whenever they are reloaded.
//!
//! Loaded by `config`, reloaded by `main`, asked by `handshake` for each connection. A reload changes nothing for connections
//! that stand; tickets that were given out before it are worth nothing after, so that who was trusted then must show now that
//! it still is.

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

use klad_base::clock;
use klad_base::limits::{CERTIFICATE_EXPIRES_SOON, TLS_FILE_BYTES_MAX};
use klad_base::metrics::Counter;
use klad_base::sync::RwLock;

/// Where the parts are.
#[derive(Clone, Debug)]
pub struct Files {
    /// The certificate, then those between it and its authority.
    pub certificate: PathBuf,
    /// Its private key, not encrypted.
    pub key: PathBuf,
    /// Authorities of clients' certificates. `None`: clients need none.
    pub client_ca: Option<PathBuf>,
}

/// Why there can be no TLS with these files.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The kernel gives no bytes.
    #[error("cannot read {path}: {why}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What was said.
        why: String,
    },
    /// More than such a file holds.
    #[error("{path} is larger than {TLS_FILE_BYTES_MAX} bytes: is it a file of certificates or a key?", path = path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Nothing of the kind is in it.
    #[error("{path} holds no {what} in PEM", path = path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// `certificate` or `private key`.
        what: &'static str,
    },
    /// Something of the kind, but not usable.
    #[error("{path} cannot be used: {why}", path = path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What was said.
        why: String,
    },
    /// Two that do not belong together.
    #[error("the key in {key} is not that of the certificate in {certificate}",
        key = key.display(), certificate = certificate.display())]
    Mismatch {
        /// The file.
        key: PathBuf,
        /// The file.
        certificate: PathBuf,
    },
    /// No client would take it.
    #[error("the certificate in {path} expired at {at}", path = path.display())]
    Expired {
        /// The file.
        path: PathBuf,
        /// RFC 3339.
        at: String,
    },
    /// No client would take it yet.
    #[error("the certificate in {path} is not valid yet; is the clock right?", path = path.display())]
    NotYetValid {
        /// The file.
        path: PathBuf,
    },
}

/// What became of handshakes, over all threads.
#[derive(Debug, Default)]
pub struct Handshakes {
    /// The connection was served.
    pub done: Counter,
    /// The client spoke no TLS, or none that klad speaks; or had no certificate that is trusted.
    pub failed: Counter,
    /// It took longer than `--head-timeout`.
    pub late: Counter,
}

/// What new connections are shaken hands with.
#[derive(Debug)]
pub struct TlsSettings {
    files: Files,
    current: RwLock<Loaded>,
    /// For whoever counts.
    pub handshakes: Handshakes,
}

#[derive(Clone, Debug)]
struct Loaded {
    config: Arc<ServerConfig>,
    expires: Option<UnixTime>,
}

impl TlsSettings {
    /// Reads the files.
    ///
    /// # Errors
    /// [`Error`].
    pub fn load(files: Files) -> Result<TlsSettings, Error> {
        let current = RwLock::new(read(&files)?);
        Ok(TlsSettings { files, current, handshakes: Handshakes::default() })
    }

    /// Reads the files again, for connections that come from now on.
    ///
    /// # Errors
    /// [`Error`]; what was in use is in use.
    pub fn reload(&self) -> Result<(), Error> {
        let loaded = read(&self.files)?;
        *self.current.write() = loaded;
        Ok(())
    }

    /// For one new connection.
    #[must_use]
    pub fn current(&self) -> Arc<ServerConfig> {
        self.current.read().config.clone()
    }

    /// When the certificate in use expires, seconds since 1970, where it says so.
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
    // Sessions are resumed from tickets that the client keeps: no memory here, and no lock between workers for long.
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

/// At least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bytes = read_file(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|error| Error::Unusable { path: path.to_owned(), why: error.to_string() })?;
    if all.is_empty() { Err(Error::Missing { path: path.to_owned(), what: "certificate" }) } else { Ok(all) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    use rustls::pki_types::pem::Error as Pem;
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o007 != 0) {
        tracing::warn!(path = %path.display(), "everybody on this machine may read or change the private key");
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

/// Refuses a certificate out of its time, warns where little is left of it, and tells when it expires.
///
/// rustls verifies certificates and shows no dates, but says which it was when one has expired: so it is asked about the end of
/// all time as well. Nobody is trusted here, and an unknown authority is what is found where nothing else is wrong.
fn check_validity(certificate: &CertificateDer<'_>, path: &Path) -> Result<Option<UnixTime>, Error> {
    let parsed = ParsedCertificate::try_from(certificate)
        .map_err(|error| Error::Unusable { path: path.to_owned(), why: error.to_string() })?;
    let expiry_seen_at = |now| {
        let trusts_nobody = RootCertStore::empty();
        match verify_server_cert_signed_by_trust_anchor(&parsed, &trusts_nobody, &[], now, &[]) {
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
        tracing::warn!(path = %path.display(), expires = %date(expires), "the certificate expires soon");
    }
    Ok(expires)
}

fn date(time: UnixTime) -> String {
    let since_epoch = Duration::from_secs(time.as_secs());
    let time = std::time::UNIX_EPOCH.checked_add(since_epoch);
    time.map_or_else(|| "an unknown time".to_owned(), |time| humantime::format_rfc3339_seconds(time).to_string())
}
