//! Plain data types of the storage interface: operations, outcomes, versions, durability and errors.
//!
//! All code above the storage interface uses these types. They know nothing of HTTP, threads or engines.
//! Called by `storage`, `execution` and `http`.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use bytes::Bytes;

/// The unique number of one write. No other write ever has it, not even after a crash. Clients see it as the `ETag`.
///
/// The engine chooses it. Code above storage may only compare versions for equality; their order has no meaning there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version(u64);

impl Version {
    /// Makes a version of the number that an engine has chosen, 1 to `u64::MAX`. Called by engines only.
    #[must_use]
    pub const fn new(chosen: u64) -> Version {
        Version(chosen)
    }

    /// The number that the engine has chosen.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The durability of an acknowledged write, ordered from the weakest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// The data is lost when the process ends. Only the memory engine acknowledges this.
    None,
    /// The write-ahead log was written. The write survives a crash of the process. A crash of the machine can lose at
    /// most the writes of the last `--async-sync-interval`. With an engine of global order, the writes that survive are
    /// a prefix of that order.
    Async,
    /// The write-ahead log was synced (`fdatasync`). The write survives a crash of the machine.
    Sync,
}

impl Durability {
    /// The word used in headers, parameters and options.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Durability::None => "none",
            Durability::Async => "async",
            Durability::Sync => "sync",
        }
    }

    /// Parses a durability that a client or an operator may ask for: `sync` or `async`.
    #[must_use]
    pub fn from_request(word: &str) -> Option<Durability> {
        match word {
            "sync" => Some(Durability::Sync),
            "async" => Some(Durability::Async),
            _ => None,
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An operation for an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads a key. Ends with [`Outcome::Found`] or [`Outcome::NotFound`].
    Get {
        /// The key's bytes.
        key: Bytes,
    },
    /// Reads one step of a range. Ends with [`Outcome::Page`].
    Scan(ScanStep),
    /// Changes keys. Ends with [`Outcome::Written`].
    Write(Write),
}

/// An atomic group of changes with one version: all take effect, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The changes, at least one. More than one requires an engine with batches. If two changes have the same key, the
    /// later one wins.
    pub changes: Vec<Change>,
    /// The least durability of the acknowledgement: `Sync` or `Async`.
    pub durability: Durability,
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key: any bytes, at least one.
    pub key: Bytes,
    /// The condition. If it does not hold, the whole write has no effect. Requires an engine with conditions.
    pub condition: Option<Condition>,
    /// The effect on the key.
    pub effect: Effect,
}

/// A condition on the present state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The key has a value.
    Present,
    /// The key has no value.
    Absent,
    /// The key has the value that this write stored.
    Is(Version),
}

/// The effect of a change on its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Creates or overwrites the value. An empty value is legal.
    Put(Value),
    /// Removes the value. Removing an absent key is a write like any other and gets a version.
    Delete,
}

/// A value with its attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// The value's bytes.
    pub payload: Bytes,
    /// The time from which on the key counts as absent, milliseconds since 1970. Requires an engine with expiry.
    pub expires_at_ms: Option<NonZeroU64>,
    /// Content type and user metadata, encoded by the layer that uses them. Empty means none. Requires an engine with
    /// metadata.
    pub metadata: Bytes,
}

impl From<Bytes> for Value {
    fn from(payload: Bytes) -> Value {
        Value { payload, ..Value::default() }
    }
}

impl Write {
    /// Makes a write of one change without a condition.
    #[must_use]
    pub fn of(key: Bytes, effect: Effect, durability: Durability) -> Write {
        Write { changes: vec![Change { key, condition: None, effect }], durability }
    }

    /// The total size of keys and values in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.changes.iter().map(|change| change.key.len() + change.effect.payload_bytes()).sum()
    }
}

impl Effect {
    /// The size of the value in bytes; 0 for a removal.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        match self {
            Effect::Put(value) => value.payload.len(),
            Effect::Delete => 0,
        }
    }
}

