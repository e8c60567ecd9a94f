//! `/debug/slow`: it shows slow requests with their reasons, and fast ones do not replace them.

use std::time::Duration;

use serde_json::Value;

use super::support::metrics::Metrics;
use super::support::planted::Defect;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
use super::support::shim::Shim;
use super::support::{Client, ENGINES, Server, ServerBuilder, wait_until};
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
use super::support::{DURABLE_ENGINES, durable_strategies};

const KEY: &str = "/v0/entity?id=a-key-that-is-nobodys-business";
const PHASES: [&str; 6] = ["receive", "queue", "engine", "sync", "write", "worker"];
const HOLD: Duration = Duration::from_millis(400);

/// Returns the shown requests after all sent ones have ended.
fn shown(server: &Server, query: &str) -> Vec<Value> {
    wait_until("no request is in flight", || Metrics::scrape(server).in_flight() == 0);
    let answer = server.admin(&format!("/debug/slow{query}"));
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")), "{}", answer.text());
    assert!(!answer.text().contains("nobodys"), "no key is shown: {}", answer.text());
    let mut answer: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(answer["recent_s"], 60);
    answer["requests"].as_array_mut().unwrap().drain(..).collect()
}

fn milliseconds(request: &Value, phase: &str) -> f64 {
    request["phases"][format!("{phase}_ms")].as_f64().unwrap_or_else(|| panic!("no {phase} in {request}"))
}

/// Checks a request that took `least` or longer in `phase`, which is shown as its reason unless another phase took even
/// longer, as on a busy machine.
fn wrong_with(request: &Value, phase: &str, least: Duration) -> Result<(), String> {
    let total = request["total_ms"].as_f64().unwrap();
    let times = PHASES.map(|phase| milliseconds(request, phase));
    let sum: f64 = times.iter().sum();
    // Each value was rounded down to a microsecond.
    if (total - sum).abs() > 0.01 {
        return Err(format!("the phases are {sum} ms, the total is {total} ms"));
    }
    let spent = milliseconds(request, phase);
    if spent < least.as_secs_f64() * 1e3 {
        return Err(format!("{phase} took {spent} ms"));
    }
    let mostly = request["mostly"].as_str().unwrap();
    let (shown, longest) = (milliseconds(request, mostly), times.into_iter().fold(0.0, f64::max));
    if shown < longest {
        return Err(format!("it was mostly {mostly} with {shown} ms, and a phase took {longest} ms"));
    }
    Ok(())
}

/// A read that takes half a second, among many fast ones.
fn slow_read(defect: Option<Defect>) -> Result<(), String> {
    let server = ServerBuilder::new("memory/pool").arg("--pool-threads", "1").defect(defect).start();
    let mut client = server.client();
    let given = [("X-Request-Id", "the-slow-one"), ("Klad-Timeout", "10s")];
    assert_eq!(client.request("GET", KEY, &given, None).status, 404);
    let slowest = shown(&server, "?op=get&limit=1");
    let request = &slowest[0];
    assert_eq!(
        (&request["op"], &request["status"], &request["outcome"]),
        (&"get".into(), &404.into(), &"not_found".into())
    );
    assert_eq!((&request["request_id"], &request["answered_by"]), (&"the-slow-one".into(), &"storage".into()));
    wrong_with(request, "engine", HOLD)
}

#[test]
fn a_slow_engine_is_shown_as_the_reason() {
    slow_read(Some(Defect::SlowDisk)).unwrap();
}

#[test]
fn twin_a_fast_read_is_noticed() {
    // A busy machine may make one read slow.
    wait_until("a read is fast", || match slow_read(None) {
        Ok(()) => false,
        Err(wrong) => {
            assert!(wrong.starts_with("engine took"), "{wrong}");
            true
        }
    });
}

