//! What a change feed says about each kind of change, and that texts arrive whole.

use serde_json::{Value, json};

use super::support::batches::{batch, results};
use super::support::feeds::{Feed, LINES};
use super::support::scanning::{Format, Listed, scan};
use super::support::{Answer, Client, ROCKSDB_SETUPS, Server, ServerBuilder, wait_until};

/// Stores the key `end`, and returns the events of a feed before it.
fn events(server: &Server, feed: &mut Feed) -> Vec<Value> {
    server.client().store("/v0/entity?id=end", b"");
    let mut events = Vec::new();
    loop {
        let event = feed.json().expect("an event");
        if event["key"] == "end" {
            return events;
        }
        if event.get("heartbeat").is_none() {
            events.push(event);
        }
    }
}

/// The members of an event that do not depend on the clock.
fn timeless(mut event: Value) -> Value {
    let members = event.as_object_mut().unwrap();
    for member in ["modified_ms", "etag"] {
        members.remove(member);
    }
    if let Some(left_s) = members.remove("ttl") {
        members.insert("expires".to_owned(), (left_s.as_f64().unwrap() > 0.0).into());
    }
    event
}

/// Does changes of all kinds, and returns their events.
fn change_everything(client: &mut Client) -> Vec<Value> {
    let headers = [("Content-Type", "text/css"), ("Klad-Meta-A", "b")];
    let mut expected = Vec::new();
    let mut expect = |answer: &Answer, mut event: Value| {
        assert!(answer.status < 300, "{}", answer.text());
        event["version"] = answer.version().into();
        expected.push(event);
    };
    let with = json!({"op": "put", "key": "k", "value": "1", "content_type": "text/css", "meta": {"a": "b"}});
    expect(&client.request("PUT", "/v1/kv/k", &headers, Some(b"1")), with.clone());
    let mut more = with.clone();
    more["value"] = "6".into();
    expect(&client.request("POST", "/v1/kv/k?op=add&by=5", &[], None), more.clone());
    let mut expiring = more.clone();
    expiring["expires"] = true.into();
    expect(&client.request("POST", "/v1/kv/k?op=expire&ttl=1h", &[], None), expiring);
    expect(&client.request("POST", "/v1/kv/k?op=expire&ttl=none", &[], None), more);
    expect(&client.put("/v1/kv/k", b"text"), json!({"op": "put", "key": "k", "value": "text"}));
    // What fails is no change.
    for (method, target, headers) in [
        ("PUT", "/v1/kv/k", &[("If-None-Match", "*")][..]),
        ("POST", "/v1/kv/k?op=add&by=1", &[]),
        ("DELETE", "/v1/kv/k", &[("If-Match", "\"1\"")]),
        ("DELETE", "/v1/kv/absent", &[]),
        ("POST", "/v1/kv/absent?op=expire&ttl=1h", &[]),
    ] {
        assert!(client.request(method, target, headers, Some(b"v")).status >= 400, "{method} {target}");
    }
    expect(&client.delete("/v1/kv/k"), json!({"op": "delete", "key": "k"}));
    expect(&client.put("/v0/entity?id=%FF", b"\xFF"), json!({"op": "put", "key64": "_w", "value64": "/w=="}));
    expect(&client.delete("/v0/entity?id=%FF"), json!({"op": "delete", "key64": "_w"}));
    let inside = json!({"op": "put", "key": "ranges/a", "value": "v"});
    expect(&client.put("/v1/kv/ranges/a", b"v"), inside);
    expect(
        &client.delete("/v1/kv?prefix=ranges/"),
        json!({"op": "delete_range", "start": "ranges/", "end": "ranges0"}),
    );
    expect(&client.delete("/v1/kv?start=a&end64=_w"), json!({"op": "delete_range", "start": "a", "end64": "_w"}));
    expected
}

/// Does batches, and returns their events.
fn change_in_batches(client: &mut Client) -> Vec<Value> {
    let put = |key: &str| json!({"op": "put", "key": key, "value": "1"});
    let mut expected = Vec::new();
    for query in ["", "?atomic=true", "?durability=async"] {
        let items = [put("b"), json!({"op":"delete","key":"b"}), json!({"op":"get","key":"b"}), put("b")];
        let done = results(&batch(client, query, &items));
        for (event, etag) in
            [(put("b"), &done[0]), (json!({"op":"delete","key":"b"}), &Value::Null), (put("b"), &done[3])]
        {
            let mut event = event;
            if let Some(etag) = etag["etag"].as_str() {
                event["version"] = etag.trim_matches('"').parse::<u64>().unwrap().into();
            }
            expected.push(event);
        }
    }
    let fails = [put("c"), json!({"op":"put","key":"b","value":"2","if_none_match":"*"})];
    assert_eq!(batch(client, "?atomic=true", &fails).status, 412);
    let done = results(&batch(client, "", &fails));
    assert_eq!(done[1]["status"], 412);
    expected.push(put("c"));
    expected
}

