//! POSIX locks for tests. They are called as RocksDB calls them, or without the hooks of `sampling::pthread`.

#![expect(unsafe_code, reason = "POSIX's functions have no safe form")]

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

use libc::{clockid_t, pthread_cond_t, pthread_mutex_t, pthread_rwlock_t, timespec};

use crate::locks::tests::Plant;

type MutexLockFn = unsafe extern "C" fn(*mut pthread_mutex_t) -> c_int;
type MutexTimedLockFn = unsafe extern "C" fn(*mut pthread_mutex_t, *const timespec) -> c_int;
type MutexClockLockFn = unsafe extern "C" fn(*mut pthread_mutex_t, clockid_t, *const timespec) -> c_int;
type RwLockLockFn = unsafe extern "C" fn(*mut pthread_rwlock_t) -> c_int;
type RwLockTimedLockFn = unsafe extern "C" fn(*mut pthread_rwlock_t, *const timespec) -> c_int;
type RwLockClockLockFn = unsafe extern "C" fn(*mut pthread_rwlock_t, clockid_t, *const timespec) -> c_int;
type ConditionWaitFn = unsafe extern "C" fn(*mut pthread_cond_t, *mut pthread_mutex_t) -> c_int;
type ConditionTimedWaitFn = unsafe extern "C" fn(*mut pthread_cond_t, *mut pthread_mutex_t, *const timespec) -> c_int;
type ConditionClockWaitFn =
    unsafe extern "C" fn(*mut pthread_cond_t, *mut pthread_mutex_t, clockid_t, *const timespec) -> c_int;

unsafe extern "C" {
    fn pthread_mutex_clocklock(mutex: *mut pthread_mutex_t, clock: clockid_t, until: *const timespec) -> c_int;
    fn pthread_rwlock_timedrdlock(lock: *mut pthread_rwlock_t, until: *const timespec) -> c_int;
    fn pthread_rwlock_clockrdlock(lock: *mut pthread_rwlock_t, clock: clockid_t, until: *const timespec) -> c_int;
    fn pthread_rwlock_timedwrlock(lock: *mut pthread_rwlock_t, until: *const timespec) -> c_int;
    fn pthread_rwlock_clockwrlock(lock: *mut pthread_rwlock_t, clock: clockid_t, until: *const timespec) -> c_int;
    fn pthread_cond_clockwait(
        condition: *mut pthread_cond_t,
        mutex: *mut pthread_mutex_t,
        clock: clockid_t,
        until: *const timespec,
    ) -> c_int;
}

/// The hooks under test, or the C library's functions.
#[derive(Clone, Copy)]
pub(super) struct Calls {
    pub(super) lock: MutexLockFn,
    pub(super) lock_until: MutexTimedLockFn,
    pub(super) lock_until_by: MutexClockLockFn,
    pub(super) read: RwLockLockFn,
    pub(super) read_until: RwLockTimedLockFn,
    pub(super) read_until_by: RwLockClockLockFn,
    pub(super) write: RwLockLockFn,
    pub(super) write_until: RwLockTimedLockFn,
    pub(super) write_until_by: RwLockClockLockFn,
    pub(super) wait: ConditionWaitFn,
    pub(super) wait_until: ConditionTimedWaitFn,
    pub(super) wait_until_by: ConditionClockWaitFn,
}

impl Calls {
    /// Returns the hooks, to which every call of the program is bound.
    pub(super) fn watched() -> Calls {
        Calls {
            lock: libc::pthread_mutex_lock,
            lock_until: libc::pthread_mutex_timedlock,
            lock_until_by: pthread_mutex_clocklock,
            read: libc::pthread_rwlock_rdlock,
            read_until: pthread_rwlock_timedrdlock,
            read_until_by: pthread_rwlock_clockrdlock,
            write: libc::pthread_rwlock_wrlock,
            write_until: pthread_rwlock_timedwrlock,
            write_until_by: pthread_rwlock_clockwrlock,
            wait: libc::pthread_cond_wait,
            wait_until: libc::pthread_cond_timedwait,
            wait_until_by: pthread_cond_clockwait,
        }
    }

