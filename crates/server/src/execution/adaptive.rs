//! `--execution adaptive`: a worker itself answers reads that memory can answer, and storage threads do the other
//! reads. While storage is quick, the worker does these reads too: see `worker_reads`. A worker gathers the writes of a
//! loop iteration into one batch.
//!
//! ```text
//!   worker ──get──▶ Engine::read_cached ──in memory──▶ answer, same iteration, no queue
//!                        └─not in memory─▶ reads ─▶ klad-storage-N ─▶ PendingOperation ─▶ CompletionQueue ─▶ worker
//!   worker ──put, delete──▶ gathered ── end of iteration ─┬─ async ─▶ Engine::try_commit, on the worker
//!                                                         └─ sync, or the commit section is busy ─▶ writes
//!                                                                ─▶ klad-commit ─▶ CompletionQueue ─▶ worker
//! ```
//!
//! Both queues, `reads` and `writes`, control their delay ([`DelayQueue`]). Each queue has a place for every operation
//! slot, so an admitted operation always fits. `execution` and `worker_context` call this.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::execution::Queues;
use crate::execution::completion_queue::CompletionQueue;
use crate::execution::delay_queue::DelayQueue;
use crate::execution::observe::{QueueFigures, Rejections};
use crate::execution::service_time::ServiceTime;
use crate::execution::task::Task;
use crate::execution::worker_reads::QuickReads;
use crate::limits::{COMMIT_WRITES_MAX, ITERATION_COMMIT_BYTES_MAX, SLOTS_CEILING};
use klad_base::clock;
use klad_base::metrics::Counter;
use klad_base::os::scheduler;
use klad_base::sync::{self, PushError};
use klad_storage::limits::COMMIT_BYTES_MAX;
use klad_storage::operation::{Error, Operation};
use klad_storage::{Engine, Pending};

/// The queues of reads and of writes, and their service times.
pub(super) struct Adaptive {
    reads: DelayQueue,
    writes: DelayQueue,
    read_service_time: ServiceTime,
    write_service_time: ServiceTime,
    /// Whether storage is quick, so that workers read themselves.
    pub(super) quick_reads: QuickReads,
    read_rejections: Rejections,
    write_rejections: Rejections,
    storage_threads: usize,
    /// The number of storage threads that do an operation now.
    busy_threads: AtomicUsize,
    /// `--queue-target` in milliseconds, which the errors about rejected operations report.
    target_ms: AtomicU64,
}

impl Adaptive {
    /// Creates the queues, with a place for each possible operation. If `control` is `None`, the queues reject nothing.
    pub(super) fn new(storage_threads: usize, control: Option<Queues>) -> Arc<Adaptive> {
        Arc::new(Adaptive {
            reads: DelayQueue::new(SLOTS_CEILING, control),
            writes: DelayQueue::new(SLOTS_CEILING, control),
            read_service_time: ServiceTime::default(),
            write_service_time: ServiceTime::default(),
            quick_reads: QuickReads::default(),
            read_rejections: Rejections::default(),
            write_rejections: Rejections::default(),
            storage_threads,
            busy_threads: AtomicUsize::new(0),
            target_ms: AtomicU64::new(target_ms(control)),
        })
    }

    /// Changes how long operations may wait.
    pub(super) fn set_control(&self, control: Option<Queues>) {
        self.target_ms.store(target_ms(control), Ordering::Relaxed);
        self.reads.set_control(control);
        self.writes.set_control(control);
    }

    /// Hands a read or a step of a range to the storage threads.
    pub(super) fn push(&self, task: Task) -> Result<(), PushError<Task>> {
        let pushed = self.reads.push(task);
        if matches!(pushed, Err(PushError::Full(_))) {
            self.read_rejections.full.add(1);
        }
        pushed
    }

    /// Starts the storage threads and the committer.
    pub(super) fn start(self: &Arc<Self>, engine: &Arc<dyn Engine>, commit_delay: Duration) -> Vec<JoinHandle<()>> {
        let mut running = Vec::new();
        for number in 0..self.storage_threads {
            let (own, engine) = (self.clone(), engine.clone());
            running.push(sync::spawn_thread(&format!("klad-storage-{number}"), move || own.run_reads(&*engine)));
        }
        let (own, engine) = (self.clone(), engine.clone());
        running.push(sync::spawn_thread("klad-commit", move || {
            scheduler::shorten_time_slices();
            own.run_commits(&*engine, commit_delay);
        }));
        running
    }

