//! Reads a whole data directory and says what is wrong with it; changes nothing in it but the process id in `LOCK`.
//!
//! ```text
//!   KLAD           format, engine, reservation                      directory.rs
//!   rocksdb/       CURRENT, MANIFEST, every table: there, whole      RocksDB opens read-only, reading the log into memory
//!   SYNCED         the log gives back at least what was synced
//!   every block    of every table: its checksum                      RocksDB's VerifyChecksum
//!   every filter   which that leaves out                             each table opened with its filters kept in memory
//!   every record   its format, its version below the reservation     one iterator for each table's first key
//! ```
//!
//! `VerifyChecksum` ends at the first table that is bad; the records are read in pieces, so that a bad block hides no more
//! than the rest of its piece. Called by `offline`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rust_rocksdb::{DB, DBRecoveryMode, ReadOptions, properties};
use serde::Serialize;

use crate::Compression;
use crate::disk::directory::{self, DataDirectory};
use crate::disk::high_water;
use crate::disk::record::Record;
use crate::rocksdb::Options;
use crate::rocksdb::open::{OpenError, check_current, check_logs};
use crate::rocksdb::options::{self, Shared};
use klad_base::clock;
use klad_base::limits::{CHECK_FINDINGS_MAX, OFFLINE_CACHE_BYTES};

/// What was read, and what was found wrong with it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The data directory.
    pub data: PathBuf,
    /// Nothing was found.
    pub sound: bool,
    /// Keys that are present, expired ones included.
    pub entries: u64,
    /// Their bytes.
    pub key_bytes: u64,
    /// Bytes of their values, as clients sent them.
    pub value_bytes: u64,
    /// Entries whose time has passed: they count as absent.
    pub expired: u64,
    /// The smallest version; none without entries.
    pub version_min: Option<u64>,
    /// The largest.
    pub version_max: Option<u64>,
    /// From `KLAD`: every version must be below.
    pub versions_reserved_until: u64,
    /// RocksDB's tables.
    pub tables: u64,
    /// Their bytes.
    pub table_bytes: u64,
    /// Log files.
    pub logs: u64,
    /// Their bytes.
    pub log_bytes: u64,
    /// The number of the last write that a start would give back.
    pub recovered_until: u64,
    /// The mark of what was synced; none where there is no mark.
    pub synced_until: Option<u64>,
    /// The log's end is not whole, in RocksDB's words: what a start would drop was never promised, as it was not synced.
    pub log_end: Option<String>,
    /// How many things are wrong; [`CHECK_FINDINGS_MAX`] of them are in `findings`.
    pub findings_total: u64,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// How long it took.
    pub seconds: f64,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Of what kind.
    pub kind: Kind,
    /// Where, and what.
    pub detail: String,
}

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// RocksDB cannot open: a file is missing, cut short, or not what it should be.
    Files,
    /// A block of a table has not the bytes that were written.
    Table,
    /// The log gives back less than was synced.
    Log,
    /// A filter has not the bytes that were written: reads of its table are slower, and none is wrong. A compaction of the
    /// table makes a new one.
    Filter,
    /// A record is not of the format that klad reads.
    Record,
    /// A version is not below the reservation, so it could be given out again.
    Version,
}

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory is in use, is none, or cannot be read.
    #[error(transparent)]
    Directory(#[from] directory::Error),
    /// RocksDB was kept from reading, by something else than what it read.
    #[error(transparent)]
    Open(OpenError),
    /// The kernel said no.
    #[error("cannot read {}: {cause}", path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// The kernel's answer.
        cause: io::Error,
    },
}

/// How far a check is, for whoever draws it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Records read.
    pub records: AtomicU64,
    /// Records that there are, by RocksDB's estimate; 0 while checksums are read.
    pub records_total: AtomicU64,
}

