//! `/v1` through nginx and `HAProxy`: which keys reach klad in a path, that all do in `key64`, and that headers and
//! answers pass. `docs/proxies.md` has the configurations, and the table that this checks.

use super::support::one_key::{by_key64, by_path, head};
use super::support::proxies::{KINDS, Kind, Proxy, document};
use super::support::{Answer, Client, Server, ServerBuilder, random};

/// Sends a value through `proxy` and reads it from klad. Returns whether klad has stored it under this key.
fn survives(proxy: &Proxy, server: &Server, key: &[u8], target: &str) -> bool {
    let value = [b"value of ", key].concat();
    let target = format!("{target}{}durability=async", if target.contains('?') { '&' } else { '?' });
    // A new connection, because a proxy closes one after an error.
    let Ok(put) = proxy.client().try_request("PUT", &target, &[], Some(&value)) else { return false };
    let mut client = server.client();
    let direct = by_key64(key);
    let found = client.get(&direct);
    if (put.status, found.status) == (201, 200) && found.body == value {
        assert_eq!(client.delete(&direct).status, 204);
        return true;
    }
    // Whatever key it was stored under.
    for entry in client.get("/v0/entities?start=%00").chunks.unwrap_or_default() {
        let key = entry.split(|byte| *byte == b'\n').next().unwrap();
        client.delete(&by_key64(key));
    }
    false
}

/// Whether the document says that `key` needs `key64`.
fn needs_key64(kind: Kind, key: &[u8]) -> bool {
    let mut depth = 0_u32;
    let (mut leaves_root, mut has_dots) = (false, false);
    for segment in [b"v1/kv/", key].concat().split(|byte| *byte == b'/') {
        match segment {
            b"" => {}
            b"." => has_dots = true,
            b".." => {
                has_dots = true;
                leaves_root |= depth == 0;
                depth = depth.saturating_sub(1);
            }
            _ => depth += 1,
        }
    }
    let has_slashes = key.starts_with(b"/") || key.windows(2).any(|two| two == b"//");
    match kind {
        Kind::Haproxy => false,
        Kind::Nginx => key.contains(&0) || leaves_root,
        Kind::NginxWithPath => key.contains(&0) || has_dots || has_slashes,
    }
}

fn check_key(kind: Kind, proxy: &Proxy, server: &Server, key: &[u8]) {
    let expected = !needs_key64(kind, key);
    assert_eq!(survives(proxy, server, key, &by_path(key)), expected, "{kind:?}: {} in a path", key.escape_ascii());
    assert!(survives(proxy, server, key, &by_key64(key)), "{kind:?}: {} in key64", key.escape_ascii());
}

#[test]
fn every_byte_and_random_keys_survive_where_the_document_says_so() {
    let mut random = random();
    for kind in KINDS {
        let server = ServerBuilder::new("memory").start();
        let proxy = Proxy::start(kind, server.address);
        for byte in 0..=255_u8 {
            check_key(kind, &proxy, &server, &[byte]);
            check_key(kind, &proxy, &server, &[b'a', byte, b'b']);
        }
        for _ in 0..150 {
            let likely = b"../..//a%\0";
            let length = random.usize(1..16);
            let key: Vec<u8> = (0..length)
                .map(|_| if random.u8(..4) == 0 { random.u8(..) } else { likely[random.usize(..10)] })
                .collect();
            check_key(kind, &proxy, &server, &key);
        }
        check_key(kind, &proxy, &server, &[0xFF; 4096]);
    }
}

/// The rows of the table: the example, and for each of [`KINDS`] whether its path reaches klad.
fn rows(document: &str) -> Vec<(String, [bool; 3])> {
    let (_, table) = document.split_once("|---|---|---|---|---|\n").expect("a table of five columns");
    let rows = table.lines().take_while(|line| line.starts_with('|')).map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        assert_eq!(cells.len(), 5, "{line}");
        let verdict = |cell: &str| match cell {
            "path" => true,
            "key64" => false,
            other => panic!("{other} is neither path nor key64"),
        };
        // The order of the columns is that of `KINDS`.
        (cells[1].trim_matches('`').to_owned(), [verdict(cells[2]), verdict(cells[3]), verdict(cells[4])])
    });
    rows.collect()
}

/// Decodes an example of the document.
fn decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte == b'%' {
            bytes.push(u8::from_str_radix(std::str::from_utf8(&rest[..2]).unwrap(), 16).unwrap());
            rest = &rest[2..];
        } else {
            bytes.push(*byte);
        }
    }
    bytes
}

