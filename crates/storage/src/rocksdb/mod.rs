//! The engine on RocksDB. Only the files in this directory use RocksDB's crate.
//!
//! Point reads are pinned `get`s, never iterators. Writes go through the commit section: one thread at a time, one
//! batch, one log write. If any write of the batch asks for a sync, the log write is `write(sync = true)`, so no read
//! sees a write whose sync has not succeeded. After a failed log write or sync the engine takes no writes until the
//! next start: the kernel may have dropped the dirty pages, so a retry could succeed without the data.
//!
//! Made by `main`, called by `execution`.

mod bulk_load;
mod change_log;
pub mod check;
mod commit;
mod log_records;
mod maintenance;
mod observation;
mod open;
mod options;
mod perf;
mod preallocation;
mod scan;
mod value_cache;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::Bytes;
use rust_rocksdb::{DB, ErrorKind, ReadOptions, ReadTier, properties};

use crate::bulk_load::BulkLoad;
use crate::changes::{Changes, Retention};
use crate::commits::Commits;
use crate::disk::commit_section;
use crate::disk::directory::DataDirectory;
use crate::disk::gate::{WriteGate, WriteProgress};
use crate::disk::high_water::HighWater;
use crate::disk::point_read::{PointRead, ReadMany};
use crate::disk::versions::Versions;
use crate::limits::{CACHED_VALUE_BYTES_MAX, OFFLINE_CACHE_BYTES};
use crate::maintenance::{Checkpoint, Compaction, Error as MaintenanceError};
use crate::operation::{Durability, Error, Operation, Outcome};
use crate::rocksdb::change_log::ChangeLog;
use crate::rocksdb::commit::CommitSection;
use crate::rocksdb::observation::Monitor;
pub use crate::rocksdb::open::OpenError;
use crate::rocksdb::options::SharedMemory;
use crate::rocksdb::perf::{Work, measure, measure_with};
use crate::rocksdb::preallocation::Preallocation;
use crate::rocksdb::value_cache::{EpochSnapshot, Lookup, ValueCache};
use crate::{Capabilities, ChangeKind, Check, Compression, Engine, LocalDisk, Observation, Pending, Reply, Result};
use klad_base::clock;
use klad_base::limits::ENGINE_FILES_MAX;
use klad_base::metrics::Counter;
use klad_base::sync::Mutex;

/// The configuration of this engine.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct Options {
    /// The size of the block cache, the memtables and the value cache together in bytes.
    pub cache_bytes: u64,
    /// The share of `cache_bytes` for memtables.
    pub memtable_bytes: u64,
    /// The value cache's share of `cache_bytes` minus `memtable_bytes`, percent; 0 disables the value cache.
    pub value_cache_percent: u64,
    /// The number of threads for flushes and compactions.
    pub background_threads: usize,
    /// The free disk space in bytes below which writes are rejected.
    pub disk_reserve_bytes: u64,
    /// Whether reads of tables bypass the kernel's page cache.
    pub direct_reads: bool,
    /// The compression of new tables.
    pub compression: Compression,
    /// Whether point reads use an iterator instead of `get`. The option reproduces a mistake that a published report
    /// measured.
    pub iterator_reads: bool,
    /// Whether klad appends zeros to the log ahead of its records.
    pub log_preallocation: bool,
    /// The rate limit of flushes and compactions in bytes per second; 0 means no limit.
    pub compaction_rate_bytes: u64,
    /// The rate limit of file deletions in bytes per second; 0 means no limit.
    pub delete_rate_bytes: u64,
    /// How many old logs are kept for change feeds.
    pub changes: Retention,
    /// The maximum number of open files, 32 to [`ENGINE_FILES_MAX`].
    pub open_files_max: u64,
    /// Whether the engine is opened for a bulk load. The engine then has no automatic compactions.
    pub bulk_load: bool,
}

