//! fjall's directory with missing or damaged files: klad refuses to start with a clear message and changes nothing,
//! and everything is present after the cause is removed. The twins show what fjall alone would do.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use fjall::{Database, KeyspaceCreateOptions};

use super::support::shim::Shim;
use super::support::{ServerBuilder, wait_until};

const KEYS: usize = 300;

/// Fills a directory with synced writes. `kill`: end the server with SIGKILL.
fn filled(data: &Path, kill: bool) -> ServerBuilder {
    let builder = ServerBuilder::new("fjall").data(data).arg("--memory", "64MiB");
    let server = builder.start();
    let mut client = server.client();
    for key in 0..KEYS {
        assert_eq!(client.put(&format!("/v0/entity?id={key:05}"), format!("value {key}").as_bytes()).status, 201);
    }
    if kill {
        server.kill();
    } else {
        assert_eq!(server.stop().code(), Some(0));
    }
    builder
}

fn holds_all(builder: &ServerBuilder) {
    let server = builder.start();
    let mut client = server.client();
    for key in 0..KEYS {
        assert_eq!(client.get(&format!("/v0/entity?id={key:05}")).text(), format!("value {key}"));
    }
    assert_eq!(client.put("/v0/entity?id=later", b"v").status, 201);
}

/// Returns every file of fjall with its bytes, except its lock.
fn contents(data: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut open) = (Vec::new(), vec![data.join("fjall")]);
    while let Some(directory) = open.pop() {
        // It may be the file that was removed.
        for entry in fs::read_dir(directory).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                found.push((path, bytes));
            }
        }
    }
    found.sort();
    found
}

fn journal(data: &Path) -> PathBuf {
    data.join("fjall/0.jnl")
}

/// Returns the directory of the only keyspace that is not internal to fjall.
fn keyspace(data: &Path) -> PathBuf {
    data.join("fjall/keyspaces/1")
}

/// Removes `path` and starts klad twice: it must refuse with `words` and change nothing. After `path` is put back,
/// everything must be present.
fn missing_file_is_noticed(words: &str, path: fn(&Path) -> PathBuf) {
    let data = tempfile::tempdir().unwrap();
    let aside = tempfile::tempdir().unwrap();
    let builder = filled(data.path(), false);
    let (path, aside) = (path(data.path()), aside.path().join("aside"));
    fs::rename(&path, &aside).unwrap();
    let before = contents(data.path());
    for _ in 0..2 {
        let failed = builder.try_start().err().expect("does not start");
        assert_eq!(failed.status.code(), Some(65), "{failed:?}");
        assert!(failed.log.contains("is damaged") && failed.log.contains(words), "{words} is not in: {}", failed.log);
        assert!(contents(data.path()) == before, "{words}: something was changed");
    }
    fs::rename(aside, path).unwrap();
    holds_all(&builder);
}

#[test]
fn missing_files_that_fjall_would_not_notice_are_noticed() {
    missing_file_is_noticed("version is missing", |data| data.join("fjall/version"));
    missing_file_is_noticed("keyspaces/0/current is missing", |data| data.join("fjall/keyspaces/0"));
    missing_file_is_noticed("keyspaces/0/current is missing", |data| data.join("fjall/keyspaces/0/current"));
    missing_file_is_noticed("keyspaces/1/current is missing", |data| keyspace(data).join("current"));
    missing_file_is_noticed("the keyspace that everything is in is missing", keyspace);
    missing_file_is_noticed("there is no journal", journal);
    missing_file_is_noticed("is missing", |data| data.join("fjall"));
}

/// Shows the damage that klad would cause if it only opened fjall.
#[test]
fn twin_fjall_alone_removes_a_keyspace_without_its_current() {
    let data = tempfile::tempdir().unwrap();
    filled(data.path(), false);
    fs::remove_file(keyspace(data.path()).join("current")).unwrap();
    let before = contents(data.path());
    let db = Database::builder(data.path().join("fjall")).open().unwrap();
    drop(db.keyspace("data", KeyspaceCreateOptions::default).unwrap());
    drop(db);
    assert!(contents(data.path()) != before, "nothing was changed");
}

