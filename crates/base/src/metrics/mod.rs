//! Counters, histograms, the text format of Prometheus, and samples for the console.
//!
//! Counters that every request changes have one owner: only the worker writes its counters, with a plain load and
//! store, and a scrape adds up those of all workers. Rare events, such as rejections by a queue, have shared counters.
//! Recording takes no lock and allocates nothing. Called by all modules that have metrics.

mod counter;
mod histogram;
mod samples;
pub mod text;

pub use counter::Counter;
pub use histogram::{Histogram, Snapshot};
pub use samples::{Choice, Samples};

/// A component that has metric families on the metrics page. The admin thread calls the component's function, which
/// must not wait for a disk, or for a lock that another thread holds while that thread waits.
pub trait Source: Send + Sync {
    /// Writes the component's families to the page. No other component has families of the same names.
    fn write(&self, page: &mut text::Page);
}
