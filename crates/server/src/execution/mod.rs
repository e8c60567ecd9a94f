//! Admits operations and runs each where the strategy says.
//!
//! ```text
//!   --execution   reads                                            writes
//!   adaptive      worker if memory can answer, else storage thread a batch a turn: worker, or committer
//!   inline        worker, blocking it                              worker, blocking it
//!   pool          threads behind one bounded queue                 the same
//!   stealing      threads that steal from each other               the same
//! ```
//!
//! An operation's slot and bytes travel inside its [`pending_operation::PendingOperation`] and end with the operation, never with the connection
//! that asked for it. In `adaptive` an engine whose calls do not block (memory, or one across a network) is called on the
//! worker; where it answers later, its operations are bounded by their slots. `docs/execution.md` compares the strategies.
//! Called by `http`; started and stopped by `server`.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use klad_base::clock;
use klad_base::limits::{HOUSEKEEPING_INTERVAL, LATE_ANSWERS_TIMEOUT, PACE_INTERVAL, SLOTS_CEILING};
use klad_base::sync::{self, Mutex, PushError, Signal};
use klad_storage::commits::Commits;
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

use adaptive::Adaptive;
use admission::{BodyBudget, BodyPermit, Slot, Slots};
use observe::LocalFigures;
use pending_operation::Permits;
pub use phases::{AnsweredBy, Phases};
use pool::Pool;
use stealing::Stealing;
pub use task::Deadline;
use task::{Task, has_passed};
pub use worker_context::{LoopIteration, WorkerContext};

/// Bounds of the executor.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where operations run.
    pub strategy: Strategy,
    /// Bytes of request bodies and of large values on their way out, at most.
    pub body_budget_bytes: u64,
    /// The longest that an acknowledged `async` write stays unsynced.
    pub async_sync_interval: Duration,
}

/// Bounds that may change while klad serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// When waiting is refused; `None`: never, and only `queue_limit` bounds what waits. It stays `None` or `Some`.
    pub queues: Option<Queues>,
    /// Operations that wait for or are in the engine, at most.
    pub operations_max: usize,
    /// Operations that may wait in `pool` and `stealing`; one more is refused.
    pub queue_limit: usize,
    /// Ranges in progress, at most.
    pub scans_max: usize,
}

/// How long operations may wait for storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// In a queue that stands.
    pub target: Duration,
    /// In any.
    pub age_max: Duration,
}

/// Where operations run, with what only that strategy needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// On the worker what cannot block, the rest where it blocks nobody.
    Adaptive {
        /// Threads for reads that may wait for the disk.
        storage_threads: usize,
        /// How long the committer waits for more writes before it begins a batch.
        commit_delay: Duration,
    },
    /// On the worker, blocking it.
    Inline,
    /// On threads behind one queue.
    Pool {
        /// How many.
        threads: usize,
        /// How long a thread without work looks for some before it sleeps.
        spin: Duration,
    },
    /// On threads that steal from each other.
    Stealing {
        /// How many.
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

    /// How many threads it has whose number an option says.
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
    budget: Arc<BodyBudget>,
    runner: Runner,
    /// Reads that need no disk are done on the worker.
    asks_memory_first: bool,
    /// Of each worker.
    locals: Mutex<Vec<Arc<LocalFigures>>>,
}

/// The strategy's queues.
enum Runner {
    /// On the calling thread.
    Here,
    Adaptive(Arc<Adaptive>),
    Pool(Arc<Pool>),
    Stealing(Arc<Stealing>),
}

/// The executor's threads, to be stopped and waited for.
pub struct Threads {
    executor: Arc<Executor>,
    running: Vec<JoinHandle<()>>,
    stop: Arc<Signal>,
}

