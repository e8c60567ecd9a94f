//! A control group that holds a process to a share of a core, and is gone when dropped. Called by `overload`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Where control groups of version 1 and 2 are mounted.
const MOUNTS: &str = "/proc/mounts";

/// What is waited for until a group that has just lost its last process can be removed.
const REMOVAL_MAX: Duration = Duration::from_secs(5);

/// A group with a quota.
pub(crate) struct Quota {
    group: PathBuf,
}

impl Quota {
    /// Lets a group run for `share` of each `period`. An error says why none can be made here.
    pub(crate) fn new(name: &str, share: f64, period: Duration) -> Result<Quota> {
        let mounts = fs::read_to_string(MOUNTS).with_context(|| format!("cannot read {MOUNTS}"))?;
        let mut reasons = Vec::new();
        for (mount, version) in mounts_of(&mounts) {
            match Quota::at(&mount.join(name), version, share, period) {
                Ok(quota) => return Ok(quota),
                Err(error) => reasons.push(format!("{}: {error:#}", mount.display())),
            }
        }
        if reasons.is_empty() {
            bail!("no control group hierarchy with the cpu controller is mounted");
        }
        bail!("{}", reasons.join("; "))
    }

    fn at(group: &Path, version: Version, share: f64, period: Duration) -> Result<Quota> {
        let period_us = period.as_micros();
        let quota_us = period.mul_f64(share).as_micros();
        fs::create_dir(group).context("cannot make a group")?;
        // From here on dropped, hence removed.
        let quota = Quota { group: group.to_owned() };
        let set =
            |file: &str, text: String| fs::write(group.join(file), text).with_context(|| format!("cannot set {file}"));
        match version {
            Version::One => {
                set("cpu.cfs_period_us", period_us.to_string())?;
                set("cpu.cfs_quota_us", quota_us.to_string())?;
            }
            Version::Two => set("cpu.max", format!("{quota_us} {period_us}"))?,
        }
        Ok(quota)
    }

    /// Moves a process in, with all its threads.
    pub(crate) fn hold(&self, pid: u32) -> Result<()> {
        fs::write(self.group.join("cgroup.procs"), pid.to_string()).context("cannot move a process into its group")
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // Processes that have just ended leave a moment later.
        let begun = Instant::now();
        while fs::remove_dir(&self.group).is_err() && self.group.exists() && begun.elapsed() < REMOVAL_MAX {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Hierarchies that may have the cpu controller. Version 2 says only in use whether it has.
fn mounts_of(mounts: &str) -> Vec<(PathBuf, Version)> {
    let hierarchy = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, mount, kind, options, ..] = fields[..] else { return None };
        match kind {
            "cgroup" if options.split(',').any(|option| option == "cpu") => Some((mount.into(), Version::One)),
            "cgroup2" => Some((mount.into(), Version::Two)),
            _ => None,
        }
    };
    mounts.lines().filter_map(hierarchy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_with_the_cpu_controller_are_found() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let expected = [("/sys/fs/cgroup/cpu".into(), Version::One), ("/sys/fs/cgroup/unified".into(), Version::Two)];
        assert_eq!(mounts_of(mounts), expected);
        assert!(mounts_of("proc /proc proc rw 0 0\n").is_empty());
    }
}
