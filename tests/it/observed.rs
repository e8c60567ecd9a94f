//! Metrics of requests: each request is counted once, and its time is in the right phases.

use std::time::{Duration, Instant};

use super::support::metrics::Metrics;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
use super::support::planted::Defect;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
use super::support::shim::Shim;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
use super::support::{DURABLE_ENGINES, durable_strategies};
use super::support::{ENGINES, Server, ServerBuilder, wait_until};

const KEY: &str = "/v0/entity?id=k";
const HOLD: Duration = Duration::from_millis(400);

/// Waits until every request is counted: a client may get the last byte of an answer earlier.
fn settled(server: &Server) -> Metrics {
    wait_until("no request is in flight", || Metrics::scrape(server).in_flight() == 0);
    Metrics::scrape(server)
}

/// Sends requests of every kind, and `unannounced` further ones.
fn send_all_kinds(server: &Server, unannounced: u64) {
    let mut client = server.client();
    let durability = |number: usize| if number.is_multiple_of(3) { "sync" } else { "async" };
    for number in 0..9 {
        let target = format!("/v0/entity?id=k{number}&durability={}", durability(number));
        assert_eq!(client.put(&target, b"12345").status, 201);
        assert_eq!(client.get(&target).status, 200);
    }
    for _ in 0..4 {
        assert_eq!(client.get("/v0/entity?id=absent").status, 404);
    }
    assert_eq!(client.delete("/v0/entity?id=k0").status, 202);
    assert_eq!(client.get("/v0/entities?start=k1&end=k3").status, 200);
    for _ in 0..unannounced + 2 {
        assert_eq!(client.get("/v0/status").status, 200);
    }
    assert_eq!(client.get("/v0/nothing?id=x").status, 400);
    assert_eq!(client.get("/v0/entity?id=%zz").status, 400);
    assert_eq!(client.put(KEY, &[0; 2 << 10]).status, 413);
    assert_eq!(client.request("POST", KEY, &[], None).status, 405);
    assert_eq!(client.request("GET", KEY, &[("Klad-Timeout", "soon")], None).status, 400);
    // Three at once. hyper still serves this connection, and answers them one after the other.
    client.send_raw(format!("GET {KEY} HTTP/1.1\r\nHost: localhost\r\n\r\n").repeat(3));
    for _ in 0..3 {
        assert_eq!(client.answer().unwrap().status, 404);
    }
    server.client().send_raw("no HTTP at all\r\n\r\n");
    server.client().send_raw(format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(20 << 10)));
    wait_until("both heads are rejected", || {
        let metrics = Metrics::scrape(server);
        metrics.refused("malformed-head") + metrics.refused("head-too-large") >= 2
    });
}

