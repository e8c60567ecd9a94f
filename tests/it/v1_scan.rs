//! Scans of `/v1`: order, bounds, groups, cursors, formats and snapshots.

use std::collections::BTreeMap;
use std::time::Duration;

use super::support::planted::Defect;
use super::support::scanning::{
    FORMATS, Format, Listed, base64url, code, each, keys, read, scan, scan_all, store, store_all,
};
use super::support::{
    Answer, DURABLE_ENGINES, ENGINES, LATE_SETUPS, SETUPS, ServerBuilder, encode, random, wait_until,
};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A scan that a client may ask for.
#[derive(Debug)]
struct Query {
    prefix: Option<Vec<u8>>,
    start: Option<Vec<u8>>,
    end: Option<Vec<u8>>,
    reverse: bool,
    keys_only: bool,
    delimiter: Option<&'static [u8]>,
    limit: Option<usize>,
}

impl Query {
    fn random(random: &mut fastrand::Rng) -> Query {
        let mut bound = |odds: f64, empty: bool| {
            let key = if empty && random.u8(0..8) == 0 { Vec::new() } else { random_key(random) };
            (random.f64() < odds).then_some(key)
        };
        Query {
            prefix: bound(0.4, true).map(|mut prefix| {
                prefix.truncate(2);
                prefix
            }),
            start: bound(0.4, true),
            end: bound(0.4, false),
            reverse: random.bool(),
            keys_only: random.bool(),
            delimiter: *random.choice([None, Some(&b"/"[..]), Some(b"aa")].iter()).unwrap(),
            limit: random.bool().then(|| random.usize(1..60)),
        }
    }

    fn text(&self, random: &mut fastrand::Rng) -> String {
        let mut all = Vec::new();
        for (name, value) in [("prefix", &self.prefix), ("start", &self.start), ("end", &self.end)] {
            if let Some(value) = value {
                all.push(if random.bool() {
                    format!("{name}={}", encode(value))
                } else {
                    format!("{name}64={}", base64url(value))
                });
            }
        }
        if self.reverse {
            all.push("reverse=true".to_owned());
        }
        if self.keys_only {
            all.push("keys_only=true".to_owned());
        }
        all.extend(self.delimiter.map(|delimiter| format!("delimiter={}", encode(delimiter))));
        all.extend(self.limit.map(|limit| format!("limit={limit}")));
        all.join("&")
    }

    fn expected(&self, model: &Model) -> Vec<Listed> {
        let inside = |key: &[u8]| {
            self.prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix))
                && self.start.as_ref().is_none_or(|start| key >= &start[..])
                && self.end.as_ref().is_none_or(|end| key < &end[..])
        };
        let skipped = self.prefix.as_ref().map_or(0, Vec::len);
        let mut listed = Vec::new();
        for (key, value) in model.iter().filter(|(key, _)| inside(key)) {
            let group = self.delimiter.and_then(|delimiter| {
                let position = key[skipped..].windows(delimiter.len()).position(|window| window == delimiter)?;
                Some(key[..skipped + position + delimiter.len()].to_vec())
            });
            listed.push(match group {
                Some(prefix) => Listed::Prefix(prefix),
                None => Listed::Entry(key.clone(), if self.keys_only { Err(value.len()) } else { Ok(value.clone()) }),
            });
        }
        listed.dedup();
        if self.reverse {
            listed.reverse();
        }
        listed
    }
}

fn random_key(random: &mut fastrand::Rng) -> Vec<u8> {
    (0..random.usize(1..6))
        .map(|_| *random.choice(&[0, b'/', b'a', b'a', b'z', 0xC3, 0xA9, 0xFE, 0xFF]).unwrap())
        .collect()
}

fn random_value(random: &mut fastrand::Rng) -> Vec<u8> {
    match random.u8(0..20) {
        0 => (0..random.usize(0..200_000)).map(|_| random.u8(..)).collect(),
        1 => "e\u{1}é\"€\\\n😀".repeat(random.usize(0..8_000)).into_bytes(),
        2 => Vec::new(),
        3..10 => (0..random.usize(0..40)).map(|_| random.u8(..)).collect(),
        _ => b"value"[..random.usize(0..5)].to_vec(),
    }
}

