//! The handler of SIGPROF. It records the stack of the thread that it interrupts.
//!
//! ```text
//!   a timer on the thread's CPU time, session S ──▶ is S active?          ──▶ walk ──▶ ring of CPU samples
//!   profile::threads, capture C                 ──▶ is C still waiting?   ──▶ walk ──▶ ring of stacks
//!   any other sender                            ──▶ ignored
//! ```
//!
//! The first CPU profile or list of threads installs the handler. The handler stays installed: with the default action,
//! a signal that arrives after the end of a profile would end the process. Session 0 means that no session is active.
//!
//! The kernel restarts interrupted system calls (`SA_RESTART`), except those that it never restarts: `epoll_wait`,
//! `poll`, `nanosleep`, and reads from sockets with a timeout end with `EINTR`. std, tokio, RocksDB and klad handle
//! that. The handler runs on the stack of the interrupted thread. The alternative stack of Rust's threads (8 KiB) is
//! for stack overflow, and the kernel alone would use half of it for the registers of AVX-512.
//!
//! Called by `profile::cpu` and `profile::threads`.

#![expect(unsafe_code, reason = "the kernel passes pointers to a signal handler")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sampling::ring::Ring;
use crate::sampling::walk::{self, Stack};

/// The capacity of the ring of CPU samples. While the ring is full, further samples are lost, and counted. A core makes
/// at most one sample per tick: 12 in the 50 ms between two drains with the usual 250 ticks a second, or 50 with 1,000.
/// So the capacity is enough for 40 cores and more. The ring takes 2.1 MiB.
pub const SAMPLES_MAX: usize = 2048;

/// The capacity of the ring of answers to [`ask`]. `profile::threads` asks half as many threads at a time, and reads
/// the ring every millisecond while it waits for their answers. The ring takes 264 KiB.
pub const STACKS_MAX: usize = 256;

/// A sample of a thread that uses CPU time.
#[derive(Clone, Copy, Debug)]
pub struct CpuSample {
    /// The number of the session that started the timer.
    pub session: u64,
    /// The thread's name.
    pub thread: [u8; 16],
    /// The number of sampling periods that this sample stands for, at least 1.
    pub periods: u64,
    /// The thread's stack.
    pub stack: Stack,
}

/// A thread's answer to [`ask`].
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The number of the capture that asked.
    pub capture: u64,
    /// The number of the thread that answers.
    pub tid: i32,
    /// The thread's stack.
    pub stack: Stack,
}

static SESSION: AtomicU64 = AtomicU64::new(0);
static SAMPLES: OnceLock<Ring<CpuSample>> = OnceLock::new();
static CAPTURE: AtomicU64 = AtomicU64::new(0);
static ANSWERS: OnceLock<Ring<Answer>> = OnceLock::new();

/// Installs the handler at the first call.
///
/// # Errors
/// The system's error. After a failure, later calls return the same error without another attempt.
pub fn install() -> std::io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    // SAFETY: `handle` has the three arguments that SA_SIGINFO requires, and makes only async-signal-safe calls.
    let install = || unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        match libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut()) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        }
    };
    INSTALLED.get_or_init(install).map_err(std::io::Error::from_raw_os_error)
}

/// Returns the ring of CPU samples. The first call allocates it, and it is never freed.
pub fn samples() -> &'static Ring<CpuSample> {
    SAMPLES.get_or_init(|| Ring::new(SAMPLES_MAX))
}

/// Returns the ring of answers to [`ask`]. The first call allocates it, and it is never freed.
pub fn answers() -> &'static Ring<Answer> {
    ANSWERS.get_or_init(|| Ring::new(STACKS_MAX))
}

/// From now on the handler takes samples only for timers of session `session`. With 0 it takes none.
pub fn take_samples_of(session: u64) {
    SESSION.store(session, Ordering::SeqCst);
}

/// From now on the handler answers only requests of capture `capture`. With 0 it answers none.
pub fn take_answers_of(capture: u64) {
    CAPTURE.store(capture, Ordering::SeqCst);
}

/// Asks thread `tid` of this process for its stack. The thread puts its answer into the ring of [`answers`]. There is
/// no answer if the thread has blocked the signal, waits in the kernel uninterruptibly, or has another pending SIGPROF.
///
/// # Errors
/// `ESRCH` if the thread does not exist (any more); `EAGAIN` if too many signals are pending.
pub fn ask(tid: i32, capture: u64) -> std::io::Result<()> {
    // SAFETY: all zeros is a valid value: these are numbers.
    let mut information: SignalInformation = unsafe { std::mem::zeroed() };
    information.signal = libc::SIGPROF;
    information.code = libc::SI_QUEUE;
    information.value = capture;
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: `information` has the size that the kernel reads, and the fields that SI_QUEUE requires.
    let asked =
        unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, tid, libc::SIGPROF, &raw const information) };
    if asked == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// The kernel's `siginfo_t` on 64-bit machines, for `SI_TIMER` and `SI_QUEUE`. The C library does not name all of its
/// fields.
#[repr(C)]
struct SignalInformation {
    signal: i32,
    errno: i32,
    code: i32,
    unused: i32,
    /// The timer's number; for `SI_QUEUE`, the sender's process.
    timer_or_process: i32,
    /// The timer's overrun; for `SI_QUEUE`, the sender's user.
    overrun_or_user: i32,
    value: u64,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<SignalInformation>() == size_of::<libc::siginfo_t>());

extern "C" fn handle(_signal: i32, information: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes both pointers to a handler with SA_SIGINFO, and they are valid while it runs. All
    // bytes of the information exist for every code. `errno` belongs to this thread, and is restored.
    unsafe {
        let errno = *libc::__errno_location();
        let information = &*information.cast::<SignalInformation>();
        match information.code {
            libc::SI_TIMER => cpu_sample(information, context.cast()),
            libc::SI_QUEUE => answer(information, context.cast()),
            _ => {}
        }
        *libc::__errno_location() = errno;
    }
}

/// # Safety
/// The same as for [`Stack::of_context`].
unsafe fn cpu_sample(information: &SignalInformation, context: *const libc::ucontext_t) {
    let session = information.value;
    let Some(ring) = SAMPLES.get() else { return };
    if session == 0 || session != SESSION.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the caller's promise.
    let stack = unsafe { Stack::of_context(context) };
    let periods = 1 + u64::try_from(information.overrun_or_user).unwrap_or(0);
    ring.push(CpuSample { session, thread: walk::thread_name(), periods, stack });
}

/// # Safety
/// The same as for [`Stack::of_context`].
unsafe fn answer(information: &SignalInformation, context: *const libc::ucontext_t) {
    let capture = information.value;
    let Some(ring) = ANSWERS.get() else { return };
    if capture == 0 || capture != CAPTURE.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the caller's promise; `gettid` takes nothing and cannot fail.
    let (stack, tid) = unsafe { (Stack::of_context(context), libc::syscall(libc::SYS_gettid)) };
    ring.push(Answer { capture, tid: i32::try_from(tid).unwrap_or(0), stack });
}
