//! The engine on fjall, an LSM tree in Rust. Only the files in this directory use fjall's crate.
//!
//! Writes go through the commit section, as with RocksDB: one thread at a time, one batch, one journal write, and one
//! sync if any write of the batch asks for it. fjall inserts the batch into the memtable only after the journal write
//! and the sync, so no read sees a write whose sync has not succeeded. All reads use a snapshot, so the writes of a
//! batch become visible together. After a failed journal write or sync the engine takes no writes until the next start.
//!
//! ```text
//!   stored key: 1 │ the client's key          value: a record (record.rs)
//!               0                             the version of the last write, in every batch
//! ```
//!
//! The entry under the key 0 tells a start which write is the last recovered one. The entry also keeps fjall's sequence
//! numbers growing if all other entries of the last batch are removals. Made by `main`, called by `execution`.

mod journal;
mod observation;
mod open;
mod options;

use std::collections::HashSet;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fjall::{Database, Keyspace, PersistMode, Readable as _, Slice};

use crate::commits::Commits;
use crate::disk::commit_section::{self, CommittedBatch};
use crate::disk::directory::DataDirectory;
use crate::disk::gate::{WriteGate, WriteProgress};
use crate::disk::high_water::HighWater;
use crate::disk::point_read::{PointRead, ReadMany};
use crate::disk::record::{self, Record};
use crate::disk::versions::Versions;
use crate::fjall::observation::Monitor;
pub use crate::fjall::open::OpenError;
use crate::fjall::open::{Opened, message};
use crate::fjall::options::{LEVEL_0_TABLES_MAX, MEMTABLES, MEMTABLES_SEALED_MAX};
use crate::limits::{OFFLINE_CACHE_BYTES, REMOVED_PER_ATTEMPT_MAX};
use crate::operation::{
    Change, Durability, Effect, Error, Operation, Outcome, Page, RangeRemoval, ScanStep, Snapshot, Version, View, Write,
};
use crate::perf::Figure;
use crate::plan::{self, Plan, Store};
use crate::{
    Capabilities, ChangeKind, Check, Compression, Engine, LocalDisk, Observation, PageBuilder, Pending, Perf, Reply,
    Result,
};
use klad_base::clock;
use klad_base::limits::ENGINE_FILES_MAX;
use klad_base::sync::{Mutex, Signal};

/// fjall's directory in the data directory.
pub(super) const FILES: &str = "fjall";

/// The prefix of every client's key.
const CLIENT_KEY_PREFIX: u8 = 1;

/// The end of the range of all clients' keys, exclusive.
const CLIENT_KEYS_END: &[u8] = &[CLIENT_KEY_PREFIX + 1];

/// The key of the entry with the version of the last write.
pub(super) const MARK_KEY: &[u8] = &[0];

/// The bytes that fjall counts in the memtable for each entry in addition to its key and value (lsm-tree 3.1.10,
/// `src/memtable/mod.rs`: two slices of 24 bytes, sequence number and kind).
const ENTRY_OVERHEAD_BYTES: u64 = 64;

/// The interval at which a waiting writer checks whether fjall's threads have caught up.
const CATCH_UP_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The time after which klad rejects other writes with 503 while a writer waits. This time is long compared with the
/// flush of a memtable of at most 8 MiB.
const CATCH_UP_WAIT_MAX: Duration = Duration::from_secs(2);

/// The maximum number of keys that one removal of a range may remove. It is limited because memory holds the whole
/// batch.
const RANGE_REMOVAL_KEYS_MAX: usize = 100_000;

/// The number of keys that a removal of a range reads at a time.
const RANGE_REMOVAL_STEP_KEYS_MAX: usize = 1_000;

