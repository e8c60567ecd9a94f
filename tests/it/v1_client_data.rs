//! `klad export --data` and `klad import --data`: a data directory that no server serves keeps all that a server has
//! stored, a directory in use is refused, and both commands continue after an interruption.

use std::io::Write as _;
use std::path::Path;

use serde_json::Value;

use super::support::command::Klad;
use super::support::exports::{FORMATS, Store, fill_randomly, put_latin1, store};
use super::support::{DURABLE_ENGINES, ServerBuilder, random, wait_until};

/// A command with a data directory. Its last word may be an option whose value is added.
fn klad(command: &str, data: &Path) -> Klad {
    let (name, options) = command.split_once(' ').unwrap_or((command, ""));
    options.split_whitespace().fold(Klad::new(name).arg("--data").arg(data), Klad::arg)
}

fn said(command: Klad) -> String {
    String::from_utf8(command.succeeds()).unwrap()
}

/// Serves a directory, and reads these keys.
fn served(engine: &str, data: &Path, keys: &[Vec<u8>]) -> Store {
    let server = ServerBuilder::new(engine).data(data).start();
    let found = store(&server, keys.iter().cloned());
    assert!(server.stop().success());
    found
}

/// Serves a new directory, stores entries of every kind, and stops. Returns the keys.
fn filled(engine: &str, data: &Path, count: usize) -> Vec<Vec<u8>> {
    let server = ServerBuilder::new(engine).data(data).start();
    let mut client = server.client();
    let mut keys = fill_randomly(&mut client, count);
    keys.push(put_latin1(&mut client));
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let headers = [("Content-Type", "image/x"), ("Content-Encoding", "br"), ("Klad-TTL", "1h")];
    assert_eq!(client.request("PUT", "/v1/kv/large", &headers, Some(&large)).status, 201);
    client.store("/v0/entity?id=plain", b"");
    client.store("/v0/entity?id=removed", b"1");
    client.delete("/v0/entity?id=removed");
    keys.extend([b"large".to_vec(), b"plain".to_vec(), b"removed".to_vec()]);
    assert!(server.stop().success());
    keys
}

/// The items of an export without these members.
fn items_without(members: &[&str], export: &[u8]) -> Vec<Value> {
    let item = |line: &str| {
        let mut item: serde_json::Map<String, Value> = serde_json::from_str(line).unwrap();
        item.retain(|name, _| !members.contains(&name.as_str()));
        Value::from(item)
    };
    std::str::from_utf8(export).unwrap().lines().map(item).collect()
}

/// The items of an export without what an import renews.
fn items(export: &[u8]) -> Vec<Value> {
    items_without(&["etag", "modified_ms"], export)
}

