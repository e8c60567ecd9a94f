//! Each engine does what its capabilities say, and other requests are rejected. Writes that meet each other end as if
//! they had come one after the other.

use std::num::NonZeroU64;

use bytes::Bytes;
use klad_storage::maintenance;
use klad_storage::operation::{
    Attributes, Change, ChangeResult, Condition, Consistency, Durability, Effect, Operation, Outcome, RangeRemoval,
    Value, Write,
};
use klad_storage::{Capabilities, Engine};

use super::support::Over;
use super::support::engine::{Defect, Planted, ask, commit, each_engine, memory, put, try_ask, write};

fn get(engine: &dyn Engine, key: &'static str) -> Option<(u64, Bytes)> {
    match ask(engine, Operation::Get { key: Bytes::from_static(key.as_bytes()), consistency: Consistency::Default }) {
        Outcome::Found { version, value } => Some((version.get(), value.payload)),
        Outcome::NotFound => None,
        other => panic!("{other:?}"),
    }
}

fn batch(changes: Vec<Change>) -> Write {
    Write { changes, atomic: true, durability: Durability::Async, ..Write::default() }
}

#[test]
fn the_changes_of_a_batch_have_consecutive_versions() {
    each_engine(|engine| {
        write(engine, put("gone", "1"));
        let gone = Change::of(Bytes::from_static(b"gone"), Effect::Delete);
        let changes = vec![put("a", "1"), put("b", "1"), gone, put("a", "2")];
        let written = ask(engine, Operation::Write(batch(changes)));
        let Outcome::Written { version, durability, results } = written else { panic!("{written:?}") };
        assert_eq!((durability, results.len()), (engine.durability(Durability::Async), 0));
        let first = version.get();
        assert_eq!(get(engine, "a"), Some((first + 3, "2".into())), "{}", engine.name());
        assert_eq!(get(engine, "b"), Some((first + 1, "1".into())), "{}", engine.name());
        assert_eq!(get(engine, "gone"), None, "{}", engine.name());
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
    let with = |own: Attributes| {
        let value = Value { attributes: Some(Box::new(own)), ..Value::default() };
        batch(vec![Change::of(Bytes::from_static(b"k"), Effect::Put(value))])
    };
    let plain = batch(vec![put("k", "v")]);
    let several = batch(vec![put("k", "v"), put("l", "v")]);
    let conditional = batch(vec![Change { condition: Some(Condition::Absent), ..put("k", "v") }]);
    let reporting = batch(vec![Change { reports_existence: true, ..put("k", "v") }]);
    let expire = |at| batch(vec![Change::of(Bytes::from_static(b"k"), Effect::Expire(NonZeroU64::new(at)))]);
    let expiring = with(Attributes { expires_at_ms: NonZeroU64::new(1), ..Attributes::default() });
    let described = with(Attributes { metadata: Bytes::from_static(b"text"), ..Attributes::default() });
    for write in [&plain, &several, &conditional, &reporting, &expire(1), &expiring, &described] {
        assert_eq!(all.lacks(write), None);
    }
    assert_eq!(Capabilities { batches: false, ..all }.lacks(&several), Some("batches"));
    assert_eq!(Capabilities { conditions: false, ..all }.lacks(&conditional), Some("conditions"));
    assert_eq!(Capabilities { conditions: false, ..all }.lacks(&reporting), Some("conditions"));
    assert_eq!(Capabilities { expiry: false, ..all }.lacks(&expiring), Some("expiry"));
    assert_eq!(Capabilities { expiry: false, ..all }.lacks(&expire(1)), Some("expiry"));
    assert_eq!(Capabilities { expiry: false, ..all }.lacks(&expire(0)), None);
    assert_eq!(Capabilities { metadata: false, ..all }.lacks(&described), Some("metadata"));
    assert_eq!(Capabilities::default().lacks(&plain), None);
}

const THREADS: usize = 4;
const ROUNDS: usize = 300;

/// Several threads count with conditions and with additions. Returns what is wrong with the sums.
fn lost_updates(engine: &dyn Engine) -> Option<String> {
    let count_with_condition = || {
        loop {
            let found = get(engine, "compared");
            let number: usize =
                found.as_ref().map_or(0, |(_, value)| std::str::from_utf8(value).unwrap().parse().unwrap());
            let condition = found.map_or(Condition::Absent, |(version, _)| {
                Condition::Is(klad_storage::operation::Version::new(version))
            });
            let change = Change { condition: Some(condition), ..put("compared", (number + 1).to_string()) };
            match write(engine, change) {
                Outcome::Written { .. } => return,
                Outcome::Failed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    };
    let add = || {
        let effect = Effect::Add { by: 1, created: None };
        let outcome = write(engine, Change::of(Bytes::from_static(b"added"), effect));
        let Outcome::Written { results, .. } = outcome else { panic!("{outcome:?}") };
        assert!(matches!(results[..], [ChangeResult::Done { number: Some(1..), .. }]), "{results:?}");
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    count_with_condition();
                    add();
                }
            });
        }
    });
    ["compared", "added"].into_iter().find_map(|key| {
        let (_, value) = get(engine, key).expect("counted");
        (*value != *(THREADS * ROUNDS).to_string().as_bytes()).then(|| format!("{key} is {value:?}"))
    })
}

