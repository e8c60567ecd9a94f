//! Admits operations and chooses where each runs, so that no storage call ever keeps a worker waiting.
//!
//! ```text
//!   worker ──get──▶ Engine::read_cached ──in memory──▶ answer, same turn, no queue
//!                        └─not in memory─▶ slot ─▶ reads queue ─▶ klad-storage-N ─▶ Ticket ─▶ worker
//!   worker ──put, delete──────────────────▶ slot ─▶ writes queue ─▶ klad-commit ──▶ Ticket ─▶ worker
//! ```
//!
//! An operation's slot and bytes travel inside its [`ticket::Ticket`] and end with the operation, never with the connection
//! that asked for it. Both queues hold at most as many operations as there are slots, so an admitted operation finds room.
//! An engine that does not block (memory, later one across a network) is called on the worker. Called by `http`; started
//! and stopped by `server`.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;

use crate::limits::{COMMIT_BYTES_MAX, COMMIT_WRITES_MAX, UPKEEP_INTERVAL};
use crate::operation::{Change, Durability, Error, ScanStep};
use crate::storage::{ChangeKind, Engine, Result, Write};
use crate::sync::{self, BoundedQueue, PushError, Signal};

pub mod admission;
mod ticket;

use admission::{Room, RoomPermit, Slot, Slots};
use ticket::{Permits, Ticket};

/// Bounds of the executor.
#[derive(Clone, Debug)]
pub struct Options {
    /// Operations that wait for or are in the engine, at most.
    pub operations_max: usize,
    /// Ranges in progress, at most.
    pub scans_max: usize,
    /// Threads for reads that may wait for the disk.
    pub storage_threads: usize,
    /// Bytes of request bodies and of large values on their way out, at most.
    pub room_bytes: u64,
    /// The longest that an acknowledged `async` write stays unsynced.
    pub async_sync_interval: Duration,
}

/// Runs operations on an engine.
pub struct Executor {
    engine: Arc<dyn Engine>,
    operations: Arc<Slots>,
    scans: Arc<Slots>,
    room: Room,
    reads: Arc<BoundedQueue<ReadTask>>,
    writes: Arc<BoundedQueue<Write>>,
}

/// The executor's threads, to be stopped and waited for.
pub struct Threads {
    executor: Arc<Executor>,
    running: Vec<JoinHandle<()>>,
    stop: Arc<Signal>,
}

enum ReadTask {
    Get { key: Bytes, ticket: Arc<Ticket> },
    Scan { step: ScanStep, ticket: Arc<Ticket> },
}

/// The right to have one range in progress; every step of it finds a place on a storage thread.
pub struct ScanPermit {
    _slot: Slot,
}

impl Executor {
    /// Starts the threads that `engine` needs.
    #[must_use]
    pub fn start(engine: Arc<dyn Engine>, options: &Options) -> (Arc<Executor>, Threads) {
        let executor = Arc::new(Executor {
            operations: Slots::new(options.operations_max),
            scans: Slots::new(options.scans_max),
            room: Room::new(options.room_bytes),
            // A step of each scan, beside every admitted read.
            reads: Arc::new(BoundedQueue::new(options.operations_max + options.scans_max)),
            writes: Arc::new(BoundedQueue::new(options.operations_max)),
            engine,
        });
        let threads = Threads::start(executor.clone(), options);
        (executor, threads)
    }

    /// Reads a key.
    ///
    /// # Errors
    /// [`Error::Overloaded`] and [`Error::Stopping`] before anything was done, else what the engine says.
    pub async fn get(&self, key: &[u8]) -> Result {
        if let Some(result) = self.engine.read_cached(key) {
            return result;
        }
        let ticket = Ticket::new(Permits::new(self.operation_slot()?, None));
        if self.engine.blocks() {
            self.queue_read(ReadTask::Get { key: Bytes::copy_from_slice(key), ticket: ticket.clone() })?;
        } else {
            self.engine.read(key, &*ticket);
        }
        ticket.ended().await
    }

    /// Writes a key; `room` was taken for the body and ends with the operation.
    ///
    /// # Errors
    /// As [`Executor::get`], and [`Executor::writable`]'s.
    pub async fn write(&self, key: Bytes, change: Change, durability: Durability, room: Option<RoomPermit>) -> Result {
        let ticket = Ticket::new(Permits::new(self.operation_slot()?, room));
        let write = Write { key, change, durability, reply: ticket.clone() };
        if self.engine.blocks() {
            self.writes.push(write).map_err(|error| self.refused(&error))?;
        } else {
            self.engine.commit(vec![write]);
        }
        ticket.ended().await
    }

