//! Batches, scans and removals of ranges at the limits of storage: a batch takes one operation slot for each item, what
//! finds no slot is 503 with the time of a new attempt, and what waits past its deadline is 504. Neither has an effect.
//!
//! The tests hold the sync of one write, so that storage is busy for as long as they need it.

use std::time::Duration;

use serde_json::{Value, json};

use super::support::batches::{NDJSON, batch, lines, results, send};
use super::support::metrics::Metrics;
use super::support::planted::Defect;
use super::support::scanning::{Format, read};
use super::support::shim::Shim;
use super::support::{Answer, Client, DURABLE_ENGINES, ENGINES, Server, ServerBuilder, durable_strategies, wait_until};

fn puts(count: usize) -> Vec<Value> {
    (0..count).map(|number| json!({"op": "put", "key": format!("k{number}"), "value": "v"})).collect()
}

fn gets(count: usize) -> Vec<Value> {
    (0..count).map(|number| json!({"op": "get", "key": format!("k{number}")})).collect()
}

/// Waits until so many slots are taken. A request can have arrived and not yet have its slots.
fn slots_taken(server: &Server, count: u64) {
    wait_until("the slots are taken", || Metrics::scrape(server).count("klad_operations_in_use", &[]) == count);
}

/// Sends a write whose sync is held.
fn held(server: &Server, shim: &Shim) -> Client {
    let mut client = server.client();
    assert_eq!(client.put("/v1/kv/first", b"v").status, 201, "this write does what only the first one does");
    shim.hold();
    client.send("PUT", "/v1/kv/held", &[], Some(b"v")).unwrap();
    shim.wait_until_held();
    client
}

fn assert_overloaded(answer: &Answer, limit: u64) {
    let document: Value = serde_json::from_slice(&answer.body).unwrap();
    let told = (answer.status, document["code"].as_str(), document["limit"].as_u64(), document["retryable"].as_bool());
    assert_eq!(told, (503, Some("overloaded"), Some(limit), Some(true)), "{document}");
    let after = |name: &str| answer.header(name).expect("when to try again").parse::<u64>().unwrap();
    assert!((1..=30).contains(&after("retry-after")), "{answer:?}");
    assert!((1..=30_000).contains(&after("klad-retry-after-ms")), "{answer:?}");
}

#[test]
fn a_batch_needs_a_slot_for_each_item() {
    for setup in durable_strategies() {
        println!("setup {setup}");
        let shim = Shim::new();
        let builder = ServerBuilder::new(setup).arg("--operations-max", "4").arg("--threads", "4");
        let builder = builder.arg("--queue-target", "30s");
        let server = shim.preload(builder).start();
        let mut first = held(&server, &shim);
        let mut client = server.client();
        slots_taken(&server, 1);
        for (query, items) in [("", puts(4)), ("?atomic=true", puts(4)), ("", gets(4)), ("?durability=async", puts(9))]
        {
            assert_overloaded(&batch(&mut client, query, &items), 4);
        }
        let mut fits = server.client();
        fits.send("POST", "/v1/batch", &[("Content-Type", NDJSON)], Some(&lines(&puts(3)[1..]))).unwrap();
        slots_taken(&server, 3);
        assert_overloaded(&batch(&mut client, "", &puts(2)), 4);
        shim.pass();
        assert_eq!(first.answer().unwrap().status, 201);
        assert_eq!(results(&fits.answer().unwrap()).len(), 2);
        for (key, status) in [("k0", 404), ("k1", 200), ("k2", 200), ("k3", 404), ("k8", 404)] {
            assert_eq!(client.get(&format!("/v1/kv/{key}")).status, status, "{setup} {key}");
        }
        // A batch with more items than there are slots takes all of them.
        wait_until("all slots are free", || batch(&mut client, "", &puts(9)).status == 200);
        assert_eq!(results(&batch(&mut client, "", &gets(9))).len(), 9);
        assert!(Metrics::scrape(&server).requests("batch", "refused") >= 5);
    }
}

#[test]
fn a_batch_beyond_the_slots_of_the_memory_engine_is_503() {
    // On a busy machine the first operation may end before the batch has arrived, or begin after it.
    let rejected = (0..5).any(|_| {
        let builder = ServerBuilder::new("memory/pool").arg("--operations-max", "4").arg("--engine-delay", "2s");
        let server = builder.start();
        let mut first = server.client();
        first.send("PUT", "/v1/kv/first", &[], Some(b"v")).unwrap();
        let mut client = server.client();
        let answer = batch(&mut client, "", &puts(4));
        if answer.status == 200 {
            return false;
        }
        assert_overloaded(&answer, 4);
        assert_eq!(first.answer().unwrap().status, 201);
        assert_eq!(client.get("/v1/kv/k0").status, 404);
        true
    });
    assert!(rejected, "no batch was rejected");
}

/// A request that waits for storage behind a held batch.
struct Waiting {
    method: &'static str,
    target: &'static str,
    body: Vec<u8>,
}

/// The requests that must wait. With one thread all requests do, with `adaptive` only writes.
fn waiting(setup: &str) -> Vec<Waiting> {
    let post = |target, items: &[Value]| Waiting { method: "POST", target, body: lines(items) };
    let without_body = |method, target| Waiting { method, target, body: Vec::new() };
    let mut all = vec![
        post("/v1/batch", &puts(2)),
        post("/v1/batch?atomic=true&durability=async", &puts(2)),
        post("/v1/batch", &[json!({"op": "put", "key": "k0", "value": "v", "if_none_match": "*"})]),
        without_body("PUT", "/v1/kv/k0"),
        without_body("POST", "/v1/kv/k0?op=add&by=1"),
    ];
    if setup.contains('/') {
        all.extend([
            post("/v1/batch", &gets(2)),
            without_body("GET", "/v1/kv?prefix=range"),
            without_body("GET", "/v1/kv?count=true"),
            without_body("DELETE", "/v1/kv?prefix=range"),
        ]);
    }
    all
}

