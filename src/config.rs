//! From what the user typed to what the program needs: validated once, rejected and never adjusted, with the arithmetic.
//!
//! Called by `settings`.

use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::ValueEnum as _;

use crate::cli::{
    AccessLogName, DurabilityName, EngineName, ExecutionName, LogFormatName, LogLevelName, PointReadsName, ServeArgs,
    SwitchName,
};
use crate::os::memory_limit;
use klad_base::limits::{
    BODY_BUDGET_UNIT_BYTES, BODY_RATE_BYTES_CEILING, CONNECTION_BUFFER_BYTES_MAX, CONNECTION_BYTES, CONNECTIONS_MAX,
    DRAIN_ACCEPT_PATIENCE, DRAIN_IDLE_PATIENCE, HEAP_SAMPLE_BYTES_CEILING, HEAP_SAMPLE_BYTES_MIN, KEY_BYTES_CEILING,
    MEMORY_BYTES_CEILING, MEMORY_BYTES_MIN, MEMTABLE_BYTES_MAX, MEMTABLES, SCAN_STEP_BYTES_MAX, STACK_BYTES,
    THREADS_OWN, TLS_CONNECTION_BYTES, VALUE_BYTES_CEILING,
};
use klad_base::os::descriptors;
use klad_server::Deadlines;
use klad_server::admin::Shares;
use klad_server::execution;
use klad_server::execution::admission::BodyBudget;
use klad_server::execution::{Queues, Strategy};
use klad_server::http::service;
use klad_server::logs;
use klad_storage::Compression;
use klad_storage::operation::Durability;

mod error;
mod safety;

pub use error::Error;
pub use safety::Error as SafetyError;

/// All that `klad serve` needs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Clients' address.
    pub listen: String,
    /// Admin address.
    pub admin_listen: String,
    /// Data directory.
    pub data: PathBuf,
    /// Which engine.
    pub engine: EngineName,
    /// Each call of storage takes so much longer.
    pub engine_delay: Duration,
    /// But only every so manyth.
    pub engine_delay_every: u64,
    /// RocksDB reads keys through an iterator.
    pub iterator_reads: bool,
    /// Of the cache beside the memtables, so many hundredths are for values instead of blocks.
    pub value_cache_percent: u64,
    /// How the memory is shared out.
    pub budget: Budget,
    /// What must be said at start about who can reach klad.
    pub warnings: Vec<String>,
    /// Below so many free bytes writes are refused.
    pub disk_reserve_bytes: u64,
    /// Of tables.
    pub compression: Compression,
    /// Tables are read past the kernel's page cache.
    pub direct_reads: bool,
    /// The log of RocksDB is kept longer than its records.
    pub log_preallocation: bool,
    /// Of flushes and compactions of RocksDB, a second; 0: no limit.
    pub compaction_rate_bytes: u64,
    /// Of removed files of RocksDB, a second; 0: at once.
    pub delete_rate_bytes: u64,
    /// Between two samples of the heap profile; 0: none.
    pub heap_sample_bytes: u64,
    /// How many there may be at once.
    pub threads: usize,
    /// For the log.
    pub logs: logs::Options,
    /// For the server.
    pub server: klad_server::Options,
}

/// What of it may change while klad serves.
#[derive(Clone, Debug)]
pub struct Live {
    /// How the memory is shared out.
    pub budget: Budget,
    /// For the server.
    pub limits: klad_server::Limits,
    /// Below so many free bytes writes are refused.
    pub disk_reserve_bytes: u64,
    /// What is logged.
    pub logs: logs::Options,
}

/// What a klad that serves keeps until it ends, whatever the machine has by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaidOut {
    /// The memory budget.
    pub memory_bytes: u64,
    /// Of it, the room for bodies.
    pub room_bytes: u64,
    /// Files that the engine may keep open.
    pub files: u64,
}

/// One memory budget, bytes. `cache` holds the memtables too: they are charged to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// `--memory`.
    pub total: u64,
    /// Buffers of idle connections.
    pub connections: u64,
    /// How many connections that allows.
    pub connections_max: u64,
    /// Request bodies and large values on their way out.
    pub room: u64,
    /// Pages of ranges in progress.
    pub scans: u64,
    /// Block cache with memtables.
    pub cache: u64,
    /// Of the cache, for memtables.
    pub memtables: u64,
    /// Files that the engine may keep open.
    pub files: u64,
}

