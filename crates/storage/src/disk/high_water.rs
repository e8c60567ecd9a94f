//! The high-water mark: how far the log is known to be synced, stored outside the log. If a start recovers fewer writes
//! than the mark says, the log is damaged, and the start fails.
//!
//! RocksDB's recovery reads the log up to the first incomplete record and ends there without an error. RocksDB cannot
//! distinguish a record that a power cut left incomplete from a damaged byte in the middle. The mark can, because an
//! undamaged log contains everything that was synced. fjall's recovery has the same gap.
//!
//! The mark is the number of a write: with RocksDB its sequence number, with fjall klad's version.
//!
//! The file is overwritten in place and never synced, so it costs one page of the kernel's page cache. After a power
//! cut the file may contain an older mark. An older mark is still true, but the check then covers fewer writes. Called
//! by the engines on disk.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use klad_base::sync::Mutex;

/// The file's name in the data directory.
pub const FILE: &str = "SYNCED";

/// The mark of one data directory.
#[derive(Debug)]
pub struct HighWater {
    file: File,
    stored: Mutex<u64>,
}

/// Why the check against the mark failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel returned an error.
    #[error("cannot open {}: {cause}", path.display())]
    Io {
        /// The mark's file.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// Writes that were synced are missing.
    #[error(
        "the log is damaged: it gives back writes up to number {recovered}, but all up to {synced} had been synced. \
         Restore the data from a copy; or, to serve what is left and lose the rest, remove {} and start again",
        path.display()
    )]
    LogIsShort {
        /// The engine's number of the last write after recovery.
        recovered: u64,
        /// The mark.
        synced: u64,
        /// The mark's file.
        path: PathBuf,
    },
}

/// Reads the mark in `directory`; `None` if there is no file, or if its contents are not a valid mark.
///
/// # Errors
/// The file exists and cannot be read.
pub fn read(directory: &Path) -> io::Result<Option<u64>> {
    match fs::read(directory.join(FILE)) {
        Ok(bytes) => Ok(std::str::from_utf8(&bytes).ok().and_then(parse)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes the mark `sequence` into `directory`, a copy of the data that contains all writes up to `sequence`. The mark
/// is durable on return.
///
/// # Errors
/// The kernel's error.
pub fn write(directory: &Path, sequence: u64) -> io::Result<()> {
    let mut file = File::create(directory.join(FILE))?;
    io::Write::write_all(&mut file, line(sequence).as_bytes())?;
    file.sync_all()
}

impl HighWater {
    /// Compares the mark in `directory` with the last write that was `recovered`, and opens the mark for updates.
    ///
    /// # Errors
    /// [`Error::LogIsShort`] if synced writes are missing.
    pub fn check(directory: &Path, recovered: u64) -> Result<HighWater, Error> {
        let path = directory.join(FILE);
        let synced = match fs::read(&path) {
            // A power cut can leave zeros, because the file is never synced.
            Ok(bytes) if bytes.iter().all(|byte| *byte == 0) => 0,
            Ok(bytes) => std::str::from_utf8(&bytes).ok().and_then(parse).unwrap_or_else(|| {
                tracing::warn!(path = %path.display(), "the mark of the last synced write is damaged and is ignored");
                0
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(cause) => return Err(Error::Io { path, cause }),
        };
        if recovered < synced {
            return Err(Error::LogIsShort { recovered, synced, path });
        }
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .and_then(|file| file.set_len(line(0).len() as u64).map(|()| file))
            .and_then(|file| file.write_all_at(line(synced).as_bytes(), 0).map(|()| file))
            .map_err(|cause| Error::Io { path, cause })?;
        Ok(HighWater { file, stored: Mutex::new(synced) })
    }

    /// The number of the last write that is known to be synced.
    #[must_use]
    pub fn synced(&self) -> u64 {
        *self.stored.lock()
    }

    /// Raises the mark: all writes up to `sequence` have been synced.
    pub fn advance(&self, sequence: u64) {
        let mut stored = self.stored.lock();
        if sequence <= *stored {
            return;
        }
        match self.file.write_all_at(line(sequence).as_bytes(), 0) {
            Ok(()) => *stored = sequence,
            // With an older mark the next start checks less of the log. No acknowledged write is lost by that.
            Err(error) => tracing::warn!(%error, "cannot update the mark of the last synced write; the old one stays"),
        }
    }
}

/// The contents of the file. They have the same length for every number, so that klad can overwrite the file in place.
/// The number occurs twice, so that a partial overwrite is detected.
fn line(sequence: u64) -> String {
    format!("synced_until = {sequence:020} {sequence:020}\n")
}

fn parse(text: &str) -> Option<u64> {
    let number = text.strip_prefix("synced_until = ")?.split(' ').next()?.parse().ok()?;
    (text == line(number)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_ends_before_the_mark_is_rejected() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mark = HighWater::check(directory.path(), 7).expect("nothing was synced yet");
        mark.advance(12);
        mark.advance(9);
        HighWater::check(directory.path(), 12).expect("all is there");
        HighWater::check(directory.path(), 13).expect("more is there");
        let error = HighWater::check(directory.path(), 11).expect_err("one is missing");
        assert!(error.to_string().contains("up to number 11, but all up to 12"), "{error}");
        fs::remove_file(directory.path().join(FILE)).expect("removed");
        HighWater::check(directory.path(), 11).expect("without a mark");
        // A damaged mark does not prevent a start, and the next mark replaces it.
        fs::write(directory.path().join(FILE), [0xFF; 500]).expect("written");
        HighWater::check(directory.path(), 0).expect("no mark").advance(5);
        HighWater::check(directory.path(), 4).expect_err("a mark again");
    }

    #[test]
    fn a_partial_overwrite_is_not_a_valid_mark() {
        assert_eq!(parse(&line(u64::MAX)), Some(u64::MAX));
        assert_eq!(parse(&line(5).replacen('5', "6", 1)), None);
        assert_eq!(parse(""), None);
        assert_eq!(parse("synced_until = 5 5\n"), None);
    }
}