/// Returns the rows of the table that are not true.
fn wrong_rows(document: &str) -> Vec<String> {
    let rows = rows(document);
    assert!(rows.len() >= 8, "{rows:?}");
    let mut wrong = Vec::new();
    for (column, kind) in KINDS.into_iter().enumerate() {
        let server = ServerBuilder::new("memory").start();
        let proxy = Proxy::start(kind, server.address);
        for (example, verdicts) in &rows {
            let key = decode(example);
            // As the document writes it, and with every byte escaped.
            for target in [format!("/v1/kv/{example}"), by_path(&key)] {
                if survives(&proxy, &server, &key, &target) != verdicts[column] {
                    wrong.push(format!("{kind:?}: {target}"));
                }
            }
            assert!(survives(&proxy, &server, &key, &by_key64(&key)), "{kind:?}: {example} in key64");
        }
    }
    wrong
}

#[test]
fn the_table_of_the_document_is_true() {
    assert_eq!(wrong_rows(&document()), Vec::<String>::new());
}

#[test]
fn twin_a_false_row_of_the_table_is_noticed() {
    let false_rows = document().replace("| `a%00b` | key64 | path |", "| `a%00b` | path | key64 |");
    assert_eq!(wrong_rows(&false_rows).len(), 4, "both forms for both proxies");
}

/// Requests whose answers must be the same through a proxy: a value's life with conditions, parts and metadata.
fn life(client: &mut Client) -> Vec<String> {
    let mut told = Vec::new();
    let mut tag = String::new();
    let mut tell = |answer: &Answer| {
        let mut line = format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body));
        for name in [
            "klad-durability",
            "content-type",
            "content-range",
            "accept-ranges",
            "cache-control",
            "klad-meta-a_b",
            "klad-meta-c",
        ] {
            line += &format!("; {name}={:?}", answer.header(name));
        }
        for name in ["etag", "last-modified", "klad-ttl"] {
            line += &format!("; {name}: {}", answer.header(name).is_some());
        }
        if let Some(etag) = answer.header("etag") {
            assert!(etag.starts_with('"'), "{etag} is weak");
        }
        told.push(line);
    };
    let stored = [
        ("If-None-Match", "*"),
        ("Content-Type", "text/html"),
        ("Klad-Meta-a_b", "1"),
        ("Klad-Meta-C", "\u{e9}"),
        ("Klad-TTL", "1h"),
    ];
    let value = "<p>compressible</p>".repeat(100);
    for _ in 0..2 {
        let put = client.request("PUT", "/v1/kv/k", &stored, Some(value.as_bytes()));
        put.header("etag").unwrap().clone_into(&mut tag);
        tell(&put);
    }
    for headers in [
        &[("Accept-Encoding", "gzip")][..],
        &[("If-None-Match", &tag)],
        &[("If-Match", "\"1\"")],
        &[("Range", "bytes=3-14")],
        &[("Range", "bytes=3-14"), ("If-Range", &tag)],
        &[("Range", "bytes=9999-")],
    ] {
        tell(&client.request("GET", "/v1/kv/k", headers, None));
    }
    tell(&head(client, "/v1/kv/k", &[]));
    tell(&client.request("PUT", "/v1/kv/k", &[("If-Match", &tag)], Some(b"7")));
    tell(&client.request("PUT", "/v1/kv/k", &[("If-Match", &tag)], Some(b"8")));
    tell(&client.request("POST", "/v1/kv/k?op=add&by=-9", &[], None));
    tell(&client.request("POST", "/v1/kv/k?op=expire&ttl=60s", &[], None));
    client.send_raw(
        "PUT /v1/kv/k HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    );
    tell(&client.answer().unwrap());
    tell(&client.get("/v1/kv/k"));
    tell(&client.delete("/v1/kv/k"));
    tell(&client.delete("/v1/kv/k"));
    let large = vec![b'x'; 3 << 20];
    tell(&client.put("/v1/kv/large", &large));
    assert!(client.get("/v1/kv/large").body == large);
    told
}

#[test]
fn answers_and_headers_pass_unchanged() {
    let without_version = |lines: Vec<String>| -> Vec<String> {
        // ETags are in the documents of failed conditions.
        lines.into_iter().map(|line| line.split(|c: char| c.is_ascii_digit()).collect()).collect()
    };
    let direct = without_version(life(&mut ServerBuilder::new("memory").start().client()));
    for kind in [Kind::Nginx, Kind::Haproxy] {
        let server = ServerBuilder::new("memory").start();
        let proxy = Proxy::start(kind, server.address);
        let told = without_version(life(&mut proxy.client()));
        for (through, direct) in told.iter().zip(&direct) {
            assert_eq!(through, direct, "{kind:?}");
        }
    }
}
