//! Reads and writes of one key through `/v1`, the answers on a connection that goes on, and parts of values.

use std::io::Read as _;

use serde_json::json;

use super::support::batches::batch;
use super::support::one_key::{assert_rejected, by_key64, document, each, head};
use super::support::planted::Defect;
use super::support::{ENGINES, SETUPS, ServerBuilder, keeps_nothing};

#[test]
fn a_value_is_created_replaced_read_and_removed() {
    each(SETUPS, |_, client| {
        let absent = client.get("/v1/kv/k");
        assert_rejected(&absent, 404, "not-found", "GET");
        let created = client.put("/v1/kv/k", b"hello");
        assert_eq!((created.status, created.header("content-length")), (201, Some("0")));
        assert_eq!(created.header("location"), None);
        let read = client.get("/v1/kv/k");
        assert_eq!((read.status, &read.body[..]), (200, b"hello".as_slice()));
        assert_eq!(read.header("etag"), created.header("etag"));
        for (name, value) in [
            ("content-type", "application/octet-stream"),
            ("accept-ranges", "bytes"),
            ("cache-control", "no-cache"),
            ("content-length", "5"),
        ] {
            assert_eq!(read.header(name), Some(value), "{name}");
        }
        let modified = read.header("last-modified").expect("a time");
        assert!(modified.len() == 29 && modified.ends_with("GMT"), "{modified}");
        assert_eq!(read.header("klad-ttl"), None);
        let replaced = client.put("/v1/kv/k", b"");
        assert_eq!((replaced.status, replaced.body.len()), (204, 0));
        assert_ne!(replaced.header("etag"), created.header("etag"));
        let empty = client.get("/v1/kv/k");
        assert_eq!((empty.status, empty.body.len(), empty.header("content-length")), (200, 0, Some("0")));
        let removed = client.delete("/v1/kv/k");
        assert_eq!((removed.status, removed.body.len(), removed.header("etag")), (204, 0, None));
        assert_rejected(&client.get("/v1/kv/k"), 404, "not-found", "GET");
        assert_rejected(&client.delete("/v1/kv/k"), 404, "not-found", "DELETE");
        // A PUT without a length and without chunks has an empty value. A chunked body has no length in its head.
        assert_eq!(client.request("PUT", "/v1/kv/k", &[], None).status, 201);
        client.send_raw("PUT /v1/kv/k HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
        assert_eq!(client.answer().unwrap().status, 204);
        assert_eq!(client.get("/v1/kv/k").body, b"abc");
    });
}

#[test]
fn writes_report_their_durability_and_a_new_version() {
    for setup in SETUPS {
        let server = ServerBuilder::new(setup).arg("--durability", "async").start();
        let mut client = server.client();
        let mut seen = Vec::new();
        for (asked, expected) in [("", "async"), ("?durability=sync", "sync"), ("?durability=async", "async")] {
            let expected = if keeps_nothing(setup) { "none" } else { expected };
            let then = |more: &str| if asked.is_empty() { format!("?{more}") } else { format!("{asked}&{more}") };
            for answer in [
                client.put(&format!("/v1/kv/k{asked}"), b"1"),
                client.put(&format!("/v1/kv/k{asked}"), b"2"),
                client.request("POST", &format!("/v1/kv/k{}", then("op=add&by=1")), &[], None),
                client.request("POST", &format!("/v1/kv/k{}", then("op=expire&ttl=1h")), &[], None),
                client.delete(&format!("/v1/kv/k{asked}")),
            ] {
                assert_eq!(answer.header("klad-durability"), Some(expected), "{setup} {asked} {answer:?}");
                assert!(!seen.contains(&answer.version()), "{setup}: each change has its own version");
                seen.push(answer.version());
            }
        }
        let by_header = client.request("PUT", "/v1/kv/k", &[("Klad-Durability", "sync")], Some(b"v"));
        assert_eq!(by_header.header("klad-durability"), Some(if keeps_nothing(setup) { "none" } else { "sync" }));
        // A change that is rejected has no durability.
        let failed = client.request("PUT", "/v1/kv/k", &[("If-None-Match", "*")], Some(b"v"));
        assert_eq!((failed.status, failed.header("klad-durability")), (412, None));
    }
}

/// After an answer without a body the next one on the same connection must be read from its first byte.
#[test]
fn a_connection_goes_on_after_every_answer() {
    each(ENGINES, |server, client| {
        let mut ask = |method: &str, headers: &[(&str, &str)], body: Option<&[u8]>| {
            let answer = client.request(method, "/v1/kv/k", headers, body);
            assert_eq!(answer.header("connection"), None, "{method}");
            if matches!(answer.status, 204 | 304) {
                let framing = answer.header("content-length").or(answer.header("transfer-encoding"));
                assert_eq!((framing, answer.body.len()), (None, 0), "{method} {}", answer.status);
            }
            answer
        };
        assert_eq!(ask("PUT", &[], Some(b"first")).status, 201);
        let tag = ask("PUT", &[], Some(b"second")).header("etag").unwrap().to_owned();
        assert_eq!(ask("GET", &[("If-None-Match", &tag)], None).status, 304);
        assert_eq!(ask("GET", &[("Range", "bytes=1-2")], None).body, b"ec");
        assert_eq!(ask("GET", &[("Range", "bytes=9-")], None).status, 416);
        assert_eq!(ask("GET", &[("If-Match", "\"1x\"")], None).status, 412);
        assert_eq!(ask("PUT", &[("If-None-Match", "*")], Some(b"third")).status, 412);
        assert_eq!(ask("PUT", &[("If-None-Match", "x")], Some(b"GET / HTTP/1.1\r\n\r\n")).status, 400);
        assert_eq!(ask("DELETE", &[], None).status, 204);
        assert_eq!(ask("DELETE", &[], Some(b"a body that has no meaning")).status, 404);
        assert_eq!(ask("GET", &[], Some(b"another")).status, 404);
        // All at once, answered in their order. An answer to HEAD is followed by no body.
        let one = |line: &str, rest: &str| format!("{line} /v1/kv/p HTTP/1.1\r\nHost: a\r\n{rest}");
        let all = [
            one("PUT", "Content-Length: 1\r\n\r\nv"),
            one("HEAD", "\r\n"),
            one("PUT", "Content-Length: 1\r\n\r\nw"),
            one("GET", "\r\n"),
            one("DELETE", "\r\n"),
            one("HEAD", "\r\n"),
            one("GET", "Connection: close\r\n\r\n"),
        ];
        let mut stream = server.client().stream;
        std::io::Write::write_all(&mut stream, all.concat().as_bytes()).unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).unwrap();
        let statuses: Vec<_> = told.split("HTTP/1.1 ").skip(1).filter_map(|answer| answer.get(..3)).collect();
        assert_eq!(statuses, ["201", "200", "204", "200", "204", "404", "404"], "{told}");
    });
}

