//! The `/v0` contract, row by row, for every engine and through real sockets.

use std::io::Write as _;

use super::support::conformance::on_cassandra;
use super::support::{Client, SETUPS, Server, ServerBuilder, encode, keeps_nothing};

/// Runs `check` against a new server of each engine.
fn each_engine(check: impl Fn(&Server, &mut Client)) {
    for engine in SETUPS {
        println!("engine {engine}");
        let server = ServerBuilder::new(engine).start();
        let mut client = server.client();
        check(&server, &mut client);
    }
    on_cassandra(check);
}

#[test]
fn a_value_can_be_read_until_it_is_deleted() {
    each_engine(|_, client| {
        assert_eq!(client.get("/v0/entity?id=k").status, 404);
        assert_eq!(client.put("/v0/entity?id=k", b"hello").status, 201);
        let answer = client.get("/v0/entity?id=k");
        assert_eq!((answer.status, answer.body.as_slice()), (200, b"hello".as_slice()));
        assert_eq!(client.put("/v0/entity?id=k", b"other").status, 201);
        assert_eq!(client.get("/v0/entity?id=k").body, b"other");
        assert_eq!(client.delete("/v0/entity?id=k").status, 202);
        assert_eq!(client.get("/v0/entity?id=k").status, 404);
        assert_eq!(client.delete("/v0/entity?id=k").status, 202);
    });
}

#[test]
fn an_empty_value_is_a_value() {
    each_engine(|_, client| {
        assert_eq!(client.put("/v0/entity?id=empty", b"").status, 201);
        // Neither a length nor chunks means an empty body.
        assert_eq!(client.request("PUT", "/v0/entity?id=none", &[], None).status, 201);
        for key in ["empty", "none"] {
            let answer = client.get(&format!("/v0/entity?id={key}"));
            assert_eq!((answer.status, answer.body.len()), (200, 0), "{key}");
        }
    });
}

#[test]
fn any_bytes_are_a_key_and_a_value() {
    each_engine(|_, client| {
        for byte in 0..=255_u8 {
            let key = [byte, b'/', 0, byte];
            let target = format!("/v0/entity?id={}&durability=async", encode(&key));
            assert_eq!(client.put(&target, &[byte, 0, b'\n', 255]).status, 201);
        }
        for byte in 0..=255_u8 {
            let key = [byte, b'/', 0, byte];
            let answer = client.get(&format!("/v0/entity?id={}", encode(&key)));
            assert_eq!((answer.status, answer.body), (200, vec![byte, 0, b'\n', 255]));
        }
        // Unescaped where a URL allows it, and without normalization of path-like keys.
        assert_eq!(client.put("/v0/entity?id=a//b/../c:@!$,;*'()", b"v").status, 201);
        assert_eq!(client.get(&format!("/v0/entity?id={}", encode(b"a//b/../c:@!$,;*'()"))).body, b"v");
    });
}

#[test]
fn a_plus_is_a_space_and_the_first_parameter_wins() {
    each_engine(|_, client| {
        assert_eq!(client.put("/v0/entity?id=a+b", b"space").status, 201);
        assert_eq!(client.get("/v0/entity?id=a%20b").body, b"space");
        assert_eq!(client.get("/v0/entity?id=a%2Bb").status, 404);
        assert_eq!(client.put("/v0/entity?x=1&id=one&id=two", b"1").status, 201);
        assert_eq!(client.get("/v0/entity?id=one").body, b"1");
        assert_eq!(client.get("/v0/entity?id=two").status, 404);
    });
}

#[test]
fn a_missing_empty_or_badly_escaped_id_is_400() {
    each_engine(|_, client| {
        for target in [
            "/v0/entity",
            "/v0/entity?",
            "/v0/entity?id",
            "/v0/entity?id=",
            "/v0/entity?id=&id=a",
            "/v0/entity?ID=a",
            "/v0/entity?x=id",
            "/v0/entity?id=%zz",
            "/v0/entity?id=%",
            "/v0/entity?id=a%4",
        ] {
            for method in ["GET", "PUT", "DELETE"] {
                let answer = client.request(method, target, &[], (method == "PUT").then_some(b"value".as_slice()));
                assert_eq!(answer.status, 400, "{method} {target}");
            }
        }
        assert_eq!(client.get("/v0/entity?id=a").status, 404, "nothing was stored");
    });
}

