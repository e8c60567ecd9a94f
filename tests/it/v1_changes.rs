//! Change feeds: every acknowledged change comes exactly once and in order, also after a restart and a kill. klad says
//! which changes it no longer keeps. Other tests are about slow readers, heartbeats, limits, tokens and the end of a
//! feed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value as Json;

use super::support::feeds::{Change, Feed, LINES};
use super::support::planted::Defect;
use super::support::{Answer, Client, Over, ROCKSDB_SETUPS, Server, ServerBuilder, random, wait_until};

type Found = Result<(), String>;

fn code(answer: &Answer) -> String {
    let document: Json = serde_json::from_slice(&answer.body).expect("a problem document");
    document["code"].as_str().expect("a code").to_owned()
}

fn refused(server: &Server, query: &str) -> (u16, String) {
    let answer = server.client().request("GET", &format!("/v1/changes{query}"), &[LINES], None);
    (answer.status, code(&answer))
}

/// Changes random keys until `count` changes are acknowledged or the server ends. Adds acknowledged changes to one list
/// of `log`, and a change without an answer to the other.
fn change_keys(address: SocketAddr, name: &str, count: usize, random: &mut fastrand::Rng, log: &mut Journal) {
    let Ok(mut client) = Client::try_connect(address) else { return };
    while log.acknowledged.len() < count {
        let key = format!("{name}/{}", random.usize(0..20));
        let value = (random.usize(0..4) > 0).then(|| format!("{name}-{}", "x".repeat(random.usize(0..300))));
        let durability = if random.usize(0..4) == 0 { "sync" } else { "async" };
        let target = format!("/v0/entity?id={key}&durability={durability}");
        let answer = match &value {
            Some(value) => client.try_request("PUT", &target, &[], Some(value.as_bytes())),
            None => client.try_request("DELETE", &target, &[], None),
        };
        let op = if value.is_some() { "put" } else { "delete" };
        let mut change = Change { version: 0, op: op.to_owned(), key, value };
        match answer {
            Ok(answer) if answer.status == 503 => std::thread::sleep(Duration::from_millis(5)),
            Ok(answer) => {
                assert!(matches!(answer.status, 201 | 202), "{}", answer.status);
                change.version = answer.version();
                log.acknowledged.push(change);
            }
            Err(_) => {
                log.unanswered.push(change);
                return;
            }
        }
    }
}

#[derive(Default)]
struct Journal {
    acknowledged: Vec<Change>,
    unanswered: Vec<Change>,
}

const WRITERS: usize = 4;

/// Runs [`change_keys`] with several clients, and `beside` in this thread.
fn write_with(address: SocketAddr, count: usize, random: &mut fastrand::Rng, beside: impl FnOnce()) -> Journal {
    let journals: Vec<Journal> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let mut random = random.fork();
                scope.spawn(move || {
                    let mut log = Journal::default();
                    change_keys(address, &format!("w{number}"), count, &mut random, &mut log);
                    log
                })
            })
            .collect();
        beside();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let mut all = Journal::default();
    for journal in journals {
        all.acknowledged.extend(journal.acknowledged);
        all.unanswered.extend(journal.unanswered);
    }
    all
}

/// Checks that a feed has each acknowledged change of keys with `prefix` exactly once and in order, and otherwise only
/// changes whose answer was lost.
fn check(journal: &Journal, prefix: &str, feed: &[Change]) -> Found {
    let mut expected: Vec<&Change> =
        journal.acknowledged.iter().filter(|change| change.key.starts_with(prefix)).collect();
    expected.sort_by_key(|change| change.version);
    let mut unanswered: Vec<&Change> = journal.unanswered.iter().collect();
    let mut expected = expected.into_iter().peekable();
    let mut before = 0;
    for change in feed {
        if change.version <= before {
            return Err(format!("version {} follows {before}", change.version));
        }
        before = change.version;
        if expected.next_if(|expected| *expected == change).is_some() {
            continue;
        }
        let same = |sent: &&Change| (&sent.op, &sent.key, &sent.value) == (&change.op, &change.key, &change.value);
        match unanswered.iter().position(same) {
            Some(position) => drop(unanswered.swap_remove(position)),
            None => return Err(format!("{change:?} is in the feed, but {:?} was expected", expected.peek())),
        }
    }
    expected.next().map_or(Ok(()), |missing| Err(format!("{missing:?} is missing in the feed")))
}