/// Compares events; one that is expected without a version may have any.
fn assert_events(found: &[Value], expected: &[Value]) {
    let found: Vec<Value> = found.iter().cloned().map(timeless).collect();
    let versions: Vec<u64> = found.iter().map(|event| event["version"].as_u64().expect("a version")).collect();
    assert!(versions.windows(2).all(|two| two[0] < two[1]), "{versions:?}");
    let expected: Vec<Value> = expected
        .iter()
        .zip(versions)
        .map(|(event, version)| {
            let mut event = event.clone();
            if event.get("version").is_none() {
                event["version"] = version.into();
            }
            event
        })
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn every_kind_of_change_is_an_event_and_what_fails_is_none() {
    for setup in ROCKSDB_SETUPS {
        println!("setup {setup}");
        let data = tempfile::tempdir().unwrap();
        let builder = ServerBuilder::new(setup).data(data.path());
        let server = builder.start();
        let mut client = server.client();
        let mut feed = Feed::lines(server.address, "?values=true");
        let mut expected = change_everything(&mut client);
        expected.extend(change_in_batches(&mut client));
        let found = events(&server, &mut feed);
        assert_events(&found, &expected);
        server.kill();
        // The feed of the past, after a kill.
        let server = builder.start();
        let again = events(&server, &mut Feed::lines(server.address, "?from=0&values=true"));
        assert_events(&again, &expected);
    }
}

#[test]
fn a_prefix_selects_keys_and_the_ranges_that_may_have_had_some() {
    let server = ServerBuilder::new("rocksdb").start();
    let mut client = server.client();
    for key in ["a", "b/1", "b/2", "c", "%FF%00"] {
        client.put(&format!("/v1/kv/{key}"), b"v");
    }
    client.delete("/v1/kv?prefix=c");
    client.delete("/v1/kv?start=b&end=b/2");
    client.delete("/v1/kv/b/2");
    let names = |query: &str| -> Vec<String> {
        let found = {
            server.client().store("/v0/entity?id=b/end", b"");
            server.client().store("/v0/entity?id=%FFend", b"");
            let mut feed = Feed::lines(server.address, query);
            let mut found = Vec::new();
            loop {
                let event = feed.json().unwrap();
                if event["key"] == "b/end" || event["key64"] == "_2VuZA" {
                    break found;
                }
                if event.get("heartbeat").is_none() {
                    found.push(event);
                }
            }
        };
        let name =
            |event: &Value| ["key", "key64", "start"].iter().find_map(|name| event[*name].as_str()).unwrap().to_owned();
        found.iter().map(|event| format!("{} {}", event["op"].as_str().unwrap(), name(event))).collect()
    };
    let of_b = ["put b/1", "put b/2", "delete_range b", "delete b/2"];
    assert_eq!(names("?from=0&prefix=b/"), of_b);
    assert_eq!(names("?from=0&prefix64=Yi8"), of_b);
    assert_eq!(names("?from=0&prefix64=_w"), ["put _wA"]);
    let answer = server.client().request("GET", "/v1/changes?prefix=a&prefix64=YQ", &[LINES], None);
    assert_eq!(answer.status, 400);
}

#[test]
fn a_value_that_expires_is_no_change() {
    let server = ServerBuilder::new("rocksdb").start();
    let mut client = server.client();
    let mut feed = Feed::lines(server.address, "?values=true");
    client.put("/v1/kv/k?ttl=1ms", b"v");
    wait_until("the value has expired", || client.get("/v1/kv/k").status == 404);
    client.put("/v1/kv/other", b"v");
    let found: Vec<String> =
        events(&server, &mut feed).iter().map(|event| format!("{} {}", event["op"], event["key"])).collect();
    assert_eq!(found, ["\"put\" \"k\"", "\"put\" \"other\""]);
}

/// A large text is sent in pieces, none of which may end within a character, wherever the characters begin.
#[test]
fn a_large_text_of_long_characters_arrives_whole() {
    const BYTES: usize = 1 << 20;
    let server = ServerBuilder::new("rocksdb").start();
    let mut client = server.client();
    let mut of_lines = Feed::lines(server.address, "?values=true");
    let mut of_events = Feed::open(server.address, "?values=true", &[]);
    of_events.until("\n\n").expect("a heartbeat");
    for characters in ["\u{e9}", "\u{20ac}", "\u{1f600}", "a\u{e9}\u{20ac}\u{1f600}\"\n"] {
        for shift in 0..4 {
            let text = format!("{}{}", "-".repeat(shift), characters.repeat(BYTES / characters.len()));
            client.store("/v0/entity?id=text", text.as_bytes());
            let change = of_lines.change().unwrap();
            assert!(change.value.as_deref() == Some(&*text), "{characters} behind {shift} bytes");
            let event = loop {
                let event = of_events.until("\n\n").expect("an event");
                if let Some((_, data)) = event.split_once("\ndata: ") {
                    break serde_json::from_str::<Value>(data).expect("JSON");
                }
            };
            assert!(event["value"] == *text, "{characters} behind {shift} bytes");
            // A scan cuts texts in the same way.
            for format in [Format::JsonLines, Format::Page] {
                let listed = scan(&mut client, "prefix=text", format).unwrap().listed;
                assert!(listed == [Listed::Entry(b"text".to_vec(), Ok(text.clone().into_bytes()))], "{format:?}");
            }
        }
    }
}
