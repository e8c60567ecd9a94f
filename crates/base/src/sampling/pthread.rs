//! Hooks between the POSIX lock functions and the C library, so that a lock profile sees the waits of RocksDB, the
//! C++ library and the allocator.
//!
//! The hooks have the names of the C library's functions. The linker binds every call of the program to the hooks. It
//! also exports the hooks, so that the shared libraries that the program loads call them. A hook for a lock first tries
//! the lock. If another thread holds the lock, the hook calls the C library's function, which waits, and the wait is
//! visible while it lasts. A hook for a condition variable always calls the C library's function. During a lock
//! profile, all hooks count their calls. Each hook looks up the C library's function at its first call; the allocator
//! makes the first call before `main`.
//!
//! The hooks keep what POSIX promises. A try takes the lock or changes nothing. If it does not take the lock, the C
//! library's function gives the result: `EDEADLK` to the owner of an error-checking mutex, `EAGAIN` if a recursive
//! mutex is locked too often, or an endless wait for the owner of a normal mutex. A lock with a timeout may also be
//! tried first, because POSIX requires no check of the timeout if the lock is free. In two cases a hook for a lock
//! calls the C library's function without a try. One is a clock that is not supported, because POSIX requires a check
//! of the clock. The other, with glibc, is a robust mutex, because glibc's `trylock` leaves a mutex locked that is not
//! recoverable (`ENOTRECOVERABLE`).
//!
//! The hooks obey the rules that `waits` gives for its code, except that they take the lock of their caller. A lock
//! profile does not show waits for the C library's own locks, `pthread_join` and semaphores. Spinning before a wait is
//! not shown either; it is CPU time.
//!
//! Called by all code that is not Rust. `sync` records its waits without these hooks.

use std::ffi::{CStr, c_int, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use libc::{clockid_t, pthread_cond_t, pthread_mutex_t, pthread_rwlock_t, timespec};

use crate::sampling::waits::{count_acquisition, is_profiling, timed};
use crate::sampling::{Family, Kind};

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

static MUTEX_LOCK: LibraryFunction = LibraryFunction::new(c"pthread_mutex_lock");
static MUTEX_TIMEDLOCK: LibraryFunction = LibraryFunction::new(c"pthread_mutex_timedlock");
static MUTEX_CLOCKLOCK: LibraryFunction = LibraryFunction::new(c"pthread_mutex_clocklock");
static READ: LibraryFunction = LibraryFunction::new(c"pthread_rwlock_rdlock");
static TIMEDREAD: LibraryFunction = LibraryFunction::new(c"pthread_rwlock_timedrdlock");
static CLOCKREAD: LibraryFunction = LibraryFunction::new(c"pthread_rwlock_clockrdlock");
static WRITE: LibraryFunction = LibraryFunction::new(c"pthread_rwlock_wrlock");
static TIMEDWRITE: LibraryFunction = LibraryFunction::new(c"pthread_rwlock_timedwrlock");
static CLOCKWRITE: LibraryFunction = LibraryFunction::new(c"pthread_rwlock_clockwrlock");
static WAIT: LibraryFunction = LibraryFunction::of_two_versions(c"pthread_cond_wait");
static TIMEDWAIT: LibraryFunction = LibraryFunction::of_two_versions(c"pthread_cond_timedwait");
static CLOCKWAIT: LibraryFunction = LibraryFunction::new(c"pthread_cond_clockwait");

/// A function of the C library, looked up at first use.
struct LibraryFunction {
    name: &'static CStr,
    /// Whether the C library has two versions of the function. On x86-64 there are two layouts of condition
    /// variables, and a lookup without a version could find the function for the older layout. 64-bit Arm, for example,
    /// has only the newer one.
    two_versions: bool,
    address: AtomicPtr<c_void>,
}

/// Looks up the functions that were not called yet. A lock profile calls this at its start; because of this call, the
/// linker takes the hooks into the program. The functions with a clock are left out: glibc before 2.30 lacks them, and
/// then no code calls them.
pub fn prepare() {
    for real in [&MUTEX_LOCK, &MUTEX_TIMEDLOCK, &READ, &TIMEDREAD, &WRITE, &TIMEDWRITE, &WAIT, &TIMEDWAIT] {
        real.address();
    }
}

impl LibraryFunction {
    const fn new(name: &'static CStr) -> LibraryFunction {
        LibraryFunction { name, two_versions: false, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    const fn of_two_versions(name: &'static CStr) -> LibraryFunction {
        LibraryFunction { name, two_versions: true, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    #[inline]
    fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.look_up() } else { known }
    }

    /// Looks up the function. Two threads may do this at the same time; both find the same address. A lookup that
    /// fails would allocate inside the allocator, so this must not be called for a function that may not exist.
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
                // The process cannot go on without this lock, and cannot take a lock to print the message.
                let message = b"klad: the C library lacks a required pthread function; klad cannot run\n";
                libc::write(2, message.as_ptr().cast::<c_void>(), message.len());
                libc::abort();
            }
            self.address.store(found, Ordering::Relaxed);
            found
        }
    }
}

