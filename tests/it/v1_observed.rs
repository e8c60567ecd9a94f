//! Requests of `/v1` in metrics and log lines: each is counted once, by what it asks for, with its bytes, and no line
//! shows what is stored.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::support::batches::{CBOR, NDJSON, lines, sequence};
use super::support::metrics::Metrics;
use super::support::one_key::head;
use super::support::token_file::{TokenFile, WRITER};
use super::support::{Answer, Client, ENGINES, Server, ServerBuilder, wait_until};

/// What klad must have counted.
#[derive(Default)]
struct Counts {
    /// Requests by op and outcome.
    requests: BTreeMap<(&'static str, &'static str), u64>,
    received_bytes: BTreeMap<&'static str, u64>,
    sent_bytes: BTreeMap<&'static str, u64>,
    items: u64,
}

impl Counts {
    /// Sends a request that must count as `op` and `outcome`.
    fn send(
        &mut self,
        client: &mut Client,
        (op, outcome): (&'static str, &'static str),
        (method, target): (&str, &str),
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let answer = client.request(method, target, headers, (!body.is_empty()).then_some(body));
        *self.requests.entry((op, outcome)).or_default() += 1;
        *self.received_bytes.entry(op).or_default() += body.len() as u64;
        *self.sent_bytes.entry(op).or_default() += answer.body.len() as u64;
        answer
    }
}

/// Op, outcome, method, target, headers and body of a request.
type Row<'r> = (&'static str, &'static str, &'r str, &'r str, &'r [(&'r str, &'r str)], &'r [u8]);

/// Sends requests of every kind, and `unannounced` further reads.
fn send_all_kinds(server: &Server, unannounced: u64) -> Counts {
    let client = &mut server.client();
    let mut sent = Counts::default();
    let tag =
        sent.send(client, ("put", "ok"), ("PUT", "/v1/kv/k?ttl=1h"), &[], b"12345").header("etag").unwrap().to_owned();
    let json_lines = ("Accept", NDJSON);
    let of_lines = ("Content-Type", NDJSON);
    let of_maps = ("Content-Type", CBOR);
    let items = [
        json!({"op":"put","key":"b","value":"v"}),
        json!({"op":"add","key":"n","by":2}),
        json!({"op":"get","key":"absent"}),
        json!({"op":"put","key":"k","value":"v","if_none_match":"*"}),
    ];
    let gets = [json!({"op":"get","key":"k"}), json!({"op":"get","key":"n"})];
    let bad = [json!({"op":"get","key":"k"}), json!({"op":"got","key":"k"})];
    let rows: &[Row<'_>] = &[
        ("put", "ok", "PUT", "/v1/kv?key64=aw&durability=async", &[], b"1234567"),
        ("put", "client_error", "PUT", "/v1/kv/k", &[("If-None-Match", "*")], b"v"),
        ("put", "client_error", "PUT", "/v1/kv/k?tll=1h", &[], b"v"),
        ("get", "ok", "GET", "/v1/kv/k", &[], b""),
        ("get", "ok", "GET", "/v1/kv?key64=aw", &[("Range", "bytes=0-1")], b""),
        ("get", "client_error", "GET", "/v1/kv/k", &[("Range", "bytes=9-")], b""),
        ("get", "client_error", "GET", "/v1/kv/k", &[("If-Match", &tag)], b""),
        ("get", "not_found", "GET", "/v1/kv/absent", &[], b""),
        ("update", "ok", "POST", "/v1/kv/c?op=add&by=5", &[], b""),
        ("update", "ok", "POST", "/v1/kv/c?op=expire&ttl=1h", &[], b""),
        ("update", "client_error", "POST", "/v1/kv/k?op=add&by=9223372036854775807", &[], b""),
        ("update", "not_found", "POST", "/v1/kv/absent?op=expire&ttl=1h", &[], b""),
        ("batch", "ok", "POST", "/v1/batch", &[of_lines], &lines(&items)),
        ("batch", "ok", "POST", "/v1/batch", &[of_maps], &sequence(&gets)),
        ("batch", "client_error", "POST", "/v1/batch", &[of_lines], &lines(&bad)),
        ("batch", "client_error", "POST", "/v1/batch?atomic=true", &[of_lines], &lines(&items)),
        ("range", "ok", "GET", "/v1/kv", &[], b""),
        ("range", "ok", "GET", "/v1/kv?prefix=k", &[json_lines], b""),
        ("range", "ok", "GET", "/v1/kv?count=true", &[], b""),
        ("range", "client_error", "GET", "/v1/kv?limit=0", &[], b""),
        ("delete", "ok", "DELETE", "/v1/kv/k", &[], b""),
        ("delete", "not_found", "DELETE", "/v1/kv/k", &[], b""),
        ("remove_range", "client_error", "DELETE", "/v1/kv", &[], b""),
        ("other", "ok", "GET", "/v1/limits", &[], b""),
        ("other", "ok", "GET", "/v1/openapi.json", &[], b""),
        ("other", "not_found", "GET", "/v1/nothing", &[], b""),
        ("other", "client_error", "PUT", "/v1/limits", &[], b""),
        // The last one has no bodies, because klad counts a request a moment before its bytes.
        ("remove_range", "ok", "DELETE", "/v1/kv?prefix=b", &[], b""),
    ];
    for &(op, outcome, method, target, headers, body) in rows {
        let answer = sent.send(client, (op, outcome), (method, target), headers, body);
        let is_error = answer.status >= 400;
        assert_eq!(is_error, outcome != "ok", "{method} {target}: {}", answer.text());
    }
    // Without a body, whose length the header has. klad may close the other connection, which has carried a large
    // answer, before this thread goes on.
    let mut fresh = server.client();
    assert_eq!(head(&mut fresh, "/v1/kv/c", &[]).status, 200);
    assert_eq!(head(&mut fresh, "/v1/kv", &[]).status, 200);
    for op in ["get", "range"] {
        *sent.requests.get_mut(&(op, "ok")).unwrap() += 1;
    }
    for _ in 0..unannounced {
        client.get("/v1/kv/c");
    }
    sent.items = (items.len() + gets.len()) as u64;
    sent
}

