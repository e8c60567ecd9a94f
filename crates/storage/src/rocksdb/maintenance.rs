//! Checkpoints and compactions of the RocksDB engine.
//!
//! A checkpoint contains RocksDB's own checkpoint (RocksDB flushes and makes hard links to the tables, which never
//! change) and the files `KLAD`, `LOCK`, `SYNCED` and `CHECKPOINT`. klad makes the checkpoint under a temporary name,
//! and renames it when all of its data is on disk. A crash therefore never leaves an incomplete checkpoint under its
//! final name. The threads that serve requests do not call this module. Called by `rocksdb`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rust_rocksdb::checkpoint::Checkpoint as RocksDbCheckpoint;
use rust_rocksdb::{BottommostLevelCompaction, CompactOptions, properties};

use crate::disk::directory::{self, create_durably};
use crate::disk::high_water;
use crate::limits::{CHECKPOINT_VERSIONS_AHEAD, COMPACTION_PIECE_BYTES, COMPACTION_ROOM_BYTES};
use crate::maintenance::{Checkpoint, Compaction, Error, Space, lock_checkpoints};
use crate::rocksdb::RocksDbEngine;
use crate::{ChangeKind, Engine as _, PARTIAL};

type Result<T> = std::result::Result<T, Error>;

impl RocksDbEngine {
    pub(super) fn make_checkpoint(&self, target: &Path) -> Result<Checkpoint> {
        self.writable(ChangeKind::Put).map_err(Error::NotWritable)?;
        let (Some(parent), Some(name)) = (target.parent(), target.file_name().and_then(|name| name.to_str())) else {
            let cause = io::Error::from(io::ErrorKind::InvalidFilename);
            return Err(Error::Io { action: "create", path: target.to_owned(), cause });
        };
        create_durably(parent)?;
        // Another klad may have the same directory of checkpoints. Without the lock, each would remove the other's
        // unfinished checkpoint.
        let _lock = lock_checkpoints(parent)?;
        if fs::symlink_metadata(target).is_ok() {
            return Err(Error::Exists { path: target.to_owned() });
        }
        self.check_space_for_checkpoint(parent)?;
        let partial = parent.join(format!("{PARTIAL}{name}"));
        remove(&partial)?;
        let made = self.fill_checkpoint(&partial).and_then(|made| {
            check_complete(&partial)?;
            // The lock excludes other writers, so `target` still does not exist.
            fs::rename(&partial, target).map_err(|cause| io_error("rename", &partial, cause))?;
            sync(parent)?;
            Ok(Checkpoint { path: target.to_owned(), ..made })
        });
        if made.is_err() {
            // Errors are ignored, because klad removes the rest before it makes the next checkpoint.
            let _ = fs::remove_dir_all(&partial);
        }
        made
    }

    fn fill_checkpoint(&self, partial: &Path) -> Result<Checkpoint> {
        fs::create_dir(partial).map_err(|cause| io_error("create", partial, cause))?;
        // The checkpoint contains the memtables and tables, and so all writes that were acknowledged before now.
        let sequence = self.db.latest_sequence_number();
        let files = partial.join("rocksdb");
        RocksDbCheckpoint::new(&self.db)
            .and_then(|checkpoint| checkpoint.create_checkpoint(&files))
            .map_err(|error| Error::Engine { why: error.into_string() })?;
        // The reservation is read after the files were made, because klad reserves versions before it uses them. The
        // margin covers versions that klad gives out later. A client that knows such a version must not see it on
        // another value when klad serves the checkpoint.
        let versions_begin = self.directory().versions_reserved_until() + CHECKPOINT_VERSIONS_AHEAD;
        high_water::write(partial, sequence)
            .map_err(|cause| io_error("write", &partial.join(high_water::FILE), cause))?;
        self.directory().initialize_copy(partial, versions_begin)?;
        directory::mark_checkpoint(partial)?;
        let (mut bytes, mut bytes_written, mut count) = (0, 0, 0);
        for path in [partial, &files] {
            for file in list(path)? {
                let metadata = file.metadata().map_err(|cause| io_error("inspect", &file, cause))?;
                if metadata.is_dir() {
                    continue;
                }
                count += 1;
                bytes += metadata.len();
                if metadata.nlink() == 1 {
                    // A file with several links is a table, which RocksDB has synced already.
                    bytes_written += metadata.len();
                    sync(&file)?;
                }
            }
            sync(path)?;
        }
        Ok(Checkpoint { path: partial.to_owned(), bytes, bytes_written, files: count, sequence, versions_begin })
    }

    /// Checks the free space for a checkpoint. A checkpoint needs space for the memtables. On another file system,
    /// where hard links are not possible, it also needs space for all tables.
    fn check_space_for_checkpoint(&self, parent: &Path) -> Result<()> {
        let device =
            |path: &Path| path.metadata().map(|found| found.dev()).map_err(|cause| io_error("inspect", path, cause));
        let copied = device(parent)? != device(self.directory().path())?;
        let memtables = self.property(properties::CUR_SIZE_ALL_MEM_TABLES);
        let needed_bytes = memtables + if copied { self.table_space().bytes } else { 0 };
        self.check_space(parent, needed_bytes)
    }