/// Returns the address of the newer version of a function, or null if the C library has none.
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

/// Behaves as POSIX specifies.
///
/// # Safety
/// As POSIX specifies.
#[expect(unsafe_code, reason = "the hook has the C library's name, so that all calls come here")]
// SAFETY: has the signature of the C library's function, and calls that function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int {
    let real = MUTEX_LOCK.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller meets its requirements.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, MutexLockFn>(real);
        let tried = try_mutex(mutex);
        acquire(Kind::Mutex, tried, || real(mutex))
    }
}

/// Behaves as POSIX specifies.
///
/// # Safety
/// As POSIX specifies.
#[expect(unsafe_code, reason = "the hook has the C library's name, so that all calls come here")]
// SAFETY: has the signature of the C library's function, and calls that function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_timedlock(mutex: *mut pthread_mutex_t, until: *const timespec) -> c_int {
    let real = MUTEX_TIMEDLOCK.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller meets its requirements.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, MutexTimedLockFn>(real);
        let tried = try_mutex(mutex);
        acquire(Kind::Mutex, tried, || real(mutex, until))
    }
}

/// Behaves as POSIX specifies.
///
/// # Safety
/// As POSIX specifies.
#[expect(unsafe_code, reason = "the hook has the C library's name, so that all calls come here")]
// SAFETY: has the signature of the C library's function, and calls that function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_clocklock(
    mutex: *mut pthread_mutex_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    let real = MUTEX_CLOCKLOCK.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller meets its requirements.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, MutexClockLockFn>(real);
        let tried = if is_supported(clock) { try_mutex(mutex) } else { libc::EBUSY };
        acquire(Kind::Mutex, tried, || real(mutex, clock, until))
    }
}

/// Behaves as POSIX specifies.
///
/// # Safety
/// As POSIX specifies.
#[expect(unsafe_code, reason = "the hook has the C library's name, so that all calls come here")]
// SAFETY: has the signature of the C library's function, and calls that function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_rdlock(lock: *mut pthread_rwlock_t) -> c_int {
    let real = READ.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller meets its requirements.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, RwLockLockFn>(real);
        let tried = libc::pthread_rwlock_tryrdlock(lock);
        acquire(Kind::RwLockRead, tried, || real(lock))
    }
}

/// Behaves as POSIX specifies.
///
/// # Safety
/// As POSIX specifies.
#[expect(unsafe_code, reason = "the hook has the C library's name, so that all calls come here")]
// SAFETY: has the signature of the C library's function, and calls that function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_timedrdlock(lock: *mut pthread_rwlock_t, until: *const timespec) -> c_int {
    let real = TIMEDREAD.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller meets its requirements.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, RwLockTimedLockFn>(real);
        let tried = libc::pthread_rwlock_tryrdlock(lock);
        acquire(Kind::RwLockRead, tried, || real(lock, until))
    }
}

/// Behaves as POSIX specifies.
///
/// # Safety
/// As POSIX specifies.
#[expect(unsafe_code, reason = "the hook has the C library's name, so that all calls come here")]
// SAFETY: has the signature of the C library's function, and calls that function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_clockrdlock(
    lock: *mut pthread_rwlock_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    let real = CLOCKREAD.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller meets its requirements.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, RwLockClockLockFn>(real);
        let tried = if is_supported(clock) { libc::pthread_rwlock_tryrdlock(lock) } else { libc::EBUSY };
        acquire(Kind::RwLockRead, tried, || real(lock, clock, until))
    }
}

/// Behaves as POSIX specifies.
///
/// # Safety
/// As POSIX specifies.
#[expect(unsafe_code, reason = "the hook has the C library's name, so that all calls come here")]
// SAFETY: has the signature of the C library's function, and calls that function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_wrlock(lock: *mut pthread_rwlock_t) -> c_int {
    let real = WRITE.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller meets its requirements.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, RwLockLockFn>(real);
        let tried = libc::pthread_rwlock_trywrlock(lock);
        acquire(Kind::RwLockWrite, tried, || real(lock))
    }
}

/// Behaves as POSIX specifies.
///
/// # Safety
/// As POSIX specifies.
#[expect(unsafe_code, reason = "the hook has the C library's name, so that all calls come here")]
// SAFETY: has the signature of the C library's function, and calls that function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_timedwrlock(lock: *mut pthread_rwlock_t, until: *const timespec) -> c_int {
    let real = TIMEDWRITE.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller meets its requirements.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, RwLockTimedLockFn>(real);
        let tried = libc::pthread_rwlock_trywrlock(lock);
        acquire(Kind::RwLockWrite, tried, || real(lock, until))
    }
}

