//! TLS: answers, deadlines, limits and the ends of connections are the same as in the clear, and the handshake has
//! its own limits.

use std::io::{self, ErrorKind, Read as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use rcgen::KeyPair;
use rustix::process::Signal;
use serde_json::json;

use super::support::batches::{batch, results};
use super::support::client::has_ended;
use super::support::scanning::{Format, scan};
use super::support::tls::{Authority, connect, shake};
use super::support::{Client, PATIENCE, Server, ServerBuilder, encode, wait_until};

type Found = Result<(), String>;

/// Shorter than the times after which klad ends the connections of [`in_time`]. The shortest is two seconds: after a
/// large body or answer, and after a rejection.
const SOON: Duration = Duration::from_millis(1_500);

/// Repeats `attempt` if it fails late: on a busy machine this thread may pause until klad ends the connection. Any other
/// error, such as an answer that does not come, is a fault.
fn in_time<T>(mut attempt: impl FnMut() -> io::Result<T>) -> T {
    let in_time = (0..5).find_map(|_| {
        let begun = Instant::now();
        match attempt() {
            Err(error) if begun.elapsed() > SOON && has_ended(&error) => None,
            done => Some(done.unwrap()),
        }
    });
    in_time.expect("one of several attempts is in time")
}

/// Connects a client to a server whose handshakes have a short deadline.
fn client_in_time(authority: &Authority, server: &Server) -> Client {
    in_time(|| connect(server.address, authority.client_config(None)))
}

/// Uses one connection, from an empty answer over a large value to a range.
fn one_connection_is_served(
    authority: &Authority,
    server: &Server,
    version: &'static rustls::SupportedProtocolVersion,
) -> io::Result<()> {
    let mut config = authority.client_config_of(&[version], None);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut client = connect(server.address, config)?;
    let tls = client.tls.as_ref().unwrap();
    assert_eq!(tls.protocol_version(), Some(version.version));
    assert_eq!(tls.alpn_protocol(), Some(&b"http/1.1"[..]));
    for (key, length) in [("a", 0), ("b", 1), ("c", 16 << 10), ("d", 100_000), ("e", 4 << 20)] {
        let value: Vec<u8> = (0..=250).cycle().take(length).collect();
        let target = format!("/v0/entity?id={key}");
        assert_eq!(client.try_request("PUT", &target, &[], Some(&value))?.status, 201);
        assert!(client.try_request("GET", &target, &[], None)?.body == value, "{key}");
    }
    let range = client.try_request("GET", "/v0/entities?start=a", &[], None)?;
    assert!(range.body.len() > 4 << 20 && range.chunks.is_some());
    Ok(())
}

#[test]
fn all_requests_are_served_with_both_versions_of_tls() {
    let authority = Authority::new();
    for engine in super::support::ENGINES {
        let server = authority.server_of(engine).start();
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            in_time(|| one_connection_is_served(&authority, &server, version));
            // klad closes a connection after such a large entry.
            let mut client = authority.client(&server);
            assert_eq!(client.delete("/v0/entity?id=e").status, 202);
            assert_eq!(client.get("/v0/entity?id=e").status, 404);
        }
    }
}

#[test]
fn v1_is_served_with_tls() {
    let authority = Authority::new();
    for engine in super::support::ENGINES {
        let server = authority.server_of(engine).start();
        // A connection for each request: klad closes one two seconds after a large body or answer.
        let client = || authority.client(&server);
        let value = "v".repeat(40_000);
        let items: Vec<_> = (0..60).map(|n| json!({"op": "put", "key": format!("k{n:02}"), "value": value})).collect();
        assert_eq!(results(&batch(&mut client(), "?atomic=true", &items)).len(), 60);
        for format in [Format::Page, Format::JsonLines, Format::CborSequence] {
            let (mut listed, mut query) = (0, String::new());
            // A page has at least one entry.
            for _ in 0..60 {
                let scanned = scan(&mut client(), &query, format).unwrap();
                listed += scanned.listed.len();
                let Some(cursor) = scanned.next else { break };
                query = format!("cursor={cursor}");
            }
            assert_eq!(listed, 60, "{engine} {format:?}");
        }
        assert_eq!(client().request("GET", "/v1/kv/k00", &[("Range", "bytes=0-2")], None).body, b"vvv");
        assert_eq!(client().request("PUT", "/v1/kv/k00", &[("If-None-Match", "*")], Some(b"w")).status, 412);
        assert_eq!(client().delete("/v1/kv?prefix=k").status, 204);
        assert_eq!(client().get("/v1/kv/k00").status, 404);
    }
}

