//! Certificates and keys: which files klad accepts, when it reads them again, and client certificates.

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use super::support::tls::{Authority, Pair, connect};
use super::support::{Client, Server, ServerBuilder, wait_until};

type Found = Result<(), String>;

fn refused(builder: &ServerBuilder) -> String {
    let failed = builder.try_start().err().expect("does not start");
    assert_eq!(failed.status.code(), Some(78), "{}", failed.log);
    failed.log
}

#[test]
fn unusable_files_are_rejected_with_the_reason() {
    let authority = Authority::new();
    let good = authority.pair("good");
    let other = authority.pair("other");
    let expired = authority.pair_with("expired", |params| params.not_after = rcgen::date_time_ymd(2020, 2, 3));
    let early = authority.pair_with("early", |params| params.not_before = rcgen::date_time_ymd(2990, 1, 1));
    let text = |name: &str, text: &str| {
        std::fs::write(authority.path(name), text).unwrap();
        authority.path(name)
    };
    let garbage = text("garbage", "hello\n");
    let broken = text("broken", "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n");
    let encrypted =
        text("encrypted", "-----BEGIN ENCRYPTED PRIVATE KEY-----\naGVsbG8=\n-----END ENCRYPTED PRIVATE KEY-----\n");
    let bad_key = text("bad_key", "-----BEGIN PRIVATE KEY-----\naGVsbG8=\n-----END PRIVATE KEY-----\n");
    let large = text("large", &"x".repeat(2 << 20));
    let missing = authority.path("missing");
    for (certificate, key, words) in [
        (&good.certificate, &other.key, "does not match the certificate"),
        (&expired.certificate, &expired.key, "expired at 2020-02-03T00:00:00Z"),
        (&early.certificate, &early.key, "not valid yet"),
        (&missing, &good.key, "missing: No such file"),
        (&good.certificate, &missing, "missing: No such file"),
        (&garbage, &good.key, "garbage holds no certificate"),
        (&good.certificate, &garbage, "garbage holds no private key"),
        (&good.certificate, &good.certificate, "good.pem holds no private key"),
        (&good.certificate, &encrypted, "encrypted holds no private key (that is not encrypted)"),
        (&broken, &good.key, "broken cannot be used"),
        (&good.certificate, &bad_key, "bad_key cannot be used"),
        (&large, &good.key, "large is larger than"),
    ] {
        let log = refused(&ServerBuilder::new("memory").tls(certificate, key));
        assert!(log.contains(words), "{words}: {log}");
    }
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    for (name, value, needs) in [
        ("--tls-cert", &good.certificate, "--tls-key"),
        ("--tls-key", &good.key, "--tls-cert"),
        ("--tls-client-ca", &good.certificate, "--tls-cert"),
    ] {
        let log = refused(&ServerBuilder::new("memory").arg(name, &path(value)));
        assert!(log.contains(&format!("{name} needs {needs}")), "{log}");
    }
    let builder = ServerBuilder::new("memory").tls(&good.certificate, &good.key);
    assert!(refused(&builder.arg("--tls-client-ca", &path(&garbage))).contains("garbage holds no certificate"));
}

#[test]
fn a_certificate_that_expires_soon_causes_a_warning() {
    let authority = Authority::new();
    let log = |days: u64| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let after = now + Duration::from_hours(24 * days);
        let pair = authority.pair_with("soon", |params| params.not_after = rcgen::date_time_ymd(1970, 1, 1) + after);
        ServerBuilder::new("memory").tls(&pair.certificate, &pair.key).start().log()
    };
    assert!(log(10).contains("expires soon"));
    assert!(!log(20).contains("expires soon"));
}

#[test]
fn a_key_that_others_can_read_causes_a_warning() {
    let authority = Authority::new();
    let builder = authority.server();
    assert!(!builder.start().log().contains("private key"));
    std::fs::set_permissions(authority.path("server.key"), PermissionsExt::from_mode(0o644)).unwrap();
    assert!(builder.start().log().contains("can read or change the private key"));
}

/// Returns the certificate that the server sends on a new connection.
fn shown(authority: &Authority, server: &Server) -> Vec<u8> {
    let client = authority.client(server);
    client.tls.unwrap().peer_certificates().unwrap()[0].to_vec()
}

