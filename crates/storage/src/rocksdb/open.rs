//! Opens RocksDB after checks that prevent RocksDB from destroying data in a damaged directory.
//!
//! RocksDB treats a directory without `CURRENT` and without logs as empty, and deletes all tables in it. If a log ends
//! early, RocksDB deletes the part that it could not read, before klad can compare the recovered writes with the mark
//! of what was synced. Called by `rocksdb` and `rocksdb::check`.

use std::path::{Path, PathBuf};

use rust_rocksdb::{DB, DBRecoveryMode, ErrorKind, Options as RocksDbOptions, properties};

use crate::disk::directory::{self, DataDirectory};
use crate::disk::high_water::{self, HighWater};
use crate::limits::LOG_BYTES_READ_TWICE;
use crate::rocksdb::log_records::{self, LogDefect, LogScan, ScanStart};

/// Why the engine could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Directory(#[from] directory::Error),
    /// Writes that were synced are missing.
    #[error(transparent)]
    HighWater(#[from] high_water::Error),
    /// RocksDB returned an error that is not damage.
    #[error("RocksDB cannot open {}: {why}", path.display())]
    RocksDb {
        /// RocksDB's directory.
        path: PathBuf,
        /// RocksDB's message.
        why: String,
        /// Whether it is an I/O error.
        io: bool,
    },
    /// A required file is damaged or missing.
    #[error(
        "{} is damaged: {why}. Nothing was changed. Run klad check --data {} to see what can be read, \
         and restore the data from a checkpoint or a copy",
        path.join("rocksdb").display(), path.display()
    )]
    Damaged {
        /// The data directory.
        path: PathBuf,
        /// The defect.
        why: String,
    },
}

impl OpenError {
    /// Converts RocksDB's error, and separates damage from errors of the kernel or the options.
    pub(super) fn from_rocksdb(data: &Path, error: rust_rocksdb::Error) -> OpenError {
        let io = error.kind() == ErrorKind::IOError;
        let damaged = error.kind() == ErrorKind::Corruption || error.as_ref().contains("No such file or directory");
        // RocksDB names each file on a separate line; klad's message is one line.
        let why = error.into_string().split_whitespace().collect::<Vec<_>>().join(" ");
        if damaged {
            return OpenError::Damaged { path: data.to_owned(), why };
        }
        OpenError::RocksDb { path: data.join("rocksdb"), why, io }
    }
}

/// Checks that `CURRENT`, which names the newest manifest, exists if any version was ever given out.
///
/// # Errors
/// [`OpenError::Damaged`] if `CURRENT` is missing.
pub(super) fn check_current(directory: &DataDirectory) -> Result<(), OpenError> {
    let current = directory.path().join("rocksdb/CURRENT");
    if directory.versions_reserved_until() > 0 && !current.exists() {
        let why = "rocksdb/CURRENT, which names the newest manifest, is missing".to_owned();
        return Err(OpenError::Damaged { path: directory.path().to_owned(), why });
    }
    Ok(())
}

/// Checks the logs that RocksDB would read. They must not contain a record at which RocksDB hangs. No synced write may
/// be missing between the tables and the first log, between two logs, or within a log.
///
/// Returns whether the logs end before the mark of what was synced, for example because the last of several logs is
/// lost.
///
/// # Errors
/// [`OpenError::Damaged`] with the position; [`OpenError::RocksDb`] if the manifest cannot be read.
pub(super) fn check_logs(directory: &DataDirectory) -> Result<bool, OpenError> {
    let data = directory.path();
    let start = scan_start(data)?;
    // An error is ignored here, because RocksDB reports files that cannot be read.
    let LogScan { defect, last_write } = log_records::scan(&data.join("rocksdb"), start).unwrap_or_default();
    let synced = high_water::read(data).ok().flatten().unwrap_or(0);
    let why = match defect {
        None => return Ok(last_write < synced),
        Some(LogDefect::Gap { log, last_before }) if synced <= last_before => {
            // A power cut can cause this if all missing writes were `async`.
            let (log, until) = (log.display(), last_before);
            tracing::warn!(%log, until, "unsynced writes are missing in or before this log; klad starts without them");
            return Ok(false);
        }
        Some(LogDefect::Gap { log, last_before }) => {
            let first = last_before + 1;
            format!("writes from number {first} on are missing in the log {} or before it", log.display())
        }
        Some(LogDefect::HangingRecord { log, position }) => format!(
            "the log {} has a record of a type that klad never writes, at byte {position}; truncated there, it would \
             still contain the writes before that record",
            log.display()
        ),
    };
    Err(OpenError::Damaged { path: data.to_owned(), why })
}

/// Reads from the manifest the place where the scan of the logs must start. The result may be an earlier place.
///
/// The directory may contain older logs, with gaps between them: RocksDB removes logs in no particular order
/// (`DBImpl::BackgroundCallPurge` takes them from a hash table), and a kill may interrupt the removal.
fn scan_start(data: &Path) -> Result<ScanStart, OpenError> {
    let files = data.join("rocksdb");
    if !files.join("CURRENT").exists() {
        return Ok(ScanStart::default());
    }
    let failed = |error| OpenError::from_rocksdb(data, error);
    let mut options = RocksDbOptions::default();
    // The directory `data` has no logs, so RocksDB reads no log here. A record in a log could make RocksDB hang.
    options.set_wal_dir(data);
    // No key is read, so RocksDB needs few open tables, and only their footers.
    options.set_max_open_files(16);
    options.set_skip_stats_update_on_db_open(true);
    let tables = DB::open_for_read_only(&options, files, false).map_err(failed)?;
    let first_log = tables.property_int_value(properties::MIN_LOG_NUMBER_TO_KEEP).map_err(failed)?.unwrap_or(0);
    // Each new table raises this number to at least the last write in the table (`db/version_edit.h`, `AddFile`).
    Ok(ScanStart { first_log, last_write_in_tables: tables.latest_sequence_number() })
}

