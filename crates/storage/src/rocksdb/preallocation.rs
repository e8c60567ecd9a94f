//! The file of the log is longer than what RocksDB has written to it, so that a sync need not write the file's new length.
//!
//! ```text
//!   000012.log   │ records … │ zeros that are on the disk │
//!                            ╰─ RocksDB's next record overwrites them
//! ```
//!
//! `fdatasync` after a write that made a file longer is three requests of the disk, one after the other: the data, the file's
//! inode, and that the disk empties its cache. Over bytes that are there already it is two, and takes a quarter less of the
//! core (docs/decisions/2026-11-25-the-log-is-longer-than-its-records.md). RocksDB reserves blocks, but not length; `fallocate`
//! with length leaves blocks marked as never written, which is metadata that each first write has to change, too.
//!
//! The zeros are appended through a descriptor of klad's own with `O_APPEND`, so they stand behind whatever RocksDB has written,
//! no matter what klad believes that is. RocksDB writes at its own position, and cuts a log to its length when it closes it. A
//! log that a kill leaves ends in zeros, which RocksDB's recovery passes over (`db/log_reader.cc`, `kZeroType`).
//!
//! Called by `rocksdb.rs` in the commit section.

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

/// So many zeros at a time. The one sync in many that has them and the length to write takes 0.1 to 0.3 ms more.
static ZEROS: [u8; 256 << 10] = [0; 256 << 10];

/// A larger write makes the log longer itself: what its own bytes take of the disk is more than the length does.
const WRITE_BYTES_MAX: u64 = 64 << 10;
const _: () = assert!(2 * WRITE_BYTES_MAX <= ZEROS.len() as u64, "one piece holds any such write");

/// The next log is tried among so many numbers after the last, and looked for in the directory if it is none of them. All files have numbers; between
/// two logs are the tables that flushes and compactions make meanwhile.
const NUMBERS_NEAR: u64 = 64;

/// Keeps the log longer than its records.
pub(super) struct Preallocation {
    files: PathBuf,
    /// Logs that were begun since the last look, at least.
    begun: Arc<AtomicU32>,
    /// The number of the log; none before the first look.
    number: Option<u64>,
    /// To append to it; none where it was not found, or takes no zeros.
    log: Option<File>,
    /// Where its records end, if RocksDB was asked for no others than klad knows of.
    records_end: u64,
    /// Its length when it was last looked at; RocksDB may have made it longer since.
    end: u64,
    zero_bytes: Arc<Counter>,
}

struct Listener(Arc<AtomicU32>);