/// Changes the certificate in its file. After the signal klad must use it for new connections, and open connections
/// must continue.
fn certificates_change(signal: Option<Signal>) -> Found {
    let authority = Authority::new();
    let server = authority.server().start();
    let mut standing = authority.client(&server);
    assert_eq!(standing.put("/v0/entity?id=k", b"v").status, 201);
    let first = shown(&authority, &server);
    let changed = |server: &Server| shown(&authority, server) != first;
    authority.pair("server");
    let Some(signal) = signal else {
        return if changed(&server) { Ok(()) } else { Err("the old one is in use".to_owned()) };
    };
    server.signal(signal);
    wait_until("the new certificate is in use", || changed(&server));
    assert_eq!(standing.get("/v0/entity?id=k").body, b"v");
    let second = shown(&authority, &server);
    // A key of another certificate and a missing file change nothing.
    let other = authority.pair("other");
    std::fs::copy(&other.key, authority.path("server.key")).unwrap();
    server.signal(signal);
    wait_until("it is logged", || server.log().contains("does not match the certificate"));
    assert!(server.log().contains("cannot reload the certificate"));
    assert_eq!(shown(&authority, &server), second);
    std::fs::remove_file(authority.path("server.pem")).unwrap();
    server.signal(signal);
    wait_until("it is logged", || server.log().contains("No such file"));
    assert_eq!(shown(&authority, &server), second);
    assert_eq!(standing.get("/v0/entity?id=k").body, b"v");
    Ok(())
}

#[test]
fn a_certificate_is_reloaded_on_hangup() {
    certificates_change(Some(Signal::HUP)).unwrap();
}

#[test]
fn twin_a_certificate_that_is_not_reloaded_is_noticed() {
    assert_eq!(certificates_change(None).expect_err("there was no signal"), "the old one is in use");
}

#[test]
fn sessions_are_resumed_until_a_reload() {
    let authority = Authority::new();
    let server = authority.server().start();
    let config = authority.client_config(None);
    let resumes = || {
        let mut client = connect(server.address, config.clone()).unwrap();
        // Tickets arrive with the first answer.
        assert_eq!(client.get("/v0/status").status, 200);
        client.tls.unwrap().handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    };
    assert!(!resumes());
    assert!(resumes());
    server.signal(Signal::HUP);
    wait_until("it is logged", || server.log().contains("reloaded the certificate"));
    assert!(!resumes(), "a client that was trusted must prove it again");
    assert!(resumes());
}

/// Only clients with a certificate of the given authority are served, on both addresses.
fn clients_need_certificates(authority: &Authority, builder: &ServerBuilder) -> Found {
    let server = builder.start();
    let stranger = Authority::new();
    let own = authority.pair("client");
    let strange = stranger.pair("client");
    let ask = |address, own: Option<&Pair>, target: &str| -> Option<u16> {
        let mut client = connect(address, authority.client_config(own)).ok()?;
        // In TLS 1.3 the client learns only now that it was rejected.
        client.try_request("GET", target, &[], None).ok().map(|answer| answer.status)
    };
    for (address, target) in [(server.address, "/v0/status"), (server.admin, "/livez")] {
        assert_eq!(ask(address, Some(&own), target), Some(200));
        for (who, own) in [("without a certificate", None), ("with another certificate", Some(&strange))] {
            if let Some(status) = ask(address, own, target) {
                return Err(format!("a client {who} is answered {status}"));
            }
        }
    }
    Ok(())
}

#[test]
fn client_certificates_can_be_required() {
    let authority = Authority::new();
    let builder = authority.server().arg("--tls-client-ca", authority.path("ca.pem").to_str().unwrap());
    clients_need_certificates(&authority, &builder).unwrap();
}

#[test]
fn twin_clients_without_certificates_are_noticed() {
    let authority = Authority::new();
    let found = clients_need_certificates(&authority, &authority.server()).expect_err("no certificate is required");
    assert_eq!(found, "a client without a certificate is answered 200");
}

#[test]
fn the_admin_address_uses_tls_unless_it_is_off() {
    let authority = Authority::new();
    let server = authority.server().start();
    let mut client = connect(server.admin, authority.client_config(None)).unwrap();
    assert_eq!(client.get("/livez").status, 200);
    assert_eq!(client.get("/readyz").status, 200, "the connection stays open");
    assert_eq!(server.admin("/livez").status, 400, "plain HTTP gets an explanation");
    // Slow handshakes of other clients do not delay it.
    let _silent: Vec<Client> = (0..40).map(|_| Client::connect(server.admin)).collect();
    assert_eq!(connect(server.admin, authority.client_config(None)).unwrap().get("/livez").status, 200);
    let server = authority.server().arg("--admin-tls", "off").start();
    assert_eq!(server.admin("/livez").status, 200);
    assert_eq!(authority.client(&server).get("/v0/status").status, 200);
    let mut refused = server.client();
    refused.send_raw("GET /v0/status HTTP/1.1\r\n\r\n");
    let mut said = String::new();
    refused.stream.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 400"), "{said}");
}
