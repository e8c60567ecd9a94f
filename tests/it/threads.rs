//! Who of klad's threads goes first on a core: requests before compactions.

use super::support::{Server, ServerBuilder, kernel, wait_until};

/// As the documents say: `nice` of the threads that compact, and what a worker asks for, nanoseconds.
const NICE: i32 = 19;
const SLICE_NS: u64 = 100_000;

/// Since then a slice that a thread asks for is one that it gets.
const KERNEL_WITH_SLICES: (u32, u32) = (6, 12);

/// What the kernel says of a thread.
#[derive(Debug)]
struct Thread {
    nice: i32,
    /// Where the kernel shows it, nanoseconds.
    slice: Option<u64>,
}

/// Each thread whose name begins so.
fn threads(server: &Server, name: &str) -> Vec<Thread> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.process())).unwrap().flatten();
    let read = |task: &std::fs::DirEntry, file: &str| std::fs::read_to_string(task.path().join(file)).ok();
    tasks
        .filter(|task| read(task, "comm").is_some_and(|found| found.starts_with(name)))
        .filter_map(|task| {
            let stat = read(&task, "stat")?;
            // From the third on; the second is a name in parentheses.
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
fn compactions_make_way_for_requests_and_workers_get_the_core_soon() {
    let server = ServerBuilder::new("rocksdb").arg("--threads", "1").start();
    let mut client = server.client();
    assert_eq!(client.put("/v0/entity?id=k", b"v").status, 201);
    // RocksDB lowers a thread when it has something to do.
    assert_eq!(server.ask_admin("POST", "/compact").status, 202);
    wait_until("compactions make way", || threads(&server, "rocksdb:low").iter().any(|one| one.nice == NICE));
    // And nobody else: writes that wait for a flush would be refused.
    for name in ["klad-worker", "klad-commit", "klad-storage", "rocksdb:high"] {
        let all = threads(&server, name);
        assert!(!all.is_empty() && all.iter().all(|thread| thread.nice == 0), "{name}: {all:?}");
    }
    let slice = |name: &str| threads(&server, name)[0].slice;
    if kernel() >= KERNEL_WITH_SLICES && slice("klad-storage").is_some() {
        for asks in ["klad-worker", "klad-commit"] {
            wait_until("whoever carries requests has asked for short turns", || slice(asks) == Some(SLICE_NS));
        }
        assert_ne!(slice("klad-storage"), Some(SLICE_NS), "twin: a thread that has asked for nothing is told apart");
    }
}