impl Budget {
    /// Shares `total` out.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`], with the arithmetic.
    pub fn new(
        total: u64,
        connections_max: u64,
        connection_bytes: u64,
        value_max: u64,
        scans_max: u64,
        laid_out: Option<&LaidOut>,
    ) -> Result<Budget, Error> {
        let connections = connections_max * connection_bytes;
        // An eighth for bodies, but always one of the largest beside the small ones' share, or it could never be stored.
        // In whole units, as it is given out and shown.
        let eighth = total / 8 / BODY_BUDGET_UNIT_BYTES * BODY_BUDGET_UNIT_BYTES;
        let room =
            laid_out.map_or_else(|| eighth.max(BodyBudget::bytes_for(value_max)), |laid_out| laid_out.room_bytes);
        // A page and hyper's copy of it.
        let scans = scans_max * 2 * SCAN_STEP_BYTES_MAX as u64;
        let left = total.saturating_sub(connections + room + scans);
        let cache_min = total / 4;
        if left < cache_min {
            return Err(Error::DoesNotFit {
                total,
                connections,
                connections_max,
                connection_bytes,
                room,
                scans,
                scans_max,
                left,
                cache_min,
            });
        }
        // A twentieth stays free for what cannot be charged exactly: allocator slack, table readers, compaction buffers.
        let cache = left - left / 20;
        let memtables = (cache / 3).min(MEMTABLES * MEMTABLE_BYTES_MAX);
        Ok(Budget { total, connections, connections_max, room, scans, cache, memtables, files: 0 })
    }

    /// As `/debug/memory` shows it.
    fn shares(&self) -> Shares {
        let Budget { total, connections, room, scans, cache, memtables, .. } = *self;
        Shares { total, connections, body_budget: room, scans, cache, memtables }
    }
}

impl Live {
    /// Validates what of `args` may change; `laid_out` is what a klad that serves has. Reads no file.
    ///
    /// # Errors
    /// [`Error`] says which option is wrong and what would be right.
    pub fn new(args: &ServeArgs, laid_out: Option<&LaidOut>) -> Result<Live, Error> {
        at_most("key-max", args.key_max.0, KEY_BYTES_CEILING)?;
        at_least("key-max", args.key_max.0, 1)?;
        at_most("value-max", args.value_max.0, VALUE_BYTES_CEILING)?;
        at_most("head-max", args.head_max.0, CONNECTION_BUFFER_BYTES_MAX as u64)?;
        // Every byte of a key may be percent-encoded, and some headers must fit beside it.
        at_least("head-max", args.head_max.0, 3 * args.key_max.0 + 1024)?;
        let memory = match (laid_out, args.memory) {
            (Some(laid_out), _) => laid_out.memory_bytes,
            (None, Some(asked)) => asked.0,
            (None, None) => half_of(memory_limit::memory_limit())?,
        };
        at_least("memory", memory, MEMORY_BYTES_MIN)?;
        at_most("memory", memory, MEMORY_BYTES_CEILING)?;
        at_most("body-rate-min", args.body_rate_min.0, BODY_RATE_BYTES_CEILING)?;
        at_most("heap-sample", args.heap_sample.0, HEAP_SAMPLE_BYTES_CEILING)?;
        if args.heap_sample.0 > 0 {
            at_least("heap-sample", args.heap_sample.0, HEAP_SAMPLE_BYTES_MIN)?;
        }
        // Raised first: what counts is how far it goes.
        let tls_bytes = if args.tls_cert.is_some() { TLS_CONNECTION_BYTES } else { 0 };
        let connection_bytes = CONNECTION_BYTES + tls_bytes;
        let workers = workers(args) as u64;
        let shares = descriptors::Shares::new(descriptors::raise_limit(), workers);
        if shares.connections() == 0 {
            return Err(Error::TooFewFiles { limit: shares.limit(), workers, needed: shares.limit_min() });
        }
        let files = laid_out.map(|laid_out| laid_out.files);
        let connections_max = connections_max(args.connections_max, memory, connection_bytes, &shares, files)?;
        let mut budget =
            Budget::new(memory, connections_max, connection_bytes, args.value_max.0, args.scans_max, laid_out)?;
        budget.files = files.unwrap_or_else(|| shares.files_beside(connections_max));
        let limits = limits(args, &budget);
        Ok(Live { budget, limits, disk_reserve_bytes: args.disk_reserve.0, logs: log_options(args) })
    }
}

