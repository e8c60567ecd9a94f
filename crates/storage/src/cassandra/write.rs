//! Writes: single changes, batches, and removals of ranges.
//!
//! ```text
//!   write ─▶ units: the changes of one key, of an atomic batch, or plain ones of a bucket
//!              unit ─▶ read the keys whose state matters ─▶ plan ─▶ store
//!                                                                    ├▶ plain: with a timestamp of this klad
//!                                                                    └▶ conditional (see `conditional`)
//! ```
//!
//! A unit that needs the state only to answer whether a value existed is stored as a plain write, unless its level is
//! `serial`. A plain write may be sent twice without harm, because both requests have the same timestamp and so are the
//! same write.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use scylla::statement::batch::{Batch, BatchType};
use scylla::value::CqlValue;

use crate::cassandra::failure::Failure;
use crate::cassandra::level::Level;
use crate::cassandra::read::{Columns, Stored};
use crate::cassandra::versions::{CLOCK_SKEW, micros, now_us, timestamp_us};
use crate::cassandra::{AT_ONCE, Cluster, NAME, bucket, row};
use crate::operation::{
    Change, ChangeError, ChangeResult, Condition, Durability, Effect, Error, Outcome, RangeRemoval, Value, Version,
    Write,
};
use crate::plan::{Current, Plan};
use crate::{Pending, Reply};
use klad_base::clock;

/// The error text for an atomic batch whose keys are in several buckets.
const SEVERAL_BUCKETS: &str = "atomic batches over several directories: use keys that share everything up to their last \
                               /, or leave out atomic";

/// The largest payload, bytes. Cassandra takes requests below 16 MiB.
const PAYLOAD_BYTES_MAX: usize = 15 << 20;

/// The error text for a payload above [`PAYLOAD_BYTES_MAX`].
const LARGE_VALUES: &str = "values above 15 MiB, which Cassandra does not take in one request";

/// How long Cassandra keeps a row after its expiry, seconds. The clocks of Cassandra's nodes may be ahead by this time.
const TTL_MARGIN_S: u64 = 10;

/// Cassandra's longest time to live: 20 years, seconds. Cassandra does not remove rows that live longer; klad hides
/// them when they expire.
const TTL_S_MAX: u64 = 20 * 365 * 24 * 60 * 60;

/// The last expiry that every Cassandra can store: early on 18 January 2038, seconds since 1970.
const EXPIRY_S_MAX: u64 = 2_147_400_000;

/// The maximum size of the plain changes that klad joins into one request, bytes. Cassandra logs a warning above 5 KiB
/// (`batch_size_warn_threshold`), and rejects requests above 50 KiB.
const TOGETHER_BYTES_MAX: usize = 4 << 10;

/// The bytes that a row takes in a request in addition to its key and value.
const ROW_BYTES: usize = 64;

/// Changes that are executed together, with the index of each change in its batch.
type Unit = (Vec<usize>, Vec<Change>);

/// What one write stores for a key.
pub(super) struct Stores {
    pub(super) key: Bytes,
    pub(super) version: Version,
    /// `None` removes the key.
    pub(super) value: Option<Value>,
}

impl Cluster {
    /// Executes a write.
    pub(super) async fn write(&self, mut write: Write, reply: &Arc<dyn Reply>) -> crate::Result {
        let too_large =
            |change: &Change| matches!(&change.effect, Effect::Put(value) if value.payload.len() > PAYLOAD_BYTES_MAX);
        if write.changes.iter().any(too_large) {
            return Err(Error::NotSupported { engine: NAME, what: LARGE_VALUES });
        }
        if write.changes.len() == 1 {
            return self.unit(write, reply).await;
        }
        if write.atomic {
            let mut buckets = write.changes.iter().map(|change| bucket::of(&change.key, self.buckets));
            let first = buckets.next();
            if buckets.any(|other| Some(other) != first) {
                return Err(Error::NotSupported { engine: NAME, what: SEVERAL_BUCKETS });
            }
            return self.unit(write, reply).await;
        }
        let changes = std::mem::take(&mut write.changes);
        self.each_key(write, changes, reply).await
    }

