//! What every crate of klad shares: the clock, threads, locks and queues, limits, counters, and the stack sampling that locks
//! and profiles need. It knows nothing of storage, HTTP or measuring.

pub mod clock;
pub mod limits;
pub mod metrics;
pub mod os;
pub mod sampling;
pub mod sync;
