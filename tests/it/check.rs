//! `klad check` finds damage in a data directory and changes nothing; `klad compact` rewrites one.

use std::path::Path;

use super::support::stores::{check, contents, fill, flip, holds, klad, largest, named};
use super::support::{ServerBuilder, random};

const KEYS: usize = 2_000;

#[test]
fn a_sound_directory_is_reported_as_sound_with_its_sizes() {
    let data = tempfile::tempdir().unwrap();
    for tables in [false, true] {
        let builder = fill(data.path(), KEYS, tables);
        let before = contents(data.path());
        let ran = check(data.path());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.out.contains("is sound") && ran.out.contains("read 2000 entries"), "{}", ran.out);
        let report = klad(data.path(), &["check", "--json"]).json();
        assert_eq!((&report["sound"], &report["entries"]), (&true.into(), &KEYS.into()), "{report}");
        assert_eq!(report["value_bytes"], KEYS * 200, "{report}");
        assert_eq!(report["key_bytes"], KEYS * 8, "{report}");
        assert_eq!(report["tables"].as_u64() > Some(0), tables, "{report}");
        assert_eq!(report["log_bytes"].as_u64() > Some(0), !tables, "{report}");
        assert!(contents(data.path()) == before, "the check changed something");
        holds(&builder, KEYS).unwrap();
    }
}

#[test]
fn a_directory_in_use_is_not_touched() {
    let data = tempfile::tempdir().unwrap();
    let server = ServerBuilder::new("rocksdb").data(data.path()).start();
    for (command, advice) in
        [("check", "check a checkpoint of this directory"), ("compact", "send POST /compact to it")]
    {
        let ran = klad(data.path(), &[command]);
        assert_eq!(ran.code, Some(75), "{ran:?}");
        let process = server.process();
        let says = format!("in use by another process (process id {process}): stop it, or {advice} [data-locked]\n");
        assert!(ran.err.lines().count() == 1 && ran.err.ends_with(&says), "{ran:?}");
    }
    assert_eq!(server.client().put("/v0/entity?id=k", b"v").status, 201);
}

#[test]
fn what_is_not_a_data_directory_is_named_and_nothing_is_created() {
    let place = tempfile::tempdir().unwrap();
    for command in ["check", "compact"] {
        let ran = klad(&place.path().join("nothing"), &[command]);
        assert!(ran.code == Some(66) && ran.err.contains("not a klad data directory"), "{ran:?}");
        assert!(ran.err.starts_with("klad: ") && ran.err.ends_with(" [data-foreign]\n"), "{ran:?}");
        assert!(!place.path().join("nothing").exists());
    }
}

#[test]
fn a_directory_that_cannot_be_opened_ends_commands_with_the_exit_code_of_a_start() {
    let data = tempfile::tempdir().unwrap();
    let builder = fill(data.path(), 10, true);
    let manifest = data.path().join("KLAD");
    let sound = std::fs::read_to_string(&manifest).unwrap();
    for (from, to) in [("format = 1", "format = 2"), ("rocksdb", "fjall"), ("format = 1", "")] {
        std::fs::write(&manifest, sound.replace(from, to)).unwrap();
        let start = builder.try_start().err().expect("does not start");
        let word = start.log.trim_end().rsplit_once(' ').unwrap().1.to_owned();
        for command in ["check", "compact"] {
            let ran = klad(data.path(), &[command]);
            assert_eq!(ran.code, start.status.code(), "{ran:?}");
            assert!(ran.err.trim_end().ends_with(&word), "{word} is missing in: {ran:?}");
        }
    }
    std::fs::write(&manifest, sound).unwrap();
    holds(&builder, 10).unwrap();
}

/// Flips one bit at each of `flips` random places of `file`, one at a time. The check must find each, with exit code
/// 65.
fn flipped_bits_are_found(data: &Path, file: &Path, flips: usize) -> Result<(), String> {
    let mut random = random();
    let length = file.metadata().unwrap().len();
    let mut missed = Vec::new();
    for _ in 0..flips {
        let (position, bit) = (random.u64(0..length), random.u32(0..8));
        flip(file, position, bit);
        let ran = check(data);
        flip(file, position, bit);
        match ran.code {
            Some(65) => {
                assert!(ran.out.contains("is damaged") && ran.out.contains("finding"), "{ran:?}");
                assert!(ran.err.ends_with(" [data-damaged]\n"), "{ran:?}");
            }
            _ => missed.push(position),
        }
    }
    let found = flips - missed.len();
    println!("{}: found {found} of {flips} flipped bits in {length} bytes", file.display());
    if missed.is_empty() { Ok(()) } else { Err(format!("not found: bits at {missed:?} of {length}")) }
}

#[test]
fn every_flipped_bit_of_a_table_is_found() {
    let data = tempfile::tempdir().unwrap();
    let builder = fill(data.path(), KEYS, true);
    flipped_bits_are_found(data.path(), &largest(data.path(), "sst"), 60).unwrap();
    holds(&builder, KEYS).unwrap();
}