/// Compares random scans of random data with a model, in all formats and with all page sizes.
fn agrees_with_model(builder: &ServerBuilder, queries: usize) -> Result<(), String> {
    let server = builder.start();
    let mut client = server.client();
    let mut random = random();
    let mut model = Model::new();
    for _ in 0..500 {
        let (key, value) = (random_key(&mut random), random_value(&mut random));
        store(&mut client, &key, &value);
        model.insert(key, value);
    }
    for number in 0..queries {
        let query = Query::random(&mut random);
        let format = FORMATS[number % FORMATS.len()];
        let (mut listed, _) = scan_all(&mut client, &query.text(&mut random), format)?;
        let mut expected = query.expected(&model);
        if format == Format::Page && query.delimiter.is_some() {
            // A page has its entries before its prefixes.
            let place = |item: &Listed| match item {
                Listed::Entry(key, _) => (0, key.clone()),
                Listed::Prefix(prefix) => (1, prefix.clone()),
            };
            listed.sort_by_key(place);
            expected.sort_by_key(place);
        }
        if listed != expected {
            return Err(format!("{query:?} as {format:?}: {:?}, expected {:?}", keys(&listed), keys(&expected)));
        }
    }
    Ok(())
}

#[test]
fn scans_agree_with_a_model() {
    for setup in SETUPS {
        println!("setup {setup}");
        let queries = if setup.contains('/') { 60 } else { 300 };
        agrees_with_model(&ServerBuilder::new(setup), queries).unwrap();
    }
}

#[test]
fn twin_a_scan_with_an_inclusive_end_is_noticed() {
    let planted = ServerBuilder::new("memory").defect(Some(Defect::InclusiveEnd));
    agrees_with_model(&planted, 300).expect_err("the end is not part of a range");
}

#[test]
fn twin_an_entry_lost_between_steps_of_a_scan_is_noticed() {
    let planted = ServerBuilder::new("memory").defect(Some(Defect::SkipsAtSteps));
    agrees_with_model(&planted, 300).expect_err("no entry is lost between steps");
}

#[test]
fn a_delimiter_lists_like_directories() {
    each(ENGINES, |_, client| {
        store_all(client, &["a", "b/1", "b/2", "b/c/1", "b0", "d/", "d/e/f/g", "z"]);
        let mut list = |query: &str| keys(&scan_all(client, query, Format::JsonLines).unwrap().0);
        assert_eq!(list("delimiter=/"), ["a", "b/*", "b0", "d/*", "z"]);
        assert_eq!(list("delimiter=/&reverse"), ["z", "d/*", "b0", "b/*", "a"]);
        assert_eq!(list("delimiter=/&prefix=b/"), ["b/1", "b/2", "b/c/*"]);
        assert_eq!(list("delimiter=/&prefix=b"), ["b/*", "b0"]);
        assert_eq!(list("delimiter=/&prefix=d/"), ["d/", "d/e/*"]);
        assert_eq!(list("delimiter=/&start=b/2&end=d/e"), ["b/*", "b0", "d/*"]);
        assert_eq!(list("delimiter=e/f"), ["a", "b/1", "b/2", "b/c/1", "b0", "d/", "d/e/f*", "z"]);
        for limit in 1..6 {
            assert_eq!(list(&format!("delimiter=/&limit={limit}")), ["a", "b/*", "b0", "d/*", "z"]);
            assert_eq!(list(&format!("delimiter=/&reverse=true&limit={limit}")), ["z", "d/*", "b0", "b/*", "a"]);
        }
        let page = scan(client, "delimiter=/&limit=2", Format::Page).unwrap();
        assert_eq!((keys(&page.listed), page.next.is_some()), (vec!["a".to_owned(), "b/*".to_owned()], true));
    });
}