    /// Executes the changes of each key in their order, and several keys at the same time. `write` is the write without
    /// its changes.
    async fn each_key(&self, write: Write, changes: Vec<Change>, reply: &Arc<dyn Reply>) -> crate::Result {
        let count = changes.len();
        let level = self.levels.of_write(write.consistency);
        let mut places: HashMap<Bytes, usize> = HashMap::new();
        let mut units: Vec<Unit> = Vec::new();
        for (index, change) in changes.into_iter().enumerate() {
            let place = *places.entry(change.key.clone()).or_insert(units.len());
            if place == units.len() {
                units.push((Vec::new(), Vec::new()));
            }
            units[place].0.push(index);
            units[place].1.push(change);
        }
        let units = if self.levels.is_serial(write.consistency) { units } else { self.together(units) };
        let failed = AtomicBool::new(false);
        let run = |(indexes, changes): Unit| {
            let (unit, failed) = (Write { changes, ..write.clone() }, &failed);
            async move {
                // The batch ends with an error, so klad does not start this unit.
                if failed.load(Ordering::Relaxed) {
                    return (indexes, None);
                }
                let outcome = self.unit(unit, reply).await;
                failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
                (indexes, Some(outcome))
            }
        };
        let mut running = futures_util::stream::iter(units.into_iter().map(run)).buffered(AT_ONCE);
        let mut results: Vec<Option<ChangeResult>> = vec![None; count];
        let (mut done, mut failure, mut read_bytes) = (false, None::<(usize, Error)>, write.read_bytes_max);
        while let Some((indexes, outcome)) = running.next().await {
            match outcome {
                Some(Ok(outcome)) => {
                    let own = results_of(outcome, indexes.len());
                    done |= own.iter().any(|result| matches!(result, ChangeResult::Done { .. }));
                    for (index, result) in indexes.into_iter().zip(own) {
                        results[index] = Some(limited(result, &mut read_bytes));
                    }
                }
                Some(Err(error)) if failure.as_ref().is_none_or(|(_, worst)| unknown(&error) > unknown(worst)) => {
                    failure = Some((indexes[0], error));
                }
                None | Some(Err(_)) => {}
            }
        }
        if let Some((item, error)) = failure {
            // After any error but `Undetermined` and `NotEnoughReplicas`, clients expect that a write had no effect.
            return Err(if done {
                Error::Undetermined { why: format!("item {item} failed, others took effect: {error}") }
            } else {
                error
            });
        }
        let results: Vec<ChangeResult> = results.into_iter().map(|result| result.expect("each has a unit")).collect();
        let version = results.iter().find_map(|result| match result {
            ChangeResult::Done { version, .. } => Some(*version),
            _ => None,
        });
        let version = version.unwrap_or_else(|| self.versions.reserve(1));
        Ok(Outcome::Written { version, durability: Durability::Replicated(level.acks), results })
    }

    /// Joins the units of a bucket that do not depend on stored state, because one request for several rows of a
    /// partition costs Cassandra much less than one request for each row.
    fn together(&self, units: Vec<Unit>) -> Vec<Unit> {
        let mut joined: Vec<Unit> = Vec::new();
        // For each bucket: the index of the unit that can take more changes, and the bytes of this unit.
        let mut open: HashMap<i32, (usize, usize)> = HashMap::new();
        for (indexes, changes) in units {
            let bytes: usize = changes.iter().map(|change| change.bytes() + ROW_BYTES).sum();
            if bytes > TOGETHER_BYTES_MAX || changes.iter().any(Change::depends_on_state) {
                joined.push((indexes, changes));
                continue;
            }
            let place = open.entry(bucket::of(&changes[0].key, self.buckets)).or_insert((joined.len(), 0));
            if place.0 == joined.len() || place.1 + bytes > TOGETHER_BYTES_MAX {
                *place = (joined.len(), bytes);
                joined.push((indexes, changes));
            } else {
                place.1 += bytes;
                joined[place.0].0.extend(indexes);
                joined[place.0].1.extend(changes);
            }
        }
        joined
    }

