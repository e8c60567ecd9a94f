//! What runs inside other threads while a profile is taken: in a signal handler, in a lock that waits. It never allocates, takes
//! no lock and makes no call that could.
//!
//! ```text
//!   a thread of klad                                                  klad-profiler (profile::collector)
//!     SIGPROF ──▶ signal ──▶ walk (its stack) ──▶ ring ─ ─ ─ ─ ─ ─ ─ ─ ─▶ pop, added up by profile::totals
//!     sync, pthread ──▶ waits ──▶ walk ─────────▶ ring ─ ─ ─ ─ ─ ─ ─ ─ ─▶ pop, added up by profile::locks
//! ```
//!
//! Called by `sync` and `profile`.

#[cfg(all(target_os = "linux", feature = "posix-locks"))]
pub mod pthread;
#[cfg(target_os = "linux")]
pub mod ring;
#[cfg(target_os = "linux")]
pub mod signal;
#[cfg(target_os = "linux")]
pub mod timer;
#[cfg(not(target_os = "linux"))]
mod unwatched;
#[cfg(target_os = "linux")]
pub mod waits;
#[cfg(target_os = "linux")]
pub mod walk;

#[cfg(not(target_os = "linux"))]
pub use unwatched as waits;

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Another thread holds the lock.
    Mutex,
    /// Another thread writes.
    RwLockRead,
    /// Other threads read, or one writes.
    RwLockWrite,
    /// A condition of klad's own, with nothing to do: a consumer of an empty queue, a sleep between two rounds.
    Idle,
    /// A condition of klad's own that somebody else's work makes true.
    Work,
    /// A condition of the POSIX kind, in RocksDB or the C++ library: only the caller's name says whether it is idle.
    Foreign,
}

/// Whose locks were acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `sync`'s.
    Own,
    /// POSIX's: RocksDB, the C++ library, jemalloc.
    Pthread,
}
