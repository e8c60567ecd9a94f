//! The words that options of `klad serve` take as values. Called by `cli`, read by `config` and `settings`.

use clap::ValueEnum;

/// Values of `--engine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// RocksDB in the data directory.
    #[cfg(feature = "rocksdb")]
    Rocksdb,
    /// An LSM tree in Rust, in the data directory.
    #[cfg(feature = "fjall")]
    Fjall,
    /// Tables in an Apache Cassandra cluster.
    #[cfg(feature = "cassandra")]
    Cassandra,
    /// An ordered map in memory; all data is lost when the process ends.
    Memory,
}

/// The default of `--engine`.
#[cfg(feature = "rocksdb")]
pub(super) const DEFAULT_ENGINE: EngineName = EngineName::Rocksdb;
#[cfg(all(feature = "fjall", not(feature = "rocksdb")))]
pub(super) const DEFAULT_ENGINE: EngineName = EngineName::Fjall;
#[cfg(not(any(feature = "fjall", feature = "rocksdb")))]
pub(super) const DEFAULT_ENGINE: EngineName = EngineName::Memory;

/// Values of `--execution`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExecutionName {
    /// Run operations that do not wait for the disk on the worker, all others on threads that may wait.
    Adaptive,
    /// Run all operations on the worker, which waits for the disk.
    Inline,
    /// For experiments: run all operations on threads behind one bounded queue.
    Pool,
    /// For experiments: run all operations on work-stealing threads.
    Stealing,
}

/// Values of `--point-reads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PointReadsName {
    /// Read with RocksDB's Get.
    Get,
    /// Read with an iterator for each read.
    Iterator,
}

/// Values of options that are on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SwitchName {
    /// Yes.
    On,
    /// No.
    Off,
}

/// Values of `--admin-tls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AdminTlsName {
    /// Use TLS if the client address uses TLS.
    On,
    /// Use plain HTTP.
    Off,
}

/// Values of `--durability`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DurabilityName {
    /// Acknowledge a write when the log is synced; the write survives a crash of the machine.
    Sync,
    /// Acknowledge a write when the log is written; the write survives a crash of klad.
    Async,
}

/// Values of `--log-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormatName {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// One line of text, with fields as name=value.
    Text,
    /// One JSON object per line.
    Json,
}

/// Values of `--log-level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevelName {
    /// Events after which an operator must act.
    Error,
    /// Events that an operator should know.
    Warn,
    /// What klad does.
    Info,
    /// Why klad does something.
    Debug,
}

/// Values of `--access-log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AccessLogName {
    /// Log only slow requests.
    Off,
    /// Log each request.
    On,
}
