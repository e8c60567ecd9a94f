//! The embedded engine on RocksDB. Only the files `rocksdb*.rs` name its crate.
//!
//! Point reads are pinned `get`s, never iterators. Writes go through the commit section: one thread at a time, one batch,
//! one log write, `write(sync = true)` when any member asked for it, so that no reader sees a write whose sync has not
//! succeeded. A log write or sync that failed is final until restart: the kernel may have dropped the dirty pages, so
//! trying again could succeed without the data.
//!
//! Made by `main`, called by `execution`.

pub mod check;
mod log_records;
mod maintenance;
mod observation;
mod open;
mod options;
mod perf;
mod preallocation;
mod scan;
mod value_cache;

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rust_rocksdb::{DB, ErrorKind, FlushOptions, ReadOptions, ReadTier, WriteBatch, WriteOptions, properties};

use crate::commits::Commits;
use crate::disk::directory::DataDirectory;
use crate::disk::gate::{Kept, WriteGate};
use crate::disk::high_water::HighWater;
use crate::disk::point_read::Read;
use crate::disk::record;
use crate::disk::versions::Versions;
use crate::disk::written::{self, Written};
use crate::maintenance::{Checkpoint, Compaction, Error as MaintenanceError};
use crate::operation::{Change, Durability, Effect, Error, Operation, Outcome, Version};
use crate::perf::Figure;
use crate::rocksdb::observation::Watch;
pub use crate::rocksdb::open::OpenError;
use crate::rocksdb::options::Shared;
use crate::rocksdb::perf::{Work, measured};
use crate::rocksdb::preallocation::Preallocation;
use crate::rocksdb::value_cache::{Looked, Made, Place, ValueCache};
use crate::{Capabilities, ChangeKind, Check, Compression, Engine, LocalDisk, Observation, Pending, Reply, Result};
use klad_base::clock;
use klad_base::limits::{CACHED_VALUE_BYTES_MAX, COMMIT_BYTES_MAX, MEMTABLE_BYTES_MAX};
use klad_base::metrics::Counter;
use klad_base::sync::{Mutex, MutexGuard};

/// What of the configuration concerns this engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Block cache in bytes, memtables included: they are charged to it.
    pub cache_bytes: u64,
    /// Of the cache, at most so much for memtables.
    pub memtable_bytes: u64,
    /// Of the rest of it, so many hundredths for values instead of blocks; 0: none.
    pub value_cache_percent: u64,
    /// Threads for flushes and compactions.
    pub background_threads: usize,
    /// Below so many free bytes writes are refused.
    pub disk_reserve_bytes: u64,
    /// Tables are read past the kernel's page cache.
    pub direct_reads: bool,
    /// Of tables that are written from now on.
    pub compression: Compression,
    /// Read keys through an iterator instead of a get: a mistake that a published report has measured.
    pub iterator_reads: bool,
    /// The log is kept longer than its records.
    pub log_preallocation: bool,
    /// Flushes and compactions write so many bytes a second at most; 0: as many as they can.
    pub compaction_rate_bytes: u64,
    /// So many bytes a second of files that are removed go back to the file system; 0: at once.
    pub delete_rate_bytes: u64,
    /// Files that it may keep open, 32 to [`ENGINE_FILES_MAX`](klad_base::limits::ENGINE_FILES_MAX).
    pub open_files_max: u64,
}

/// What of `cache_bytes` is for blocks and memtables, and what for values.
fn split(cache_bytes: u64, memtable_bytes: u64, value_cache_percent: u64) -> (u64, u64) {
    let value_bytes = cache_bytes.saturating_sub(memtable_bytes) / 100 * value_cache_percent;
    (cache_bytes - value_bytes, value_bytes)
}

/// RocksDB, and what klad keeps beside it.
pub struct RocksDbEngine {
    pub(super) db: DB,
    read_all: ReadOptions,
    read_cached: ReadOptions,
    section: Mutex<CommitSection>,
    versions: Versions,
    pub(super) gate: WriteGate,
    /// Acknowledged writes may not be synced yet.
    unsynced: AtomicBool,
    high_water: HighWater,
    commits: Commits,
    iterator_reads: bool,
    /// Values that were read lately.
    values: Option<ValueCache>,
    memtable_bytes: u64,
    value_cache_percent: u64,
    /// Written ahead into logs.
    zero_bytes: Arc<Counter>,
    watch: Watch,
}

/// What the one thread inside needs; the batch keeps its buffer.
struct CommitSection {
    batch: WriteBatch,
    preallocation: Option<Preallocation>,
    /// Of the batch's keys in the cache of values.
    places: Vec<u64>,
    write_sync: WriteOptions,
    write_async: WriteOptions,
    /// As `write_async`, but fails where it would have to wait.
    write_now: WriteOptions,
}

