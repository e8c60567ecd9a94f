//! `--execution adaptive`: reads on the worker where memory can answer, else on a storage thread; writes gathered over a
//! turn of the worker, then in one batch.
//!
//! ```text
//!   worker ──get──▶ Engine::read_cached ──in memory──▶ answer, same turn, no queue
//!                        └─not in memory─▶ reads ─▶ klad-storage-N ─▶ Ticket ─▶ Inbox ─▶ worker
//!   worker ──put, delete──▶ gathered ──end of turn──┬─ async ─▶ Engine::try_commit, on the worker
//!                                                   └─ sync, or the section is taken ─▶ writes ─▶ klad-commit ─▶ Inbox
//! ```
//!
//! Both queues control their delay ([`DelayQueue`]) and have a place for every operation slot, so an admitted operation
//! finds room. `docs/execution.md` has the figures of what else was tried. Called by `execution` and `worker_context`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::execution::Queues;
use crate::execution::completion_queue::CompletionQueue;
use crate::execution::delay_queue::DelayQueue;
use crate::execution::observe::{QueueLook, Refused};
use crate::execution::service_time::ServiceTime;
use crate::execution::task::Task;
use klad_base::clock;
use klad_base::limits::{COMMIT_BYTES_MAX, COMMIT_WRITES_MAX, ITERATION_COMMIT_BYTES_MAX, SLOTS_CEILING};
use klad_base::metrics::Counter;
use klad_base::os::scheduler;
use klad_base::sync::{self, PushError};
use klad_storage::operation::{Error, Operation};
use klad_storage::{Engine, Pending};

/// The two queues, and how fast each is served.
pub(super) struct Adaptive {
    reads: DelayQueue,
    writes: DelayQueue,
    read_service_time: ServiceTime,
    write_service_time: ServiceTime,
    reads_refused: Refused,
    writes_refused: Refused,
    storage_threads: usize,
    /// For refusals.
    target_ms: AtomicU64,
}

impl Adaptive {
    /// With a place for each operation that there may ever be; `control` of `None` refuses nothing else.
    pub(super) fn new(storage_threads: usize, control: Option<Queues>) -> Arc<Adaptive> {
        Arc::new(Adaptive {
            reads: DelayQueue::new(SLOTS_CEILING, control),
            writes: DelayQueue::new(SLOTS_CEILING, control),
            read_service_time: ServiceTime::default(),
            write_service_time: ServiceTime::default(),
            reads_refused: Refused::default(),
            writes_refused: Refused::default(),
            storage_threads,
            target_ms: AtomicU64::new(target_ms(control)),
        })
    }

    /// Changes how long is too long in a queue.
    pub(super) fn set_control(&self, control: Option<Queues>) {
        self.target_ms.store(target_ms(control), Ordering::Relaxed);
        self.reads.set_control(control);
        self.writes.set_control(control);
    }

    /// Hands a read or a step of a range to the storage threads.
    pub(super) fn push(&self, task: Task) -> Result<(), PushError<Task>> {
        let pushed = self.reads.push(task);
        if matches!(pushed, Err(PushError::Full(_))) {
            self.reads_refused.full.add(1);
        }
        pushed
    }

