//! Processes of an experiment: started on their cores, waited for with a timeout, and killed when they are dropped.
//! Called by `server`, `load` and `runner`, and by the project's measurements (`xtask`).

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

/// A process. Dropping it kills it.
#[derive(Debug)]
pub struct RunningProcess {
    child: Child,
    /// Readable when the process has ended.
    pidfd: OwnedFd,
    _companion: Companion,
}

/// Returns one half of the cores for the server and the other for the load; `None` if there is only one core, or if
/// `pin` is [`Pin::None`].
#[must_use]
pub fn split_cores(pin: Pin) -> Option<CoresUsed> {
    let allowed = sched_getaffinity(None).ok().filter(|_| pin == Pin::Split)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let (server, load) = cores.split_at(cores.len() / 2);
    (!server.is_empty()).then(|| CoresUsed { server: server.to_vec(), load: load.to_vec() })
}

impl RunningProcess {
    /// Starts a process on `cores`, or on any core when they are empty. Ctrl-C in the terminal does not reach the
    /// process: klad lab decides when the process ends.
    ///
    /// # Errors
    /// When the program cannot be run, or cannot be kept to its cores.
    pub fn start(mut command: Command, cores: &[usize], watch: &Watch) -> anyhow::Result<RunningProcess> {
        let name = command.get_program().display().to_string();
        command.stdin(Stdio::null()).process_group(0);
        let cores = cores.to_vec();
        // A process inherits the cores of the thread that starts it.
        let started = spawn_thread("klad-lab-start", move || -> anyhow::Result<Child> {
            if !cores.is_empty() {
                let mut only = CpuSet::new();
                for core in cores {
                    only.set(core);
                }
                sched_setaffinity(None, &only).context("cannot pin it to its cores")?;
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

    /// Waits up to `time` for the end of the process. Returns its exit status, or `None` if it still runs.
    ///
    /// # Errors
    /// When the process cannot be waited for.
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

    /// Sends a signal.
    pub(super) fn signal(&self, signal: Signal) {
        // The process may have ended.
        let _ = kill_process(self.pid(), signal);
    }

    /// Returns the number of the process.
    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns the CPU time that all threads of the process have used so far, in steps of 10 ms.
    pub(super) fn cpu(&self) -> Option<Duration> {
        let stat = self.process()?.stat().ok()?;
        let ticks = u32::try_from(stat.utime.checked_add(stat.stime)?).ok()?;
        Some(Duration::from_secs(1) / u32::try_from(procfs::ticks_per_second()).ok()? * ticks)
    }

    /// Returns the largest resident set that the process has had, bytes; `None` if the process has ended.
    #[must_use]
    pub fn memory_max(&self) -> Option<u64> {
        Some(self.process()?.status().ok()?.vmhwm? * 1024)
    }

    /// Returns the number of bytes that the process has locked in memory; `None` if the process has ended.
    #[must_use]
    pub fn memory_locked(&self) -> Option<u64> {
        Some(self.process()?.status().ok()?.vmlck? * 1024)
    }

    fn process(&self) -> Option<Process> {
        Process::new(i32::try_from(self.child.id()).ok()?).ok()
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        // Both do nothing if the process has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the time since `begin`.
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
    fn a_process_is_waited_for_and_killed_when_it_is_dropped() {
        let status = shell("exit 3", &[]).wait(Duration::from_mins(1)).expect("waited");
        assert_eq!(status.and_then(|status| status.code()), Some(3));
        let mut sleeping = shell("exec sleep 60", &[]);
        assert!(sleeping.wait(Duration::ZERO).expect("waited").is_none());
        let process = format!("/proc/{}", sleeping.child.id());
        drop(sleeping);
        assert!(!std::fs::exists(process).expect("known"), "the process still runs");
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
    fn cpu_time_and_memory_of_a_process_are_known() {
        let mut running = shell("while :; do :; done", &[]);
        while running.cpu().expect("known") < Duration::from_millis(20) {
            assert!(running.wait(Duration::from_millis(5)).expect("waited").is_none());
        }
        assert!(running.memory_max().expect("known") > 100_000);
        assert_eq!(running.memory_locked(), Some(0));
    }
}
