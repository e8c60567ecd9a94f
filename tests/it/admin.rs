//! The admin listener: its answers, and that it answers in every state of the data plane.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::support::bencher::Bencher;
use super::support::metrics::Metrics;
use super::support::planted::Defect;
use super::support::{Client, ENGINES, PATIENCE, Server, ServerBuilder, resident_bytes, wait_until};

/// Returns the paths that `/` lists.
fn listed(server: &Server) -> Vec<String> {
    let index = server.admin("/").text();
    index.lines().map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn every_listed_path_answers() {
    for engine in ENGINES {
        let server = ServerBuilder::new(engine).start();
        let paths = listed(&server);
        assert!(paths.len() >= 4, "{paths:?}");
        // Other tests call the paths that do something.
        let shows =
            |path: &&str| !["/console", "/drain", "/config", "/reload", "/checkpoint", "/compact"].contains(path);
        let others = ["/", "/healthz", "/readyz?verbose"];
        for path in paths.iter().map(String::as_str).filter(shows).chain(others) {
            let mut client = Client::connect(server.admin);
            let got = client.get(path);
            assert_eq!((got.status, got.header("cache-control")), (200, Some("no-store")), "{path}");
            assert!(got.header("content-type").is_some() && !got.body.is_empty(), "{path}");
            client.send("HEAD", path, &[], None).unwrap();
            let (status, headers) = client.head().unwrap();
            assert_eq!(status, 200, "{path}");
            let length = headers.iter().find(|(name, _)| name == "content-length").unwrap();
            assert!(length.1.parse::<usize>().unwrap() > 0, "{path}");
            // On the same connection, so the answer to HEAD had no body.
            let refused = client.request("POST", path, &[], Some(b""));
            assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD")), "{path}");
        }
        let nowhere = server.admin("/nowhere");
        assert_eq!(nowhere.status, 404);
        assert!(nowhere.text().contains("/metrics"), "{}", nowhere.text());
    }
}

#[test]
fn the_metrics_have_the_content_type_of_prometheus() {
    let server = ServerBuilder::new("memory").start();
    let answer = server.admin("/metrics");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
}

#[test]
fn a_drained_klad_is_not_ready_and_serves() {
    let server = ServerBuilder::new("memory").start();
    assert_eq!(server.ask_admin("POST", "/drain").text(), "{\n  \"draining\": true\n}\n");
    assert_eq!(server.admin("/readyz").status, 503);
    assert!(server.admin("/readyz?verbose").text().contains("[-]not-draining failed: "));
    assert_eq!((server.client().put("/v1/kv/k", b"v").status, server.admin("/livez").status), (201, 200));
    assert_eq!(server.ask_admin("DELETE", "/drain").status, 200);
    assert_eq!(server.admin("/readyz").status, 200);
    assert_eq!(server.ask_admin("PUT", "/drain").status, 405);
}

#[cfg(feature = "rocksdb")]
#[test]
fn verbose_readiness_names_every_check() {
    let server = ServerBuilder::new("rocksdb").start();
    let ready = server.admin("/readyz?verbose").text();
    let all = ["not-stopping", "not-draining", "log", "write-stall", "disk-space", "storage-answers"];
    let expected: String = all.iter().map(|check| format!("[+]{check} ok\n")).collect();
    assert_eq!(ready, expected + "readyz check passed\n");
    let full = ServerBuilder::new("rocksdb").arg("--disk-reserve", "1EiB").start();
    let answer = full.admin("/readyz?verbose");
    assert_eq!(answer.status, 503);
    let text = answer.text();
    assert!(text.contains("[-]disk-space failed: ") && text.contains("[+]log ok\n"), "{text}");
    assert!(text.ends_with("readyz check failed\n"), "{text}");
    assert_eq!(full.admin("/readyz").status, 507, "the status that a write gets");
    assert_eq!(full.admin("/livez").status, 200);
}

#[test]
fn a_stopping_klad_is_not_ready() {
    let mut server = ServerBuilder::new("memory").arg("--drain-delay", "6s").start();
    let mut client = server.client();
    // A request in flight, for which klad waits after the drain delay.
    client.send_raw(
        "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n",
    );
    assert_eq!(client.any_answer().unwrap().status, 100);
    let mut admin = Client::connect(server.admin);
    assert!(admin.get("/readyz?verbose").text().contains("[+]not-stopping ok\n"));
    server.signal(Signal::TERM);
    let mut text = String::new();
    wait_until("klad is not ready", || {
        let answer = admin.get("/readyz?verbose");
        text = answer.text();
        answer.status == 503
    });
    assert!(text.contains("[-]not-stopping failed: "), "{text}");
    client.send_raw("v");
    assert_eq!(client.answer().unwrap().status, 201);
    assert_eq!(server.wait().code(), Some(0));
}

fn memory(server: &Server) -> Value {
    let answer = server.admin("/debug/memory");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    serde_json::from_slice(&answer.body).unwrap()
}

fn part<'m>(memory: &'m Value, name: &str) -> &'m Value {
    let parts = memory["parts"].as_array().unwrap();
    parts.iter().find(|part| part["name"] == name).unwrap_or_else(|| panic!("no {name} in {memory}"))
}

