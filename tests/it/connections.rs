//! Slow and silent clients: klad closes each at its deadline, without effect on the others.

use std::io::Read as _;
use std::time::{Duration, Instant};

use super::support::{ServerBuilder, wait_until};

#[test]
fn a_stalled_head_is_408() {
    let server = ServerBuilder::new("memory").arg("--head-timeout", "300ms").start();
    for part in ["G", "GET /v0/status HTTP/1.1\r\nHost: loc"] {
        let mut client = server.client();
        client.send_raw(part);
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.header("connection")), (408, Some("close")), "{part}");
        assert!(client.is_closed_silently());
    }
    // Also if it follows a complete request.
    let mut client = server.client();
    assert_eq!(client.get("/v0/status").status, 200);
    client.send_raw("GET /v0/st");
    assert_eq!(client.answer().unwrap().status, 408);
}

#[test]
fn a_stalled_head_that_came_with_the_request_before_it_is_408() {
    let server = ServerBuilder::new("memory").arg("--head-timeout", "300ms").start();
    let put = "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nv";
    let chunked =
        "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nv\r\n0\r\n\r\n";
    let get = "GET /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (requests, statuses) in
        [(put.to_owned(), &[201][..]), (chunked.to_owned(), &[201]), (get.repeat(2), &[200, 200])]
    {
        let mut client = server.client();
        client.send_raw(requests + "GET /v0/sta");
        for status in statuses {
            assert_eq!(client.answer().unwrap().status, *status);
        }
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.header("connection")), (408, Some("close")));
        assert!(client.is_closed_silently());
    }
}

#[test]
fn a_connection_without_a_further_request_is_idle() {
    let server = ServerBuilder::new("memory").arg("--head-timeout", "100ms").start();
    let mut client = server.client();
    for line in ["\r\n", "\n", "\r\n\r\n"] {
        // Some clients send an empty line after a body.
        let put = "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nv";
        client.send_raw([put, line].concat());
        assert_eq!(client.answer().unwrap().status, 201);
        assert!(client.is_silent_for(Duration::from_millis(400)));
        assert_eq!(client.get("/v0/entity?id=k").body, b"v");
        assert!(client.is_silent_for(Duration::from_millis(400)));
    }
}

#[test]
fn an_idle_connection_is_closed_silently() {
    let server = ServerBuilder::new("memory").arg("--idle-timeout", "3s").start();
    let mut fresh = server.client();
    let used = || {
        let (begun, mut client) = (Instant::now(), server.client());
        match client.try_request("GET", "/v0/status", &[], None) {
            Ok(answer) => {
                assert_eq!(answer.status, 200);
                Some(client)
            }
            // On a busy machine this thread may pause until klad closes the connection.
            Err(error) => {
                assert!(begun.elapsed() > Duration::from_secs(2), "{error}");
                None
            }
        }
    };
    let mut used = (0..5).find_map(|_| used()).expect("one of several requests is in time");
    assert!(fresh.is_closed_silently());
    assert!(used.is_closed_silently());
}

#[test]
fn a_stalled_body_is_408_and_nothing_is_stored() {
    let server = ServerBuilder::new("memory").arg("--body-timeout", "300ms").start();
    for head in ["Content-Length: 10\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"] {
        let mut client = server.client();
        client.send_raw(format!("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n{head}"));
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.header("connection")), (408, Some("close")), "{head}");
        assert!(client.is_closed_silently());
        assert_eq!(server.client().get("/v0/entity?id=k").status, 404);
    }
    // klad gives up on a rejected body that does not arrive, and still sends the rejection.
    let mut client = server.client();
    client.send_raw("PUT /v0/entity?id= HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc");
    assert_eq!(client.answer().unwrap().status, 400);
}

#[test]
fn a_client_that_reads_nothing_is_disconnected() {
    let server = ServerBuilder::new("memory").arg("--write-timeout", "3s").arg("--scans-max", "1").start();
    for n in 0..40 {
        server.client().put(&format!("/v0/entity?id={n:02}"), &vec![b'v'; 1 << 20]);
    }
    let mut client = server.client();
    client.send("GET", "/v0/entities?start=0", &[], None).unwrap();
    assert_eq!(client.head().unwrap().0, 200);
    // 40 MB are more than the kernel buffers. The range ends together with the connection.
    let mut other = server.client();
    // An empty range: this client, too, would be disconnected if it took nothing for some seconds.
    wait_until("the range's place is free", || other.get("/v0/entities?start=40").status == 200);
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    assert!(!rest.ends_with(b"0\r\n\r\n"), "the last chunk would mean that the list is complete");
}

#[test]
fn a_client_that_sends_slowly_and_steadily_is_served() {
    let server = ServerBuilder::new("memory").arg("--body-timeout", "8s").arg("--body-rate-min", "0").start();
    let mut client = server.client();
    client.send_raw("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n");
    for byte in 0..10_u8 {
        // Ten times a second is more than the deadline, which is for the next byte and not for all.
        std::thread::sleep(Duration::from_secs(1));
        client.send_raw([byte]);
    }
    assert_eq!(client.answer().unwrap().status, 201);
}

#[test]
fn an_operation_completes_after_its_connection_is_gone() {
    for engine in super::support::ENGINES {
        // With one worker, a busy machine could make an overload of these requests. Then klad ignores those of clients
        // that have left.
        let server = ServerBuilder::new(engine).arg("--threads", "2").start();
        for n in 0..50 {
            let mut client = server.client();
            client.send("PUT", &format!("/v0/entity?id={n}"), &[], Some(b"v")).unwrap();
            // Closed before the answer.
        }
        let mut client = server.client();
        for n in 0..50 {
            wait_until("the value is stored", || client.get(&format!("/v0/entity?id={n}")).status == 200);
        }
    }
}
