//! Content types and user metadata of `/v1`: kept with the value, given back byte for byte, and bounded.

use std::io::{Read as _, Write as _};

use serde_json::{Value, json};

use super::support::batches::done;
use super::support::one_key::{assert_rejected, document, each, head};
use super::support::{DURABLE_ENGINES, ENGINES, SETUPS, ServerBuilder};

#[test]
fn metadata_is_kept_until_the_next_put() {
    each(SETUPS, |_, client| {
        let headers = [
            ("Content-Type", "text/html; charset=\"utf-8\""),
            ("Klad-Meta-Owner", "somebody"),
            ("KLAD-META-EMPTY", ""),
            ("klad-meta-many", "one"),
            ("klad-meta-many", "two, three"),
            ("Klad-Meta-x_y.z!", "punctuation"),
            ("X-Other", "not kept"),
        ];
        client.request("PUT", "/v1/kv/k", &headers, Some(b"v"));
        for answer in [client.get("/v1/kv/k"), head(client, "/v1/kv/k", &[])] {
            assert_eq!(answer.header("content-type"), Some("text/html; charset=\"utf-8\""));
            let mut own: Vec<_> =
                answer.headers.iter().filter(|(name, _)| name.starts_with("klad-meta-")).cloned().collect();
            own.sort();
            let expected = [("empty", ""), ("many", "one"), ("many", "two, three"), ("owner", "somebody")];
            let mut expected: Vec<_> =
                expected.map(|(name, value)| (format!("klad-meta-{name}"), value.to_owned())).to_vec();
            expected.push(("klad-meta-x_y.z!".to_owned(), "punctuation".to_owned()));
            assert_eq!(own, expected);
            assert_eq!(answer.header("x-other"), None);
        }
        // A part has the metadata of the whole.
        let part = client.request("GET", "/v1/kv/k", &[("Range", "bytes=0-0")], None);
        assert_eq!((part.status, part.header("klad-meta-owner")), (206, Some("somebody")));
        client.request("PUT", "/v1/kv/k", &[("Klad-Meta-New", "1")], Some(b"v"));
        let answer = client.get("/v1/kv/k");
        assert_eq!(answer.header("klad-meta-owner"), None, "all of it is replaced");
        assert_eq!(answer.header("klad-meta-new"), Some("1"));
        assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    });
}

#[test]
fn a_content_encoding_is_kept_with_the_value_and_changes_no_byte() {
    each(SETUPS, |_, client| {
        // Not gzip: klad neither decodes nor checks it.
        let headers = [("Content-Encoding", "gzip"), ("Content-Type", "text/plain")];
        client.request("PUT", "/v1/kv/k", &headers, Some(b"0123456789"));
        let accepts = [("Accept-Encoding", "identity")];
        for answer in [client.request("GET", "/v1/kv/k", &accepts, None), head(client, "/v1/kv/k", &[])] {
            assert_eq!((answer.status, answer.header("content-encoding")), (200, Some("gzip")));
            assert_eq!(answer.header("content-length"), Some("10"));
        }
        assert_eq!(client.get("/v1/kv/k").body, b"0123456789");
        let part = client.request("GET", "/v1/kv/k", &[("Range", "bytes=2-3")], None);
        assert_eq!((part.status, &part.body[..], part.header("content-encoding")), (206, &b"23"[..], Some("gzip")));
        let members = [("content_type", json!("text/plain")), ("content_encoding", json!("gzip"))];
        let listed = client.get("/v1/kv?prefix=k");
        let listed: Value = serde_json::from_slice(&listed.body).unwrap();
        let put = json!({"op": "put", "key": "b", "value": "v", "content_encoding": "br"});
        let read = [json!({"op": "get", "key": "k"}), json!({"op": "get", "key": "b"})];
        let results = done(client, "", &[put, read[0].clone(), read[1].clone()]);
        for (name, value) in members {
            assert_eq!((&listed["entries"][0][name], &results[1][name]), (&value, &value));
        }
        assert_eq!(results[2], json!({"status": 200, "value": "v", "content_encoding": "br"}));
        assert_eq!(client.get("/v1/kv/b").header("content-encoding"), Some("br"));
        client.put("/v1/kv/k", b"plain");
        assert_eq!(client.get("/v1/kv/k").header("content-encoding"), None, "it is replaced");
        // The answers of /v0 do not change.
        assert_eq!(client.get("/v0/entity?id=b").header("content-encoding"), None);
    });
}

