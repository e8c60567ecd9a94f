//! Data directories that are damaged, odd, or taken away: what klad says, in one line, and that everything which was
//! acknowledged is there once the cause is removed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::support::planted::Defect;
use super::support::rights::klad_without_rights;
use super::support::shim::Shim;
use super::support::stores::{Ran, check, contents, fill, flip, holds, largest, named};
use super::support::{PATIENCE, ServerBuilder, wait_until};

const KEYS: usize = 500;

/// More than two memtables at the least `--memory`, and fewer than what sets off a flush.
const KEYS_OF_SEVERAL_LOGS: usize = 9_000;

/// Breaks one thing: klad refuses to start, says `words` in one line, and has changed nothing, twice. Put right again,
/// everything is there.
fn refused_and_restored(words: &[&str], tables: bool, break_it: impl Fn(&Path)) {
    refused_and_restored_of(KEYS, words, tables, break_it);
}

fn refused_and_restored_of(keys: usize, words: &[&str], tables: bool, break_it: impl Fn(&Path)) {
    let data = tempfile::tempdir().unwrap();
    let builder = fill(data.path(), keys, tables);
    let whole = contents(data.path());
    break_it(data.path());
    let broken = contents(data.path());
    for _ in 0..2 {
        let failed = builder.try_start().err().expect("refused");
        let said: Vec<_> = failed.log.lines().filter(|line| line.starts_with("klad: ")).collect();
        assert_eq!(said.len(), 1, "{}", failed.log);
        for word in words {
            assert!(said[0].contains(word), "{word} is not in: {}", said[0]);
        }
        let now = contents(data.path());
        let changed: Vec<_> = broken.iter().filter(|(path, bytes)| now.get(*path) != Some(*bytes)).collect();
        assert!(changed.is_empty(), "changed: {:?}", changed.iter().map(|(path, _)| path).collect::<Vec<_>>());
    }
    for (path, bytes) in whole {
        fs::write(path, bytes).unwrap();
    }
    holds(&builder, keys).unwrap();
}

/// RocksDB's logs, the oldest first.
fn logs(data: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(data.join("rocksdb")).unwrap().map(|entry| entry.unwrap().path());
    let mut logs: Vec<_> = files.filter(|path| path.extension().is_some_and(|extension| extension == "log")).collect();
    logs.sort();
    logs
}

#[test]
fn a_missing_current_is_refused_and_nothing_is_deleted() {
    // RocksDB alone would make a new database where it finds no log either, and delete every table of the old.
    for tables in [false, true] {
        refused_and_restored(&["is damaged", "CURRENT", "klad check --data"], tables, |data| {
            fs::remove_file(data.join("rocksdb/CURRENT")).unwrap();
        });
    }
}

/// What the check above would find in a klad that only opens RocksDB.
#[test]
fn twin_rocksdb_alone_deletes_every_table_without_current_and_log() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), KEYS, true);
    let table = largest(data.path(), "sst");
    fs::remove_file(data.path().join("rocksdb/CURRENT")).unwrap();
    // It does refuse where it finds a log.
    fs::remove_file(largest(data.path(), "log")).unwrap();
    drop(rust_rocksdb::DB::open_default(data.path().join("rocksdb")).unwrap());
    assert!(!table.exists());
}

/// And in one that compares with the mark only afterwards.
#[test]
fn twin_rocksdb_alone_deletes_a_log_that_it_cannot_read() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), KEYS, false);
    let log = largest(data.path(), "log");
    flip(&log, 10, 0);
    drop(rust_rocksdb::DB::open_default(data.path().join("rocksdb")).unwrap());
    assert!(!log.exists());
}

#[test]
fn rocksdbs_files_that_are_all_gone_are_refused() {
    refused_and_restored(&["is damaged", "CURRENT"], true, |data| {
        for entry in fs::read_dir(data.join("rocksdb")).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
    });
}