impl RocksDbEngine {
    /// Opens or creates the store in `path`.
    ///
    /// # Errors
    /// [`OpenError`]; the message says what to do about it where there is something to do.
    pub fn open(path: &Path, options: &Options) -> std::result::Result<RocksDbEngine, OpenError> {
        let directory = DataDirectory::open(path, "rocksdb")?;
        // Reads that go through an iterator are there to be measured: no cache answers in their place.
        let value_cache_percent = if options.iterator_reads { 0 } else { options.value_cache_percent };
        let (block_bytes, value_bytes) = split(options.cache_bytes, options.memtable_bytes, value_cache_percent);
        let shared = Shared::new(&Options { cache_bytes: block_bytes, ..options.clone() });
        let mut database = options::database(options, &shared);
        let watch = Watch::new(shared, &directory.path().join("rocksdb"), &mut database);
        let zero_bytes = Arc::<Counter>::default();
        let preallocation = options
            .log_preallocation
            .then(|| Preallocation::new(&mut database, &directory.path().join("rocksdb"), Arc::clone(&zero_bytes)));
        let (db, high_water) = open::open(&directory, &database)?;
        let mut read_cached = ReadOptions::default();
        read_cached.set_read_tier(ReadTier::BlockCache);
        let mut write_sync = WriteOptions::default();
        write_sync.set_sync(true);
        let mut write_now = WriteOptions::default();
        write_now.set_no_slowdown(true);
        let engine = RocksDbEngine {
            db,
            read_all: ReadOptions::default(),
            read_cached,
            section: Mutex::new(CommitSection {
                batch: WriteBatch::new(),
                preallocation,
                places: Vec::new(),
                write_sync,
                write_async: WriteOptions::default(),
                write_now,
            }),
            versions: Versions::new(directory),
            gate: WriteGate::new(options.disk_reserve_bytes),
            unsynced: AtomicBool::new(false),
            high_water,
            commits: Commits::default(),
            iterator_reads: options.iterator_reads,
            values: ValueCache::new(value_bytes),
            memtable_bytes: options.memtable_bytes,
            value_cache_percent,
            zero_bytes,
            watch,
        };
        engine.housekeeping();
        Ok(engine)
    }

    /// What the cache of values knows of a key, or where what RocksDB knows of it may be kept.
    fn look_at_values(&self, key: &[u8]) -> Looked {
        self.values.as_ref().map_or(Looked::Unknown(None), |values| values.look(key))
    }

    /// What was read after `place` was given, if it is one that lasts and is small.
    fn keep_value(&self, place: Option<Place>, key: &[u8], read: &Read) {
        if let (Some(values), Some(place), Read { answer: Ok(Outcome::Found { version, value }), lasts: true }) =
            (&self.values, place, read)
            && value.len() <= CACHED_VALUE_BYTES_MAX
        {
            values.keep(place, key, *version, value);
        }
    }

    /// Nothing of these keys is taken from the cache of values until `done`, and then what it has made of them, versions from
    /// `first` on.
    fn write_beside_values<E>(
        &self,
        writes: &[Pending],
        first: u64,
        places: &mut Vec<u64>,
        done: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let Some(values) = &self.values else { return done() };
        values.begin(changes(writes, first).map(|(change, _)| &*change.key), places);
        let done = done();
        let made = changes(writes, first).map(|(change, version)| {
            let made = match &change.effect {
                Effect::Put(value) if done.is_ok() && value.payload.len() <= CACHED_VALUE_BYTES_MAX => {
                    Made::Value(version, &value.payload)
                }
                Effect::Put(_) | Effect::Delete => Made::Other,
            };
            (&*change.key, made)
        });
        values.end(places, made);
        done
    }

    fn look_at_rocksdb(&self) {
        let (version_last, version_reserved) = self.versions.look();
        // In this order, or the difference could be below nothing.
        let synced = self.high_water.synced();
        let unsynced = self.db.latest_sequence_number().saturating_sub(synced);
        let mut kept = self.gate.measures(&Kept { unsynced, version_last, version_reserved });
        kept.push(preallocation::measure(&self.zero_bytes));
        let values = self.values.as_ref().map(ValueCache::figures).unwrap_or_default();
        self.watch.look(&self.db, kept, &values);
    }

    pub(super) fn directory(&self) -> &DataDirectory {
        self.versions.directory()
    }

