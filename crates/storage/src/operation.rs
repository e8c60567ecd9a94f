//! Plain data types of the storage interface: operations, outcomes, versions, durability and errors.
//!
//! All code above the storage interface uses these types. They know nothing of HTTP, threads or engines.
//! Called by `storage`, `execution` and `http`.

use std::any::Any;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::limits::COMMIT_BYTES_MAX;

pub mod changes;
mod consistency;

use changes::{ChangesPage, ChangesStep};
pub use consistency::Consistency;

/// The unique number of one write. No other write ever has it, not even after a crash. Clients see it as the `ETag`.
///
/// The engine chooses the version. Code above storage may only compare versions for equality; their order has no
/// meaning there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version(u64);

impl Version {
    /// Makes a version from the number that an engine has chosen, 1 to `u64::MAX`. Only engines call this.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// The data is lost when the process ends. Only the memory engine acknowledges this.
    None,
    /// The write-ahead log was written. The write survives a crash of the process. A crash of the machine can lose at
    /// most the writes of the last `--async-sync-interval`. With an engine of global order, the writes that survive are
    /// a prefix of that order.
    Async,
    /// The write-ahead log was synced (`fdatasync`). The write survives a crash of the machine.
    #[default]
    Sync,
    /// This number of copies on other machines have acknowledged the write. A setting of the cluster decides whether
    /// the write is on their disks. Only an engine with several copies acknowledges this.
    Replicated(u8),
}

impl Durability {
    /// The word used in headers, parameters and options.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Durability::None => "none",
            Durability::Async => "async",
            Durability::Sync => "sync",
            Durability::Replicated(_) => "replicated",
        }
    }

    /// The number of copies that have acknowledged the write; `None` if the engine has one copy only.
    #[must_use]
    pub const fn acks(self) -> Option<u8> {
        match self {
            Durability::Replicated(acks) => Some(acks),
            Durability::None | Durability::Async | Durability::Sync => None,
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
#[derive(Clone, Debug)]
pub enum Operation {
    /// Reads a key. Ends with [`Outcome::Found`] or [`Outcome::NotFound`].
    Get {
        /// The key's bytes.
        key: Bytes,
        /// How many copies must answer.
        consistency: Consistency,
    },
    /// Reads many keys. Ends with [`Outcome::FoundMany`].
    GetMany {
        /// The keys.
        keys: Vec<Bytes>,
        /// The maximum total size of the values with their metadata. A value that does not fit fails with
        /// [`ChangeError::NoRoom`].
        bytes_max: usize,
        /// How many copies must answer.
        consistency: Consistency,
    },
    /// Reads keys from the disk into the engine's caches and copies nothing, so that the commit section finds them in
    /// memory. Ends with [`Outcome::NotFound`].
    Prefetch {
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// Reads one step of a range. Ends with [`Outcome::Page`]. Boxed, because it is much larger than other operations.
    Scan(Box<ScanStep>),
    /// Changes keys. Ends with [`Outcome::Written`] or [`Outcome::Failed`].
    Write(Write),
    /// Removes all keys of a range, in one commit if the engine has a global order. Ends with [`Outcome::Written`].
    RemoveRange(RangeRemoval),
    /// Reads one step of the change feed. Ends with [`Outcome::Changes`]. Requires an engine with changes.
    Changes(ChangesStep),
}

/// A group of changes. An engine with a global order commits them together, and change `i` gets the version of the
/// first change plus `i`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// The changes, at least one. More than one requires an engine with batches. Each change sees the changes before
    /// it.
    pub changes: Vec<Change>,
    /// Whether a change that fails undoes all others. If false, the other changes take effect.
    pub atomic: bool,
    /// The maximum total size of the values, with their metadata, that [`Effect::Read`] returns.
    pub read_bytes_max: usize,
    /// The minimum durability of what the write stores: `Sync` or `Async`. A write that stores nothing needs no
    /// sync.
    pub durability: Durability,
    /// How many copies must answer.
    pub consistency: Consistency,
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key: any bytes, at least one.
    pub key: Bytes,
    /// The condition. If it does not hold, the change fails. Requires an engine with conditions.
    pub condition: Option<Condition>,
    /// The effect on the key.
    pub effect: Effect,
    /// Whether the result must say if the key had a value before. The engine then reads the key first.
    pub reports_existence: bool,
}

/// A condition on the present state of a key. The commit section evaluates it together with the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The key has a value.
    Present,
    /// The key has no value.
    Absent,
    /// The key has the value that the change with this version stored.
    Is(Version),
    /// Never holds. This condition stands for a version that no write has.
    Never,
}

/// The effect of a change on its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Creates or overwrites the value. An empty value is legal.
    Put(Value),
    /// Removes the value. Removing an absent key is a change like any other and gets a version.
    Delete,
    /// Adds `by` to a value that is a signed decimal number of 64 bits. An absent key counts as 0 and gets the
    /// attributes `created`; an existing value keeps its own attributes, with a new `modified_ms`. Requires an engine
    /// with conditions.
    Add {
        /// The number to add.
        by: i64,
        /// The attributes of a counter that this change creates.
        created: Option<Box<Attributes>>,
    },
    /// Changes the expiry, the version and `modified_ms` of an existing value, but nothing else. `None` removes the
    /// expiry. Fails if the key is absent. Requires an engine with conditions and expiry.
    Expire(Option<NonZeroU64>),
    /// Reads the value as it is after the changes before this one. Changes nothing. Requires an engine with conditions.
    Read,
}