/// The configuration of this engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// The size of the block cache and the memtables together in bytes.
    pub cache_bytes: u64,
    /// The share of `cache_bytes` for memtables.
    pub memtable_bytes: u64,
    /// The number of threads for flushes and compactions.
    pub background_threads: usize,
    /// The free disk space in bytes below which writes are rejected.
    pub disk_reserve_bytes: u64,
    /// The compression of tables. This option takes effect only in a new directory. The configuration excludes ZSTD.
    pub compression: Compression,
    /// The maximum number of open files, 32 to [`ENGINE_FILES_MAX`].
    pub open_files_max: u64,
}

impl Default for Options {
    /// The options for commands and tests: a small cache, one thread, LZ4, and no disk reserve, so fjall may fill the
    /// disk.
    fn default() -> Options {
        Options {
            cache_bytes: OFFLINE_CACHE_BYTES,
            memtable_bytes: OFFLINE_CACHE_BYTES / 4,
            background_threads: 1,
            disk_reserve_bytes: 0,
            compression: Compression::Lz4,
            open_files_max: ENGINE_FILES_MAX,
        }
    }
}

/// The engine.
pub struct FjallEngine {
    db: Database,
    keyspace: Keyspace,
    section: Mutex<CommitSection>,
    versions: Versions,
    gate: WriteGate,
    /// The version of the last write that is in the journal.
    written: AtomicU64,
    /// Whether some acknowledged writes may not be synced yet.
    unsynced: AtomicBool,
    /// The time since which the commit section has waited for fjall's threads.
    waits_since: Mutex<Option<Instant>>,
    high_water: HighWater,
    commits: Commits,
    /// The size at which a memtable is sealed.
    memtable_bytes_max: u64,
    cache_bytes: u64,
    monitor: Monitor,
}

/// The state that only the thread in the commit section uses.
struct CommitSection {
    /// The bytes written since the last memtable was sealed.
    memtable_bytes: u64,
    /// A signal that is never raised, for waits with a timeout.
    never: Signal,
}

impl FjallEngine {
    /// Opens or creates the store in `path`.
    ///
    /// # Errors
    /// [`OpenError`]. The message contains advice if there is any.
    pub fn open(path: &Path, options: &Options) -> std::result::Result<FjallEngine, OpenError> {
        let directory = DataDirectory::open(path, "fjall")?;
        let Opened { db, keyspace, high_water, last_version } = open::open(&directory, options)?;
        let engine = FjallEngine {
            section: Mutex::new(CommitSection { memtable_bytes: db.write_buffer_size(), never: Signal::default() }),
            db,
            keyspace,
            versions: Versions::new(directory),
            gate: WriteGate::new(options.disk_reserve_bytes),
            written: AtomicU64::new(last_version),
            // The previous process may have been killed before it synced its last writes.
            unsynced: AtomicBool::new(last_version > high_water.synced()),
            waits_since: Mutex::new(None),
            high_water,
            commits: Commits::default(),
            memtable_bytes_max: options.memtable_bytes / MEMTABLES,
            cache_bytes: options.cache_bytes,
            monitor: Monitor::default(),
        };
        engine.housekeeping();
        Ok(engine)
    }

    /// Whether fjall's threads must catch up before the next write.
    fn is_behind(&self) -> bool {
        self.keyspace.sealed_memtable_count() >= MEMTABLES_SEALED_MAX
            || self.keyspace.l0_table_count() >= LEVEL_0_TABLES_MAX
    }

    /// Waits until fjall's threads have caught up. Without this wait, fjall itself would wait, and would wait for ever
    /// if its threads fail.
    fn wait_until_caught_up(&self, section: &CommitSection) -> std::result::Result<(), Error> {
        if !self.is_behind() {
            return Ok(());
        }
        *self.waits_since.lock() = Some(clock::now());
        let caught_up = loop {
            self.check_background_threads();
            if let Err(stopped) = self.gate.check_stopped() {
                break Err(stopped);
            }
            section.never.wait_timeout(CATCH_UP_POLL_INTERVAL);
            if !self.is_behind() {
                break Ok(());
            }
        };
        *self.waits_since.lock() = None;
        self.gate.set_stalled(false);
        caught_up
    }

