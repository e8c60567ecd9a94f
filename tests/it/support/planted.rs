//! Servers with planted defects. This test binary runs itself as a server whose engine is wrapped in one that breaks
//! a promise. A check that does not find the defect is useless. None of this code is compiled into klad.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use clap::{CommandFactory as _, ValueEnum as _};
use klad::cli;
use klad::config::Config;
use klad::control::Controller;
use klad::os::signals::Signals;
use klad::settings::{self, CommandLine};
use klad_server::Server;
use klad_server::admin::control::Control;
use klad_server::logs;
use klad_server::net::listen;
use klad_storage::changes::Changes;
use klad_storage::maintenance::{self, Checkpoint, Compaction};
use klad_storage::memory::MemoryEngine;
use klad_storage::operation::{Durability, Effect, Error, Operation, Outcome, Page, ScanStep, Version, View};
use klad_storage::{Capabilities, ChangeKind, Check, Engine, LocalDisk, Observation, Pending, Reply, Result};

use super::late::Late;
use super::planted_replicas::Replicated;
use super::{planted_changes, plants};

/// The defect of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Defect {
    /// A `sync` write is acknowledged before its sync has succeeded.
    AcknowledgesBeforeSync,
    /// A `sync` write can be read before its sync has succeeded.
    VisibleBeforeSync,
    /// One acknowledged write in 50 is not stored, unless its answer depends on what is stored.
    LosesWrites,
    /// Versions begin again at each start.
    RepeatsVersions,
    /// After a failed log write or sync, the engine continues as if it had succeeded.
    ForgetsFailure,
    /// Writes that arrive together are committed one by one.
    SyncsEachWrite,
    /// The end of a range is included in the range, unless it is read backwards.
    InclusiveEnd,
    /// The first entry of each scan step is missing, except in the first step after the server's start.
    SkipsAtSteps,
    /// Each scan step reads the state at its own time.
    ForgetsSnapshots,
    /// A read from the disk is slow. This is a slow disk, not a defect.
    SlowDisk,
    /// A read on the worker is slow.
    SlowCachedReads,
    /// A large value is copied without a permit of the memory budget, and [`AT_ONCE`] copies exist at the same time.
    CopiesWithoutPermit,
    /// The worker waits for the sync of a write.
    WaitsOnWorker,
    /// A write that took long is answered as if it had been rejected.
    RejectsExecutedWrites,
    /// A write of the key `leak` is never answered.
    LosesReplies,
    /// A step of a change feed leaves out a change.
    LosesChanges,
    /// The engine does not report the time of its syncs.
    HidesSync,
    /// The thread that logs a line writes it to stderr itself.
    LogsSynchronously,
    /// A write of the key `panic` panics.
    Panics,
    /// The engine does no maintenance between operations.
    SkipsMaintenance,
    /// All scan steps from the third one on fail. hyper has flushed the first ones by then.
    FailsInMidRange,
    /// The engine always returns its first observation.
    FrozenObservation,
    /// An observation of the engine waits for a disk that hangs.
    SlowObservation,
    /// At a stop, klad closes connections without a request in progress at once, even if bytes have arrived.
    ClosesIdleAtOnce,
    /// At a stop, klad drops connections that wait to be accepted.
    DropsUnacceptedConnections,
    /// Reads of some keys do known amounts of work and waiting, which profiles must show. This is not a defect.
    Plants,
    /// Like `Plants`, but with waits that the lock profile does not see.
    PlantsHookOff,
    /// Answers come from another thread, late and out of order, as from an engine across a network. This is not a
    /// defect.
    AnswersLate,
    /// Like `AnswersLate`, but the first two reads, or the first two writes, get each other's answer.
    SwapsAnswers,
    /// The engine has no conditions, expiry, metadata, batches and range removals. This is not a defect.
    StoresPlainValuesOnly,
    /// The engine evaluates a condition before the commit section, and then commits the change without it.
    ChecksConditionsEarly,
    /// The engine says that it keeps three copies, and confirms what one copy does.
    ClaimsCopies,
    /// The engine keeps three copies, of which one answers. This is not a defect.
    MissesCopies,
    /// One write in 20 is done twice, as if its first answer had been lost. The second answer is given.
    RepeatsWrites,
    /// One addition in 20 is acknowledged with its sum, but not stored.
    ForgetsAdditions,
    /// An atomic batch without conditions is two commits.
    SplitsBatches,
    /// The removal of a range is two commits.
    SplitsRemovals,
    /// Another client writes after each scan step. This is not a defect.
    WritesBetweenSteps,
}