#[test]
fn a_bad_or_missing_manifest_is_refused() {
    refused_and_restored(&["is damaged", "klad check --data"], true, |data| flip(&named(data, "MANIFEST"), 20, 1));
    refused_and_restored(&["is damaged", "MANIFEST"], true, |data| fs::remove_file(named(data, "MANIFEST")).unwrap());
}

#[test]
fn a_table_that_is_missing_or_cut_short_is_refused() {
    refused_and_restored(&["is damaged", ".sst"], true, |data| fs::remove_file(largest(data, "sst")).unwrap());
    refused_and_restored(&["is damaged", ".sst"], true, |data| {
        let table = largest(data, "sst");
        let bytes = fs::read(&table).unwrap();
        fs::write(&table, &bytes[..bytes.len() - 100]).unwrap();
    });
}

/// RocksDB alone would open here, and delete the log that it could not read. Nothing is changed, so the bit put right brings
/// everything back.
#[test]
fn a_log_that_lacks_what_was_synced_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let builder = fill(data.path(), KEYS, false);
    let log = largest(data.path(), "log");
    let whole = fs::read(&log).unwrap();
    // The first record of all, one in the middle, and the last.
    for position in [10, whole.len() / 2, whole.len() - 10] {
        flip(&log, position as u64, 0);
        let before = contents(data.path());
        for _ in 0..2 {
            let failed = builder.try_start().err().expect("refused");
            for words in ["the log is damaged", "had been synced", "from a copy"] {
                assert!(failed.log.contains(words), "{words} is not in: {}", failed.log);
            }
            let now = contents(data.path());
            for (path, bytes) in &before {
                assert!(now.get(path) == Some(bytes), "{} was changed", path.display());
            }
        }
        fs::write(&log, &whole).unwrap();
    }
    // Emptied, and gone.
    for emptied in [true, false] {
        if emptied {
            fs::write(&log, b"").unwrap();
        } else {
            fs::remove_file(&log).unwrap();
        }
        for _ in 0..2 {
            let failed = builder.try_start().err().expect("refused");
            assert!(failed.log.contains("the log is damaged"), "{}", failed.log);
        }
        fs::write(&log, &whole).unwrap();
    }
    holds(&builder, KEYS).unwrap();
}

/// Stores so much that there are several logs, none of which is small, and loses the last of them.
fn without_the_last_log(data: &Path) -> (ServerBuilder, PathBuf) {
    let builder = fill(data, KEYS_OF_SEVERAL_LOGS, false);
    let mut logs = logs(data);
    let last = logs.pop().expect("a log");
    let others: u64 = logs.iter().map(|log| log.metadata().unwrap().len()).sum();
    assert!(others > klad_base::limits::LOG_BYTES_READ_TWICE, "{others} bytes in {} other logs", logs.len());
    fs::remove_file(&last).unwrap();
    (builder, last)
}

/// What is behind the last log that is left was synced, too.
#[test]
fn the_last_of_several_logs_is_missed_before_anything_is_changed() {
    let data = tempfile::tempdir().unwrap();
    let (builder, _) = without_the_last_log(data.path());
    let before = contents(data.path());
    for _ in 0..2 {
        let failed = builder.try_start().err().expect("refused");
        assert!(failed.log.contains("the log is damaged"), "{}", failed.log);
        let now = contents(data.path());
        for (path, bytes) in &before {
            assert!(now.get(path) == Some(bytes), "{} was changed", path.display());
        }
    }
}

#[test]
fn twin_rocksdb_alone_does_not_miss_the_last_of_several_logs() {
    let data = tempfile::tempdir().unwrap();
    let _ = without_the_last_log(data.path());
    let before = contents(data.path());
    drop(rust_rocksdb::DB::open_default(data.path().join("rocksdb")).unwrap());
    let now = contents(data.path());
    assert!(before.iter().any(|(path, bytes)| now.get(path) != Some(bytes)), "nothing was changed");
}

