//! `POST /v1/batch`: order, results, conditions, and that a batch that klad rejects has done nothing.

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::support::batches::{CBOR, NDJSON, batch, done, lines, results, send, sequence};
use super::support::conformance::{CASSANDRA, REPLICATED, on_one_bucket};
use super::support::{Answer, Client, ENGINES, SETUPS, Server, ServerBuilder, keeps_nothing};

fn each(setups: &[&str], check: impl Fn(&str, &Server, &mut Client)) {
    for setup in setups {
        println!("setup {setup}");
        let server = ServerBuilder::new(setup).start();
        check(setup, &server, &mut server.client());
    }
    on_one_bucket(|server, client| check(CASSANDRA, server, client));
}

/// The durability that an engine acknowledges if a batch asks for `asked`.
fn durability<'a>(setup: &str, asked: &'a str) -> &'a str {
    match setup {
        CASSANDRA => REPLICATED,
        setup if keeps_nothing(setup) => "none",
        _ => asked,
    }
}

fn document(answer: &Answer) -> Value {
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{}", answer.text());
    let document: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(document["status"].as_u64(), Some(u64::from(answer.status)));
    document
}

/// Asserts that klad has rejected a batch because of one item.
fn assert_item_fails(answer: &Answer, status: u16, code: &str, item: usize) {
    let document = document(answer);
    let found = (answer.status, document["code"].as_str(), document["item"].as_u64());
    assert_eq!(found, (status, Some(code), Some(item as u64)), "{document}");
    assert!(document["detail"].as_str().unwrap().starts_with(&format!("item {item}: ")), "{document}");
}

fn put(key: &str, value: &str) -> Value {
    json!({ "op": "put", "key": key, "value": value })
}

fn get(key: &str) -> Value {
    json!({ "op": "get", "key": key })
}

#[test]
fn a_long_answer_is_a_stream_in_the_order_of_the_items() {
    each(SETUPS, |setup, _, client| {
        let keys: Vec<String> = (0..20).map(|number| format!("k{number:02}")).collect();
        let puts: Vec<Value> = keys.iter().map(|key| put(key, &format!("{key}{}", "v".repeat(10_000)))).collect();
        let short = batch(client, "?durability=async", &puts);
        assert!(short.header("content-length").is_some() && short.chunks.is_none(), "{setup}");
        let gets: Vec<Value> = (0..60).map(|number| get(&keys[number * 7 % 20])).collect();
        let long = batch(client, "", &gets);
        let chunks = long.chunks.as_ref().expect("a stream");
        assert!(chunks.len() > 1 && chunks.iter().all(|chunk| chunk.len() <= 64 << 10), "{setup}");
        for (number, result) in results(&long).iter().enumerate() {
            let value = result["value"].as_str().expect("text");
            assert!(value.starts_with(&keys[number * 7 % 20]) && value.len() == 10_003, "{setup} {number}");
        }
        // The connection goes on.
        assert_eq!(client.get("/v1/kv/k00").status, 200);
    });
}

