//! The thread klad-profiler. It empties the rings of CPU samples and of waits (`sampling`). It runs only while a CPU
//! profile or a lock profile is being taken.
//!
//! Called by `cpu` and `locks`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{Error, heap};
use klad_base::clock;
use klad_base::sync::{self, Cause, Condvar, Mutex};

/// The interval at which rings are emptied. The rings' capacities are chosen for it.
pub const INTERVAL: Duration = Duration::from_millis(50);

/// At the end of a window, how long to wait for threads that are writing into a ring. A write takes a microsecond,
/// unless the thread is preempted.
const PATIENCE: Duration = Duration::from_millis(5);

/// Returns a function for the end of a window. Each call yields the CPU, and returns whether the caller should look
/// into the ring again: `true` until 5 ms (`PATIENCE`) have passed.
pub fn patience() -> impl FnMut() -> bool {
    let deadline = clock::now() + PATIENCE;
    move || {
        std::thread::yield_now();
        clock::now() < deadline
    }
}

/// A registered function, or `None` after its registration has ended.
type Call = Mutex<Option<Box<dyn FnMut() + Send>>>;

/// A registered function. Dropping it ends the calls, and waits for a call in progress.
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

/// Calls `call` about every [`INTERVAL`] on the thread klad-profiler until the registration is dropped. `call` must
/// not drop a registration. The thread that drops a registration must hold no lock that `call` takes.
///
/// # Errors
/// [`Error::Refused`] if the machine cannot start another thread.
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
    /// Calls the function on this thread, after a call in progress on the other thread has ended.
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
            // If the thread had panicked, the process would have ended.
            let _ = running.thread.join();
        }
    }
}

fn run(stop: &AtomicBool) {
    heap::leave_this_thread_out();
    let mut state = STATE.lock();
    // A registration after the last one has ended starts another thread, so this thread checks only its own flag.
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
    fn a_function_is_called_until_its_registration_is_dropped() {
        let calls = Arc::new(AtomicU64::new(0));
        let own = calls.clone();
        let registration = register(Box::new(move || {
            own.fetch_add(1, Ordering::SeqCst);
        }))
        .expect("a thread");
        let deadline = clock::now() + Duration::from_secs(30);
        while calls.load(Ordering::SeqCst) < 3 {
            assert!(clock::now() < deadline, "the function is not called");
            std::thread::yield_now();
        }
        registration.call_now();
        drop(registration);
        let before = calls.load(Ordering::SeqCst);
        // When another function is called, the first one would have been called as well.
        let signal = Arc::new(sync::Signal::default());
        let raise = signal.clone();
        let _other = register(Box::new(move || raise.raise())).expect("a thread");
        assert!(signal.wait_timeout(Duration::from_secs(30)));
        assert_eq!(calls.load(Ordering::SeqCst), before);
    }

    #[test]
    fn many_threads_can_register_and_drop() {
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