impl Config {
    /// Validates `args`, and reads the files of tokens and certificates.
    ///
    /// # Errors
    /// [`Error`] says which option is wrong and what would be right.
    pub fn new(args: ServeArgs) -> Result<Config, Error> {
        let Live { budget, limits, disk_reserve_bytes, logs } = Live::new(&args, None)?;
        let checkpoints = checkpoints(&args)?;
        let compression = compression(&args)?;
        address_space(&args, budget.total)?;
        // Last, as it reads files.
        let judged = safety::judge(&args)?;
        let (workers, threads) = (workers(&args), threads(&args));
        let server = klad_server::Options {
            threads: workers,
            shares: descriptors::Shares::new(descriptors::raise_limit(), workers as u64),
            limits,
            safety: judged.safety,
            execution: execution::Options {
                strategy: strategy(&args),
                body_budget_bytes: budget.room,
                async_sync_interval: args.async_sync_interval,
            },
            checkpoints,
        };
        Ok(Config {
            logs,
            listen: judged.listen,
            admin_listen: judged.admin_listen,
            warnings: judged.warnings,
            data: args.data,
            engine: args.engine,
            engine_delay: args.engine_delay,
            engine_delay_every: args.engine_delay_every,
            iterator_reads: args.point_reads == PointReadsName::Iterator,
            value_cache_percent: args.value_cache,
            budget,
            disk_reserve_bytes,
            compression,
            direct_reads: args.direct_reads == SwitchName::On,
            log_preallocation: args.log_preallocation == SwitchName::On,
            compaction_rate_bytes: args.compaction_rate.0,
            delete_rate_bytes: args.delete_rate.0,
            heap_sample_bytes: args.heap_sample.0,
            threads,
            server,
        })
    }
}

/// `--memory` where it is not given, bytes.
fn half_of((limit, whose): (u64, &'static str)) -> Result<u64, Error> {
    let bound = MEMORY_BYTES_MIN;
    if limit / 2 >= bound { Ok(limit / 2) } else { Err(Error::TooLittleMemory { whose, limit, bound }) }
}

fn checkpoints(args: &ServeArgs) -> Result<PathBuf, Error> {
    let Some(checkpoints) = &args.checkpoints else { return Ok(args.data.join("checkpoints")) };
    // By name, and by what is there: a link may lead back into the data.
    let (found, data) = (whole(checkpoints), whole(&args.data));
    // Above the data, the data would lie among the checkpoints, as if it were one.
    let inside = ["rocksdb", "fjall"].into_iter().find(|files| found.starts_with(data.join(files)));
    if inside.is_some() || data.starts_with(&found) {
        let (checkpoints, data) = (checkpoints.display().to_string(), args.data.display().to_string());
        return Err(Error::CheckpointsInData { checkpoints, data, files: inside.unwrap_or("rocksdb") });
    }
    Ok(checkpoints.clone())
}

/// Of tables, if the engine has it.
fn compression(args: &ServeArgs) -> Result<Compression, Error> {
    let without_zstd = args.engine.to_possible_value().is_some_and(|engine| engine.get_name() == "fjall");
    if without_zstd && args.compression == Compression::Zstd { Err(Error::NoZstd) } else { Ok(args.compression) }
}

/// The path without links and dots: of what is there as the kernel resolves it, of the rest as it is written.
fn whole(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or(path.to_owned());
    if let Ok(found) = path.canonicalize() {
        return found;
    }
    match (path.parent(), path.components().next_back()) {
        (Some(parent), Some(Component::Normal(name))) => whole(parent).join(name),
        (Some(parent), Some(Component::ParentDir)) => {
            let mut parent = whole(parent);
            parent.pop();
            parent
        }
        _ => path,
    }
}

/// Why there are so many connections where `--connections-max` does not say.
pub(crate) fn how_connections_max(memory: u64, workers: usize) -> &'static str {
    let available = descriptors::Shares::new(descriptors::raise_limit(), workers as u64).connections();
    match (memory / 6 / CONNECTION_BYTES, available) {
        (by_memory, available) if by_memory.min(available) >= CONNECTIONS_MAX => "the most without the option",
        (by_memory, available) if by_memory <= available => "what a sixth of the memory holds",
        _ => "what the limit of open files holds",
    }
}

