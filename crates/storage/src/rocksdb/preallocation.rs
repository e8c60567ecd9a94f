//! Appends zeros to RocksDB's log ahead of its records, so that most syncs need not write a new file length.
//!
//! ```text
//!   000012.log   │ records … │ zeros that are on the disk │
//!                            ╰─ RocksDB's next record overwrites them
//! ```
//!
//! If a write has made a file longer, `fdatasync` costs three disk requests, one after another: the data, the file's
//! inode, and a flush of the disk's cache. A write over existing bytes costs two, and 25 % less CPU time
//! (docs/decisions/tail-latency.md). RocksDB itself reserves blocks, but does not change the file's length.
//! `fallocate` would change the length, but it marks the blocks as unwritten, and the first write of each block must
//! change that metadata.
//!
//! klad appends the zeros through its own file descriptor with `O_APPEND`. The zeros are therefore always after
//! RocksDB's records, even if klad's computed end of the records is wrong. RocksDB writes at its own position, and
//! truncates a log to its own length when it closes the log. After a kill the log ends in zeros, which RocksDB's
//! recovery skips (`db/log_reader.cc`, `kZeroType`).
//!
//! Called by `rocksdb` in the commit section.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rust_rocksdb::Options as RocksDbOptions;
use rust_rocksdb::event_listener::{EventListener, MemTableInfo};

use crate::observation::Measure;
use crate::rocksdb::log_records::{self, BLOCK_BYTES, HEADER_BYTES};
use klad_base::metrics::Counter;
use klad_base::metrics::text::Kind;

/// The zeros that klad appends at a time. The sync that writes the zeros and the new length takes 0.1 to 0.3 ms longer.
static ZEROS: [u8; 256 << 10] = [0; 256 << 10];

/// The maximum size of a batch to preallocate for. For a larger batch, the data costs the disk more than the new
/// length.
const WRITE_BYTES_MAX: u64 = 64 << 10;
const _: () = assert!(2 * WRITE_BYTES_MAX <= ZEROS.len() as u64, "the zeros have room for any such batch");

/// klad looks for the next log under this many file numbers after that of the last log, before it lists the directory.
/// RocksDB numbers all its files, so tables of flushes and compactions take the numbers between two logs.
const NUMBERS_NEAR: u64 = 64;

/// Preallocates the active log.
pub(super) struct Preallocation {
    files: PathBuf,
    /// The minimum number of logs that RocksDB has started since the last search.
    new_logs: Arc<AtomicU32>,
    /// The number of the active log; `None` before the first search.
    number: Option<u64>,
    /// The active log, opened for appending; `None` if it was not found or the append failed.
    log: Option<File>,
    /// The position at which the records end, if klad knows all records.
    records_end: u64,
    /// The length of the log at the last check. RocksDB may have extended it since.
    end: u64,
    zero_bytes: Arc<Counter>,
}

/// Counts new logs.
struct Listener(Arc<AtomicU32>);