    /// Whether the commit section has waited for so long that other writes must be rejected. A short wait only slows
    /// writes to the speed of the disk.
    fn is_stalled(&self) -> bool {
        let since = *self.waits_since.lock();
        since.is_some_and(|since| clock::now().saturating_duration_since(since) > CATCH_UP_WAIT_MAX)
    }

    /// Closes the gate if one of fjall's threads has failed. Such a thread ends, and fjall takes no more writes, but
    /// fjall reports the failure only as the error of a later call.
    fn check_background_threads(&self) {
        if let Err(error) = self.db.persist(PersistMode::Buffer) {
            self.gate.stop(&message(&error));
        }
    }

    /// Writes one batch in the commit section.
    fn write(&self, writes: &[Pending]) -> std::result::Result<CommittedBatch, Error> {
        let (mut section, waited) = commit_section::enter(&self.section);
        self.write_in(&mut section, writes, waited)
    }

    /// Writes one batch. The caller is in the commit section. `waited` is the time that the caller has waited for the
    /// section.
    fn write_in(
        &self,
        section: &mut CommitSection,
        writes: &[Pending],
        waited: Duration,
    ) -> std::result::Result<CommittedBatch, Error> {
        self.gate.check_stopped()?;
        self.wait_until_caught_up(section)?;
        // Nothing has been written yet, so a failed reservation only rejects these writes.
        let count = plan::versions_of(writes);
        let first = self.versions.take(count).map_err(|error| Error::NoVersion { why: error.to_string() })?;
        let last = first + count as u64 - 1;
        let plan = Plan::new(writes, first, clock::unix_ms, |key, bytes_max| {
            let stored = self.keyspace.get(concat(&[CLIENT_KEY_PREFIX], key)).map_err(|error| read_failed(&error))?;
            stored.map(|stored| Ok(Record::decode(&stored)?.current(bytes_max))).transpose()
        });
        if plan.storing() == 0 {
            return Ok(CommittedBatch { plan, now: clock::now(), sync_time: Duration::ZERO, perf: None });
        }
        let sync = plan.needs_sync();
        let (batch, bytes) = self.batch(plan.stores(writes), last);
        let mode = if sync { PersistMode::SyncData } else { PersistMode::Buffer };
        // fjall writes the journal, syncs it and fills the memtable in one call. With a sync, the whole call counts as
        // the sync's time.
        let began = sync.then(clock::now);
        match batch.durability(Some(mode)).commit() {
            Ok(()) => {}
            // fjall returns this error before it writes anything.
            Err(error @ fjall::Error::Poisoned) => {
                let why = message(&error);
                self.gate.stop(&why);
                return Err(Error::WritesStopped { why });
            }
            Err(error) => return Err(self.gate.undetermined(message(&error))),
        }
        let now = clock::now();
        let sync_time = began.map(|began| now.saturating_duration_since(began));
        if let Some(time) = sync_time {
            self.commits.synced(time);
        }
        self.commits.committed(plan.storing(), sync);
        self.written.store(last, Ordering::Release);
        if sync {
            // The sync covers the whole journal up to this write. The mark is raised before any reply.
            self.high_water.advance(last);
        } else {
            // This is set after the write: a sync that began before the write may not cover the write, so another sync
            // must follow.
            self.unsynced.store(true, Ordering::Release);
        }
        self.seal_if_full(section, bytes);
        // A sync of earlier writes may have failed meanwhile. After such a failure klad acknowledges no write.
        self.gate.check_stopped().map_err(|error| self.gate.undetermined(error.to_string()))?;
        let shared_by = u32::try_from(writes.len()).unwrap_or(u32::MAX);
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let perf = Some(Perf::new(shared_by).with(Figure::CommitSectionWait, waited));
        Ok(CommittedBatch { plan, now, sync_time: sync_time.unwrap_or_default(), perf })
    }