/// Stores by a server, exports the directory, imports the file into new directories, and serves them. `spoil` changes
/// the file.
fn directories_lose_nothing(format: &str, spoil: impl Fn(Vec<u8>) -> Vec<u8>) -> Result<(), String> {
    for engine in DURABLE_ENGINES {
        let place = tempfile::tempdir().unwrap();
        let (data, file) = (place.path().join("data"), place.path().join("file"));
        let keys = filled(engine, &data, 300);
        let count = served(engine, &data, &keys).len();
        let report = said(klad("export --format", &data).arg(format).arg("--output").arg(&file));
        assert!(report.starts_with(&format!("exported {count} entries, ")), "{engine}: {report}");
        std::fs::write(&file, spoil(std::fs::read(&file).unwrap())).unwrap();
        let exported = items(&klad("export", &data).succeeds());
        for other in DURABLE_ENGINES {
            let copy = place.path().join(other);
            let import = || klad("import --engine", &copy).arg(other).arg("--input").arg(&file);
            let report = said(import());
            assert!(report.starts_with(&format!("imported {count} entries, ")), "{other}: {report}");
            // Again, and through a pipe.
            assert_eq!(said(klad("import --quiet", &copy).input(&std::fs::read(&file).unwrap())), "");
            let again = items(&klad("export", &copy).succeeds());
            if again != exported {
                let differs = again.iter().zip(&exported).find(|(again, before)| again != before);
                return Err(format!("{engine} to {other}: {differs:?}"));
            }
            let (before, after) = (served(engine, &data, &keys), served(other, &copy, &keys));
            if before != after {
                let differs = before.iter().find(|(key, entry)| after.get(*key) != Some(entry));
                return Err(format!("{engine} to {other}: {differs:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn a_directory_that_is_exported_and_imported_is_the_same() {
    for format in FORMATS {
        directories_lose_nothing(format, |file| file).unwrap();
    }
}

#[test]
fn twin_a_lost_content_encoding_is_noticed() {
    let spoil = |file: Vec<u8>| {
        let name = b",\"content_encoding\":\"br\"";
        let at = file.windows(name.len()).position(|part| part == name).expect("the large value has it");
        [&file[..at], &file[at + name.len()..]].concat()
    };
    let fault = directories_lose_nothing("ndjson", spoil).expect_err("it is lost");
    assert!(fault.contains("content_encoding"), "{}", fault.chars().take(200).collect::<String>());
}

#[test]
fn a_server_and_its_directory_export_the_same_entries() {
    for engine in DURABLE_ENGINES {
        let data = tempfile::tempdir().unwrap();
        filled(engine, data.path(), 100);
        let ranges = ["", "k l", "--prefix la", "--prefix nothing"];
        let offline = ranges.map(|range| klad(&format!("export {range}"), data.path()).succeeds());
        let server = ServerBuilder::new(engine).data(data.path()).start();
        let online = ranges.map(|range| Klad::new(&format!("export {range}")).at(server.address).succeeds());
        // The server says the time left, so the time of expiry is computed again.
        let timeless = |export: &[u8]| items_without(&["expires_at_ms"], export);
        for ((offline, online), range) in offline.iter().zip(&online).zip(ranges) {
            assert!(timeless(offline) == timeless(online), "{engine} {range}");
        }
        assert_eq!(items(&offline[2]).len(), 3, "large, latin1 and the end");
    }
}

#[test]
fn a_directory_in_use_or_of_another_kind_is_refused() {
    for engine in DURABLE_ENGINES {
        let place = tempfile::tempdir().unwrap();
        let data = place.path().join("data");
        let server = ServerBuilder::new(engine).data(&data).start();
        let entry = b"{\"key\":\"a\",\"value\":\"1\"}\n";
        for command in [klad("export", &data), klad("import --partial", &data).input(entry)] {
            let line = command.fails(75);
            let says = format!(
                "is in use by another process (process id {}): stop it, or give --url with its address instead of the directory [data-locked]\n",
                server.process()
            );
            assert!(line.starts_with("klad: ") && line.ends_with(&says), "{line}");
        }
        assert_eq!(server.client().get("/v1/kv/a").status, 404);
        assert!(server.stop().success());
        let line = klad("export", &place.path().join("nothing")).fails(66);
        assert!(line.contains("not a klad data directory") && line.ends_with(" [data-foreign]\n"), "{line}");
        assert!(!place.path().join("nothing").exists());
        for other in DURABLE_ENGINES.iter().filter(|other| *other != engine) {
            let line = klad("import --partial --engine", &data).arg(other).input(entry).fails(66);
            assert!(line.contains(&format!("was written by --engine {engine}")), "{line}");
        }
        for wrong in [
            "export --url http://127.0.0.1:1",
            "export --timeout 1s",
            "import --engine memory",
            "import --resume-file position --durability async",
        ] {
            assert_eq!(klad(wrong, &data).run().code, Some(2), "{wrong}");
        }
        let line = klad("import --input no-such-file", &place.path().join("new")).fails(1);
        assert!(line.contains("no-such-file"), "{line}");
        assert!(!place.path().join("new").exists(), "the input is opened first");
        assert_eq!(Klad::new("import --engine").arg(engine).run().code, Some(2), "without --data");
        std::fs::create_dir(place.path().join("photos")).unwrap();
        std::fs::write(place.path().join("photos/cat.jpg"), b"").unwrap();
        let line = klad("import --partial", &place.path().join("photos")).input(entry).fails(66);
        assert!(line.ends_with(" [data-foreign]\n"), "{line}");
    }
}

#[test]
fn an_import_into_a_directory_has_the_limits_of_a_server() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let import =
        |options: &str, lines: &str| klad(&format!("import --partial {options}"), &data).input(lines.as_bytes());
    let entry = "{\"key\":\"a\",\"value\":\"1\"}\n";
    let long = "k".repeat(16_385);
    for (line, code) in [
        ("{\"key\":\"\",\"value\":\"1\"}".to_owned(), "missing-parameter"),
        (format!("{{\"key\":\"{long}\",\"value\":\"1\"}}"), "key-too-long"),
        ("{\"key\":\"b\",\"value\":\"1\",\"content_type\":\"\u{e9}\"}".to_owned(), "bad-metadata"),
        ("{\"key\":\"b\",\"value\":\"1\",\"meta\":{\"a b\":\"1\"}}".to_owned(), "bad-metadata"),
        ("{\"key\":\"b\",\"value\":\"1\",\"ttl\":1e11}".to_owned(), "bad-ttl"),
        ("{\"key\":\"b\",\"bytes\":1}".to_owned(), "has no value"),
    ] {
        let report = import("", &format!("{entry}{line}\n")).fails(1);
        assert!(report.contains("entry 2") && report.contains(code), "{code}: {report}");
    }
    // What exists is kept, what has expired is not stored, and a counter stays a counter.
    let more = "{\"key\":\"a\",\"value\":\"2\"}\n{\"key\":\"old\",\"value\":\"1\",\"expires_at_ms\":5}\n";
    let report = said(import("--if-absent --durability async", more));
    assert!(report.contains("1 had expired") && report.contains("1 had a key that exists"), "{report}");
    let server = ServerBuilder::new(DURABLE_ENGINES[0]).data(&data).start();
    assert_eq!(Klad::new("scan").at(server.address).succeeds(), b"a\t1\n");
    assert_eq!(Klad::new("add a 4").at(server.address).succeeds(), b"5\n");
}

#[test]
fn an_interrupted_export_of_a_directory_continues_after_its_last_entry() {
    let mut random = random();
    for engine in DURABLE_ENGINES {
        let place = tempfile::tempdir().unwrap();
        let (data, path) = (place.path().join("data"), place.path().join("part"));
        filled(engine, &data, 100);
        for format in FORMATS {
            let whole = klad("export --format", &data).arg(format).succeeds();
            let resume = || said(klad("export --resume --format", &data).arg(format).arg("--output").arg(&path));
            for end in [10_000, 10_000, whole.len(), whole.len()] {
                // Behind the first entry, which has at most some 1,000 bytes.
                std::fs::write(&path, &whole[..random.usize(2_000..end)]).unwrap();
                let report = resume();
                assert!(report.contains("that were in the file") || report.contains("is complete"), "{report}");
                assert!(std::fs::read(&path).unwrap() == whole, "{engine} {format}");
            }
            assert!(resume().starts_with("the export is complete: "));
            std::fs::remove_file(&path).unwrap();
        }
    }
}

const COUNT: usize = 10_000;

/// An export of [`COUNT`] entries.
fn long_export() -> Vec<u8> {
    let lines: String = (0..COUNT).map(|n| format!("{{\"key\":\"k{n:05}\",\"value\":\"{n}\"}}\n")).collect();
    format!("{lines}{{\"complete\":true,\"entries\":{COUNT}}}\n").into_bytes()
}

#[test]
fn an_import_that_was_cut_or_killed_continues_where_it_ended() {
    let whole = long_export();
    for engine in DURABLE_ENGINES {
        let place = tempfile::tempdir().unwrap();
        let (data, state) = (place.path().join("data"), place.path().join("state"));
        let import =
            |bytes: &[u8]| klad("import --engine", &data).arg(engine).arg("--resume-file").arg(&state).input(bytes);
        let recorded = || -> u64 {
            let text = std::fs::read(&state).unwrap();
            serde_json::from_slice::<Value>(&text).unwrap()["entries"].as_u64().unwrap()
        };
        // Killed in the middle: its input does not end.
        let mut killed = import(b"").spawn();
        let mut input = killed.stdin.take().unwrap();
        input.write_all(&whole[..whole.len() / 2]).unwrap();
        wait_until("a batch is stored", || state.exists());
        killed.kill().unwrap();
        killed.wait().unwrap();
        drop(input);
        let first = recorded();
        assert!(first > 0 && first < COUNT as u64, "{first}");
        // The input is cut off: klad stores the entries before the cut.
        let line = import(&whole[..whole.len() * 2 / 3]).fails(1);
        assert!(line.contains("invalid") || line.contains("does not end"), "{line}");
        let second = recorded();
        assert!(second > first, "{second}");
        let kept = items(&klad("export", &data).succeeds());
        assert_eq!(kept.len() as u64, second + 1, "with the end");
        // Another input.
        let other = String::from_utf8(whole.clone()).unwrap().replace("\"k0", "\"o0");
        assert!(import(other.as_bytes()).fails(2).contains("another input"));
        let report = said(import(&whole));
        let (rest, before) = (COUNT as u64 - second, format!("{second} were imported before"));
        assert!(report.starts_with(&format!("imported {rest} entries")) && report.contains(&before), "{report}");
        assert!(!state.exists(), "a complete import deletes its state");
        assert!(items(&klad("export", &data).succeeds()) == items(&whole), "{engine}");
    }
}