/// Returns what is wrong with the breakdown of the memory.
fn memory_fault(memory: &Value, resident: u64) -> Option<String> {
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("no number: {value}"));
    let parts = memory["parts"].as_array().unwrap();
    let sum: u64 = parts.iter().map(|part| number(&part["resident_bytes"])).sum();
    let whole = number(&memory["resident_bytes"]);
    let cut = parts.iter().any(|part| number(&part["resident_bytes"]) < number(&part["counted_bytes"]));
    if sum != whole {
        return Some(format!("the parts are {sum}, the total is {whole}"));
    }
    if cut == memory["cut"].is_null() {
        return Some("`cut` does not say what was cut".to_owned());
    }
    // The kernel counts in batches of pages for each thread.
    (whole.abs_diff(resident) > 8 << 20).then(|| format!("the total is {whole}, and the kernel counts {resident}"))
}

#[test]
fn the_parts_of_the_memory_add_up_to_the_resident_set() {
    for engine in ENGINES {
        let server = ServerBuilder::new(engine).arg("--memory", "256MiB").start();
        let mut client = server.client();
        let before = memory(&server);
        // Less than the size of a memtable.
        for number in 0..300 {
            assert_eq!(client.put(&format!("/v0/entity?durability=async&id={number}"), &[7; 16 << 10]).status, 201);
        }
        let name = if *engine == "memory" { "entries" } else { "memtables" };
        let resident = |account: &Value| part(account, name)["resident_bytes"].as_u64().unwrap();
        let mut account = before.clone();
        wait_until("the written values are counted", || {
            account = memory(&server);
            resident(&account) - resident(&before).min(resident(&account)) >= 300 * (16 << 10)
        });
        // klad may release memory between the two readings.
        let mut fault = None;
        let agrees = (0..10).any(|_| {
            account = memory(&server);
            fault = memory_fault(&account, resident_bytes(server.process()));
            fault.is_none()
        });
        assert!(agrees, "{fault:?}: {account}");
        assert_eq!(account["budget_bytes"], 256 << 20);
        let text = server.admin("/debug/memory?format=text");
        assert_eq!(text.header("content-type"), Some("text/plain; charset=utf-8"));
        let by_accept =
            Client::connect(server.admin).request("GET", "/debug/memory", &[("Accept", "text/plain")], None);
        for text in [text.text(), by_accept.text()] {
            let line = |name: &str| text.lines().any(|line| line.starts_with(name));
            assert!(line("body_budget") && line("allocator_slack") && line("all "), "{text}");
        }
    }
}

#[test]
fn twin_a_breakdown_that_does_not_add_up_is_noticed() {
    let server = ServerBuilder::new("memory").start();
    let (account, resident) = (memory(&server), resident_bytes(server.process()));
    let mut short = account.clone();
    short["parts"].as_array_mut().unwrap().remove(0);
    assert!(memory_fault(&short, resident).unwrap().contains("the parts are"));
    let mut silent = account.clone();
    silent["parts"][0]["counted_bytes"] = (u64::MAX / 2).into();
    silent["cut"] = Value::Null;
    assert!(memory_fault(&silent, resident).unwrap().contains("cut"));
    assert!(memory_fault(&account, resident + (100 << 20)).unwrap().contains("the kernel"));
}

#[test]
fn permits_for_bodies_are_in_the_breakdown() {
    let server = ServerBuilder::new("memory").start();
    let mut client = server.client();
    client.send_raw("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\nv");
    wait_until("a permit is held", || part(&memory(&server), "body_budget")["counted_bytes"] == 1 << 20);
    let connections = part(&memory(&server), "connections")["counted_bytes"].as_u64().unwrap();
    assert_eq!(connections, 16 << 10, "one connection");
    client.send_raw(vec![b'v'; (1 << 20) - 1]);
    assert_eq!(client.answer().unwrap().status, 201);
    wait_until("the permit is free again", || part(&memory(&server), "body_budget")["counted_bytes"] == 0);
}