    /// Builds the batch, and computes its size in the memtable. If several changes have the same key, the batch
    /// contains only the last one, because fjall gives all entries of a batch the same sequence number and could not
    /// order them.
    fn batch<'p>(&self, stores: impl Iterator<Item = Store<'p>>, last: u64) -> (fjall::OwnedWriteBatch, u64) {
        let mut batch = self.db.batch();
        let mut bytes = 0;
        let mut charge = |key: &Slice, value_bytes: usize| {
            bytes += (key.len() + value_bytes) as u64 + ENTRY_OVERHEAD_BYTES;
        };
        let stores: Vec<_> = stores.collect();
        let (mut seen, mut head) = (HashSet::new(), Vec::new());
        for Store { key: client_key, version, value } in stores.iter().rev() {
            if stores.len() > 1 && !seen.insert(&***client_key) {
                continue;
            }
            let key = concat(&[CLIENT_KEY_PREFIX], client_key);
            if let Some(value) = value {
                record::write_head(*version, value, &mut head);
                let value = concat(&head, &value.payload);
                charge(&key, value.len());
                batch.insert(&self.keyspace, key, value);
            } else {
                charge(&key, 0);
                batch.remove(&self.keyspace, key);
            }
        }
        let key = Slice::from(MARK_KEY);
        charge(&key, size_of::<u64>());
        batch.insert(&self.keyspace, key, last.to_le_bytes());
        (batch, bytes)
    }

    /// Adds a batch of `bytes` to the memtable's size, and seals the memtable if it is full. fjall's threads then write
    /// a sealed memtable to a table.
    fn seal_if_full(&self, section: &mut CommitSection, bytes: u64) {
        section.memtable_bytes += bytes;
        if section.memtable_bytes < self.memtable_bytes_max {
            return;
        }
        section.memtable_bytes = 0;
        // An error means only that journals which are no longer needed remain. fjall tries again with the next
        // memtable.
        if let Err(error) = self.keyspace.rotate_memtable() {
            tracing::warn!(why = message(&error), "fjall cannot remove old journals; it tries again later");
        }
    }

    fn read(&self, key: &[u8], reply: &dyn Reply) -> Result {
        let read = match self.db.snapshot().get(&self.keyspace, concat(&[CLIENT_KEY_PREFIX], key)) {
            Ok(Some(stored)) => PointRead::decode_if_admitted(&stored, reply),
            Ok(None) => PointRead::NOT_FOUND,
            Err(error) => PointRead::failed(read_failed(&error)),
        };
        read.result
    }

    /// Reads many keys in one snapshot.
    fn read_many(&self, keys: &[Bytes], bytes_max: usize) -> Result {
        let (snapshot, mut reads) = (self.db.snapshot(), ReadMany::new(bytes_max));
        for key in keys {
            let stored = snapshot.get(&self.keyspace, concat(&[CLIENT_KEY_PREFIX], key));
            reads.add(stored.map_err(|error| read_failed(&error))?.as_deref())?;
        }
        Ok(reads.finish())
    }

    /// Removes all keys of a range in one commit. fjall has no removal of a range, so the batch has one removal for each
    /// key. The keys are collected in the commit section, so that no key is written in between.
    fn remove_range(&self, removal: &RangeRemoval) -> Result {
        let (mut section, _) = commit_section::enter(&self.section);
        self.gate.check_stopped()?;
        let mut step = ScanStep {
            from: removal.from.clone(),
            end: removal.end.clone(),
            reverse: false,
            keys_only: true,
            // The number of entries is limited because the page also holds the metadata of its entries in memory.
            entries_max: RANGE_REMOVAL_STEP_KEYS_MAX,
            bytes_max: usize::MAX,
            view: View::Latest,
            consistency: removal.consistency,
        };
        let mut changes = Vec::new();
        while let Outcome::Page(Page::Entries { entries, next, .. }) = self.scan_step(&step)? {
            changes.extend(entries.into_iter().map(|entry| Change::of(entry.key, Effect::Delete)));
            if changes.len() > RANGE_REMOVAL_KEYS_MAX {
                return Err(Error::RangeTooLarge { limit: RANGE_REMOVAL_KEYS_MAX as u64 });
            }
            let Some(next) = next else { break };
            step.from = next;
        }
        if changes.is_empty() {
            let version = self.versions.take(1).map_err(|error| Error::NoVersion { why: error.to_string() })?;
            let (version, durability) = (Version::new(version), removal.durability);
            return Ok(Outcome::Written { version, durability, results: Vec::new() });
        }
        let write = Write { changes, atomic: true, durability: removal.durability, ..Write::default() };
        let writes = [Pending { write, reply: Arc::new(NoReply) }];
        let committed = self.write_in(&mut section, &writes, Duration::ZERO)?;
        committed.plan.outcomes(&writes).next().expect("one for each write")
    }

    fn scan_step(&self, step: &ScanStep) -> Result {
        let snapshot = match &step.view {
            View::Latest => None,
            View::Take => Some(Snapshot(Arc::new(self.db.snapshot()))),
            View::At(snapshot) => Some(snapshot.clone()),
        };
        let page = PageBuilder::new(step, snapshot.clone());
        let from = concat(&[CLIENT_KEY_PREFIX], &step.from);
        let end = step.end.as_ref().map_or(Slice::from(CLIENT_KEYS_END), |end| concat(&[CLIENT_KEY_PREFIX], end));
        if from >= end {
            return Ok(Outcome::Page(page.finish()));
        }
        let range = match &snapshot {
            None => self.db.snapshot().range(&self.keyspace, from..end),
            Some(Snapshot(any)) => {
                let snapshot: &fjall::Snapshot = any.downcast_ref().expect("the engine made it");
                snapshot.range(&self.keyspace, from..end)
            }
        };
        if step.reverse { fill(page, range.rev(), true) } else { fill(page, range, false) }.map(Outcome::Page)
    }

    fn update_observation(&self) {
        let (version_last, version_reserved) = self.versions.last_and_reserved();
        // `synced` is read first, so that the difference is not negative.
        let synced = self.high_water.synced();
        let unsynced = self.written.load(Ordering::Acquire).saturating_sub(synced);
        let measures = self.gate.measures(&WriteProgress { unsynced, version_last, version_reserved });
        self.monitor.update(&self.db, &self.keyspace, measures);
    }
}