    /// Whether a write has a chance now; asked before its body is read.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::MemoryFull`] or [`Error::WritesStopped`].
    pub fn writable(&self, change: ChangeKind) -> std::result::Result<(), Error> {
        self.engine.writable(change)
    }

    /// Begins a range.
    ///
    /// # Errors
    /// [`Error::Overloaded`] when as many are in progress as may be.
    pub fn begin_scan(&self) -> std::result::Result<ScanPermit, Error> {
        let limit = self.scans.limit() as u64;
        let slot = self.scans.take().ok_or(Error::Overloaded { what: "too many ranges are in progress", limit })?;
        Ok(ScanPermit { _slot: slot })
    }

    /// Does one step of a range.
    ///
    /// # Errors
    /// What the engine says, or [`Error::Stopping`].
    pub async fn scan(&self, _permit: &ScanPermit, step: ScanStep) -> Result {
        let ticket = Ticket::new(Permits::none());
        if self.engine.blocks() {
            self.queue_read(ReadTask::Scan { step, ticket: ticket.clone() })?;
        } else {
            self.engine.scan(&step, &*ticket);
        }
        ticket.ended().await
    }

    /// Room for bodies and large answers.
    #[must_use]
    pub fn room(&self) -> &Room {
        &self.room
    }

    fn operation_slot(&self) -> std::result::Result<Slot, Error> {
        let limit = self.operations.limit() as u64;
        self.operations.take().ok_or(Error::Overloaded { what: "too many operations wait for storage", limit })
    }

    fn queue_read(&self, task: ReadTask) -> std::result::Result<(), Error> {
        self.reads.push(task).map_err(|error| self.refused(&error))
    }

    /// Slots bound the queues, so `Full` is not met; if it were, it would be the same answer.
    fn refused<T>(&self, error: &PushError<T>) -> Error {
        match error {
            PushError::Full(_) => Error::Overloaded { what: "a queue is full", limit: self.operations.limit() as u64 },
            PushError::Closed(_) => Error::Stopping,
        }
    }

    fn run_reads(&self) {
        while let Some(task) = self.reads.pop() {
            match task {
                ReadTask::Get { key, ticket } => self.engine.read(&key, &*ticket),
                ReadTask::Scan { step, ticket } => self.engine.scan(&step, &*ticket),
            }
        }
    }

    /// The committer: takes what has gathered while the last batch was written, and writes it as the next.
    fn run_commits(&self) {
        loop {
            let mut batch = Vec::new();
            if !self.writes.pop_many(COMMIT_WRITES_MAX, COMMIT_BYTES_MAX, write_bytes, &mut batch) {
                return;
            }
            self.engine.commit(batch);
        }
    }
}

fn write_bytes(write: &Write) -> usize {
    let value_bytes = match &write.change {
        Change::Put(value) => value.len(),
        Change::Delete => 0,
    };
    write.key.len() + value_bytes
}

impl Threads {
    fn start(executor: Arc<Executor>, options: &Options) -> Threads {
        let stop = Arc::new(Signal::default());
        let mut running = Vec::new();
        if executor.engine.blocks() {
            for number in 0..options.storage_threads {
                let executor = executor.clone();
                running.push(sync::spawn_thread(&format!("klad-storage-{number}"), move || executor.run_reads()));
            }
            running.push({
                let executor = executor.clone();
                sync::spawn_thread("klad-commit", move || executor.run_commits())
            });
            running.push(every("klad-sync", options.async_sync_interval, &stop, {
                let engine = executor.engine.clone();
                // A failure has been logged, and has stopped all writes, where it happened.
                move || drop(engine.sync())
            }));
            running.push(every("klad-upkeep", UPKEEP_INTERVAL, &stop, {
                let engine = executor.engine.clone();
                move || engine.upkeep()
            }));
        }
        Threads { executor, running, stop }
    }

    /// Lets everything that was admitted end, refuses what comes after, syncs, and leaves all in order.
    ///
    /// # Errors
    /// When the last sync failed, in the engine's words.
    pub fn stop(self) -> std::result::Result<(), String> {
        self.executor.reads.close();
        self.executor.writes.close();
        self.stop.raise();
        for thread in self.running {
            thread.join().expect("a thread that panics ends the process");
        }
        let synced = self.executor.engine.sync();
        self.executor.engine.upkeep();
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
