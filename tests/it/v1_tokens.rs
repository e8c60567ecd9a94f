//! Tokens in `/v1`: a read-only token reads everything and changes nothing, also within a batch, and without a token no
//! path answers.

use serde_json::{Value, json};

use super::support::batches::{CBOR, NDJSON, lines, results, sequence};
use super::support::one_key::head;
use super::support::scanning::{Format, keys, read};
use super::support::token_file::{READER, TokenFile, WRITER, both};
use super::support::{Answer, Client, ENGINES, Server};
use super::tokens::quoted_paths;

type Found = Result<(), String>;

/// Sends a request with a token.
fn with(client: &mut Client, token: &str, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let bearer = format!("Bearer {token}");
    let headers = [headers, &[("Authorization", bearer.as_str())]].concat();
    client.request(method, target, &headers, Some(body))
}

fn refused(answer: &Answer, what: &str) -> Found {
    let document: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    if (answer.status, document["code"].as_str()) == (403, Some("read-only-token")) {
        return Ok(());
    }
    Err(format!("{what}: {} {}", answer.status, answer.text()))
}

/// Method, target and headers of a request.
type Row = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Requests that change something, with and without effect on what is stored.
const CHANGES: &[Row] = &[
    ("PUT", "/v1/kv/k", &[]),
    ("PUT", "/v1/kv?key64=aw&ttl=1h", &[]),
    ("PUT", "/v1/kv/k", &[("If-None-Match", "*")]),
    ("PUT", "/v1/kv/absent", &[("If-Match", "*")]),
    ("DELETE", "/v1/kv/k", &[]),
    ("DELETE", "/v1/kv/absent", &[]),
    ("DELETE", "/v1/kv?key64=aw", &[("If-Match", "\"1\"")]),
    ("POST", "/v1/kv/k?op=add&by=1", &[]),
    ("POST", "/v1/kv/k?op=add&by=0", &[]),
    ("POST", "/v1/kv?key64=aw&op=add&by=1", &[]),
    ("POST", "/v1/kv/k?op=expire&ttl=1ms", &[]),
    ("POST", "/v1/kv/k?op=expire&ttl=none", &[]),
    ("POST", "/v1/kv?key64=aw&op=expire&ttl=1ms", &[]),
    ("DELETE", "/v1/kv?prefix=k", &[]),
    ("DELETE", "/v1/kv?prefix64=aw", &[]),
    ("DELETE", "/v1/kv?start=k&end=l", &[]),
    ("DELETE", "/v1/kv?prefix=absent", &[]),
    ("DELETE", "/v1/kv?all=true", &[]),
];

/// Reads. With [`CHANGES`] and batches, all paths.
const READS: &[&str] =
    &["/v1/kv/k", "/v1/kv", "/v1/limits", "/v1/openapi.json", "/v1/docs", "/v1/changes", "/v1/nothing"];

const BATCH: &str = "/v1/batch";

/// Returns the paths in the source of the router that no request of these tests has.
fn missing(source: &str) -> Vec<String> {
    let targets = || READS.iter().chain([&BATCH]).chain(CHANGES.iter().map(|(_, target, _)| target));
    let routed = quoted_paths(source);
    routed.into_iter().filter(|path| !targets().any(|target| target.starts_with(path.as_str()))).collect()
}

#[test]
fn every_path_is_in_these_lists() {
    assert_eq!(missing(include_str!("../../crates/server/src/http/v1/route.rs")), Vec::<String>::new());
}

#[test]
fn twin_a_path_that_is_in_no_list_is_noticed() {
    assert_eq!(missing("\"/v1/kv\" => a,\n\"/v1/new\" => b,"), ["/v1/new"]);
}