#[test]
fn twin_bits_of_a_file_outside_the_store_are_not_found() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), KEYS, true);
    let unread = data.path().join("rocksdb/000001.sst");
    std::fs::copy(largest(data.path(), "sst"), &unread).unwrap();
    flipped_bits_are_found(data.path(), &unread, 5).expect_err("not a table of the store");
}

#[test]
fn every_flipped_bit_of_the_synced_log_is_found() {
    let data = tempfile::tempdir().unwrap();
    let builder = fill(data.path(), KEYS, false);
    flipped_bits_are_found(data.path(), &largest(data.path(), "log"), 30).unwrap();
    holds(&builder, KEYS).unwrap();
}

#[test]
fn twin_without_the_synced_mark_a_damaged_log_looks_like_an_incomplete_one() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), KEYS, false);
    std::fs::remove_file(data.path().join("SYNCED")).unwrap();
    flipped_bits_are_found(data.path(), &largest(data.path(), "log"), 10).expect_err("the synced number is unknown");
}

/// Small entries, so that filters and indexes are a large part of the table: the check reads them too.
#[test]
fn every_flipped_bit_of_a_filter_is_found() {
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new("rocksdb").data(data.path()).arg("--memory", "64MiB");
    let server = builder.start();
    let mut client = server.client();
    for key in 0..4_000 {
        assert_eq!(client.put(&format!("/v0/entity?id={key}&durability=async"), b"").status, 201);
    }
    assert_eq!(server.stop().code(), Some(0));
    assert_eq!(klad(data.path(), &["compact", "--disk-reserve", "1MiB"]).code, Some(0));
    let table = largest(data.path(), "sst");
    flipped_bits_are_found(data.path(), &table, 100).unwrap();
    // Filters are after the data and before the properties.
    let filter = table.metadata().unwrap().len() - 6_000;
    flip(&table, filter, 0);
    let ran = check(data.path());
    assert!(ran.code == Some(65) && ran.out.contains("  filter") && ran.out.contains(".sst"), "{ran:?}");
}

/// The unsynced end of the log may be incomplete after a power cut. This is not damage, and the check reports it.
/// Either the file ends in the middle of a record, or the rest of the record consists of the zeros that were there
/// before.
#[test]
fn an_incomplete_unsynced_end_of_the_log_is_reported_and_is_not_damage() {
    for zeros in [false, true] {
        let data = tempfile::tempdir().unwrap();
        let builder = ServerBuilder::new("rocksdb").data(data.path()).arg("--async-sync-interval", "1h");
        let builder = builder.arg("--log-preallocation", "on");
        let server = builder.start();
        let mut client = server.client();
        assert_eq!(client.put("/v0/entity?id=a", b"synced").status, 201);
        assert_eq!(client.put("/v0/entity?id=b&durability=async", &[b'x'; 1000]).status, 201);
        server.kill();
        let log = largest(data.path(), "log");
        let mut bytes = std::fs::read(&log).unwrap();
        let torn = bytes.iter().rposition(|byte| *byte != 0).unwrap() - 500;
        assert!(bytes.len() > torn + 100_000, "a log with preallocated space");
        if zeros {
            bytes[torn..].fill(0);
        } else {
            bytes.truncate(torn);
        }
        std::fs::write(&log, &bytes).unwrap();
        let ran = check(data.path());
        assert!(ran.code == Some(0) && ran.out.contains("is sound"), "{ran:?}");
        assert!(ran.out.contains("the end of the log is not whole"), "{ran:?}");
        let server = builder.start();
        assert_eq!(server.client().get("/v0/entity?id=a").body, b"synced");
        assert_eq!(server.client().get("/v0/entity?id=b").status, 404);
    }
}

/// A kill leaves a log with preallocated space.
#[test]
fn preallocated_space_at_the_end_of_the_log_is_not_reported() {
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new("rocksdb").data(data.path()).arg("--log-preallocation", "on");
    let server = builder.start();
    assert_eq!(server.client().put("/v0/entity?id=a", b"synced").status, 201);
    server.kill();
    assert!(largest(data.path(), "log").metadata().unwrap().len() > 100_000);
    let ran = check(data.path());
    assert!(ran.code == Some(0) && ran.out.contains("is sound") && !ran.out.contains("is not whole"), "{ran:?}");
    assert_eq!(builder.start().client().get("/v0/entity?id=a").body, b"synced");
}

/// Breaks one thing and looks for the words in the report. After the repair everything must be present.
fn found_and_restored(words: &[&str], break_it: impl Fn(&Path)) {
    let data = tempfile::tempdir().unwrap();
    let builder = fill(data.path(), KEYS, true);
    let whole = contents(data.path());
    break_it(data.path());
    let broken = contents(data.path());
    let ran = check(data.path());
    assert_eq!(ran.code, Some(65), "{ran:?}");
    for word in words {
        assert!(ran.out.contains(word), "{word} is not in: {}", ran.out);
    }
    let report = klad(data.path(), &["check", "--json"]).json();
    assert!(report["findings_total"].as_u64() > Some(0) && report["sound"] == false, "{report}");
    assert!(contents(data.path()) == broken, "the check changed something");
    for (path, bytes) in whole {
        std::fs::write(path, bytes).unwrap();
    }
    assert_eq!(check(data.path()).code, Some(0));
    holds(&builder, KEYS).unwrap();
}

