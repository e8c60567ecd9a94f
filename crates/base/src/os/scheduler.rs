//! What klad asks of the kernel's scheduler: short turns for the threads that carry requests.
//!
//! ```text
//!   as threads have it (1 to 3 ms):  ──flush──────────────────▶│──worker──▶    an event waits for the end of the turn
//!   0.1 ms for the worker:           ──flush──▶│──worker──▶│──flush──▶         it takes the core at once
//! ```
//!
//! Linux' scheduler promises each thread its share of a core, and chooses whose turn must end first; who asks for short ones is
//! nearer to that, and since 6.12 a thread that wakes up takes the core from one with a longer turn (`kernel/sched/fair.c`,
//! `PREEMPT_SHORT`), unless it has had more than its share. The share stays what it was, and nobody needs a privilege for it. Older kernels take the call and change
//! nothing. Between two that both ask, neither takes the core from the other: a worker that is told of new requests while a
//! batch is on its way waits until the commit thread sleeps, and has more of them to hand over
//! (docs/decisions/2026-11-24-short-turns-for-the-committer.md). Called by `server::worker`
//! and the strategies.

#![expect(unsafe_code, reason = "system calls that no library wraps")]

use std::time::Duration;

/// The shortest that the kernel takes. For workers alone and with RocksDB's threads on the same core, the latest answer in a thousand came after 4.6 ms
/// instead of 6.0 (docs/decisions/2026-11-21-tail.md).
const SLICE: Duration = Duration::from_micros(100);

/// Of the calling thread, if it is one of the ordinary kind; what cannot be had is left as it is.
pub fn shorten_turns() {
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
