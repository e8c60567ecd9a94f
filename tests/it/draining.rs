//! The connections of a stopping klad, at different moments of the shutdown.
//!
//! Some checks hold only for a limited time after the signal, because klad waits for clients for a limited time. On a
//! busy machine a test client may be too late. The test then starts again.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::support::server::keep;
use super::support::{Answer, Client, ENGINES, PATIENCE, Server, ServerBuilder, wait_until};

/// Much shorter than the time for which klad keeps an idle connection.
const SOON: Duration = Duration::from_millis(150);

/// Maximum number of attempts to be in time.
const TRIES: usize = 50;

/// Repeats `attempt`, which returns `None` if it was too late.
fn in_time<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    (0..TRIES).find_map(|_| attempt()).expect("one of many attempts is in time")
}

fn closes(answer: &Answer) -> bool {
    answer.header("connection") == Some("close")
}

/// Waits until klad is not ready, because it stops. Returns `None` if it has ended.
fn wait_until_not_ready(server: &Server) -> Option<()> {
    loop {
        let answer =
            Client::try_connect(server.admin).and_then(|mut asks| asks.try_request("GET", "/readyz", &[], None));
        let answer = answer.ok()?;
        if answer.status == 503 {
            assert!(answer.text().contains("stopping"), "{answer:?}");
            return Some(());
        }
    }
}

const GET: &str = "GET /v0/status HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Sends requests until an answer says that the connection closes: klad begins to drain some time after the signal.
/// klad must answer all of them, and then close. Returns `None` if the client was too late.
fn send_until_close_announced(client: &mut Client, asked: Instant) -> Option<()> {
    loop {
        let sent = std::io::Write::write_all(&mut client.stream, GET.as_bytes());
        if asked.elapsed() > SOON {
            return None;
        }
        sent.expect("klad keeps an idle connection for a longer time");
        let answer = client.answer().expect("an answer");
        assert_eq!(answer.status, 200, "{answer:?}");
        if closes(&answer) {
            assert!(client.is_closed_silently());
            return Some(());
        }
    }
}

#[test]
fn a_request_on_an_idle_connection_is_answered_with_connection_close() {
    for engine in ENGINES {
        in_time(|| {
            let mut server = ServerBuilder::new(engine).start();
            let (mut used, mut fresh) = (server.client(), server.client());
            assert!(!closes(&used.get("/v0/status")));
            let asked = Instant::now();
            server.signal(Signal::TERM);
            send_until_close_announced(&mut used, asked)?;
            send_until_close_announced(&mut fresh, asked)?;
            assert_eq!(server.wait().code(), Some(0));
            Some(())
        });
    }
}

#[test]
fn a_client_that_never_stops_sending_gets_connection_close() {
    in_time(|| {
        let mut server = ServerBuilder::new("memory").arg("--drain-timeout", "1h").start();
        let mut client = server.client();
        // This number of requests is always in flight.
        client.send_raw(GET.repeat(100));
        server.signal(Signal::TERM);
        // Without an answer: this thread has paused so long that klad took the connection for idle.
        while !closes(&client.answer().ok()?) {
            // klad still reads what follows the last answer, for a limited time.
            let _ = client.send("GET", "/v0/status", &[], None);
        }
        assert!(client.is_closed_silently());
        assert_eq!(server.wait().code(), Some(0));
        Some(())
    });
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
                // The request is in progress.
                assert_eq!(client.any_answer().unwrap().status, 100);
                let asked = Instant::now();
                server.signal(signal);
                wait_until_not_ready(&server)?;
                client.try_send_raw(b"ok").ok()?;
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
fn a_body_that_keeps_arriving_may_take_longer_than_the_idle_limits() {
    let pieces = 20;
    let head = format!("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: {pieces}\r\n\r\n");
    in_time(|| {
        let mut server = ServerBuilder::new("memory").arg("--drain-timeout", "1h").start();
        let mut client = server.client();
        client.send_raw(&head);
        let mut last = Instant::now();
        server.signal(Signal::TERM);
        // Two seconds in total; one second without a byte would be too long.
        for _ in 0..pieces {
            std::thread::sleep(Duration::from_millis(100));
            client.try_send_raw(b"x").ok()?;
            let now = Instant::now();
            if now - last > Duration::from_millis(300) {
                return None;
            }
            last = now;
        }
        assert_eq!(client.answer().unwrap().status, 201);
        assert_eq!(server.wait().code(), Some(0));
        Some(())
    });
}

#[test]
fn klad_serves_normally_during_the_drain_delay() {
    in_time(|| {
        let mut server = ServerBuilder::new("memory").arg("--drain-delay", "2s").start();
        let mut old = server.client();
        assert_eq!(old.get("/v0/status").status, 200);
        let asked = Instant::now();
        server.signal(Signal::TERM);
        wait_until_not_ready(&server)?;
        let mut new = Client::try_connect(server.address).ok()?;
        let status = |client: &mut Client| client.try_request("GET", "/v0/status", &[], None).ok();
        let answers = [status(&mut old)?, status(&mut new)?, status(&mut new)?];
        if asked.elapsed() > Duration::from_secs(1) {
            return None;
        }
        for answer in answers {
            assert!(answer.status == 200 && !closes(&answer), "{answer:?}");
        }
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
    }
}

/// The signal may arrive while klad opens the data, or when it serves already.
#[cfg(feature = "rocksdb")]
#[test]
fn a_stop_during_the_start_is_orderly_and_answers_connected_clients() {
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
    let _kept = keep(address);
    let builder = builder.listen(address);
    for _ in 0..10 {
        in_time(|| {
            let mut child = builder.spawn(data.path());
            let end = Instant::now() + PATIENCE;
            let mut client = loop {
                match Client::try_connect(address) {
                    Ok(client) => break client,
                    Err(error) => assert!(Instant::now() < end, "{error}"),
                }
            };
            let asked = Instant::now();
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            let sent = client.send("GET", "/v0/entity?id=499", &[], None);
            let late = asked.elapsed() > SOON;
            if !late {
                sent.expect("klad keeps an idle connection for a longer time");
                assert_eq!(client.answer().expect("an answer").body, value);
            }
            assert_eq!(child.wait().unwrap().code(), Some(0));
            (!late).then_some(())
        });
    }
}

/// Requests that the drain timeout ends are counted and logged.
#[test]
fn an_answer_that_the_drain_timeout_interrupts_is_counted_and_logged() {
    let mut server = ServerBuilder::new("memory").arg("--access-log", "on").arg("--drain-timeout", "300ms").start();
    assert_eq!(server.client().put("/v0/entity?id=large", &vec![1; 12 << 20]).status, 201);
    let mut reader = server.client();
    reader.send("GET", "/v0/entity?id=large", &[], None).unwrap();
    assert_eq!(reader.head().unwrap().0, 200);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    wait_until("the line is logged", || {
        server.log().lines().any(|line| line.contains("GET") && line.contains("aborted"))
    });
}