#[test]
fn curl_is_served() {
    let authority = Authority::new();
    let server = authority.server().start();
    let curl = |arguments: &[&str]| {
        let output = Command::new("curl").args(["-sS", "--max-time", "60"]).args(arguments).output();
        output.expect("tools/setup.sh installs curl")
    };
    let (ca, url) = (authority.path("ca.pem"), format!("https://{}/v0/entity?id=k", server.address));
    let trusted = ["--cacert", ca.to_str().unwrap()];
    let put = curl(&[&trusted[..], &["-w", "%{http_code}", "-T", trusted[1], &url]].concat());
    assert_eq!(String::from_utf8_lossy(&put.stdout), "201", "{}", String::from_utf8_lossy(&put.stderr));
    assert_eq!(curl(&[&trusted[..], &[&url]].concat()).stdout, std::fs::read(&ca).unwrap());
    assert!(!curl(&[&url]).status.success(), "curl does not trust the authority");
    // http instead of https is answered with an explanation.
    let plain = curl(&["-w", "%{http_code}", &url.replace("https", "http")]);
    let said = String::from_utf8_lossy(&plain.stdout);
    assert!(said.contains("plain-http") && said.ends_with("400"), "{said}");
}

#[test]
fn a_client_with_another_protocol_gets_an_explanation() {
    let authority = Authority::new();
    let server = authority.server().start();
    let mut plain = server.client();
    let answer = plain.get("/v0/status");
    assert_eq!((answer.status, answer.header("connection")), (400, Some("close")));
    assert!(plain.is_closed_silently());
    assert_eq!(server.admin("/livez").status, 400);
    for protocols in [&[&b"h2"[..]][..], &[b"spdy/3", b"h2"]] {
        let mut config = authority.client_config(None);
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let error = connect(server.address, config).err().expect("no protocol in common").to_string();
        assert!(error.contains("NoApplicationProtocol"), "{error}");
    }
    // An invalid hello is answered with an alert, and the connection closes.
    let mut broken = server.client();
    broken.send_raw([22, 3, 1, 0, 5, 1, 0, 0, 1, 5]);
    let mut said = Vec::new();
    let _ = broken.stream.read_to_end(&mut said);
    assert_eq!(said.first(), Some(&21), "{said:?}");
    assert_eq!(authority.client(&server).get("/v0/status").status, 200);
}

/// Returns the first record of a handshake.
fn client_hello(authority: &Authority) -> Vec<u8> {
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut tls = rustls::ClientConnection::new(authority.client_config(None).into(), name).unwrap();
    let mut bytes = Vec::new();
    tls.write_tls(&mut bytes).unwrap();
    bytes
}

/// Returns whether the server ends the connection within `time`, after any bytes.
fn ends_within(stream: &mut TcpStream, time: Duration) -> bool {
    let deadline = Instant::now() + time;
    let mut some = [0; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        stream.set_read_timeout(Some(left)).unwrap();
        match stream.read(&mut some) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }
}

/// Incomplete handshakes end at the deadline, and do not delay other handshakes.
fn slow_handshakes_end(head_timeout: &str, patience: Duration) -> Found {
    let authority = Authority::new();
    let server = authority.server().arg("--head-timeout", head_timeout).arg("--threads", "1").start();
    let hello = client_hello(&authority);
    let mut slow = in_time(|| {
        let mut slow: Vec<Client> = (0..300).map(|_| server.client()).collect();
        for (number, client) in slow.iter_mut().enumerate() {
            // Nothing, one byte, half a hello, and a hello without the next message.
            client.try_send_raw(&hello[..[0, 1, hello.len() / 2, hello.len()][number % 4]])?;
        }
        let mut other = connect(server.address, authority.client_config(None))?;
        assert_eq!(other.try_request("GET", "/v0/status", &[], None)?.status, 200);
        Ok(slow)
    });
    let deadline = Instant::now() + patience;
    for (number, client) in slow.iter_mut().enumerate() {
        if !ends_within(
            &mut client.stream,
            deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1),
        ) {
            return Err(format!("{number} goes on"));
        }
    }
    assert_eq!(client_in_time(&authority, &server).get("/v0/status").status, 200);
    Ok(())
}

#[test]
fn a_stalled_handshake_ends_at_its_deadline() {
    slow_handshakes_end("3s", PATIENCE).unwrap();
}

#[test]
fn twin_handshakes_without_an_end_are_noticed() {
    assert_eq!(slow_handshakes_end("1h", Duration::from_secs(1)).expect_err("an hour"), "0 goes on");
}