#[test]
fn head_answers_as_get_without_the_body() {
    each(SETUPS, |_, client| {
        let stored = [("Content-Type", "text/css"), ("Klad-Meta-A", "b"), ("Klad-TTL", "100 years")];
        let tag = client.request("PUT", "/v1/kv/k", &stored, Some(b"some bytes")).header("etag").unwrap().to_owned();
        let same: [(&str, &[(&str, &str)]); 6] = [
            ("/v1/kv/k", &[]),
            (&by_key64(b"k"), &[]),
            ("/v1/kv/absent", &[]),
            ("/v1/kv/k?x=1", &[]),
            ("/v1/kv/k", &[("If-None-Match", &tag)]),
            ("/v1/kv/k", &[("If-Match", "\"1x\"")]),
        ];
        for (target, headers) in same {
            let comparable = |answer: super::support::Answer| {
                let mut headers = answer.headers;
                headers.retain(|(name, _)| !["date", "klad-ttl"].contains(&&*name.to_ascii_lowercase()));
                headers.sort();
                (answer.status, headers)
            };
            let got = comparable(client.request("GET", target, headers, None));
            assert_eq!(comparable(head(client, target, headers)), got, "{target} {headers:?}");
        }
        assert_eq!(head(client, "/v1/kv/k", &[]).header("content-length"), Some("10"));
        assert!(head(client, "/v1/kv/k", &[]).header("klad-ttl").is_some());
        // Only GET has ranges.
        for range in ["bytes=0-1", "bytes=99-"] {
            let answer = head(client, "/v1/kv/k", &[("Range", range)]);
            assert_eq!((answer.status, answer.header("content-range")), (200, None), "{range}");
            assert_eq!(answer.header("content-length"), Some("10"));
        }
        assert_eq!(client.get("/v1/kv/k").body, b"some bytes");
    });
}

