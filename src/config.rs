//! The validated configuration of `klad serve`, made from the parsed options. A wrong option is an error that says what
//! would be right; this module never adjusts a value silently. Called by `settings`.

use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::ValueEnum as _;

use crate::cli::{
    AccessLogName, DurabilityName, EngineName, ExecutionName, LogFormatName, LogLevelName, PointReadsName, ServeArgs,
    SwitchName,
};
use crate::os::memory_limit;
use klad_base::limits::STACK_BYTES;
use klad_base::os::descriptors;
use klad_server::Deadlines;
use klad_server::admin::Shares;
use klad_server::execution;
use klad_server::execution::admission::BodyBudget;
use klad_server::execution::{Queues, Strategy};
use klad_server::http::service;
use klad_server::limits::{
    BODY_BUDGET_UNIT_BYTES, BODY_RATE_BYTES_CEILING, CONNECTION_BUFFER_BYTES_MAX, CONNECTION_BYTES, CONNECTIONS_MAX,
    DRAIN_ACCEPT_PATIENCE, DRAIN_IDLE_PATIENCE, HEAP_SAMPLE_BYTES_CEILING, HEAP_SAMPLE_BYTES_MIN, KEY_BYTES_CEILING,
    MEMORY_BYTES_CEILING, MEMORY_BYTES_MIN, THREADS_OWN, TLS_CONNECTION_BYTES, VALUE_BYTES_CEILING,
};
use klad_server::logs;
use klad_storage::Compression;
use klad_storage::changes::Retention;
use klad_storage::limits::{MEMTABLE_BYTES_MAX, MEMTABLES, SCAN_STEP_BYTES_MAX};
use klad_storage::operation::Durability;

mod error;
mod safety;

pub use error::Error;
pub use safety::Error as SafetyError;

/// The configuration of `klad serve`.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address for clients, `host:port`.
    pub listen: String,
    /// Admin address, `host:port`.
    pub admin_listen: String,
    /// Data directory.
    pub data: PathBuf,
    /// Storage engine.
    pub engine: EngineName,
    /// How to reach the cluster, and its consistency levels. `None` for engines without a cluster.
    #[cfg(feature = "cassandra")]
    pub cluster: Option<(klad_storage::cassandra::Contact, klad_storage::cassandra::Ask)>,
    /// Additional time of a storage call; zero: none.
    pub engine_delay: Duration,
    /// One storage call in this many is delayed, 1 or more.
    pub engine_delay_every: u64,
    /// Whether RocksDB reads single keys through an iterator.
    pub iterator_reads: bool,
    /// Percentage of the cache without the memtables that holds values instead of blocks.
    pub value_cache_percent: u64,
    /// The memory budget and its parts.
    pub budget: Budget,
    /// Warnings about who can reach klad, to log at start.
    pub warnings: Vec<String>,
    /// Minimum free disk space, bytes; with less, klad rejects writes.
    pub disk_reserve_bytes: u64,
    /// Compression of tables.
    pub compression: Compression,
    /// Whether reads of tables bypass the kernel's page cache.
    pub direct_reads: bool,
    /// Whether zeros are written ahead into the log of RocksDB.
    pub log_preallocation: bool,
    /// Maximum write rate of RocksDB's flushes and compactions, bytes per second; 0: no limit.
    pub compaction_rate_bytes: u64,
    /// Rate at which RocksDB frees the bytes of removed files, bytes per second; 0: at once.
    pub delete_rate_bytes: u64,
    /// How much of the changes RocksDB keeps for change feeds.
    pub changes: Retention,
    /// Average number of allocated bytes between two samples of the heap profile; 0: no samples.
    pub heap_sample_bytes: u64,
    /// Maximum number of threads of the process.
    pub threads: usize,
    /// Options of the log.
    pub logs: logs::Options,
    /// Options of the server.
    pub server: klad_server::Options,
}

