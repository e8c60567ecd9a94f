//! What was waited for, as a table in Markdown: docs/profiling.md holds one. Called by `profile_waits`.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::profiles::{Collapsed, Waits};

/// Stacks that are named in a row.
const NAMED: usize = 2;

/// Frames of klad and RocksDB that say how somebody waits, not for what.
const MACHINERY: [&str; 8] = [
    "klad::sync::",
    "klad::sampling::",
    "klad::profile::",
    "rocksdb::port::",
    "rocksdb::InstrumentedMutex",
    "rocksdb::InstrumentedCondVar",
    "rocksdb::MutexLock",
    "rocksdb::CondVar",
];

/// What a strategy waited for under one load.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) load: &'static str,
    pub(crate) operation: &'static str,
    pub(crate) strategy: &'static str,
    /// Operations that ended well, in a second.
    pub(crate) per_s: f64,
    /// How long was looked.
    pub(crate) window: Duration,
    /// Whether all of the offered load was served.
    pub(crate) carried: bool,
    /// Waits for what somebody else held.
    pub(crate) mutex: Collapsed,
    pub(crate) mutex_waits: Waits,
    /// All waits.
    pub(crate) block: Collapsed,
    pub(crate) block_waits: Waits,
}

impl Row {
    fn operations(&self) -> f64 {
        self.per_s * self.window.as_secs_f64()
    }

    /// Waits for 1,000 operations, and milliseconds waited for them.
    #[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds of seconds are far below 2^52")]
    fn rates(&self, waits: Waits, profile: &Collapsed) -> [f64; 2] {
        let thousands = self.operations() / 1e3;
        [waits.count as f64 / thousands, profile.total() as f64 / 1e6 / thousands]
    }

    #[expect(clippy::cast_precision_loss, reason = "locks of seconds are far below 2^52")]
    fn acquisitions(&self) -> f64 {
        self.block_waits.acquisitions as f64 / self.operations()
    }

    /// The row as it stands in the table.
    pub(crate) fn line(&self) -> String {
        let [mutex, mutex_ms] = self.rates(self.mutex_waits, &self.mutex);
        // Their time says nothing: threads that have nothing to do wait all the time.
        let [block, _] = self.rates(self.block_waits, &self.block);
        let mark = if self.carried { "" } else { " (not all served)" };
        format!(
            "| {} | {} | `{}` | {:.0}{mark} | {mutex:.2} | {mutex_ms:.3} | {block:.1} | {:.2} | {} |",
            self.load,
            self.operation,
            self.strategy,
            self.per_s,
            self.acquisitions(),
            top(&self.mutex)
        )
    }
}

/// The head of the table.
pub(crate) const HEAD: &str = "\
| Load | Operation | Strategy | operations/s | waits for locks / 1,000 | ms of them / 1,000 | all waits / 1,000 | locks taken / operation | Waits for locks most in |
|---|---|---|---|---|---|---|---|---|";

/// Where most time was waited, with shares.
fn top(profile: &Collapsed) -> String {
    let total = profile.total();
    if total == 0 {
        return "-".to_owned();
    }
    let mut sums = BTreeMap::<&str, i64>::new();
    for (stack, count) in &profile.stacks {
        *sums.entry(place(stack)).or_default() += count;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_unstable_by_key(|(_, count)| std::cmp::Reverse(*count));
    let named = |(name, count): &(&str, i64)| format!("`{name}` {} %", count * 100 / total);
    sums.iter().take(NAMED).map(named).collect::<Vec<_>>().join(", ")
}

/// The innermost frame of klad or RocksDB that says what was waited for; of other stacks, the thread.
fn place(stack: &[String]) -> &str {
    let own = |frame: &&String| {
        let path = frame.trim_start_matches('<');
        let known = path.starts_with("klad::") || path.starts_with("rocksdb::");
        known && !MACHINERY.iter().any(|machinery| path.starts_with(machinery))
    };
    stack.iter().rev().find(own).or(stack.first()).map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(stacks: &[(&str, i64)]) -> Collapsed {
        let stacks = stacks.iter().map(|(stack, count)| (stack.split(';').map(str::to_owned).collect(), *count));
        Collapsed { facts: Vec::new(), stacks: stacks.collect() }
    }

    #[test]
    fn the_place_is_the_innermost_that_says_for_what() {
        let profile = profile(&[
            (
                "klad-pool-0;start_thread;klad::execution::pool::run;klad::sync::BoundedQueue<T>::pop;klad::sync::Condvar::wait",
                60,
            ),
            (
                "klad-commit;rocksdb::DBImpl::Write;rocksdb::InstrumentedMutex::Lock;rocksdb::port::Mutex::Lock;pthread_mutex_lock",
                30,
            ),
            ("rocksdb:low;start_thread;pthread_cond_wait", 10),
        ]);
        assert_eq!(top(&profile), "`klad::execution::pool::run` 60 %, `rocksdb::DBImpl::Write` 30 %");
        assert_eq!(place(&profile.stacks[2].0), "rocksdb:low");
        assert_eq!(top(&Collapsed::default()), "-");
    }

    #[test]
    fn figures_are_for_a_thousand_operations() {
        let row = Row {
            load: "full",
            operation: "GET",
            strategy: "pool",
            per_s: 10_000.0,
            window: Duration::from_secs(2),
            carried: false,
            mutex: profile(&[("a;b", 40_000_000)]),
            mutex_waits: Waits { count: 200, acquisitions: 40_000 },
            block: profile(&[("a;b", 400_000_000)]),
            block_waits: Waits { count: 2_000, acquisitions: 40_000 },
        };
        let line = "| full | GET | `pool` | 10000 (not all served) | 10.00 | 2.000 | 100.0 | 2.00 | `a` 100 % |";
        assert_eq!(row.line(), line);
        assert_eq!(line.matches(" | ").count(), HEAD.lines().next().unwrap_or_default().matches(" | ").count());
    }
}