#[test]
fn a_batch_does_its_items_in_their_order() {
    each(SETUPS, |setup, _, client| {
        let puts = batch(client, "", &[put("a", "1"), put("b", "2"), put("a", "3"), json!({"op":"delete","key":"b"})]);
        let stored = results(&puts);
        let statuses: Vec<_> = stored.iter().map(|result| result["status"].as_u64().unwrap()).collect();
        assert_eq!(statuses, [200, 200, 200, 204]);
        let durability = durability(setup, "sync");
        assert_eq!(puts.header("klad-durability"), Some(durability));
        assert_eq!(client.get("/v1/kv/b").status, 404);
        let a = client.get("/v1/kv/a");
        assert_eq!(a.body, b"3");
        // The late engine's versions do not follow each other.
        if !setup.starts_with("late") {
            assert_eq!(a.header("etag"), stored[2]["etag"].as_str());
        }
        assert!(stored[3].get("etag").is_none(), "a removal leaves nothing that could have one");
        // Gets see what the items before them have done.
        let mixed = [
            get("a"),
            put("a", "4"),
            get("a"),
            json!({"op":"delete","key":"a"}),
            get("a"),
            json!({"op":"add","key":"n","by":-3}),
            json!({"op":"add","key":"n","by":5}),
            get("n"),
        ];
        let expected = json!([
            {"status":200,"value":"3"},
            {"status":200},
            {"status":200,"value":"4"},
            {"status":204},
            {"status":404,"code":"not-found"},
            {"status":200,"value":-3},
            {"status":200,"value":2},
            {"status":200,"value":"2","content_type":"text/plain"},
        ]);
        assert_eq!(Value::from(done(client, "?durability=async", &mixed)), expected);
        assert_eq!(client.get("/v1/kv/n").body, b"2");
        // A batch that only reads is no write.
        let reads = batch(client, "", &[get("n"), get("a"), get("n")]);
        assert_eq!(reads.header("klad-durability"), None);
        let read = results(&reads);
        assert_eq!((&read[0]["value"], &read[1]["status"], &read[2]), (&json!("2"), &json!(404), &read[0]));
        assert_eq!(read[0]["etag"].as_str(), client.get("/v1/kv/n").header("etag"));
        let empty = batch(client, "?atomic=true", &[]);
        assert_eq!((empty.status, empty.body.len(), empty.header("content-type")), (200, 0, Some(NDJSON)));
    });
}

#[test]
fn both_formats_say_the_same() {
    each(ENGINES, |_, _, client| {
        let bytes: Vec<u8> = (0..=255).collect();
        let encoded = BASE64_STANDARD.encode(&bytes);
        let items = [
            json!({"op":"put","key":"text","value":"gr\u{fc}\u{df}e \"\\\n","content_type":"text/plain; charset=utf-8",
                   "meta":{"owner":"m\u{fc}ller","empty":""},"ttl":"1h"}),
            json!({"op":"put","key64":encoded,"value64":encoded}),
            get("text"),
            json!({"op":"get","key64":encoded}),
            json!({"op":"add","key":"n","by":7,"ttl":0.5e6}),
            json!({"op":"expire","key":"text","ttl":7200}),
            json!({"op":"expire","key":"absent","ttl":null}),
            json!({"op":"put","key":"text","value":"","if_none_match":"*"}),
        ];
        let (as_lines, as_maps) = (lines(&items), sequence(&items));
        for (body, content_type) in [(&as_lines, NDJSON), (&as_maps, CBOR)] {
            for (accept, answered) in [("*/*", content_type), (NDJSON, NDJSON), (CBOR, CBOR)] {
                let headers = [("Content-Type", content_type), ("Accept", accept)];
                let answer = send(client, "", &headers, body);
                assert_eq!(answer.header("content-type"), Some(answered));
                let results = results(&answer);
                let statuses: Vec<_> = results.iter().map(|result| result["status"].as_u64().unwrap()).collect();
                assert_eq!(statuses, [200, 200, 200, 200, 200, 204, 404, 412]);
                assert_eq!(results[2]["value"], "gr\u{fc}\u{df}e \"\\\n");
                assert_eq!(results[2]["content_type"], "text/plain; charset=utf-8");
                assert_eq!(results[2]["meta"], json!({"owner":"m\u{fc}ller","empty":""}));
                let left_s = results[2]["ttl"].as_f64().unwrap();
                assert!(left_s > 0.0 && left_s <= 3_600.0, "{left_s}");
                if answered == CBOR {
                    let value = results[3]["value"]["bytes"].as_array().unwrap();
                    assert!(value.iter().map(|byte| byte.as_u64().unwrap()).eq(0..=255));
                } else {
                    assert_eq!(results[3]["value64"], encoded);
                }
                assert_eq!(results[7]["code"], "precondition-failed");
                assert_eq!(results[7]["current_etag"], results[5]["etag"]);
            }
        }
        let key64 = BASE64_URL_SAFE_NO_PAD.encode(&bytes);
        assert_eq!(client.get(&format!("/v1/kv?key64={key64}")).body, bytes);
        let head = client.get("/v1/kv/text");
        assert_eq!(head.header("klad-meta-owner").map(str::to_owned), Some("m\u{fc}ller".to_owned()));
        let left_s: f64 = head.header("klad-ttl").unwrap().trim_end_matches('s').parse().unwrap();
        assert!(left_s > 3_600.0 && left_s <= 7_200.0, "{left_s}");
        assert!(client.get("/v1/kv/n").header("klad-ttl").is_some());
        // What is given back can be stored again, also what is no text.
        let odd = json!({"op":"put","key":"odd","value":"","meta64":{"raw":BASE64_STANDARD.encode([0xFF])}});
        assert_eq!(results(&batch(client, "", std::slice::from_ref(&odd)))[0]["status"], 200);
        assert_eq!(results(&batch(client, "", &[get("odd")]))[0]["meta64"], odd["meta64"]);
    });
}

