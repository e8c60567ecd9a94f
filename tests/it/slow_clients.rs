//! Many clients, and clients that are slow on purpose: each must keep a minimum rate, and loses its permit when
//! others need it. The twins run the same checks against servers without this protection.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::support::{Client, Over, Server, ServerBuilder, wait_until};

type Found = Result<(), String>;

fn entity(key: &str) -> String {
    format!("/v0/entity?id={key}")
}

/// A server whose memory budget has space for one value of 7 MiB beside the share of small bodies. Only rates end
/// connections.
fn crowded(threads: &str) -> ServerBuilder {
    let builder = ServerBuilder::new("memory").arg("--memory", "64MiB").arg("--value-max", "7MiB");
    builder.arg("--threads", threads).arg("--body-timeout", "10m").arg("--write-timeout", "10m")
}

/// Begins an upload and waits for 100 Continue, which means that it has its permit.
fn upload(server: &Server, key: &str, length: usize) -> Client {
    let mut client = server.client();
    assert_eq!(begin_upload(&mut client, key, length), 100);
    client
}

fn begin_upload(client: &mut Client, key: &str, length: usize) -> u16 {
    let target = entity(key);
    client.send_raw(format!(
        "PUT {target} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
    ));
    client.any_answer().unwrap().status
}

/// Sends a PUT on a new connection, whose body follows only after 100 Continue. Returns the status.
fn put_status(server: &Server, key: &str, length: usize) -> u16 {
    let mut client = server.client();
    let status = begin_upload(&mut client, key, length);
    if status != 100 {
        return status;
    }
    client.send_raw(vec![1; length]);
    client.answer().unwrap().status
}

/// Sends `piece` every 50 ms, up to `pieces` times, until the server answers. Returns whether it answered.
fn drip(client: &mut Client, piece: &[u8], pieces: usize) -> bool {
    (0..pieces).any(|_| {
        let _ = client.stream.write_all(piece);
        !client.is_silent_for(Duration::from_millis(50))
    })
}

/// A body with a byte every 50 ms never stalls, but is 408 when its time is over.
fn dripping_is_408(timeout: &str, rate_min: &str, pieces: usize) -> Found {
    let builder = ServerBuilder::new("memory").arg("--body-timeout", timeout).arg("--body-rate-min", rate_min);
    let server = builder.start();
    for (framing, piece) in
        [("Content-Length: 100000\r\n\r\n", &b"x"[..]), ("Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n")]
    {
        let mut client = server.client();
        client.send_raw(format!("PUT {} HTTP/1.1\r\nHost: localhost\r\n{framing}", entity("k")));
        if !drip(&mut client, piece, pieces) {
            return Err(format!("it may go on: {framing}"));
        }
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.header("connection")), (408, Some("close")), "{framing}");
        assert!(answer.text().contains("body-timeout"), "{}", answer.text());
        assert_eq!(server.client().get(&entity("k")).status, 404);
    }
    Ok(())
}

#[test]
fn a_dripping_body_is_408() {
    dripping_is_408("500ms", "1KiB", 1_000).unwrap();
}

#[test]
fn twin_a_body_that_may_be_slow_is_noticed() {
    let found = dripping_is_408("2s", "0", 60).expect_err("there is no minimum rate");
    assert!(found.contains("may go on"), "{found}");
}

#[test]
fn a_body_above_the_minimum_rate_may_take_long() {
    // On a busy machine the client may send nothing for longer than the timeout.
    assert!((0..5).any(|_| a_long_body_is_stored()), "the client paused each time");
}

/// `false`: the client paused for so long that its body may have been rejected.
fn a_long_body_is_stored() -> bool {
    let (timeout, pieces) = (Duration::from_millis(1_500), 50);
    let server = ServerBuilder::new("memory").arg("--body-timeout", "1500ms").start();
    let begin = Instant::now();
    let (mut client, mut last) = (upload(&server, "k", pieces << 10), begin);
    for _ in 0..pieces {
        std::thread::sleep(Duration::from_millis(50));
        let sent = client.try_send_raw(&[b'v'; 1 << 10]);
        let now = Instant::now();
        if now - last > timeout / 3 {
            return false;
        }
        sent.unwrap();
        last = now;
    }
    assert!(begin.elapsed() > timeout);
    assert_eq!(client.answer().unwrap().status, 201);
    true
}

/// Stores a body of `length` while uploads hold all permits that they can get.
fn is_stored_beside_uploads(length: usize) -> Found {
    let server = crowded("4").start();
    let large = upload(&server, "large", 7 << 20);
    for number in 0..3 {
        let status = put_status(&server, &format!("small{number}"), length);
        if status != 201 {
            return Err(format!("{length} bytes are answered {status}"));
        }
    }
    drop(large);
    Ok(())
}

