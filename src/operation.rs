//! What klad does, as plain data: operations, outcomes, versions, durability and the errors between them.
//!
//! Everything above the storage boundary speaks in these types, and nothing here knows HTTP, a thread or an engine.
//! Called by `storage`, `execution` and `http`.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

/// The identity of one write: unique per write, growing in commit order, never reused after a crash. It is the `ETag`.
///
/// Range: 1 to `u64::MAX`; 0 is never given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

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
    /// `--async-sync-interval` can be lost, and what survives is a prefix of commit order.
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

/// What a write does to its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Create or overwrite; an empty value is a legal value.
    Put(Bytes),
    /// Remove; removing what is absent is a write like any other and gets a version.
    Delete,
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
