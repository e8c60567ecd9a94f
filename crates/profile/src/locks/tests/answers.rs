//! The hooks return the same results as the C library's functions, with and without a profile.

#![expect(unsafe_code, reason = "POSIX's functions have no safe form")]

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Arc;

use libc::{pthread_mutex_t, pthread_mutexattr_t, pthread_rwlock_t, timespec};

use crate::locks::tests::posix::{Calls, later};
use crate::locks::tests::{THRESHOLD, Window};
use klad_base::sync::spawn_thread;

struct SharedMutex(UnsafeCell<MaybeUninit<pthread_mutex_t>>);

// SAFETY: POSIX mutexes may be shared between threads.
unsafe impl Sync for SharedMutex {}
// SAFETY: the mutex is not moved after its first use: it stays behind an `Arc`.
unsafe impl Send for SharedMutex {}

/// Returns a mutex of this kind. A robust mutex reports the death of its owner.
fn mutex(kind: c_int, robust: bool) -> (Arc<SharedMutex>, *mut pthread_mutex_t) {
    let shared = Arc::new(SharedMutex(UnsafeCell::new(MaybeUninit::uninit())));
    let at: *mut pthread_mutex_t = shared.0.get().cast();
    let mut attributes = MaybeUninit::<pthread_mutexattr_t>::uninit();
    // SAFETY: the calls initialise both variables before other calls read them.
    unsafe {
        assert_eq!(libc::pthread_mutexattr_init(attributes.as_mut_ptr()), 0);
        assert_eq!(libc::pthread_mutexattr_settype(attributes.as_mut_ptr(), kind), 0);
        if robust {
            assert_eq!(libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST), 0);
        }
        assert_eq!(libc::pthread_mutex_init(at, attributes.as_ptr()), 0);
    }
    (shared, at)
}

const PAST: timespec = timespec { tv_sec: 1, tv_nsec: 0 };

/// Returns the results of the three timed ways to lock a mutex, with a time in the past.
fn timed_lock_results(calls: Calls, at: *mut pthread_mutex_t) -> [c_int; 3] {
    // SAFETY: the mutex is initialised, and this thread may lock it.
    unsafe {
        [
            (calls.lock_until)(at, &PAST),
            (calls.lock_until_by)(at, libc::CLOCK_MONOTONIC, &PAST),
            (calls.lock_until_by)(at, libc::CLOCK_PROCESS_CPUTIME_ID, &PAST),
        ]
    }
}

/// Returns the results of a thread that locks a mutex, locks it again, and unlocks it too often. Does this for each
/// kind of mutex.
fn owner_results(calls: Calls) -> Vec<c_int> {
    let mut answers = Vec::new();
    for kind in [libc::PTHREAD_MUTEX_ERRORCHECK, libc::PTHREAD_MUTEX_RECURSIVE, libc::PTHREAD_MUTEX_NORMAL] {
        for robust in [false, true] {
            let (_kept, at) = mutex(kind, robust);
            // SAFETY: the mutex is initialised. A normal one is locked a second time only with a timeout.
            unsafe {
                answers.push((calls.lock)(at));
                if kind != libc::PTHREAD_MUTEX_NORMAL {
                    answers.push((calls.lock)(at));
                }
                answers.extend(timed_lock_results(calls, at));
                // It is unlocked as often as it was locked, and once more.
                for _ in 0..6 {
                    if kind != libc::PTHREAD_MUTEX_NORMAL || robust {
                        answers.push(libc::pthread_mutex_unlock(at));
                    }
                }
            }
        }
    }
    answers
}