#[test]
fn a_range_is_a_part_of_the_value() {
    each(ENGINES, |_, client| {
        for length in [10_usize, 100_000, 3_000_000] {
            let value: Vec<u8> = (0..=250).cycle().take(length).collect();
            let tag = client.put("/v1/kv/k", &value).header("etag").unwrap().to_owned();
            for (range, first, end) in [
                ("bytes=0-0".to_owned(), 0, 1),
                ("bytes=2-4".to_owned(), 2, 5),
                ("bytes=7-".to_owned(), 7, length),
                ("bytes=-3".to_owned(), length - 3, length),
                (format!("bytes=-{}", length + 1), 0, length),
                (format!("bytes=5-{length}9"), 5, length),
                (format!("bytes={}-{}", length / 2, length - 1), length / 2, length),
            ] {
                let answer = client.request("GET", "/v1/kv/k", &[("Range", &range)], None);
                assert_eq!((answer.status, answer.header("etag")), (206, Some(&*tag)), "{range}");
                assert!(answer.body == value[first..end], "{range} of {length}");
                let expected = format!("bytes {first}-{}/{length}", end - 1);
                assert_eq!(answer.header("content-range"), Some(&*expected), "{range}");
            }
            for range in [format!("bytes={length}-"), "bytes=-0".to_owned(), format!("bytes={length}-{length}")] {
                let answer = client.request("GET", "/v1/kv/k", &[("Range", &range)], None);
                assert_rejected(&answer, 416, "range-not-satisfiable", &range);
                assert_eq!(answer.header("content-range"), Some(&*format!("bytes */{length}")), "{range}");
            }
            for range in ["bytes=0-1,3-4", "lines=0-1", "bytes=4-2", "bytes=", "bytes=x-", "bytes 0-1", "bytes=--1"] {
                let answer = client.request("GET", "/v1/kv/k", &[("Range", range)], None);
                assert_eq!((answer.status, answer.body.len()), (200, length), "{range}");
            }
            let twice = [("Range", "bytes=0-1"), ("Range", "bytes=3-4")];
            assert_eq!(client.request("GET", "/v1/kv/k", &twice, None).status, 200);
        }
        client.put("/v1/kv/empty", b"");
        for range in ["bytes=0-", "bytes=0-0", "bytes=-1"] {
            assert_eq!(client.request("GET", "/v1/kv/empty", &[("Range", range)], None).status, 416, "{range}");
        }
        assert_eq!(client.request("GET", "/v1/kv/absent", &[("Range", "bytes=0-")], None).status, 404);
    });
}

#[test]
fn a_part_is_only_of_the_value_that_if_range_names() {
    each(ENGINES, |_, client| {
        let old = client.put("/v1/kv/k", b"old value").header("etag").unwrap().to_owned();
        let tag = client.put("/v1/kv/k", b"new value").header("etag").unwrap().to_owned();
        let modified = client.get("/v1/kv/k").header("last-modified").unwrap().to_owned();
        let mut part = |condition: &str| {
            let answer = client.request("GET", "/v1/kv/k", &[("Range", "bytes=0-2"), ("If-Range", condition)], None);
            (answer.status, answer.body)
        };
        assert_eq!(part(&tag), (206, b"new".to_vec()));
        // The date names a second, and the value may have changed twice in it.
        for other in [&old, &format!("W/{tag}"), &modified, "\"x\"", "x", ""] {
            assert_eq!(part(other), (200, b"new value".to_vec()), "{other}");
        }
        // Without a condition that fails, the part of an unchanged value is 304.
        let both = [("Range", "bytes=0-2"), ("If-None-Match", &*tag)];
        assert_eq!(client.request("GET", "/v1/kv/k", &both, None).status, 304);
    });
}

