//! CPU, allocation and lock profiles of the running process: taken, named, written.
//!
//! ```text
//!   cpu, locks (rings of `sampling`), heap (jemalloc), threads ──▶ Profile<Address> ──symbols──▶ Profile<Name>
//!                                                                                                   │
//!                          pprof (protobuf) ◀── collapsed (text) ◀── picture (flame graph) ◀────────┘
//! ```
//!
//! Taking a profile costs while it is taken and nothing else does: nothing runs, and no memory is held but what the first
//! profile needed, while nobody asks. Nothing here may be called on a worker. Called by `http::admin`, and by
//! `client::profile`, which reads what a server has sent.

#[cfg(target_os = "linux")]
pub mod cpu;
#[cfg(all(target_os = "linux", feature = "heap"))]
pub mod heap;
#[cfg(target_os = "linux")]
pub mod locks;
#[cfg(target_os = "linux")]
pub mod threads;

#[cfg(target_os = "linux")]
pub mod collector;
#[cfg(target_os = "linux")]
mod tasks;
#[cfg(target_os = "linux")]
pub mod totals;

#[cfg(all(test, target_os = "linux"))]
pub(crate) mod cpu_tests;
mod readable;
#[cfg(target_os = "linux")]
pub mod symbols;

pub mod collapsed;
pub mod picture;
pub mod pprof;
mod wire;

#[cfg(test)]
mod testing;

pub mod top;

use std::sync::Arc;
use std::time::Duration;

/// Where an instruction is, in this process. Of a caller: the byte before the one it returns to, so that it lies within the
/// call.
pub type Address = u64;

/// What a frame is called, for people. Inner parts of generic functions and hashes are left out.
pub type Name = Arc<str>;

/// What one figure of each stack is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueType {
    /// As Go's profiles name it: `cpu`, `samples`, `inuse_space`, `contentions`, `delay`, ….
    pub kind: String,
    /// `nanoseconds`, `count` or `bytes`.
    pub unit: String,
}

impl ValueType {
    /// Of these words.
    #[must_use]
    pub fn new(kind: &str, unit: &str) -> ValueType {
        ValueType { kind: kind.to_owned(), unit: unit.to_owned() }
    }
}

/// A stack, and what was seen there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample<F> {
    /// The thread's name, the root of its stack; empty where the profile does not know threads.
    pub thread: String,
    /// The running function first, its callers after it.
    pub frames: Vec<F>,
    /// One figure for each of the profile's values, in their order.
    pub values: Vec<i64>,
}

/// What was seen, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile<F> {
    /// What the picture shows, such as `CPU time`.
    pub title: String,
    /// What the figures are.
    pub values: Vec<ValueType>,
    /// Which of `values` is meant where only one can be shown.
    pub shown: usize,
    /// Each stack of each thread once.
    pub samples: Vec<Sample<F>>,
    /// One event stands for so much of what.
    pub period: Option<(ValueType, i64)>,
    /// When it began, ns since 1970.
    pub began_unix_ns: u64,
    /// From the beginning to the end; zero for a state at one moment.
    pub duration: Duration,
    /// What must be known to judge it, name and value, in this order: events, sampling rate, lost samples, clock, version, ….
    /// They stand in every form.
    pub facts: Vec<(String, String)>,
}

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of another rate is being taken.
    #[error("a profile with other settings is being taken: {0}")]
    Busy(String),
    /// The system does not let klad look.
    #[error("the system refuses what a profile needs: {0}")]
    Refused(String),
    /// What was read is no profile.
    #[error("this is no profile: {0}")]
    Malformed(String),
}
