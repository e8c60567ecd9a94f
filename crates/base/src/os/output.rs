//! The standard output, if the process has one.
//!
//! Rust's standard library opens `/dev/null` in place of a standard stream that is closed at process start, so output
//! to this stream would seem to succeed. Therefore `main.rs` checks whether the standard output is open before the
//! library starts. Called by all code that prints a result.

use std::io::{self, Stdout};
use std::sync::atomic::{AtomicBool, Ordering};

static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Records that the standard output was closed when the process started.
pub fn mark_closed() {
    IS_CLOSED.store(true, Ordering::Relaxed);
}

/// Returns the standard output.
///
/// # Errors
/// `EBADF` if the standard output was closed when the process started.
pub fn stdout() -> io::Result<Stdout> {
    if IS_CLOSED.load(Ordering::Relaxed) { Err(rustix::io::Errno::BADF.into()) } else { Ok(io::stdout()) }
}
