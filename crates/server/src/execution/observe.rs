//! The figures of the executor: queues, slots, the body budget, and how reads were answered.
//!
//! The admin thread reads them. It takes the queues' locks for a short time: no thread waits while it holds such a
//! lock.

use std::sync::Arc;
use std::time::Duration;

use crate::execution::pending_operation::PendingOperation;
use crate::execution::task::Task;
use crate::execution::{Executor, Runner};
use klad_base::metrics::Counter;
use klad_base::metrics::text::{Kind, Page};
use klad_storage::limits::SCAN_STEP_BYTES_MAX;
use klad_storage::observation::number;
use klad_storage::{Capabilities, Check, Observation};

/// The read counters of one worker. Only the worker's thread writes them.
#[derive(Debug, Default)]
pub(super) struct ReadCounters {
    /// Reads that the worker has answered from memory.
    pub(super) from_memory: Counter,
    /// Reads that went to the engine, usually on a thread that may wait.
    pub(super) from_storage: Counter,
    /// The reads of `from_storage` that the worker itself did.
    pub(super) on_worker: Counter,
}

/// Counts the operations that a queue has rejected, by reason.
#[derive(Debug, Default)]
pub(super) struct Rejections {
    /// Operations that had waited longer than `--queue-target` in a standing queue.
    pub(super) delay: Counter,
    /// Operations that had waited longer than `--queue-age-max`.
    pub(super) age: Counter,
    /// Operations that came when the queue was full.
    pub(super) full: Counter,
}

/// The figures of one queue.
pub(super) struct QueueFigures {
    pub(super) name: &'static str,
    pub(super) depth: usize,
    pub(super) limit: usize,
    /// The age of the oldest operation. `None`: unknown for this queue.
    pub(super) oldest: Option<Duration>,
    /// The estimated wait of a new operation. `None`: nothing was measured.
    pub(super) wait: Option<Duration>,
    /// The number of rejected operations, by reason.
    pub(super) rejected: Vec<(&'static str, u64)>,
}

impl Executor {
    /// Returns the engine's figures. Never waits.
    #[must_use]
    pub fn observe(&self) -> Arc<Observation> {
        self.engine.observe()
    }

    /// Returns the engine's conditions for accepting writes, each with its current state.
    #[must_use]
    pub fn checks(&self) -> Vec<Check> {
        self.engine.checks()
    }

    /// The memory that the pages of ranges in progress may take: one page each, and hyper's copy of it.
    #[must_use]
    pub fn scans_bytes(&self) -> u64 {
        (self.scans.taken() * 2 * SCAN_STEP_BYTES_MAX) as u64
    }

    /// The memory of operations that wait for the engine or run in it, including gathered writes: for each, the size of
    /// its `Task`, its [`PendingOperation`] and its key. This excludes values, which have permits, and steps of
    /// ranges.
    #[must_use]
    pub fn queues_bytes(&self) -> u64 {
        let (operations, key_bytes) = self.operations.figures();
        // An `Arc` has two reference counts in front of its value.
        let each = size_of::<Task>() + size_of::<PendingOperation>() + 2 * size_of::<usize>();
        (operations * each) as u64 + key_bytes
    }

    /// The name of the engine.
    #[must_use]
    pub fn engine_name(&self) -> &'static str {
        self.engine.name()
    }

    /// What the engine supports.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// The number of copies that the engine keeps of each key.
    #[must_use]
    pub fn copies(&self) -> u8 {
        self.engine.copies()
    }

