//! Options that change while klad serves: by the admin listener, and by a reload of the file. Requests in progress
//! are not affected.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::support::{Answer, Client, Server, ServerBuilder, wait_until};

fn patch(server: &Server, change: &Value) -> Answer {
    Client::connect(server.admin).request("PATCH", "/config", &[], Some(change.to_string().as_bytes()))
}

fn config(server: &Server) -> Value {
    serde_json::from_slice(&server.admin("/config").body).unwrap()
}

fn option(server: &Server, name: &str) -> Value {
    let config = config(server);
    let options = config["options"].as_array().unwrap();
    options.iter().find(|option| option["name"] == name).expect("an option").clone()
}

#[test]
fn sizes_change_by_the_admin_listener() {
    let server = ServerBuilder::new("memory").start();
    let mut client = server.client();
    assert_eq!(client.put("/v0/entity?id=long-key", &[1; 2_000]).status, 201);
    let answer = patch(&server, &json!({ "value-max": "1KiB", "key-max": 4 }));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let changed: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(changed["changed"].as_array().unwrap().len(), 2, "{changed}");
    wait_until("the connection that is open knows", || client.put("/v0/entity?id=k", &[1; 2_000]).status == 413);
    assert_eq!(client.get("/v0/entity?id=long-key").status, 414);
    assert_eq!(client.put("/v0/entity?id=k", &[1; 1_024]).status, 201);
    assert_eq!(option(&server, "value-max")["source"]["kind"], "admin");
    // By name, and by null for the default.
    assert_eq!(patch(&server, &json!({ "value-max": "16MiB", "key-max": null })).status, 200);
    wait_until("the old sizes hold again", || client.put("/v0/entity?id=k", &[1; 2_000]).status == 201);
    assert_eq!(client.get("/v0/entity?id=long-key").body, [1; 2_000]);
}

#[test]
fn a_raised_connection_limit_admits_waiting_clients() {
    let server = ServerBuilder::new("memory").arg("--connections-max", "1").start();
    let mut first = server.client();
    assert_eq!(first.get("/v0/status").status, 200);
    let mut second = server.client();
    second.send("GET", "/v0/status", &[], None).unwrap();
    assert!(second.is_silent_for(Duration::from_millis(300)));
    assert_eq!(patch(&server, &json!({ "connections-max": 2 })).status, 200);
    assert_eq!(second.answer().unwrap().status, 200, "although no client has left");
    assert_eq!(patch(&server, &json!({ "connections-max": 1 })).status, 200);
    assert_eq!((first.get("/v0/status").status, second.get("/v0/status").status), (200, 200), "open connections stay");
    drop(first);
    let mut third = server.client();
    third.send("GET", "/v0/status", &[], None).unwrap();
    assert!(third.is_silent_for(Duration::from_millis(300)));
    drop(second);
    assert_eq!(third.answer().unwrap().status, 200);
}

#[test]
fn connections_of_one_address_are_limited_from_now_on() {
    let server = ServerBuilder::new("memory").start();
    let mut open: Vec<Client> = (0..3).map(|_| server.client()).collect();
    for client in &mut open {
        assert_eq!(client.get("/v0/status").status, 200);
    }
    assert_eq!(patch(&server, &json!({ "connections-per-peer": 3 })).status, 200);
    assert_eq!(server.client().get("/v0/status").status, 503, "earlier connections count");
    assert_eq!(open[0].get("/v0/status").status, 200);
}

#[cfg(feature = "rocksdb")]
#[test]
fn the_queue_limit_of_each_strategy_can_change() {
    for (setup, name, refused) in
        [("rocksdb/pool", "queue-limit", 5), ("rocksdb/stealing", "queue-limit", 5), ("rocksdb", "operations-max", 6)]
    {
        // The first write runs until its sync passes. The others wait or are rejected.
        let shim = super::support::shim::Shim::new();
        let server = shim.preload(ServerBuilder::new(setup).arg("--pool-threads", "1")).start();
        assert_eq!(patch(&server, &json!({ name: 2 })).status, 200, "{setup}");
        let mut clients: Vec<Client> = (0..8).map(|_| server.client()).collect();
        shim.hold();
        for (number, client) in clients.iter_mut().enumerate() {
            client.send("PUT", &format!("/v0/entity?id={number}"), &[], Some(b"v")).unwrap();
            if number == 0 {
                shim.wait_until_held();
            }
        }
        wait_until("the other writes wait or are rejected", || {
            metric(&server, "klad_http_request_duration_seconds_count{op=\"put\",outcome=\"refused\"}") >= refused
        });
        shim.pass();
        let statuses: Vec<u16> = clients.iter_mut().map(|client| client.answer().unwrap().status).collect();
        let count = |wanted: u16| statuses.iter().filter(|status| **status == wanted).count() as u64;
        assert_eq!((count(503), count(201)), (refused, 8 - refused), "{setup}: {statuses:?}");
    }
}

