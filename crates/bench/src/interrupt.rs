//! SIGINT and SIGTERM: the first signal ends the current run, which is then reported; the second ends the process.
//!
//! One thread waits for the signals of the whole process, which may make many runs. While no [`Watch`] exists, there is
//! nothing to report, and the first signal ends the process at once. Called by `threads` (during each run), and by
//! `knee` and `klad_lab` (between runs).

use std::collections::HashSet;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};

use crate::schedule::nanos;
use crate::shared::Shared;
use klad_base::clock;
use klad_base::sync::{Cause, Condvar, Mutex, spawn_thread};

/// The signal handling of this process, from the first [`watch`] on.
static SIGNALS: OnceLock<Arc<Signals>> = OnceLock::new();

#[derive(Debug, Default)]
struct Signals {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The number of watches that exist. If it is 0, the first signal ends the process.
    watching: usize,
    /// Whether a signal has arrived during a watch.
    asked: bool,
    /// The run that the first signal ends, and the start of its schedule.
    running: Option<(Weak<Shared>, Instant)>,
    /// Processes that must end with this one.
    children: HashSet<Pid>,
}

/// The effect of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The current run ends, and the process reports it.
    EndRun,
    /// The process ends.
    Exit,
}

impl State {
    fn on_signal(&mut self, now: Instant) -> Action {
        if self.asked || self.watching == 0 {
            return Action::Exit;
        }
        self.asked = true;
        if let Some((shared, origin)) = &self.running {
            end(shared, now.saturating_duration_since(*origin));
        }
        Action::EndRun
    }
}

/// A child process that is killed if a signal ends this process, until this value is dropped.
#[derive(Debug)]
pub struct Companion {
    signals: Arc<Signals>,
    pid: Pid,
}

impl Drop for Companion {
    fn drop(&mut self) {
        self.signals.state.lock().children.remove(&self.pid);
    }
}

fn end(shared: &Weak<Shared>, at: Duration) {
    if let Some(shared) = shared.upgrade() {
        shared.end_early(nanos(at));
    }
}

/// As long as a watch exists, the first signal does not end the process.
#[derive(Debug)]
pub struct Watch {
    signals: Arc<Signals>,
}

/// Starts a watch. Until the watch is dropped, the first signal does not end the process.
///
/// # Errors
/// If signals cannot be handled.
pub fn watch() -> anyhow::Result<Watch> {
    let signals = match SIGNALS.get() {
        Some(signals) => signals.clone(),
        None => start()?,
    };
    signals.state.lock().watching += 1;
    Ok(Watch { signals })
}

/// Whether the first signal arrived during a watch.
pub fn asked() -> bool {
    SIGNALS.get().is_some_and(|signals| signals.state.lock().asked)
}

/// Waits for `pause`, or until the first signal. Returns at once if this process has never called [`watch`].
pub fn sleep(pause: Duration) {
    let Some(signals) = SIGNALS.get() else { return };
    let until = clock::now() + pause;
    let mut state = signals.state.lock();
    loop {
        let left = until.saturating_duration_since(clock::now());
        if state.asked || left.is_zero() {
            return;
        }
        state = signals.arrived.wait_timeout(state, left, Cause::Others);
    }
}

fn start() -> anyhow::Result<Arc<Signals>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut interrupts, mut terminations) = {
        let _inside = runtime.enter();
        let wait_for = |kind| signal(kind).context("cannot wait for signals");
        (wait_for(SignalKind::interrupt())?, wait_for(SignalKind::terminate())?)
    };
    let signals = Arc::<Signals>::default();
    if SIGNALS.set(signals.clone()).is_err() {
        // Another thread has started the signal handling in the meantime.
        return Ok(SIGNALS.get().expect("it is set").clone());
    }
    let theirs = signals.clone();
    spawn_thread("klad-signals", move || {
        loop {
            let number = runtime.block_on(async {
                tokio::select! {
                    _ = interrupts.recv() => Signal::INT,
                    _ = terminations.recv() => Signal::TERM,
                }
            });
            let mut state = theirs.state.lock();
            if state.on_signal(clock::now()) == Action::Exit {
                for child in &state.children {
                    // A child that has already ended needs no signal.
                    let _ = kill_process(*child, Signal::KILL);
                }
                // The exit code that a shell reports for a process that was ended by a signal.
                std::process::exit(128 + number.as_raw());
            }
            drop(state);
            theirs.arrived.notify_all();
        }
    });
    Ok(signals)
}

impl Watch {
    /// Registers a child that is killed if a signal ends this process.
    #[must_use]
    pub fn companion(&self, pid: Pid) -> Companion {
        self.signals.state.lock().children.insert(pid);
        Companion { signals: self.signals.clone(), pid }
    }

    /// Registers the run that a signal ends: its state `shared`, and the start of its schedule, `origin`. If a signal
    /// has already arrived, the run ends at once.
    pub(super) fn set_run(&self, shared: &Arc<Shared>, origin: Instant) {
        let mut state = self.signals.state.lock();
        let running = Arc::downgrade(shared);
        if state.asked {
            end(&running, clock::now().saturating_duration_since(origin));
        }
        state.running = Some((running, origin));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.signals.state.lock().watching -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::shared_for_tests;

    #[test]
    fn the_first_signal_ends_the_run_and_the_second_the_process() {
        let (shared, origin) = (shared_for_tests(), clock::now());
        let whole = shared.end();
        let mut state = State { watching: 1, running: Some((Arc::downgrade(&shared), origin)), ..State::default() };
        assert_eq!(state.on_signal(origin + Duration::from_millis(3)), Action::EndRun);
        assert!(whole > 3_000_000 && shared.end() == 3_000_000 && state.asked);
        assert_eq!(state.on_signal(origin), Action::Exit);
    }

    #[test]
    fn without_a_watch_the_first_signal_ends_the_process() {
        assert_eq!(State::default().on_signal(clock::now()), Action::Exit);
        let mut between = State { watching: 1, ..State::default() };
        assert_eq!(between.on_signal(clock::now()), Action::EndRun);
        assert!(between.asked);
    }

    #[test]
    fn a_finished_run_is_not_kept_in_memory() {
        let shared = shared_for_tests();
        let state = State { watching: 1, running: Some((Arc::downgrade(&shared), clock::now())), ..State::default() };
        assert_eq!(Arc::strong_count(&shared), 1);
        drop(shared);
        assert!(state.running.is_some_and(|(shared, _)| shared.upgrade().is_none()));
    }
}
