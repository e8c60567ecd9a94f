//! Bulk loads of the RocksDB engine: entries become tables without the log, memtables and most compactions.
//!
//! ```text
//!   entries ─▶ versions ─▶ sorted ─▶ data/load/*.sst, by several threads, synced
//!                                         └─▶ every block checked ─▶ rocksdb/, all tables in one step ─▶ counted
//! ```
//!
//! RocksDB puts a table that overlaps no other table on the last level, as a compaction would. It puts any other table
//! on a level above the tables that this table overlaps, often level 0. Change feeds read logs, but no log contains the
//! loaded entries. So klad deletes the logs before it adds tables, and each feed begins anew. No other write uses the
//! engine meanwhile. Called by `klad import --into`.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;

use rust_rocksdb::{IngestExternalFileOptions, Options as RocksDbOptions, SstFileWriter, properties};

use crate::bulk_load::{BulkLoad, LoadEntry};
use crate::disk::directory::{self, DataDirectory};
use crate::disk::record::Record;
use crate::limits::{LEVEL_0_FILES, LOAD_PART_ENTRIES_MIN, LOAD_THREADS_MAX, TABLE_BYTES};
use crate::maintenance::Error;
use crate::operation::Version;
use crate::rocksdb::{RocksDbEngine, options};
use crate::{ChangeKind, LocalDisk as _};
use klad_base::clock;
use klad_base::sync::spawn_thread;

/// The directory of tables that are not part of the database yet.
const DIRECTORY: &str = "load";

impl BulkLoad for RocksDbEngine {
    fn load(&self, mut entries: Vec<LoadEntry>, if_absent: bool) -> Result<u64, Error> {
        if entries.is_empty() {
            return Ok(0);
        }
        self.gate.update_free_space(self.directory());
        self.gate.check(ChangeKind::Put).map_err(Error::NotWritable)?;
        let first = self.versions.take(entries.len()).map_err(|error| not_opened(&error))?;
        for (entry, version) in entries.iter_mut().zip(first..) {
            entry.set_version(Version::new(version));
        }
        // The sort keeps the order of entries with the same key.
        entries.sort_by(|one, other| one.key().cmp(other.key()));
        let kept = if if_absent { self.remove_existing(&mut entries)? } else { 0 };
        if !if_absent {
            entries.dedup_by(|later, earlier| {
                let same = later.key() == earlier.key();
                if same {
                    std::mem::swap(later, earlier);
                }
                same
            });
        }
        if !entries.is_empty() {
            let count = entries.len() as u64;
            let tables = self.write_tables(entries)?;
            self.add_tables(tables, count)?;
        }
        Ok(kept)
    }

    fn finish(&self) -> Result<(), Error> {
        let tables = self.db.live_files().map_err(failed)?;
        if tables.iter().filter(|table| table.level == 0).count() as u64 >= LEVEL_0_FILES {
            self.compact(false, &|_, _| true)?;
        }
        remove_rest(self.directory()).map_err(|error| not_opened(&error))
    }
}

impl RocksDbEngine {
    /// Removes entries whose key exists. Of several entries with the same key, only the first is kept. Returns the
    /// number of removed entries.
    fn remove_existing(&self, entries: &mut Vec<LoadEntry>) -> Result<u64, Error> {
        let before = entries.len();
        entries.dedup_by(|later, earlier| later.key() == earlier.key());
        let (now, mut unread) = (clock::unix_ms(), None);
        entries.retain(|entry| match self.db.get_pinned_opt(entry.key(), &self.read_all) {
            Ok(None) => true,
            // A record that cannot be decoded counts as existing.
            Ok(Some(stored)) => Record::decode(&stored).is_ok_and(|record| record.expired(|| now)),
            Err(error) => {
                unread = Some(error);
                false
            }
        });
        unread.map_or(Ok((before - entries.len()) as u64), |error| Err(failed(error)))
    }

    /// Writes sorted entries into tables of [`DIRECTORY`]. The tables are synced on return.
    fn write_tables(&self, entries: Vec<LoadEntry>) -> Result<Vec<PathBuf>, Error> {
        let directory = self.directory().subdirectory(DIRECTORY).map_err(|error| not_opened(&error))?;
        let compression = self.load_compression.expect("the engine was opened for a bulk load");
        let options = Arc::new(options::tables_outside(compression));
        let threads = available_parallelism().map_or(1, usize::from).min(LOAD_THREADS_MAX);
        let part = entries.len().div_ceil(threads).max(LOAD_PART_ENTRIES_MIN);
        let entries = Arc::new(entries);
        let writers: Vec<_> = (0..entries.len().div_ceil(part))
            .map(|number| {
                let (entries, options, directory) = (entries.clone(), options.clone(), directory.clone());
                spawn_thread("klad-load", move || {
                    let end = entries.len().min((number + 1) * part);
                    let name = |table| directory.join(format!("{number}-{table}.sst"));
                    write_part(&options, &entries[number * part..end], name)
                })
            })
            .collect();
        let parts: Vec<_> =
            writers.into_iter().map(|writer| writer.join().expect("a panic ends the process")).collect();
        Ok(parts.into_iter().collect::<Result<Vec<_>, _>>().map_err(failed)?.concat())
    }

