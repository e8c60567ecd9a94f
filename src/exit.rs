//! How klad ends: one code and one word for each reason, and the one place that maps errors to them.
//!
//! The last line on stderr is for a person and ends in the word for a program: `klad: cannot listen on ...: ... [port-in-use]`.
//! Codes from 64 on are those of BSD's `sysexits.h` where one fits. `klad bench` has codes of its own
//! (docs/bench.md), and so have the commands that speak to a server (docs/command-line.md).
//!
//! Called by `main`; `reference` puts the table into the documents.

use std::io;

#[cfg(feature = "rocksdb")]
use crate::offline;
use crate::settings;
use klad_base::limits::TOO_FEW_THREADS_EXIT;
use klad_server::net::listen;
use klad_storage::disk::directory;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
use klad_storage::disk::high_water;
#[cfg(feature = "fjall")]
use klad_storage::fjall::OpenError as FjallError;
#[cfg(feature = "rocksdb")]
use klad_storage::{
    maintenance,
    rocksdb::{self, check},
};

/// Why the process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// As it should.
    Ok,
    /// Something failed that has no code of its own.
    Failed,
    /// It was asked twice.
    SecondSignal,
    /// The command line is not understood.
    Usage,
    /// The data is not what was written.
    DataDamaged,
    /// The directory is not klad's, or another engine's.
    DataForeign,
    /// The kernel does not let klad listen there.
    AddressUnusable,
    /// Somebody else listens there.
    PortInUse,
    /// What was written could not be synced at the end.
    SyncFailed,
    /// The kernel does not let klad start its threads.
    TooFewThreads,
    /// The kernel does not let klad use the directory.
    DataIo,
    /// Another process serves the directory.
    DataLocked,
    /// A newer klad wrote the directory.
    DataNewer,
    /// The options cannot be.
    BadConfiguration,
}

impl Exit {
    /// In the order of their codes.
    pub const ALL: [Exit; 14] = [
        Exit::Ok,
        Exit::Failed,
        Exit::SecondSignal,
        Exit::Usage,
        Exit::DataDamaged,
        Exit::DataForeign,
        Exit::AddressUnusable,
        Exit::PortInUse,
        Exit::SyncFailed,
        Exit::TooFewThreads,
        Exit::DataIo,
        Exit::DataLocked,
        Exit::DataNewer,
        Exit::BadConfiguration,
    ];

    /// What the process returns, its word, and what it means.
    const fn row(self) -> (u8, &'static str, &'static str) {
        match self {
            Exit::Ok => (0, "ok", "done; or stopped by SIGTERM or SIGINT, everything synced"),
            Exit::Failed => (1, "failed", "something failed that has no code of its own"),
            Exit::SecondSignal => (1, "second-signal", "a second SIGTERM or SIGINT ended the process at once"),
            Exit::Usage => (2, "usage", "the command line is not understood"),
            Exit::DataDamaged => {
                (65, "data-damaged", "the data is not what was written: a file or writes are missing or wrong")
            }
            Exit::DataForeign => (66, "data-foreign", "the directory is not klad's, or of another engine"),
            Exit::AddressUnusable => (68, "address-unusable", "the kernel does not let klad listen on the address"),
            Exit::PortInUse => (69, "port-in-use", "another process listens on the address"),
            Exit::SyncFailed => {
                (70, "sync-failed", "stopped, but the last sync failed: writes without a sync may be lost")
            }
            Exit::TooFewThreads => {
                (TOO_FEW_THREADS_EXIT.0, TOO_FEW_THREADS_EXIT.1, "the kernel does not let klad start its threads")
            }
            Exit::DataIo => (74, "data-io", "the directory cannot be read, written or made"),
            Exit::DataLocked => (75, "data-locked", "another process serves the directory"),
            Exit::DataNewer => (76, "data-newer", "a newer klad wrote the directory"),
            Exit::BadConfiguration => {
                (78, "bad-configuration", "an option, a variable or the file is wrong, or they do not fit each other")
            }
        }
    }

    /// What the process returns.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.row().0
    }

    /// The word at the end of the last line on stderr.
    #[must_use]
    pub const fn word(self) -> &'static str {
        self.row().1
    }

    /// What it means, for the documents.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        self.row().2
    }

    /// The last line on stderr, without its end: `message` as one line, and the word.
    #[must_use]
    pub fn last_line(self, message: &str) -> String {
        let lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
        format!("klad: {} [{}]", lines.collect::<Vec<_>>().join("; "), self.word())
    }
}