/// Sends two reads of keys of `key_bytes` to one thread. Returns an error if the breakdown does not contain them.
fn queued_operations_are_counted(delay: &str, key_bytes: usize) -> Result<(), String> {
    let server = ServerBuilder::new("memory/pool").arg("--pool-threads", "1").arg("--engine-delay", delay).start();
    let queued = || part(&memory(&server), "queues")["counted_bytes"].as_u64().unwrap();
    assert_eq!(queued(), 0);
    let mut clients: Vec<_> = (0..2).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send("GET", &format!("/v0/entity?id={}", "k".repeat(key_bytes)), &[], None).unwrap();
    }
    let mut most = 0;
    wait_until("all are answered", || {
        most = most.max(queued());
        Metrics::scrape(&server).requests("get", "not_found") == 2
    });
    assert_eq!(queued(), 0, "the queue is empty");
    // An operation needs a few words of state beside its key.
    let expected = 2 * 1_000..2 * (1_000 + 1_024);
    if expected.contains(&most) { Ok(()) } else { Err(format!("{most} B, not {expected:?}")) }
}

#[test]
fn queued_operations_are_in_the_breakdown_with_their_keys() {
    queued_operations_are_counted("6s", 1_000).unwrap();
}

#[test]
fn twin_operations_with_shorter_keys_are_noticed() {
    queued_operations_are_counted("2s", 1).expect_err("planted");
}

/// Requests all paths repeatedly until `until` holds. Returns an error if an answer takes longer than `patience`.
fn answers(server: &Server, patience: Duration, until: impl Fn() -> bool) -> Result<usize, String> {
    let mut rounds = 0;
    loop {
        for path in ["/livez", "/readyz?verbose", "/metrics", "/debug/memory", "/debug/slow"] {
            let mut client = Client::connect(server.admin);
            client.stream.set_read_timeout(Some(patience)).unwrap();
            let answer = client.try_request("GET", path, &[], None);
            let answer = answer.map_err(|error| format!("no answer of {path} within {patience:?}: {error}"))?;
            assert!(answer.status == 200 || path.starts_with("/readyz"), "{path}: {}", answer.text());
        }
        if until() {
            return Ok(rounds);
        }
        rounds += 1;
    }
}

/// Returns the number of times that all paths were answered during an overload of this length; 0 if the overloaded
/// klad has served nothing.
fn rounds_under_overload(engine: &str, seconds: u32) -> usize {
    // One worker, with far more load than it can serve.
    let server = ServerBuilder::new(engine).arg("--threads", "1").start();
    // Not by `--fill`, because the timeout of 250 ms would apply to it, too.
    let mut client = server.client();
    for number in 0..1_000 {
        assert_eq!(client.put(&format!("/v0/entity?id=key{number}&durability=async"), &[7; 100]).status, 201);
    }
    let options = format!(
        "--workload mixed:95/5 --keys 1000 --rate 400k/s --connections 64 --connections-max 2000 \
         --timeout 250ms --duration {seconds}s"
    );
    std::thread::scope(|scope| {
        let bench = scope.spawn(|| Bencher::new(&format!("http://{}", server.address), &options).run());
        let rounds = answers(&server, PATIENCE, || bench.is_finished()).unwrap_or_else(|why| panic!("{engine}: {why}"));
        let bench = bench.join().unwrap();
        let (scheduled, served) = (bench.measured("scheduled"), bench.measured("outcomes/served"));
        assert!(served < scheduled / 2, "{served} of {scheduled} were served: that is not overload");
        // If none was served, klad or its load had no CPU time for most of the run.
        if served == 0 { 0 } else { rounds }
    })
}

#[test]
fn the_admin_listener_answers_under_overload() {
    for engine in ENGINES {
        // The first answers may come before the overload. On a busy machine an overload may be too short for more.
        let rounds = [2, 8, 32].map(|seconds| move || rounds_under_overload(engine, seconds));
        assert!(rounds.into_iter().any(|rounds| rounds() >= 2), "{engine}");
    }
}

#[test]
fn twin_an_answer_that_waits_for_storage_is_noticed() {
    let server = ServerBuilder::new("memory").defect(Some(Defect::SlowObservation)).start();
    let why = answers(&server, Duration::from_secs(2), || true).expect_err("the observation hangs for ten seconds");
    assert!(why.contains("no answer"), "{why}");
}

#[cfg(feature = "rocksdb")]
#[test]
fn the_admin_listener_answers_while_the_disk_hangs() {
    let shim = super::support::shim::Shim::new();
    let server = shim.preload(ServerBuilder::new("rocksdb")).start();
    assert_eq!(server.client().put("/v0/entity?id=k", b"v").status, 201);
    shim.hold();
    let mut writer = server.client();
    writer.send("PUT", "/v0/entity?id=k", &[], Some(b"new")).unwrap();
    shim.wait_until_held();
    let rounds = std::cell::Cell::new(0);
    answers(&server, PATIENCE, || rounds.replace(rounds.get() + 1) >= 20).unwrap();
    shim.pass();
    assert_eq!(writer.answer().unwrap().status, 201);
}