#[test]
fn large_uploads_never_cause_rejections_of_small_ones() {
    is_stored_beside_uploads(1).unwrap();
    is_stored_beside_uploads(4 << 10).unwrap();
}

#[test]
fn twin_a_missing_share_for_small_bodies_is_noticed() {
    let found = is_stored_beside_uploads(100 << 10).expect_err("larger bodies have no share of their own");
    assert!(found.contains("503"), "{found}");
}

/// Repeats `put` until it succeeds, for `patience` at most.
fn is_stored_in_the_end(patience: Duration, mut put: impl FnMut() -> u16) -> Found {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        match put() {
            201 => return Ok(()),
            503 => std::thread::sleep(Duration::from_millis(20)),
            other => panic!("answered {other}"),
        }
    }
    Err("no permit was freed".to_owned())
}

/// Of three uploads, one stalls, one is slow and one is fast. When a fourth needs a permit, only the first is ended.
/// With one worker, because each of several workers checks only its own connections.
fn the_slowest_loses_its_permit(builder: &ServerBuilder, patience: Duration) -> Found {
    let server = builder.start();
    let size = 2 << 20;
    let [mut stalled, slow, fast] = ["stalled", "slow", "fast"].map(|key| upload(&server, key, size));
    stalled.send_raw("x");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = Over(&done);
        let uploads = [(slow, 1 << 10), (fast, 32 << 10)].map(|(mut client, piece)| {
            let done = &done;
            scope.spawn(move || {
                let mut left = size;
                // The last byte is held back, because a complete upload frees its permit.
                while !done.load(Ordering::Relaxed) {
                    let count = piece.min(left - 1);
                    let _ = client.stream.write_all(&vec![7; count]);
                    left -= count;
                    std::thread::sleep(Duration::from_millis(20));
                }
                let _ = client.stream.write_all(&vec![7; left]);
                client.answer().map(|answer| answer.status)
            })
        });
        let found = is_stored_in_the_end(patience, || put_status(&server, "fourth", size));
        drop(over);
        for upload in uploads {
            assert_eq!(upload.join().unwrap().unwrap(), 201, "only the slowest is ended");
        }
        found?;
        let answer = stalled.answer().unwrap();
        assert_eq!((answer.status, answer.header("connection")), (408, Some("close")));
        assert_eq!(server.client().get(&entity("stalled")).status, 404);
        Ok(())
    })
}

#[test]
fn the_slowest_upload_loses_its_permit() {
    the_slowest_loses_its_permit(&crowded("1"), super::support::PATIENCE).unwrap();
}

#[test]
fn twin_an_upload_that_keeps_its_permit_forever_is_noticed() {
    let crowded = crowded("1").arg("--body-rate-min", "0");
    the_slowest_loses_its_permit(&crowded, Duration::from_secs(2)).expect_err("no upload is ended");
}

#[test]
fn fast_uploads_are_not_ended_for_others() {
    // On a busy machine the client may pause, and then its upload is not fast.
    assert!((0..5).any(|_| a_fast_upload_is_not_ended()), "no upload was fast");
}

/// `false`: the upload was so slow that klad may have ended it.
fn a_fast_upload_is_not_ended() -> bool {
    let server = crowded("4").start();
    let (begun, size, piece) = (Instant::now(), 6 << 20, 32 << 10);
    let (mut fast, mut last, mut left) = (upload(&server, "fast", size), begun, size);
    while begun.elapsed() < Duration::from_secs(2) && left > 2 << 20 {
        let sent = fast.try_send_raw(&vec![7; piece]);
        left -= piece;
        let status = put_status(&server, "other", 2 << 20);
        std::thread::sleep(Duration::from_millis(10));
        let now = Instant::now();
        // A piece in this time is twice the rate of the fastest upload that klad ends.
        if now - last > Duration::from_millis(250) {
            return false;
        }
        sent.unwrap();
        assert_eq!(status, 503);
        last = now;
    }
    fast.send_raw(vec![7; left]);
    assert_eq!(fast.answer().unwrap().status, 201);
    true
}

/// Returns a client that has requested `target` and reads as little as the kernel allows.
fn reader(server: &Server, target: &str) -> Client {
    let mut client = server.client();
    socket2::SockRef::from(&client.stream).set_recv_buffer_size(64 << 10).unwrap();
    client.send("GET", target, &[], None).unwrap();
    assert_eq!(client.head().unwrap().0, 200);
    client
}

