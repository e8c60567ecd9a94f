//! The data types of the change feed: positions, steps, and committed changes. `changes` describes the feed.

use bytes::Bytes;

use crate::operation::{Value, Version};

/// A position in the order of commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The version of the last change before the position; 0 if the position is before all changes.
    pub after: u64,
    /// The place in the log where the engine continues, if a step has returned this position.
    pub(crate) place: Option<Place>,
}

impl Position {
    /// The position after the change with this version.
    #[must_use]
    pub const fn after(version: u64) -> Position {
        Position { after: version, place: None }
    }
}

/// The place in the logs of an engine on disk where a step continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The number of the log.
    pub(crate) log: u64,
    /// The position in the log of a batch's first record, bytes.
    pub(crate) offset: u64,
    /// The sequence number of that batch.
    pub(crate) sequence: u64,
}

/// One step of a change feed.
#[derive(Clone, Debug)]
pub struct ChangesStep {
    /// The step returns changes after this position.
    pub position: Position,
    /// The step returns only changes of keys with this prefix, and removals of ranges that may have such keys.
    pub prefix: Bytes,
    /// Whether changes come with values. If false, changes have only the sizes of the values.
    pub values: bool,
    /// The maximum total size of the changes in bytes.
    pub bytes_max: usize,
}

/// The result of a step.
#[derive(Clone, Debug)]
pub enum ChangesPage {
    /// Changes in commit order.
    Changes {
        /// The changes. The list may be empty although there are more changes, because this step may have passed many
        /// other keys.
        changes: Vec<Changed>,
        /// The position of the next step.
        next: Position,
        /// Whether more changes have been committed.
        more: bool,
    },
    /// The next change alone is larger than `bytes_max`. The caller must repeat the step with a `bytes_max` of at least
    /// `bytes`.
    TooLarge {
        /// The position before the change.
        at: Position,
        /// The size of the change.
        bytes: usize,
    },
    /// The engine no longer keeps all changes after the position.
    Gone {
        /// The version of the oldest change that is kept, or of the next change if none is kept. All later changes are
        /// kept too.
        oldest: u64,
    },
}

/// A committed change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The version of the change.
    pub version: Version,
    /// What the change did.
    pub what: What,
}

/// What a change did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Stored a value.
    Put {
        /// The key.
        key: Bytes,
        /// The value; its payload is empty in a step without values.
        value: Value,
        /// The size of the value's payload.
        value_bytes: u64,
    },
    /// Removed a key, which may have been absent before.
    Delete {
        /// The key.
        key: Bytes,
    },
    /// Removed all keys of a range.
    DeleteRange {
        /// The start of the range, inclusive.
        start: Bytes,
        /// The end of the range, exclusive; `None` means to the last key.
        end: Option<Bytes>,
    },
}

/// The memory of a change in addition to its key and value, bytes.
pub(crate) const CHANGED_OVERHEAD_BYTES: usize = 64;

impl Changed {
    /// The approximate size of the change in memory, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let what = match &self.what {
            What::Put { key, value, .. } => {
                key.len() + value.payload.len() + value.attributes.as_ref().map_or(0, |own| own.metadata.len())
            }
            What::Delete { key } => key.len(),
            What::DeleteRange { start, end } => start.len() + end.as_ref().map_or(0, Bytes::len),
        };
        what + CHANGED_OVERHEAD_BYTES
    }
}
