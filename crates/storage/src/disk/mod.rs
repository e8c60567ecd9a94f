//! What the engines that keep files share: the directory and its identity, versions, the record of a stored value, whether
//! writes are taken, how far the log is known to be synced.
//!
//! Knows no engine. Called by `rocksdb`, `fjall` and `delayed`.

pub mod directory;
pub mod high_water;
pub mod record;
pub mod versions;

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
pub(crate) mod gate;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
pub(crate) mod point_read;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
pub(crate) mod written;
