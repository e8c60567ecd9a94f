//! `klad import --into`: a bulk load stores the same as an import, and leaves a sound directory, also after a kill.

use std::io::Write as _;
use std::path::Path;

use serde_json::Value;

use super::support::bencher::Bencher;
use super::support::command::Klad;
use super::support::exports::{fill_randomly, put_latin1, store};
use super::support::stores::check;
use super::support::{Client, ServerBuilder, random, wait_until};

fn import(options: &str, data: &Path) -> Klad {
    let command = options.split_whitespace().fold(Klad::new("import"), Klad::arg);
    command.arg("--into").arg(data)
}

fn said(command: Klad) -> String {
    String::from_utf8(command.succeeds()).unwrap()
}

/// The entries of a directory: keys, values and versions.
fn entries(data: &Path) -> Vec<(String, String, u64)> {
    let export = Klad::new("export --data").arg(data).succeeds();
    let items = std::str::from_utf8(&export).unwrap().lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let text = |item: &Value, name: &str| item[name].as_str().unwrap().to_owned();
    items
        .filter(|item| item["complete"].is_null())
        .map(|item| {
            let version = text(&item, "etag").trim_matches('"').parse().unwrap();
            (text(&item, "key"), text(&item, "value"), version)
        })
        .collect()
}

fn is_sound(data: &Path) {
    let ran = check(data);
    assert!(ran.code == Some(0) && ran.out.contains("is sound"), "{ran:?}");
}

/// Lines of `count` entries in random order. Every tenth key comes again behind the others, with another value.
fn lines(count: usize) -> String {
    let mut numbers: Vec<usize> = (0..count).collect();
    random().shuffle(&mut numbers);
    let line = |value: &str, n: usize| format!("{{\"key\":\"k{n:05}\",\"value\":\"{value}{n}\"}}\n");
    let again = (0..count).step_by(10).map(|n| line("later", n));
    numbers.iter().map(|n| line("v", *n)).chain(again).collect()
}

fn is_whole(found: &[(String, String, u64)], count: usize) -> Result<(), String> {
    if found.len() != count {
        return Err(format!("{} entries", found.len()));
    }
    for (n, (key, value, _)) in found.iter().enumerate() {
        let word = if n.is_multiple_of(10) { "later" } else { "v" };
        if *key != format!("k{n:05}") || *value != format!("{word}{n}") {
            return Err(format!("{key}: {value}"));
        }
    }
    let versions: std::collections::BTreeSet<u64> = found.iter().map(|(.., version)| *version).collect();
    if versions.len() == count { Ok(()) } else { Err("some entries have the same version".to_owned()) }
}

#[test]
fn of_unsorted_entries_the_last_one_of_each_key_is_stored() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let report = said(import("--partial", &data).input(lines(5_000).as_bytes()));
    assert!(report.starts_with("imported 5500 entries, "), "{report}");
    assert!(!data.join("load").exists(), "no table is left behind");
    is_whole(&entries(&data), 5_000).unwrap();
    is_sound(&data);
}

#[test]
fn twin_a_lost_and_an_older_entry_are_noticed() {
    let place = tempfile::tempdir().unwrap();
    for lost in ["v21", "later20"] {
        let data = place.path().join(lost);
        let all = lines(100);
        let input: Vec<_> = all.lines().filter(|line| !line.contains(&format!("\"{lost}\""))).collect();
        said(import("--partial", &data).input(input.join("\n").as_bytes()));
        is_whole(&entries(&data), 100).expect_err(lost);
    }
}

