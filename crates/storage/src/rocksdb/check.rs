//! Checks a whole data directory and reports all defects. Changes nothing in it except the process id in `LOCK`.
//!
//! ```text
//!   KLAD           format, engine, reserved versions                 directory.rs
//!   rocksdb/       CURRENT, MANIFEST and every table are complete    RocksDB opens read-only and reads the log
//!   SYNCED         the log contains at least all synced writes
//!   every block    the checksum                                      RocksDB's VerifyChecksum
//!   every filter   the checksum, which VerifyChecksum leaves out     each table opened with its filters in memory
//!   every record   the format, a version below the reservation       one iterator from each table's first key
//! ```
//!
//! `VerifyChecksum` ends at the first bad table. The records are read in pieces, so a bad block hides only the rest of
//! its piece. Called by `offline`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rust_rocksdb::{DB, DBRecoveryMode, ReadOptions, properties};
use serde::Serialize;

use crate::disk::directory::{self, DataDirectory};
use crate::disk::high_water;
use crate::disk::record::Record;
use crate::limits::CHECK_FINDINGS_MAX;
use crate::rocksdb::Options;
use crate::rocksdb::log_records;
use crate::rocksdb::open::{OpenError, check_current, check_logs};
use crate::rocksdb::options::{self, SharedMemory};
use klad_base::clock;

/// The result of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The data directory.
    pub data: PathBuf,
    /// Whether there is no finding.
    pub sound: bool,
    /// The number of stored keys, including expired ones.
    pub entries: u64,
    /// The total size of the keys in bytes.
    pub key_bytes: u64,
    /// The total size of the values in bytes, as clients sent them.
    pub value_bytes: u64,
    /// The number of expired entries, which count as absent.
    pub expired: u64,
    /// The smallest version; `None` without entries.
    pub version_min: Option<u64>,
    /// The largest version; `None` without entries.
    pub version_max: Option<u64>,
    /// The end of the reserved versions, from `KLAD`. Every version must be below it.
    pub versions_reserved_until: u64,
    /// The number of tables.
    pub tables: u64,
    /// The total size of the tables in bytes.
    pub table_bytes: u64,
    /// The number of log files.
    pub logs: u64,
    /// The total size of the log files in bytes.
    pub log_bytes: u64,
    /// The sequence number of the last write that a start would recover.
    pub recovered_until: u64,
    /// The high-water mark: the sequence number of the last write that is known to be synced; `None` without a mark.
    pub synced_until: Option<u64>,
    /// RocksDB's message if the end of the log is incomplete. A start would drop only writes that were not synced.
    pub log_end: Option<String>,
    /// The number of findings. `findings` contains at most [`CHECK_FINDINGS_MAX`] of them.
    pub findings_total: u64,
    /// The first findings.
    pub findings: Vec<Finding>,
    /// The duration of the check.
    pub seconds: f64,
}

/// One defect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The kind of the defect.
    pub kind: Kind,
    /// The place and a description.
    pub detail: String,
}

/// The kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// RocksDB cannot open the database: a file is missing, too short or invalid.
    Files,
    /// A block of a table is damaged.
    Table,
    /// Synced writes are missing in the log.
    Log,
    /// A filter of a table is damaged. Reads of that table are slower, but correct. A compaction of the table writes a
    /// new filter.
    Filter,
    /// klad cannot decode a record.
    Record,
    /// A version is not below the end of the reserved versions, so klad could give it out again.
    Version,
}

/// Why the check could not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory is in use, is not a data directory, or cannot be read.
    #[error(transparent)]
    Directory(#[from] directory::Error),
    /// RocksDB returned an error that is not damage.
    #[error(transparent)]
    Open(OpenError),
    /// The kernel returned an error.
    #[error("cannot read {}: {cause}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
}

/// The progress of a check, for display.
#[derive(Debug, Default)]
pub struct Progress {
    /// The number of records read.
    pub records: AtomicU64,
    /// RocksDB's estimate of the total number of records; 0 while checksums are verified.
    pub records_total: AtomicU64,
}