/// A client that reads nothing of a value of `length` is disconnected when a PUT needs its permit.
fn the_reader_loses_its_permit(builder: &ServerBuilder, target: &str, length: usize, patience: Duration) -> Found {
    let server = builder.start();
    assert_eq!(put_status(&server, "large", length), 201);
    let mut reader = reader(&server, target);
    assert_eq!(put_status(&server, "other", 5 << 20), 503, "the reader holds the permit");
    is_stored_in_the_end(patience, || put_status(&server, "other", 5 << 20))?;
    let mut rest = Vec::new();
    let _ = reader.stream.read_to_end(&mut rest);
    assert!(rest.len() < length, "it was ended");
    Ok(())
}

#[test]
fn a_client_that_reads_nothing_loses_its_permit() {
    let patience = super::support::PATIENCE;
    // With many workers the rejected request and the holder of the permit are usually on different ones.
    the_reader_loses_its_permit(&crowded("4"), &entity("large"), 6 << 20, patience).unwrap();
    // An entry of a range takes twice its size: as it was read, and in hyper's buffer.
    the_reader_loses_its_permit(&crowded("4"), "/v0/entities?start=large", 3 << 20, patience).unwrap();
}

#[test]
fn twin_a_client_that_keeps_its_permit_forever_is_noticed() {
    let crowded = crowded("4").arg("--body-rate-min", "0");
    the_reader_loses_its_permit(&crowded, &entity("large"), 6 << 20, Duration::from_secs(2))
        .expect_err("no client is disconnected");
}

/// A client that reads at most 400 KiB a second is disconnected if the minimum is 1 MiB. It reads as much at a time as
/// its kernel announces: each of many small reads would be later on a busy machine, and their sum later than the write
/// timeout.
fn a_slow_client_is_disconnected(rate_min: &str) -> Found {
    let builder = ServerBuilder::new("memory").arg("--memory", "64MiB");
    let server = builder.arg("--write-timeout", "1s").arg("--body-rate-min", rate_min).start();
    assert_eq!(put_status(&server, "large", 3 << 20), 201);
    let mut reader = reader(&server, &entity("large"));
    let mut taken = 0;
    let mut some = vec![0; 64 << 10];
    for _ in 0..16 {
        match reader.stream.read(&mut some) {
            Ok(count @ 1..) => taken += count,
            Ok(0) | Err(_) => return Ok(()),
        }
        std::thread::sleep(Duration::from_millis(160));
    }
    // Some of it arrived with the head.
    while taken + (16 << 10) < 3 << 20 {
        match reader.stream.read(&mut some) {
            Ok(count @ 1..) => taken += count,
            Ok(0) | Err(_) => return Ok(()),
        }
    }
    Err("it got everything".to_owned())
}

#[test]
fn a_client_below_the_minimum_rate_is_disconnected() {
    a_slow_client_is_disconnected("1MiB").unwrap();
}

#[test]
fn twin_a_client_that_may_be_slow_is_noticed() {
    // A busy machine may stop the client for longer than the write timeout.
    let found = (0..5).find_map(|_| a_slow_client_is_disconnected("0").err()).expect("there is no minimum rate");
    assert!(found.contains("everything"), "{found}");
}

/// Connects a client from another address of this machine.
fn client_from(source: Ipv4Addr, server: SocketAddr) -> Client {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.connect(&server.into()).unwrap();
    Client::from_stream(TcpStream::from(socket))
}

/// Two connections from one address are served, and a third is not until one closes.
fn the_third_is_rejected(builder: &ServerBuilder) -> Found {
    let server = builder.start();
    let [mut first, mut second] = [server.client(), server.client()];
    assert_eq!(first.get("/v0/status").status, 200);
    assert_eq!(second.get("/v0/status").status, 200);
    let mut third = server.client();
    let answer = third.get("/v0/status");
    if answer.status == 200 {
        return Err("the third is served".to_owned());
    }
    assert_eq!(
        (answer.status, answer.header("retry-after"), answer.header("connection")),
        (503, Some("1"), Some("close"))
    );
    let document: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(document["code"].as_str(), Some("too-many-connections"));
    assert!(third.is_closed_silently());
    // Other addresses, the admin listener and the open connections are not affected.
    assert_eq!(client_from(Ipv4Addr::new(127, 0, 0, 2), server.address).get("/v0/status").status, 200);
    assert_eq!(server.admin("/livez").status, 200);
    assert_eq!(second.get("/v0/status").status, 200);
    drop(first);
    wait_until("the place of the first is free", || server.client().get("/v0/status").status == 200);
    Ok(())
}

#[test]
fn connections_of_one_address_have_a_limit() {
    the_third_is_rejected(&ServerBuilder::new("memory").arg("--connections-per-peer", "2")).unwrap();
}

#[test]
fn twin_an_address_without_a_limit_is_noticed() {
    the_third_is_rejected(&ServerBuilder::new("memory")).expect_err("there is no limit by default");
}