#[test]
fn a_condition_is_of_one_item_unless_the_batch_is_atomic() {
    each(SETUPS, |_, _, client| {
        let first = client.put("/v1/kv/k", b"1").header("etag").unwrap().to_owned();
        let absent = |key: &str| json!({"op":"put","key":key,"value":"new","if_none_match":"*"});
        let items = |tag: &str| {
            [
                put("before", "x"),
                json!({"op":"put","key":"k","value":"2","if_match":tag}),
                json!({"op":"delete","key":"gone","if_match":"*"}),
                absent("k"),
                absent("fresh"),
                put("after", "x"),
            ]
        };
        let failed = json!({"status":412,"code":"precondition-failed"});
        let each = results(&batch(client, "", &items(&first)));
        assert_eq!(
            each.iter().map(|one| one["status"].as_u64().unwrap()).collect::<Vec<_>>(),
            [200, 200, 412, 412, 200, 200]
        );
        assert_eq!((&each[2]["code"], &each[2]["current_etag"]), (&failed["code"], &Value::Null));
        assert!(each[2].as_object().unwrap().contains_key("current_etag"));
        assert_eq!((&each[3]["code"], &each[3]["current_etag"]), (&failed["code"], &each[1]["etag"]));
        assert_eq!(client.get("/v1/kv/k").header("etag"), each[1]["etag"].as_str());
        assert_eq!(client.get("/v1/kv/after").body, b"x");

        // Atomic: nothing of it happens.
        let second = each[1]["etag"].as_str().unwrap();
        let before = client.get("/v1/kv/before").header("etag").unwrap().to_owned();
        for (tag, item, current) in [(first.as_str(), 1, Some(second)), (second, 2, None)] {
            let failed = batch(client, "?atomic=true", &items(tag));
            assert_item_fails(&failed, 412, "precondition-failed", item);
            assert_eq!(document(&failed)["current_etag"].as_str(), current);
            assert_eq!(failed.header("etag"), current);
            assert_eq!(client.get("/v1/kv/before").header("etag"), Some(&*before));
            assert_eq!(client.get("/v1/kv/k").header("etag"), Some(second));
        }
        let all = [put("k", "3"), get("k"), json!({"op":"put","key":"k","value":"4","if_match":"*"})];
        let statuses: Vec<_> = done(client, "?atomic", &all).iter().map(|one| one["status"].clone()).collect();
        assert_eq!(statuses, [200, 200, 200]);
        assert_eq!(client.get("/v1/kv/k").body, b"4");
        // The absence of a value alone fails no atomic batch, but an expiry needs a value.
        let removes = [json!({"op":"delete","key":"nothing"}), put("k", "5"), get("nothing")];
        assert_eq!(batch(client, "?atomic=true", &removes).status, 200);
        let expires = [put("k", "6"), json!({"op":"expire","key":"nothing","ttl":60})];
        assert_item_fails(&batch(client, "?atomic=true", &expires), 404, "not-found", 1);
        assert_eq!(client.get("/v1/kv/k").body, b"5");
    });
}

