//! `--execution stealing`: each storage thread has its own queue, and steals from the others when its queue is empty.
//!
//! ```text
//!   worker 0 ──▶ shared queue 0 ─┐   ┌─▶ own queue ─▶ klad-steal-0 ─▶ PendingOperation ─▶ worker
//!   worker 1 ──▶ shared queue 1 ─┼─▶─┼─▶ own queue ─▶ klad-steal-1
//!      …                         │   │        └── idle threads steal from it
//! ```
//!
//! One of the published reports that klad reproduces has such a pool. A worker pushes into its shared queue. A
//! `klad-steal` thread moves several tasks at once from a shared queue to its own. A thread that finds no work sleeps.
//! All threads share one lock, which they take only to go to sleep and to wake another thread. The threads' own queues
//! are those of Chase and Lev (2005), from `crossbeam-deque`. `execution` calls this.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_deque::{Injector, Steal, Stealer, Worker};

use crate::execution::observe::{QueueFigures, Rejections};
use crate::execution::service_time::ServiceTime;
use crate::execution::task::Task;
use crate::limits::{QUEUE_LIMIT_CEILING, SCANS_CEILING};
use klad_base::clock;
use klad_base::os::scheduler;
use klad_base::sync::{self, Cause, Condvar, Mutex, PushError};
use klad_storage::Engine;

/// The number of shared queues: several, so that workers seldom push into the same one. If there are more workers than
/// shared queues, some workers use the same one.
const SHARED_QUEUES: usize = 8;

/// The number of times that a thread searches all queues before it sleeps.
const ROUNDS: usize = 4;

/// The shared queues, and the state of sleeping threads.
pub(super) struct Stealing {
    shared: [Injector<Task>; SHARED_QUEUES],
    /// The number of tasks that wait in all queues together.
    waiting: AtomicUsize,
    limit: AtomicUsize,
    threads: usize,
    service_time: ServiceTime,
    rejections: Rejections,
    /// The number of threads that sleep or are about to sleep. Threads that submit tasks read this number without the
    /// lock.
    sleepers: AtomicUsize,
    /// Whether a sleeping thread was woken and has not run yet. If that thread leaves work, it wakes the next thread.
    /// So threads that submit tasks need not wake another one.
    waking: AtomicBool,
    closed: AtomicBool,
    sleep: Mutex<Sleep>,
    wake: Condvar,
}

/// Counts the submissions for which klad has woken a sleeping thread. A change of the count ends a thread's sleep, so
/// no thread misses a wake-up.
#[derive(Default)]
struct Sleep {
    submissions: u64,
}

/// Returns a task from the queue that `steal` reads, or `None` if that queue is empty. If another thread took from the
/// queue at the same time, `steal` returns [`Steal::Retry`], and this calls `steal` again.
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
    /// The shared queue of the submitting thread, chosen at its first submission.
    static SHARED_QUEUE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Assigns shared queues to submitting threads in turn.
static NEXT_SHARED_QUEUE: AtomicUsize = AtomicUsize::new(0);

impl Stealing {
    pub(super) fn new(queue_limit: usize, threads: usize) -> Arc<Stealing> {
        Arc::new(Stealing {
            shared: std::array::from_fn(|_| Injector::new()),
            waiting: AtomicUsize::new(0),
            limit: AtomicUsize::new(queue_limit),
            threads,
            service_time: ServiceTime::default(),
            rejections: Rejections::default(),
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
            self.rejections.full.add(1);
            return Err(PushError::Full(task));
        }
        // The count rises before `closed` is read, because a thread that sees `closed` and no waiting task ends.
        if self.closed.load(Ordering::SeqCst) {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return Err(PushError::Closed(task));
        }
        let queue = SHARED_QUEUE.get().unwrap_or_else(|| {
            let queue = NEXT_SHARED_QUEUE.fetch_add(1, Ordering::Relaxed) % SHARED_QUEUES;
            SHARED_QUEUE.set(Some(queue));
            queue
        });
        self.shared[queue].push(task);
        self.wake_one();
        Ok(())
    }

    /// Wakes a thread for a waiting task, unless a thread is already waking up. The caller has raised the count of
    /// waiting tasks. So a thread that is about to sleep sees the task, or this function sees the thread.
    fn wake_one(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 && !self.waking.swap(true, Ordering::SeqCst) {
            self.wake_sleeper();
        }
    }

    /// Wakes a sleeping thread, if one still sleeps. If no thread sleeps, all threads search again before they sleep.
    /// This function then clears `waking`, because no later submission wakes a thread while `waking` is set.
    fn wake_sleeper(&self) {
        let mut sleep = self.sleep.lock();
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            self.waking.store(false, Ordering::SeqCst);
            return;
        }
        sleep.submissions += 1;
        drop(sleep);
        self.wake.notify_one();
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

    /// Returns the next task for thread `number`, and waits until there is one. `None`: the pool is closed, and no task
    /// is left.
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

    /// Searches the shared queues, then the queues of the other threads, for a task. The first queue depends on
    /// `number`, so that threads seldom search the same queue at the same time.
    fn search(&self, number: usize, own: &Worker<Task>, stealers: &[Stealer<Task>]) -> Option<Task> {
        let shared = (0..SHARED_QUEUES).map(|offset| &self.shared[(number + offset) % SHARED_QUEUES]);
        let others = (1..stealers.len()).map(|offset| &stealers[(number + offset) % stealers.len()]);
        let from_shared = |queue: &Injector<Task>| until_certain(|| queue.steal_batch_and_pop(own));
        let from_other = |other: &Stealer<Task>| until_certain(|| other.steal_batch_and_pop(own));
        shared.into_iter().find_map(from_shared).or_else(|| others.into_iter().find_map(from_other))
    }

    /// Sleeps until there may be work. `false`: the pool is closed, and no task waits.
    fn sleep_until_submission(&self) -> bool {
        let mut sleep = self.sleep.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let before = sleep.submissions;
        // A task in the queue of a busy thread counts too; then this thread searches again.
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

    /// Estimates how long a new operation would wait.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.service_time.wait(self.waiting.load(Ordering::Relaxed), self.threads)
    }

    pub(super) fn figures(&self) -> QueueFigures {
        QueueFigures {
            name: "stealing",
            depth: self.waiting.load(Ordering::Relaxed),
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
        // Takes the lock, because otherwise a thread that is about to sleep would miss the change.
        let _sleep = self.sleep.lock();
        self.closed.store(true, Ordering::SeqCst);
        self.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A submission has seen a sleeping thread, which goes on by itself before the submission wakes it.
    #[test]
    fn later_submissions_wake_threads_although_one_found_no_sleeper() {
        let pool = Stealing::new(10, 1);
        pool.waking.store(true, Ordering::SeqCst);
        pool.wake_sleeper();
        assert!(!pool.waking.load(Ordering::SeqCst), "nobody would clear it");
    }
}