/// Behaves as POSIX specifies.
///
/// # Safety
/// As POSIX specifies.
#[expect(unsafe_code, reason = "the hook has the C library's name, so that all calls come here")]
// SAFETY: has the signature of the C library's function, and calls that function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_clockwrlock(
    lock: *mut pthread_rwlock_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    let real = CLOCKWRITE.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller meets its requirements.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, RwLockClockLockFn>(real);
        let tried = if is_supported(clock) { libc::pthread_rwlock_trywrlock(lock) } else { libc::EBUSY };
        acquire(Kind::RwLockWrite, tried, || real(lock, clock, until))
    }
}

/// Behaves as POSIX specifies.
///
/// # Safety
/// As POSIX specifies.
#[expect(unsafe_code, reason = "the hook has the C library's name, so that all calls come here")]
// SAFETY: has the signature of the C library's function, and calls that function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_wait(condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t) -> c_int {
    let real = WAIT.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller meets its requirements.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, ConditionWaitFn>(real);
        wait(|| real(condition, mutex))
    }
}

/// Behaves as POSIX specifies.
///
/// # Safety
/// As POSIX specifies.
#[expect(unsafe_code, reason = "the hook has the C library's name, so that all calls come here")]
// SAFETY: has the signature of the C library's function, and calls that function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_timedwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    until: *const timespec,
) -> c_int {
    let real = TIMEDWAIT.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller meets its requirements.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, ConditionTimedWaitFn>(real);
        wait(|| real(condition, mutex, until))
    }
}

/// Behaves as POSIX specifies.
///
/// # Safety
/// As POSIX specifies.
#[expect(unsafe_code, reason = "the hook has the C library's name, so that all calls come here")]
// SAFETY: has the signature of the C library's function, and calls that function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_clockwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    let real = CLOCKWAIT.address();
    #[expect(unsafe_code, reason = "an address from the C library")]
    // SAFETY: the C library's function of this name has this type, and the caller meets its requirements.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, ConditionClockWaitFn>(real);
        wait(|| real(condition, mutex, clock, until))
    }
}

/// Tries the mutex, unless it is robust. Returns the result of the try, or `EBUSY` for a robust mutex.
///
/// # Safety
/// As for `pthread_mutex_trylock` in POSIX.
#[inline(always)]
#[expect(clippy::inline_always, reason = "saves a call for each free lock")]
#[expect(unsafe_code, reason = "POSIX's function has no safe form")]
unsafe fn try_mutex(mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { if is_robust(mutex) { libc::EBUSY } else { libc::pthread_mutex_trylock(mutex) } }
}

/// Returns whether the mutex is robust, that is, reports the death of its owner.
///
/// # Safety
/// The mutex is initialised.
#[inline(always)]
#[expect(unsafe_code, reason = "a part of a type that libc keeps to itself")]
unsafe fn is_robust(mutex: *const pthread_mutex_t) -> bool {
    /// The bit for robust mutexes in glibc. In other C libraries, trying a robust mutex works.
    const ROBUST: c_int = 16;
    /// The index of the kind among the words of a mutex, after the lock, the count, the owner and the users. The
    /// static initialisers that programs are compiled with contain it, so it cannot move.
    const KIND: usize = 4;
    // SAFETY: a mutex has ten words on all 64-bit machines. Other threads may write this word at the same time, but
    // they do not change this bit.
    let kind = unsafe { AtomicI32::from_ptr(mutex.cast_mut().cast::<c_int>().add(KIND)) };
    cfg!(target_env = "gnu") && kind.load(Ordering::Relaxed) & ROBUST != 0
}

/// Returns whether the lock functions support the clock. They check the clock even if the lock is free.
fn is_supported(clock: clockid_t) -> bool {
    matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_MONOTONIC)
}

/// Counts the acquisition, and waits by calling `lock` if the try failed. Returns the result of the try or of `lock`.
/// This function is inlined, so that the calling hook is the innermost frame of the stack. `black_box` runs after the
/// call, so the compiler keeps that frame and its name on the stack. The same holds for `wait`.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the recorded frame must be the caller's")]
fn acquire(kind: Kind, tried: c_int, lock: impl FnOnce() -> c_int) -> c_int {
    if is_profiling() {
        count_acquisition(Family::Pthread);
    }
    match tried {
        0 | libc::EOWNERDEAD => tried,
        _ => black_box(timed(kind, lock)),
    }
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "the recorded frame must be the caller's")]
fn wait(wait: impl FnOnce() -> c_int) -> c_int {
    if is_profiling() {
        count_acquisition(Family::Pthread);
    }
    black_box(timed(Kind::Foreign, wait))
}
