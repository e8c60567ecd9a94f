//! The threads of an engine's own get less of a core than workers do, where both want it. Called by the engines that have some.
//!
//! RocksDB can only take its threads to the lowest priority of all, at which a core that requests keep busy leaves them a seventieth:
//! then compactions fall behind, and writes are held up. Untouched, a flush takes half of a worker's core for some tenth of a
//! second, and requests queue up meanwhile. At [`NICE`] they get a tenth of a core that is wanted, and all that nobody wants.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, setpriority_process};

/// `nice` value: the kernel's weight is 110, and 1024 for one of 0 (Linux, `kernel/sched/core.c`, `sched_prio_to_weight`).
const NICE: i32 = 10;

/// The threads of one database.
pub(super) struct Background {
    /// What their names begin with.
    names: &'static [&'static str],
    threads: usize,
    make_way: AtomicBool,
}

impl Background {
    /// So many threads, whose names begin with one of `names`.
    pub(super) fn new(names: &'static [&'static str], threads: usize) -> Background {
        Background { names, threads, make_way: AtomicBool::new(false) }
    }

    /// Makes them way for requests. Called again and again: a thread that has no name yet is met the next time.
    pub(super) fn upkeep(&self) {
        if cfg!(target_os = "linux") && !self.make_way.load(Ordering::Relaxed) {
            self.make_way.store(make_way(self.names) >= self.threads, Ordering::Relaxed);
        }
    }
}

/// The calling thread makes way, too.
pub(super) fn make_way_here() {
    // A thread may always have less than it has.
    #[cfg(target_os = "linux")]
    let _ = setpriority_process(Some(rustix::thread::gettid()), NICE);
}

/// Answers how many threads make way now.
fn make_way(names: &[&str]) -> usize {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    tasks.flatten().filter(|task| is_background(&task.path(), names) && lower(&task.file_name())).count()
}

fn is_background(task: &Path, names: &[&str]) -> bool {
    let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
    names.iter().any(|wanted| name.starts_with(wanted))
}

/// A thread may always have less than it has.
fn lower(task: &std::ffi::OsStr) -> bool {
    let id = task.to_str().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
    id.is_some_and(|id| setpriority_process(Some(id), NICE).is_ok())
}
