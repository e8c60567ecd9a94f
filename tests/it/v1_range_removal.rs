//! `DELETE /v1/kv`: removals of ranges.

use serde_json::json;

use super::support::batches::batch;
use super::support::scanning::{Format, code, each, keys, scan, scan_all, store, store_all};
use super::support::{DURABLE_ENGINES, ENGINES, SETUPS, ServerBuilder, keeps_nothing, wait_until};

#[test]
fn a_range_is_removed_and_stays_removed() {
    for engine in ENGINES {
        println!("engine {engine}");
        let directory = tempfile::tempdir().unwrap();
        let builder = ServerBuilder::new(engine).data(directory.path());
        let server = builder.start();
        let mut client = server.client();
        let all = ["a", "b/1", "b/2", "b0", "c", "d"];
        store_all(&mut client, &all);
        store(&mut client, b"\xFF\xFF", b"v");
        let mut left = |query: &str| {
            let answer = client.delete(&format!("/v1/kv?{query}"));
            assert_eq!((answer.status, answer.body.len()), (204, 0), "{query}: {}", answer.text());
            assert!(answer.version() > 0);
            let expected = if *engine == "memory" { "none" } else { "sync" };
            assert_eq!(answer.header("klad-durability"), Some(expected));
            keys(&scan_all(&mut client, "", Format::Page).unwrap().0)
        };
        let last = String::from_utf8_lossy(b"\xFF\xFF").into_owned();
        assert_eq!(left("start=c&end=b").len(), 7, "an empty range");
        assert_eq!(left("prefix=x").len(), 7);
        assert_eq!(left("prefix=b/"), ["a", "b0", "c", "d", &last]);
        assert_eq!(left("start=c&end=d"), ["a", "b0", "d", &last]);
        assert_eq!(left("prefix64=_w"), ["a", "b0", "d"]);
        assert_eq!(left("end64=YQA"), ["b0", "d"], "up to a and a zero byte");
        server.kill();
        if DURABLE_ENGINES.contains(engine) {
            let server = builder.start();
            let mut client = server.client();
            assert_eq!(keys(&scan_all(&mut client, "", Format::Page).unwrap().0), ["b0", "d"], "after a kill");
            assert_eq!(client.delete("/v1/kv?all=true").status, 204);
            assert_eq!(client.delete("/v1/kv?all=true").status, 204, "an empty store");
            assert!(scan(&mut client, "", Format::Page).unwrap().listed.is_empty());
        }
    }
}

#[test]
fn a_removal_must_name_its_range() {
    each(ENGINES, |_, client| {
        store_all(client, &["a"]);
        for (query, expected) in [
            ("", "missing-parameter"),
            ("all=false", "missing-parameter"),
            ("prefix=", "empty-parameter"),
            ("start64=", "empty-parameter"),
            ("end=", "empty-parameter"),
            ("all=true&prefix=a", "bad-parameter"),
            ("all=perhaps", "bad-parameter"),
            ("prefix=a&limit=1", "unknown-parameter"),
            ("prefix=a&durability=maybe", "bad-durability"),
        ] {
            assert_eq!(code(&client.delete(&format!("/v1/kv?{query}"))), (400, expected.to_owned()), "{query}");
        }
        for header in [("If-Match", "*"), ("If-None-Match", "*"), ("If-Unmodified-Since", "today")] {
            let answer = client.request("DELETE", "/v1/kv?prefix=a", &[header], None);
            assert_eq!(code(&answer), (400, "bad-condition".to_owned()), "{header:?}");
        }
        assert_eq!(client.get("/v1/kv/a").status, 200, "nothing was removed");
    });
}

#[test]
fn a_removal_is_one_change_with_its_durability_in_every_setup() {
    for setup in SETUPS {
        println!("setup {setup}");
        let server = ServerBuilder::new(setup).start();
        let mut client = server.client();
        for asked in ["sync", "async"] {
            store_all(&mut client, &["a", "b/1", "b/2", "c"]);
            // What a cache may hold.
            assert_eq!(client.get("/v1/kv/b/1").status, 200);
            let before = client.put("/v1/kv/c", b"v").version();
            let removed = client.delete(&format!("/v1/kv?prefix=b/&durability={asked}"));
            let durability = if keeps_nothing(setup) { "none" } else { asked };
            assert_eq!((removed.status, removed.header("klad-durability")), (204, Some(durability)));
            assert!(removed.version() > before || setup.starts_with("late"), "{setup}");
            for (key, status) in [("a", 200), ("b/1", 404), ("b/2", 404), ("c", 200)] {
                assert_eq!(client.get(&format!("/v1/kv/{key}")).status, status, "{setup} {key}");
            }
            // What is written behind it stays.
            assert_eq!(client.put("/v1/kv/b/1", b"new").status, 201);
            assert_eq!(client.get("/v1/kv/b/1").body, b"new");
            assert_eq!(client.delete("/v1/kv?prefix=b/").status, 204);
        }
    }
}

#[test]
fn a_range_with_too_many_keys_for_one_commit_stays() {
    const KEYS: usize = 100_001;
    for engine in ENGINES {
        let server = ServerBuilder::new(engine).start();
        let mut client = server.client();
        let put = |key: &usize| json!({"op": "put", "key": format!("k{key:06}"), "value": ""});
        for some in (0..KEYS).collect::<Vec<_>>().chunks(1_000) {
            let items: Vec<_> = some.iter().map(put).collect();
            wait_until("the keys are stored", || batch(&mut client, "?durability=async", &items).status == 200);
        }
        let removed = client.delete("/v1/kv?prefix=k");
        // fjall has no removal of a range: its commit has one removal for each key.
        if *engine == "fjall" {
            assert_eq!(code(&removed), (413, "range-too-large".to_owned()));
            assert!(removed.text().contains("\"limit\":100000"), "{}", removed.text());
            assert!(client.get("/v1/kv?count=true").text().contains("\"count\":100001,"));
            assert_eq!(client.delete("/v1/kv?start=k000001").status, 204, "in parts");
            assert!(client.get("/v1/kv?count=true").text().contains("\"count\":1,"));
        } else {
            assert_eq!(removed.status, 204, "{engine}: {}", removed.text());
            assert!(client.get("/v1/kv?count=true").text().contains("\"count\":0,"));
        }
    }
}