    fn run_reads(&self, engine: &dyn Engine) {
        let mut rejected = Vec::new();
        while let Some(task) = self.reads.pop(&mut rejected) {
            self.reject_reads(&mut rejected, &self.read_rejections.delay);
            if let Some(task) = task.take() {
                let began = clock::now();
                task.begins(began);
                let is_point_read = matches!(task.operation, Operation::Get { .. });
                self.busy_threads.fetch_add(1, Ordering::Relaxed);
                task.run(engine);
                self.busy_threads.fetch_sub(1, Ordering::Relaxed);
                let time = self.read_service_time.served(1, began);
                if is_point_read {
                    self.quick_reads.took(time);
                }
            }
        }
    }

    /// The committer: takes the writes that were queued while the last batch was written, and writes them as the next
    /// batch.
    fn run_commits(&self, engine: &dyn Engine, delay: Duration) {
        let (mut tasks, mut rejected, mut answered) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            yield_to_waiting_workers(&answered);
            if !delay.is_zero() {
                self.writes.wait_for_more(delay);
            }
            if !self.writes.pop_batch(COMMIT_WRITES_MAX, COMMIT_BYTES_MAX, &mut tasks, &mut rejected) {
                return;
            }
            self.reject_writes(&mut rejected, &self.write_rejections.delay);
            let completion_queues = completion_queues(&tasks);
            let before = tasks.len();
            let began = clock::now();
            let batch: Vec<Pending> = tasks
                .drain(..)
                .filter_map(Task::take)
                .inspect(|task| task.begins(began))
                .filter_map(|task| Some(task.into_write()?.0))
                .collect();
            if batch.len() < before {
                // Operations whose deadline has passed need not wait for the others.
                announce(&completion_queues);
            }
            if !batch.is_empty() {
                let count = batch.len();
                engine.commit(batch);
                self.write_service_time.served(count, began);
            }
            announce(&completion_queues);
            answered = completion_queues;
        }
    }

    /// Commits the writes that a worker has gathered in one loop iteration. The worker commits the `async` writes
    /// itself if they fit into a small batch ([`ITERATION_COMMIT_BYTES_MAX`], [`COMMIT_WRITES_MAX`]) and the engine
    /// need not wait for anything. The committer gets all other writes, with one wake-up.
    pub(super) fn commit_iteration(&self, engine: &dyn Engine, gathered: &mut Vec<Task>) {
        let (mut tasks, mut here): (Vec<Task>, Vec<Task>) = gathered.drain(..).partition(Task::needs_sync);
        let bytes: usize = here.iter().map(Task::write_bytes).sum();
        let changes: usize = here.iter().map(Task::changes).sum();
        if bytes > ITERATION_COMMIT_BYTES_MAX || changes > COMMIT_WRITES_MAX {
            tasks.append(&mut here);
        }
        tasks.extend(commit_here(engine, here));
        if tasks.is_empty() {
            return;
        }
        self.writes.push_all(&mut tasks);
        // The queue has a place for each slot, so tasks are left over only if the queue is closed.
        let completion_queues = completion_queues(&tasks);
        for task in tasks {
            task.reject(Error::Stopping);
        }
        announce(&completion_queues);
    }

    /// Updates the service times, and rejects operations that have waited longer than `--queue-age-max` or whose
    /// deadline has passed. A thread that never waits for storage calls this often.
    pub(super) fn tick(&self) {
        self.read_service_time.tick();
        self.write_service_time.tick();
        let (mut rejected, mut late) = (Vec::new(), Vec::new());
        self.reads.expire(&mut rejected, &mut late);
        self.reject_reads(&mut rejected, &self.read_rejections.age);
        self.writes.expire(&mut rejected, &mut late);
        self.reject_writes(&mut rejected, &self.write_rejections.age);
        let completion_queues = completion_queues(&late);
        for task in late {
            task.reject(Error::DeadlinePassed);
        }
        announce(&completion_queues);
    }

    fn reject_reads(&self, rejected: &mut Vec<Task>, counter: &Counter) {
        if !rejected.is_empty() {
            counter.add(rejected.len() as u64);
            reject(rejected, self.target_ms.load(Ordering::Relaxed), self.read_wait());
        }
    }

    fn reject_writes(&self, rejected: &mut Vec<Task>, counter: &Counter) {
        if !rejected.is_empty() {
            counter.add(rejected.len() as u64);
            reject(rejected, self.target_ms.load(Ordering::Relaxed), self.write_wait());
        }
    }

    /// Estimates how long a new read would wait.
    pub(super) fn read_wait(&self) -> Option<Duration> {
        self.read_service_time.wait(self.reads.len(), self.storage_threads)
    }

    /// Estimates how long a new write would wait.
    pub(super) fn write_wait(&self) -> Option<Duration> {
        self.write_service_time.wait(self.writes.len(), 1)
    }

    /// Returns the figures of three queues: reads, writes, and steps of ranges and of change feeds. The steps wait for
    /// the same threads as the reads. The figures give `operations_max` and `scans_max` as the limits of the queues.
    pub(super) fn figures(&self, operations_max: usize, scans_max: usize) -> Vec<QueueFigures> {
        let (reads, steps, oldest_read) = self.reads.figures();
        let (writes, _, oldest_write) = self.writes.figures();
        let rejected = |of: &Rejections| [("delay", of.delay.get()), ("age", of.age.get())];
        let full = ("full", self.read_rejections.full.get());
        vec![
            QueueFigures {
                name: "reads",
                depth: reads,
                limit: operations_max,
                oldest: Some(oldest_read),
                wait: self.read_wait(),
                rejected: rejected(&self.read_rejections).into_iter().chain([full]).collect(),
            },
            QueueFigures {
                name: "writes",
                depth: writes,
                limit: operations_max,
                oldest: Some(oldest_write),
                wait: self.write_wait(),
                rejected: rejected(&self.write_rejections).to_vec(),
            },
            // Steps are never rejected, because each range or change feed in progress has a place.
            QueueFigures {
                name: "scan_steps",
                depth: steps,
                limit: scans_max,
                oldest: None,
                wait: self.read_wait(),
                rejected: Vec::new(),
            },
        ]
    }

    /// The number of storage threads that do an operation now, and the number of all storage threads.
    pub(super) fn busy_threads(&self) -> [usize; 2] {
        [self.busy_threads.load(Ordering::Relaxed), self.storage_threads]
    }

    pub(super) fn close(&self) {
        self.reads.close();
        self.writes.close();
    }
}

