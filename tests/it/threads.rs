//! CPU priority of klad's threads: requests before compactions.

use super::support::{Server, ServerBuilder, kernel, wait_until};

/// As documented: `nice` of threads that compact, and the time slice that a worker requests, nanoseconds.
const NICE: i32 = 19;
const SLICE_NS: u64 = 100_000;

/// The first kernel version that grants a requested time slice.
const KERNEL_WITH_SLICES: (u32, u32) = (6, 12);

/// What the kernel reports about a thread.
#[derive(Debug)]
struct Thread {
    nice: i32,
    /// The time slice, nanoseconds, if the kernel shows it.
    slice: Option<u64>,
}

/// Returns each thread whose name begins with `name`.
fn threads(server: &Server, name: &str) -> Vec<Thread> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.process())).unwrap().flatten();
    let read = |task: &std::fs::DirEntry, file: &str| std::fs::read_to_string(task.path().join(file)).ok();
    tasks
        .filter(|task| read(task, "comm").is_some_and(|found| found.starts_with(name)))
        .filter_map(|task| {
            let stat = read(&task, "stat")?;
            // From the third field on; the second is a name in parentheses.
            let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
            let nice = fields[16].parse().ok()?;
            let slice = read(&task, "sched").and_then(|shown| {
                let line = shown.lines().find(|line| line.starts_with("se.slice "))?;
                line.rsplit(' ').next()?.parse().ok()
            });
            Some(Thread { nice, slice })
        })
        .collect()
}

#[test]
fn compactions_have_low_cpu_priority_and_workers_have_short_time_slices() {
    let server = ServerBuilder::new("rocksdb").arg("--threads", "1").start();
    let mut client = server.client();
    assert_eq!(client.put("/v0/entity?id=k", b"v").status, 201);
    // RocksDB lowers the priority of a thread when it gets work.
    assert_eq!(server.ask_admin("POST", "/compact").status, 202);
    wait_until("compactions have low priority", || threads(&server, "rocksdb:low").iter().any(|one| one.nice == NICE));
    // Only threads of compactions have low priority. If flushes had it, klad would reject writes that wait for them.
    for name in ["klad-worker", "klad-commit", "klad-storage", "rocksdb:high"] {
        let all = threads(&server, name);
        assert!(!all.is_empty() && all.iter().all(|thread| thread.nice == 0), "{name}: {all:?}");
    }
    let slice = |name: &str| threads(&server, name)[0].slice;
    if kernel() >= KERNEL_WITH_SLICES && slice("klad-storage").is_some() {
        for asks in ["klad-worker", "klad-commit"] {
            wait_until("threads that serve requests have requested short slices", || slice(asks) == Some(SLICE_NS));
        }
        assert_ne!(slice("klad-storage"), Some(SLICE_NS), "twin: a thread without a request differs");
    }
}
