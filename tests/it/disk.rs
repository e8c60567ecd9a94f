//! Free disk space, values that are only on the disk, and damaged logs.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use serde_json::json;

use super::support::batches::batch;
use super::support::{DURABLE_ENGINES, Server, ServerBuilder, random, wait_until};

/// More than what other programs write to the disk during the test.
const MARGIN_BYTES: u64 = 3 << 30;

#[test]
fn writes_are_507_below_the_reserve_and_recover() {
    for engine in DURABLE_ENGINES {
        keeps_the_reserve(engine);
    }
}

fn keeps_the_reserve(engine: &str) {
    let data = tempfile::tempdir().unwrap();
    let space = rustix::fs::statvfs(data.path()).unwrap();
    let free = space.f_bavail * space.f_frsize;
    assert!(free > 4 * MARGIN_BYTES, "this test needs {} bytes of free space", 4 * MARGIN_BYTES);
    let reserve = (free - MARGIN_BYTES).to_string();
    let server = ServerBuilder::new(engine).data(&data.path().join("data")).arg("--disk-reserve", &reserve).start();
    let mut client = server.client();
    assert_eq!(client.put("/v0/entity?id=k", b"v").status, 201);
    // Allocates twice the margin without writing it.
    let path = data.path().join("filler");
    rustix::fs::fallocate(File::create(&path).unwrap(), rustix::fs::FallocateFlags::empty(), 0, 2 * MARGIN_BYTES)
        .unwrap();
    wait_until("writes are rejected", || client.put("/v0/entity?id=k", b"w").status == 507);
    assert_eq!(client.get("/v0/entity?id=k").status, 200, "reads go on");
    assert_eq!(client.delete("/v0/entity?id=other").status, 202, "removing is how space is won back");
    let (get, delete) = (json!({"op": "get", "key": "k"}), json!({"op": "delete", "key": "b"}));
    let put = json!({"op": "put", "key": "b", "value": "v"});
    for query in ["", "?atomic=true"] {
        assert_eq!(batch(&mut client, query, &[get.clone(), delete.clone()]).status, 200);
        let full = batch(&mut client, query, &[get.clone(), delete.clone(), put.clone()]);
        assert!(full.status == 507 && full.text().contains("no-space"), "{}", full.text());
    }
    assert_eq!(client.delete("/v1/kv?prefix=other").status, 204);
    assert_eq!(client.request("POST", "/v1/kv/n?op=add&by=1", &[], None).status, 507);
    let ready = server.admin("/readyz");
    assert!(ready.status == 507 && ready.text().contains("no-space"), "{} {}", ready.status, ready.text());
    std::fs::remove_file(path).unwrap();
    wait_until("writes are taken again", || client.put("/v0/entity?id=k", b"x").status == 201);
    assert_eq!(server.admin("/readyz").status, 200);
}

/// Every key of a database larger than memory must be found with its value. A key that is not in memory must never be
/// reported as absent or empty; RocksDB's reads without a disk have done this in the past (its issue 8453).
#[test]
fn keys_that_are_not_in_memory_are_found() {
    for engine in DURABLE_ENGINES {
        finds_keys_on_the_disk(engine);
    }
}

fn finds_keys_on_the_disk(engine: &str) {
    const KEYS: u32 = 30_000;
    let value = |key: u32| {
        let mut random = fastrand::Rng::with_seed(u64::from(key));
        let length = random.usize(1..6_000);
        std::iter::repeat_with(|| random.u8(..)).take(length).collect::<Vec<u8>>()
    };
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new(engine).data(data.path()).arg("--memory", "64MiB").arg("--durability", "async");
    let server = builder.start();
    let mut client = server.client();
    for key in 0..KEYS {
        client.store(&format!("/v0/entity?id={key}"), &value(key));
    }
    let mut random = random();
    let mut check = |server: &Server, reads: u32| {
        let mut client = server.client();
        for _ in 0..reads {
            let key = random.u32(0..KEYS + KEYS / 10);
            let answer = client.get(&format!("/v0/entity?id={key}"));
            let expected = if key < KEYS { (200, value(key)) } else { (404, Vec::new()) };
            assert!((answer.status, answer.body) == expected, "key {key}: status {}", answer.status);
        }
    };
    check(&server, 8_000);
    server.kill();
    // Only what the log contained is in memory now.
    check(&builder.start(), 2_000);
}

/// Flips a bit in the log of a killed server and starts again. Every acknowledged key must be present, or klad must
/// refuse to start. `mark`: keep the file that says what was synced.
fn a_damaged_log_is_noticed(engine: &str, mark: bool) -> Result<(), String> {
    const KEYS: usize = 150;
    let mut random = random();
    for _ in 0..8 {
        let data = tempfile::tempdir().unwrap();
        let builder = ServerBuilder::new(engine).data(data.path());
        let server = builder.start();
        let mut client = server.client();
        for key in 0..KEYS {
            assert_eq!(client.put(&format!("/v0/entity?id={key}"), format!("value {key}").as_bytes()).status, 201);
        }
        server.kill();
        let log = log_file(data.path());
        let length = used_bytes(&log);
        let position = random.u64(0..length);
        let mut byte = [0];
        log.read_exact_at(&mut byte, position).unwrap();
        log.write_all_at(&[byte[0] ^ (1 << random.u32(0..8))], position).unwrap();
        if !mark {
            std::fs::remove_file(data.path().join("SYNCED")).unwrap();
        }
        match builder.try_start() {
            Err(failed) => {
                println!("byte {position} of {length}: klad refuses to start");
                assert!(
                    ["the log is damaged", "is damaged: ", "RocksDB cannot open"]
                        .iter()
                        .any(|words| failed.log.contains(words)),
                    "byte {position} of {length}: {failed:?}"
                );
                assert!(builder.try_start().is_err(), "a refused start must not repair the data");
            }
            Ok(server) => {
                let mut client = server.client();
                for key in 0..KEYS {
                    let answer = client.get(&format!("/v0/entity?id={key}"));
                    if answer.status != 200 || answer.body != format!("value {key}").as_bytes() {
                        return Err(format!("byte {position} of {length}: key {key} was answered {}", answer.status));
                    }
                }
            }
        }
    }
    Ok(())
}

