//! `--execution pool`: threads behind one first-in, first-out queue with a bound, a mutex and a condition variable.
//!
//! ```text
//!   worker ──every operation──▶ queue (--queue-limit, else 503) ─▶ klad-pool-0 … N ─▶ Ticket ─▶ worker
//! ```
//!
//! What two of the published reports measured, and kept plain for that reason: no batch, no sharing of syncs, no regard to
//! what is in memory. A thread that finds the queue empty looks again for `--pool-spin` before it sleeps. Called by
//! `execution`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::execution::observe::{QueueLook, Refused};
use crate::execution::service_time::ServiceTime;
use crate::execution::task::Task;
use klad_base::clock;
use klad_base::limits::{QUEUE_LIMIT_CEILING, SCANS_CEILING};
use klad_base::os::scheduler;
use klad_base::sync::{self, BoundedQueue, PushError};
use klad_storage::Engine;

/// The queue.
pub(super) struct Pool {
    queue: BoundedQueue<Task>,
    /// Operations that may wait; steps of ranges that are under way find room beyond it, or a full queue would cut them.
    limit: AtomicUsize,
    threads: usize,
    service_time: ServiceTime,
    refused: Refused,
}

impl Pool {
    pub(super) fn new(queue_limit: usize, threads: usize) -> Arc<Pool> {
        let queue = BoundedQueue::new(QUEUE_LIMIT_CEILING + SCANS_CEILING);
        let limit = AtomicUsize::new(queue_limit);
        Arc::new(Pool { queue, limit, threads, service_time: ServiceTime::default(), refused: Refused::default() })
    }

    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn set_limit(&self, queue_limit: usize) {
        self.limit.store(queue_limit, Ordering::Relaxed);
    }

    pub(super) fn push(&self, task: Task) -> Result<(), PushError<Task>> {
        let pushed = if task.is_scan() { self.queue.push(task) } else { self.queue.push_below(self.limit(), task) };
        if matches!(pushed, Err(PushError::Full(_))) {
            self.refused.full.add(1);
        }
        pushed
    }

    pub(super) fn start(self: &Arc<Self>, engine: &Arc<dyn Engine>, spin: Duration) -> Vec<JoinHandle<()>> {
        let thread = |number| {
            let (own, engine) = (self.clone(), engine.clone());
            sync::spawn_thread(&format!("klad-pool-{number}"), move || {
                scheduler::shorten_time_slices();
                while let Some(task) = own.queue.pop_spinning(spin) {
                    if let Some(task) = task.take() {
                        let began = clock::now();
                        task.begins(began);
                        task.run(&*engine);
                        own.service_time.served(1, began);
                    }
                }
            })
        };
        (0..self.threads).map(thread).collect()
    }

    /// How long an operation that came now would wait.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.service_time.wait(self.queue.len(), self.threads)
    }

    pub(super) fn look(&self) -> QueueLook {
        QueueLook {
            name: "pool",
            depth: self.queue.len(),
            limit: self.limit(),
            oldest: None,
            wait: self.wait(),
            refused: vec![("full", self.refused.full.get())],
        }
    }

    pub(super) fn tick(&self) {
        self.service_time.tick();
    }

    pub(super) fn close(&self) {
        self.queue.close();
    }
}
