//! Exit codes: one code and one word for each reason why klad ends, and the mapping from errors to them.
//!
//! The last line on stderr is a message for people that ends with the word for programs: `klad: cannot listen on ...:
//! ... [port-in-use]`. Codes from 64 on are those of BSD's `sysexits.h` if one of them fits. `klad bench`
//! (docs/bench.md), `klad lab` (docs/lab.md) and the client commands (docs/command-line.md) have their own codes. But
//! `klad export` and `klad import` end with a code of this module if their data directory does not open.
//!
//! Called by `main`. `reference` prints the table for the documents.

use std::io;

#[cfg(feature = "cassandra")]
use crate::cluster;
use crate::disk;
#[cfg(feature = "rocksdb")]
use crate::offline;
use crate::settings;
use klad_base::limits::TOO_FEW_THREADS_EXIT;
use klad_server::net::listen;
#[cfg(feature = "cassandra")]
use klad_storage::cassandra::OpenError;
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
    /// The command succeeded.
    Ok,
    /// The command failed for a reason without its own code.
    Failed,
    /// A second signal to stop arrived.
    SecondSignal,
    /// The command line is invalid.
    Usage,
    /// A file or writes are missing or wrong.
    DataDamaged,
    /// The directory belongs to another program or engine.
    DataForeign,
    /// The kernel does not allow klad to listen on the address.
    AddressUnusable,
    /// Another process listens on the address.
    PortInUse,
    /// The last sync failed.
    SyncFailed,
    /// The kernel does not allow klad to start its threads.
    TooFewThreads,
    /// The Cassandra cluster cannot be reached, or does not do what klad needs.
    ClusterUnavailable,
    /// The Cassandra cluster has no keyspace of klad, or a keyspace with another number of buckets than the command
    /// asks for.
    NoKeyspace,
    /// The directory cannot be read, written or created.
    DataIo,
    /// Another process serves the directory.
    DataLocked,
    /// A newer version of klad wrote the directory.
    DataNewer,
    /// The configuration is invalid.
    BadConfiguration,
}

impl Exit {
    /// All reasons, in the order of their codes.
    pub const ALL: [Exit; 16] = [
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
        Exit::ClusterUnavailable,
        Exit::NoKeyspace,
        Exit::DataIo,
        Exit::DataLocked,
        Exit::DataNewer,
        Exit::BadConfiguration,
    ];

    /// Returns the exit code, the word, and the meaning.
    const fn row(self) -> (u8, &'static str, &'static str) {
        match self {
            Exit::Ok => (0, "ok", "success; or stopped by SIGTERM or SIGINT with everything synced"),
            Exit::Failed => (1, "failed", "the command failed for a reason without its own code"),
            Exit::SecondSignal => (1, "second-signal", "a second SIGTERM or SIGINT ended the process at once"),
            Exit::Usage => (2, "usage", "the command line is invalid"),
            Exit::DataDamaged => (65, "data-damaged", "the data is damaged: a file or writes are missing or wrong"),
            Exit::DataForeign => (66, "data-foreign", "the directory belongs to another program or to another engine"),
            Exit::AddressUnusable => {
                (68, "address-unusable", "the kernel does not allow klad to listen on the address")
            }
            Exit::PortInUse => (69, "port-in-use", "another process listens on the address"),
            Exit::SyncFailed => {
                (70, "sync-failed", "stopped, but the last sync failed: writes without a sync may be lost")
            }
            Exit::TooFewThreads => {
                (TOO_FEW_THREADS_EXIT.0, TOO_FEW_THREADS_EXIT.1, "the kernel does not allow klad to start its threads")
            }
            Exit::ClusterUnavailable => {
                (72, "cluster-unavailable", "the Cassandra cluster cannot be reached, or does not do what klad needs")
            }
            Exit::NoKeyspace => {
                (73, "no-keyspace", "the Cassandra cluster has no keyspace of klad, or one with other buckets")
            }
            Exit::DataIo => (74, "data-io", "the directory cannot be read, written or created"),
            Exit::DataLocked => (75, "data-locked", "another process serves the directory"),
            Exit::DataNewer => (76, "data-newer", "a newer version of klad wrote the directory"),
            Exit::BadConfiguration => {
                (78, "bad-configuration", "an option, a variable or the file is wrong, or they contradict each other")
            }
        }
    }

    /// Returns the exit code of the process.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.row().0
    }

    /// Returns the word at the end of the last line on stderr.
    #[must_use]
    pub const fn word(self) -> &'static str {
        self.row().1
    }

    /// Returns the meaning, for the documents.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        self.row().2
    }

    /// Returns the last line on stderr, without its line break: `message` as one line, and the word.
    #[must_use]
    pub fn last_line(self, message: &str) -> String {
        let lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
        format!("klad: {} [{}]", lines.collect::<Vec<_>>().join("; "), self.word())
    }
}

