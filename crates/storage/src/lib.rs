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
/// behind. klad removes such directories at the next start and before it makes the next checkpoint.
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

/// Receives the result of one operation. Any thread may call the methods. They never wait.
pub trait Reply: Send + Sync {
    /// Ends the operation. The engine calls this method exactly once, after all other methods.
    fn complete(&self, result: Result);

    /// Records that the engine finished the operation at `now`. `sync` is the duration of the synced log write, or
    /// zero. Only engines that read the clock once for a whole batch call this method.
    fn clocked(&self, _now: Instant, _sync: Duration) {}

    /// Records the engine's work for the operation. Only engines that count their work call this method.
    fn measured(&self, _perf: &Perf) {}

    /// Reserves memory for a copy of a value of `value_bytes` and returns whether the memory was granted. The engine
    /// calls this method once, before it copies a value larger than
    /// [`CACHED_VALUE_BYTES_MAX`](crate::limits::CACHED_VALUE_BYTES_MAX). If the method returns false, the operation
    /// ends with [`Error::NoRoom`].
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

/// What an engine supports beyond reads and writes of single keys and ranges. The default supports nothing. An
/// operation that the engine does not support is rejected before it reaches the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a capability of its own")]
pub struct Capabilities {
    /// Whether a call may block the calling thread on the disk. If true, the reply is complete when the call returns.
    /// If false, calls return at once, and replies may be completed later, from any thread and in any order.
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
    /// Returns the names of the supported capabilities that users notice, separated by spaces.
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
/// An acknowledged write has three guarantees. A read of the key that starts later sees this write or a later one. With
/// several copies, this holds only if the read asks a copy that has the write. The write has the durability that the
/// outcome names. Each of its changes has a version that no other change has.
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
    /// [`CACHED_VALUE_BYTES_MAX`](crate::limits::CACHED_VALUE_BYTES_MAX). `None` means that the result is unknown, so
    /// the caller must call `execute`.
    fn read_cached(&self, key: &[u8]) -> Option<Result>;

    /// Starts one operation. If calls block ([`Capabilities::blocks`]), the operation has ended on return.
    fn execute(&self, operation: Operation, reply: Arc<dyn Reply>);

    /// Starts all of `writes`, which must not be empty. An engine with a commit section makes one batch of them, with
    /// one log write, and one sync if any write asks for a sync. The batch keeps the order of the writes, and all of
    /// them become visible at the same moment.
    fn commit(&self, writes: Vec<Pending>) {
        for Pending { write, reply } in writes {
            self.execute(Operation::Write(write), reply);
        }
    }

    /// As [`Engine::commit`], but never waits for a sync, another commit, a flush or a compaction, so that a worker can
    /// call it. The call writes the log to the kernel's page cache, and sometimes creates a log file.
    ///
    /// # Errors
    /// Returns the unchanged writes if the engine would have to wait. Then nothing has been written.
    fn try_commit(&self, writes: Vec<Pending>) -> std::result::Result<(), Vec<Pending>> {
        Err(writes)
    }

    /// Checks whether the engine currently takes writes of this kind. klad calls this before it reads a request body.
    ///
    /// # Errors
    /// The reason why the engine takes no such writes: `NoSpace`, `MemoryFull`, `Stalled`, `WritesStopped` or
    /// `NotEnoughReplicas`.
    fn writable(&self, change: ChangeKind) -> std::result::Result<(), Error>;

    /// Limits the engine's caches to `bytes`, if the engine can change their size. The memory engine has no cache, and
    /// limits its data instead.
    fn set_cache_bytes(&self, bytes: u64);

    /// The readiness checks with their current state. Never waits. If all checks pass, [`Engine::writable`] accepts a
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
    /// observation. One thread calls this method every [`HOUSEKEEPING_INTERVAL`](crate::limits::HOUSEKEEPING_INTERVAL).
    fn housekeeping(&self);

    /// The metrics of the commit section.
    fn commits(&self) -> &Commits;

    /// Sets the disk reserve: klad rejects writes while fewer than `bytes` are free on the disk.
    fn set_disk_reserve(&self, bytes: u64);

    /// Creates the data directory `target` with every write that was acknowledged before the call. The checkpoint is
    /// durable on return. After a crash, `target` is complete or does not exist. A checkpoint may take long. Only one
    /// runs at a time, and operations continue.
    ///
    /// # Errors
    /// [`maintenance::Error`]. Then nothing was created, unless only the sync of the parent directory failed.
    fn checkpoint(&self, _target: &Path) -> std::result::Result<maintenance::Checkpoint, maintenance::Error> {
        Err(maintenance::Error::NotSupported { engine: self.name(), what: "checkpoints" })
    }

    /// Rewrites the tables without overwritten and removed entries. With `bottommost` it also rewrites tables of the
    /// last level that contain no such entries. The engine calls `go_on(done, total)` before each piece and at the end,
    /// and stops if `go_on` returns false. A compaction may take long. Only one runs at a time, and operations
    /// continue.
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

    /// Aborts the piece that [`LocalDisk::compact`] is compacting, and returns when that piece has ended. Has no effect
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