/// The part of the configuration that can change while klad serves.
#[derive(Clone, Debug)]
pub struct LiveConfig {
    /// The memory budget and its parts.
    pub budget: Budget,
    /// Limits of the server.
    pub limits: klad_server::Limits,
    /// Minimum free disk space, bytes; with less, klad rejects writes.
    pub disk_reserve_bytes: u64,
    /// Options of the log.
    pub logs: logs::Options,
}

/// Sizes that stay fixed from the start of a process to its end, even if the memory or the limits of the machine
/// change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedSizes {
    /// The memory budget.
    pub memory_bytes: u64,
    /// The part of the budget for bodies.
    pub body_bytes: u64,
    /// Maximum number of files that the engine keeps open.
    pub files: u64,
}

/// The memory budget and its parts, bytes. `cache` includes the memtables: RocksDB charges them to the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The whole budget, `--memory`.
    pub total: u64,
    /// The part for the buffers of connections.
    pub connections: u64,
    /// Maximum number of connections, a count and not bytes.
    pub connections_max: u64,
    /// The part for request bodies, and for large values that are being sent.
    pub bodies: u64,
    /// The part for pages of range scans in progress.
    pub scans: u64,
    /// The part for block cache, value cache and memtables.
    pub cache: u64,
    /// The part of `cache` for memtables.
    pub memtables: u64,
    /// Maximum number of files that the engine keeps open, a count and not bytes.
    pub files: u64,
}

impl Budget {
    /// Divides `total`, bytes. With `fixed`, the part for bodies is the one of the running process. The returned
    /// `files` is 0; the caller sets it.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] if less than a quarter of `total` would be left for the cache.
    pub fn new(
        total: u64,
        connections_max: u64,
        connection_bytes: u64,
        value_max: u64,
        scans_max: u64,
        fixed: Option<&FixedSizes>,
    ) -> Result<Budget, Error> {
        let connections = connections_max * connection_bytes;
        // Bodies get an eighth, rounded down to the unit in which permits are given out, but at least enough for one
        // value of the maximum length beside the share of small bodies. Otherwise klad could never store such a value.
        let eighth = total / 8 / BODY_BUDGET_UNIT_BYTES * BODY_BUDGET_UNIT_BYTES;
        let bodies = fixed.map_or_else(|| eighth.max(BodyBudget::bytes_for(value_max)), |fixed| fixed.body_bytes);
        // Each scan holds a page, and hyper holds a copy of it.
        let scans = scans_max * 2 * SCAN_STEP_BYTES_MAX as u64;
        let left = total.saturating_sub(connections + bodies + scans);
        let cache_min = total / 4;
        if left < cache_min {
            return Err(Error::DoesNotFit {
                total,
                connections,
                connections_max,
                connection_bytes,
                bodies,
                scans,
                scans_max,
                left,
                cache_min,
            });
        }
        // A twentieth stays free for what cannot be counted exactly: allocator slack, table readers, compaction
        // buffers.
        let cache = left - left / 20;
        let memtables = (cache / 3).min(MEMTABLES * MEMTABLE_BYTES_MAX);
        Ok(Budget { total, connections, connections_max, bodies, scans, cache, memtables, files: 0 })
    }

    /// The parts in the form that `/debug/memory` prints.
    fn shares(&self) -> Shares {
        let Budget { total, connections, bodies, scans, cache, memtables, .. } = *self;
        Shares { total, connections, body_budget: bodies, scans, cache, memtables }
    }
}