/// An error that ends a subcommand other than `klad bench`, `klad lab` and the client commands. It includes one error
/// of the client commands: a data directory did not open.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The configuration is invalid.
    #[error(transparent)]
    Settings(#[from] settings::Error),
    /// A listener failed.
    #[error(transparent)]
    Listen(#[from] listen::Error),
    /// The data directory cannot be used.
    #[error(transparent)]
    Directory(#[from] directory::Error),
    /// RocksDB did not open.
    #[cfg(feature = "rocksdb")]
    #[error(transparent)]
    Engine(#[from] rocksdb::OpenError),
    /// Fjall did not open.
    #[cfg(feature = "fjall")]
    #[error(transparent)]
    Fjall(#[from] FjallError),
    /// The Cassandra cluster did not open.
    #[cfg(feature = "cassandra")]
    #[error(transparent)]
    Cassandra(#[from] OpenError),
    /// `klad cluster` failed.
    #[cfg(feature = "cassandra")]
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// The data directory of `klad export` or `klad import` did not open.
    #[error(transparent)]
    Data(#[from] disk::OpenError),
    /// `klad check` or `klad compact` failed.
    #[cfg(feature = "rocksdb")]
    #[error(transparent)]
    Offline(#[from] offline::Error),
    /// The kernel did not start the threads.
    #[error(
        "cannot start {count} threads: {cause}: raise the limit of processes (ulimit -u; TasksMax= of a systemd unit; \
         --pids-limit of a container), or of address space (ulimit -v)"
    )]
    Threads {
        /// The number of threads that klad needs.
        count: usize,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// A system call that serving needs failed.
    #[error("cannot serve: {0}")]
    Serve(io::Error),
    /// The last sync failed. The text is the engine's.
    #[error("the last sync failed: {0}")]
    Sync(String),
    /// A file or a stream of a subcommand failed.
    #[error("cannot {action}: {cause}")]
    Io {
        /// The failed action and its object.
        action: String,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// Another error.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    /// Returns why the process ends.
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
            #[cfg(feature = "cassandra")]
            Failure::Cassandra(error) => of_cassandra(error),
            #[cfg(feature = "cassandra")]
            Failure::Cluster(error) => match error {
                cluster::Error::Open(error) => of_cassandra(error),
                cluster::Error::NotPrinted(_) => Exit::Failed,
                _ => Exit::BadConfiguration,
            },
            Failure::Data(error) => of_data(error),
            #[cfg(feature = "rocksdb")]
            Failure::Offline(error) => of_offline(error),
            Failure::Threads { .. } => Exit::TooFewThreads,
            Failure::Sync(_) => Exit::SyncFailed,
            Failure::Serve(_) | Failure::Io { .. } | Failure::Other(_) => Exit::Failed,
        }
    }

    /// Returns the last line that the process prints: the error, and what to do if another process serves the data
    /// directory.
    #[must_use]
    pub fn last_line(&self) -> String {
        let exit = self.exit();
        let advice = match self {
            _ if exit != Exit::DataLocked => "",
            Failure::Data(_) => ": stop it, or give --url with its address instead of the directory",
            #[cfg(feature = "rocksdb")]
            Failure::Offline(offline::Error::Check(_)) => ": stop it, or check a checkpoint of this directory",
            #[cfg(feature = "rocksdb")]
            Failure::Offline(_) => ": stop it, or send POST /compact to it",
            _ => ": stop it, or choose another directory",
        };
        exit.last_line(&format!("{self}{advice}"))
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

fn of_data(error: &disk::OpenError) -> Exit {
    match error {
        disk::OpenError::Directory(error) => of_directory(error),
        #[cfg(feature = "rocksdb")]
        disk::OpenError::RocksDb(error) => of_engine(error),
        #[cfg(feature = "fjall")]
        disk::OpenError::Fjall(error) => of_fjall(error),
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

#[cfg(feature = "cassandra")]
fn of_cassandra(error: &OpenError) -> Exit {
    match error {
        OpenError::NotConnected { .. } | OpenError::Failed { .. } => Exit::ClusterUnavailable,
        OpenError::NoKeyspace { .. } | OpenError::OtherBuckets { .. } => Exit::NoKeyspace,
        OpenError::Newer { .. } => Exit::DataNewer,
        OpenError::NoDatacenter { .. } => Exit::BadConfiguration,
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
