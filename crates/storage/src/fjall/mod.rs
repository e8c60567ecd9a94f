//! The embedded engine on fjall, an LSM tree in Rust. Only the files `fjall*.rs` name its crate.
//!
//! Writes go through the commit section, as with RocksDB: one thread at a time, one batch, one journal write, one sync of it
//! when any member asked for one. fjall fills memtables only behind both, so that no reader sees a write whose sync has not
//! succeeded; and all reads are of a snapshot, so that the members of a batch become visible together. A journal write
//! or sync that failed is final until restart.
//!
//! ```text
//!   stored key: 1 │ the client's key          value: a record (record.rs)
//!               0                             the version of the last write, in every batch
//! ```
//!
//! What stands under the key 0 is how a start knows how far it has got, and keeps fjall's own numbers growing where
//! everything else in the last batch was a removal. Made by `main`, called by `execution`.

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

use bytes::{Bytes, BytesMut};
use fjall::{Database, Keyspace, PersistMode, Readable as _, Slice};

use crate::commits::Commits;
use crate::disk::directory::DataDirectory;
use crate::disk::gate::{Kept, WriteGate};
use crate::disk::high_water::HighWater;
use crate::disk::point_read::Read;
use crate::disk::record::{self, Record};
use crate::disk::versions::Versions;
use crate::disk::written::{self, Written};
use crate::fjall::observation::Watch;
pub use crate::fjall::open::OpenError;
use crate::fjall::open::{Opened, words};
use crate::fjall::options::{LEVEL_0_TABLES_MAX, MEMTABLES, MEMTABLES_SEALED_MAX};
use crate::operation::{Durability, Effect, Error, Operation, Outcome, ScanStep, Version};
use crate::perf::Figure;
use crate::{
    Capabilities, ChangeKind, Check, Compression, Engine, LocalDisk, Observation, PageBuilder, Pending, Perf, Reply,
    Result,
};
use klad_base::clock;
use klad_base::sync::{Mutex, MutexGuard, Signal};

/// fjall's directory in the data directory.
pub(super) const FILES: &str = "fjall";

/// Before every key of a client.
const CLIENTS_KEY: u8 = 1;

/// The end of all keys of clients.
const CLIENTS_END: &[u8] = &[CLIENTS_KEY + 1];

/// Where the version of the last write stands.
pub(super) const MARK_KEY: &[u8] = &[0];

/// What fjall charges a memtable for each entry beyond the bytes of key and value (lsm-tree 3.1.10, `src/memtable/mod.rs`: two
/// slices of 24 bytes, number and kind).
const ENTRY_OVERHEAD_BYTES: u64 = 64;

/// How long a writer waits before it looks again whether a memtable was flushed.
const FLUSH_WAIT: Duration = Duration::from_millis(2);

/// When it has waited for so long, other writes are refused with 503: long beside the flush of a memtable of at most 8 MiB.
const FLUSH_PATIENCE: Duration = Duration::from_secs(2);

/// What of the configuration concerns this engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Block cache in bytes, memtables included.
    pub cache_bytes: u64,
    /// Of the cache, so much is for memtables and not for blocks.
    pub memtable_bytes: u64,
    /// Threads for flushes and compactions.
    pub background_threads: usize,
    /// Below so many free bytes writes are refused.
    pub disk_reserve_bytes: u64,
    /// Of tables, if the directory is new; fjall has no ZSTD.
    pub compression: Compression,
    /// Files that it may keep open, 32 to [`ENGINE_FILES_MAX`](klad_base::limits::ENGINE_FILES_MAX).
    pub open_files_max: u64,
}

/// fjall, and what klad keeps beside it.
pub struct FjallEngine {
    db: Database,
    keyspace: Keyspace,
    section: Mutex<CommitSection>,
    versions: Versions,
    gate: WriteGate,
    /// The version of the last write that is in the journal.
    written: AtomicU64,
    /// Acknowledged writes may not be synced yet.
    unsynced: AtomicBool,
    /// Since when the commit section waits for fjall's threads.
    waits_since: Mutex<Option<Instant>>,
    high_water: HighWater,
    commits: Commits,
    /// A memtable that has more is sealed.
    memtable_bytes_max: u64,
    cache_bytes: u64,
    watch: Watch,
}

/// What the one thread inside needs.
struct CommitSection {
    /// Written since the last memtable was sealed.
    memtable_bytes: u64,
    /// Never raised: somewhere to wait.
    never: Signal,
}