#[test]
fn a_load_into_a_store_replaces_keys_with_newer_versions_and_keeps_the_others() {
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new("rocksdb").data(data.path());
    let server = builder.start();
    let mut client = server.client();
    for (key, value) in [("k00001", "old"), ("a", "1"), ("z", "2")] {
        client.store(&format!("/v0/entity?id={key}"), value.as_bytes());
    }
    assert_eq!(client.request("PUT", "/v1/kv/gone?ttl=50ms", &[], Some(b"1")).status, 201);
    wait_until("it expires", || client.get("/v1/kv/gone").status == 404);
    let position = client.get("/v1/kv/z").header("etag").unwrap().trim_matches('"').to_owned();
    drop(client);
    assert!(server.stop().success());
    let before = entries(data.path());
    let newest = before.iter().map(|(.., version)| *version).max().unwrap();
    let more = "{\"key\":\"gone\",\"value\":\"back\"}\n{\"key\":\"z\",\"value\":\"3\"}\n{\"key\":\"b\",\"value\":\"1\"}\n\
                {\"key\":\"b\",\"value\":\"2\"}\n{\"key\":\"old\",\"value\":\"1\",\"expires_at_ms\":5}\n";
    let report = said(import("--partial --if-absent", data.path()).input(more.as_bytes()));
    assert!(report.contains("1 had expired; 2 had a key that exists"), "{report}");
    said(import("--partial", data.path()).input(lines(100).as_bytes()));
    let after = entries(data.path());
    assert_eq!(after.len(), 104, "100 keys, a, b, gone and z");
    let of = |key: &str| after.iter().find(|(found, ..)| found == key).unwrap();
    assert_eq!([of("a"), of("z")], [&before[0], &before[2]]);
    assert_eq!([&of("b").1, &of("gone").1, &of("k00001").1], ["1", "back", "v1"]);
    assert!(after.iter().all(|(key, _, version)| ["a", "z"].contains(&key.as_str()) || *version > newest));
    is_sound(data.path());

    let server = builder.start();
    let mut client = server.client();
    // The loaded entries are in no log, so a feed cannot continue over them.
    for from in ["0", &position] {
        assert_eq!(client.get(&format!("/v1/changes?from={from}")).status, 410, "{from}");
    }
    let etag = client.get("/v1/kv/k00001").header("etag").unwrap().to_owned();
    let put = |client: &mut Client, etag: &str| {
        client.request("PUT", "/v1/kv/k00001", &[("If-Match", etag)], Some(b"new")).status
    };
    assert_eq!((put(&mut client, &etag), put(&mut client, &etag)), (204, 412));
    client.delete("/v0/entity?id=k00002");
    assert!(server.stop().success());
    is_sound(data.path());
    let last = entries(data.path());
    assert_eq!(last.len(), 103);
    assert!(last.iter().any(|(key, value, version)| key == "k00001" && value == "new" && *version > of("b").2));
}

#[test]
fn everything_beside_a_value_is_loaded() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    let server = ServerBuilder::new("rocksdb").data(&from).start();
    let mut keys = fill_randomly(&mut server.client(), 300);
    keys.push(put_latin1(&mut server.client()));
    let stored = store(&server, keys.iter().cloned());
    let exported = Klad::new("export --format cbor").at(server.address).succeeds();
    assert!(server.stop().success());
    for options in ["", "--compression zstd"] {
        said(import(options, &to).input(&exported));
        let server = ServerBuilder::new("rocksdb").data(&to).start();
        assert!(store(&server, keys.iter().cloned()) == stored, "{options}");
        assert!(server.stop().success());
    }
}

#[test]
fn many_overlapping_loads_are_compacted() {
    let data = tempfile::tempdir().unwrap();
    for n in 0..12 {
        let entries = format!("{{\"key\":\"a\",\"value\":\"{n}\"}}\n{{\"key\":\"b{n}\",\"value\":\"{n}\"}}\n");
        said(import("--partial", data.path()).input(entries.as_bytes()));
    }
    let found = entries(data.path());
    assert_eq!((found.len(), &*found[0].1), (13, "11"));
    let report = Klad::new("check --json --data").arg(data.path()).succeeds();
    let report: Value = serde_json::from_slice(&report).unwrap();
    assert!(report["tables"].as_u64() < Some(5) && report["sound"] == true, "{report}");
}

#[test]
fn a_load_that_was_cut_or_killed_continues_where_it_ended() {
    let place = tempfile::tempdir().unwrap();
    let (data, state) = (place.path().join("data"), place.path().join("state"));
    let load =
        |input: &[u8]| Klad::new("import --partial --resume-file").arg(&state).arg("--into").arg(&data).input(input);
    let all = lines(5_000);
    let part = all.lines().take(2_000).fold(String::new(), |part, line| part + line + "\n");
    // The input is cut off: klad stores the entries before the cut.
    let line = load(format!("{part}{{").as_bytes()).fails(1);
    assert!(line.contains("invalid"), "{line}");
    is_sound(&data);
    assert_eq!(entries(&data).len(), 2_000);
    // Killed while it reads: nothing more is stored.
    let mut killed = load(b"").spawn();
    let mut input = killed.stdin.take().unwrap();
    input.write_all(&all.as_bytes()[..all.len() / 2]).unwrap();
    killed.kill().unwrap();
    killed.wait().unwrap();
    drop(input);
    // Killed while it writes tables.
    std::fs::create_dir_all(data.join("load")).unwrap();
    std::fs::write(data.join("load/0-0.sst"), b"part of a table").unwrap();
    is_sound(&data);
    assert_eq!(entries(&data).len(), 2_000);
    assert!(!data.join("load").exists(), "a start removes it");
    let report = said(load(all.as_bytes()));
    assert!(report.contains("imported 3500 entries") && report.contains("2000 were imported before"), "{report}");
    assert!(!state.exists(), "a complete import deletes its state");
    is_whole(&entries(&data), 5_000).unwrap();
    is_sound(&data);
}

