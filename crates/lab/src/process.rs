//! Processes of an experiment: started on their cores, waited for within a time, and never left behind. Called by `server` and
//! `load`.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use procfs::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::result::CoresUsed;
use crate::scenario::Pin;
use klad_base::clock;
use klad_base::sync::spawn_thread;
use klad_bench::interrupt::{Companion, Watch};

/// A process; dropping it kills it.
#[derive(Debug)]
pub struct RunningProcess {
    child: Child,
    /// Readable when it has ended.
    pidfd: OwnedFd,
    _companion: Companion,
}

/// Half of the cores for the server, the other for the load; none where there is one only, or where nobody is to be pinned.
#[must_use]
pub fn split_cores(pin: Pin) -> Option<CoresUsed> {
    let allowed = sched_getaffinity(None).ok().filter(|_| pin == Pin::Split)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let (server, load) = cores.split_at(cores.len() / 2);
    (!server.is_empty()).then(|| CoresUsed { server: server.to_vec(), load: load.to_vec() })
}

impl RunningProcess {
    /// Starts it on `cores`, or anywhere when there are none. It has no terminal to be interrupted from: that is for klad lab to
    /// decide.
    pub fn start(mut command: Command, cores: &[usize], watch: &Watch) -> anyhow::Result<RunningProcess> {
        let name = command.get_program().display().to_string();
        command.stdin(Stdio::null()).process_group(0);
        let cores = cores.to_vec();
        // What a thread starts keeps to its cores.
        let started = spawn_thread("klad-lab-start", move || -> anyhow::Result<Child> {
            if !cores.is_empty() {
                let mut only = CpuSet::new();
                for core in cores {
                    only.set(core);
                }
                sched_setaffinity(None, &only).context("cannot keep to its cores")?;
            }
            Ok(command.spawn()?)
        });
        let mut child =
            started.join().expect("a panic ends the process").with_context(|| format!("cannot run {name}"))?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(RunningProcess { _companion: watch.companion(Pid::from_child(&child)), child, pidfd }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error).context("cannot watch a process")
            }
        }
    }

    /// How it has ended, if it does within `time`.
    pub fn wait(&mut self, time: Duration) -> anyhow::Result<Option<ExitStatus>> {
        let deadline = clock::now() + time;
        loop {
            let left = Timespec::try_from(deadline.saturating_duration_since(clock::now()))?;
            match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Ok(None),
                Err(Errno::INTR) => {}
                ended => {
                    ended?;
                    return Ok(Some(self.child.wait()?));
                }
            }
        }
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: Signal) {
        // One that has ended needs none.
        let _ = kill_process(self.pid(), signal);
    }

    /// The process.
    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// CPU time of all its threads so far, in steps of 10 ms.
    pub(super) fn cpu(&self) -> Option<Duration> {
        let stat = self.process()?.stat().ok()?;
        let ticks = u32::try_from(stat.utime.checked_add(stat.stime)?).ok()?;
        Some(Duration::from_secs(1) / u32::try_from(procfs::ticks_per_second()).ok()? * ticks)
    }

    /// The largest resident set that it ever had, bytes.
    pub(super) fn memory_max(&self) -> Option<u64> {
        Some(self.process()?.status().ok()?.vmhwm? * 1024)
    }

    fn process(&self) -> Option<Process> {
        Process::new(i32::try_from(self.child.id()).ok()?).ok()
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        // Both do nothing when it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How long something took.
pub(super) fn since(begin: Instant) -> Duration {
    clock::now().saturating_duration_since(begin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use klad_bench::interrupt::watch;

    fn shell(script: &str, cores: &[usize]) -> RunningProcess {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        RunningProcess::start(command, cores, &watch().expect("signals")).expect("started")
    }

    #[test]
    fn what_ends_is_waited_for_and_what_does_not_is_killed() {
        let status = shell("exit 3", &[]).wait(Duration::from_mins(1)).expect("waited");
        assert_eq!(status.and_then(|status| status.code()), Some(3));
        let mut sleeping = shell("exec sleep 60", &[]);
        assert!(sleeping.wait(Duration::ZERO).expect("waited").is_none());
        let process = format!("/proc/{}", sleeping.child.id());
        drop(sleeping);
        assert!(!std::fs::exists(process).expect("known"), "it is still there");
    }

    #[test]
    fn a_process_keeps_to_its_cores() {
        let cores = split_cores(Pin::Split);
        let Some(CoresUsed { server, load }) = cores else { return };
        assert!(!server.is_empty() && server.iter().all(|core| !load.contains(core)), "{server:?} {load:?}");
        let one = [load[0]];
        let mut running = shell("read -r x < /dev/null; exec sleep 60", &one);
        let of = sched_getaffinity(Some(Pid::from_child(&running.child))).expect("known");
        assert!(of.count() == 1 && of.is_set(one[0]));
        running.signal(Signal::TERM);
        assert!(running.wait(Duration::from_mins(1)).expect("waited").is_some_and(|status| !status.success()));
    }

    #[test]
    fn its_cpu_time_and_memory_are_known() {
        let mut running = shell("while :; do :; done", &[]);
        while running.cpu().expect("known") < Duration::from_millis(20) {
            assert!(running.wait(Duration::from_millis(5)).expect("waited").is_none());
        }
        assert!(running.memory_max().expect("known") > 100_000);
    }
}
