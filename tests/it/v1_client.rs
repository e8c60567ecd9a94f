//! The client commands of `/v1`: conditions, expiry and metadata; scans with cursors; batches; exports and imports,
//! which lose nothing, continue after an interruption, and can be repeated.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::support::command::Klad;
use super::support::exports::{FORMATS, fill_randomly, put_latin1, store};
use super::support::planted::Defect;
use super::support::scripted::{answers, whole_answer};
use super::support::{ENGINES, Server, ServerBuilder, random};

fn server() -> Server {
    ServerBuilder::new(ENGINES[0]).start()
}

fn text(command: Klad, server: &Server) -> String {
    String::from_utf8(command.at(server.address).succeeds()).unwrap()
}

/// The version in the output of a write.
fn version(said: &str) -> String {
    said.strip_prefix("version ").and_then(|rest| rest.split(',').next()).unwrap().to_owned()
}

#[test]
fn conditions_hold_or_the_exit_code_is_5() {
    for engine in ENGINES {
        let server = ServerBuilder::new(engine).start();
        let at = server.address;
        let first = version(&text(Klad::new("put a 1 --if-absent"), &server));
        let line = Klad::new("put a 2 --if-absent").at(at).fails(5);
        let current = format!("the current ETag is \"{first}\"");
        assert!(line.contains("precondition-failed") && line.contains(&current), "{line}");
        assert!(line.contains("nothing has happened"), "{line}");
        // With quotes and without.
        let second = version(&text(Klad::new(&format!("put a 2 --if-match {first}")), &server));
        let third = version(&text(Klad::new("put a 3 --if-match").arg(format!("\"{second}\"")), &server));
        assert!(Klad::new(&format!("put a 4 --if-match {second}")).at(at).fails(5).contains(&format!("\"{third}\"")));
        Klad::new("put a 5 --if-match *").at(at).succeeds();
        assert!(Klad::new("put b 1 --if-match *").at(at).fails(5).contains("the key does not exist"));
        assert!(Klad::new("del b --if-match *").at(at).fails(5).contains("the key does not exist"));
        assert!(Klad::new(&format!("del a --if-match {first}")).at(at).fails(5).contains("precondition-failed"));
        assert_eq!(Klad::new("get a").at(at).succeeds(), b"5");
        Klad::new("del a --if-match *").at(at).succeeds();
        assert!(Klad::new("get a").at(at).fails(4).contains("not-found"));
        for usage in
            ["put a 1 --if-match W/\"1\"", "put a 1 --if-match 1 --if-absent", "put a 1 --meta x", "put a 1 --ttl 0"]
        {
            assert_eq!(Klad::new(usage).at(at).run().code, Some(2), "{usage}");
        }
    }
}

#[test]
fn counters_are_added_to_and_keep_to_their_range() {
    let server = server();
    let add = |arguments: &str| text(Klad::new(&format!("add {arguments}")), &server);
    assert_eq!(add("n 5"), "5\n");
    assert_eq!(add("n -7"), "-2\n");
    assert_eq!(add("n -9223372036854775806"), "-9223372036854775808\n");
    let at = server.address;
    assert!(Klad::new("add n -1").at(at).fails(1).contains("number-overflow"));
    Klad::new("put text x --quiet").at(at).succeeds();
    assert!(Klad::new("add text 1").at(at).fails(1).contains("not-a-number"));
    assert!(Klad::new("add n 1 --if-absent").at(at).fails(5).contains("precondition-failed"));
    assert_eq!(Klad::new("add n 1.5").at(at).run().code, Some(2));
    assert_eq!(Klad::new("get n").at(at).succeeds(), b"-9223372036854775808");
}