/// Returns the results for a robust mutex whose owner has died: of the first lock after that, then of further locks,
/// when the mutex is not recoverable.
fn heir_results(calls: Calls) -> Vec<c_int> {
    let mut answers = Vec::new();
    for lock in [0, 1, 2] {
        let (kept, at) = mutex(libc::PTHREAD_MUTEX_NORMAL, true);
        let its = kept.clone();
        // SAFETY: the mutex is initialised, and outlives the thread.
        let died = spawn_thread("test-dies", move || unsafe { (calls.lock)(its.0.get().cast()) });
        answers.push(died.join().expect("no panic"));
        // SAFETY: the mutex is initialised, and times outlive the calls.
        unsafe {
            let until = later(libc::CLOCK_MONOTONIC);
            answers.push(match lock {
                0 => (calls.lock)(at),
                1 => (calls.lock_until)(at, &later(libc::CLOCK_REALTIME)),
                _ => (calls.lock_until_by)(at, libc::CLOCK_MONOTONIC, &raw const until),
            });
            // The mutex was not made consistent, so no thread can lock it again.
            answers.push(libc::pthread_mutex_unlock(at));
            answers.push((calls.lock)(at));
            answers.extend(timed_lock_results(calls, at));
        }
    }
    answers
}

/// Returns the results for a writer that takes the lock again, and for callers with a time in the past.
fn writer_results(calls: Calls) -> Vec<c_int> {
    let lock = UnsafeCell::new(libc::PTHREAD_RWLOCK_INITIALIZER);
    let at: *mut pthread_rwlock_t = lock.get();
    let (monotonic, processor) = (libc::CLOCK_MONOTONIC, libc::CLOCK_PROCESS_CPUTIME_ID);
    // SAFETY: the lock is initialised, and times outlive the calls.
    unsafe {
        vec![
            (calls.write)(at),
            (calls.read)(at),
            (calls.write)(at),
            (calls.read_until)(at, &PAST),
            (calls.write_until)(at, &PAST),
            (calls.read_until_by)(at, monotonic, &PAST),
            (calls.write_until_by)(at, monotonic, &PAST),
            libc::pthread_rwlock_unlock(at),
            (calls.read_until_by)(at, processor, &PAST),
            (calls.write_until_by)(at, processor, &PAST),
            (calls.read)(at),
            (calls.read)(at),
            (calls.write_until)(at, &PAST),
            libc::pthread_rwlock_unlock(at),
            libc::pthread_rwlock_unlock(at),
            (calls.write_until_by)(at, monotonic, &later(monotonic)),
            libc::pthread_rwlock_unlock(at),
        ]
    }
}

fn all(calls: Calls) -> [Vec<c_int>; 3] {
    [owner_results(calls), heir_results(calls), writer_results(calls)]
}

#[test]
fn hooks_return_the_results_of_the_c_library() {
    let [owners, heirs, writers] = all(Calls::unwatched());
    // The compared results must contain errors.
    assert!(owners.contains(&libc::EDEADLK) && owners.contains(&libc::ETIMEDOUT) && owners.contains(&libc::EINVAL));
    assert!(heirs.contains(&libc::EOWNERDEAD) && heirs.contains(&libc::ENOTRECOVERABLE));
    assert!(writers.contains(&libc::EDEADLK) && writers.contains(&libc::ETIMEDOUT) && writers.contains(&libc::EINVAL));
    let expected = [owners, heirs, writers];
    assert_eq!(all(Calls::watched()), expected, "without a profile, or with one of another test");
    let window = Window::start(THRESHOLD).expect("all tests use this threshold");
    assert_eq!(all(Calls::watched()), expected, "during a profile");
    drop(window);
}

unsafe extern "C" fn twice(at: *mut pthread_mutex_t) -> c_int {
    // SAFETY: as the caller promises. The second call has a timeout, so it does not wait forever.
    unsafe {
        match libc::pthread_mutex_trylock(at) {
            0 => 0,
            _ => (Calls::unwatched().lock_until)(at, &PAST),
        }
    }
}

#[test]
fn twin_results_of_a_try_are_noticed() {
    // As if the result of a try were the result of the lock function.
    let tried = Calls { lock: libc::pthread_mutex_trylock, ..Calls::watched() };
    assert_ne!(owner_results(tried), owner_results(Calls::unwatched()));
    let tried = Calls { read: libc::pthread_rwlock_tryrdlock, ..Calls::watched() };
    assert_ne!(writer_results(tried), writer_results(Calls::unwatched()));
    // As if a dead owner's mutex, which the try has taken, were locked once more.
    let again = Calls { lock: twice, ..Calls::watched() };
    assert_ne!(heir_results(again), heir_results(Calls::unwatched()));
}
