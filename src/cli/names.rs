//! Words that options choose from. Called by `cli`, read by `config` and `settings`.

use clap::ValueEnum;

/// Engines to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// RocksDB in the data directory.
    #[cfg(feature = "rocksdb")]
    Rocksdb,
    /// An LSM tree in Rust, in the data directory.
    #[cfg(feature = "fjall")]
    Fjall,
    /// An ordered map in memory: the data ends with the process.
    Memory,
}

/// What `serve` without `--engine` uses.
#[cfg(feature = "rocksdb")]
pub(super) const DEFAULT_ENGINE: EngineName = EngineName::Rocksdb;
#[cfg(all(feature = "fjall", not(feature = "rocksdb")))]
pub(super) const DEFAULT_ENGINE: EngineName = EngineName::Fjall;
#[cfg(not(any(feature = "fjall", feature = "rocksdb")))]
pub(super) const DEFAULT_ENGINE: EngineName = EngineName::Memory;

/// Strategies to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExecutionName {
    /// Reads that memory can answer and writes that need no sync on the worker, others on threads that may wait.
    Adaptive,
    /// Everything on the worker, which waits for the disk.
    Inline,
    /// For experiments: everything on threads behind one bounded queue.
    Pool,
    /// For experiments: everything on threads that steal work from each other.
    Stealing,
}

/// Ways of reading a key to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PointReadsName {
    /// A pinned get.
    Get,
    /// An iterator for each read.
    Iterator,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SwitchName {
    /// Yes.
    On,
    /// No.
    Off,
}

/// What the admin address speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AdminTlsName {
    /// TLS, where the other address does.
    On,
    /// In clear.
    Off,
}

/// Durabilities to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DurabilityName {
    /// Acknowledged when the log is synced: safe when the machine dies.
    Sync,
    /// Acknowledged when the log is written: safe when the process dies.
    Async,
}

/// Forms of log lines to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormatName {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// A line for people, with fields as name=value.
    Text,
    /// An object a line.
    Json,
}

/// Levels of log lines to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevelName {
    /// A person must act.
    Error,
    /// A person should know.
    Warn,
    /// What klad does.
    Info,
    /// Why.
    Debug,
}

/// Whether there is an access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AccessLogName {
    /// No line for a request, unless it was slow.
    Off,
    /// A line for each request.
    On,
}
