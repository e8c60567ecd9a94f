//! `DELETE /v1/kv`: removals of ranges.

use super::support::scanning::{Format, code, each, keys, scan, scan_all, store, store_all};
use super::support::{DURABLE_ENGINES, ENGINES, ServerBuilder};

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
