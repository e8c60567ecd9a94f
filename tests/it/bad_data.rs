//! Data directories that are damaged, foreign, or removed while klad serves. klad prints one line with the cause, and
//! everything that was acknowledged is present after the cause is removed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::support::planted::Defect;
use super::support::rights::klad_without_rights;
use super::support::shim::Shim;
use super::support::stores::{CommandResult, check, contents, fill, flip, holds, largest, named};
use super::support::{PATIENCE, ServerBuilder, wait_until};

const KEYS: usize = 500;

/// More than two memtables hold with the minimum of `--memory`, and fewer than what triggers a flush.
const KEYS_OF_SEVERAL_LOGS: usize = 9_000;

/// Breaks one thing and starts klad twice. klad must refuse to start, print `words` in one line, and change nothing.
/// After a repair, everything must be present.
fn rejected_and_restored(words: &[&str], tables: bool, break_it: impl Fn(&Path)) {
    rejected_and_restored_of(KEYS, words, tables, break_it);
}

fn rejected_and_restored_of(keys: usize, words: &[&str], tables: bool, break_it: impl Fn(&Path)) {
    let data = tempfile::tempdir().unwrap();
    let builder = fill(data.path(), keys, tables);
    let whole = contents(data.path());
    break_it(data.path());
    let broken = contents(data.path());
    for _ in 0..2 {
        let failed = builder.try_start().err().expect("does not start");
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
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    holds(&builder, keys).unwrap();
}

/// Returns the log files of RocksDB, the oldest first.
fn logs(data: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(data.join("rocksdb")).unwrap().map(|entry| entry.unwrap().path());
    let mut logs: Vec<_> = files.filter(|path| path.extension().is_some_and(|extension| extension == "log")).collect();
    logs.sort();
    logs
}

#[test]
fn a_missing_current_is_rejected_and_nothing_is_deleted() {
    // RocksDB alone would create a new database if there is no log either, and delete every table of the old one.
    for tables in [false, true] {
        rejected_and_restored(&["is damaged", "CURRENT", "klad check --data"], tables, |data| {
            fs::remove_file(data.join("rocksdb/CURRENT")).unwrap();
        });
    }
}

/// Shows the damage that klad would cause if it only opened RocksDB.
#[test]
fn twin_rocksdb_alone_deletes_every_table_without_current_and_log() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), KEYS, true);
    let table = largest(data.path(), "sst");
    fs::remove_file(data.path().join("rocksdb/CURRENT")).unwrap();
    // RocksDB refuses to open if it finds a log.
    fs::remove_file(largest(data.path(), "log")).unwrap();
    drop(rust_rocksdb::DB::open_default(data.path().join("rocksdb")).unwrap());
    assert!(!table.exists());
}