fn flip(path: &Path, position: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[position] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn used_bytes(path: &Path) -> usize {
    fs::read(path).unwrap().iter().rposition(|byte| *byte != 0).expect("something") + 1
}

/// A wrong bit in the first batch, in the middle, and in the last one; half of the journal; an empty journal.
#[test]
fn a_journal_without_synced_writes_is_rejected_and_not_changed() {
    for kill in [true, false] {
        let data = tempfile::tempdir().unwrap();
        let builder = filled(data.path(), kill);
        let journal = journal(data.path());
        let (whole, used) = (fs::read(&journal).unwrap(), used_bytes(&journal));
        let cut = |bytes: usize| File::options().write(true).open(&journal).unwrap().set_len(bytes as u64).unwrap();
        let breaks: [&dyn Fn(); 5] = [
            &|| flip(&journal, 20),
            &|| flip(&journal, used / 2),
            &|| flip(&journal, used - 5),
            &|| cut(used / 2),
            &|| cut(0),
        ];
        for (number, break_it) in breaks.into_iter().enumerate() {
            break_it();
            let before = fs::read(&journal).unwrap();
            for _ in 0..2 {
                let failed = builder.try_start().err().expect("does not start");
                assert_eq!(failed.status.code(), Some(65), "{number}: {failed:?}");
                assert!(failed.log.contains("the log is damaged"), "{number}: {}", failed.log);
                assert!(fs::read(&journal).unwrap() == before, "{number}: the journal was changed");
            }
            fs::write(&journal, &whole).unwrap();
        }
        holds_all(&builder);
    }
}

#[test]
fn twin_fjall_alone_truncates_a_journal_that_it_cannot_read() {
    let data = tempfile::tempdir().unwrap();
    filled(data.path(), false);
    let journal = journal(data.path());
    let used = used_bytes(&journal);
    // The tag at the start of the first batch.
    flip(&journal, 0);
    drop(Database::builder(data.path().join("fjall")).open().unwrap());
    assert!(fs::metadata(&journal).unwrap().len() < used as u64);
}

/// The end of a journal after a power cut: unsynced writes of which some parts are on the disk.
#[test]
fn the_journal_after_the_last_synced_write_may_contain_anything() {
    let data = tempfile::tempdir().unwrap();
    let builder = filled(data.path(), true);
    let journal = journal(data.path());
    let synced = used_bytes(&journal);
    // Never synced, because the interval is longer than the test.
    let builder = builder.arg("--async-sync-interval", "1h");
    let server = builder.start();
    let mut client = server.client();
    for n in 0..20 {
        assert_eq!(client.put(&format!("/v0/entity?id=async{n}&durability=async"), &[b'v'; 200]).status, 201);
    }
    server.kill();
    let (whole, used) = (fs::read(&journal).unwrap(), used_bytes(&journal));
    assert!(used > synced + 20 * 200);
    let mut random = super::support::random();
    for round in 0..6 {
        let mut torn = whole.clone();
        // Zeros or random bytes somewhere after the synced writes, perhaps up to the end.
        let begin = random.usize(synced..used - 1);
        let end = random.usize(begin + 1..used);
        let with = if round % 2 == 0 { 0 } else { 0xA5 };
        torn[begin..end].fill(with);
        if round % 3 == 0 {
            torn.truncate(end);
        }
        fs::write(&journal, torn).unwrap();
        println!("round {round}: bytes {begin} to {end} of {synced} to {used} are {with}");
        let server = builder.start();
        let mut client = server.client();
        // A prefix of the writes is left.
        let left: Vec<bool> = (0..20).map(|n| client.get(&format!("/v0/entity?id=async{n}")).status == 200).collect();
        assert!(left.is_sorted_by(|a, b| a >= b), "{left:?}");
        server.kill();
    }
    holds_all(&builder);
}

/// The disk becomes full in the middle of a journal write.
#[test]
fn a_disk_that_fills_up_during_a_journal_write_loses_nothing_acknowledged() {
    for durability in ["sync", "async"] {
        let data = tempfile::tempdir().unwrap();
        let shim = Shim::new();
        let builder = filled(data.path(), false);
        let server = shim.preload(builder.clone()).start();
        let mut client = server.client();
        assert_eq!(client.put("/v0/entity?id=last&durability=async", b"acknowledged").status, 201);
        shim.fill_disk();
        let failed = client.put(&format!("/v0/entity?id=undetermined&durability={durability}"), &[b'v'; 10_000]);
        assert!(failed.status == 500 && failed.text().contains("undetermined"), "{}", failed.text());
        shim.pass();
        let ready = server.admin("/readyz");
        assert!(ready.status == 503 && ready.text().contains("No space left on device"), "{}", ready.text());
        assert_eq!(client.put("/v0/entity?id=later", b"v").status, 503);
        assert_eq!(client.get("/v0/entity?id=last").body, b"acknowledged");
        assert_eq!(client.get("/v0/entity?id=undetermined").status, 404);
        server.kill();
        holds_all(&builder);
        assert_eq!(builder.start().client().get("/v0/entity?id=last").body, b"acknowledged");
    }
}

#[test]
fn a_directory_of_another_engine_is_rejected_both_ways() {
    let data = tempfile::tempdir().unwrap();
    let builder = filled(data.path(), false);
    let manifest = data.path().join("KLAD");
    let sound = fs::read_to_string(&manifest).unwrap();
    let refused = |builder: &ServerBuilder, words: &str| {
        let failed = builder.try_start().err().expect("does not start");
        assert_eq!(failed.status.code(), Some(66), "{failed:?}");
        assert!(failed.log.contains(words), "{}", failed.log);
    };
    fs::write(&manifest, sound.replace("engine = fjall", "engine = rocksdb")).unwrap();
    refused(&builder, "was written by --engine rocksdb, it cannot be opened with --engine fjall");
    fs::write(&manifest, sound).unwrap();
    if cfg!(feature = "rocksdb") {
        let other = ServerBuilder::new("rocksdb").data(data.path());
        refused(&other, "was written by --engine fjall, it cannot be opened with --engine rocksdb");
    }
    holds_all(&builder);
}

/// A first start that was killed before its first write must not prevent the next start.
#[test]
fn an_interrupted_first_start_is_repeated() {
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new("fjall").data(data.path());
    builder.start().kill();
    for left_out in ["version", "keyspaces/1/current", "keyspaces/0/current", "0.jnl"] {
        fs::remove_file(data.path().join("fjall").join(left_out)).unwrap();
        builder.start().kill();
    }
    let server = builder.start();
    assert_eq!(server.client().put("/v0/entity?id=k", b"v").status, 201);
}

/// A directory of fjall keeps its options for memory and compression forever.
#[test]
fn zstd_is_rejected_and_a_directory_opens_with_less_memory() {
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new("fjall").data(data.path());
    let failed = builder.clone().arg("--compression", "zstd").try_start().err().expect("does not start");
    assert!(failed.status.code() == Some(78) && failed.log.contains("lz4 or none"), "{failed:?}");
    let server = builder.clone().arg("--memory", "512MiB").start();
    assert_eq!(server.client().put("/v0/entity?id=k", b"v").status, 201);
    assert_eq!(server.stop().code(), Some(0));
    let server = builder.arg("--memory", "64MiB").arg("--compression", "none").start();
    assert_eq!(server.client().get("/v0/entity?id=k").body, b"v");
}

/// fjall has no safe way to do either.
#[test]
fn checkpoints_and_compactions_are_rejected() {
    let data = tempfile::tempdir().unwrap();
    let server = ServerBuilder::new("fjall").data(data.path()).start();
    let answer = server.ask_admin("POST", "/checkpoint");
    assert!(answer.status == 501 && answer.text().contains("--engine fjall has no checkpoints"), "{}", answer.text());
    assert_eq!(server.ask_admin("POST", "/compact").status, 202);
    wait_until("the compaction is rejected", || {
        server.admin("/compact").text().contains("not done: --engine fjall has no compactions")
    });
}