impl LiveConfig {
    /// Validates `memory`, `heap-sample`, and those options in `args` that can change while klad serves. `fixed` has
    /// the sizes of the running process; `None` at start. Reads no file that an option names. Raises the process's
    /// limit of open files.
    ///
    /// # Errors
    /// [`Error`] says which option is wrong and what would be right.
    pub fn new(args: &ServeArgs, fixed: Option<&FixedSizes>) -> Result<LiveConfig, Error> {
        at_most("key-max", args.key_max.0, KEY_BYTES_CEILING)?;
        at_least("key-max", args.key_max.0, 1)?;
        at_most("value-max", args.value_max.0, VALUE_BYTES_CEILING)?;
        at_most("head-max", args.head_max.0, CONNECTION_BUFFER_BYTES_MAX as u64)?;
        // Every byte of a key may be percent-encoded, and some headers must fit beside it.
        at_least("head-max", args.head_max.0, 3 * args.key_max.0 + 1024)?;
        let memory = match (fixed, args.memory) {
            (Some(fixed), _) => fixed.memory_bytes,
            (None, Some(asked)) => asked.0,
            (None, None) => default_memory(memory_limit::memory_limit())?,
        };
        at_least("memory", memory, MEMORY_BYTES_MIN)?;
        at_most("memory", memory, MEMORY_BYTES_CEILING)?;
        at_most("body-rate-min", args.body_rate_min.0, BODY_RATE_BYTES_CEILING)?;
        at_most("heap-sample", args.heap_sample.0, HEAP_SAMPLE_BYTES_CEILING)?;
        if args.heap_sample.0 > 0 {
            at_least("heap-sample", args.heap_sample.0, HEAP_SAMPLE_BYTES_MIN)?;
        }
        // `raise_limit` is called before the division, so that klad can use as many files as the hard limit allows.
        let tls_bytes = if args.tls_cert.is_some() { TLS_CONNECTION_BYTES } else { 0 };
        let connection_bytes = CONNECTION_BYTES + tls_bytes;
        let workers = workers(args) as u64;
        let shares = descriptors::Shares::new(descriptors::raise_limit(), workers);
        if shares.connections() == 0 {
            return Err(Error::TooFewFiles { limit: shares.limit(), workers, needed: shares.limit_min() });
        }
        let files = fixed.map(|fixed| fixed.files);
        let connections_max = connections_max(args.connections_max, memory, connection_bytes, &shares, files)?;
        let mut budget =
            Budget::new(memory, connections_max, connection_bytes, args.value_max.0, args.scans_max, fixed)?;
        budget.files = files.unwrap_or_else(|| shares.files_beside(connections_max));
        let limits = limits(args, &budget);
        Ok(LiveConfig { budget, limits, disk_reserve_bytes: args.disk_reserve.0, logs: log_options(args) })
    }
}

impl Config {
    /// Validates `args`, and reads the files of tokens and certificates that they name.
    ///
    /// # Errors
    /// [`Error`] says which option is wrong and what would be right.
    pub fn new(args: ServeArgs) -> Result<Config, Error> {
        let LiveConfig { budget, limits, disk_reserve_bytes, logs } = LiveConfig::new(&args, None)?;
        let checkpoints = checkpoints(&args)?;
        let compression = compression(&args)?;
        address_space(&args, budget.total)?;
        #[cfg(feature = "cassandra")]
        let cluster = cluster(&args)?;
        // This check is the last, because it reads files.
        let exposure = safety::check(&args)?;
        let (workers, threads) = (workers(&args), threads(&args));
        let server = klad_server::Options {
            threads: workers,
            shares: descriptors::Shares::new(descriptors::raise_limit(), workers as u64),
            limits,
            safety: exposure.safety,
            execution: execution::Options {
                strategy: strategy(&args),
                body_budget_bytes: budget.bodies,
                async_sync_interval: args.async_sync_interval,
            },
            checkpoints,
        };
        Ok(Config {
            logs,
            listen: exposure.listen,
            admin_listen: exposure.admin_listen,
            warnings: exposure.warnings,
            data: args.data,
            engine: args.engine,
            #[cfg(feature = "cassandra")]
            cluster,
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
            changes: Retention { bytes: args.changes_bytes.0, time: args.changes_time },
            heap_sample_bytes: args.heap_sample.0,
            threads,
            server,
        })
    }
}

