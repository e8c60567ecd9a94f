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
    thread: Option<JoinHandle<Result<Done>>>,
}

/// What was done.
pub(crate) struct Done {
    /// Syncs in a second.
    pub(crate) per_second: f64,
    /// How long each took, with its write, the quickest first; at least one.
    times: Vec<Duration>,
}

impl Done {
    /// So many of a thousand took no longer.
    pub(crate) fn at(&self, of_thousand: usize) -> Duration {
        self.times[(self.times.len() * of_thousand / 1000).min(self.times.len() - 1)]
    }
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

    /// Ends it.
    pub(crate) fn end(mut self) -> Result<Done> {
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
fn work(mut file: File, pace: Pace, stop: &AtomicBool) -> Result<Done> {
    let piece = vec![b's'; pace.bytes];
    let gap = Duration::from_secs_f64(1.0 / pace.per_second);
    let start = Instant::now();
    let (mut next, mut times) = (start, Vec::new());
    loop {
        let began = Instant::now();
        file.write_all(&piece).context("cannot append")?;
        file.sync_data().context("cannot sync")?;
        times.push(began.elapsed());
        if stop.load(Ordering::Relaxed) {
            break;
        }
        next = (next + gap).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    #[expect(clippy::cast_precision_loss, reason = "some hundred thousand")]
    let count = times.len() as f64;
    times.sort();
    Ok(Done { per_second: count / start.elapsed().as_secs_f64(), times })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sync_appends_its_bytes_and_none_comes_before_its_time() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let core = cores::Cores::choose().map_or(0, |cores| cores.server);
        let began = Instant::now();
        let syncs = Syncs::start(core, &path, Pace { per_second: 100.0, bytes: 300 }).expect("started");
        let length = || std::fs::metadata(&path).expect("made").len();
        while length() < 3000 && syncs.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            thread::yield_now();
        }
        let done = syncs.end().expect("no error");
        assert_eq!(length(), done.times.len() as u64 * 300);
        assert!(done.times.len() >= 10);
        let tenths = began.elapsed().as_millis() / 10;
        assert!(done.times.len() as u128 <= tenths + 2, "{} in {tenths} hundredths of a second", done.times.len());
        assert!(done.at(0) <= done.at(500) && done.at(500) <= done.at(1000));
        assert_eq!(done.at(1000), *done.times.last().expect("one"));
    }
}
