//! RocksDB's waits in a lock profile of this process.

use std::sync::Arc;
use std::time::Duration;

use klad_base::sync::spawn_thread;
use klad_profile::locks::Window;
use klad_profile::symbols::Symbols;
use klad_profile::{Name, Profile, Sample};
use klad_storage::operation::{Durability, Effect, Write};
use klad_storage::rocksdb::{Options, RocksDbEngine};
use klad_storage::{Engine as _, LocalDisk as _, Pending, Reply, Result};

/// Functions in which idle threads of RocksDB wait.
const IDLE: [&str; 2] = ["rocksdb::ThreadPoolImpl::Impl::BGThread", "rocksdb::Timer::Run"];

struct IgnoreResult;

impl Reply for IgnoreResult {
    fn complete(&self, result: Result) {
        result.expect("written");
    }
}

fn has(profile: &Profile<Name>, function: &str) -> bool {
    profile.samples.iter().any(|sample| sample.frames.iter().any(|frame| frame.contains(function)))
}

fn write(engine: &RocksDbEngine, writer: u64) {
    for number in 0..200_u64 {
        let key = format!("{writer}/{number}").into_bytes().into();
        let put = Effect::Put(bytes::Bytes::from(vec![7; 1000]).into());
        engine.commit(vec![Pending { write: Write::of(key, put, Durability::Sync), reply: Arc::new(IgnoreResult) }]);
    }
}

#[test]
fn rocksdb_s_waits_are_named_and_idle_ones_are_separate() {
    let directory = tempfile::tempdir().expect("a directory");
    let options =
        Options { cache_bytes: 8 << 20, memtable_bytes: 8 << 20, background_threads: 2, ..Options::default() };
    let engine = Arc::new(RocksDbEngine::open(directory.path(), &options).expect("opens"));
    let window = Window::start(Duration::from_micros(10)).expect("no other profile has another threshold");
    {
        let writers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let engine = engine.clone();
                spawn_thread("writer", move || write(&engine, writer))
            })
            .collect();
        for writer in writers {
            writer.join().expect("no panic");
        }
        engine.compact(true, &|_, _| true).expect("compacted");
    }
    let symbols = Symbols::of_this_process().expect("the symbols of the program");
    let named = window.finish().named(|profile| symbols.name(profile));
    let idle = |sample: &&Sample<Name>| {
        // The loop of the thread itself waits, within a few frames of the C++ library.
        let waits = sample.frames.first().is_some_and(|frame| &**frame == "pthread_cond_wait");
        let near = sample.frames.iter().take(5).any(|frame| IDLE.iter().any(|function| frame.starts_with(function)));
        waits && near
    };
    assert!(
        named.block.samples.iter().filter(idle).count() > 0,
        "the threads of the pool are idle: {:#?}",
        named.block
    );
    assert_eq!(named.mutex.samples.iter().find(idle), None, "idle threads wait for no lock");
    assert!(named.mutex.samples.iter().any(|sample| sample.thread == "writer"), "the commit section");
    assert!(has(&named.mutex, "rocksdb::DBImpl::RunManualCompaction"), "a wait for the compaction");
}