    /// Executes the changes of one key, or of several keys of one bucket at once.
    async fn unit(&self, write: Write, reply: &Arc<dyn Reply>) -> crate::Result {
        let pending = [Pending { write, reply: reply.clone() }];
        let write = &pending[0].write;
        // At the level `serial` every write is conditional on the state that it has read, so that all writes have one
        // order.
        if self.levels.is_serial(write.consistency) || write.changes.iter().any(is_conditional) {
            return self.conditional(&pending).await;
        }
        let stored = match keys_to_read(write) {
            keys if keys.is_empty() => HashMap::new(),
            keys => self.read_all(keys, self.levels.of_read(write.consistency)).await?,
        };
        // The timestamps must be above those of the values that are replaced, whatever the clocks say.
        let after_us = stored.values().map(|stored| stored.written_us).max().unwrap_or(0);
        let first = self.versions.reserve_after(write.changes.len(), after_us)?;
        let (outcome, stores) = plan(&pending, first, &stored)?;
        let level = self.levels.of_write(write.consistency);
        let last_us = stores.iter().map(|own| timestamp_us(own.version)).max().unwrap_or(0);
        self.store(stores, level).await?;
        // Without this wait, the write could hide the next write of another klad, because the timestamp of this write
        // may be in the future.
        wait_until(u64::try_from(last_us).unwrap_or(0)).await;
        Ok(replicated(outcome, level))
    }

    /// Stores the changes of a plain write.
    async fn store(&self, stores: Vec<Stores>, level: Level) -> Result<(), Error> {
        let failed = |error| {
            let error = Failure::of(&error, level).into_write_error();
            self.counters.failed(&error)
        };
        let now_ms = clock::unix_ms();
        let own = match &stores[..] {
            [] => return Ok(()),
            [own] => own,
            _ => {
                let batch = self.plain_batch(stores, level, now_ms);
                return self.session.batch(&batch.0, batch.1).await.map(|_| ()).map_err(failed);
            }
        };
        let (time, bucket) = (timestamp_us(own.version), bucket::of(&own.key, self.buckets));
        let stored = if let Some(value) = &own.value {
            let (head, beside) = row::encode(own.version, value, &[]);
            let values = (time, ttl_s(value, now_ms), head, beside, bucket, &own.key[..]);
            self.session.execute_unpaged(self.statements.put.at(level), values).await
        } else {
            let values = (time, bucket, &own.key[..]);
            self.session.execute_unpaged(self.statements.delete.at(level), values).await
        };
        stored.map(|_| ()).map_err(failed)
    }

    /// Makes one statement of several changes of a bucket. Cassandra applies all of them at once.
    fn plain_batch(&self, stores: Vec<Stores>, level: Level, now_ms: u64) -> (Batch, Vec<Vec<Option<CqlValue>>>) {
        let mut batch = Batch::new(BatchType::Unlogged);
        batch.set_is_idempotent(true);
        batch.set_consistency(level.cql);
        batch.set_execution_profile_handle(Some(self.profiles.twice.clone()));
        let mut values = Vec::with_capacity(stores.len());
        for Stores { key, version, value } in stores {
            let time = Some(CqlValue::BigInt(timestamp_us(version)));
            let mut own = vec![time];
            let statement = if let Some(value) = &value {
                let (head, beside) = row::encode(version, value, &[]);
                own.extend([Some(CqlValue::Int(ttl_s(value, now_ms))), Some(blob(&head)), Some(blob(&beside))]);
                &self.statements.put
            } else {
                &self.statements.delete
            };
            own.extend([Some(CqlValue::Int(bucket::of(&key, self.buckets))), Some(blob(&key))]);
            batch.append_statement(statement.at(level).clone());
            values.push(own);
        }
        (batch, values)
    }

