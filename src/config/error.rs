//! Errors of the configuration. Called by `config`.

use crate::config::SafetyError;

/// Why klad rejects a configuration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// One option is outside its range.
    #[error("--{option} {value} is {problem} {bound} bytes")]
    OutOfRange {
        /// Name of the option, without the dashes.
        option: &'static str,
        /// The given value, bytes.
        value: u64,
        /// `less than` or `more than`.
        problem: &'static str,
        /// The limit.
        bound: u64,
    },
    /// The default of `--memory` would be too small.
    #[error(
        "{owner} has {limit} bytes of memory. By default klad uses half of it, which is less than the minimum of \
         {bound} bytes: provide more memory, or set --memory"
    )]
    TooLittleMemory {
        /// `the machine` or `the control group`.
        owner: &'static str,
        /// Its memory, bytes.
        limit: u64,
        /// Minimum of `--memory`, bytes.
        bound: u64,
    },
    /// The directory of checkpoints is inside the engine's files, or the data directory is inside the directory of
    /// checkpoints.
    #[error(
        "--checkpoints {checkpoints} is inside {data}/{files}, or is --data {data} itself or a directory above it: \
         choose another directory, for example {data}/checkpoints"
    )]
    CheckpointsInData {
        /// The given directory.
        checkpoints: String,
        /// `--data`.
        data: String,
        /// Name of the engine's directory in `data`.
        files: &'static str,
    },
    /// The engine does not support zstd.
    #[error("--engine fjall does not support --compression zstd; use lz4 or none")]
    NoZstd,
    /// The options of the cluster are wrong.
    #[cfg(feature = "cassandra")]
    #[error("{0}")]
    Cluster(String),
    /// Tokens, certificates or addresses are wrong.
    #[error(transparent)]
    Safety(#[from] SafetyError),
    /// `--connections-max` is more than the limit of open files allows.
    #[error(
        "--connections-max {connections_max} is more than {available}: the limit of open files is {limit}, and klad \
         keeps {} for the engine's files and its own. Raise the limit (ulimit -n), or lower --connections-max",
        limit - available
    )]
    TooFewDescriptors {
        /// The given number.
        connections_max: u64,
        /// The possible number.
        available: u64,
        /// The hard limit of open files.
        limit: u64,
    },
    /// The limit of address space is too low.
    #[error(
        "the limit of address space is {limit} bytes, and klad needs at least {needed} for the stacks of {threads} \
         threads and twice --memory: raise it (ulimit -v), or limit the memory with a control group instead"
    )]
    TooLittleAddressSpace {
        /// The limit, bytes.
        limit: u64,
        /// The minimum, bytes.
        needed: u64,
        /// Maximum number of threads.
        threads: usize,
    },
    /// The limit of open files is too low for any client.
    #[error(
        "the limit of open files is {limit}, and klad with {workers} workers needs at least {needed}: raise it \
         (ulimit -n; LimitNOFILE= of a systemd unit; --ulimit nofile= of a container)"
    )]
    TooFewFiles {
        /// The hard limit.
        limit: u64,
        /// The number of workers, `--threads`.
        workers: u64,
        /// The minimum.
        needed: u64,
    },
    /// The parts of the memory budget do not fit into it.
    #[error(
        "the memory budget of {total} bytes (--memory) is too small. It must hold {connections} bytes for \
         {connections_max} connections of {connection_bytes}, {bodies} for bodies (at least one value of --value-max), \
         and {scans} for --scans-max {scans_max}; this leaves {left} for the cache, which needs at least {cache_min}. \
         Raise --memory, or lower one of the others"
    )]
    DoesNotFit {
        /// The whole budget, bytes.
        total: u64,
        /// The part for connections, bytes.
        connections: u64,
        /// Maximum number of connections.
        connections_max: u64,
        /// The part of one connection, bytes.
        connection_bytes: u64,
        /// The part for bodies, bytes.
        bodies: u64,
        /// The part for pages of range scans, bytes.
        scans: u64,
        /// Maximum number of range scans.
        scans_max: u64,
        /// What is left for the cache, bytes.
        left: u64,
        /// The minimum of the cache, bytes.
        cache_min: u64,
    },
}

#[cfg(feature = "cassandra")]
impl From<crate::cluster::Error> for Error {
    fn from(error: crate::cluster::Error) -> Error {
        Error::Cluster(error.to_string())
    }
}
