//! Admits operations, and runs each on the thread that the strategy chooses.
//!
//! ```text
//!   --execution   reads                                              writes
//!   adaptive      worker if memory can answer or storage is quick,   one batch per loop iteration: worker or committer
//!                 else storage thread
//!   inline        worker, which may block                            worker, which may block
//!   pool          threads behind one bounded queue                   the same
//!   stealing      threads that steal from each other                 the same
//! ```
//!
//! An operation's slot, and the memory permit of its request's body, are inside its
//! [`pending_operation::PendingOperation`]. Slot and permit end with the operation, never with the connection that
//! asked for it. With `adaptive`, if the calls of an engine do not block (an engine in memory or across a network), the
//! worker itself calls the engine. If such an engine answers later, only the slots limit its operations.
//! `docs/execution.md` compares the strategies. `http` calls this module; `Server` starts and stops it.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::limits::{LATE_ANSWERS_TIMEOUT, QUEUE_CHECK_INTERVAL, SLOTS_CEILING};
use klad_base::clock;
use klad_base::sync::{self, Mutex, PushError, Signal};
use klad_storage::changes::Changes;
use klad_storage::commits::Commits;
use klad_storage::limits::HOUSEKEEPING_INTERVAL;
use klad_storage::operation::Error;
use klad_storage::{Capabilities, ChangeKind, Engine, LocalDisk};

mod adaptive;
pub mod admission;
mod completion_queue;
mod delay_queue;
pub mod maintenance;
mod observe;
mod pending_operation;
mod phases;
mod pool;
mod service_time;
mod stealing;
mod task;
mod worker_context;
mod worker_reads;

use adaptive::Adaptive;
use admission::{BodyBudget, BodyPermit, Slot, Slots};
use observe::ReadCounters;
use pending_operation::Permits;
pub use phases::{AnsweredBy, Phases};
use pool::Pool;
use stealing::Stealing;
pub use task::Deadline;
use task::{Task, has_passed};
pub use worker_context::{LoopIteration, WorkerContext};

/// Settings of the executor.
#[derive(Clone, Debug)]
pub struct Options {
    /// The strategy: where operations run.
    pub strategy: Strategy,
    /// The memory budget for request bodies and large answers, bytes.
    pub body_budget_bytes: u64,
    /// How often klad syncs acknowledged `async` writes.
    pub async_sync_interval: Duration,
}

/// Limits that may change while klad serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long operations may wait, with `adaptive`. `None` (`--admission off`): operations may wait for any time, and
    /// `operations_max` has no effect. Then only `pool` and `stealing` have a limit, `queue_limit`. While klad runs,
    /// this never changes between `None` and a value.
    pub queues: Option<Queues>,
    /// The maximum of operations that wait for the engine or run in it. klad rejects further operations.
    pub operations_max: usize,
    /// The maximum of operations that wait in `pool` and `stealing`. klad rejects further operations.
    pub queue_limit: usize,
    /// The maximum of ranges in progress. klad rejects further ranges.
    pub scans_max: usize,
    /// The maximum of change feeds in progress. klad rejects further feeds.
    pub watchers_max: usize,
}

/// How long operations may wait for storage with `adaptive`. klad rejects an operation that has waited longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// The longest wait in a standing queue (one that has not been empty for some time), `--queue-target`.
    pub target: Duration,
    /// The longest wait in any queue, `--queue-age-max`.
    pub age_max: Duration,
}

/// Where operations run, with the settings of the strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The worker runs operations that do not wait for storage, and reads while storage is quick. Other threads run the
    /// others.
    Adaptive {
        /// The number of threads for reads that may wait for the disk.
        storage_threads: usize,
        /// How long the committer waits for more writes before it begins a batch.
        commit_delay: Duration,
    },
    /// All operations run on the worker, and may block it.
    Inline,
    /// All operations run on threads behind one queue.
    Pool {
        /// The number of threads.
        threads: usize,
        /// How long an idle thread polls the queue before it sleeps.
        spin: Duration,
    },
    /// All operations run on threads that steal work from each other.
    Stealing {
        /// The number of threads.
        threads: usize,
    },
}