fn target_ms(control: Option<Queues>) -> u64 {
    control.map_or(0, |control| u64::try_from(control.target.as_millis()).unwrap_or(u64::MAX))
}

/// Commits the writes `here` on this thread if the engine need not wait for anything; otherwise returns the writes.
/// Rejects writes whose deadline has passed.
fn commit_here(engine: &dyn Engine, here: Vec<Task>) -> Vec<Task> {
    if here.is_empty() {
        return Vec::new();
    }
    let began = clock::now();
    let begun = here.into_iter().filter_map(Task::take).inspect(|task| task.begins(began));
    let (writes, pending): (Vec<_>, Vec<_>) = begun.filter_map(Task::into_write).unzip();
    if writes.is_empty() {
        return Vec::new();
    }
    let given_back = engine.try_commit(writes).err().unwrap_or_default();
    let tasks = given_back.into_iter().zip(pending);
    tasks.map(|(Pending { write, .. }, pending)| Task { operation: Operation::Write(write), pending }).collect()
}

fn reject(rejected: &mut Vec<Task>, limit: u64, retry_after: Option<Duration>) {
    let completion_queues = completion_queues(rejected);
    let error = Error::Overloaded { what: "the operation has waited too many ms for storage", limit, retry_after };
    for task in rejected.drain(..) {
        task.reject(error.clone());
    }
    announce(&completion_queues);
}

/// Returns the completion queues of `tasks`, each once. Compares each with all others, because there are few workers.
fn completion_queues(tasks: &[Task]) -> Vec<Arc<CompletionQueue>> {
    let mut completion_queues: Vec<Arc<CompletionQueue>> = Vec::new();
    for completions in tasks.iter().map(Task::completions) {
        if !completion_queues.iter().any(|known| Arc::ptr_eq(known, completions)) {
            completion_queues.push(completions.clone());
        }
    }
    completion_queues
}

fn announce(completion_queues: &[Arc<CompletionQueue>]) {
    for completions in completion_queues {
        completions.announce();
    }
}

/// Yields the core if a worker was woken for completed operations and has not run yet, because the worker's clients may
/// send writes for the next batch. If there is no such worker, does not yield: flushes and compactions on the same core
/// could run first, for more than a millisecond (docs/decisions/tail-latency.md).
fn yield_to_waiting_workers(answered: &[Arc<CompletionQueue>]) {
    if answered.iter().any(|completions| completions.is_announced()) {
        std::thread::yield_now();
    }
}