    /// Removes all keys of a range. The buckets have separate requests, so the removal is not atomic. The timestamp of
    /// the removal is ahead by [`CLOCK_SKEW`], so that it also removes what klads with clocks ahead have written. The
    /// call ends after twice that time, so that the removal hides no later write of a klad whose clock is behind.
    pub(super) async fn remove_range(&self, removal: RangeRemoval) -> crate::Result {
        let level = self.levels.of_write(removal.consistency);
        let version = self.versions.reserve(1);
        let time_us = now_us() + micros(CLOCK_SKEW);
        let written = Outcome::Written { version, durability: Durability::Replicated(level.acks), results: Vec::new() };
        let RangeRemoval { from, end, .. } = removal;
        if end.as_ref().is_some_and(|end| *end <= from) {
            return Ok(written);
        }
        let (time, from, end) = (i64::try_from(time_us).expect("63 bits"), &from[..], end.as_deref());
        let buckets = 0..i32::try_from(self.buckets).expect("at most BUCKETS_MAX");
        let remove = |bucket| async move {
            if let Some(end) = end {
                let statement = self.statements.delete_between.at(level);
                self.session.execute_unpaged(statement, (time, bucket, from, end)).await
            } else {
                let statement = self.statements.delete_from.at(level);
                self.session.execute_unpaged(statement, (time, bucket, from)).await
            }
        };
        let mut removals = futures_util::stream::iter(buckets.map(remove)).buffer_unordered(AT_ONCE);
        let (mut done, mut failure) = (false, None);
        while let Some(result) = removals.next().await {
            match result {
                Ok(_) => done = true,
                Err(error) => {
                    let error = Failure::of(&error, level).into_write_error();
                    if failure.as_ref().is_none_or(|worst| unknown(worst) < unknown(&error)) {
                        failure = Some(error);
                    }
                }
            }
        }
        wait_until(time_us + micros(CLOCK_SKEW)).await;
        match failure {
            None => Ok(written),
            Some(error) if !done => Err(self.counters.failed(&error)),
            Some(error) => {
                let why = format!("the range was removed in some buckets only: {error}");
                Err(self.counters.failed(&Error::Undetermined { why }))
            }
        }
    }
}

/// Waits until the clock shows `time_us`, microseconds since 1970.
async fn wait_until(time_us: u64) {
    let left_us = time_us.saturating_sub(now_us());
    if left_us > 0 {
        tokio::time::sleep(Duration::from_micros(left_us)).await;
    }
}

/// Ranks an error by how much is unknown after it. Of several errors, the answer has the one with the highest rank.
fn unknown(error: &Error) -> u8 {
    match error {
        Error::Undetermined { .. } => 2,
        Error::NotEnoughReplicas { .. } => 1,
        _ => 0,
    }
}

/// Whether a change may be stored only if its key still has the state that klad has read. A removal with the condition
/// that a value is present does not need this, because the removal also removes what others have stored meanwhile.
pub(super) fn is_conditional(change: &Change) -> bool {
    match (&change.effect, change.condition) {
        (Effect::Add { .. } | Effect::Expire(_), _) => true,
        (Effect::Read, _) | (_, None | Some(Condition::Never)) | (Effect::Delete, Some(Condition::Present)) => false,
        (Effect::Put(_) | Effect::Delete, Some(_)) => true,
    }
}

/// The keys whose state a write depends on.
fn keys_to_read(write: &Write) -> HashMap<Bytes, Columns> {
    let mut keys = HashMap::new();
    for change in write.changes.iter().filter(|change| change.depends_on_state()) {
        let needed = columns(change);
        let columns = keys.entry(change.key.clone()).or_insert(needed);
        if needed == Columns::All {
            *columns = Columns::All;
        }
    }
    keys
}

/// The columns that a change needs. Conditions and the question whether a value existed need no payload.
pub(super) fn columns(change: &Change) -> Columns {
    match change.effect {
        Effect::Put(_) | Effect::Delete => Columns::Head,
        Effect::Add { .. } | Effect::Expire(_) | Effect::Read => Columns::All,
    }
}