/// What was synced stood in a log before one that is left.
#[test]
fn a_log_before_others_is_missed_before_anything_is_changed() {
    for lost in [0, 1] {
        refused_and_restored_of(KEYS_OF_SEVERAL_LOGS, &["is damaged", "are missing in the log"], false, |data| {
            let logs = logs(data);
            assert!(logs.len() > 2, "{logs:?}");
            fs::remove_file(&logs[lost]).unwrap();
        });
    }
}

/// RocksDB removes the logs of what it has written to tables in no order, and a kill in the middle of that may leave any of them.
#[test]
fn logs_that_are_no_longer_needed_may_be_left_and_may_lack_what_was_between_them() {
    let data = tempfile::tempdir().unwrap();
    let builder = fill(data.path(), KEYS_OF_SEVERAL_LOGS, false);
    let oldest = logs(data.path()).swap_remove(0);
    let bytes = fs::read(&oldest).unwrap();
    // This start makes tables of the logs, and what is written now stands in a new one.
    let server = builder.start();
    assert_eq!(server.client().put("/v0/entity?id=last", b"value").status, 201);
    wait_until("the old logs are gone", || logs(data.path()).len() == 1);
    server.kill();
    assert!(!oldest.exists());
    fs::write(&oldest, bytes).unwrap();
    let ran = check(data.path());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    holds(&builder, KEYS_OF_SEVERAL_LOGS).unwrap();
    assert_eq!(builder.start().client().get("/v0/entity?id=last").status, 200);
}

#[test]
fn a_newer_format_and_a_damaged_klad_are_refused() {
    refused_and_restored(&["format 2", "use the klad that wrote it, or a newer one"], true, |data| {
        fs::write(data.join("KLAD"), "format = 2\nsomething = new\n").unwrap();
    });
    refused_and_restored(&["KLAD is damaged"], true, |data| fs::write(data.join("KLAD"), "format = 1\n").unwrap());
    refused_and_restored(&["not a klad data directory"], true, |data| fs::remove_file(data.join("KLAD")).unwrap());
}

/// A block that went bad is no reason not to serve the others.
#[test]
fn a_bad_block_fails_its_keys_and_no_others() {
    let data = tempfile::tempdir().unwrap();
    let builder = fill(data.path(), KEYS, true);
    let table = largest(data.path(), "sst");
    let middle = table.metadata().unwrap().len() / 2;
    flip(&table, middle, 3);
    let server = builder.start();
    let mut client = server.client();
    let (mut found, mut failed) = (0, 0);
    for key in 0..KEYS {
        let answer = client.get(&format!("/v0/entity?id=key{key:05}"));
        match answer.status {
            200 => {
                assert_eq!(answer.body, super::support::stores::value(key));
                found += 1;
            }
            500 => {
                assert!(
                    answer.text().contains("read-failed") && answer.text().contains("checksum"),
                    "{}",
                    answer.text()
                );
                failed += 1;
            }
            other => panic!("{other}"),
        }
    }
    assert!(failed > 0 && found > failed, "{found} found, {failed} failed");
    assert_eq!(server.admin("/livez").status, 200);
    drop(server);
    flip(&table, middle, 3);
    holds(&builder, KEYS).unwrap();
}

#[test]
fn a_file_in_the_directorys_place_is_named() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("data");
    fs::write(&file, b"precious").unwrap();
    for data in [file.clone(), file.join("below")] {
        let failed = ServerBuilder::new("rocksdb").data(&data).try_start().err().expect("refused");
        assert!(failed.log.contains("is not a directory: give --data a directory"), "{}", failed.log);
    }
    assert_eq!(fs::read(file).unwrap(), b"precious");
}

