//! Windows that open and close while threads allocate, lock, wait, begin and end; and RocksDB's own waits.

use std::sync::atomic::AtomicBool;

use super::*;

const CYCLES: usize = 1000;

/// Takes and gives memory of sizes that threads compete for: large ones are the allocator's shared extents.
fn allocate(round: usize) {
    let held: Vec<Vec<u8>> = (0..16).map(|step| Vec::with_capacity(1 << (6 + (round + step) % 15))).collect();
    black_box(held);
}

fn churn(stop: &AtomicBool, mutex: &Mutex<u64>, posix: &posix::Locks, queue: &BoundedQueue<usize>) {
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        allocate(round);
        *mutex.lock() += 1;
        posix.with_mutex(&|| allocate(round));
        posix.reading(&|| {});
        posix.writing(&|| {});
        // Full and empty by turns.
        let _ = queue.push(round);
        let _ = queue.try_pop();
        if round.is_multiple_of(64) {
            spawn_thread("churn-short", move || allocate(round)).join().expect("no panic");
        }
    }
}

#[test]
fn a_thousand_windows_under_load_come_to_an_end() {
    let (stop, mutex) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(0)));
    let (locks, queue) = (posix::Locks::new(posix::Calls::watched()), Arc::new(BoundedQueue::new(4)));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (stop, mutex, locks, queue) = (stop.clone(), mutex.clone(), locks.clone(), queue.clone());
            spawn_thread("churn", move || churn(&stop, &mutex, &locks, &queue))
        })
        .collect();
    for cycle in 0..CYCLES {
        let window = Window::start(THRESHOLD).expect("the same threshold");
        std::thread::yield_now();
        if cycle.is_multiple_of(3) {
            drop(window);
        } else {
            black_box(window.finish());
        }
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("no panic");
    }
}

/// Names as the program's own table of symbols has them; enough for a test.
fn namer() -> impl FnMut(Profile<Address>) -> Profile<Name> {
    use object::{Object as _, ObjectSymbol as _};
    let file = std::fs::read("/proc/self/exe").expect("the program");
    let file = object::File::parse(&*file).expect("an ELF file");
    let known: std::collections::BTreeMap<u64, String> = file
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

#[cfg(feature = "rocksdb")]
#[test]
fn rocksdb_s_waits_are_named_and_told_apart() {
    use crate::operation::{Change, Durability};
    use crate::storage::rocksdb::{Options, RocksDbEngine};
    use crate::storage::{Engine as _, Reply, Result, Write};

    struct Nobody;
    impl Reply for Nobody {
        fn complete(&self, result: Result) {
            result.expect("it is written");
        }
    }

    let directory = tempfile::tempdir().expect("a directory");
    let options = Options {
        cache_bytes: 8 << 20,
        memtable_bytes: 8 << 20,
        background_threads: 2,
        disk_reserve_bytes: 0,
        iterator_reads: false,
    };
    let engine = Arc::new(RocksDbEngine::open(directory.path(), &options).expect("it opens"));
    let seen = seen_while(|| {
        let writers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let engine = engine.clone();
                spawn_thread("writer", move || {
                    for number in 0..200_u64 {
                        let key = format!("{writer}/{number}").into_bytes().into();
                        let change = Change::Put(vec![7; 1000].into());
                        let reply = Arc::new(Nobody);
                        engine.commit(vec![Write { key, change, durability: Durability::Sync, reply }]);
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().expect("no panic");
        }
        engine.compact(true, &|_, _| true).expect("it is compacted");
    });
    let named = seen.named(namer());
    assert!(has(&named.block, "rocksdb::ThreadPoolImpl::Impl::BGThread"), "the idle thread of the pool");
    assert!(!has(&named.mutex, "rocksdb::Timer::Run"), "a sleep");
    assert!(named.mutex.samples.iter().any(|sample| sample.thread == "writer"), "the commit section");
    assert!(has(&named.mutex, "rocksdb::DBImpl::RunManualCompaction"), "the compaction that was waited for");
    let idle = named.mutex.samples.iter().filter(|sample| {
        sample.frames.iter().all(|frame| !frame.contains("Work") && !frame.contains("Compact"))
            && sample.frames.first().is_some_and(|frame| frame.contains("wait_for_condition"))
            && sample.frames.iter().any(|frame| frame.contains("BGThread"))
    });
    assert_eq!(idle.count(), 0, "an idle thread is not kept by anybody");
}
