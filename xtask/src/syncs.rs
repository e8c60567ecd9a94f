//! A program that appends to a file and syncs it, so many times a second: what a store asks of the disk, without a store. Called by
//! `tail`.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::cores;

/// How often, and how much each time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    /// Syncs in a second; more than 0.
    pub(crate) per_second: f64,
    /// Bytes that are appended before each.
    pub(crate) bytes: usize,
}

/// Syncs until it is dropped.
pub(crate) struct Syncs {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<f64>>>,
}

impl Syncs {
    /// Begins, on `core`, with a new file at `path`.
    pub(crate) fn start(core: usize, path: &Path, pace: Pace) -> Result<Syncs> {
        let file = File::create_new(path).with_context(|| format!("cannot make {}", path.display()))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        // It stays on the core of the thread that starts it.
        let thread = cores::on(core, || Ok(thread::spawn(move || work(file, pace, &stopped))))?;
        Ok(Syncs { stop, thread: Some(thread) })
    }

    /// Ends it; how many there were in a second.
    pub(crate) fn end(mut self) -> Result<f64> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("only this and the drop take it");
        thread.join().ok().context("the thread that syncs has panicked")?
    }
}

impl Drop for Syncs {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Whoever drops it has another error to tell.
            let _ = thread.join();
        }
    }
}

/// Each sync has its time on a schedule; those that the disk was too slow for are left out, not made up for.
fn work(mut file: File, pace: Pace, stop: &AtomicBool) -> Result<f64> {
    let piece = vec![b's'; pace.bytes];
    let gap = Duration::from_secs_f64(1.0 / pace.per_second);
    let begin = Instant::now();
    let (mut next, mut count) = (begin, 0_u32);
    while !stop.load(Ordering::Relaxed) {
        file.write_all(&piece).context("cannot append")?;
        file.sync_data().context("cannot sync")?;
        count += 1;
        next = (next + gap).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(f64::from(count) / begin.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sync_appends_its_bytes() {
        let directory = tempfile::tempdir().expect("there is room");
        let path = directory.path().join("log");
        let core = cores::Cores::choose().map_or(0, |cores| cores.server);
        let syncs = Syncs::start(core, &path, Pace { per_second: 1000.0, bytes: 300 }).expect("started");
        let length = || std::fs::metadata(&path).expect("made").len();
        while length() < 900 {
            thread::yield_now();
        }
        assert!(syncs.end().expect("no error") > 0.0);
        assert_eq!(length() % 300, 0);
    }
}
