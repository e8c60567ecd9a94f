//! A process that ends by itself: waited for within a bound, its CPU time read, and never left behind.
//!
//! Called by the chores that measure `klad bench`; `klad` has the process that is told to stop.

use std::fs;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};

/// Length of a tick of CPU time in /proc: `USER_HZ`, which is 100 on every architecture that klad knows.
const TICK: Duration = Duration::from_millis(10);

/// A running process; dropping it kills it.
pub(crate) struct Running {
    child: Child,
    /// Readable when the process has ended.
    pidfd: OwnedFd,
    started: Instant,
}

/// A process that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// How.
    pub(crate) status: ExitStatus,
    /// CPU time of all its threads, user and system, in steps of 10 ms.
    pub(crate) cpu: Duration,
    /// From its start to its end.
    pub(crate) wall: Duration,
}

impl Running {
    /// Starts it.
    pub(crate) fn start(command: &mut Command) -> Result<Running> {
        let started = Instant::now();
        let mut child = command.spawn().with_context(|| format!("cannot run {}", command.get_program().display()))?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Running { child, pidfd, started }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error).context("cannot watch a process")
            }
        }
    }

    /// Waits for its end; a process that is still there `wall_max` after its start is killed, and an error.
    pub(crate) fn wait(mut self, wall_max: Duration) -> Result<Ended> {
        loop {
            let left = Timespec::try_from(wall_max.saturating_sub(self.started.elapsed()))?;
            match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&left)) {
                Ok(0) => bail!("a process has not ended in {wall_max:?}"),
                Err(Errno::INTR) => {}
                ended => break ended.map(drop)?,
            }
        }
        let wall = self.started.elapsed();
        // Before `wait`: a process that is waited for has no entry in /proc any more.
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let cpu = parse_cpu(&stat).with_context(|| format!("{path} says nothing about CPU time"))?;
        Ok(Ended { status: self.child.wait()?, cpu, wall })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both do nothing when it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// User and system time of the whole process, fields 14 and 15 of `proc_pid_stat(5)`. The name before them may hold spaces
/// and parentheses.
fn parse_cpu(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some(TICK * ticks()?.checked_add(ticks()?)?)
}

/// CPU time of a running process so far: of all its threads that there are, to the nanosecond where the kernel keeps it. What
/// threads have used that have ended since is missing, so a difference is good only of processes that keep theirs.
pub(crate) fn cpu_of(pid: Pid) -> Result<Duration> {
    let path = format!("/proc/{}/task", pid.as_raw_nonzero());
    let mut nanoseconds = 0;
    for task in fs::read_dir(&path).with_context(|| format!("cannot list {path}"))? {
        let path = task?.path().join("schedstat");
        // One that has ended since.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let first = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        nanoseconds += first.with_context(|| format!("{} says nothing about CPU time", path.display()))?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// Connections are descriptors; the processes that are started from now on inherit the limit.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // When even the hard limit is too low, opening a connection says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_after_any_name() {
        let stat = "42 (a ) b) R 1 42 42 0 -1 4194304 100 0 0 0 250 50 7 7 20 0 2 0 100 1000 10 0\n";
        assert_eq!(parse_cpu(stat), Some(Duration::from_secs(3)));
        assert_eq!(parse_cpu("42 (a) R 1"), None);
    }

    #[test]
    fn the_cpu_time_of_a_running_process_grows() {
        let own = rustix::process::getpid();
        let before = cpu_of(own).expect("known");
        let mut number = 1_u64;
        while cpu_of(own).expect("known") < before + Duration::from_millis(1) {
            number = std::hint::black_box(number.wrapping_mul(31));
        }
    }

    #[test]
    fn a_process_that_ends_is_waited_for() {
        let ended = Running::start(Command::new("sh").args(["-c", "exit 3"])).expect("started");
        assert_eq!(ended.wait(Duration::from_mins(1)).expect("ended").status.code(), Some(3));
    }

    #[test]
    fn a_process_that_does_not_end_is_killed() {
        let running = Running::start(Command::new("sleep").arg("60")).expect("started");
        let process = format!("/proc/{}", running.child.id());
        assert!(running.wait(Duration::ZERO).is_err());
        assert!(!fs::exists(process).expect("known"), "it is still there");
    }
}
