//! Starts and stops: the data afterwards, and the errors of a start that fails.

use std::process::Command;

use rustix::process::Signal;

use super::support::server::keep;
use super::support::{ENGINES, ServerBuilder};

#[cfg(feature = "rocksdb")]
#[test]
fn data_outlives_stop_and_kill_on_the_same_port() {
    let data = tempfile::tempdir().unwrap();
    // Other programs cannot take this address while klad does not run.
    let kept = keep("127.0.0.1:0".parse().unwrap());
    let address = kept.local_addr().unwrap().as_socket().unwrap();
    let builder = ServerBuilder::new("rocksdb").data(&data.path().join("made/on/start")).listen(address);
    let server = builder.start();
    let mut client = server.client();
    let first = client.put("/v0/entity?id=k", b"hello").version();
    // This connection stays open during the stop. The next start must be able to use the address.
    assert_eq!(server.stop().code(), Some(0));
    let server = builder.start();
    let answer = server.client().get("/v0/entity?id=k");
    assert_eq!((answer.body.as_slice(), answer.version()), (b"hello".as_slice(), first));
    assert!(server.client().put("/v0/entity?id=k2", b"v").version() > first);
    server.kill();
    let server = builder.start();
    assert_eq!(server.client().get("/v0/entity?id=k").body, b"hello");
    assert_eq!(server.client().get("/v0/entity?id=k2").body, b"v");
    assert_eq!(server.stop().code(), Some(0));
    // A directory that was deleted while klad was stopped is created again.
    std::fs::remove_dir_all(data.path().join("made")).unwrap();
    let server = builder.start();
    assert_eq!(server.client().get("/v0/entity?id=k").status, 404);
    assert_eq!(server.client().put("/v0/entity?id=k", b"v").status, 201);
}

#[test]
fn inactive_clients_do_not_prevent_a_stop() {
    // Longer than this test would wait if one of these clients could delay the stop for this time.
    let mut server = ServerBuilder::new("memory").arg("--drain-timeout", "1h").start();
    for n in 0..40 {
        server.client().put(&format!("/v0/entity?id={n}"), &vec![b'v'; 1 << 20]);
    }
    // One client reads nothing of its answer, one has begun a head, one a body, one was rejected and does not close,
    // one is silent.
    let mut reader = server.client();
    reader.send("GET", "/v0/entities?start=0", &[], None).unwrap();
    assert_eq!(reader.head().unwrap().0, 200);
    let mut head = server.client();
    head.send_raw("GET /v0/st");
    let mut body = server.client();
    body.send_raw("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc");
    let mut refused = server.client();
    refused.send_raw("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n");
    assert_eq!(refused.answer().unwrap().status, 413);
    let _silent = server.client();
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
}

#[test]
fn health_differs_from_readiness() {
    let server = ServerBuilder::new("memory").start();
    assert_eq!(server.admin("/livez").status, 200);
    assert_eq!(server.admin("/readyz").status, 200);
    assert_eq!(server.admin("/nothing").status, 404);
    assert_eq!(server.client().get("/readyz").status, 400, "not on the data plane");
}

#[cfg(feature = "rocksdb")]
#[test]
fn a_second_process_on_the_same_data_names_the_first() {
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new("rocksdb").data(data.path());
    let server = builder.start();
    let failed = builder.try_start().err().expect("in use");
    assert_eq!(failed.status.code(), Some(75));
    assert!(failed.log.contains("in use") && failed.log.contains(&server.process().to_string()), "{}", failed.log);
    assert_eq!(server.client().get("/v0/status").status, 200, "the first process still serves");
}

#[cfg(feature = "rocksdb")]
#[test]
fn a_directory_of_another_program_is_rejected_and_not_changed() {
    let data = tempfile::tempdir().unwrap();
    let photograph = data.path().join("holiday.jpg");
    std::fs::write(&photograph, b"picture").unwrap();
    let failed = ServerBuilder::new("rocksdb").data(data.path()).try_start().err().expect("does not start");
    assert!(failed.log.contains("not a klad data directory"), "{}", failed.log);
    assert_eq!(std::fs::read(photograph).unwrap(), b"picture");
    assert!(!data.path().join("rocksdb").exists());
}

#[test]
fn a_busy_port_is_reported_before_the_data_is_opened() {
    let server = ServerBuilder::new("memory").start();
    let data = tempfile::tempdir().unwrap();
    let fresh = data.path().join("data");
    let failed = ServerBuilder::new(ENGINES[0]).data(&fresh).listen(server.address).try_start().err().expect("busy");
    assert_eq!(failed.status.code(), Some(69));
    assert!(failed.log.contains(&server.address.to_string()) && failed.log.contains("another port"), "{}", failed.log);
    assert!(!fresh.exists());
}

#[test]
fn errors_of_usage_are_explained() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_klad")).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (arguments, words) in [
        (&["serve", "--colour", "red"][..], "--colour"),
        (&["serve", "--memory", "lots"], "lots"),
        (&["serve", "--head-timeout", "0s"], "more than 0s"),
        (&["serve", "--threads", "0"], "1..=999"),
        (&["sreve"], "serve"),
    ] {
        let (code, message) = run(arguments);
        assert_eq!(code, Some(2), "{message}");
        assert!(message.contains(words), "{arguments:?}: {message}");
    }
    // Valid syntax, but the budget does not fit: the error has the calculation.
    let (code, message) = run(&["serve", "--memory", "64MiB", "--connections-max", "10000"]);
    assert_eq!(code, Some(78));
    assert!(message.contains("10000 connections") && message.contains("Raise --memory"), "{message}");
    let (code, message) = run(&["serve", "--listen", "nowhere"]);
    assert_eq!(code, Some(78));
    assert!(message.contains("nowhere") && message.contains("127.0.0.1:8080"), "{message}");
}