/// Concatenates two parts with a single copy, because a value may be large.
fn concat(head: &[u8], rest: &[u8]) -> Slice {
    let length = head.len() + rest.len();
    Slice::from_reader(&mut head.chain(rest), length).expect("the parts are as long as they are")
}

/// The reply of an operation that the engine itself has started.
struct NoReply;

impl Reply for NoReply {
    fn complete(&self, _: Result) {}
}

/// Fills `page` with `entries` in their order. The step ends early if it has passed many expired entries. fjall itself
/// skips removed entries; it neither counts nor limits them.
fn fill(
    mut page: PageBuilder,
    entries: impl Iterator<Item = fjall::Guard>,
    reverse: bool,
) -> std::result::Result<Page, Error> {
    let mut expired = 0;
    for entry in entries {
        let (stored_key, stored) = entry.into_inner().map_err(|error| read_failed(&error))?;
        let (key, record) = (&stored_key[1..], Record::decode(&stored)?);
        if record.expired(clock::unix_ms) {
            expired += 1;
            if expired > REMOVED_PER_ATTEMPT_MAX {
                return Ok(page.stop_at(PageBuilder::bound(key, reverse)));
            }
            continue;
        }
        let charge = page.charge(key, record.payload, record.metadata);
        if !page.fits(charge) {
            return Ok(page.stop_before(key, charge, reverse));
        }
        page.add_copy(key, &record);
    }
    Ok(page.finish())
}

fn read_failed(error: &fjall::Error) -> Error {
    Error::ReadFailed { why: message(error) }
}