/// Decides what a write stores, and its outcome if storing succeeds. Of several changes of a key, only the last is
/// stored.
pub(super) fn plan(
    pending: &[Pending; 1],
    first: Version,
    stored: &HashMap<Bytes, Stored>,
) -> Result<(Outcome, Vec<Stores>), Error> {
    let mut current: HashMap<&[u8], Current> = HashMap::new();
    for (key, stored) in stored {
        current.insert(key, stored.current()?);
    }
    let plan = Plan::new(pending, first.get(), clock::unix_ms, |key, _| Ok(current.get(key).cloned()));
    let mut stores: Vec<Stores> = Vec::new();
    let mut places: HashMap<&Bytes, usize> = HashMap::new();
    for store in plan.stores(pending) {
        let own = Stores { key: store.key.clone(), version: store.version, value: store.value.cloned() };
        if let Some(place) = places.get(store.key) {
            stores[*place] = own;
        } else {
            places.insert(store.key, stores.len());
            stores.push(own);
        }
    }
    let outcome = plan.outcomes(pending).next().expect("one for each write")?;
    Ok((outcome, stores))
}

/// The outcome with the number of copies that have acknowledged it.
pub(super) fn replicated(outcome: Outcome, level: Level) -> Outcome {
    match outcome {
        Outcome::Written { version, results, .. } => {
            Outcome::Written { version, durability: Durability::Replicated(level.acks), results }
        }
        other => other,
    }
}

/// The results of a unit of a batch that is not atomic.
fn results_of(outcome: Outcome, count: usize) -> Vec<ChangeResult> {
    match outcome {
        Outcome::Written { version, results, .. } if results.is_empty() => (version.get()..)
            .take(count)
            .map(|version| ChangeResult::Done { version: Version::new(version), existed: None, number: None })
            .collect(),
        Outcome::Written { results, .. } => results,
        other => unreachable!("a write that is not atomic is written, not {other:?}"),
    }
}

/// Returns `result`, or a failure if `result` is a read whose value does not fit into `bytes_left`.
fn limited(result: ChangeResult, bytes_left: &mut usize) -> ChangeResult {
    let ChangeResult::Read(Some((_, value))) = &result else { return result };
    match bytes_left.checked_sub(value.bytes()) {
        Some(left) => {
            *bytes_left = left;
            result
        }
        None => ChangeResult::Failed(ChangeError::NoRoom),
    }
}

/// The number of seconds after which Cassandra itself removes a value; 0 means never.
pub(super) fn ttl_s(value: &Value, now_ms: u64) -> i32 {
    let Some(expiry) = value.expires_at_ms() else { return 0 };
    let ttl_s = expiry.get().saturating_sub(now_ms).div_ceil(1_000) + TTL_MARGIN_S;
    if ttl_s > TTL_S_MAX || now_ms / 1_000 + ttl_s > EXPIRY_S_MAX {
        return 0;
    }
    i32::try_from(ttl_s).expect("at most 20 years")
}

/// Converts bytes to a value of a CQL batch.
pub(super) fn blob(bytes: &[u8]) -> CqlValue {
    CqlValue::Blob(bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::operation::Attributes;

    #[test]
    fn cassandra_keeps_a_row_until_klad_hides_it() {
        const YEAR_MS: u64 = 365 * 24 * 60 * 60 * 1_000;
        let now_ms = 1_764_000_000_000;
        let ttl = |expires_at_ms| {
            let own = Attributes { expires_at_ms: NonZeroU64::new(expires_at_ms), ..Attributes::default() };
            ttl_s(&Value { attributes: Some(Box::new(own)), ..Value::default() }, now_ms)
        };
        assert_eq!(ttl_s(&Value::default(), now_ms), 0);
        assert_eq!([now_ms - 1, now_ms + 1, now_ms + 1_000, now_ms + 1_001].map(ttl), [10, 11, 11, 12]);
        assert_eq!([now_ms + 13 * YEAR_MS, now_ms + 25 * YEAR_MS].map(ttl), [0, 0]);
    }
}