#[test]
fn an_entry_has_the_attributes_of_its_value() {
    each(ENGINES, |_, client| {
        let headers = [
            ("Content-Type", "text/plain"),
            ("Klad-Meta-Owner", "Zo\u{eb}"),
            ("Klad-Meta-Two", "a"),
            ("Klad-Meta-Two", "b"),
            ("Klad-TTL", "1h"),
        ];
        let put = client.request("PUT", "/v1/kv/with", &headers, Some(b"v"));
        assert_eq!(put.status, 201);
        assert_eq!(client.put("/v0/entity?id=without", b"\xFF\xFE").status, 201);
        let etag = put.header("etag").unwrap().to_owned();
        for format in FORMATS {
            let scanned = scan(client, "", format).unwrap();
            let [with, without] = &scanned.items[..] else { panic!("{scanned:?}") };
            assert_eq!(with["etag"], etag, "{format:?}");
            assert_eq!(with["content_type"], "text/plain");
            assert_eq!(with["meta"]["owner"], "Zo\u{eb}");
            assert_eq!(with["meta"]["two"], "a, b");
            assert!((3_000.0..=3_600.0).contains(&with["ttl"].as_f64().unwrap()), "{with:?}");
            assert!(with["modified_ms"].as_u64().unwrap() > 1_700_000_000_000, "{with:?}");
            let mut members: Vec<&str> = without.keys().map(String::as_str).collect();
            members.sort_unstable();
            let key = if format == Format::CborSequence { "key64" } else { "key" };
            assert_eq!(members, ["etag", key, "value64"], "{format:?}");
            let scanned = scan(client, "keys_only=true&start=without", format).unwrap();
            assert_eq!(scanned.items[0]["bytes"], 2);
            assert!(!scanned.items[0].contains_key("value64"));
        }
    });
}

#[test]
fn a_json_page_is_bounded() {
    each(ENGINES, |_, client| {
        for number in 0..1_200 {
            store(client, format!("small/{number:04}").as_bytes(), b"v");
        }
        for number in 0..30 {
            store(client, format!("wide/{number:02}").as_bytes(), &vec![b'w'; 60_000]);
        }
        store(client, b"wide/05b", &vec![b'h'; 3 << 20]);
        let page = scan(client, "prefix=small/", Format::Page).unwrap();
        assert_eq!((page.listed.len(), page.next.is_some()), (1_000, true), "the default");
        let page = scan(client, "prefix=small/&limit=10000", Format::Page).unwrap();
        assert_eq!((page.listed.len(), page.next), (1_200, None));
        let page = scan(client, "prefix=small/&limit=1200", Format::Page).unwrap();
        assert_eq!((page.listed.len(), page.next), (1_200, None), "nothing is left");
        let stream = scan(client, "", Format::JsonLines).unwrap();
        assert_eq!((stream.listed.len(), stream.next), (1_231, None), "a stream has no limit");
        let (mut query, mut pages) = ("prefix=wide/".to_owned(), Vec::new());
        loop {
            let page = scan(client, &query, Format::Page).unwrap();
            let bytes = |item: &Listed| match item {
                Listed::Entry(key, Ok(value)) => key.len() + value.len(),
                _ => panic!("a value"),
            };
            pages.push((page.listed.len(), page.listed.iter().map(bytes).sum::<usize>()));
            let Some(next) = page.next else { break };
            query = format!("cursor={next}");
        }
        assert_eq!(pages.iter().map(|page| page.0).sum::<usize>(), 31, "{pages:?}");
        assert!(pages.iter().all(|(entries, bytes)| *bytes <= 1 << 20 || *entries == 1), "{pages:?}");
        assert!(pages.contains(&(1, (3 << 20) + 8)), "the large entry is a page by itself: {pages:?}");
    });
}

#[test]
fn links_lead_through_all_pages_and_head_has_the_same_headers() {
    each(ENGINES, |_, client| {
        store_all(client, &["a", "b", "c", "d", "e"]);
        let (mut target, mut counts) = ("/v1/kv?limit=2&keys_only=true".to_owned(), Vec::new());
        loop {
            let answer = client.get(&target);
            let scanned = read(&answer, Format::Page).unwrap();
            assert!(scanned.listed.iter().all(|item| matches!(item, Listed::Entry(_, Err(1)))), "{scanned:?}");
            counts.push(scanned.listed.len());
            client.send("HEAD", &target, &[], None).unwrap();
            let (status, headers) = client.head().unwrap();
            let without_date = |headers: &[(String, String)]| -> Vec<(String, String)> {
                headers.iter().filter(|(name, _)| name != "date").cloned().collect()
            };
            assert_eq!((status, without_date(&headers)), (200, without_date(&answer.headers)));
            let Some(link) = answer.header("link") else { break };
            target = link.strip_prefix('<').and_then(|link| link.split_once('>')).expect("a link").0.to_owned();
        }
        assert_eq!(counts, [2, 2, 1]);
    });
}