impl FjallEngine {
    /// Opens or creates the store in `path`.
    ///
    /// # Errors
    /// [`OpenError`]; the message says what to do about it where there is something to do.
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
            // A kill may have left writes that were never synced.
            unsynced: AtomicBool::new(last_version > high_water.synced()),
            waits_since: Mutex::new(None),
            high_water,
            commits: Commits::default(),
            memtable_bytes_max: options.memtable_bytes / MEMTABLES,
            cache_bytes: options.cache_bytes,
            watch: Watch::default(),
        };
        engine.housekeeping();
        Ok(engine)
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

    /// Whether fjall's threads must catch up before it takes another write.
    fn is_behind(&self) -> bool {
        self.keyspace.sealed_memtable_count() >= MEMTABLES_SEALED_MAX
            || self.keyspace.l0_table_count() >= LEVEL_0_TABLES_MAX
    }

    /// Waits here for what fjall would wait for without an end, were its threads to fail meanwhile.
    fn wait_for_threads(&self, section: &CommitSection) -> std::result::Result<(), Error> {
        if !self.is_behind() {
            return Ok(());
        }
        *self.waits_since.lock() = Some(clock::now());
        let caught_up = loop {
            self.look_at_threads();
            if let Err(stopped) = self.gate.check_stopped() {
                break Err(stopped);
            }
            section.never.wait_timeout(FLUSH_WAIT);
            if !self.is_behind() {
                break Ok(());
            }
        };
        *self.waits_since.lock() = None;
        self.gate.set_stalled(false);
        caught_up
    }

    /// A short wait is how writes are held to what the disk takes; in a long one no other write has a chance.
    fn is_stalled(&self) -> bool {
        let since = *self.waits_since.lock();
        since.is_some_and(|since| clock::now().saturating_duration_since(since) > FLUSH_PATIENCE)
    }

    /// A thread of fjall's that has met an error has ended, and fjall takes no writes any more, but says so only when asked
    /// for something.
    fn look_at_threads(&self) {
        if let Err(error) = self.db.persist(PersistMode::Buffer) {
            self.gate.stop(&words(&error));
        }
    }

    /// Does `writes` inside the commit section and answers the version of the first.
    fn write(&self, writes: &[Pending]) -> std::result::Result<Written, Error> {
        let (mut section, waited) = self.enter();
        self.gate.check_stopped()?;
        self.wait_for_threads(&section)?;
        // Nothing has happened yet, so failing to reserve versions refuses the writes, and only them.
        let first = self.versions.take(writes.len()).map_err(|error| Error::NoVersion { why: error.to_string() })?;
        let last = first + writes.len() as u64 - 1;
        let sync = writes.iter().any(|one| one.write.durability == Durability::Sync);
        let (batch, bytes) = self.batch(writes, first, last);
        let mode = if sync { PersistMode::SyncData } else { PersistMode::Buffer };
        // Journal write, sync and memtable are one call of fjall's; with a sync, all of it is the sync's time.
        let began = sync.then(clock::now);
        match batch.durability(Some(mode)).commit() {
            Ok(()) => {}
            // Said before anything is done.
            Err(error @ fjall::Error::Poisoned) => {
                let why = words(&error);
                self.gate.stop(&why);
                return Err(Error::WritesStopped { why });
            }
            Err(error) => return Err(self.gate.undetermined(words(&error))),
        }
        let now = clock::now();
        let sync_time = began.map(|began| now.saturating_duration_since(began));
        if let Some(time) = sync_time {
            self.commits.synced(time);
        }
        self.commits.committed(writes.len(), sync);
        self.written.store(last, Ordering::Release);
        if sync {
            // A synced write syncs all of the journal before it. Marked before anyone is answered.
            self.high_water.advance(last);
        } else {
            // After the write: a sync that has begun before it may not cover it, and one must follow.
            self.unsynced.store(true, Ordering::Release);
        }
        self.seal(&mut section, bytes);
        // A sync of earlier writes may have failed meanwhile, and nothing is acknowledged after that.
        self.gate.check_stopped().map_err(|error| self.gate.undetermined(error.to_string()))?;
        let shared_by = u32::try_from(writes.len()).unwrap_or(u32::MAX);
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let perf = Some(Perf::new(shared_by).with(Figure::CommitSectionWait, waited));
        Ok(Written { first, now, sync_time: sync_time.unwrap_or_default(), perf })
    }

    /// The batch, and what its entries take in the memtable. Of several changes of a key only the last is in it: fjall gives
    /// all members of a batch the same number, by which it tells entries of a key apart.
    fn batch(&self, writes: &[Pending], first: u64, last: u64) -> (fjall::OwnedWriteBatch, u64) {
        let mut batch = self.db.batch();
        let mut bytes = 0;
        let mut charge = |key: &Slice, value_bytes: usize| {
            bytes += (key.len() + value_bytes) as u64 + ENTRY_OVERHEAD_BYTES;
        };
        let mut seen = HashSet::new();
        let single = writes.len() == 1 && writes[0].write.changes.len() == 1;
        for (one, version) in writes.iter().rev().zip((first..=last).rev()) {
            for change in one.write.changes.iter().rev() {
                if !single && !seen.insert(&*change.key) {
                    continue;
                }
                let key = joined(&[CLIENTS_KEY], &change.key);
                match &change.effect {
                    Effect::Put(value) => {
                        let value = joined(&record::plain_head(Version::new(version)), &value.payload);
                        charge(&key, value.len());
                        batch.insert(&self.keyspace, key, value);
                    }
                    Effect::Delete => {
                        charge(&key, 0);
                        batch.remove(&self.keyspace, key);
                    }
                }
            }
        }
        let key = Slice::from(MARK_KEY);
        charge(&key, size_of::<u64>());
        batch.insert(&self.keyspace, key, last.to_le_bytes());
        (batch, bytes)
    }

    /// Seals a memtable that is full: fjall's threads write it to a table.
    fn seal(&self, section: &mut CommitSection, bytes: u64) {
        section.memtable_bytes += bytes;
        if section.memtable_bytes < self.memtable_bytes_max {
            return;
        }
        section.memtable_bytes = 0;
        // Only journals that nobody needs any more are touched, so what fails is tried again with the next memtable.
        if let Err(error) = self.keyspace.rotate_memtable() {
            tracing::warn!(why = words(&error), "fjall cannot clean up after a memtable");
        }
    }

    fn read(&self, key: &[u8], reply: &dyn Reply) -> Result {
        let read = match self.db.snapshot().get(&self.keyspace, joined(&[CLIENTS_KEY], key)) {
            Ok(Some(stored)) => Read::with_room(&stored, reply),
            Ok(None) => Read::NOT_FOUND,
            Err(error) => Read::failed(read_failed(&error)),
        };
        read.answer
    }

    fn scan_step(&self, step: &ScanStep) -> Result {
        let mut page = PageBuilder::new(step);
        let from = joined(&[CLIENTS_KEY], &step.from);
        let end = step.end.as_ref().map_or(Slice::from(CLIENTS_END), |end| joined(&[CLIENTS_KEY], end));
        if from >= end {
            return Ok(Outcome::Page(page.finish()));
        }
        for entry in self.db.snapshot().range(&self.keyspace, from..end) {
            let (stored_key, stored) = entry.into_inner().map_err(|error| read_failed(&error))?;
            let (key, record) = (&stored_key[1..], decode(&stored)?);
            if record.expired(clock::unix_ms) {
                continue;
            }
            if !page.has_room(key.len() + record.payload.len()) {
                return Ok(Outcome::Page(page.stop_before(key, record.payload.len())));
            }
            let mut both = BytesMut::with_capacity(key.len() + record.payload.len());
            both.extend_from_slice(key);
            both.extend_from_slice(record.payload);
            let value: Bytes = both.split_off(key.len()).freeze();
            page.add(both.freeze(), value);
        }
        Ok(Outcome::Page(page.finish()))
    }

    fn look_at_fjall(&self) {
        let (version_last, version_reserved) = self.versions.look();
        // In this order, or the difference could be below nothing.
        let synced = self.high_water.synced();
        let unsynced = self.written.load(Ordering::Acquire).saturating_sub(synced);
        let kept = self.gate.measures(&Kept { unsynced, version_last, version_reserved });
        self.watch.look(&self.db, &self.keyspace, kept);
    }
}