#[test]
fn counters_fail_alone_or_with_an_atomic_batch() {
    each(ENGINES, |_, _, client| {
        client.put("/v1/kv/text", b"no number");
        let add = |key: &str, by: i64| json!({"op":"add","key":key,"by":by});
        let items = [add("n", i64::MAX), add("n", 1), add("text", 1), add("n", -1)];
        let expected = json!([
            {"status":200,"value":i64::MAX},
            {"status":409,"code":"number-overflow"},
            {"status":409,"code":"not-a-number"},
            {"status":200,"value":i64::MAX - 1},
        ]);
        assert_eq!(Value::from(done(client, "", &items)), expected);
        assert_item_fails(&batch(client, "?atomic=true", &[add("n", 1), add("n", 1)]), 409, "number-overflow", 1);
        assert_item_fails(&batch(client, "?atomic=true", &[add("m", 1), add("text", 1)]), 409, "not-a-number", 1);
        assert_eq!(client.get("/v1/kv/n").body, (i64::MAX - 1).to_string().into_bytes());
        assert_eq!(client.get("/v1/kv/m").status, 404);
    });
}

#[test]
fn a_malformed_item_at_any_position_stops_the_batch() {
    each(ENGINES, |_, _, client| {
        let good: Vec<Value> = (0..1_023).map(|number| put(&format!("key{number}"), "v")).collect();
        // The first, the last, and on both sides of the bound of the first slice.
        for position in [0, 1, 511, 512, 1_000, 1_023] {
            let mut items = good.clone();
            items.insert(position, json!({"op":"put","key":"k","value":"v","tll":"60s"}));
            for (content_type, body) in [(NDJSON, lines(&items)), (CBOR, sequence(&items))] {
                let answer = send(client, "", &[("Content-Type", content_type)], &body);
                assert_item_fails(&answer, 400, "bad-item", position);
            }
        }
        let mut cut = sequence(&good[..3]);
        cut.pop();
        assert_item_fails(&send(client, "", &[("Content-Type", CBOR)], &cut), 400, "bad-item", 2);
        for (item, status, code) in [
            (json!({"op":"put","key":"k","value":"v","ttl":"yesterday"}), 400, "bad-ttl"),
            (json!({"op":"put","key":"k","value":"v","if_match":"7"}), 400, "bad-condition"),
            (json!({"op":"put","key":"k","value":"v","meta":{"a b":""}}), 400, "bad-metadata"),
            (json!({"op":"put","key":"k","value":"v","meta":{"a":"x".repeat(5_000)}}), 400, "metadata-too-large"),
            (json!({"op":"get","key":"k".repeat(5_000)}), 414, "key-too-long"),
            (json!(["get", "k"]), 400, "bad-item"),
        ] {
            assert_item_fails(&batch(client, "", &[put("key0", "v"), item]), status, code, 1);
        }
        assert_eq!(client.get("/v1/kv/key0").status, 404, "nothing has happened");
    });
}

