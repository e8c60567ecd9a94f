//! What the user typed. `config` turns it into what the program needs.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand};

use self::names::DEFAULT_ENGINE;
pub use self::names::{
    AccessLogName, AdminTlsName, DurabilityName, EngineName, ExecutionName, LogFormatName, LogLevelName,
    PointReadsName, SwitchName,
};
use klad_base::limits;
use klad_storage::Compression;

mod names;

/// A durable key-value store spoken to over plain HTTP.
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
    /// Load an HTTP server, klad or any other, and say what it did.
    #[cfg(target_os = "linux")]
    Bench(Box<klad_bench::args::BenchArgs>),
    /// Run a whole experiment: start servers, load them, profile them, compare them, write the report.
    #[cfg(target_os = "linux")]
    #[command(subcommand, disable_help_subcommand = true)]
    Lab(klad_lab::args::LabCommand),
    /// Say what is configured and where it comes from, or whether it is valid.
    #[command(subcommand, disable_help_subcommand = true)]
    Config(ConfigCommand),
    /// Read a whole data directory that nobody serves, and say whether it is sound.
    #[cfg(feature = "rocksdb")]
    Check(crate::offline::CheckArgs),
    /// Rewrite a data directory that nobody serves without what was overwritten and removed.
    #[cfg(feature = "rocksdb")]
    Compact(crate::offline::CompactArgs),
    #[command(flatten)]
    #[expect(missing_docs, reason = "each command has its own help")]
    Client(crate::client::args::ClientCommand),
    #[command(flatten)]
    #[expect(missing_docs, reason = "each command has its own help")]
    Manual(ManualCommand),
}

/// What klad writes about its own command line.
#[derive(Debug, Subcommand)]
pub enum ManualCommand {
    /// Print the completions of a shell.
    ///
    /// Packages bring them along. Without a package, for bash: source <(klad completions bash)
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or that of a command, as roff.
    ///
    /// Packages bring them along. Without a package: klad man > klad.1 && man ./klad.1
    Man {
        /// The command whose page is printed; without one, the program's.
        #[arg(value_name = "COMMAND", conflicts_with = "dir")]
        name: Vec<String>,
        /// Write all pages into this directory, which must exist.
        #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
        dir: Option<PathBuf>,
    },
}

/// What to do about the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print each effective value and its source, for the options of `klad serve` as they are given here.
    Print {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// As `klad serve` would get them.
        #[command(flatten)]
        serve: Box<ServeArgs>,
    },
    /// Check all that `klad serve` would check, without the data directory and without listening.
    Check {
        /// As `klad serve` would get them.
        #[command(flatten)]
        serve: Box<ServeArgs>,
    },
    /// Print what is generated from the definitions of the options: for `make docs`.
    #[command(hide = true)]
    Reference {
        /// Print this page with its marked blocks made anew; without it, the commented example file.
        #[arg(long, value_name = "FILE")]
        page: Option<PathBuf>,
    },
}

const CONFIGURATION: &str = "Configuration";
const PLACES: &str = "What is served, and from where";
const THREADS: &str = "Threads";
const OVERLOAD: &str = "Overload";
const MEMORY: &str = "Memory";
const BOUNDS: &str = "Bounds of requests";
const DEADLINES: &str = "Deadlines";
const DISK: &str = "Disk";
const LOGS: &str = "Logs";
const SAFETY: &str = "Safety";
const STOPPING: &str = "Stopping";

