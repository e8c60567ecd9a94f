//! Tests of a thread that is preempted at the end of a wait: the wait is in the ring, and its slot is not free yet.

use crate::locks::tests::*;
use klad_base::sampling::waits::preempted;

/// Starts a thread that is preempted at the end of its wait. Returns how often the profile has this wait. `meanwhile`
/// runs while the thread is preempted, before the window's end.
fn times_seen(thread: &'static str, meanwhile: impl FnOnce()) -> i64 {
    let window = Window::start(THRESHOLD).expect("all tests use this threshold");
    let step = Arc::new(AtomicU64::new(0));
    let its_step = step.clone();
    let waiter = spawn_thread(thread, move || {
        planted(&|| {
            preempted(
                Kind::Mutex,
                || pause(HELD),
                || {
                    its_step.store(1, Ordering::SeqCst);
                    until(&its_step, 2);
                },
            );
        });
    });
    until(&step, 1);
    meanwhile();
    let seen = window.finish();
    step.store(2, Ordering::SeqCst);
    waiter.join().expect("no panic");
    found(&seen.mutex, thread).0
}

#[test]
fn a_wait_whose_slot_is_not_free_yet_counts_once() {
    assert_eq!(times_seen("over-at-end", || ()), 1, "the end of the window takes the wait out of the ring");
    assert_eq!(times_seen("over-before", || STATE.lock().drain()), 1, "the collector has taken the wait before");
}

#[test]
fn twin_a_forgotten_wait_counts_twice() {
    // The other tests' threads stay remembered.
    let is_this = |tid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/self/task/{tid}/comm"));
        name.is_ok_and(|name| name.trim_end() == "over-forgotten")
    };
    let forget = || {
        let mut state = STATE.lock();
        state.drain();
        state.last_ended.retain(|tid, _| !is_this(tid));
    };
    assert_eq!(times_seen("over-forgotten", forget), 2);
}