#[test]
fn a_batch_beyond_a_bound_is_413_before_anything_happens() {
    for engine in ENGINES {
        let bounds = [("--batch-items-max", "3"), ("--batch-bytes-max", "2KiB"), ("--value-max", "1KiB")];
        let builder = bounds.iter().fold(ServerBuilder::new(engine), |builder, (name, value)| builder.arg(name, value));
        let server = builder.arg("--key-max", "100B").start();
        let mut client = server.client();
        let puts: Vec<Value> = (0..4).map(|number| put(&number.to_string(), "v")).collect();
        assert_eq!(batch(&mut client, "", &puts[..3]).status, 200);
        client.delete("/v1/kv/0");
        let limit = |answer: &Answer| {
            let document = document(answer);
            assert_eq!((answer.status, document["code"].as_str()), (413, Some("batch-too-large")), "{document}");
            document["limit"].as_u64()
        };
        assert_eq!(limit(&batch(&mut client, "", &puts)), Some(3));
        let large = put("0", &"v".repeat(2_100));
        assert_eq!(limit(&batch(&mut server.client(), "", &[large])), Some(2_048));
        // The length of a chunked body is known only at its end.
        let mut client = server.client();
        let head = "POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n";
        let mut chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
        (0..600).for_each(|_| chunked.extend_from_slice(b"4\r\n    \r\n"));
        client.send_raw(chunked);
        assert_eq!(limit(&client.answer().unwrap()), Some(2_048));
        let mut client = server.client();
        let long = batch(&mut client, "", &[put("0", "v"), put("1", &"v".repeat(1_025))]);
        assert_item_fails(&long, 413, "value-too-large", 1);
        assert_eq!(document(&long)["limit"].as_u64(), Some(1_024));
        assert_item_fails(&batch(&mut client, "", &[put("0", "v"), get(&"k".repeat(101))]), 414, "key-too-long", 1);
        assert_eq!(client.get("/v1/kv/0").status, 404, "nothing has happened");
    }
}

#[test]
fn the_head_of_a_batch_is_strict() {
    each(ENGINES, |_, _, client| {
        let body = lines(&[put("k", "v")]);
        let content_types =
            [None, Some("application/json"), Some("application/cbor"), Some("application/x-www-form-urlencoded")];
        for content_type in content_types {
            let headers: Vec<_> = content_type.iter().map(|value| ("Content-Type", *value)).collect();
            let answer = send(client, "", &headers, &body);
            assert_eq!((answer.status, document(&answer)["code"].as_str()), (415, Some("unsupported-media-type")));
        }
        let answer = send(client, "", &[("Content-Type", NDJSON), ("Content-Encoding", "gzip")], &body);
        assert_eq!((answer.status, document(&answer)["code"].as_str()), (415, Some("unsupported-media-type")));
        for (query, code) in [
            ("?atomc=true", "unknown-parameter"),
            ("?atomic=yes", "bad-parameter"),
            ("?atomic=true&atomic=true", "repeated-parameter"),
            ("?durability=none", "bad-durability"),
        ] {
            let answer = send(client, query, &[("Content-Type", NDJSON)], &body);
            assert_eq!((answer.status, document(&answer)["code"].as_str()), (400, Some(code)), "{query}");
        }
        for method in ["GET", "PUT", "DELETE"] {
            let answer = client.request(method, "/v1/batch", &[("Content-Type", NDJSON)], None);
            assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
        }
        assert_eq!(client.get("/v1/kv/k").status, 404, "nothing has happened");
        let answer = send(client, "", &[("content-type", "Application/X-NDJSON; charset=utf-8")], &body);
        assert_eq!(answer.status, 200);
    });
}

#[test]
fn the_durability_is_of_the_whole_batch() {
    each(SETUPS, |setup, _, client| {
        for asked in ["sync", "async"] {
            let answer = batch(client, &format!("?durability={asked}"), &[put("a", "v"), put("b", "v")]);
            assert_eq!(answer.header("klad-durability"), Some(durability(setup, asked)));
            let headers = [("Content-Type", NDJSON), ("Klad-Durability", asked)];
            let answer = send(client, "?atomic=true", &headers, &lines(&[json!({"op":"add","key":"n","by":1})]));
            assert_eq!(answer.header("klad-durability"), Some(durability(setup, asked)));
        }
    });
}