/// Compares feeds during writes and afterwards with what was acknowledged.
fn feeds_are_complete(builder: &ServerBuilder) -> Found {
    let server = builder.start();
    let mut all = Feed::lines(server.address, "?values=true");
    let mut some = Feed::lines(server.address, "?values=true&prefix=w1/");
    let (mut of_all, mut of_some) = (Vec::new(), Vec::new());
    let journal = write_with(server.address, 250, &mut random(), || {});
    let mut client = server.client();
    // Several times, because a planted defect may lose one.
    (0..5).for_each(|_| client.store("/v0/entity?id=w1/end", b""));
    // This thread reads the feeds only after the writes. klad does not end a feed that lags by so little.
    of_all.extend(all.up_to("w1/end"));
    of_some.extend(some.up_to("w1/end"));
    let again = Feed::lines(server.address, "?from=0&values=true").up_to("w1/end");
    check(&journal, "", &of_all)?;
    check(&journal, "w1/", &of_some)?;
    check(&journal, "", &again)
}

#[test]
fn feeds_have_every_acknowledged_change_once_and_in_order() {
    for setup in ROCKSDB_SETUPS {
        feeds_are_complete(&ServerBuilder::new(setup)).unwrap_or_else(|fault| panic!("{setup}: {fault}"));
    }
}

#[test]
fn twin_a_lost_change_is_noticed() {
    let lossy = ServerBuilder::new("rocksdb").defect(Some(Defect::LosesChanges));
    let fault = feeds_are_complete(&lossy).unwrap_err();
    assert!(fault.contains("was expected") || fault.contains("is missing"), "{fault}");
}

#[test]
fn a_feed_is_read_while_changes_arrive() {
    let server = ServerBuilder::new("rocksdb").start();
    let mut feed = Feed::lines(server.address, "?values=true");
    let (mut changes, over) = (Vec::new(), AtomicBool::new(false));
    let address = server.address;
    let journal = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let _over = Over(&over);
            changes = feed.up_to("end");
        });
        let journal = write_with(address, 400, &mut random(), || {});
        Client::connect(address).store("/v0/entity?id=end", b"");
        reader.join().unwrap();
        journal
    });
    assert!(over.load(Ordering::SeqCst));
    check(&journal, "", &changes).unwrap();
}

/// The keys and values that remain after `changes`.
fn replay(changes: &[Change]) -> BTreeMap<String, String> {
    let mut state = BTreeMap::new();
    for change in changes {
        match &change.value {
            Some(value) => state.insert(change.key.clone(), value.clone()),
            None => state.remove(&change.key),
        };
    }
    state
}

fn stored(client: &mut Client) -> BTreeMap<String, String> {
    let answer = client.get("/v0/entities?start=w");
    let entries = answer.chunks.expect("chunks").into_iter().map(|chunk| String::from_utf8(chunk).unwrap());
    entries
        .map(|entry| entry.split_once('\n').map(|(key, value)| (key.to_owned(), value.to_owned())).unwrap())
        .collect()
}

/// Kills a server several times under load. A client reads on after each start from the last version that it has seen.
fn feeds_survive_kills(builder: &ServerBuilder) {
    let mut random = random();
    let data = tempfile::tempdir().unwrap();
    // Small memtables, so that logs are replaced within a round.
    let builder = builder.clone().data(data.path()).arg("--memory", "64MiB");
    let (mut journal, mut seen) = (Journal::default(), Vec::new());
    for round in 0..4 {
        let server = builder.start();
        let last = seen.last().map_or(0, |change: &Change| change.version);
        let mut feed = Feed::lines(server.address, &format!("?from={last}&values=true"));
        let enough = random.usize(100..400);
        let address = server.address;
        let mut server = Some(server);
        let written = write_with(address, usize::MAX, &mut random, || {
            // The feed breaks with the kill, so it is read only as far as it must be complete.
            for _ in 0..enough {
                seen.push(feed.change().expect("a change"));
            }
            if round == 3 {
                server.take().unwrap().stop();
            } else {
                server.take().unwrap().kill();
            }
        });
        journal.acknowledged.extend(written.acknowledged);
        journal.unanswered.extend(written.unanswered);
    }
    let server = builder.start();
    server.client().store("/v0/entity?id=end", b"");
    let last = seen.last().expect("changes").version;
    seen.extend(Feed::lines(server.address, &format!("?from={last}&values=true")).up_to("end"));
    check(&journal, "", &seen).unwrap();
    let again = Feed::lines(server.address, "?from=0&values=true").up_to("end");
    assert_eq!(again, seen, "a feed from the beginning has the same changes");
    assert!(replay(&seen) == stored(&mut server.client()), "the changes lead to what is stored");
}