/// Returns the default of `--memory`, bytes: half of `limit`. `owner` is what sets the limit, as words for the error.
fn default_memory((limit, owner): (u64, &'static str)) -> Result<u64, Error> {
    let bound = MEMORY_BYTES_MIN;
    if limit / 2 >= bound { Ok(limit / 2) } else { Err(Error::TooLittleMemory { owner, limit, bound }) }
}

fn checkpoints(args: &ServeArgs) -> Result<PathBuf, Error> {
    let Some(checkpoints) = &args.checkpoints else { return Ok(args.data.join("checkpoints")) };
    // The paths are compared after links are resolved, because a link may lead back into the data directory.
    let (found, data) = (resolve_links(checkpoints), resolve_links(&args.data));
    // A directory above the data directory is wrong too: the data directory would look like a checkpoint.
    let inside = ["rocksdb", "fjall"].into_iter().find(|files| found.starts_with(data.join(files)));
    if inside.is_some() || data.starts_with(&found) {
        let (checkpoints, data) = (checkpoints.display().to_string(), args.data.display().to_string());
        return Err(Error::CheckpointsInData { checkpoints, data, files: inside.unwrap_or("rocksdb") });
    }
    Ok(checkpoints.clone())
}

/// Returns the compression of tables, if the engine supports it.
fn compression(args: &ServeArgs) -> Result<Compression, Error> {
    let without_zstd = args.engine.to_possible_value().is_some_and(|engine| engine.get_name() == "fjall");
    if without_zstd && args.compression == Compression::Zstd { Err(Error::NoZstd) } else { Ok(args.compression) }
}

/// The cluster of `--engine cassandra`.
#[cfg(feature = "cassandra")]
fn cluster(
    args: &ServeArgs,
) -> Result<Option<(klad_storage::cassandra::Contact, klad_storage::cassandra::Ask)>, crate::cluster::Error> {
    (args.engine == EngineName::Cassandra)
        .then(|| Ok((args.cluster.contact.contact()?, args.cluster.ask()?)))
        .transpose()
}

/// Returns `path` as an absolute path without links and dots. The kernel resolves the part that exists; the rest is
/// resolved by its text.
fn resolve_links(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or(path.to_owned());
    if let Ok(found) = path.canonicalize() {
        return found;
    }
    match (path.parent(), path.components().next_back()) {
        (Some(parent), Some(Component::Normal(name))) => resolve_links(parent).join(name),
        (Some(parent), Some(Component::ParentDir)) => {
            let mut parent = resolve_links(parent);
            parent.pop();
            parent
        }
        _ => path,
    }
}

/// Returns, as words for people, why the default of `--connections-max` has its value. The function does not know
/// whether TLS is on, so the words cover both cases.
pub(crate) fn connections_max_reason(memory: u64, workers: usize) -> &'static str {
    let available = descriptors::Shares::new(descriptors::raise_limit(), workers as u64).connections();
    match (memory / 6 / CONNECTION_BYTES, available) {
        (by_memory, available) if by_memory.min(available) >= CONNECTIONS_MAX => {
            "the maximum without the option, or with TLS as many as a sixth of the memory holds, if fewer"
        }
        (by_memory, available) if by_memory <= available => "as many as a sixth of the memory holds",
        _ => "as many as the limit of open files allows, or with TLS as many as a sixth of the memory holds, if fewer",
    }
}

/// Returns the limit of connections: `asked`, or the number that a sixth of `memory` and the limit of open files allow,
/// up to [`CONNECTIONS_MAX`]. Without TLS, a sixth of 256 MiB allows 2,730 connections, and a sixth of 938 MiB or more
/// 10,000. `files` is the number of files that the engine of the running process may keep open; `None` at start.
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

