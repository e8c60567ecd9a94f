//! What klad asks of the kernel's scheduler: short turns for those who carry requests, and what others leave for those who do not.
//!
//! ```text
//!   as threads have it (1 to 3 ms):  ──flush──────────────────▶│──worker──▶    an event waits for the end of the turn
//!   0.1 ms for the worker:           ──flush──▶│──worker──▶│──flush──▶         it takes the core at once
//! ```
//!
//! *Short turns.* Linux' scheduler promises each thread its share of a core, and chooses whose turn must end first; who asks for short ones is
//! nearer to that, and since 6.12 a thread that wakes up takes the core from one with a longer turn (`kernel/sched/fair.c`,
//! `PREEMPT_SHORT`), unless it has had more than its share. The share stays what it was, and nobody needs a privilege for it. Older kernels take the call and change
//! nothing. Between two that both ask, neither takes the core from the other: a worker that is told of new requests while a
//! batch is on its way waits until the commit thread sleeps, and has more of them to hand over
//! (docs/decisions/2026-11-24-short-turns-for-the-committer.md). Called by `server::worker` and `execution::adaptive`.
//!
//! *What others leave* (`SCHED_IDLE`). Whoever else wakes up takes the core at once, whatever it has had. Such a thread has a three-hundredth of a core that
//! is wanted all the time, so somebody has to look after it: `storage::background` does.

#![expect(unsafe_code, reason = "system calls that no library wraps")]

use std::time::Duration;

/// The shortest that the kernel takes. For workers alone and with RocksDB's threads on the same core, the latest answer in a thousand came after 4.6 ms
/// instead of 6.0 (docs/decisions/2026-11-21-tail.md).
const SLICE: Duration = Duration::from_micros(100);

/// Of the calling thread, if it is one of the ordinary kind; what cannot be had is left as it is.
pub(crate) fn shorten_turns() {
    if let Err(error) = try_shorten() {
        tracing::debug!(%error, "a thread keeps the scheduler's usual turns");
    }
}

#[cfg(target_os = "linux")]
fn try_shorten() -> std::io::Result<()> {
    const SELF: libc::pid_t = 0;
    const NO_FLAGS: libc::c_uint = 0;
    let size = u32::try_from(size_of::<libc::sched_attr>()).expect("some bytes");
    // SAFETY: all zeros is a valid value: these are numbers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes `size` bytes at most, which the variable has.
    if unsafe { libc::syscall(libc::SYS_sched_getattr, SELF, &raw mut attributes, size, NO_FLAGS) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    if attributes.sched_policy != libc::SCHED_OTHER.cast_unsigned() {
        // Whoever has chosen another knows why.
        return Ok(());
    }
    attributes.size = size;
    attributes.sched_runtime = u64::try_from(SLICE.as_nanos()).expect("short");
    // SAFETY: the kernel reads `size` bytes, which the variable has.
    if unsafe { libc::syscall(libc::SYS_sched_setattr, SELF, &raw const attributes, NO_FLAGS) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn try_shorten() -> std::io::Result<()> {
    Ok(())
}

/// How a thread comes to its turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// By its weight, as threads do (`SCHED_OTHER`).
    #[cfg_attr(
        not(any(feature = "rocksdb", feature = "fjall")),
        expect(dead_code, reason = "threads of engines go back")
    )]
    Ordinary,
    /// When nobody else wants the core (`SCHED_IDLE`).
    Leftovers,
}

/// Of one thread of this process. To less anybody may go; back from it needs `CAP_SYS_NICE`, or an `RLIMIT_NICE` that allows
/// the thread's `nice` value (sched(7)).
///
/// # Errors
/// The kernel's: no such thread any more, or not allowed.
#[cfg(target_os = "linux")]
pub(crate) fn set_policy(thread: rustix::process::Pid, policy: Policy) -> std::io::Result<()> {
    let policy = match policy {
        Policy::Ordinary => libc::SCHED_OTHER,
        Policy::Leftovers => libc::SCHED_IDLE,
    };
    let parameters = libc::sched_param { sched_priority: 0 };
    // The system call, as not every C library has a function for it.
    // SAFETY: the kernel reads the parameters, and nothing else of this process.
    if unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, thread.as_raw_nonzero().get(), policy, &raw const parameters)
    } != 0
    {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// Whether the calling thread has the policy that threads have unless somebody chooses another for them.
#[cfg(target_os = "linux")]
#[cfg_attr(not(any(feature = "rocksdb", feature = "fjall")), expect(dead_code, reason = "threads of engines go back"))]
pub(crate) fn is_ordinary() -> bool {
    const SELF: libc::pid_t = 0;
    // SAFETY: it looks, and writes nothing.
    unsafe { libc::syscall(libc::SYS_sched_getscheduler, SELF) == libc::c_long::from(libc::SCHED_OTHER) }
}

/// There is no such thing.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub(crate) fn set_policy(_: rustix::process::Pid, _: Policy) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}