fn serve_without_rights(data: &Path) -> Ran {
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data"].map(OsStr::new);
    let output = klad_without_rights(&[&arguments[..], &[data.as_os_str()]].concat());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

#[test]
fn a_directory_that_cannot_be_written_is_refused_with_what_to_do() {
    let place = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let data = place.path().join("data");
    let builder = fill(&data, KEYS, true);
    let mode = |mode: u32| fs::set_permissions(&data, fs::Permissions::from_mode(mode)).unwrap();
    let before = contents(&data);
    // To be read by all and written by none, as on a medium that is read-only.
    mode(0o555);
    fs::set_permissions(data.join("LOCK"), fs::Permissions::from_mode(0o444)).unwrap();
    // Beyond reach; and one whose parent may not be written.
    let ran = [serve_without_rights(&data), {
        mode(0o000);
        serve_without_rights(&data)
    }];
    mode(0o755);
    fs::set_permissions(data.join("LOCK"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let below = serve_without_rights(&place.path().join("fresh"));
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for ran in ran.into_iter().chain([below]) {
        assert_eq!(ran.code, Some(74), "{ran:?}");
        for words in ["Permission denied", "klad runs as user", "let that user read and write it"] {
            assert!(ran.err.contains(words), "{words} is not in: {}", ran.err);
        }
    }
    assert!(contents(&data) == before);
    holds(&builder, KEYS).unwrap();
}

/// Takes something away while klad serves: writes stop and say why, reads go on, nothing is answered that is not kept; put
/// back, everything that was acknowledged is there.
fn taken_away(
    words: &str,
    defect: Option<Defect>,
    take: impl Fn(&Path, &Path),
    put_back: impl Fn(&Path, &Path),
) -> Result<(), String> {
    let place = tempfile::tempdir().unwrap();
    let (data, aside) = (place.path().join("data"), place.path().join("aside"));
    let builder = fill(&data, KEYS, true);
    let server = builder.clone().defect(defect).start();
    let mut client = server.client();
    assert_eq!(client.put("/v0/entity?id=last", b"acknowledged").status, 201);
    take(&data, &aside);
    // Many times what klad lets pass between two looks.
    let patience = if defect.is_some() { Duration::from_secs(3) } else { PATIENCE };
    let deadline = Instant::now() + patience;
    while server.admin("/readyz").status == 200 {
        if Instant::now() > deadline {
            return Err(format!(
                "klad has not noticed; a write is answered {}",
                client.put("/v0/entity?id=x", b"v").status
            ));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let ready = server.admin("/readyz").text();
    if !ready.contains(words) || !ready.contains("writes-stopped") {
        return Err(format!("{words} is not in: {ready}"));
    }
    // The log is written by a thread of its own, behind the answer.
    let is_said = || server.log().contains("no write is taken any more") && server.log().contains(words);
    wait_until("the log says so", is_said);
    for target in ["/v0/entity?id=later", "/v0/entity?id=later&durability=async"] {
        let refused = client.put(target, b"v");
        assert!(refused.status == 503 && refused.text().contains(words), "{}", refused.text());
    }
    // The files are open: what was stored can still be copied out.
    for key in 0..KEYS {
        assert_eq!(client.get(&format!("/v0/entity?id=key{key:05}")).status, 200);
    }
    assert_eq!(client.get("/v0/entity?id=last").body, b"acknowledged");
    assert_eq!(server.admin("/livez").status, 200);
    let ended = server.stop().code();
    assert_eq!(ended, Some(70), "the stop says that not all is well");
    put_back(&data, &aside);
    holds(&builder, KEYS)?;
    let server = builder.start();
    assert_eq!(server.client().get("/v0/entity?id=last").body, b"acknowledged");
    assert_eq!(server.client().get("/v0/entity?id=later").status, 404);
    assert_eq!(server.client().put("/v0/entity?id=later", b"v").status, 201);
    Ok(())
}

#[test]
fn a_directory_that_is_moved_while_klad_serves_stops_writes() {
    let back = |data: &Path, aside: &Path| fs::rename(aside, data).unwrap();
    taken_away("moved or deleted while klad serves it", None, |data, aside| fs::rename(data, aside).unwrap(), back)
        .unwrap();
    let replaced = |data: &Path, aside: &Path| {
        fs::rename(data, aside).unwrap();
        fs::create_dir(data).unwrap();
        fs::write(data.join("LOCK"), b"").unwrap();
    };
    let back = |data: &Path, aside: &Path| {
        fs::remove_dir_all(data).unwrap();
        fs::rename(aside, data).unwrap();
    };
    taken_away("replaced by another one while klad serves it", None, replaced, back).unwrap();
}

#[test]
fn twin_a_klad_that_never_looks_acknowledges_into_a_directory_that_is_gone() {
    let take = |data: &Path, aside: &Path| fs::rename(data, aside).unwrap();
    let found = taken_away("moved", Some(Defect::NeverLooks), take, |_, _| {}).expect_err("planted");
    assert!(found.contains("a write is answered 201"), "{found}");
}

#[test]
fn rocksdbs_directory_that_is_moved_while_klad_serves_stops_writes() {
    let take = |data: &Path, aside: &Path| fs::rename(data.join("rocksdb"), aside).unwrap();
    let back = |data: &Path, aside: &Path| fs::rename(aside, data.join("rocksdb")).unwrap();
    taken_away("CURRENT was deleted while klad serves it", None, take, back).unwrap();
    let take = |data: &Path, aside: &Path| fs::rename(data.join("KLAD"), aside).unwrap();
    let back = |data: &Path, aside: &Path| fs::rename(aside, data.join("KLAD")).unwrap();
    taken_away("KLAD is gone", None, take, back).unwrap();
}

#[test]
fn a_directory_that_is_deleted_while_klad_serves_stops_writes_and_can_still_be_read() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let builder = fill(&data, KEYS, true);
    let server = builder.start();
    let mut client = server.client();
    fs::remove_dir_all(&data).unwrap();
    wait_until("klad has noticed", || server.admin("/readyz").status == 503);
    let refused = client.put("/v0/entity?id=later", b"v").text();
    assert!(refused.contains("moved or deleted") && refused.contains("copy what is needed by GET"), "{refused}");
    // Everything is copied out, from files that have no names any more.
    let all = client.get("/v0/entities?start=key").chunks.unwrap();
    assert_eq!(all.iter().filter(|chunk| !chunk.is_empty()).count(), KEYS);
    assert_eq!(server.stop().code(), Some(70));
    // A start without its directory makes an empty one.
    let server = builder.start();
    assert_eq!(server.client().get("/v0/entity?id=key00000").status, 404);
    assert_eq!(server.client().put("/v0/entity?id=key00000", b"v").status, 201);
}

/// The disk is full in the middle of a write of the log.
#[test]
fn a_disk_that_is_full_in_the_middle_of_a_log_write_loses_nothing_that_was_acknowledged() {
    for durability in ["sync", "async"] {
        let data = tempfile::tempdir().unwrap();
        let shim = Shim::new();
        let builder = fill(data.path(), KEYS, false);
        let server = shim.preload(builder.clone()).start();
        let mut client = server.client();
        assert_eq!(client.put("/v0/entity?id=last&durability=async", b"acknowledged").status, 201);
        shim.fill_disk();
        let failed = client.put(&format!("/v0/entity?id=undetermined&durability={durability}"), &[b'v'; 10_000]);
        assert!(failed.status == 500 && failed.text().contains("undetermined"), "{}", failed.text());
        shim.pass();
        let ready = server.admin("/readyz");
        assert!(ready.status == 503 && ready.text().contains("No space left on device"), "{}", ready.text());
        let refused = client.put("/v0/entity?id=later", b"v");
        assert!(
            refused.status == 503 && refused.text().contains("until the server is started again"),
            "{}",
            refused.text()
        );
        assert_eq!(client.get("/v0/entity?id=last").body, b"acknowledged");
        assert_eq!(client.get("/v0/entity?id=undetermined").status, 404);
        server.kill();
        holds(&builder, KEYS).unwrap();
        let server = builder.start();
        assert_eq!(server.client().get("/v0/entity?id=last").body, b"acknowledged");
        let after = server.client().get("/v0/entity?id=undetermined");
        assert!(after.status == 404 || after.body == [b'v'; 10_000], "{}", after.status);
        assert_eq!(server.client().put("/v0/entity?id=later", b"v").status, 201);
    }
}
