//! Pipelines: requests that arrive together get the answers that they would get alone, in their order. The worker
//! serves other connections before it has answered all of a long pipeline.

use std::io::{self, ErrorKind, Write as _};
use std::net::Shutdown;
use std::thread::sleep;
use std::time::{Duration, Instant};

use klad_server::limits::DRAIN_IDLE_PATIENCE;
use rustix::process::Signal;

use super::plain::{differences, plain, reply};
use super::support::metrics::Metrics;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
use super::support::shim::Shim;
use super::support::{Client, DURABLE_ENGINES, SETUPS, Server, ServerBuilder, durable_strategies, wait_until};

fn put(key: &str, value: &str, more: &str) -> String {
    format!("PUT /v0/entity?id={key}{more} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{value}", value.len())
}

fn get(key: &str) -> String {
    format!("GET /v0/entity?id={key} HTTP/1.1\r\nHost: h\r\n\r\n")
}

fn delete(key: &str) -> String {
    format!("DELETE /v0/entity?id={key} HTTP/1.1\r\nHost: h\r\n\r\n")
}

/// Returns a request that is plain in most cases.
fn request(random: &mut fastrand::Rng) -> Vec<u8> {
    if random.u8(..8) == 0 {
        return super::plain::request(random);
    }
    let key = ["a", "b", "kept"][random.usize(..3)];
    let durability = ["", "", "", "&durability=async", "&durability=never"][random.usize(..5)];
    let body = "x".repeat(random.usize(..200));
    match random.u8(..5) {
        0 | 1 => get(key),
        2 => delete(key),
        _ => put(key, &body, durability),
    }
    .into_bytes()
}

fn pipeline(random: &mut fastrand::Rng) -> Vec<u8> {
    let count = random.usize(2..40);
    (0..count).flat_map(|_| request(random)).collect()
}

/// A request in the middle may end the connection. Whether the bytes behind it then cause a reset depends on when they
/// arrive.
fn without_reset(mut reply: String) -> String {
    if let Some(answers) = reply.strip_suffix("ConnectionReset").map(str::len) {
        reply.truncate(answers);
        reply.push_str("end");
    }
    reply
}

#[test]
fn pipelines_get_the_same_answers_with_and_without_hyper() {
    for setup in ["memory", DURABLE_ENGINES.first().copied().unwrap_or("memory"), "late"] {
        let (plain, differences) = differences(setup, 60, pipeline, |pipeline| pipeline, without_reset);
        assert!(differences.is_empty(), "{setup}: {}", differences.join("\n"));
        assert!(plain > 120, "{setup}: {plain} requests were plain: too few to say anything");
    }
}

#[test]
fn twin_another_order_of_a_pipeline_is_noticed() {
    let (_, differences) = differences(
        "memory",
        60,
        pipeline,
        |pipeline| {
            let text = String::from_utf8_lossy(&pipeline).into_owned();
            // In the reverse order, so that GETs come before PUTs that they followed.
            let mut requests: Vec<&str> = text.split_inclusive("\r\n\r\n").collect();
            requests.reverse();
            requests.concat().into_bytes()
        },
        without_reset,
    );
    assert!(!differences.is_empty());
}

/// A pipeline of plain and other requests, cut at each byte.
#[test]
fn a_pipeline_cut_at_any_byte_gets_the_same_answers() {
    let pipeline = [
        put("cut", "first", ""),
        put("other", "second", "&durability=async"),
        get("cut"),
        delete("other"),
        get("other"),
        "GET /v0/status HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        put("cut", "third", ""),
        put("cut", "fourth", ""),
        get("cut"),
    ]
    .concat()
    .into_bytes();
    let server = ServerBuilder::new("memory").start();
    let whole = reply(&server, &pipeline, None);
    assert_eq!(whole.matches("HTTP/1.1 ").count(), 9, "{whole}");
    assert!(whole.contains("fourth") && !whole.contains("third"), "{whole}");
    for cut in 1..pipeline.len() {
        assert_eq!(reply(&server, &pipeline, Some(cut)), whole, "cut at byte {cut}");
    }
}