    /// Returns the C library's functions.
    pub(super) fn unwatched() -> Calls {
        // SAFETY: each function has the type that its name has in POSIX.
        unsafe {
            Calls {
                lock: std::mem::transmute::<*mut c_void, MutexLockFn>(unwatched(c"pthread_mutex_lock")),
                lock_until: std::mem::transmute::<*mut c_void, MutexTimedLockFn>(unwatched(c"pthread_mutex_timedlock")),
                lock_until_by: std::mem::transmute::<*mut c_void, MutexClockLockFn>(unwatched(
                    c"pthread_mutex_clocklock",
                )),
                read: std::mem::transmute::<*mut c_void, RwLockLockFn>(unwatched(c"pthread_rwlock_rdlock")),
                read_until: std::mem::transmute::<*mut c_void, RwLockTimedLockFn>(unwatched(
                    c"pthread_rwlock_timedrdlock",
                )),
                read_until_by: std::mem::transmute::<*mut c_void, RwLockClockLockFn>(unwatched(
                    c"pthread_rwlock_clockrdlock",
                )),
                write: std::mem::transmute::<*mut c_void, RwLockLockFn>(unwatched(c"pthread_rwlock_wrlock")),
                write_until: std::mem::transmute::<*mut c_void, RwLockTimedLockFn>(unwatched(
                    c"pthread_rwlock_timedwrlock",
                )),
                write_until_by: std::mem::transmute::<*mut c_void, RwLockClockLockFn>(unwatched(
                    c"pthread_rwlock_clockwrlock",
                )),
                wait: std::mem::transmute::<*mut c_void, ConditionWaitFn>(unwatched(c"pthread_cond_wait")),
                wait_until: std::mem::transmute::<*mut c_void, ConditionTimedWaitFn>(unwatched(
                    c"pthread_cond_timedwait",
                )),
                wait_until_by: std::mem::transmute::<*mut c_void, ConditionClockWaitFn>(unwatched(
                    c"pthread_cond_clockwait",
                )),
            }
        }
    }
}

fn unwatched(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), c"GLIBC_2.3.2".as_ptr()) };
    // SAFETY: as above.
    if found.is_null() { unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } } else { found }
}

/// A mutex, a readers-writer lock, a condition, and a flag that the mutex protects.
pub(super) struct Locks {
    calls: Calls,
    mutex: UnsafeCell<pthread_mutex_t>,
    lock: UnsafeCell<pthread_rwlock_t>,
    condition: UnsafeCell<pthread_cond_t>,
    flag: UnsafeCell<bool>,
}

// SAFETY: POSIX types may be shared between threads, and the flag is accessed only under the mutex.
unsafe impl Sync for Locks {}
// SAFETY: nothing is moved after its first use: all stay behind an `Arc`.
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
        // SAFETY: the mutex is initialised and is unlocked by the thread that locked it.
        unsafe {
            assert_eq!((self.calls.lock)(self.mutex.get()), 0);
            run();
            assert_eq!(libc::pthread_mutex_unlock(self.mutex.get()), 0);
        }
    }

    /// Locks the mutex with `lock`, and unlocks it.
    fn passing_mutex(&self, lock: &dyn Fn(*mut pthread_mutex_t) -> c_int) {
        assert_eq!(lock(self.mutex.get()), 0);
        // SAFETY: this thread has locked it.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(self.mutex.get()) }, 0);
    }

    /// Locks the readers-writer lock with `lock`, and unlocks it.
    fn passing(&self, lock: &dyn Fn(*mut pthread_rwlock_t) -> c_int) {
        assert_eq!(lock(self.lock.get()), 0);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::pthread_rwlock_unlock(self.lock.get()) }, 0);
    }

    pub(super) fn reading(&self, run: &dyn Fn()) {
        // SAFETY: the lock is initialised and is unlocked by the thread that locked it.
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

    /// Waits for the flag with `wait`, and clears it.
    fn wait_for_flag(&self, wait: &dyn Fn(*mut pthread_cond_t, *mut pthread_mutex_t) -> c_int) {
        // SAFETY: the flag is touched under the mutex, which `wait` gives back locked.
        self.with_mutex(&|| unsafe {
            while !*self.flag.get() {
                assert_eq!(wait(self.condition.get(), self.mutex.get()), 0);
            }
            *self.flag.get() = false;
        });
    }
}

/// Returns the time that `clock` will show in one minute.
pub(super) fn later(clock: clockid_t) -> timespec {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes to `time`.
    assert_eq!(unsafe { libc::clock_gettime(clock, &raw mut time) }, 0);
    time.tv_sec += 60;
    time
}