#[test]
fn other_methods_are_405_before_the_parameters_are_checked() {
    each_engine(|_, client| {
        for method in ["POST", "PATCH", "OPTIONS", "TRACE", "BREW"] {
            for target in ["/v0/entity?id=k", "/v0/entity"] {
                let answer = client.request(method, target, &[], None);
                assert_eq!(answer.status, 405, "{method} {target}");
                assert_eq!(answer.header("allow"), Some("GET, PUT, DELETE"));
            }
        }
        // With a body, which must not be read as the next request.
        assert_eq!(client.request("POST", "/v0/entity?id=k", &[], Some(b"GET / HTTP/1.1\r\n\r\n")).status, 405);
        for target in ["/v0/entities?start=a", "/v0/status"] {
            let answer = client.request("PUT", target, &[], Some(b"x"));
            assert_eq!((answer.status, answer.header("allow")), (405, Some("GET")), "{target}");
        }
    });
}

#[test]
fn head_is_405_without_a_body() {
    each_engine(|_, client| {
        client.send("HEAD", "/v0/entity?id=k", &[], None).unwrap();
        let (status, _) = client.head().unwrap();
        assert_eq!(status, 405);
        // A body after the head would be read as this answer.
        assert_eq!(client.get("/v0/status").status, 200);
    });
}

#[test]
fn unknown_paths_are_400() {
    each_engine(|_, client| {
        for target in [
            "/abracadabra",
            "/",
            "/v0",
            "/v0/",
            "/v0/entity/",
            "/v0/entity/k?id=k",
            "/V0/entity?id=k",
            "//v0/entity?id=k",
        ] {
            assert_eq!(client.get(target).status, 400, "{target}");
        }
        assert_eq!(client.request("POST", "/abracadabra", &[], Some(b"body")).status, 400);
        let answer = client.get("/abracadabra");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        let document: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((document["status"].as_u64(), document["code"].as_str()), (Some(400), Some("unknown-path")));
    });
}

#[test]
fn status_is_200() {
    each_engine(|_, client| assert_eq!(client.get("/v0/status").status, 200));
}

#[test]
fn writes_report_their_durability_and_version() {
    for engine in SETUPS {
        for default in ["sync", "async"] {
            let server = ServerBuilder::new(engine).arg("--durability", default).start();
            let mut client = server.client();
            let echoed = |asked: &str| if keeps_nothing(engine) { "none".to_owned() } else { asked.to_owned() };
            let answer = client.put("/v0/entity?id=k", b"v");
            assert_eq!(answer.header("klad-durability"), Some(echoed(default).as_str()));
            let mut seen = vec![answer.version()];
            for asked in ["sync", "async"] {
                let answers = [
                    client.request("PUT", "/v0/entity?id=k", &[("Klad-Durability", asked)], Some(b"v")),
                    client.put(&format!("/v0/entity?id=k&durability={asked}"), b"v"),
                    client.request("DELETE", "/v0/entity?id=k", &[("klad-durability", asked)], None),
                    client.delete(&format!("/v0/entity?durability={asked}&id=k")),
                ];
                for answer in answers {
                    assert_eq!(answer.header("klad-durability"), Some(echoed(asked).as_str()));
                    assert!(!seen.contains(&answer.version()), "each write has its own version");
                    seen.push(answer.version());
                }
            }
            // Versions are ordered if the engine has one order of writes.
            assert!(engine.starts_with("late") || seen.is_sorted(), "{engine}: {seen:?}");
            // The parameter overrides the header.
            let both =
                client.request("PUT", "/v0/entity?id=k&durability=async", &[("Klad-Durability", "sync")], Some(b"v"));
            assert_eq!(both.header("klad-durability"), Some(echoed("async").as_str()));
            assert_eq!(client.get("/v0/entity?id=k").version(), both.version(), "ETag is the version of the write");
            for bad in ["none", "SYNC", "", "%ff"] {
                assert_eq!(client.put(&format!("/v0/entity?id=bad&durability={bad}"), b"v").status, 400, "{bad}");
            }
            assert_eq!(client.get("/v0/entity?id=bad").status, 404);
        }
    }
}

