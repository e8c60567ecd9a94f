//! What the executor shows of itself: queues, places, room, and where reads were answered.
//!
//! Read by the admin thread; takes the queues' locks, which nobody holds while waiting for anything.

use std::sync::Arc;
use std::time::Duration;

use crate::execution::pending_operation::PendingOperation;
use crate::execution::task::Task;
use crate::execution::{Executor, Runner};
use klad_base::limits::SCAN_STEP_BYTES_MAX;
use klad_base::metrics::Counter;
use klad_base::metrics::text::{Kind, Page};
use klad_storage::observation::number;
use klad_storage::{Check, Observation};

/// What one worker counts; written by its thread alone.
#[derive(Debug, Default)]
pub(super) struct LocalFigures {
    /// Reads that the worker itself has answered.
    pub(super) reads_here: Counter,
    /// Reads that were handed to a thread that may wait.
    pub(super) reads_handed_on: Counter,
}

/// What a queue has refused, by the reason.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// It stood, and this had waited longer than `--queue-target`.
    pub(super) delay: Counter,
    /// This had waited longer than `--queue-age-max`.
    pub(super) age: Counter,
    /// There was no place.
    pub(super) full: Counter,
}

/// One queue at one moment.
pub(super) struct QueueLook {
    pub(super) name: &'static str,
    pub(super) depth: usize,
    pub(super) limit: usize,
    /// For how long the oldest has waited; `None` where nobody keeps the time.
    pub(super) oldest: Option<Duration>,
    /// How long one that came now would wait; `None`: nothing was measured yet.
    pub(super) wait: Option<Duration>,
    /// By reason.
    pub(super) refused: Vec<(&'static str, u64)>,
}

impl Executor {
    /// What the engine says of itself; never waits.
    #[must_use]
    pub fn observe(&self) -> Arc<Observation> {
        self.engine.observe()
    }

    /// What must hold for operations to be taken.
    #[must_use]
    pub fn checks(&self) -> Vec<Check> {
        self.engine.checks()
    }

    /// What the pages of ranges in progress may take: one each, and hyper's copy of it.
    #[must_use]
    pub fn scans_bytes(&self) -> u64 {
        (self.scans.taken() * 2 * SCAN_STEP_BYTES_MAX) as u64
    }

    /// What operations hold that wait for or are in the engine, gathered writes too: of each its place in a queue, its ticket and
    /// its key, to the byte as they ask the allocator. Values are not among it, they have their room; nor are pages of ranges.
    #[must_use]
    pub fn queues_bytes(&self) -> u64 {
        let (operations, key_bytes) = self.operations.look();
        // Before the ticket stand its two counters of references.
        let each = size_of::<Task>() + size_of::<PendingOperation>() + 2 * size_of::<usize>();
        (operations * each) as u64 + key_bytes
    }

    /// The engine's name.
    #[must_use]
    pub fn engine_name(&self) -> &'static str {
        self.engine.name()
    }

    /// The strategy's name, as `--execution` takes it.
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

    /// Puts queues, places, room and reads on the metrics page.
    pub fn write_metrics(&self, page: &mut Page) {
        self.write_queues(page);
        self.write_places(page);
        let (all, large) = (self.budget.all(), self.budget.large());
        let mut used = page.family(
            "klad_body_room_used_bytes",
            Kind::Gauge,
            "Room that is taken for request bodies and large answers: all of it, and by all but small bodies.",
        );
        used.whole(&[("share", "all")], all.used_bytes).whole(&[("share", "large")], large.used_bytes);
        let mut limit = page.family(
            "klad_body_room_limit_bytes",
            Kind::Gauge,
            "Room that there is: in all, and for all but small bodies.",
        );
        limit.whole(&[("share", "all")], all.limit_bytes).whole(&[("share", "large")], large.limit_bytes);
        let (mut here, mut handed_on) = (0, 0);
        for worker_context in self.locals.lock().iter() {
            here += worker_context.reads_here.get();
            handed_on += worker_context.reads_handed_on.get();
        }
        let help =
            "Reads of keys by what could answer them: memory, at once, or storage, which may have to ask the disk.";
        page.family("klad_reads_total", Kind::Counter, help)
            .whole(&[("answered_by", "memory")], here)
            .whole(&[("answered_by", "storage")], handed_on);
    }

    fn write_places(&self, page: &mut Page) {
        let count = |value: usize| number(value as u64);
        let (operations, scans) = (&self.operations, &self.scans);
        page.gauge(
            "klad_operations_in_use",
            "Operations that wait for or are in the engine, but reads that memory answers.",
            count(operations.taken()),
        );
        page.gauge(
            "klad_operations_limit",
            "As many there may be, --operations-max; one more is answered 503.",
            count(operations.limit()),
        );
        page.gauge("klad_scans_in_use", "Ranges in progress.", count(scans.taken()));
        page.gauge(
            "klad_scans_limit",
            "As many there may be, --scans-max; one more is answered 503.",
            count(scans.limit()),
        );
    }

    fn write_queues(&self, page: &mut Page) {
        let queues = match &self.runner {
            Runner::Here => Vec::new(),
            Runner::Adaptive(adaptive) => adaptive.look(self.operations.limit(), self.scans.limit()),
            Runner::Pool(pool) => vec![pool.look()],
            Runner::Stealing(stealing) => vec![stealing.look()],
        };
        let mut depth = page.family("klad_queue_depth", Kind::Gauge, "Operations that wait in a queue for storage.");
        for queue in &queues {
            depth.whole(&[("queue", queue.name)], queue.depth as u64);
        }
        let mut limit = page.family("klad_queue_limit", Kind::Gauge, "Operations that may wait in a queue.");
        for queue in &queues {
            limit.whole(&[("queue", queue.name)], queue.limit as u64);
        }
        let help = "For how long the oldest operation of a queue has waited.";
        let mut oldest = page.family("klad_queue_oldest_seconds", Kind::Gauge, help);
        for (queue, waited) in queues.iter().filter_map(|queue| Some((queue, queue.oldest?))) {
            oldest.sample(&[("queue", queue.name)], waited.as_secs_f64());
        }
        let help = "Estimate of how long an operation that came now would wait; what Retry-After tells.";
        let mut wait = page.family("klad_queue_wait_seconds", Kind::Gauge, help);
        for queue in &queues {
            wait.sample(&[("queue", queue.name)], queue.wait.unwrap_or_default().as_secs_f64());
        }
        let help =
            "Operations that a queue has refused: it stood (delay), storage did not serve (age), no place (full).";
        let mut refused = page.family("klad_queue_refused_total", Kind::Counter, help);
        for queue in &queues {
            for (reason, count) in &queue.refused {
                refused.whole(&[("queue", queue.name), ("reason", reason)], *count);
            }
        }
    }
}
