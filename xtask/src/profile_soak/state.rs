//! What a process holds, and whether that grows. Called by `profile_soak`.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::process::Pid;

use crate::text::mebibytes;

/// Resident memory may grow by so much from the second run to the last: memtables fill and are written out, and what profiles
/// need is kept from the first on. Twenty runs of a profiler that leaks 1 KiB with each of 3,000 profiles are 57 MiB.
const GROWTH_MAX: u64 = 32 << 20;

/// What a process holds at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Threads.
    pub(crate) threads: u64,
    /// Open files but those of the data directory, whose number is the store's affair.
    pub(crate) descriptors: u64,
    /// POSIX timers; `None` where the kernel does not tell.
    pub(crate) timers: Option<u64>,
    /// Bytes.
    pub(crate) resident: u64,
}

impl State {
    /// Of `pid`, whose data is below `data`.
    pub(crate) fn read(pid: Pid, data: &Path) -> Result<State> {
        let process = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
        let status = fs::read_to_string(process.join("status")).context("the process is not there any more")?;
        let mut descriptors = 0;
        for entry in fs::read_dir(process.join("fd"))? {
            // One that was closed since.
            let Ok(file) = fs::read_link(entry?.path()) else { continue };
            descriptors += u64::from(!file.starts_with(data));
        }
        let timers = fs::read_to_string(process.join("timers")).ok();
        Ok(State {
            threads: field(&status, "Threads:").context("no threads")?,
            descriptors,
            timers: timers.map(|text| text.lines().filter(|line| line.starts_with("ID:")).count() as u64),
            resident: field(&status, "VmRSS:").context("no resident memory")? << 10,
        })
    }

    /// For a line of the report.
    pub(crate) fn words(&self) -> String {
        let State { threads, descriptors, timers, resident } = self;
        let timers = timers.map_or_else(|| "unknown".to_owned(), |timers| timers.to_string());
        format!("threads {threads}, descriptors {descriptors}, timers {timers}, resident {}", mebibytes(*resident))
    }
}

/// A number of `/proc/PID/status`.
fn field(status: &str, name: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// What has grown from run to run of one process, in words.
pub(crate) fn growth(states: &[State]) -> Vec<String> {
    let (Some(first), Some(last)) = (states.first(), states.last()) else { return Vec::new() };
    let mut grown = Vec::new();
    let mut compare = |what: &str, before: u64, after: u64| {
        if after > before {
            grown.push(format!("{what}: {before} after the first run, {after} after the last"));
        }
    };
    compare("threads", first.threads, last.threads);
    compare("descriptors", first.descriptors, last.descriptors);
    compare("timers", first.timers.unwrap_or_default(), last.timers.unwrap_or_default());
    let base = states.get(1).unwrap_or(first).resident;
    if last.resident > base + GROWTH_MAX {
        let (before, after) = (mebibytes(base), mebibytes(last.resident));
        grown.push(format!("resident memory: {before} after the second run, {after} after the last"));
    }
    grown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_growth_is_noticed() {
        let state = State { threads: 10, descriptors: 20, timers: Some(0), resident: 100 << 20 };
        assert!(growth(&[state; 20]).is_empty());
        assert!(growth(&[State { threads: 12, ..state }, state]).is_empty(), "less is no growth");
        for leaking in [
            State { threads: 11, ..state },
            State { descriptors: 21, ..state },
            State { timers: Some(1), ..state },
            State { resident: (100 << 20) + GROWTH_MAX + 1, ..state },
        ] {
            assert_eq!(growth(&[state, state, leaking]).len(), 1, "{leaking:?}");
        }
    }

    #[test]
    fn the_own_process_has_a_state() {
        let state = State::read(rustix::process::getpid(), Path::new("/nowhere")).expect("read");
        assert!(state.threads > 0 && state.descriptors > 2 && state.resident > 0, "{state:?}");
    }
}
