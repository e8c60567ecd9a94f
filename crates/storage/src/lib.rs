//! The only boundary between serving and storing.
//!
//! [`Engine`] knows nothing of HTTP, and nothing above it knows RocksDB or fjall. Each operation owns its [`Reply`], which the
//! engine completes once, from any thread, before or after the call has returned: as an engine across a network does.
//! What an engine can do is data ([`Capabilities`]); what only one on a disk of this machine has is [`LocalDisk`].
//!
//! ```text
//!   execution ──▶ Engine::read_cached      worker; never waits
//!             ──▶ Engine::execute          storage thread, or worker if calls do not block
//!             ──▶ Engine::commit           commit section, or worker if calls do not block
//!                       └──▶ Reply::complete, once for each operation
//! ```
//!
//! Called by `execution`; engines are made by `main`.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::commits::Commits;
use crate::operation::{Durability, Effect, Error, Operation, Outcome, Value, Write};

pub mod operation;

pub mod commits;
pub mod maintenance;
pub mod observation;
mod page;
pub mod perf;

pub mod disk;

#[cfg(feature = "fjall")]
pub mod fjall;
pub mod memory;
#[cfg(feature = "rocksdb")]
pub mod rocksdb;

pub mod delayed;

pub use observation::{Check, Observation};
pub(crate) use page::PageBuilder;
pub use perf::Perf;

/// What the names of checkpoints begin with while they are made or removed: a crash leaves them behind, and whoever makes
/// the next one removes them.
pub const PARTIAL: &str = ".partial-";

/// How the tables of an engine that has some are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Compression {
    /// Nothing is compressed.
    None,
    /// All but those that were just flushed, by LZ4: takes little CPU time.
    Lz4,
    /// As lz4, but the last level, which holds nine tenths of the data, by ZSTD: the smallest.
    Zstd,
}

/// How an operation ended.
pub type Result = std::result::Result<Outcome, Error>;

/// Where the end of one operation goes. `complete` is called exactly once, from any thread, and does not wait.
pub trait Reply: Send + Sync {
    /// The operation has ended.
    fn complete(&self, result: Result);

    /// The engine was done with the operation at `now`, after a log write with sync that took `sync`, or zero; said before the
    /// end, by engines that look at the clock once for many.
    fn clocked(&self, _now: Instant, _sync: Duration) {}

    /// What the engine had to do for the operation; said before the end, by engines that count it.
    fn measured(&self, _perf: &Perf) {}

    /// Whether there is room for a value of so many bytes, to be asked before one is copied that is larger than
    /// [`CACHED_VALUE_BYTES_MAX`](klad_base::limits::CACHED_VALUE_BYTES_MAX), once; if not, the answer is `NoRoom`.
    fn admits(&self, _value_bytes: usize) -> bool {
        true
    }
}

/// One write on its way into the engine, with where its end is told.
pub struct Pending {
    /// What is to be done.
    pub write: Write,
    /// Told when the write has happened, or has not.
    pub reply: Arc<dyn Reply>,
}

/// What an engine does beyond points and ranges, by default nothing. What it does not is refused before it is handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a capability of its own")]
pub struct Capabilities {
    /// Its calls may keep the calling thread waiting for a disk, and have answered when they return. Otherwise they return at
    /// once, and answers may come later, from any thread and in any order.
    pub blocks: bool,
    /// Changes with a condition.
    pub conditions: bool,
    /// Values that expire.
    pub expiry: bool,
    /// Values with metadata.
    pub metadata: bool,
    /// Writes of several changes.
    pub batches: bool,
    /// All writes have one order, which their versions tell, and a read that starts after one was acknowledged sees it or a
    /// later one, whatever the key.
    pub global_order: bool,
    /// Copies of all data while it is served ([`LocalDisk::checkpoint`]).
    pub checkpoints: bool,
    /// Compactions on request ([`LocalDisk::compact`]).
    pub compactions: bool,
}

impl Capabilities {
    /// What `write` needs and the engine does not have.
    #[must_use]
    pub fn lacks(&self, write: &Write) -> Option<&'static str> {
        let has = |needs: fn(&Value) -> bool| {
            write.changes.iter().any(|change| matches!(&change.effect, Effect::Put(value) if needs(value)))
        };
        if !self.batches && write.changes.len() > 1 {
            Some("batches")
        } else if !self.conditions && write.changes.iter().any(|change| change.condition.is_some()) {
            Some("conditions")
        } else if !self.expiry && has(|value| value.expires_at_ms.is_some()) {
            Some("expiry")
        } else if !self.metadata && has(|value| !value.metadata.is_empty()) {
            Some("metadata")
        } else {
            None
        }
    }
}