    /// The name of the strategy, as in `--execution`.
    #[must_use]
    pub fn strategy_name(&self) -> &'static str {
        match &self.runner {
            Runner::Here if self.asks_memory_first => "adaptive",
            Runner::Here => "inline",
            Runner::Adaptive(_) => "adaptive",
            Runner::Pool(_) => "pool",
            Runner::Stealing(_) => "stealing",
        }
    }

    /// Writes the figures to the metrics page.
    pub fn write_metrics(&self, page: &mut Page) {
        self.write_queues(page);
        self.write_slots(page);
        let (all, large) = (self.budget.all(), self.budget.large());
        let mut used = page.family(
            "klad_body_budget_used_bytes",
            Kind::Gauge,
            "Bytes of the body budget in use by request bodies and large answers: all, and by all but small bodies.",
        );
        used.whole(&[("share", "all")], all.used_bytes).whole(&[("share", "large")], large.used_bytes);
        let mut limit = page.family(
            "klad_body_budget_limit_bytes",
            Kind::Gauge,
            "Bytes of the body budget: all, and for all but small bodies.",
        );
        limit.whole(&[("share", "all")], all.limit_bytes).whole(&[("share", "large")], large.limit_bytes);
        let (mut from_memory, mut from_storage, mut on_worker) = (0, 0, 0);
        for counters in self.read_counters.lock().iter() {
            from_memory += counters.from_memory.get();
            from_storage += counters.from_storage.get();
            on_worker += counters.on_worker.get();
        }
        let help = "Reads of keys, by what answered them: memory, at once, or storage, which may read the disk.";
        page.family("klad_reads_total", Kind::Counter, help)
            .whole(&[("answered_by", "memory")], from_memory)
            .whole(&[("answered_by", "storage")], from_storage);
        page.counter(
            "klad_worker_storage_reads_total",
            "Reads of storage that a worker did itself, because storage was quick.",
            on_worker,
        );
        if let Runner::Adaptive(adaptive) = &self.runner {
            let [busy, threads] = adaptive.busy_threads().map(|count| number(count as u64));
            page.gauge(
                "klad_storage_threads_busy",
                "Storage threads that do an operation now: the queue depth of the disk.",
                busy,
            );
            page.gauge("klad_storage_threads", "The number of storage threads, --storage-threads.", threads);
        }
    }

    fn write_slots(&self, page: &mut Page) {
        let count = |value: usize| number(value as u64);
        let (operations, scans) = (&self.operations, &self.scans);
        page.gauge(
            "klad_operations_in_use",
            "Operations that wait for the engine or run in it, without reads that memory answers.",
            count(operations.taken()),
        );
        page.gauge(
            "klad_operations_limit",
            "The limit of operations, --operations-max; klad answers one more with 503.",
            count(operations.limit()),
        );
        page.gauge("klad_scans_in_use", "Ranges in progress.", count(scans.taken()));
        page.gauge(
            "klad_scans_limit",
            "The limit of ranges in progress, --scans-max; klad answers one more with 503.",
            count(scans.limit()),
        );
    }

    fn write_queues(&self, page: &mut Page) {
        let queues = match &self.runner {
            Runner::Here => Vec::new(),
            Runner::Adaptive(adaptive) => adaptive.figures(self.operations.limit(), self.scans.limit()),
            Runner::Pool(pool) => vec![pool.figures()],
            Runner::Stealing(stealing) => vec![stealing.figures()],
        };
        let mut depth = page.family("klad_queue_depth", Kind::Gauge, "Operations that wait in a queue for storage.");
        for queue in &queues {
            depth.whole(&[("queue", queue.name)], queue.depth as u64);
        }
        let mut limit = page.family("klad_queue_limit", Kind::Gauge, "Operations that may wait in a queue.");
        for queue in &queues {
            limit.whole(&[("queue", queue.name)], queue.limit as u64);
        }
        let help = "How long the oldest operation of a queue has waited.";
        let mut oldest = page.family("klad_queue_oldest_seconds", Kind::Gauge, help);
        for (queue, waited) in queues.iter().filter_map(|queue| Some((queue, queue.oldest?))) {
            oldest.sample(&[("queue", queue.name)], waited.as_secs_f64());
        }
        let help = "Estimated wait of a new operation in a queue; Retry-After gives it to clients.";
        let mut wait = page.family("klad_queue_wait_seconds", Kind::Gauge, help);
        for queue in &queues {
            wait.sample(&[("queue", queue.name)], queue.wait.unwrap_or_default().as_secs_f64());
        }
        let help = "Operations that a queue has rejected: standing queue (delay), waited too long (age), full (full).";
        let mut rejected = page.family("klad_queue_refused_total", Kind::Counter, help);
        for queue in &queues {
            for (reason, count) in &queue.rejected {
                rejected.whole(&[("queue", queue.name), ("reason", reason)], *count);
            }
        }
    }
}
