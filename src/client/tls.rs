//! TLS of the client, and the certificates that `https://` trusts. Called by `connection`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, RootCertStore};

use crate::client::Error;

/// Files with the certificates that a system trusts, in the order in which klad tries them: one of Debian, two of
/// Fedora, one of SUSE, one of Alpine and BSD. A list compiled into klad would keep trusting certificates that the
/// system has removed.
const SYSTEM_FILES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Returns the client side of a TLS connection to `host`, before the handshake.
///
/// # Errors
/// There is no trusted certificate, or `host` cannot be the name in a certificate.
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
        .map_err(|_| Error::Usage(format!("{host:?} cannot be a name in a certificate")))?;
    ClientConnection::new(Arc::new(config), name).map_err(|error| Error::Failed(format!("TLS: {error}")))
}

/// Describes a failed handshake, in most cases in rustls's words.
pub(super) fn in_words(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(why))) if is_of_an_authority(why) => {
            "the server's certificate is the certificate of an authority; see docs/security.md".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Returns whether the server presented a CA certificate as its own. Compares the error's `Debug` text, because rustls
/// does not export the type of this error. A test fails if the text changes.
fn is_of_an_authority(why: &rustls::OtherError) -> bool {
    format!("{:?}", why.0) == "CaUsedAsEndEntity"
}

/// Returns the certificates in the file of `--ca`. Each of them must be valid.
fn given(path: &Path) -> Result<RootCertStore, Error> {
    let wrong = |why: String| Error::Usage(format!("--ca {}: {why}", path.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))? {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() { Err(wrong("contains no certificate".to_owned())) } else { Ok(roots) }
}

/// Returns the certificates in the file that `SSL_CERT_FILE` names, or in the first of [`SYSTEM_FILES`] that has a
/// valid certificate. Skips invalid certificates, as other programs do.
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
        "this system has no trusted certificates (searched /etc/ssl/certs/ca-certificates.crt and similar files): \
         install ca-certificates, or name a file with --ca"
            .to_owned(),
    ))
}
