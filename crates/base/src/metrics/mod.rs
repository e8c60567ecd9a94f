//! Counters, histograms, and the text format of Prometheus.
//!
//! Each counter on the path of a request has one owner: a worker's counters are written by that worker alone, with a
//! plain load and store, and summed at a scrape. Recording takes no lock and allocates nothing. Called by all
//! modules.

mod counter;
mod histogram;
pub mod text;

pub use counter::Counter;
pub use histogram::{Histogram, Snapshot};

/// A component that has families for the metrics page. The admin thread calls it, so it must not wait: neither for a
/// disk, nor for a lock that another thread holds while it waits.
pub trait Source: Send + Sync {
    /// Writes the component's families to the page. No other component has families of the same names.
    fn write(&self, page: &mut text::Page);
}
