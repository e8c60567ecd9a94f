//! A program that appends to a file and syncs it, so many times a second: what a store asks of the disk, without a store. Called by
//! `tail`.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
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

/// Does `work` while another thread, on `core`, syncs a new file at `path`.
pub(crate) fn beside<T>(core: usize, path: &Path, pace: Pace, work: impl FnOnce() -> T) -> Result<(T, Done)> {
    let file = File::create_new(path).with_context(|| format!("cannot make {}", path.display()))?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let syncs = scope.spawn(|| cores::on(core, || sync(file, pace, &stop)));
        // Also where `work` panics, or this would wait for ever.
        let raised = Raised(&stop);
        let worked = work();
        drop(raised);
        let done = syncs.join().ok().context("the thread that syncs has panicked")??;
        Ok((worked, done))
    })
}

/// Raises a flag when it is dropped.
struct Raised<'a>(&'a AtomicBool);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Each sync has its time on a schedule; those that the disk was too slow for are left out, not made up for.
fn sync(mut file: File, pace: Pace, stop: &AtomicBool) -> Result<Done> {
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
        let length = || std::fs::metadata(&path).expect("made").len();
        let began = Instant::now();
        let until_ten = || {
            while length() < 3000 {
                assert!(began.elapsed() < Duration::from_mins(1), "no more are made");
                thread::yield_now();
            }
        };
        let ((), done) = beside(core, &path, Pace { per_second: 100.0, bytes: 300 }, until_ten).expect("no error");
        assert_eq!(length(), done.times.len() as u64 * 300);
        // The first is at once, and one may be under way when it ends.
        let due = began.elapsed().as_millis() / 10 + 2;
        assert!((10..=due).contains(&(done.times.len() as u128)), "{} where {due} are due", done.times.len());
        assert!(done.at(0) <= done.at(500) && done.at(500) <= done.at(1000));
        assert_eq!(done.at(1000), *done.times.last().expect("one"));
    }
}
