//! Counters of `/v1`: `POST ?op=add` adds to a signed decimal number of 64 bits.

use super::support::one_key::{assert_rejected, each};
use super::support::{Answer, Client, ENGINES, SETUPS};

fn add(client: &mut Client, key: &str, by: &str) -> Answer {
    client.request("POST", &format!("/v1/kv/{key}?op=add&by={by}"), &[], None)
}

#[test]
fn a_counter_begins_at_0_and_answers_its_new_value() {
    each(SETUPS, |_, client| {
        let first = add(client, "c", "5");
        assert_eq!((first.status, &first.body[..], first.header("content-type")), (200, &b"5"[..], Some("text/plain")));
        assert_eq!(first.header("content-length"), Some("1"));
        for (by, sum) in [("-8", "-3"), ("0", "-3"), ("%2B3", "0"), ("9223372036854775807", "9223372036854775807")] {
            let answer = add(client, "c", by);
            assert_eq!((answer.status, answer.text().as_str()), (200, sum), "{by}");
            let read = client.get("/v1/kv/c");
            assert_eq!((read.text().as_str(), read.header("etag")), (sum, answer.header("etag")), "{by}");
            assert_eq!(read.header("content-type"), Some("text/plain"));
        }
        assert_eq!(add(client, "d", "-9223372036854775808").text(), "-9223372036854775808");
        // A number that a client has stored, and its type and metadata, are kept.
        let headers = [("Content-Type", "application/json"), ("Klad-Meta-A", "b"), ("Klad-TTL", "1h")];
        client.request("PUT", "/v1/kv/p", &headers, Some(b"41"));
        assert_eq!(add(client, "p", "1").text(), "42");
        let read = client.get("/v1/kv/p");
        assert_eq!(read.header("content-type").zip(read.header("klad-meta-a")), Some(("application/json", "b")));
        assert!(read.header("klad-ttl").is_some());
        // A time to live has an effect only if the request creates the counter.
        client.request("POST", "/v1/kv/e?op=add&by=1&ttl=1h", &[], None);
        client.request("POST", "/v1/kv/d?op=add&by=1&ttl=1h", &[], None);
        assert!(client.get("/v1/kv/e").header("klad-ttl").is_some());
        assert!(client.get("/v1/kv/d").header("klad-ttl").is_none());
    });
}

#[test]
fn what_is_no_number_or_would_overflow_is_409_and_stays() {
    each(ENGINES, |_, client| {
        for value in [
            "",
            "x",
            "1x",
            " 1",
            "1\n",
            "1.0",
            "0x1",
            "--1",
            "+",
            "9223372036854775808",
            "-9223372036854775809",
            "\u{661}",
        ] {
            client.put("/v1/kv/c", value.as_bytes());
            assert_rejected(&add(client, "c", "1"), 409, "not-a-number", value);
            assert_eq!(client.get("/v1/kv/c").body, value.as_bytes());
        }
        for (value, by) in [
            ("9223372036854775807", "1"),
            ("-9223372036854775808", "-1"),
            ("-1", "-9223372036854775808"),
            ("1", "9223372036854775807"),
        ] {
            let stored = client.put("/v1/kv/c", value.as_bytes());
            assert_rejected(&add(client, "c", by), 409, "number-overflow", value);
            let read = client.get("/v1/kv/c");
            assert_eq!((&read.body[..], read.header("etag")), (value.as_bytes(), stored.header("etag")));
        }
    });
}

#[test]
fn a_bad_addition_is_400_and_nothing_is_stored() {
    each(ENGINES, |_, client| {
        for by in ["", "x", "1.0", "+1", "1+", "9223372036854775808", "-9223372036854775809", "0x1", "1e3"] {
            assert_rejected(&add(client, "c", by), 400, "bad-parameter", by);
        }
        for (more, code) in [
            ("op=add", "missing-parameter"),
            ("by=1", "missing-parameter"),
            ("op=add&by=1&by=1", "repeated-parameter"),
            ("op=sub&by=1", "bad-parameter"),
            ("op=add&by=1&ttl=0", "bad-ttl"),
            ("op=add&value=1", "unknown-parameter"),
        ] {
            assert_rejected(&client.request("POST", &format!("/v1/kv/c?{more}"), &[], None), 400, code, more);
        }
        assert_eq!(client.get("/v1/kv/c").status, 404);
    });
}

#[test]
fn concurrent_additions_are_all_counted() {
    const CLIENTS: usize = 6;
    const ADDITIONS: usize = 40;
    each(SETUPS, |server, client| {
        let mut told: Vec<i64> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    scope.spawn(|| {
                        let mut client = server.client();
                        let mut told = Vec::new();
                        while told.len() < ADDITIONS {
                            let answer = client.request("POST", "/v1/kv/c?op=add&by=1&durability=async", &[], None);
                            match answer.status {
                                200 => told.push(answer.text().parse().unwrap()),
                                status => assert_eq!(status, 503),
                            }
                        }
                        assert!(told.is_sorted(), "a client sees its own additions in their order");
                        told
                    })
                })
                .collect();
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        told.sort_unstable();
        let all: Vec<i64> = (1..=i64::try_from(CLIENTS * ADDITIONS).unwrap()).collect();
        assert_eq!(told, all, "each sum is told once");
        assert_eq!(client.get("/v1/kv/c").text(), (CLIENTS * ADDITIONS).to_string());
    });
}
