//! POSIX's locks and conditions on their way to the C library: RocksDB, the C++ library and the allocator wait here.
//!
//! The functions have the C library's names, so the linker binds every call of the program to them, and exports them to the
//! shared libraries it loads. Each goes on to the C library's own, which is looked up at the first call; that is before
//! `main`, by the allocator. Nobody looks: one load, then the C library. Somebody does: it is counted, tried, and timed if
//! another thread is in the way. A condition is waited for in any case, so there a second look afterwards costs nothing:
//! who waited since before counts too.
//!
//! What holds for `waits` holds here. Not seen: the C library's own locks, `pthread_join`, semaphores, mutexes with a clock
//! and readers-writer locks with a time, which nothing in klad uses, and threads that spin before they wait, which is
//! CPU time.
//!
//! Called by whoever is not Rust. `sync` is Rust, and waits by itself.

use std::ffi::{CStr, c_int, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{clockid_t, pthread_cond_t, pthread_mutex_t, pthread_rwlock_t, timespec};

use super::waits::{count, ended_late, on, timed};
use super::{Family, Kind};

type OfMutex = unsafe extern "C" fn(*mut pthread_mutex_t) -> c_int;
type OfMutexUntil = unsafe extern "C" fn(*mut pthread_mutex_t, *const timespec) -> c_int;
type OfLock = unsafe extern "C" fn(*mut pthread_rwlock_t) -> c_int;
type OfCondition = unsafe extern "C" fn(*mut pthread_cond_t, *mut pthread_mutex_t) -> c_int;
type OfConditionUntil = unsafe extern "C" fn(*mut pthread_cond_t, *mut pthread_mutex_t, *const timespec) -> c_int;
type OfConditionUntilBy =
    unsafe extern "C" fn(*mut pthread_cond_t, *mut pthread_mutex_t, clockid_t, *const timespec) -> c_int;

static MUTEX_LOCK: Real = Real::new(c"pthread_mutex_lock");
static MUTEX_TIMEDLOCK: Real = Real::new(c"pthread_mutex_timedlock");
static READ: Real = Real::new(c"pthread_rwlock_rdlock");
static WRITE: Real = Real::new(c"pthread_rwlock_wrlock");
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
/// profile calls it.
pub fn prepare() {
    for real in [&MUTEX_LOCK, &MUTEX_TIMEDLOCK, &READ, &WRITE, &WAIT, &TIMEDWAIT, &CLOCKWAIT] {
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
        if !on() {
            return real(mutex);
        }
        // What comes after the call keeps this frame, and with it this name, on the stack.
        black_box(wait_for_mutex(|| libc::pthread_mutex_trylock(mutex), || real(mutex)))
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
        if !on() {
            return real(mutex, until);
        }
        // What comes after the call keeps this frame, and with it this name, on the stack.
        black_box(wait_for_mutex(|| libc::pthread_mutex_trylock(mutex), || real(mutex, until)))
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
        if !on() {
            return real(lock);
        }
        // What comes after the call keeps this frame, and with it this name, on the stack.
        black_box(wait_to_read(|| libc::pthread_rwlock_tryrdlock(lock), || real(lock)))
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
        if !on() {
            return real(lock);
        }
        // What comes after the call keeps this frame, and with it this name, on the stack.
        black_box(wait_to_write(|| libc::pthread_rwlock_trywrlock(lock), || real(lock)))
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
        if on() {
            return black_box(wait_for_condition(|| real(condition, mutex)));
        }
        let result = real(condition, mutex);
        if on() {
            ended_late(Kind::Foreign);
        }
        result
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
        if on() {
            return black_box(wait_for_condition(|| real(condition, mutex, until)));
        }
        let result = real(condition, mutex, until);
        if on() {
            ended_late(Kind::Foreign);
        }
        result
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
        if on() {
            return black_box(wait_for_condition(|| real(condition, mutex, clock, until)));
        }
        let result = real(condition, mutex, clock, until);
        if on() {
            ended_late(Kind::Foreign);
        }
        result
    }
}

/// Not inlined: its name is the innermost of the stack. The same of those below.
#[cold]
#[inline(never)]
fn wait_for_mutex(try_lock: impl FnOnce() -> c_int, lock: impl FnOnce() -> c_int) -> c_int {
    count(Family::Pthread);
    match try_lock() {
        libc::EBUSY => timed(Kind::Mutex, lock),
        result => result,
    }
}

#[cold]
#[inline(never)]
fn wait_to_read(try_lock: impl FnOnce() -> c_int, lock: impl FnOnce() -> c_int) -> c_int {
    count(Family::Pthread);
    match try_lock() {
        libc::EBUSY => timed(Kind::RwLockRead, lock),
        result => result,
    }
}

#[cold]
#[inline(never)]
fn wait_to_write(try_lock: impl FnOnce() -> c_int, lock: impl FnOnce() -> c_int) -> c_int {
    count(Family::Pthread);
    match try_lock() {
        libc::EBUSY => timed(Kind::RwLockWrite, lock),
        result => result,
    }
}

#[cold]
#[inline(never)]
fn wait_for_condition(wait: impl FnOnce() -> c_int) -> c_int {
    count(Family::Pthread);
    timed(Kind::Foreign, wait)
}