impl Default for Options {
    /// The options for commands and tests: a small cache, one thread, LZ4, no rate limits. RocksDB may fill the disk,
    /// and deletes a log once its writes are in tables.
    fn default() -> Options {
        Options {
            cache_bytes: OFFLINE_CACHE_BYTES,
            memtable_bytes: OFFLINE_CACHE_BYTES / 4,
            value_cache_percent: 0,
            background_threads: 1,
            disk_reserve_bytes: 0,
            direct_reads: false,
            compression: Compression::Lz4,
            iterator_reads: false,
            log_preallocation: false,
            compaction_rate_bytes: 0,
            delete_rate_bytes: 0,
            changes: Retention::NOTHING,
            open_files_max: ENGINE_FILES_MAX,
            bulk_load: false,
        }
    }
}

/// Splits `cache_bytes` into the part for blocks and memtables, and the part for the value cache.
fn split(cache_bytes: u64, memtable_bytes: u64, value_cache_percent: u64) -> (u64, u64) {
    let value_bytes = cache_bytes.saturating_sub(memtable_bytes) / 100 * value_cache_percent;
    (cache_bytes - value_bytes, value_bytes)
}

/// The engine.
pub struct RocksDbEngine {
    /// Shared with the snapshots of scans in progress.
    pub(super) db: Arc<DB>,
    read_all: ReadOptions,
    read_cached: ReadOptions,
    section: Mutex<CommitSection>,
    versions: Versions,
    pub(super) gate: WriteGate,
    /// Whether some acknowledged writes may not be synced yet.
    unsynced: AtomicBool,
    high_water: HighWater,
    commits: Commits,
    iterator_reads: bool,
    value_cache: Option<ValueCache>,
    memtable_bytes: u64,
    value_cache_percent: u64,
    /// The number of zeros that were written to logs ahead of their records.
    zero_bytes: Arc<Counter>,
    /// The `reach` of the last scan step over removed entries (see `scan.rs`).
    scan_reach: AtomicU32,
    monitor: Monitor,
    changes: ChangeLog,
    /// The compression of the tables of a bulk load; `None` if the engine was not opened for one.
    load_compression: Option<Compression>,
}

impl RocksDbEngine {
    /// Opens or creates the store in `path`.
    ///
    /// # Errors
    /// [`OpenError`]. The message contains advice if there is any.
    pub fn open(path: &Path, options: &Options) -> std::result::Result<RocksDbEngine, OpenError> {
        let directory = DataDirectory::open(path, "rocksdb")?;
        bulk_load::remove_rest(&directory)?;
        // Iterator reads exist to be measured, so the value cache must not answer them.
        let value_cache_percent = if options.iterator_reads { 0 } else { options.value_cache_percent };
        let (block_bytes, value_bytes) = split(options.cache_bytes, options.memtable_bytes, value_cache_percent);
        let shared = SharedMemory::new(&Options { cache_bytes: block_bytes, ..options.clone() });
        let mut database = options::database(options, &shared);
        let monitor = Monitor::new(shared, &directory.path().join("rocksdb"), &mut database);
        let zero_bytes = Arc::<Counter>::default();
        let preallocation = options
            .log_preallocation
            .then(|| Preallocation::new(&mut database, &directory.path().join("rocksdb"), Arc::clone(&zero_bytes)));
        let (db, high_water) = open::open(&directory, &database)?;
        let changes = ChangeLog::new(
            &directory.path().join("rocksdb"),
            options.changes,
            db.latest_sequence_number(),
            directory.versions_reserved_until().max(1) - 1,
        );
        let mut read_cached = ReadOptions::default();
        read_cached.set_read_tier(ReadTier::BlockCache);
        let engine = RocksDbEngine {
            db: Arc::new(db),
            read_all: ReadOptions::default(),
            read_cached,
            section: Mutex::new(CommitSection::new(preallocation)),
            versions: Versions::new(directory),
            gate: WriteGate::new(options.disk_reserve_bytes),
            unsynced: AtomicBool::new(false),
            high_water,
            commits: Commits::default(),
            iterator_reads: options.iterator_reads,
            value_cache: ValueCache::new(value_bytes),
            memtable_bytes: options.memtable_bytes,
            value_cache_percent,
            zero_bytes,
            scan_reach: AtomicU32::new(0),
            monitor,
            changes,
            load_compression: options.bulk_load.then_some(options.compression),
        };
        engine.housekeeping();
        Ok(engine)
    }

