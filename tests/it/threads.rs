//! Who of klad's threads goes first on a core: requests before flushes and compactions.

use std::os::unix::fs::chown;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::support::rights::{USER, reachable};
use super::support::{Server, ServerBuilder, kernel, wait_until};

/// As the documents say: `nice` of RocksDB's threads, and what a worker asks for, nanoseconds.
const NICE: i32 = 10;
const SLICE_NS: u64 = 100_000;

/// Scheduling policies (Linux, `include/uapi/linux/sched.h`).
const SCHED_OTHER: u32 = 0;
const SCHED_IDLE: u32 = 5;

/// Since then a slice that a thread asks for is one that it gets.
const KERNEL_WITH_SLICES: (u32, u32) = (6, 12);

/// What the kernel says of a thread.
#[derive(Debug)]
struct Thread {
    nice: i32,
    policy: u32,
    /// Where the kernel shows it, nanoseconds.
    slice: Option<u64>,
}

/// Each thread whose name begins so.
fn threads(server: &Server, name: &str) -> Vec<Thread> {
    threads_of(server.process(), name)
}

fn threads_of(process: u32, name: &str) -> Vec<Thread> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let read = |task: &std::fs::DirEntry, file: &str| std::fs::read_to_string(task.path().join(file)).ok();
    tasks
        .filter(|task| read(task, "comm").is_some_and(|found| found.starts_with(name)))
        .filter_map(|task| {
            let stat = read(&task, "stat")?;
            // From the third on; the second is a name in parentheses.
            let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
            let (nice, policy) = (fields[16].parse().ok()?, fields[38].parse().ok()?);
            let slice = read(&task, "sched").and_then(|shown| {
                let line = shown.lines().find(|line| line.starts_with("se.slice "))?;
                line.rsplit(' ').next()?.parse().ok()
            });
            Some(Thread { nice, policy, slice })
        })
        .collect()
}

/// Whether a thread that takes what others leave gets a weight back: a privilege, or a limit that a test is hardly ever given.
fn may_return() -> bool {
    const CAP_SYS_NICE: u64 = 1 << 23;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let nice = limits.lines().find_map(|line| line.strip_prefix("Max nice priority")).unwrap();
    let soft = nice.split_whitespace().next().unwrap();
    u64::from_str_radix(capabilities, 16).unwrap() & CAP_SYS_NICE != 0
        || soft == "unlimited"
        || soft.parse::<i32>().unwrap() >= 20 - NICE
}

#[test]
fn flushes_and_compactions_make_way_for_requests_and_workers_get_the_core_soon() {
    let server = ServerBuilder::new("rocksdb").arg("--threads", "1").start();
    for background in ["rocksdb:high", "rocksdb:low", "klad-shrink"] {
        wait_until("RocksDB's threads make way, and the one that cuts files", || {
            let all = threads(&server, background);
            !all.is_empty() && all.iter().all(|thread| thread.nice == NICE)
        });
    }
    // A server that has nothing to do leaves more than enough.
    let policy = if may_return() { SCHED_IDLE } else { SCHED_OTHER };
    for background in ["rocksdb:high", "rocksdb:low"] {
        wait_until("RocksDB's threads take what others leave, if they can have their weight again", || {
            threads(&server, background).iter().all(|thread| thread.policy == policy)
        });
    }
    for name in ["klad-worker", "klad-commit", "klad-storage", "klad-shrink"] {
        let all = threads(&server, name);
        assert!(!all.is_empty() && all.iter().all(|thread| thread.policy == SCHED_OTHER), "{name}: {all:?}");
    }
    // And nobody else: what is measured here tells them apart.
    for (name, nice) in [("klad-worker", 0), ("klad-commit", 0), ("klad-storage", 0)] {
        let all = threads(&server, name);
        assert!(!all.is_empty() && all.iter().all(|thread| thread.nice == nice), "{name}: {all:?}");
    }
    let slice = |name: &str| threads(&server, name)[0].slice;
    if kernel() >= KERNEL_WITH_SLICES && slice("klad-storage").is_some() {
        for asks in ["klad-worker", "klad-commit"] {
            wait_until("whoever carries requests has asked for short turns", || slice(asks) == Some(SLICE_NS));
        }
        assert_ne!(slice("klad-storage"), Some(SLICE_NS), "twin: a thread that has asked for nothing is told apart");
    }
}

/// A klad of a user's that has no privileges but those that are given; killed when dropped.
struct Limited {
    child: Child,
    /// Its data.
    _place: TempDir,
}

impl Limited {
    /// `before`: what starts the command that follows; `rights`: options of setpriv.
    fn start(before: &[&str], rights: &[&str]) -> Limited {
        let (place, program) = reachable();
        let data = place.path().join("data");
        std::fs::create_dir(&data).unwrap();
        chown(&data, Some(USER), Some(USER)).unwrap();
        let user = USER.to_string();
        // Each becomes the next.
        let words =
            [before, &["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"], rights, &["--"]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(&program);
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--disk-reserve", "1MiB"]);
        command.arg("--data").arg(&data).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
        let klad = Limited { child: command.stderr(Stdio::null()).spawn().unwrap(), _place: place };
        wait_until("it serves, with its files open", || {
            ["rocksdb:high", "rocksdb:low", "klad-worker"].iter().all(|name| !klad.threads(name).is_empty())
        });
        klad
    }

    fn threads(&self, name: &str) -> Vec<Thread> {
        threads_of(self.child.id(), name)
    }

    fn background(&self) -> Vec<Thread> {
        let all: Vec<Thread> =
            [self.threads("rocksdb:high"), self.threads("rocksdb:low")].into_iter().flatten().collect();
        assert!(!all.is_empty(), "klad has ended");
        all
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn threads_take_what_others_leave_where_they_may_have_their_weight_again() {
    if !rustix::process::geteuid().is_root() {
        // Only root becomes somebody else.
        return;
    }
    let takes_what_others_leave = |klad: &Limited| {
        wait_until("they take what others leave", || {
            klad.background().iter().all(|thread| (thread.nice, thread.policy) == (NICE, SCHED_IDLE))
        });
    };
    // Not every root has every privilege, or may raise a limit.
    let works = |words: &[&str]| {
        Command::new(words[0]).args(&words[1..]).arg("true").stderr(Stdio::null()).status().unwrap().success()
    };
    let privilege = ["--inh-caps", "+sys_nice", "--ambient-caps", "+sys_nice"];
    if works(&[&["setpriv"][..], &privilege].concat()) {
        takes_what_others_leave(&Limited::start(&[], &privilege));
    }
    // As in `deploy/klad.service` and docs/packages.md: a `nice` of 20 - 10.
    let limit = ["prlimit", "--nice=10:10"];
    if works(&limit) {
        takes_what_others_leave(&Limited::start(&limit, &[]));
    }
    let may_not = Limited::start(&["prlimit", "--nice=0:0"], &[]);
    wait_until("they have their weight, and nobody looks any more", || {
        may_not.background().iter().all(|thread| thread.nice == NICE) && may_not.threads("klad-background").is_empty()
    });
    let all = may_not.background();
    assert!(all.iter().all(|thread| thread.policy == SCHED_OTHER), "{all:?}");
}
