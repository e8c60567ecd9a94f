//! What steps of the machine's clock do to keys that expire. `docs/http-api.md` says the same.

use serde_json::{Value, json};

use super::support::batches::{NDJSON, batch, lines, results};
use super::support::clock::Clock;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
use super::support::durable_strategies;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
use super::support::metrics::Metrics;
use super::support::one_key::verdict;
use super::support::scanning::{FORMATS, Format, keys, scan, scan_all};
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
use super::support::shim::Shim;
use super::support::{Answer, Client, ENGINES, Server, ServerBuilder, wait_until};

/// Runs `check` against a server of each engine whose clock the check sets.
fn each_engine(check: impl Fn(&Server, &mut Client, &Clock)) {
    for engine in ENGINES {
        println!("engine {engine}");
        let clock = Clock::new();
        let server = clock.preload(ServerBuilder::new(engine)).start();
        check(&server, &mut server.client(), &clock);
    }
}

/// Returns the seconds that a value has left, rounded down; `None` if the key is absent.
fn left(client: &mut Client, key: &str) -> Option<u64> {
    let answer = client.get(&format!("/v1/kv/{key}"));
    let left = answer.header("klad-ttl").and_then(|left| left.strip_suffix('s')?.split('.').next()?.parse().ok());
    (answer.status == 200).then(|| left.expect("it expires"))
}

#[test]
fn a_step_forward_expires_keys_early_and_a_step_back_late() {
    each_engine(|_, client, clock| {
        client.put("/v1/kv/k?ttl=1h", b"v");
        client.put("/v1/kv/forever", b"v");
        assert!(left(client, "k").is_some_and(|left| left <= 3600));
        clock.set_minutes(30);
        assert!(left(client, "k").is_some_and(|left| left <= 1800), "half of the time is gone");
        clock.set_minutes(-120);
        assert!(left(client, "k").is_some_and(|left| (3 * 3600 - 600..=3 * 3600).contains(&left)), "two hours more");
        clock.set_minutes(120);
        assert_eq!(left(client, "k"), None);
        assert_eq!(client.get("/v0/entities?start=a").body, b"forever\nv");
        // The time to live of a new value begins at the time that the stepped clock shows.
        client.put("/v1/kv/new?ttl=1h", b"v");
        assert!(left(client, "new").is_some_and(|left| left <= 3600));
        assert_eq!(client.get("/v1/kv/forever").status, 200);
    });
}

#[test]
fn an_expired_key_may_come_back_when_the_clock_is_set_back_but_not_what_a_write_replaced() {
    each_engine(|_, client, clock| {
        for key in ["kept", "replaced", "created"] {
            client.put(&format!("/v1/kv/{key}?ttl=1h"), b"old");
        }
        clock.set_minutes(120);
        assert_eq!(client.get("/v1/kv/kept").status, 404);
        clock.set_minutes(0);
        assert_eq!(client.get("/v1/kv/kept").body, b"old", "nothing was written meanwhile");
        clock.set_minutes(120);
        assert_eq!(client.put("/v1/kv/replaced", b"new").status, 201);
        assert_eq!(client.request("PUT", "/v1/kv/created", &[("If-None-Match", "*")], Some(b"new")).status, 201);
        clock.set_minutes(0);
        for key in ["replaced", "created"] {
            assert_eq!(client.get(&format!("/v1/kv/{key}")).body, b"new", "{key}");
        }
    });
}

#[test]
fn versions_do_not_depend_on_the_clock() {
    each_engine(|_, client, clock| {
        let mut seen = Vec::new();
        for minutes in [0, 120, -120, 0] {
            clock.set_minutes(minutes);
            seen.push(client.put("/v1/kv/k", b"v").version());
            seen.push(client.request("POST", "/v1/kv/c?op=add&by=1", &[], None).version());
        }
        assert!(seen.windows(2).all(|two| two[0] < two[1]), "{seen:?}");
        assert_eq!(client.get("/v1/kv/c").body, b"4");
    });
}