/// A store of keys and values, ordered by the bytes of the keys.
///
/// What an acknowledgement means: a read of the key that starts after it sees the write or a later one; the write has the
/// durability that the outcome names; no other write has its version.
pub trait Engine: Send + Sync + 'static {
    /// The name that `--engine` takes.
    fn name(&self) -> &'static str;

    /// What it does; the same for as long as it lives.
    fn capabilities(&self) -> Capabilities;

    /// The durability that an acknowledgement has when `asked` was asked for.
    fn durability(&self, asked: Durability) -> Durability;

    /// Reads `key` if that needs no disk and copies little (a value of at most
    /// [`CACHED_VALUE_BYTES_MAX`](klad_base::limits::CACHED_VALUE_BYTES_MAX)); `None` says nothing about the key: ask `execute`.
    fn read_cached(&self, key: &[u8]) -> Option<Result>;

    /// Begins one operation, and ends it too if calls block.
    fn execute(&self, operation: Operation, reply: Arc<dyn Reply>);

    /// Begins all of `writes`, which must not be empty. An engine with a commit section does them as one: one log write, one
    /// sync when any of them asked for it, in their order and visible together.
    fn commit(&self, writes: Vec<Pending>) {
        for Pending { write, reply } in writes {
            self.execute(Operation::Write(write), reply);
        }
    }

    /// As [`Engine::commit`], on a worker: if that waits for no sync, no other commit and no flush or compaction; else gives
    /// all back, and nothing has happened. (Log writes go to the kernel's memory, and now and then a log file is made.)
    ///
    /// # Errors
    /// The writes.
    fn try_commit(&self, writes: Vec<Pending>) -> std::result::Result<(), Vec<Pending>> {
        Err(writes)
    }

    /// Whether a write has a chance now; asked before a body is read.
    ///
    /// # Errors
    /// Why not: `NoSpace`, `MemoryFull` or `WritesStopped`.
    fn writable(&self, change: ChangeKind) -> std::result::Result<(), Error>;

    /// From now on the engine's caches take so many bytes at most; what is beyond goes little by little.
    fn set_cache_bytes(&self, bytes: u64);

    /// What must hold for writes and reads to be taken, each with its state now; never waits. Together they are what
    /// [`Engine::writable`] says of a put.
    fn checks(&self) -> Vec<Check> {
        vec![Check::of("storage", self.writable(ChangeKind::Put))]
    }

    /// What the engine knew of itself when it last looked; never waits.
    fn observe(&self) -> Arc<Observation> {
        Arc::default()
    }

    /// What it has to do with a disk of this machine; `None`: nothing.
    fn local_disk(&self) -> Option<&dyn LocalDisk> {
        None
    }
}

/// What only an engine has whose data lies on a disk of this machine. All of it may wait for that disk.
pub trait LocalDisk: Engine {
    /// Makes every acknowledged write safe from the death of the machine. After a failure no write is taken any more.
    ///
    /// # Errors
    /// When the engine could not sync, in its words.
    fn sync(&self) -> std::result::Result<(), String>;

    /// Looks after what need not be done within an operation: free space, version blocks, the observation. Called every
    /// [`HOUSEKEEPING_INTERVAL`](klad_base::limits::HOUSEKEEPING_INTERVAL) by one thread.
    fn housekeeping(&self);

    /// What its commit section has done.
    fn commits(&self) -> &Commits;

    /// From now on writes are refused below so many free bytes.
    fn set_disk_reserve(&self, bytes: u64);

    /// Makes `target` a data directory that holds every write which was acknowledged before the call, and durable. On an
    /// error, and after a crash, there is no `target`. May take long; one at a time; operations go on.
    ///
    /// # Errors
    /// [`maintenance::Error`]; nothing was made then.
    fn checkpoint(&self, _target: &Path) -> std::result::Result<maintenance::Checkpoint, maintenance::Error> {
        Err(maintenance::Error::NotSupported { engine: self.name(), what: "checkpoints" })
    }

    /// Rewrites everything without what was overwritten and removed; with `bottommost` also what nothing of that is in.
    /// `go_on` is told how many pieces of how many are done, and answers whether to do another. May take long; one at a
    /// time; operations go on.
    ///
    /// # Errors
    /// [`maintenance::Error`]; what was done until then stays done.
    fn compact(
        &self,
        _bottommost: bool,
        _go_on: &dyn Fn(u64, u64) -> bool,
    ) -> std::result::Result<maintenance::Compaction, maintenance::Error> {
        Err(maintenance::Error::NotSupported { engine: self.name(), what: "compactions" })
    }

    /// Ends the piece that [`LocalDisk::compact`] is at, unless it is about to begin one, and returns when it has ended.
    fn interrupt_compaction(&self) {}
}

/// The kind of a change whose body is not there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Stores a value.
    Put,
    /// Removes a value.
    Delete,
}
