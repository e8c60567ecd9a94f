//! Limits: each has its answer, and affects only the request that exceeds it.

use std::io::Write as _;

use super::support::{ENGINES, ServerBuilder, encode, wait_until};

#[test]
fn keys_up_to_the_limit_are_accepted_and_longer_ones_are_414() {
    for engine in ENGINES {
        let server = ServerBuilder::new(engine).arg("--key-max", "100B").start();
        let mut client = server.client();
        let longest = encode(&[0xAB; 100]);
        let longer = encode(&[0xAB; 101]);
        assert_eq!(client.put(&format!("/v0/entity?id={longest}"), b"v").status, 201);
        assert_eq!(client.get(&format!("/v0/entity?id={longest}")).body, b"v");
        for method in ["GET", "PUT", "DELETE"] {
            assert_eq!(client.request(method, &format!("/v0/entity?id={longer}"), &[], None).status, 414);
        }
        assert_eq!(client.get(&format!("/v0/entities?start={longer}")).status, 414);
    }
}

#[test]
fn the_default_key_limit_holds_with_every_byte_escaped() {
    let server = ServerBuilder::new("memory").start();
    let mut client = server.client();
    let key = encode(&[0xFF; 4096]);
    assert_eq!(client.put(&format!("/v0/entity?id={key}"), b"v").status, 201);
    assert_eq!(client.get(&format!("/v0/entity?id={key}")).body, b"v");
    assert_eq!(client.get(&format!("/v0/entity?id={key}FF")).status, 414);
}

#[test]
fn values_up_to_the_limit_are_accepted_and_longer_ones_are_413() {
    for engine in ENGINES {
        let server = ServerBuilder::new(engine).arg("--value-max", "1KiB").start();
        let mut client = server.client();
        assert_eq!(client.put("/v0/entity?id=k", &[1; 1024]).status, 201);
        // klad reads and discards a small body, so the connection stays open.
        assert_eq!(client.put("/v0/entity?id=k", &[2; 1025]).status, 413);
        assert_eq!(client.get("/v0/entity?id=k").body, [1; 1024]);
        // The length of a chunked body is known only at its end.
        let mut chunked =
            b"PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for _ in 0..1_000 {
            chunked.extend_from_slice(b"10\r\n0123456789abcdef\r\n");
        }
        client.send_raw(chunked);
        assert_eq!(client.answer().unwrap().status, 413);
        assert_eq!(server.client().get("/v0/entity?id=k").body, [1; 1024]);
    }
}

#[test]
fn a_rejected_upload_is_answered_before_it_is_sent() {
    let server = ServerBuilder::new("memory").start();
    let mut client = server.client();
    client.send_raw("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n");
    let answer = client.answer().unwrap();
    assert_eq!((answer.status, answer.header("connection")), (413, Some("close")));
    // A client that waits for 100 Continue gets the rejection instead.
    let mut client = server.client();
    client.send_raw(
        "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n",
    );
    assert_eq!(client.any_answer().unwrap().status, 413);
    // A client that sends everything before it reads gets the answer and not a reset.
    let mut client = server.client();
    client.send_raw("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n");
    let megabyte = vec![0; 1 << 20];
    for _ in 0..3 {
        let _ = client.stream.write_all(&megabyte);
    }
    assert_eq!(client.answer().unwrap().status, 413);
}

#[test]
fn heads_beyond_the_limit_are_431() {
    let server = ServerBuilder::new("memory").start();
    for header in [format!("X: {}", "x".repeat(40_000)), "X: y\r\n".repeat(200).trim_end().to_owned()] {
        let mut client = server.client();
        client.send_raw(format!("GET /v0/status HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n"));
        assert_eq!(client.answer().unwrap().status, 431);
        assert!(client.is_closed_silently());
    }
    let mut client = server.client();
    let header = "x".repeat(20_000);
    assert_eq!(client.request("GET", "/v0/status", &[("X", &header)], None).status, 200);
}

