//! The handler of SIGPROF: where is this thread?
//!
//! ```text
//!   a timer on its CPU time, session S ──▶ is S being taken?   ──▶ walk ──▶ ring of CPU samples
//!   profile::threads, capture C        ──▶ is C being waited for? ──▶ walk ──▶ ring of stacks
//!   anybody else                       ──▶ nothing
//! ```
//!
//! The handler is installed with the first profile and stays for ever: a signal that was on its way when a profile ended
//! would end the process if its action were the default one again. Session 0 is nobody's: off.
//!
//! System calls are begun again (`SA_RESTART`), but for those that never are: `epoll_wait`, `poll`, `nanosleep`, and reads from
//! sockets with a timeout end with `EINTR`; std, tokio, RocksDB and klad go on with them. The handler runs on the stack that
//! it finds. The alternative one of Rust's threads (8 KiB) is for stack overflow, and with the registers of AVX-512 the kernel
//! alone would take half of it.
//!
//! Called by `profile::cpu` and `profile::threads`.

#![expect(unsafe_code, reason = "a signal handler is given pointers by the kernel")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sampling::ring::Ring;
use crate::sampling::walk::{self, Stack};

/// CPU samples that wait to be added up; more are lost, and counted. They come at most once in a tick for each core, so in the
/// 50 ms between two looks 12 for each core at the usual 250 Hz, 50 at 1,000 Hz: room for 40 cores and more. 2.2 MiB.
pub const SAMPLES_MAX: usize = 2048;

/// Stacks of threads that were asked for and wait to be read, in steps of 20 ms or less. 270 KiB.
pub const STACKS_MAX: usize = 256;

/// A thread was seen using CPU time.
#[derive(Clone, Copy, Debug)]
pub struct CpuSample {
    /// Which session's timer it was.
    pub session: u64,
    /// The thread's name.
    pub thread: [u8; 16],
    /// Periods that it stands for, at least 1.
    pub periods: u64,
    /// Where it was.
    pub stack: Stack,
}

/// A thread's answer to [`ask`].
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Which capture asked.
    pub capture: u64,
    /// Who answers.
    pub tid: i32,
    /// Where it was.
    pub stack: Stack,
}

static SESSION: AtomicU64 = AtomicU64::new(0);
static SAMPLES: OnceLock<Ring<CpuSample>> = OnceLock::new();
static CAPTURE: AtomicU64 = AtomicU64::new(0);
static ANSWERS: OnceLock<Ring<Answer>> = OnceLock::new();

/// Installs the handler, once.
///
/// # Errors
/// What the system says; it was tried once, and is not tried again.
pub fn install() -> std::io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    // SAFETY: `handle` is a handler of three arguments, as SA_SIGINFO says, and does only what a handler may do.
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

/// CPU samples; its memory is taken with the first profile, and kept.
pub fn samples() -> &'static Ring<CpuSample> {
    SAMPLES.get_or_init(|| Ring::new(SAMPLES_MAX))
}

/// Answers to [`ask`]; its memory is taken with the first capture, and kept.
pub fn answers() -> &'static Ring<Answer> {
    ANSWERS.get_or_init(|| Ring::new(STACKS_MAX))
}

/// From now on timers of `session` count, and no others; 0: none do.
pub fn take_samples_of(session: u64) {
    SESSION.store(session, Ordering::SeqCst);
}

/// From now on answers of `capture` are taken, and no others; 0: none are.
pub fn take_answers_of(capture: u64) {
    CAPTURE.store(capture, Ordering::SeqCst);
}

/// Asks thread `tid` of this process for its stack: it answers in the ring, unless it has blocked the signal, or waits in the
/// kernel for what no signal ends, or has another SIGPROF that it has not yet taken.
///
/// # Errors
/// `ESRCH` when there is no such thread (any more); `EAGAIN` when too many signals wait.
pub fn ask(tid: i32, capture: u64) -> std::io::Result<()> {
    // SAFETY: all zeros is a valid value: these are numbers.
    let mut information: SignalInformation = unsafe { std::mem::zeroed() };
    information.signal = libc::SIGPROF;
    information.code = libc::SI_QUEUE;
    information.value = capture;
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: `information` is as large as the kernel reads, and filled as it must be for SI_QUEUE.
    let asked =
        unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, tid, libc::SIGPROF, &raw const information) };
    if asked == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// The kernel's `siginfo_t` on 64-bit machines, for `SI_TIMER` and `SI_QUEUE`; the C library has no names for all of it.
#[repr(C)]
struct SignalInformation {
    signal: i32,
    errno: i32,
    code: i32,
    unused: i32,
    /// The timer's number; of `SI_QUEUE`: the sender's process.
    timer_or_process: i32,
    /// The timer's overrun; of `SI_QUEUE`: the sender's user.
    overrun_or_user: i32,
    value: u64,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<SignalInformation>() == size_of::<libc::siginfo_t>());

extern "C" fn handle(_signal: i32, information: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO both, for as long as it runs; of the information all bytes are there
    // whatever the code is. `errno` is this thread's, and is put back.
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
/// As [`Stack::of_context`].
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
/// As [`Stack::of_context`].
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