/// The time to live begins when klad has the whole value, however long the upload took.
#[test]
fn a_slow_upload_does_not_use_up_the_time_to_live() {
    each_engine(|server, client, clock| {
        let mut slow = server.client();
        slow.send_raw(
            "PUT /v1/kv/slow?ttl=1h HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n",
        );
        assert_eq!(slow.any_answer().unwrap().status, 100, "klad has the head and waits for the body");
        clock.set_minutes(30);
        slow.send_raw("v");
        assert_eq!(slow.answer().unwrap().status, 201);
        assert!(left(client, "slow").is_some_and(|left| left > 1800), "less than the whole time");
    });
}

/// A compaction removes expired entries from the disk, so they do not come back.
#[test]
#[cfg(feature = "rocksdb")]
fn a_compaction_removes_expired_keys_for_good() {
    let clock = Clock::new();
    let server = clock.preload(ServerBuilder::new("rocksdb")).start();
    let mut client = server.client();
    for key in 0..50 {
        client.put(&format!("/v1/kv/gone{key:02}?ttl=1h&durability=async"), &[b'x'; 1000]);
    }
    client.put("/v1/kv/later?ttl=3h", b"v");
    client.put("/v1/kv/stays", b"v");
    clock.set_minutes(120);
    assert_eq!(server.ask_admin("POST", "/compact").status, 202);
    wait_until("the compaction has ended", || {
        let state: Value = serde_json::from_slice(&server.admin("/compact").body).unwrap();
        state["last"].is_string()
    });
    clock.set_minutes(0);
    assert_eq!(client.get("/v0/entities?start=a").body, b"later\nvstays\nv");
}

/// Requests whose condition asks for the value with the version `tag`, or for any value.
fn conditional(client: &mut Client, tag: &str) -> Vec<(u16, String)> {
    let mut verdicts = Vec::new();
    for condition in [tag, "*"] {
        let headers = [("If-Match", condition)];
        for (method, target) in [
            ("PUT", "/v1/kv/k"),
            ("DELETE", "/v1/kv/k"),
            ("POST", "/v1/kv/k?op=add&by=1"),
            ("POST", "/v1/kv/k?op=expire&ttl=1h"),
            ("GET", "/v1/kv/k"),
        ] {
            let answer = client.request(method, target, &headers, Some(b"5"));
            assert_eq!(answer.header("etag"), None, "{method} {condition}: an absent key has no ETag");
            verdicts.push(verdict(&answer));
        }
    }
    verdicts
}

/// The items of a batch with such conditions, and one that may fail for its absence.
fn conditional_items(tag: &str) -> Vec<Value> {
    let one = |op: &str, more: Value| {
        let mut item = json!({"op": op, "key": "k", "if_match": tag});
        item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        item
    };
    vec![
        one("put", json!({"value": "5"})),
        one("add", json!({"by": 1})),
        one("expire", json!({"ttl": 60})),
        one("delete", json!({})),
        json!({"op": "expire", "key": "k", "ttl": null}),
        json!({"op": "get", "key": "k"}),
    ]
}

fn statuses(answer: &Answer) -> Vec<u64> {
    results(answer).iter().map(|result| result["status"].as_u64().unwrap()).collect()
}

#[test]
fn a_condition_fails_once_its_value_has_expired() {
    each_engine(|_, client, clock| {
        let tag = client.put("/v1/kv/k?ttl=1h", b"5").header("etag").unwrap().to_owned();
        let unchanged = [("If-None-Match", tag.as_str())];
        assert_eq!(client.request("GET", "/v1/kv/k", &unchanged, None).status, 304);
        clock.set_minutes(61);
        let failed = (412, "precondition-failed".to_owned());
        assert_eq!(conditional(client, &tag), vec![failed; 10]);
        assert_eq!(client.request("GET", "/v1/kv/k", &unchanged, None).status, 404);
        let answer = batch(client, "", &conditional_items(&tag));
        assert_eq!(statuses(&answer), [412, 412, 412, 412, 404, 404]);
        assert!(results(&answer)[..4].iter().all(|result| result["current_etag"].is_null()));
        assert_eq!(batch(client, "?atomic=true", &conditional_items("*")).status, 412);
        // The one condition that holds.
        assert_eq!(client.request("PUT", "/v1/kv/k", &[("If-None-Match", "*")], Some(b"new")).status, 201);
        let again = batch(client, "", &[json!({"op":"put","key":"k","value":"x","if_none_match":"*"})]);
        assert_eq!(statuses(&again), [412]);
    });
}

