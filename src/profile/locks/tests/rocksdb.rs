//! RocksDB's own waits.

use object::{Object as _, ObjectSymbol as _};

use super::*;
use crate::operation::{Durability, Effect, Write};
use crate::storage::rocksdb::{Options, RocksDbEngine};
use crate::storage::{Compression, Engine as _, LocalDisk as _, Pending, Reply, Result};

/// Where RocksDB's threads are when they have nothing to do.
const IDLE: [&str; 2] = ["rocksdb::ThreadPoolImpl::Impl::BGThread(", "rocksdb::Timer::Run("];

struct Nobody;

impl Reply for Nobody {
    fn complete(&self, result: Result) {
        result.expect("it is written");
    }
}

/// Names as the program's own table of symbols has them; enough for a test.
fn namer() -> impl FnMut(Profile<Address>) -> Profile<Name> {
    let file = std::fs::read("/proc/self/exe").expect("the program");
    let file = object::File::parse(&*file).expect("an ELF file");
    let known: BTreeMap<u64, String> = file
        .symbols()
        .filter(|symbol| symbol.kind() == object::SymbolKind::Text && symbol.address() != 0)
        .map(|symbol| (symbol.address(), symbol.name().unwrap_or_default().to_owned()))
        .collect();
    let hook = known.iter().find(|(_, name)| *name == "pthread_cond_wait").expect("it is part of the program");
    let base = libc::pthread_cond_wait as *const () as u64 - hook.0;
    move |profile| Profile {
        samples: profile
            .samples
            .iter()
            .map(|sample| {
                let raw = |frame: &u64| {
                    known.range(..=frame.wrapping_sub(base)).next_back().map_or("", |(_, name)| name.as_str())
                };
                let name = |frame| {
                    let name = raw(frame);
                    let cpp = cpp_demangle::Symbol::new(name).ok().and_then(|symbol| symbol.demangle().ok());
                    cpp.unwrap_or_else(|| format!("{:#}", rustc_demangle::demangle(name)))
                };
                Sample {
                    thread: sample.thread.clone(),
                    frames: sample.frames.iter().map(|frame| name(frame).into()).collect(),
                    values: sample.values.clone(),
                }
            })
            .collect(),
        title: profile.title,
        values: profile.values,
        shown: profile.shown,
        period: profile.period,
        began_unix_ns: profile.began_unix_ns,
        duration: profile.duration,
        facts: profile.facts,
    }
}

fn has(profile: &Profile<Name>, function: &str) -> bool {
    profile.samples.iter().any(|sample| sample.frames.iter().any(|frame| frame.contains(function)))
}

fn write(engine: &RocksDbEngine, writer: u64) {
    for number in 0..200_u64 {
        let key = format!("{writer}/{number}").into_bytes().into();
        let put = Effect::Put(bytes::Bytes::from(vec![7; 1000]).into());
        engine.commit(vec![Pending { write: Write::of(key, put, Durability::Sync), reply: Arc::new(Nobody) }]);
    }
}

#[test]
fn rocksdb_s_waits_are_named_and_told_apart() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options {
        cache_bytes: 8 << 20,
        memtable_bytes: 8 << 20,
        value_cache_percent: 0,
        background_threads: 2,
        disk_reserve_bytes: 0,
        compression: Compression::Lz4,
        direct_reads: false,
        iterator_reads: false,
        log_preallocation: false,
        compaction_rate_bytes: 0,
        delete_rate_bytes: 0,
        open_files_max: crate::limits::ENGINE_FILES_MAX,
    };
    let engine = Arc::new(RocksDbEngine::open(directory.path(), &options).expect("it opens"));
    let seen = seen_while(|| {
        let writers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let engine = engine.clone();
                spawn_thread("writer", move || write(&engine, writer))
            })
            .collect();
        for writer in writers {
            writer.join().expect("no panic");
        }
        engine.compact(true, &|_, _| true).expect("it is compacted");
    });
    let named = seen.named(namer());
    let idle = |sample: &&Sample<Name>| {
        // The thread's loop itself waits, within a few frames of the C++ library's.
        let waits = sample.frames.first().is_some_and(|frame| &**frame == "pthread_cond_wait");
        let near = sample.frames.iter().take(5).any(|frame| IDLE.iter().any(|function| frame.starts_with(function)));
        waits && near
    };
    assert!(
        named.block.samples.iter().filter(idle).count() > 0,
        "the pool's threads have nothing to do: {:#?}",
        named.block
    );
    assert_eq!(named.mutex.samples.iter().find(idle), None, "nobody keeps them");
    assert!(named.mutex.samples.iter().any(|sample| sample.thread == "writer"), "the commit section");
    assert!(has(&named.mutex, "rocksdb::DBImpl::RunManualCompaction"), "the compaction that was waited for");
}