#[test]
fn an_invalid_change_changes_nothing() {
    let server = ServerBuilder::new("memory").start();
    let before = config(&server);
    for (change, status, code, word) in [
        (json!({ "value-max": "1KiB", "queue-limt": 5 }), 400, "bad-configuration", "queue-limit"),
        (json!({ "value-max": "1KiB", "key-max": "lots" }), 400, "bad-configuration", "key-max"),
        (json!({ "value-max": "1KiB", "threads": 7 }), 409, "needs-restart", "threads"),
        (json!({ "value-max": "1KiB", "connections-max": 999_999 }), 400, "bad-configuration", "connections-max"),
        (json!({ "value-max": ["1KiB"] }), 400, "bad-configuration", "value-max"),
        (json!([1]), 400, "bad-configuration", "JSON object"),
    ] {
        let answer = patch(&server, &change);
        let document: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((answer.status, document["code"].as_str()), (status, Some(code)), "{change}: {document}");
        assert!(document["detail"].as_str().unwrap().contains(word), "{change}: {document}");
        assert_eq!(config(&server), before, "{change}");
    }
}

#[test]
fn sighup_reloads_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("klad.toml");
    std::fs::write(&file, "value-max = \"1KiB\"\nthreads = 1\n").unwrap();
    let server = ServerBuilder::new("memory").arg("--config", file.to_str().unwrap()).start();
    let mut client = server.client();
    assert_eq!(client.put("/v0/entity?id=k", &[1; 2_000]).status, 413);
    assert_eq!(patch(&server, &json!({ "key-max": 4 })).status, 200);
    assert_eq!(config(&server)["needs_restart"], json!([]), "key-max waits for nothing");

    std::fs::write(&file, "value-max = \"4KiB\"\nthreads = 2\n").unwrap();
    server.signal(Signal::HUP);
    wait_until("the new limit holds", || client.put("/v0/entity?id=k", &[1; 2_000]).status == 201);
    wait_until("what the admin listener changed is forgotten", || client.get("/v0/entity?id=long-key").status == 404);
    assert_eq!(option(&server, "value-max")["source"]["kind"], "file");
    assert_eq!(config(&server)["needs_restart"][0]["name"], "threads");
    assert_eq!(option(&server, "threads")["value"], "1");

    // A file with a mistake changes nothing, and klad continues to serve.
    std::fs::write(&file, "value-max = \"1KiB\"\nvalue-maxx = \"1KiB\"\n").unwrap();
    server.signal(Signal::HUP);
    wait_until("the mistake is logged", || server.log().contains("value-maxx"));
    assert_eq!(client.put("/v0/entity?id=k", &[1; 2_000]).status, 201);
    let answer = Client::connect(server.admin).request("POST", "/reload", &[], None);
    assert_eq!(answer.status, 400, "{}", answer.text());

    std::fs::write(&file, "threads = 1\n").unwrap();
    let answer = Client::connect(server.admin).request("POST", "/reload", &[], None);
    let document: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((answer.status, document["changed"][0]["name"].as_str()), (200, Some("value-max")), "{document}");
    assert_eq!(document["needs_restart"], json!([]));
}

#[test]
fn deadlines_and_the_log_level_can_change() {
    let server = ServerBuilder::new("memory").start();
    let mut idle = server.client();
    assert_eq!(idle.get("/v0/status").status, 200);
    assert_eq!(patch(&server, &json!({ "idle-timeout": "200ms", "log-level": "debug" })).status, 200);
    assert!(idle.is_closed_silently());
    assert_eq!(option(&server, "log-level")["value"], "debug");
}

