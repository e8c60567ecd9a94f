//! Conditional writes: Cassandra's lightweight transactions, which run a round of Paxos among the copies of a bucket.
//!
//! Such writes of one bucket disturb each other, so those of one klad take turns. Those of several klads may still
//! meet: then one is told that it found another state, reads again and tries again, after a random time. Or it is told
//! nothing: the outcome is unknown. Then a serial read shows the value, which carries its version and the versions that
//! it has replaced. From these klad decides whether the write took effect, unless too much has happened since.
//!
//! Cassandra itself chooses the timestamp of a conditional write, from the clock of a node in whole milliseconds. It
//! must be above the timestamp of a plain write that it replaces, so klad waits a moment if that is very recent.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use scylla::statement::batch::{Batch, BatchType};
use scylla::value::{CqlValue, Row};

use crate::Pending;
use crate::cassandra::failure::Failure;
use crate::cassandra::level::Level;
use crate::cassandra::read::{Columns, Stored, unreadable};
use crate::cassandra::row::Head;
use crate::cassandra::schema::is_applied;
use crate::cassandra::versions::{now_us, timestamp_us};
use crate::cassandra::write::{Stores, blob, columns, plan, replicated, ttl_s};
use crate::cassandra::{Cluster, bucket, row};
use crate::operation::{Error, Version};
use klad_base::clock;

/// The difference between the clocks of klads and nodes up to which a conditional write replaces a plain one.
const CLOCK_SKEW: Duration = Duration::from_millis(10);

/// If a value is from this far in the future, a clock is wrong, and klad rejects conditional writes of it.
const CLOCK_ERROR: Duration = Duration::from_secs(1);

/// The random time before another try is at first up to this.
const PAUSE_MIN: Duration = Duration::from_millis(4);

/// The random time before another try is at most this.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// What klad knows of a conditional write whose outcome Cassandra did not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Applied,
    NotApplied,
    Unknown,
}

/// What a try has found.
enum Tried {
    Applied,
    OtherState,
}

impl Cluster {
    /// Does a unit whose changes depend on the state of their keys.
    pub(super) async fn conditional(&self, pending: &[Pending; 1]) -> crate::Result {
        let write = &pending[0].write;
        let level = self.levels.of_conditional_write(write.consistency);
        let place = bucket::of(&write.changes[0].key, self.buckets);
        let queue = &self.queues[usize::try_from(place).expect("not negative")];
        let _turn = queue.acquire().await.expect("it is never closed");
        let deadline = clock::now() + 2 * self.timeout;
        let mut pause = PAUSE_MIN;
        loop {
            let began_us = now_us();
            // All keys, so that each part of a batch finds the state that the others were decided on.
            let mut keys: HashMap<Bytes, Columns> = HashMap::new();
            for change in &write.changes {
                let needed = columns(change);
                let own = keys.entry(change.key.clone()).or_insert(needed);
                *own = if needed == Columns::All { needed } else { *own };
            }
            let stored = self.read_all(keys, level).await?;
            let first = self.versions.reserve(write.changes.len(), 0);
            let (outcome, stores) = plan(pending, first, &stored)?;
            if stores.is_empty() {
                return Ok(replicated(outcome, level));
            }
            wait_for_clocks(began_us, &stores, &stored).await?;
            match self.try_store(&stores, &stored, level).await? {
                Tried::Applied => return Ok(replicated(outcome, level)),
                Tried::OtherState => self.counters.conditional_retries.add(1),
            }
            if clock::now() >= deadline {
                let what = "others change this key, or keys of its directory, all the time";
                return Err(Error::Overloaded { what, limit: 0, retry_after: Some(PAUSE_MAX) });
            }
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
                let rows = result.into_rows_result().map_err(unreadable)?;
                let row = rows.first_row::<Row>().map_err(unreadable)?;
                return Ok(if is_applied(&row) { Tried::Applied } else { Tried::OtherState });
            }
            Err(error) => Failure::of(&error, level),
        };
        if failure.had_no_effect() {
            return Err(self.counters.failed(&failure.into_write_error()));
        }
        self.counters.conditional_unknown.add(1);
        // A part that stores a value is known by its version. The others of a batch have the same outcome.
        let shown = stores.iter().find(|own| own.value.is_some()).unwrap_or(&stores[0]);
        match self.decide(shown, stored.get(&shown.key)).await {
            Verdict::Applied => Ok(Tried::Applied),
            Verdict::NotApplied => Ok(Tried::OtherState),
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
    ) -> Result<scylla::response::query_result::QueryResult, scylla::errors::ExecutionError> {
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

    /// Finds out by serial reads whether a write took effect. After such a read it no longer can.
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

/// Decides whether a write took effect that stored the version `ours` (`None`: a removal) in place of `expected`, if
/// `found` is there now.
fn judge(ours: Option<Version>, expected: Option<&Head>, found: Option<&Head>) -> Verdict {
    let Some(found) = found else { return Verdict::Unknown };
    let has = |version: Version| found.version == version || found.earlier().any(|own| own == version.get());
    match (ours, expected) {
        (Some(ours), _) if has(ours) => Verdict::Applied,
        // All that has replaced the expected value since is known, and the write is not among it.
        (_, Some(expected)) if has(expected.version) => Verdict::NotApplied,
        _ => Verdict::Unknown,
    }
}

/// The versions that a value has replaced if it replaces `before`, the newest first.
fn replaced(before: Option<&Stored>) -> Vec<u64> {
    before.map_or_else(Vec::new, |stored| {
        std::iter::once(stored.head.version.get()).chain(stored.head.earlier()).take(row::EARLIER_MAX).collect()
    })
}

/// Waits until the clocks of the nodes are past the timestamps of the plain writes that `stores` replace. `began_us` is
/// from before these were read, so it is after every removal that was acknowledged before.
async fn wait_for_clocks(began_us: u64, stores: &[Stores], stored: &HashMap<Bytes, Stored>) -> Result<(), Error> {
    let mut until_us = (began_us / 1_000 + 1) * 1_000;
    for own in stores {
        if let Some(stored) = stored.get(&own.key)
            && stored.written_us == timestamp_us(stored.head.version)
        {
            let written_us = u64::try_from(stored.written_us).unwrap_or(0);
            until_us = until_us.max(written_us + micros(CLOCK_SKEW));
        }
    }
    let wait_us = until_us.saturating_sub(now_us());
    if wait_us > micros(CLOCK_ERROR) {
        let why = format!("the value was written {wait_us} microseconds in the future: a klad's clock is wrong");
        return Err(Error::ReadFailed { why });
    }
    if wait_us > 0 {
        tokio::time::sleep(Duration::from_micros(wait_us)).await;
    }
    Ok(())
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("at most some seconds")
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
        use Verdict::{Applied, NotApplied, Unknown};
        let expected = head(1, &[]);
        for (found, verdict) in [
            (Some(head(2, &[1])), Applied),
            (Some(head(4, &[3, 2, 1])), Applied),
            (Some(head(1, &[])), NotApplied),
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
        use Verdict::{Applied, NotApplied, Unknown};
        let expected = head(1, &[]);
        assert_eq!(judge(None, Some(&expected), None), Unknown);
        assert_eq!(judge(None, Some(&expected), Some(&head(1, &[]))), NotApplied);
        assert_eq!(judge(None, Some(&expected), Some(&head(3, &[1]))), NotApplied);
        assert_eq!(judge(Some(Version::new(2)), None, None), Unknown);
        assert_eq!(judge(Some(Version::new(2)), None, Some(&head(2, &[]))), Applied);
    }
}