    /// Looks a key up in the value cache.
    fn lookup_cached(&self, key: &[u8]) -> Lookup {
        self.value_cache.as_ref().map_or(Lookup::Miss(None), |cache| cache.lookup(key))
    }

    /// Inserts a value into the value cache, if the value is cacheable and small. The value was read after `snapshot`
    /// was taken.
    fn cache_value(&self, snapshot: Option<EpochSnapshot>, key: &[u8], read: &PointRead) {
        let (Some(cache), Some(snapshot)) = (&self.value_cache, snapshot) else { return };
        if let PointRead { result: Ok(Outcome::Found { version, value }), cacheable: true } = read
            && value.payload.len() <= CACHED_VALUE_BYTES_MAX
        {
            cache.insert(snapshot, key, *version, value);
        }
    }

    fn update_observation(&self) {
        let (version_last, version_reserved) = self.versions.last_and_reserved();
        // `synced` is read first, so that the difference is not negative.
        let synced = self.high_water.synced();
        let unsynced = self.db.latest_sequence_number().saturating_sub(synced);
        let mut measures = self.gate.measures(&WriteProgress { unsynced, version_last, version_reserved });
        measures.push(preallocation::measure(&self.zero_bytes));
        let cache = self.value_cache.as_ref().map(ValueCache::stats).unwrap_or_default();
        self.monitor.update(&self.db, measures, &cache);
    }

    pub(super) fn directory(&self) -> &DataDirectory {
        self.versions.directory()
    }

    /// Reads many keys in one snapshot, one after the other. RocksDB's `multi_get` would hold all values in memory
    /// before their sizes are known.
    fn read_many(&self, keys: &[Bytes], bytes_max: usize) -> Result {
        let snapshot = self.db.snapshot();
        let mut options = ReadOptions::default();
        options.set_snapshot(&snapshot);
        let mut reads = ReadMany::new(bytes_max);
        for key in keys {
            reads.add(self.db.get_pinned_opt(key, &options).map_err(read_failed)?.as_deref())?;
        }
        Ok(reads.finish())
    }

    fn read(&self, key: &[u8], reply: &dyn Reply) -> Result {
        let snapshot = match self.lookup_cached(key) {
            Lookup::Hit(version, value) => return Ok(Outcome::Found { version, value }),
            Lookup::Miss(snapshot) => snapshot,
        };
        let found = if self.iterator_reads {
            self.seek(key, ReadOptions::default(), |stored| PointRead::decode_if_admitted(stored, reply))
        } else {
            let (found, perf) = measure(Work::Read, || self.db.get_pinned_opt(key, &self.read_all));
            reply.measured(&perf);
            found.map(|stored| stored.map(|stored| PointRead::decode_if_admitted(&stored, reply)))
        };
        let read = match found {
            Ok(read) => read.unwrap_or(PointRead::NOT_FOUND),
            Err(error) => PointRead::failed(read_failed(error)),
        };
        self.cache_value(snapshot, key, &read);
        read.result
    }
}

pub(super) fn read_failed(error: rust_rocksdb::Error) -> Error {
    Error::ReadFailed { why: error.into_string() }
}