/// Heads whose body two programs may find at different places. Behind each head are bytes that one of them would take
/// for a request.
#[test]
fn no_request_is_smuggled_behind_a_plain_one() {
    let [with, without] = ["on", "off"].map(|switch| ServerBuilder::new("memory").arg("--fast-path", switch).start());
    let hidden = delete("kept");
    let length = hidden.len();
    let forms = [
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"),
        "Transfer-Encoding: chunked\r\n".to_owned(),
        "Transfer-Encoding: identity\r\n".to_owned(),
        "Transfer-Encoding : chunked\r\n".to_owned(),
        "Transfer-Encoding: \u{b}chunked\r\n".to_owned(),
        format!("Content-Length: {length}\r\nContent-Length: 0\r\n"),
        format!("Content-Length: 0\r\nContent-Length: {length}\r\n"),
        format!("Content-Length: {length}, {length}\r\n"),
        format!("Content-Length: +{length}\r\n"),
        format!("Content-Length: 0x{length:x}\r\n"),
        format!("Content-Length: {length} 0\r\n"),
        format!("Content-Length : {length}\r\n"),
        format!(" Content-Length: {length}\r\n"),
        format!("X: y\r\n Content-Length: {length}\r\n"),
        format!("X: y\rContent-Length: {length}\r\n"),
        format!("X: y\nContent-Length: {length}\r\n"),
        format!("Content-Length\0: {length}\r\n"),
        format!("Content-Length: -{length}\r\n"),
        "Content-Length: 99999999999999999999\r\n".to_owned(),
        format!("Expect: 100-continue\r\nContent-Length: {length}\r\n"),
        format!("Upgrade: h2c\r\nContent-Length: {length}\r\n"),
    ];
    for form in &forms {
        for method in ["PUT", "GET", "DELETE"] {
            let head = format!("{method} /v0/entity?id=a HTTP/1.1\r\nHost: h\r\n{form}\r\n");
            let pipeline = [&get("kept"), &put("b", "x", ""), &*head, &hidden, &get("kept")].concat();
            let [fast, by_hyper] = [&with, &without].map(|server| {
                server.client().store("/v0/entity?id=kept", b"old");
                reply(server, pipeline.as_bytes(), None)
            });
            assert_eq!(fast, by_hyper, "{method} with {form:?}");
        }
    }
}

/// Returns the number of syncs of 60 synced writes in one pipeline.
fn syncs_of_a_pipeline(setup: &str, fast_path: &str) -> u64 {
    let server = ServerBuilder::new(setup).arg("--fast-path", fast_path).start();
    let mut client = server.client();
    let syncs = || Metrics::scrape(&server).count("klad_wal_sync_seconds_count", &[]);
    client.store("/v0/entity?id=first", b"x");
    let before = syncs();
    let pipeline: String =
        (0..60).map(|write| if write % 3 == 2 { delete("k") } else { put("k", &write.to_string(), "") }).collect();
    client.send_raw([pipeline, put("k", "last", ""), get("k")].concat());
    let mut versions = Vec::new();
    for write in 0..60 {
        let answer = client.answer().unwrap();
        let removes = write % 3 == 2;
        assert_eq!(answer.status, if removes { 202 } else { 201 }, "{setup}");
        assert_eq!(answer.header("klad-durability"), Some("sync"), "{setup}");
        versions.push(answer.version());
    }
    assert!(versions.is_sorted_by(|one, next| one < next), "{setup}: {versions:?}");
    let last = client.answer().unwrap().version();
    let found = client.answer().unwrap();
    assert_eq!((found.text().as_str(), found.version()), ("last", last), "{setup}");
    syncs() - before
}

/// The reads of the socket may cut the pipeline. Then each piece has a commit.
#[test]
fn writes_of_a_pipeline_share_commits() {
    for setup in durable_strategies() {
        let syncs = syncs_of_a_pipeline(setup, "on");
        assert!(syncs <= 20, "{setup}: {syncs} syncs");
    }
}

#[test]
fn twin_writes_with_a_commit_each_are_noticed() {
    for engine in DURABLE_ENGINES {
        assert!(syncs_of_a_pipeline(engine, "off") >= 61);
    }
}

