//! An engine like one across a network: its calls return at once, and a thread answers later and out of order. Its
//! versions have no order either.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use klad_storage::operation::{
    ChangeError, ChangeResult, Condition, Durability, Error, Operation, Outcome, Page, Version,
};
use klad_storage::{Capabilities, ChangeKind, Check, Engine, LocalDisk, Observation, Reply, Result};

/// Operations that arrive within this time of each other are answered in reverse order.
const TOGETHER: Duration = Duration::from_millis(1);

/// Maximum number of operations that are answered together.
const TOGETHER_MAX: usize = 16;

/// Multiplier of versions. It is odd, so that versions stay distinct and none becomes 0.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The inverse of `SCATTER` modulo 2^64. Each step of Newton's method doubles the number of correct bits.
const GATHER: u64 = {
    let mut inverse: u64 = SCATTER;
    let mut step = 0;
    while step < 6 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(SCATTER.wrapping_mul(inverse)));
        step += 1;
    }
    assert!(SCATTER.wrapping_mul(inverse) == 1);
    inverse
};

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
        self.0.complete(result.map(|outcome| match outcome {
            Outcome::Found { version, value } => Outcome::Found { version: scattered(version), value },
            Outcome::FoundMany(results) => Outcome::FoundMany(results.into_iter().map(scatter).collect()),
            Outcome::Written { version, durability, results } => {
                let results = results.into_iter().map(scatter).collect();
                Outcome::Written { version: scattered(version), durability, results }
            }
            Outcome::Failed { index, error } => Outcome::Failed { index, error: scatter_error(error) },
            Outcome::Page(Page::Entries { mut entries, next, snapshot }) => {
                entries.iter_mut().for_each(|entry| entry.version = scattered(entry.version));
                Outcome::Page(Page::Entries { entries, next, snapshot })
            }
            other => other,
        }));
    }

    fn admits(&self, value_bytes: usize) -> bool {
        self.0.admits(value_bytes)
    }
}

fn scattered(version: Version) -> Version {
    Version::new(version.get().wrapping_mul(SCATTER))
}

fn scatter(result: ChangeResult) -> ChangeResult {
    match result {
        ChangeResult::Done { version, existed, number } => {
            ChangeResult::Done { version: scattered(version), existed, number }
        }
        ChangeResult::Read(found) => ChangeResult::Read(found.map(|(version, value)| (scattered(version), value))),
        ChangeResult::Failed(error) => ChangeResult::Failed(scatter_error(error)),
    }
}

fn scatter_error(error: ChangeError) -> ChangeError {
    match error {
        ChangeError::Condition { current } => ChangeError::Condition { current: current.map(scattered) },
        other => other,
    }
}

/// Replaces scattered versions in conditions by those that the inner engine knows.
fn gather(operation: &mut Operation) {
    let Operation::Write(write) = operation else { return };
    for change in &mut write.changes {
        if let Some(Condition::Is(version)) = &mut change.condition {
            *version = Version::new(version.get().wrapping_mul(GATHER));
        }
    }
}

impl Engine for Late {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { blocks: false, global_order: false, ..self.inner.capabilities() }
    }

    fn durability(&self, asked: Durability) -> Durability {
        self.inner.durability(asked)
    }

    fn read_cached(&self, _key: &[u8]) -> Option<Result> {
        None
    }

    fn execute(&self, mut operation: Operation, reply: Arc<dyn Reply>) {
        gather(&mut operation);
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
