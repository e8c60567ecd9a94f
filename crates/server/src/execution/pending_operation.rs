//! One operation between the connection that asked and the thread that does it.
//!
//! The engine ends it from any thread through [`Reply`]; the connection awaits it. The permits end with the operation: when
//! the connection goes away the operation goes on, holding them, because what was admitted still uses what they stand for.
//! Called by `execution`.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::execution::ScanPermit;
use crate::execution::admission::{BodyBudget, BodyPermit, Slot};
use crate::execution::completion_queue::CompletionQueue;
use crate::execution::phases::{Clockings, Phases, Spent};
use crate::execution::task::{Deadline, has_passed};
use klad_base::clock;
use klad_base::sync::Mutex;
use klad_storage::{Perf, Reply, Result};

/// What an operation holds until it ends; only ever dropped.
#[derive(Debug)]
pub(super) struct Permits {
    _slot: Option<Slot>,
    _room: Option<BodyPermit>,
    _scan: Option<ScanPermit>,
}

impl Permits {
    pub(super) fn new(slot: Slot, budget: Option<BodyPermit>) -> Permits {
        Permits { _slot: Some(slot), _room: budget, _scan: None }
    }

    pub(super) fn of_scan(permit: ScanPermit) -> Permits {
        Permits { _slot: None, _room: None, _scan: Some(permit) }
    }
}

/// The state that both sides share.
#[derive(Debug)]
pub(super) struct PendingOperation {
    stage: Mutex<Stage>,
    deadline: Deadline,
    clockings: Clockings,
    /// Apart, as it is large and most operations have none.
    perf: OnceLock<Box<Perf>>,
    completions: Arc<CompletionQueue>,
    /// Else whoever ends it also ends others, and announces all at once.
    announces: bool,
    /// Where a read takes room for a large value, before it is copied.
    budget: Option<Arc<BodyBudget>>,
    answer_permit: Mutex<Option<BodyPermit>>,
}

#[derive(Debug)]
enum Stage {
    Waiting { permits: Permits, waker: Option<Waker> },
    Ended(Result, Spent),
    Collected,
}

impl PendingOperation {
    /// Of an operation that could have been begun at `since`.
    pub(super) fn new(
        permits: Permits,
        deadline: Deadline,
        since: Instant,
        completions: Arc<CompletionQueue>,
        announces: bool,
    ) -> Arc<PendingOperation> {
        let (stage, clockings) = (Mutex::new(Stage::Waiting { permits, waker: None }), Clockings::new(since));
        let (perf, answer_permit) = (OnceLock::new(), Mutex::new(None));
        Arc::new(PendingOperation {
            stage,
            deadline,
            clockings,
            perf,
            completions,
            announces,
            budget: None,
            answer_permit,
        })
    }

    /// Of a read, whose value may need some of `budget`.
    pub(super) fn of_read(
        permits: Permits,
        deadline: Deadline,
        since: Instant,
        completions: Arc<CompletionQueue>,
        budget: Arc<BodyBudget>,
    ) -> Arc<PendingOperation> {
        let (stage, clockings) = (Mutex::new(Stage::Waiting { permits, waker: None }), Clockings::new(since));
        let (perf, answer_permit) = (OnceLock::new(), Mutex::new(None));
        Arc::new(PendingOperation {
            stage,
            deadline,
            clockings,
            perf,
            completions,
            announces: true,
            budget: Some(budget),
            answer_permit,
        })
    }

    /// The room that was taken for the value, when the operation has ended.
    pub(super) fn take_answer_permit(&self) -> Option<BodyPermit> {
        self.answer_permit.lock().take()
    }

    pub(super) fn completions(&self) -> &Arc<CompletionQueue> {
        &self.completions
    }

    /// Whether the operation is not worth beginning any more.
    pub(super) fn deadline_has_passed(&self) -> bool {
        has_passed(self.deadline)
    }

    /// It has left its queue.
    pub(super) fn begins(&self, now: Instant) {
        self.clockings.taken(now);
    }

    /// The operation's end, once; where its time went is added to `phases`.
    pub(super) fn ended(self: Arc<PendingOperation>, phases: &Phases) -> Ended<'_> {
        Ended { pending: self, phases }
    }
}

impl Reply for PendingOperation {
    fn complete(&self, result: Result) {
        let spent = self.clockings.ended(clock::now);
        let before = std::mem::replace(&mut *self.stage.lock(), Stage::Ended(result, spent));
        let Stage::Waiting { permits, waker } = before else {
            panic!("an operation was completed twice");
        };
        drop(permits);
        if let Some(waker) = waker {
            self.completions.leave(waker);
            if self.announces {
                self.completions.announce();
            }
        }
    }

    fn clocked(&self, now: Instant, sync: Duration) {
        self.clockings.clocked(now, sync);
    }

    fn measured(&self, perf: &Perf) {
        // Said once; a second time would be of the same operation, and is not needed.
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

/// Waits for the end of an operation.
pub(super) struct Ended<'p> {
    pending: Arc<PendingOperation>,
    phases: &'p Phases,
}

impl Future for Ended<'_> {
    type Output = Result;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result> {
        let mut stage = self.pending.stage.lock();
        match &mut *stage {
            Stage::Waiting { waker, .. } => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            Stage::Ended(..) => match std::mem::replace(&mut *stage, Stage::Collected) {
                Stage::Ended(result, spent) => {
                    self.phases.add(spent);
                    if let Some(perf) = self.pending.perf.get() {
                        self.phases.measured(perf);
                    }
                    Poll::Ready(result)
                }
                Stage::Waiting { .. } | Stage::Collected => unreachable!("the lock is held"),
            },
            Stage::Collected => panic!("an operation's end was asked for twice"),
        }
    }
}
