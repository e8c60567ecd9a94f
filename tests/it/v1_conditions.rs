//! Conditions of `/v1`: evaluated with the change, never ignored, and answered with the current `ETag`.

use super::support::one_key::{assert_rejected, document, each, head};
use super::support::{Client, ENGINES, SETUPS};

fn tag(answer: &super::support::Answer) -> String {
    answer.header("etag").expect("an ETag").to_owned()
}

/// Sends a change with one condition.
fn change(client: &mut Client, method: &str, condition: (&str, &str), value: &[u8]) -> super::support::Answer {
    client.request(method, "/v1/kv/k", &[condition], (method == "PUT").then_some(value))
}

#[test]
fn a_condition_decides_whether_a_change_happens() {
    each(SETUPS, |_, client| {
        let none = "\"1\"";
        for (method, condition) in [
            ("PUT", ("If-Match", "*")),
            ("PUT", ("If-Match", none)),
            ("DELETE", ("If-Match", "*")),
            ("DELETE", ("If-Match", none)),
        ] {
            let failed = change(client, method, condition, b"v");
            assert_rejected(&failed, 412, "precondition-failed", method);
            assert!(document(&failed)["current_etag"].is_null(), "{method} {condition:?}");
        }
        let first = change(client, "PUT", ("If-None-Match", "*"), b"first");
        assert_eq!(first.status, 201);
        let first = tag(&first);
        let fails = |client: &mut Client, method: &str, condition: (&str, &str), current: &str| {
            let failed = change(client, method, condition, b"not this");
            assert_rejected(&failed, 412, "precondition-failed", method);
            assert_eq!(failed.header("etag"), Some(current), "{method} {condition:?}");
            assert_eq!(document(&failed)["current_etag"], current);
        };
        fails(client, "PUT", ("If-None-Match", "*"), &first);
        // Well formed, but no ETag that klad could have given.
        for never in ["\"x\"", "\"0\"", "\"00\"", "\"\"", "\"18446744073709551616\"", "\"-1\""] {
            fails(client, "PUT", ("If-Match", never), &first);
            fails(client, "DELETE", ("If-Match", never), &first);
        }
        let second = change(client, "PUT", ("If-Match", &first), b"second");
        assert_eq!(second.status, 204);
        let second = tag(&second);
        fails(client, "PUT", ("If-Match", &first), &second);
        fails(client, "DELETE", ("If-Match", &first), &second);
        assert_eq!(client.get("/v1/kv/k").body, b"second");
        let third = tag(&change(client, "PUT", ("If-Match", "*"), b"third"));
        assert_eq!(change(client, "DELETE", ("If-Match", &third), b"").status, 204);
        assert_eq!(client.get("/v1/kv/k").status, 404);
        // A value that was removed and stored again has another version.
        client.put("/v1/kv/k", b"third");
        assert_eq!(change(client, "PUT", ("If-Match", &third), b"v").status, 412);
        assert_eq!(change(client, "DELETE", ("If-Match", "*"), b"").status, 204);
    });
}

#[test]
fn changes_in_place_take_conditions_too() {
    each(SETUPS, |_, client| {
        let post = |client: &mut Client, change: &str, condition: (&str, &str)| {
            client.request("POST", &format!("/v1/kv/k?{change}"), &[condition], None)
        };
        assert_eq!(post(client, "op=add&by=1", ("If-Match", "*")).status, 412);
        let one = post(client, "op=add&by=1", ("If-None-Match", "*"));
        assert_eq!((one.status, &one.body[..]), (200, b"1".as_slice()));
        assert_eq!(post(client, "op=add&by=1", ("If-None-Match", "*")).status, 412);
        let two = post(client, "op=add&by=1", ("If-Match", &tag(&one)));
        assert_eq!((two.status, &two.body[..]), (200, b"2".as_slice()));
        assert_eq!(post(client, "op=add&by=1", ("If-Match", &tag(&one))).status, 412);
        assert_eq!(post(client, "op=expire&ttl=1h", ("If-Match", &tag(&one))).status, 412);
        let expiring = post(client, "op=expire&ttl=1h", ("If-Match", &tag(&two)));
        assert_eq!(expiring.status, 204);
        // A change of the expiry alone is a change.
        assert_eq!(post(client, "op=expire&ttl=", ("If-Match", &tag(&two))).status, 412);
        assert_eq!(post(client, "op=expire&ttl=", ("If-Match", &tag(&expiring))).status, 204);
        assert_eq!(client.get("/v1/kv/k").body, b"2");
    });
}

#[test]
fn a_condition_that_klad_cannot_honour_is_400() {
    each(ENGINES, |_, client| {
        let stored = tag(&client.put("/v1/kv/k", b"v"));
        let (weak, list) = (format!("W/{stored}"), format!("{stored}, \"2\""));
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let bad: &[&[(&str, &str)]] = &[
            &[("If-Match", &weak)],
            &[("If-Match", &list)],
            &[("If-Match", stored.trim_matches('"'))],
            &[("If-Match", "")],
            &[("If-Match", "\"")],
            &[("If-Match", "**")],
            &[("If-Match", "*, \"1\"")],
            &[("If-Match", "\"a b\"")],
            &[("If-None-Match", &stored)],
            &[("If-None-Match", "")],
            &[("If-None-Match", "W/\"x\"")],
            &[("If-Match", &stored), ("If-None-Match", "*")],
            &[("If-Match", &stored), ("If-Match", &stored)],
            &[("If-None-Match", "*"), ("If-None-Match", "*")],
            &[("If-Unmodified-Since", date)],
            &[("If-Modified-Since", date)],
            &[("If-Modified-Since", "x"), ("If-Match", &stored)],
            &[("If-Range", &stored)],
        ];
        for headers in bad {
            for (method, target) in [
                ("PUT", "/v1/kv/k"),
                ("DELETE", "/v1/kv/k"),
                ("POST", "/v1/kv/k?op=add&by=1"),
                ("POST", "/v1/kv/k?op=expire&ttl=1s"),
            ] {
                let answer = client.request(method, target, headers, (method == "PUT").then_some(b"w".as_slice()));
                assert_rejected(&answer, 400, "bad-condition", &format!("{method} {headers:?}"));
            }
        }
        let absent = client.request("DELETE", "/v1/kv/absent", &[("If-None-Match", "*")], None);
        assert_rejected(&absent, 400, "bad-condition", "DELETE if absent");
        let now = client.get("/v1/kv/k");
        assert_eq!((&now.body[..], tag(&now)), (b"v".as_slice(), stored));
    });
}

