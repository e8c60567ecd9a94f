//! Opens RocksDB without its doing any harm: to a directory whose files are gone, or whose log is damaged.
//!
//! RocksDB alone takes a directory without `CURRENT` and logs for an empty one, and deletes every table in it. And where a log ends
//! early it deletes what it could not read, before klad can compare with what was synced. Called by `rocksdb.rs` and
//! `rocksdb_check.rs`.

use std::path::{Path, PathBuf};

use rust_rocksdb::{DB, DBRecoveryMode, ErrorKind, Options as RocksDbOptions};

use super::directory::{self, DataDirectory};
use super::high_water::{self, HighWater};
use super::log_records::{self, Looked, Oddity};
use crate::limits::LOG_BYTES_READ_TWICE;

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

/// No log may hold a record at which RocksDB would hang, and nothing that was synced may be missing between two logs.
///
/// Answers whether the logs end before what was synced does, as where the last of several is lost.
///
/// # Errors
/// [`OpenError::Damaged`], with the place.
pub(super) fn check_logs(directory: &DataDirectory) -> Result<bool, OpenError> {
    let data = directory.path();
    // What cannot be read RocksDB will say.
    let Looked { oddity, last_write } = log_records::look(&data.join("rocksdb")).unwrap_or_default();
    let synced = high_water::read(data).ok().flatten().unwrap_or(0);
    let (log, position) = match oddity {
        Some(Oddity::Endless { log, position }) => (log, position),
        Some(Oddity::Gap { log, until }) => {
            if synced <= until {
                // As a power cut may leave it, if all that is missing was `async`.
                tracing::warn!(log = %log.display(), until, "writes that were not synced are missing before this log");
                return Ok(false);
            }
            let why = format!("writes from number {} on are missing before the log {}", until + 1, log.display());
            return Err(OpenError::Damaged { path: data.to_owned(), why });
        }
        None => return Ok(last_write.is_some_and(|last| last < synced)),
    };
    let why = format!(
        "the log {} has a record of a kind that klad never writes, at byte {position}; cut off there it would give back what \
         stands before",
        log.display()
    );
    Err(OpenError::Damaged { path: directory.path().to_owned(), why })
}

/// Opens the database to be written, and the mark of what was synced, which it has been compared with.
///
/// A log that is whole, or ends in the middle of its last record as a kill leaves it, is read once. One that is not, as after
/// some power cuts, is first compared with what was synced while nothing can be changed: what was synced and cannot be read
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
