//! The standard output, where the process has one.
//!
//! Rust's library opens `/dev/null` in place of a standard stream that is closed when the process begins, so what is written
//! there would seem to have arrived. `main` looks before that happens. Called by whoever prints a result.

use std::io::{self, Stdout};
use std::sync::atomic::{AtomicBool, Ordering};

static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// The standard output was closed when the process began.
pub fn was_closed() {
    IS_CLOSED.store(true, Ordering::Relaxed);
}

/// The standard output.
///
/// # Errors
/// `EBADF` if it was closed when the process began.
pub fn stdout() -> io::Result<Stdout> {
    if IS_CLOSED.load(Ordering::Relaxed) { Err(rustix::io::Errno::BADF.into()) } else { Ok(io::stdout()) }
}