#[test]
fn no_update_is_lost() {
    each_engine(|engine| assert_eq!(lost_updates(engine), None, "{}", engine.name()));
}

/// One thread writes two keys together, others read both. Returns two values that do not belong together.
fn torn_batch(engine: &dyn Engine) -> Option<String> {
    let over = std::sync::atomic::AtomicBool::new(false);
    let wrong = std::sync::Mutex::new(None);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::SeqCst) {
                    let keys = vec![Bytes::from_static(b"left"), Bytes::from_static(b"right")];
                    let found =
                        ask(engine, Operation::GetMany { keys, bytes_max: 1_000, consistency: Consistency::Default });
                    let Outcome::FoundMany(found) = found else { panic!("{found:?}") };
                    let payload = |result: &ChangeResult| match result {
                        ChangeResult::Read(found) => found.as_ref().map(|(_, value)| value.payload.clone()),
                        other => panic!("{other:?}"),
                    };
                    if payload(&found[0]) != payload(&found[1]) {
                        *wrong.lock().unwrap() = Some(format!("{found:?}"));
                    }
                }
            });
        }
        for round in 0..2_000 {
            let write = if round % 10 == 9 {
                Operation::RemoveRange(RangeRemoval {
                    from: Bytes::from_static(b"left"),
                    durability: Durability::Async,
                    ..RangeRemoval::default()
                })
            } else {
                Operation::Write(batch(vec![put("left", round.to_string()), put("right", round.to_string())]))
            };
            try_ask(engine, write).unwrap();
        }
    });
    wrong.into_inner().unwrap()
}

#[test]
fn a_batch_is_seen_as_a_whole() {
    each_engine(|engine| assert_eq!(torn_batch(engine), None, "{}", engine.name()));
}

#[test]
fn a_failed_batch_and_a_counter_are_seen_by_the_next_write_of_the_same_commit() {
    each_engine(|engine| {
        let fails = Change { condition: Some(Condition::Never), ..put("b", "1") };
        let add = || Change::of(Bytes::from_static(b"n"), Effect::Add { by: 1, created: None });
        let read = Change::of(Bytes::from_static(b"a"), Effect::Read);
        let writes =
            vec![batch(vec![add()]), batch(vec![add(), put("a", "1"), fails]), batch(vec![add()]), batch(vec![read])];
        let outcomes = commit(engine, writes);
        assert!(matches!(outcomes[1], Outcome::Failed { index: 2, .. }), "{outcomes:?}");
        let results = |outcome: &Outcome| match outcome {
            Outcome::Written { results, .. } => results[0].clone(),
            other => panic!("{other:?}"),
        };
        assert!(matches!(results(&outcomes[2]), ChangeResult::Done { existed: Some(true), number: Some(2), .. }));
        assert_eq!(results(&outcomes[3]), ChangeResult::Read(None));
    });
}

fn planted(defect: Defect) -> Planted {
    Planted::new(memory(std::path::Path::new("")), defect)
}

/// Repeats a check of a race until it finds the planted defect.
fn find(defect: Defect, check: fn(&dyn Engine) -> Option<String>) -> String {
    (0..100).find_map(|_| check(&planted(defect))).unwrap_or_else(|| panic!("{defect:?} is not found"))
}

#[test]
fn twin_conditions_outside_the_commit_section_lose_updates() {
    assert!(find(Defect::ChecksConditionsOutside, lost_updates).starts_with("compared"));
}

#[test]
fn twin_forgotten_additions_are_found() {
    assert!(find(Defect::ForgetsAdditions, lost_updates).starts_with("added"));
}

#[test]
fn twin_a_split_batch_is_seen_in_part() {
    find(Defect::SplitsBatches, torn_batch);
}
