//! The commit section: conditions, batches, removals of ranges, and the log writes. Called by `rocksdb`.

use std::io::IoSlice;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rust_rocksdb::{ErrorKind, FlushOptions, ReadOptions, WriteBatch, WriteOptions};

use crate::disk::commit_section::{self, CommittedBatch};
use crate::disk::record::{self, Record};
use crate::limits::{
    CACHED_VALUE_BYTES_MAX, COMMIT_BYTES_MAX, KEY_BYTES_CEILING, MEMTABLE_BYTES_MAX, REMOVED_PER_ATTEMPT_MAX,
};
use crate::operation::{Durability, Error, Outcome, RangeRemoval, Value, Version};
use crate::perf::Figure;
use crate::plan::{self, Current, Plan, Store};
use crate::rocksdb::perf::{Work, measure};
use crate::rocksdb::preallocation::Preallocation;
use crate::rocksdb::value_cache::CacheUpdate;
use crate::rocksdb::{RocksDbEngine, change_log, read_failed};
use crate::{Pending, Result};
use klad_base::clock;

/// The state that only the thread in the commit section uses.
pub(super) struct CommitSection {
    /// The batch is kept between commits to reuse its buffer.
    batch: WriteBatch,
    preallocation: Option<Preallocation>,
    /// The bytes before the payload of one record.
    head: Vec<u8>,
    /// The hashes of the batch's keys in the value cache.
    hashes: Vec<u64>,
    write_sync: WriteOptions,
    write_async: WriteOptions,
    /// As `write_async`, but RocksDB returns an error instead of waiting.
    write_now: WriteOptions,
}

impl CommitSection {
    pub(super) fn new(preallocation: Option<Preallocation>) -> CommitSection {
        let mut write_sync = WriteOptions::default();
        write_sync.set_sync(true);
        let mut write_now = WriteOptions::default();
        write_now.set_no_slowdown(true);
        CommitSection {
            batch: WriteBatch::new(),
            preallocation,
            head: Vec::new(),
            hashes: Vec::new(),
            write_sync,
            write_async: WriteOptions::default(),
            write_now,
        }
    }
}

impl RocksDbEngine {
    pub(super) fn commit_all(&self, writes: &[Pending]) {
        commit_section::complete_all(writes, self.write(writes));
    }