#[test]
fn requests_of_real_clients_are_understood() {
    each_engine(|_, client| {
        let h2c = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA\r\n";
        // An upgrade offered with every request is ignored.
        client.send_raw(format!(
            "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n{h2c}Content-Length: 5\r\n\r\nhello"
        ));
        assert_eq!(client.answer().unwrap().status, 201);
        client.send_raw(format!("GET /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n{h2c}\r\n"));
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (200, b"hello".as_slice()));
        assert_eq!(answer.header("upgrade"), None);
        // Content-Length: 0 on a request that needs none.
        assert_eq!(client.request("GET", "/v0/entity?id=k", &[("Content-Length", "0")], None).body, b"hello");
        assert_eq!(client.request("DELETE", "/v0/entity?id=k", &[("Content-Length", "0")], None).status, 202);
        // Head and body in separate segments, and the body in single bytes.
        client.send_raw("PUT /v0/entity?id=slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n");
        for byte in b"bytes" {
            client.stream.write_all(&[*byte]).unwrap();
        }
        assert_eq!(client.answer().unwrap().status, 201);
        assert_eq!(client.get("/v0/entity?id=slow").body, b"bytes");
    });
}

#[test]
fn chunked_bodies_and_pipelined_requests_are_read() {
    each_engine(|_, client| {
        client.send_raw(
            "PUT /v0/entity?id=c HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n\
             3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nTrailer: t\r\n\r\n",
        );
        assert_eq!(client.answer().unwrap().status, 201);
        assert_eq!(client.get("/v0/entity?id=c").body, b"abcdefg");
        let mut all = Vec::new();
        for n in 0..50 {
            write!(all, "PUT /v0/entity?id=p{n} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{n:02}")
                .unwrap();
            write!(all, "GET /v0/entity?id=p{n} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        }
        client.send_raw(all);
        for n in 0..50 {
            assert_eq!(client.answer().unwrap().status, 201);
            assert_eq!(client.answer().unwrap().body, format!("{n:02}").into_bytes());
        }
    });
}

#[test]
fn expect_100_continue_is_answered_before_the_body() {
    each_engine(|_, client| {
        client.send_raw(
            "PUT /v0/entity?id=e HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
        );
        assert_eq!(client.any_answer().unwrap().status, 100);
        client.send_raw("ok");
        assert_eq!(client.answer().unwrap().status, 201);
        // A rejection comes instead of 100 Continue.
        client.send_raw(
            "PUT /v0/entity?id= HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
        );
        assert_eq!(client.any_answer().unwrap().status, 400);
    });
}

#[test]
fn one_connection_serves_http_1_0_and_close() {
    each_engine(|server, client| {
        client.send_raw("GET /v0/status HTTP/1.0\r\n\r\n");
        assert_eq!(client.answer().unwrap().status, 200);
        assert!(client.is_closed_silently());
        let mut client = server.client();
        assert_eq!(client.request("GET", "/v0/status", &[("Connection", "close")], None).status, 200);
        assert!(client.is_closed_silently());
    });
}

#[test]
fn malformed_requests_are_400_and_close() {
    each_engine(|server, _| {
        for bad in [
            "GARBAGE\r\n\r\n",
            "GET /v0/status HTTP/9.9\r\nHost: localhost\r\n\r\n",
            "PUT /v0/entity?id=m HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
            "PUT /v0/entity?id=m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        ] {
            let mut client = server.client();
            client.send_raw(bad);
            assert_eq!(client.answer().unwrap().status, 400, "{bad}");
            assert!(client.is_closed_silently(), "{bad}");
        }
        // With a malformed body nothing is stored.
        let mut client = server.client();
        client.send_raw("PUT /v0/entity?id=m HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n");
        assert_eq!(client.answer().unwrap().status, 400);
        assert_eq!(server.client().get("/v0/entity?id=m").status, 404);
        // Nothing is removed either.
        let mut client = server.client();
        assert_eq!(client.put("/v0/entity?id=m", b"v").status, 201);
        client
            .send_raw("DELETE /v0/entity?id=m HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n");
        assert_eq!(client.answer().unwrap().status, 400);
        assert_eq!(server.client().get("/v0/entity?id=m").status, 200);
    });
}

#[test]
fn a_large_value_comes_back_completely() {
    each_engine(|_, client| {
        let value: Vec<u8> = (0..3_000_001_u32).map(|n| (n % 251) as u8).collect();
        assert_eq!(client.put("/v0/entity?id=large", &value).status, 201);
        // First from memory, then (RocksDB) the same way again: an answer does not change the stored value.
        for _ in 0..2 {
            let answer = client.get("/v0/entity?id=large");
            assert_eq!(answer.header("content-length"), Some("3000001"));
            assert!(answer.body == value);
        }
    });
}
