//! The only interface between the server and the storage engines.
//!
//! [`Engine`] knows nothing of HTTP, and no code above it knows RocksDB or fjall. Each operation has a [`Reply`]. The
//! engine completes the reply exactly once, from any thread, before or after the call returns, so the interface also
//! fits an engine across a network. [`Capabilities`] lists what an engine supports. [`LocalDisk`] adds the calls of an
//! engine whose data is on a disk of this machine.
//!
//! ```text
//!   execution ──▶ Engine::read_cached      worker; never waits
//!             ──▶ Engine::execute          storage thread, or worker if calls do not block
//!             ──▶ Engine::commit           commit section, or worker if calls do not block
//!                       └──▶ Reply::complete, once for each operation
//! ```
//!
//! Called by `execution`. `main` creates the engines.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bulk_load::BulkLoad;
use crate::changes::Changes;
use crate::commits::Commits;
use crate::operation::{Attributes, Durability, Effect, Error, Operation, Outcome, Write};

pub mod operation;

pub mod bulk_load;
pub mod changes;
pub mod commits;
pub mod limits;
pub mod maintenance;
pub mod observation;
mod page;
pub mod perf;
mod plan;

pub mod disk;

#[cfg(feature = "cassandra")]
pub mod cassandra;
#[cfg(feature = "fjall")]
pub mod fjall;
pub mod memory;
#[cfg(feature = "rocksdb")]
pub mod rocksdb;

pub mod delayed;

pub use observation::{Check, Observation};
pub(crate) use page::PageBuilder;
pub use perf::Perf;

/// The prefix of a checkpoint's name while the checkpoint is being made or removed. A crash can leave such a directory
/// behind. klad removes it at the next start and before it makes the next checkpoint.
pub const PARTIAL: &str = ".partial-";

/// The compression of an engine's table files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Compression {
    /// No compression.
    None,
    /// Compresses all tables except those of level 0 (just flushed) with LZ4; costs little CPU time.
    Lz4,
    /// As lz4, but compresses the last level, which holds 90 % of the data, with ZSTD; needs the least disk space.
    Zstd,
}

/// The result of one operation.
pub type Result = std::result::Result<Outcome, Error>;

/// Receives the result of one operation. All methods may be called from any thread and never wait.
pub trait Reply: Send + Sync {
    /// Ends the operation. The engine calls it exactly once, after all other methods.
    fn complete(&self, result: Result);

    /// Records that the engine finished the operation at `now`. `sync` is the duration of the synced log write, or
    /// zero. Only engines that read the clock once for a whole batch call it.
    fn clocked(&self, _now: Instant, _sync: Duration) {}

    /// Records the engine's work for the operation. Only engines that count it call it.
    fn measured(&self, _perf: &Perf) {}

    /// Reserves memory for a copy of a value of `value_bytes` and returns whether it was granted. The engine calls it
    /// once, before it copies a value larger than
    /// [`CACHED_VALUE_BYTES_MAX`](crate::limits::CACHED_VALUE_BYTES_MAX). If it returns false, the operation ends
    /// with [`Error::NoRoom`].
    fn admits(&self, _value_bytes: usize) -> bool {
        true
    }
}

/// One write that was handed to the engine, with its reply.
pub struct Pending {
    /// The write.
    pub write: Write,
    /// Receives the result of the write.
    pub reply: Arc<dyn Reply>,
}

