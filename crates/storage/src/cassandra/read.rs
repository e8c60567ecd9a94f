//! Reads of keys.

use std::collections::HashMap;

use bytes::Bytes;
use futures_util::StreamExt as _;
use scylla::response::query_result::QueryResult;

use crate::Reply;
use crate::cassandra::failure::Failure;
use crate::cassandra::level::Level;
use crate::cassandra::row::Head;
use crate::cassandra::{AT_ONCE, Cluster, NAME, bucket};
use crate::limits::CACHED_VALUE_BYTES_MAX;
use crate::operation::{ChangeError, ChangeResult, Error, Outcome, Value};
use crate::plan::Current;
use klad_base::clock;

/// The maximum size of all values that one atomic batch reads, bytes. Values whose payload is in the column `head` do
/// not count.
const READ_TOGETHER_BYTES_MAX: usize = 20 << 20;

/// The error text for an atomic batch that reads more than [`READ_TOGETHER_BYTES_MAX`].
const LARGE_READS: &str = "atomic batches that read more than 20 MiB: read fewer values, or leave out atomic";

/// The row of a key in the cluster.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) head: Head,
    /// The column `value`, if it was read.
    pub(super) beside: Option<Bytes>,
    /// The timestamp of the write in Cassandra, microseconds.
    pub(super) written_us: i64,
}

impl Stored {
    /// The value. The payload is missing if it is in the column `value` and that column was not read.
    fn value(&self) -> Result<Value, Error> {
        match &self.beside {
            Some(beside) => self.head.value_with(beside),
            None => Ok(self.head.value().unwrap_or_else(|| self.head.without_payload())),
        }
    }

    /// The value in the form that a plan needs.
    pub(super) fn current(&self) -> Result<Current, Error> {
        Ok(Current { version: self.head.version, value: self.value()?, bytes: self.head.bytes() })
    }
}

/// The columns that a read needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Columns {
    All,
    Head,
}

impl Cluster {
    /// Reads a key, expired or not.
    pub(super) async fn read(&self, key: &[u8], columns: Columns, level: Level) -> Result<Option<Stored>, Error> {
        let of = if columns == Columns::All { &self.statements.get } else { &self.statements.get_head };
        let place = (bucket::of(key, self.buckets), key);
        let result = self.session.execute_unpaged(of.at(level), place).await;
        let result = result.map_err(|error| self.counters.failed(&Failure::of(&error, level).into_read_error()))?;
        let found = match columns {
            Columns::All => first::<(Option<Bytes>, Option<Bytes>, Option<i64>)>(result)?,
            Columns::Head => first::<(Option<Bytes>, Option<i64>)>(result)?.map(|(head, time)| (head, None, time)),
        };
        // A row without a head has partly expired, and counts as absent.
        let Some((Some(head), beside, time)) = found else { return Ok(None) };
        Ok(Some(Stored { head: Head::decode(head)?, beside, written_us: time.unwrap_or(0) }))
    }

    /// Reads a key for a client.
    pub(super) async fn get(&self, key: &[u8], level: Level, reply: &dyn Reply) -> crate::Result {
        let Some(stored) = self.read(key, Columns::All, level).await? else { return Ok(Outcome::NotFound) };
        if stored.head.expired(clock::unix_ms()) {
            return Ok(Outcome::NotFound);
        }
        let bytes = stored.head.payload_bytes();
        if bytes > CACHED_VALUE_BYTES_MAX && !reply.admits(bytes) {
            return Err(Error::NoRoom { bytes: bytes as u64 });
        }
        Ok(Outcome::Found { version: stored.head.version, value: stored.value()? })
    }

    /// Reads many keys. For a value that does not fit into `bytes_left`, the answer has only [`ChangeError::NoRoom`].
    /// Large values are read one after the other, because their length must be known first.
    pub(super) async fn get_many(&self, keys: Vec<Bytes>, mut bytes_left: usize, level: Level) -> crate::Result {
        let mut results = Vec::with_capacity(keys.len());
        let read = async |key: Bytes| {
            let stored = self.read(&key, Columns::Head, level).await;
            stored.map(|stored| (key, stored))
        };
        let mut reads = futures_util::stream::iter(keys.into_iter().map(read)).buffered(AT_ONCE);
        while let Some(read) = reads.next().await {
            let (key, mut stored) = read?;
            let is_beside = |stored: &Stored| stored.head.value().is_none() && stored.head.bytes() <= bytes_left;
            if stored.as_ref().is_some_and(is_beside) {
                stored = self.read(&key, Columns::All, level).await?;
            }
            let stored = stored.filter(|stored| !stored.head.expired(clock::unix_ms()));
            let bytes = stored.as_ref().map_or(0, |stored| stored.head.bytes());
            results.push(match bytes_left.checked_sub(bytes) {
                None => ChangeResult::Failed(ChangeError::NoRoom),
                Some(left) => {
                    bytes_left = left;
                    let found = stored.map(|stored| stored.value().map(|value| (stored.head.version, value)));
                    ChangeResult::Read(found.transpose()?)
                }
            });
        }
        Ok(Outcome::FoundMany(results))
    }

    /// Reads several keys with the columns that each needs.
    pub(super) async fn read_all(
        &self,
        keys: HashMap<Bytes, Columns>,
        level: Level,
    ) -> Result<HashMap<Bytes, Stored>, Error> {
        let read = async |(key, columns): (Bytes, Columns)| {
            let stored = self.read(&key, columns, level).await?;
            Ok::<_, Error>(stored.map(|stored| (key, stored)))
        };
        // If there are several keys, klad reads the heads first, which say how large the values are.
        let several = keys.len() > 1;
        let column = |columns: Columns| if several { Columns::Head } else { columns };
        let first: Vec<_> = keys.iter().map(|(key, columns)| (key.clone(), column(*columns))).collect();
        let mut reads = futures_util::stream::iter(first.into_iter().map(read)).buffer_unordered(AT_ONCE);
        let mut all = HashMap::new();
        while let Some(found) = reads.next().await {
            all.extend(found?);
        }
        if !several {
            return Ok(all);
        }
        let is_needed = |(key, stored): &(&Bytes, &Stored)| keys[*key] == Columns::All && stored.head.value().is_none();
        let needed: Vec<(Bytes, usize)> =
            all.iter().filter(is_needed).map(|(key, stored)| (key.clone(), stored.head.bytes())).collect();
        if needed.iter().map(|(_, bytes)| bytes).sum::<usize>() > READ_TOGETHER_BYTES_MAX {
            return Err(Error::NotSupported { engine: NAME, what: LARGE_READS });
        }
        for (key, _) in needed {
            match self.read(&key, Columns::All, level).await? {
                Some(stored) => all.insert(key, stored),
                None => all.remove(&key),
            };
        }
        Ok(all)
    }
}

/// The first row of a result.
fn first<R>(result: QueryResult) -> Result<Option<R>, Error>
where
    R: for<'f, 'm> scylla::deserialize::row::DeserializeRow<'f, 'm>,
{
    let rows = result.into_rows_result().map_err(unreadable)?;
    rows.maybe_first_row::<R>().map_err(unreadable)
}

/// The error for an answer that klad cannot decode.
pub(super) fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::Unreadable { why: error.to_string() }
}
