//! Conditional writes: Cassandra's lightweight transactions, which run a round of Paxos among the copies of a bucket.
//!
//! Conditional writes of one bucket disturb each other, so one klad executes them one after the other. Writes of
//! several klads may still meet. Then Cassandra tells one klad that the state has changed, and this klad reads and
//! tries again after a random time. If Cassandra does not answer, the outcome is unknown. Then a serial read shows the
//! value, which carries its version and the versions that it has replaced. From these versions klad decides whether the
//! write took effect, unless a plain write, a removal or more than 15 conditional writes have come since.
//!
//! A node that was frozen may execute a write long after klad has stopped waiting for it. So if the outcome of a try is
//! unknown and the serial read still shows the old value, klad tries again, and treats all such tries as possibly
//! successful until the old value is gone. If klad stops trying before that, the outcome is unknown.
//!
//! Cassandra itself chooses the timestamp of a conditional write, from the clock of a node in whole milliseconds. This
//! timestamp must be above that of a plain write that the conditional write replaces, so klad waits a moment if the
//! plain write is very recent.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use scylla::response::query_result::QueryResult;
use scylla::statement::batch::{Batch, BatchType};
use scylla::value::{CqlValue, Row};

use crate::Pending;
use crate::cassandra::failure::Failure;
use crate::cassandra::level::Level;
use crate::cassandra::read::{Columns, Stored};
use crate::cassandra::row::Head;
use crate::cassandra::schema::is_applied;
use crate::cassandra::versions::{CLOCK_ERROR, CLOCK_SKEW, micros, now_us, timestamp_us, wrong_clock};
use crate::cassandra::write::{Stores, blob, columns, plan, replicated, ttl_s};
use crate::cassandra::{Cluster, bucket, row};
use crate::operation::{Error, Outcome, Version};
use klad_base::clock;

/// The upper bound of the random time before the second try. The bound doubles with each try, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(4);

/// The largest upper bound of the random time before another try.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// What klad knows of a conditional write whose outcome Cassandra did not report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Applied,
    /// The value that the write replaces is gone, so the write can never take effect.
    NotApplied,
    /// The value that the write replaces is still there.
    Unchanged,
    Unknown,
}

/// The result of one try.
enum Tried {
    Applied,
    OtherState,
    /// The write has not taken effect, but may still do so.
    Open,
}

/// A try that may still take effect.
struct Open {
    key: Bytes,
    /// The version that the try stores; `None` if it removes the key.
    ours: Option<Version>,
    expected: Option<Head>,
    outcome: Outcome,
}

impl Cluster {
    /// Executes changes of one key, or of several keys of one bucket, that depend on the state of their keys.
    pub(super) async fn conditional(&self, pending: &[Pending; 1]) -> crate::Result {
        let write = &pending[0].write;
        let level = self.levels.of_conditional_write(write.consistency);
        let place = bucket::of(&write.changes[0].key, self.buckets);
        let queue = &self.queues[usize::try_from(place).expect("not negative")];
        let deadline = clock::now() + 2 * self.timeout;
        let Ok(permit) = tokio::time::timeout_at(deadline.into(), queue.acquire()).await else {
            return Err(contention());
        };
        let _permit = permit.expect("it is never closed");
        let mut open = Vec::new();
        match self.tries(pending, level, deadline, &mut open).await {
            Ok(Ended::Stored(outcome)) => Ok(replicated(outcome, level)),
            Ok(Ended::Unchanged(outcome)) if open.is_empty() => Ok(replicated(outcome, level)),
            Err(error) if open.is_empty() => Err(error),
            Ok(Ended::Unchanged(_)) | Err(_) => Err(self.counters.failed(&unanswered())),
        }
    }