impl Strategy {
    /// The name that `--execution` takes.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Strategy::Adaptive { .. } => "adaptive",
            Strategy::Inline => "inline",
            Strategy::Pool { .. } => "pool",
            Strategy::Stealing { .. } => "stealing",
        }
    }

    /// The number of the strategy's threads that an option sets; 0 for `inline`.
    #[must_use]
    pub fn threads(&self) -> usize {
        match *self {
            Strategy::Adaptive { storage_threads: threads, .. }
            | Strategy::Pool { threads, .. }
            | Strategy::Stealing { threads } => threads,
            Strategy::Inline => 0,
        }
    }
}

/// Runs operations on an engine.
pub struct Executor {
    engine: Arc<dyn Engine>,
    capabilities: Capabilities,
    operations: Arc<Slots>,
    scans: Arc<Slots>,
    watchers: Arc<Slots>,
    budget: Arc<BodyBudget>,
    runner: Runner,
    /// Whether the worker itself does reads that memory can answer.
    asks_memory_first: bool,
    /// The read counters of each worker.
    read_counters: Mutex<Vec<Arc<ReadCounters>>>,
}

/// The queues of the strategy.
enum Runner {
    /// No queue: operations run on the calling thread.
    Here,
    Adaptive(Arc<Adaptive>),
    Pool(Arc<Pool>),
    Stealing(Arc<Stealing>),
}

/// The executor's threads. They must be stopped with [`Threads::stop`].
pub struct Threads {
    executor: Arc<Executor>,
    running: Vec<JoinHandle<()>>,
    stop: Arc<Signal>,
}

