//! A worker's side of the executor: what the connections of one worker call, on its thread only.
//!
//! A turn is one pass over the tasks that are ready. It begins with the first request, which wakes the turn's own task; that
//! comes behind all tasks that are ready by then, so the writes of a turn are gathered when it runs, and the time from one to
//! the other is what any request waits for the worker. Called by `http` and `server`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::execution::admission::BodyPermit;
use crate::execution::completion_queue::CompletionQueue;
use crate::execution::observe::LocalFigures;
use crate::execution::pending_operation::{PendingOperation, Permits};
use crate::execution::phases::Phases;
use crate::execution::task::{Deadline, Task};
use crate::execution::{Executor, Runner, ScanPermit};
use klad_base::clock;
use klad_storage::Result;
use klad_storage::operation::{Error, Operation, Outcome, ScanStep, Write};

/// The executor, as one worker sees it.
pub struct WorkerContext {
    executor: Arc<Executor>,
    completions: Arc<CompletionQueue>,
    /// Writes of this turn.
    gathered: RefCell<Vec<Task>>,
    iteration: RefCell<Option<Waker>>,
    /// The turn's task is woken, since then.
    began: Cell<Option<Instant>>,
    /// Requests of this turn.
    requests: Cell<u32>,
    hurried: Cell<bool>,
    scratch: RefCell<Vec<Waker>>,
    figures: Arc<LocalFigures>,
}

/// A turn that has ended.
#[derive(Clone, Copy, Debug)]
pub struct LoopIteration {
    /// From its first request to its end.
    pub length: Duration,
    /// Begun in it.
    pub requests: u32,
    /// One of them came with a deadline.
    pub hurried: bool,
}

impl WorkerContext {
    /// For the worker on whose thread this is called.
    #[must_use]
    pub fn new(executor: Arc<Executor>) -> Rc<WorkerContext> {
        let figures = Arc::<LocalFigures>::default();
        executor.locals.lock().push(figures.clone());
        Rc::new(WorkerContext {
            executor,
            completions: Arc::default(),
            gathered: RefCell::default(),
            iteration: RefCell::default(),
            began: Cell::new(None),
            requests: Cell::new(0),
            hurried: Cell::new(false),
            scratch: RefCell::default(),
            figures,
        })
    }

    /// What all workers share.
    #[must_use]
    pub fn executor(&self) -> &Arc<Executor> {
        &self.executor
    }

    /// When the turn began, if one has.
    #[must_use]
    pub fn iteration_began(&self) -> Option<Instant> {
        self.began.get()
    }

    /// A request has come, now: a turn has begun, if none had.
    pub fn request_begins(&self, now: Instant) {
        self.requests.set(self.requests.get() + 1);
        if self.began.get().is_none() {
            self.iteration_begins_at(now);
        }
    }

    /// The request that has come has a deadline.
    pub fn request_hurries(&self) {
        self.hurried.set(true);
    }

    /// There is more to be done behind what is ready now.
    pub fn iteration_goes_on(&self) {
        self.iteration_begins();
    }

    fn iteration_begins(&self) {
        if self.began.get().is_none() {
            self.iteration_begins_at(clock::now());
        }
    }

    fn iteration_begins_at(&self, now: Instant) {
        self.began.set(Some(now));
        if let Some(iteration) = &*self.iteration.borrow() {
            iteration.wake_by_ref();
        }
    }

    /// The turn's end: wakes the connections whose operations have ended, and writes what was gathered. Answers how long
    /// the turn was, if a request began it.
    pub fn poll_iteration(&self, context: &Context<'_>) -> Option<LoopIteration> {
        if !self.iteration.borrow().as_ref().is_some_and(|iteration| iteration.will_wake(context.waker())) {
            self.completions.set_iteration(context.waker());
            *self.iteration.borrow_mut() = Some(context.waker().clone());
        }
        let (requests, hurried) = (self.requests.take(), self.hurried.take());
        let iteration = self.began.take().map(|began| {
            let length = clock::now().saturating_duration_since(began);
            LoopIteration { length, requests, hurried }
        });
        self.write_gathered();
        self.completions.wake_ended(&mut self.scratch.borrow_mut());
        iteration
    }

    fn write_gathered(&self) {
        let mut gathered = self.gathered.borrow_mut();
        if let (Runner::Adaptive(adaptive), false) = (&self.executor.runner, gathered.is_empty()) {
            adaptive.commit_iteration(&*self.executor.engine, &mut gathered);
        }
    }

    /// Reads a key if memory can answer and reads are answered by the worker.
    pub fn get_from_memory(&self, key: &[u8], phases: &Phases) -> Option<Result> {
        if !self.executor.asks_memory_first {
            return None;
        }
        let began = phases.asks_memory();
        let cached = self.executor.engine.read_cached(key);
        phases.asked_memory(began);
        if cached.is_some() {
            self.figures.reads_here.add_owned(1);
            phases.answered_from_memory();
        }
        cached
    }

    /// Reads a key that memory did not answer; with the value the room that was taken for it, if it is large and had to be
    /// copied.
    ///
    /// # Errors
    /// [`Error::Overloaded`], `DeadlinePassed` and `Stopping` before anything was done,
    /// else what the engine says.
    pub async fn get(
        &self,
        key: Bytes,
        deadline: Deadline,
        phases: &Phases,
    ) -> std::result::Result<(Outcome, Option<BodyPermit>), Error> {
        self.figures.reads_handed_on.add_owned(1);
        let permits = self.executor.permits(key.len(), None, deadline, || self.executor.read_wait())?;
        let (completions, budget) = (self.completions.clone(), self.executor.budget.clone());
        let pending = PendingOperation::of_read(permits, deadline, phases.since(), completions, budget);
        self.executor.run(Task { operation: Operation::Get { key }, pending: pending.clone() })?;
        let outcome = pending.clone().ended(phases).await?;
        Ok((outcome, pending.take_answer_permit()))
    }

    /// Begins a write; `budget` was taken for the body and ends with the operation, which goes on where nobody waits for it.
    ///
    /// # Errors
    /// As [`WorkerContext::get`], [`Executor::writable`]'s, and [`Error::NotSupported`].
    pub fn write<'p>(
        &self,
        write: Write,
        budget: Option<BodyPermit>,
        deadline: Deadline,
        phases: &'p Phases,
    ) -> std::result::Result<impl Future<Output = Result> + use<'p>, Error> {
        if let Some(what) = self.executor.capabilities.lacks(&write) {
            return Err(Error::NotSupported { engine: self.executor.engine_name(), what });
        }
        let key_bytes = write.changes.iter().map(|change| change.key.len()).sum();
        let permits = self.executor.permits(key_bytes, budget, deadline, || self.executor.write_wait())?;
        let gathers = matches!(self.executor.runner, Runner::Adaptive(_));
        let pending = PendingOperation::new(permits, deadline, phases.since(), self.completions.clone(), !gathers);
        let task = Task { operation: Operation::Write(write), pending: pending.clone() };
        if gathers {
            self.gathered.borrow_mut().push(task);
            self.iteration_begins();
        } else {
            self.executor.run(task)?;
        }
        Ok(pending.ended(phases))
    }

    /// Does one step of a range.
    ///
    /// # Errors
    /// What the engine says, or [`Error::Stopping`].
    pub async fn scan(&self, permit: &ScanPermit, step: ScanStep, phases: &Phases) -> Result {
        let pending =
            PendingOperation::new(Permits::of_scan(permit.clone()), None, clock::now(), self.completions.clone(), true);
        self.executor.run(Task { operation: Operation::Scan(step), pending: pending.clone() })?;
        pending.ended(phases).await
    }
}
