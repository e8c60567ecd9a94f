//! Clients that are slow on purpose, or many: each is held to a rate, and what it holds is taken from it when others lack
//! it. The twins run the same checks against servers whose protection is switched off.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::support::{Client, Over, Server, ServerBuilder, wait_until};

type Found = Result<(), String>;

fn entity(key: &str) -> String {
    format!("/v0/entity?id={key}")
}

/// A server whose room holds one value of 7 MiB beside the small bodies' share. Only rates end anybody.
fn crowded(threads: &str) -> ServerBuilder {
    let builder = ServerBuilder::new("memory").arg("--memory", "64MiB").arg("--value-max", "7MiB");
    builder.arg("--threads", threads).arg("--body-timeout", "10m").arg("--write-timeout", "10m")
}

/// Begins an upload that gets its room, which the go-ahead shows.
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

/// A PUT on a connection of its own, which sends its body only when it may.
fn put_status(server: &Server, key: &str, length: usize) -> u16 {
    let mut client = server.client();
    let status = begin_upload(&mut client, key, length);
    if status != 100 {
        return status;
    }
    client.send_raw(vec![1; length]);
    client.answer().unwrap().status
}

/// Sends one of `pieces` every 50 ms until the server speaks, and says whether it did.
fn drip(client: &mut Client, piece: &[u8], pieces: usize) -> bool {
    (0..pieces).any(|_| {
        let _ = client.stream.write_all(piece);
        !client.is_silent_for(Duration::from_millis(50))
    })
}

/// A byte every 50 ms never stalls, but is 408 when the time is over.
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
fn twin_a_body_that_may_drip_is_noticed() {
    let found = dripping_is_408("2s", "0", 60).expect_err("no rate is asked for");
    assert!(found.contains("may go on"), "{found}");
}

/// The timeout is long enough that a busy machine does not keep this client from sending for as long.
#[test]
fn a_body_above_the_rate_may_take_its_time() {
    let (timeout, pieces) = (Duration::from_millis(1_500), 50);
    let server = ServerBuilder::new("memory").arg("--body-timeout", "1500ms").start();
    let mut client = upload(&server, "k", pieces << 10);
    let begin = Instant::now();
    for _ in 0..pieces {
        std::thread::sleep(Duration::from_millis(50));
        client.send_raw([b'v'; 1 << 10]);
    }
    assert!(begin.elapsed() > timeout);
    assert_eq!(client.answer().unwrap().status, 201);
}

/// A body of `length` is taken while uploads hold all that they may.
fn is_taken_beside_uploads(length: usize) -> Found {
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
fn large_uploads_never_refuse_small_ones() {
    is_taken_beside_uploads(1).unwrap();
    is_taken_beside_uploads(4 << 10).unwrap();
}

#[test]
fn twin_room_that_is_not_kept_is_noticed() {
    let found = is_taken_beside_uploads(100 << 10).expect_err("no room is kept for larger ones");
    assert!(found.contains("503"), "{found}");
}

/// Tries `put` again until it is taken, for `patience` at most.
fn is_taken_in_the_end(patience: Duration, mut put: impl FnMut() -> u16) -> Found {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        match put() {
            201 => return Ok(()),
            503 => std::thread::sleep(Duration::from_millis(20)),
            other => panic!("answered {other}"),
        }
    }
    Err("nobody makes room".to_owned())
}