/// Options of `klad serve`: the one definition of what can be configured. The environment's variables, the file's keys,
/// `docs/configuration.md` and `deploy/klad.toml` follow from it (`settings`, `reference`).
///
/// The first paragraph of an option's comment is what `-h` says; `[default: ...]` at its end tells a default that is
/// computed. The rest is for `--help` and the documents; a paragraph that begins with `Range: ` is told beside the default.
/// What concerns two options is checked by `config`, never by clap's `requires` and the like: clap sees one source, not four.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// File of options, in TOML: the names below as keys, such as queue-limit = 2048.
    ///
    /// What the command line or the environment says goes before the file. There is no file unless one is named. A key that
    /// klad does not know is an error, and so is a file of more than 1 MiB.
    #[arg(long, value_name = "FILE", help_heading = CONFIGURATION)]
    pub config: Option<PathBuf>,
    /// Address that clients are served on.
    ///
    /// An address that other machines reach needs --token-file, or --insecure-listen. Port 0 lets
    /// the kernel choose; the log says which.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080", help_heading = PLACES)]
    pub listen: String,
    /// Address of the admin listener: health, metrics, configuration, checkpoints.
    ///
    /// It has a thread of its own, so that it answers whatever the other address does. At most 64 connections; more are closed
    /// at once. Its root lists what there is.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8081", help_heading = PLACES)]
    pub admin_listen: String,
    /// Directory of the data; made when it is missing.
    ///
    /// One process at a time: a second one is refused with the process id of the first.
    #[arg(long, value_name = "DIR", default_value = "./data", help_heading = PLACES)]
    pub data: PathBuf,
    /// Directory that checkpoints are made in [default: checkpoints in the data directory].
    ///
    /// POST /checkpoint of the admin listener makes a directory here that klad can serve. On the file system of --data its
    /// tables are hard links, made in milliseconds and without further space; on another one they are copied, which takes
    /// the space and the time of all data but survives the loss of the first disk. Made with the first checkpoint. Must
    /// neither be the data directory nor lie in its rocksdb.
    #[arg(long, value_name = "DIR", help_heading = "Data")]
    pub checkpoints: Option<PathBuf>,
    /// Where the data is kept.
    ///
    /// The memory engine keeps it until the process ends, answers durability none, says so in the log, and does not touch
    /// --data. In a build without RocksDB fjall is the default, and without both this one.
    #[arg(long, value_enum, value_name = "NAME", default_value_t = DEFAULT_ENGINE, help_heading = PLACES)]
    pub engine: EngineName,
    /// For experiments: each call of storage takes so much longer, as with a slow disk.
    ///
    /// Nothing counts as in memory then.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration, help_heading = PLACES)]
    pub engine_delay: Duration,
    /// For experiments: only every so manyth call of storage takes longer by --engine-delay.
    ///
    /// Range: 1 to 1,000,000.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000), help_heading = PLACES)]
    pub engine_delay_every: u64,
    /// Durability of writes that ask for none.
    ///
    /// See docs/durability.md.
    #[arg(long, value_enum, value_name = "NAME", default_value_t = DurabilityName::Sync, help_heading = PLACES)]
    pub durability: DurabilityName,
    /// Longest time that an acknowledged async write stays unsynced.
    ///
    /// It is what can be lost of async writes when the machine dies; what survives is a prefix of what was acknowledged.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_duration, help_heading = PLACES)]
    pub async_sync_interval: Duration,
    /// How long the committer waits for more writes, from the first of a batch on, before it writes and syncs the batch.
    ///
    /// Of --execution adaptive, for writes with sync. Each waits so much longer, and fewer syncs are made. It is worth trying
    /// where a disk, or who rents it out, allows only so many syncs a second.
    ///
    /// Range: up to 100 ms.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = commit_delay, help_heading = PLACES)]
    pub commit_delay: Duration,
    /// Workers: threads that serve connections [default: one for each core that the process may use].
    ///
    /// RocksDB gets as many threads for compactions, and one for flushes.
    ///
    /// Range: 1 to 999.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=999), help_heading = THREADS)]
    pub threads: Option<u64>,
    /// Where operations run; pool and stealing are for experiments.
    ///
    /// They repeat what published load tests have measured, to be compared. See docs/execution.md.
    #[arg(long, value_enum, value_name = "STRATEGY", default_value_t = ExecutionName::Adaptive, help_heading = THREADS)]
    pub execution: ExecutionName,
    /// Threads of --execution adaptive for reads that may wait for the disk.
    ///
    /// Such reads are those of values that are not in memory, and steps of ranges. More threads make use of a disk that does
    /// many reads at once.
    ///
    /// Range: 1 to 99.
    #[arg(long, value_name = "N", default_value_t = limits::STORAGE_THREADS, value_parser = clap::value_parser!(u64).range(1..=99), help_heading = THREADS)]
    pub storage_threads: u64,
    /// For experiments: threads of --execution pool and stealing.
    ///
    /// Range: 1 to 999.
    #[arg(long, value_name = "N", default_value_t = limits::POOL_THREADS, value_parser = clap::value_parser!(u64).range(1..=999), help_heading = THREADS)]
    pub pool_threads: u64,
    /// For experiments: time for which a thread of --execution pool that has nothing to do looks for work before it sleeps.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration, help_heading = THREADS)]
    pub pool_spin: Duration,
    /// For experiments: how RocksDB reads a key.
    ///
    /// The iterator is slower; it repeats a published mistake, for comparison.
    #[arg(long, value_enum, value_name = "WAY", default_value_t = PointReadsName::Get, help_heading = THREADS)]
    pub point_reads: PointReadsName,
    /// Whether plain requests are read without the HTTP library that reads all others.
    ///
    /// A plain request is of one entity, comes in one piece and asks for nothing unusual. With off the library reads everything,
    /// and the answers are the same at 13 to 24 % more CPU time each.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = SwitchName::On, help_heading = THREADS)]
    pub fast_path: SwitchName,
    /// For experiments: operations that may wait in --execution pool and stealing; one more is answered 503.
    ///
    /// Range: 1 to 1,000,000.
    #[arg(long, value_name = "N", default_value_t = limits::QUEUE_LIMIT, value_parser = clap::value_parser!(u64).range(1..=1_000_000), help_heading = OVERLOAD)]
    pub queue_limit: u64,
    /// In a queue for storage that has stood for 100 ms, what has waited longer is refused, 503.
    ///
    /// Of --execution adaptive. A queue stands while it has not been empty: what comes is more than what is served. For
    /// 1.6 s after that the same is done as soon as its oldest has waited four times this. See docs/execution.md.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = positive_duration, help_heading = OVERLOAD)]
    pub queue_target: Duration,
    /// Nothing waits longer for storage, whatever storage does; then 503.
    ///
    /// Of --execution adaptive.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_duration, help_heading = OVERLOAD)]
    pub queue_age_max: Duration,
    /// After a turn of a worker that was longer, requests are let in newest first and few connections are accepted.
    ///
    /// Of --execution adaptive, while clients are in a hurry. See docs/execution.md.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = positive_duration, help_heading = OVERLOAD)]
    pub turn_max: Duration,
    /// Whether overload is refused and paused.
    ///
    /// With off nothing is refused or kept out for overload but by --queue-limit; it shows what the rest is for.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = SwitchName::On, help_heading = OVERLOAD)]
    pub admission: SwitchName,
    /// Memory for caches, memtables, bodies and connections together [default: half of what the control group or the machine
    /// has, whichever is less].
    ///
    /// One budget for everything that grows with use. It is shared out at start; what cannot fit is refused with the
    /// arithmetic. Control groups are read in version 1 and 2.
    ///
    /// Range: 64 MiB to 16 TiB.
    #[arg(long, value_name = "SIZE", help_heading = MEMORY)]
    pub memory: Option<ByteSize>,
    /// Hundredths of the cache beside the memtables that hold values instead of blocks; 0: none.
    ///
    /// A value that was read lately is then found without a search through RocksDB. Small entries take more room there than in
    /// blocks, and a key that is written is read from the blocks again.
    ///
    /// Range: 0 to 90.
    #[arg(long, value_name = "PERCENT", default_value_t = limits::VALUE_CACHE_PERCENT, value_parser = clap::value_parser!(u64).range(0..=90), help_heading = MEMORY)]
    pub value_cache: u64,
    /// Open connections; at the limit no more are accepted until one closes [default: 10,000, or what a sixth of the memory or
    /// the limit of open files holds].
    ///
    /// Clients wait in the kernel's backlog meanwhile. Without the option there are also no more than the limit of open files
    /// holds; with it klad refuses to start where that is too low.
    ///
    /// Range: 1 to 1,000,000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000), help_heading = MEMORY)]
    pub connections_max: Option<u64>,
    /// Open connections from one address; one more is answered 503 and closed [default: no limit].
    ///
    /// The answer's code is too-many-connections. Behind a proxy all clients have its address.
    ///
    /// Range: 1 to 1,000,000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000), help_heading = MEMORY)]
    pub connections_per_peer: Option<u64>,
    /// Longest key; a longer one is answered 414.
    ///
    /// It is measured after decoding.
    ///
    /// Range: 1 byte to 16 KiB.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", help_heading = BOUNDS)]
    pub key_max: ByteSize,
    /// Longest value; a longer one is answered 413.
    ///
    /// By its length that is before the body is read, in chunks as soon as it is too long.
    ///
    /// Range: up to 1 GiB.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", help_heading = BOUNDS)]
    pub value_max: ByteSize,
    /// Longest request line and headers together; longer ones are answered 431.
    ///
    /// The lower bound is a key with every byte percent-encoded, and some headers.
    ///
    /// Range: 3 × --key-max + 1 KiB, to 64 KiB.
    #[arg(long, value_name = "SIZE", default_value = "32KiB", help_heading = BOUNDS)]
    pub head_max: ByteSize,
    /// Operations that wait for or are in storage; one more is answered 503.
    ///
    /// The answer's code is overloaded. Reads that memory answers are not counted.
    ///
    /// Range: 1 to 1,000,000.
    #[arg(long, value_name = "N", default_value_t = limits::OPERATIONS_MAX, value_parser = clap::value_parser!(u64).range(1..=1_000_000), help_heading = BOUNDS)]
    pub operations_max: u64,
    /// Ranges in progress; one more is answered 503.
    ///
    /// The answer's code is overloaded. Each may hold 128 KiB of the memory.
    ///
    /// Range: 1 to 10,000.
    #[arg(long, value_name = "N", default_value_t = limits::SCANS_MAX, value_parser = clap::value_parser!(u64).range(1..=10_000), help_heading = BOUNDS)]
    pub scans_max: u64,
    /// Time for a request's head to arrive, from its first byte; then 408.
    ///
    /// The connection closes.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_duration, help_heading = DEADLINES)]
    pub head_timeout: Duration,
    /// Time without a byte of a request's body, or below --body-rate-min; then 408.
    ///
    /// It runs while no byte of an expected body comes; and from the first wait for its bytes to the last, while their average
    /// rate is below --body-rate-min. The connection closes.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_duration, help_heading = DEADLINES)]
    pub body_timeout: Duration,
    /// Time without the client taking a byte of an answer, or below --body-rate-min; then the connection closes.
    ///
    /// It runs while the client takes no byte; and in all waits for it to take more, together, while its average rate in them
    /// is below --body-rate-min.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = positive_duration, help_heading = DEADLINES)]
    pub write_timeout: Duration,
    /// Least bytes a second that a client must send of a body, or take of an answer, on average.
    ///
    /// With 0 clients may be as slow as they like while there is a byte now and then, also when room for bodies runs out.
    ///
    /// Range: 0 to 1 MiB.
    #[arg(long, value_name = "SIZE", default_value = "1KiB", help_heading = DEADLINES)]
    pub body_rate_min: ByteSize,
    /// Time between two requests, and before the first; then the connection closes.
    ///
    /// Range: more than 0.
    #[arg(long, value_name = "TIME", default_value = "75s", value_parser = positive_duration, help_heading = DEADLINES)]
    pub idle_timeout: Duration,
    /// Tokens that clients must show, one a line: read-write TOKEN [name], or read-only TOKEN [name].
    ///
    /// Without it everybody who reaches klad may do everything, and klad refuses to listen on addresses that other machines
    /// reach. A token has 16 to 512 characters (letters, digits and - . _ ~ + / =) and is sent as Authorization: Bearer TOKEN;
    /// sha256:DIGITS stands for the token with that SHA-256. # begins a comment. At most 256 tokens. /livez and /readyz need
    /// none. Read again on SIGHUP; a file with an error in it then changes nothing.
    #[arg(long, value_name = "FILE", help_heading = SAFETY)]
    pub token_file: Option<PathBuf>,
    /// Listen on addresses that other machines reach, though there is no --token-file.
    ///
    /// Whoever reaches them can then read and write everything: for networks where something else keeps strangers out.
    #[arg(long, help_heading = SAFETY)]
    pub insecure_listen: bool,
    /// Certificate for TLS, PEM: the server's own first, then those between it and its authority.
    ///
    /// With it klad speaks TLS 1.2 and 1.3 only, on both addresses, unless --admin-tls says otherwise. Each connection is charged 12 KiB more
    /// in the memory budget. The handshake must be over within --head-timeout. Read again on SIGHUP, for connections that come
    /// after it; files that cannot be used then change nothing.
    #[arg(long, value_name = "FILE", help_heading = SAFETY)]
    pub tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert, PEM, not encrypted.
    #[arg(long, value_name = "FILE", help_heading = SAFETY)]
    pub tls_key: Option<PathBuf>,
    /// Authorities of clients' certificates, PEM: who has none of theirs gets no connection.
    ///
    /// It comes on top of tokens and does not replace them. It holds for the admin address as well, where that speaks TLS.
    #[arg(long, value_name = "FILE", help_heading = SAFETY)]
    pub tls_client_ca: Option<PathBuf>,
    /// Whether the admin address speaks TLS where the other one does; off is for scrapers and supervisors on this machine.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = AdminTlsName::On, help_heading = SAFETY)]
    pub admin_tls: AdminTlsName,
    /// Time from SIGTERM or SIGINT during which /readyz is 503 already and klad serves as ever.
    ///
    /// For load balancers that ask /readyz: longer than the time that they take to notice. Until they have, they send
    /// requests, and klad takes them, on connections old and new, without a word of closing; telling it earlier would cost a
    /// new connection for each request. 0 where nobody asks. A second signal ends klad at once.
    #[arg(long, help_heading = STOPPING, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub drain_delay: Duration,
    /// Time that requests in flight have to finish when klad is asked to stop.
    ///
    /// From the end of --drain-delay. Without clients that keep klad waiting a stop takes about half a second, whatever is
    /// set here: connections without a request are closed after 300 ms, and a client that sends nothing of a request that it
    /// has begun, or takes nothing of an answer, for a second. What is left at the end of this time is closed. May be 0:
    /// then all is closed at once; what was admitted is done all the same.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration, help_heading = STOPPING)]
    pub drain_timeout: Duration,
    /// Free space below which writes are answered 507.
    ///
    /// Below it PUTs are refused, with the code no-space, and below half of it DELETEs too; both recover by themselves.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", help_heading = DISK)]
    pub disk_reserve: ByteSize,
    /// Whether tables are read past the kernel's page cache.
    ///
    /// With on, what klad reads from the disk is cached by klad alone, within --memory, and a read that finds nothing there waits
    /// for the disk. It shows what such reads cost on a machine whose free memory holds the store.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = SwitchName::Off, help_heading = DISK)]
    pub direct_reads: SwitchName,
    /// Bytes that flushes and compactions of RocksDB write a second, at most; 0: no limit.
    ///
    /// RocksDB's own rate limiter. It is for a disk on which synced writes wait behind compactions; a limit below what is
    /// written, some ten times over, holds writes up in the end.
    #[arg(long, value_name = "SIZE", default_value = "0B", help_heading = DISK)]
    pub compaction_rate: ByteSize,
    /// Bytes of removed files of RocksDB that are given back to the file system a second; 0: all at once.
    ///
    /// RocksDB's own delete rate. It is for file systems that are mounted with discard, where synced writes wait while the disk
    /// forgets a table. A quarter of the tables waits to be removed at most; what is beyond goes at once.
    #[arg(long, value_name = "SIZE", default_value = "0B", help_heading = DISK)]
    pub delete_rate: ByteSize,
    /// Whether zeros are written ahead into the log of RocksDB, so that a sync need not write the file's new length.
    ///
    /// A synced write then costs the disk two requests instead of three. Not yet proved against power cuts on ext4 and XFS.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = SwitchName::Off, help_heading = DISK)]
    pub log_preallocation: SwitchName,
    /// How tables are compressed that are written from now on; what is there is read in any case.
    ///
    /// Level 0 is never compressed. On few cores zstd takes time that requests could have:
    /// compactions of small entries cost half as much again. klad compact is to be told the same. fjall has no zstd, and keeps
    /// what a directory was made with.
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Compression::Lz4, help_heading = DISK)]
    pub compression: Compression,
    /// Average bytes of allocations between two samples of the heap profile; 0: none until one is asked for.
    ///
    /// For /debug/pprof/heap and /debug/pprof/allocs on the admin address, which know what was allocated since the start as
    /// long as it is not 0; then only those with ?seconds= see anything, of their own time. Taken as the next lower power of
    /// two. Smaller is more exact, and costs more: 512KiB some 2 % of the CPU time of reads.
    ///
    /// Range: 0, or 4 KiB to 1 GiB.
    #[arg(long, value_name = "SIZE", default_value = "2MiB", help_heading = LOGS)]
    pub heap_sample: ByteSize,
    /// Form of the log lines on stderr.
    ///
    /// `auto` is text where stderr is a terminal and JSON elsewhere. JSON is one object a line, with `timestamp` (RFC 3339, UTC),
    /// `level`, `message` and the other fields beside them.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormatName::Auto, help_heading = LOGS)]
    pub log_format: LogFormatName,
    /// What is logged: lines of this level and of those before it.
    ///
    /// May change while klad runs. Lines wait in 1 MiB of memory for stderr to take them; beyond, they are dropped and counted
    /// (`klad_log_lines_dropped_total`), because a log that nobody reads must not stop serving.
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = LogLevelName::Info, help_heading = LOGS)]
    pub log_level: LogLevelName,
    /// Whether each request has a log line, whatever the level.
    ///
    /// It says method, path, status, how it ended, where its time went, bytes, peer and request id; never a key or a value, which
    /// may be secret, only their lengths. May change while klad runs. It costs some 7 µs of CPU a request, as much again as a
    /// cached read.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = AccessLogName::Off, help_heading = LOGS)]
    pub access_log: AccessLogName,
    /// A request that takes so long has a log line that says where the time went; 0s: none has.
    ///
    /// Counted from its head's arrival to the last byte of its answer, so a slow client counts too. At most 10 such lines are
    /// written in a second; the others are counted and said in one (`klad_slow_requests_total` counts all). May change while klad
    /// runs.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration, help_heading = LOGS)]
    pub slow_request: Duration,
}

fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        // Far beyond any use, and far below what clocks can be added to.
        Ok(duration) if duration > limits::OPTION_TIME_MAX => Err("must be at most 365 days".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}; use for example 500ms or 10s")),
    }
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(Duration::ZERO) => Err("must be longer than nothing".to_owned()),
        parsed => parsed,
    }
}

/// Beyond that writers wait for a timer and not for a disk.
const COMMIT_DELAY_MAX: Duration = Duration::from_millis(100);

fn commit_delay(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        longer if longer > COMMIT_DELAY_MAX => Err(format!("must be at most {COMMIT_DELAY_MAX:?}")),
        parsed => Ok(parsed),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn serve(arguments: &[&str]) -> ServeArgs {
        let all = ["klad", "serve"].into_iter().chain(arguments.iter().copied());
        let Command::Serve(args) = Cli::try_parse_from(all).expect("valid").command else { panic!("not serve") };
        *args
    }

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_limits() {
        let args = serve(&[]);
        assert_eq!(args.async_sync_interval, limits::ASYNC_SYNC_INTERVAL);
        assert_eq!(args.head_timeout, limits::HEAD_TIMEOUT);
        assert_eq!(args.body_timeout, limits::BODY_TIMEOUT);
        assert_eq!(args.write_timeout, limits::WRITE_TIMEOUT);
        assert_eq!(args.idle_timeout, limits::IDLE_TIMEOUT);
        assert_eq!(args.queue_target, limits::QUEUE_TARGET);
        assert_eq!(args.queue_age_max, limits::QUEUE_AGE_MAX);
        assert_eq!(args.turn_max, limits::ITERATION_MAX);
        assert_eq!(args.drain_timeout, limits::DRAIN_TIMEOUT);
        assert_eq!(args.disk_reserve.0, limits::DISK_RESERVE_BYTES);
        assert_eq!(args.key_max.0, limits::KEY_BYTES_MAX);
        assert_eq!(args.value_max.0, limits::VALUE_BYTES_MAX);
        assert_eq!(args.head_max.0, limits::HEAD_BYTES_MAX);
        assert_eq!(args.body_rate_min.0, limits::BODY_RATE_BYTES_MIN);
        assert_eq!(args.slow_request, limits::SLOW_REQUEST);
        assert_eq!(args.heap_sample.0, limits::HEAP_SAMPLE_BYTES);
    }

    #[test]
    fn sizes_have_units() {
        let args = serve(&["--memory", "1GiB", "--value-max", "64KiB"]);
        assert_eq!(args.memory, Some(ByteSize(1 << 30)));
        assert_eq!(args.value_max, ByteSize(64 << 10));
    }
}
