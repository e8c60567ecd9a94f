//! Where there is no lock profile, nobody looks at waits.
//!
//! Called by `sync`, in place of `waits`.

use crate::sampling::{Family, Kind};

/// Never.
#[must_use]
pub fn on() -> bool {
    false
}

/// Counts nothing.
pub fn count(_family: Family) {}

/// Waits.
pub fn timed<R>(_kind: Kind, wait: impl FnOnce() -> R) -> R {
    wait()
}