/// Time of a slow read.
const SLOW: Duration = Duration::from_millis(500);

/// Time of a slow observation.
const HANGS: Duration = Duration::from_secs(10);

/// Minimum time of a write that counts as long.
const LONG: Duration = Duration::from_millis(100);

const DEFECT: &str = "KLAD_TEST_DEFECT";
const ARGUMENTS: &str = "KLAD_TEST_ARGUMENTS";

/// Returns a command that runs this binary as a server with `defect`.
pub(crate) fn command(defect: Defect, arguments: &[String]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "support::planted::serve_with_defect", "--nocapture"])
        .env(DEFECT, format!("{defect:?}"))
        .env(ARGUMENTS, arguments.join("\n"));
    command
}

/// Not a test: the process that [`command`] starts. Does nothing without the variables of `command`.
#[test]
fn serve_with_defect() {
    let (Ok(defect), Ok(arguments)) = (std::env::var(DEFECT), std::env::var(ARGUMENTS)) else { return };
    let mut all = Defect::value_variants().iter().copied();
    let defect = all.find(|one| format!("{one:?}") == defect).expect("a known defect");
    let arguments = ["klad"].into_iter().chain(arguments.lines());
    let matches = cli::Cli::command().try_get_matches_from(arguments).expect("valid");
    let (_, serve) = matches.subcommand().expect("the arguments are those of serve");
    let command_line = CommandLine::of(serve);
    let resolved = settings::load(&command_line).expect("valid");
    let mut config = settings::check(&resolved).expect("valid");
    // jemalloc rejects it unless the environment has enabled profiling.
    #[cfg(target_os = "linux")]
    let _ = klad_profile::heap::Heap::sample_every(config.heap_sample_bytes);
    let drain = &mut config.server.limits.drain;
    match defect {
        Defect::ClosesIdleAtOnce => drain.idle_patience = Duration::ZERO,
        Defect::DropsUnacceptedConnections => drain.accept_patience = Duration::ZERO,
        _ => {}
    }
    let signals = Signals::take(|| std::process::exit(1)).expect("taken");
    if defect == Defect::LogsSynchronously {
        logs::set_access_log(config.logs.access_log);
        tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    } else {
        logs::end_the_process_on_panic();
        logs::start(&config.logs);
    }
    let listener = listen::bind(&config.listen).expect("free");
    let admin_listener = listen::bind(&config.admin_listen).expect("free");
    let inner = engine(&config);
    let engine: Arc<dyn Engine> = match defect {
        Defect::AnswersLate => Arc::new(Late::new(inner, false)),
        Defect::SwapsAnswers => Arc::new(Late::new(inner, true)),
        Defect::ClaimsCopies => Arc::new(Replicated::new(inner, false)),
        Defect::MissesCopies => Arc::new(Replicated::new(inner, true)),
        _ => Arc::new(Defective {
            inner,
            defect,
            writes: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            first: OnceLock::new(),
            held: Arc::default(),
        }),
    };
    let control = |limits| -> Arc<dyn Control> {
        Controller::new(command_line, resolved, config.clone(), limits, engine.clone())
    };
    let server = Server::start(&config.server, engine.clone(), listener, admin_listener, control).expect("serves");
    eprintln!("serving listen={} admin={}", server.address(), server.admin_address());
    signals.wait_for_stop(|| {});
    server.stop().expect("synced");
    std::process::exit(0);
}