    /// Fills the batch; the commit section is held.
    fn fill(batch: &mut WriteBatch, writes: &[Pending], first: u64) -> std::result::Result<(), String> {
        batch.clear();
        for (change, version) in changes(writes, first) {
            match &change.effect {
                Effect::Put(value) => {
                    let head = record::plain_head(version);
                    batch
                        .put_vectored(
                            &[IoSlice::new(&change.key)],
                            &[IoSlice::new(&head), IoSlice::new(&value.payload)],
                        )
                        .map_err(rust_rocksdb::Error::into_string)?;
                }
                Effect::Delete => batch.delete(&change.key),
            }
        }
        Ok(())
    }

    fn read(&self, key: &[u8], reply: &dyn Reply) -> Result {
        let place = match self.look_at_values(key) {
            Looked::Found(version, value) => return Ok(Outcome::Found { version, value }),
            Looked::Unknown(place) => place,
        };
        let found = if self.iterator_reads {
            self.seek(key, ReadOptions::default(), |stored| Read::with_room(stored, reply))
        } else {
            let (found, perf) = measured(Work::Read, || self.db.get_pinned_opt(key, &self.read_all));
            reply.measured(&perf);
            found.map(|stored| stored.map(|stored| Read::with_room(&stored, reply)))
        };
        let read = found.map_or_else(|error| Read::failed(read_failed(error)), |read| read.unwrap_or(Read::NOT_FOUND));
        self.keep_value(place, key, &read);
        read.answer
    }

    fn commit_all(&self, writes: &[Pending]) {
        written::answer(writes, self.write(writes));
    }

    /// Enters the commit section, and says how long that took if another was in it.
    fn enter(&self) -> (MutexGuard<'_, CommitSection>, Duration) {
        if let Some(section) = self.section.try_lock() {
            return (section, Duration::ZERO);
        }
        let asked = clock::now();
        let section = self.section.lock();
        (section, clock::now().saturating_duration_since(asked))
    }

