//! Opens RocksDB without its doing any harm: to a directory whose files are gone, or whose log is damaged.
//!
//! RocksDB alone takes a directory without `CURRENT` and logs for an empty one, and deletes every table in it. And where a log ends
//! early it deletes what it could not read, before klad can compare with what was synced. Called by `rocksdb.rs` and
//! `rocksdb_check.rs`.

use std::path::{Path, PathBuf};

use rust_rocksdb::{DB, DBRecoveryMode, ErrorKind, Options as RocksDbOptions, properties};

use crate::disk::directory::{self, DataDirectory};
use crate::disk::high_water::{self, HighWater};
use crate::rocksdb::log_records::{self, Begin, Looked, Oddity};
use klad_base::limits::LOG_BYTES_READ_TWICE;

/// Why the engine could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory itself.
    #[error(transparent)]
    Directory(#[from] directory::Error),
    /// Writes that were synced are missing.
    #[error(transparent)]
    HighWater(#[from] high_water::Error),
    /// RocksDB's words.
    #[error("RocksDB cannot open {}: {why}", path.display())]
    RocksDb {
        /// Where.
        path: PathBuf,
        /// Its words.
        why: String,
        /// Whether it blames the kernel.
        io: bool,
    },
    /// Files that must be there are damaged or missing, in RocksDB's words.
    #[error(
        "{} is damaged: {why}. Nothing was changed. klad check --data {} says what can be read; \
         bring the data back from a checkpoint or a copy",
        path.join("rocksdb").display(), path.display()
    )]
    Damaged {
        /// The data directory.
        path: PathBuf,
        /// RocksDB's words.
        why: String,
    },
}

impl OpenError {
    /// Of a failed open: damage is told apart from what the kernel or the options are to blame for.
    pub(super) fn from_rocksdb(data: &Path, error: rust_rocksdb::Error) -> OpenError {
        let io = error.kind() == ErrorKind::IOError;
        let damaged = error.kind() == ErrorKind::Corruption || error.as_ref().contains("No such file or directory");
        // One line for a person; RocksDB names each file on a line of its own.
        let why = error.into_string().split_whitespace().collect::<Vec<_>>().join(" ");
        if damaged {
            return OpenError::Damaged { path: data.to_owned(), why };
        }
        OpenError::RocksDb { path: data.join("rocksdb"), why, io }
    }
}

/// Where versions were given out there was a `CURRENT`, which names the newest state.
///
/// # Errors
/// [`OpenError::Damaged`] when it is missing.
pub(super) fn check_current(directory: &DataDirectory) -> Result<(), OpenError> {
    let current = directory.path().join("rocksdb/CURRENT");
    if directory.versions_reserved_until() > 0 && !current.exists() {
        let why = "rocksdb/CURRENT, which names the newest state, is missing".to_owned();
        return Err(OpenError::Damaged { path: directory.path().to_owned(), why });
    }
    Ok(())
}

/// No log that RocksDB would read may hold a record at which it would hang, and nothing that was synced may be missing between
/// the tables and the first of them, between two, or within one.
///
/// Answers whether the logs end before what was synced does, as where the last of several is lost.
///
/// # Errors
/// [`OpenError::Damaged`], with the place; what the manifest cannot be read for.
pub(super) fn check_logs(directory: &DataDirectory) -> Result<bool, OpenError> {
    let data = directory.path();
    let begin = where_logs_begin(data)?;
    // What cannot be read RocksDB will say.
    let Looked { oddity, last_write } = log_records::look(&data.join("rocksdb"), begin).unwrap_or_default();
    let synced = high_water::read(data).ok().flatten().unwrap_or(0);
    let (log, position) = match oddity {
        Some(Oddity::Endless { log, position }) => (log, position),
        Some(Oddity::Gap { log, until }) => {
            if synced <= until {
                // As a power cut may leave it, if all that is missing was `async`.
                tracing::warn!(log = %log.display(), until, "writes that were not synced are missing in this log or before it");
                return Ok(false);
            }
            let why =
                format!("writes from number {} on are missing in the log {} or before it", until + 1, log.display());
            return Err(OpenError::Damaged { path: data.to_owned(), why });
        }
        None => return Ok(last_write < synced),
    };
    let why = format!(
        "the log {} has a record of a kind that klad never writes, at byte {position}; cut off there it would give back what \
         stands before",
        log.display()
    );
    Err(OpenError::Damaged { path: directory.path().to_owned(), why })
}

