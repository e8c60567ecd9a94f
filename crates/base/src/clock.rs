//! Reads the clocks. All code gets the time here, so that every use of time can be found. There are two exceptions:
//! `sampling::walk`, which must not allocate, and the timers of tokio.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Returns the monotonic time, for durations and deadlines.
#[must_use]
pub fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    Instant::now()
}

/// Returns the nanoseconds from `earlier` to `later`, or 0 if `later` comes first. It avoids the 128-bit arithmetic of
/// `Duration::as_nanos`, because klad calls it for each request.
#[must_use]
pub fn nanoseconds_between(earlier: Instant, later: Instant) -> u64 {
    let between = later.saturating_duration_since(earlier);
    between.as_secs() * 1_000_000_000 + u64::from(between.subsec_nanos())
}

/// Returns the wall-clock time in milliseconds since 1970, for times that people read or that klad stores, for the
/// expiry of values and of certificates, and for the versions of the memory engine. Returns 0 if the clock is set to a
/// time before 1970.
#[must_use]
pub fn unix_ms() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the wall-clock time in nanoseconds since 1970, for start times and for the timestamps of writes in
/// Cassandra. Returns 0 if the clock is set to a time before 1970.
#[must_use]
pub fn unix_ns() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the length of the kernel's tick. The kernel updates some values, such as the timers on a thread's CPU time,
/// only once per tick.
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
