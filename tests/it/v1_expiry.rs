//! Expiry in `/v1`: how it is asked for and reported, and that an expired key is absent everywhere. What a step of the
//! machine's clock does is in `v1_clock`.

use super::support::one_key::{assert_rejected, each};
use super::support::{Client, ENGINES, SETUPS, wait_until};

/// The seconds that the value of `k` has left, if it expires.
fn left(client: &mut Client) -> Option<f64> {
    let answer = client.get("/v1/kv/k");
    assert_eq!(answer.status, 200);
    answer.header("klad-ttl").map(|text| text.strip_suffix('s').expect("seconds").parse().expect("a number"))
}

#[test]
fn a_time_to_live_is_taken_from_the_parameter_or_the_header() {
    each(ENGINES, |_, client| {
        for (text, seconds) in [
            ("60s", 60.0),
            ("60", 60.0),
            ("3600.5", 3600.5),
            ("1h%2030m", 5400.0),
            ("1h+30m", 5400.0),
            ("2days", 172_800.0),
            ("100%20years", 3_155_760_000.0),
        ] {
            let put = client.put(&format!("/v1/kv/k?ttl={text}"), b"v");
            let told = put.header("klad-ttl").and_then(|left| left.strip_suffix('s')).expect("a time");
            assert!(told.parse::<f64>().unwrap() <= seconds, "{text} {told}");
            assert!(told.split_once('.').is_none_or(|(_, digits)| digits.len() <= 3), "{told}");
            let left = left(client).expect("it expires");
            assert!(left > 0.0 && left <= seconds, "{text} {left}");
        }
        client.request("PUT", "/v1/kv/k", &[("Klad-TTL", "1h 30m")], Some(b"v"));
        assert!(left(client).is_some_and(|left| left <= 5400.0));
        assert_eq!(client.request("PUT", "/v1/kv/k?ttl=60s", &[("Klad-TTL", "1m")], Some(b"v")).status, 204);
        // A later PUT without one clears it.
        let put = client.put("/v1/kv/k", b"v");
        assert_eq!((put.header("klad-ttl"), left(client)), (None, None));
    });
}

#[test]
fn a_bad_time_to_live_is_400_and_changes_nothing() {
    each(ENGINES, |_, client| {
        client.put("/v1/kv/k", b"v");
        let bad = [
            "", "0", "0s", "-1", "-1s", "1parsec", "nan", "inf", "1e300", "500us", "0.0001", "101years", "none",
            "null", "60s60", "%ff", "1%2C5",
        ];
        for text in bad {
            let answer = client.put(&format!("/v1/kv/k?ttl={text}"), b"w");
            let code = if text == "%ff" { "bad-parameter" } else { "bad-ttl" };
            assert_rejected(&answer, 400, code, text);
        }
        let two = [("Klad-TTL", "60s"), ("Klad-TTL", "60s")];
        assert_rejected(&client.request("PUT", "/v1/kv/k", &two, Some(b"w")), 400, "bad-ttl", "two headers");
        let other = [("Klad-TTL", "61s")];
        for (method, target) in [
            ("PUT", "/v1/kv/k?ttl=60s"),
            ("POST", "/v1/kv/k?op=expire&ttl=60s"),
            ("POST", "/v1/kv/k?op=expire&ttl=none"),
            ("POST", "/v1/kv/k?op=expire&ttl="),
        ] {
            assert_rejected(&client.request(method, target, &other, Some(b"w")), 400, "bad-ttl", target);
        }
        for (target, code) in [
            ("/v1/kv/k?op=expire", "missing-parameter"),
            ("/v1/kv/k?op=expire&ttl=0", "bad-ttl"),
            ("/v1/kv/k?op=expire&ttl=1s&by=1", "bad-parameter"),
            ("/v1/kv/k?ttl=1s", "missing-parameter"),
            ("/v1/kv/k?op=persist", "bad-parameter"),
            ("/v1/kv/k?op=", "bad-parameter"),
        ] {
            assert_rejected(&client.request("POST", target, &[], None), 400, code, target);
        }
        assert_eq!((client.get("/v1/kv/k").body, left(client)), (b"v".to_vec(), None));
    });
}

