//! The thread klad-profiler: it empties the rings of `sampling` while somebody takes a profile, and is not there otherwise.
//!
//! Called by `cpu` and `locks`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{Error, heap};
use klad_base::clock;
use klad_base::sync::{self, Cause, Condvar, Mutex};

/// Rings are emptied so often. A ring holds what comes in several times as long.
pub const INTERVAL: Duration = Duration::from_millis(50);

/// At a window's end, what other threads are just writing into a ring is waited for so long. A thread writes for a microsecond,
/// unless it is preempted.
const PATIENCE: Duration = Duration::from_millis(5);

/// Says, after a pause, whether it is worth to look into a ring again; for the end of a window.
pub fn patience() -> impl FnMut() -> bool {
    let deadline = clock::now() + PATIENCE;
    move || {
        std::thread::yield_now();
        clock::now() < deadline
    }
}

/// What is called; `None` once its registration is gone.
type Call = Mutex<Option<Box<dyn FnMut() + Send>>>;

/// Somebody's wish to be called; dropping it ends it, and waits for a call that is under way.
pub struct Registration {
    call: Arc<Call>,
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Registration").finish_non_exhaustive()
    }
}

struct Running {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

struct State {
    calls: Vec<Arc<Call>>,
    running: Option<Running>,
}

static STATE: Mutex<State> = Mutex::new(State { calls: Vec::new(), running: None });
static CHANGED: Condvar = Condvar::new();

/// Calls `call` every [`INTERVAL`] or so, on the thread klad-profiler, until the registration is dropped. `call` must not drop
/// a registration, and whoever drops one must hold no lock that `call` takes.
///
/// # Errors
/// [`Error::Refused`] when the machine can start no more threads.
pub fn register(call: Box<dyn FnMut() + Send>) -> Result<Registration, Error> {
    let call = Arc::new(Mutex::new(Some(call)));
    let mut state = STATE.lock();
    if state.running.is_none() {
        let stop = Arc::new(AtomicBool::new(false));
        let own = stop.clone();
        let thread = sync::try_spawn_thread("klad-profiler", move || run(&own))
            .map_err(|error| Error::Refused(format!("cannot start a thread: {error}")))?;
        state.running = Some(Running { thread, stop });
    }
    state.calls.push(call.clone());
    Ok(Registration { call })
}

impl Registration {
    /// Calls now, on this thread; not while the other thread does.
    pub fn call_now(&self) {
        if let Some(call) = &mut *self.call.lock() {
            call();
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let call = self.call.lock().take();
        drop(call);
        let mut state = STATE.lock();
        state.calls.retain(|other| !Arc::ptr_eq(other, &self.call));
        if !state.calls.is_empty() {
            return;
        }
        let ended = state.running.take();
        if let Some(running) = &ended {
            running.stop.store(true, Ordering::Relaxed);
            CHANGED.notify_all();
        }
        drop(state);
        if let Some(running) = ended {
            // A panic has ended the process.
            let _ = running.thread.join();
        }
    }
}

fn run(stop: &AtomicBool) {
    heap::leave_this_thread_out();
    let mut state = STATE.lock();
    // Whoever comes after the last has gone starts another thread: this one only looks at its own flag.
    while !stop.load(Ordering::Relaxed) {
        let calls = state.calls.clone();
        drop(state);
        for call in calls {
            if let Some(call) = &mut *call.lock() {
                call();
            }
        }
        state = STATE.lock();
        if !stop.load(Ordering::Relaxed) {
            state = CHANGED.wait_timeout(state, INTERVAL, Cause::Idle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn calls_until_it_is_dropped_and_not_after() {
        let calls = Arc::new(AtomicU64::new(0));
        let own = calls.clone();
        let registration = register(Box::new(move || {
            own.fetch_add(1, Ordering::SeqCst);
        }))
        .expect("a thread");
        let deadline = clock::now() + Duration::from_secs(30);
        while calls.load(Ordering::SeqCst) < 3 {
            assert!(clock::now() < deadline, "it is not called");
            std::thread::yield_now();
        }
        registration.call_now();
        drop(registration);
        let before = calls.load(Ordering::SeqCst);
        // Another one's calls, after which the first would have been called as well.
        let signal = Arc::new(sync::Signal::default());
        let raise = signal.clone();
        let _other = register(Box::new(move || raise.raise())).expect("a thread");
        assert!(signal.wait_timeout(Duration::from_secs(30)));
        assert_eq!(calls.load(Ordering::SeqCst), before);
    }

    #[test]
    fn comes_and_goes_from_many_threads() {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                sync::spawn_thread("test-register", || {
                    for _ in 0..100 {
                        let registration = register(Box::new(|| {})).expect("a thread");
                        registration.call_now();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
    }
}
