//! What becomes of a connection while klad stops, at one instant after the other.
//!
//! Some of it holds only for a while after the signal: klad waits for clients, but not for ever. A client that came too
//! late, because the machine had better things to do, has shown nothing, and the test begins anew.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::support::{Answer, Client, ENGINES, PATIENCE, ServerBuilder, wait_until};

/// Well within the time that klad keeps an idle connection.
const SOON: Duration = Duration::from_millis(150);

/// Tries so often to be in time.
const TRIES: usize = 50;

/// Runs `attempt` until it was in time; it answers `None` when it was not.
fn in_time<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    (0..TRIES).find_map(|_| attempt()).expect("in time, once in many tries")
}

fn closes(answer: &Answer) -> bool {
    answer.header("connection") == Some("close")
}

const GET: &str = "GET /v0/status HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Sends a request again and again until its answer says that the connection closes: klad has begun to drain at some time
/// after the signal. All must be answered, and then that is the end. `None`: not in time.
fn send_until_told(client: &mut Client, asked: Instant) -> Option<()> {
    loop {
        let sent = std::io::Write::write_all(&mut client.stream, GET.as_bytes());
        if asked.elapsed() > SOON {
            return None;
        }
        sent.expect("klad keeps an idle connection for longer");
        let answer = client.answer().expect("an answer");
        assert_eq!(answer.status, 200, "{answer:?}");
        if closes(&answer) {
            assert!(client.is_closed_silently());
            return Some(());
        }
    }
}

#[test]
fn an_idle_connection_that_is_used_once_more_is_answered_and_told_that_it_closes() {
    for engine in ENGINES {
        in_time(|| {
            let mut server = ServerBuilder::new(engine).start();
            let (mut used, mut fresh) = (server.client(), server.client());
            assert!(!closes(&used.get("/v0/status")));
            let asked = Instant::now();
            server.signal(Signal::TERM);
            send_until_told(&mut used, asked)?;
            send_until_told(&mut fresh, asked)?;
            assert_eq!(server.wait().code(), Some(0));
            Some(())
        });
    }
}

#[test]
fn requests_that_never_end_are_told_that_the_connection_closes() {
    let mut server = ServerBuilder::new("memory").arg("--drain-timeout", "1h").start();
    let mut client = server.client();
    // So many are always under way.
    client.send_raw(GET.repeat(100));
    server.signal(Signal::TERM);
    while !closes(&client.answer().expect("an answer")) {
        // What is sent behind the last answer meets a connection that is read from still, but not for ever.
        let _ = client.send("GET", "/v0/status", &[], None);
    }
    assert!(client.is_closed_silently());
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_request_in_flight_is_answered_before_the_end() {
    for engine in ENGINES {
        for signal in [Signal::TERM, Signal::INT] {
            in_time(|| {
                let mut server = ServerBuilder::new(engine).start();
                let (mut client, mut idle) = (server.client(), server.client());
                assert_eq!(idle.get("/v0/status").status, 200);
                client.send_raw(
                    "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
                );
                // The request has begun.
                assert_eq!(client.any_answer().unwrap().status, 100);
                let asked = Instant::now();
                server.signal(signal);
                wait_until("it is not ready", || server.admin("/readyz").status == 503);
                client.send_raw("ok");
                if asked.elapsed() > SOON {
                    return None;
                }
                assert_eq!(client.answer().unwrap().status, 201);
                assert!(client.is_closed_silently());
                assert!(idle.is_closed_silently());
                assert_eq!(server.wait().code(), Some(0), "{}", server.log());
                Some(())
            });
        }
    }
}

#[test]
fn a_body_that_keeps_coming_may_take_longer_than_any_patience() {
    let mut server = ServerBuilder::new("memory").arg("--drain-timeout", "1h").start();
    let mut client = server.client();
    let pieces = 20;
    client.send_raw(format!("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: {pieces}\r\n\r\n"));
    server.signal(Signal::TERM);
    // Two seconds in all, where one without a byte would be too long.
    for _ in 0..pieces {
        std::thread::sleep(Duration::from_millis(100));
        client.send_raw("x");
    }
    assert_eq!(client.answer().unwrap().status, 201);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn klad_serves_as_ever_during_the_drain_delay() {
    in_time(|| {
        let mut server = ServerBuilder::new("memory").arg("--drain-delay", "2s").start();
        let mut old = server.client();
        assert_eq!(old.get("/v0/status").status, 200);
        let asked = Instant::now();
        server.signal(Signal::TERM);
        wait_until("it is not ready", || server.admin("/readyz").status == 503);
        let mut new = server.client();
        let answers = [old.get("/v0/status"), new.get("/v0/status"), new.get("/v0/status")];
        if asked.elapsed() > Duration::from_secs(1) {
            return None;
        }
        for answer in answers {
            assert!(answer.status == 200 && !closes(&answer), "{answer:?}");
        }
        assert!(server.admin("/readyz").text().contains("stopping"));
        assert_eq!(server.wait().code(), Some(0));
        assert!(asked.elapsed() > Duration::from_secs(2), "the delay is kept");
        Some(())
    });
}

#[test]
fn connections_that_wait_to_be_accepted_are_served_before_the_end() {
    for engine in ENGINES {
        let mut server = ServerBuilder::new(engine).arg("--connections-max", "1").arg("--drain-timeout", "30s").start();
        let mut first = server.client();
        assert_eq!(first.get("/v0/status").status, 200);
        let mut waiting: Vec<Client> = (0..10).map(|_| server.client()).collect();
        for client in &mut waiting {
            client.send("PUT", "/v0/entity?id=k", &[], Some(b"v")).unwrap();
        }
        server.signal(Signal::TERM);
        for client in &mut waiting {
            let answer = client.answer().unwrap();
            assert!(answer.status == 201 && closes(&answer), "{answer:?}");
        }
        assert_eq!(server.wait().code(), Some(0));
        assert!(TcpStream::connect(server.address).is_err(), "nobody listens any more");
    }
}

/// Whatever klad is doing by then: opening the data, or serving already.
#[cfg(feature = "rocksdb")]
#[test]
fn a_stop_during_the_start_is_in_order_and_answers_who_has_connected() {
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new("rocksdb").data(data.path());
    let server = builder.start();
    let (address, mut client) = (server.address, server.client());
    let value = vec![b'v'; 10_000];
    for n in 0..500 {
        assert_eq!(client.put(&format!("/v0/entity?id={n}&durability=async"), &value).status, 201);
    }
    drop(client);
    server.kill();
    let builder = builder.listen(address);
    for _ in 0..10 {
        let mut child = builder.spawn(data.path());
        let end = Instant::now() + PATIENCE;
        let mut client = loop {
            match Client::try_connect(address) {
                Ok(client) => break client,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
        };
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert_eq!(client.get("/v0/entity?id=499").body, value);
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

/// What the drain timeout cuts is neither forgotten nor without a word.
#[test]
fn an_answer_that_is_cut_by_the_drain_timeout_is_counted_and_logged() {
    let mut server = ServerBuilder::new("memory").arg("--access-log", "on").arg("--drain-timeout", "300ms").start();
    let mut reader = server.client();
    assert_eq!(reader.put("/v0/entity?id=large", &vec![1; 12 << 20]).status, 201);
    reader.send("GET", "/v0/entity?id=large", &[], None).unwrap();
    assert_eq!(reader.head().unwrap().0, 200);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    wait_until("the line is there", || {
        server.log().lines().any(|line| line.contains("GET") && line.contains("aborted"))
    });
}