/// As asked for, or what a sixth of the memory and the limit of open files hold, up to the default limit: 2,730 at 256 MiB,
/// 10,000 from 938 MiB on.
fn connections_max(
    asked: Option<u64>,
    memory: u64,
    connection_bytes: u64,
    shares: &descriptors::Shares,
    files: Option<u64>,
) -> Result<u64, Error> {
    let available = files.map_or_else(|| shares.connections(), |files| shares.connections_beside(files));
    match asked {
        Some(connections_max) if connections_max > available => {
            Err(Error::TooFewDescriptors { connections_max, available, limit: shares.limit() })
        }
        Some(connections_max) => Ok(connections_max),
        None => Ok((memory / 6 / connection_bytes).min(available).clamp(1, CONNECTIONS_MAX)),
    }
}

/// Whether there is enough of it for stacks and memory: whoever is refused some later ends without a word.
fn address_space(args: &ServeArgs, memory: u64) -> Result<(), Error> {
    let threads = threads(args);
    let needed = (threads * STACK_BYTES) as u64 + 2 * memory;
    match rustix::process::getrlimit(rustix::process::Resource::As).current {
        Some(limit) if limit < needed => Err(Error::TooLittleAddressSpace { limit, needed, threads }),
        _ => Ok(()),
    }
}

/// All that klad may have at once.
fn threads(args: &ServeArgs) -> usize {
    THREADS_OWN + 2 * workers(args) + strategy(args).threads()
}

/// `--threads`, or a worker for each core.
fn workers(args: &ServeArgs) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    args.threads.map_or(cores, |threads| usize::try_from(threads).expect("klad is built for 64-bit machines"))
}

/// What may change while klad serves.
fn limits(args: &ServeArgs, budget: &Budget) -> klad_server::Limits {
    let to_usize = |value: u64| usize::try_from(value).expect("klad is built for 64-bit machines");
    klad_server::Limits {
        connections_max: to_usize(budget.connections_max),
        connections_per_peer: args.connections_per_peer.map(to_usize),
        head_bytes_max: to_usize(args.head_max.0),
        deadlines: Deadlines {
            head: args.head_timeout,
            idle: args.idle_timeout,
            body: args.body_timeout,
            write: args.write_timeout,
            body_rate_bytes_min: args.body_rate_min.0,
        },
        // The other strategies are there to be compared, as they are.
        iteration_max: (args.admission == SwitchName::On && args.execution == ExecutionName::Adaptive)
            .then_some(args.turn_max),
        drain: klad_server::Drain {
            delay: args.drain_delay,
            timeout: args.drain_timeout,
            idle_patience: DRAIN_IDLE_PATIENCE,
            accept_patience: DRAIN_ACCEPT_PATIENCE,
        },
        fast_path: args.fast_path == SwitchName::On,
        service: service::Options {
            key_bytes_max: args.key_max.0,
            value_bytes_max: args.value_max.0,
            durability: match args.durability {
                DurabilityName::Sync => Durability::Sync,
                DurabilityName::Async => Durability::Async,
            },
        },
        operations: execution::Limits {
            queues: (args.admission == SwitchName::On)
                .then_some(Queues { target: args.queue_target, age_max: args.queue_age_max }),
            operations_max: to_usize(args.operations_max),
            queue_limit: to_usize(args.queue_limit),
            scans_max: to_usize(args.scans_max),
        },
        memory: budget.shares(),
    }
}

