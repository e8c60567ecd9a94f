//! What the user typed. `config` turns it into what the program needs.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::limits;

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
    Bench(Box<crate::bench::args::BenchArgs>),
}

/// Engines to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// RocksDB in the data directory.
    #[cfg(feature = "rocksdb")]
    Rocksdb,
    /// An ordered map in memory: the data ends with the process.
    Memory,
}

/// What `serve` without `--engine` uses.
#[cfg(feature = "rocksdb")]
const DEFAULT_ENGINE: EngineName = EngineName::Rocksdb;
#[cfg(not(feature = "rocksdb"))]
const DEFAULT_ENGINE: EngineName = EngineName::Memory;

/// Strategies to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExecutionName {
    /// Reads that memory can answer and writes that need no sync on the worker, others on threads that may wait.
    Adaptive,
    /// Everything on the worker, which waits for the disk.
    Inline,
    /// Everything on threads behind one bounded queue.
    Pool,
    /// Everything on threads that steal work from each other.
    Stealing,
}

/// Ways of reading a key to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PointReadsName {
    /// A pinned get.
    Get,
    /// An iterator for each read.
    Iterator,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SwitchName {
    /// As it should be.
    On,
    /// For comparisons.
    Off,
}

/// Durabilities to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DurabilityName {
    /// Acknowledged when the log is synced: safe when the machine dies.
    Sync,
    /// Acknowledged when the log is written: safe when the process dies.
    Async,
}

