//! CPU, allocation and lock profiles of the running process: recording, symbol names, output formats.
//!
//! ```text
//!   cpu, locks (rings of `sampling`), heap (jemalloc) ──▶ Profile<Address> ──symbols──▶ Profile<Name>
//!   threads ──▶ Vec<Thread>, with addresses                                                 │
//!                                    ┌───────────────────┬──────────────────────────────────┤
//!                                    ▼                   ▼                                  ▼
//!                            pprof (protobuf)    collapsed (text)                picture (flame graph)
//! ```
//!
//! While no profile is being taken, this crate runs no thread and no timer. It keeps the rings and symbol tables that
//! earlier profiles have allocated. Only jemalloc's sampling of allocations (`--heap-sample`) runs all the time.
//!
//! A worker must not call this crate, because its functions may wait. The admin listener of `klad-server` takes
//! profiles, and `main` sets the rate of allocation sampling. `client::profile`, `klad-bench` and `klad-lab` read and
//! draw profiles that a server has taken.

#[cfg(all(target_os = "linux", feature = "capture"))]
pub mod cpu;
#[cfg(all(target_os = "linux", feature = "capture"))]
pub mod heap;
#[cfg(all(target_os = "linux", feature = "capture"))]
pub mod locks;
#[cfg(all(target_os = "linux", feature = "capture"))]
pub mod threads;

#[cfg(all(target_os = "linux", feature = "capture"))]
pub mod collector;
#[cfg(all(target_os = "linux", feature = "capture"))]
mod tasks;
#[cfg(all(target_os = "linux", feature = "capture"))]
pub mod totals;

#[cfg(all(test, target_os = "linux", feature = "capture"))]
pub(crate) mod cpu_tests;
#[cfg(all(target_os = "linux", feature = "capture"))]
mod readable;
#[cfg(all(target_os = "linux", feature = "capture"))]
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

/// The address of an instruction in this process. For a caller it is the byte before its return address, so that it
/// lies within the call.
pub type Address = u64;

/// The name of a frame: the function's readable name, or a name such as `[kernel]` or `[libc.so.6]`, if the function is
/// unknown.
pub type Name = Arc<str>;

/// The type of one value of each sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueType {
    /// The name, as in Go's profiles: `cpu`, `samples`, `inuse_space`, `contentions`, `delay`, ….
    pub kind: String,
    /// `nanoseconds`, `count` or `bytes`. Files of other programs may have other units.
    pub unit: String,
}

impl ValueType {
    /// Returns a value type with this name and unit.
    #[must_use]
    pub fn new(kind: &str, unit: &str) -> ValueType {
        ValueType { kind: kind.to_owned(), unit: unit.to_owned() }
    }
}

/// A stack and its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample<F> {
    /// The thread's name. Flame graphs and files show it as the root of the stack; it is not in `frames`. Empty if the
    /// profile does not record threads.
    pub thread: String,
    /// The frames, the running function first, then its callers.
    pub frames: Vec<F>,
    /// One value for each of the profile's value types, in the same order.
    pub values: Vec<i64>,
}

/// A profile: its samples, and how they were taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile<F> {
    /// The title of the flame graph, such as `CPU time`.
    pub title: String,
    /// The value types.
    pub values: Vec<ValueType>,
    /// The index in `values` of the value type that flame graphs, tables and the text format show.
    pub shown: usize,
    /// The samples. In a profile that was read from a file, or that counts threads, several samples may have the same
    /// thread and stack.
    pub samples: Vec<Sample<F>>,
    /// The sampling period: its type and unit, and the amount that one event stands for, such as 10,000,000 ns of CPU
    /// time.
    pub period: Option<(ValueType, i64)>,
    /// The start, in nanoseconds since 1970.
    pub began_unix_ns: u64,
    /// The duration, or zero for a state at one moment.
    pub duration: Duration,
    /// Facts needed to judge the profile, as pairs of name and value, the most important first. A CPU profile has
    /// events, sampling rate, lost samples, clock, version, …. All formats contain them.
    pub facts: Vec<(String, String)>,
}

/// Why a profile could not be taken, read or compared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Profiles with other settings, or too many profiles, are being taken.
    #[error("a profile with other settings is being taken: {0}")]
    Busy(String),
    /// The system denies an operation that the profile needs.
    #[error("the system denies an operation that the profile needs: {0}")]
    Refused(String),
    /// The input is not a valid profile, or two profiles cannot be compared.
    #[error("this is not a valid profile: {0}")]
    Malformed(String),
}
