//! Types of maintenance for all engines: results and errors of checkpoints and compactions.
//!
//! This module holds plain data and the lock on a directory of checkpoints. The engines do the work. Called by
//! `execution::maintenance`, which runs one task at a time.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::disk::file_lock::FileLock;

/// A finished checkpoint: a directory that `klad serve` can open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checkpoint {
    /// The path of the checkpoint.
    pub path: PathBuf,
    /// The total size of the checkpoint's files in bytes, including files that it shares with the data directory.
    pub bytes: u64,
    /// The bytes that were written for the checkpoint. All other files are hard links.
    pub bytes_written: u64,
    /// The number of files in the checkpoint.
    pub files: u64,
    /// The engine's sequence number of the last write that the checkpoint certainly contains.
    pub sequence: u64,
    /// The first version that klad gives out when it serves the checkpoint. It is far above every version that klad
    /// had given out when it made the checkpoint.
    pub versions_begin: u64,
}

/// The disk space of the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Space {
    /// The number of tables.
    pub tables: u64,
    /// The total size of the tables in bytes.
    pub bytes: u64,
}

/// A finished compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Compaction {
    /// The space before the compaction.
    pub before: Space,
    /// The space after the compaction.
    pub after: Space,
    /// The number of pieces that the key range was split into.
    pub pieces: u64,
}

/// Why a checkpoint or a compaction failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine does not support this task.
    #[error("--engine {engine} has no {what}")]
    NotSupported {
        /// The engine.
        engine: &'static str,
        /// The missing capability: `checkpoints` or `compactions`.
        what: &'static str,
    },
    /// The engine takes no writes now, so it must not write for maintenance either.
    #[error("{0}")]
    NotWritable(crate::operation::Error),
    /// The free disk space is too small.
    #[error(
        "up to {needed_bytes} bytes are needed, but {free_bytes} are free on the file system of {}, of which \
         {reserve_bytes} are the reserve: free disk space, or lower --disk-reserve",
        path.display()
    )]
    NoSpace {
        /// A path on the file system.
        path: PathBuf,
        /// The free space.
        free_bytes: u64,
        /// The space that the task may need.
        needed_bytes: u64,
        /// `--disk-reserve`.
        reserve_bytes: u64,
    },
    /// A checkpoint of this name exists.
    #[error("{} exists already", path.display())]
    Exists {
        /// The existing file or directory.
        path: PathBuf,
    },
    /// Another process makes or removes a checkpoint in the same directory.
    #[error(
        "another klad with the same --checkpoints makes or removes a checkpoint in {}: try again later",
        path.display()
    )]
    Shared {
        /// The directory of the checkpoints.
        path: PathBuf,
    },
    /// The new checkpoint lacks a file, so klad deleted the checkpoint.
    #[error("the checkpoint is not complete: {} is missing or cannot be read", path.display())]
    NotWhole {
        /// The missing file.
        path: PathBuf,
    },
    /// The kernel returned an error.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// The failed action.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The data directory returned an error.
    #[error(transparent)]
    Directory(#[from] crate::disk::directory::Error),
    /// The engine failed.
    #[error("{why}")]
    Engine {
        /// The engine's message.
        why: String,
    },
    /// The task was cancelled on request.
    #[error("it was cancelled; finished parts stay")]
    Cancelled,
}

/// Locks a directory of checkpoints against other processes, until the returned lock is dropped.
///
/// The lock is the kernel's (`flock`), on the directory itself. It needs no file and ends with the process.
///
/// # Errors
/// [`Error::Shared`] while another process holds the lock; [`Error::Io`] if the kernel returns another error.
pub fn lock_checkpoints(directory: &Path) -> Result<FileLock, Error> {
    let io_error = |action, cause| Error::Io { action, path: directory.to_owned(), cause };
    match FileLock::take(File::open(directory).map_err(|cause| io_error("open", cause))?) {
        Ok(lock) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(Error::Shared { path: directory.to_owned() }),
        Err(TryLockError::Error(cause)) => Err(io_error("lock", cause)),
    }
}