/// Checks the data directory `path`.
///
/// # Errors
/// [`Error`] if the check could not run. Damage is not an error but a finding.
pub fn check(path: &Path, progress: &Progress) -> Result<Report, Error> {
    let begun = clock::now();
    let directory = DataDirectory::open_existing(path, "rocksdb")?;
    let mut report = Report {
        data: path.to_owned(),
        versions_reserved_until: directory.versions_reserved_until(),
        synced_until: high_water::read(path).map_err(|cause| Error::Io { path: path.join(high_water::FILE), cause })?,
        ..Report::default()
    };
    let files = path.join("rocksdb");
    if files.exists() {
        report.count_logs(&files)?;
    }
    if let Err(missing) = check_current(&directory).and_then(|()| check_logs(&directory)) {
        report.add_file_findings(missing)?;
    } else if files.join("CURRENT").exists() {
        report.check_files(&files, progress)?;
    } else if let Some(synced) = report.synced_until.filter(|synced| *synced > 0) {
        report.add(Kind::Files, format!("rocksdb/CURRENT is missing, but all writes up to {synced} had been synced"));
    }
    report.sound = report.findings_total == 0;
    report.seconds = clock::now().duration_since(begun).as_secs_f64();
    Ok(report)
}

impl Report {
    fn add(&mut self, kind: Kind, detail: String) {
        self.findings_total += 1;
        if self.findings.len() < CHECK_FINDINGS_MAX {
            self.findings.push(Finding { kind, detail });
        }
    }

    /// Returns RocksDB's message if the error means damage. Other errors, such as too few file descriptors, end the
    /// check.
    fn damage(&self, error: rust_rocksdb::Error) -> Result<String, Error> {
        match OpenError::from_rocksdb(&self.data, error) {
            OpenError::Damaged { why, .. } => Ok(why),
            other => Err(Error::Open(other)),
        }
    }

    /// Adds a finding for each line of a message about damage. Other errors end the check.
    fn add_file_findings(&mut self, error: OpenError) -> Result<(), Error> {
        let OpenError::Damaged { why, .. } = error else { return Err(Error::Open(error)) };
        for line in why.lines().map(str::trim).filter(|line| !line.is_empty()) {
            self.add(Kind::Files, line.to_owned());
        }
        Ok(())
    }

    fn count_logs(&mut self, files: &Path) -> Result<(), Error> {
        let failed = |cause| Error::Io { path: files.to_owned(), cause };
        for (_, log) in log_records::logs(files).map_err(failed)? {
            self.logs += 1;
            self.log_bytes += log.metadata().map_err(failed)?.len();
        }
        Ok(())
    }

    fn check_files(&mut self, files: &Path, progress: &Progress) -> Result<(), Error> {
        // As at a start, RocksDB reads the log up to the first incomplete record.
        let db = match open(files, DBRecoveryMode::PointInTime) {
            Ok(db) => db,
            Err(error) => return self.add_file_findings(OpenError::from_rocksdb(&self.data, error)),
        };
        self.recovered_until = db.latest_sequence_number();
        if let Some(synced) = self.synced_until.filter(|synced| *synced > self.recovered_until) {
            let recovered = self.recovered_until;
            let what =
                format!("the log gives back writes up to number {recovered}, but all up to {synced} had been synced");
            self.add(Kind::Log, what);
        }
        // This mode also reports an incomplete end of the log.
        if let Err(error) = open(files, DBRecoveryMode::AbsoluteConsistency) {
            self.log_end = Some(self.damage(error)?);
        }
        let bounds = self.count_tables(&db)?;
        if let Err(error) = db.verify_checksum_opt(&read_options()) {
            let damage = self.damage(error)?;
            self.add(Kind::Table, damage);
        }
        let estimate = db.property_int_value(properties::ESTIMATE_NUM_KEYS).ok().flatten().unwrap_or(0);
        progress.records_total.store(estimate.max(1), Ordering::Relaxed);
        if self.findings_total == 0 {
            self.read_filters(files, &bounds)?;
        }
        for (number, from) in bounds.iter().enumerate() {
            let mut options = read_options();
            if let Some(end) = bounds.get(number + 1) {
                options.set_iterate_upper_bound(end.as_slice());
            }
            self.read_records(&db, from, options, progress)?;
        }
        Ok(())
    }