#[cfg(feature = "rocksdb")]
#[test]
fn the_number_of_change_feeds_and_their_heartbeats_can_change() {
    // One worker: the others may learn the new heartbeat a moment later.
    let builder = ServerBuilder::new("rocksdb").arg("--threads", "1");
    let server = builder.arg("--watchers-max", "1").arg("--changes-heartbeat", "15s").start();
    let heartbeat_s = || {
        let limits: Value = serde_json::from_slice(&server.client().get("/v1/limits").body).unwrap();
        limits["changes_heartbeat_s"].as_f64().unwrap()
    };
    let open = || {
        let mut client = server.client();
        client.send("GET", "/v1/changes", &[("Accept", "application/x-ndjson")], None).unwrap();
        let status = client.head().unwrap().0;
        (client, status)
    };
    let beat = |client: &mut Client| {
        let chunk = client.chunk().unwrap().expect("a heartbeat");
        assert!(chunk.starts_with(b"{\"heartbeat\":"), "{}", String::from_utf8_lossy(&chunk));
    };
    let (mut first, status) = open();
    assert_eq!((status, open().1, heartbeat_s()), (200, 503, 15.0));
    beat(&mut first);
    assert_eq!(patch(&server, &json!({ "watchers-max": 2, "changes-heartbeat": "20ms" })).status, 200);
    wait_until("the new heartbeat is told", || heartbeat_s() < 1.0);
    let (mut second, status) = open();
    assert_eq!((status, open().1), (200, 503));
    // The first comes at once, the others by the new interval.
    (0..3).for_each(|_| beat(&mut second));
    assert_eq!(option(&server, "watchers-max")["value"], "2");
}

#[test]
fn pages_in_a_browser_change_nothing() {
    let server = ServerBuilder::new("memory").start();
    let origin = [("Origin", "http://example.com")];
    for (method, path) in
        [("PATCH", "/config"), ("POST", "/reload"), ("POST", "/compact"), ("POST", "/checkpoint?name=a")]
    {
        let answer = Client::connect(server.admin).request(method, path, &origin, Some(b"{\"key-max\": 4}"));
        assert_eq!(answer.status, 403, "{method} {path}: {}", answer.text());
        assert!(answer.text().contains("cross-origin"), "{}", answer.text());
    }
    assert_eq!(Client::connect(server.admin).request("GET", "/config", &origin, None).status, 200);
    assert_eq!(option(&server, "key-max")["source"]["kind"], "default");
}

/// Returns the value of the first sample whose line begins with `sample`.
fn metric(server: &Server, sample: &str) -> u64 {
    let page = server.admin("/metrics").text();
    let line =
        page.lines().find_map(|line| line.strip_prefix(sample)).unwrap_or_else(|| panic!("no {sample} in {page}"));
    line.trim().parse().unwrap()
}

/// After every change, the parts fit into the budget, and the metrics show them.
#[test]
fn the_memory_budget_is_divided_again_after_a_change_and_never_exceeded() {
    let server = ServerBuilder::new("memory").arg("--memory", "256MiB").arg("--value-max", "64MiB").start();
    let share = |part: &str| metric(&server, &format!("klad_memory_budget_bytes{{part=\"{part}\"}}"));
    let look = || {
        let parts: u64 = ["connections", "body_budget", "scans", "cache"].map(share).iter().sum();
        assert!(parts <= 256 << 20, "{parts}");
        assert_eq!(
            share("body_budget") / 1_024,
            metric(&server, "klad_body_budget_limit_bytes{share=\"all\"}") / 1_024
        );
        share("cache")
    };
    let at_start = look();
    assert_eq!(patch(&server, &json!({ "value-max": "1MiB" })).status, 200);
    assert_eq!(look(), at_start, "the part for bodies stays as it was at start");
    assert_eq!(patch(&server, &json!({ "value-max": "65MiB" })).status, 409);
    assert_eq!(patch(&server, &json!({ "connections-max": 100 })).status, 200);
    assert!(look() > at_start, "fewer connections need less memory");
}

#[test]
fn a_failed_reload_is_visible() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("klad.toml");
    std::fs::write(&file, "").unwrap();
    let server = ServerBuilder::new("memory").arg("--config", file.to_str().unwrap()).start();
    let reload = || Client::connect(server.admin).request("POST", "/reload", &[], None).status;
    assert_eq!((reload(), metric(&server, "klad_config_last_reload_success")), (200, 1));
    std::fs::write(&file, "nonsense = 1\n").unwrap();
    assert_eq!((reload(), metric(&server, "klad_config_last_reload_success")), (400, 0));
    // A pipe is empty when it is read again, and opening it may block.
    std::fs::remove_file(&file).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::RWXU).unwrap();
    assert_eq!(reload(), 400);
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "").unwrap();
    assert_eq!((reload(), metric(&server, "klad_config_last_reload_success")), (200, 1));
}

#[test]
fn no_time_overflows() {
    let server = ServerBuilder::new("memory").start();
    for name in ["drain-timeout", "drain-delay", "idle-timeout", "queue-age-max", "slow-request"] {
        let answer = patch(&server, &json!({ name: "18446744073709551615s" }));
        assert_eq!(answer.status, 400, "{name}");
        assert!(answer.text().contains("at most 365 days"), "{}", answer.text());
    }
    assert_eq!(patch(&server, &json!({ "drain-timeout": "365days" })).status, 200);
}
