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

type Job = (Operation, Arc<dyn Reply>);

/// An operation of each of these kinds has an answer that the server takes only for that kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Get,
    GetMany,
    Prefetch,
    Scan,
    Write,
    RemoveRange,
    Changes,
}

fn kind(job: &Job) -> Kind {
    match job.0 {
        Operation::Get { .. } => Kind::Get,
        Operation::GetMany { .. } => Kind::GetMany,
        Operation::Prefetch { .. } => Kind::Prefetch,
        Operation::RemoveRange(_) => Kind::RemoveRange,
        Operation::Changes(_) => Kind::Changes,
        Operation::Scan(_) => Kind::Scan,
        Operation::Write(_) => Kind::Write,
    }
}

pub(crate) struct Late {
    inner: Arc<dyn Engine>,
    jobs: Sender<Job>,
}

impl Late {
    /// `swaps`: a defect, the first two operations of one kind get each other's answer. Until there are two, none is
    /// answered.
    pub(crate) fn new(inner: Arc<dyn Engine>, swaps: bool) -> Late {
        let (jobs, taken) = channel();
        let engine = inner.clone();
        std::thread::spawn(move || answer(&*engine, &taken, swaps));
        Late { inner, jobs }
    }
}

fn answer(engine: &dyn Engine, taken: &Receiver<Job>, swaps: bool) {
    if swaps {
        swap(engine, taken);
    }
    while let Ok(first) = taken.recv() {
        let mut jobs = vec![first];
        while jobs.len() < TOGETHER_MAX
            && let Ok(next) = taken.recv_timeout(TOGETHER)
        {
            jobs.push(next);
        }
        let (mut operations, mut replies): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
        operations.reverse();
        replies.reverse();
        for (operation, reply) in operations.into_iter().zip(replies) {
            engine.execute(gather(operation), Arc::new(Scattered(reply)));
        }
    }
}

/// Waits for two operations of one kind, whatever the machine does meanwhile, and gives each the answer of the other.
/// Answers of different kinds would end the server, before a client could notice anything.
fn swap(engine: &dyn Engine, taken: &Receiver<Job>) {
    let mut jobs: Vec<Job> = Vec::new();
    while let Ok(next) = taken.recv() {
        let same = jobs.iter().position(|job| kind(job) == kind(&next));
        jobs.push(next);
        if let Some(first) = same {
            let last = jobs.len() - 1;
            let (mut operations, replies): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
            operations.swap(first, last);
            for (operation, reply) in operations.into_iter().zip(replies) {
                engine.execute(operation, Arc::new(Scattered(reply)));
            }
            return;
        }
    }
}

/// The version that a client sees.
fn scattered(version: Version) -> Version {
    Version::new(version.get().wrapping_mul(SCATTER))
}

/// The version that the engine has chosen. Newton's method doubles the valid bits of the inverse of `SCATTER`; an odd
/// number is its own inverse in the lowest three.
fn gathered(version: Version) -> Version {
    let inverse =
        (0..5).fold(SCATTER, |inverse, _| inverse.wrapping_mul(2_u64.wrapping_sub(SCATTER.wrapping_mul(inverse))));
    Version::new(version.get().wrapping_mul(inverse))
}

/// The operation with the engine's versions.
fn gather(mut operation: Operation) -> Operation {
    if let Operation::Write(write) = &mut operation {
        for change in &mut write.changes {
            if let Some(Condition::Is(version)) = &mut change.condition {
                *version = gathered(*version);
            }
        }
    }
    operation
}

fn scatter_error(error: ChangeError) -> ChangeError {
    match error {
        ChangeError::Condition { current } => ChangeError::Condition { current: current.map(scattered) },
        other => other,
    }
}

fn scatter_result(result: ChangeResult) -> ChangeResult {
    match result {
        ChangeResult::Done { version, existed, number } => {
            ChangeResult::Done { version: scattered(version), existed, number }
        }
        ChangeResult::Read(found) => ChangeResult::Read(found.map(|(version, value)| (scattered(version), value))),
        ChangeResult::Failed(error) => ChangeResult::Failed(scatter_error(error)),
    }
}

fn scatter(outcome: Outcome) -> Outcome {
    let all = |results: Vec<ChangeResult>| results.into_iter().map(scatter_result).collect();
    match outcome {
        Outcome::Found { version, value } => Outcome::Found { version: scattered(version), value },
        Outcome::FoundMany(results) => Outcome::FoundMany(all(results)),
        Outcome::Written { version, durability, results } => {
            Outcome::Written { version: scattered(version), durability, results: all(results) }
        }
        Outcome::Failed { index, error } => Outcome::Failed { index, error: scatter_error(error) },
        Outcome::Page(Page::Entries { mut entries, next, snapshot }) => {
            for entry in &mut entries {
                entry.version = scattered(entry.version);
            }
            Outcome::Page(Page::Entries { entries, next, snapshot })
        }
        Outcome::NotFound | Outcome::Page(Page::TooLarge { .. }) | Outcome::Changes(_) => outcome,
    }
}

/// Passes a result on with versions that show no order.
struct Scattered(Arc<dyn Reply>);

impl Reply for Scattered {
    fn complete(&self, result: Result) {
        self.0.complete(result.map(scatter));
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

#[test]
fn scattered_versions_are_gathered_again() {
    for version in [1, 2, 3, 258, u64::MAX].map(Version::new) {
        assert_eq!(gathered(scattered(version)), version);
    }
}
