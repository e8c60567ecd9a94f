//! Keys of `/v1`: any bytes, in the path or in `key64`, decoded exactly once.

use serde_json::Value;

use super::support::conformance::CASSANDRA;
use super::support::one_key::{assert_rejected, base64url, by_key64, by_path, document, each, head};
use super::support::{ENGINES, SETUPS, ServerBuilder, encode, random};

#[test]
fn every_byte_is_a_key_by_path_and_by_key64() {
    each(ENGINES, |_, client| {
        for byte in 0..=255_u8 {
            for key in [vec![byte], vec![byte, b'/', 0, byte]] {
                let stored = client.put(&format!("{}?durability=async", by_path(&key)), &key);
                assert_eq!(stored.status, 201, "{key:?}");
                assert_eq!(client.get(&by_key64(&key)).body, key, "{key:?}");
                assert_eq!(client.get(&by_path(&key)).body, key, "{key:?}");
            }
        }
    });
}

/// Returns `key` as a client may write it in a path: some bytes plain where a path allows them, and others escaped.
fn as_path(key: &[u8], random: &mut fastrand::Rng) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(byte);
    let one = |byte: &u8| match (plain(byte) && random.bool(), random.bool()) {
        (true, _) => char::from(*byte).to_string(),
        (false, true) => format!("%{byte:02X}"),
        (false, false) => format!("%{byte:02x}"),
    };
    format!("/v1/kv/{}", key.iter().map(one).collect::<String>())
}

#[test]
fn random_keys_come_back_in_every_form() {
    let seeded = random();
    each(ENGINES, |_, client| {
        let mut random = seeded.clone();
        for _ in 0..200 {
            let length = random.usize(1..40);
            let likely = b"./%+ \0a";
            let key: Vec<u8> =
                (0..length).map(|_| if random.bool() { random.u8(..) } else { likely[random.usize(..7)] }).collect();
            let padded = format!("{}{}", by_key64(&key), ["", "%3D", "%3D%3D"][(3 - length % 3) % 3]);
            let forms = [as_path(&key, &mut random), by_key64(&key), padded];
            let put = client.request("PUT", &forms[random.usize(..3)], &[("Klad-Durability", "async")], Some(&key));
            assert!(matches!(put.status, 201 | 204), "{key:?} {put:?}");
            for form in &forms {
                assert_eq!(client.get(form).body, key, "{form}");
            }
            assert_eq!(client.delete(&forms[random.usize(..3)]).status, 204, "{key:?}");
            for form in &forms {
                assert_eq!(client.get(form).status, 404, "{form}");
            }
        }
    });
}

#[test]
fn a_key_is_everything_after_the_prefix() {
    each(SETUPS, |_, client| {
        for (raw, key) in [
            ("a//b/../c/./d", "a//b/../c/./d"),
            ("/", "/"),
            ("/a", "/a"),
            ("a/", "a/"),
            (".", "."),
            ("..", ".."),
            ("../../../v0/status", "../../../v0/status"),
            ("%2e%2E/%2F", "..//"),
            ("a+b", "a+b"),
            ("a%2Bb%20c", "a+b c"),
            ("a%252Fb", "a%2Fb"),
            ("a;b=c&d:@!$,*'()~", "a;b=c&d:@!$,*'()~"),
            ("a%3Fb%23c", "a?b#c"),
            ("v1/kv/a", "v1/kv/a"),
        ] {
            assert_eq!(client.put(&format!("/v1/kv/{raw}"), raw.as_bytes()).status, 201, "{raw}");
            assert_eq!(client.get(&by_key64(key.as_bytes())).body, raw.as_bytes(), "{raw}");
            assert_eq!(client.get(&format!("/v0/entity?id={}", encode(key.as_bytes()))).body, raw.as_bytes(), "{raw}");
            assert_eq!(client.delete(&format!("/v1/kv/{raw}")).status, 204, "{raw}");
        }
        // Absolute form, as a client sends it to a proxy.
        assert_eq!(client.put("http://localhost/v1/kv/a//..", b"absolute").status, 201);
        assert_eq!(client.get(&by_key64(b"a//..")).body, b"absolute");
    });
}

