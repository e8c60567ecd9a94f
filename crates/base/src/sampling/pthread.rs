//! POSIX's locks and conditions on their way to the C library: RocksDB, the C++ library and the allocator wait here.
//!
//! The functions have the C library's names, so the linker binds every call of the program to them, and exports them to the
//! shared libraries it loads. Each goes on to the C library's own, which is looked up at the first call; that is before
//! `main`, by the allocator. A lock is tried first. One that is free is taken by that; while somebody looks it is counted.
//! Otherwise the C library's function is called and seen as long as it waits. A condition is waited for in any case.
//!
//! What POSIX promises stays. Trying takes the lock or changes nothing, so whatever it gives but success is only its own
//! answer, and the real call gives the caller's: `EDEADLK` to an owner of a mutex that checks for errors, `EAGAIN` where a
//! recursive one is locked too often, or the wait without an end that an owner of a plain one has asked for. Times need not be
//! looked at where the lock is free. Clocks must be, so those that nobody can wait by go to the real call untried; so do
//! robust mutexes, because glibc's own way to try one that is not recoverable (`ENOTRECOVERABLE`) leaves it locked.
//!
//! What holds for `waits` holds here. Not seen: the C library's own locks, `pthread_join`, semaphores, and threads that spin
//! before they wait, which is CPU time.
//!
//! Called by whoever is not Rust. `sync` is Rust, and waits by itself.

use std::ffi::{CStr, c_int, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use libc::{clockid_t, pthread_cond_t, pthread_mutex_t, pthread_rwlock_t, timespec};

use crate::sampling::waits::{count, on, timed};
use crate::sampling::{Family, Kind};

type OfMutex = unsafe extern "C" fn(*mut pthread_mutex_t) -> c_int;
type OfMutexUntil = unsafe extern "C" fn(*mut pthread_mutex_t, *const timespec) -> c_int;
type OfMutexUntilBy = unsafe extern "C" fn(*mut pthread_mutex_t, clockid_t, *const timespec) -> c_int;
type OfLock = unsafe extern "C" fn(*mut pthread_rwlock_t) -> c_int;
type OfLockUntil = unsafe extern "C" fn(*mut pthread_rwlock_t, *const timespec) -> c_int;
type OfLockUntilBy = unsafe extern "C" fn(*mut pthread_rwlock_t, clockid_t, *const timespec) -> c_int;
type OfCondition = unsafe extern "C" fn(*mut pthread_cond_t, *mut pthread_mutex_t) -> c_int;
type OfConditionUntil = unsafe extern "C" fn(*mut pthread_cond_t, *mut pthread_mutex_t, *const timespec) -> c_int;
type OfConditionUntilBy =
    unsafe extern "C" fn(*mut pthread_cond_t, *mut pthread_mutex_t, clockid_t, *const timespec) -> c_int;

static MUTEX_LOCK: Real = Real::new(c"pthread_mutex_lock");
static MUTEX_TIMEDLOCK: Real = Real::new(c"pthread_mutex_timedlock");
static MUTEX_CLOCKLOCK: Real = Real::new(c"pthread_mutex_clocklock");
static READ: Real = Real::new(c"pthread_rwlock_rdlock");
static TIMEDREAD: Real = Real::new(c"pthread_rwlock_timedrdlock");
static CLOCKREAD: Real = Real::new(c"pthread_rwlock_clockrdlock");
static WRITE: Real = Real::new(c"pthread_rwlock_wrlock");
static TIMEDWRITE: Real = Real::new(c"pthread_rwlock_timedwrlock");
static CLOCKWRITE: Real = Real::new(c"pthread_rwlock_clockwrlock");
static WAIT: Real = Real::of_two_versions(c"pthread_cond_wait");
static TIMEDWAIT: Real = Real::of_two_versions(c"pthread_cond_timedwait");
static CLOCKWAIT: Real = Real::new(c"pthread_cond_clockwait");

/// The C library's own function.
struct Real {
    name: &'static CStr,
    /// x86-64 has had two layouts of conditions, and a look without a version could find the older one's function. Other
    /// processors began with the newer.
    two_versions: bool,
    address: AtomicPtr<c_void>,
}

/// Looks up what was not called yet. Also what makes sure that these functions are part of the program: whoever takes a
/// profile calls it. Not those with a clock: a C library before 2.30 lacks them, and then nobody calls them.
pub fn prepare() {
    for real in [&MUTEX_LOCK, &MUTEX_TIMEDLOCK, &READ, &TIMEDREAD, &WRITE, &TIMEDWRITE, &WAIT, &TIMEDWAIT] {
        real.address();
    }
}

impl Real {
    const fn new(name: &'static CStr) -> Real {
        Real { name, two_versions: false, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    const fn of_two_versions(name: &'static CStr) -> Real {
        Real { name, two_versions: true, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    #[inline]
    fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.look_up() } else { known }
    }

    /// Two threads may come here at once, and find the same. A look that fails would allocate, under the allocator: none
    /// is made that could, but for one after which nothing works.
    #[cold]
    #[inline(never)]
    fn look_up(&self) -> *mut c_void {
        #[expect(unsafe_code, reason = "the next function of a name has no safe form")]
        // SAFETY: the names end with a zero, and no call keeps them. `abort` does not come back.
        unsafe {
            let found = if self.two_versions && cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
                newest(self.name)
            } else {
                libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr())
            };
            if found.is_null() {
                // A lock that cannot be taken leaves nothing to go on with, and no lock to print under.
                let words = b"klad: the C library lacks a function of its threads\n";
                libc::write(2, words.as_ptr().cast::<c_void>(), words.len());
                libc::abort();
            }
            self.address.store(found, Ordering::Relaxed);
            found
        }
    }
}

/// The newer of two versions.
fn newest(name: &CStr) -> *mut c_void {
    #[expect(unsafe_code, reason = "a version of a function has no safe form")]
    #[cfg(target_env = "gnu")]
    // SAFETY: both strings end with a zero, and the call does not keep them.
    unsafe {
        libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), c"GLIBC_2.3.2".as_ptr())
    }
    #[cfg(not(target_env = "gnu"))]
    {
        let _ = name;
        std::ptr::null_mut()
    }
}

