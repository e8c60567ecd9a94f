//! CPU time per group of threads, such as workers and storage threads. `process` calls this.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use klad_base::clock;
use klad_base::metrics::text::{Kind, Page};

/// Groups of threads, each with the prefixes of its threads' names. These threads live as long as klad serves.
const GROUPS: [(&str, &[&str]); 8] = [
    ("worker", &["klad-worker-"]),
    ("storage", &["klad-storage-", "klad-pool-", "klad-steal-"]),
    ("commit", &["klad-commit"]),
    ("sync", &["klad-sync"]),
    ("rocksdb", &["rocksdb:"]),
    ("fjall", &["fjall"]),
    ("cluster", &["klad-cluster"]),
    ("admin", &["klad-admin"]),
];

/// The group of all other threads, including those that have ended.
const OTHER: &str = "other";

/// The largest CPU time of [`OTHER`] so far: the bits of seconds as `f64`, which have the same order as positive
/// numbers. The time is that of the process minus that of the named threads. The kernel rounds the times of threads, so
/// this difference may shrink, but a counter must not.
static OTHER_MAX: AtomicU64 = AtomicU64::new(0);

/// Writes the CPU time of each group. Writes nothing if there is no `/proc`.
pub(super) fn write(page: &mut Page<'_>) {
    let Ok(seconds) = read() else { return };
    let mut family = page.family(
        "klad_thread_cpu_seconds_total",
        Kind::Counter,
        "CPU time of threads by what they do; other: all other threads, such as those of the allocator.",
    );
    for (group, seconds) in seconds {
        family.sample(&[("group", group)], seconds);
    }
}

#[expect(clippy::cast_precision_loss, reason = "2^53 ticks are millions of years")]
fn read() -> Result<BTreeMap<&'static str, f64>, procfs::ProcError> {
    let ticks_per_second = procfs::ticks_per_second() as f64;
    let all = std::time::Duration::from_nanos(clock::process_cpu_ns()).as_secs_f64();
    let mut seconds: BTreeMap<_, _> = GROUPS.map(|(group, _)| (group, 0.0)).into();
    for task in procfs::process::Process::myself()?.tasks()? {
        // A thread may have ended since klad listed it.
        let Ok(stat) = task.and_then(|task| task.stat()) else { continue };
        let group = GROUPS.iter().find(|(_, names)| names.iter().any(|name| stat.comm.starts_with(name)));
        if let Some(time) = group.and_then(|(group, _)| seconds.get_mut(group)) {
            *time += (stat.utime + stat.stime) as f64 / ticks_per_second;
        }
    }
    let named: f64 = seconds.values().sum();
    let other = (all - named).max(0.0).to_bits();
    seconds.insert(OTHER, f64::from_bits(OTHER_MAX.fetch_max(other, Ordering::Relaxed).max(other)));
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use klad_base::sync::spawn_thread;

    #[test]
    fn a_busy_thread_is_counted_in_its_group() {
        let thread = spawn_thread("klad-storage-7", || {
            while clock::thread_cpu_ns() < 100_000_000 {
                std::hint::spin_loop();
            }
            read().expect("/proc")
        });
        let seconds = thread.join().expect("no panic");
        assert!(seconds["storage"] > 0.05, "{seconds:?}");
        assert!(seconds["worker"] < 0.05 && seconds.len() == GROUPS.len() + 1, "{seconds:?}");
    }
}
