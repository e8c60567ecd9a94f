//! The resident memory of a process, sampled through the phases of a chore. Called by `memory`.

use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// Time between two samples.
const INTERVAL: Duration = Duration::from_millis(50);

/// What `/proc/PID/status` says, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    /// `VmRSS`, the whole.
    pub(crate) total: u64,
    /// `RssAnon`: heap and stacks.
    pub(crate) anonymous: u64,
    /// `RssFile`: the program itself and mapped files.
    pub(crate) file: u64,
    /// `VmHWM`, the kernel's own peak since the process began: it misses nothing between two samples.
    pub(crate) high_water: u64,
}

/// A part of the work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase {
    /// Its name.
    pub(crate) name: &'static str,
    /// The sample with the largest total.
    pub(crate) peak: Resident,
    /// When it began.
    started: Instant,
    /// How long it took.
    pub(crate) elapsed: Duration,
}

/// Samples until it is finished.
pub(crate) struct Sampler {
    pid: u32,
    phases: Arc<Mutex<Vec<Phase>>>,
    /// Dropping it ends the thread, at once.
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Sampler {
    /// Samples the process `pid`, beginning with the phase `first`.
    pub(crate) fn start(pid: u32, first: &'static str) -> Result<Sampler> {
        let phases = Arc::new(Mutex::new(vec![Phase::new(first, of(pid)?)]));
        let (stop, stopped) = mpsc::channel();
        let shared = phases.clone();
        let thread = thread::spawn(move || {
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                // A process that is gone has no memory; whoever talks to it will say so.
                if let Ok(sample) = of(pid) {
                    note(&mut lock(&shared), sample);
                }
            }
        });
        Ok(Sampler { pid, phases, stop, thread })
    }

    /// Ends the current phase and begins another.
    pub(crate) fn phase(&self, name: &'static str) -> Result<()> {
        let sample = of(self.pid)?;
        let mut phases = lock(&self.phases);
        note(&mut phases, sample);
        phases.push(Phase::new(name, sample));
        Ok(())
    }

    /// Ends the last phase; answers all of them, and the kernel's own peak in bytes.
    pub(crate) fn finish(self) -> Result<(Vec<Phase>, u64)> {
        let last = of(self.pid)?;
        drop(self.stop);
        self.thread.join().ok().context("the sampling thread has panicked")?;
        let mut phases = lock(&self.phases);
        note(&mut phases, last);
        Ok((phases.clone(), last.high_water))
    }
}

impl Phase {
    /// Begins now, with its first sample.
    pub(crate) fn new(name: &'static str, peak: Resident) -> Phase {
        Phase { name, peak, started: Instant::now(), elapsed: Duration::ZERO }
    }
}

fn lock(phases: &Mutex<Vec<Phase>>) -> MutexGuard<'_, Vec<Phase>> {
    phases.lock().expect("no one panics while holding it")
}

fn note(phases: &mut [Phase], sample: Resident) {
    let phase = phases.last_mut().expect("there is a phase from the start");
    phase.elapsed = phase.started.elapsed();
    if sample.total > phase.peak.total {
        phase.peak = sample;
    }
}

/// Of a running process, now.
pub(crate) fn of(pid: u32) -> Result<Resident> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    parse(&status).with_context(|| format!("{path} says nothing about memory: the process has ended"))
}

fn parse(status: &str) -> Option<Resident> {
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kibibytes * 1024)
    };
    Some(Resident {
        total: bytes("VmRSS")?,
        anonymous: bytes("RssAnon")?,
        file: bytes("RssFile")?,
        high_water: bytes("VmHWM")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read() {
        let status = "Name:\tklad\nVmHWM:\t    40 kB\nVmRSS:\t    30 kB\nRssAnon:\t    20 kB\nRssFile:\t    10 kB\n";
        let expected = Resident { total: 30 << 10, anonymous: 20 << 10, file: 10 << 10, high_water: 40 << 10 };
        assert_eq!(parse(status), Some(expected));
        assert_eq!(parse("Name:\tklad\nState:\tZ (zombie)\n"), None);
    }

    #[test]
    fn a_phase_keeps_its_largest_sample() {
        let sample = |total| Resident { total, ..Resident::default() };
        let mut phases = vec![Phase::new("first", sample(1)), Phase::new("second", sample(2))];
        note(&mut phases, sample(5));
        note(&mut phases, sample(3));
        assert_eq!(phases[0].peak.total, 1);
        assert_eq!(phases[1].peak.total, 5);
    }
}
