//! What each thread of the process does now.

use std::time::Duration;

use super::Address;

/// A thread.
#[derive(Debug)]
pub struct Thread {
    /// Its number, as the kernel has it.
    pub tid: i32,
    /// As `top -H` shows it.
    pub name: String,
    /// `R` runs, `S` sleeps, `D` waits for a disk.
    pub state: char,
    /// That it has used since its start.
    pub cpu_time: Duration,
    /// The running function first; empty where it is not known.
    pub frames: Vec<Address>,
}

/// All of them.
#[must_use]
pub fn capture() -> Vec<Thread> {
    let Ok(tasks) = procfs::process::Process::myself().and_then(|own| own.tasks()) else { return Vec::new() };
    let ticks = procfs::ticks_per_second().max(1);
    let of_one = |task: procfs::process::Task| {
        let stat = task.stat().ok()?;
        let cpu_time = Duration::from_millis((stat.utime + stat.stime) * 1_000 / ticks);
        Some(Thread { tid: task.tid, name: stat.comm, state: stat.state, cpu_time, frames: Vec::new() })
    };
    tasks.filter_map(Result::ok).filter_map(of_one).collect()
}