/// What an engine supports beyond reads and writes of single keys and ranges. By default nothing. An operation that the
/// engine does not support is rejected before it reaches the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a capability of its own")]
pub struct Capabilities {
    /// A call may block the calling thread on the disk, and its reply is complete when it returns. If false, calls
    /// return at once, and replies may be completed later, from any thread and in any order.
    pub blocks: bool,
    /// Changes with a condition.
    pub conditions: bool,
    /// Values that expire.
    pub expiry: bool,
    /// Values with metadata.
    pub metadata: bool,
    /// Writes of several changes.
    pub batches: bool,
    /// Removals of ranges.
    pub range_removals: bool,
    /// Scans of several steps that see one state.
    pub snapshots: bool,
    /// One total order of all writes, which is the order of their versions. A read that starts after a write was
    /// acknowledged sees the state after that write or after a later one, for every key.
    pub global_order: bool,
    /// Copies of all data while klad serves ([`LocalDisk::checkpoint`]).
    pub checkpoints: bool,
    /// Compactions on request ([`LocalDisk::compact`]).
    pub compactions: bool,
    /// A feed of all changes in commit order ([`Engine::changes`]).
    pub changes: bool,
}

impl Capabilities {
    /// Returns the names of what users notice, separated by spaces.
    #[must_use]
    pub fn names(&self) -> String {
        let all = [
            ("conditions", self.conditions),
            ("expiry", self.expiry),
            ("metadata", self.metadata),
            ("batches", self.batches),
            ("range-removals", self.range_removals),
            ("snapshots", self.snapshots),
            ("changes", self.changes),
            ("checkpoints", self.checkpoints),
            ("compactions", self.compactions),
        ];
        all.into_iter().filter_map(|(name, has)| has.then_some(name)).collect::<Vec<_>>().join(" ")
    }

    /// The first capability that `write` needs and the engine lacks.
    #[must_use]
    pub fn lacks(&self, write: &Write) -> Option<&'static str> {
        let has = |needs: fn(&Attributes) -> bool| {
            write.changes.iter().any(|change| match &change.effect {
                Effect::Put(value) => value.attributes.as_deref().is_some_and(needs),
                Effect::Add { created, .. } => created.as_deref().is_some_and(needs),
                Effect::Delete | Effect::Expire(_) | Effect::Read => false,
            })
        };
        let expires = || write.changes.iter().any(|change| matches!(change.effect, Effect::Expire(Some(_))));
        if !self.batches && write.changes.len() > 1 {
            Some("batches")
        } else if !self.conditions && write.depends_on_state() {
            Some("conditions")
        } else if !self.expiry && (expires() || has(|own| own.expires_at_ms.is_some())) {
            Some("expiry")
        } else if !self.metadata && has(|own| !own.metadata.is_empty()) {
            Some("metadata")
        } else {
            None
        }
    }
}

/// A store of keys and values, ordered by the bytes of the keys.
///
/// An acknowledged write guarantees: a read of the key that starts later sees this write or a later one; the write has
/// the durability that the outcome names; no other change has the version of one of its changes.
pub trait Engine: Send + Sync + 'static {
    /// The engine's name as `--engine` takes it.
    fn name(&self) -> &'static str;

    /// The engine's capabilities. They never change.
    fn capabilities(&self) -> Capabilities;

    /// The number of copies that the engine keeps of each key, at least 1.
    fn copies(&self) -> u8 {
        1
    }

    /// The durability that the engine acknowledges when a client asks for `asked`.
    fn durability(&self, asked: Durability) -> Durability;

    /// Reads `key` if the read needs no disk and the value has at most
    /// [`CACHED_VALUE_BYTES_MAX`](crate::limits::CACHED_VALUE_BYTES_MAX). `None` means unknown: call `execute`.
    fn read_cached(&self, key: &[u8]) -> Option<Result>;

    /// Starts one operation. If calls block, the operation has ended on return.
    fn execute(&self, operation: Operation, reply: Arc<dyn Reply>);

    /// Starts all of `writes`, which must not be empty. An engine with a commit section makes one batch of them: one
    /// log write, and one sync if any of them asks for it. The batch keeps their order and becomes visible at once.
    fn commit(&self, writes: Vec<Pending>) {
        for Pending { write, reply } in writes {
            self.execute(Operation::Write(write), reply);
        }
    }

    /// As [`Engine::commit`], but never waits for a sync, another commit, a flush or a compaction, so that a worker
    /// can call it. (It writes the log to the kernel's page cache, and sometimes creates a log file.)
    ///
    /// # Errors
    /// The unchanged writes if the engine would have to wait. Nothing has been written then.
    fn try_commit(&self, writes: Vec<Pending>) -> std::result::Result<(), Vec<Pending>> {
        Err(writes)
    }

    /// Checks whether the engine currently takes writes of this kind. Called before a request body is read.
    ///
    /// # Errors
    /// The reason why not: `NoSpace`, `MemoryFull`, `Stalled` or `WritesStopped`.
    fn writable(&self, change: ChangeKind) -> std::result::Result<(), Error>;

    /// Limits the engine's caches to `bytes`. Entries beyond the new limit are evicted gradually.
    fn set_cache_bytes(&self, bytes: u64);

    /// The readiness checks with their current state. Never waits. All pass exactly when [`Engine::writable`] accepts a
    /// put.
    fn checks(&self) -> Vec<Check> {
        vec![Check::of("storage", self.writable(ChangeKind::Put))]
    }

    /// The latest observation of the engine's internal state. Never waits.
    fn observe(&self) -> Arc<Observation> {
        Arc::default()
    }

    /// The change feed; `None` if the engine has none.
    fn changes(&self) -> Option<&dyn Changes> {
        None
    }

    /// The disk interface of an engine that keeps its data on a local disk; `None` for other engines.
    fn local_disk(&self) -> Option<&dyn LocalDisk> {
        None
    }
}

