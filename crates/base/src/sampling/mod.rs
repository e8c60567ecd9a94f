//! The parts of profiling that run inside other threads: in a signal handler, or in a lock that waits. This code
//! never allocates, never takes a lock, and never calls a function that could.
//!
//! ```text
//!   a thread of klad                                                  klad-profiler (profile::collector)
//!     SIGPROF ──▶ signal ──▶ walk (its stack) ──▶ ring ─ ─ ─ ─ ─ ─ ─ ─ ─▶ pop, summed by profile::totals
//!     sync, pthread ──▶ waits ──▶ walk ─────────▶ ring ─ ─ ─ ─ ─ ─ ─ ─ ─▶ pop, summed by profile::locks
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
    /// A lock that another thread holds.
    Mutex,
    /// A readers-writer lock to which another thread writes.
    RwLockRead,
    /// A readers-writer lock that other threads read or another thread writes.
    RwLockWrite,
    /// A condition of klad, while the thread has nothing to do: a consumer of an empty queue, or a sleep between two
    /// rounds.
    Idle,
    /// A condition of klad that the work of another thread makes true.
    Work,
    /// A POSIX condition variable, in RocksDB or the C++ library. Only the caller's name tells whether the thread is
    /// idle.
    Foreign,
}

/// The implementation of the lock that was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// A lock of `sync`.
    Own,
    /// A POSIX lock: RocksDB, the C++ library, jemalloc.
    Pthread,
}