#[test]
fn expect_100_continue_is_answered_before_the_body() {
    each(ENGINES, |server, client| {
        let put = |more: &str, length: u64| {
            format!(
                "PUT /v1/kv/e HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n{more}Content-Length: {length}\r\n\r\n"
            )
        };
        client.send_raw(put("", 2));
        assert_eq!(client.any_answer().unwrap().status, 100);
        client.send_raw("ok");
        assert_eq!(client.answer().unwrap().status, 201);
        // What the head alone rejects comes instead of 100 Continue.
        for (more, length, status) in [
            ("If-Match: x\r\n", 2, 400),
            ("Klad-TTL: x\r\n", 2, 400),
            ("Klad-Meta-\u{e9}: x\r\n", 2, 400),
            ("", 1 << 40, 413),
        ] {
            let mut other = server.client();
            other.send_raw(put(more, length));
            assert_eq!(other.any_answer().unwrap().status, status, "{more}");
        }
        // Whether a condition holds is known only with the write.
        client.send_raw(put("If-None-Match: *\r\n", 2));
        assert_eq!(client.any_answer().unwrap().status, 100);
        client.send_raw("no");
        assert_eq!(client.answer().unwrap().status, 412);
        assert_eq!(client.get("/v1/kv/e").body, b"ok");
    });
}

#[test]
fn errors_say_what_a_program_needs() {
    each(ENGINES, |_, client| {
        let tag = client.put("/v1/kv/k", b"text").header("etag").unwrap().to_owned();
        let failed = client.request("PUT", "/v1/kv/k", &[("If-None-Match", "*")], Some(b"v"));
        assert_rejected(&failed, 412, "precondition-failed", "PUT");
        assert_eq!((document(&failed)["current_etag"].as_str(), failed.header("etag")), (Some(&*tag), Some(&*tag)));
        let failed = client.request("PUT", "/v1/kv/absent", &[("If-Match", "*")], Some(b"v"));
        let said = document(&failed);
        assert!(said["current_etag"].is_null() && said.get("current_etag").is_some(), "{said}");
        assert_eq!(failed.header("etag"), None);
        let long = client.request("PUT", "/v1/kv/k", &[("Content-Length", "999999999999")], None);
        assert_rejected(&long, 413, "value-too-large", "PUT");
        assert!(document(&long)["limit"].as_u64().unwrap() > 0);
        for (answer, member) in [(&failed, "limit"), (&failed, "item"), (&long, "current_etag")] {
            assert_eq!(document(answer).get(member), None, "{member}");
        }
    });
    // The same request may succeed later: the memory engine is full until something is removed.
    let server = ServerBuilder::new("memory").arg("--memory", "64MiB").start();
    let mut client = server.client();
    let value = vec![b'x'; 1 << 20];
    let full = (0..200).map(|n| client.put(&format!("/v1/kv/{n}"), &value)).find(|answer| answer.status != 201);
    let full = full.expect("the engine is full");
    let said = document(&full);
    assert_eq!((full.status, &said["code"], &said["retryable"]), (507, &"memory-full".into(), &true.into()));
    assert_eq!(client.delete("/v1/kv/0").status, 204, "removing is how space is won back");
}