    fn check_space(&self, path: &Path, needed_bytes: u64) -> Result<()> {
        let space =
            rustix::fs::statvfs(path).map_err(|error| io_error("read the free space of", path, error.into()))?;
        let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
        let reserve_bytes = self.gate.reserve_bytes();
        if free_bytes < reserve_bytes.saturating_add(needed_bytes) {
            return Err(Error::NoSpace { path: path.to_owned(), free_bytes, needed_bytes, reserve_bytes });
        }
        Ok(())
    }

    /// Compacts the whole key range in pieces, one after another, so that the compaction can be cancelled between two
    /// pieces.
    pub(super) fn compact_all(&self, bottommost: bool, go_on: &dyn Fn(u64, u64) -> bool) -> Result<Compaction> {
        self.writable(ChangeKind::Delete).map_err(Error::NotWritable)?;
        let before = self.table_space();
        self.check_space(self.directory().path(), before.bytes.min(COMPACTION_ROOM_BYTES))?;
        let errors_before = self.property(properties::BACKGROUND_ERRORS);
        let mut options = CompactOptions::default();
        // Automatic compactions must continue, or writes would stall.
        options.set_exclusive_manual_compaction(false);
        options.set_bottommost_level_compaction(if bottommost {
            BottommostLevelCompaction::ForceOptimized
        } else {
            BottommostLevelCompaction::Skip
        });
        let bounds = self.piece_bounds()?;
        let pieces = bounds.len() as u64 + 1;
        for piece in 0..pieces {
            if !go_on(piece, pieces) {
                return Err(Error::Cancelled);
            }
            let bound = |number: Option<u64>| number.and_then(|number| bounds.get(usize::try_from(number).ok()?));
            let (start, end) = (bound(piece.checked_sub(1)), bound(Some(piece)));
            self.db.compact_range_opt(start, end, &options);
            // The Rust binding does not return an error, but RocksDB counts background errors.
            if self.property(properties::BACKGROUND_ERRORS) > errors_before {
                let log = self.directory().path().join("rocksdb/LOG");
                let why = format!(
                    "RocksDB could not finish the compaction, see {}; stop klad and run: klad check --data {}",
                    log.display(),
                    self.directory().path().display()
                );
                return Err(Error::Engine { why });
            }
        }
        // An aborted piece returns like a finished one, so `go_on` must also be called after the last piece.
        if !go_on(pieces, pieces) {
            return Err(Error::Cancelled);
        }
        Ok(Compaction { before, after: self.table_space(), pieces })
    }

    /// Aborts the piece that is being compacted, and returns when that piece has ended.
    pub(super) fn abort_piece(&self) {
        self.db.disable_manual_compaction();
        self.db.enable_manual_compaction();
    }

    /// Returns the keys at which the key range is split. Each of them is the first key of a table, so that few tables
    /// belong to two pieces.
    fn piece_bounds(&self) -> Result<Vec<Vec<u8>>> {
        let files = self.db.live_files().map_err(|error| Error::Engine { why: error.into_string() })?;
        let mut starts: Vec<(Vec<u8>, u64)> =
            files.into_iter().filter_map(|file| Some((file.start_key?, file.size as u64))).collect();
        starts.sort();
        let (mut bounds, mut piece_bytes) = (Vec::new(), 0);
        for (key, bytes) in starts {
            if piece_bytes >= COMPACTION_PIECE_BYTES && bounds.last() != Some(&key) {
                bounds.push(key);
                piece_bytes = 0;
            }
            piece_bytes += bytes;
        }
        Ok(bounds)
    }

    pub(super) fn table_space(&self) -> Space {
        let metadata = self.db.get_column_family_metadata();
        Space { tables: metadata.file_count as u64, bytes: metadata.size }
    }

    /// Reads a numeric property of RocksDB; 0 if RocksDB has no value.
    pub(super) fn property(&self, name: &properties::PropName) -> u64 {
        self.db.property_int_value(name).ok().flatten().unwrap_or(0)
    }
}

fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
        .map_err(|cause| io_error("read", directory, cause))
}

/// Checks that all files exist that a start needs, because another process may have removed some of them. `SYNCED` is
/// one of these files: without it, a start would not notice a log that ends early.
fn check_complete(partial: &Path) -> Result<()> {
    let files = partial.join("rocksdb");
    let missing = |path: &Path| Error::NotWhole { path: path.to_owned() };
    let current = files.join("CURRENT");
    let manifest = fs::read_to_string(&current).map_err(|_| missing(&current))?;
    let manifest = files.join(manifest.trim_end());
    for path in [partial.join("KLAD"), partial.join(high_water::FILE), partial.join(directory::CHECKPOINT), manifest] {
        if !path.is_file() {
            return Err(missing(&path));
        }
    }
    Ok(())
}

fn sync(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).map_err(|cause| io_error("sync", path, cause))
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(io_error("remove", directory, cause)),
        _ => Ok(()),
    }
}

fn io_error(action: &'static str, path: &Path, cause: io::Error) -> Error {
    Error::Io { action, path: path.to_owned(), cause }
}