#[test]
fn an_expired_value_is_gone_for_a_batch_too() {
    each(ENGINES, |_, _, client| {
        let items = [json!({"op":"put","key":"k","value":"v","ttl":0.001}), json!({"op":"put","key":"l","value":"v"})];
        assert_eq!(batch(client, "", &items).status, 200);
        super::support::wait_until("the value expires", || client.get("/v1/kv/k").status == 404);
        let items = [get("k"), json!({"op":"put","key":"k","value":"w","if_none_match":"*"}), get("k")];
        let expected = json!([{"status":404,"code":"not-found"}, {"status":200}, {"status":200,"value":"w"}]);
        assert_eq!(Value::from(done(client, "?atomic=true", &items)), expected, "a later put clears the expiry");
        let items =
            [json!({"op":"expire","key":"k","ttl":"1h"}), json!({"op":"expire","key":"k","ttl":null}), get("k")];
        let kept = &done(client, "", &items)[2];
        assert!(kept.get("ttl").is_none() && kept["value"] == "w", "{kept}");
    });
}

#[test]
fn chunked_bodies_and_deadlines_are_as_for_one_key() {
    each(ENGINES, |_, _, client| {
        let body = lines(&[put("a", "1"), get("a")]);
        let mut chunked = b"POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n\
            Transfer-Encoding: chunked\r\n\r\n"
            .to_vec();
        for piece in body.chunks(7) {
            chunked.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            chunked.extend_from_slice(piece);
            chunked.extend_from_slice(b"\r\n");
        }
        chunked.extend_from_slice(b"0\r\n\r\n");
        client.send_raw(chunked);
        let answered = results(&client.answer().unwrap());
        assert_eq!(answered[1]["value"], "1");
        let headers = [("Content-Type", NDJSON), ("Klad-Timeout", "soon")];
        assert_eq!(document(&send(client, "", &headers, &body))["code"], "bad-timeout");
        // The deadline counts from the head on, and the body comes only after it.
        client.send_raw(format!(
            "POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nKlad-Timeout: 1ms\r\n\
            Expect: 100-continue\r\nContent-Length: {}\r\n\r\n",
            body.len()
        ));
        assert_eq!(client.any_answer().unwrap().status, 100);
        std::thread::sleep(std::time::Duration::from_millis(5));
        client.send_raw(lines(&[put("a", "2"), get("a")]));
        let late = client.answer().unwrap();
        assert_eq!((late.status, document(&late)["code"].as_str()), (504, Some("deadline-passed")));
        assert_eq!(client.get("/v1/kv/a").body, b"1");
    });
}

#[test]
fn values_that_do_not_fit_into_the_answer_fail_alone() {
    for engine in ENGINES {
        let server = ServerBuilder::new(engine).arg("--memory", "256MiB").arg("--value-max", "8MiB").start();
        let mut client = server.client();
        // The body budget is an eighth of the memory. A batch may read a quarter of the budget: 8 MiB.
        let value = vec![7; 5 << 20];
        assert_eq!(client.put("/v1/kv/large", &value).status, 201);
        assert_eq!(client.put("/v1/kv/small", b"v").status, 201);
        for format in [NDJSON, CBOR] {
            let items = lines(&[get("large"), get("large"), get("small")]);
            let headers = [("Content-Type", NDJSON), ("Accept", format)];
            let answer = send(&mut client, "", &headers, &items);
            let read = results(&answer);
            let seen: Vec<_> = read.iter().map(|one| (one["status"].as_u64(), one["code"].as_str())).collect();
            assert_eq!(seen, [(Some(200), None), (Some(413), Some("answer-too-large")), (Some(200), None)]);
            let atomic = send(&mut client, "?atomic=true", &headers, &items);
            assert_item_fails(&atomic, 413, "answer-too-large", 1);
        }
        let mixed = [get("large"), put("small", "w"), get("large"), get("small")];
        let statuses: Vec<_> = done(&mut client, "", &mixed).iter().map(|one| one["status"].clone()).collect();
        assert_eq!(statuses, [200, 200, 413, 200]);
    }
}

