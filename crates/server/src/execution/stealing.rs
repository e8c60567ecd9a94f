//! `--execution stealing`: threads that each have a queue of their own and take from the others when it is empty.
//!
//! ```text
//!   worker 0 ──▶ inbox 0 ─┐   ┌─▶ own queue ─▶ klad-steal-0 ─▶ Ticket ─▶ worker
//!   worker 1 ──▶ inbox 1 ─┼─▶─┼─▶ own queue ─▶ klad-steal-1
//!      …                  │   │        └── stolen from by whoever has nothing
//! ```
//!
//! As the work-stealing pool of a published report: what comes from outside goes to the inbox of its submitter, a thread
//! moves a piece of an inbox to its own queue at once, and no lock is shared by all. The deques are `crossbeam-deque`'s,
//! which are Chase and Lev's (2005). A thread that has found nothing anywhere sleeps. Called by `execution`.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_deque::{Injector, Steal, Stealer, Worker};

use crate::execution::observe::{QueueLook, Refused};
use crate::execution::service_time::ServiceTime;
use crate::execution::task::Task;
use klad_base::clock;
use klad_base::limits::{QUEUE_LIMIT_CEILING, SCANS_CEILING};
use klad_base::os::scheduler;
use klad_base::sync::{self, Cause, Condvar, Mutex, PushError};
use klad_storage::Engine;

/// Inboxes: a few, so that workers do not meet at one. Submitters beyond share.
const INBOXES: usize = 8;

/// Rounds over all queues before a thread sleeps.
const ROUNDS: usize = 4;

/// Inboxes, and who sleeps.
pub(super) struct Stealing {
    completion_queues: [Injector<Task>; INBOXES],
    /// Tasks that wait in any queue.
    waiting: AtomicUsize,
    limit: AtomicUsize,
    threads: usize,
    service_time: ServiceTime,
    refused: Refused,
    /// Threads that sleep or are about to; read without the lock by whoever submits.
    sleepers: AtomicUsize,
    /// One of them was woken and is on its way: it wakes the next if it leaves something, so nobody else need.
    waking: AtomicBool,
    closed: AtomicBool,
    sleep: Mutex<Sleep>,
    wake: Condvar,
}

/// Counts submissions that a sleeper was woken for, so that none sleeps through one.
#[derive(Default)]
struct Sleep {
    submissions: u64,
}

/// Steals until there is something or certainly nothing: another thread may be in the way.
fn until_certain(mut steal: impl FnMut() -> Steal<Task>) -> Option<Task> {
    loop {
        match steal() {
            Steal::Success(task) => return Some(task),
            Steal::Empty => return None,
            Steal::Retry => std::hint::spin_loop(),
        }
    }
}