#[test]
fn a_feed_goes_on_after_sigkill_and_after_a_stop() {
    feeds_survive_kills(&ServerBuilder::new("rocksdb"));
    feeds_survive_kills(&ServerBuilder::new("rocksdb/pool").arg("--log-preallocation", "on"));
}

#[test]
fn server_sent_events_are_resumed_by_their_id() {
    let server = ServerBuilder::new("rocksdb").start();
    let mut client = server.client();
    let versions: Vec<u64> = (0..5).map(|n| client.put(&format!("/v0/entity?id=k{n}"), b"value").version()).collect();
    let mut feed = Feed::open(server.address, "?from=0", &[]);
    let beginning = feed.until("\n\n").unwrap();
    assert_eq!(beginning, ": heartbeat\nid: 0");
    let event = |text: String| {
        let (id, data) = text.split_once('\n').expect("two lines");
        let data = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        (id.strip_prefix("id: ").expect("an id").parse::<u64>().unwrap(), data)
    };
    let (id, data): (u64, Json) = event(feed.until("\n\n").unwrap());
    assert_eq!((id, &data["key"], &data["bytes"]), (versions[0], &"k0".into(), &5.into()));
    assert!(data.get("value").is_none(), "{data}");
    // The header wins, because a browser repeats the address of its first request.
    let resumed = [("Last-Event-ID", &*versions[2].to_string())];
    let mut feed = Feed::open(server.address, "?from=0", &resumed);
    assert_eq!(feed.until("\n\n").unwrap(), format!(": heartbeat\nid: {}", versions[2]));
    for version in &versions[3..] {
        assert_eq!(event(feed.until("\n\n").unwrap()).0, *version);
    }
}

#[test]
fn a_feed_without_from_has_only_what_comes_after_it() {
    let server = ServerBuilder::new("rocksdb").start();
    let mut client = server.client();
    let before = client.put("/v0/entity?id=before", b"1").version();
    let mut feed = Feed::lines(server.address, "");
    let beginning = feed.json().unwrap();
    assert_eq!(beginning["heartbeat"].as_u64(), Some(before), "the position is told at once");
    let target = "/v1/kv/%FF?ttl=1h";
    let headers = [("Content-Type", "text/plain"), ("Content-Encoding", "br"), ("Klad-Meta-Owner", "me")];
    client.request("PUT", target, &headers, Some(b"after"));
    let event = feed.json().unwrap();
    assert_eq!(event["key64"], "_w");
    assert_eq!((&event["content_type"], &event["content_encoding"]), (&"text/plain".into(), &"br".into()));
    assert_eq!(event["meta"]["owner"], "me");
    assert!(event["ttl"].as_f64().is_some_and(|ttl| ttl > 3_000.0), "{event}");
    client.delete("/v1/kv/%FF");
    assert_eq!(feed.json().unwrap()["op"], "delete");
}

#[test]
fn large_values_come_whole() {
    let server = ServerBuilder::new("rocksdb").arg("--memory", "64MiB").start();
    let mut feed = Feed::lines(server.address, "?values=true");
    let mut client = server.client();
    // The last is as long as --value-max.
    for length in [0, 9_216, 16_384, 16_385, 100_000, 16 << 20] {
        let text: String = "a\"\n\u{e9}".chars().cycle().take(length).collect();
        let text = &text[..text.floor_char_boundary(length)];
        client.store("/v0/entity?id=text", text.as_bytes());
        let change = feed.change().unwrap();
        assert!(change.value.as_deref() == Some(text), "{length} bytes");
    }
}