impl EventListener for Listener {
    /// The log of the next memtable is there already.
    fn on_memtable_sealed(&self, _: &MemTableInfo) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Preallocation {
    /// For the database in `files` that is to be opened with `options`. Counts in `zero_bytes`.
    pub(super) fn new(options: &mut RocksDbOptions, files: &Path, zero_bytes: Arc<Counter>) -> Preallocation {
        // The one that RocksDB begins when it is opened.
        let begun = Arc::new(AtomicU32::new(1));
        options.add_event_listener(Listener(Arc::clone(&begun)));
        Preallocation { files: files.to_owned(), begun, number: None, log: None, records_end: 0, end: 0, zero_bytes }
    }

    /// A batch of so many bytes is about to be written and synced.
    pub(super) fn make_room(&mut self, bytes: u64) {
        // A log without zeros works as well, and what keeps zeros out of it, such as a full disk, records will meet and tell.
        let keep_on = |error: io::Error| tracing::debug!(%error, "no zeros were appended to the log");
        match self.begun.swap(0, Ordering::Relaxed) {
            0 => {}
            begun => self.find(begun).unwrap_or_else(|error| {
                // Looked for again before the next.
                self.begun.fetch_add(begun, Ordering::Relaxed);
                keep_on(error);
            }),
        }
        if bytes <= WRITE_BYTES_MAX && record_end(self.records_end, bytes) > self.end {
            self.append_zeros().unwrap_or_else(|error| {
                self.log = None;
                keep_on(error);
            });
        }
    }

    /// A batch of so many bytes was written.
    pub(super) fn written(&mut self, bytes: u64) {
        self.records_end = record_end(self.records_end, bytes);
    }

    /// Opens the newest log. `begun`: so many are new, at least. Without it none has zeros, rather than one that is old.
    fn find(&mut self, begun: u32) -> io::Result<()> {
        self.log = None;
        let open = |number: u64| OpenOptions::new().append(true).open(self.files.join(format!("{number:06}.log")));
        let near = match self.number {
            Some(number) if begun == 1 => {
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
            // Nobody would ever write over them.
            self.log = None;
            return Ok(());
        }
        let end = metadata.len();
        if end > self.end || self.records_end > end {
            // Records have made it longer, or are not where they were believed to be: a log is no shorter than they are.
            self.records_end = end;
        }
        log.write_all(&ZEROS)?;
        self.end = end + ZEROS.len() as u64;
        self.zero_bytes.add(ZEROS.len() as u64);
        Ok(())
    }
}

/// For the metrics page.
pub(super) fn measure(zero_bytes: &Counter) -> Measure {
    #[expect(clippy::cast_precision_loss, reason = "a few TB at most in a process's life")]
    let value = zero_bytes.get() as f64;
    Measure::one(
        "klad_rocksdb_log_zero_bytes_total",
        Kind::Counter,
        "Zeros written to the log ahead of its records by --log-preallocation.",
        value,
    )
}

/// Where a record ends that begins at `position`, as RocksDB writes it: in pieces, none of which crosses a block, each behind a header, and none
/// where less than a header is left of a block.
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

    /// A database, and the next of its keys.
    struct Store {
        directory: tempfile::TempDir,
        db: DB,
        preallocation: Preallocation,
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

        /// Puts `value` under a new key, synced; answers whether that made the log longer or began another.
        fn put(&mut self, value: &[u8], make_room: bool) -> bool {
            let mut batch = WriteBatch::new();
            batch.put(self.keys.to_be_bytes(), value);
            self.keys += 1;
            if make_room {
                self.preallocation.make_room(batch.size_in_bytes() as u64);
            }
            let before = self.log();
            let mut synced = WriteOptions::default();
            synced.set_sync(true);
            self.db.write_opt(&batch, &synced).expect("written");
            self.preallocation.written(batch.size_in_bytes() as u64);
            before != self.log()
        }

        /// The number and length of the newest log.
        fn log(&self) -> (u64, u64) {
            let (number, path) = log_records::logs(self.directory.path()).expect("listed").pop().expect("a log");
            (number, path.metadata().expect("there").len())
        }

        /// Opens what a kill would leave now, and answers how many of the keys are there. No flush may be under way, which would change files
        /// while they are copied.
        fn keys_after_a_kill(&self, mode: DBRecoveryMode) -> u32 {
            let copy = tempfile::tempdir().expect("a directory");
            for entry in fs::read_dir(self.directory.path()).expect("listed").flatten() {
                fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copied");
            }
            keys_in(copy.path(), mode, self.keys)
        }
    }

    /// How many of the first `keys` are in a database that is opened in `mode`.
    fn keys_in(files: &Path, mode: DBRecoveryMode, keys: u32) -> u32 {
        let mut options = RocksDbOptions::default();
        options.set_wal_recovery_mode(mode);
        let db = DB::open(&options, files).expect("opened");
        let there = |key: &u32| db.get(key.to_be_bytes()).expect("read").is_some();
        u32::try_from((0..keys).filter(there).count()).expect("few")
    }

    /// Of 3,000 synced PUTs, through two dozen logs: how many made their log longer.
    fn longer(make_room: bool) -> usize {
        let mut store = Store::new(64 << 10);
        let longer = (0..3_000).filter(|number| store.put(&vec![7; 300 + number % 400], make_room)).count();
        assert!(store.log().0 > 20, "{:?}", store.log());
        let Store { directory, db, keys, .. } = store;
        drop(db);
        assert_eq!(keys_in(directory.path(), DBRecoveryMode::TolerateCorruptedTailRecords, keys), 3_000);
        longer
    }

    #[test]
    fn few_synced_writes_make_the_log_longer() {
        // The first of each log, which is written there before its number is known.
        let longer = longer(true);
        assert!(longer < 60, "{longer}");
    }

    #[test]
    fn twin_a_log_that_ends_with_its_records_is_noticed() {
        assert_eq!(longer(false), 3_000);
    }

    #[test]
    fn records_end_where_they_are_thought_to() {
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
    fn zeros_at_the_end_are_an_end_to_every_reader() {
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
        let looked = log_records::look(store.directory.path(), log_records::Begin::default()).expect("read");
        assert_eq!((looked.oddity, looked.last_write), (None, 40));
        // And a database that is closed has none.
        let path = store.directory.path().join(format!("{number:06}.log"));
        drop(store.db);
        assert_eq!(path.metadata().expect("there").len(), store.preallocation.records_end);
    }

    /// Records that klad does not know of are written, and then zeros; whether the records are still there.
    fn records_that_nobody_knew_of(zeros: impl FnOnce(&mut Preallocation, &Path)) -> bool {
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
    fn zeros_stand_behind_records_that_nobody_knew_of() {
        assert!(records_that_nobody_knew_of(|preallocation, _| {
            let end = preallocation.end;
            preallocation.append_zeros().expect("appended");
            assert!(preallocation.records_end > end && preallocation.end > preallocation.records_end);
        }));
    }

    #[test]
    fn twin_zeros_where_records_are_believed_to_end_are_noticed() {
        assert!(!records_that_nobody_knew_of(|preallocation, path| {
            let log = OpenOptions::new().write(true).open(path).expect("opened");
            log.write_all_at(&ZEROS, preallocation.records_end).expect("written");
        }));
    }

    #[test]
    fn of_logs_that_were_begun_at_once_the_last_is_found() {
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
        // As after gigabytes that were not synced: the last look was at a log that is long gone.
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
    fn a_wrong_belief_costs_one_piece_and_a_log_without_a_name_gets_none() {
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
    fn a_log_that_takes_no_zeros_takes_records() {
        let mut store = Store::new(4 << 20);
        store.put(&[7; 1_000], true);
        // As it is where the disk is full; nothing can be written to this one.
        store.preallocation.log = Some(File::open(store.directory.path().join("CURRENT")).expect("opened"));
        store.preallocation.end = 0;
        store.put(&[7; 1_000], true);
        assert!(store.preallocation.log.is_none());
        store.put(&[7; 1_000], true);
        assert_eq!(store.keys_after_a_kill(DBRecoveryMode::PointInTime), 3);
    }
}
