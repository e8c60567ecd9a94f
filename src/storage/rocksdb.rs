//! The embedded engine on RocksDB. Only the files `rocksdb*.rs` name its crate.
//!
//! Point reads are pinned `get`s, never iterators. Writes go through the commit section: one thread at a time, one batch,
//! one log write, `write(sync = true)` when any member asked for it, so that no reader sees a write whose sync has not
//! succeeded. A log write or sync that failed is final until restart: the kernel may have dropped the dirty pages, so
//! trying again could succeed without the data.
//!
//! Made by `main`, called by `execution`.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rust_rocksdb::{DB, ErrorKind, FlushOptions, ReadOptions, ReadTier, WriteBatch, WriteOptions, properties};

use super::directory::DataDirectory;
use super::high_water::HighWater;
use super::maintenance::{self, Checkpoint, Compaction};
use super::perf::Figure;
use super::point_read::Read;
use super::record;
use super::rocksdb_observation::{Beside, Watch};
pub use super::rocksdb_open::OpenError;
use super::rocksdb_options::Shared;
use super::rocksdb_perf::{Work, measured};
use super::rocksdb_threads::Background;
use super::value_cache::{Looked, Made, Place, ValueCache};
use super::versions::Versions;
use super::{ChangeKind, Check, Compression, Engine, Observation, Perf, Reply, Result, Write};
use super::{rocksdb_open, rocksdb_options};
use crate::clock;
use crate::limits::{CACHED_VALUE_BYTES_MAX, COMMIT_BYTES_MAX, MEMTABLE_BYTES_MAX};
use crate::metrics::commits::Commits;
use crate::operation::{Change, Durability, Error, Outcome, ScanStep, Version};
use crate::sync::{Mutex, MutexGuard, RwLock};

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
    /// Why no write is taken any more, once one has failed.
    stopped: RwLock<Option<String>>,
    /// Raised with `stopped`; read on the path of a request.
    is_stopped: AtomicBool,
    /// Acknowledged writes may not be synced yet.
    unsynced: AtomicBool,
    high_water: HighWater,
    commits: Commits,
    free_bytes: AtomicU64,
    /// RocksDB takes no writes until it has flushed or compacted.
    stalled: AtomicBool,
    pub(super) disk_reserve_bytes: AtomicU64,
    iterator_reads: bool,
    /// Values that were read lately.
    values: Option<ValueCache>,
    memtable_bytes: u64,
    value_cache_percent: u64,
    watch: Watch,
    background: Background,
}