/// Compares the feed of a batch, a failed batch and two removals of ranges with what they have changed.
fn batches_and_removals_are_in_the_feed(builder: &ServerBuilder) -> Found {
    let server = builder.start();
    let mut feed = Feed::lines(server.address, "");
    let mut client = server.client();
    let mut batch = |items: &[&str], status| {
        let headers = [("Content-Type", "application/x-ndjson")];
        let answer = client.request("POST", "/v1/batch?atomic=true", &headers, Some(items.join("\n").as_bytes()));
        assert_eq!(answer.status, status, "{}", answer.text());
    };
    batch(
        &[
            r#"{"op":"put","key":"b/1","value":"1"}"#,
            r#"{"op":"add","key":"b/n","by":5}"#,
            r#"{"op":"delete","key":"b/1"}"#,
            r#"{"op":"get","key":"b/n"}"#,
        ],
        200,
    );
    batch(&[r#"{"op":"put","key":"b/2","value":"1"}"#, r#"{"op":"delete","key":"b/3","if_match":"*"}"#], 412);
    assert_eq!(client.delete("/v1/kv?prefix=b/").status, 204);
    // No key is in this range, and none is behind it.
    assert_eq!(client.delete("/v1/kv?start=z").status, 204);
    // The twin's defect loses some changes, but not all of these.
    (0..3).for_each(|_| client.store("/v0/entity?id=end", b""));
    let events = std::iter::from_fn(|| feed.json()).filter(|event| event.get("heartbeat").is_none());
    let changes: Vec<Json> = events.take_while(|event| event["key"] != "end").collect();
    let text = |event: &Json, name: &str| event[name].as_str().unwrap_or("-").to_owned();
    let words: Vec<String> =
        changes.iter().map(|event| ["op", "key", "start", "end"].map(|name| text(event, name)).join(" ")).collect();
    let expected = ["put b/1 - -", "put b/n - -", "delete b/1 - -", "delete_range - b/ b0"];
    if words != expected {
        return Err(format!("the feed has {words:?}, and {expected:?} was expected"));
    }
    let versions: Vec<_> = changes.iter().map(|event| event["version"].as_u64().expect("a version")).collect();
    assert_eq!((versions[1], versions[2]), (versions[0] + 1, versions[0] + 2), "one commit");
    Ok(())
}

#[test]
fn batches_and_removals_of_ranges_are_changes() {
    for setup in ROCKSDB_SETUPS {
        batches_and_removals_are_in_the_feed(&ServerBuilder::new(setup))
            .unwrap_or_else(|fault| panic!("{setup}: {fault}"));
    }
}

#[test]
fn twin_a_lost_change_of_a_batch_is_noticed() {
    let lossy = ServerBuilder::new("rocksdb").defect(Some(Defect::LosesChanges));
    batches_and_removals_are_in_the_feed(&lossy).unwrap_err();
}

/// Whether a feed from `from` begins; otherwise the problem document.
fn begins(server: &Server, from: u64) -> Result<Feed, Json> {
    let target = format!("/v1/changes?from={from}");
    let mut client = server.client();
    client.send("GET", &target, &[LINES], None).unwrap();
    if client.head().unwrap().0 == 200 {
        return Ok(Feed { client, text: String::new(), ended: false });
    }
    // What is gone stays gone.
    let answer = server.client().request("GET", &target, &[LINES], None);
    assert_eq!(answer.status, 410);
    Err(serde_json::from_slice(&answer.body).unwrap())
}

/// Stores values of 10 KB until the changes after `from` are no longer kept. Returns the answer.
fn write_until_gone(server: &Server, from: u64) -> Json {
    let mut client = server.client();
    let value = vec![b'v'; 10_000];
    let mut answer = None;
    wait_until("the first changes are gone", || {
        for n in 0..200 {
            client.store(&format!("/v0/entity?id=fill{n}&durability=async"), &value);
        }
        answer = begins(server, from).err();
        answer.is_some()
    });
    answer.unwrap()
}

fn forgetful() -> ServerBuilder {
    ServerBuilder::new("rocksdb").arg("--memory", "64MiB").arg("--changes-bytes", "4MiB").arg("--write-timeout", "10m")
}

#[test]
fn changes_beyond_the_retention_are_gone() {
    let server = forgetful().start();
    let first = server.client().put("/v0/entity?id=first", b"1").version();
    let document = write_until_gone(&server, first);
    assert_eq!((&document["code"], &document["retryable"]), (&"version-gone".into(), &false.into()));
    // Retention goes on, so the oldest version may be gone by the next request.
    wait_until("a feed begins with the oldest version", || {
        let document = begins(&server, 0).err().expect("the first changes are gone");
        let oldest = document["oldest"].as_u64().expect("the oldest version");
        assert!(oldest > first);
        begins(&server, oldest - 1).is_ok_and(|mut feed| feed.change().is_ok_and(|change| change.version == oldest))
    });
}

#[test]
fn a_reader_that_is_too_slow_is_cut_with_a_reason() {
    let server = forgetful().start();
    let first = server.client().put("/v0/entity?id=first", b"1").version();
    let mut slow = Feed::lines(server.address, &format!("?from={}&values=true", first - 1));
    assert_eq!(slow.change().unwrap().version, first);
    // The client of the feed reads nothing while klad deletes the changes that it has not read.
    let fill = vec![b'v'; 10_000];
    let mut client = server.client();
    for n in 0..2_000 {
        client.store(&format!("/v0/entity?id=slow{}&durability=async", n % 50), &fill);
    }
    write_until_gone(&server, slow_position(&server));
    let mut before = first;
    let why = loop {
        match slow.change() {
            Ok(change) => {
                assert!(change.version > before);
                before = change.version;
            }
            Err(why) => break why,
        }
    };
    assert_eq!(why["code"], "version-gone", "{why}");
    assert!(why["oldest"].as_u64().unwrap() > before, "{why}");
}

/// A version that a slow reader cannot have reached: the last one now.
fn slow_position(server: &Server) -> u64 {
    server.client().put("/v0/entity?id=mark", b"1").version()
}

#[test]
fn heartbeats_tell_the_position() {
    let server = ServerBuilder::new("rocksdb").arg("--changes-heartbeat", "20ms").start();
    let mut feed = Feed::lines(server.address, "?prefix=none");
    let beats = |feed: &mut Feed| feed.json().unwrap()["heartbeat"].as_u64().expect("a heartbeat");
    let first = beats(&mut feed);
    let version = server.client().put("/v0/entity?id=other", b"1").version();
    assert!(version > first);
    // Other keys move the position, so that a client does not begin far back.
    while beats(&mut feed) < version {}
    let mut feed = Feed::open(server.address, "", &[]);
    for _ in 0..3 {
        assert_eq!(feed.until("\n\n").unwrap(), format!(": heartbeat\nid: {version}"));
    }
}

#[test]
fn a_stopping_server_ends_its_feeds_with_a_reason() {
    let mut server = ServerBuilder::new("rocksdb").arg("--drain-timeout", "5m").start();
    let mut lines = Feed::lines(server.address, "");
    let mut events = Feed::open(server.address, "", &[]);
    assert!(lines.json().unwrap().get("heartbeat").is_some());
    events.until("\n\n").unwrap();
    server.signal(Signal::TERM);
    assert_eq!(lines.change().unwrap_err()["code"], "stopping");
    let last = events.until("\n\n").unwrap();
    assert!(last.starts_with("event: error\ndata: {") && last.contains("\"code\":\"stopping\""), "{last}");
    assert_eq!(events.until("\n\n"), None);
    assert!(server.wait().success());
}

#[test]
fn the_number_of_feeds_is_limited() {
    // klad notices that a client has gone when it sends the next heartbeat.
    let server = ServerBuilder::new("rocksdb").arg("--watchers-max", "1").arg("--changes-heartbeat", "50ms").start();
    let mut feed = Feed::lines(server.address, "");
    feed.json().unwrap();
    assert_eq!(refused(&server, ""), (503, "overloaded".to_owned()));
    drop(feed);
    wait_until("the place is free again", || {
        let mut client = server.client();
        client.send("GET", "/v1/changes", &[LINES], None).unwrap();
        client.head().unwrap().0 == 200
    });
}

#[test]
fn engines_without_a_feed_say_so() {
    for engine in super::support::ENGINES.iter().filter(|engine| **engine != "rocksdb") {
        let server = ServerBuilder::new(engine).start();
        assert_eq!(refused(&server, ""), (501, "not-supported-by-engine".to_owned()), "{engine}");
    }
    let server = ServerBuilder::new("rocksdb").arg("--changes-bytes", "0B").start();
    assert_eq!(refused(&server, "?from=0"), (501, "not-supported-by-engine".to_owned()));
}

#[test]
fn bad_requests_are_rejected() {
    let server = ServerBuilder::new("rocksdb").start();
    let version = server.client().put("/v0/entity?id=a", b"1").version();
    assert_eq!(refused(&server, &format!("?from={}", version + 1)), (400, "bad-parameter".to_owned()));
    assert_eq!(refused(&server, "?since=1"), (400, "unknown-parameter".to_owned()));
    let answer = server.client().request("POST", "/v1/changes", &[], Some(b""));
    assert_eq!((answer.status, answer.header("allow")), (405, Some("GET")));
}

#[test]
fn a_read_only_token_may_watch() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens");
    std::fs::write(&tokens, "read-only reader-0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&tokens, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let server = ServerBuilder::new("rocksdb").arg("--token-file", tokens.to_str().unwrap()).start();
    let token = ("Authorization", "Bearer reader-0123456789abcdef");
    let mut feed = Feed::open(server.address, "?from=0", &[LINES, token]);
    assert!(feed.json().unwrap().get("heartbeat").is_some());
    assert_eq!(refused(&server, ""), (401, "unauthorized".to_owned()));
}