#[test]
fn expiry_content_type_and_metadata_are_shown_before_the_value() {
    let server = server();
    let put = Klad::new("put a hello --ttl 1h --content-type text/x-a --content-encoding br --meta one=1 --meta")
        .arg("Two=2 and 3");
    let etag = version(&text(put, &server));
    let headers = |options: &str| -> (BTreeMap<String, String>, String) {
        let said = text(Klad::new(&format!("get -i a {options}")), &server);
        let (head, value) = said.split_once("\n\n").unwrap();
        let lines = head.lines().map(|line| line.split_once(": ").unwrap());
        (lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(), value.to_owned())
    };
    let (found, value) = headers("");
    assert_eq!(value, "hello");
    let expected = [("content-type", "text/x-a"), ("content-encoding", "br"), ("klad-meta-one", "1")];
    let expected = expected.map(|(name, value)| (name, value.to_owned()));
    for (name, value) in expected.into_iter().chain([("etag", format!("\"{etag}\""))]) {
        assert_eq!(found.get(name), Some(&value), "{found:?}");
    }
    assert_eq!(found["klad-meta-two"], "2 and 3");
    let left: f64 = found["klad-ttl"].strip_suffix('s').unwrap().parse().unwrap();
    assert!(left > 0.0 && left <= 3_600.0, "{left}");
    assert!(found.contains_key("last-modified") && !found.contains_key("date"), "{found:?}");

    text(Klad::new("expire a none"), &server);
    assert!(!headers("").0.contains_key("klad-ttl"));
    text(Klad::new("expire a 2h"), &server);
    assert!(headers("").0.contains_key("klad-ttl"));
    assert!(Klad::new("expire b 2h").at(server.address).fails(4).contains("not-found"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("value");
    let said = Klad::new("get --headers a --output").arg(&path).at(server.address).succeeds();
    assert!(said.ends_with(b"\n\n") && std::fs::read(&path).unwrap() == b"hello");
    // A put without options replaces everything.
    text(Klad::new("put a again"), &server);
    let found = headers("").0;
    assert!(!found.contains_key("klad-ttl") && !found.contains_key("klad-meta-one"), "{found:?}");
}

#[test]
fn keys_that_a_proxy_could_change_arrive_unchanged() {
    let server = server();
    for (number, key) in
        ["a//b", "/", "..", "a/../b", ".", "a b", "a+b", "a%2Fb", "a?b#c", "é", "a/b"].iter().enumerate()
    {
        let value = number.to_string();
        Klad::new("put --quiet").arg("--").arg(key).arg(&value).at(server.address).succeeds();
        let encoded = super::support::encode(key.as_bytes());
        let mut client = server.client();
        assert_eq!(client.get(&format!("/v0/entity?id={encoded}")).body, value.as_bytes(), "{key}");
        assert_eq!(Klad::new("get --").arg(key).at(server.address).succeeds(), value.as_bytes(), "{key}");
    }
}

/// Stores `count` entries with keys in order, through `/v1/batch`.
fn fill(server: &Server, count: usize) {
    let lines: String =
        (0..count).map(|n| format!("{{\"op\":\"put\",\"key\":\"k{n:05}\",\"value\":\"{n}\"}}\n")).collect();
    Klad::new("batch --quiet --durability async").input(lines.as_bytes()).at(server.address).succeeds();
}

#[test]
fn a_scan_follows_cursors_and_has_all_options_of_v1() {
    for engine in ENGINES {
        // Each request ends after its first step.
        let server = ServerBuilder::new(engine).arg("--scan-time-max", "1ns").start();
        fill(&server, 5_000);
        let keys = |options: &str| -> Vec<String> {
            text(Klad::new(&format!("scan --keys {options}")), &server).lines().map(str::to_owned).collect()
        };
        let all: Vec<String> = (0..5_000).map(|n| format!("k{n:05}")).collect();
        assert_eq!(keys(""), all, "{engine}");
        let mut reversed = all.clone();
        reversed.reverse();
        assert_eq!(keys("--reverse"), reversed);
        assert_eq!(keys("--limit 3000"), all[..3_000]);
        assert_eq!(keys("--prefix k03 --limit 2 --reverse"), ["k03999", "k03998"]);
        assert_eq!(keys("k00010 k00012"), all[10..12]);
        assert_eq!(text(Klad::new("scan --count"), &server), "5000\n");
        assert_eq!(text(Klad::new("scan --count --json --prefix k04"), &server), "{\"count\":1000}\n");
        for key in ["a/1", "a/2", "b", "c/d/e"] {
            Klad::new(&format!("put --quiet {key} x")).at(server.address).succeeds();
        }
        assert_eq!(text(Klad::new("scan a d --delimiter /"), &server), "a/\nb\tx\nc/\n");
        assert_eq!(text(Klad::new("scan --prefix a/ --delimiter / --keys"), &server), "a/1\na/2\n");
        assert_eq!(text(Klad::new("scan a b --delimiter / --json"), &server), "{\"prefix\":\"a/\"}\n");
    }
}

fn lines(said: &[u8]) -> Vec<Value> {
    String::from_utf8(said.to_vec()).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_batch_prints_a_result_for_each_item() {
    for engine in ENGINES {
        let server = ServerBuilder::new(engine).start();
        let items = concat!(
            "{\"op\":\"put\",\"key\":\"a\",\"value\":\"1\"}\n\n",
            "{\"op\":\"get\",\"key\":\"a\"}\n",
            "{\"op\":\"get\",\"key\":\"absent\"}\n",
            "{\"op\":\"add\",\"key\":\"a\",\"by\":2}\n",
            "{\"op\":\"delete\",\"key\":\"a\"}"
        );
        let results = lines(&Klad::new("batch").input(items.as_bytes()).at(server.address).succeeds());
        let statuses: Vec<_> = results.iter().map(|result| result["status"].as_u64().unwrap()).collect();
        assert_eq!(statuses, [200, 200, 404, 200, 204], "{engine}: {results:?}");
        assert_eq!((&results[1]["value"], &results[3]["value"]), (&json!("1"), &json!(3)), "{results:?}");
        assert_eq!(Klad::new("batch").at(server.address).succeeds(), b"");

        // One that fails does not stop the others.
        let items = concat!(
            "{\"op\":\"put\",\"key\":\"b\",\"value\":\"1\",\"if_match\":\"*\"}\n",
            "{\"op\":\"put\",\"key\":\"c\",\"value\":\"1\"}\n"
        );
        let said = Klad::new("batch").input(items.as_bytes()).at(server.address).run();
        assert!(said.code == Some(5) && said.stderr.contains("1 of 2 items failed"), "{said:?}");
        assert_eq!(lines(&said.stdout).len(), 2);
        assert_eq!(Klad::new("get c").at(server.address).succeeds(), b"1");
        let items = items.replace("\"c\"", "\"d\"");
        let line = Klad::new("batch --atomic").input(items.as_bytes()).at(server.address).fails(5);
        assert!(line.contains("item 1: precondition-failed") && line.contains("the key does not exist"), "{line}");
        assert!(Klad::new("get d").at(server.address).fails(4).contains("not-found"));
    }
}

#[test]
fn a_long_batch_is_sent_in_pieces_that_the_server_takes() {
    let server =
        ServerBuilder::new(ENGINES[0]).arg("--batch-items-max", "100").arg("--batch-bytes-max", "8KiB").start();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("items");
    let item = |n: usize| format!("{{\"op\":\"put\",\"key\":\"{n:04}\",\"value\":\"{}\"}}\n", "x".repeat(n % 300));
    let items: String = (0..1_000).map(item).collect();
    std::fs::write(&file, &items).unwrap();
    let results = lines(&Klad::new("batch --durability async").arg(&file).at(server.address).succeeds());
    assert_eq!(results.len(), 1_000);
    let versions: Vec<u64> =
        results.iter().map(|result| result["etag"].as_str().unwrap().trim_matches('"').parse().unwrap()).collect();
    assert!(versions.is_sorted_by(|a, b| a < b), "in their order");
    assert_eq!(text(Klad::new("scan --count"), &server), "1000\n");
    let line = Klad::new("batch --atomic").arg(&file).at(server.address).fails(1);
    assert!(line.contains("100 items") && line.contains("nothing has happened"), "{line}");
    // Of the piece with the invalid item nothing is done.
    let invalid =
        items.replace("{\"op\":\"put\",\"key\":\"0550\"", "{\"op\":\"put\",\"kye\":\"0550\"").replace("\"0", "\"n");
    let said = Klad::new("batch --durability async").input(invalid.as_bytes()).at(server.address).run();
    assert!(said.code == Some(1) && said.stderr.contains("item 551: bad-item"), "{:?}", said.stderr);
    let done = lines(&said.stdout).len();
    assert!((400..=550).contains(&done), "{done}");
    assert_eq!(text(Klad::new("scan --count --prefix n"), &server), format!("{done}\n"));
}

/// Exports one server, imports into another, and compares.
fn export_loses_nothing(from: &ServerBuilder, format: &str, count: usize) -> Result<(), String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("export");
    let server = from.start();
    let mut keys = fill_randomly(&mut server.client(), count);
    keys.push(put_latin1(&mut server.client()));
    let run = |command: Klad, server: &Server| {
        let said = command.at(server.address).run();
        if said.code == Some(0) { Ok(String::from_utf8(said.stdout).unwrap()) } else { Err(said.stderr) }
    };
    let said = run(Klad::new("export --format").arg(format).arg("--output").arg(&path), &server)?;
    let before = store(&server, keys.clone());
    if !said.starts_with(&format!("exported {} entries", before.len())) {
        return Err(format!("{} entries are stored: {said}", before.len()));
    }
    for engine in ENGINES {
        let other = ServerBuilder::new(engine).start();
        // Twice, and through a pipe.
        let said = run(Klad::new("import --input").arg(&path), &other)?;
        assert!(said.starts_with(&format!("imported {} entries", before.len())), "{said}");
        run(Klad::new("import --quiet").input(&std::fs::read(&path).unwrap()), &other)?;
        let after = store(&other, keys.clone());
        assert_eq!(run(Klad::new("scan --count"), &other)?, format!("{}\n", before.len()));
        if before != after {
            let differs = before.iter().find(|(key, entry)| after.get(*key) != Some(entry));
            return Err(format!("{engine}: {differs:?} is {:?}", differs.map(|(key, _)| after.get(key))));
        }
        // The bytes of the metadata, which the client of the tests reads as text.
        let listed = text(Klad::new("scan --prefix latin1 --json"), &other);
        if !listed.contains("\"meta64\":{\"name\":\"Y2Fm6Q==\"}") {
            return Err(listed);
        }
    }
    Ok(())
}

#[test]
fn what_is_exported_and_imported_is_the_same_byte_for_byte() {
    for format in FORMATS {
        // With many requests.
        for builder in [ServerBuilder::new(ENGINES[0]), ServerBuilder::new("memory").arg("--scan-time-max", "1ns")] {
            export_loses_nothing(&builder, format, 600).unwrap();
        }
    }
}

#[test]
fn twin_an_export_of_a_faulty_server_is_noticed() {
    for defect in [Defect::SkipsAtSteps, Defect::FailsInMidRange] {
        let builder = ServerBuilder::new("memory").defect(Some(defect));
        // More than a scan reads in three steps.
        let found = export_loses_nothing(&builder, "ndjson", 4_000);
        let why = found.expect_err("the check must find the defect");
        println!("{defect:?}: {why}");
    }
}

/// Exports to a file.
fn exported(server: &Server, directory: &Path, format: &str) -> PathBuf {
    let path = directory.join(format!("whole.{format}"));
    Klad::new("export --quiet --format").arg(format).arg("--output").arg(&path).at(server.address).succeeds();
    path
}

#[test]
fn an_interrupted_export_continues_after_its_last_entry() {
    let server = server();
    fill_randomly(&mut server.client(), 300);
    let directory = tempfile::tempdir().unwrap();
    let mut random = random();
    for format in FORMATS {
        let whole = std::fs::read(exported(&server, directory.path(), format)).unwrap();
        let path = directory.path().join("part");
        let resume = || {
            let command = Klad::new("export --resume --format").arg(format).arg("--output").arg(&path);
            text(command, &server)
        };
        for _ in 0..10 {
            // Behind the first entry, which has at most some 1,000 bytes.
            let length = random.usize(2_000..whole.len());
            std::fs::write(&path, &whole[..length]).unwrap();
            let said = resume();
            assert!(said.contains("that were in the file") || said.contains("is complete"), "{said}");
            let now = std::fs::read(&path).unwrap();
            // The time of expiry is computed again, from a time left that is rounded.
            assert_eq!(without_expiry(&now, format), without_expiry(&whole, format), "{format} {length}");
        }
        let said = resume();
        assert!(said.starts_with("the export is complete: "), "{said}");
        std::fs::remove_file(&path).unwrap();
        assert!(resume().starts_with("exported "));
        let command = || Klad::new("export --format").arg(format).arg("--output").arg(&path);
        assert!(command().at(server.address).fails(2).contains("--resume"));
        // Another range, another format, another file.
        let said = command().arg("--resume").arg("--prefix").arg("x").at(server.address).fails(2);
        assert!(said.contains("not in the range"), "{said}");
        let other = FORMATS.into_iter().find(|other| *other != format).unwrap();
        let command = Klad::new("export --resume --format").arg(other).arg("--output").arg(&path);
        assert!(command.at(server.address).fails(2).contains("is not the beginning of this export"));
        std::fs::remove_file(&path).unwrap();
    }
}

/// An export as text, without the times of expiry.
fn without_expiry(export: &[u8], format: &str) -> Vec<String> {
    if format == "ndjson" {
        let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap();
        let entries = String::from_utf8(export.to_vec()).unwrap();
        return entries
            .lines()
            .map(|line| {
                let mut entry = parse(line);
                entry.as_object_mut().unwrap().remove("expires_at_ms");
                entry.to_string()
            })
            .collect();
    }
    let mut items = Vec::new();
    let mut decoder = minicbor::Decoder::new(export);
    while decoder.position() < export.len() {
        let begin = decoder.position();
        decoder.skip().unwrap();
        let mut item = export[begin..decoder.position()].to_vec();
        if let Some(at) = item.windows(13).position(|name| name == b"expires_at_ms") {
            // The name, and a number of nine bytes.
            item.drain(at..at + 13 + 9);
        }
        items.push(format!("{item:?}"));
    }
    items
}

#[test]
fn an_interrupted_import_continues_where_it_ended() {
    let source = server();
    fill(&source, 5_000);
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    for format in FORMATS {
        let path = exported(&source, directory.path(), format);
        let whole = std::fs::read(&path).unwrap();
        let other = server();
        // The input is cut off in the middle: klad stores the entries before the cut.
        let import = |bytes: &[u8]| {
            Klad::new("import --durability async --resume-file").arg(&state).input(bytes).at(other.address)
        };
        let line = import(&whole[..whole.len() * 2 / 3]).fails(1);
        assert!(line.contains("incomplete") || line.contains("invalid"), "{line}");
        let stored: u64 = text(Klad::new("scan --count"), &other).trim().parse().unwrap();
        assert!((3_000..3_500).contains(&stored), "{stored}");
        let recorded: Value = serde_json::from_slice(&std::fs::read(&state).unwrap()).unwrap();
        assert_eq!(recorded["entries"], stored);
        // An input that is not the same one.
        fill(&source, 10);
        Klad::new("put --quiet k00000a x").at(source.address).succeeds();
        let changed = Klad::new("export --format").arg(format).at(source.address).succeeds();
        assert!(import(&changed).fails(2).contains("another input"));
        Klad::new("del --quiet k00000a").at(source.address).succeeds();

        let said = String::from_utf8(import(&whole).succeeds()).unwrap();
        let rest = format!("imported {} entries", 5_000 - stored);
        assert!(said.starts_with(&rest) && said.contains(&format!("{stored} were imported before")), "{said}");
        assert!(!state.exists(), "a complete import deletes its state");
        assert_eq!(text(Klad::new("scan --count"), &other), "5000\n");
        assert_eq!(text(Klad::new("scan"), &other), text(Klad::new("scan"), &source));
    }
}

#[test]
fn an_import_tells_what_is_missing() {
    let server = server();
    let import = |options: &str, input: &str| {
        Klad::new(&format!("import {options}")).input(input.as_bytes()).at(server.address).run()
    };
    let entry = "{\"key\":\"a\",\"value\":\"1\"}\n";
    let said = import("", entry);
    assert!(said.code == Some(1) && said.stderr.contains("1 entries were read and stored"), "{said:?}");
    assert_eq!(Klad::new("get a").at(server.address).succeeds(), b"1");
    assert_eq!(import("--partial", entry).code, Some(0));
    assert_eq!(import("", &format!("{entry}{{\"next\":null,\"complete\":true}}\n")).code, Some(0));
    for (end, word) in [
        ("{\"complete\":true,\"entries\":2}\n", "the input is damaged"),
        ("{\"next\":\"c\",\"complete\":false}\n", "does not end as an export does"),
        ("{\"key\":\"b\"}\n", "has no value"),
        ("{\"key\":\"b\",\"value\":\"1\",\"tll\":5}\n", "unknown field"),
        ("{\"prefix\":\"b/\"}\n", "a common prefix"),
        ("{\"key\":\"b\",\"va", "is invalid"),
    ] {
        let said = import("", &format!("{entry}{end}"));
        assert!(said.code == Some(1) && said.stderr.contains(word), "{end}: {said:?}");
    }
    // What has expired is not stored; what exists may be kept.
    let entries = "{\"key\":\"a\",\"value\":\"2\"}\n{\"key\":\"old\",\"value\":\"1\",\"expires_at_ms\":5}\n";
    let said = import("--partial --if-absent", entries);
    let out = String::from_utf8(said.stdout).unwrap();
    assert!(out.contains("1 had expired") && out.contains("1 had a key that exists"), "{out}");
    assert_eq!(Klad::new("get a").at(server.address).succeeds(), b"1");
    assert!(Klad::new("get old").at(server.address).fails(4).contains("not-found"));
    assert_eq!(import("--partial --quiet", "").stdout, b"");
    let too_long = format!("{{\"key\":\"{}\",\"value\":\"1\"}}\n", "k".repeat(5_000));
    let said = import("--partial", &format!("{entry}{too_long}"));
    assert!(said.code == Some(1) && said.stderr.contains("entry 2: "), "{said:?}");
}

#[test]
fn an_entry_that_is_larger_than_a_batch_is_imported_too() {
    let source = server();
    let mut client = source.client();
    let large: Vec<u8> = (0..100_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let headers = [("Content-Type", "image/x"), ("Content-Encoding", "br"), ("Klad-Meta-A", "b"), ("Klad-TTL", "1h")];
    assert_eq!(client.request("PUT", "/v1/kv/b//large", &headers, Some(&large)).status, 201);
    fill(&source, 10);
    let keys = || (0..10).map(|n| format!("k{n:05}").into_bytes()).chain([b"b//large".to_vec()]);
    let directory = tempfile::tempdir().unwrap();
    for format in FORMATS {
        let path = exported(&source, directory.path(), format);
        let other = ServerBuilder::new(ENGINES[0]).arg("--batch-bytes-max", "4KiB").start();
        let said = text(Klad::new("import --input").arg(&path), &other);
        assert!(said.starts_with("imported 11 entries"), "{said}");
        assert_eq!(store(&other, keys()), store(&source, keys()));
        let said = text(Klad::new("import --if-absent --input").arg(&path), &other);
        assert!(said.contains("11 had a key that exists"), "{said}");
    }
}

#[test]
fn an_export_waits_for_a_busy_server_and_reports_a_cut_answer() {
    let busy = whole_answer("503 Busy", "Klad-Retry-After-Ms: 1\r\n", "{\"code\":\"overloaded\"}");
    let entry = "{\"key\":\"a\",\"value\":\"1\"}\n";
    let whole = whole_answer("200 OK", "", &format!("{entry}{{\"next\":\"c=\",\"complete\":false}}\n"));
    let end = whole_answer("200 OK", "", "{\"next\":null,\"complete\":true}\n");
    let (address, thread) = answers(vec![busy.clone(), whole.clone(), busy.clone(), end]);
    let said = Klad::new("export").at(address).succeeds();
    assert_eq!(said, format!("{entry}{{\"complete\":true,\"entries\":1}}\n").as_bytes());
    let requests = thread.join().unwrap();
    let targets: Vec<_> = requests.iter().map(|request| request.split(' ').nth(1).unwrap()).collect();
    assert_eq!(targets, ["/v1/kv", "/v1/kv", "/v1/kv?cursor=c%3D", "/v1/kv?cursor=c%3D"]);

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    let (address, thread) = answers(vec![whole_answer("200 OK", "", entry)]);
    let line = Klad::new("export --output").arg(&path).at(address).fails(1);
    assert!(line.contains("incomplete") && line.contains("--resume"), "{line}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), entry, "no end");
    thread.join().unwrap();
    // A scan does not wait.
    let (address, thread) = answers(vec![busy]);
    assert!(Klad::new("scan").at(address).fails(1).contains("overloaded"));
    thread.join().unwrap();
}