#[test]
fn a_count_counts() {
    each(ENGINES, |_, client| {
        for number in 0..1_500 {
            store(client, format!("{number:04}").as_bytes(), b"v");
        }
        let mut count = |query: &str| -> serde_json::Value {
            let headers = [("Accept", "application/x-ndjson")];
            let answer = client.request("GET", &format!("/v1/kv?count=true{query}"), &headers, None);
            assert_eq!(answer.header("content-type"), Some("application/json"));
            serde_json::from_slice(&answer.body).unwrap()
        };
        let all = serde_json::json!({"count": 1_500, "next": null, "complete": true});
        assert_eq!(count(""), all);
        assert_eq!(count("&reverse=true"), all);
        assert_eq!(count("&prefix=00")["count"], 100);
        assert_eq!(count("&start=x")["count"], 0);
        let part = count("&limit=1200");
        assert_eq!((&part["count"], &part["complete"]), (&1_200.into(), &false.into()));
        let rest = count(&format!("&cursor={}", part["next"].as_str().unwrap()));
        assert_eq!((&rest["count"], &rest["complete"]), (&300.into(), &true.into()));
    });
}

#[test]
fn bad_parameters_are_rejected() {
    each(ENGINES, |_, client| {
        store_all(client, &["a/b", "c"]);
        let next = scan(client, "prefix=&start=a&end=z&limit=1", Format::Page).unwrap().next.unwrap();
        let damaged = format!("{}{}", &next[..next.len() - 1], if next.ends_with('A') { 'B' } else { 'A' });
        for (query, expected) in [
            ("limit=0", "bad-parameter"),
            ("limit=10001", "bad-parameter"),
            ("limit=1000000001&count", "bad-parameter"),
            ("limit=-1", "bad-parameter"),
            ("limit=", "bad-parameter"),
            ("reverse=maybe", "bad-parameter"),
            ("delimiter=", "bad-parameter"),
            ("delimiter=12345678901234567", "bad-parameter"),
            ("delimiter=/&count=true", "bad-parameter"),
            ("end=", "empty-parameter"),
            ("prefx=a", "unknown-parameter"),
            ("prefix=a&prefix64=YQ", "repeated-parameter"),
            ("limit=1&limit=1", "repeated-parameter"),
            ("start64=%2F", "bad-base64"),
            ("prefix=%zz", "bad-escape"),
            ("cursor=", "bad-cursor"),
            ("cursor=AAAA", "bad-cursor"),
            (&format!("cursor={damaged}"), "bad-cursor"),
            (&format!("cursor={next}&prefix=a"), "bad-cursor"),
            (&format!("cursor={next}&start=b"), "bad-cursor"),
            (&format!("cursor={next}&end=y"), "bad-cursor"),
            (&format!("cursor={next}&reverse=true"), "bad-cursor"),
            (&format!("cursor={next}&delimiter=/"), "bad-cursor"),
        ] {
            assert_eq!(code(&client.get(&format!("/v1/kv?{query}"))), (400, expected.to_owned()), "{query}");
        }
        let long = format!("/v1/kv?start={}", "a".repeat(4_200));
        assert_eq!(code(&client.get(&long)), (414, "key-too-long".to_owned()));
        let answer = client.request("PUT", "/v1/kv", &[], Some(b"v"));
        assert_eq!(code(&answer), (400, "missing-parameter".to_owned()), "a value needs a key");
        let answer = client.request("PATCH", "/v1/kv", &[], Some(b"v"));
        assert_eq!(code(&answer), (405, "method-not-allowed".to_owned()));
        for same in ["", "&prefix=", "&start=a&end=z", "&start64=YQ&reverse=false", "&limit=7&keys_only=true"] {
            let rest = scan(client, &format!("cursor={next}{same}"), Format::Page).unwrap();
            assert_eq!((keys(&rest.listed), rest.next), (vec!["c".to_owned()], None), "{same}");
        }
        for empty in ["start=z&end=a", "start=c&end=c", "prefix=b", "prefix=a&end=a", "start=d&reverse=true"] {
            for format in FORMATS {
                let scanned = scan(client, empty, format).unwrap();
                assert_eq!((scanned.listed.len(), scanned.next), (0, None), "{empty}");
            }
        }
    });
}