/// One step of a scan in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanStep {
    /// The start of the range, inclusive.
    pub from: Bytes,
    /// The end of the range, exclusive; `None` means to the last key.
    pub end: Option<Bytes>,
    /// The maximum number of entries, at least 1.
    pub entries_max: usize,
    /// The maximum total size of keys and values in bytes.
    pub bytes_max: usize,
}

/// One entry of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key's bytes.
    pub key: Bytes,
    /// The value's bytes.
    pub value: Bytes,
}

/// The result of a scan step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    /// Entries in key order. The list may be empty although there is a next step, if this step met only absent keys.
    Entries {
        /// The entries of this step.
        entries: Vec<Entry>,
        /// `from` of the next step; `None` at the end of the range.
        next: Option<Bytes>,
    },
    /// The first entry alone is larger than `bytes_max`. The caller must repeat the step with a `bytes_max` of at least
    /// `bytes`.
    TooLarge {
        /// The size of the entry's key and value together.
        bytes: usize,
    },
}

/// The outcome of an operation that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The key is present.
    Found {
        /// The version of the write that stored the value.
        version: Version,
        /// The value's bytes.
        value: Bytes,
    },
    /// The key is absent, deleted or expired.
    NotFound,
    /// The write has taken effect.
    Written {
        /// The version of this write.
        version: Version,
        /// The durability that the write has at least.
        durability: Durability,
    },
    /// The entries of a scan step.
    Page(Page),
}

/// The error of an operation that failed. An operation with any error but `Undetermined` has had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A limit was reached before the operation was started.
    #[error("{what} (limit {limit})")]
    Overloaded {
        /// The limit in words.
        what: &'static str,
        /// The limit's value, in the unit that `what` names.
        limit: u64,
        /// How long a new operation would now wait for storage, estimated from measured service times. `None` without
        /// an estimate, for example before the first measurement.
        retry_after: Option<Duration>,
    },
    /// The engine does not support the operation. It was not started.
    #[error("--engine {engine} has no {what}")]
    NotSupported {
        /// The engine.
        engine: &'static str,
        /// The missing capability: `conditions`, `expiry`, `metadata` or `batches`.
        what: &'static str,
    },
    /// Request bodies and large responses use all of their memory budget.
    #[error("there is no memory for a response of {bytes} bytes now")]
    NoRoom {
        /// The size of the value.
        bytes: u64,
    },
    /// The request's deadline passed while it waited. It was not started.
    #[error("the deadline of the request passed before it was started")]
    DeadlinePassed,
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// The free disk space is below the reserve.
    #[error("{free_bytes} bytes are free on the data directory's file system, the reserve is {reserve_bytes}")]
    NoSpace {
        /// The free space at the last check.
        free_bytes: u64,
        /// The configured reserve.
        reserve_bytes: u64,
    },
    /// The engine's memory is full (memory engine only).
    #[error("the memory engine is full: {limit_bytes} bytes")]
    MemoryFull {
        /// The engine's share of the memory budget.
        limit_bytes: u64,
    },
    /// An earlier log write or sync failed. The engine takes no writes until the server is started again.
    #[error("writes are refused until the server is started again, because {why}")]
    WritesStopped {
        /// The failure.
        why: String,
    },
    /// The engine takes no writes until its flushes and compactions have caught up.
    #[error("storage takes no writes until its flushes and compactions have caught up")]
    Stalled,
    /// No block of versions could be reserved on disk. The next write tries again.
    #[error("no version could be reserved for the write: {why}")]
    NoVersion {
        /// The failure.
        why: String,
    },
    /// A read failed.
    #[error("the read failed: {why}")]
    ReadFailed {
        /// The engine's message.
        why: String,
    },
    /// This klad cannot decode the stored record.
    #[error("the stored record cannot be read: {why}")]
    Unreadable {
        /// The decoder's message.
        why: String,
    },
    /// The write failed after it was started. It may or may not be stored.
    #[error("the write failed and its outcome is undetermined: {why}")]
    Undetermined {
        /// The engine's message.
        why: String,
    },
}