#[test]
fn handshakes_count_among_connections() {
    let authority = Authority::new();
    let builder = authority.server().arg("--connections-max", "2");
    let server = builder.clone().arg("--head-timeout", "2s").start();
    in_time(|| {
        let _half = server.client();
        let _silent = server.client();
        // Accepted when one of them is closed.
        let mut third = connect(server.address, authority.client_config(None))?;
        assert_eq!(third.try_request("GET", "/v0/status", &[], None)?.status, 200);
        Ok(())
    });
    // A connection beyond the limit of its address gets an alert instead of a handshake.
    let server = builder.arg("--connections-per-peer", "1").start();
    let mut first = authority.client(&server);
    assert_eq!(first.get("/v0/status").status, 200);
    let error = connect(server.address, authority.client_config(None)).err().expect("one too many");
    assert!(error.to_string().contains("InternalError"), "{error}");
    assert_eq!(first.get("/v0/status").status, 200);
}

#[test]
fn heads_and_bodies_have_their_deadlines() {
    let authority = Authority::new();
    let builder = authority.server().arg("--head-timeout", "2s").arg("--body-timeout", "2s");
    let server = builder.start();
    let put = "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n";
    let parts = [
        "G".to_owned(),
        "GET /v0/status HTTP/1.1\r\nHost: loc".to_owned(),
        format!("{put}Content-Length: 10\r\n\r\nabc"),
        format!("{put}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"),
    ];
    let mut clients = parts.each_ref().map(|part| {
        let mut client = client_in_time(&authority, &server);
        client.send_raw(part);
        client
    });
    for (client, part) in clients.iter_mut().zip(&parts) {
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.header("connection")), (408, Some("close")), "{part}");
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "an announced end");
    }
    // A head that arrived with the request before it.
    let mut client = client_in_time(&authority, &server);
    client.send_raw(format!("{put}Content-Length: 1\r\n\r\nvGET /v0/sta"));
    assert_eq!(client.answer().unwrap().status, 201);
    assert_eq!(client.answer().unwrap().status, 408);
    assert_eq!(client_in_time(&authority, &server).get("/v0/entity?id=k").body, b"v");
}

#[test]
fn an_idle_connection_is_closed_with_an_announced_end() {
    let authority = Authority::new();
    let server = authority.server().arg("--idle-timeout", "3s").start();
    let mut fresh = authority.client(&server);
    let mut used = in_time(|| {
        let mut client = authority.client(&server);
        assert_eq!(client.try_request("GET", "/v0/status", &[], None)?.status, 200);
        Ok(client)
    });
    for client in [&mut fresh, &mut used] {
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    }
}

fn fill(authority: &Authority, server: &Server, entries: usize) -> usize {
    for n in 0..entries {
        let put = authority.client(server).put(&format!("/v0/entity?id={n:02}"), &vec![b'v'; 1 << 20]);
        assert_eq!(put.status, 201);
    }
    entries << 20
}

#[test]
fn a_client_that_reads_nothing_is_disconnected_without_an_announced_end() {
    let authority = Authority::new();
    let server = authority.server().arg("--write-timeout", "3s").arg("--scans-max", "1").start();
    fill(&authority, &server, 40);
    let mut client = authority.client(&server);
    client.send("GET", "/v0/entities?start=0", &[], None).unwrap();
    assert_eq!(client.head().unwrap().0, 200);
    let mut other = authority.client(&server);
    // An empty range: this client, too, would be disconnected if it took nothing for some seconds.
    wait_until("the range's place is free", || other.get("/v0/entities?start=40").status == 200);
    let mut some = vec![0; 1 << 20];
    let ended = loop {
        match client.read(&mut some) {
            Ok(0) => break Ok(()),
            Ok(_) => {}
            Err(error) => break Err(error.kind()),
        }
    };
    assert!(matches!(ended, Err(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset)), "{ended:?}");
}

/// A client that reads slowly and steadily gets everything. Bytes that rustls holds for it count as not read until it
/// reads them.
#[test]
fn a_slow_client_gets_a_large_range_completely() {
    // On a busy machine this thread may read nothing for longer than the timeout.
    assert!((0..5).any(|_| a_slow_client_gets_all()), "the range ended early");
}

