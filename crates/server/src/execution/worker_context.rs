//! A worker's side of the executor. The connections of the worker call it, on the worker's thread only.
//!
//! A loop iteration is one pass over the tasks that are ready. It begins with the first request, which wakes the
//! iteration's own task. That task runs after all tasks that were ready before it, so when it runs, all writes of the
//! iteration are gathered. The length of the iteration is the time from the first request until the task runs. A
//! request may wait that long for the worker. `http` and `connection` call this.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::execution::admission::BodyPermit;
use crate::execution::completion_queue::CompletionQueue;
use crate::execution::observe::ReadCounters;
use crate::execution::pending_operation::{PendingOperation, Permits};
use crate::execution::phases::Phases;
use crate::execution::task::{Deadline, Task, has_passed};
use crate::execution::worker_reads::WorkerReads;
use crate::execution::{Executor, Runner, ScanPermit, WatchPermit};
use crate::limits::FEED_STEPS_PER_WORKER;
use klad_base::clock;
use klad_storage::Result;
use klad_storage::changes::ChangesStep;
use klad_storage::operation::{Consistency, Error, Operation, Outcome, RangeRemoval, ScanStep, Write};

/// The executor as one worker sees it.
pub struct WorkerContext {
    executor: Arc<Executor>,
    completions: Arc<CompletionQueue>,
    /// The writes that the requests of this loop iteration have begun.
    gathered: RefCell<Vec<Task>>,
    /// Wakes the task of the loop iteration.
    iteration: RefCell<Option<Waker>>,
    /// When the current loop iteration began; `None` if none has begun.
    began: Cell<Option<Instant>>,
    /// The number of requests of this iteration.
    requests: Cell<u32>,
    has_deadline: Cell<bool>,
    scratch: RefCell<Vec<Waker>>,
    read_counters: Arc<ReadCounters>,
    worker_reads: WorkerReads,
    /// Wakes the change feeds of this worker.
    changed: Notify,
    /// Permits for steps of change feeds.
    feed_permits: Semaphore,
    stopping: Cell<bool>,
}

/// The figures of a loop iteration that has ended.
#[derive(Clone, Copy, Debug)]
pub struct LoopIteration {
    /// The time from the beginning of the iteration, usually its first request, to its end.
    pub length: Duration,
    /// The number of requests that began in the iteration.
    pub requests: u32,
    /// Whether one of these requests had a deadline.
    pub has_deadline: bool,
}

impl WorkerContext {
    /// Creates the context of the calling worker.
    #[must_use]
    pub fn new(executor: Arc<Executor>) -> Rc<WorkerContext> {
        let read_counters = Arc::<ReadCounters>::default();
        executor.read_counters.lock().push(read_counters.clone());
        let completions = Arc::<CompletionQueue>::default();
        if let Some(changes) = executor.engine.changes() {
            let completions = completions.clone();
            changes.bell().listen(move || completions.ring());
        }
        Rc::new(WorkerContext {
            executor,
            completions,
            gathered: RefCell::default(),
            iteration: RefCell::default(),
            began: Cell::new(None),
            requests: Cell::new(0),
            has_deadline: Cell::new(false),
            scratch: RefCell::default(),
            read_counters,
            worker_reads: WorkerReads::new(),
            changed: Notify::new(),
            feed_permits: Semaphore::new(FEED_STEPS_PER_WORKER),
            stopping: Cell::new(false),
        })
    }

    /// The executor, which all workers share.
    #[must_use]
    pub fn executor(&self) -> &Arc<Executor> {
        &self.executor
    }

    /// When the current loop iteration began, if there is one.
    #[must_use]
    pub fn iteration_began(&self) -> Option<Instant> {
        self.began.get()
    }

    /// Counts a request that has arrived at `now`. Begins a loop iteration if none has begun.
    pub fn request_begins(&self, now: Instant) {
        self.requests.set(self.requests.get() + 1);
        if self.began.get().is_none() {
            self.begin_iteration_at(now);
        }
    }

    /// Notes that a request of this loop iteration has a deadline.
    pub fn request_has_deadline(&self) {
        self.has_deadline.set(true);
    }

    /// Begins a loop iteration, which ends after all tasks that are ready now have run. Does nothing if one has begun.
    pub fn begin_iteration(&self) {
        if self.began.get().is_none() {
            self.begin_iteration_at(clock::now());
        }
    }

    fn begin_iteration_at(&self, now: Instant) {
        self.began.set(Some(now));
        if let Some(iteration) = &*self.iteration.borrow() {
            iteration.wake_by_ref();
        }
    }