/// klad evaluates a condition together with the write, and not when the request arrives while the value still exists.
#[test]
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
fn a_value_that_expires_while_a_write_waits_fails_its_condition() {
    for setup in durable_strategies().filter(|setup| !setup.ends_with("/inline")) {
        println!("setup {setup}");
        let (clock, shim) = (Clock::new(), Shim::new());
        let builder = ServerBuilder::new(setup).arg("--threads", "4").arg("--queue-target", "30s");
        let server = shim.preload(clock.preload(builder)).start();
        let mut client = server.client();
        let tag = client.put("/v1/kv/k?ttl=1h", b"5").header("etag").unwrap().to_owned();
        shim.hold();
        let mut held = server.client();
        held.send("PUT", "/v1/kv/other", &[], Some(b"v")).unwrap();
        shim.wait_until_held();
        let (mut put, mut items) = (server.client(), server.client());
        put.send("PUT", "/v1/kv/k", &[("If-Match", &tag)], Some(b"6")).unwrap();
        let body = lines(&conditional_items(&tag)[..4]);
        items.send("POST", "/v1/batch", &[("Content-Type", NDJSON)], Some(&body)).unwrap();
        wait_until("both have arrived", || Metrics::scrape(&server).in_flight() == 3);
        clock.set_minutes(61);
        shim.pass();
        assert_eq!(held.answer().unwrap().status, 201);
        assert_eq!(put.answer().unwrap().status, 412, "{setup}");
        assert_eq!(statuses(&items.answer().unwrap()), [412; 4], "{setup}");
        assert_eq!(client.get("/v1/kv/k").status, 404, "{setup}");
    }
}

#[test]
fn deadlines_do_not_depend_on_the_clock_and_last_modified_does() {
    each_engine(|server, client, clock| {
        for (minutes, status) in [(120, 201), (-240, 204)] {
            let mut slow = server.client();
            slow.send_raw(
                "PUT /v1/kv/slow HTTP/1.1\r\nHost: a\r\nKlad-Timeout: 1h\r\nExpect: 100-continue\r\n\
                 Content-Length: 1\r\n\r\n",
            );
            assert_eq!(slow.any_answer().unwrap().status, 100, "klad has the head and waits for the body");
            clock.set_minutes(minutes);
            slow.send_raw("v");
            assert_eq!(slow.answer().unwrap().status, status, "{minutes} minutes");
        }
        let modified = |client: &mut Client, minutes| {
            clock.set_minutes(minutes);
            client.put("/v1/kv/k", b"v");
            let answer = client.get("/v1/kv/k");
            // The day.
            answer.header("last-modified").unwrap()[..16].to_owned()
        };
        let today = modified(client, 0);
        assert_ne!(modified(client, 2 * 24 * 60), today);
    });
}

/// A scan skips expired entries, and shows their neighbours.
#[test]
fn scans_do_not_show_what_has_expired() {
    each_engine(|_, client, clock| {
        for (key, ttl) in [("a", ""), ("b/1", "?ttl=1h"), ("b/2", "?ttl=3h"), ("c/1", "?ttl=1h"), ("d", "?ttl=1h")] {
            assert_eq!(client.put(&format!("/v1/kv/{key}{ttl}"), b"v").status, 201);
        }
        clock.set_minutes(120);
        for format in FORMATS {
            let mut list = |query: &str| keys(&scan(client, query, format).unwrap().listed);
            assert_eq!(list(""), ["a", "b/2"]);
            assert_eq!(list("reverse=true"), ["b/2", "a"]);
            assert_eq!(list("keys_only=true&start=b"), ["b/2"]);
            assert_eq!(list("delimiter=/"), ["a", "b/*"], "a common prefix needs a key");
            assert_eq!(list("prefix=c"), Vec::<String>::new());
        }
        let counted: Value = serde_json::from_slice(&client.get("/v1/kv?count=true").body).unwrap();
        assert_eq!(counted["count"], 2);
        let listed = scan_all(client, "limit=1", Format::Page).unwrap().0;
        assert_eq!(keys(&listed), ["a", "b/2"]);
    });
}