#[test]
fn fast_requests_do_not_push_a_slow_one_out() {
    for engine in ENGINES {
        let server = ServerBuilder::new(engine).arg("--threads", "1").start();
        let mut client = server.client();
        client.send_raw(format!("PUT {KEY} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n12"));
        wait_until("the request has begun", || Metrics::scrape(&server).in_flight() == 1);
        std::thread::sleep(HOLD);
        client.send_raw("345");
        assert_eq!(client.answer().unwrap().status, 201);
        // More requests than places, in less than a window. Some of them are shown too.
        for _ in 0..100 {
            assert_eq!(client.put(KEY, b"12345").status, 201);
            assert_eq!(client.get(KEY).status, 200);
        }
        let puts = shown(&server, "?op=put&limit=1000");
        assert!(puts.len() >= 16, "as many as there are places in one window, or more: {}", puts.len());
        let slow = puts.iter().find(|put| wrong_with(put, "receive", HOLD).is_ok());
        let slow = slow.unwrap_or_else(|| panic!("{engine}: it is not among {puts:?}"));
        assert_eq!((&slow["received_bytes"], &slow["key_bytes"]), (&5.into(), &30.into()), "{slow}");
        let durability = if *engine == "memory" { "none" } else { "sync" };
        assert_eq!((&slow["durability"], &slow["worker"]), (&durability.into(), &0.into()), "{slow}");
        assert!(puts.is_sorted_by(|one, next| one["total_ms"].as_f64() >= next["total_ms"].as_f64()));
        let gets = shown(&server, "?op=get");
        assert!(!gets.is_empty() && gets.iter().all(|get| get["op"] == "get"), "{gets:?}");
        assert_eq!(shown(&server, "").len(), 32, "both, and no more than the maximum");
        let text = server.admin("/debug/slow?format=text&op=put").text();
        assert!(text.contains("receive") && text.lines().count() > 16 && !text.contains("nobodys"), "{text}");
    }
}

#[test]
fn invalid_parameters_are_rejected() {
    let server = ServerBuilder::new("memory").start();
    for query in ["?op=post", "?limit=0", "?limit=1001", "?window=1m", "?format=xml"] {
        let answer = server.admin(&format!("/debug/slow{query}"));
        assert_eq!(answer.status, 400, "{query}");
        assert!(answer.text().contains("bad-parameter"), "{}", answer.text());
    }
    let by_accept = Client::connect(server.admin).request("GET", "/debug/slow", &[("Accept", "text/plain")], None);
    assert!(by_accept.text().ends_with("none\n"), "{}", by_accept.text());
}

/// Holds a sync and checks that it is shown as the reason of the write that waited for it.
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
fn slow_sync(setup: &str, defect: Option<Defect>) -> Result<Value, String> {
    let shim = Shim::new();
    let server = shim.preload(ServerBuilder::new(setup).defect(defect)).start();
    let mut writer = server.client();
    // The first write does some things only once, such as reserving versions.
    assert_eq!(writer.put(KEY, b"v").status, 201);
    shim.hold();
    writer.send("PUT", KEY, &[("X-Request-Id", "held")], Some(b"v")).unwrap();
    shim.wait_until_held();
    std::thread::sleep(HOLD);
    shim.pass();
    assert_eq!(writer.answer().unwrap().status, 201);
    let request = shown(&server, "").into_iter().find(|request| request["request_id"] == "held").expect("kept");
    assert_eq!((&request["op"], &request["durability"]), (&"put".into(), &"sync".into()));
    wrong_with(&request, "sync", HOLD).map(|()| request)
}

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
#[test]
fn a_held_sync_is_shown_as_the_reason() {
    for setup in durable_strategies() {
        slow_sync(setup, None).unwrap_or_else(|wrong| panic!("{setup}: {wrong}"));
    }
}

#[cfg(feature = "rocksdb")]
#[test]
fn a_batch_shows_what_rocksdb_did_and_for_how_many_writes() {
    let request = slow_sync("rocksdb", None).unwrap();
    let storage = &request["storage"];
    assert!(storage["log_write_ms"].as_f64().unwrap() >= HOLD.as_secs_f64() * 1e3, "the sync is part of it: {storage}");
    assert_eq!((&storage["shared_by"], &storage["write_delay_ms"]), (&1.into(), &0.0.into()), "{storage}");
}

/// Checks a write that waited for the sync of another one before its own began.
#[cfg(feature = "rocksdb")]
fn wrong_with_waiting(request: &Value) -> Result<(), String> {
    let waited = request["storage"]["commit_section_wait_ms"].as_f64().ok_or("it does not say how long it waited")?;
    if waited < HOLD.as_secs_f64() * 1e3 {
        return Err(format!("it waited {waited} ms for the batch before it"));
    }
    assert!(milliseconds(request, "engine") >= waited, "{request}");
    Ok(())
}

