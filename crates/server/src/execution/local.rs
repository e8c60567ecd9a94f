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

use crate::execution::admission::RoomPermit;
use crate::execution::inbox::Inbox;
use crate::execution::observe::LocalFigures;
use crate::execution::phases::Phases;
use crate::execution::task::{Deadline, Task};
use crate::execution::ticket::{Permits, Ticket};
use crate::execution::{Executor, Runner, ScanPermit};
use klad_base::clock;
use klad_storage::Result;
use klad_storage::operation::{Error, Operation, Outcome, ScanStep, Write};

/// The executor, as one worker sees it.
pub struct Local {
    executor: Arc<Executor>,
    inbox: Arc<Inbox>,
    /// Writes of this turn.
    gathered: RefCell<Vec<Task>>,
    turn: RefCell<Option<Waker>>,
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
pub struct Turn {
    /// From its first request to its end.
    pub length: Duration,
    /// Begun in it.
    pub requests: u32,
    /// One of them came with a deadline.
    pub hurried: bool,
}

impl Local {
    /// For the worker on whose thread this is called.
    #[must_use]
    pub fn new(executor: Arc<Executor>) -> Rc<Local> {
        let figures = Arc::<LocalFigures>::default();
        executor.locals.lock().push(figures.clone());
        Rc::new(Local {
            executor,
            inbox: Arc::default(),
            gathered: RefCell::default(),
            turn: RefCell::default(),
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
    pub fn turn_began(&self) -> Option<Instant> {
        self.began.get()
    }

    /// A request has come, now: a turn has begun, if none had.
    pub fn request_begins(&self, now: Instant) {
        self.requests.set(self.requests.get() + 1);
        if self.began.get().is_none() {
            self.turn_begins_at(now);
        }
    }

    /// The request that has come has a deadline.
    pub fn request_hurries(&self) {
        self.hurried.set(true);
    }

    /// There is more to be done behind what is ready now.
    pub fn turn_goes_on(&self) {
        self.turn_begins();
    }

    fn turn_begins(&self) {
        if self.began.get().is_none() {
            self.turn_begins_at(clock::now());
        }
    }

    fn turn_begins_at(&self, now: Instant) {
        self.began.set(Some(now));
        if let Some(turn) = &*self.turn.borrow() {
            turn.wake_by_ref();
        }
    }

    /// The turn's end: wakes the connections whose operations have ended, and writes what was gathered. Answers how long
    /// the turn was, if a request began it.
    pub fn poll_turn(&self, context: &Context<'_>) -> Option<Turn> {
        if !self.turn.borrow().as_ref().is_some_and(|turn| turn.will_wake(context.waker())) {
            self.inbox.set_turn(context.waker());
            *self.turn.borrow_mut() = Some(context.waker().clone());
        }
        let (requests, hurried) = (self.requests.take(), self.hurried.take());
        let turn = self.began.take().map(|began| {
            let length = clock::now().saturating_duration_since(began);
            Turn { length, requests, hurried }
        });
        self.write_gathered();
        self.inbox.wake_ended(&mut self.scratch.borrow_mut());
        turn
    }

    fn write_gathered(&self) {
        let mut gathered = self.gathered.borrow_mut();
        if let (Runner::Adaptive(adaptive), false) = (&self.executor.runner, gathered.is_empty()) {
            adaptive.commit_turn(&*self.executor.engine, &mut gathered);
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
    ) -> std::result::Result<(Outcome, Option<RoomPermit>), Error> {
        self.figures.reads_handed_on.add_owned(1);
        let permits = self.executor.permits(key.len(), None, deadline, || self.executor.read_wait())?;
        let (inbox, room) = (self.inbox.clone(), self.executor.room.clone());
        let ticket = Ticket::of_read(permits, deadline, phases.since(), inbox, room);
        self.executor.run(Task { operation: Operation::Get { key }, ticket: ticket.clone() })?;
        let outcome = ticket.clone().ended(phases).await?;
        Ok((outcome, ticket.take_answer_room()))
    }

    /// Begins a write; `room` was taken for the body and ends with the operation, which goes on where nobody waits for it.
    ///
    /// # Errors
    /// As [`Local::get`], [`Executor::writable`]'s, and [`Error::NotSupported`].
    pub fn write<'p>(
        &self,
        write: Write,
        room: Option<RoomPermit>,
        deadline: Deadline,
        phases: &'p Phases,
    ) -> std::result::Result<impl Future<Output = Result> + use<'p>, Error> {
        if let Some(what) = self.executor.capabilities.lacks(&write) {
            return Err(Error::NotSupported { engine: self.executor.engine_name(), what });
        }
        let key_bytes = write.changes.iter().map(|change| change.key.len()).sum();
        let permits = self.executor.permits(key_bytes, room, deadline, || self.executor.write_wait())?;
        let gathers = matches!(self.executor.runner, Runner::Adaptive(_));
        let ticket = Ticket::new(permits, deadline, phases.since(), self.inbox.clone(), !gathers);
        let task = Task { operation: Operation::Write(write), ticket: ticket.clone() };
        if gathers {
            self.gathered.borrow_mut().push(task);
            self.turn_begins();
        } else {
            self.executor.run(task)?;
        }
        Ok(ticket.ended(phases))
    }

    /// Does one step of a range.
    ///
    /// # Errors
    /// What the engine says, or [`Error::Stopping`].
    pub async fn scan(&self, permit: &ScanPermit, step: ScanStep, phases: &Phases) -> Result {
        let ticket = Ticket::new(Permits::of_scan(permit.clone()), None, clock::now(), self.inbox.clone(), true);
        self.executor.run(Task { operation: Operation::Scan(step), ticket: ticket.clone() })?;
        ticket.ended(phases).await
    }
}