#[test]
fn reads_take_the_conditions_of_the_standard() {
    each(ENGINES, |_, client| {
        let headers = [("Content-Type", "text/plain"), ("Klad-TTL", "1h"), ("Klad-Meta-A", "b")];
        let stored = tag(&client.request("PUT", "/v1/kv/k", &headers, Some(b"value")));
        let modified = client.get("/v1/kv/k").header("last-modified").unwrap().to_owned();
        let (long_ago, in_future) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Fri, 31 Dec 2100 23:59:59 GMT");
        let (weak, in_list) = (format!("W/{stored}"), format!("\"x\", W/\"a,b\" ,{stored}"));
        let rows: &[(u16, &[(&str, &str)])] = &[
            (304, &[("If-None-Match", &stored)]),
            (304, &[("If-None-Match", &weak)]),
            (304, &[("If-None-Match", &in_list)]),
            (304, &[("If-None-Match", "*")]),
            (304, &[("If-None-Match", "\"x\""), ("If-None-Match", &stored)]),
            (200, &[("If-None-Match", "\"x\"")]),
            (200, &[("If-None-Match", stored.trim_matches('"'))]),
            (200, &[("If-None-Match", "")]),
            (304, &[("If-Modified-Since", &modified)]),
            (304, &[("If-Modified-Since", in_future)]),
            (200, &[("If-Modified-Since", long_ago)]),
            (200, &[("If-Modified-Since", "yesterday")]),
            // If-None-Match overrides it.
            (200, &[("If-None-Match", "\"x\""), ("If-Modified-Since", in_future)]),
            (200, &[("If-Match", &stored)]),
            (200, &[("If-Match", &in_list)]),
            (200, &[("If-Match", "*")]),
            (412, &[("If-Match", &weak)]),
            (412, &[("If-Match", "\"x\"")]),
            (412, &[("If-Match", "")]),
            (200, &[("If-Unmodified-Since", &modified)]),
            (412, &[("If-Unmodified-Since", long_ago)]),
            // If-Match overrides it.
            (200, &[("If-Match", &stored), ("If-Unmodified-Since", long_ago)]),
            (304, &[("If-Match", &stored), ("If-None-Match", &stored)]),
            (412, &[("If-Match", "\"x\""), ("If-None-Match", &stored)]),
        ];
        for (status, headers) in rows {
            let got = client.request("GET", "/v1/kv/k", headers, None);
            assert_eq!(got.status, *status, "{headers:?}");
            assert_eq!(head(client, "/v1/kv/k", headers).status, *status, "HEAD {headers:?}");
            assert_eq!(got.header("etag"), Some(&*stored), "{headers:?}");
            if *status == 304 {
                assert_eq!(got.header("last-modified"), Some(&*modified));
                assert_eq!(got.header("cache-control"), Some("no-cache"));
                assert!(got.header("klad-ttl").is_some());
                assert_eq!(got.header("content-type").or(got.header("klad-meta-a")), None);
            }
        }
        for (status, condition) in
            [(412, ("If-Match", "*")), (404, ("If-None-Match", "*")), (412, ("If-Match", "\"1\""))]
        {
            let got = client.request("GET", "/v1/kv/absent", &[condition], None);
            assert_eq!((got.status, got.header("etag")), (status, None), "{condition:?}");
        }
    });
}

/// Clients that all replace the value that they have read lose none of their changes.
#[test]
fn of_concurrent_compare_and_set_one_wins() {
    const CLIENTS: usize = 6;
    const CHANGES: usize = 15;
    each(SETUPS, |server, client| {
        client.put("/v1/kv/k", b"");
        std::thread::scope(|scope| {
            for number in 0..CLIENTS {
                scope.spawn(move || {
                    let mut client = server.client();
                    for _ in 0..CHANGES {
                        loop {
                            let read = client.get("/v1/kv/k");
                            if read.status == 503 {
                                continue;
                            }
                            let longer = [&read.body[..], &[b'a' + u8::try_from(number).unwrap()]].concat();
                            let headers = [("If-Match", read.header("etag").unwrap()), ("Klad-Durability", "async")];
                            match client.request("PUT", "/v1/kv/k", &headers, Some(&longer)).status {
                                204 => break,
                                status => assert!(matches!(status, 412 | 503), "{status}"),
                            }
                        }
                    }
                });
            }
        });
        let value = client.get("/v1/kv/k").body;
        assert_eq!(value.len(), CLIENTS * CHANGES);
        for number in 0..CLIENTS {
            let own = b'a' + u8::try_from(number).unwrap();
            assert_eq!(value.iter().copied().filter(|byte| *byte == own).count(), CHANGES);
        }
    });
}