/// Compares `/metrics` with what was sent.
fn adds_up(engine: &str, unannounced: u64) -> Result<(), String> {
    let server = ServerBuilder::new(engine).start();
    let sent = send_all_kinds(&server, unannounced);
    wait_until("no request is in flight", || Metrics::scrape(&server).in_flight() == 0);
    let metrics = Metrics::scrape(&server);
    let mut wrong = Vec::new();
    let mut check = |what: &str, found: u64, expected: u64| {
        if found != expected {
            wrong.push(format!("{what}: {found}, but {expected} were sent"));
        }
    };
    for op in ["get", "put", "delete", "update", "batch", "range", "remove_range", "changes", "status", "other"] {
        for outcome in ["ok", "not_found", "client_error", "refused", "deadline", "error", "aborted"] {
            let expected = sent.requests.get(&(op, outcome)).copied().unwrap_or(0);
            check(&format!("{op} {outcome}"), metrics.requests(op, outcome), expected);
        }
        let bytes = |name: &str| metrics.count(&format!("klad_http_{name}_body_bytes_total"), &[("op", op)]);
        check(&format!("bytes to {op}"), bytes("request"), sent.received_bytes.get(op).copied().unwrap_or(0));
        check(&format!("bytes of {op}"), bytes("response"), sent.sent_bytes.get(op).copied().unwrap_or(0));
    }
    check("items", metrics.count("klad_batch_items_total", &[]), sent.items);
    // Of two batches that were done, the one that only reads has no durability.
    let synced = |op| {
        let durability = if engine == "memory" { "none" } else { "sync" };
        metrics.count("klad_http_request_duration_seconds_count", &[("op", op), ("durability", durability)])
    };
    for (op, expected) in
        [("put", if engine == "memory" { 2 } else { 1 }), ("update", 2), ("batch", 1), ("remove_range", 1)]
    {
        check(&format!("{op} with its durability"), synced(op), expected);
    }
    for (reason, expected) in [
        ("precondition-failed", 3),
        ("unknown-parameter", 1),
        ("range-not-satisfiable", 1),
        ("number-overflow", 1),
        ("bad-item", 1),
        ("bad-parameter", 1),
        ("missing-parameter", 1),
        ("not-found", 3),
        ("unknown-path", 1),
        ("method-not-allowed", 1),
        ("other", 0),
    ] {
        check(reason, metrics.refused(reason), expected);
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

#[test]
fn every_request_of_v1_is_counted_once_by_kind_and_outcome() {
    for engine in ENGINES {
        adds_up(engine, 0).unwrap_or_else(|wrong| panic!("{engine}: {wrong}"));
    }
}

#[test]
fn twin_an_additional_request_is_noticed() {
    let wrong = adds_up("memory", 1).expect_err("planted");
    assert!(wrong.starts_with("get ok: 4, but 3 were sent"), "{wrong}");
}

/// Words in keys, values, metadata and bounds, which no log line may have.
const SECRET: &str = "hushed";

/// Sends one request of each kind that calls the engine. Each has a secret in every place that a client fills.
fn send_secrets(client: &mut Client) {
    let bearer = format!("Bearer {WRITER}");
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Content-Type", "hushed/type"),
        ("Klad-Meta-Hushed", "hushed"),
        ("Accept", "application/json"),
    ];
    let batch = [headers[0], ("Content-Type", NDJSON)];
    let items = lines(&[
        json!({"op":"put","key":"hushed1","value":"hushed","meta":{"hushed":"hushed"},"content_type":"hushed/type"}),
        json!({"op":"get","key":"hushed1"}),
    ]);
    let key64 = super::support::one_key::by_key64(b"hushed");
    for (method, target, headers, body) in [
        ("PUT", "/v1/kv/hushed", &headers[..], &b"5"[..]),
        ("GET", key64.as_str(), &headers, b""),
        ("POST", "/v1/kv/hushed?op=add&by=1", &headers, b""),
        ("POST", "/v1/batch", &batch, &items),
        ("GET", "/v1/kv?prefix=hushed&start=hushed&delimiter=/", &headers, b""),
        ("DELETE", "/v1/kv/hushed", &headers, b""),
        ("DELETE", "/v1/kv?prefix=hushed", &headers, b""),
    ] {
        let answer = client.request(method, target, headers, Some(body));
        assert!(answer.status < 300, "{method} {target}: {}", answer.text());
    }
    for target in ["/v1/hushed", "/v1/kv/hushed?hushed=hushed", "/hushed"] {
        assert!(client.request("GET", target, &headers, None).status >= 400);
    }
}

/// Whether the log shows something that only the client and the store may know.
fn reveals(server: &Server) -> bool {
    [SECRET, WRITER].iter().any(|secret| server.log().contains(secret))
}

/// The lines of the log with this message.
fn logged(server: &Server, message: &str) -> Vec<Value> {
    let log = server.log();
    let lines = log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    lines.filter(|line: &Value| line["message"] == message).collect()
}

const OPS: [&str; 7] = ["put", "get", "update", "batch", "range", "delete", "remove_range"];

fn texts<'v>(lines: &'v [Value], member: &str) -> Vec<&'v str> {
    lines.iter().map(|line| line[member].as_str().expect("a text")).collect()
}