impl Engine for FjallEngine {
    fn name(&self) -> &'static str {
        "fjall"
    }

    fn durability(&self, asked: Durability) -> Durability {
        asked
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            blocks: true,
            conditions: true,
            expiry: true,
            metadata: true,
            batches: true,
            range_removals: true,
            snapshots: true,
            global_order: true,
            ..Capabilities::default()
        }
    }

    /// Always `None` (unknown), because fjall has no read that fails instead of waiting for the disk.
    fn read_cached(&self, _key: &[u8]) -> Option<Result> {
        None
    }

    fn execute(&self, operation: Operation, reply: Arc<dyn Reply>) {
        match operation {
            Operation::Get { key, .. } => reply.complete(self.read(&key, &*reply)),
            Operation::GetMany { keys, bytes_max, .. } => reply.complete(self.read_many(&keys, bytes_max)),
            Operation::Prefetch { keys } => {
                let read = |key: &Bytes| self.keyspace.get(concat(&[CLIENT_KEY_PREFIX], key)).map(|_| ());
                let read = keys.iter().try_for_each(read);
                reply.complete(read.map(|()| Outcome::NotFound).map_err(|error| read_failed(&error)));
            }
            Operation::Scan(step) => reply.complete(self.scan_step(&step)),
            Operation::Write(write) => self.commit(vec![Pending { write, reply }]),
            Operation::RemoveRange(removal) => reply.complete(self.remove_range(&removal)),
            Operation::Changes(_) => {
                reply.complete(Err(Error::NotSupported { engine: self.name(), what: "changes" }));
            }
        }
    }

    fn commit(&self, writes: Vec<Pending>) {
        assert!(!writes.is_empty(), "an empty commit has nothing to answer");
        commit_section::complete_all(&writes, self.write(&writes));
    }

    fn writable(&self, change: ChangeKind) -> std::result::Result<(), Error> {
        self.gate.check(change)
    }

    /// Only logs a warning, because the capacity of fjall's cache cannot be changed.
    fn set_cache_bytes(&self, bytes: u64) {
        if bytes != self.cache_bytes {
            tracing::warn!(
                bytes,
                now = self.cache_bytes,
                "the cache of --engine fjall keeps its size until klad is started again; restart klad to change it"
            );
        }
    }

    fn checks(&self) -> Vec<Check> {
        self.gate.checks()
    }

    fn observe(&self) -> Arc<Observation> {
        self.monitor.latest()
    }

    fn local_disk(&self) -> Option<&dyn LocalDisk> {
        Some(self)
    }
}

impl LocalDisk for FjallEngine {
    fn sync(&self) -> std::result::Result<(), String> {
        if let Err(error) = self.gate.check_stopped() {
            return Err(error.to_string());
        }
        if !self.unsynced.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let (until, began) = (self.written.load(Ordering::Acquire), clock::now());
        self.db.persist(PersistMode::SyncData).map_err(|error| {
            let why = message(&error);
            self.gate.stop(&why);
            why
        })?;
        self.commits.synced(clock::now().saturating_duration_since(began));
        self.high_water.advance(until);
        Ok(())
    }

    fn set_disk_reserve(&self, bytes: u64) {
        self.gate.set_reserve_bytes(bytes);
    }

    fn commits(&self) -> &Commits {
        &self.commits
    }

    fn housekeeping(&self) {
        self.gate.check_directory(self.versions.directory(), "fjall/version");
        self.gate.update_free_space(self.versions.directory());
        self.gate.set_stalled(self.is_stalled());
        if let Err(error) = self.versions.reserve_ahead() {
            tracing::warn!(%error, "cannot reserve versions ahead of time; klad tries again");
        }
        // If a thread is in the commit section, klad does not wait for it here: that thread may be waiting for a sync,
        // and notices failed threads itself.
        if let Some(_section) = self.section.try_lock() {
            self.check_background_threads();
        }
        self.update_observation();
    }
}

#[cfg(test)]
mod tests;