/// Lets requests wait past their deadlines.
fn deadlines_hold(setup: &str, defect: Option<Defect>) -> Result<(), String> {
    let shim = Shim::new();
    let builder = ServerBuilder::new(setup).arg("--pool-threads", "1").arg("--threads", "4").defect(defect);
    let server = shim.preload(builder).start();
    let mut reader = server.client();
    for key in ["range1", "range2"] {
        // Synced, so that no other sync is held. A defective server may reject it on a busy machine.
        wait_until("the key is stored", || [201, 204].contains(&reader.put(&format!("/v1/kv/{key}"), b"v").status));
    }
    let mut first = server.client();
    shim.hold();
    let headers = [("Content-Type", NDJSON), ("Klad-Timeout", "1h")];
    first.send("POST", "/v1/batch", &headers, Some(&lines(&[json!({"op":"put","key":"held","value":"v"})]))).unwrap();
    shim.wait_until_held();
    let mut clients = Vec::new();
    for Waiting { method, target, body } in waiting(setup) {
        let mut client = server.client();
        let headers = [("Content-Type", NDJSON), ("Klad-Timeout", "50ms")];
        client.send(method, target, &headers, Some(&body)).unwrap();
        if setup.contains('/') {
            clients.push(client);
            // The deadline counts from the arrival of the head. On a busy machine it may pass before the request waits.
            let all = clients.len() as u64 + 1;
            wait_until("the request has arrived", || {
                let metrics = Metrics::scrape(&server);
                metrics.in_flight() + metrics.refused("deadline-passed") >= all
            });
        } else {
            // In every state of the disk.
            expect_late(&client.answer().unwrap())?;
        }
    }
    std::thread::sleep(Duration::from_millis(150));
    shim.pass();
    let answer = first.answer().unwrap();
    if answer.status == 504 && reader.get("/v1/kv/held").status == 200 {
        return Err("a late batch has happened".to_owned());
    }
    assert_eq!(results(&answer).len(), 1);
    for client in &mut clients {
        expect_late(&client.answer().unwrap())?;
    }
    for (key, status) in [("held", 200), ("k0", 404), ("k1", 404), ("range1", 200), ("range2", 200)] {
        let found = reader.get(&format!("/v1/kv/{key}")).status;
        if found != status {
            return Err(format!("{key} is {found}"));
        }
    }
    Ok(())
}

fn expect_late(answer: &Answer) -> Result<(), String> {
    let document: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    if (answer.status, document["code"].as_str()) == (504, Some("deadline-passed")) {
        return Ok(());
    }
    Err(format!("{} {}", answer.status, answer.text()))
}

#[test]
fn what_waits_past_its_deadline_is_504_and_has_no_effect() {
    for setup in durable_strategies().filter(|setup| !setup.ends_with("/inline")) {
        deadlines_hold(setup, None).unwrap_or_else(|found| panic!("{setup}: {found}"));
    }
}

#[test]
fn twin_a_late_batch_that_happened_is_noticed() {
    for engine in DURABLE_ENGINES {
        let found = deadlines_hold(engine, Some(Defect::RejectsExecutedWrites)).expect_err("planted");
        assert_eq!(found, "a late batch has happened", "{engine}");
    }
}

#[test]
fn the_deadline_of_a_scan_does_not_cut_its_stream() {
    for engine in ENGINES {
        let server = ServerBuilder::new(engine).start();
        let mut client = server.client();
        // More than the buffers of both sockets hold.
        for number in 0..800 {
            client.store(&format!("/v0/entity?id={number:04}&durability=async"), &vec![b'v'; 30_000]);
        }
        let headers = [("Accept", Format::JsonLines.accept()), ("Klad-Timeout", "500ms")];
        let mut begun = None;
        wait_until("a scan begins before its deadline", || {
            // klad may close the other connection, which has carried large values, before this thread goes on.
            let mut reader = server.client();
            reader.send("GET", "/v1/kv", &headers, None).unwrap();
            let (status, headers) = reader.head().unwrap();
            assert!([200, 504].contains(&status), "{status}");
            begun = (status == 200).then_some((reader, headers));
            begun.is_some()
        });
        let (mut reader, headers) = begun.expect("a scan");
        // The client takes nothing until the deadline has passed.
        std::thread::sleep(Duration::from_millis(600));
        let mut body = Vec::new();
        while let Some(chunk) = reader.chunk().unwrap() {
            body.extend_from_slice(&chunk);
        }
        let answer = Answer { status: 200, headers, body, chunks: None };
        let scanned = read(&answer, Format::JsonLines).unwrap();
        assert_eq!((scanned.listed.len(), scanned.next), (800, None), "{engine}");
    }
}

#[test]
fn a_deadline_that_is_not_reached_changes_nothing() {
    for engine in ENGINES {
        let server = ServerBuilder::new(engine).start();
        let mut client = server.client();
        let headers = [("Content-Type", NDJSON), ("Klad-Timeout", "1h")];
        assert_eq!(results(&send(&mut client, "", &headers, &lines(&puts(3)))).len(), 3);
        assert_eq!(results(&send(&mut client, "", &headers, &lines(&gets(3)))).len(), 3);
        for (method, target, status) in [("GET", "/v1/kv?prefix=k", 200), ("DELETE", "/v1/kv?prefix=k", 204)] {
            assert_eq!(client.request(method, target, &headers[1..], None).status, status, "{engine} {target}");
        }
    }
}