fn engine(config: &Config) -> Arc<dyn Engine> {
    match config.engine {
        #[cfg(feature = "cassandra")]
        cli::EngineName::Cassandra => panic!("no defect is planted in klad on Cassandra"),
        #[cfg(feature = "rocksdb")]
        cli::EngineName::Rocksdb => Arc::new(
            klad_storage::rocksdb::RocksDbEngine::open(
                &config.data,
                &klad_storage::rocksdb::Options {
                    cache_bytes: config.budget.cache,
                    memtable_bytes: config.budget.memtables,
                    value_cache_percent: config.value_cache_percent,
                    background_threads: 1,
                    disk_reserve_bytes: config.disk_reserve_bytes,
                    iterator_reads: config.iterator_reads,
                    compression: config.compression,
                    direct_reads: config.direct_reads,
                    log_preallocation: config.log_preallocation,
                    compaction_rate_bytes: config.compaction_rate_bytes,
                    delete_rate_bytes: config.delete_rate_bytes,
                    changes: config.changes,
                    open_files_max: config.budget.files,
                    bulk_load: false,
                },
            )
            .expect("opens"),
        ),
        #[cfg(feature = "fjall")]
        cli::EngineName::Fjall => Arc::new(
            klad_storage::fjall::FjallEngine::open(
                &config.data,
                &klad_storage::fjall::Options {
                    cache_bytes: config.budget.cache,
                    memtable_bytes: config.budget.memtables,
                    background_threads: 1,
                    disk_reserve_bytes: config.disk_reserve_bytes,
                    compression: config.compression,
                    open_files_max: config.budget.files,
                },
            )
            .expect("opens"),
        ),
        cli::EngineName::Memory => Arc::new(MemoryEngine::new(config.budget.cache)),
    }
}

struct Defective {
    inner: Arc<dyn Engine>,
    defect: Defect,
    writes: AtomicU64,
    steps: AtomicU64,
    /// The first observation.
    first: OnceLock<Arc<Observation>>,
    held: Arc<Mutex<Vec<Held>>>,
}

/// Passes a result to the thread that waits for it.
pub(super) struct Collect(pub(super) mpsc::SyncSender<Result>);

impl Reply for Collect {
    fn complete(&self, result: Result) {
        self.0.send(result).expect("waited for");
    }
}

/// Changes a result before passing it on.
pub(super) struct Changed<F> {
    pub(super) reply: Arc<dyn Reply>,
    pub(super) change: F,
}

impl<F: Fn(Result) -> Result + Send + Sync> Reply for Changed<F> {
    fn complete(&self, result: Result) {
        self.reply.complete((self.change)(result));
    }
}

/// Number of results that are held at the same time with [`Defect::CopiesWithoutPermit`].
const AT_ONCE: usize = 20;

/// A held result, and its destination.
type Held = (Arc<dyn Reply>, Result);

/// A reply that asks for no permit and holds its result until [`AT_ONCE`] are held.
struct Unpermitted {
    reply: Arc<dyn Reply>,
    held: Arc<Mutex<Vec<Held>>>,
}

impl Reply for Unpermitted {
    fn complete(&self, result: Result) {
        let mut held = self.held.lock().unwrap();
        held.push((self.reply.clone(), result));
        if held.len() == AT_ONCE {
            held.drain(..).for_each(|(reply, result)| reply.complete(result));
        }
    }
}

impl Defective {
    fn commit_one(&self, mut write: Pending) -> Result {
        let (sender, receiver) = mpsc::sync_channel(1);
        write.reply = Arc::new(Collect(sender));
        self.inner.commit(vec![write]);
        receiver.recv().expect("completed")
    }

    fn scan_one(&self, step: &ScanStep) -> Result {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.inner.execute(Operation::Scan(Box::new(step.clone())), Arc::new(Collect(sender)));
        receiver.recv().expect("completed")
    }