/// Checks `path`.
///
/// # Errors
/// [`Error`]: nothing can be said of the data then. Damage is no error but a finding.
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
        report.find_in_files(missing)?;
    } else if files.join("CURRENT").exists() {
        report.check_files(&files, progress)?;
    } else if let Some(synced) = report.synced_until.filter(|synced| *synced > 0) {
        report.find(Kind::Files, format!("rocksdb/CURRENT is missing, and all up to {synced} had been synced"));
    }
    report.sound = report.findings_total == 0;
    report.seconds = clock::now().duration_since(begun).as_secs_f64();
    Ok(report)
}

impl Report {
    fn find(&mut self, kind: Kind, detail: String) {
        self.findings_total += 1;
        if self.findings.len() < CHECK_FINDINGS_MAX {
            self.findings.push(Finding { kind, detail });
        }
    }

    /// RocksDB's words of what is damaged. Where it cannot tell, such as without descriptors, no word is said against the data.
    fn damage(&self, error: rust_rocksdb::Error) -> Result<String, Error> {
        match OpenError::from_rocksdb(&self.data, error) {
            OpenError::Damaged { why, .. } => Ok(why),
            other => Err(Error::Open(other)),
        }
    }

    /// Damage becomes a finding; anything else keeps the check from saying anything.
    fn find_in_files(&mut self, error: OpenError) -> Result<(), Error> {
        let OpenError::Damaged { why, .. } = error else { return Err(Error::Open(error)) };
        for line in why.lines().map(str::trim).filter(|line| !line.is_empty()) {
            self.find(Kind::Files, line.to_owned());
        }
        Ok(())
    }

