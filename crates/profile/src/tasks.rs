//! The threads of this process, as listed by the kernel.
//!
//! Called by `cpu` and `threads`.

use std::ops::Range;
use std::time::Duration;

/// Reads a file of one thread. Returns `None` if it cannot be read, for example because the thread has ended.
fn file_of(tid: i32, name: &str) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/self/task/{tid}/{name}")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the numbers of all threads.
///
/// # Errors
/// The system's error if there is no `/proc`.
pub(super) fn all() -> std::io::Result<Vec<i32>> {
    let entries = std::fs::read_dir("/proc/self/task")?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Returns whether the thread accepts SIGPROF. jemalloc's background thread blocks all signals, and so does every new
/// thread until its first function begins.
pub(super) fn takes_sigprof(tid: i32) -> bool {
    let blocked = file_of(tid, "status").and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
        u64::from_str_radix(line.trim(), 16).ok()
    });
    blocked.is_some_and(|mask| mask & (1 << (rustix::process::Signal::PROF.as_raw() - 1)) == 0)
}

/// Returns the thread's name.
pub(super) fn name(tid: i32) -> Option<String> {
    file_of(tid, "comm").map(|name| name.trim_end_matches('\n').to_owned())
}

/// Returns the thread's state, as `ps` shows it, and the CPU time that it has used.
pub(super) fn state(tid: i32) -> Option<(char, Duration)> {
    let stat = file_of(tid, "stat")?;
    // The name is in parentheses, and may contain parentheses.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?.chars().next()?;
    // The value is in nanoseconds, if the kernel was built to count them.
    let exact = file_of(tid, "schedstat").and_then(|text| text.split_whitespace().next()?.parse().ok());
    let cpu_time = exact.map(Duration::from_nanos).or_else(|| {
        // The values are in ticks. After the state, user time is the eleventh field and system time the twelfth.
        let mut times = fields.skip(10).map_while(|ticks| ticks.parse::<u64>().ok());
        let ticks = times.next()?.saturating_add(times.next()?);
        Some(Duration::from_millis(ticks.saturating_mul(1000) / procfs::ticks_per_second().max(1)))
    })?;
    Some((state, cpu_time))
}

/// Returns the address ranges of the C library, where threads begin. In a statically linked program, this is the
/// whole program.
pub(super) fn c_library() -> Vec<Range<u64>> {
    let inside = (libc::getpid as *const ()).addr() as u64;
    let Ok(maps) = procfs::process::Process::myself().and_then(|own| own.maps()) else { return Vec::new() };
    let Some(of) = maps.iter().find(|map| (map.address.0..map.address.1).contains(&inside)) else { return Vec::new() };
    maps.iter().filter(|map| map.pathname == of.pathname).map(|map| map.address.0..map.address.1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_is_known() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(all().expect("there is /proc").contains(&own));
        assert!(takes_sigprof(own));
        assert_eq!(name(own).as_deref().map(str::len).map(|length| length > 0), Some(true));
        assert_eq!(state(own).map(|(state, _)| state), Some('R'));
        assert!(!takes_sigprof(i32::MAX) && name(i32::MAX).is_none() && state(i32::MAX).is_none());
    }
}
