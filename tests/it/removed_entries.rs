//! Removed and expired entries: a scan passes them in short steps, and they leave the disk.

use std::path::Path;

use bytes::Bytes;
use klad_storage::limits::{PASSED_PER_STEP_MAX, REMOVED_PER_ATTEMPT_MAX};
use klad_storage::operation::{
    Attributes, Change, Consistency, Durability, Effect, Operation, Outcome, Page, RangeRemoval, ScanStep, Snapshot,
    Value, View, Write,
};
use klad_storage::perf::Figure;
use klad_storage::rocksdb::RocksDbEngine;
use klad_storage::rocksdb::check::{Progress, Report, check};
use klad_storage::{Engine, LocalDisk as _};
use rust_rocksdb::perf::{PerfMetric, PerfStatsLevel, set_perf_stats, with_thread_local};

use super::support::engine::{ask, measured, put, rocksdb};

/// Number of changes of one write.
const BATCH: usize = 2_000;

/// Number of removed keys.
const REMOVED: usize = 1_000_000;

/// Number of attempts that a step makes at most before one of them gets on: the reach grows by 8, 16, 32, … bits to
/// `SCAN_REACH_MAX`.
const ATTEMPTS_MAX: u64 = 12;

/// The removed key with this number. A quarter shares a long prefix, a quarter differs in the first bytes.
fn removed_key(number: usize) -> Bytes {
    match number % 4 {
        0 => format!("{}{number:07}", "long".repeat(50)).into(),
        1 => [&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[..], b"!"].concat().into(),
        _ => format!("short{number:07}").into(),
    }
}

/// Keys that are never removed: before, between and behind the removed ones.
fn live_keys() -> Vec<Bytes> {
    let mut keys = vec![Bytes::from_static(b"\0"), Bytes::from_static(b"long"), Bytes::from(vec![0xFF; 20])];
    keys.extend((0..10).map(|number| Bytes::from(format!("short{:07}~", number * 99_999))));
    keys.push(Bytes::from(format!("{}~", "long".repeat(50))));
    keys.sort();
    keys
}

fn write_all(engine: &dyn Engine, changes: &mut dyn Iterator<Item = Change>) {
    loop {
        let changes: Vec<_> = changes.take(BATCH).collect();
        if changes.is_empty() {
            return;
        }
        let write = Write { changes, atomic: true, durability: Durability::Async, ..Write::default() };
        ask(engine, Operation::Write(write));
    }
}

fn step(reverse: bool) -> ScanStep {
    ScanStep {
        from: Bytes::new(),
        end: None,
        reverse,
        keys_only: true,
        entries_max: 1_000,
        bytes_max: 1 << 20,
        view: View::Latest,
        consistency: Consistency::Default,
    }
}

/// Stores the keys, some twice, and removes them. The snapshot keeps all entries on the disk.
fn fill(engine: &dyn Engine) -> Snapshot {
    write_all(engine, &mut live_keys().into_iter().map(|key| put(key, "live")));
    write_all(engine, &mut (0..REMOVED).map(|number| put(removed_key(number), "1")));
    write_all(engine, &mut (0..REMOVED).step_by(10).map(|number| put(removed_key(number), "2")));
    let taken = ask(engine, Operation::Scan(Box::new(ScanStep { view: View::Take, entries_max: 1, ..step(false) })));
    let Outcome::Page(Page::Entries { snapshot: Some(snapshot), .. }) = taken else { panic!("{taken:?}") };
    write_all(engine, &mut (0..REMOVED).map(|number| Change::of(removed_key(number), Effect::Delete)));
    snapshot
}

/// Scans everything. Returns the keys, and the largest number of removed entries that one step has passed.
fn scan(engine: &dyn Engine, mut step: ScanStep) -> (Vec<Bytes>, u64) {
    let (mut keys, mut most, mut steps) = (Vec::new(), 0, 0);
    loop {
        let (page, perf) = measured(engine, Operation::Scan(Box::new(step.clone())));
        let Ok(Outcome::Page(Page::Entries { entries, next, .. })) = page else { panic!("{page:?}") };
        most = most.max(perf.and_then(|perf| perf.get(Figure::RemovalsSkipped)).expect("RocksDB counts them"));
        keys.extend(entries.into_iter().map(|entry| entry.key));
        steps += 1;
        let Some(next) = next else {
            println!("{} keys in {steps} steps, which have passed up to {most} removed entries", keys.len());
            return (keys, most);
        };
        if step.reverse {
            assert!(step.end.as_ref().is_none_or(|end| next < end), "{next:?} in {step:?}");
            step.end = Some(next);
        } else {
            assert!(next > step.from, "{next:?} in {step:?}");
            step.from = next;
        }
    }
}

/// Returns what is wrong with a number of removed entries that one step has passed.
fn too_many(passed: u64) -> Option<String> {
    let most = PASSED_PER_STEP_MAX + ATTEMPTS_MAX * (REMOVED_PER_ATTEMPT_MAX + 1);
    (passed > most).then(|| format!("{passed} removed entries in one step, instead of {most} at most"))
}

