//! Code that the engines on disk share: the data directory, versions, the record format, the write gate, and the mark
//! of how far the log is synced.
//!
//! This code is the same for all engines. Called by `rocksdb` and `fjall`.

pub mod directory;
pub mod file_lock;
pub mod high_water;
pub mod record;
pub mod versions;

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
pub(crate) mod commit_section;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
pub(crate) mod gate;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
pub(crate) mod point_read;