/// A value with its attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// The value's bytes.
    pub payload: Bytes,
    /// The attributes. `/v0` stores values without any. Boxed, because most values have none.
    pub attributes: Option<Box<Attributes>>,
}

/// The attributes of a value, which are stored beside its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The time of the change, milliseconds since 1970.
    pub modified_ms: Option<NonZeroU64>,
    /// The time from which on the key counts as absent, milliseconds since 1970. Requires an engine with expiry.
    pub expires_at_ms: Option<NonZeroU64>,
    /// Content type and user metadata, encoded by the layer that uses them. Empty means none. Requires an engine with
    /// metadata.
    pub metadata: Bytes,
}

impl Value {
    /// The size of payload and metadata in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.payload.len() + self.attributes.as_ref().map_or(0, |own| own.metadata.len())
    }

    /// The time from which on the value counts as absent.
    #[must_use]
    pub fn expires_at_ms(&self) -> Option<NonZeroU64> {
        self.attributes.as_ref()?.expires_at_ms
    }

    /// Whether the value counts as absent at `now_ms` (milliseconds since 1970).
    #[must_use]
    pub fn expired(&self, now_ms: impl FnOnce() -> u64) -> bool {
        self.expires_at_ms().is_some_and(|expiry| expiry.get() <= now_ms())
    }

    /// Copies the value, because its bytes may be slices of a much larger receive buffer.
    pub(crate) fn compact_copy(&self) -> Value {
        let attributes = self
            .attributes
            .as_deref()
            .map(|own| Box::new(Attributes { metadata: Bytes::copy_from_slice(&own.metadata), ..own.clone() }));
        Value { payload: Bytes::copy_from_slice(&self.payload), attributes }
    }
}

impl From<Bytes> for Value {
    fn from(payload: Bytes) -> Value {
        Value { payload, attributes: None }
    }
}

impl Change {
    /// Makes a change without a condition.
    #[must_use]
    pub fn of(key: Bytes, effect: Effect) -> Change {
        Change { key, condition: None, effect, reports_existence: false }
    }

    /// Whether the result depends on the present state of the key, so that the engine must read it.
    #[must_use]
    pub fn depends_on_state(&self) -> bool {
        self.condition.is_some()
            || self.reports_existence
            || matches!(self.effect, Effect::Add { .. } | Effect::Expire(_) | Effect::Read)
    }

    /// The size of key, value and metadata in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.key.len()
            + match &self.effect {
                Effect::Put(value) => value.bytes(),
                Effect::Add { created, .. } => created.as_ref().map_or(0, |own| own.metadata.len()),
                // This effect stores the value again, whose size is not known here. So the write counts as a whole
                // batch.
                Effect::Expire(_) => COMMIT_BYTES_MAX,
                Effect::Delete | Effect::Read => 0,
            }
    }
}