#[test]
fn slow_requests_are_logged_by_their_op_and_show_nothing_that_is_stored() {
    for engine in ENGINES {
        let file = TokenFile::new(&format!("read-write {WRITER}\n"));
        let builder = file.builder(engine).arg("--log-format", "json").arg("--log-level", "debug");
        let server = builder.arg("--engine-delay", "20ms").arg("--slow-request", "20ms").start();
        send_secrets(&mut server.client());
        wait_until("the lines are written", || logged(&server, "slow request").len() >= OPS.len());
        let slow = logged(&server, "slow request");
        assert_eq!(texts(&slow[..OPS.len()], "op"), OPS, "{engine}");
        assert_eq!(slow[0]["received_bytes"], 1);
        assert_eq!(slow[0]["key_bytes"], SECRET.len());
        for op in OPS {
            let bearer = format!("Bearer {WRITER}");
            let shown = Client::connect(server.admin).request(
                "GET",
                &format!("/debug/slow?op={op}"),
                &[("Authorization", &bearer)],
                None,
            );
            let shown: Value = serde_json::from_slice(&shown.body).unwrap();
            assert_eq!(shown["requests"][0]["op"], op, "{engine}: {shown}");
            assert!(!shown.to_string().contains(SECRET), "{shown}");
        }
        assert!(!reveals(&server), "{}", server.log());
    }
}

#[test]
fn the_access_log_has_the_kind_of_path_without_keys_and_values() {
    let file = TokenFile::new(&format!("read-write {WRITER}\n"));
    let server = file.builder("memory").arg("--log-format", "json").arg("--access-log", "on").start();
    send_secrets(&mut server.client());
    wait_until("the lines are written", || logged(&server, "request").len() >= OPS.len() + 3);
    let requests = logged(&server, "request");
    assert_eq!(texts(&requests[..OPS.len()], "op"), OPS);
    let key = "/v1/kv/…";
    let paths = [key, "/v1/kv", key, "/v1/batch", "/v1/kv", key, "/v1/kv", "/v1/…", key, "/…"];
    assert_eq!(texts(&requests, "path"), paths);
    assert!(!reveals(&server), "{}", server.log());
}

#[test]
fn twin_a_log_that_shows_a_key_is_noticed() {
    // A client that writes a key into the id of a request, which log lines do show.
    let server = ServerBuilder::new("memory").arg("--log-format", "json").arg("--access-log", "on").start();
    server.client().request("GET", "/v1/kv/hushed", &[("X-Request-Id", SECRET)], None);
    wait_until("the line is written", || !logged(&server, "request").is_empty());
    assert!(reveals(&server));
}