fn log_options(args: &ServeArgs) -> logs::Options {
    logs::Options {
        format: match args.log_format {
            LogFormatName::Auto => logs::Format::Auto,
            LogFormatName::Text => logs::Format::Text,
            LogFormatName::Json => logs::Format::Json,
        },
        level: match args.log_level {
            LogLevelName::Error => logs::Level::Error,
            LogLevelName::Warn => logs::Level::Warn,
            LogLevelName::Info => logs::Level::Info,
            LogLevelName::Debug => logs::Level::Debug,
        },
        access_log: args.access_log == AccessLogName::On,
        slow_request: args.slow_request,
    }
}

fn strategy(args: &ServeArgs) -> Strategy {
    let to_usize = |value: u64| usize::try_from(value).expect("klad is built for 64-bit machines");
    let threads = to_usize(args.pool_threads);
    match args.execution {
        ExecutionName::Adaptive => {
            Strategy::Adaptive { storage_threads: to_usize(args.storage_threads), commit_delay: args.commit_delay }
        }
        ExecutionName::Inline => Strategy::Inline,
        ExecutionName::Pool => Strategy::Pool { threads, spin: args.pool_spin },
        ExecutionName::Stealing => Strategy::Stealing { threads },
    }
}

fn at_most(option: &'static str, value: u64, bound: u64) -> Result<(), Error> {
    if value <= bound { Ok(()) } else { Err(Error::OutOfRange { option, value, problem: "more than", bound }) }
}

fn at_least(option: &'static str, value: u64, bound: u64) -> Result<(), Error> {
    if value >= bound { Ok(()) } else { Err(Error::OutOfRange { option, value, problem: "less than", bound }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(limit: u64) -> descriptors::Shares {
        descriptors::Shares::new(limit, 2)
    }

    #[test]
    fn the_parts_of_a_budget_never_exceed_it() {
        for total in [64 << 20, 100 << 20, 256 << 20, 1 << 30, (1 << 30) + 10_001, 100 << 30] {
            let connections_max =
                connections_max(None, total, CONNECTION_BYTES, &of(20_000), None).expect("as it fits");
            let budget = Budget::new(total, connections_max, CONNECTION_BYTES, 16 << 20, 64, None).expect("fits");
            assert!(budget.connections + budget.room + budget.scans + budget.cache <= total, "{budget:?}");
            let room = BodyBudget::new(budget.room);
            assert!(room.try_take(16 << 20).is_some(), "{budget:?}");
            assert_eq!(room.bytes(), budget.room, "none of it is lost to rounding");
            assert!(budget.memtables < budget.cache, "{budget:?}");
        }
    }

    #[test]
    fn no_more_connections_than_descriptors() {
        assert_eq!(connections_max(None, 1 << 40, CONNECTION_BYTES, &of(20_000), None), Ok(10_000));
        assert_eq!(connections_max(None, 1 << 40, CONNECTION_BYTES, &of(4_096), None), Ok(3_072));
        assert_eq!(connections_max(Some(3_072), 1 << 40, CONNECTION_BYTES, &of(4_096), None), Ok(3_072));
        let message = connections_max(Some(5_000), 1 << 40, CONNECTION_BYTES, &of(4_096), None)
            .expect_err("too many")
            .to_string();
        for part in ["5000", "3072", "4096", "1024", "ulimit -n"] {
            assert!(message.contains(part), "{part} is missing in: {message}");
        }
    }

    #[test]
    fn too_little_memory_is_refused_without_an_option_that_nobody_gave() {
        assert_eq!(half_of((1 << 30, "the machine")), Ok(1 << 29));
        let message = half_of((100_000_000, "the control group")).expect_err("too little").to_string();
        assert!(message.starts_with("the control group has 100000000 bytes of memory"), "{message}");
        assert!(message.contains("67108864"), "{message}");
    }

    #[test]
    fn what_cannot_fit_is_refused_with_the_arithmetic() {
        let error = Budget::new(64 << 20, 10_000, CONNECTION_BYTES, 16 << 20, 64, None).expect_err("does not fit");
        let message = error.to_string();
        for part in ["67108864", "163840000", "10000 connections", "19523584", "8388608", "Raise --memory"] {
            assert!(message.contains(part), "{part} is missing in: {message}");
        }
    }
}