/// After any pipeline, no request counts as in progress, and each was counted once.
#[test]
fn requests_of_a_pipeline_are_counted_one_by_one() {
    for setup in SETUPS {
        let server = ServerBuilder::new(setup).start();
        let mut client = server.client();
        let pipeline = [
            put("k", "v", ""),
            put("k", "w", "&durability=async"),
            put("l", "", ""),
            get("k"),
            delete("k"),
            delete("l"),
        ];
        client.send_raw([pipeline.concat(), get("k"), get(""), get("k")].concat());
        let statuses: Vec<u16> = (0..9).map(|_| client.answer().unwrap().status).collect();
        assert_eq!(statuses, [201, 201, 201, 200, 202, 202, 404, 400, 404], "{setup}");
        // A request ends when its answer was sent.
        wait_until("no request is in progress", || Metrics::scrape(&server).in_flight() == 0);
        let metrics = Metrics::scrape(&server);
        let counts = [("put", "ok"), ("get", "ok"), ("delete", "ok"), ("get", "not_found"), ("get", "client_error")]
            .map(|(op, outcome)| metrics.requests(op, outcome));
        assert_eq!(counts, [3, 1, 2, 2, 1], "{setup}");
    }
}

/// A client leaves while the writes of its pipeline wait for their sync: each counts as aborted, and still happens.
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
#[test]
fn a_pipeline_whose_client_has_left_is_carried_out_and_counted() {
    let Some(engine) = DURABLE_ENGINES.first() else { return };
    let shim = Shim::new();
    let server = shim.preload(ServerBuilder::new(engine).arg("--drain-timeout", "1s")).start();
    let mut client = server.client();
    client.store("/v0/entity?id=first", b"x");
    shim.hold();
    client.send_raw([put("a", "1", ""), put("b", "2", ""), put("c", "3", "")].concat());
    shim.wait_until_held();
    assert_eq!(Metrics::scrape(&server).in_flight(), 3);
    shim.pass();
    client.stream.shutdown(Shutdown::Both).unwrap();
    drop(client);
    wait_until("no request is in progress", || Metrics::scrape(&server).in_flight() == 0);
    let metrics = Metrics::scrape(&server);
    assert_eq!(metrics.requests("put", "ok") + metrics.requests("put", "aborted"), 4);
    for (key, value) in [("a", "1"), ("b", "2"), ("c", "3")] {
        assert_eq!(server.client().get(&format!("/v0/entity?id={key}")).text(), value);
    }
}

/// Whether no thread of the process runs.
#[cfg(target_os = "linux")]
fn has_stopped(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap()).all(|stat| {
        // The state follows the name, which is in parentheses.
        stat.rsplit(") ").next().unwrap().starts_with('T')
    })
}

/// How many writes of a pipeline were done before the write of another client, of how many. Both arrive while klad does
/// not run; `after`: the other one arrives when the pipeline is done.
#[cfg(target_os = "linux")]
fn done_before_another(after: bool) -> (usize, usize) {
    let server = ServerBuilder::new("memory").arg("--threads", "1").start();
    let (mut many, mut other) = (server.client(), server.client());
    for client in [&mut many, &mut other] {
        assert_eq!(client.get("/v0/status").status, 200);
    }
    let count = 1_000;
    let pipeline: String = (0..count).map(|_| put("many", "x", "")).collect();
    server.signal(Signal::STOP);
    wait_until("all threads have stopped", || has_stopped(server.process()));
    let mut sender = many.stream.try_clone().unwrap();
    let sends = std::thread::spawn(move || sender.write_all(pipeline.as_bytes()).unwrap());
    if !after {
        sends.join().unwrap();
        other.send_raw(put("other", "x", ""));
    }
    server.signal(Signal::CONT);
    let versions: Vec<u64> = (0..count).map(|_| many.answer().unwrap().version()).collect();
    if after {
        other.send_raw(put("other", "x", ""));
    }
    let version = other.answer().unwrap().version();
    (versions.iter().filter(|one| **one < version).count(), count)
}

#[cfg(target_os = "linux")]
#[test]
fn others_have_a_turn_before_a_long_pipeline_ends() {
    let (done, count) = done_before_another(false);
    assert!(done < count / 2, "{done} of {count}");
}