#[test]
fn a_truncated_table_is_found() {
    found_and_restored(&["files", ".sst", "size"], |data| {
        let table = largest(data, "sst");
        let bytes = std::fs::read(&table).unwrap();
        std::fs::write(&table, &bytes[..bytes.len() / 2]).unwrap();
    });
}

#[test]
fn a_missing_table_is_found() {
    found_and_restored(&["files", ".sst", "No such file"], |data| {
        std::fs::remove_file(largest(data, "sst")).unwrap();
    });
}

#[test]
fn a_damaged_block_is_found_with_its_file_and_the_key_before() {
    found_and_restored(&["table", ".sst", "checksum", "after key key0"], |data| {
        let table = largest(data, "sst");
        flip(&table, table.metadata().unwrap().len() / 2, 3);
    });
}

#[test]
fn a_missing_current_and_a_bad_manifest_are_found() {
    found_and_restored(&["files", "CURRENT"], |data| {
        std::fs::remove_file(data.join("rocksdb/CURRENT")).unwrap();
    });
    found_and_restored(&["files", "MANIFEST"], |data| {
        std::fs::remove_file(named(data, "MANIFEST")).unwrap();
    });
    found_and_restored(&["files", "Corruption"], |data| {
        flip(&named(data, "MANIFEST"), 20, 1);
    });
}

#[test]
fn versions_beyond_the_reservation_are_found() {
    found_and_restored(&["version", "is not below the reservation 1000", "and 981 more"], |data| {
        let text = std::fs::read_to_string(data.join("KLAD")).unwrap();
        let lines = text.lines().map(|line| match line.split_once(" = ") {
            Some(("versions_reserved_until", _)) => "versions_reserved_until = 1000\n".to_owned(),
            _ => format!("{line}\n"),
        });
        let text: String = lines.collect();
        std::fs::write(data.join("KLAD"), text).unwrap();
    });
}

#[test]
fn a_record_of_an_unknown_format_is_found() {
    let data = tempfile::tempdir().unwrap();
    let builder = fill(data.path(), KEYS, true);
    {
        let database = rust_rocksdb::DB::open_default(data.path().join("rocksdb")).unwrap();
        database.put(b"from/the future", b"\x02\x00something").unwrap();
    }
    let ran = check(data.path());
    assert_eq!(ran.code, Some(65), "{ran:?}");
    assert!(ran.out.contains("key from/the%20future: record format 2 is not known"), "{}", ran.out);
    assert!(ran.out.contains("1 finding"), "{}", ran.out);
    // One unreadable record must not make the others unavailable.
    holds(&builder, KEYS).unwrap();
    let server = builder.start();
    let answer = server.client().get("/v0/entity?id=from/the%20future");
    assert!(answer.status == 500 && answer.text().contains("unreadable-record"), "{}", answer.text());
}

#[test]
fn compaction_gives_space_back_and_loses_nothing() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), KEYS, true);
    // Most keys are removed: their tombstones and old values are in the tables together.
    let builder = ServerBuilder::new("rocksdb").data(data.path());
    let server = builder.start();
    let mut client = server.client();
    for key in 10..KEYS {
        assert_eq!(client.delete(&format!("/v0/entity?id=key{key:05}&durability=async")).status, 202);
    }
    assert_eq!(server.stop().code(), Some(0));
    let before = check(data.path());
    assert!(before.out.contains("read 10 entries"), "{}", before.out);
    let compaction = klad(data.path(), &["compact", "--json", "--bottommost", "--disk-reserve", "1MiB"]).json();
    let bytes = |when: &str| compaction["compaction"][when]["bytes"].as_u64().unwrap();
    assert!(bytes("after") * 10 < bytes("before"), "{compaction}");
    assert_eq!(check(data.path()).code, Some(0));
    holds(&builder, 10).unwrap();
}

#[test]
fn compaction_of_damaged_data_fails_with_advice() {
    let data = tempfile::tempdir().unwrap();
    let builder = fill(data.path(), KEYS, true);
    let table = largest(data.path(), "sst");
    let (middle, whole) = (table.metadata().unwrap().len() / 2, contents(data.path()));
    flip(&table, middle, 3);
    let ran = klad(data.path(), &["compact", "--bottommost", "--disk-reserve", "1MiB"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("could not finish") && ran.err.contains("klad check --data"), "{ran:?}");
    for (path, bytes) in whole {
        std::fs::write(path, bytes).unwrap();
    }
    holds(&builder, KEYS).unwrap();
}