    /// Does `writes` inside the commit section and answers the version of the first.
    fn write(&self, writes: &[Pending]) -> std::result::Result<Written, Error> {
        let (mut section, waited) = self.enter();
        self.gate.check_stopped()?;
        // Nothing has happened yet, so failing to reserve versions refuses the writes, and only them.
        let first = self.versions.take(writes.len()).map_err(|error| Error::NoVersion { why: error.to_string() })?;
        let sync = writes.iter().any(|one| one.write.durability == Durability::Sync);
        let CommitSection { batch, preallocation, places, write_sync, write_async, .. } = &mut *section;
        Self::fill(batch, writes, first).map_err(|why| self.gate.undetermined(why))?;
        // Log write, sync and memtable are one call of RocksDB's; with a sync, all of it is the sync's time.
        let began = sync.then(clock::now);
        if sync && let Some(preallocation) = preallocation {
            preallocation.make_room(batch.size_in_bytes() as u64);
        }
        let options = if sync { write_sync } else { write_async };
        let work = if sync { Work::SyncedBatch(writes.len()) } else { Work::Batch(writes.len()) };
        let (done, perf) =
            measured(work, || self.write_beside_values(writes, first, places, || self.db.write_opt(batch, options)));
        self.watch.waited(perf.get(Figure::WriteDelayTime).unwrap_or(0));
        let perf = perf.with(Figure::CommitSectionWait, u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
        done.map_err(|error| self.gate.undetermined(error.into_string()))?;
        if let Some(preallocation) = preallocation {
            preallocation.written(batch.size_in_bytes() as u64);
        }
        let now = clock::now();
        let sync_time = began.map(|began| now.saturating_duration_since(began));
        if let Some(time) = sync_time {
            self.commits.synced(time);
        }
        self.commits.committed(writes.len(), sync);
        self.finish(batch, sync)?;
        Ok(Written { first, now, sync_time: sync_time.unwrap_or_default(), perf: Some(perf) })
    }

    /// As `write`, for writes that ask for no sync, if nothing is to be waited for; `None`: nothing has happened.
    fn try_write(&self, writes: &[Pending]) -> Option<std::result::Result<Written, Error>> {
        let mut section = self.section.try_lock()?;
        if let Err(stopped) = self.gate.check_stopped() {
            return Some(Err(stopped));
        }
        let first = self.versions.try_take(writes.len())?;
        let CommitSection { batch, preallocation, places, write_now, .. } = &mut *section;
        if let Err(why) = Self::fill(batch, writes, first) {
            return Some(Err(self.gate.undetermined(why)));
        }
        match self.write_beside_values(writes, first, places, || self.db.write_opt(batch, write_now)) {
            Ok(()) => {
                if let Some(preallocation) = preallocation {
                    preallocation.written(batch.size_in_bytes() as u64);
                }
                self.commits.committed(writes.len(), false);
                // Nothing was waited for, and what it took is not worth a dozen looks at the clock.
                let written = Written { first, now: clock::now(), sync_time: Duration::ZERO, perf: None };
                Some(self.finish(batch, false).map(|()| written))
            }
            // RocksDB slows writes down or has stopped them, and says so before it has done anything.
            Err(error) if error.kind() == ErrorKind::Incomplete => None,
            Err(error) => Some(Err(self.gate.undetermined(error.into_string()))),
        }
    }

    /// What follows a log write, before anyone is answered.
    fn finish(&self, batch: &mut WriteBatch, sync: bool) -> std::result::Result<(), Error> {
        if batch.size_in_bytes() as u64 > MEMTABLE_BYTES_MAX {
            // Several such would be kept until there are enough for a flush, each as large as its largest value. What fails is
            // tried again by RocksDB, and told by its observation.
            let mut now = FlushOptions::default();
            now.set_wait(false);
            now.set_allow_write_stall(true);
            let _ = self.db.flush_opt(&now);
        }
        if batch.size_in_bytes() > COMMIT_BYTES_MAX {
            // It would keep the capacity of the largest value that ever came.
            *batch = WriteBatch::new();
        }
        if sync {
            // A synced write syncs all of the log before it. Marked before anyone is answered.
            self.high_water.advance(self.db.latest_sequence_number());
        } else {
            // After the write: a sync that has begun before it may not cover it, and one must follow.
            self.unsynced.store(true, Ordering::Release);
        }
        // A sync of earlier writes may have failed meanwhile, and nothing is acknowledged after that.
        self.gate.check_stopped().map_err(|error| self.gate.undetermined(error.to_string()))
    }
}

/// All changes in their order, each with the version of its write.
fn changes(writes: &[Pending], first: u64) -> impl Iterator<Item = (&Change, Version)> {
    let numbered = writes.iter().zip(first..);
    numbered.flat_map(|(one, version)| one.write.changes.iter().map(move |change| (change, Version::new(version))))
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
            batches: true,
            global_order: true,
            checkpoints: true,
            compactions: true,
            ..Capabilities::default()
        }
    }

    fn read_cached(&self, key: &[u8]) -> Option<Result> {
        let place = match self.look_at_values(key) {
            Looked::Found(version, value) => return Some(Ok(Outcome::Found { version, value })),
            Looked::Unknown(place) => place,
        };
        let small = |stored: &[u8]| (stored.len() <= CACHED_VALUE_BYTES_MAX).then(|| Read::of(stored));
        let found = if self.iterator_reads {
            let mut options = ReadOptions::default();
            options.set_read_tier(ReadTier::BlockCache);
            self.seek(key, options, small)
        } else {
            self.db.get_pinned_opt(key, &self.read_cached).map(|stored| stored.map(|stored| small(&stored)))
        };
        match found {
            Ok(Some(read)) => read.map(|read| {
                self.keep_value(place, key, &read);
                read.answer
            }),
            Ok(None) => Some(Ok(Outcome::NotFound)),
            // Neither memtable nor block cache could tell.
            Err(error) if error.kind() == ErrorKind::Incomplete => None,
            Err(error) => Some(Err(read_failed(error))),
        }
    }

    fn execute(&self, operation: Operation, reply: Arc<dyn Reply>) {
        match operation {
            Operation::Get { key } => reply.complete(self.read(&key, &*reply)),
            Operation::Scan(step) => {
                let (page, perf) = measured(Work::Scan, || self.scan_step(&step));
                reply.measured(&perf);
                reply.complete(page);
            }
            Operation::Write(write) => self.commit_all(&[Pending { write, reply }]),
        }
    }

    fn commit(&self, writes: Vec<Pending>) {
        assert!(!writes.is_empty(), "an empty commit has nothing to answer");
        self.commit_all(&writes);
    }

    fn try_commit(&self, writes: Vec<Pending>) -> std::result::Result<(), Vec<Pending>> {
        match self.try_write(&writes) {
            Some(written) => {
                written::answer(&writes, written);
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
        self.watch.set_cache_bytes(block_bytes);
        if let Some(values) = &self.values {
            values.set_bytes(value_bytes);
        }
    }

    fn checks(&self) -> Vec<Check> {
        self.gate.checks()
    }

    fn observe(&self) -> Arc<Observation> {
        self.watch.latest()
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
        self.gate.look_whether_still_there(self.directory(), "rocksdb/CURRENT");
        self.gate.look_at_free_space(self.directory());
        let is_more_than_0 = |property| matches!(self.db.property_int_value(property), Ok(Some(1..)));
        self.gate.set_stalled(is_more_than_0(properties::IS_WRITE_STOPPED));
        if let Err(error) = self.versions.top_up() {
            tracing::warn!(%error, "cannot reserve versions ahead of time");
        }
        self.look_at_rocksdb();
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
        self.end_piece();
    }
}