/// Two threads of a pool write, and the sync of the first is held. The second must wait and show the reason. The
/// first must not show a wait.
#[cfg(feature = "rocksdb")]
fn second_of_two_writes_waits() -> Result<(), String> {
    let shim = Shim::new();
    let builder = ServerBuilder::new("rocksdb/pool").arg("--pool-threads", "2").arg("--threads", "2");
    let server = shim.preload(builder).start();
    let (mut first, mut second) = (server.client(), server.client());
    assert_eq!(first.put(KEY, b"v").status, 201);
    shim.hold();
    first.send("PUT", KEY, &[("X-Request-Id", "first")], Some(b"v")).unwrap();
    shim.wait_until_held();
    second.send("PUT", KEY, &[("X-Request-Id", "second")], Some(b"v")).unwrap();
    wait_until("both are in flight", || Metrics::scrape(&server).in_flight() == 2);
    std::thread::sleep(HOLD * 5);
    shim.pass();
    assert_eq!((first.answer().unwrap().status, second.answer().unwrap().status), (201, 201));
    let requests = shown(&server, "");
    let of = |id: &str| requests.iter().find(|request| request["request_id"] == id).expect("kept");
    // Planted defect: no write was before the first one.
    let wrong = wrong_with_waiting(of("first")).expect_err("the first write did not wait");
    assert!(wrong.starts_with("it waited 0 ms"), "{wrong}");
    wrong_with_waiting(of("second"))?;
    wrong_with(of("second"), "engine", HOLD)
}

#[cfg(feature = "rocksdb")]
#[test]
fn a_write_shows_that_it_waited_for_the_one_before() {
    // On a busy machine the thread of the second write may begin only when the sync passes; a write that hides its
    // wait does so each time.
    let mut wrong = Vec::new();
    let right = (0..5).any(|_| second_of_two_writes_waits().map_err(|why| wrong.push(why)).is_ok());
    assert!(right, "{wrong:?}");
}

/// Writes values, and checks what RocksDB reports for the slowest read and the slowest range. With `compacted` the
/// values are on the disk.
#[cfg(feature = "rocksdb")]
fn read_from_disk(compacted: bool) -> Result<(), String> {
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new("rocksdb").data(data.path());
    let mut server = builder.start();
    let mut client = server.client();
    let mut state = 1_u32;
    for number in 0..100 {
        // Values that cannot be compressed.
        let value: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        })
        .take(2 << 10)
        .collect();
        assert_eq!(client.put(&format!("/v0/entity?durability=async&id={number:03}"), &value).status, 201);
    }
    assert_eq!(client.delete("/v0/entity?id=050").status, 202);
    drop(client);
    if compacted {
        // A start writes the recovered log to tables, and the cache is empty.
        assert!(server.stop().success());
        server = builder.start();
    }
    let mut client = server.client();
    assert_eq!(client.get("/v0/entity?id=007").status, 200);
    assert_eq!(client.get("/v0/entities?start=0").status, 200);
    let read = shown(&server, "?op=get&limit=1").remove(0);
    let storage = &read["storage"];
    let whole = |storage: &Value, name: &str| storage[name].as_u64().unwrap_or_default();
    if read["answered_by"] != "storage"
        || whole(storage, "block_reads") == 0
        || whole(storage, "block_read_bytes") < 2 << 10
    {
        return Err(format!("nothing was read: {read}"));
    }
    let (table, block) = (storage["table_read_ms"].as_f64().unwrap(), storage["block_read_ms"].as_f64().unwrap());
    assert!(table >= block && milliseconds(&read, "engine") >= table, "{read}");
    assert_eq!(storage["shared_by"], 1);
    let range = shown(&server, "?op=range&limit=1").remove(0);
    let storage = &range["storage"];
    assert!(whole(storage, "entries_passed") >= 98, "{range}");
    assert_eq!((whole(storage, "removals_skipped"), &storage["block_reads"]), (1, &Value::Null), "{range}");
    let text = server.admin("/debug/slow?format=text&op=get").text();
    assert!(text.contains("block_reads "), "{text}");
    Ok(())
}

#[cfg(feature = "rocksdb")]
#[test]
fn a_read_from_disk_shows_what_was_read() {
    read_from_disk(true).unwrap();
}

#[cfg(feature = "rocksdb")]
#[test]
fn twin_a_read_from_memory_is_noticed() {
    let wrong = read_from_disk(false).expect_err("planted");
    assert!(wrong.contains("\"answered_by\":\"memory\""), "{wrong}");
}

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
#[test]
fn twin_a_hidden_sync_is_noticed() {
    for engine in DURABLE_ENGINES {
        let wrong = slow_sync(engine, Some(Defect::HidesSync)).expect_err("planted");
        assert_eq!(wrong, "sync took 0 ms", "{engine}");
    }
}