/// What the one thread inside needs; the batch keeps its buffer.
struct CommitSection {
    batch: WriteBatch,
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
        let mut database = rocksdb_options::database(options, &shared);
        let watch = Watch::new(shared, &directory.path().join("rocksdb"), &mut database);
        let (db, high_water) = rocksdb_open::open(&directory, &database)?;
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
                places: Vec::new(),
                write_sync,
                write_async: WriteOptions::default(),
                write_now,
            }),
            versions: Versions::new(directory),
            stopped: RwLock::new(None),
            is_stopped: AtomicBool::new(false),
            unsynced: AtomicBool::new(false),
            high_water,
            commits: Commits::default(),
            free_bytes: AtomicU64::new(u64::MAX),
            stalled: AtomicBool::new(false),
            disk_reserve_bytes: AtomicU64::new(options.disk_reserve_bytes),
            iterator_reads: options.iterator_reads,
            values: ValueCache::new(value_bytes),
            memtable_bytes: options.memtable_bytes,
            value_cache_percent,
            watch,
            background: Background::new(options.background_threads),
        };
        engine.upkeep();
        Ok(engine)
    }

    fn check_stopped(&self) -> std::result::Result<(), Error> {
        if !self.is_stopped.load(Ordering::Acquire) {
            return Ok(());
        }
        let why = self.stopped.read().clone().unwrap_or_default();
        Err(Error::WritesStopped { why })
    }

    fn stop_writes(&self, why: &str) {
        let mut stopped = self.stopped.write();
        if stopped.is_none() {
            tracing::error!(why, "no write is taken any more until klad is started again; reads go on");
            *stopped = Some(why.to_owned());
            self.is_stopped.store(true, Ordering::Release);
        }
    }

    fn check_stalled(&self) -> std::result::Result<(), Error> {
        if self.stalled.load(Ordering::Relaxed) { Err(Error::Stalled) } else { Ok(()) }
    }

    fn check_space(&self, change: ChangeKind) -> std::result::Result<(), Error> {
        let free_bytes = self.free_bytes.load(Ordering::Relaxed);
        // Removing is how space is won back, so it may use the upper half of the reserve.
        let whole = self.disk_reserve_bytes.load(Ordering::Relaxed);
        let reserve_bytes = match change {
            ChangeKind::Put => whole,
            ChangeKind::Delete => whole / 2,
        };
        if free_bytes < reserve_bytes { Err(Error::NoSpace { free_bytes, reserve_bytes }) } else { Ok(()) }
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
        writes: &[Write],
        first: Version,
        places: &mut Vec<u64>,
        done: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let Some(values) = &self.values else { return done() };
        values.begin(writes.iter().map(|write| &*write.key), places);
        let done = done();
        let made = writes.iter().zip(first.0..).map(|(write, version)| {
            let made = match &write.change {
                Change::Put(value) if done.is_ok() && value.len() <= CACHED_VALUE_BYTES_MAX => {
                    Made::Value(Version(version), value)
                }
                Change::Put(_) | Change::Delete => Made::Other,
            };
            (&*write.key, made)
        });
        values.end(places, made);
        done
    }

    fn look_at_rocksdb(&self) {
        let (version_last, version_reserved) = self.versions.look();
        self.watch.look(
            &self.db,
            &Beside {
                free_bytes: self.free_bytes.load(Ordering::Relaxed),
                reserve_bytes: self.disk_reserve_bytes.load(Ordering::Relaxed),
                stopped: self.is_stopped.load(Ordering::Acquire),
                // In this order, or the difference could be below nothing.
                synced: self.high_water.synced(),
                written: self.db.latest_sequence_number(),
                version_last,
                version_reserved,
                values: self.values.as_ref().map(ValueCache::figures).unwrap_or_default(),
            },
        );
    }

    pub(super) fn directory(&self) -> &DataDirectory {
        self.versions.directory()
    }

    /// What is written into deleted files is gone with the process, so nothing may be acknowledged into them.
    fn look_whether_still_there(&self) {
        if self.is_stopped.load(Ordering::Acquire) {
            return;
        }
        let gone = self.directory().still_there().err().or_else(|| {
            let current = self.directory().path().join("rocksdb/CURRENT");
            let missing = std::fs::metadata(&current).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
            missing.then(|| format!("{} was deleted while klad serves it", current.display()))
        });
        if let Some(why) = gone {
            self.stop_writes(&format!(
                "{why}; reads go on: copy what is needed by GET before klad is stopped, or put the directory back first"
            ));
        }
    }

    fn look_at_free_space(&self) {
        match rustix::fs::statvfs(self.versions.directory().path()) {
            Ok(space) => self.free_bytes.store(space.f_bavail.saturating_mul(space.f_frsize), Ordering::Relaxed),
            Err(error) => tracing::warn!(%error, "cannot read the free space of the data directory"),
        }
    }

    /// Fills the batch; the commit section is held.
    fn fill(batch: &mut WriteBatch, writes: &[Write], first: Version) -> std::result::Result<(), String> {
        batch.clear();
        for (write, version) in writes.iter().zip(first.0..) {
            match &write.change {
                Change::Put(value) => {
                    let head = record::plain_head(Version(version));
                    batch
                        .put_vectored(&[IoSlice::new(&write.key)], &[IoSlice::new(&head), IoSlice::new(value)])
                        .map_err(rust_rocksdb::Error::into_string)?;
                }
                Change::Delete => batch.delete(&write.key),
            }
        }
        Ok(())
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
    fn write(&self, writes: &[Write]) -> std::result::Result<Written, Error> {
        let (mut section, waited) = self.enter();
        self.check_stopped()?;
        // Nothing has happened yet, so failing to reserve versions refuses the writes, and only them.
        let first = self.versions.take(writes.len()).map_err(|error| Error::NoVersion { why: error.to_string() })?;
        let sync = writes.iter().any(|write| write.durability == Durability::Sync);
        let CommitSection { batch, places, write_sync, write_async, .. } = &mut *section;
        Self::fill(batch, writes, first).map_err(|why| self.undetermined(why))?;
        // Log write, sync and memtable are one call of RocksDB's; with a sync, all of it is the sync's time.
        let began = sync.then(clock::now);
        let options = if sync { write_sync } else { write_async };
        let (done, perf) = measured(Work::Batch(writes.len()), || {
            self.write_beside_values(writes, first, places, || self.db.write_opt(batch, options))
        });
        let perf = perf.with(Figure::CommitSectionWait, u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
        done.map_err(|error| self.undetermined(error.into_string()))?;
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
    fn try_write(&self, writes: &[Write]) -> Option<std::result::Result<Written, Error>> {
        let mut section = self.section.try_lock()?;
        if let Err(stopped) = self.check_stopped() {
            return Some(Err(stopped));
        }
        let first = self.versions.try_take(writes.len())?;
        let CommitSection { batch, places, write_now, .. } = &mut *section;
        if let Err(why) = Self::fill(batch, writes, first) {
            return Some(Err(self.undetermined(why)));
        }
        match self.write_beside_values(writes, first, places, || self.db.write_opt(batch, write_now)) {
            Ok(()) => {
                self.commits.committed(writes.len(), false);
                // Nothing was waited for, and what it took is not worth a dozen looks at the clock.
                let written = Written { first, now: clock::now(), sync_time: Duration::ZERO, perf: None };
                Some(self.finish(batch, false).map(|()| written))
            }
            // RocksDB slows writes down or has stopped them, and says so before it has done anything.
            Err(error) if error.kind() == ErrorKind::Incomplete => None,
            Err(error) => Some(Err(self.undetermined(error.into_string()))),
        }
    }

    fn undetermined(&self, why: String) -> Error {
        self.stop_writes(&why);
        Error::Undetermined { why }
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
        self.check_stopped().map_err(|error| self.undetermined(error.to_string()))
    }
}

/// A batch that was written.
struct Written {
    /// The version of its first member.
    first: Version,
    /// When it was.
    now: Instant,
    /// How long the write took, where it was one with sync.
    sync_time: Duration,
    /// What it took.
    perf: Option<Perf>,
}

fn answer_writes(writes: Vec<Write>, written: std::result::Result<Written, Error>) {
    match written {
        Ok(Written { first, now, sync_time, perf }) => {
            for (write, version) in writes.into_iter().zip(first.0..) {
                let version = Version(version);
                write.reply.clocked(now, sync_time);
                if let Some(perf) = &perf {
                    write.reply.measured(perf);
                }
                write.reply.complete(Ok(Outcome::Written { version, durability: write.durability }));
            }
        }
        Err(error) => {
            for write in writes {
                write.reply.complete(Err(error.clone()));
            }
        }
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

    fn blocks(&self) -> bool {
        true
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

    fn read(&self, key: &[u8], reply: &dyn Reply) {
        let place = match self.look_at_values(key) {
            Looked::Found(version, value) => return reply.complete(Ok(Outcome::Found { version, value })),
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
        reply.complete(read.answer);
    }

    fn scan(&self, step: &ScanStep, reply: &dyn Reply) {
        let (page, perf) = measured(Work::Scan, || self.scan_step(step));
        reply.measured(&perf);
        reply.complete(page);
    }

    fn commit(&self, writes: Vec<Write>) {
        assert!(!writes.is_empty(), "an empty commit has nothing to answer");
        let written = self.write(&writes);
        answer_writes(writes, written);
    }

    fn try_commit(&self, writes: Vec<Write>) -> std::result::Result<(), Vec<Write>> {
        match self.try_write(&writes) {
            Some(written) => {
                answer_writes(writes, written);
                Ok(())
            }
            None => Err(writes),
        }
    }

    fn sync(&self) -> std::result::Result<(), String> {
        if let Err(error) = self.check_stopped() {
            return Err(error.to_string());
        }
        if !self.unsynced.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let (until, began) = (self.db.latest_sequence_number(), clock::now());
        self.db.flush_wal(true).map_err(|error| {
            let why = error.into_string();
            self.stop_writes(&why);
            why
        })?;
        self.commits.synced(clock::now().saturating_duration_since(began));
        self.high_water.advance(until);
        Ok(())
    }

    fn writable(&self, change: ChangeKind) -> std::result::Result<(), Error> {
        self.check_stopped()?;
        self.check_stalled()?;
        self.check_space(change)
    }

    fn set_disk_reserve(&self, bytes: u64) {
        self.disk_reserve_bytes.store(bytes, Ordering::Relaxed);
    }

    fn set_cache_bytes(&self, bytes: u64) {
        let (block_bytes, value_bytes) = split(bytes, self.memtable_bytes, self.value_cache_percent);
        self.watch.set_cache_bytes(block_bytes);
        if let Some(values) = &self.values {
            values.set_bytes(value_bytes);
        }
    }

    fn commits(&self) -> Option<&Commits> {
        Some(&self.commits)
    }

    fn upkeep(&self) {
        self.background.upkeep();
        self.look_whether_still_there();
        self.look_at_free_space();
        let stopped = self.db.property_int_value(properties::IS_WRITE_STOPPED);
        self.stalled.store(matches!(stopped, Ok(Some(1..))), Ordering::Relaxed);
        if let Err(error) = self.versions.top_up() {
            tracing::warn!(%error, "cannot reserve versions ahead of time");
        }
        self.look_at_rocksdb();
    }

    fn checks(&self) -> Vec<Check> {
        vec![
            Check::of("log", self.check_stopped()),
            Check::of("write-stall", self.check_stalled()),
            Check::of("disk-space", self.check_space(ChangeKind::Put)),
        ]
    }

    fn observe(&self) -> Arc<Observation> {
        self.watch.latest()
    }

    fn checkpoint(&self, target: &Path) -> std::result::Result<Checkpoint, maintenance::Error> {
        self.make_checkpoint(target)
    }

    fn compact(
        &self,
        bottommost: bool,
        go_on: &dyn Fn(u64, u64) -> bool,
    ) -> std::result::Result<Compaction, maintenance::Error> {
        self.compact_all(bottommost, go_on)
    }

    fn interrupt_compaction(&self) {
        self.end_piece();
    }
}