/// Options of `klad serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Address that clients are served on.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    pub listen: String,
    /// Address of /livez and /readyz.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8081")]
    pub admin_listen: String,
    /// Directory of the data; made when it is missing.
    #[arg(long, value_name = "DIR", default_value = "./data")]
    pub data: PathBuf,
    /// Where the data is kept.
    #[arg(long, value_enum, default_value_t = DEFAULT_ENGINE)]
    pub engine: EngineName,
    /// Each call of storage takes so much longer: a slow disk, to rehearse with.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
    pub engine_delay: Duration,
    /// Durability of writes that ask for none.
    #[arg(long, value_enum, default_value_t = DurabilityName::Sync)]
    pub durability: DurabilityName,
    /// Workers [default: one for each core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=999))]
    pub threads: Option<u64>,
    /// Memory for caches, memtables, bodies and connections together [default: half of what the control group or the machine has].
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
    /// Longest time that an acknowledged async write stays unsynced.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_duration)]
    pub async_sync_interval: Duration,
    /// Free space below which writes are answered 507.
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(limits::DISK_RESERVE_BYTES))]
    pub disk_reserve: ByteSize,
    /// Longest key; a longer one is answered 414.
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(limits::KEY_BYTES_MAX))]
    pub key_max: ByteSize,
    /// Longest value; a longer one is answered 413.
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(limits::VALUE_BYTES_MAX))]
    pub value_max: ByteSize,
    /// Longest request line and headers together; longer ones are answered 431.
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(limits::HEAD_BYTES_MAX))]
    pub head_max: ByteSize,
    /// Open connections; at the limit no more are accepted until one closes [default: 10000, or what the memory allows].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub connections_max: Option<u64>,
    /// Open connections from one address; one more is answered 503 and closed. Behind a proxy all clients have its address
    /// [default: no limit].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub connections_per_peer: Option<u64>,
    /// Operations that wait for or are in storage; one more is answered 503.
    #[arg(long, value_name = "N", default_value_t = limits::OPERATIONS_MAX, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub operations_max: u64,
    /// Ranges in progress; one more is answered 503.
    #[arg(long, value_name = "N", default_value_t = limits::SCANS_MAX, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub scans_max: u64,
    /// Where operations run.
    #[arg(long, value_enum, value_name = "STRATEGY", default_value_t = ExecutionName::Adaptive)]
    pub execution: ExecutionName,
    /// Threads of --execution pool and stealing.
    #[arg(long, value_name = "N", default_value_t = limits::POOL_THREADS, value_parser = clap::value_parser!(u64).range(1..=999))]
    pub pool_threads: u64,
    /// Time for which a thread of --execution pool that has nothing to do looks for work before it sleeps.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
    pub pool_spin: Duration,
    /// Operations that may wait in --execution pool and stealing; one more is answered 503.
    #[arg(long, value_name = "N", default_value_t = limits::QUEUE_LIMIT, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub queue_limit: u64,
    /// In a queue for storage that has stood for 100 ms, what has waited longer is refused, 503.
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = positive_duration)]
    pub queue_target: Duration,
    /// Nothing waits longer for storage, whatever storage does; then 503.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_duration)]
    pub queue_age_max: Duration,
    /// After a turn of a worker that was longer, requests are let in newest first and no connection is accepted.
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = positive_duration)]
    pub turn_max: Duration,
    /// Whether overload is refused and paused; off is there to show what happens without.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = SwitchName::On)]
    pub admission: SwitchName,
    /// How RocksDB reads a key; iterator is slower, and is there to repeat a published mistake.
    #[arg(long, value_enum, value_name = "WAY", default_value_t = PointReadsName::Get)]
    pub point_reads: PointReadsName,
    /// Threads of --execution adaptive for reads that may wait for the disk.
    #[arg(long, value_name = "N", default_value_t = limits::STORAGE_THREADS, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub storage_threads: u64,
    /// Time for a request's head to arrive, from its first byte; then 408.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_duration)]
    pub head_timeout: Duration,
    /// Time without a byte of a request's body, or below --body-rate-min; then 408.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_duration)]
    pub body_timeout: Duration,
    /// Time without the client taking a byte of an answer, or below --body-rate-min; then the connection closes.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = positive_duration)]
    pub write_timeout: Duration,
    /// Least bytes a second that a client must send of a body, or take of an answer; 0 lets them be slow, also when room for
    /// bodies runs out.
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(limits::BODY_RATE_BYTES_MIN))]
    pub body_rate_min: ByteSize,
    /// Time between two requests; then the connection closes.
    #[arg(long, value_name = "TIME", default_value = "75s", value_parser = positive_duration)]
    pub idle_timeout: Duration,
    /// Tokens that clients must show, one a line: read-write TOKEN [name], or read-only TOKEN [name].
    ///
    /// Without it everybody who reaches klad may do everything, and klad refuses to listen on addresses that other machines
    /// reach. A token has 16 to 512 characters (letters, digits and - . _ ~ + / =) and is sent as Authorization: Bearer TOKEN;
    /// sha256:DIGITS stands for the token with that SHA-256. # begins a comment. At most 256 tokens. /livez and /readyz need
    /// none. Read again on SIGHUP; a file with an error in it then changes nothing.
    #[arg(long, value_name = "FILE", help_heading = "Safety")]
    pub token_file: Option<PathBuf>,
    /// Listen on addresses that other machines reach, though there is no --token-file.
    ///
    /// Whoever reaches them can then read and write everything: for networks where something else keeps strangers out.
    #[arg(long, help_heading = "Safety")]
    pub insecure_listen: bool,
    /// Certificate for TLS, PEM: the server's own first, then those between it and its authority.
    ///
    /// With it klad speaks TLS 1.2 and 1.3 only, on both addresses, unless --admin-tls says otherwise. Each connection is charged 12 KiB more
    /// in the memory budget. The handshake must be over within --head-timeout. Read again on SIGHUP, for connections that come
    /// after it; files that cannot be used then change nothing.
    #[arg(long, value_name = "FILE", help_heading = "Safety")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert, PEM, not encrypted.
    #[arg(long, value_name = "FILE", help_heading = "Safety")]
    pub tls_key: Option<PathBuf>,
    /// Authorities of clients' certificates, PEM: who has none of theirs gets no connection.
    ///
    /// It comes on top of tokens and does not replace them. It holds for the admin address as well, where that speaks TLS.
    #[arg(long, value_name = "FILE", help_heading = "Safety")]
    pub tls_client_ca: Option<PathBuf>,
    /// Whether the admin address speaks TLS where the other one does; off is for scrapers and supervisors on this machine.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = SwitchName::On, help_heading = "Safety")]
    pub admin_tls: SwitchName,
    /// Time that requests in flight have to finish when klad is asked to stop.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    pub drain_timeout: Duration,
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration.is_zero() => Err("must be longer than nothing".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}; use for example 500ms or 10s")),
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
        assert_eq!(args.turn_max, limits::TURN_MAX);
        assert_eq!(args.drain_timeout, limits::DRAIN_TIMEOUT);
    }

    #[test]
    fn sizes_have_units() {
        let args = serve(&["--memory", "1GiB", "--value-max", "64KiB"]);
        assert_eq!(args.memory, Some(ByteSize(1 << 30)));
        assert_eq!(args.value_max, ByteSize(64 << 10));
    }
}