thread_local! {
    /// The inbox of the thread that submits; chosen when it submits for the first time.
    static INBOX: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Gives each submitter an inbox, in turn.
static NEXT_INBOX: AtomicUsize = AtomicUsize::new(0);

impl Stealing {
    pub(super) fn new(queue_limit: usize, threads: usize) -> Arc<Stealing> {
        Arc::new(Stealing {
            completion_queues: std::array::from_fn(|_| Injector::new()),
            waiting: AtomicUsize::new(0),
            limit: AtomicUsize::new(queue_limit),
            threads,
            service_time: ServiceTime::default(),
            refused: Refused::default(),
            sleepers: AtomicUsize::new(0),
            waking: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            sleep: Mutex::default(),
            wake: Condvar::new(),
        })
    }

    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn set_limit(&self, queue_limit: usize) {
        self.limit.store(queue_limit, Ordering::Relaxed);
    }

    pub(super) fn push(&self, task: Task) -> Result<(), PushError<Task>> {
        let limit = if task.is_scan() { QUEUE_LIMIT_CEILING + SCANS_CEILING } else { self.limit() };
        let one_more = |waiting| (waiting < limit).then_some(waiting + 1);
        if self.waiting.fetch_update(Ordering::SeqCst, Ordering::Relaxed, one_more).is_err() {
            self.refused.full.add(1);
            return Err(PushError::Full(task));
        }
        // Counted first: a thread that sees `closed` and nothing waiting ends.
        if self.closed.load(Ordering::SeqCst) {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return Err(PushError::Closed(task));
        }
        let completions = INBOX.get().unwrap_or_else(|| {
            let completions = NEXT_INBOX.fetch_add(1, Ordering::Relaxed) % INBOXES;
            INBOX.set(Some(completions));
            completions
        });
        self.completion_queues[completions].push(task);
        self.wake_one();
        Ok(())
    }

    /// Wakes a thread for what waits, unless one is on its way. The count of waiting tasks was raised before: a thread that
    /// goes to sleep now sees it, or is seen here.
    fn wake_one(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 && !self.waking.swap(true, Ordering::SeqCst) {
            self.sleep.lock().submissions += 1;
            self.wake.notify_one();
        }
    }

    pub(super) fn start(self: &Arc<Self>, engine: &Arc<dyn Engine>) -> Vec<JoinHandle<()>> {
        let own: Vec<Worker<Task>> = (0..self.threads).map(|_| Worker::new_fifo()).collect();
        let stealers: Arc<[Stealer<Task>]> = own.iter().map(Worker::stealer).collect();
        let thread = |(number, own): (usize, Worker<Task>)| {
            let (pool, engine, stealers) = (self.clone(), engine.clone(), stealers.clone());
            sync::spawn_thread(&format!("klad-steal-{number}"), move || {
                scheduler::shorten_time_slices();
                while let Some(task) = pool.next(number, &own, &stealers) {
                    if let Some(task) = task.take() {
                        let began = clock::now();
                        task.begins(began);
                        task.run(&*engine);
                        pool.service_time.served(1, began);
                    }
                }
            })
        };
        own.into_iter().enumerate().map(thread).collect()
    }

    /// The next task for a thread, waiting for one; `None`: closed, and all is done.
    fn next(&self, number: usize, own: &Worker<Task>, stealers: &[Stealer<Task>]) -> Option<Task> {
        loop {
            let found = own.pop().or_else(|| (0..ROUNDS).find_map(|_| self.search(number, own, stealers)));
            if let Some(task) = found {
                if self.waiting.fetch_sub(1, Ordering::SeqCst) > 1 {
                    self.wake_one();
                }
                return Some(task);
            }
            if !self.sleep_until_submission() {
                return None;
            }
        }
    }

    /// Looks into every inbox, then into the queues of the others, beginning at a place of its own.
    fn search(&self, number: usize, own: &Worker<Task>, stealers: &[Stealer<Task>]) -> Option<Task> {
        let completion_queues = (0..INBOXES).map(|offset| &self.completion_queues[(number + offset) % INBOXES]);
        let others = (1..stealers.len()).map(|offset| &stealers[(number + offset) % stealers.len()]);
        let from_inbox = |completions: &Injector<Task>| until_certain(|| completions.steal_batch_and_pop(own));
        let from_other = |other: &Stealer<Task>| until_certain(|| other.steal_batch_and_pop(own));
        completion_queues.into_iter().find_map(from_inbox).or_else(|| others.into_iter().find_map(from_other))
    }

    /// `false`: closed, and nothing waits.
    fn sleep_until_submission(&self) -> bool {
        let mut sleep = self.sleep.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let before = sleep.submissions;
        // A task in the queue of a thread that is busy with another counts too; then this one looks again.
        let go_on = loop {
            if self.waiting.load(Ordering::SeqCst) > 0 || sleep.submissions != before {
                break true;
            }
            if self.closed.load(Ordering::SeqCst) {
                break false;
            }
            sleep = self.wake.wait(sleep, Cause::Idle);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.waking.store(false, Ordering::SeqCst);
        go_on
    }

    /// How long an operation that came now would wait.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.service_time.wait(self.waiting.load(Ordering::Relaxed), self.threads)
    }

    pub(super) fn look(&self) -> QueueLook {
        QueueLook {
            name: "stealing",
            depth: self.waiting.load(Ordering::Relaxed),
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
        // Under the lock, or a thread between its look and its sleep would miss it.
        let _sleep = self.sleep.lock();
        self.closed.store(true, Ordering::SeqCst);
        self.wake.notify_all();
    }
}