impl Engine for RocksDbEngine {
    fn name(&self) -> &'static str {
        "rocksdb"
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
            checkpoints: true,
            compactions: true,
            changes: self.changes.is_on(),
        }
    }

    fn read_cached(&self, key: &[u8]) -> Option<Result> {
        let snapshot = match self.lookup_cached(key) {
            Lookup::Hit(version, value) => return Some(Ok(Outcome::Found { version, value })),
            Lookup::Miss(snapshot) => snapshot,
        };
        let small = |stored: &[u8]| (stored.len() <= CACHED_VALUE_BYTES_MAX).then(|| PointRead::decode(stored));
        let found = if self.iterator_reads {
            let mut options = ReadOptions::default();
            options.set_read_tier(ReadTier::BlockCache);
            self.seek(key, options, small)
        } else {
            self.db.get_pinned_opt(key, &self.read_cached).map(|stored| stored.map(|stored| small(&stored)))
        };
        match found {
            Ok(Some(read)) => read.map(|read| {
                self.cache_value(snapshot, key, &read);
                read.result
            }),
            Ok(None) => Some(Ok(Outcome::NotFound)),
            // The read needs a block that is not in the block cache.
            Err(error) if error.kind() == ErrorKind::Incomplete => None,
            Err(error) => Some(Err(read_failed(error))),
        }
    }

    fn execute(&self, operation: Operation, reply: Arc<dyn Reply>) {
        match operation {
            Operation::Get { key, .. } => reply.complete(self.read(&key, &*reply)),
            Operation::Scan(step) => {
                let (page, perf) = measure_with(Work::Scan, |passed| self.scan_step(&step, passed));
                reply.measured(&perf);
                reply.complete(page);
            }
            Operation::GetMany { keys, bytes_max, .. } => {
                let (found, perf) = measure(Work::Read, || self.read_many(&keys, bytes_max));
                reply.measured(&perf);
                reply.complete(found);
            }
            Operation::Prefetch { keys } => {
                let read = |key: &Bytes| self.db.get_pinned_opt(key, &self.read_all).map(|_| ()).map_err(read_failed);
                reply.complete(keys.iter().try_for_each(read).map(|()| Outcome::NotFound));
            }
            Operation::Write(write) => self.commit_all(&[Pending { write, reply }]),
            Operation::RemoveRange(removal) => reply.complete(self.remove_range(&removal)),
            Operation::Changes(step) => reply.complete(self.changes.step(&step).map(Outcome::Changes)),
        }
    }

    fn commit(&self, writes: Vec<Pending>) {
        assert!(!writes.is_empty(), "an empty commit has nothing to answer");
        self.commit_all(&writes);
    }

    fn try_commit(&self, writes: Vec<Pending>) -> std::result::Result<(), Vec<Pending>> {
        match self.try_write(&writes) {
            Some(committed) => {
                commit_section::complete_all(&writes, committed);
                Ok(())
            }
            None => Err(writes),
        }
    }

    fn writable(&self, change: ChangeKind) -> std::result::Result<(), Error> {
        self.gate.check(change)
    }

    fn set_cache_bytes(&self, bytes: u64) {
        let (block_bytes, value_bytes) = split(bytes, self.memtable_bytes, self.value_cache_percent);
        self.monitor.set_cache_bytes(block_bytes);
        if let Some(cache) = &self.value_cache {
            cache.set_bytes(value_bytes);
        }
    }

    fn checks(&self) -> Vec<Check> {
        self.gate.checks()
    }

    fn observe(&self) -> Arc<Observation> {
        self.monitor.latest()
    }

    fn changes(&self) -> Option<&dyn Changes> {
        self.changes.is_on().then_some(&self.changes as &dyn Changes)
    }

    fn local_disk(&self) -> Option<&dyn LocalDisk> {
        Some(self)
    }
}

impl LocalDisk for RocksDbEngine {
    fn sync(&self) -> std::result::Result<(), String> {
        if let Err(error) = self.gate.check_stopped() {
            return Err(error.to_string());
        }
        if !self.unsynced.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let (until, began) = (self.db.latest_sequence_number(), clock::now());
        self.db.flush_wal(true).map_err(|error| {
            let why = error.into_string();
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
        self.gate.check_directory(self.directory(), "rocksdb/CURRENT");
        self.gate.update_free_space(self.directory());
        self.gate.set_stalled(matches!(self.db.property_int_value(properties::IS_WRITE_STOPPED), Ok(Some(1..))));
        if let Err(error) = self.versions.reserve_ahead() {
            tracing::warn!(%error, "cannot reserve versions ahead of time; klad tries again");
        }
        self.changes.retain();
        self.update_observation();
    }

    fn checkpoint(&self, target: &Path) -> std::result::Result<Checkpoint, MaintenanceError> {
        self.make_checkpoint(target)
    }

    fn compact(
        &self,
        bottommost: bool,
        go_on: &dyn Fn(u64, u64) -> bool,
    ) -> std::result::Result<Compaction, MaintenanceError> {
        self.compact_all(bottommost, go_on)
    }

    fn interrupt_compaction(&self) {
        self.abort_piece();
    }

    fn bulk_load(&self) -> Option<&dyn BulkLoad> {
        self.load_compression.is_some().then_some(self as &dyn BulkLoad)
    }
}