/// Compares `/metrics` with what was sent.
fn adds_up(engine: &str, unannounced: u64) -> Result<(), String> {
    let server = ServerBuilder::new(engine).arg("--value-max", "1KiB").arg("--head-max", "16KiB").start();
    send_all_kinds(&server, unannounced);
    let metrics = settled(&server);
    let expected = [
        ("get", [("ok", 9), ("not_found", 7), ("client_error", 2)].as_slice()),
        ("put", &[("ok", 9), ("client_error", 1)]),
        ("delete", &[("ok", 1)]),
        ("range", &[("ok", 1)]),
        ("status", &[("ok", 2)]),
        ("other", &[("client_error", 2)]),
    ];
    let mut wrong = Vec::new();
    let mut check = |what: String, found: u64, sent: u64| {
        if found != sent {
            wrong.push(format!("{what}: {found}, but {sent} were sent"));
        }
    };
    let outcomes = ["ok", "not_found", "client_error", "refused", "deadline", "error", "aborted"];
    for (op, sent) in expected {
        for outcome in outcomes {
            let sent = sent.iter().find(|(own, _)| *own == outcome).map_or(0, |(_, count)| *count);
            check(format!("{op} {outcome}"), metrics.requests(op, outcome), sent);
        }
        let all = sent.iter().map(|(_, count)| count).sum();
        for phase in ["receive", "queue", "engine", "sync", "write"] {
            let counted = metrics.count("klad_http_request_phase_seconds_count", &[("op", op), ("phase", phase)]);
            check(format!("{op} in phase {phase}"), counted, all);
        }
    }
    for (word, sent) in if engine == "memory" { [("none", 9), ("sync", 0)] } else { [("sync", 3), ("async", 6)] } {
        let labels = [("op", "put"), ("durability", word)];
        check(format!("puts {word}"), metrics.count("klad_http_request_duration_seconds_count", &labels), sent);
    }
    for (reason, sent) in [
        ("unknown-path", 1),
        ("bad-escape", 1),
        ("value-too-large", 1),
        ("method-not-allowed", 1),
        ("bad-timeout", 1),
        ("malformed-head", 1),
        ("head-too-large", 1),
        ("overloaded", 0),
        ("other", 0),
    ] {
        check(format!("rejected for {reason}"), metrics.refused(reason), sent);
    }
    let bytes = |name: &str, op: &str| metrics.count(&format!("klad_http_{name}_body_bytes_total"), &[("op", op)]);
    // The body that was too large was read and discarded, which counts too.
    check("bytes of bodies".to_owned(), bytes("request", "put"), 9 * 5 + (2 << 10));
    check("bytes of a range".to_owned(), bytes("response", "range"), 2 * "k1\n12345".len() as u64);
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

#[test]
fn every_request_is_counted_once_by_kind_and_outcome() {
    for engine in ENGINES {
        adds_up(engine, 0).unwrap_or_else(|wrong| panic!("{engine}: {wrong}"));
    }
}

#[test]
fn twin_an_additional_request_is_noticed() {
    let wrong = adds_up("memory", 1).expect_err("planted");
    assert!(wrong.starts_with("status ok: 3"), "{wrong}");
}

#[test]
fn rejected_late_and_aborted_requests_are_counted_as_such() {
    // On a busy machine the first operation may end before the others have arrived.
    assert!((0..5).any(|_| a_late_and_an_aborted_request_are_counted()), "no request was rejected");
}

/// Returns whether the queue was full when the request that must be rejected arrived, and the third left in time.
fn a_late_and_an_aborted_request_are_counted() -> bool {
    let server = ServerBuilder::new("memory/pool")
        .arg("--pool-threads", "1")
        .arg("--queue-limit", "2")
        .arg("--engine-delay", "2s")
        .start();
    // Returns whether so many requests are in flight at a time.
    let in_flight = |count| {
        let mut all = false;
        wait_until("the requests are in flight, or one has ended", || {
            let metrics = Metrics::scrape(&server);
            all = metrics.in_flight() == count;
            all || metrics.requests("get", "not_found") + metrics.requests("get", "deadline") > 0
        });
        all
    };
    let mut clients: Vec<_> = (0..3).map(|_| server.client()).collect();
    let (first, rest) = clients.split_at_mut(1);
    let begun = Instant::now();
    first[0].send("GET", KEY, &[], None).unwrap();
    if !in_flight(1) {
        return false;
    }
    // The second waits behind it until its deadline has passed. The third disconnects.
    rest[0].send("GET", KEY, &[("Klad-Timeout", "100ms")], None).unwrap();
    if !in_flight(2) {
        return false;
    }
    rest[1].send("PUT", KEY, &[], Some(b"v")).unwrap();
    if !in_flight(3) {
        return false;
    }
    let status = server.client().get(KEY).status;
    if status != 503 {
        return false;
    }
    socket2::SockRef::from(&rest[1].stream).set_linger(Some(Duration::ZERO)).unwrap();
    clients.pop();
    // Later, the second may have begun before its deadline, and the third may have been answered.
    if begun.elapsed() > Duration::from_millis(1_500) {
        return false;
    }
    assert_eq!(clients[1].answer().unwrap().status, 504);
    assert_eq!(clients[0].answer().unwrap().status, 404);
    let metrics = settled(&server);
    assert_eq!(metrics.requests("get", "refused"), 1);
    assert_eq!(metrics.refused("overloaded"), 1);
    assert_eq!((metrics.requests("get", "deadline"), metrics.refused("deadline-passed")), (1, 1));
    assert_eq!(metrics.count("klad_deadline_dropped_total", &[]), 1);
    assert_eq!(metrics.requests("get", "not_found"), 1);
    assert_eq!((metrics.requests("put", "aborted"), metrics.requests("put", "ok")), (1, 0));
    true
}

#[test]
fn connections_that_klad_ends_are_counted() {
    // Each limit has its server: on a busy machine, a client could exceed a limit that is not meant for it.
    let [server, for_heads, for_idle] =
        [("--write-timeout", "600ms"), ("--head-timeout", "100ms"), ("--idle-timeout", "1s")]
            .map(|(limit, time)| ServerBuilder::new("memory").arg(limit, time).start());
    let wait_until_closed = |server: &Server, reason: &str| {
        wait_until("klad has ended a connection", || {
            Metrics::scrape(server).count("klad_connections_closed_total", &[("reason", reason)]) == 1
        });
    };
    let value = vec![b'v'; 15 << 20];
    assert_eq!(server.client().put(KEY, &value).status, 201);
    let mut reader = server.client();
    reader.send("GET", KEY, &[], None).unwrap();
    let mut head = for_heads.client();
    head.send_raw("GET /v0/st");
    assert_eq!(head.answer().unwrap().status, 408);
    assert_eq!(settled(&for_heads).refused("head-timeout"), 1);
    assert!(for_idle.client().is_closed_silently());
    wait_until_closed(&for_idle, "idle");
    wait_until_closed(&server, "write_timeout");
    let metrics = settled(&server);
    assert_eq!((metrics.requests("get", "aborted"), metrics.requests("get", "ok")), (1, 0));
    assert!(metrics.phase("get", "write") >= 0.3, "{}", metrics.phase("get", "write"));
    assert!(metrics.count("klad_http_response_body_bytes_total", &[("op", "get")]) < value.len() as u64);
    let server = ServerBuilder::new("memory").arg("--connections-per-peer", "1").start();
    let mut only = server.client();
    assert_eq!(only.get("/v0/status").status, 200);
    assert_eq!(server.client().answer().unwrap().status, 503);
    assert_eq!(settled(&server).refused("too-many-connections"), 1);
}

/// Holds a sync and checks that its time is in the phase `sync` and in no other, in the metrics and in `Server-Timing`.
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
fn held_sync_is_in_phase_sync(setup: &str, defect: Option<Defect>) -> Result<(), String> {
    let shim = Shim::new();
    let server = shim.preload(ServerBuilder::new(setup).defect(defect)).start();
    let mut writer = server.client();
    // The first write does some things only once, such as reserving versions.
    assert_eq!(writer.put(KEY, b"v").status, 201);
    let before = settled(&server);
    shim.hold();
    writer.send("PUT", KEY, &[("Klad-Server-Timing", "on")], Some(b"v")).unwrap();
    shim.wait_until_held();
    std::thread::sleep(HOLD);
    shim.pass();
    let answer = writer.answer().unwrap();
    assert_eq!(answer.status, 201);
    let after = settled(&server);
    let timing = answer.header("server-timing").expect("requested");
    let mut wrong = Vec::new();
    for phase in ["receive", "queue", "engine", "sync", "write"] {
        let spent = after.phase("put", phase) - before.phase("put", phase);
        let held = spent >= HOLD.as_secs_f64();
        if held != (phase == "sync") {
            wrong.push(format!("{phase} took {spent} s"));
        }
    }
    for phase in ["receive", "queue", "engine", "sync", "total"] {
        let held = milliseconds(timing, phase) >= HOLD.as_secs_f64() * 1e3;
        if held != ["sync", "total"].contains(&phase) {
            wrong.push(format!("{phase} in {timing}"));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

/// Returns a duration from a `Server-Timing` header.
fn milliseconds(timing: &str, phase: &str) -> f64 {
    let found = timing.split(", ").find_map(|metric| metric.strip_prefix(phase)?.strip_prefix(";dur="));
    found.unwrap_or_else(|| panic!("no {phase} in {timing}")).parse().unwrap()
}

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
#[test]
fn a_held_sync_shows_in_sync_and_in_no_other_phase() {
    for setup in durable_strategies() {
        // A busy machine may delay another phase; a wrong phase is wrong each time.
        let mut wrong = Vec::new();
        let right = (0..5).any(|_| held_sync_is_in_phase_sync(setup, None).map_err(|why| wrong.push(why)).is_ok());
        assert!(right, "{setup}: {wrong:?}");
    }
}

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
#[test]
fn twin_a_sync_that_counts_as_engine_is_noticed() {
    for engine in DURABLE_ENGINES {
        let wrong = held_sync_is_in_phase_sync(engine, Some(Defect::HidesSync)).expect_err("planted");
        assert!(wrong.contains("engine took") && wrong.contains("sync took"), "{engine}: {wrong}");
    }
}

/// Sends two reads at once to an engine that takes 2 s for each. With one thread the second waits for the first.
fn waiting_is_in_phase_queue(threads: &str) -> Result<(), String> {
    let builder = ServerBuilder::new("memory/pool").arg("--pool-threads", threads).arg("--engine-delay", "2s");
    let server = builder.start();
    let mut clients = [server.client(), server.client()];
    for client in &mut clients {
        client.send("GET", KEY, &[], None).unwrap();
    }
    for client in &mut clients {
        assert_eq!(client.answer().unwrap().status, 404);
    }
    let metrics = settled(&server);
    let (queue, engine) = (metrics.phase("get", "queue"), metrics.phase("get", "engine"));
    assert!(metrics.phase("get", "sync") == 0.0 && engine >= 4.0, "two reads took {engine} s");
    if queue < 1.0 {
        return Err(format!("the second waited {queue} s"));
    }
    Ok(())
}

#[test]
fn waiting_shows_in_queue_and_a_slow_engine_in_engine() {
    // On a busy machine the second may arrive late.
    assert!((0..5).any(|_| waiting_is_in_phase_queue("1").is_ok()), "no wait was in the phase queue");
}

#[test]
fn twin_a_queue_without_waiting_is_noticed() {
    // On a busy machine the second thread may begin late.
    assert!((0..5).any(|_| waiting_is_in_phase_queue("2").is_err()), "planted");
}

#[test]
fn a_slow_engine_shows_in_engine_with_every_strategy() {
    for setup in ["memory", "memory/inline", "memory/stealing"] {
        // On a busy machine a thread may begin late, so that the time is in the queue.
        assert!((0..5).any(|_| a_slow_engine_is_in_phase_engine(setup)), "{setup}: the time was in the queue");
    }
}

/// Returns whether requests spent more time in the engine than in the queue.
fn a_slow_engine_is_in_phase_engine(setup: &str) -> bool {
    let server = ServerBuilder::new(setup).arg("--engine-delay", "500ms").start();
    let mut client = server.client();
    assert_eq!(client.put(KEY, b"v").status, 201);
    assert_eq!(client.get(KEY).status, 200);
    assert_eq!(client.get("/v0/entities?start=k").status, 200);
    let metrics = settled(&server);
    ["put", "get", "range"].into_iter().all(|op| {
        let engine = metrics.phase(op, "engine");
        assert!(engine >= 0.5, "{setup}: {op} spent {engine} s in the engine");
        metrics.phase(op, "queue") < engine
    })
}

#[test]
fn a_body_that_arrives_late_shows_in_receive() {
    let server = ServerBuilder::new("memory").start();
    let mut client = server.client();
    let begun = Instant::now();
    client.send_raw(format!("PUT {KEY} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n12"));
    wait_until("the request has begun", || Metrics::scrape(&server).in_flight() == 1);
    std::thread::sleep(Duration::from_millis(200));
    client.send_raw("345");
    assert_eq!(client.answer().unwrap().status, 201);
    let all = begun.elapsed().as_secs_f64();
    let receive = settled(&server).phase("put", "receive");
    assert!((0.2..=all).contains(&receive), "{receive} s of {all}");
}

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
#[test]
fn the_size_of_batches_and_the_time_of_syncs_are_counted() {
    for engine in DURABLE_ENGINES {
        batches_and_syncs_are_counted(engine);
    }
}

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
fn batches_and_syncs_are_counted(engine: &str) {
    let shim = Shim::new();
    let server = shim.preload(ServerBuilder::new(engine)).start();
    shim.hold();
    let mut first = server.client();
    first.send("PUT", "/v0/entity?id=first", &[], Some(b"v")).unwrap();
    shim.wait_until_held();
    let mut others: Vec<_> = (0..8).map(|_| server.client()).collect();
    for other in &mut others {
        other.send("PUT", KEY, &[], Some(b"v")).unwrap();
    }
    wait_until("all wait for the next batch", || Metrics::scrape(&server).in_flight() == 9);
    std::thread::sleep(HOLD);
    shim.pass();
    assert_eq!(first.answer().unwrap().status, 201);
    for other in &mut others {
        assert_eq!(other.answer().unwrap().status, 201);
    }
    let metrics = settled(&server);
    let sync = [("durability", "sync")];
    assert_eq!(metrics.count("klad_commit_batch_writes_sum", &sync), 9);
    let batches = metrics.count("klad_commit_batch_writes_count", &sync);
    assert!((2..9).contains(&batches), "{batches} batches for nine writes");
    assert_eq!(metrics.count("klad_wal_sync_seconds_count", &[]), batches);
    assert!(metrics.sum("klad_wal_sync_seconds_sum", &[]) >= HOLD.as_secs_f64());
}

#[test]
fn timing_and_ids_are_returned_on_request() {
    let server = ServerBuilder::new("memory").start();
    let mut client = server.client();
    let plain = client.get(KEY);
    assert_eq!((plain.header("server-timing"), plain.header("x-request-id")), (None, None));
    let off = client.request("GET", KEY, &[("Klad-Server-Timing", "off")], None);
    assert_eq!(off.header("server-timing"), None);
    let asked = client.request("GET", KEY, &[("Klad-Server-Timing", "on"), ("X-Request-Id", "a-1.b:2")], None);
    assert_eq!((asked.status, asked.header("x-request-id")), (404, Some("a-1.b:2")));
    let timing = asked.header("server-timing").unwrap();
    assert!(milliseconds(timing, "total") >= milliseconds(timing, "engine"), "{timing}");
    assert_eq!((milliseconds(timing, "queue"), milliseconds(timing, "sync")), (0.0, 0.0), "{timing}");
    let refused = client.request("GET", "/v0/nothing", &[("X-Request-Id", "7")], None);
    assert_eq!((refused.status, refused.header("x-request-id")), (400, Some("7")));
    for insane in ["a b", "<script>", "x\u{e4}", &"x".repeat(129)] {
        let answer = client.request("GET", KEY, &[("X-Request-Id", insane)], None);
        assert_eq!((answer.status, answer.header("x-request-id")), (404, None), "{insane}");
    }
}
