//! What callers are told is what POSIX says, whoever looks.

#![expect(unsafe_code, reason = "POSIX's functions have no safe form")]

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Arc;

use libc::{pthread_mutex_t, pthread_mutexattr_t, pthread_rwlock_t, timespec};

use crate::locks::tests::posix::{Calls, later};
use crate::locks::tests::{THRESHOLD, Window};
use klad_base::sync::spawn_thread;

struct Of(UnsafeCell<MaybeUninit<pthread_mutex_t>>);

// SAFETY: POSIX's mutexes are made to be shared.
unsafe impl Sync for Of {}
// SAFETY: it is not moved once it is used: it stays behind an `Arc`.
unsafe impl Send for Of {}

/// A mutex of this kind; robust: its owner's death is noticed.
fn mutex(kind: c_int, robust: bool) -> (Arc<Of>, *mut pthread_mutex_t) {
    let of = Arc::new(Of(UnsafeCell::new(MaybeUninit::uninit())));
    let at: *mut pthread_mutex_t = of.0.get().cast();
    let mut attributes = MaybeUninit::<pthread_mutexattr_t>::uninit();
    // SAFETY: both are written by the calls that initialise them, before others read them.
    unsafe {
        assert_eq!(libc::pthread_mutexattr_init(attributes.as_mut_ptr()), 0);
        assert_eq!(libc::pthread_mutexattr_settype(attributes.as_mut_ptr(), kind), 0);
        if robust {
            assert_eq!(libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST), 0);
        }
        assert_eq!(libc::pthread_mutex_init(at, attributes.as_ptr()), 0);
    }
    (of, at)
}

const PAST: timespec = timespec { tv_sec: 1, tv_nsec: 0 };

/// The three ways to lock a mutex, with a time that is over.
fn ways(calls: Calls, at: *mut pthread_mutex_t) -> [c_int; 3] {
    // SAFETY: the mutex is initialised, and this thread may lock it.
    unsafe {
        [
            (calls.lock_until)(at, &PAST),
            (calls.lock_until_by)(at, libc::CLOCK_MONOTONIC, &PAST),
            (calls.lock_until_by)(at, libc::CLOCK_PROCESS_CPUTIME_ID, &PAST),
        ]
    }
}

/// What the owner of a mutex is told.
fn of_owners(calls: Calls) -> Vec<c_int> {
    let mut answers = Vec::new();
    for kind in [libc::PTHREAD_MUTEX_ERRORCHECK, libc::PTHREAD_MUTEX_RECURSIVE, libc::PTHREAD_MUTEX_NORMAL] {
        for robust in [false, true] {
            let (_kept, at) = mutex(kind, robust);
            // SAFETY: the mutex is initialised; a plain one is not locked twice but with a time.
            unsafe {
                answers.push((calls.lock)(at));
                if kind != libc::PTHREAD_MUTEX_NORMAL {
                    answers.push((calls.lock)(at));
                }
                answers.extend(ways(calls, at));
                // As often as it was locked, and once more.
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

/// What is said of a mutex whose owner has died, and of one that was given up.
fn of_heirs(calls: Calls) -> Vec<c_int> {
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
            // It was not made consistent, so nobody has it again.
            answers.push(libc::pthread_mutex_unlock(at));
            answers.push((calls.lock)(at));
            answers.extend(ways(calls, at));
        }
    }
    answers
}

/// What a writer is told that wants the lock again, and who has no time left.
fn of_writers(calls: Calls) -> Vec<c_int> {
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
    [of_owners(calls), of_heirs(calls), of_writers(calls)]
}

#[test]
fn callers_are_told_what_the_c_library_says() {
    let [owners, heirs, writers] = all(Calls::unwatched());
    // What is compared is not nothing.
    assert!(owners.contains(&libc::EDEADLK) && owners.contains(&libc::ETIMEDOUT) && owners.contains(&libc::EINVAL));
    assert!(heirs.contains(&libc::EOWNERDEAD) && heirs.contains(&libc::ENOTRECOVERABLE));
    assert!(writers.contains(&libc::EDEADLK) && writers.contains(&libc::ETIMEDOUT) && writers.contains(&libc::EINVAL));
    let expected = [owners, heirs, writers];
    assert_eq!(all(Calls::watched()), expected, "nobody looks, or somebody of another test");
    let window = Window::start(THRESHOLD).expect("nobody has another threshold");
    assert_eq!(all(Calls::watched()), expected, "somebody looks");
    drop(window);
}

unsafe extern "C" fn twice(at: *mut pthread_mutex_t) -> c_int {
    // SAFETY: as the caller promises; the second call has a time, so it does not wait for ever.
    unsafe {
        match libc::pthread_mutex_trylock(at) {
            0 => 0,
            _ => (Calls::unwatched().lock_until)(at, &PAST),
        }
    }
}

#[test]
fn twin_answers_of_trying_are_noticed() {
    // As if what trying says were what locking says.
    let tried = Calls { lock: libc::pthread_mutex_trylock, ..Calls::watched() };
    assert_ne!(of_owners(tried), of_owners(Calls::unwatched()));
    let tried = Calls { read: libc::pthread_rwlock_tryrdlock, ..Calls::watched() };
    assert_ne!(of_writers(tried), of_writers(Calls::unwatched()));
    // As if a dead owner's mutex, which trying has taken, were locked once more.
    let again = Calls { lock: twice, ..Calls::watched() };
    assert_ne!(of_heirs(again), of_heirs(Calls::unwatched()));
}
