//! Counting and timing, and the text that Prometheus reads.
//!
//! Whoever counts owns its counters: a worker's are written by the worker alone, with a plain load and store, and summed when
//! somebody scrapes. Nothing here takes a lock or allocates on the path of a request. Called by all modules.

pub mod commits;
mod counter;
mod histogram;
pub mod requests;
pub mod text;

pub use counter::Counter;
pub use histogram::{Histogram, Snapshot};