/// By the manifest, or somewhat before. Earlier logs may be there as well, and others of them not: RocksDB removes in no order what it no longer needs
/// (`DBImpl::BackgroundCallPurge` takes it from a hash table), and a kill may come in the middle of that.
fn where_logs_begin(data: &Path) -> Result<Begin, OpenError> {
    let files = data.join("rocksdb");
    if !files.join("CURRENT").exists() {
        return Ok(Begin::default());
    }
    let failed = |error| OpenError::from_rocksdb(data, error);
    let mut options = RocksDbOptions::default();
    // Here are no logs, so none is read: whether they are harmless is not known yet.
    options.set_wal_dir(data);
    // No key is read, so few tables need be opened, and nothing of them but their ends.
    options.set_max_open_files(16);
    options.set_skip_stats_update_on_db_open(true);
    let tables = DB::open_for_read_only(&options, files, false).map_err(failed)?;
    let log = tables.property_int_value(properties::MIN_LOG_NUMBER_TO_KEEP).map_err(failed)?.unwrap_or(0);
    // Each table that is added raises it to at least the last write in it (`db/version_edit.h`, `AddFile`).
    Ok(Begin { log, until: tables.latest_sequence_number() })
}

/// Opens the database to be written, and the mark of what was synced, which it has been compared with.
///
/// A log that is whole, or whose file ends in the middle of its last record, is read once. One that is not, as after some power cuts, or where a
/// kill has ended a write into zeros that were there before, is first compared with what was synced while nothing can be changed: what was synced and cannot be read
/// now may be readable when the disk, or a copy of the file, is back.
pub(super) fn open(directory: &DataDirectory, options: &RocksDbOptions) -> Result<(DB, HighWater), OpenError> {
    check_current(directory)?;
    let ends_early = check_logs(directory)?;
    let data = directory.path();
    let files = directory.subdirectory("rocksdb")?;
    let mut options = options.clone();
    options.create_if_missing(directory.versions_reserved_until() == 0);
    let failed = |error| OpenError::from_rocksdb(data, error);
    let compare = |mut options: RocksDbOptions| {
        options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
        // No key is read, so few tables need be opened.
        options.set_max_open_files(16);
        let readable = DB::open_for_read_only(&options, &files, false).map_err(failed)?;
        Ok::<_, OpenError>(HighWater::check(data, readable.latest_sequence_number()).map(drop)?)
    };
    // A log that was cut off between two records, or is gone, is whole as far as it goes.
    let few = log_bytes(&files) < LOG_BYTES_READ_TWICE;
    if (few || ends_early) && files.join("CURRENT").exists() {
        compare(options.clone())?;
    }
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    let db = match DB::open(&options, &files) {
        Err(error) if error.kind() == ErrorKind::Corruption => {
            compare(options.clone())?;
            options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
            DB::open(&options, &files).map_err(failed)?
        }
        opened => opened.map_err(failed)?,
    };
    let high_water = HighWater::check(data, db.latest_sequence_number())?;
    Ok((db, high_water))
}

