//! Defective changes: a condition that is evaluated too early, and an addition that is forgotten. `planted` calls this.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use klad_storage::operation::{
    Change, ChangeError, ChangeResult, Condition, Effect, Operation, Outcome, Value, Version,
};
use klad_storage::{Engine, Pending, Result};

use super::planted::{Changed, Collect};

/// Time between the check of a condition and the change, long enough for other clients.
const RACE: Duration = Duration::from_millis(1);

fn read_one(engine: &dyn Engine, key: &Bytes) -> Option<(Version, Value)> {
    let (sender, receiver) = mpsc::sync_channel(1);
    engine.execute(Operation::Get { key: key.clone() }, Arc::new(Collect(sender)));
    match receiver.recv().expect("completed") {
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

/// Returns the number that a counter holds.
fn number(value: &Value) -> i64 {
    String::from_utf8_lossy(&value.payload).parse().expect("a counter")
}
