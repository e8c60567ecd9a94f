//! The command line: every subcommand and every option of `klad serve`, as clap parses them. `settings` adds the other
//! sources of options, `config` validates the result.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand};

use self::durations::{changes_heartbeat, commit_delay, duration, positive_duration};
use self::names::DEFAULT_ENGINE;
pub use self::names::{
    AccessLogName, AdminTlsName, DurabilityName, EngineName, ExecutionName, LogFormatName, LogLevelName,
    PointReadsName, SwitchName,
};
use klad_server::limits;
use klad_storage::Compression;

mod durations;
mod names;

/// A durable key-value store with an HTTP interface.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a data directory over HTTP.
    Serve(Box<ServeArgs>),
    /// Load an HTTP server, klad or another one, and report what was measured.
    #[cfg(target_os = "linux")]
    Bench(Box<klad_bench::args::BenchArgs>),
    /// Run an experiment: start servers, load, profile and compare them, and write a report.
    #[cfg(target_os = "linux")]
    #[command(subcommand, disable_help_subcommand = true)]
    Lab(klad_lab::args::LabCommand),
    /// Print the configuration and the source of each value, or check it.
    #[command(subcommand, disable_help_subcommand = true)]
    Config(ConfigCommand),
    /// Read a data directory that no process serves, and report damage.
    #[cfg(feature = "rocksdb")]
    Check(crate::offline::CheckArgs),
    /// Compact a data directory that no process serves: drop overwritten and removed entries.
    #[cfg(feature = "rocksdb")]
    Compact(crate::offline::CompactArgs),
    /// Make klad's keyspace in a Cassandra cluster, or show the state of the cluster.
    #[cfg(feature = "cassandra")]
    #[command(subcommand, disable_help_subcommand = true)]
    Cluster(crate::cluster::ClusterCommand),
    #[command(flatten)]
    #[expect(missing_docs, reason = "each command has its own help")]
    Client(crate::client::args::ClientCommand),
    #[command(flatten)]
    #[expect(missing_docs, reason = "each command has its own help")]
    Manual(ManualCommand),
}

/// Completions and manual pages.
#[derive(Debug, Subcommand)]
pub enum ManualCommand {
    /// Print the completion script of a shell.
    ///
    /// Packages install these scripts. Without a package, for bash: source <(klad completions bash)
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page of klad, or of one of its commands, as roff.
    ///
    /// Packages install these pages. Without a package: klad man > klad.1 && man ./klad.1
    Man {
        /// The command whose page is printed. Default: the page of klad itself.
        #[arg(value_name = "COMMAND", conflicts_with = "dir")]
        name: Vec<String>,
        /// Write all pages into this directory. The directory must exist.
        #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
        dir: Option<PathBuf>,
    },
}

/// Subcommands of `klad config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the value that each option of `klad serve` has with the options given here, and its source.
    Print {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// The options of `klad serve`.
        #[command(flatten)]
        serve: Box<ServeArgs>,
    },
    /// Validate the configuration, without opening the data directory and without listening.
    Check {
        /// The options of `klad serve`.
        #[command(flatten)]
        serve: Box<ServeArgs>,
    },
    /// Print the generated parts of the documents: for `make docs`.
    #[command(hide = true)]
    Reference {
        /// Print this page with its generated blocks renewed. Default: print the commented example file.
        #[arg(long, value_name = "FILE")]
        page: Option<PathBuf>,
    },
}

const CONFIGURATION: &str = "Configuration";
const PLACES: &str = "Addresses and data";
const THREADS: &str = "Threads";
const OVERLOAD: &str = "Overload";
const MEMORY: &str = "Memory";
const BOUNDS: &str = "Request limits";
const DEADLINES: &str = "Deadlines";
const DISK: &str = "Disk";
const LOGS: &str = "Logs";
const SAFETY: &str = "Safety";
const STOPPING: &str = "Stopping";

