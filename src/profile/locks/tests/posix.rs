//! POSIX's locks for tests, as RocksDB calls them or past the functions that `sampling::pthread` has put in the way.

#![expect(unsafe_code, reason = "POSIX's functions have no safe form")]

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int};
use std::sync::Arc;

use libc::{clockid_t, pthread_cond_t, pthread_mutex_t, pthread_rwlock_t, timespec};

use super::Plant;

type OfMutex = unsafe extern "C" fn(*mut pthread_mutex_t) -> c_int;
type OfMutexUntil = unsafe extern "C" fn(*mut pthread_mutex_t, *const timespec) -> c_int;
type OfLock = unsafe extern "C" fn(*mut pthread_rwlock_t) -> c_int;
type OfCondition = unsafe extern "C" fn(*mut pthread_cond_t, *mut pthread_mutex_t) -> c_int;
type OfConditionUntil = unsafe extern "C" fn(*mut pthread_cond_t, *mut pthread_mutex_t, *const timespec) -> c_int;
type OfConditionUntilBy =
    unsafe extern "C" fn(*mut pthread_cond_t, *mut pthread_mutex_t, clockid_t, *const timespec) -> c_int;

unsafe extern "C" {
    fn pthread_cond_clockwait(
        condition: *mut pthread_cond_t,
        mutex: *mut pthread_mutex_t,
        clock: clockid_t,
        until: *const timespec,
    ) -> c_int;
}

/// The functions under test, or others that nobody watches.
#[derive(Clone, Copy)]
pub(super) struct Calls {
    lock: OfMutex,
    lock_until: OfMutexUntil,
    read: OfLock,
    write: OfLock,
    wait: OfCondition,
    wait_until: OfConditionUntil,
    wait_until_by: OfConditionUntilBy,
}

impl Calls {
    /// What every call of the program is bound to.
    pub(super) fn watched() -> Calls {
        Calls {
            lock: libc::pthread_mutex_lock,
            lock_until: libc::pthread_mutex_timedlock,
            read: libc::pthread_rwlock_rdlock,
            write: libc::pthread_rwlock_wrlock,
            wait: libc::pthread_cond_wait,
            wait_until: libc::pthread_cond_timedwait,
            wait_until_by: pthread_cond_clockwait,
        }
    }

    /// The C library's own.
    pub(super) fn unwatched() -> Calls {
        let find = |name: &CStr| {
            // SAFETY: the name ends with a zero.
            let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), c"GLIBC_2.3.2".as_ptr()) };
            // SAFETY: as above.
            if found.is_null() { unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } } else { found }
        };
        // SAFETY: each function has the type that its name has in POSIX.
        unsafe {
            Calls {
                lock: std::mem::transmute::<*mut libc::c_void, OfMutex>(find(c"pthread_mutex_lock")),
                lock_until: std::mem::transmute::<*mut libc::c_void, OfMutexUntil>(find(c"pthread_mutex_timedlock")),
                read: std::mem::transmute::<*mut libc::c_void, OfLock>(find(c"pthread_rwlock_rdlock")),
                write: std::mem::transmute::<*mut libc::c_void, OfLock>(find(c"pthread_rwlock_wrlock")),
                wait: std::mem::transmute::<*mut libc::c_void, OfCondition>(find(c"pthread_cond_wait")),
                wait_until: std::mem::transmute::<*mut libc::c_void, OfConditionUntil>(find(c"pthread_cond_timedwait")),
                wait_until_by: std::mem::transmute::<*mut libc::c_void, OfConditionUntilBy>(find(
                    c"pthread_cond_clockwait",
                )),
            }
        }
    }
}

/// One of each, and a flag under the mutex.
pub(super) struct Locks {
    calls: Calls,
    mutex: UnsafeCell<pthread_mutex_t>,
    lock: UnsafeCell<pthread_rwlock_t>,
    condition: UnsafeCell<pthread_cond_t>,
    flag: UnsafeCell<bool>,
}

// SAFETY: POSIX's types are made to be shared, and the flag is only touched under the mutex.
unsafe impl Sync for Locks {}
// SAFETY: none is moved once it is used: they stay behind an `Arc`.
unsafe impl Send for Locks {}