fn a_slow_client_gets_all() -> bool {
    let authority = Authority::new();
    // Each pause of the client is far shorter than the timeout, and the sum of them is far longer.
    let server = authority.server().arg("--write-timeout", "1s").start();
    let bytes = fill(&authority, &server, 12);
    let mut client = authority.client(&server);
    socket2::SockRef::from(&client.stream).set_recv_buffer_size(64 << 10).unwrap();
    client.send("GET", "/v0/entities?start=0", &[], None).unwrap();
    assert_eq!(client.head().unwrap().0, 200);
    let begun = Instant::now();
    let mut some = vec![0; 16 << 10];
    let mut end = client.take_buffered();
    let mut taken = end.len();
    while !end.ends_with(b"\r\n0\r\n\r\n") {
        let count = client.read(&mut some).unwrap_or(0);
        if count == 0 {
            return false;
        }
        taken += count;
        end.extend_from_slice(&some[..count]);
        end.drain(..end.len().saturating_sub(8));
        std::thread::sleep(Duration::from_millis(4));
    }
    assert!(taken > bytes);
    assert!(begun.elapsed() > Duration::from_secs(2), "the client was not slow");
    true
}

/// Connects a client with small buffers, and sends a request.
fn reader(authority: &Authority, server: &Server, target: &str) -> io::Result<Client> {
    let begun = Instant::now();
    let stream = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    stream.set_recv_buffer_size(8 << 10)?;
    // The kernel buffers some segments, which are large on loopback.
    stream.set_tcp_mss(1_000)?;
    stream.connect(&server.address.into())?;
    let mut client = shake(Client::from_stream(stream.into()), authority.client_config(None))?;
    client.send("GET", target, &[], None)?;
    // Later, klad may have closed the connection before the request. A client notices that only when it reads.
    if begun.elapsed() < SOON { Ok(client) } else { Err(ErrorKind::ConnectionAborted.into()) }
}

/// While rustls holds bytes that the kernel does not accept, the answer is not complete, and a client that pauses is
/// not idle. Some of these lengths end in this state with any size of the kernel's buffers.
#[test]
fn a_client_that_pauses_before_the_end_of_an_answer_gets_all_of_it() {
    let authority = Authority::new();
    let server = authority.server().arg("--idle-timeout", "3s").arg("--write-timeout", "10m").start();
    let lengths = (1..=60).map(|n| n * 30_000);
    let mut readers = Vec::new();
    for length in lengths {
        let (target, value) = (format!("/v0/entity?id={length}"), vec![b'v'; length]);
        let put = in_time(|| authority.client(&server).try_request("PUT", &target, &[], Some(&value)));
        assert_eq!(put.status, 201);
        readers.push((length, in_time(|| reader(&authority, &server, &target))));
    }
    // Longer than the idle timeout, also for a connection with large buffers.
    std::thread::sleep(klad_server::limits::GROWN_IDLE_TIMEOUT + Duration::from_secs(2));
    for (length, client) in &mut readers {
        let answer = client.answer().unwrap_or_else(|error| panic!("{length}: {error}"));
        assert_eq!(answer.body.len(), *length);
    }
    // After the answer the connection is idle.
    for (length, client) in &mut readers {
        assert!(ends_within(&mut client.stream, PATIENCE), "{length} stays");
    }
}