/// Shows the damage that klad would cause if it read the synced mark only after opening.
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
fn a_directory_without_any_file_of_rocksdb_is_rejected() {
    rejected_and_restored(&["is damaged", "CURRENT"], true, |data| {
        for entry in fs::read_dir(data.join("rocksdb")).unwrap() {
            let entry = entry.unwrap();
            // RocksDB keeps old logs in a directory of their own.
            if entry.file_type().unwrap().is_dir() {
                fs::remove_dir_all(entry.path()).unwrap();
            } else {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    });
}

#[test]
fn a_bad_or_missing_manifest_is_rejected() {
    rejected_and_restored(&["is damaged", "klad check --data"], true, |data| flip(&named(data, "MANIFEST"), 20, 1));
    rejected_and_restored(&["is damaged", "MANIFEST"], true, |data| fs::remove_file(named(data, "MANIFEST")).unwrap());
}

#[test]
fn a_missing_or_truncated_table_is_rejected() {
    rejected_and_restored(&["is damaged", ".sst"], true, |data| fs::remove_file(largest(data, "sst")).unwrap());
    rejected_and_restored(&["is damaged", ".sst"], true, |data| {
        let table = largest(data, "sst");
        let bytes = fs::read(&table).unwrap();
        fs::write(&table, &bytes[..bytes.len() - 100]).unwrap();
    });
}

/// RocksDB alone would open this data and delete the unreadable log. klad changes nothing, so that flipping the bit
/// back restores everything.
#[test]
fn a_log_without_synced_writes_is_rejected() {
    let data = tempfile::tempdir().unwrap();
    let builder = fill(data.path(), KEYS, false);
    let log = largest(data.path(), "log");
    let whole = fs::read(&log).unwrap();
    // The first record, one in the middle, and the last one.
    for position in [10, whole.len() / 2, whole.len() - 10] {
        flip(&log, position as u64, 0);
        let before = contents(data.path());
        for _ in 0..2 {
            let failed = builder.try_start().err().expect("does not start");
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
    // An empty log, and a missing one.
    for emptied in [true, false] {
        if emptied {
            fs::write(&log, b"").unwrap();
        } else {
            fs::remove_file(&log).unwrap();
        }
        for _ in 0..2 {
            let failed = builder.try_start().err().expect("does not start");
            assert!(failed.log.contains("the log is damaged"), "{}", failed.log);
        }
        fs::write(&log, &whole).unwrap();
    }
    holds(&builder, KEYS).unwrap();
}

/// Stores so much that there are several logs, none of which is small, and removes the last one.
fn without_the_last_log(data: &Path) -> (ServerBuilder, PathBuf) {
    let builder = fill(data, KEYS_OF_SEVERAL_LOGS, false);
    let mut logs = logs(data);
    let last = logs.pop().expect("a log");
    let others: u64 = logs.iter().map(|log| log.metadata().unwrap().len()).sum();
    assert!(others > klad_storage::limits::LOG_BYTES_READ_TWICE, "{others} bytes in {} other logs", logs.len());
    fs::remove_file(&last).unwrap();
    (builder, last)
}

/// The missing log contained synced writes.
#[test]
fn a_missing_last_log_is_noticed_before_anything_is_changed() {
    let data = tempfile::tempdir().unwrap();
    let (builder, _) = without_the_last_log(data.path());
    let before = contents(data.path());
    for _ in 0..2 {
        let failed = builder.try_start().err().expect("does not start");
        assert!(failed.log.contains("the log is damaged"), "{}", failed.log);
        let now = contents(data.path());
        for (path, bytes) in &before {
            assert!(now.get(path) == Some(bytes), "{} was changed", path.display());
        }
    }
}

#[test]
fn twin_rocksdb_alone_does_not_notice_a_missing_last_log() {
    let data = tempfile::tempdir().unwrap();
    let _ = without_the_last_log(data.path());
    let before = contents(data.path());
    drop(rust_rocksdb::DB::open_default(data.path().join("rocksdb")).unwrap());
    let now = contents(data.path());
    assert!(before.iter().any(|(path, bytes)| now.get(path) != Some(bytes)), "nothing was changed");
}

/// The missing log contained synced writes and was followed by other logs.
#[test]
fn a_missing_earlier_log_is_noticed_before_anything_is_changed() {
    for lost in [0, 1] {
        rejected_and_restored_of(KEYS_OF_SEVERAL_LOGS, &["is damaged", "are missing in the log"], false, |data| {
            let logs = logs(data);
            assert!(logs.len() > 2, "{logs:?}");
            fs::remove_file(&logs[lost]).unwrap();
        });
    }
}

/// RocksDB removes obsolete logs in any order, and a kill in the middle may leave some of them.
#[test]
fn obsolete_logs_may_remain_with_gaps_between_them() {
    let data = tempfile::tempdir().unwrap();
    let builder = fill(data.path(), KEYS_OF_SEVERAL_LOGS, false);
    let oldest = logs(data.path()).swap_remove(0);
    let bytes = fs::read(&oldest).unwrap();
    // This start writes the logs to tables, and new writes go to a new log.
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
fn a_newer_format_and_a_damaged_klad_file_are_rejected() {
    rejected_and_restored(&["format 2", "use the klad that wrote it, or a newer one"], true, |data| {
        fs::write(data.join("KLAD"), "format = 2\nsomething = new\n").unwrap();
    });
    rejected_and_restored(&["KLAD is damaged"], true, |data| fs::write(data.join("KLAD"), "format = 1\n").unwrap());
    rejected_and_restored(&["not a klad data directory"], true, |data| fs::remove_file(data.join("KLAD")).unwrap());
}

/// A damaged block must not make the others unavailable.
#[test]
fn a_damaged_block_fails_its_keys_and_no_others() {
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
fn a_file_in_place_of_the_directory_is_named() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("data");
    fs::write(&file, b"precious").unwrap();
    for data in [file.clone(), file.join("below")] {
        let failed = ServerBuilder::new("rocksdb").data(&data).try_start().err().expect("does not start");
        assert!(failed.log.contains("is not a directory: give --data a directory"), "{}", failed.log);
    }
    assert_eq!(fs::read(file).unwrap(), b"precious");
}

fn serve_without_rights(data: &Path) -> CommandResult {
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data"].map(OsStr::new);
    let output = klad_without_rights(&[&arguments[..], &[data.as_os_str()]].concat());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    CommandResult { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

#[test]
fn a_directory_that_cannot_be_written_is_rejected_with_advice() {
    let place = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let data = place.path().join("data");
    let builder = fill(&data, KEYS, true);
    let mode = |mode: u32| fs::set_permissions(&data, fs::Permissions::from_mode(mode)).unwrap();
    let before = contents(&data);
    // Readable by all and writable by none, like a read-only medium.
    mode(0o555);
    fs::set_permissions(data.join("LOCK"), fs::Permissions::from_mode(0o444)).unwrap();
    // Not reachable, and in a parent that cannot be written.
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

/// Removes something while klad serves. Writes must stop with a reason, reads must continue, and every acknowledged
/// write must be present after it is put back.
fn serves_while_removed(
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
    // Many times the interval of klad's checks.
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
    // The log thread writes the line after the answer.
    let is_logged = || server.log().contains("no write is taken any more") && server.log().contains(words);
    wait_until("the log has the reason", is_logged);
    for target in ["/v0/entity?id=later", "/v0/entity?id=later&durability=async"] {
        let refused = client.put(target, b"v");
        assert!(refused.status == 503 && refused.text().contains(words), "{}", refused.text());
    }
    // The files are still open, so that stored values can be copied.
    for key in 0..KEYS {
        assert_eq!(client.get(&format!("/v0/entity?id=key{key:05}")).status, 200);
    }
    assert_eq!(client.get("/v0/entity?id=last").body, b"acknowledged");
    assert_eq!(server.admin("/livez").status, 200);
    let ended = server.stop().code();
    assert_eq!(ended, Some(70), "the exit code of a failed sync");
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
    serves_while_removed(
        "moved or deleted while klad serves it",
        None,
        |data, aside| fs::rename(data, aside).unwrap(),
        back,
    )
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
    serves_while_removed("replaced by another one while klad serves it", None, replaced, back).unwrap();
}

#[test]
fn twin_without_maintenance_klad_acknowledges_writes_into_a_missing_directory() {
    let take = |data: &Path, aside: &Path| fs::rename(data, aside).unwrap();
    let found = serves_while_removed("moved", Some(Defect::SkipsMaintenance), take, |_, _| {}).expect_err("planted");
    assert!(found.contains("a write is answered 201"), "{found}");
}

#[test]
fn rocksdbs_directory_that_is_moved_while_klad_serves_stops_writes() {
    let take = |data: &Path, aside: &Path| fs::rename(data.join("rocksdb"), aside).unwrap();
    let back = |data: &Path, aside: &Path| fs::rename(aside, data.join("rocksdb")).unwrap();
    serves_while_removed("CURRENT was deleted while klad serves it", None, take, back).unwrap();
    let take = |data: &Path, aside: &Path| fs::rename(data.join("KLAD"), aside).unwrap();
    let back = |data: &Path, aside: &Path| fs::rename(aside, data.join("KLAD")).unwrap();
    serves_while_removed("KLAD is gone", None, take, back).unwrap();
}

#[test]
fn a_directory_that_is_deleted_while_klad_serves_stops_writes_and_stays_readable() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let builder = fill(&data, KEYS, true);
    let server = builder.start();
    let mut client = server.client();
    fs::remove_dir_all(&data).unwrap();
    wait_until("klad has noticed", || server.admin("/readyz").status == 503);
    let refused = client.put("/v0/entity?id=later", b"v").text();
    assert!(refused.contains("moved or deleted") && refused.contains("copy what is needed by GET"), "{refused}");
    // Everything can be copied from the open files, which have no names any more.
    let all = client.get("/v0/entities?start=key").chunks.unwrap();
    assert_eq!(all.iter().filter(|chunk| !chunk.is_empty()).count(), KEYS);
    assert_eq!(server.stop().code(), Some(70));
    // A start without the directory creates an empty one.
    let server = builder.start();
    assert_eq!(server.client().get("/v0/entity?id=key00000").status, 404);
    assert_eq!(server.client().put("/v0/entity?id=key00000", b"v").status, 201);
}

/// The disk becomes full in the middle of a log write.
#[test]
fn a_disk_that_fills_up_during_a_log_write_loses_nothing_acknowledged() {
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