impl Locks {
    pub(super) fn new(calls: Calls) -> Arc<Locks> {
        Arc::new(Locks {
            calls,
            mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            lock: UnsafeCell::new(libc::PTHREAD_RWLOCK_INITIALIZER),
            condition: UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER),
            flag: UnsafeCell::new(false),
        })
    }

    pub(super) fn with_mutex(&self, run: &dyn Fn()) {
        // SAFETY: the mutex is initialised and is unlocked by who has locked it.
        unsafe {
            assert_eq!((self.calls.lock)(self.mutex.get()), 0);
            run();
            assert_eq!(libc::pthread_mutex_unlock(self.mutex.get()), 0);
        }
    }

    fn with_mutex_in_time(&self) {
        let until = later(libc::CLOCK_REALTIME);
        // SAFETY: as above.
        unsafe {
            assert_eq!((self.calls.lock_until)(self.mutex.get(), &raw const until), 0);
            assert_eq!(libc::pthread_mutex_unlock(self.mutex.get()), 0);
        }
    }

    pub(super) fn reading(&self, run: &dyn Fn()) {
        // SAFETY: the lock is initialised and is unlocked by who has locked it.
        unsafe {
            assert_eq!((self.calls.read)(self.lock.get()), 0);
            run();
            assert_eq!(libc::pthread_rwlock_unlock(self.lock.get()), 0);
        }
    }

    pub(super) fn writing(&self, run: &dyn Fn()) {
        // SAFETY: as above.
        unsafe {
            assert_eq!((self.calls.write)(self.lock.get()), 0);
            run();
            assert_eq!(libc::pthread_rwlock_unlock(self.lock.get()), 0);
        }
    }

    fn raise(&self) {
        // SAFETY: the flag is touched under the mutex.
        self.with_mutex(&|| unsafe { *self.flag.get() = true });
        // SAFETY: the condition is initialised.
        assert_eq!(unsafe { libc::pthread_cond_signal(self.condition.get()) }, 0);
    }

    /// Waits for the flag by `wait` and lowers it.
    fn wait_for_flag(&self, wait: &dyn Fn(*mut pthread_cond_t, *mut pthread_mutex_t)) {
        // SAFETY: the flag is touched under the mutex, which `wait` gives back locked.
        self.with_mutex(&|| unsafe {
            while !*self.flag.get() {
                wait(self.condition.get(), self.mutex.get());
            }
            *self.flag.get() = false;
        });
    }
}

/// In a minute.
fn later(clock: clockid_t) -> timespec {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes to `time`.
    assert_eq!(unsafe { libc::clock_gettime(clock, &raw mut time) }, 0);
    time.tv_sec += 60;
    time
}

/// One for each function; conditions last.
pub(super) fn plants(calls: Calls) -> [Plant; 7] {
    let plant = |thread, hold: fn(&Locks, &dyn Fn()), wait: fn(&Locks)| {
        let held = Locks::new(calls);
        let same = held.clone();
        Plant { thread, hold: Box::new(move |pause| hold(&held, pause)), wait: Box::new(move || wait(&same)) }
    };
    let signal = |locks: &Locks, pause: &dyn Fn()| {
        pause();
        locks.raise();
    };
    [
        plant("p-mutex", Locks::with_mutex, |locks| locks.with_mutex(&|| {})),
        plant("p-timedlock", Locks::with_mutex, Locks::with_mutex_in_time),
        plant("p-read", Locks::writing, |locks| locks.reading(&|| {})),
        plant("p-write", Locks::reading, |locks| locks.writing(&|| {})),
        plant("p-wait", signal, |locks| {
            // SAFETY: both are initialised, and the mutex is locked.
            locks.wait_for_flag(&|condition, mutex| assert_eq!(unsafe { (locks.calls.wait)(condition, mutex) }, 0));
        }),
        plant("p-timedwait", signal, |locks| {
            let until = later(libc::CLOCK_REALTIME);
            locks.wait_for_flag(&|condition, mutex| {
                // SAFETY: as above.
                assert_eq!(unsafe { (locks.calls.wait_until)(condition, mutex, &raw const until) }, 0);
            });
        }),
        plant("p-clockwait", signal, |locks| {
            let (clock, until) = (libc::CLOCK_MONOTONIC, later(libc::CLOCK_MONOTONIC));
            locks.wait_for_flag(&|condition, mutex| {
                // SAFETY: as above.
                assert_eq!(unsafe { (locks.calls.wait_until_by)(condition, mutex, clock, &raw const until) }, 0);
            });
        }),
    ]
}