#[test]
fn the_accept_header_chooses_the_format() {
    let server = ServerBuilder::new("memory").start();
    let mut client = server.client();
    store_all(&mut client, &["a"]);
    for (accept, expected) in [
        ("*/*", "application/json"),
        ("text/html, application/x-ndjson;q=0.5, */*;q=0.1", "application/x-ndjson"),
        ("application/x-ndjson;q=0.5, application/cbor-seq", "application/cbor-seq"),
        ("application/json, application/x-ndjson", "application/json"),
        ("application/x-ndjson;q=0", "application/json"),
        ("Application/X-NDJSON", "application/x-ndjson"),
    ] {
        let answer = client.request("GET", "/v1/kv", &[("Accept", accept)], None);
        assert_eq!(answer.header("content-type"), Some(expected), "{accept}");
        assert_eq!(answer.header("vary"), Some("accept"));
    }
    assert_eq!(client.get("/v1/kv").header("content-type"), Some("application/json"));
}

/// Reads a stream that begins before other writes and ends after them. Returns a fault if it shows one of them.
fn shows_one_state(builder: &ServerBuilder) -> Result<(), String> {
    let server = builder.start();
    let mut client = server.client();
    let value = vec![b'v'; 30_000];
    // More than the buffers of both sockets hold.
    for number in 0..800 {
        store(&mut client, format!("k{number:04}").as_bytes(), &value);
    }
    let mut reader = server.client();
    reader.send("GET", "/v1/kv", &[("Accept", "application/x-ndjson")], None).unwrap();
    let (status, headers) = reader.head().unwrap();
    let first = reader.chunk().unwrap().unwrap();
    store(&mut client, b"k0799", b"overwritten");
    store(&mut client, b"k0799b", b"new");
    assert_eq!(client.delete("/v1/kv/k0798").status, 204);
    assert_eq!(client.delete("/v1/kv?prefix=k078").status, 204);
    let mut body = first;
    while let Some(chunk) = reader.chunk().unwrap() {
        body.extend_from_slice(&chunk);
    }
    let answer = Answer { status, headers, body, chunks: None };
    let scanned = read(&answer, Format::JsonLines)?;
    let expected = |number: usize| Listed::Entry(format!("k{number:04}").into_bytes(), Ok(value.clone()));
    if scanned.next.is_some() || scanned.listed != (0..800).map(expected).collect::<Vec<_>>() {
        return Err(format!("{} entries, the last ones {:?}", scanned.listed.len(), keys(&scanned.listed[780..])));
    }
    Ok(())
}

#[test]
fn a_scan_sees_one_state() {
    let mut checked = 0;
    for engine in ENGINES {
        let limits = ServerBuilder::new(engine).start().client().get("/v1/limits");
        let limits: serde_json::Value = serde_json::from_slice(&limits.body).unwrap();
        if limits["capabilities"]["snapshots"] == true {
            println!("engine {engine}");
            shows_one_state(&ServerBuilder::new(engine)).unwrap();
            checked += 1;
        }
    }
    assert_eq!(checked, DURABLE_ENGINES.len());
}

#[test]
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
fn twin_a_scan_that_sees_later_writes_is_noticed() {
    let planted = ServerBuilder::new(ENGINES[0]).defect(Some(Defect::ForgetsSnapshots));
    shows_one_state(&planted).expect_err("the scan has seen a later write");
}

