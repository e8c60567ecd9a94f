//! What klad does, as plain data: operations, outcomes, versions, durability and the errors between them.
//!
//! Everything above the storage boundary speaks in these types, and nothing here knows HTTP, a thread or an engine.
//! Called by `storage`, `execution` and `http`.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use bytes::Bytes;

/// The identity of one write: no other write has it, not even after a crash. It is the `ETag`.
///
/// The engine chooses it. Above storage two versions are equal or not, and no more can be said of them: there is no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version(u64);

impl Version {
    /// What an engine has chosen: 1 to `u64::MAX`. Called by engines only.
    #[must_use]
    pub const fn new(chosen: u64) -> Version {
        Version(chosen)
    }

    /// What the engine has chosen, to be stored or shown.
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

/// What an acknowledged write has survived, ordered from the weakest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Nothing: the data ends with the process. Only the memory engine answers this.
    None,
    /// The write-ahead log was written: safe when the process dies. When the machine does, at most the last
    /// `--async-sync-interval` can be lost; of an engine with one order of writes, what survives is a prefix of it.
    Async,
    /// The write-ahead log was synced (`fdatasync`): safe when the machine dies.
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

    /// Reads what a client or an operator may ask for: `sync` or `async`.
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

/// What an engine is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads a key: [`Outcome::Found`] or [`Outcome::NotFound`].
    Get {
        /// The key's bytes.
        key: Bytes,
    },
    /// One step of a range: [`Outcome::Page`].
    Scan(ScanStep),
    /// [`Outcome::Written`].
    Write(Write),
}

/// Changes that take effect together or not at all, as one write with one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// At least one; more than one need an engine with batches. Of two changes of a key the later one holds.
    pub changes: Vec<Change>,
    /// What the acknowledgement must mean, at least: `Sync` or `Async`.
    pub durability: Durability,
}

/// What is to become of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Any bytes, at least one.
    pub key: Bytes,
    /// What must hold, or nothing of the write happens. Needs an engine with conditions.
    pub condition: Option<Condition>,
    /// What is done to the key.
    pub effect: Effect,
}

/// What must hold of a key before it is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It holds a value.
    Present,
    /// It holds none.
    Absent,
    /// Its value is of this write.
    Is(Version),
}

/// What a change does to its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Create or overwrite; an empty value is a legal value.
    Put(Value),
    /// Remove; removing what is absent is a write like any other and gets a version.
    Delete,
}

/// What a key is to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// The value's bytes.
    pub payload: Bytes,
    /// Milliseconds since 1970 from which on the key counts as absent. Needs an engine with expiry.
    pub expires_at_ms: Option<NonZeroU64>,
    /// Content type and user metadata, encoded by the layer that uses them; empty is none. Needs an engine with metadata.
    pub metadata: Bytes,
}

impl From<Bytes> for Value {
    fn from(payload: Bytes) -> Value {
        Value { payload, ..Value::default() }
    }
}

impl Write {
    /// One change without a condition.
    #[must_use]
    pub fn of(key: Bytes, effect: Effect, durability: Durability) -> Write {
        Write { changes: vec![Change { key, condition: None, effect }], durability }
    }

    /// Bytes of its keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.changes.iter().map(|change| change.key.len() + change.effect.payload_bytes()).sum()
    }
}

impl Effect {
    /// Bytes of the value; 0 of a removal.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        match self {
            Effect::Put(value) => value.payload.len(),
            Effect::Delete => 0,
        }
    }
}

/// One step of a scan: at most `entries_max` entries and `bytes_max` bytes of keys and values, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanStep {
    /// First key that may be answered.
    pub from: Bytes,
    /// First key that may not be answered; `None` is "to the last key".
    pub end: Option<Bytes>,
    /// At least 1.
    pub entries_max: usize,
    /// Bytes of keys and values together.
    pub bytes_max: usize,
}

/// One key and its value, as a scan answers them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key's bytes.
    pub key: Bytes,
    /// The value's bytes.
    pub value: Bytes,
}

/// What a scan step found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    /// Entries in key order, and where the next step starts (`None`: the range is at its end). The entries may be none
    /// while there is a next step, where a step met only keys that are gone.
    Entries {
        /// Found in this step.
        entries: Vec<Entry>,
        /// `from` of the next step.
        next: Option<Bytes>,
    },
    /// The first entry alone is larger than `bytes_max`: ask again with room for so many bytes.
    TooLarge {
        /// Key and value together.
        bytes: usize,
    },
}

/// How an operation ended, when it ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The key is present.
    Found {
        /// Of the write that stored the value.
        version: Version,
        /// The value's bytes.
        value: Bytes,
    },
    /// The key is absent, deleted or expired.
    NotFound,
    /// The write has happened, with this durability.
    Written {
        /// Of this write.
        version: Version,
        /// What the write has survived by now, at least.
        durability: Durability,
    },
    /// A scan step's entries.
    Page(Page),
}

/// How an operation ended, when it did not end well. The first group has had no effect, ever; `Undetermined` is the only
/// one that may have had one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A bound was reached before anything was done.
    #[error("{what} (limit {limit})")]
    Overloaded {
        /// Which bound, in words.
        what: &'static str,
        /// The bound's value, in the unit that `what` names.
        limit: u64,
        /// The wait that is to be expected, from measured service; `None`: nothing was measured yet.
        retry_after: Option<Duration>,
    },
    /// The engine does not do this; the operation was not begun.
    #[error("--engine {engine} has no {what}")]
    NotSupported {
        /// The engine.
        engine: &'static str,
        /// `conditions`, `expiry`, `metadata`, `batches`.
        what: &'static str,
    },
    /// Request bodies and large answers take all the room there is.
    #[error("no room for {bytes} bytes of answer now")]
    NoRoom {
        /// What the value needs.
        bytes: u64,
    },
    /// The deadline that the request set passed while it waited: it was not begun.
    #[error("the deadline of the request passed before it was begun")]
    DeadlinePassed,
    /// The server is about to stop.
    #[error("the server is stopping")]
    Stopping,
    /// Free space has fallen below the reserve.
    #[error("{free_bytes} bytes are free on the data directory's file system, the reserve is {reserve_bytes}")]
    NoSpace {
        /// Bytes free to klad when last looked at.
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
    /// An earlier log write or sync failed: no write is taken until the server is started again.
    #[error("writes are refused until the server is started again, because {why}")]
    WritesStopped {
        /// What failed.
        why: String,
    },
    /// Storage takes no writes until it has caught up with those it has.
    #[error("storage has stopped taking writes until it has caught up")]
    Stalled,
    /// No block of versions could be made durable; the next write tries again.
    #[error("no version could be reserved for the write: {why}")]
    NoVersion {
        /// What failed.
        why: String,
    },
    /// A read failed.
    #[error("the read failed: {why}")]
    ReadFailed {
        /// The engine's words.
        why: String,
    },
    /// The stored record is not one that this klad can read.
    #[error("the stored record cannot be read: {why}")]
    Unreadable {
        /// What the decoder met.
        why: String,
    },
    /// A write failed after it was taken: it may or may not be stored.
    #[error("the write failed and its outcome is undetermined: {why}")]
    Undetermined {
        /// The engine's words.
        why: String,
    },
}
