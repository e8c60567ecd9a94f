//! Why a configuration is refused. Called by `config`.

use crate::config::SafetyError;

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// One option is outside its range.
    #[error("--{option} {value} is {problem} {bound} bytes")]
    OutOfRange {
        /// Without the dashes.
        option: &'static str,
        /// As given, in bytes.
        value: u64,
        /// `less than` or `more than`.
        problem: &'static str,
        /// The limit.
        bound: u64,
    },
    /// What there is without `--memory` is too little.
    #[error(
        "{whose} has {limit} bytes of memory, and half of it, which klad takes where --memory does not say otherwise, is \
         less than the {bound} that it needs: give it more memory, or klad a larger share by --memory"
    )]
    TooLittleMemory {
        /// `the machine` or `the control group`.
        whose: &'static str,
        /// Its memory, bytes.
        limit: u64,
        /// The least of `--memory`.
        bound: u64,
    },
    /// Checkpoints would lie among the files of the data, or the data among the checkpoints.
    #[error(
        "--checkpoints {checkpoints} is inside {data}/{files}, or is --data {data} itself or a directory above it: give another directory, such as {data}/checkpoints"
    )]
    CheckpointsInData {
        /// As given.
        checkpoints: String,
        /// `--data`.
        data: String,
        /// An engine's directory in it.
        files: &'static str,
    },
    /// The engine cannot compress so.
    #[error("--compression zstd: --engine fjall has lz4 and none")]
    NoZstd,
    /// Who can reach it, and who not.
    #[error(transparent)]
    Safety(#[from] SafetyError),
    /// More connections than descriptors.
    #[error(
        "--connections-max {connections_max} is more than {available}: the limit of open files is {limit}, less {} for \
         the engine's files and klad's own. Raise it (ulimit -n), or lower --connections-max", limit - available
    )]
    TooFewDescriptors {
        /// As given.
        connections_max: u64,
        /// How many there can be.
        available: u64,
        /// The hard limit.
        limit: u64,
    },
    /// The limit of address space is too low.
    #[error(
        "the limit of address space is {limit} bytes, and klad needs at least {needed}, for the stacks of {threads} threads and \
         twice --memory: raise it (ulimit -v), or bound the memory by a control group"
    )]
    TooLittleAddressSpace {
        /// The limit.
        limit: u64,
        /// The least.
        needed: u64,
        /// How many there may be.
        threads: usize,
    },
    /// The limit of open files is too low for any client.
    #[error(
        "the limit of open files is {limit}, and a klad of {workers} workers needs at least {needed}: raise it (ulimit -n; \
         LimitNOFILE= of a systemd unit; --ulimit nofile= of a container)"
    )]
    TooFewFiles {
        /// The hard limit.
        limit: u64,
        /// `--threads`.
        workers: u64,
        /// The least.
        needed: u64,
    },
    /// The parts need more than there is.
    #[error(
        "a budget of {total} bytes (--memory) cannot hold: {connections} bytes for {connections_max} connections of {connection_bytes}, \
         {room} for bodies (at least one value of --value-max), {scans} for --scans-max {scans_max}; \
         that leaves {left} for the cache, which needs at least {cache_min}. Raise --memory, or lower one of the others"
    )]
    DoesNotFit {
        /// The budget.
        total: u64,
        /// Of it, for connections.
        connections: u64,
        /// How many there may be.
        connections_max: u64,
        /// What each is charged.
        connection_bytes: u64,
        /// Of it, for bodies.
        room: u64,
        /// Of it, for pages of ranges.
        scans: u64,
        /// How many there may be.
        scans_max: u64,
        /// Of it, what remains.
        left: u64,
        /// What must remain.
        cache_min: u64,
    },
}