    /// The storage threads and the committer.
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
        let mut refused = Vec::new();
        while let Some(task) = self.reads.pop(&mut refused) {
            self.refuse_reads(&mut refused, &self.reads_refused.delay);
            if let Some(task) = task.take() {
                let began = clock::now();
                task.begins(began);
                task.run(engine);
                self.read_service_time.served(1, began);
            }
        }
    }

    /// The committer: takes what has gathered while the last batch was written, and writes it as the next.
    fn run_commits(&self, engine: &dyn Engine, delay: Duration) {
        let (mut tasks, mut refused, mut answered) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            gives_way_to(&answered);
            if !delay.is_zero() {
                self.writes.wait_for_more(delay);
            }
            if !self.writes.pop_batch(COMMIT_WRITES_MAX, COMMIT_BYTES_MAX, &mut tasks, &mut refused) {
                return;
            }
            self.refuse_writes(&mut refused, &self.writes_refused.delay);
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
                // Those whose deadline has passed need not wait for the others.
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

    /// Writes what a worker has gathered in one turn: what needs no sync here and now, if it need not wait for anything;
    /// the rest goes to the committer with one wake-up.
    pub(super) fn commit_iteration(&self, engine: &dyn Engine, gathered: &mut Vec<Task>) {
        let (mut tasks, mut here): (Vec<Task>, Vec<Task>) = gathered.drain(..).partition(Task::needs_sync);
        let bytes: usize = here.iter().map(Task::write_bytes).sum();
        if bytes > ITERATION_COMMIT_BYTES_MAX || here.len() > COMMIT_WRITES_MAX {
            tasks.append(&mut here);
        }
        tasks.extend(commit_here(engine, here));
        if tasks.is_empty() {
            return;
        }
        self.writes.push_all(&mut tasks);
        // Every slot has a place, so only a closed queue leaves some.
        let completion_queues = completion_queues(&tasks);
        for task in tasks {
            task.refuse(Error::Stopping);
        }
        announce(&completion_queues);
    }

    /// Measures, and refuses what has waited beyond all bounds: called often, by a thread that never waits for storage.
    pub(super) fn tick(&self) {
        self.read_service_time.tick();
        self.write_service_time.tick();
        let (mut refused, mut late) = (Vec::new(), Vec::new());
        self.reads.expire(&mut refused, &mut late);
        self.refuse_reads(&mut refused, &self.reads_refused.age);
        self.writes.expire(&mut refused, &mut late);
        self.refuse_writes(&mut refused, &self.writes_refused.age);
        let completion_queues = completion_queues(&late);
        for task in late {
            task.refuse(Error::DeadlinePassed);
        }
        announce(&completion_queues);
    }

    fn refuse_reads(&self, refused: &mut Vec<Task>, counter: &Counter) {
        if !refused.is_empty() {
            counter.add(refused.len() as u64);
            refuse(refused, self.target_ms.load(Ordering::Relaxed), self.read_wait());
        }
    }

    fn refuse_writes(&self, refused: &mut Vec<Task>, counter: &Counter) {
        if !refused.is_empty() {
            counter.add(refused.len() as u64);
            refuse(refused, self.target_ms.load(Ordering::Relaxed), self.write_wait());
        }
    }

    /// How long a read that came now would wait.
    pub(super) fn read_wait(&self) -> Option<Duration> {
        self.read_service_time.wait(self.reads.len(), self.storage_threads)
    }

    /// How long a write that came now would wait.
    pub(super) fn write_wait(&self) -> Option<Duration> {
        self.write_service_time.wait(self.writes.len(), 1)
    }

    /// The three queues; steps of ranges wait in one of their own, up to `scans_max`.
    pub(super) fn look(&self, operations_max: usize, scans_max: usize) -> Vec<QueueLook> {
        let (reads, steps, oldest_read) = self.reads.look();
        let (writes, _, oldest_write) = self.writes.look();
        let refused = |of: &Refused| [("delay", of.delay.get()), ("age", of.age.get())];
        let full = ("full", self.reads_refused.full.get());
        vec![
            QueueLook {
                name: "reads",
                depth: reads,
                limit: operations_max,
                oldest: Some(oldest_read),
                wait: self.read_wait(),
                refused: refused(&self.reads_refused).into_iter().chain([full]).collect(),
            },
            QueueLook {
                name: "writes",
                depth: writes,
                limit: operations_max,
                oldest: Some(oldest_write),
                wait: self.write_wait(),
                refused: refused(&self.writes_refused).to_vec(),
            },
            // Never refused: who is under way has a place.
            QueueLook {
                name: "scan_steps",
                depth: steps,
                limit: scans_max,
                oldest: None,
                wait: self.read_wait(),
                refused: Vec::new(),
            },
        ]
    }

    pub(super) fn close(&self) {
        self.reads.close();
        self.writes.close();
    }
}

fn target_ms(control: Option<Queues>) -> u64 {
    control.map_or(0, |control| u64::try_from(control.target.as_millis()).unwrap_or(u64::MAX))
}

/// Commits on this thread if that waits for nothing; else gives all back.
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

fn refuse(refused: &mut Vec<Task>, limit: u64, retry_after: Option<Duration>) {
    let completion_queues = completion_queues(refused);
    let error = Error::Overloaded {
        what: "the queue for storage stands, and this has waited too many ms in it",
        limit,
        retry_after,
    };
    for task in refused.drain(..) {
        task.refuse(error.clone());
    }
    announce(&completion_queues);
}

/// The inboxes of `tasks`, each once: there are few workers.
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

/// Lets a worker go first that was told of ends and has not run since: its clients may write again, in the batch that is next.
/// Only then: who yields for nothing lets flushes and compactions go first for more than a millisecond, where they share its core
/// (docs/decisions/2026-11-23-the-committer-yields-to-workers.md).
fn gives_way_to(answered: &[Arc<CompletionQueue>]) {
    if answered.iter().any(|completions| completions.is_announced()) {
        std::thread::yield_now();
    }
}