#[test]
fn the_bytes_of_a_header_come_back_unchanged() {
    each(ENGINES, |server, _| {
        let bytes: Vec<u8> = (0x21..=0x7E).chain(*b" \t").chain(0x80..=0xFF).chain(*b".").collect();
        let lines = b"PUT /v1/kv/k HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nKlad-Meta-Bytes: ";
        let read = b"\r\n\r\nGET /v1/kv/k HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let mut stream = server.client().stream;
        stream.write_all(&[&lines[..], &bytes, read].concat()).unwrap();
        let mut told = Vec::new();
        stream.read_to_end(&mut told).unwrap();
        let line = [b"\r\nklad-meta-bytes: ", &bytes[..], b"\r\n"].concat();
        assert!(told.windows(line.len()).any(|part| part == line), "{}", String::from_utf8_lossy(&told));
    });
}

#[test]
fn metadata_up_to_its_limits_is_kept() {
    each(ENGINES, |_, client| {
        let names: Vec<_> = (0..32).map(|number| format!("Klad-Meta-{number:02}")).collect();
        let most: Vec<_> = names.iter().map(|name| (&**name, "v")).collect();
        assert_eq!(client.request("PUT", "/v1/kv/k", &most, Some(b"v")).status, 201);
        let count = |answer: super::support::Answer| {
            answer.headers.iter().filter(|(name, _)| name.starts_with("klad-meta-")).count()
        };
        assert_eq!(count(client.get("/v1/kv/k")), 32);
        let (longest, long_name, long_type) = ("v".repeat(4095), "n".repeat(255), "t".repeat(256));
        let name = format!("Klad-Meta-{long_name}");
        for headers in
            [&[("Klad-Meta-A", &*longest)][..], &[(&*name, &longest[255..4095])], &[("Content-Type", &*long_type)]]
        {
            assert_eq!(client.request("PUT", "/v1/kv/k", headers, Some(b"v")).status, 204, "{headers:?}");
            let read = client.get("/v1/kv/k");
            assert_eq!(read.header(headers[0].0), Some(headers[0].1));
        }
    });
}

#[test]
fn too_much_or_bad_metadata_is_400_and_nothing_is_stored() {
    each(ENGINES, |_, client| {
        let names: Vec<_> = (0..33).map(|number| format!("Klad-Meta-{number:02}")).collect();
        let many: Vec<_> = names.iter().map(|name| (&**name, "v")).collect();
        let large = "v".repeat(4096);
        let halves = [("Klad-Meta-A", &large[..2048]), ("Klad-Meta-B", &large[..2047])];
        for headers in [&many[..], &[("Klad-Meta-A", &*large)], &halves] {
            let answer = client.request("PUT", "/v1/kv/k", headers, Some(b"v"));
            assert_rejected(&answer, 400, "metadata-too-large", &format!("{} headers", headers.len()));
            assert_eq!(document(&answer)["limit"], 4096);
        }
        let (long_type, long_name) = ("t".repeat(257), format!("Klad-Meta-{}", "n".repeat(256)));
        for headers in [
            &[("Content-Type", &*long_type)][..],
            &[("Content-Type", "text/\u{e9}")],
            &[("Content-Type", "a\tb")],
            &[("Content-Type", "text/plain"), ("Content-Type", "text/html")],
            &[("Content-Encoding", &*long_type)],
            &[("Content-Encoding", "gzip"), ("Content-Encoding", "br")],
            &[("Klad-Meta-", "v")],
            &[(&*long_name, "v")],
        ] {
            let answer = client.request("PUT", "/v1/kv/k", headers, Some(b"v"));
            assert_rejected(&answer, 400, "bad-metadata", &format!("{headers:?}"));
        }
        assert_eq!(client.get("/v1/kv/k").status, 404);
    });
}

#[test]
fn metadata_and_times_survive_a_kill() {
    for engine in DURABLE_ENGINES {
        let data = tempfile::tempdir().unwrap();
        let builder = ServerBuilder::new(engine).data(data.path());
        let server = builder.start();
        let headers =
            [("Content-Type", "text/plain"), ("Content-Encoding", "br"), ("Klad-Meta-A", "b"), ("Klad-TTL", "1h")];
        let mut client = server.client();
        client.request("PUT", "/v1/kv/k", &headers, Some(b"v"));
        let modified = client.get("/v1/kv/k").header("last-modified").map(str::to_owned);
        server.kill();
        let server = builder.start();
        let read = server.client().get("/v1/kv/k");
        assert_eq!(read.header("content-type").zip(read.header("klad-meta-a")), Some(("text/plain", "b")), "{engine}");
        assert_eq!(read.header("content-encoding"), Some("br"), "{engine}");
        assert_eq!(read.header("last-modified"), modified.as_deref(), "{engine}");
        assert!(modified.is_some() && read.header("klad-ttl").is_some(), "{engine}");
    }
}