#[test]
fn a_stream_that_fails_has_neither_an_end_nor_a_last_chunk() {
    let server = ServerBuilder::new("memory").defect(Some(Defect::FailsInMidRange)).start();
    let mut client = server.client();
    for number in 0..1_000 {
        store(&mut client, format!("{number:04}").as_bytes(), &[b'v'; 2 << 10]);
    }
    client.send("GET", "/v1/kv", &[("Accept", "application/x-ndjson")], None).unwrap();
    assert_eq!(client.head().unwrap().0, 200);
    let mut body = Vec::new();
    let ended = loop {
        match client.chunk() {
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    assert!(ended.is_err(), "a last chunk would mean that this is all");
    assert!(!body.windows(10).any(|window| window == b"\"complete\""), "no end");
}

#[test]
fn a_scan_that_takes_too_long_ends_with_a_cursor() {
    for setup in ["memory", ENGINES[0]] {
        let server = ServerBuilder::new(setup).arg("--scan-time-max", "1ms").start();
        let mut client = server.client();
        let value = vec![b'v'; 20_000];
        for number in 0..600 {
            store(&mut client, format!("{number:04}").as_bytes(), &value);
        }
        for format in FORMATS {
            let (listed, pages) = scan_all(&mut client, "", format).unwrap();
            assert_eq!(listed.len(), 600, "{setup} {format:?}");
            assert!(pages > 1, "{setup} {format:?}");
        }
    }
}

#[test]
fn a_stream_to_a_slow_client_ends_in_time() {
    let time = Duration::from_millis(300);
    let server = ServerBuilder::new(ENGINES[0]).arg("--scan-time-max", "300ms").start();
    let mut client = server.client();
    // More than the buffers of both sockets hold.
    let value = vec![b'v'; 40_000];
    for number in 0..800 {
        store(&mut client, format!("{number:04}").as_bytes(), &value);
    }
    for format in [Format::JsonLines, Format::CborSequence] {
        // klad may close the other connection, which has carried large values, before this thread goes on.
        let mut reader = server.client();
        reader.send("GET", "/v1/kv", &[("Accept", format.accept())], None).unwrap();
        let (status, headers) = reader.head().unwrap();
        // The client takes nothing until the scan's time is over.
        std::thread::sleep(2 * time);
        let mut body = Vec::new();
        while let Some(chunk) = reader.chunk().unwrap() {
            body.extend_from_slice(&chunk);
        }
        let scanned = read(&Answer { status, headers, body, chunks: None }, format).unwrap();
        let first = scanned.listed.len();
        let cursor = scanned.next.expect("the time was over before the end");
        // On a busy machine the time of this scan may also be over before its end.
        let rest = scan_all(&mut client, &format!("keys_only=true&cursor={cursor}"), format).unwrap().0;
        let names: Vec<String> = keys(&scanned.listed).into_iter().chain(keys(&rest)).collect();
        assert_eq!(names, (0..800).map(|number| format!("{number:04}")).collect::<Vec<_>>(), "{first}");
    }
}

#[test]
fn scans_beyond_the_maximum_are_503() {
    let server = ServerBuilder::new("memory").arg("--scans-max", "1").start();
    let mut client = server.client();
    for number in 0..40 {
        store(&mut client, format!("{number:04}").as_bytes(), &vec![b'v'; 1 << 20]);
    }
    let mut reader = server.client();
    reader.send("GET", "/v1/kv", &[("Accept", "application/cbor-seq")], None).unwrap();
    assert_eq!(reader.head().unwrap().0, 200);
    assert_eq!(code(&server.client().get("/v1/kv?limit=1")), (503, "overloaded".to_owned()));
    assert_eq!(server.client().get("/v1/kv/0001").status, 200);
    while reader.chunk().unwrap().is_some() {}
    wait_until("the place is free again", || server.client().get("/v1/kv?limit=1").status == 200);
}

#[test]
fn removed_keys_neither_end_nor_change_a_scan() {
    for engine in ENGINES.iter().chain(&LATE_SETUPS[..1]) {
        println!("engine {engine}");
        let server = ServerBuilder::new(engine).start();
        let mut client = server.client();
        store_all(&mut client, &["a", "z"]);
        // More than one attempt of a step passes.
        for number in 0..6_000 {
            store(&mut client, format!("m{number:05}").as_bytes(), b"");
        }
        for number in (0..6_000).filter(|number| number % 3_000 != 1_000) {
            assert_eq!(client.delete(&format!("/v1/kv/m{number:05}?durability=async")).status, 204);
        }
        let left = ["a", "m01000", "m04000", "z"];
        for format in FORMATS {
            for (query, reverse) in [("", false), ("reverse=true", true), ("limit=1", false)] {
                let mut listed = keys(&scan_all(&mut client, query, format).unwrap().0);
                if reverse {
                    listed.reverse();
                }
                assert_eq!(listed, left, "{engine} {format:?} {query}");
            }
        }
        assert!(client.get("/v1/kv?count=true").text().contains("\"count\":4,"));
    }
}
