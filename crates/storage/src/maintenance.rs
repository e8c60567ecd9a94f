//! Data care as every engine knows it: checkpoints and compactions, what they answer, and why they are refused.
//!
//! Plain data, and the lock on a directory of checkpoints; the work is the engine's. Called by `execution::care`, which lets
//! one of them run at a time.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// A checkpoint that was made: a directory that `klad serve` opens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checkpoint {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes of its files; what is shared with the data directory counts as well.
    pub bytes: u64,
    /// Of these, bytes that were written for it: all else are hard links.
    pub bytes_written: u64,
    /// How many files it has.
    pub files: u64,
    /// The engine's number of the last write that is in it for certain.
    pub sequence: u64,
    /// Its versions begin here: above all that were given out before it was made.
    pub versions_begin: u64,
}

/// What the tables take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Space {
    /// How many tables.
    pub tables: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A compaction that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Compaction {
    /// Before it began.
    pub before: Space,
    /// When it had ended.
    pub after: Space,
    /// Pieces that the range of keys was cut into.
    pub pieces: u64,
}

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine has nothing of the kind.
    #[error("--engine {engine} has no {what}")]
    NotSupported {
        /// The engine.
        engine: &'static str,
        /// `checkpoints`, `compactions`.
        what: &'static str,
    },
    /// No write is taken, so the engine is not to write for this either.
    #[error("{0}")]
    NotWritable(crate::operation::Error),
    /// It would not fit.
    #[error("{needed_bytes} bytes may be needed and {free_bytes} are free on the file system of {}, of which {reserve_bytes} are the reserve: make room, or lower --disk-reserve", path.display())]
    NoSpace {
        /// Where.
        path: PathBuf,
        /// Free there.
        free_bytes: u64,
        /// What it may take.
        needed_bytes: u64,
        /// `--disk-reserve`.
        reserve_bytes: u64,
    },
    /// The name is taken.
    #[error("{} is there already", path.display())]
    Exists {
        /// What is there.
        path: PathBuf,
    },
    /// Another process makes or removes checkpoints beside it.
    #[error("another klad is at work in {}, which has the same --checkpoints: one at a time", path.display())]
    Shared {
        /// The directory of the checkpoints.
        path: PathBuf,
    },
    /// What was made is not a checkpoint, and was not given its name.
    #[error("the checkpoint is not whole: {} is missing or cannot be read", path.display())]
    NotWhole {
        /// What it lacks.
        path: PathBuf,
    },
    /// The kernel said no.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        cause: io::Error,
    },
    /// The data directory said no.
    #[error(transparent)]
    Directory(#[from] crate::disk::directory::Error),
    /// The engine failed.
    #[error("{why}")]
    Engine {
        /// In its words.
        why: String,
    },
    /// Somebody asked for it to end.
    #[error("it was cancelled; what was done stays done")]
    Cancelled,
}

/// Takes a directory of checkpoints, which other processes may have too, for as long as the answer lives.
///
/// The kernel's lock on the directory itself: it ends with the process, and no file has to be made for it.
///
/// # Errors
/// [`Error::Shared`] while another process has it, [`Error::Io`].
pub fn take_checkpoints(directory: &Path) -> Result<File, Error> {
    let io_error = |action, cause| Error::Io { action, path: directory.to_owned(), cause };
    let lock = File::open(directory).map_err(|cause| io_error("open", cause))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(Error::Shared { path: directory.to_owned() }),
        Err(TryLockError::Error(cause)) => Err(io_error("lock", cause)),
    }
}
