//! Counting and timing, and the text that Prometheus reads.
//!
//! Whoever counts owns its counters: a worker's are written by the worker alone, with a plain load and store, and summed when
//! somebody scrapes. Nothing here takes a lock or allocates on the path of a request. Called by all modules.

mod counter;
mod histogram;
pub mod text;

pub use counter::Counter;
pub use histogram::{Histogram, Snapshot};

/// Whoever has something to show on the metrics page. Asked by the admin thread, so it must not wait: not for a disk, and not
/// for a lock that is held while anyone waits.
pub trait Source: Send + Sync {
    /// Puts its families on the page; nobody else's have the same names.
    fn write(&self, page: &mut text::Page);
}