/// As POSIX says.
///
/// # Safety
/// As POSIX says.
#[expect(unsafe_code, reason = "the C library's name, so that all calls come here")]
// SAFETY: takes and gives what the C library's function does, which it calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int {
    let real = MUTEX_LOCK.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller keeps its promises.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, OfMutex>(real);
        let tried = try_mutex(mutex);
        acquire(Kind::Mutex, tried, || real(mutex))
    }
}

/// As POSIX says.
///
/// # Safety
/// As POSIX says.
#[expect(unsafe_code, reason = "the C library's name, so that all calls come here")]
// SAFETY: takes and gives what the C library's function does, which it calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_timedlock(mutex: *mut pthread_mutex_t, until: *const timespec) -> c_int {
    let real = MUTEX_TIMEDLOCK.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller keeps its promises.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, OfMutexUntil>(real);
        let tried = try_mutex(mutex);
        acquire(Kind::Mutex, tried, || real(mutex, until))
    }
}

/// As POSIX says.
///
/// # Safety
/// As POSIX says.
#[expect(unsafe_code, reason = "the C library's name, so that all calls come here")]
// SAFETY: takes and gives what the C library's function does, which it calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_clocklock(
    mutex: *mut pthread_mutex_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    let real = MUTEX_CLOCKLOCK.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller keeps its promises.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, OfMutexUntilBy>(real);
        let tried = if is_waited_by(clock) { try_mutex(mutex) } else { libc::EBUSY };
        acquire(Kind::Mutex, tried, || real(mutex, clock, until))
    }
}

/// As POSIX says.
///
/// # Safety
/// As POSIX says.
#[expect(unsafe_code, reason = "the C library's name, so that all calls come here")]
// SAFETY: takes and gives what the C library's function does, which it calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_rdlock(lock: *mut pthread_rwlock_t) -> c_int {
    let real = READ.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller keeps its promises.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, OfLock>(real);
        let tried = libc::pthread_rwlock_tryrdlock(lock);
        acquire(Kind::RwLockRead, tried, || real(lock))
    }
}

/// As POSIX says.
///
/// # Safety
/// As POSIX says.
#[expect(unsafe_code, reason = "the C library's name, so that all calls come here")]
// SAFETY: takes and gives what the C library's function does, which it calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_timedrdlock(lock: *mut pthread_rwlock_t, until: *const timespec) -> c_int {
    let real = TIMEDREAD.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller keeps its promises.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, OfLockUntil>(real);
        let tried = libc::pthread_rwlock_tryrdlock(lock);
        acquire(Kind::RwLockRead, tried, || real(lock, until))
    }
}

/// As POSIX says.
///
/// # Safety
/// As POSIX says.
#[expect(unsafe_code, reason = "the C library's name, so that all calls come here")]
// SAFETY: takes and gives what the C library's function does, which it calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_clockrdlock(
    lock: *mut pthread_rwlock_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    let real = CLOCKREAD.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller keeps its promises.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, OfLockUntilBy>(real);
        let tried = if is_waited_by(clock) { libc::pthread_rwlock_tryrdlock(lock) } else { libc::EBUSY };
        acquire(Kind::RwLockRead, tried, || real(lock, clock, until))
    }
}

