//! `klad get` and its like over TLS: whom they trust, and that nothing is said to anybody else.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::mpsc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::support::command::Klad;

/// A TLS server for some names, and what came out of the first connection that got through the handshake.
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
                // Without the farewell of TLS, as many servers close.
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
fn a_certificate_that_is_trusted_lets_the_request_through() {
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    for host in ["localhost", "127.0.0.1"] {
        let server = TlsServer::start(&[host], ANSWER);
        std::fs::write(&ca, &server.certificate).unwrap();
        assert_eq!(server.get(host, Some(&ca)).succeeds(), b"hello", "{host}");
        let request = server.request.recv().unwrap().unwrap();
        assert!(request.starts_with("GET /v0/entity?id=a HTTP/1.1\r\n"), "{request}");
    }
    let server = TlsServer::start(&["localhost"], ANSWER);
    std::fs::write(&ca, &server.certificate).unwrap();
    // The system's, when the system is told so.
    assert_eq!(server.get("localhost", None).env("SSL_CERT_FILE", &ca).succeeds(), b"hello");
}

#[test]
fn an_answer_that_was_cut_is_noticed_although_tls_was_not_ended_properly() {
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    let server = TlsServer::start(&["localhost"], "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello");
    std::fs::write(&ca, &server.certificate).unwrap();
    let said = server.get("localhost", Some(&ca)).run();
    assert!(said.code == Some(1) && said.stderr.contains("the value is not whole"), "{said:?}");
}

#[test]
fn nothing_is_said_to_a_server_that_is_not_trusted() {
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
fn a_server_with_an_authoritys_certificate_is_refused_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    let server = TlsServer::start_as(IsCa::Ca(BasicConstraints::Unconstrained), &["localhost"], ANSWER);
    std::fs::write(&ca, &server.certificate).unwrap();
    let line = server.get("localhost", Some(&ca)).fails(1);
    assert!(line.trim_end().ends_with("the server's certificate is an authority's; see docs/security.md"), "{line}");
    assert_eq!(server.request.recv().unwrap(), None, "a request was sent");
}