/// Options of `klad serve`. This is the only definition of an option: the environment variables, the keys of the file,
/// `docs/configuration.md` and `deploy/klad.toml` are derived from it (`settings`, `reference`).
///
/// `-h` prints the first paragraph of an option's comment. `[default: ...]` at the end of that paragraph describes a
/// default that is computed at start. `--help` and the documents print the other paragraphs too; the documents print a
/// paragraph that begins with `Range: ` beside the default. `config` checks the relations between options. Do not use
/// clap's `requires` and similar relations, because clap first parses the command line alone, without the environment
/// and the file.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Read options from this TOML file. Its keys are the names of the options, for example queue-limit = 2048.
    ///
    /// Options on the command line and in the environment override the file. There is no default file. klad rejects a
    /// file with an unknown key, and a file of more than 1 MiB.
    #[arg(long, value_name = "FILE", help_heading = CONFIGURATION)]
    pub config: Option<PathBuf>,
    /// Listen for clients on this address.
    ///
    /// An address that other machines can reach requires --token-file or --insecure-listen. With port 0 the kernel
    /// chooses a port; the log shows it.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080", help_heading = PLACES)]
    pub listen: String,
    /// Serve health, metrics, configuration and checkpoints on this address, the admin address.
    ///
    /// The admin listener has its own thread, so it answers even when the client address is overloaded. It serves at
    /// most 64 connections at a time and closes further ones at once. GET / lists its endpoints.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8081", help_heading = PLACES)]
    pub admin_listen: String,
    /// Keep the data in this directory. klad creates it if it is missing.
    ///
    /// Only one process can use a directory. A second process exits and prints the process id of the first one.
    #[arg(long, value_name = "DIR", default_value = "./data", help_heading = PLACES)]
    pub data: PathBuf,
    /// Create checkpoints in this directory [default: checkpoints in the data directory].
    ///
    /// POST /checkpoint on the admin address creates a checkpoint: a directory inside DIR that klad can serve. If DIR
    /// is on the file system of --data, klad makes hard links to the tables, which takes milliseconds and at first no
    /// further space. If DIR is on another file system, klad copies all tables, which takes time and space for all
    /// data; the copy survives the loss of the disk of --data. klad creates DIR with the first checkpoint. DIR must not
    /// be the data directory, a directory above it, or inside its subdirectory rocksdb or fjall. Only --engine rocksdb
    /// makes checkpoints.
    #[arg(long, value_name = "DIR", help_heading = PLACES)]
    pub checkpoints: Option<PathBuf>,
    /// Storage engine.
    ///
    /// The memory engine loses all data when the process ends. It reports durability none, logs a warning, and does not
    /// use --data. With cassandra, klad keeps no data itself, but stores it in the cluster of --contact-points. In a
    /// build without RocksDB the default is fjall; in a build without both it is memory.
    #[arg(long, value_enum, value_name = "NAME", default_value_t = DEFAULT_ENGINE, help_heading = PLACES)]
    pub engine: EngineName,
    /// The cluster of --engine cassandra.
    #[cfg(feature = "cassandra")]
    #[command(flatten)]
    pub cluster: crate::cluster::ServeClusterArgs,
    /// For experiments: delay each storage call by this time, to imitate a slow disk.
    ///
    /// With a delay, klad treats no value as present in memory.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration, help_heading = PLACES)]
    pub engine_delay: Duration,
    /// For experiments: apply --engine-delay to one storage call in every N.
    ///
    /// Range: 1 to 1,000,000.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000), help_heading = PLACES)]
    pub engine_delay_every: u64,
    /// Durability of writes that do not request one.
    ///
    /// See docs/durability.md.
    #[arg(long, value_enum, value_name = "NAME", default_value_t = DurabilityName::Sync, help_heading = PLACES)]
    pub durability: DurabilityName,
    /// Interval at which klad syncs async writes to the disk.
    ///
    /// If the machine fails, the latest async writes can be lost: at most the writes of one interval, and those that
    /// arrived while a sync was running. If a write survives, every earlier write survives too, with one exception: see
    /// docs/durability.md.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_duration, help_heading = PLACES)]
    pub async_sync_interval: Duration,
    /// Delay each commit by this time, so that more writes share one sync.
    ///
    /// Before each batch, the commit thread waits for --commit-delay, so that more writes join the batch. The wait
    /// begins with the first write, or when the previous batch is complete if that is later. The thread then writes the
    /// batch and syncs it. The delay adds latency to each synced write and reduces the number of syncs. Only
    /// --execution adaptive uses --commit-delay. Raise it if the disk, or a cloud provider's quota, limits the number
    /// of syncs a second.
    ///
    /// Range: up to 100 ms.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = commit_delay, help_heading = PLACES)]
    pub commit_delay: Duration,
    /// Number of workers, the threads that serve connections [default: one for each core that the process may use].
    ///
    /// RocksDB uses the same number of threads for compactions, and one more for flushes.
    ///
    /// Range: 1 to 999.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=999), help_heading = THREADS)]
    pub threads: Option<u64>,
    /// Execution strategy: which threads call storage. Use pool and stealing only for experiments.
    ///
    /// The values pool and stealing reproduce published load tests, for comparison. See docs/execution.md.
    #[arg(long, value_enum, value_name = "STRATEGY", default_value_t = ExecutionName::Adaptive, help_heading = THREADS)]
    pub execution: ExecutionName,
    /// Number of threads for reads that may wait for the disk, in --execution adaptive.
    ///
    /// These threads read values that are not in memory or are larger than 64 KiB, and do the steps of range scans.
    /// Raise the number for a disk that serves many reads at once.
    ///
    /// Range: 1 to 99.
    #[arg(long, value_name = "N", default_value_t = limits::STORAGE_THREADS, value_parser = clap::value_parser!(u64).range(1..=99), help_heading = THREADS)]
    pub storage_threads: u64,
    /// For experiments: number of threads in --execution pool and stealing.
    ///
    /// Range: 1 to 999.
    #[arg(long, value_name = "N", default_value_t = limits::POOL_THREADS, value_parser = clap::value_parser!(u64).range(1..=999), help_heading = THREADS)]
    pub pool_threads: u64,
    /// For experiments: time for which an idle thread of --execution pool spins before it sleeps.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration, help_heading = THREADS)]
    pub pool_spin: Duration,
    /// For experiments: how RocksDB reads a single key.
    ///
    /// The value iterator is slower. It reproduces a published mistake, for comparison.
    #[arg(long, value_enum, value_name = "WAY", default_value_t = PointReadsName::Get, help_heading = THREADS)]
    pub point_reads: PointReadsName,
    /// Parse plain requests with klad's own parser instead of the HTTP library.
    ///
    /// A plain request is a GET, PUT or DELETE of /v0/entity that arrives in one piece and uses no unusual feature. The
    /// HTTP library handles all other requests, also those of /v1, and with --fast-path off all requests. The answers
    /// are the same. With klad's own parser a plain request takes 13 to 24 % less CPU time.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = SwitchName::On, help_heading = THREADS)]
    pub fast_path: SwitchName,
    /// For experiments: maximum number of operations that wait in --execution pool and stealing. klad answers further
    /// operations with 503.
    ///
    /// Range: 1 to 1,000,000.
    #[arg(long, value_name = "N", default_value_t = limits::QUEUE_LIMIT, value_parser = clap::value_parser!(u64).range(1..=1_000_000), help_heading = OVERLOAD)]
    pub queue_limit: u64,
    /// Answer operations that waited longer than --queue-target in an overloaded storage queue with 503.
    ///
    /// A queue counts as overloaded when it has not been empty for 100 ms, and stays overloaded until it is empty.
    /// During the next 1.6 s, the queue counts as overloaded again as soon as its oldest operation has waited for four
    /// times --queue-target. The queue of writes never counts as overloaded while all its writes fit into one commit.
    /// Only --execution adaptive uses --queue-target. See docs/execution.md.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = positive_duration, help_heading = OVERLOAD)]
    pub queue_target: Duration,
    /// Answer an operation that waited for storage for --queue-age-max with 503, even if the queue is not overloaded.
    ///
    /// Only --execution adaptive uses --queue-age-max.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_duration, help_heading = OVERLOAD)]
    pub queue_age_max: Duration,
    /// Longest loop iteration of a worker that does not count as overload.
    ///
    /// A loop iteration is one pass of a worker over the tasks that are ready. After a longer iteration with at least
    /// 32 requests, the worker reads fewer requests in each iteration, the newest first. While all workers do so, klad
    /// accepts no new connections; afterwards it accepts them slowly at first. A worker begins to do so only while
    /// clients are in a hurry: within the last second a client has sent a deadline, or has disconnected before its
    /// answer. Only --execution adaptive uses --iteration-max. See docs/execution.md.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = positive_duration, help_heading = OVERLOAD)]
    pub iteration_max: Duration,
    /// Shed load when klad is overloaded.
    ///
    /// With --admission off, --operations-max, --queue-target, --queue-age-max and --iteration-max have no effect. All
    /// other limits remain, for example --queue-limit, --scans-max and --memory. Use off to measure the effect of load
    /// shedding.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = SwitchName::On, help_heading = OVERLOAD)]
    pub admission: SwitchName,
    /// Memory budget for caches, memtables, bodies and connections together [default: half of the limit of the
    /// control group, or of the machine's memory, whichever is less].
    ///
    /// The budget covers everything that grows with use. klad divides the budget at start. If the parts do not fit,
    /// klad exits and prints the calculation. klad reads the limits of control groups of version 1 and 2.
    ///
    /// Range: 64 MiB to 16 TiB.
    #[arg(long, value_name = "SIZE", help_heading = MEMORY)]
    pub memory: Option<ByteSize>,
    /// Percentage of the cache (without the memtables) that holds values instead of blocks. 0 disables the value cache.
    ///
    /// klad finds a recently read value in the value cache without a search through RocksDB. A write updates the value
    /// of its key if that value is cached, but does not add a value. A small entry takes more memory in the value cache
    /// than in a block. Only --engine rocksdb uses --value-cache.
    ///
    /// Range: 0 to 90.
    #[arg(long, value_name = "PERCENT", default_value_t = limits::VALUE_CACHE_PERCENT, value_parser = clap::value_parser!(u64).range(0..=90), help_heading = MEMORY)]
    pub value_cache: u64,
    /// Maximum number of open connections [default: 10,000, or fewer if a sixth of --memory or the limit of open files
    /// does not allow 10,000].
    ///
    /// At the limit klad accepts a new connection only after another has closed. Until then, clients wait in the
    /// kernel's backlog. If the limit of open files is too low for the --connections-max that you set, klad refuses to
    /// start.
    ///
    /// Range: 1 to 1,000,000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000), help_heading = MEMORY)]
    pub connections_max: Option<u64>,
    /// Maximum number of open connections from one address. klad answers a further connection with 503 and closes it
    /// [default: no limit].
    ///
    /// The error code is too-many-connections. With TLS klad sends a TLS alert instead of an answer. Behind a proxy,
    /// all clients have the proxy's address.
    ///
    /// Range: 1 to 1,000,000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000), help_heading = MEMORY)]
    pub connections_per_peer: Option<u64>,
    /// Maximum length of a key. klad answers a longer key with 414.
    ///
    /// The length is that of the decoded key.
    ///
    /// Range: 1 byte to 16 KiB.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", help_heading = BOUNDS)]
    pub key_max: ByteSize,
    /// Maximum length of a value. klad answers a longer value with 413.
    ///
    /// klad checks Content-Length before it reads the body. It rejects a chunked body as soon as the body is too long.
    ///
    /// Range: up to 1 GiB.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", help_heading = BOUNDS)]
    pub value_max: ByteSize,
    /// Maximum number of items of a batch. klad answers a batch with more items with 413.
    ///
    /// A batch of N items counts as N operations of --operations-max. If fewer places are free, klad answers the batch
    /// with 503. Keep --batch-items-max at a quarter of --operations-max or less.
    ///
    /// Range: 1 to 100,000.
    #[arg(long, value_name = "N", default_value_t = limits::BATCH_ITEMS_MAX, value_parser = clap::value_parser!(u64).range(1..=100_000), help_heading = BOUNDS)]
    pub batch_items_max: u64,
    /// Maximum length of the body of a batch. klad answers a longer body with 413.
    ///
    /// Range: up to 1 GiB.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", help_heading = BOUNDS)]
    pub batch_bytes_max: ByteSize,
    /// Maximum time of one scan of /v1. After that the scan ends with a cursor, from which the client can continue.
    ///
    /// A scan sees the state of one moment. While the scan runs, the engine keeps the values that were overwritten
    /// after that moment.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = positive_duration, help_heading = BOUNDS)]
    pub scan_time_max: Duration,
    /// Maximum length of the request line and the headers together. klad answers a longer head with 431.
    ///
    /// The minimum leaves space for the longest key with every byte percent-encoded, and for some headers.
    ///
    /// Range: 3 × --key-max + 1 KiB, to 64 KiB.
    #[arg(long, value_name = "SIZE", default_value = "32KiB", help_heading = BOUNDS)]
    pub head_max: ByteSize,
    /// Maximum number of operations that wait for storage or run in it. klad answers further operations with 503.
    ///
    /// The error code is overloaded. Reads that klad answers from memory, and range scans, do not count.
    ///
    /// Range: 1 to 1,000,000.
    #[arg(long, value_name = "N", default_value_t = limits::OPERATIONS_MAX, value_parser = clap::value_parser!(u64).range(1..=1_000_000), help_heading = BOUNDS)]
    pub operations_max: u64,
    /// Maximum number of range scans in progress. klad answers further scans with 503.
    ///
    /// The error code is overloaded. Each range scan may use 128 KiB of the memory budget.
    ///
    /// Range: 1 to 10,000.
    #[arg(long, value_name = "N", default_value_t = limits::SCANS_MAX, value_parser = clap::value_parser!(u64).range(1..=10_000), help_heading = BOUNDS)]
    pub scans_max: u64,
    /// Maximum number of change feeds (GET /v1/changes) in progress. klad answers further feeds with 503.
    ///
    /// The error code is overloaded. A feed uses memory only while it sends changes. This memory is part of the memory
    /// for bodies. Each feed also counts as a connection of --connections-max.
    ///
    /// Range: 1 to 100,000.
    #[arg(long, value_name = "N", default_value_t = limits::WATCHERS_MAX, value_parser = clap::value_parser!(u64).range(1..=100_000), help_heading = BOUNDS)]
    pub watchers_max: u64,
    /// Interval of the heartbeats of a change feed without changes.
    ///
    /// A client that has received nothing for twice --changes-heartbeat can assume that its connection is broken. klad
    /// watch always waits for 30 s.
    ///
    /// Range: more than 0, up to 15 s.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = changes_heartbeat, help_heading = BOUNDS)]
    pub changes_heartbeat: Duration,
    /// Maximum time from the first to the last byte of a request's head. After that klad answers 408.
    ///
    /// klad also closes the connection.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_duration, help_heading = DEADLINES)]
    pub head_timeout: Duration,
    /// Maximum time without a byte of a request's body. After that klad answers 408.
    ///
    /// A whole body may take longer than --body-timeout. klad then answers 408 as soon as the body's average rate,
    /// measured since klad began to wait for the body, is below --body-rate-min. In both cases klad also closes the
    /// connection.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_duration, help_heading = DEADLINES)]
    pub body_timeout: Duration,
    /// Maximum time in which the client takes no byte of an answer. After that klad closes the connection.
    ///
    /// klad may wait for the client several times during one answer. When all these waits together exceed
    /// --write-timeout, klad also closes the connection if the average rate during the waits is below --body-rate-min.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = positive_duration, help_heading = DEADLINES)]
    pub write_timeout: Duration,
    /// Minimum average rate, bytes per second, at which a client must send a body or take an answer.
    ///
    /// klad ends a request below --body-rate-min if the body takes longer than --body-timeout, or if klad has waited
    /// longer than --write-timeout in all for the client to take the answer. When the memory for bodies runs out, klad
    /// ends slow requests before these times, and also some requests above --body-rate-min. 0 switches off both rules.
    /// A client may then be as slow as it likes if it sends a byte of the body within each --body-timeout, or takes a
    /// byte of the answer within each --write-timeout.
    ///
    /// Range: 0 to 1 MiB.
    #[arg(long, value_name = "SIZE", default_value = "1KiB", help_heading = DEADLINES)]
    pub body_rate_min: ByteSize,
    /// Maximum time before the first request and between two requests. After that klad closes the connection.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "75s", value_parser = positive_duration, help_heading = DEADLINES)]
    pub idle_timeout: Duration,
    /// File of the tokens that clients must send. Each line is read-write TOKEN [name] or read-only TOKEN [name].
    ///
    /// Without this file every client that reaches klad may do everything. klad then refuses to listen on addresses
    /// that other machines can reach, unless --insecure-listen is given. A token has 16 to 512 characters: letters,
    /// digits and - . _ ~ + / =. Clients send it as Authorization: Bearer TOKEN. sha256:DIGITS in place of a token
    /// stands for the token with that SHA-256. # begins a comment. A file has at most 256 tokens. On the admin address,
    /// /livez, /healthz, /readyz and the files of the console need no token. klad reads the file again on SIGHUP. If
    /// the file has an error, the previous tokens stay valid.
    #[arg(long, value_name = "FILE", help_heading = SAFETY)]
    pub token_file: Option<PathBuf>,
    /// Listen on addresses that other machines can reach, without --token-file.
    ///
    /// Every client that reaches such an address can then read and write everything. Use --insecure-listen only in a
    /// network that keeps other clients out.
    #[arg(long, help_heading = SAFETY)]
    pub insecure_listen: bool,
    /// Certificate chain for TLS, PEM: the server's certificate first, then the intermediate ones.
    ///
    /// --tls-cert needs --tls-key too. With both, klad speaks only TLS 1.2 and 1.3, on the client address and, unless
    /// --admin-tls is off, on the admin address. Each connection takes 12 KiB more of the memory budget. A handshake
    /// must end within --head-timeout, and on the admin address within 10 s. On SIGHUP klad reads the files of all
    /// --tls options again and uses them for new connections. If a file has an error, klad keeps what it has.
    #[arg(long, value_name = "FILE", help_heading = SAFETY)]
    pub tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert, PEM, unencrypted.
    #[arg(long, value_name = "FILE", help_heading = SAFETY)]
    pub tls_key: Option<PathBuf>,
    /// Accept only clients that have a certificate from one of the authorities in this file, PEM.
    ///
    /// --tls-client-ca needs --tls-cert and --tls-key. It also applies to the admin address, if that address speaks
    /// TLS. With --token-file, clients need a token too.
    #[arg(long, value_name = "FILE", help_heading = SAFETY)]
    pub tls_client_ca: Option<PathBuf>,
    /// Use TLS on the admin address if the client address uses TLS. With off, the admin address serves plain HTTP, for
    /// local scrapers and supervisors.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = AdminTlsName::On, help_heading = SAFETY)]
    pub admin_tls: AdminTlsName,
    /// On SIGTERM or SIGINT, answer /readyz with 503 and serve normally for this time before the shutdown begins.
    ///
    /// Set --drain-delay to more than the time in which your load balancer notices that /readyz fails. Until then the
    /// load balancer sends requests on old and new connections. klad serves them without the header Connection: close,
    /// which would cost a new connection for each request. Keep 0 for a server without a load balancer. A second signal
    /// ends klad at once.
    #[arg(long, help_heading = STOPPING, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub drain_delay: Duration,
    /// Maximum time for requests in flight to finish during a shutdown.
    ///
    /// The time begins when --drain-delay ends. A shutdown takes about a third of a second if no client delays it. klad
    /// closes a connection without a request after 300 ms. It closes a connection after one second if the client sends
    /// nothing more of a request that has begun, or takes nothing of an answer. When --drain-timeout is over, klad
    /// closes the remaining connections; with 0 it closes them at once. Operations that were admitted complete in any
    /// case.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration, help_heading = STOPPING)]
    pub drain_timeout: Duration,
    /// Minimum free space on the disk. With less, klad answers PUTs with 507.
    ///
    /// The error code is no-space. With less than half of --disk-reserve, klad rejects DELETEs too. When there is more
    /// free space, klad accepts PUTs and DELETEs again.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", help_heading = DISK)]
    pub disk_reserve: ByteSize,
    /// Bypass the kernel's page cache when reading tables.
    ///
    /// With on, only klad caches data, within --memory. Each read that misses klad's cache then waits for the disk. Use
    /// on to measure disk reads on a machine whose free memory could hold the whole store. Only --engine rocksdb uses
    /// --direct-reads.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = SwitchName::Off, help_heading = DISK)]
    pub direct_reads: SwitchName,
    /// Maximum rate at which flushes and compactions of RocksDB write, bytes per second. 0: no limit.
    ///
    /// This is RocksDB's rate limiter. Set --compaction-rate if synced writes wait for the disk because compactions use
    /// it. A limit below about ten times the rate of incoming writes makes writes stall in the end.
    #[arg(long, value_name = "SIZE", default_value = "0B", help_heading = DISK)]
    pub compaction_rate: ByteSize,
    /// Rate at which RocksDB gives the bytes of removed files back to the file system, bytes per second. 0: at once.
    ///
    /// This is RocksDB's delete rate. Set --delete-rate on file systems that are mounted with the option discard, where
    /// synced writes wait while the disk discards a table. Removed tables that wait take at most a quarter of the size
    /// of all tables; RocksDB removes the others at once.
    #[arg(long, value_name = "SIZE", default_value = "0B", help_heading = DISK)]
    pub delete_rate: ByteSize,
    /// Size of the changes that klad keeps on disk for change feeds. 0 disables change feeds.
    ///
    /// klad keeps old write-ahead logs of RocksDB up to --changes-bytes, in addition to the logs that RocksDB itself
    /// needs. A feed that begins with an older change gets 410. A change takes about 40 bytes more than its key and
    /// value. Only --engine rocksdb has change feeds.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", help_heading = DISK)]
    pub changes_bytes: ByteSize,
    /// Maximum age of the changes that klad keeps for change feeds.
    ///
    /// klad deletes an old log when its last change is older than --changes-time, even if --changes-bytes has space for
    /// it.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = positive_duration, help_heading = DISK)]
    pub changes_time: Duration,
    /// Fill the write-ahead log of RocksDB with zeros in advance, so that most syncs do not have to write a new file
    /// length.
    ///
    /// A sync then takes two disk requests instead of three. It is not yet proved that preallocation is safe against
    /// power cuts on ext4 and XFS.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = SwitchName::Off, help_heading = DISK)]
    pub log_preallocation: SwitchName,
    /// Compression of new tables. klad reads existing tables whatever their compression is.
    ///
    /// klad never compresses level 0. On few cores zstd takes CPU time from requests: compactions of small entries take
    /// about 1.5 times as long as with lz4. Give klad compact the same value. --engine fjall has no zstd, and keeps the
    /// compression with which a directory was created.
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Compression::Lz4, help_heading = DISK)]
    pub compression: Compression,
    /// Average number of allocated bytes between two samples of the heap profile. 0: no sampling between profiles.
    ///
    /// /debug/pprof/heap and /debug/pprof/allocs on the admin address report these samples. With 0, the two endpoints
    /// work only with ?seconds=, and see only the allocations of those seconds. klad rounds the value down to a power
    /// of two. A smaller value is more exact and takes more CPU time: 512KiB takes about 2 % of the CPU time of reads.
    ///
    /// Range: 0, or 4 KiB to 1 GiB.
    #[arg(long, value_name = "SIZE", default_value = "2MiB", help_heading = LOGS)]
    pub heap_sample: ByteSize,
    /// Format of the log lines on stderr.
    ///
    /// `auto` is text if stderr is a terminal, otherwise JSON. JSON is one object per line, with `timestamp` (RFC
    /// 3339, UTC), `level`, `message` and the other fields beside them.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormatName::Auto, help_heading = LOGS)]
    pub log_format: LogFormatName,
    /// Log lines of this level and of the more severe ones.
    ///
    /// You can change the level while klad runs. klad buffers up to 1 MiB of log lines until stderr takes them. klad
    /// drops further lines and counts them (`klad_log_lines_dropped_total`), so that a blocked stderr does not stop the
    /// server.
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = LogLevelName::Info, help_heading = LOGS)]
    pub log_level: LogLevelName,
    /// Log a line for each request, at any log level.
    ///
    /// The line has method, path, status, outcome, the time of each phase, bytes, peer and request id. Keys and values
    /// may be secret, so the line has only their lengths. You can change --access-log while klad runs. Writing the line
    /// takes about 7 µs of CPU time per request, as much as a cached read.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = AccessLogName::Off, help_heading = LOGS)]
    pub access_log: AccessLogName,
    /// Log each request that takes at least --slow-request, with the time of each phase. 0s: log no slow requests.
    ///
    /// The time runs from the arrival of the request's head to the last byte of the answer, so it includes slow
    /// clients. A change feed never counts as slow. klad logs at most 10 slow requests a second, and one line with the
    /// number of the others (`klad_slow_requests_total` counts all). You can change --slow-request while klad runs.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration, help_heading = LOGS)]
    pub slow_request: Duration,
}

#[cfg(test)]
mod tests;
