//! Defective changes: a condition that is evaluated too early, an addition that is forgotten, a write that is done
//! twice, and commits in two halves. `planted` calls this.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use klad_storage::changes::ChangesPage;
use klad_storage::operation::{
    Change, ChangeError, ChangeResult, Condition, Consistency, Durability, Effect, Operation, Outcome, RangeRemoval,
    Value, Version, Write,
};
use klad_storage::{Engine, Pending, Reply, Result};

use super::planted::{Changed, Collect};

/// Time between the check of a condition and the change, long enough for other clients.
const RACE: Duration = Duration::from_millis(1);

/// Time between the two commits of one write, in which a kill or a reader finds half of it.
const HALVES: Duration = Duration::from_millis(10);

fn executed(engine: &dyn Engine, operation: Operation) -> Result {
    let (sender, receiver) = mpsc::sync_channel(1);
    engine.execute(operation, Arc::new(Collect(sender)));
    receiver.recv().expect("completed")
}

fn read_one(engine: &dyn Engine, key: &Bytes) -> Option<(Version, Value)> {
    match executed(engine, Operation::Get { key: key.clone(), consistency: Consistency::Default }) {
        Ok(Outcome::Found { version, value }) => Some((version, value)),
        Ok(_) => None,
        Err(error) => panic!("the read of a planted defect failed: {error}"),
    }
}

/// Evaluates the condition of a change, and then commits the change without it.
pub(crate) fn commit_after_check(engine: &dyn Engine, mut write: Pending) {
    let change = &mut write.write.changes[0];
    if let Some(condition) = change.condition.take() {
        let current = read_one(engine, &change.key).map(|(version, _)| version);
        let holds = match condition {
            Condition::Present => current.is_some(),
            Condition::Absent => current.is_none(),
            Condition::Is(version) => current == Some(version),
            Condition::Never => false,
        };
        if !holds {
            let error = ChangeError::Condition { current };
            return write.reply.complete(Ok(Outcome::Failed { index: 0, error }));
        }
        std::thread::sleep(RACE);
    }
    engine.commit(vec![write]);
}

/// Answers an addition as if it were stored. Commits any other write.
pub(crate) fn forget_addition(engine: &dyn Engine, mut write: Pending) {
    let change = &mut write.write.changes[0];
    let Effect::Add { by, .. } = change.effect else { return engine.commit(vec![write]) };
    let before = read_one(engine, &change.key).map_or(0, |(_, value)| number(&value));
    // Another change gets the version, so that only the loss can be noticed.
    *change = Change::of(b"klad-test-lost".as_slice().into(), Effect::Delete);
    let change = move |result: Result| {
        result.map(|outcome| match outcome {
            Outcome::Written { version, durability, .. } => {
                let done = ChangeResult::Done { version, existed: None, number: Some(before + by) };
                Outcome::Written { version, durability, results: vec![done] }
            }
            other => other,
        })
    };
    write.reply = Arc::new(Changed { reply: write.reply.clone(), change });
    engine.commit(vec![write]);
}

/// Commits the changes of a batch without conditions in two halves. Commits any other write.
pub(crate) fn commit_in_halves(engine: &dyn Engine, mut write: Pending) {
    let Write { changes, durability, .. } = &mut write.write;
    if changes.len() < 2 || changes.iter().any(Change::depends_on_state) {
        return engine.commit(vec![write]);
    }
    let rest = changes.split_off(changes.len() / 2);
    let half =
        Write { changes: std::mem::replace(changes, rest), atomic: true, durability: *durability, ..Write::default() };
    match executed(engine, Operation::Write(half)) {
        Ok(_) => std::thread::sleep(HALVES),
        failed => return write.reply.complete(failed),
    }
    engine.commit(vec![write]);
}

/// Removes the keys of a range whose next character is below `3`, and then the others.
pub(crate) fn remove_in_halves(engine: &dyn Engine, removal: RangeRemoval, reply: Arc<dyn Reply>) {
    let middle = Bytes::from([&removal.from[..], b"3"].concat());
    let half = RangeRemoval { end: Some(middle.clone()), ..removal.clone() };
    match executed(engine, Operation::RemoveRange(half)) {
        Ok(_) => std::thread::sleep(HALVES),
        failed => return reply.complete(failed),
    }
    engine.execute(Operation::RemoveRange(RangeRemoval { from: middle, ..removal }), reply);
}

/// Stores a key before and one behind those of a test.
pub(crate) fn write_around(engine: &dyn Engine) {
    for key in [b"0", b"z"] {
        let value = Bytes::from_static(b"of another client").into();
        let write = Write::of(Bytes::from_static(key), Effect::Put(value), Durability::Async);
        executed(engine, Operation::Write(write)).expect("stored");
    }
}

/// Returns the number that a counter holds.
fn number(value: &Value) -> i64 {
    String::from_utf8_lossy(&value.payload).parse().expect("a counter")
}

/// Commits a write, and then the same write again, whose outcome is answered.
pub(crate) fn commit_twice(engine: &dyn Engine, write: Pending) {
    let (sender, receiver) = mpsc::sync_channel(1);
    let first = Pending { write: write.write.clone(), reply: Arc::new(Collect(sender)) };
    engine.commit(vec![first]);
    let _ = receiver.recv().expect("completed");
    engine.commit(vec![write]);
}

/// Removes a change from a page that has several.
pub(crate) fn lose_a_change(result: Result) -> Result {
    result.map(|outcome| match outcome {
        Outcome::Changes(ChangesPage::Changes { mut changes, next, more }) => {
            if changes.len() > 1 {
                changes.remove(changes.len() / 2);
            }
            Outcome::Changes(ChangesPage::Changes { changes, next, more })
        }
        other => other,
    })
}
