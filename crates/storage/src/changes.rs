//! The change feed of an engine: all committed changes in commit order, read in steps.
//!
//! ```text
//!   commit section ──▶ Bell::ring ──▶ one call for each worker that waits
//!   worker ──▶ Bell::arm ──▶ Operation::Changes ──▶ storage thread ──▶ ChangesPage
//! ```
//!
//! A reader arms the bell, then reads a step. If the step has nothing new, the reader sleeps until the bell rings. A
//! change that the step did not see was committed after the bell was armed, so the bell rings for it. The engines and
//! `execution` call this module.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

#[cfg(feature = "rocksdb")]
pub(crate) use crate::operation::changes::{CHANGED_OVERHEAD_BYTES, Place};
pub use crate::operation::changes::{Changed, ChangesPage, ChangesStep, Position, What};
use klad_base::sync::RwLock;

/// The change feed of an engine.
pub trait Changes: Send + Sync {
    /// The bell that rings after commits.
    fn bell(&self) -> &Bell;

    /// The version of the last committed change, or a greater version that will never be given out.
    fn last_version(&self) -> u64;
}

/// How many old logs are kept for change feeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The maximum size of old logs in bytes; 0 keeps none and disables change feeds.
    pub bytes: u64,
    /// The maximum age of an old log's last write.
    pub time: Duration,
}

impl Retention {
    /// Keeps no old logs, so there is no change feed.
    pub const NOTHING: Retention = Retention { bytes: 0, time: Duration::ZERO };
    /// Keeps all existing old logs, for tools that change no data.
    pub const EVERYTHING: Retention = Retention { bytes: u64::MAX, time: Duration::MAX };
}

/// Wakes the readers that wait for changes. While no reader waits, a commit costs one read of `armed`.
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
    /// Adds a function that every ring calls. The function must not wait.
    pub fn listen(&self, listener: impl Fn() + Send + Sync + 'static) {
        self.listeners.write().push(Box::new(listener));
    }

    /// Makes the next commit ring the bell. A commit that does not notice this call is visible to a step that begins
    /// after the call.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Calls the listeners if the bell was armed. The commit section calls this function after a commit is visible.
    #[cfg(any(test, feature = "rocksdb"))]
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
