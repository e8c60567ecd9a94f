//! Each engine does what its capabilities say, and other requests are rejected.

use std::path::Path;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use klad_storage::maintenance;
use klad_storage::memory::MemoryEngine;
use klad_storage::operation::{Attributes, Change, Condition, Durability, Effect, Operation, Outcome, Value, Write};
use klad_storage::{Capabilities, Engine, Reply, Result};

struct SendResult(mpsc::Sender<Result>);

impl Reply for SendResult {
    fn complete(&self, result: Result) {
        self.0.send(result).unwrap();
    }
}

fn ask(engine: &dyn Engine, operation: Operation) -> Outcome {
    let (told, ended) = mpsc::channel();
    engine.execute(operation, Arc::new(SendResult(told)));
    ended.recv().unwrap().unwrap()
}

fn get(engine: &dyn Engine, key: &'static str) -> Outcome {
    ask(engine, Operation::Get { key: Bytes::from_static(key.as_bytes()) })
}

fn put(key: &'static str, value: &'static str) -> Change {
    let effect = Effect::Put(Bytes::from_static(value.as_bytes()).into());
    Change::of(Bytes::from_static(key.as_bytes()), effect)
}

fn write(changes: Vec<Change>, durability: Durability) -> Write {
    Write { changes, atomic: true, read_bytes_max: 0, durability }
}

fn each_engine(check: impl Fn(&dyn Engine)) {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| -> std::path::PathBuf { Path::join(directory.path(), name) };
    #[cfg(feature = "rocksdb")]
    {
        let options = klad_storage::rocksdb::Options {
            cache_bytes: 16 << 20,
            memtable_bytes: 8 << 20,
            value_cache_percent: 20,
            background_threads: 1,
            disk_reserve_bytes: 0,
            compression: klad_storage::Compression::None,
            direct_reads: false,
            iterator_reads: false,
            log_preallocation: false,
            compaction_rate_bytes: 0,
            delete_rate_bytes: 0,
            changes: klad_storage::changes::Retention::NOTHING,
            open_files_max: klad_base::limits::ENGINE_FILES_MAX,
        };
        check(&klad_storage::rocksdb::RocksDbEngine::open(&at("rocksdb"), &options).unwrap());
    }
    #[cfg(feature = "fjall")]
    {
        let options = klad_storage::fjall::Options {
            cache_bytes: 16 << 20,
            memtable_bytes: 4 << 20,
            background_threads: 1,
            disk_reserve_bytes: 0,
            compression: klad_storage::Compression::None,
            open_files_max: klad_base::limits::ENGINE_FILES_MAX,
        };
        check(&klad_storage::fjall::FjallEngine::open(&at("fjall"), &options).unwrap());
    }
    let _ = at;
    check(&MemoryEngine::new(1 << 20));
}

#[test]
fn each_change_of_a_batch_has_its_own_version() {
    each_engine(|engine| {
        if !engine.capabilities().batches {
            return;
        }
        ask(engine, Operation::Write(write(vec![put("gone", "1")], Durability::Async)));
        let gone = Change { effect: Effect::Delete, ..put("gone", "") };
        let changes = vec![put("a", "1"), put("b", "1"), gone, put("a", "2")];
        let written = ask(engine, Operation::Write(write(changes, Durability::Async)));
        let Outcome::Written { version: first, .. } = written else { panic!("{written:?}") };
        for (key, expected, change) in [("a", "2", 3), ("b", "1", 1)] {
            let Outcome::Found { version, value } = get(engine, key) else { panic!("{} {key}", engine.name()) };
            assert_eq!((&value.payload[..], version.get()), (expected.as_bytes(), first.get() + change));
        }
        assert!(matches!(get(engine, "gone"), Outcome::NotFound), "{}", engine.name());
    });
}

#[test]
fn maintenance_is_rejected_by_engines_without_it() {
    let directory = tempfile::tempdir().unwrap();
    each_engine(|engine| {
        let Capabilities { checkpoints, compactions, .. } = engine.capabilities();
        let Some(disk) = engine.local_disk() else {
            assert!(!checkpoints && !compactions, "{} has no disk", engine.name());
            return;
        };
        let refused = |error: maintenance::Error| matches!(error, maintenance::Error::NotSupported { .. });
        let target = directory.path().join(engine.name());
        assert_eq!(!disk.checkpoint(&target).is_err_and(refused), checkpoints, "{}", engine.name());
        assert_eq!(!disk.compact(false, &|_, _| true).is_err_and(refused), compactions, "{}", engine.name());
    });
}

#[test]
fn an_error_names_the_capability_that_an_engine_lacks() {
    let all = Capabilities { conditions: true, expiry: true, metadata: true, batches: true, ..Capabilities::default() };
    let write = |changes| write(changes, Durability::Sync);
    let with = |value: Value| write(vec![Change { effect: Effect::Put(value), ..put("k", "") }]);
    let plain = write(vec![put("k", "v")]);
    let batch = write(vec![put("k", "v"), put("l", "v")]);
    let conditional = write(vec![Change { condition: Some(Condition::Absent), ..put("k", "v") }]);
    let own = |own| with(Value { attributes: Some(Box::new(own)), ..Value::default() });
    let expiring = own(Attributes { expires_at_ms: std::num::NonZeroU64::new(1), ..Attributes::default() });
    let described = own(Attributes { metadata: Bytes::from_static(b"text"), ..Attributes::default() });
    for write in [&plain, &batch, &conditional, &expiring, &described] {
        assert_eq!(all.lacks(write), None);
    }
    assert_eq!(Capabilities { batches: false, ..all }.lacks(&batch), Some("batches"));
    assert_eq!(Capabilities { conditions: false, ..all }.lacks(&conditional), Some("conditions"));
    assert_eq!(Capabilities { expiry: false, ..all }.lacks(&expiring), Some("expiry"));
    assert_eq!(Capabilities { metadata: false, ..all }.lacks(&described), Some("metadata"));
    assert_eq!(Capabilities::default().lacks(&plain), None);
}