    /// Writes one batch in the commit section.
    fn write(&self, writes: &[Pending]) -> std::result::Result<CommittedBatch, Error> {
        let (mut section, waited) = commit_section::enter(&self.section);
        self.gate.check_stopped()?;
        // Nothing has been written yet, so a failed reservation only rejects these writes.
        let count = plan::versions_of(writes);
        let first = self.versions.take(count).map_err(|error| Error::NoVersion { why: error.to_string() })?;
        let plan =
            Plan::new(writes, first, clock::unix_ms, |key, bytes_max| self.current(key, bytes_max, &self.read_all));
        if plan.storing() == 0 {
            return Ok(CommittedBatch { plan, now: clock::now(), sync_time: Duration::ZERO, perf: None });
        }
        let sync = plan.needs_sync();
        let CommitSection { batch, preallocation, head, hashes, write_sync, write_async, .. } = &mut *section;
        self.fill(batch, head, &plan, writes).map_err(|why| self.gate.undetermined(why))?;
        // RocksDB writes the log, syncs it and fills the memtable in one call. With a sync, the whole call counts as
        // the sync's time.
        let began = sync.then(clock::now);
        if sync && let Some(preallocation) = preallocation {
            preallocation.preallocate(batch.size_in_bytes() as u64);
        }
        let options = if sync { write_sync } else { write_async };
        let work = if sync { Work::SyncedBatch(writes.len()) } else { Work::Batch(writes.len()) };
        let (written, perf) =
            measure(work, || self.write_and_update_cache(&plan, writes, hashes, || self.db.write_opt(batch, options)));
        self.monitor.add_write_wait(perf.get(Figure::WriteDelayTime).unwrap_or(0));
        let perf = perf.with(Figure::CommitSectionWait, u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
        written.map_err(|error| self.gate.undetermined(error.into_string()))?;
        if let Some(preallocation) = preallocation {
            preallocation.advance(batch.size_in_bytes() as u64);
        }
        let now = clock::now();
        let sync_time = began.map(|began| now.saturating_duration_since(began));
        if let Some(time) = sync_time {
            self.commits.synced(time);
        }
        self.commits.committed(plan.storing(), sync);
        self.finish(batch, sync, first + count as u64 - 1)?;
        Ok(CommittedBatch { plan, now, sync_time: sync_time.unwrap_or_default(), perf: Some(perf) })
    }

    /// As `write`, for writes that ask for no sync. Returns `None` if the call would have to wait. Then nothing has
    /// been written.
    pub(super) fn try_write(&self, writes: &[Pending]) -> Option<std::result::Result<CommittedBatch, Error>> {
        let mut section = self.section.try_lock()?;
        if let Err(stopped) = self.gate.check_stopped() {
            return Some(Err(stopped));
        }
        let count = plan::versions_of(writes);
        let first = self.versions.try_take(count)?;
        let mut must_wait = false;
        let plan = Plan::new(writes, first, clock::unix_ms, |key, bytes_max| {
            let current = self.current(key, bytes_max, &self.read_cached);
            must_wait |= current.is_err();
            current
        });
        if must_wait {
            return None;
        }
        if plan.storing() == 0 {
            return Some(Ok(CommittedBatch { plan, now: clock::now(), sync_time: Duration::ZERO, perf: None }));
        }
        let CommitSection { batch, preallocation, head, hashes, write_now, .. } = &mut *section;
        if let Err(why) = self.fill(batch, head, &plan, writes) {
            return Some(Err(self.gate.undetermined(why)));
        }
        match self.write_and_update_cache(&plan, writes, hashes, || self.db.write_opt(batch, write_now)) {
            Ok(()) => {
                if let Some(preallocation) = preallocation {
                    preallocation.advance(batch.size_in_bytes() as u64);
                }
                self.commits.committed(plan.storing(), false);
                // The write did not wait, so measuring its work would cost more than the result is worth.
                let (now, sync_time) = (clock::now(), Duration::ZERO);
                let committed = CommittedBatch { plan, now, sync_time, perf: None };
                Some(self.finish(batch, false, first + count as u64 - 1).map(|()| committed))
            }
            // RocksDB delays or stops writes now. It returns this error before it writes anything.
            Err(error) if error.kind() == ErrorKind::Incomplete => None,
            Err(error) => Some(Err(self.gate.undetermined(error.into_string()))),
        }
    }

    /// Removes all keys of a range with one entry of the log.
    pub(super) fn remove_range(&self, removal: &RangeRemoval) -> Result {
        let mut section = self.section.lock();
        self.gate.check_stopped()?;
        let RangeRemoval { from, end, durability, .. } = removal;
        let sync = *durability == Durability::Sync;
        let first = self.versions.take(1).map_err(|error| Error::NoVersion { why: error.to_string() })?;
        let end = match end {
            Some(end) => end.to_vec(),
            None => self.end_of_all_keys()?,
        };
        if **from < *end {
            let CommitSection { batch, preallocation, write_sync, write_async, .. } = &mut *section;
            batch.clear();
            if self.changes.is_on() {
                batch.put_log_data(change_log::note(first, removal.end.is_none()));
            }
            batch.delete_range(&**from, &*end);
            let began = sync.then(clock::now);
            if sync && let Some(preallocation) = preallocation {
                preallocation.preallocate(batch.size_in_bytes() as u64);
            }
            let write = || self.db.write_opt(batch, if sync { write_sync } else { write_async });
            let written = match &self.value_cache {
                Some(cache) => cache.clear(write),
                None => write(),
            };
            written.map_err(|error| self.gate.undetermined(error.into_string()))?;
            if let Some(preallocation) = preallocation {
                preallocation.advance(batch.size_in_bytes() as u64);
            }
            if let Some(began) = began {
                self.commits.synced(clock::now().saturating_duration_since(began));
            }
            self.commits.committed(1, sync);
            self.finish(batch, sync, first)?;
        }
        Ok(Outcome::Written { version: Version::new(first), durability: *durability, results: Vec::new() })
    }

    /// A key behind all keys: the successor of the last key. If there are many removed entries at the end, the result
    /// is instead a key that is longer than any other, so that the commit section does not pass these entries.
    fn end_of_all_keys(&self) -> std::result::Result<Vec<u8>, Error> {
        let mut options = ReadOptions::default();
        options.set_max_skippable_internal_keys(REMOVED_PER_ATTEMPT_MAX);
        let mut iterator = self.db.raw_iterator_opt(options);
        iterator.seek_to_last();
        match iterator.status() {
            Ok(()) => Ok(iterator.key().map_or(Vec::new(), |last| [last, &[0]].concat())),
            Err(error) if error.kind() == ErrorKind::Incomplete => Ok(vec![0xFF; KEY_BYTES_CEILING + 1]),
            Err(error) => Err(read_failed(error)),
        }
    }

    /// Completes a commit after its log write, before any reply. `last` is the version of the commit's last change.
    fn finish(&self, batch: &mut WriteBatch, sync: bool, last: u64) -> std::result::Result<(), Error> {
        if batch.size_in_bytes() as u64 > MEMTABLE_BYTES_MAX {
            // Without a flush, RocksDB would keep several memtables of this size until there are enough for a flush.
            // RocksDB repeats a failed flush, and klad's observation shows the failure.
            let mut options = FlushOptions::default();
            options.set_wait(false);
            options.set_allow_write_stall(true);
            let _ = self.db.flush_opt(&options);
        }
        if batch.size_in_bytes() > COMMIT_BYTES_MAX {
            // The old batch would keep a buffer as large as the largest value ever written.
            *batch = WriteBatch::new();
        }
        if sync {
            // The sync covers the whole log up to this write. The mark is raised before any reply.
            self.high_water.advance(self.db.latest_sequence_number());
        } else {
            // This is set after the write: a sync that began before the write may not cover the write, so another sync
            // must follow.
            self.unsynced.store(true, Ordering::Release);
        }
        // A sync of earlier writes may have failed meanwhile. After such a failure klad acknowledges no write.
        self.gate.check_stopped().map_err(|error| self.gate.undetermined(error.to_string()))?;
        if self.changes.is_on() {
            self.changes.committed(self.db.latest_sequence_number(), last);
        }
        Ok(())
    }

    /// Calls `write`, which writes the batch, and updates the value cache. While `write` runs, the cache returns no
    /// value of the batch's keys.
    fn write_and_update_cache<E>(
        &self,
        plan: &Plan,
        writes: &[Pending],
        hashes: &mut Vec<u64>,
        write: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let Some(cache) = &self.value_cache else { return write() };
        cache.begin_commit(plan.stores(writes).map(|store| &**store.key), hashes);
        let written = write();
        let updates = plan.stores(writes).map(|Store { key, version, value }| {
            let update = match value {
                Some(value) if written.is_ok() && is_cacheable(value) => CacheUpdate::Replace(version, value),
                Some(_) | None => CacheUpdate::Remove,
            };
            (&**key, update)
        });
        cache.end_commit(hashes, updates);
        written
    }

    /// Fills the batch with what `plan` stores.
    fn fill(
        &self,
        batch: &mut WriteBatch,
        head: &mut Vec<u8>,
        plan: &Plan,
        writes: &[Pending],
    ) -> std::result::Result<(), String> {
        batch.clear();
        for Store { key, version, value } in plan.stores(writes) {
            if let Some(value) = value {
                record::write_head(version, value, head);
                batch
                    .put_vectored(&[IoSlice::new(key)], &[IoSlice::new(head), IoSlice::new(&value.payload)])
                    .map_err(rust_rocksdb::Error::into_string)?;
            } else {
                if self.changes.is_on() {
                    batch.put_log_data(change_log::note(version.get(), false));
                }
                batch.delete(key);
            }
        }
        Ok(())
    }

    /// Reads the stored value of a key for a plan, without its payload if the value has more than `bytes_max` bytes.
    fn current(
        &self,
        key: &[u8],
        bytes_max: usize,
        options: &ReadOptions,
    ) -> std::result::Result<Option<Current>, Error> {
        let stored = self.db.get_pinned_opt(key, options).map_err(read_failed)?;
        stored.map(|stored| Ok(Record::decode(&stored)?.current(bytes_max))).transpose()
    }
}

/// Whether the value cache may keep a value. Such a value is small and does not expire.
fn is_cacheable(value: &Value) -> bool {
    value.payload.len() <= CACHED_VALUE_BYTES_MAX && value.expires_at_ms().is_none()
}