#[cfg(target_os = "linux")]
#[test]
fn twin_a_pipeline_that_is_served_to_its_end_first_is_noticed() {
    let (done, count) = done_before_another(true);
    assert!(done >= count / 2, "{done} of {count}");
}

/// A client that takes no answers: klad reads no more of its requests than what fills the sockets.
#[test]
fn a_client_that_takes_no_answers_is_read_no_further() {
    let server = ServerBuilder::new("memory").start();
    let (value, count) = ("v".repeat(60_000), 4_000);
    server.client().store("/v0/entity?id=large", value.as_bytes());
    let mut client = server.client();
    let mut sender = client.stream.try_clone().unwrap();
    let pipeline = get("large").repeat(count);
    let sends = std::thread::spawn(move || sender.write_all(pipeline.as_bytes()).unwrap());
    let answered = || Metrics::scrape(&server).requests("get", "ok");
    wait_until("one was answered", || answered() > 0);
    sleep(Duration::from_millis(200));
    // 240 MB of answers do not fit into the buffers of two sockets.
    assert!(answered() < count as u64 / 2, "{}", answered());
    for _ in 0..count {
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.body.len()), (200, value.len()));
    }
    sends.join().unwrap();
}

/// A pipeline longer than any buffer stays on the fast path, apart from requests that the reads cut.
#[test]
fn a_long_pipeline_stays_on_the_fast_path() {
    let server = ServerBuilder::new("memory").start();
    let mut client = server.client();
    let count = 20_000;
    let mut sender = client.stream.try_clone().unwrap();
    let sends = std::thread::spawn(move || {
        for number in 0..count {
            sender.write_all([put("k", &number.to_string(), ""), get("k")].concat().as_bytes()).unwrap();
        }
    });
    for number in 0..count {
        assert_eq!(client.answer().unwrap().status, 201);
        assert_eq!(client.answer().unwrap().text(), number.to_string());
    }
    sends.join().unwrap();
    assert!(plain(&server) > count / 2, "{} of {} were plain", plain(&server), 2 * count);
}

/// klad stops in the middle of pipelines: each answer that a client gets is whole, and the last one says `close`.
#[test]
fn a_stop_ends_a_pipeline_behind_a_whole_answer() {
    // klad closes the connection although the client goes on sending. The reset that follows discards the answers that
    // a slow client has not read yet.
    assert!((0..5).any(|_| a_stopped_pipeline_ends_with_close()), "no connection ended with close");
}

/// Returns whether the client has read the last answer. `false`: the connection was reset before. Or, on a busy machine,
/// the client sent nothing for so long that klad closed the connection as idle.
fn a_stopped_pipeline_ends_with_close() -> bool {
    let server = ServerBuilder::new("memory").start();
    let client = server.client();
    let sender = client.stream.try_clone().unwrap();
    let sends = std::thread::spawn(move || {
        let pipeline = [get("k"), put("k", "value", "")].concat().repeat(50);
        let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
        // Ends with the connection.
        while (&sender).write_all(pipeline.as_bytes()).is_ok() {
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        longest.max(last.elapsed())
    });
    let reads = std::thread::spawn(move || last_answer(client));
    wait_until("requests are answered", || plain(&server) > 1_000);
    stop(server);
    let last = reads.join().unwrap();
    let longest_pause = sends.join().unwrap();
    match &last {
        Ok(connection) => assert_eq!(connection, "close"),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            assert!(longest_pause > DRAIN_IDLE_PATIENCE * 2 / 3, "{longest_pause:?}");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    last.is_ok()
}

fn stop(server: Server) {
    assert!(server.stop().success());
}

/// Reads answers until one has the header `Connection`, and returns its value. A connection may end behind an answer,
/// but not in it.
fn last_answer(mut client: Client) -> io::Result<String> {
    loop {
        let answer = client.answer().inspect_err(|error| {
            let rest = client.take_buffered();
            assert!(error.kind() != ErrorKind::UnexpectedEof || rest.is_empty(), "{rest:?}");
        })?;
        assert!([200, 201, 404].contains(&answer.status));
        if let Some(connection) = answer.header("connection") {
            return Ok(connection.to_owned());
        }
    }
}
