//! Code that the server, storage, profiles and load tests of klad share: the clock, threads, locks and queues, limits,
//! counters, and the stack sampling that locks and profiles need. This crate has no code about storage, HTTP or load
//! tests.

pub mod clock;
pub mod limits;
pub mod metrics;
pub mod os;
pub mod sampling;
pub mod sync;
