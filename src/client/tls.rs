//! Whom `https://` trusts. Called by `connection`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, RootCertStore};

use crate::client::Error;

/// Where systems keep the certificates that they trust, in one file: Debian and its like, Fedora and its like, SUSE, Alpine
/// and BSD. Read instead of a list that is compiled in, which would trust for ever what the system no longer does.
const SYSTEM_FILES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The client's half of a TLS connection to `host`, not begun.
///
/// # Errors
/// When there is nobody to trust, or `host` can be in no certificate.
pub(super) fn connection(host: &str, ca: Option<&Path>) -> Result<ClientConnection, Error> {
    let roots = match ca {
        Some(path) => given(path)?,
        None => system()?,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has what TLS 1.2 and 1.3 need")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| Error::Usage(format!("{host:?} is no name that a certificate could hold")))?;
    ClientConnection::new(Arc::new(config), name).map_err(|error| Error::Failed(format!("TLS: {error}")))
}

/// Why a handshake has failed. What rustls has words for is said in them.
pub(super) fn in_words(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(why))) if is_of_an_authority(why) => {
            "the server's certificate is an authority's; see docs/security.md".to_owned()
        }
        _ => error.to_string(),
    }
}

/// By its name: the type is one of a library that rustls uses and does not show. A test knows when the name changes.
fn is_of_an_authority(why: &rustls::OtherError) -> bool {
    format!("{:?}", why.0) == "CaUsedAsEndEntity"
}

/// Every certificate of a file that was named must be one.
fn given(path: &Path) -> Result<RootCertStore, Error> {
    let wrong = |why: String| Error::Usage(format!("--ca {}: {why}", path.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))? {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() { Err(wrong("holds no certificate".to_owned())) } else { Ok(roots) }
}

/// Of the system's, what cannot be read is passed over, as everyone does.
fn system() -> Result<RootCertStore, Error> {
    let files = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from).into_iter();
    for path in files.chain(SYSTEM_FILES.iter().map(PathBuf::from)) {
        let Ok(certificates) = CertificateDer::pem_file_iter(&path) else { continue };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.filter_map(Result::ok));
        if !roots.is_empty() {
            return Ok(roots);
        }
    }
    Err(Error::Failed(
        "this system has no certificates to trust (looked for /etc/ssl/certs/ca-certificates.crt and its like): \
         install ca-certificates, or name a file with --ca"
            .to_owned(),
    ))
}