#[test]
fn a_load_killed_at_any_time_leaves_a_sound_directory() {
    let place = tempfile::tempdir().unwrap();
    let (data, state) = (place.path().join("data"), place.path().join("state"));
    let load =
        || Klad::new("import --generate 300000 --value-format v{} --resume-file").arg(&state).arg("--into").arg(&data);
    for step in ["LOCK", "rocksdb/CURRENT", "load"] {
        let mut killed = load().spawn();
        // On a slow machine the import may have ended before this thread looks.
        wait_until("it has begun", || data.join(step).exists() || killed.try_wait().unwrap().is_some());
        killed.kill().unwrap();
        killed.wait().unwrap();
        if data.join("KLAD").exists() {
            is_sound(&data);
        }
    }
    said(load());
    let found = entries(&data);
    assert_eq!(found.len(), 300_000);
    assert!(found.iter().all(|(key, value, _)| key.strip_prefix("key") == value.strip_prefix('v')));
    is_sound(&data);
}

#[test]
fn a_load_continues_only_with_its_own_input_and_directory() {
    let place = tempfile::tempdir().unwrap();
    let (data, state) = (place.path().join("data"), place.path().join("state"));
    std::fs::write(&state, "{\"entries\":3,\"last_key64\":\"\"}\n").unwrap();
    let load = |options: &str, data: &Path| import(options, data).arg("--resume-file").arg(&state);
    let line = load("--generate 5", &data).fails(2);
    assert!(line.contains("another input"), "{line}");
    let line = load("--partial", &data).input(b"").fails(2);
    assert!(line.contains("does not exist, and the resume file says that it has entries"), "{line}");
    assert!(!data.exists());
    std::fs::remove_file(&state).unwrap();
    said(load("--generate 5 --value-format v{}", &data));
    assert_eq!(entries(&data).len(), 5);
}

#[test]
fn a_directory_in_use_or_of_another_engine_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let data = |engine: &str| place.path().join(engine);
    let entry = b"{\"key\":\"a\",\"value\":\"1\"}\n";
    let server = ServerBuilder::new("rocksdb").data(&data("rocksdb")).start();
    let line = import("--partial", &data("rocksdb")).input(entry).fails(75);
    let says = format!(
        "in use by another process (process id {}): stop it, or give --url with its address instead of the directory [data-locked]\n",
        server.process()
    );
    assert!(line.ends_with(&says), "{line}");
    assert_eq!(server.client().get("/v1/kv/a").status, 404);
    assert!(server.stop().success());
    assert!(ServerBuilder::new("fjall").data(&data("fjall")).start().stop().success());
    let line = import("--partial", &data("fjall")).input(entry).fails(2);
    assert!(line.contains("has the engine fjall: use --data"), "{line}");
    for wrong in ["--data other", "--durability sync", "--engine rocksdb", "--url http://127.0.0.1:1", "--generate 0"] {
        assert_eq!(import(wrong, &data("rocksdb")).run().code, Some(2), "{wrong}");
    }
    for wrong in ["--generate 5", "--compression lz4"] {
        assert_eq!(Klad::new(&format!("import {wrong}")).run().code, Some(2), "{wrong} without --into");
    }
    let line = import("--input no-such-file", &data("new")).fails(1);
    assert!(line.contains("no-such-file") && !data("new").exists(), "the input is opened first: {line}");
}

#[test]
fn generated_entries_are_those_of_a_fill() {
    let place = tempfile::tempdir().unwrap();
    let (filled, loaded) = (place.path().join("filled"), place.path().join("loaded"));
    let server = ServerBuilder::new("rocksdb").data(&filled).start();
    let formats = "--key-format {} --value-format value#{}";
    Bencher::new(&format!("http://{}", server.address), &format!("--workload get --fill 1234 {formats}")).run();
    assert!(server.stop().success());
    said(import(&format!("--generate 1234 {formats}"), &loaded));
    let without_versions = |data: &Path| {
        let found = entries(data).into_iter();
        found.map(|(key, value, _)| (key, value)).collect::<Vec<_>>()
    };
    assert!(without_versions(&filled) == without_versions(&loaded));
}
