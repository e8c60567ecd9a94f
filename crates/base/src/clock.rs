//! The only module that reads a clock. All other code calls it, so that every use of time can be found.
//!
//! Called by every module that needs the time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Returns the monotonic time, for durations and deadlines.
#[must_use]
pub fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    Instant::now()
}

/// Returns the nanoseconds from `earlier` to `later`, or 0 if `later` is the earlier one. This avoids 128-bit
/// arithmetic, because it runs for each request.
#[must_use]
pub fn nanoseconds_between(earlier: Instant, later: Instant) -> u64 {
    let between = later.saturating_duration_since(earlier);
    between.as_secs() * 1_000_000_000 + u64::from(between.subsec_nanos())
}

/// Returns the wall-clock time in milliseconds since 1970, for expiry and for the versions of the memory engine. A
/// clock before 1970 reads 0.
#[must_use]
pub fn unix_ms() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the wall-clock time in nanoseconds since 1970, for start times. A clock before 1970 reads 0.
#[must_use]
pub fn unix_ns() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the length of the kernel's tick. Values that the kernel updates once per tick are not known more
/// precisely.
#[must_use]
#[cfg(target_os = "linux")]
pub fn kernel_tick() -> Duration {
    let tick = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
    Duration::from_nanos(u64::try_from(tick.tv_nsec).unwrap_or(0))
}

/// Returns the monotonic time in nanoseconds. All processes of this machine read the same clock, so records of
/// different processes can be compared.
#[must_use]
pub fn monotonic_ns() -> u64 {
    nanoseconds(rustix::time::ClockId::Monotonic)
}

/// Returns the CPU time that the calling thread has used, in nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(rustix::time::ClockId::ThreadCPUTime)
}

/// Returns the CPU time that all threads of the process have used, in nanoseconds.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    nanoseconds(rustix::time::ClockId::ProcessCPUTime)
}

fn nanoseconds(clock: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + nanoseconds.unwrap_or(0)
}
