//! Notices that nothing moves any more, says where each thread of klad is, and ends the run. Called by `profile_soak`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// So long without a step, of whoever makes steps, is a hang.
const HANGS: Duration = Duration::from_secs(20);

/// Between two looks.
const EVERY: Duration = Duration::from_millis(250);

/// The steps of one of those who run.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// For words.
    pub(crate) name: &'static str,
    /// Steps so far.
    pub(crate) steps: AtomicU64,
    /// There will be no more, and that is no hang; [`u64::MAX`] while there are to be some.
    pub(crate) last: AtomicU64,
}

impl Pulse {
    /// No step yet.
    pub(crate) fn new(name: &'static str) -> Pulse {
        Pulse { name, steps: AtomicU64::new(0), last: AtomicU64::new(u64::MAX) }
    }

    /// There are no more steps to be made.
    pub(crate) fn end(&self) {
        self.last.store(self.steps.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn over(&self) -> bool {
        self.last.load(Ordering::Relaxed) != u64::MAX
    }
}

/// Looks until `over` is disconnected. When one of `pulses` has not made a step for [`HANGS`], kills the process, so that whoever
/// waits for it gets an error, and answers what was going on.
pub(crate) fn watch(pid: Pid, pulses: &[Pulse], over: &Receiver<()>) -> Option<String> {
    watch_for(HANGS, pid, pulses, over)
}

fn watch_for(hangs: Duration, pid: Pid, pulses: &[Pulse], over: &Receiver<()>) -> Option<String> {
    let mut seen: Vec<(u64, Instant)> = pulses.iter().map(|_| (u64::MAX, Instant::now())).collect();
    while over.recv_timeout(EVERY.min(hangs)) == Err(RecvTimeoutError::Timeout) {
        for (pulse, (steps, since)) in pulses.iter().zip(&mut seen) {
            let now = pulse.steps.load(Ordering::Relaxed);
            if now != *steps {
                (*steps, *since) = (now, Instant::now());
            } else if since.elapsed() >= hangs && !pulse.over() {
                let words = describe(pid, pulse, pulses);
                // It may have ended by itself.
                let _ = kill_process(pid, Signal::KILL);
                return Some(words);
            }
        }
    }
    None
}

fn describe(pid: Pid, hanging: &Pulse, pulses: &[Pulse]) -> String {
    let mut words = format!("{} has not moved for {HANGS:?}; steps:", hanging.name);
    for pulse in pulses {
        let _ = write!(words, " {} {},", pulse.name, pulse.steps.load(Ordering::Relaxed));
    }
    words += " threads:";
    let tasks = Path::new("/proc").join(pid.as_raw_nonzero().to_string()).join("task");
    let Ok(tasks) = fs::read_dir(tasks) else { return words + " none, the process has ended" };
    for task in tasks.flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let stat = read("stat");
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?');
        let _ = write!(
            words,
            "\n  {:<16} {state} in {} (system call {})",
            read("comm").trim(),
            read("wchan"),
            read("syscall").trim()
        );
    }
    words
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_hang_is_ended_and_what_has_ended_is_none() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("started");
        let pid = Pid::from_child(&child);
        let (stop, over) = mpsc::channel();
        let pulses = [Pulse::new("load"), Pulse::new("CPU")];
        pulses[1].end();
        let words = watch_for(Duration::from_millis(50), pid, &pulses, &over).expect("a hang");
        assert!(words.starts_with("load has not moved") && words.contains("sleep"), "{words}");
        assert!(!child.wait().expect("ended").success(), "it was killed");
        pulses[0].end();
        let looking = std::thread::spawn(move || watch_for(Duration::from_millis(50), pid, &pulses, &over));
        drop(stop);
        assert_eq!(looking.join().expect("no panic"), None);
    }
}
