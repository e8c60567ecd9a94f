//! The only place that reads a clock. Everything else asks here, so that what depends on time can be found.
//!
//! Called by every module that needs the time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Monotonic time, for durations and deadlines.
#[must_use]
pub fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    Instant::now()
}

/// From `earlier` to `later` in nanoseconds; 0 where they are the other way round. Cheaper than by way of 128 bits, for the
/// path of a request.
#[must_use]
pub fn nanoseconds_between(earlier: Instant, later: Instant) -> u64 {
    let between = later.saturating_duration_since(earlier);
    between.as_secs() * 1_000_000_000 + u64::from(between.subsec_nanos())
}

/// Wall-clock time in milliseconds since 1970, for expiry and versions of the memory engine. A clock before 1970 reads 0.
#[must_use]
pub fn unix_ms() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// Wall-clock time in nanoseconds since 1970, for when something began. A clock before 1970 reads 0.
#[must_use]
pub fn unix_ns() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}

/// How long the kernel's tick is: what is looked at once in a tick is known no better than that.
#[must_use]
#[cfg(target_os = "linux")]
pub fn kernel_tick() -> Duration {
    let tick = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
    Duration::from_nanos(u64::try_from(tick.tv_nsec).unwrap_or(0))
}

/// The monotonic clock as every process of this machine reads it, nanoseconds: for records that are compared across
/// processes.
#[must_use]
pub fn monotonic_ns() -> u64 {
    nanoseconds(rustix::time::ClockId::Monotonic)
}

/// CPU time that the calling thread has used, nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(rustix::time::ClockId::ThreadCPUTime)
}

/// CPU time that all threads of the process have used, nanoseconds.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    nanoseconds(rustix::time::ClockId::ProcessCPUTime)
}

fn nanoseconds(clock: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + nanoseconds.unwrap_or(0)
}
