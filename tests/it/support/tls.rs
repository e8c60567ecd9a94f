//! Certificates, created while a test runs, and clients that trust them.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::{Client, Server, ServerBuilder};

/// A certificate authority, with the directory of its files.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: tempfile::TempDir,
}

/// A certificate and its key, PEM.
pub(crate) struct Pair {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Authority { issuer, directory: tempfile::tempdir().unwrap() };
        std::fs::write(authority.path("ca.pem"), authority.issuer.pem()).unwrap();
        authority
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Creates a certificate of this machine in `name.pem` and `name.key`, with a change.
    pub(crate) fn pair_with(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Pair {
        self.make(name, &KeyPair::generate().unwrap(), change)
    }

    /// Creates a certificate with the given key.
    pub(crate) fn pair_with_key(&self, name: &str, key: &KeyPair) -> Pair {
        self.make(name, key, |_| {})
    }

    fn make(&self, name: &str, key: &KeyPair, change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let certificate = params.signed_by(key, &self.issuer).unwrap();
        let pair = Pair { certificate: self.path(&format!("{name}.pem")), key: self.path(&format!("{name}.key")) };
        std::fs::write(&pair.certificate, certificate.pem()).unwrap();
        std::fs::write(&pair.key, key.serialize_pem()).unwrap();
        std::fs::set_permissions(&pair.key, PermissionsExt::from_mode(0o600)).unwrap();
        pair
    }

    pub(crate) fn pair(&self, name: &str) -> Pair {
        self.pair_with(name, |_| {})
    }

    /// Returns a server with a certificate of this authority, in `server.pem` and `server.key`.
    pub(crate) fn server(&self) -> ServerBuilder {
        self.server_of("memory")
    }

    pub(crate) fn server_of(&self, setup: &str) -> ServerBuilder {
        let pair = self.pair("server");
        ServerBuilder::new(setup).tls(&pair.certificate, &pair.key)
    }

    /// Returns the configuration of a client that trusts this authority; `own` is the client's certificate.
    pub(crate) fn client_config(&self, own: Option<&Pair>) -> ClientConfig {
        self.client_config_of(rustls::ALL_VERSIONS, own)
    }

    /// Like `client_config`, for a client that speaks only these versions.
    pub(crate) fn client_config_of(
        &self,
        versions: &[&'static rustls::SupportedProtocolVersion],
        own: Option<&Pair>,
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let builder = builder.with_root_certificates(roots);
        match own {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain = CertificateDer::pem_file_iter(&pair.certificate).unwrap().map(Result::unwrap).collect();
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&pair.key).unwrap()).unwrap()
            }
        }
    }

    /// Connects a client to `server` that trusts this authority.
    pub(crate) fn client(&self, server: &Server) -> Client {
        connect(server.address, self.client_config(None)).expect("a handshake")
    }
}

impl ServerBuilder {
    pub(crate) fn tls(self, certificate: &Path, key: &Path) -> ServerBuilder {
        self.arg("--tls-cert", certificate.to_str().unwrap()).arg("--tls-key", key.to_str().unwrap())
    }
}

/// Connects a client and completes the handshake.
pub(crate) fn connect(address: SocketAddr, config: ClientConfig) -> std::io::Result<Client> {
    shake(Client::try_connect(address)?, config)
}

/// Completes the handshake on an open connection.
pub(crate) fn shake(mut client: Client, config: ClientConfig) -> std::io::Result<Client> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    while tls.is_handshaking() {
        tls.complete_io(&mut client.stream)?;
    }
    client.tls = Some(Box::new(tls));
    Ok(client)
}
