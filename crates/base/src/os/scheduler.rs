//! Requests shorter scheduler time slices for the threads that serve requests, so that they get a core soon. Counts the
//! sleeps of a thread.
//!
//! ```text
//!   default slices (1 to 3 ms):   ──flush──────────────────▶│──worker──▶    events wait for the end of the slice
//!   0.1 ms for the worker:        ──flush──▶│──worker──▶│──flush──▶         the worker gets the core at once
//! ```
//!
//! The Linux scheduler gives each thread its share of a core and runs the thread with the earliest virtual deadline.
//! A shorter time slice makes that deadline earlier. Since Linux 6.12 a thread that wakes up also preempts a running
//! thread with a longer slice (`kernel/sched/fair.c`, `PREEMPT_SHORT`), unless the woken thread has used more than its
//! share. A shorter slice does not change the share, and requesting it needs no privilege. Older kernels accept the
//! request and change nothing.
//!
//! Two threads that both have short slices do not preempt each other. A worker that receives new requests during a
//! commit therefore waits until the commit thread sleeps, and then hands over a larger batch
//! (docs/decisions/tail-latency.md). Called by the workers and the execution strategies of `klad-server`.

#![expect(unsafe_code, reason = "system calls that no library wraps")]

use std::time::Duration;

/// The length of the requested time slices, the shortest that the kernel accepts. When only the worker had this length,
/// and RocksDB's threads ran on the same core, p99.9 was 4.6 ms instead of 6.0 ms (docs/decisions/tail-latency.md).
const SLICE: Duration = Duration::from_micros(100);

/// Requests the shortest time slices for the calling thread, if it has the default scheduling policy. If the kernel
/// rejects the request, the thread keeps its time slices.
pub fn shorten_time_slices() {
    if let Err(error) = try_shorten() {
        tracing::debug!(%error, "the kernel rejected shorter time slices; this thread keeps the default ones");
    }
}

/// Returns how often the calling thread has slept so far: waited for something other than a core.
#[cfg(target_os = "linux")]
#[must_use]
pub fn thread_sleeps() -> u64 {
    // SAFETY: all zeros is a valid value: these are numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes the whole variable.
    let read = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    assert_eq!(read, 0, "the kernel knows the calling thread");
    usage.ru_nvcsw.cast_unsigned()
}

/// Returns a different number at each call, as if the calling thread had always slept, because this system does not
/// count sleeps.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn thread_sleeps() -> u64 {
    static CALLS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
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
        // Another policy was chosen on purpose.
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
