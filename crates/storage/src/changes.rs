//! The change feed of an engine: all committed changes in commit order, read in steps.
//!
//! ```text
//!   commit section ──▶ Bell::ring ──▶ one call for each worker that waits
//!   worker ──▶ Bell::arm ──▶ Operation::Changes ──▶ storage thread ──▶ ChangesPage
//! ```
//!
//! A reader arms the bell, then reads a step. If the step has nothing new, the reader sleeps until the bell rings. A
//! change that the step did not see was committed after the bell was armed, so the bell rings for it. Called by the
//! engines and by `execution`.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use bytes::Bytes;

use crate::operation::{Value, Version};
use klad_base::sync::RwLock;

/// The change feed of an engine.
pub trait Changes: Send + Sync {
    /// The bell that rings after commits.
    fn bell(&self) -> &Bell;

    /// The version of the last committed change, or a greater one that will not be given out.
    fn last_version(&self) -> u64;
}

/// How much of the changes is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The maximum size of old logs in bytes; 0 keeps none and disables change feeds.
    pub bytes: u64,
    /// The maximum age of an old log's last write.
    pub time: Duration,
}

impl Retention {
    /// No old logs, and no change feed.
    pub const NOTHING: Retention = Retention { bytes: 0, time: Duration::ZERO };
    /// All old logs that are there. For tools that change no data.
    pub const EVERYTHING: Retention = Retention { bytes: u64::MAX, time: Duration::MAX };
}

/// A position in the order of commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The version of the last change before the position; 0 before all changes.
    pub after: u64,
    /// Where the engine continues, if a step has returned this position.
    pub(crate) place: Option<Place>,
}

impl Position {
    /// The position behind the change with this version.
    #[must_use]
    pub const fn after(version: u64) -> Position {
        Position { after: version, place: None }
    }
}

/// Where a step of an engine on disk continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The number of the log.
    pub(crate) log: u64,
    /// The position of a batch's first record in bytes.
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
    /// Whether changes come with values. Otherwise only their size is given.
    pub values: bool,
    /// The maximum total size of the changes in bytes.
    pub bytes_max: usize,
}

/// The result of a step.
#[derive(Clone, Debug)]
pub enum ChangesPage {
    /// Changes in commit order.
    Changes {
        /// The changes. The list may be empty although there are more, if this step passed many other keys.
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
        /// The version of the oldest change that is kept. All later ones are kept too.
        oldest: u64,
    },
}

/// A committed change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The version of the change.
    pub version: Version,
    /// What has changed.
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
    /// Removed a key, or an absent one.
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

/// Memory of a change beyond its key and value, bytes.
pub(crate) const CHANGED_OVERHEAD_BYTES: usize = 64;

impl Changed {
    /// The size of the change in memory, about.
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

/// Wakes those who wait for changes. Without anyone waiting, a commit costs one read of `armed`.
#[derive(Default)]
pub struct Bell {
    armed: AtomicBool,
    listeners: RwLock<Vec<Listener>>,
}

type Listener = Box<dyn Fn() + Send + Sync>;

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell").field("armed", &self.armed).finish_non_exhaustive()
    }
}

impl Bell {
    /// Adds a function that every ring calls. It must not wait.
    pub fn listen(&self, listener: impl Fn() + Send + Sync + 'static) {
        self.listeners.write().push(Box::new(listener));
    }

    /// Makes the next commit ring. A commit that this call does not reach is visible to a step that begins afterwards.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Calls the listeners if the bell was armed. The commit section calls it after a commit is visible.
    pub(crate) fn ring(&self) {
        // The commit became visible before this read. Without the fence the processor could read first, and a reader
        // that armed the bell in between would sleep although it has not seen the commit.
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::SeqCst) {
            self.listeners.read().iter().for_each(|listener| listener());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_bell_rings_once_for_each_arming() {
        let (bell, rung) = (Bell::default(), Arc::new(AtomicUsize::new(0)));
        let counter = rung.clone();
        bell.listen(move || _ = counter.fetch_add(1, Ordering::Relaxed));
        bell.ring();
        assert_eq!(rung.load(Ordering::Relaxed), 0, "nobody waits");
        bell.arm();
        bell.arm();
        bell.ring();
        bell.ring();
        assert_eq!(rung.load(Ordering::Relaxed), 1);
    }
}
