//! What a request of `/v1` sees of the writes beside it: an atomic batch whole or not at all. A scan sees one state of
//! the store, also if it has several steps.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::support::batches::{batch, results};
use super::support::planted::Defect;
use super::support::scanning::{FORMATS, Format, keys, scan, store};
use super::support::{Client, DURABLE_ENGINES, ENGINES, Over, SETUPS, ServerBuilder, wait_until};

const KEYS: usize = 12;

fn items(item: impl Fn(usize) -> Value) -> Vec<Value> {
    (0..KEYS).map(item).collect()
}

/// Stores `value` under all keys in one atomic batch.
fn store_together(client: &mut Client, value: usize) {
    let put = |key| json!({"op": "put", "key": format!("k{key:02}"), "value": value.to_string()});
    wait_until("the batch is stored", || {
        let status = batch(client, "?atomic=true&durability=async", &items(put)).status;
        assert!([200, 503].contains(&status), "{status}");
        status == 200
    });
}

/// The values of all keys, read in one request.
type ReadTogether = fn(&mut Client) -> Vec<String>;

fn texts<'v>(values: impl IntoIterator<Item = &'v Value>) -> Vec<String> {
    values.into_iter().map(|item| item["value"].as_str().expect("a value").to_owned()).collect()
}

/// The ways to read all keys in one request: a batch of gets, a batch that also writes, and scans.
const READS: &[(&str, ReadTogether)] = &[
    ("gets", |client| {
        texts(&results(&batch(client, "", &items(|key| json!({"op": "get", "key": format!("k{key:02}")})))))
    }),
    ("gets beside a put", |client| {
        let mut items = items(|key| json!({"op": "get", "key": format!("k{key:02}")}));
        items.push(json!({"op": "put", "key": "other", "value": ""}));
        texts(&results(&batch(client, "?durability=async", &items))[..KEYS])
    }),
    ("a page", |client| scanned(client, Format::Page)),
    ("a stream", |client| scanned(client, Format::JsonLines)),
];

fn scanned(client: &mut Client, format: Format) -> Vec<String> {
    scan(client, "prefix=k", format)
        .unwrap()
        .items
        .iter()
        .map(|item| item["value"].as_str().unwrap().to_owned())
        .collect()
}

/// Reads all keys again and again while a client changes them together.
fn batches_are_seen_whole(builder: &ServerBuilder, rounds: usize) -> Result<(), String> {
    let server = builder.start();
    store_together(&mut server.client(), 0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            let mut client = server.client();
            for value in 1.. {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                store_together(&mut client, value);
            }
        });
        let mut client = server.client();
        for _ in 0..rounds {
            for (how, read) in READS {
                let seen = read(&mut client);
                if seen.len() != KEYS || seen.iter().any(|value| *value != seen[0]) {
                    return Err(format!("{how}: {seen:?}"));
                }
            }
        }
        Ok(())
    })
}

#[test]
fn an_atomic_batch_is_seen_whole_or_not_at_all() {
    for setup in SETUPS {
        batches_are_seen_whole(&ServerBuilder::new(setup), 25).unwrap_or_else(|seen| panic!("{setup}: {seen}"));
    }
}

#[test]
fn twin_half_a_batch_that_is_seen_is_noticed() {
    for engine in ENGINES {
        let planted = ServerBuilder::new(engine).defect(Some(Defect::SplitsBatches));
        batches_are_seen_whole(&planted, 500).expect_err("a batch was two commits");
    }
}

/// Scans whose steps are followed by writes of another client. Returns a fault if a scan shows one of them.
fn steps_see_one_state(engine: &str) -> Result<(), String> {
    let server = ServerBuilder::new(engine).defect(Some(Defect::WritesBetweenSteps)).start();
    let mut client = server.client();
    // A few entries, which are several steps because they are large.
    let few: Vec<String> = (0..5).map(|number| format!("few{number}")).collect();
    for key in &few {
        store(&mut client, key.as_bytes(), &vec![b'v'; 60_000]);
    }
    let check = |query: &str, format: Format, expected: &[String]| {
        // A connection that has carried large values is closed soon when it is idle.
        let mut client = server.client();
        for other in ["0", "z"] {
            client.delete(&format!("/v1/kv/{other}"));
        }
        let listed = keys(&scan(&mut client, query, format)?.listed);
        if client.get("/v1/kv/z").status != 200 {
            return Err("nothing was written meanwhile".to_owned());
        }
        if listed == expected { Ok(()) } else { Err(format!("{query} as {format:?}: {} keys", listed.len())) }
    };
    let reversed: Vec<String> = few.iter().rev().cloned().collect();
    for format in FORMATS {
        check("", format, &few)?;
        check("reverse=true", format, &reversed)?;
    }
    // Many entries, which are several steps because they are many.
    let mut client = server.client();
    let many: Vec<String> = (0..2_500).map(|number| format!("many{number:04}")).collect();
    for key in &many {
        store(&mut client, key.as_bytes(), b"v");
    }
    let all: Vec<String> = few.iter().chain(&many).cloned().collect();
    for format in FORMATS {
        check("keys_only=true&limit=9000", format, &all)?;
    }
    for other in ["0", "z"] {
        client.delete(&format!("/v1/kv/{other}"));
    }
    let counted: Value = serde_json::from_slice(&client.get("/v1/kv?count=true").body).unwrap();
    if counted["count"] == all.len() { Ok(()) } else { Err(format!("the count is {counted}")) }
}

#[test]
fn the_steps_of_a_scan_see_one_state() {
    for engine in DURABLE_ENGINES {
        steps_see_one_state(engine).unwrap_or_else(|seen| panic!("{engine}: {seen}"));
    }
}

/// The memory engine has no snapshots, as `/v1/limits` says.
#[test]
fn twin_a_write_between_two_steps_is_noticed() {
    let seen = steps_see_one_state("memory").expect_err("the write was not seen");
    assert!(seen.contains("6 keys"), "{seen}");
}