    /// Tries until a try takes effect, or until the state of the keys leaves nothing to store. Leaves in `open` the
    /// tries that may still take effect.
    async fn tries(
        &self,
        pending: &[Pending; 1],
        level: Level,
        deadline: Instant,
        open: &mut Vec<Open>,
    ) -> Result<Ended, Error> {
        let write = &pending[0].write;
        let mut pause = PAUSE_MIN;
        loop {
            let began_us = now_us();
            // klad reads all keys, because it stores each part of a batch only if the key still has the state that was
            // read.
            let mut keys: HashMap<Bytes, Columns> = HashMap::new();
            for change in &write.changes {
                let needed = columns(change);
                let own = keys.entry(change.key.clone()).or_insert(needed);
                *own = if needed == Columns::All { needed } else { *own };
            }
            let stored = self.read_all(keys, level).await?;
            if let Some(ended) = settle(open, &stored) {
                return ended.map(Ended::Stored);
            }
            let first = self.versions.reserve(write.changes.len());
            let (outcome, stores) = plan(pending, first, &stored)?;
            if stores.is_empty() {
                return Ok(Ended::Unchanged(outcome));
            }
            wait_for_clocks(began_us, &stores, &stored).await?;
            if clock::now() >= deadline {
                return Err(contention());
            }
            match self.try_store(&stores, &stored, level).await? {
                Tried::Applied => return Ok(Ended::Stored(outcome)),
                Tried::OtherState => {}
                Tried::Open => {
                    let own = shown(&stores, &stored);
                    open.push(Open {
                        key: own.key.clone(),
                        ours: own.value.as_ref().map(|_| own.version),
                        expected: stored.get(&own.key).map(|stored| stored.head.clone()),
                        outcome,
                    });
                }
            }
            self.counters.conditional_retries.add(1);
            tokio::time::sleep(random_up_to(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Sends the statement once, and finds out whether it took effect.
    async fn try_store(
        &self,
        stores: &[Stores],
        stored: &HashMap<Bytes, Stored>,
        level: Level,
    ) -> Result<Tried, Error> {
        let result = if let [own] = stores {
            self.send_one(own, stored.get(&own.key), level).await
        } else {
            let (batch, values) = self.conditional_batch(stores, stored, level);
            self.session.batch(&batch, values).await
        };
        let failure = match result {
            Ok(result) => {
                let answer = applied(result);
                let applied = answer.map_err(|why| self.counters.failed(&Error::Undetermined { why }))?;
                return Ok(if applied { Tried::Applied } else { Tried::OtherState });
            }
            Err(error) => Failure::of(&error, level),
        };
        if failure.is_final() {
            return Err(self.counters.failed(&failure.into_write_error()));
        }
        self.counters.conditional_unknown.add(1);
        let shown = shown(stores, stored);
        match self.decide(shown, stored.get(&shown.key)).await {
            Verdict::Applied => {
                // The serial read shows only that a majority has the write.
                let answered = self.levels.serial().acks;
                if level.acks > answered {
                    let (answered, asked) = (answered.into(), level.acks.into());
                    return Err(self.counters.failed(&Error::NotEnoughReplicas { answered, asked }));
                }
                Ok(Tried::Applied)
            }
            Verdict::NotApplied => Ok(Tried::OtherState),
            Verdict::Unchanged if failure.coordinator_has_ended() => Ok(Tried::OtherState),
            Verdict::Unchanged => Ok(Tried::Open),
            Verdict::Unknown => {
                let why = format!("the copies did not agree in time on a conditional write ({failure:?})");
                Err(self.counters.failed(&Error::Undetermined { why }))
            }
        }
    }

    async fn send_one(
        &self,
        own: &Stores,
        before: Option<&Stored>,
        level: Level,
    ) -> Result<QueryResult, scylla::errors::ExecutionError> {
        let (bucket, key) = (bucket::of(&own.key, self.buckets), &own.key[..]);
        let expected = before.map(|stored| &stored.head.raw[..]);
        match &own.value {
            Some(value) => {
                let (head, beside) = row::encode(own.version, value, &replaced(before));
                let values = (ttl_s(value, clock::unix_ms()), head, beside, bucket, key, expected);
                self.session.execute_unpaged(self.statements.put_if.at(level), values).await
            }
            None => self.session.execute_unpaged(self.statements.delete_if.at(level), (bucket, key, expected)).await,
        }
    }

    fn conditional_batch(
        &self,
        stores: &[Stores],
        stored: &HashMap<Bytes, Stored>,
        level: Level,
    ) -> (Batch, Vec<Vec<Option<CqlValue>>>) {
        let mut batch = Batch::new(BatchType::Unlogged);
        batch.set_consistency(level.cql);
        batch.set_is_idempotent(false);
        batch.set_execution_profile_handle(Some(self.profiles.once.clone()));
        let mut values = Vec::with_capacity(stores.len());
        for Stores { key, version, value } in stores {
            let before = stored.get(key);
            let mut own = Vec::new();
            let statement = if let Some(value) = value {
                let (head, beside) = row::encode(*version, value, &replaced(before));
                own.extend([
                    Some(CqlValue::Int(ttl_s(value, clock::unix_ms()))),
                    Some(blob(&head)),
                    Some(blob(&beside)),
                ]);
                &self.statements.put_if
            } else {
                &self.statements.delete_if
            };
            let expected = before.map(|stored| blob(&stored.head.raw));
            own.extend([Some(CqlValue::Int(bucket::of(key, self.buckets))), Some(blob(key)), expected]);
            batch.append_statement(statement.at(level).clone());
            values.push(own);
        }
        (batch, values)
    }

    /// Finds out by serial reads whether a write took effect. A serial read ends the transactions that have begun.
    async fn decide(&self, own: &Stores, before: Option<&Stored>) -> Verdict {
        let deadline = clock::now() + self.timeout;
        while clock::now() < deadline {
            tokio::time::sleep(random_up_to(PAUSE_MAX / 4)).await;
            if let Ok(found) = self.read(&own.key, Columns::Head, self.levels.serial()).await {
                let found = found.map(|stored| stored.head);
                let ours = own.value.as_ref().map(|_| own.version);
                return judge(ours, before.map(|stored| &stored.head), found.as_ref());
            }
        }
        Verdict::Unknown
    }
}

/// The result of all tries.
enum Ended {
    Stored(Outcome),
    /// Nothing was to be stored.
    Unchanged(Outcome),
}

/// Returns the outcome of an open try that has taken effect, or an error if klad can no longer tell whether a try has.
/// Removes from `open` the tries that can no longer take effect.
fn settle(open: &mut Vec<Open>, stored: &HashMap<Bytes, Stored>) -> Option<Result<Outcome, Error>> {
    let verdict = |own: &Open| judge(own.ours, own.expected.as_ref(), stored.get(&own.key).map(|found| &found.head));
    if let Some(index) = open.iter().position(|own| verdict(own) == Verdict::Applied) {
        return Some(Ok(open.swap_remove(index).outcome));
    }
    open.retain(|own| verdict(own) != Verdict::NotApplied);
    // Another write has hidden whether the try took effect. One more try could make the change twice.
    let unknown = open.iter().any(|own| verdict(own) == Verdict::Unknown);
    unknown.then(|| Err(unanswered()))
}

/// Returns the part that shows best whether a statement took effect: a part that stores a value, because the version of
/// this value is there then. A part that replaces another value is preferred. All parts of a batch have the same
/// outcome.
fn shown<'s>(stores: &'s [Stores], stored: &HashMap<Bytes, Stored>) -> &'s Stores {
    let value = |own: &&Stores| own.value.is_some();
    let best = stores.iter().find(|own| value(own) && stored.contains_key(&own.key));
    best.or_else(|| stores.iter().find(value)).unwrap_or(&stores[0])
}

/// Whether a conditional statement was applied, as its answer says.
///
/// # Errors
/// Why the answer cannot be read.
fn applied(answer: QueryResult) -> Result<bool, String> {
    let unreadable =
        |error: &dyn std::fmt::Display| format!("the answer to a conditional write is unreadable: {error}");
    let rows = answer.into_rows_result().map_err(|error| unreadable(&error))?;
    let row = rows.first_row::<Row>().map_err(|error| unreadable(&error))?;
    Ok(is_applied(&row))
}

fn unanswered() -> Error {
    Error::Undetermined { why: "a node has not answered a conditional write, and may still do it".to_owned() }
}

fn contention() -> Error {
    let what = "conditional writes of this key, or of keys in its bucket, take too long";
    Error::Overloaded { what, limit: 0, retry_after: Some(PAUSE_MAX) }
}

/// Decides whether a write took effect. The write stores the version `ours` (`None`: it removes the key) in place of
/// `expected`. `found` is what the key has now.
fn judge(ours: Option<Version>, expected: Option<&Head>, found: Option<&Head>) -> Verdict {
    let Some(found) = found else { return Verdict::Unknown };
    let has = |version: Version| found.version == version || found.earlier().any(|own| own == version.get());
    match (ours, expected) {
        (Some(ours), _) if has(ours) => Verdict::Applied,
        (_, Some(expected)) if found.version == expected.version => Verdict::Unchanged,
        // All versions that have replaced the expected value are known, and the write is not among them.
        (_, Some(expected)) if has(expected.version) => Verdict::NotApplied,
        _ => Verdict::Unknown,
    }
}

/// The versions that a new value replaces if `before` is stored, the newest first.
fn replaced(before: Option<&Stored>) -> Vec<u64> {
    before.map_or_else(Vec::new, |stored| {
        std::iter::once(stored.head.version.get()).chain(stored.head.earlier()).take(row::EARLIER_MAX).collect()
    })
}

/// Waits until the clocks of the nodes are past the timestamps of the plain writes that `stores` replace. `began_us` is
/// the time at which klad began to read these writes. If a key is absent, klad assumes that it was removed at that
/// time, by a klad whose clock may be ahead.
async fn wait_for_clocks(began_us: u64, stores: &[Stores], stored: &HashMap<Bytes, Stored>) -> Result<(), Error> {
    let mut until_us = (began_us / 1_000 + 1) * 1_000;
    for own in stores {
        let written_us = match stored.get(&own.key) {
            None => began_us,
            Some(stored) if stored.written_us == timestamp_us(stored.head.version) => {
                u64::try_from(stored.written_us).unwrap_or(0)
            }
            Some(_) => continue,
        };
        until_us = until_us.max(written_us + micros(CLOCK_SKEW));
    }
    let wait_us = until_us.saturating_sub(now_us());
    if wait_us > micros(CLOCK_ERROR) {
        return Err(wrong_clock(wait_us));
    }
    if wait_us > 0 {
        tokio::time::sleep(Duration::from_micros(wait_us)).await;
    }
    Ok(())
}

fn random_up_to(most: Duration) -> Duration {
    Duration::from_micros(fastrand::u64(0..=micros(most)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Value;

    fn head(version: u64, replaced: &[u64]) -> Head {
        Head::decode(row::encode(Version::new(version), &Value::default(), replaced).0).expect("just encoded")
    }

    #[test]
    fn a_serial_read_decides_an_unknown_outcome() {
        use Verdict::{Applied, NotApplied, Unchanged, Unknown};
        let expected = head(1, &[]);
        for (found, verdict) in [
            (Some(head(2, &[1])), Applied),
            (Some(head(4, &[3, 2, 1])), Applied),
            (Some(head(1, &[])), Unchanged),
            (Some(head(4, &[3, 1])), NotApplied),
            // A plain write forgets what was before it.
            (Some(head(4, &[])), Unknown),
            (Some(head(9, &[8, 7])), Unknown),
            (None, Unknown),
        ] {
            assert_eq!(judge(Some(Version::new(2)), Some(&expected), found.as_ref()), verdict, "{found:?}");
        }
    }

    #[test]
    fn an_absent_key_shows_nothing_of_a_removal_or_a_creation() {
        use Verdict::{Applied, NotApplied, Unchanged, Unknown};
        let expected = head(1, &[]);
        assert_eq!(judge(None, Some(&expected), None), Unknown);
        assert_eq!(judge(None, Some(&expected), Some(&head(1, &[]))), Unchanged);
        assert_eq!(judge(None, Some(&expected), Some(&head(3, &[1]))), NotApplied);
        assert_eq!(judge(Some(Version::new(2)), None, None), Unknown);
        assert_eq!(judge(Some(Version::new(2)), None, Some(&head(2, &[]))), Applied);
    }

    /// A node that was frozen executes the first try after klad has sent a second one.
    #[test]
    fn a_try_that_happens_late_is_not_done_again() {
        let key = Bytes::from_static(b"k");
        let stored = |head: Head| HashMap::from([(key.clone(), Stored { head, beside: None, written_us: 0 })]);
        let outcome = || Outcome::Written {
            version: Version::new(2),
            durability: crate::operation::Durability::Replicated(2),
            results: Vec::new(),
        };
        let open = |ours: Option<u64>| {
            let ours = ours.map(Version::new);
            vec![Open { key: key.clone(), ours, expected: Some(head(1, &[])), outcome: outcome() }]
        };
        for late in [head(2, &[1]), head(5, &[2, 1])] {
            let settled = settle(&mut open(Some(2)), &stored(late));
            assert!(matches!(settled, Some(Ok(Outcome::Written { version, .. })) if version == Version::new(2)));
        }
        for (ours, found, left) in
            [(Some(2), stored(head(1, &[])), 1), (Some(2), stored(head(3, &[1])), 0), (None, stored(head(3, &[1])), 0)]
        {
            let mut open = open(ours);
            assert!(settle(&mut open, &found).is_none());
            assert_eq!(open.len(), left, "{ours:?} {found:?}");
        }
        // A plain write or a removal of another client hides whether it happened.
        for (ours, found) in [(Some(2), stored(head(9, &[]))), (Some(2), HashMap::new()), (None, HashMap::new())] {
            assert!(matches!(settle(&mut open(ours), &found), Some(Err(Error::Undetermined { .. }))), "{found:?}");
        }
    }
}