/// Opens the database for writing. Then compares the high-water mark with the recovered writes, and opens the mark.
///
/// RocksDB reads a log once if the log is complete or its file ends inside the last record, and the logs are not short
/// ([`LOG_BYTES_READ_TWICE`]). Any other log is first read without write access and compared with the mark, because
/// synced writes that cannot be read now may be readable later from the disk or a copy. Some power cuts leave such a
/// log, and so does a kill during a write into preallocated zeros.
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
        // No key is read, so RocksDB needs few open tables.
        options.set_max_open_files(16);
        let readable = DB::open_for_read_only(&options, &files, false).map_err(failed)?;
        Ok::<_, OpenError>(HighWater::check(data, readable.latest_sequence_number()).map(drop)?)
    };
    // RocksDB does not notice a log that was truncated between two records or removed.
    let is_short = log_records::log_bytes(&files) < LOG_BYTES_READ_TWICE;
    if (is_short || ends_early) && files.join("CURRENT").exists() {
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

    /// Makes a database with an old log that RocksDB no longer needs, a gap, and two logs that it needs.
    fn with_an_obsolete_log(data: &Path) -> DataDirectory {
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
        // RocksDB removes obsolete logs before it returns.
        drop(db);
        assert!(!oldest.exists() && logs(&files).len() == 2, "{:?}", logs(&files));
        fs::write(oldest, bytes).expect("put back");
        high_water::write(data, synced).expect("written");
        directory
    }

    #[test]
    fn an_obsolete_log_is_not_checked() {
        let data = tempfile::tempdir().expect("a directory");
        let directory = with_an_obsolete_log(data.path());
        assert!(!check_logs(&directory).expect("nothing is missing"));
    }

    #[test]
    fn twin_a_scan_of_all_logs_finds_a_gap_of_writes_that_are_in_tables() {
        let data = tempfile::tempdir().expect("a directory");
        let _directory = with_an_obsolete_log(data.path());
        let defect = log_records::scan(&data.path().join("rocksdb"), ScanStart::default()).expect("read").defect;
        assert!(matches!(defect, Some(LogDefect::Gap { .. })), "{defect:?}");
    }

    #[test]
    fn a_missing_first_log_is_detected() {
        let data = tempfile::tempdir().expect("a directory");
        let directory = with_an_obsolete_log(data.path());
        fs::remove_file(&logs(&data.path().join("rocksdb"))[1]).expect("removed");
        let error = check_logs(&directory).expect_err("writes are missing").to_string();
        assert!(error.contains("are missing in the log"), "{error}");
    }

    #[test]
    fn a_loss_of_all_needed_logs_is_detected() {
        let data = tempfile::tempdir().expect("a directory");
        let directory = with_an_obsolete_log(data.path());
        for log in &logs(&data.path().join("rocksdb"))[1..] {
            fs::remove_file(log).expect("removed");
        }
        assert!(check_logs(&directory).expect("no gap"), "the end of what was synced is missing");
    }

    /// Makes a database of three writes and replaces the second by zeros in the log. The mark of what was synced is
    /// `synced`. Also returns the path of the log.
    fn with_zeros_in_the_log(data: &Path, synced: u64) -> (DataDirectory, PathBuf) {
        let directory = DataDirectory::open(data, "rocksdb").expect("made");
        let files = directory.subdirectory("rocksdb").expect("made");
        let mut options = RocksDbOptions::default();
        options.create_if_missing(true);
        options.set_avoid_flush_during_shutdown(true);
        let db = DB::open(&options, &files).expect("opened");
        // Each write fills a block of the log: header, batch header, kind, lengths of key and value, key, value.
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
    fn zeros_in_place_of_a_synced_write_are_detected() {
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
    fn zeros_in_place_of_an_unsynced_write_are_accepted() {
        let data = tempfile::tempdir().expect("a directory");
        let (directory, _) = with_zeros_in_the_log(data.path(), 1);
        let (db, _) = open(&directory, &RocksDbOptions::default()).expect("opened");
        assert!(db.get([0]).expect("read").is_some());
    }

    /// RocksDB accepts such a log in both modes, so klad has its own check.
    #[test]
    fn twin_rocksdb_itself_does_not_detect_zeros_in_place_of_a_write() {
        for mode in [DBRecoveryMode::TolerateCorruptedTailRecords, DBRecoveryMode::PointInTime] {
            let data = tempfile::tempdir().expect("a directory");
            let (_directory, log) = with_zeros_in_the_log(data.path(), 3);
            let files = data.path().join("rocksdb");
            let found = log_records::scan(&files, ScanStart::default()).expect("read");
            assert_eq!(found.defect, Some(LogDefect::Gap { log, last_before: 1 }));
            let mut options = RocksDbOptions::default();
            options.set_wal_recovery_mode(mode);
            let db = DB::open(&options, &files).expect("opened");
            let there: Vec<bool> = (0..3_u8).map(|key| db.get([key]).expect("read").is_some()).collect();
            assert_eq!(there, [true, false, true]);
        }
    }
}