    fn commit_defectively(&self, mut write: Pending) {
        let number = self.writes.fetch_add(1, Ordering::Relaxed) + 1;
        let reply = write.reply.clone();
        let asked = write.write.durability;
        match self.defect {
            Defect::AcknowledgesBeforeSync => {
                reply.complete(Ok(written(number, asked)));
                let _ = self.commit_one(write);
            }
            Defect::VisibleBeforeSync => {
                write.write.durability = Durability::Async;
                let done = self.commit_one(write);
                let synced = self.disk().sync();
                reply.complete(match (done, synced) {
                    (Ok(Outcome::Written { version, .. }), Ok(())) => Ok(written(version.get(), asked)),
                    (done, Ok(())) => done,
                    (_, Err(why)) => Err(Error::Undetermined { why }),
                });
            }
            Defect::LosesWrites if number.is_multiple_of(50) && !write.write.depends_on_state() => {
                // The lost write gets a version, so that only the loss can be noticed.
                let key = b"klad-test-lost".as_slice().into();
                write.write = klad_storage::operation::Write::of(key, Effect::Delete, asked);
                self.inner.commit(vec![write]);
            }
            Defect::RepeatsVersions => {
                let change = move |result: Result| {
                    result.map(|outcome| match outcome {
                        Outcome::Written { durability, .. } => written(number, durability),
                        other => other,
                    })
                };
                write.reply = Arc::new(Changed { reply, change });
                self.inner.commit(vec![write]);
            }
            Defect::ChecksConditionsEarly => planted_changes::commit_after_check(&*self.inner, write),
            Defect::ForgetsAdditions if number.is_multiple_of(20) => {
                planted_changes::forget_addition(&*self.inner, write);
            }
            Defect::RepeatsWrites if number.is_multiple_of(20) => planted_changes::commit_twice(&*self.inner, write),
            Defect::SplitsBatches => planted_changes::commit_in_halves(&*self.inner, write),
            Defect::RejectsExecutedWrites => {
                let begun = std::time::Instant::now();
                let done = self.commit_one(write);
                reply.complete(if begun.elapsed() > LONG { Err(Error::DeadlinePassed) } else { done });
            }
            Defect::HidesSync => {
                write.reply = Arc::new(Changed { reply, change: |result| result });
                self.inner.commit(vec![write]);
            }
            Defect::Panics if key(&write) == b"panic".as_slice() => panic!("planted panic"),
            Defect::LosesReplies if key(&write) == b"leak".as_slice() => {
                // The reply is kept forever in a leaked collection.
                std::mem::forget(reply);
                let _ = self.commit_one(write);
            }
            Defect::ForgetsFailure => {
                let change = move |result: Result| match result {
                    Err(Error::WritesStopped { .. }) => Ok(written(number, asked)),
                    other => other,
                };
                write.reply = Arc::new(Changed { reply, change });
                self.inner.commit(vec![write]);
            }
            _ => self.inner.commit(vec![write]),
        }
    }

    fn scan_defectively(&self, step: &ScanStep) -> Result {
        let before = self.steps.fetch_add(1, Ordering::Relaxed);
        let first = before == 0;
        let mut step = step.clone();
        // Backwards, a scan would meet its last entry again and again.
        if self.defect == Defect::InclusiveEnd && !step.reverse {
            step.end = step.end.map(|end| [&end[..], b"\0"].concat().into());
        }
        if self.defect == Defect::ForgetsSnapshots {
            step.view = View::Latest;
        }
        let mut result = self.scan_one(&step);
        match (&mut result, self.defect) {
            (Ok(Outcome::Page(Page::Entries { entries, .. })), Defect::SkipsAtSteps)
                if !first && !entries.is_empty() =>
            {
                entries.remove(0);
            }
            (Ok(_), Defect::WritesBetweenSteps) => planted_changes::write_around(&*self.inner),
            (_, Defect::FailsInMidRange) if before >= 2 => {
                return Err(Error::ReadFailed { why: "planted".to_owned() });
            }
            _ => {}
        }
        result
    }
}

impl Engine for Defective {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn durability(&self, asked: Durability) -> Durability {
        self.inner.durability(asked)
    }

    fn capabilities(&self) -> Capabilities {
        let all = self.inner.capabilities();
        if self.defect == Defect::StoresPlainValuesOnly {
            let Capabilities { blocks, global_order, checkpoints, compactions, .. } = all;
            return Capabilities { blocks, global_order, checkpoints, compactions, ..Capabilities::default() };
        }
        all
    }

    fn read_cached(&self, key: &[u8]) -> Option<Result> {
        match self.defect {
            Defect::SlowDisk => return None,
            Defect::SlowCachedReads => std::thread::sleep(SLOW),
            Defect::Plants | Defect::PlantsHookOff => {
                let planted = plants::answer(key, self.defect == Defect::PlantsHookOff);
                if planted.is_some() {
                    return planted;
                }
            }
            _ => {}
        }
        self.inner.read_cached(key)
    }