/// Everything that can end a subcommand, but `klad bench`.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// There is no configuration.
    #[error(transparent)]
    Settings(#[from] settings::Error),
    /// There is no listener.
    #[error(transparent)]
    Listen(#[from] listen::Error),
    /// The data directory is not to be had.
    #[error(transparent)]
    Directory(#[from] directory::Error),
    /// There is no engine.
    #[cfg(feature = "rocksdb")]
    #[error(transparent)]
    Engine(#[from] rocksdb::OpenError),
    /// There is no engine.
    #[cfg(feature = "fjall")]
    #[error(transparent)]
    Fjall(#[from] FjallError),
    /// `klad check` or `klad compact`.
    #[cfg(feature = "rocksdb")]
    #[error(transparent)]
    Offline(#[from] offline::Error),
    /// There would be no way on without them.
    #[error(
        "cannot start {count} threads: {cause}: raise the limit of processes (ulimit -u; TasksMax= of a systemd unit; --pids-limit of a container), or of address space (ulimit -v)"
    )]
    Threads {
        /// How many are needed.
        count: usize,
        /// The kernel's word.
        cause: io::Error,
    },
    /// The kernel refuses what serving needs.
    #[error("cannot serve: {0}")]
    Serve(io::Error),
    /// The engine's words.
    #[error("the last sync failed: {0}")]
    Sync(String),
    /// A file or stream of a subcommand.
    #[error("cannot {action}: {cause}")]
    Io {
        /// What was tried, on what.
        action: String,
        /// The kernel's answer.
        cause: io::Error,
    },
    /// Something else, in words.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    /// How the process ends.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Failure::Settings(_) => Exit::BadConfiguration,
            Failure::Listen(error) => of_listen(error),
            Failure::Directory(error) => of_directory(error),
            #[cfg(feature = "rocksdb")]
            Failure::Engine(error) => of_engine(error),
            #[cfg(feature = "fjall")]
            Failure::Fjall(error) => of_fjall(error),
            #[cfg(feature = "rocksdb")]
            Failure::Offline(error) => of_offline(error),
            Failure::Threads { .. } => Exit::TooFewThreads,
            Failure::Sync(_) => Exit::SyncFailed,
            Failure::Serve(_) | Failure::Io { .. } | Failure::Other(_) => Exit::Failed,
        }
    }
}

fn of_listen(error: &listen::Error) -> Exit {
    match error {
        listen::Error::NotAnAddress(_) => Exit::BadConfiguration,
        listen::Error::Bind { cause, .. } if cause.kind() == io::ErrorKind::AddrInUse => Exit::PortInUse,
        listen::Error::Bind { .. } => Exit::AddressUnusable,
    }
}

fn of_directory(error: &directory::Error) -> Exit {
    match error {
        directory::Error::Io { .. } => Exit::DataIo,
        directory::Error::InUse { .. } => Exit::DataLocked,
        directory::Error::NotKlad { .. }
        | directory::Error::NotADirectory { .. }
        | directory::Error::DanglingLink { .. }
        | directory::Error::Missing { .. }
        | directory::Error::OtherEngine { .. } => Exit::DataForeign,
        directory::Error::NewerFormat { .. } => Exit::DataNewer,
        directory::Error::Damaged { .. } => Exit::DataDamaged,
    }
}

#[cfg(feature = "rocksdb")]
fn of_engine(error: &rocksdb::OpenError) -> Exit {
    match error {
        rocksdb::OpenError::Directory(error) => of_directory(error),
        rocksdb::OpenError::HighWater(error) => of_high_water(error),
        rocksdb::OpenError::Damaged { .. } => Exit::DataDamaged,
        rocksdb::OpenError::RocksDb { io: true, .. } => Exit::DataIo,
        rocksdb::OpenError::RocksDb { io: false, .. } => Exit::Failed,
    }
}

#[cfg(feature = "fjall")]
fn of_fjall(error: &FjallError) -> Exit {
    match error {
        FjallError::Directory(error) => of_directory(error),
        FjallError::HighWater(error) => of_high_water(error),
        FjallError::Damaged { .. } => Exit::DataDamaged,
        FjallError::Fjall { .. } => Exit::DataIo,
    }
}

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
fn of_high_water(error: &high_water::Error) -> Exit {
    match error {
        high_water::Error::LogIsShort { .. } => Exit::DataDamaged,
        high_water::Error::Io { .. } => Exit::DataIo,
    }
}

#[cfg(feature = "rocksdb")]
fn of_offline(error: &offline::Error) -> Exit {
    match error {
        offline::Error::Damaged { .. } => Exit::DataDamaged,
        offline::Error::Check(check::Error::Directory(error))
        | offline::Error::Compact(maintenance::Error::Directory(error)) => of_directory(error),
        offline::Error::Check(check::Error::Open(error)) | offline::Error::Open(error) => of_engine(error),
        offline::Error::Check(check::Error::Io { .. }) | offline::Error::Compact(maintenance::Error::Io { .. }) => {
            Exit::DataIo
        }
        offline::Error::Compact(
            maintenance::Error::NotSupported { .. }
            | maintenance::Error::NotWritable(_)
            | maintenance::Error::NoSpace { .. }
            | maintenance::Error::Exists { .. }
            | maintenance::Error::Shared { .. }
            | maintenance::Error::NotWhole { .. }
            | maintenance::Error::Engine { .. }
            | maintenance::Error::Cancelled,
        )
        | offline::Error::NotPrinted(_) => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_distinct_and_so_are_codes_but_1() {
        for (at, one) in Exit::ALL.iter().enumerate() {
            for other in &Exit::ALL[at + 1..] {
                assert_ne!(one.word(), other.word());
                assert!(one.code() < other.code() || (one.code(), other.code()) == (1, 1), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn the_last_line_is_one_line() {
        assert_eq!(Exit::Failed.last_line("a\n  b\n"), "klad: a; b [failed]");
    }
}