    /// Counts the tables. Returns the keys at which the pieces to read begin: the empty key and the first key of each
    /// table.
    fn count_tables(&mut self, db: &DB) -> Result<Vec<Vec<u8>>, Error> {
        let mut bounds = vec![Vec::new()];
        match db.live_files() {
            Ok(files) => {
                self.tables = files.len() as u64;
                self.table_bytes = files.iter().map(|file| file.size as u64).sum();
                bounds.extend(files.into_iter().filter_map(|file| file.start_key));
            }
            Err(error) => {
                let damage = self.damage(error)?;
                self.add(Kind::Files, damage);
            }
        }
        bounds.sort();
        bounds.dedup();
        Ok(bounds)
    }

    /// Reads all filters. During reads RocksDB ignores a damaged filter, so only opening a table reports it. The caller
    /// skips this check after other findings, because the check would report them again.
    fn read_filters(&mut self, files: &Path, bounds: &[Vec<u8>]) -> Result<(), Error> {
        let options = options::database_with_pinned_filters(&Options::default());
        let db = match DB::open_for_read_only(&options, files, false) {
            Ok(db) => db,
            Err(error) => {
                let damage = self.damage(error)?;
                self.add(Kind::Filter, damage);
                return Ok(());
            }
        };
        let mut last = String::new();
        for from in bounds {
            let mut iterator = db.raw_iterator_opt(read_options());
            iterator.seek(from);
            let Err(error) = iterator.status() else { continue };
            let detail = self.damage(error)?;
            if detail != last {
                self.add(Kind::Filter, detail.clone());
                last = detail;
            }
        }
        Ok(())
    }

    fn read_records(&mut self, db: &DB, from: &[u8], options: ReadOptions, progress: &Progress) -> Result<(), Error> {
        let mut iterator = db.raw_iterator_opt(options);
        iterator.seek(from);
        let mut last = Vec::new();
        while let Some((key, stored)) = iterator.item() {
            self.read_record(key, stored);
            last.clear();
            last.extend_from_slice(key);
            progress.records.fetch_add(1, Ordering::Relaxed);
            iterator.next();
        }
        // The loop also ends at an error of the iterator.
        if let Err(error) = iterator.status() {
            let after = printable(if last.is_empty() { from } else { &last });
            let damage = self.damage(error)?;
            self.add(Kind::Table, format!("after key {after}: {damage}"));
        }
        Ok(())
    }

    fn read_record(&mut self, key: &[u8], stored: &[u8]) {
        self.entries += 1;
        self.key_bytes += key.len() as u64;
        let record = match Record::decode(stored) {
            Ok(record) => record,
            Err(error) => return self.add(Kind::Record, format!("key {}: {error}", printable(key))),
        };
        self.value_bytes += record.payload.len() as u64;
        self.expired += u64::from(record.expired(clock::unix_ms));
        let version = record.version.get();
        self.version_min = Some(self.version_min.map_or(version, |min| min.min(version)));
        self.version_max = Some(self.version_max.map_or(version, |max| max.max(version)));
        if version >= self.versions_reserved_until {
            let end = self.versions_reserved_until;
            let key = printable(key);
            self.add(Kind::Version, format!("key {key}: version {version} is not below the reservation {end}"));
        }
    }
}

fn open(files: &Path, mode: DBRecoveryMode) -> Result<DB, rust_rocksdb::Error> {
    let options = Options::default();
    let mut options = options::database(&options, &SharedMemory::new(&options));
    options.set_wal_recovery_mode(mode);
    // The check reads one table after another, so few need to be open.
    options.set_max_open_files(64);
    DB::open_for_read_only(&options, files, false)
}

/// The read options for reading all data once, in order.
fn read_options() -> ReadOptions {
    let mut options = ReadOptions::default();
    options.fill_cache(false);
    options.set_verify_checksums(true);
    options.set_readahead_size(2 << 20);
    options
}

/// Formats the beginning of a key for people. Bytes that cannot be printed are percent-encoded, as in a URL.
fn printable(key: &[u8]) -> String {
    const BYTES_MAX: usize = 48;
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"%&+#".contains(&byte);
    let encoded: String = key
        .iter()
        .take(BYTES_MAX)
        .map(|byte| if plain(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    if key.len() > BYTES_MAX { format!("{encoded}... ({} bytes)", key.len()) } else { encoded }
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn keys_are_printed_as_in_a_url() {
        assert_eq!(printable(b"user/1"), "user/1");
        assert_eq!(printable(b"a b%\xFF"), "a%20b%25%FF");
        assert!(printable(&[b'x'; 100]).ends_with("x... (100 bytes)"));
    }
}
