//! Engines without a server: opens them, asks them, and plants defects in them.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use klad_storage::memory::MemoryEngine;
use klad_storage::operation::{
    Change, Condition, Consistency, Durability, Effect, Error, Operation, Outcome, Page, ScanStep, View, Write,
};
use klad_storage::{Capabilities, ChangeKind, Engine, LocalDisk, Pending, Perf, Reply, Result};

/// Opens an engine in a directory.
pub(crate) type Open = fn(&Path) -> Arc<dyn Engine>;

/// The engines of this build.
pub(crate) const OPEN: &[Open] = &[
    #[cfg(feature = "rocksdb")]
    |directory| Arc::new(rocksdb(directory)),
    #[cfg(feature = "fjall")]
    |directory| Arc::new(fjall(directory)),
    memory,
];

pub(crate) fn memory(_: &Path) -> Arc<dyn Engine> {
    Arc::new(MemoryEngine::new(64 << 20))
}

#[cfg(feature = "rocksdb")]
pub(crate) fn rocksdb(directory: &Path) -> klad_storage::rocksdb::RocksDbEngine {
    let options = klad_storage::rocksdb::Options {
        cache_bytes: 16 << 20,
        memtable_bytes: 8 << 20,
        value_cache_percent: 20,
        compression: klad_storage::Compression::None,
        ..klad_storage::rocksdb::Options::default()
    };
    klad_storage::rocksdb::RocksDbEngine::open(directory, &options).unwrap()
}

#[cfg(feature = "fjall")]
pub(crate) fn fjall(directory: &Path) -> klad_storage::fjall::FjallEngine {
    let options = klad_storage::fjall::Options {
        cache_bytes: 16 << 20,
        memtable_bytes: 4 << 20,
        compression: klad_storage::Compression::None,
        ..klad_storage::fjall::Options::default()
    };
    klad_storage::fjall::FjallEngine::open(directory, &options).unwrap()
}

/// Runs `check` with each engine, in a directory of its own.
pub(crate) fn each_engine(check: impl Fn(&dyn Engine)) {
    for open in OPEN {
        let directory = tempfile::tempdir().unwrap();
        check(&*open(directory.path()));
    }
}

/// Sends the result, and the engine's work if it was measured.
struct Send(mpsc::Sender<Result>, mpsc::Sender<Perf>);

impl Reply for Send {
    fn complete(&self, result: Result) {
        self.0.send(result).unwrap();
    }

    fn measured(&self, perf: &Perf) {
        // The caller may not ask for it.
        let _ = self.1.send(*perf);
    }
}

pub(crate) fn try_ask(engine: &dyn Engine, operation: Operation) -> Result {
    measured(engine, operation).0
}

pub(crate) fn ask(engine: &dyn Engine, operation: Operation) -> Outcome {
    try_ask(engine, operation).unwrap()
}

/// As [`try_ask`], with the engine's work if it was measured.
pub(crate) fn measured(engine: &dyn Engine, operation: Operation) -> (Result, Option<Perf>) {
    let (told, ended) = mpsc::channel();
    let (measured, perf) = mpsc::channel();
    engine.execute(operation, Arc::new(Send(told, measured)));
    (ended.recv().unwrap(), perf.try_recv().ok())
}

/// Hands `writes` over together, and returns the outcomes in their order.
pub(crate) fn commit(engine: &dyn Engine, writes: Vec<Write>) -> Vec<Outcome> {
    let (measured, _perf) = mpsc::channel();
    let (pending, ended): (Vec<_>, Vec<_>) = writes
        .into_iter()
        .map(|write| {
            let (told, ended) = mpsc::channel();
            (Pending { write, reply: Arc::new(Send(told, measured.clone())) as Arc<dyn Reply> }, ended)
        })
        .unzip();
    engine.commit(pending);
    ended.iter().map(|ended| ended.recv().unwrap().unwrap()).collect()
}

pub(crate) fn write(engine: &dyn Engine, change: Change) -> Outcome {
    ask(engine, Operation::Write(Write::one(change, Durability::Async)))
}

pub(crate) fn put(key: impl Into<Bytes>, payload: impl Into<Bytes>) -> Change {
    Change::of(key.into(), Effect::Put(payload.into().into()))
}

/// The defect of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// A condition is checked before the commit section is entered.
    ChecksConditionsOutside,
    /// One in ten additions is acknowledged and forgotten.
    ForgetsAdditions,
    /// An atomic write that fails, but not at its first change, keeps all changes that do not fail.
    AppliesHalfABatch,
    /// Each change of a write is a commit of its own.
    SplitsBatches,
    /// Values never expire.
    IgnoresExpiry,
    /// The end of a removed range is removed, too.
    RemovesTheEnd,
    /// A scan step reads the latest state instead of that of its snapshot.
    ForgetsSnapshots,
    /// A backward step begins with the last entry of the one before.
    RepeatsAtBackwardSteps,
    /// A step without values says that they are empty.
    ForgetsSizes,
    /// A counter that an addition creates has no attributes, and so no expiry.
    DropsAttributes,
}