/// Returns a plant for each function that locks. Conditions are in [`conditions`].
pub(super) fn locks(calls: Calls) -> [Plant; 9] {
    let plant = |thread, leaf, hold, wait| plant(calls, thread, leaf, hold, wait);
    let (real, monotonic) = (libc::CLOCK_REALTIME, libc::CLOCK_MONOTONIC);
    // SAFETY: for all calls below: the locks are initialised, and times outlive the calls.
    unsafe {
        [
            plant(
                "p-mutex",
                "pthread_mutex_lock",
                Locks::with_mutex,
                Box::new(move |locks| locks.passing_mutex(&|lock| (calls.lock)(lock))),
            ),
            plant(
                "p-timedlock",
                "pthread_mutex_timedlock",
                Locks::with_mutex,
                Box::new(move |locks| locks.passing_mutex(&|lock| (calls.lock_until)(lock, &later(real)))),
            ),
            plant(
                "p-clocklock",
                "pthread_mutex_clocklock",
                Locks::with_mutex,
                Box::new(move |locks| {
                    locks.passing_mutex(&|lock| (calls.lock_until_by)(lock, monotonic, &later(monotonic)));
                }),
            ),
            plant(
                "p-read",
                "pthread_rwlock_rdlock",
                Locks::writing,
                Box::new(move |locks| locks.passing(&|lock| (calls.read)(lock))),
            ),
            plant(
                "p-timedread",
                "pthread_rwlock_timedrdlock",
                Locks::writing,
                Box::new(move |locks| locks.passing(&|lock| (calls.read_until)(lock, &later(real)))),
            ),
            plant(
                "p-clockread",
                "pthread_rwlock_clockrdlock",
                Locks::writing,
                Box::new(move |locks| locks.passing(&|lock| (calls.read_until_by)(lock, monotonic, &later(monotonic)))),
            ),
            plant(
                "p-write",
                "pthread_rwlock_wrlock",
                Locks::reading,
                Box::new(move |locks| locks.passing(&|lock| (calls.write)(lock))),
            ),
            plant(
                "p-timedwrite",
                "pthread_rwlock_timedwrlock",
                Locks::reading,
                Box::new(move |locks| locks.passing(&|lock| (calls.write_until)(lock, &later(real)))),
            ),
            plant(
                "p-clockwrite",
                "pthread_rwlock_clockwrlock",
                Locks::reading,
                Box::new(move |locks| {
                    locks.passing(&|lock| (calls.write_until_by)(lock, monotonic, &later(monotonic)));
                }),
            ),
        ]
    }
}

/// Returns a plant for each function that waits for a condition.
pub(super) fn conditions(calls: Calls) -> [Plant; 3] {
    let plant = |thread, leaf, wait| plant(calls, thread, leaf, signal, wait);
    let (real, monotonic) = (libc::CLOCK_REALTIME, libc::CLOCK_MONOTONIC);
    // SAFETY: for all calls below: both are initialised, the mutex is locked, and times outlive the calls.
    unsafe {
        [
            plant(
                "p-wait",
                "pthread_cond_wait",
                Box::new(move |locks| locks.wait_for_flag(&|condition, mutex| (calls.wait)(condition, mutex))),
            ),
            plant(
                "p-timedwait",
                "pthread_cond_timedwait",
                Box::new(move |locks| {
                    locks.wait_for_flag(&|condition, mutex| (calls.wait_until)(condition, mutex, &later(real)));
                }),
            ),
            plant(
                "p-clockwait",
                "pthread_cond_clockwait",
                Box::new(move |locks| {
                    let wait = calls.wait_until_by;
                    locks.wait_for_flag(&|condition, mutex| wait(condition, mutex, monotonic, &later(monotonic)));
                }),
            ),
        ]
    }
}

fn signal(locks: &Locks, pause: &dyn Fn()) {
    pause();
    locks.raise();
}

fn plant(
    calls: Calls,
    thread: &'static str,
    leaf: &'static str,
    hold: fn(&Locks, &dyn Fn()),
    wait: Box<dyn Fn(&Locks) + Send>,
) -> Plant {
    let held = Locks::new(calls);
    let same = held.clone();
    Plant { thread, leaf, hold: Box::new(move |pause| hold(&held, pause)), wait: Box::new(move || wait(&same)) }
}
