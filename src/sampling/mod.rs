//! What runs inside other threads while a profile is taken: in a signal handler, in a lock that waits. It never allocates, takes
//! no lock and makes no call that could.
//!
//! ```text
//!   a thread of klad                                                  klad-profiler (profile::collector)
//!     SIGPROF ──▶ signal ──▶ walk (its stack) ──▶ ring ─ ─ ─ ─ ─ ─ ─ ─ ─▶ pop, added up by profile::totals
//! ```
//!
//! Called by `sync` and `profile`.

#[cfg(target_os = "linux")]
pub mod ring;
#[cfg(target_os = "linux")]
pub mod signal;
#[cfg(target_os = "linux")]
pub mod timer;
#[cfg(target_os = "linux")]
pub mod walk;
