//! One operation, shared by the connection that asked for it and the thread that runs it.
//!
//! The engine completes the operation from any thread through [`Reply`]; the connection awaits it. The permits end with
//! the operation. If the connection ends, the operation continues and keeps its permits, because it still uses the
//! memory and the slot that they stand for. `execution` calls this.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::execution::admission::{BodyBudget, BodyPermit, Slot};
use crate::execution::completion_queue::CompletionQueue;
use crate::execution::phases::{OperationTimes, PhaseTimes, Phases};
use crate::execution::task::{Deadline, has_passed};
use crate::execution::{ScanPermit, WatchPermit};
use klad_base::clock;
use klad_base::sync::Mutex;
use klad_storage::{Perf, Reply, Result};

/// Holds the permits of an operation until the operation ends. Dropping this gives the permits back.
#[derive(Debug)]
pub(super) struct Permits {
    _slot: Option<Slot>,
    _body: Option<BodyPermit>,
    _scan: Option<ScanPermit>,
    _watch: Option<WatchPermit>,
}

impl Permits {
    pub(super) fn new(slot: Slot, body: Option<BodyPermit>) -> Permits {
        Permits { _slot: Some(slot), _body: body, _scan: None, _watch: None }
    }

    pub(super) fn of_scan(permit: ScanPermit) -> Permits {
        Permits { _slot: None, _body: None, _scan: Some(permit), _watch: None }
    }

    pub(super) fn of_watch(permit: WatchPermit) -> Permits {
        Permits { _slot: None, _body: None, _scan: None, _watch: Some(permit) }
    }
}

/// The shared state of one operation.
#[derive(Debug)]
pub(super) struct PendingOperation {
    stage: Mutex<Stage>,
    deadline: Deadline,
    times: OperationTimes,
    /// The engine's measurements. Boxed, because they are large and most operations have none.
    perf: OnceLock<Box<Perf>>,
    completions: Arc<CompletionQueue>,
    /// Whether `complete` wakes the worker. If not, a thread that completes several operations announces all of them
    /// together afterwards.
    announces: bool,
    /// The budget from which a read takes a permit for a large value, before the engine copies the value. `None` for
    /// other operations.
    budget: Option<Arc<BodyBudget>>,
    answer_permit: Mutex<Option<BodyPermit>>,
}

#[derive(Debug)]
enum Stage {
    Waiting { permits: Permits, waker: Option<Waker> },
    Completed(Result, PhaseTimes),
    Collected,
}

impl PendingOperation {
    /// Creates the state of an operation that could begin at `since`. `budget` is for a read, whose value may need a
    /// permit.
    pub(super) fn new(
        permits: Permits,
        deadline: Deadline,
        since: Instant,
        completions: Arc<CompletionQueue>,
        announces: bool,
        budget: Option<Arc<BodyBudget>>,
    ) -> Arc<PendingOperation> {
        Arc::new(PendingOperation {
            stage: Mutex::new(Stage::Waiting { permits, waker: None }),
            deadline,
            times: OperationTimes::new(since),
            perf: OnceLock::new(),
            completions,
            announces,
            budget,
            answer_permit: Mutex::new(None),
        })
    }

    /// Takes the permit for the value of a completed read.
    pub(super) fn take_answer_permit(&self) -> Option<BodyPermit> {
        self.answer_permit.lock().take()
    }

    pub(super) fn completions(&self) -> &Arc<CompletionQueue> {
        &self.completions
    }

    /// Whether the operation should no longer begin.
    pub(super) fn deadline_has_passed(&self) -> bool {
        has_passed(self.deadline)
    }

    /// Records that the operation has left its queue.
    pub(super) fn begins(&self, now: Instant) {
        self.times.taken(now);
    }

    /// Returns a future for the operation's result, which also adds the operation's times to `phases`. May be called
    /// only once.
    pub(super) fn completion(self: Arc<PendingOperation>, phases: &Phases) -> Completion<'_> {
        Completion { pending: self, phases }
    }
}

impl Reply for PendingOperation {
    fn complete(&self, result: Result) {
        let spent = self.times.ended(clock::now);
        let before = std::mem::replace(&mut *self.stage.lock(), Stage::Completed(result, spent));
        let Stage::Waiting { permits, waker } = before else {
            panic!("an operation was completed twice");
        };
        drop(permits);
        if let Some(waker) = waker {
            self.completions.push(waker);
            if self.announces {
                self.completions.announce();
            }
        }
    }

    fn clocked(&self, now: Instant, sync: Duration) {
        self.times.clocked(now, sync);
    }

    fn measured(&self, perf: &Perf) {
        // A second measurement would be of the same operation.
        let _ = self.perf.set(Box::new(*perf));
    }

    fn admits(&self, value_bytes: usize) -> bool {
        let Some(budget) = &self.budget else { return true };
        let taken = budget.try_take(value_bytes as u64);
        let admitted = taken.is_some();
        *self.answer_permit.lock() = taken;
        admitted
    }
}

/// Waits until an operation is complete.
pub(super) struct Completion<'p> {
    pending: Arc<PendingOperation>,
    phases: &'p Phases,
}

impl Future for Completion<'_> {
    type Output = Result;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result> {
        let mut stage = self.pending.stage.lock();
        match &mut *stage {
            Stage::Waiting { waker, .. } => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            Stage::Completed(..) => match std::mem::replace(&mut *stage, Stage::Collected) {
                Stage::Completed(result, spent) => {
                    self.phases.add(spent);
                    if let Some(perf) = self.pending.perf.get() {
                        self.phases.measured(perf);
                    }
                    Poll::Ready(result)
                }
                Stage::Waiting { .. } | Stage::Collected => unreachable!("the lock is held"),
            },
            Stage::Collected => panic!("the result of an operation was collected twice"),
        }
    }
}