    fn count_logs(&mut self, files: &Path) -> Result<(), Error> {
        let failed = |cause| Error::Io { path: files.to_owned(), cause };
        for entry in fs::read_dir(files).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.path().extension().is_some_and(|extension| extension == "log") {
                self.logs += 1;
                self.log_bytes += entry.metadata().map_err(failed)?.len();
            }
        }
        Ok(())
    }

    fn check_files(&mut self, files: &Path, progress: &Progress) -> Result<(), Error> {
        // As a start does: the log up to the first record that is not whole.
        let db = match open(files, DBRecoveryMode::PointInTime) {
            Ok(db) => db,
            Err(error) => return self.find_in_files(OpenError::from_rocksdb(&self.data, error)),
        };
        self.recovered_until = db.latest_sequence_number();
        if let Some(synced) = self.synced_until.filter(|synced| *synced > self.recovered_until) {
            let recovered = self.recovered_until;
            let what =
                format!("the log gives back writes up to number {recovered}, but all up to {synced} had been synced");
            self.find(Kind::Log, what);
        }
        // And once more, with nothing that is not whole let pass.
        if let Err(error) = open(files, DBRecoveryMode::AbsoluteConsistency) {
            self.log_end = Some(self.damage(error)?);
        }
        let bounds = self.look_at_tables(&db)?;
        if let Err(error) = db.verify_checksum_opt(&reading()) {
            let damage = self.damage(error)?;
            self.find(Kind::Table, damage);
        }
        let estimate = db.property_int_value(properties::ESTIMATE_NUM_KEYS).ok().flatten().unwrap_or(0);
        progress.records_total.store(estimate.max(1), Ordering::Relaxed);
        if self.findings_total == 0 {
            self.read_filters(files, &bounds)?;
        }
        for (number, from) in bounds.iter().enumerate() {
            let mut options = reading();
            if let Some(end) = bounds.get(number + 1) {
                options.set_iterate_upper_bound(end.as_slice());
            }
            self.read_records(&db, from, options, progress)?;
        }
        Ok(())
    }

    /// Counts the tables; answers where to begin reading: at the first key of all, and at the first key of each table.
    fn look_at_tables(&mut self, db: &DB) -> Result<Vec<Vec<u8>>, Error> {
        let mut bounds = vec![Vec::new()];
        match db.live_files() {
            Ok(files) => {
                self.tables = files.len() as u64;
                self.table_bytes = files.iter().map(|file| file.size as u64).sum();
                bounds.extend(files.into_iter().filter_map(|file| file.start_key));
            }
            Err(error) => {
                let damage = self.damage(error)?;
                self.find(Kind::Files, damage);
            }
        }
        bounds.sort();
        bounds.dedup();
        Ok(bounds)
    }

    /// RocksDB takes a filter that it cannot read for one that knows nothing, so only opening a table tells. Left out where
    /// something worse was found, which would be found here again.
    fn read_filters(&mut self, files: &Path, bounds: &[Vec<u8>]) -> Result<(), Error> {
        let db = match DB::open_for_read_only(&options::reading_filters(&options()), files, false) {
            Ok(db) => db,
            Err(error) => {
                let damage = self.damage(error)?;
                self.find(Kind::Filter, damage);
                return Ok(());
            }
        };
        let mut last = String::new();
        for from in bounds {
            let mut iterator = db.raw_iterator_opt(reading());
            iterator.seek(from);
            let Err(error) = iterator.status() else { continue };
            let detail = self.damage(error)?;
            if detail != last {
                self.find(Kind::Filter, detail.clone());
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
        // The loop also ends where the iterator met an error.
        if let Err(error) = iterator.status() {
            let after = if last.is_empty() { shown(from) } else { shown(&last) };
            let damage = self.damage(error)?;
            self.find(Kind::Table, format!("after key {after}: {damage}"));
        }
        Ok(())
    }

    fn read_record(&mut self, key: &[u8], stored: &[u8]) {
        self.entries += 1;
        self.key_bytes += key.len() as u64;
        let record = match Record::decode(stored) {
            Ok(record) => record,
            Err(error) => return self.find(Kind::Record, format!("key {}: {error}", shown(key))),
        };
        self.value_bytes += record.payload.len() as u64;
        self.expired += u64::from(record.expired(clock::unix_ms));
        let version = record.version.get();
        self.version_min = Some(self.version_min.map_or(version, |min| min.min(version)));
        self.version_max = Some(self.version_max.map_or(version, |max| max.max(version)));
        if version >= self.versions_reserved_until {
            let end = self.versions_reserved_until;
            self.find(
                Kind::Version,
                format!("key {}: version {version} is not below the reservation {end}", shown(key)),
            );
        }
    }
}

fn options() -> Options {
    Options {
        cache_bytes: OFFLINE_CACHE_BYTES,
        memtable_bytes: OFFLINE_CACHE_BYTES / 4,
        value_cache_percent: 0,
        background_threads: 1,
        disk_reserve_bytes: 0,
        compression: Compression::Lz4,
        direct_reads: false,
        iterator_reads: false,
        log_preallocation: false,
        compaction_rate_bytes: 0,
        delete_rate_bytes: 0,
        open_files_max: klad_base::limits::ENGINE_FILES_MAX,
    }
}

fn open(files: &Path, mode: DBRecoveryMode) -> Result<DB, rust_rocksdb::Error> {
    let mut options = options::database(&options(), &Shared::new(&options()));
    options.set_wal_recovery_mode(mode);
    // Every table is read once, in its turn.
    options.set_max_open_files(64);
    DB::open_for_read_only(&options, files, false)
}

/// Everything is read once, from beginning to end.
fn reading() -> ReadOptions {
    let mut options = ReadOptions::default();
    options.fill_cache(false);
    options.set_verify_checksums(true);
    options.set_readahead_size(2 << 20);
    options
}

/// A key for people, perhaps its beginning alone: what cannot be printed is percent-encoded, as in a URL.
fn shown(key: &[u8]) -> String {
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
    use super::shown;

    #[test]
    fn keys_are_shown_as_a_url_has_them() {
        assert_eq!(shown(b"user/1"), "user/1");
        assert_eq!(shown(b"a b%\xFF"), "a%20b%25%FF");
        assert!(shown(&[b'x'; 100]).ends_with("x... (100 bytes)"));
    }
}