    /// Ends the loop iteration: commits the gathered writes, and wakes the connections whose operations have completed.
    /// Returns the iteration's figures. `None`: no iteration had begun, and only completed operations woke the task.
    pub fn poll_iteration(&self, context: &Context<'_>) -> Option<LoopIteration> {
        if !self.iteration.borrow().as_ref().is_some_and(|iteration| iteration.will_wake(context.waker())) {
            self.completions.set_iteration(context.waker());
            *self.iteration.borrow_mut() = Some(context.waker().clone());
        }
        let (requests, has_deadline) = (self.requests.take(), self.has_deadline.take());
        let iteration = self.began.take().map(|began| {
            let length = clock::now().saturating_duration_since(began);
            LoopIteration { length, requests, has_deadline }
        });
        self.write_gathered();
        self.worker_reads.iteration_ends();
        if self.completions.wake_all(&mut self.scratch.borrow_mut()) {
            self.changed.notify_waiters();
        }
        iteration
    }

    fn write_gathered(&self) {
        let mut gathered = self.gathered.borrow_mut();
        if let (Runner::Adaptive(adaptive), false) = (&self.executor.runner, gathered.is_empty()) {
            adaptive.commit_iteration(&*self.executor.engine, &mut gathered);
        }
    }

    /// Reads a key on the worker if the strategy allows that, and either memory can answer or storage is quick. `None`:
    /// [`WorkerContext::get`] must read the key.
    pub fn get_here(&self, key: &[u8], deadline: Deadline, phases: &Phases) -> Option<Result> {
        if !self.executor.asks_memory_first {
            return None;
        }
        if self.worker_reads.looks_in_memory() {
            let began = phases.asks_memory();
            let cached = self.executor.engine.read_cached(key);
            phases.asked_memory(began);
            self.worker_reads.looked_in_memory(cached.is_some());
            if cached.is_some() {
                self.read_counters.from_memory.add_owned(1);
                phases.answered_from_memory();
                return cached;
            }
        }
        let Runner::Adaptive(adaptive) = &self.executor.runner else { return None };
        if !self.worker_reads.are_on(&adaptive.quick_reads) || has_passed(deadline) {
            return None;
        }
        let (engine, key) = (&*self.executor.engine, Bytes::copy_from_slice(key));
        let read = self.worker_reads.read(&adaptive.quick_reads, engine, key, phases)?;
        self.read_counters.from_storage.add_owned(1);
        self.read_counters.on_worker.add_owned(1);
        Some(read)
    }

    /// Reads a key that [`WorkerContext::get_here`] could not read. Returns the outcome. If the value is large and was
    /// copied, also returns the value's memory permit.
    ///
    /// # Errors
    /// [`Error::Overloaded`], `DeadlinePassed` or `Stopping` if the operation has not begun; otherwise the engine's
    /// error.
    pub async fn get(
        &self,
        key: Bytes,
        consistency: Consistency,
        deadline: Deadline,
        phases: &Phases,
    ) -> std::result::Result<(Outcome, Option<BodyPermit>), Error> {
        self.read_counters.from_storage.add_owned(1);
        let permits = self.executor.permits(1, key.len(), None, deadline, || self.executor.read_wait())?;
        let (completions, budget) = (self.completions.clone(), self.executor.budget.clone());
        let pending = PendingOperation::new(permits, deadline, phases.since(), completions, true, Some(budget));
        self.executor.run(Task { operation: Operation::Get { key, consistency }, pending: pending.clone() })?;
        let outcome = pending.clone().completion(phases).await?;
        Ok((outcome, pending.take_answer_permit()))
    }