#[test]
fn a_rejection_arrives_before_the_connection_ends() {
    let authority = Authority::new();
    let server = authority.server().start();
    let megabyte = vec![0; 1 << 20];
    let answer = in_time(|| {
        let mut client = authority.client(&server);
        client.send_raw("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n");
        for _ in 0..3 {
            let _ = client.try_send_raw(&megabyte);
        }
        client.answer()
    });
    assert_eq!((answer.status, answer.header("connection")), (413, Some("close")));
    let mut client = authority.client(&server);
    client.send_raw(format!("GET /v0/status HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(40_000)));
    assert_eq!(client.answer().unwrap().status, 431);
    let key = encode(&[b'k'; 5_000]);
    assert_eq!(authority.client(&server).get(&format!("/v0/entity?id={key}")).status, 414);
}

#[test]
fn a_client_that_closes_its_side_still_gets_its_answer() {
    let authority = Authority::new();
    let server = authority.server().start();
    let mut client = authority.client(&server);
    client.send("PUT", "/v0/entity?id=k", &[], Some(b"v")).unwrap();
    let tls = client.tls.as_mut().unwrap();
    tls.send_close_notify();
    tls.write_tls(&mut client.stream).unwrap();
    assert_eq!(client.answer().unwrap().status, 201);
}

/// Requests that arrive together are all answered, also while the worker admits few at a time.
#[test]
fn pipelined_requests_are_answered_under_overload() {
    let authority = Authority::new();
    let server = authority.server().arg("--iteration-max", "1us").arg("--threads", "1").start();
    let value = [b'v'; 1 << 10];
    assert_eq!(authority.client(&server).put("/v0/entity?id=k", &value).status, 201);
    // A client with a deadline shows haste.
    let padding = "x".repeat(900);
    let request = format!("GET /v0/entity?id=k&{padding} HTTP/1.1\r\nHost: localhost\r\nKlad-Timeout: 1h\r\n\r\n");
    let answers = |clients: &mut [Client], count: usize| -> io::Result<()> {
        server.signal(Signal::STOP);
        let sent = clients.iter_mut().try_for_each(|client| client.try_send_raw(request.repeat(count).as_bytes()));
        server.signal(Signal::CONT);
        sent?;
        for client in clients {
            for _ in 0..count {
                assert_eq!(client.answer()?.body, value);
            }
        }
        Ok(())
    };
    let connect_all = || (0..100).map(|_| authority.client(&server)).collect::<Vec<Client>>();
    let (mut clients, mut used) = (connect_all(), Instant::now());
    // More than hyper reads and answers at once. The rest is for the next loop iteration, when the gate is closed.
    for count in (20..=60).step_by(5) {
        let begun = Instant::now();
        if let Err(error) = answers(&mut clients, count) {
            // klad closes a connection two seconds after so many bytes. It keeps new connections for longer.
            assert!(used.elapsed() > SOON && has_ended(&error), "{error}");
            clients = connect_all();
            answers(&mut clients, count).unwrap();
        }
        used = begun;
    }
}

/// Pauses klad and sends handshakes, then a request. Returns the number of handshakes that are answered before the
/// request.
fn handshakes_before_a_request(handshakes: usize) -> usize {
    let authority = Authority::new();
    let pair = authority.pair_with_key("slow", &KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap());
    let builder = ServerBuilder::new("memory").tls(&pair.certificate, &pair.key);
    let server = builder.arg("--threads", "1").arg("--head-timeout", "1h").start();
    let hello = client_hello(&authority);
    let mut served = authority.client(&server);
    let mut flood: Vec<Client> = (0..handshakes).map(|_| server.client()).collect();
    // They were accepted in this order.
    assert_eq!(authority.client(&server).get("/v0/status").status, 200);
    server.signal(Signal::STOP);
    for client in &mut flood {
        client.send_raw(&hello);
    }
    served.send("GET", "/v0/status", &[], None).unwrap();
    server.signal(Signal::CONT);
    assert_eq!(served.answer().unwrap().status, 200);
    let answered = |client: &&Client| {
        client.stream.set_nonblocking(true).unwrap();
        client.stream.peek(&mut [0; 1]).is_ok()
    };
    let before = flood.iter().filter(answered).count();
    wait_until("all are answered", || flood.iter().filter(answered).count() == handshakes);
    before
}

#[test]
fn many_handshakes_do_not_delay_requests() {
    // klad does one step of a handshake at a time, so two or three come first. klad answers some more until this thread
    // looks. Without this limit, all handshakes would come first.
    let before = || {
        let before = handshakes_before_a_request(600);
        println!("{before} of 600");
        before
    };
    assert!((0..5).any(|_| before() < 300), "the handshakes came first");
}

#[test]
fn a_stop_drains_connections_with_tls_as_well() {
    // On a busy machine the rest of the body may come later than a stopping klad waits for it.
    assert!((0..5).any(|_| a_stop_drains_them()), "the rest of each body was late");
}

/// `false`: the rest of the body was late.
fn a_stop_drains_them() -> bool {
    let authority = Authority::new();
    let mut server = authority.server().arg("--drain-timeout", "1h").arg("--head-timeout", "1h").start();
    let mut client = authority.client(&server);
    let mut idle = authority.client(&server);
    let mut half = server.client();
    half.send_raw(&client_hello(&authority)[..50]);
    let _silent = server.client();
    assert_eq!(idle.get("/v0/status").status, 200);
    client.send_raw(
        "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
    );
    assert_eq!(client.any_answer().unwrap().status, 100);
    let asked = Instant::now();
    server.signal(Signal::TERM);
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0, "an announced end");
    let sent = client.try_send_raw(b"ok");
    // klad waits for a second.
    if asked.elapsed() > Duration::from_millis(750) {
        return false;
    }
    sent.unwrap();
    assert_eq!(client.answer().unwrap().status, 201);
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    true
}

#[test]
fn connections_with_tls_take_more_of_the_budget() {
    let authority = Authority::new();
    let refused = |builder: ServerBuilder| {
        let failed = builder.arg("--memory", "1GiB").arg("--connections-max", "19000").try_start();
        failed.err().map(|failed| failed.log).unwrap_or_default()
    };
    let log = refused(authority.server());
    assert!(log.contains("connections of 28672") || log.contains("open files"), "{log}");
}
