//! An engine that says that it keeps three copies of each key, although it keeps one. It shows what klad makes of the
//! number of copies, and of too few answers.

use std::sync::Arc;

use klad_storage::operation::{Consistency, Durability, Error, Operation};
use klad_storage::{Capabilities, ChangeKind, Engine, LocalDisk, Reply, Result};

/// The copies that the engine says it keeps.
const COPIES: u8 = 3;

pub(super) struct Replicated {
    inner: Arc<dyn Engine>,
    /// Whether an operation fails if more than one copy must answer.
    admits_it: bool,
}

impl Replicated {
    pub(super) fn new(inner: Arc<dyn Engine>, admits_it: bool) -> Replicated {
        Replicated { inner, admits_it }
    }
}

/// Returns how many copies must answer an operation.
fn asked(operation: &Operation) -> u32 {
    let consistency = match operation {
        Operation::Get { consistency, .. } | Operation::GetMany { consistency, .. } => *consistency,
        Operation::Scan(step) => step.consistency,
        Operation::Write(write) => write.consistency,
        Operation::RemoveRange(removal) => removal.consistency,
        Operation::Prefetch { .. } | Operation::Changes(_) => Consistency::One,
    };
    match consistency {
        Consistency::One => 1,
        Consistency::Default | Consistency::Quorum | Consistency::LocalQuorum | Consistency::Serial => 2,
        Consistency::All => COPIES.into(),
        Consistency::Acks(acks) => acks.into(),
    }
}

impl Engine for Replicated {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn copies(&self) -> u8 {
        COPIES
    }

    fn durability(&self, asked: Durability) -> Durability {
        self.inner.durability(asked)
    }

    fn read_cached(&self, _key: &[u8]) -> Option<Result> {
        None
    }

    fn execute(&self, operation: Operation, reply: Arc<dyn Reply>) {
        let asked = asked(&operation);
        if self.admits_it && asked > 1 {
            return reply.complete(Err(Error::NotEnoughReplicas { answered: 1, asked }));
        }
        self.inner.execute(operation, reply);
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