/// The additional interface of an engine whose data is on a disk of this machine. Every call may wait for that disk.
pub trait LocalDisk: Engine {
    /// Makes every acknowledged write survive a machine crash. After a failure the engine takes no writes until the
    /// next start.
    ///
    /// # Errors
    /// The engine's message.
    fn sync(&self) -> std::result::Result<(), String>;

    /// Does the periodic work outside of operations: reads the free space, reserves version blocks, updates the
    /// observation. One thread calls it every [`HOUSEKEEPING_INTERVAL`](crate::limits::HOUSEKEEPING_INTERVAL).
    fn housekeeping(&self);

    /// The metrics of the commit section.
    fn commits(&self) -> &Commits;

    /// Sets the disk reserve: with less than `bytes` free, writes are rejected.
    fn set_disk_reserve(&self, bytes: u64);

    /// Creates the data directory `target` with every write that was acknowledged before the call. It is durable on
    /// return. After an error or a crash `target` does not exist. May take long; only one runs at a time; operations
    /// continue.
    ///
    /// # Errors
    /// [`maintenance::Error`]. Nothing was created then.
    fn checkpoint(&self, _target: &Path) -> std::result::Result<maintenance::Checkpoint, maintenance::Error> {
        Err(maintenance::Error::NotSupported { engine: self.name(), what: "checkpoints" })
    }

    /// Rewrites the tables without overwritten and removed entries. With `bottommost` it also rewrites tables of the
    /// last level that contain no such entries. The engine calls `go_on(done, total)` before each piece and at the
    /// end, and stops if it returns false. May take long; only one runs at a time; operations continue.
    ///
    /// # Errors
    /// [`maintenance::Error`]. Pieces that were finished stay compacted.
    fn compact(
        &self,
        _bottommost: bool,
        _go_on: &dyn Fn(u64, u64) -> bool,
    ) -> std::result::Result<maintenance::Compaction, maintenance::Error> {
        Err(maintenance::Error::NotSupported { engine: self.name(), what: "compactions" })
    }

    /// Aborts the piece that [`LocalDisk::compact`] is compacting, and returns when it has ended. Has no effect
    /// between two pieces.
    fn interrupt_compaction(&self) {}

    /// The interface for bulk loads; `None` if the engine has none, or was not opened for one.
    fn bulk_load(&self) -> Option<&dyn BulkLoad> {
        None
    }
}

/// The kind of a change whose body has not been read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Stores a value.
    Put,
    /// Removes a value.
    Delete,
}
