//! Progress of long work, on stderr when that is a terminal. Called by the chores.

use std::io::{IsTerminal as _, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::text::grouped;

/// The line is written anew so often.
const INTERVAL: Duration = Duration::from_millis(500);

/// Shows how far a counter is until it is dropped.
pub(crate) struct Progress {
    /// Dropping it ends the thread, at once.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Shows `done` of `total` as `what`; nothing when stderr is no terminal.
    pub(crate) fn start(what: &'static str, done: Arc<AtomicU64>, total: u64) -> Progress {
        if !stderr().is_terminal() {
            return Progress { stop: None, thread: None };
        }
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let (started, before) = (Instant::now(), done.load(Ordering::Relaxed));
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let now = done.load(Ordering::Relaxed);
                let elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
                let rate = (now - before).saturating_mul(1000) / elapsed_ms;
                eprint!("\r\x1b[K{what}: {} %, {} entries/s", now * 100 / total.max(1), grouped(rate));
            }
            eprint!("\r\x1b[K");
        });
        Progress { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It cannot fail in a way that matters: it only writes a line.
            let _ = thread.join();
        }
    }
}