    /// Makes tables with `count` entries a part of the database: all of the tables, or none.
    fn add_tables(&self, tables: Vec<PathBuf>, count: u64) -> Result<(), Error> {
        let before = self.table_entries()?;
        let first_log = self.db.property_int_value(properties::MIN_LOG_NUMBER_TO_KEEP).map_err(failed)?;
        let first_log = first_log.ok_or_else(|| Error::Engine { why: "RocksDB does not name its first log".into() })?;
        let files = self.directory().path().join("rocksdb");
        self.changes.forget(first_log).map_err(|cause| Error::Io {
            action: "delete old logs in",
            path: files,
            cause,
        })?;
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        options.set_verify_checksums_before_ingest(true);
        options.set_fill_cache(false);
        self.db.ingest_external_file_opts(&options, tables).map_err(failed)?;
        let found = self.table_entries()?.saturating_sub(before);
        if found != count {
            let path = self.directory().path().display();
            let why =
                format!("{count} entries were loaded, but the added tables have {found}: run klad check --data {path}");
            return Err(Error::Engine { why });
        }
        Ok(())
    }

    /// The number of entries of all tables, according to the properties in the tables.
    fn table_entries(&self) -> Result<u64, Error> {
        let text = self.db.property_value(properties::AGGREGATED_TABLE_PROPERTIES).map_err(failed)?.unwrap_or_default();
        let entries = text.split("# entries=").nth(1).and_then(|rest| rest.split(';').next()?.parse().ok());
        entries.ok_or_else(|| Error::Engine { why: format!("RocksDB does not count the entries of tables: {text}") })
    }
}

fn write_part(
    options: &RocksDbOptions,
    entries: &[LoadEntry],
    name: impl Fn(usize) -> PathBuf,
) -> Result<Vec<PathBuf>, rust_rocksdb::Error> {
    let mut tables = Vec::new();
    let mut writer = SstFileWriter::create(options);
    let mut entries = entries.iter().peekable();
    while entries.peek().is_some() {
        let table = name(tables.len());
        writer.open(&table)?;
        while let Some(entry) = entries.next_if(|_| writer.file_size() < TABLE_BYTES) {
            let (key, record) = entry.parts();
            writer.put(key, record)?;
        }
        writer.finish()?;
        tables.push(table);
    }
    Ok(tables)
}

/// Removes the tables that an interrupted load has left behind.
pub(super) fn remove_rest(directory: &DataDirectory) -> Result<(), directory::Error> {
    let path = directory.path().join(DIRECTORY);
    match fs::remove_dir_all(&path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
            Err(directory::Error::Io { action: "remove", path, cause })
        }
        _ => Ok(()),
    }
}

fn failed(error: rust_rocksdb::Error) -> Error {
    Error::Engine { why: error.into_string() }
}

fn not_opened(error: &directory::Error) -> Error {
    Error::Engine { why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;
    use std::path::Path;

    use super::*;
    use crate::operation::Value;
    use crate::rocksdb::Options;

    fn engine(path: &Path) -> RocksDbEngine {
        RocksDbEngine::open(path, &Options { bulk_load: true, ..Options::default() }).expect("opened")
    }

    fn entries() -> Vec<LoadEntry> {
        let value = Value { payload: bytes::Bytes::from(vec![7; 100]), attributes: None };
        let mut entries: Vec<_> = (0..1_000_u32).map(|key| LoadEntry::new(&key.to_be_bytes(), &value)).collect();
        for entry in &mut entries {
            entry.set_version(Version::new(1));
        }
        entries
    }

    /// Writes tables, changes them by `damage`, and adds them as tables with `count` entries.
    fn add(damage: impl Fn(&Path), count: u64) -> (Result<(), Error>, bool) {
        let data = tempfile::tempdir().expect("a directory");
        let engine = engine(data.path());
        let tables = engine.write_tables(entries()).expect("written");
        damage(&tables[0]);
        let added = engine.add_tables(tables, count);
        (added, engine.db.get(0_u32.to_be_bytes()).expect("read").is_some())
    }

    #[test]
    fn a_table_that_is_damaged_before_it_is_added_is_found() {
        let flip = |table: &Path| {
            let file = fs::OpenOptions::new().write(true).open(table).expect("opened");
            file.write_all_at(&[0x55; 8], 100).expect("written");
        };
        let (added, there) = add(flip, 1_000);
        let why = added.expect_err("it is damaged").to_string();
        assert!(why.contains("checksum") && !there, "{why}");
    }

    #[test]
    fn a_missing_entry_is_found() {
        let (added, _) = add(|_| (), 1_001);
        assert!(added.expect_err("one is missing").to_string().contains("1001 entries were loaded"));
    }

    #[test]
    fn twin_sound_tables_are_added() {
        let (added, there) = add(|_| (), 1_000);
        added.expect("sound");
        assert!(there);
    }

    #[test]
    fn the_rest_of_an_interrupted_load_is_removed() {
        let data = tempfile::tempdir().expect("a directory");
        let first = engine(data.path());
        let tables = first.write_tables(entries()).expect("written");
        drop(first);
        assert!(tables[0].exists());
        let again = engine(data.path());
        assert!(!tables[0].exists());
        assert_eq!(again.table_entries().expect("counted"), 0);
    }
}