#[test]
fn v0_and_v1_see_the_same_keys() {
    each(SETUPS, |_, client| {
        let by_v0 = client.put("/v0/entity?id=k", b"zero");
        let got = client.get("/v1/kv/k");
        assert_eq!((got.status, &got.body[..]), (200, b"zero".as_slice()));
        assert_eq!(got.header("etag"), by_v0.header("etag"));
        assert_eq!(got.header("content-type"), Some("application/octet-stream"));
        assert_eq!(got.header("last-modified"), None, "/v0 stores no time");
        let headers = [("Content-Type", "text/plain"), ("Klad-Meta-Owner", "me"), ("Klad-TTL", "1h")];
        let by_v1 = client.request("PUT", "/v1/kv/k", &headers, Some(b"one"));
        assert_eq!(by_v1.status, 204, "the key exists");
        let got = client.get("/v0/entity?id=k");
        assert_eq!((got.status, &got.body[..]), (200, b"one".as_slice()));
        assert_eq!(got.header("etag"), by_v1.header("etag"));
        assert_eq!(got.header("content-type"), Some("application/octet-stream"), "/v0 knows no types");
        assert_eq!(got.header("klad-meta-owner").or(got.header("klad-ttl")), None);
        assert_eq!(client.get("/v0/entities?start=a").body, b"k\none");
        // A PUT of /v0 replaces the whole entry.
        assert_eq!(client.put("/v0/entity?id=k", b"again").status, 201);
        let got = client.get("/v1/kv/k");
        assert_eq!(got.header("content-type"), Some("application/octet-stream"));
        assert_eq!(got.header("klad-meta-owner").or(got.header("klad-ttl")), None);
        assert_eq!(client.delete("/v1/kv/k").status, 204);
        assert_eq!(client.get("/v0/entity?id=k").status, 404);
        assert_eq!(client.put("/v1/kv/k", b"v").status, 201);
        assert_eq!(client.delete("/v0/entity?id=k").status, 202);
        assert_eq!(client.get("/v1/kv/k").status, 404);
    });
}

#[test]
fn an_answer_says_what_to_do() {
    let server = ServerBuilder::new("memory").start();
    let mut client = server.client();
    for (method, target, body, advice) in [
        ("PUT", "/v1/kv/", &b"v"[..], "the key is missing or empty: add it to the path (/v1/kv/KEY)"),
        ("PUT", "/v1/kv", b"v", "or give it as parameter key64"),
        ("POST", "/v1/kv/k", b"v", "PUT stores a value"),
        ("GET", "/", b"", "a value is at /v1/kv/KEY, and the console is on the admin address"),
        ("GET", &format!("/v1/kv/{}", "k".repeat(5000)), b"", "--key-max"),
    ] {
        let said = document(&client.request(method, target, &[], Some(body)))["detail"].to_string();
        assert!(said.contains(advice), "{method} {target}: {said}");
    }
    client.send_raw(b"PUT /v1/kv/k HTTP/1.1\r\nHost: klad\r\nContent-Length: 99999999\r\n\r\n");
    let said = document(&client.answer().unwrap())["detail"].to_string();
    assert!(said.contains("--value-max"), "{said}");
}

#[test]
fn a_bad_key_is_rejected_and_nothing_is_stored() {
    each(ENGINES, |server, client| {
        for (target, status, code) in [
            ("/v1/kv/", 400, "missing-parameter"),
            ("/v1/kv?key64=", 400, "missing-parameter"),
            ("/v1/kv?key64", 400, "missing-parameter"),
            ("/v1/kv/%", 400, "bad-escape"),
            ("/v1/kv/a%4", 400, "bad-escape"),
            ("/v1/kv/%zz", 400, "bad-escape"),
            ("/v1/kv?key64=%zz", 400, "bad-escape"),
            ("/v1/kv?key64=A", 400, "bad-base64"),
            ("/v1/kv?key64=/w", 400, "bad-base64"),
            ("/v1/kv?key64=a+8", 400, "bad-base64"),
            ("/v1/kv?key64=YQ%3D%3D%3D", 400, "bad-base64"),
            ("/v1/kv?key64=YR", 400, "bad-base64"),
            ("/v1/kv?key64=YQ&key64=YQ", 400, "repeated-parameter"),
            ("/v1/kv?key64=YQ&%6bey64=YQ", 400, "repeated-parameter"),
            ("/v1/kv/a?key64=YQ", 400, "unknown-parameter"),
            ("/v1/kv/?key64=YQ", 400, "unknown-parameter"),
            ("/v1/kv/a?tll=60s", 400, "unknown-parameter"),
            ("/v1/kv/a?TTL=60s", 400, "unknown-parameter"),
            ("/v1/kv/a?durability=sync&durability=async", 400, "repeated-parameter"),
            ("/v1/kv/a?durability=none", 400, "bad-durability"),
            ("/v1/kv/a?durability=", 400, "bad-durability"),
        ] {
            assert_rejected(&client.put(target, b"value"), status, code, target);
        }
        for (method, target) in [("GET", "/v1/kv/a?ttl=1"), ("DELETE", "/v1/kv/a?ttl=1"), ("GET", "/v1/kv/a?x")] {
            assert_rejected(&client.request(method, target, &[], None), 400, "unknown-parameter", target);
        }
        let said = document(&client.get("/v1/kv/a?limit=3"))["detail"].as_str().unwrap().to_owned();
        assert!(said.contains("limit"), "{said}");
        assert_rejected(
            &client.request("GET", "/v1/kv/a", &[("Klad-Timeout", "1parsec")], None),
            400,
            "bad-timeout",
            "",
        );
        // Bytes that are no target are rejected before there is a path.
        for bytes in
            [&b"PUT /v1/kv/a b HTTP/1.1\r\n"[..], b"PUT /v1/kv/\xff HTTP/1.1\r\n", b"PUT /v1/kv/a\0 HTTP/1.1\r\n"]
        {
            let mut other = server.client();
            other.send_raw([bytes, b"Host: a\r\nContent-Length: 0\r\n\r\n"].concat());
            assert_eq!(other.answer().unwrap().status, 400, "{bytes:?}");
        }
        assert_eq!(client.get("/v0/entities?start=%00").body, b"", "nothing was stored");
    });
}