#[test]
fn what_an_engine_lacks_is_501() {
    let server = ServerBuilder::new("memory").defect(Some(Defect::StoresPlainValuesOnly)).start();
    let mut client = server.client();
    assert_eq!(client.put("/v0/entity?id=k", b"v").status, 201);
    assert_eq!(client.get("/v1/kv/k").body, b"v");
    for (method, target, headers) in [
        ("PUT", "/v1/kv/k", &[("If-None-Match", "*")][..]),
        ("PUT", "/v1/kv/k?ttl=1h", &[]),
        ("PUT", "/v1/kv/k", &[("Klad-Meta-A", "b")]),
        ("POST", "/v1/kv/k?op=add&by=1", &[]),
        ("POST", "/v1/kv/k?op=expire&ttl=", &[]),
        ("DELETE", "/v1/kv/k", &[("If-Match", "*")]),
    ] {
        let answer = client.request(method, target, headers, None);
        assert_rejected(&answer, 501, "not-supported-by-engine", target);
    }
    let removal = client.delete("/v1/kv?prefix=k");
    assert_rejected(&removal, 501, "not-supported-by-engine", "DELETE /v1/kv");
    for item in [
        json!({"op":"put","key":"k","value":"w","if_match":"*"}),
        json!({"op":"put","key":"k","value":"w","ttl":1}),
        json!({"op":"add","key":"k","by":1}),
        json!({"op":"expire","key":"k","ttl":1}),
    ] {
        let answer = batch(&mut client, "", &[json!({"op":"delete","key":"other"}), item.clone()]);
        assert_rejected(&answer, 501, "not-supported-by-engine", &item.to_string());
    }
    let several = [json!({"op":"put","key":"k","value":"w"}), json!({"op":"put","key":"l","value":"w"})];
    assert_rejected(&batch(&mut client, "?atomic=true", &several), 501, "not-supported-by-engine", "an atomic batch");
    assert_eq!(client.get("/v1/kv/k").body, b"v");
}

#[test]
fn a_value_is_given_back_whatever_the_client_accepts() {
    each(ENGINES, |_, client| {
        client.request("PUT", "/v1/kv/k", &[("Content-Encoding", "gzip")], Some(b"not gzip"));
        let accepts = [("Accept-Encoding", "br, gzip"), ("Accept", "image/png")];
        let answer = client.request("GET", "/v1/kv/k", &accepts, None);
        assert_eq!((answer.status, &answer.body[..]), (200, b"not gzip".as_slice()));
        assert_eq!((answer.header("content-encoding"), answer.header("vary")), (Some("gzip"), None));
    });
}

/// A client of HTTP/1.0 knows no chunks: the end of the connection is the end of a stream.
#[test]
fn clients_of_http_1_0_and_offers_of_an_upgrade_are_served() {
    for setup in SETUPS {
        let server = ServerBuilder::new(setup).start();
        let ask = |head: &str, body: &str| {
            let mut stream = server.client().stream;
            std::io::Write::write_all(&mut stream, format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
            let mut told = String::new();
            stream.read_to_string(&mut told).unwrap();
            let (head, body) = told.split_once("\r\n\r\n").expect("a head");
            assert!(!head.to_ascii_lowercase().contains("transfer-encoding"), "{setup}: {head}");
            (head[9..12].to_owned(), body.to_owned())
        };
        assert_eq!(ask("PUT /v1/kv/k HTTP/1.0\r\nContent-Length: 5", "value").0, "201", "{setup}");
        assert_eq!(ask("GET /v1/kv/k HTTP/1.0", ""), ("200".to_owned(), "value".to_owned()), "{setup}");
        let (status, body) = ask("GET /v1/kv?prefix=k HTTP/1.0\r\nAccept: application/x-ndjson", "");
        assert!(status == "200" && body.ends_with("{\"next\":null,\"complete\":true}\n"), "{setup}: {body}");
        let item = "{\"op\":\"get\",\"key\":\"k\"}";
        let batch =
            format!("POST /v1/batch HTTP/1.0\r\nContent-Type: application/x-ndjson\r\nContent-Length: {}", item.len());
        let (status, body) = ask(&batch, item);
        assert!(status == "200" && body.contains("\"value\":\"value\""), "{setup}: {body}");
        let upgrade =
            [("Upgrade", "h2c"), ("Connection", "Upgrade, HTTP2-Settings"), ("HTTP2-Settings", "AAMAAABkAAQ")];
        assert_eq!(server.client().request("GET", "/v1/kv/k", &upgrade, None).body, b"value", "{setup}");
    }
}