/// An engine with a defect.
pub(crate) struct Planted {
    inner: Arc<dyn Engine>,
    defect: Defect,
    additions: AtomicU64,
}

impl Planted {
    pub(crate) fn new(inner: Arc<dyn Engine>, defect: Defect) -> Planted {
        Planted { inner, defect, additions: AtomicU64::new(0) }
    }

    fn write(&self, mut write: Write) -> Result {
        match self.defect {
            Defect::ChecksConditionsOutside => {
                for change in &mut write.changes {
                    let current = match try_ask(
                        &*self.inner,
                        Operation::Get { key: change.key.clone(), consistency: Consistency::Default },
                    )? {
                        Outcome::Found { version, .. } => Some(version),
                        _ => None,
                    };
                    let holds = match change.condition {
                        None => true,
                        Some(Condition::Present) => current.is_some(),
                        Some(Condition::Absent) => current.is_none(),
                        Some(Condition::Is(version)) => current == Some(version),
                        Some(Condition::Never) => false,
                    };
                    if holds {
                        change.condition = None;
                    }
                    std::thread::yield_now();
                }
            }
            Defect::ForgetsAdditions => {
                for change in &mut write.changes {
                    if let Effect::Add { by, .. } = &mut change.effect
                        && self.additions.fetch_add(1, Ordering::Relaxed) % 10 == 9
                    {
                        *by = 0;
                    }
                }
            }
            Defect::AppliesHalfABatch => {
                let result = self.passed_on(write.clone());
                if let Ok(Outcome::Failed { index: 1.., .. }) = result {
                    self.passed_on(Write { atomic: false, ..write })?;
                }
                return result;
            }
            Defect::SplitsBatches if write.changes.len() > 1 && !write.depends_on_state() => {
                let mut first = None;
                for change in write.changes {
                    let done = self.passed_on(Write::one(change, write.durability))?;
                    first.get_or_insert(done);
                    std::thread::yield_now();
                }
                return Ok(first.unwrap());
            }
            Defect::IgnoresExpiry => {
                for change in &mut write.changes {
                    if let Effect::Put(value) = &mut change.effect
                        && let Some(own) = &mut value.attributes
                    {
                        own.expires_at_ms = None;
                    }
                }
            }
            Defect::DropsAttributes => {
                for change in &mut write.changes {
                    if let Effect::Add { created, .. } = &mut change.effect {
                        *created = None;
                    }
                }
            }
            _ => {}
        }
        self.passed_on(write)
    }

    fn passed_on(&self, write: Write) -> Result {
        try_ask(&*self.inner, Operation::Write(write))
    }

    fn scan(&self, mut step: ScanStep) -> Result {
        if self.defect == Defect::ForgetsSnapshots && matches!(step.view, View::At(_)) {
            step.view = View::Latest;
        }
        let mut result = try_ask(&*self.inner, Operation::Scan(Box::new(step.clone())));
        if let Ok(Outcome::Page(Page::Entries { entries, next, .. })) = &mut result {
            if self.defect == Defect::ForgetsSizes && step.keys_only {
                for entry in entries.iter_mut() {
                    entry.value_bytes = 0;
                }
            }
            if self.defect == Defect::RepeatsAtBackwardSteps && step.reverse && next.is_some() && entries.len() > 1 {
                *next = entries.last().map(|entry| [&entry.key, &b"\0"[..]].concat().into());
            }
        }
        result
    }
}

impl Engine for Planted {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn durability(&self, asked: Durability) -> Durability {
        self.inner.durability(asked)
    }

    fn read_cached(&self, key: &[u8]) -> Option<Result> {
        self.inner.read_cached(key)
    }

    fn execute(&self, operation: Operation, reply: Arc<dyn Reply>) {
        match operation {
            Operation::Write(write) => reply.complete(self.write(write)),
            Operation::Scan(step) => reply.complete(self.scan(*step)),
            Operation::RemoveRange(mut removal) => {
                if self.defect == Defect::RemovesTheEnd {
                    removal.end = removal.end.map(|end| [&end, &b"\0"[..]].concat().into());
                }
                self.inner.execute(Operation::RemoveRange(removal), reply);
            }
            other => self.inner.execute(other, reply),
        }
    }

    fn writable(&self, change: ChangeKind) -> std::result::Result<(), Error> {
        self.inner.writable(change)
    }

    fn set_cache_bytes(&self, bytes: u64) {
        self.inner.set_cache_bytes(bytes);
    }

    fn local_disk(&self) -> Option<&dyn LocalDisk> {
        self.inner.local_disk()
    }
}
