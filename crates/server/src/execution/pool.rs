//! `--execution pool`: threads behind one bounded first-in, first-out queue with a mutex and a condition variable.
//!
//! ```text
//!   worker ──every operation──▶ queue (--queue-limit, else 503) ─▶ klad-pool-0 … N ─▶ PendingOperation ─▶ worker
//! ```
//!
//! Two published reports measured this strategy, so it stays plain: no batches, no shared syncs, no reads from memory
//! on the worker. A thread that finds the queue empty polls it for `--pool-spin` before the thread sleeps. `execution`
//! calls this.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::execution::observe::{QueueFigures, Rejections};
use crate::execution::service_time::ServiceTime;
use crate::execution::task::Task;
use crate::limits::{QUEUE_LIMIT_CEILING, SCANS_CEILING};
use klad_base::clock;
use klad_base::os::scheduler;
use klad_base::sync::{self, BoundedQueue, PushError};
use klad_storage::Engine;

/// The queue and its threads.
pub(super) struct Pool {
    queue: BoundedQueue<Task>,
    /// The maximum of waiting operations. Steps of ranges in progress may exceed it, because a rejected step would end
    /// its range early.
    limit: AtomicUsize,
    threads: usize,
    service_time: ServiceTime,
    rejections: Rejections,
}

impl Pool {
    pub(super) fn new(queue_limit: usize, threads: usize) -> Arc<Pool> {
        let queue = BoundedQueue::new(QUEUE_LIMIT_CEILING + SCANS_CEILING);
        let limit = AtomicUsize::new(queue_limit);
        Arc::new(Pool {
            queue,
            limit,
            threads,
            service_time: ServiceTime::default(),
            rejections: Rejections::default(),
        })
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
            self.rejections.full.add(1);
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

    /// Estimates how long a new operation would wait.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.service_time.wait(self.queue.len(), self.threads)
    }

    pub(super) fn figures(&self) -> QueueFigures {
        QueueFigures {
            name: "pool",
            depth: self.queue.len(),
            limit: self.limit(),
            oldest: None,
            wait: self.wait(),
            rejected: vec![("full", self.rejections.full.get())],
        }
    }

    pub(super) fn tick(&self) {
        self.service_time.tick();
    }

    pub(super) fn close(&self) {
        self.queue.close();
    }
}
