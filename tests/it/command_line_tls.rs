//! The client commands over TLS: which certificates they trust, and that they send nothing to other servers.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::mpsc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::support::command::Klad;

/// A TLS server for some names, and what arrived on the first connection that completed the handshake.
struct TlsServer {
    address: SocketAddr,
    certificate: String,
    request: mpsc::Receiver<Option<String>>,
}

impl TlsServer {
    fn start(names: &[&str], answer: &'static str) -> TlsServer {
        TlsServer::start_as(IsCa::NoCa, names, answer)
    }

    fn start_as(is_ca: IsCa, names: &[&str], answer: &'static str) -> TlsServer {
        let key = KeyPair::generate().unwrap();
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.is_ca = is_ca;
        let certificate = params.self_signed(&key).unwrap();
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        let config = std::sync::Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, request) = mpsc::channel();
        std::thread::spawn(move || {
            let socket = listener.accept().unwrap().0;
            let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), socket);
            let mut some = vec![0; 64 << 10];
            let heard = stream.read(&mut some).ok().filter(|count| *count > 0);
            let heard = heard.map(|count| String::from_utf8_lossy(&some[..count]).into_owned());
            if heard.is_some() {
                let _ = stream.write_all(answer.as_bytes());
                // Without the closing message of TLS, as many servers do.
                let _ = stream.flush();
            }
            let _ = sender.send(heard);
        });
        TlsServer { address, certificate: certificate.pem(), request }
    }

    fn get(&self, host: &str, ca: Option<&Path>) -> Klad {
        let klad = Klad::new("get a --url").arg(format!("https://{host}:{}", self.address.port()));
        match ca {
            Some(ca) => klad.arg("--ca").arg(ca),
            None => klad,
        }
    }
}

const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn a_trusted_certificate_lets_the_request_through() {
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    for host in ["localhost", "127.0.0.1"] {
        let server = TlsServer::start(&[host], ANSWER);
        std::fs::write(&ca, &server.certificate).unwrap();
        assert_eq!(server.get(host, Some(&ca)).succeeds(), b"hello", "{host}");
        let request = server.request.recv().unwrap().unwrap();
        assert!(request.starts_with("GET /v1/kv/a HTTP/1.1\r\n"), "{request}");
    }
    let server = TlsServer::start(&["localhost"], ANSWER);
    std::fs::write(&ca, &server.certificate).unwrap();
    // The certificates of the system, which SSL_CERT_FILE names.
    assert_eq!(server.get("localhost", None).env("SSL_CERT_FILE", &ca).succeeds(), b"hello");
}

#[test]
fn an_incomplete_answer_is_noticed_without_the_closing_message_of_tls() {
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    let server = TlsServer::start(&["localhost"], "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello");
    std::fs::write(&ca, &server.certificate).unwrap();
    let said = server.get("localhost", Some(&ca)).run();
    assert!(said.code == Some(1) && said.stderr.contains("the value is incomplete"), "{said:?}");
}

#[test]
fn nothing_is_sent_to_an_untrusted_server() {
    let directory = tempfile::tempdir().unwrap();
    let (ca, empty) = (directory.path().join("ca.pem"), directory.path().join("empty.pem"));
    std::fs::write(&empty, "").unwrap();

    let stranger = TlsServer::start(&["localhost"], ANSWER);
    std::fs::write(&ca, TlsServer::start(&["localhost"], ANSWER).certificate).unwrap();
    let line = stranger.get("localhost", Some(&ca)).fails(1);
    assert!(line.contains("TLS") && line.contains("certificate"), "{line}");
    assert_eq!(stranger.request.recv().unwrap(), None, "a request was sent");

    let other = TlsServer::start(&["elsewhere.example"], ANSWER);
    std::fs::write(&ca, &other.certificate).unwrap();
    let line = other.get("localhost", Some(&ca)).fails(1);
    assert!(line.contains("TLS") && line.contains("elsewhere.example"), "{line}");
    assert_eq!(other.request.recv().unwrap(), None, "a request was sent");

    let server = TlsServer::start(&["localhost"], ANSWER);
    assert!(server.get("localhost", Some(&empty)).fails(2).contains("no certificate"));
    assert!(server.get("localhost", Some(Path::new("/nowhere/at/all"))).fails(2).contains("/nowhere/at/all"));
    assert!(Klad::new("get a --ca").arg(&ca).fails(2).contains("https"));
}

#[test]
fn the_certificate_of_an_authority_is_rejected_with_a_clear_message() {
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    let server = TlsServer::start_as(IsCa::Ca(BasicConstraints::Unconstrained), &["localhost"], ANSWER);
    std::fs::write(&ca, &server.certificate).unwrap();
    let line = server.get("localhost", Some(&ca)).fails(1);
    assert!(line.contains("the server's certificate is the certificate of an authority; see docs/"), "{line}");
    assert_eq!(server.request.recv().unwrap(), None, "a request was sent");
}
