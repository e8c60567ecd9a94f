//! An engine like one across a network: its calls return at once, and a thread answers later and out of order. Its
//! versions have no order either.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use klad_storage::operation::{Durability, Error, Operation, Outcome, Version};
use klad_storage::{Capabilities, ChangeKind, Check, Engine, LocalDisk, Observation, Reply, Result};

/// Operations that arrive within this time of each other are answered in reverse order.
const TOGETHER: Duration = Duration::from_millis(1);

/// Maximum number of operations that are answered together.
const TOGETHER_MAX: usize = 16;

/// Multiplier of versions. It is odd, so that versions stay distinct and none becomes 0.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

type Job = (Operation, Arc<dyn Reply>);

pub(crate) struct Late {
    inner: Arc<dyn Engine>,
    jobs: Sender<Job>,
}

impl Late {
    /// `swaps`: a defect, two operations get each other's answer.
    pub(crate) fn new(inner: Arc<dyn Engine>, swaps: bool) -> Late {
        let (jobs, taken) = channel();
        let engine = inner.clone();
        std::thread::spawn(move || answer(&*engine, &taken, swaps));
        Late { inner, jobs }
    }
}

fn answer(engine: &dyn Engine, taken: &Receiver<Job>, swaps: bool) {
    while let Ok(first) = taken.recv() {
        let mut jobs = vec![first];
        while jobs.len() < TOGETHER_MAX
            && let Ok(next) = taken.recv_timeout(TOGETHER)
        {
            jobs.push(next);
        }
        let (mut operations, mut replies): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
        operations.reverse();
        if !swaps {
            replies.reverse();
        }
        for (operation, reply) in operations.into_iter().zip(replies) {
            engine.execute(operation, Arc::new(Scattered(reply)));
        }
    }
}

/// Passes a result on with a version that shows no order.
struct Scattered(Arc<dyn Reply>);

impl Reply for Scattered {
    fn complete(&self, result: Result) {
        let scattered = |version: Version| Version::new(version.get().wrapping_mul(SCATTER));
        self.0.complete(result.map(|outcome| match outcome {
            Outcome::Found { version, value } => Outcome::Found { version: scattered(version), value },
            Outcome::Written { version, durability, results } => {
                Outcome::Written { version: scattered(version), durability, results }
            }
            other => other,
        }));
    }

    fn admits(&self, value_bytes: usize) -> bool {
        self.0.admits(value_bytes)
    }
}

impl Engine for Late {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { blocks: false, global_order: false, changes: false, ..self.inner.capabilities() }
    }

    fn durability(&self, asked: Durability) -> Durability {
        self.inner.durability(asked)
    }

    fn read_cached(&self, _key: &[u8]) -> Option<Result> {
        None
    }

    fn execute(&self, operation: Operation, reply: Arc<dyn Reply>) {
        self.jobs.send((operation, reply)).expect("the thread runs as long as the engine exists");
    }

    fn writable(&self, change: ChangeKind) -> std::result::Result<(), Error> {
        self.inner.writable(change)
    }

    fn set_cache_bytes(&self, bytes: u64) {
        self.inner.set_cache_bytes(bytes);
    }

    fn checks(&self) -> Vec<Check> {
        self.inner.checks()
    }

    fn observe(&self) -> Arc<Observation> {
        self.inner.observe()
    }

    fn local_disk(&self) -> Option<&dyn LocalDisk> {
        self.inner.local_disk()
    }
}