/// Sends every request that would change something with the token of a reader.
fn changes_are_refused(server: &Server) -> Found {
    let mut client = server.client();
    for (method, target, headers) in CHANGES {
        refused(&with(&mut client, READER, method, target, headers, b""), &format!("{method} {target}"))?;
    }
    let get = json!({"op": "get", "key": "k"});
    for item in [
        json!({"op": "put", "key": "k", "value": "w"}),
        json!({"op": "put", "key": "k", "value": "w", "if_match": "\"1\""}),
        json!({"op": "delete", "key": "k"}),
        json!({"op": "add", "key": "k", "by": 1}),
        json!({"op": "expire", "key": "k", "ttl": 0.001}),
    ] {
        // Alone, first, last, and on both sides of the bound of the first slice.
        for (gets, position) in [(0, 0), (2, 0), (2, 1), (2, 2), (600, 511), (600, 512), (600, 600)] {
            let mut items = vec![get.clone(); gets];
            items.insert(position, item.clone());
            for (content_type, body) in [(NDJSON, lines(&items)), (CBOR, sequence(&items))] {
                for target in ["/v1/batch", "/v1/batch?atomic=true"] {
                    let headers = [("Content-Type", content_type)];
                    let answer = with(&mut client, READER, "POST", target, &headers, &body);
                    refused(&answer, &format!("{item} as item {position}, {content_type}, {target}"))?;
                }
            }
        }
    }
    Ok(())
}

fn server(engine: &str, of_reader: &str) -> Server {
    let file = TokenFile::new(&format!("read-write {WRITER}\n{of_reader} {READER}\n"));
    let server = file.builder(engine).start();
    assert_eq!(with(&mut server.client(), WRITER, "PUT", "/v1/kv/k", &[], b"1").status, 201);
    server
}

#[test]
fn a_read_only_token_changes_nothing() {
    for engine in ENGINES {
        let server = server(engine, "read-only");
        let mut client = server.client();
        let mut stored = || {
            let page = with(&mut client, READER, "GET", "/v1/kv?limit=9", &[], b"");
            read(&page, Format::Page).unwrap().items
        };
        let before = stored();
        changes_are_refused(&server).unwrap_or_else(|found| panic!("{engine}: {found}"));
        assert_eq!(stored(), before, "{engine}");
    }
}

#[test]
fn twin_a_reader_that_may_change_something_is_noticed() {
    let found = changes_are_refused(&server("memory", "read-write")).expect_err("the token may write");
    assert!(found.starts_with("PUT /v1/kv/k: 204"), "{found}");
}

#[test]
fn a_read_only_token_reads_everything() {
    for engine in ENGINES {
        let server = server(engine, "read-only");
        let mut client = server.client();
        for target in ["/v1/kv/k", "/v1/kv?key64=aw", "/v1/limits", "/v1/openapi.json", "/v1/docs", "/v1/kv?count=true"]
        {
            assert_eq!(with(&mut client, READER, "GET", target, &[], b"").status, 200, "{engine} {target}");
            let bearer = format!("Bearer {READER}");
            assert_eq!(head(&mut client, target, &[("Authorization", &bearer)]).status, 200, "{engine} {target}");
        }
        for format in [Format::Page, Format::JsonLines, Format::CborSequence] {
            let listed = with(&mut client, READER, "GET", "/v1/kv?prefix=k", &[("Accept", format.accept())], b"");
            assert_eq!(keys(&read(&listed, format).unwrap().listed), ["k"]);
        }
        let gets: Vec<Value> = (0..600).map(|number| json!({"op": "get", "key": format!("k{}", number % 2)})).collect();
        for (content_type, body) in [(NDJSON, lines(&gets)), (CBOR, sequence(&gets)), (NDJSON, Vec::new())] {
            for target in ["/v1/batch", "/v1/batch?atomic=true"] {
                let headers = [("Content-Type", content_type)];
                let answer = with(&mut client, READER, "POST", target, &headers, &body);
                assert_eq!(results(&answer).len(), if body.is_empty() { 0 } else { 600 }, "{engine}");
            }
        }
    }
}

#[test]
fn without_a_token_no_path_of_v1_answers() {
    for engine in ENGINES {
        let server = both().builder(engine).start();
        let mut client = server.client();
        let reads = READS.iter().map(|target| ("GET", *target, &[][..]));
        let batch = ("POST", BATCH, &[("Content-Type", NDJSON)][..]);
        for (method, target, headers) in reads.chain(CHANGES.iter().copied()).chain([batch]) {
            for answer in [
                client.request(method, target, headers, None),
                with(&mut client, "unknown-0123456789", method, target, headers, b""),
            ] {
                assert_eq!(answer.status, 401, "{method} {target}");
                assert!(answer.text().contains("\"unauthorized\""), "{method} {target}: {}", answer.text());
            }
        }
    }
}