#[test]
fn the_expiry_alone_can_be_changed() {
    each(SETUPS, |_, client| {
        let headers = [("Content-Type", "text/plain"), ("Klad-Meta-A", "b")];
        let put = client.request("PUT", "/v1/kv/k", &headers, Some(b"v"));
        let expire = |client: &mut Client, target: &str, headers: &[(&str, &str)]| {
            let answer = client.request("POST", target, headers, None);
            assert_eq!((answer.status, answer.body.len()), (204, 0), "{target}");
            assert!(answer.header("etag").is_some() && answer.header("klad-durability").is_some());
            answer.version()
        };
        let version = expire(client, "/v1/kv/k?op=expire&ttl=60s", &[]);
        assert!(left(client).is_some_and(|left| left <= 60.0));
        let read = client.get("/v1/kv/k");
        assert_eq!((read.version(), &read.body[..]), (version, b"v".as_slice()));
        assert_ne!(put.version(), version, "a change of the expiry is a change");
        assert_eq!(read.header("content-type").zip(read.header("klad-meta-a")), Some(("text/plain", "b")));
        expire(client, "/v1/kv/k?op=expire", &[("Klad-TTL", "1h")]);
        assert!(left(client).is_some_and(|left| left > 60.0));
        for none in ["ttl=none", "ttl="] {
            expire(client, "/v1/kv/k?op=expire&ttl=1h", &[]);
            expire(client, &format!("/v1/kv/k?op=expire&{none}"), &[]);
            assert_eq!(left(client), None, "{none}");
        }
        let absent = client.request("POST", "/v1/kv/absent?op=expire&ttl=60s", &[], None);
        assert_rejected(&absent, 404, "not-found", "expire");
        assert_eq!(client.get("/v1/kv/absent").status, 404);
    });
}

/// Stores a value and waits until it has expired.
fn expired(client: &mut Client, key: &str) {
    let target = format!("/v1/kv/{key}");
    assert!(matches!(client.put(&format!("{target}?ttl=1ms"), b"5").status, 201 | 204));
    wait_until("the key has expired", || client.get(&target).status == 404);
}

#[test]
fn an_expired_key_is_absent_for_every_request() {
    each(SETUPS, |_, client| {
        // Once as a value that a cache may hold, which the expiring one replaces.
        client.put("/v1/kv/k", b"forever");
        client.get("/v1/kv/k");
        expired(client, "k");
        assert_eq!(client.get("/v0/entity?id=k").status, 404);
        assert_eq!(client.get("/v0/entities?start=a").body, b"");
        assert_rejected(&client.delete("/v1/kv/k"), 404, "not-found", "DELETE");
        assert_eq!(client.request("GET", "/v1/kv/k", &[("If-Match", "*")], None).status, 412);
        for (method, target) in [("PUT", "/v1/kv/k"), ("DELETE", "/v1/kv/k"), ("POST", "/v1/kv/k?op=add&by=1")] {
            let failed = client.request(method, target, &[("If-Match", "*")], None);
            assert_rejected(&failed, 412, "precondition-failed", method);
            assert_eq!(failed.header("etag"), None, "{method}");
        }
        let absent = client.request("POST", "/v1/kv/k?op=expire&ttl=1h", &[], None);
        assert_rejected(&absent, 404, "not-found", "an expired key gets no new time");
        let counted = client.request("POST", "/v1/kv/k?op=add&by=2", &[], None);
        assert_eq!(counted.body, b"2", "it begins at 0 again");
        assert_eq!(client.get("/v1/kv/k").header("klad-ttl"), None, "with no expiry");
        expired(client, "k");
        assert_eq!(client.request("PUT", "/v1/kv/k", &[("If-None-Match", "*")], Some(b"new")).status, 201);
        assert_eq!(client.get("/v1/kv/k").body, b"new");
        expired(client, "k");
        assert_eq!(client.put("/v1/kv/k", b"new").status, 201, "created, not replaced");
    });
}