impl Write {
    /// Makes a write of one change without a condition.
    #[must_use]
    pub fn of(key: Bytes, effect: Effect, durability: Durability) -> Write {
        Write::one(Change::of(key, effect), durability)
    }

    /// Makes a write of one change.
    #[must_use]
    pub fn one(change: Change, durability: Durability) -> Write {
        Write { changes: vec![change], atomic: true, durability, ..Write::default() }
    }

    /// The total size of keys, values and metadata in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.changes.iter().map(Change::bytes).sum()
    }

    /// Whether a change depends on the present state of its key.
    #[must_use]
    pub fn depends_on_state(&self) -> bool {
        self.changes.iter().any(Change::depends_on_state)
    }
}

/// The removal of all keys of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeRemoval {
    /// The start of the range, inclusive.
    pub from: Bytes,
    /// The end of the range, exclusive; `None` means to the last key.
    pub end: Option<Bytes>,
    /// The minimum durability of the acknowledgement: `Sync` or `Async`.
    pub durability: Durability,
    /// How many copies must answer.
    pub consistency: Consistency,
}

/// The state of all keys at one moment, for the steps of one scan. The engine keeps that state until the last clone is
/// dropped, so a snapshot must not live for long.
#[derive(Clone)]
pub struct Snapshot(pub Arc<dyn Any + Send + Sync>);

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Snapshot")
    }
}

/// The state that a scan step reads.
#[derive(Clone, Debug, Default)]
pub enum View {
    /// The state at the time of the step.
    #[default]
    Latest,
    /// The state at the time of the step. The page returns a snapshot of this state for the next steps, if the engine
    /// has snapshots.
    Take,
    /// The state of an earlier step.
    At(Snapshot),
}

/// One step of a scan in key order.
#[derive(Clone, Debug)]
pub struct ScanStep {
    /// The start of the range, inclusive.
    pub from: Bytes,
    /// The end of the range, exclusive; `None` means to the last key.
    pub end: Option<Bytes>,
    /// Whether the step begins at the end of the range and goes towards its start.
    pub reverse: bool,
    /// Whether entries come without values. The `value_bytes` of an entry still says the size of its value.
    pub keys_only: bool,
    /// The maximum number of entries, at least 1.
    pub entries_max: usize,
    /// The maximum total size of keys, values and metadata in bytes.
    pub bytes_max: usize,
    /// The state that the step reads.
    pub view: View,
    /// How many copies must answer.
    pub consistency: Consistency,
}

/// One entry of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key's bytes.
    pub key: Bytes,
    /// The version of the change that stored the value.
    pub version: Version,
    /// The value; its payload is empty in a step with `keys_only`.
    pub value: Value,
    /// The size of the value's payload.
    pub value_bytes: usize,
}

/// The result of a scan step.
#[derive(Clone, Debug)]
pub enum Page {
    /// Entries in the order of the scan. The list may be short or empty although there is a next step, because this
    /// step may have met many absent keys.
    Entries {
        /// The entries of this step.
        entries: Vec<Entry>,
        /// The bound of the next step: its `from`, or its `end` if `reverse` is set. `None` if the range has no more
        /// entries.
        next: Option<Bytes>,
        /// The state that the step has read, if the step asked for it and the engine has snapshots. An engine without
        /// snapshots may return the rows that it has read ahead for the next step.
        snapshot: Option<Snapshot>,
    },
    /// The first entry alone is larger than `bytes_max`. The caller must repeat the step with a `bytes_max` of at least
    /// `bytes`.
    TooLarge {
        /// The size of the entry's key, value and metadata together.
        bytes: usize,
    },
}

/// The result of one change of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeResult {
    /// The change has taken effect.
    Done {
        /// The version of the change.
        version: Version,
        /// Whether the key had a value before, if the engine has read it.
        existed: Option<bool>,
        /// The new value of a counter.
        number: Option<i64>,
    },
    /// The value that [`Effect::Read`] has found; `None` if the key is absent.
    Read(Option<(Version, Value)>),
    /// The change failed and had no effect.
    Failed(ChangeError),
}