#[test]
fn a_scan_over_a_million_removed_keys_takes_short_steps_and_finds_all_others() {
    let directory = tempfile::tempdir().unwrap();
    let engine = rocksdb(directory.path());
    let snapshot = fill(&engine);
    let live = live_keys();
    for view in [View::Latest, View::Take] {
        for reverse in [false, true] {
            let (mut keys, passed) = scan(&engine, ScanStep { view: view.clone(), ..step(reverse) });
            if reverse {
                keys.reverse();
            }
            assert_eq!(keys, live, "{view:?} {reverse}");
            assert!(passed > REMOVED_PER_ATTEMPT_MAX, "{passed}: the removed entries are there");
            assert_eq!(too_many(passed), None, "{view:?} {reverse}");
        }
    }
    // Before the removals, each key was there once.
    let (keys, _) = scan(&engine, ScanStep { view: View::At(snapshot), ..step(true) });
    assert!(keys.is_sorted_by(|one, next| one > next), "repeated or out of order");
    assert_eq!(keys.len(), REMOVED + live.len());
    drop(engine);
    assert!(too_many(passed_by_one_iterator(directory.path())).is_some(), "twin: an iterator without a bound");
}

/// Returns the number of removed entries that a plain iterator passes from the first key to the last.
fn passed_by_one_iterator(data: &Path) -> u64 {
    let options = rust_rocksdb::Options::default();
    let db = rust_rocksdb::DB::open_for_read_only(&options, data.join("rocksdb"), false).unwrap();
    set_perf_stats(PerfStatsLevel::EnableCount);
    with_thread_local(|context| {
        let mut iterator = db.raw_iterator();
        iterator.seek_to_first();
        while iterator.valid() {
            iterator.next();
        }
        context.metric(PerfMetric::InternalDeleteSkippedCount)
    })
}

#[test]
fn a_removal_up_to_the_last_key_reaches_it_behind_many_removed_ones() {
    let directory = tempfile::tempdir().unwrap();
    let engine = rocksdb(directory.path());
    let keys = || (0..3 * usize::try_from(REMOVED_PER_ATTEMPT_MAX).unwrap()).map(|number| format!("k{number:07}"));
    let removal = |from: &'static [u8]| {
        let (from, durability) = (Bytes::from_static(from), Durability::Sync);
        Operation::RemoveRange(RangeRemoval { from, durability, ..RangeRemoval::default() })
    };
    ask(&engine, removal(b""));
    write_all(&engine, &mut keys().chain(["a".to_owned(), "b".to_owned()]).map(|key| put(key, "v")));
    write_all(&engine, &mut keys().map(|key| Change::of(key.into(), Effect::Delete)));
    // The value cache must not keep what the removal hides.
    let read = || Operation::Get { key: Bytes::from_static(b"b"), consistency: Consistency::Default };
    ask(&engine, read());
    ask(&engine, removal(b"b"));
    assert!(matches!(ask(&engine, read()), Outcome::NotFound));
    write_all(&engine, &mut ["c".to_owned()].into_iter().map(|key| put(key, "v")));
    for reverse in [false, true] {
        let (mut keys, _) = scan(&engine, step(reverse));
        keys.sort();
        assert_eq!(keys, ["a", "c"]);
    }
    drop(engine);
    let engine = rocksdb(directory.path());
    assert_eq!(scan(&engine, step(false)).0, ["a", "c"]);
}

fn report(directory: &Path) -> Report {
    let report = check(directory, &Progress::default()).unwrap();
    assert!(report.sound, "{report:?}");
    report
}

/// Runs `work` with the engine, and then checks its data.
fn reported(directory: &Path, work: impl FnOnce(&RocksDbEngine)) -> (u64, u64) {
    let engine = rocksdb(directory);
    work(&engine);
    engine.sync().unwrap();
    drop(engine);
    let Report { entries, expired, .. } = report(directory);
    (entries, expired)
}

#[test]
fn expired_entries_and_removed_ranges_leave_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let expiring = |number: u32| {
        let expires_at_ms = std::num::NonZeroU64::new(if number.is_multiple_of(2) { 1 } else { 4_000_000_000_000 });
        let own = Attributes { expires_at_ms, ..Attributes::default() };
        let value = Value { payload: Bytes::from_static(b"v"), attributes: Some(Box::new(own)) };
        Change::of(format!("{number:04}").into(), Effect::Put(value))
    };
    let filled = reported(at, |engine| write_all(engine, &mut (0..1_000).map(expiring)));
    assert_eq!(filled, (1_000, 500), "klad check counts expired entries");
    let range_removed = reported(at, |engine| {
        let (from, end) = (Bytes::from_static(b"0200"), Some(Bytes::from_static(b"0300")));
        ask(
            engine,
            Operation::RemoveRange(RangeRemoval {
                from,
                end,
                durability: Durability::Async,
                ..RangeRemoval::default()
            }),
        );
    });
    assert_eq!(range_removed, (900, 450), "klad check does not count removed ones");
    let compacted = reported(at, |engine| {
        engine.compact(true, &|_, _| true).unwrap();
        assert_eq!(scan(engine, step(false)).0.len(), 450);
    });
    assert_eq!(compacted, (450, 0));
}
