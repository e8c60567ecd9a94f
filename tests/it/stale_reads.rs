//! The value cache never returns an old value: neither after the answer of a write, nor after a read that returned
//! the new value.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use klad_storage::limits::CACHED_VALUE_BYTES_MAX;
use klad_storage::operation::{Consistency, Durability, Effect, Operation, Outcome, Write};
use klad_storage::rocksdb::{Options, RocksDbEngine};
use klad_storage::{Engine as _, Pending, Reply, Result};

use super::support::metrics::Metrics;
use super::support::{Over, ServerBuilder, wait_until};

const KEY: &[u8] = b"key";

/// Number of writes. The planted defect appears within a few hundred.
const WRITES: u64 = 20_000;

const READERS: usize = 3;

struct SendVersion(Mutex<Sender<u64>>);

impl Reply for SendVersion {
    fn complete(&self, result: Result) {
        let Ok(Outcome::Written { version, .. } | Outcome::Found { version, .. }) = result else {
            panic!("{result:?}")
        };
        self.0.lock().unwrap().send(version.get()).unwrap();
    }
}

struct Store {
    engine: RocksDbEngine,
    _directory: tempfile::TempDir,
}

impl Store {
    fn new(value_cache_percent: u64) -> Store {
        let directory = tempfile::tempdir().unwrap();
        let options =
            Options { cache_bytes: 16 << 20, memtable_bytes: 8 << 20, value_cache_percent, ..Options::default() };
        let engine = RocksDbEngine::open(directory.path(), &options).unwrap();
        Store { engine, _directory: directory }
    }

    /// Writes and returns the version. Some batches write the key twice, some remove it and write it again, and some
    /// values are not cacheable.
    fn write(&self, number: u64) -> u64 {
        let (told, versions) = channel();
        let change = |key: &[u8], effect| Pending {
            write: Write::of(key.to_vec().into(), effect, Durability::Async),
            reply: Arc::new(SendVersion(Mutex::new(told.clone()))),
        };
        let put = |value: Vec<u8>| Effect::Put(Bytes::from(value).into());
        let write = |key: &[u8]| change(key, put(number.to_string().into_bytes()));
        let batch = match number % 12 {
            3 | 6 => vec![write(b"other"), write(KEY), write(KEY)],
            4 => vec![change(KEY, Effect::Delete), write(KEY)],
            5 => vec![change(KEY, put(vec![7; CACHED_VALUE_BYTES_MAX + 1]))],
            _ => vec![write(KEY)],
        };
        let last = batch.len();
        if number.is_multiple_of(2) {
            self.engine.commit(batch);
        } else if let Err(batch) = self.engine.try_commit(batch) {
            self.engine.commit(batch);
        }
        versions.iter().take(last).last().unwrap()
    }

    /// Returns the stored version.
    fn read(&self) -> u64 {
        match self.engine.read_cached(KEY) {
            Some(Ok(Outcome::Found { version, .. })) => version.get(),
            None => {
                let (told, versions) = channel();
                self.engine.execute(
                    Operation::Get { key: Bytes::from_static(KEY), consistency: Consistency::Default },
                    Arc::new(SendVersion(Mutex::new(told))),
                );
                versions.recv().unwrap()
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Reads with several threads while one thread writes. Returns what is wrong with the order of the versions.
fn old_value_seen(read: impl Fn() -> u64 + Sync, write: impl Fn(u64) -> u64 + Sync) -> Option<String> {
    let (seen, over) = (AtomicU64::new(write(0)), AtomicBool::new(false));
    let wrong = Mutex::new(None);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for _ in 0..READERS {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    // The newest version that a read or the writer has seen before this read begins.
                    let least = seen.load(Ordering::SeqCst);
                    let version = read();
                    if version < least {
                        *wrong.lock().unwrap() = Some(format!("version {version} after {least}"));
                        over.store(true, Ordering::SeqCst);
                    }
                    seen.fetch_max(version, Ordering::SeqCst);
                }
            });
        }
        for number in 1..=WRITES {
            if over.load(Ordering::SeqCst) {
                break;
            }
            seen.fetch_max(write(number), Ordering::SeqCst);
        }
    });
    wrong.into_inner().unwrap()
}

#[test]
fn no_read_sees_an_older_value_than_the_one_before() {
    let store = Store::new(50);
    assert_eq!(old_value_seen(|| store.read(), |number| store.write(number)), None);
}

/// The cache without epochs: a value that was read is put in, even if it was overwritten meanwhile.
#[test]
fn twin_a_cache_without_epochs_is_noticed() {
    let store = Store::new(0);
    let cached = Mutex::new(None);
    let read = || {
        if let Some(version) = *cached.lock().unwrap() {
            return version;
        }
        let version = store.read();
        std::thread::yield_now();
        *cached.lock().unwrap() = Some(version);
        version
    };
    let write = |number| {
        let version = store.write(number);
        *cached.lock().unwrap() = None;
        version
    };
    let wrong = old_value_seen(read, write).expect("planted");
    assert!(wrong.starts_with("version "), "{wrong}");
}

#[test]
fn repeated_reads_come_from_the_cache_and_show_writes_at_once() {
    for (setup, percent) in [("rocksdb", "25"), ("rocksdb/pool", "25"), ("rocksdb/inline", "50"), ("rocksdb", "0")] {
        let server = ServerBuilder::new(setup).arg("--value-cache", percent).start();
        let mut client = server.client();
        for round in 0..50_u8 {
            assert_eq!(client.put("/v0/entity?id=k", &[round; 20]).status, 201);
            for _ in 0..3 {
                assert_eq!(client.get("/v0/entity?id=k").body, [round; 20], "{setup}");
            }
        }
        assert_eq!(client.delete("/v0/entity?id=k").status, 202);
        assert_eq!(client.get("/v0/entity?id=k").status, 404);
        let hits = || Metrics::scrape(&server).sum("klad_value_cache_hits_total", &[]);
        if percent == "0" {
            assert!(hits() < 1.0);
        } else {
            // Only the first read goes to RocksDB: a write updates the cached value.
            wait_until("the hits are counted", || hits() >= 149.0);
            assert!(server.admin("/debug/memory?format=text").text().contains("value_cache"));
        }
    }
}