/// Why a change fails although the engine works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The condition does not hold.
    #[error("the condition does not hold")]
    Condition {
        /// The version of the present value; `None` if the key is absent.
        current: Option<Version>,
    },
    /// [`Effect::Expire`] found no value.
    #[error("the key has no value")]
    Absent,
    /// [`Effect::Add`] found a value that is not a decimal number.
    #[error("the value is not a decimal number of 64 bits")]
    NotANumber,
    /// The value does not fit into what is left of `read_bytes_max`, or of the `bytes_max` of [`Operation::GetMany`].
    #[error("the values that were read before leave no space for this one")]
    NoRoom,
    /// The values whose expiry one write changes together have more than [`COMMIT_BYTES_MAX`] bytes.
    #[error("the values whose expiry was changed before leave no space for this one")]
    ExpiriesTooLarge,
    /// The sum of [`Effect::Add`] does not fit.
    #[error("the sum does not fit into 64 bits")]
    Overflow,
}

/// The outcome of an operation that succeeded.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The key is present.
    Found {
        /// The version of the change that stored the value.
        version: Version,
        /// The value.
        value: Value,
    },
    /// The key is absent, deleted or expired.
    NotFound,
    /// The values of many keys: [`ChangeResult::Read`] or `Failed` for each key, in the order of the keys.
    FoundMany(Vec<ChangeResult>),
    /// The write has taken effect.
    Written {
        /// The version of the first change.
        version: Version,
        /// The minimum durability of the write. It does not apply to a value that the write has only read.
        durability: Durability,
        /// One result for each change. May be empty if no change depends on the state of its key, because then all
        /// changes are done.
        results: Vec<ChangeResult>,
    },
    /// An atomic write had no effect, because this change failed.
    Failed {
        /// The index of the change.
        index: usize,
        /// Why the change failed.
        error: ChangeError,
    },
    /// The entries of a scan step.
    Page(Page),
    /// The changes of a step of the change feed.
    Changes(ChangesPage),
}

/// The error of an operation that failed. After `Undetermined` or `NotEnoughReplicas`, a write may have had an effect,
/// or may still have one. After any other error, the operation has had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A limit was reached. The operation has had no effect.
    #[error("{what} (limit {limit})")]
    Overloaded {
        /// The limit in words.
        what: &'static str,
        /// The limit's value, in the unit that `what` names.
        limit: u64,
        /// How long a new operation would now wait for storage, estimated from measured service times. `None` if there
        /// is no estimate, for example before the first measurement.
        retry_after: Option<Duration>,
    },
    /// The engine does not support the operation, which was not started.
    #[error("--engine {engine} has no {what}")]
    NotSupported {
        /// The engine.
        engine: &'static str,
        /// What the engine does not support, for example `conditions`, or values above a size.
        what: &'static str,
    },
    /// The engine cannot remove so many keys in one commit. Nothing was removed.
    #[error("the range has more than {limit} keys, which --engine fjall cannot remove at once")]
    RangeTooLarge {
        /// The maximum number of keys.
        limit: u64,
    },
    /// Request bodies and large responses use all of their memory budget.
    #[error("there is no memory for a response of {bytes} bytes now")]
    NoRoom {
        /// The size of the value.
        bytes: u64,
    },
    /// The deadline of the request passed while the request waited. The request was not started.
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
    /// An earlier log write or sync failed, a thread of fjall failed, or the data directory is gone. The engine takes
    /// no writes until the server is started again.
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
    /// The cluster rejected the request, for example because the user may not write. The request was not executed.
    #[error("the cluster rejected the request: {why}")]
    RejectedByCluster {
        /// The cluster's message.
        why: String,
    },
    /// Too few copies answered or are reachable. A write may be stored all the same.
    #[error("{answered} of the {asked} copies that must answer did")]
    NotEnoughReplicas {
        /// The number of copies that answered or are reachable.
        answered: u32,
        /// The number of copies that must answer.
        asked: u32,
    },
    /// The write failed after it was started. The write may or may not be stored.
    #[error("the write failed and its outcome is undetermined: {why}")]
    Undetermined {
        /// The engine's message.
        why: String,
    },
}