/// Checks the limit of address space now, because an allocation that fails later would end the process without a
/// message.
fn address_space(args: &ServeArgs, memory: u64) -> Result<(), Error> {
    let threads = threads(args);
    let needed = (threads * STACK_BYTES) as u64 + 2 * memory;
    match rustix::process::getrlimit(rustix::process::Resource::As).current {
        Some(limit) if limit < needed => Err(Error::TooLittleAddressSpace { limit, needed, threads }),
        _ => Ok(()),
    }
}

/// Maximum number of threads of the process.
fn threads(args: &ServeArgs) -> usize {
    THREADS_OWN + 2 * workers(args) + strategy(args).threads()
}

/// `--threads`, or one worker for each core.
fn workers(args: &ServeArgs) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    args.threads.map_or(cores, |threads| usize::try_from(threads).expect("klad is built for 64-bit machines"))
}

/// The limits of the server, which can change while klad serves.
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
        // The other strategies exist for comparison, and have no overload control.
        iteration_max: (args.admission == SwitchName::On && args.execution == ExecutionName::Adaptive)
            .then_some(args.iteration_max),
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
            batch_items_max: args.batch_items_max,
            batch_bytes_max: args.batch_bytes_max.0,
            scan_time_max: args.scan_time_max,
            heartbeat: args.changes_heartbeat,
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
            watchers_max: to_usize(args.watchers_max),
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

    fn shares_of(limit: u64) -> descriptors::Shares {
        descriptors::Shares::new(limit, 2)
    }

    #[test]
    fn the_parts_of_a_budget_never_exceed_it() {
        for total in [64 << 20, 100 << 20, 256 << 20, 1 << 30, (1 << 30) + 10_001, 100 << 30] {
            let connections_max =
                connections_max(None, total, CONNECTION_BYTES, &shares_of(20_000), None).expect("fits");
            let budget = Budget::new(total, connections_max, CONNECTION_BYTES, 16 << 20, 64, None).expect("fits");
            assert!(budget.connections + budget.bodies + budget.scans + budget.cache <= total, "{budget:?}");
            let body_budget = BodyBudget::new(budget.bodies);
            assert!(body_budget.try_take(16 << 20).is_some(), "{budget:?}");
            assert_eq!(body_budget.bytes(), budget.bodies, "rounding loses nothing");
            assert!(budget.memtables < budget.cache, "{budget:?}");
        }
    }

    #[test]
    fn no_more_connections_than_descriptors() {
        assert_eq!(connections_max(None, 1 << 40, CONNECTION_BYTES, &shares_of(20_000), None), Ok(10_000));
        assert_eq!(connections_max(None, 1 << 40, CONNECTION_BYTES, &shares_of(4_096), None), Ok(3_072));
        assert_eq!(connections_max(Some(3_072), 1 << 40, CONNECTION_BYTES, &shares_of(4_096), None), Ok(3_072));
        let message = connections_max(Some(5_000), 1 << 40, CONNECTION_BYTES, &shares_of(4_096), None)
            .expect_err("too many")
            .to_string();
        for part in ["5000", "3072", "4096", "1024", "ulimit -n"] {
            assert!(message.contains(part), "{part} is missing in: {message}");
        }
    }

    #[test]
    fn too_little_memory_is_an_error_that_names_the_memory_and_not_an_option() {
        assert_eq!(default_memory((1 << 30, "the machine")), Ok(1 << 29));
        let message = default_memory((100_000_000, "the control group")).expect_err("too little").to_string();
        assert!(message.starts_with("the control group has 100000000 bytes of memory"), "{message}");
        assert!(message.contains("67108864"), "{message}");
    }

    #[test]
    fn a_budget_whose_parts_do_not_fit_is_an_error_with_the_calculation() {
        let error = Budget::new(64 << 20, 10_000, CONNECTION_BYTES, 16 << 20, 64, None).expect_err("does not fit");
        let message = error.to_string();
        for part in ["67108864", "163840000", "10000 connections", "19523584", "8388608", "Raise --memory"] {
            assert!(message.contains(part), "{part} is missing in: {message}");
        }
    }
}