#[test]
fn blank_lines_are_no_items() {
    each(ENGINES, |_, _, client| {
        let (one, two) = (put("a", "1"), get("a"));
        let of_lines = [("Content-Type", NDJSON)];
        for body in [
            format!("\n\r\n \t \n{one}\n\n\r\n{two}\n\n"),
            format!("{one}\r\n\r\n{two}"),
            format!("  {one}\t\n{}{two}", "\n".repeat(1 << 20)),
            format!("{}\n{one}\n{two}\n{}", " ".repeat(1 << 20), " \r\n".repeat(100_000)),
        ] {
            let read = results(&send(client, "", &of_lines, body.as_bytes()));
            assert_eq!((read.len(), &read[1]["value"]), (2, &json!("1")), "{} bytes", body.len());
        }
        let bad = json!({"op":"get","key":"a","ttl":1});
        let answer = send(client, "", &of_lines, format!("\n\n{one}\n\n\n{bad}\n").as_bytes());
        assert_item_fails(&answer, 400, "bad-item", 1);
        let blank = send(client, "?atomic=true", &of_lines, b"\n \n\r\n");
        assert_eq!((blank.status, blank.body.len()), (200, 0));
    });
}

#[test]
fn conditions_of_counters_and_expiries_decide_too() {
    each(ENGINES, |_, _, client| {
        let first = client.put("/v1/kv/n", b"1").header("etag").unwrap().to_owned();
        let items = [
            json!({"op":"add","key":"n","by":1,"if_none_match":"*"}),
            json!({"op":"add","key":"n","by":1,"if_match":first}),
            json!({"op":"add","key":"n","by":1,"if_match":first}),
            json!({"op":"expire","key":"n","ttl":"1h","if_match":first}),
            json!({"op":"expire","key":"n","ttl":"1h","if_match":"*"}),
            json!({"op":"expire","key":"absent","ttl":"1h","if_match":"*"}),
            json!({"op":"expire","key":"absent","ttl":"1h","if_none_match":"*"}),
            json!({"op":"add","key":"absent","by":1,"if_match":"\"1\""}),
            json!({"op":"delete","key":"n","if_match":first}),
            get("n"),
        ];
        let done = results(&batch(client, "", &items));
        let statuses: Vec<_> = done.iter().map(|one| one["status"].as_u64().unwrap()).collect();
        assert_eq!(statuses, [412, 200, 412, 412, 204, 412, 404, 412, 412, 200]);
        assert_eq!((&done[0]["current_etag"], &done[2]["current_etag"]), (&json!(first), &done[1]["etag"]));
        assert_eq!((&done[5]["current_etag"], &done[8]["current_etag"]), (&Value::Null, &done[4]["etag"]));
        assert_eq!((&done[9]["value"], &done[9]["etag"]), (&json!("2"), &done[4]["etag"]));
    });
}

/// A change of an expiry stores the value again, so a batch of small items could make a very large log write.
#[test]
fn the_values_whose_expiry_one_batch_changes_are_bounded_together() {
    let expire = |key: &str| json!({"op":"expire","key":key,"ttl":"1h"});
    // Not a cluster, where each item is a request of its own.
    for engine in ENGINES {
        println!("setup {engine}");
        let server = ServerBuilder::new(engine).start();
        let client = &mut server.client();
        for (key, length) in [("a", 3 << 20), ("b", 3 << 20), ("large", 6 << 20), ("small", 100)] {
            assert_eq!(client.put(&format!("/v1/kv/{key}"), &vec![b'v'; length]).status, 201);
        }
        // One alone may have any size.
        assert_eq!(done(client, "", &[expire("large")]), [json!({"status":204})]);
        assert_eq!(client.request("POST", "/v1/kv/large?op=expire&ttl=2h", &[], None).status, 204);
        let too_large = json!({"status":413,"code":"batch-too-large"});
        let each = done(client, "", &[expire("a"), expire("b"), expire("small"), put("after", "v")]);
        assert_eq!(each, [json!({"status":204}), too_large, json!({"status":204}), json!({"status":200})]);
        assert!(client.get("/v1/kv/a").header("klad-ttl").is_some());
        assert_eq!(client.get("/v1/kv/b").header("klad-ttl"), None);
        let atomic = batch(client, "?atomic=true", &[put("after", "w"), expire("a"), expire("b")]);
        assert_item_fails(&atomic, 413, "batch-too-large", 2);
        assert_eq!(document(&atomic)["limit"].as_u64(), Some(4 << 20));
        assert_eq!(client.get("/v1/kv/after").body, b"v", "nothing has happened");
    }
}