/// Of all logs; what cannot be read counts as nothing.
fn log_bytes(files: &Path) -> u64 {
    let logs = std::fs::read_dir(files).into_iter().flatten().flatten().filter(|entry| {
        let name = entry.file_name();
        Path::new(&name).extension().is_some_and(|extension| extension == "log")
    });
    logs.filter_map(|log| Some(log.metadata().ok()?.len())).sum()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::rocksdb::log_records::{BLOCK_BYTES, HEADER_BYTES};

    fn logs(files: &Path) -> Vec<PathBuf> {
        let all = fs::read_dir(files).expect("listed").flatten().map(|entry| entry.path());
        let mut logs: Vec<_> =
            all.filter(|path| path.extension().is_some_and(|extension| extension == "log")).collect();
        logs.sort();
        logs
    }

    /// A store with a log that RocksDB does not need, and none between it and the two that it does.
    fn with_a_log_that_was_left(data: &Path) -> DataDirectory {
        let directory = DataDirectory::open(data, "rocksdb").expect("made");
        let files = directory.subdirectory("rocksdb").expect("made");
        let mut options = RocksDbOptions::default();
        options.create_if_missing(true);
        options.set_write_buffer_size(64 << 10);
        options.set_max_write_buffer_number(8);
        options.set_min_write_buffer_number_to_merge(7);
        options.set_avoid_flush_during_shutdown(true);
        let db = DB::open(&options, &files).expect("opened");
        let mut keys = 0_u32..;
        let mut write_until_there_is_a_new_log = || {
            let newest = logs(&files).pop();
            while logs(&files).pop() == newest {
                db.put(keys.next().expect("a number").to_be_bytes(), [7; 1_000]).expect("written");
            }
        };
        write_until_there_is_a_new_log();
        write_until_there_is_a_new_log();
        let oldest = logs(&files).swap_remove(0);
        let bytes = fs::read(&oldest).expect("read");
        db.flush().expect("flushed");
        write_until_there_is_a_new_log();
        db.put(b"last", b"value").expect("written");
        let synced = db.latest_sequence_number();
        // Removes what it no longer needs before it returns.
        drop(db);
        assert!(!oldest.exists() && logs(&files).len() == 2, "{:?}", logs(&files));
        fs::write(oldest, bytes).expect("put back");
        high_water::write(data, synced).expect("written");
        directory
    }

    #[test]
    fn a_log_that_is_no_longer_needed_is_not_compared_with_what_follows() {
        let data = tempfile::tempdir().expect("a directory");
        let directory = with_a_log_that_was_left(data.path());
        assert!(!check_logs(&directory).expect("nothing is missing"));
    }

    #[test]
    fn twin_a_look_at_every_log_misses_writes_that_are_in_tables() {
        let data = tempfile::tempdir().expect("a directory");
        let _directory = with_a_log_that_was_left(data.path());
        let oddity = log_records::look(&data.path().join("rocksdb"), Begin::default()).expect("read").oddity;
        assert!(matches!(oddity, Some(Oddity::Gap { .. })), "{oddity:?}");
    }

    #[test]
    fn the_first_log_that_is_needed_is_missed() {
        let data = tempfile::tempdir().expect("a directory");
        let directory = with_a_log_that_was_left(data.path());
        fs::remove_file(&logs(&data.path().join("rocksdb"))[1]).expect("removed");
        let error = check_logs(&directory).expect_err("writes are missing").to_string();
        assert!(error.contains("are missing in the log"), "{error}");
    }

    #[test]
    fn the_only_log_that_is_needed_is_missed() {
        let data = tempfile::tempdir().expect("a directory");
        let directory = with_a_log_that_was_left(data.path());
        for log in &logs(&data.path().join("rocksdb"))[1..] {
            fs::remove_file(log).expect("removed");
        }
        assert!(check_logs(&directory).expect("no gap"), "the end of what was synced is missing");
    }

    /// Three writes, of which zeros stand in place of the second; the mark of what was synced is `synced`. Answers the log as well.
    fn with_zeros_in_the_log(data: &Path, synced: u64) -> (DataDirectory, PathBuf) {
        let directory = DataDirectory::open(data, "rocksdb").expect("made");
        let files = directory.subdirectory("rocksdb").expect("made");
        let mut options = RocksDbOptions::default();
        options.create_if_missing(true);
        options.set_avoid_flush_during_shutdown(true);
        let db = DB::open(&options, &files).expect("opened");
        // Each is a block of the log: header, batch header, kind, lengths of key and value, key, value.
        let value = vec![7; BLOCK_BYTES - HEADER_BYTES - 12 - 1 - 1 - 3 - 1];
        for key in 0..3_u8 {
            db.put([key], &value).expect("written");
        }
        drop(db);
        let log = logs(&files).pop().expect("a log");
        let mut bytes = fs::read(&log).expect("read");
        assert_eq!(bytes.len(), 3 * BLOCK_BYTES, "each is a block");
        bytes[BLOCK_BYTES..2 * BLOCK_BYTES].fill(0);
        fs::write(&log, bytes).expect("written");
        high_water::write(data, synced).expect("written");
        (directory, log)
    }

    #[test]
    fn what_zeros_stand_in_place_of_is_missed_where_it_was_synced() {
        let data = tempfile::tempdir().expect("a directory");
        let (directory, log) = with_zeros_in_the_log(data.path(), 3);
        let before = fs::read(&log).expect("read");
        for _ in 0..2 {
            let error = open(&directory, &RocksDbOptions::default()).expect_err("writes are missing").to_string();
            assert!(error.contains("from number 2 on are missing in the log"), "{error}");
            assert!(fs::read(&log).expect("read") == before, "nothing is changed");
        }
    }

    #[test]
    fn what_was_not_synced_may_be_missing() {
        let data = tempfile::tempdir().expect("a directory");
        let (directory, _) = with_zeros_in_the_log(data.path(), 1);
        let (db, _) = open(&directory, &RocksDbOptions::default()).expect("opened");
        assert!(db.get([0]).expect("read").is_some());
    }

    /// As RocksDB reads such a log in any mode, which is why klad looks for them.
    #[test]
    fn twin_rocksdb_passes_over_zeros_and_what_they_stand_in_place_of() {
        for mode in [DBRecoveryMode::TolerateCorruptedTailRecords, DBRecoveryMode::PointInTime] {
            let data = tempfile::tempdir().expect("a directory");
            let (_directory, log) = with_zeros_in_the_log(data.path(), 3);
            let files = data.path().join("rocksdb");
            let looked = log_records::look(&files, Begin::default()).expect("read");
            assert_eq!(looked.oddity, Some(Oddity::Gap { log, until: 1 }));
            let mut options = RocksDbOptions::default();
            options.set_wal_recovery_mode(mode);
            let db = DB::open(&options, &files).expect("opened");
            let there: Vec<bool> = (0..3_u8).map(|key| db.get([key]).expect("read").is_some()).collect();
            assert_eq!(there, [true, false, true]);
        }
    }
}
