//! The parts of profiling that run inside the profiled threads: in a signal handler, or in a lock that waits. This code
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
    /// A mutex that another thread holds.
    Mutex,
    /// A readers-writer lock that another thread holds for writing. The thread wants to read.
    RwLockRead,
    /// A readers-writer lock that other threads hold, for reading or writing. The thread wants to write.
    RwLockWrite,
    /// A condition variable of `sync`, while the thread has nothing to do. For example, its queue is empty, or it
    /// pauses.
    Idle,
    /// A condition variable of `sync`, while the thread needs the result of another thread.
    Work,
    /// A POSIX condition variable, in RocksDB or the C++ library. Only the caller's name tells whether the thread is
    /// idle.
    Foreign,
}

/// The implementation of the lock or condition variable that a thread acquires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The locks and condition variables of `sync`, which klad's Rust code uses.
    Own,
    /// The locks and condition variables of POSIX, which RocksDB, the C++ library and jemalloc use.
    Pthread,
}