/// Both parts in one piece of memory, copied once: a value may be large.
fn joined(head: &[u8], rest: &[u8]) -> Slice {
    let length = head.len() + rest.len();
    Slice::from_reader(&mut head.chain(rest), length).expect("the parts are as long as they are")
}

fn decode(stored: &[u8]) -> std::result::Result<Record<'_>, Error> {
    Record::decode(stored).map_err(|error| Error::Unreadable { why: error.to_string() })
}

fn read_failed(error: &fjall::Error) -> Error {
    Error::ReadFailed { why: words(error) }
}

impl Engine for FjallEngine {
    fn name(&self) -> &'static str {
        "fjall"
    }

    fn durability(&self, asked: Durability) -> Durability {
        asked
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { blocks: true, batches: true, global_order: true, ..Capabilities::default() }
    }

    /// fjall has no read that gives up where it would have to ask the disk.
    fn read_cached(&self, _key: &[u8]) -> Option<Result> {
        None
    }

    fn execute(&self, operation: Operation, reply: Arc<dyn Reply>) {
        match operation {
            Operation::Get { key } => reply.complete(self.read(&key, &*reply)),
            Operation::Scan(step) => reply.complete(self.scan_step(&step)),
            Operation::Write(write) => self.commit(vec![Pending { write, reply }]),
        }
    }

    fn commit(&self, writes: Vec<Pending>) {
        assert!(!writes.is_empty(), "an empty commit has nothing to answer");
        written::answer(&writes, self.write(&writes));
    }

    fn writable(&self, change: ChangeKind) -> std::result::Result<(), Error> {
        self.gate.check(change)
    }

    /// fjall's cache keeps the size that it was made with.
    fn set_cache_bytes(&self, bytes: u64) {
        if bytes != self.cache_bytes {
            tracing::warn!(
                bytes,
                now = self.cache_bytes,
                "the cache of --engine fjall keeps its size until klad is started again"
            );
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
            let why = words(&error);
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
        self.gate.look_whether_still_there(self.versions.directory(), "fjall/version");
        self.gate.look_at_free_space(self.versions.directory());
        self.gate.set_stalled(self.is_stalled());
        if let Err(error) = self.versions.top_up() {
            tracing::warn!(%error, "cannot reserve versions ahead of time");
        }
        // Whoever is in the commit section finds out by itself, and may be waiting for a sync.
        if let Some(_section) = self.section.try_lock() {
            self.look_at_threads();
        }
        self.look_at_fjall();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Write;

    /// Keeps how one operation ended.
    #[derive(Default)]
    struct Kept(Mutex<Option<Result>>);

    impl Reply for Kept {
        fn complete(&self, result: Result) {
            assert!(self.0.lock().replace(result).is_none(), "once");
        }
    }

    impl Kept {
        fn outcome(&self) -> Outcome {
            self.0.lock().take().expect("completed").expect("well")
        }
    }

    fn open(path: &Path) -> FjallEngine {
        let options = Options {
            cache_bytes: 16 << 20,
            memtable_bytes: 4 << 20,
            background_threads: 1,
            disk_reserve_bytes: 0,
            compression: Compression::Lz4,
            open_files_max: klad_base::limits::ENGINE_FILES_MAX,
        };
        FjallEngine::open(path, &options).expect("opens")
    }

    /// Commits all `changes` as one batch, and answers their versions.
    fn commit(engine: &FjallEngine, changes: &[(&'static str, Option<&'static str>)]) -> Vec<Version> {
        let replies: Vec<_> = changes.iter().map(|_| Arc::new(Kept::default())).collect();
        let write = |((key, value), reply): (&(&'static str, Option<&'static str>), &Arc<Kept>)| {
            let put = |value: &'static str| Effect::Put(Bytes::from_static(value.as_bytes()).into());
            let key = Bytes::from_static(key.as_bytes());
            let write = Write::of(key, value.map_or(Effect::Delete, put), Durability::Async);
            Pending { write, reply: reply.clone() }
        };
        engine.commit(changes.iter().zip(&replies).map(write).collect());
        let version = |reply: &Arc<Kept>| match reply.outcome() {
            Outcome::Written { version, durability: Durability::Async } => version,
            other => panic!("{other:?}"),
        };
        replies.iter().map(version).collect()
    }

    fn read(engine: &FjallEngine, key: &str) -> Option<(Version, Bytes)> {
        match engine.read(key.as_bytes(), &Kept::default()).expect("it is read") {
            Outcome::Found { version, value } => Some((version, value)),
            Outcome::NotFound => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn of_several_changes_of_a_key_in_a_batch_the_last_counts() {
        let directory = tempfile::tempdir().expect("a directory");
        let engine = open(directory.path());
        let changes =
            [("a", Some("1")), ("b", Some("1")), ("a", None), ("c", Some("1")), ("a", Some("2")), ("b", None)];
        let versions = commit(&engine, &changes);
        assert!(versions.is_sorted_by(|one, next| one.get() + 1 == next.get()), "{versions:?}");
        let expected = |engine: &FjallEngine| {
            assert_eq!(read(engine, "a"), Some((versions[4], Bytes::from_static(b"2"))));
            assert_eq!(read(engine, "b"), None);
            assert_eq!(read(engine, "c"), Some((versions[3], Bytes::from_static(b"1"))));
        };
        expected(&engine);
        drop(engine);
        expected(&open(directory.path()));
    }

    /// Nothing of such a batch is left in tables, and its number must not be given to another one.
    #[test]
    fn removals_alone_are_behind_what_they_remove_after_restarts_and_flushes() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut last = 0;
        for round in 0..4 {
            let engine = open(directory.path());
            assert_eq!(read(&engine, "k"), None, "{round}");
            let put = commit(&engine, &[("k", Some("v"))])[0];
            assert!(put.get() > last, "{put:?} after {last:?}");
            assert_eq!(read(&engine, "k"), Some((put, Bytes::from_static(b"v"))), "{round}");
            last = commit(&engine, &[("k", None)])[0].get();
            assert_eq!(read(&engine, "k"), None);
            if round % 2 == 0 {
                engine.keyspace.rotate_memtable_and_wait().expect("flushed");
                engine.keyspace.major_compact().expect("compacted");
            }
            engine.sync().expect("synced");
        }
    }
}
