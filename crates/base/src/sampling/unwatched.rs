//! Replaces `waits` on platforms without a lock profile: waits are not recorded.
//!
//! Called by `sync`.

use crate::sampling::{Family, Kind};

/// Returns `false`: there is no lock profile.
#[must_use]
pub fn is_profiling() -> bool {
    false
}

/// Does nothing.
pub fn count_acquisition(_family: Family) {}

/// Calls `wait`.
pub fn timed<R>(_kind: Kind, wait: impl FnOnce() -> R) -> R {
    wait()
}