#[test]
fn a_batch_that_does_not_fit_into_memory_is_507_and_has_no_effect() {
    let server = ServerBuilder::new("memory").arg("--memory", "64MiB").start();
    let mut client = server.client();
    let value = "v".repeat(1 << 20);
    let stored = (0..64).take_while(|number| client.put(&format!("/v1/kv/{number}"), value.as_bytes()).status == 201);
    let stored = stored.count();
    assert!(stored < 64, "64 MiB do not hold 64 values of 1 MiB");
    for query in ["", "?atomic=true"] {
        let full = batch(&mut client, query, &[put("small", "v"), put("large", &value)]);
        let document = document(&full);
        let told = (full.status, document["code"].as_str(), document["retryable"].as_bool());
        assert_eq!(told, (507, Some("memory-full"), Some(true)));
        assert_eq!(client.get("/v1/kv/small").status, 404, "nothing has happened");
        assert_eq!(batch(&mut client, query, &[json!({"op":"delete","key":"absent"}), get("0")]).status, 200);
    }
    let replaced = [json!({"op":"delete","key":"0"}), json!({"op":"delete","key":"1"}), put("large", &value)];
    assert_eq!(batch(&mut client, "?atomic=true", &replaced).status, 200, "what it removes makes space");
    assert_eq!(client.delete("/v1/kv?start=1").status, 204);
    assert_eq!(batch(&mut client, "", &[put("small", "v"), put("larger", &value)]).status, 200);
}

#[test]
fn a_batch_without_memory_for_its_answer_is_503_and_has_no_effect() {
    for engine in ENGINES {
        // The body budget is an eighth of the memory, but at least what one value of the maximum length needs, as here.
        let builder = ServerBuilder::new(engine).arg("--memory", "64MiB").arg("--value-max", "8MiB");
        // The upload is slow, and must not be ended for the sake of others.
        let server = builder.arg("--body-rate-min", "0").start();
        let (mut holder, mut client) = (server.client(), server.client());
        let head = "PUT /v1/kv/held HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n";
        holder.send_raw(format!("{head}Content-Length: 7500000\r\n\r\n"));
        assert_eq!(holder.any_answer().unwrap().status, 100, "it has its permit");
        for items in [vec![put("k", "v"), get("k")], vec![get("k")]] {
            let answer = batch(&mut client, "", &items);
            let document = document(&answer);
            assert_eq!((answer.status, document["code"].as_str()), (503, Some("no-room")), "{engine}: {document}");
            assert!(answer.header("retry-after").is_some() && answer.header("klad-retry-after-ms").is_some());
        }
        assert_eq!(client.get("/v1/kv/k").status, 404, "{engine}: nothing has happened");
        assert_eq!(batch(&mut client, "", &[put("k", "v")]).status, 200, "results without values are small");
        holder.send_raw(vec![b'v'; 7_500_000]);
        assert_eq!(holder.answer().unwrap().status, 201);
        assert_eq!(batch(&mut client, "", &[put("k", "v"), get("k")]).status, 200, "{engine}");
    }
}
