//! How far the log is known to be synced, kept outside the log: a start that recovers less has met a damaged log, and must
//! not pass the rest off as all there is.
//!
//! RocksDB's recovery takes the log up to the first record that is not whole and ends there without an error: it cannot
//! tell an end torn by a power cut from a byte that went bad in the middle. The mark can: what was synced before cannot be
//! missing from a sound log.
//!
//! fjall's does the same. Each engine numbers writes in its way: RocksDB's own numbers, and klad's versions with fjall.
//!
//! The file is overwritten in place and never synced, so it costs a page of the kernel's cache: after a power cut an older
//! mark may be there, which asks for less and is still true. Called by the engines that have a log.

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

/// Why a store is not opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel said no.
    #[error("cannot open {}: {cause}", path.display())]
    Io {
        /// The mark's file.
        path: PathBuf,
        /// The kernel's answer.
        cause: io::Error,
    },
    /// Writes that were synced are missing.
    #[error(
        "the log is damaged: it gives back writes up to number {recovered}, but all up to {synced} had been synced. \
         Bring the data back from a copy; or, to serve what is left and give up the rest, remove {} and start again",
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

/// The mark in `directory`; `None` where there is none, or a line that is no mark.
///
/// # Errors
/// When the kernel does not let it be read.
pub fn read(directory: &Path) -> io::Result<Option<u64>> {
    match fs::read(directory.join(FILE)) {
        Ok(bytes) => Ok(std::str::from_utf8(&bytes).ok().and_then(parse)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a mark of `sequence` into `directory`, for a copy of a store that holds everything up to it; durable on return.
///
/// # Errors
/// The kernel's answer.
pub fn write(directory: &Path, sequence: u64) -> io::Result<()> {
    let mut file = File::create(directory.join(FILE))?;
    io::Write::write_all(&mut file, line(sequence).as_bytes())?;
    file.sync_all()
}

impl HighWater {
    /// Compares the mark in `directory` with what was `recovered`, and goes on from there.
    ///
    /// # Errors
    /// [`Error::LogIsShort`] when something that was synced is missing.
    pub fn check(directory: &Path, recovered: u64) -> Result<HighWater, Error> {
        let path = directory.join(FILE);
        let synced = match fs::read(&path) {
            // As a power cut may leave a file that was never synced.
            Ok(bytes) if bytes.iter().all(|byte| *byte == 0) => 0,
            Ok(bytes) => std::str::from_utf8(&bytes).ok().and_then(parse).unwrap_or_else(|| {
                tracing::warn!(path = %path.display(), "not a mark of what was synced; the log cannot be checked against it");
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

    /// How far the log is known to be synced.
    #[must_use]
    pub fn synced(&self) -> u64 {
        *self.stored.lock()
    }

    /// Everything up to `sequence` has been synced.
    pub fn advance(&self, sequence: u64) {
        let mut stored = self.stored.lock();
        if sequence <= *stored {
            return;
        }
        match self.file.write_all_at(line(sequence).as_bytes(), 0) {
            Ok(()) => *stored = sequence,
            // Without a newer mark the next start checks less; nothing that was promised depends on it.
            Err(error) => tracing::warn!(%error, "cannot keep the mark of what was synced"),
        }
    }
}

/// Of one length whatever the number, so that it can be overwritten in place; the number twice, so that half an overwrite
/// is noticed.
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
    fn a_log_that_is_shorter_than_what_was_synced_is_refused() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mark = HighWater::check(directory.path(), 7).expect("nothing was synced yet");
        mark.advance(12);
        mark.advance(9);
        HighWater::check(directory.path(), 12).expect("all is there");
        HighWater::check(directory.path(), 13).expect("more is there");
        let error = HighWater::check(directory.path(), 11).expect_err("one is missing");
        assert!(error.to_string().contains("up to number 11, but all up to 12"), "{error}");
        fs::remove_file(directory.path().join(FILE)).expect("removed");
        HighWater::check(directory.path(), 11).expect("given up");
        // Damage to the mark itself is no reason not to serve, and is mended by the next mark.
        fs::write(directory.path().join(FILE), [0xFF; 500]).expect("written");
        HighWater::check(directory.path(), 0).expect("no mark").advance(5);
        HighWater::check(directory.path(), 4).expect_err("a mark again");
    }

    #[test]
    fn half_an_overwrite_is_no_mark() {
        assert_eq!(parse(&line(u64::MAX)), Some(u64::MAX));
        assert_eq!(parse(&line(5).replacen('5', "6", 1)), None);
        assert_eq!(parse(""), None);
        assert_eq!(parse("synced_until = 5 5\n"), None);
    }
}