    /// Begins a write. `permit` is the body's memory permit, which ends with the operation. The operation continues
    /// even if the returned future is dropped.
    ///
    /// # Errors
    /// The errors of [`WorkerContext::get`] and [`Executor::writable`], and [`Error::NotSupported`].
    pub fn write<'p>(
        &self,
        write: Write,
        permit: Option<BodyPermit>,
        deadline: Deadline,
        phases: &'p Phases,
    ) -> std::result::Result<impl Future<Output = Result> + use<'p>, Error> {
        if let Some(what) = self.executor.capabilities.lacks(&write) {
            return Err(Error::NotSupported { engine: self.executor.engine_name(), what });
        }
        let key_bytes = write.changes.iter().map(|change| change.key.len()).sum();
        let changes = write.changes.len();
        let permits = self.executor.permits(changes, key_bytes, permit, deadline, || self.executor.write_wait())?;
        let gathers = matches!(self.executor.runner, Runner::Adaptive(_));
        let pending =
            PendingOperation::new(permits, deadline, phases.since(), self.completions.clone(), !gathers, None);
        let task = Task { operation: Operation::Write(write), pending: pending.clone() };
        if gathers {
            self.gathered.borrow_mut().push(task);
            self.begin_iteration();
        } else {
            self.executor.run(task)?;
        }
        Ok(pending.completion(phases))
    }

    /// Does a write whose result depends on the present state of its keys. If the engine's calls block, a
    /// separate operation first reads these keys, so that the commit section does not wait for the disk. A write of one
    /// key whose value is in memory needs no such read.
    ///
    /// # Errors
    /// The errors of [`WorkerContext::write`].
    pub async fn write_on_state(
        &self,
        write: Write,
        permit: Option<BodyPermit>,
        deadline: Deadline,
        phases: &Phases,
    ) -> Result {
        let in_memory = |key: &[u8]| self.executor.engine.read_cached(key).is_some();
        let keys = match &write.changes[..] {
            [change] if !change.depends_on_state() || in_memory(&change.key) => Vec::new(),
            changes => changes.iter().filter(|one| one.depends_on_state()).map(|one| one.key.clone()).collect(),
        };
        if self.executor.capabilities.blocks && self.executor.capabilities.conditions && !keys.is_empty() {
            self.run(keys.len(), Operation::Prefetch { keys }, None, deadline, phases).await?;
        }
        self.write(write, permit, deadline, phases)?.await
    }

    /// Reads many keys, with values of at most `bytes_max` bytes together. `permit` is the memory permit for so many
    /// bytes.
    ///
    /// # Errors
    /// The errors of [`WorkerContext::get`].
    pub async fn get_many(
        &self,
        keys: Vec<Bytes>,
        bytes_max: usize,
        consistency: Consistency,
        permit: Option<BodyPermit>,
        deadline: Deadline,
        phases: &Phases,
    ) -> Result {
        self.run(keys.len(), Operation::GetMany { keys, bytes_max, consistency }, permit, deadline, phases).await
    }

    /// Removes all keys of a range.
    ///
    /// # Errors
    /// The errors of [`WorkerContext::write`].
    pub async fn remove_range(&self, removal: RangeRemoval, deadline: Deadline, phases: &Phases) -> Result {
        if !self.executor.capabilities.range_removals {
            return Err(Error::NotSupported { engine: self.executor.engine_name(), what: "range removals" });
        }
        self.run(1, Operation::RemoveRange(removal), None, deadline, phases).await
    }

    /// Waits until this worker does fewer than [`FEED_STEPS_PER_WORKER`] steps of change feeds.
    pub async fn feed_permit(&self) -> SemaphorePermit<'_> {
        self.feed_permits.acquire().await.expect("the semaphore is never closed")
    }

    /// Does one step of a change feed.
    ///
    /// # Errors
    /// The engine's error, or [`Error::Stopping`].
    pub async fn read_changes(&self, permit: &WatchPermit, step: ChangesStep, phases: &Phases) -> Result {
        let permits = Permits::of_watch(permit.clone());
        let pending = PendingOperation::new(permits, None, clock::now(), self.completions.clone(), true, None);
        self.executor.run(Task { operation: Operation::Changes(step), pending: pending.clone() })?;
        pending.completion(phases).await
    }

    /// Makes the next commit complete the futures that [`WorkerContext::changed`] has returned before.
    pub fn arm_changes(&self) {
        if let Some(changes) = self.executor.engine.changes() {
            changes.bell().arm();
        }
    }

    /// Waits until something was committed, or klad stops.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Ends the change feeds of this worker, because klad stops.
    pub fn stop_feeds(&self) {
        self.stopping.set(true);
        self.changed.notify_waiters();
    }

    /// Whether klad stops.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Runs an operation that is neither a read of one key nor a write of keys. The operation takes `slots` slots.
    async fn run(
        &self,
        slots: usize,
        operation: Operation,
        permit: Option<BodyPermit>,
        deadline: Deadline,
        phases: &Phases,
    ) -> Result {
        let permits = self.executor.permits(slots, 0, permit, deadline, || self.executor.read_wait())?;
        let completions = self.completions.clone();
        let pending = PendingOperation::new(permits, deadline, phases.since(), completions, true, None);
        self.executor.run(Task { operation, pending: pending.clone() })?;
        pending.completion(phases).await
    }

    /// Does one step of a range.
    ///
    /// # Errors
    /// The engine's error, [`Error::Stopping`], or [`Error::DeadlinePassed`].
    pub async fn scan(&self, permit: &ScanPermit, step: ScanStep, deadline: Deadline, phases: &Phases) -> Result {
        let permits = Permits::of_scan(permit.clone());
        let pending = PendingOperation::new(permits, deadline, clock::now(), self.completions.clone(), true, None);
        self.executor.run(Task { operation: Operation::Scan(Box::new(step)), pending: pending.clone() })?;
        pending.completion(phases).await
    }
}