/// As POSIX says.
///
/// # Safety
/// As POSIX says.
#[expect(unsafe_code, reason = "the C library's name, so that all calls come here")]
// SAFETY: takes and gives what the C library's function does, which it calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_wrlock(lock: *mut pthread_rwlock_t) -> c_int {
    let real = WRITE.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller keeps its promises.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, OfLock>(real);
        let tried = libc::pthread_rwlock_trywrlock(lock);
        acquire(Kind::RwLockWrite, tried, || real(lock))
    }
}

/// As POSIX says.
///
/// # Safety
/// As POSIX says.
#[expect(unsafe_code, reason = "the C library's name, so that all calls come here")]
// SAFETY: takes and gives what the C library's function does, which it calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_timedwrlock(lock: *mut pthread_rwlock_t, until: *const timespec) -> c_int {
    let real = TIMEDWRITE.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller keeps its promises.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, OfLockUntil>(real);
        let tried = libc::pthread_rwlock_trywrlock(lock);
        acquire(Kind::RwLockWrite, tried, || real(lock, until))
    }
}

/// As POSIX says.
///
/// # Safety
/// As POSIX says.
#[expect(unsafe_code, reason = "the C library's name, so that all calls come here")]
// SAFETY: takes and gives what the C library's function does, which it calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_clockwrlock(
    lock: *mut pthread_rwlock_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    let real = CLOCKWRITE.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller keeps its promises.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, OfLockUntilBy>(real);
        let tried = if is_waited_by(clock) { libc::pthread_rwlock_trywrlock(lock) } else { libc::EBUSY };
        acquire(Kind::RwLockWrite, tried, || real(lock, clock, until))
    }
}

/// As POSIX says.
///
/// # Safety
/// As POSIX says.
#[expect(unsafe_code, reason = "the C library's name, so that all calls come here")]
// SAFETY: takes and gives what the C library's function does, which it calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_wait(condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t) -> c_int {
    let real = WAIT.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller keeps its promises.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, OfCondition>(real);
        wait(|| real(condition, mutex))
    }
}

/// As POSIX says.
///
/// # Safety
/// As POSIX says.
#[expect(unsafe_code, reason = "the C library's name, so that all calls come here")]
// SAFETY: takes and gives what the C library's function does, which it calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_timedwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    until: *const timespec,
) -> c_int {
    let real = TIMEDWAIT.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller keeps its promises.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, OfConditionUntil>(real);
        wait(|| real(condition, mutex, until))
    }
}

/// As POSIX says.
///
/// # Safety
/// As POSIX says.
#[expect(unsafe_code, reason = "the C library's name, so that all calls come here")]
// SAFETY: takes and gives what the C library's function does, which it calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_clockwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    let real = CLOCKWAIT.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller keeps its promises.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, OfConditionUntilBy>(real);
        wait(|| real(condition, mutex, clock, until))
    }
}

/// Takes the mutex if it is free and may be tried.
///
/// # Safety
/// As POSIX says of `pthread_mutex_trylock`.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a call more for each lock that is free")]
#[expect(unsafe_code, reason = "POSIX's function has no safe form")]
unsafe fn try_mutex(mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { if is_robust(mutex) { libc::EBUSY } else { libc::pthread_mutex_trylock(mutex) } }
}

/// Whether an owner's death is noticed.
///
/// # Safety
/// The mutex is initialised.
#[inline(always)]
#[expect(unsafe_code, reason = "a part of a type that libc keeps to itself")]
unsafe fn is_robust(mutex: *const pthread_mutex_t) -> bool {
    /// Of glibc's kinds; other C libraries try robust mutexes well.
    const ROBUST: c_int = 16;
    /// Of the words of a mutex, after the lock, the count, the owner and the users. It is a part of the initialisers that
    /// programs are compiled with, so it stays where it is.
    const KIND: usize = 4;
    // SAFETY: a mutex has ten words on all 64-bit machines. Others may write this one meanwhile, but not this bit.
    let kind = unsafe { AtomicI32::from_ptr(mutex.cast_mut().cast::<c_int>().add(KIND)) };
    cfg!(target_env = "gnu") && kind.load(Ordering::Relaxed) & ROBUST != 0
}

/// The locks with a clock know these two, and look at the clock even where the lock is free.
fn is_waited_by(clock: clockid_t) -> bool {
    matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_MONOTONIC)
}

/// Inlined: the hook that calls it is the innermost frame of the stack. What comes after the call keeps that frame, and
/// with it the name, there. The same of the one below.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the frame that is noted must be the caller's")]
fn acquire(kind: Kind, tried: c_int, lock: impl FnOnce() -> c_int) -> c_int {
    if on() {
        count(Family::Pthread);
    }
    match tried {
        0 | libc::EOWNERDEAD => tried,
        _ => black_box(timed(kind, lock)),
    }
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "the frame that is noted must be the caller's")]
fn wait(wait: impl FnOnce() -> c_int) -> c_int {
    if on() {
        count(Family::Pthread);
    }
    black_box(timed(Kind::Foreign, wait))
}