/// Permission for one range in progress. The number of ranges is limited, so each step of a permitted range finds a
/// place in the queues. Each step holds the permit too, because a step may still wait in a queue after the client has
/// left.
#[derive(Clone, Debug)]
pub struct ScanPermit(#[expect(dead_code, reason = "held until it is dropped")] Arc<Slot>);

/// Permission for one change feed. Each step of the feed holds the permit too, as with [`ScanPermit`].
#[derive(Clone, Debug)]
pub struct WatchPermit(#[expect(dead_code, reason = "held until it is dropped")] Arc<Slot>);

impl Limits {
    /// The number of operation slots. With `--admission off` slots are still counted, under a limit that is never
    /// reached.
    fn slots(&self) -> usize {
        if self.queues.is_some() { self.operations_max } else { SLOTS_CEILING }
    }
}

impl Executor {
    /// Starts the executor with the threads that `engine` needs.
    #[must_use]
    pub fn start(engine: Arc<dyn Engine>, options: &Options, limits: &Limits) -> (Arc<Executor>, Threads) {
        let capabilities = engine.capabilities();
        let (runner, running) = match options.strategy {
            Strategy::Adaptive { storage_threads, commit_delay } if capabilities.blocks => {
                let adaptive = Adaptive::new(storage_threads, limits.queues);
                let running = adaptive.start(&engine, commit_delay);
                (Runner::Adaptive(adaptive), running)
            }
            Strategy::Adaptive { .. } | Strategy::Inline => (Runner::Here, Vec::new()),
            Strategy::Pool { threads, spin } => {
                let pool = Pool::new(limits.queue_limit, threads);
                let running = pool.start(&engine, spin);
                (Runner::Pool(pool), running)
            }
            Strategy::Stealing { threads } => {
                let stealing = Stealing::new(limits.queue_limit, threads);
                let running = stealing.start(&engine);
                (Runner::Stealing(stealing), running)
            }
        };
        let executor = Arc::new(Executor {
            operations: Slots::new(limits.slots()),
            scans: Slots::new(limits.scans_max),
            watchers: Slots::new(limits.watchers_max),
            budget: Arc::new(BodyBudget::new(options.body_budget_bytes)),
            runner,
            asks_memory_first: matches!(options.strategy, Strategy::Adaptive { .. }),
            read_counters: Mutex::default(),
            capabilities,
            engine,
        });
        let threads = Threads::start(executor.clone(), running, options.async_sync_interval);
        (executor, threads)
    }

    /// Changes the limits. Admitted operations continue.
    pub fn set_limits(&self, limits: &Limits) {
        self.operations.set_limit(limits.slots());
        self.scans.set_limit(limits.scans_max);
        self.watchers.set_limit(limits.watchers_max);
        match &self.runner {
            Runner::Here => {}
            Runner::Adaptive(adaptive) => adaptive.set_control(limits.queues),
            Runner::Pool(pool) => pool.set_limit(limits.queue_limit),
            Runner::Stealing(stealing) => stealing.set_limit(limits.queue_limit),
        }
    }

    /// The limit that the error about a full queue reports.
    fn queue_limit(&self) -> usize {
        match &self.runner {
            Runner::Here | Runner::Adaptive(_) => self.operations.limit(),
            Runner::Pool(pool) => pool.limit(),
            Runner::Stealing(stealing) => stealing.limit(),
        }
    }

    /// Checks whether the engine accepts changes of this kind now. klad calls this before it reads a body.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::MemoryFull`], [`Error::Stalled`] or [`Error::WritesStopped`].
    pub fn writable(&self, change: ChangeKind) -> Result<(), Error> {
        self.engine.writable(change)
    }

    /// Begins a range.
    ///
    /// # Errors
    /// [`Error::Overloaded`] if the maximum of ranges is in progress.
    pub fn begin_scan(&self) -> Result<ScanPermit, Error> {
        let limit = self.scans.limit() as u64;
        let slot = self.scans.take(0).ok_or(Error::Overloaded {
            what: "too many ranges are in progress",
            limit,
            retry_after: None,
        })?;
        Ok(ScanPermit(Arc::new(slot)))
    }

    /// Begins a change feed.
    ///
    /// # Errors
    /// [`Error::Overloaded`] if the maximum of feeds is in progress.
    pub fn begin_watch(&self) -> Result<WatchPermit, Error> {
        let limit = self.watchers.limit() as u64;
        let slot = self.watchers.take(0).ok_or(Error::Overloaded {
            what: "too many change feeds are in progress",
            limit,
            retry_after: None,
        })?;
        Ok(WatchPermit(Arc::new(slot)))
    }

    /// The version of the last committed change.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the engine has no change feed, or `--changes-bytes` is 0.
    pub fn last_version(&self) -> Result<u64, Error> {
        let changes = self.engine.changes();
        changes.map(Changes::last_version).ok_or(Error::NotSupported { engine: self.engine_name(), what: "changes" })
    }

    /// The statistics of the engine's commit section, if it has one.
    #[must_use]
    pub fn commits(&self) -> Option<&Commits> {
        self.engine.local_disk().map(LocalDisk::commits)
    }

    /// The memory budget for bodies and large answers.
    #[must_use]
    pub fn budget(&self) -> &BodyBudget {
        &self.budget
    }

    /// Takes the slots of an operation with `changes` changes, unless the deadline has passed. If fewer slots are free,
    /// the error gives the wait that `wait` estimates.
    fn permits(
        &self,
        changes: usize,
        key_bytes: usize,
        body: Option<BodyPermit>,
        deadline: Deadline,
        wait: impl Fn() -> Option<Duration>,
    ) -> Result<Permits, Error> {
        if has_passed(deadline) {
            return Err(Error::DeadlinePassed);
        }
        let slot = self.operations.take_many(changes, key_bytes).ok_or_else(|| Error::Overloaded {
            what: "too many operations wait for storage",
            limit: self.operations.limit() as u64,
            retry_after: wait(),
        })?;
        Ok(Permits::new(slot, body))
    }

    /// The number of slots that are free now.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.operations.limit().saturating_sub(self.operations.taken())
    }

    fn run(&self, task: Task) -> Result<(), Error> {
        let pushed = match &self.runner {
            Runner::Here => {
                task.begins(clock::now());
                task.run(&*self.engine);
                return Ok(());
            }
            Runner::Adaptive(adaptive) => adaptive.push(task),
            Runner::Pool(pool) => pool.push(task),
            Runner::Stealing(stealing) => stealing.push(task),
        };
        pushed.map_err(|error| match error {
            PushError::Full(_) => Error::Overloaded {
                what: "the queue for storage is full",
                limit: self.queue_limit() as u64,
                retry_after: self.read_wait(),
            },
            PushError::Closed(_) => Error::Stopping,
        })
    }

    /// Estimates how long a new read would wait for storage.
    fn read_wait(&self) -> Option<Duration> {
        match &self.runner {
            Runner::Here => None,
            Runner::Adaptive(adaptive) => adaptive.read_wait(),
            Runner::Pool(pool) => pool.wait(),
            Runner::Stealing(stealing) => stealing.wait(),
        }
    }

    /// Estimates how long a new write would wait for storage.
    fn write_wait(&self) -> Option<Duration> {
        match &self.runner {
            Runner::Adaptive(adaptive) => adaptive.write_wait(),
            Runner::Here | Runner::Pool(_) | Runner::Stealing(_) => self.read_wait(),
        }
    }

    /// Waits until the engine has answered all operations, for at most [`LATE_ANSWERS_TIMEOUT`]. Returns at once if the
    /// engine's calls block, because all operations are answered then.
    fn wait_for_late_answers(&self) {
        let (until, never) = (clock::now() + LATE_ANSWERS_TIMEOUT, Signal::default());
        while self.operations.taken() > 0 {
            if clock::now() >= until {
                tracing::warn!(
                    operations = self.operations.taken(),
                    "the engine has not answered these operations; klad stops without their answers"
                );
                return;
            }
            never.wait_timeout(Duration::from_millis(5));
        }
    }

    fn tick(&self) {
        match &self.runner {
            Runner::Here => {}
            Runner::Adaptive(adaptive) => adaptive.tick(),
            Runner::Pool(pool) => pool.tick(),
            Runner::Stealing(stealing) => stealing.tick(),
        }
    }

    fn close(&self) {
        match &self.runner {
            Runner::Here => {}
            Runner::Adaptive(adaptive) => adaptive.close(),
            Runner::Pool(pool) => pool.close(),
            Runner::Stealing(stealing) => stealing.close(),
        }
    }
}

impl Threads {
    fn start(executor: Arc<Executor>, mut running: Vec<JoinHandle<()>>, async_sync_interval: Duration) -> Threads {
        let stop = Arc::new(Signal::default());
        running.push(every("klad-queues", QUEUE_CHECK_INTERVAL, &stop, {
            let executor = executor.clone();
            move || executor.tick()
        }));
        if executor.engine.local_disk().is_some() {
            running.push(every("klad-sync", async_sync_interval, &stop, {
                let engine = executor.engine.clone();
                // A failure has already been logged, and has stopped all writes.
                move || _ = engine.local_disk().map(LocalDisk::sync)
            }));
            running.push(every("klad-monitor", HOUSEKEEPING_INTERVAL, &stop, {
                let engine = executor.engine.clone();
                move || _ = engine.local_disk().map(LocalDisk::housekeeping)
            }));
        }
        Threads { executor, running, stop }
    }

    /// Rejects new operations, completes all admitted ones, syncs, and does the last housekeeping.
    ///
    /// # Errors
    /// The engine's message if the last sync failed.
    pub fn stop(self) -> Result<(), String> {
        self.executor.close();
        self.stop.raise();
        for thread in self.running {
            thread.join().expect("a thread that panics ends the process");
        }
        self.executor.wait_for_late_answers();
        let Some(disk) = self.executor.engine.local_disk() else { return Ok(()) };
        let synced = disk.sync();
        disk.housekeeping();
        synced
    }
}

/// Starts a thread that calls `work` every `interval` until `stop` is raised.
fn every(name: &str, interval: Duration, stop: &Arc<Signal>, work: impl Fn() + Send + 'static) -> JoinHandle<()> {
    let stop = stop.clone();
    sync::spawn_thread(name, move || {
        while !stop.wait_timeout(interval) {
            work();
        }
    })
}