/// RocksDB alone would read such a record again and again, forever.
#[cfg(feature = "rocksdb")]
#[test]
fn a_log_in_which_rocksdb_would_loop_is_rejected() {
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new("rocksdb").data(data.path());
    let server = builder.start();
    let mut client = server.client();
    for key in 0..40 {
        assert_eq!(client.put(&format!("/v0/entity?id={key}"), b"value").status, 201);
    }
    server.kill();
    let log = log_file(data.path());
    let mut bytes = vec![0; usize::try_from(log.metadata().unwrap().len()).unwrap()];
    log.read_exact_at(&mut bytes, 0).unwrap();
    // The type of the second record: 1, a full record, becomes 5, a full record of a recycled log.
    let kind = 7 + usize::from(u16::from_le_bytes([bytes[4], bytes[5]])) + 6;
    assert_eq!(bytes[kind], 1);
    log.write_all_at(&[5], kind as u64).unwrap();
    let failed = builder.try_start().err().expect("does not start");
    assert_eq!(failed.status.code(), Some(65), "{failed:?}");
    assert!(failed.log.contains("at byte") && failed.log.contains("klad check"), "{failed:?}");
    let check = std::process::Command::new(env!("CARGO_BIN_EXE_klad"))
        .args(["check", "--data", data.path().to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(check.status.code(), Some(65));
    assert!(String::from_utf8_lossy(&check.stdout).contains("at byte"), "{check:?}");
    // With the original bit everything is present.
    log.write_all_at(&[1], kind as u64).unwrap();
    let server = builder.start();
    let mut client = server.client();
    for key in 0..40 {
        assert_eq!(client.get(&format!("/v0/entity?id={key}")).body, b"value");
    }
}

/// Zeros are written ahead only by a sync.
#[cfg(feature = "rocksdb")]
#[test]
fn zeros_are_written_ahead_only_by_a_sync() {
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new("rocksdb").data(data.path()).arg("--async-sync-interval", "20ms");
    let server = builder.arg("--log-preallocation", "on").start();
    let mut client = server.client();
    let room = || {
        let log = log_file(data.path());
        log.metadata().unwrap().len() - used_bytes(&log)
    };
    for key in 0..40 {
        assert_eq!(client.put(&format!("/v0/entity?id={key}&durability=async"), b"value").status, 201);
    }
    let counted = |bytes: &str| {
        wait_until("zeros are counted", || {
            server.admin("/metrics").text().contains(&format!("\nklad_rocksdb_log_zero_bytes_total {bytes}\n"))
        });
    };
    assert_eq!(room(), 0);
    counted("0");
    for key in 0..40 {
        assert_eq!(client.put(&format!("/v0/entity?id={key}"), b"value").status, 201);
    }
    assert!(room() > 200_000, "{}", room());
    counted("262144");
}

#[cfg(feature = "rocksdb")]
#[test]
fn without_the_option_no_zeros_are_written_ahead() {
    let data = tempfile::tempdir().unwrap();
    let server = ServerBuilder::new("rocksdb").data(data.path()).start();
    assert_eq!(server.client().put("/v0/entity?id=k", b"value").status, 201);
    let log = log_file(data.path());
    assert_eq!(log.metadata().unwrap().len(), used_bytes(&log));
}

/// Returns the largest log, which contains all writes.
fn log_file(data: &Path) -> File {
    let engines = [("rocksdb", "log"), ("fjall", "jnl")];
    let (directory, ending) =
        engines.into_iter().find(|(engine, _)| data.join(engine).is_dir()).expect("the directory of an engine");
    let files = std::fs::read_dir(data.join(directory)).unwrap().map(|entry| entry.unwrap().path());
    let logs = files.filter(|path| path.extension().is_some_and(|extension| extension == ending));
    let path = logs.max_by_key(|path| path.metadata().unwrap().len()).expect("a log");
    File::options().read(true).write(true).open(path).unwrap()
}

/// Returns the length up to the last byte that is not zero: fjall preallocates its journal.
fn used_bytes(log: &File) -> u64 {
    let mut bytes = vec![0; usize::try_from(log.metadata().unwrap().len()).unwrap()];
    log.read_exact_at(&mut bytes, 0).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}

#[test]
fn a_damaged_log_never_loses_a_synced_write_silently() {
    for engine in DURABLE_ENGINES {
        a_damaged_log_is_noticed(engine, true).unwrap_or_else(|found| panic!("{engine}: {found}"));
    }
}

#[test]
fn twin_without_the_mark_a_damaged_log_loses_writes_silently() {
    for engine in DURABLE_ENGINES {
        a_damaged_log_is_noticed(engine, false).expect_err("no other check notices it");
    }
}