/// The right to have one range in progress; every step of it finds a place on a storage thread, and holds the right too: the
/// step of a range whose client has gone still waits there.
#[derive(Clone, Debug)]
pub struct ScanPermit(#[expect(dead_code, reason = "held until it is dropped")] Arc<Slot>);

impl Limits {
    /// Operation slots. Counted in any case, so that a bound far beyond any number of connections is none.
    fn slots(&self) -> usize {
        if self.queues.is_some() { self.operations_max } else { SLOTS_CEILING }
    }
}

impl Executor {
    /// Starts the threads that `engine` needs.
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
            budget: Arc::new(BodyBudget::new(options.body_budget_bytes)),
            runner,
            asks_memory_first: matches!(options.strategy, Strategy::Adaptive { .. }),
            locals: Mutex::default(),
            capabilities,
            engine,
        });
        let threads = Threads::start(executor.clone(), running, options.async_sync_interval);
        (executor, threads)
    }

    /// Changes bounds from now on; what was admitted under the old ones goes on.
    pub fn set_limits(&self, limits: &Limits) {
        self.operations.set_limit(limits.slots());
        self.scans.set_limit(limits.scans_max);
        match &self.runner {
            Runner::Here => {}
            Runner::Adaptive(adaptive) => adaptive.set_control(limits.queues),
            Runner::Pool(pool) => pool.set_limit(limits.queue_limit),
            Runner::Stealing(stealing) => stealing.set_limit(limits.queue_limit),
        }
    }

    /// What a full queue is bounded by, in a refusal.
    fn queue_limit(&self) -> usize {
        match &self.runner {
            Runner::Here | Runner::Adaptive(_) => self.operations.limit(),
            Runner::Pool(pool) => pool.limit(),
            Runner::Stealing(stealing) => stealing.limit(),
        }
    }

    /// Whether a write has a chance now; asked before its body is read.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::MemoryFull`] or [`Error::WritesStopped`].
    pub fn writable(&self, change: ChangeKind) -> Result<(), Error> {
        self.engine.writable(change)
    }

    /// Begins a range.
    ///
    /// # Errors
    /// [`Error::Overloaded`] when as many are in progress as may be.
    pub fn begin_scan(&self) -> Result<ScanPermit, Error> {
        let limit = self.scans.limit() as u64;
        let slot = self.scans.take(0).ok_or(Error::Overloaded {
            what: "too many ranges are in progress",
            limit,
            retry_after: None,
        })?;
        Ok(ScanPermit(Arc::new(slot)))
    }

    /// What the engine's commit section has done, where it has one.
    #[must_use]
    pub fn commits(&self) -> Option<&Commits> {
        self.engine.local_disk().map(LocalDisk::commits)
    }

    /// Room for bodies and large answers.
    #[must_use]
    pub fn budget(&self) -> &BodyBudget {
        &self.budget
    }

    /// Takes an operation slot, if the deadline has not passed on the way here; `wait` estimates for a refusal.
    fn permits(
        &self,
        key_bytes: usize,
        budget: Option<BodyPermit>,
        deadline: Deadline,
        wait: impl Fn() -> Option<Duration>,
    ) -> Result<Permits, Error> {
        if has_passed(deadline) {
            return Err(Error::DeadlinePassed);
        }
        let slot = self.operations.take(key_bytes).ok_or_else(|| Error::Overloaded {
            what: "too many operations wait for storage",
            limit: self.operations.limit() as u64,
            retry_after: wait(),
        })?;
        Ok(Permits::new(slot, budget))
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

    /// How long a read that came now would wait for storage.
    fn read_wait(&self) -> Option<Duration> {
        match &self.runner {
            Runner::Here => None,
            Runner::Adaptive(adaptive) => adaptive.read_wait(),
            Runner::Pool(pool) => pool.wait(),
            Runner::Stealing(stealing) => stealing.wait(),
        }
    }

    /// How long a write that came now would wait for storage.
    fn write_wait(&self) -> Option<Duration> {
        match &self.runner {
            Runner::Adaptive(adaptive) => adaptive.write_wait(),
            Runner::Here | Runner::Pool(_) | Runner::Stealing(_) => self.read_wait(),
        }
    }

    /// What the engine has been given and has not answered yet: nothing, where its calls block.
    fn wait_for_late_answers(&self) {
        let (until, never) = (clock::now() + LATE_ANSWERS_TIMEOUT, Signal::default());
        while self.operations.taken() > 0 {
            if clock::now() >= until {
                tracing::warn!(
                    operations = self.operations.taken(),
                    "the engine has not answered in time for the stop"
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
        running.push(every("klad-pace", PACE_INTERVAL, &stop, {
            let executor = executor.clone();
            move || executor.tick()
        }));
        if executor.engine.local_disk().is_some() {
            running.push(every("klad-sync", async_sync_interval, &stop, {
                let engine = executor.engine.clone();
                // A failure has been logged, and has stopped all writes, where it happened.
                move || _ = engine.local_disk().map(LocalDisk::sync)
            }));
            running.push(every("klad-upkeep", HOUSEKEEPING_INTERVAL, &stop, {
                let engine = executor.engine.clone();
                move || _ = engine.local_disk().map(LocalDisk::housekeeping)
            }));
        }
        Threads { executor, running, stop }
    }

    /// Lets everything that was admitted end, refuses what comes after, syncs, and leaves all in order.
    ///
    /// # Errors
    /// When the last sync failed, in the engine's words.
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

/// A thread that calls `work` every `interval` until `stop` is raised.
fn every(name: &str, interval: Duration, stop: &Arc<Signal>, work: impl Fn() + Send + 'static) -> JoinHandle<()> {
    let stop = stop.clone();
    sync::spawn_thread(name, move || {
        while !stop.wait_timeout(interval) {
            work();
        }
    })
}