impl EventListener for Listener {
    /// RocksDB calls this after it has created the log of the next memtable.
    fn on_memtable_sealed(&self, _: &MemTableInfo) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Preallocation {
    /// Makes a preallocation for the database in `files`, which the caller will open with `options`. The preallocation
    /// counts its zeros in `zero_bytes`.
    pub(super) fn new(options: &mut RocksDbOptions, files: &Path, zero_bytes: Arc<Counter>) -> Preallocation {
        // RocksDB starts one log when it opens the database.
        let new_logs = Arc::new(AtomicU32::new(1));
        options.add_event_listener(Listener(Arc::clone(&new_logs)));
        Preallocation { files: files.to_owned(), new_logs, number: None, log: None, records_end: 0, end: 0, zero_bytes }
    }

    /// Appends zeros if the log is too short for a batch of `bytes` that is about to be written and synced.
    pub(super) fn preallocate(&mut self, bytes: u64) {
        // Errors are ignored, because a log without zeros works too. RocksDB's next write reports causes such as a full
        // disk.
        let ignore = |error: io::Error| tracing::debug!(%error, "no zeros were appended to the log; writes continue");
        match self.new_logs.swap(0, Ordering::Relaxed) {
            0 => {}
            new_logs => self.find_active_log(new_logs).unwrap_or_else(|error| {
                // The next call tries again.
                self.new_logs.fetch_add(new_logs, Ordering::Relaxed);
                ignore(error);
            }),
        }
        if bytes <= WRITE_BYTES_MAX && record_end(self.records_end, bytes) > self.end {
            self.append_zeros().unwrap_or_else(|error| {
                self.log = None;
                ignore(error);
            });
        }
    }

    /// Records that a batch of `bytes` was written.
    pub(super) fn advance(&mut self, bytes: u64) {
        self.records_end = record_end(self.records_end, bytes);
    }

    /// Opens the newest log. `new_logs` is the minimum number of new logs since the last search. After an error no log
    /// is open, so an old log gets no zeros.
    fn find_active_log(&mut self, new_logs: u32) -> io::Result<()> {
        self.log = None;
        let open = |number: u64| OpenOptions::new().append(true).open(self.files.join(format!("{number:06}.log")));
        let near = match self.number {
            Some(number) if new_logs == 1 => {
                (number + 1..=number + NUMBERS_NEAR).find_map(|near| Some((near, open(near).ok()?)))
            }
            _ => None,
        };
        let (number, log) = if let Some(found) = near {
            found
        } else {
            let newest = log_records::logs(&self.files)?.pop();
            let (number, _) = newest.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            (number, open(number)?)
        };
        self.end = log.metadata()?.len();
        self.records_end = self.end;
        (self.number, self.log) = (Some(number), Some(log));
        Ok(())
    }

    fn append_zeros(&mut self) -> io::Result<()> {
        let Some(log) = &mut self.log else { return Ok(()) };
        let metadata = log.metadata()?;
        if metadata.nlink() == 0 {
            // The log was deleted, so RocksDB writes no more records to it.
            self.log = None;
            return Ok(());
        }
        let end = metadata.len();
        if end > self.end || self.records_end > end {
            // RocksDB has extended the log, or `records_end` is wrong. The records end at or before the end of the log.
            self.records_end = end;
        }
        log.write_all(&ZEROS)?;
        self.end = end + ZEROS.len() as u64;
        self.zero_bytes.add(ZEROS.len() as u64);
        Ok(())
    }
}

/// The metric of the appended zeros.
pub(super) fn measure(zero_bytes: &Counter) -> Measure {
    #[expect(clippy::cast_precision_loss, reason = "a few TB at most in a process's life")]
    let value = zero_bytes.get() as f64;
    Measure::one(
        "klad_rocksdb_log_zero_bytes_total",
        Kind::Counter,
        "Zeros that --log-preallocation has written to the log ahead of its records.",
        value,
    )
}

/// Computes the end of a batch of `bytes` that RocksDB writes at `position`. RocksDB splits the batch into records that
/// do not cross a block, each with a header. RocksDB leaves the end of a block unused if a header does not fit there.
fn record_end(mut position: u64, mut bytes: u64) -> u64 {
    let (block, header) = (BLOCK_BYTES as u64, HEADER_BYTES as u64);
    while bytes > 0 {
        let left = block - position % block;
        let piece = left.saturating_sub(header).min(bytes);
        position += if left < header { left } else { header + piece };
        bytes -= piece;
    }
    position
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt as _;

    use rust_rocksdb::{DB, DBRecoveryMode, WriteBatch, WriteOptions};

    use super::*;

    /// A database with keys numbered from 0.
    struct Store {
        directory: tempfile::TempDir,
        db: DB,
        preallocation: Preallocation,
        /// The number of keys written.
        keys: u32,
    }

    impl Store {
        fn new(memtable_bytes: usize) -> Store {
            let directory = tempfile::tempdir().expect("a directory");
            let mut options = RocksDbOptions::default();
            options.create_if_missing(true);
            options.set_write_buffer_size(memtable_bytes);
            let preallocation = Preallocation::new(&mut options, directory.path(), Arc::default());
            let db = DB::open(&options, directory.path()).expect("opened");
            Store { directory, db, preallocation, keys: 0 }
        }

        /// Puts `value` under a new key with a sync. Returns whether that extended the log or started another.
        fn put(&mut self, value: &[u8], preallocate: bool) -> bool {
            let mut batch = WriteBatch::new();
            batch.put(self.keys.to_be_bytes(), value);
            self.keys += 1;
            if preallocate {
                self.preallocation.preallocate(batch.size_in_bytes() as u64);
            }
            let before = self.log();
            let mut synced = WriteOptions::default();
            synced.set_sync(true);
            self.db.write_opt(&batch, &synced).expect("written");
            self.preallocation.advance(batch.size_in_bytes() as u64);
            before != self.log()
        }

        /// The number and length of the newest log.
        fn log(&self) -> (u64, u64) {
            let (number, path) = log_records::logs(self.directory.path()).expect("listed").pop().expect("a log");
            (number, path.metadata().expect("there").len())
        }

        /// Opens a copy of the files as a kill would leave them now, and returns the number of keys in it. No flush
        /// may be running, because it would change files during the copy.
        fn keys_after_a_kill(&self, mode: DBRecoveryMode) -> u32 {
            let copy = tempfile::tempdir().expect("a directory");
            for entry in fs::read_dir(self.directory.path()).expect("listed").flatten() {
                fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copied");
            }
            keys_in(copy.path(), mode, self.keys)
        }
    }

    /// Returns how many of the first `keys` a database contains that is opened in `mode`.
    fn keys_in(files: &Path, mode: DBRecoveryMode, keys: u32) -> u32 {
        let mut options = RocksDbOptions::default();
        options.set_wal_recovery_mode(mode);
        let db = DB::open(&options, files).expect("opened");
        let there = |key: &u32| db.get(key.to_be_bytes()).expect("read").is_some();
        u32::try_from((0..keys).filter(there).count()).expect("few")
    }

    /// Writes 3,000 values with a sync each, over more than 20 logs. Returns how many writes extended the log.
    fn extensions(preallocate: bool) -> usize {
        let mut store = Store::new(64 << 10);
        let extensions = (0..3_000).filter(|number| store.put(&vec![7; 300 + number % 400], preallocate)).count();
        assert!(store.log().0 > 20, "{:?}", store.log());
        let Store { directory, db, keys, .. } = store;
        drop(db);
        assert_eq!(keys_in(directory.path(), DBRecoveryMode::TolerateCorruptedTailRecords, keys), 3_000);
        extensions
    }

    #[test]
    fn few_synced_writes_extend_the_log() {
        // The first write of each log extends it, because klad finds the log only afterwards.
        let extensions = extensions(true);
        assert!(extensions < 60, "{extensions}");
    }

    #[test]
    fn twin_without_preallocation_every_write_extends_the_log() {
        assert_eq!(extensions(false), 3_000);
    }

    #[test]
    fn the_computed_end_of_records_is_right() {
        let mut store = Store::new(4 << 20);
        for bytes in [1, 30_000, 32_750, 40, 7, 65_000, 3, 100_000, 8_000, 8_000, 8_000, 8_000, 5_000] {
            store.put(&vec![7; bytes], true);
            let (number, length) = store.log();
            let log = fs::read(store.directory.path().join(format!("{number:06}.log"))).expect("read");
            let end = log.iter().rposition(|byte| *byte != 0).expect("records") as u64 + 1;
            assert_eq!((store.preallocation.number, store.preallocation.records_end), (Some(number), end), "{bytes}");
            assert!(length >= end);
        }
    }

    #[test]
    fn every_recovery_mode_accepts_zeros_at_the_end() {
        let mut store = Store::new(4 << 20);
        for _ in 0..40 {
            store.put(&[7; 1_000], true);
        }
        let (number, length) = store.log();
        assert!(length > store.preallocation.records_end, "no zeros");
        for mode in [
            DBRecoveryMode::TolerateCorruptedTailRecords,
            DBRecoveryMode::PointInTime,
            DBRecoveryMode::AbsoluteConsistency,
        ] {
            assert_eq!(store.keys_after_a_kill(mode), 40);
        }
        let scan = log_records::scan(store.directory.path(), log_records::ScanStart::default()).expect("read");
        assert_eq!((scan.defect, scan.last_write), (None, 40));
        // RocksDB removes the zeros when it closes the database.
        let path = store.directory.path().join(format!("{number:06}.log"));
        drop(store.db);
        assert_eq!(path.metadata().expect("there").len(), store.preallocation.records_end);
    }

    /// Writes records without `advance`, and then zeros. Returns whether the records are still there.
    fn unknown_records_survive(zeros: impl FnOnce(&mut Preallocation, &Path)) -> bool {
        let mut store = Store::new(4 << 20);
        store.put(&[7; 1_000], true);
        let (number, length) = store.log();
        let mut keys = 1_u32..;
        while store.log() == (number, length) {
            store.db.put(keys.next().expect("a key").to_be_bytes(), [8; 10_000]).expect("written");
        }
        store.keys = keys.start;
        assert_eq!(store.log().0, number, "one log holds them");
        zeros(&mut store.preallocation, &store.directory.path().join(format!("{number:06}.log")));
        store.keys_after_a_kill(DBRecoveryMode::PointInTime) == store.keys
    }

    #[test]
    fn zeros_are_appended_after_unknown_records() {
        assert!(unknown_records_survive(|preallocation, _| {
            let end = preallocation.end;
            preallocation.append_zeros().expect("appended");
            assert!(preallocation.records_end > end && preallocation.end > preallocation.records_end);
        }));
    }

    #[test]
    fn twin_zeros_at_the_assumed_end_destroy_unknown_records() {
        assert!(!unknown_records_survive(|preallocation, path| {
            let log = OpenOptions::new().write(true).open(path).expect("opened");
            log.write_all_at(&ZEROS, preallocation.records_end).expect("written");
        }));
    }

    #[test]
    fn the_newest_of_several_new_logs_is_found() {
        let mut store = Store::new(4 << 20);
        for _ in 0..3 {
            store.put(&[7; 1_000], false);
            store.db.flush().expect("flushed");
        }
        store.put(&[7; 1_000], true);
        assert_eq!(store.preallocation.number, Some(store.log().0));
        assert!(!store.put(&[7; 1_000], true), "the log has room");
    }

    #[test]
    fn a_log_whose_number_is_far_from_the_last_is_found() {
        let mut store = Store::new(4 << 20);
        store.put(&[7; 1_000], true);
        store.db.flush().expect("flushed");
        store.put(&[7; 1_000], false);
        // The same happens after gigabytes of unsynced writes: the last known log was deleted long ago.
        let directory = store.directory.path().to_owned();
        let old = directory.join("gone");
        store.preallocation.log = Some(File::create(&old).expect("made"));
        fs::remove_file(&old).expect("removed");
        store.preallocation.number = Some(store.log().0 + 1);
        store.put(&[7; 1_000], true);
        assert_eq!(store.preallocation.number, Some(store.log().0));
        assert!(!store.put(&[7; 1_000], true), "the log has room");
    }

    #[test]
    fn a_wrong_end_costs_one_append_and_a_deleted_log_gets_none() {
        let mut store = Store::new(4 << 20);
        store.put(&[7; 1_000], true);
        let before = store.preallocation.zero_bytes.get();
        store.preallocation.records_end = 1 << 40;
        for _ in 0..20 {
            store.put(&[7; 1_000], true);
        }
        assert_eq!(store.preallocation.zero_bytes.get(), before + ZEROS.len() as u64);
        let gone = store.directory.path().join("gone");
        store.preallocation.log = Some(OpenOptions::new().append(true).create(true).open(&gone).expect("made"));
        fs::remove_file(&gone).expect("removed");
        store.preallocation.end = 0;
        store.put(&[7; 1_000], true);
        assert!(store.preallocation.log.is_none());
        assert_eq!(store.preallocation.zero_bytes.get(), before + ZEROS.len() as u64);
    }

    #[test]
    fn records_are_written_if_zeros_cannot_be_appended() {
        let mut store = Store::new(4 << 20);
        store.put(&[7; 1_000], true);
        // This file is open for reading only, so the append fails as on a full disk.
        store.preallocation.log = Some(File::open(store.directory.path().join("CURRENT")).expect("opened"));
        store.preallocation.end = 0;
        store.put(&[7; 1_000], true);
        assert!(store.preallocation.log.is_none());
        store.put(&[7; 1_000], true);
        assert_eq!(store.keys_after_a_kill(DBRecoveryMode::PointInTime), 3);
    }
}