    fn execute(&self, operation: Operation, reply: Arc<dyn Reply>) {
        match operation {
            Operation::Get { .. } => {
                if self.defect == Defect::SlowDisk {
                    std::thread::sleep(SLOW);
                }
                let unasked = self.defect == Defect::CopiesWithoutPermit;
                let held = self.held.clone();
                self.inner.execute(operation, if unasked { Arc::new(Unpermitted { reply, held }) } else { reply });
            }
            Operation::Scan(step) => reply.complete(self.scan_defectively(&step)),
            Operation::Write(write) => self.commit(vec![Pending { write, reply }]),
            Operation::RemoveRange(removal) if self.defect == Defect::SplitsRemovals => {
                planted_changes::remove_in_halves(&*self.inner, removal, reply);
            }
            Operation::Changes(_) if self.defect == Defect::LosesChanges => {
                self.inner.execute(operation, Arc::new(Changed { reply, change: planted_changes::lose_a_change }));
            }
            Operation::GetMany { .. }
            | Operation::Prefetch { .. }
            | Operation::RemoveRange(_)
            | Operation::Changes(_) => {
                self.inner.execute(operation, reply);
            }
        }
    }

    fn commit(&self, writes: Vec<Pending>) {
        match self.defect {
            Defect::InclusiveEnd | Defect::SkipsAtSteps | Defect::ForgetsSnapshots | Defect::FailsInMidRange => {
                self.inner.commit(writes);
            }
            _ => writes.into_iter().for_each(|write| self.commit_defectively(write)),
        }
    }

    fn try_commit(&self, writes: Vec<Pending>) -> std::result::Result<(), Vec<Pending>> {
        if self.defect != Defect::WaitsOnWorker {
            return Err(writes);
        }
        for write in writes {
            let reply = write.reply.clone();
            reply.complete(self.commit_one(write));
        }
        Ok(())
    }

    fn writable(&self, change: ChangeKind) -> std::result::Result<(), Error> {
        match self.defect {
            Defect::ForgetsFailure => Ok(()),
            _ => self.inner.writable(change),
        }
    }

    fn set_cache_bytes(&self, bytes: u64) {
        self.inner.set_cache_bytes(bytes);
    }

    fn checks(&self) -> Vec<Check> {
        self.inner.checks()
    }

    fn observe(&self) -> Arc<Observation> {
        match self.defect {
            Defect::FrozenObservation => self.first.get_or_init(|| self.inner.observe()).clone(),
            Defect::SlowObservation => {
                std::thread::sleep(HANGS);
                self.inner.observe()
            }
            _ => self.inner.observe(),
        }
    }

    fn changes(&self) -> Option<&dyn Changes> {
        self.inner.changes()
    }

    fn local_disk(&self) -> Option<&dyn LocalDisk> {
        self.inner.local_disk().map(|_| self as &dyn LocalDisk)
    }
}

/// Returns the outcome of a write as `/v0` makes it.
fn written(version: u64, durability: Durability) -> Outcome {
    Outcome::Written { version: Version::new(version), durability, results: Vec::new() }
}

/// Returns the key of a write as `/v0` makes it.
fn key(write: &Pending) -> &[u8] {
    &write.write.changes[0].key
}

impl Defective {
    fn disk(&self) -> &dyn LocalDisk {
        self.inner.local_disk().expect("called only for engines with a disk")
    }
}

impl LocalDisk for Defective {
    fn sync(&self) -> std::result::Result<(), String> {
        self.disk().sync()
    }

    fn housekeeping(&self) {
        if self.defect != Defect::SkipsMaintenance {
            self.disk().housekeeping();
        }
    }

    fn commits(&self) -> &klad_storage::commits::Commits {
        self.disk().commits()
    }

    fn set_disk_reserve(&self, bytes: u64) {
        self.disk().set_disk_reserve(bytes);
    }

    fn checkpoint(&self, target: &Path) -> std::result::Result<Checkpoint, maintenance::Error> {
        self.disk().checkpoint(target)
    }

    fn compact(
        &self,
        bottommost: bool,
        go_on: &dyn Fn(u64, u64) -> bool,
    ) -> std::result::Result<Compaction, maintenance::Error> {
        self.disk().compact(bottommost, go_on)
    }

    fn interrupt_compaction(&self) {
        self.disk().interrupt_compaction();
    }
}