#[test]
fn bodies_beyond_the_memory_budget_are_503_and_their_permits_are_freed() {
    // The body budget is an eighth of the memory, but at least what one value of the maximum length needs, as here.
    let builder = ServerBuilder::new("memory").arg("--memory", "64MiB").arg("--value-max", "8MiB");
    // The first body is slow, and must not be ended for the sake of others.
    let server = builder.arg("--body-rate-min", "0").start();
    let mut first = server.client();
    first.send_raw(
        "PUT /v0/entity?id=first HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 6000000\r\n\r\n",
    );
    // 100 Continue means that the first body has its permit. There is no space for the second.
    assert_eq!(first.any_answer().unwrap().status, 100);
    let mut second = server.client();
    let answer = second.put("/v0/entity?id=second", &vec![2; 3 << 20]);
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    // Too large to discard, so klad closes the connection.
    assert_eq!(answer.header("connection"), Some("close"));
    let document: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(document["code"].as_str(), Some("no-room"));
    let mut second = server.client();
    // A body of unknown length needs a permit of the maximum length.
    second.send_raw("PUT /v0/entity?id=chunked HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n");
    assert_eq!(second.answer().unwrap().status, 503);
    // Small requests are not affected.
    assert_eq!(server.client().put("/v0/entity?id=small", b"v").status, 201);
    first.send_raw(vec![1; 6_000_000]);
    assert_eq!(first.answer().unwrap().status, 201);
    let mut third = server.client();
    third.send_raw("PUT /v0/entity?id=chunked HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n");
    assert_eq!(third.answer().unwrap().status, 201);
    // A client that disconnects during its body frees its permit.
    let mut gone = server.client();
    gone.send_raw("PUT /v0/entity?id=gone HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\nabc");
    drop(gone);
    wait_until("the permit is free", || server.client().put("/v0/entity?id=last", &vec![3; 8 << 20]).status == 201);
    assert_eq!(server.client().get("/v0/entity?id=gone").status, 404);
}

#[test]
fn connections_beyond_the_limit_wait() {
    let server = ServerBuilder::new("memory").arg("--connections-max", "2").start();
    let mut first = server.client();
    let mut second = server.client();
    assert_eq!(first.get("/v0/status").status, 200);
    assert_eq!(second.get("/v0/status").status, 200);
    let mut third = server.client();
    third.send("GET", "/v0/status", &[], None).unwrap();
    assert!(third.is_silent_for(std::time::Duration::from_millis(300)), "the third must wait");
    assert_eq!(server.admin("/livez").status, 200, "the admin listener is not affected");
    drop(first);
    assert_eq!(third.answer().unwrap().status, 200);
    assert_eq!(second.get("/v0/status").status, 200);
}

#[test]
fn more_connections_than_open_files_are_rejected_at_start() {
    let klad = env!("CARGO_BIN_EXE_klad");
    let script = format!("ulimit -n 2000; exec {klad} serve --engine memory --connections-max 1500");
    let ended = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(78), "{said}");
    for part in ["--connections-max 1500", "more than 1000", "open files is 2000", "ulimit -n"] {
        assert!(said.contains(part), "{part} is missing in: {said}");
    }
}

#[test]
fn a_full_memory_engine_is_507_until_something_is_removed() {
    let server = ServerBuilder::new("memory").arg("--memory", "64MiB").arg("--value-max", "1MiB").start();
    let mut client = server.client();
    let mut stored = 0;
    loop {
        let answer = client.put(&format!("/v0/entity?id={stored}"), &vec![7; 1 << 20]);
        if answer.status == 507 {
            break;
        }
        assert_eq!(answer.status, 201);
        stored += 1;
        assert!(stored < 64, "64 MiB do not hold 64 values of 1 MiB");
    }
    assert_eq!(server.client().get("/v0/entity?id=0").status, 200);
    assert_eq!(server.client().delete("/v0/entity?id=0").status, 202);
    assert_eq!(server.client().put("/v0/entity?id=0", &vec![7; 1 << 20]).status, 201);
}
