//! What steps of the machine's clock do to keys that expire. `docs/http-api.md` says the same.

use super::support::clock::Clock;
use super::support::{Client, ENGINES, Server, ServerBuilder, wait_until};

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
        // It begins anew by the clock that is now.
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
        let state: serde_json::Value = serde_json::from_slice(&server.admin("/compact").body).unwrap();
        state["last"].is_string()
    });
    clock.set_minutes(0);
    assert_eq!(client.get("/v0/entities?start=a").body, b"later\nvstays\nv");
}