#[test]
fn the_longest_key_is_a_key_and_a_longer_one_is_414() {
    each(ENGINES, |_, client| {
        let (longest, longer) = ([0xFF; 4096], [0xFF; 4097]);
        assert_eq!(client.put(&by_path(&longest), b"path").status, 201);
        assert_eq!(client.get(&by_key64(&longest)).body, b"path");
        for target in [by_path(&longer), by_key64(&longer)] {
            for method in ["GET", "PUT", "DELETE", "POST"] {
                let answer = client.request(method, &target, &[], None);
                assert_rejected(&answer, 414, "key-too-long", method);
                assert_eq!(document(&answer)["limit"], 4096);
            }
        }
    });
}

#[test]
fn unknown_paths_are_404_and_unknown_methods_405() {
    each(ENGINES, |_, client| {
        for target in ["/v1/", "/v1/k", "/v1/kvx", "/v1/KV/a", "/v1/batches", "/v1/limits/", "/v1//kv/a"] {
            for method in ["GET", "PUT", "BREW"] {
                let answer = client.request(method, target, &[], None);
                assert_rejected(&answer, 404, "unknown-path", target);
            }
        }
        for (target, allow) in [
            ("/v1/kv/a".to_owned(), "GET, HEAD, PUT, DELETE, POST"),
            (by_key64(b"a"), "GET, HEAD, PUT, DELETE, POST"),
            ("/v1/limits".to_owned(), "GET, HEAD"),
            ("/v1/batch".to_owned(), "POST"),
        ] {
            for method in ["PATCH", "OPTIONS", "BREW"] {
                let answer = client.request(method, &target, &[], Some(b"a body"));
                assert_rejected(&answer, 405, "method-not-allowed", &target);
                assert_eq!(answer.header("allow"), Some(allow), "{target}");
            }
        }
    });
}

/// Returns the column of an engine in the table "What each engine can do" of the document, as JSON.
fn capabilities_of(engine: &Value) -> Value {
    let document = include_str!("../../docs/http-api.md");
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().replace('`', "")).collect::<Vec<_>>();
    let mut table = document.lines().skip_while(|line| !line.starts_with("| In `capabilities` |"));
    let column = cells(table.next().unwrap()).iter().position(|cell| engine == cell.as_str()).unwrap();
    let rows = table.skip(1).take_while(|line| line.starts_with('|')).map(cells);
    rows.map(|row| (row[1].clone(), Value::from(row[column] == "yes"))).collect::<serde_json::Map<_, _>>().into()
}

#[test]
fn the_limits_are_told() {
    each(ENGINES, |_, client| {
        let answer = client.get("/v1/limits");
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
        let limits: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((limits["key_bytes_max"].as_u64(), limits["durability"].as_str()), (Some(4096), Some("sync")));
        assert!(ENGINES.contains(&limits["engine"].as_str().unwrap()) || limits["engine"] == CASSANDRA);
        assert_eq!(capabilities_of(&limits["engine"]), limits["capabilities"], "{limits}");
        let length = head(client, "/v1/limits", &[]).header("content-length").map(str::to_owned);
        assert_eq!(length, Some(answer.body.len().to_string()));
        assert_rejected(&client.get("/v1/limits?x=1"), 400, "unknown-parameter", "/v1/limits?x=1");
    });
}

/// What this file encodes is what the standard says (RFC 4648, section 10).
#[test]
fn base64_of_the_tests_is_that_of_the_standard() {
    for (bytes, text) in [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
        assert_eq!(base64url(bytes.as_bytes()), text);
    }
    assert_eq!(base64url(&[0xFB, 0xFF]), "-_8");
}