/// Of three uploads, one that stalls, one that is slow and one that is fast, the first is ended when a fourth lacks room, and
/// only that. With one worker: with several, each looks at its own as they come of age.
fn the_slowest_makes_room(builder: &ServerBuilder, patience: Duration) -> Found {
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
                // A byte is kept back: whoever is done holds no room.
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
        let found = is_taken_in_the_end(patience, || put_status(&server, "fourth", size));
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
fn the_slowest_upload_makes_room() {
    the_slowest_makes_room(&crowded("1"), super::support::PATIENCE).unwrap();
}

#[test]
fn twin_an_upload_that_keeps_its_room_for_ever_is_noticed() {
    let crowded = crowded("1").arg("--body-rate-min", "0");
    the_slowest_makes_room(&crowded, Duration::from_secs(2)).expect_err("nobody is ended");
}

#[test]
fn fast_uploads_are_not_ended_for_others() {
    let server = crowded("4").start();
    let mut fast = upload(&server, "fast", 6 << 20);
    let deadline = Instant::now() + Duration::from_secs(2);
    let mut left = 6 << 20;
    while Instant::now() < deadline && left > 2 << 20 {
        let count = 32 << 10;
        fast.send_raw(vec![7; count]);
        left -= count;
        assert_eq!(put_status(&server, "other", 2 << 20), 503);
        std::thread::sleep(Duration::from_millis(10));
    }
    fast.send_raw(vec![7; left]);
    assert_eq!(fast.answer().unwrap().status, 201);
}

/// A reader that has asked for `target` and takes as little of it as the kernel lets it.
fn reader(server: &Server, target: &str) -> Client {
    let mut client = server.client();
    socket2::SockRef::from(&client.stream).set_recv_buffer_size(64 << 10).unwrap();
    client.send("GET", target, &[], None).unwrap();
    assert_eq!(client.head().unwrap().0, 200);
    client
}

/// A reader that takes nothing of a value of `length` is ended when a PUT lacks the room.
fn the_reader_makes_room(builder: &ServerBuilder, target: &str, length: usize, patience: Duration) -> Found {
    let server = builder.start();
    assert_eq!(put_status(&server, "large", length), 201);
    let mut reader = reader(&server, target);
    assert_eq!(put_status(&server, "other", 5 << 20), 503, "the reader holds the room");
    is_taken_in_the_end(patience, || put_status(&server, "other", 5 << 20))?;
    let mut rest = Vec::new();
    let _ = reader.stream.read_to_end(&mut rest);
    assert!(rest.len() < length, "it was ended");
    Ok(())
}

#[test]
fn a_reader_that_takes_nothing_makes_room() {
    let patience = super::support::PATIENCE;
    // With many workers: who is refused and who holds the room are seldom the same one's.
    the_reader_makes_room(&crowded("4"), &entity("large"), 6 << 20, patience).unwrap();
    // An entry of a range holds twice its size: as it was read, and in hyper's buffer.
    the_reader_makes_room(&crowded("4"), "/v0/entities?start=large", 3 << 20, patience).unwrap();
}

#[test]
fn twin_a_reader_that_keeps_its_room_for_ever_is_noticed() {
    let crowded = crowded("4").arg("--body-rate-min", "0");
    the_reader_makes_room(&crowded, &entity("large"), 6 << 20, Duration::from_secs(2)).expect_err("nobody is ended");
}

/// A reader that takes some 400 KiB a second where 1 MiB is asked for is ended.
fn a_slow_reader_is_ended(rate_min: &str) -> Found {
    let builder = ServerBuilder::new("memory").arg("--memory", "64MiB");
    let server = builder.arg("--write-timeout", "1s").arg("--body-rate-min", rate_min).start();
    assert_eq!(put_status(&server, "large", 3 << 20), 201);
    let mut reader = reader(&server, &entity("large"));
    let mut taken = 0;
    let mut some = [0; 4 << 10];
    for _ in 0..250 {
        match reader.stream.read(&mut some) {
            Ok(count @ 1..) => taken += count,
            Ok(0) | Err(_) => return Ok(()),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut rest = Vec::new();
    let _ = reader.stream.read_to_end(&mut rest);
    // Some of it came with the head.
    if taken + rest.len() + (16 << 10) >= 3 << 20 { Err("it got everything".to_owned()) } else { Ok(()) }
}

#[test]
fn a_reader_below_the_rate_is_ended() {
    a_slow_reader_is_ended("1MiB").unwrap();
}

#[test]
fn twin_a_reader_that_may_be_slow_is_noticed() {
    let found = a_slow_reader_is_ended("0").expect_err("no rate is asked for");
    assert!(found.contains("everything"), "{found}");
}

/// A client from another address of this machine.
fn client_from(source: Ipv4Addr, server: SocketAddr) -> Client {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.connect(&server.into()).unwrap();
    Client::from_stream(TcpStream::from(socket))
}

/// Two connections from one address are served, the third is not, until one closes.
fn the_third_is_refused(builder: &ServerBuilder) -> Found {
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
    // Neither another address nor the admin listener is concerned, nor those that are served.
    assert_eq!(client_from(Ipv4Addr::new(127, 0, 0, 2), server.address).get("/v0/status").status, 200);
    assert_eq!(server.admin("/livez").status, 200);
    assert_eq!(second.get("/v0/status").status, 200);
    drop(first);
    wait_until("the first's place is free", || server.client().get("/v0/status").status == 200);
    Ok(())
}

#[test]
fn connections_of_one_address_have_a_limit() {
    the_third_is_refused(&ServerBuilder::new("memory").arg("--connections-per-peer", "2")).unwrap();
}

#[test]
fn twin_an_address_without_a_limit_is_noticed() {
    the_third_is_refused(&ServerBuilder::new("memory")).expect_err("there is no limit by default");
}
