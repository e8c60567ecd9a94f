//! The command line of `klad bench` as clap reads it. `plan` turns it into the plan of a run.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::compare::args::CompareArgs;
use crate::keys::{KeyFormat, Order};
use crate::knee::args::KneeArgs;
use crate::schedule::Arrival;
use crate::slo::Objectives;
use crate::units::{self, Rate, SizeRange};
use crate::workload::Mix;

/// Options of `klad bench`.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, disable_help_subcommand = true)]
#[command(after_help = "\
Exit codes: 0 valid, and within --slo; 1 the run could not be made; 2 wrong usage; 3 outside --slo; 4 the run is not valid.\n\
docs/bench.md explains all options and figures.")]
pub struct BenchArgs {
    /// The subcommand. Without one (`None`), `klad bench` makes a run.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,

    /// URL of the server, http://HOST:PORT, with a path if necessary. In the path, {key} stands for the key of each
    /// request [default path: /; with --workload: /v0/entity?id={key}, the path of klad].
    #[arg(value_name = "URL", required_unless_present = "json_schema")]
    pub url: Option<String>,

    /// The options for requests, connections and limits. `klad bench knee` has the same ones.
    #[command(flatten)]
    pub requests: RequestArgs,

    /// Send this many requests per second, such as 20k/s. A request does not wait for earlier answers, unless all
    /// connections are busy.
    #[arg(long, value_name = "RATE", required_unless_present_any = ["stages", "closed", "json_schema"], help_heading = "Load")]
    pub rate: Option<Rate>,
    /// Send load in steps and ramps instead of at one rate, such as 5k/s:10s,5k/s..20k/s:30s,20k/s:10s.
    #[arg(long, value_name = "STAGES", conflicts_with_all = ["rate", "duration", "closed"], help_heading = "Load")]
    pub stages: Option<units::Stages>,
    /// Send closed load: each connection sends its next request after the answer to its previous one. Use closed load
    /// to measure throughput; its latencies suffer from coordinated omission.
    #[arg(long, conflicts_with_all = ["rate", "connections_max"], help_heading = "Load")]
    pub closed: bool,
    /// Length of the measured part.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration, help_heading = "Load")]
    pub duration: Duration,
    /// Length of the warm-up before the measured part. The warm-up has the first rate of the measured part. If the
    /// first stage is a ramp from 0, the warm-up has the last rate of that stage. The result reports the warm-up
    /// separately.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::duration_or_zero, help_heading = "Load")]
    pub warm_up: Duration,

    /// Objectives such as 'p99<5ms,refused<0.1%'. If a valid run misses one of them, the exit code is 3.
    #[arg(long, value_name = "OBJECTIVES", help_heading = "Judgement")]
    pub slo: Option<Objectives>,

    /// Write the result as JSON to this file. With -, write JSON to the standard output instead of the text.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Write the percentile spectrum of response times, in milliseconds, for HdrHistogram's plotters.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub hgrm: Option<PathBuf>,
    /// Write an HdrHistogram log of response times in nanoseconds. It has one histogram for each interval, operation
    /// and outcome, with the tag operation.outcome.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub hlog: Option<PathBuf>,
    /// Write the result as an HTML page, with charts and tables in one file.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Show live figures on stderr.
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", help_heading = "Output")]
    pub progress: When,
    /// Print the JSON Schema of --json, then exit.
    #[arg(long, help_heading = "Output")]
    pub json_schema: bool,
}

/// The subcommands of `klad bench`.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchCommand {
    /// Compare two results: is B faster or slower than A, and how certain is the answer?
    Compare(CompareArgs),
    /// Find the highest rate that meets an objective.
    Knee(Box<KneeArgs>),
}

/// The options that `klad bench` and `klad bench knee` share: requests, connections, deadlines.
#[derive(Args, Clone, Debug)]
pub struct RequestArgs {
    /// Requests to send: get, put, delete, mixed:95/5 (percent of get and put), ycsb-a, ycsb-b, ycsb-c [default: one
    /// fixed request].
    #[arg(long, value_name = "NAME", help_heading = "Workload")]
    pub workload: Option<Mix>,
    /// Order in which keys are used [default: sequential; uniform for mixed; zipfian for YCSB].
    #[arg(long, value_enum, value_name = "ORDER", help_heading = "Workload")]
    pub key_order: Option<Order>,
    /// Number of keys to choose from [default: the keys of --key-file; without it, --fill; without both, no limit for
    /// the order sequential and 1000000 for other orders].
    #[arg(long, value_name = "N", value_parser = units::count, help_heading = "Workload")]
    pub keys: Option<u64>,
    /// Number of the first key.
    #[arg(long, value_name = "N", default_value = "0", value_parser = units::count_or_zero, help_heading = "Workload")]
    pub key_start: u64,
    /// Format that makes a key from its number: {} stands for the number, {:07} for at least seven digits with leading
    /// zeros.
    #[arg(long, value_name = "FORMAT", default_value = "key{}", help_heading = "Workload")]
    pub key_format: KeyFormat,
    /// Read the keys from a file, one on each line.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key_format", "key_start"], help_heading = "Workload")]
    pub key_file: Option<PathBuf>,
    /// Exponent of the orders zipfian and latest. The key of rank k is used with a frequency in proportion to
    /// 1/k^EXPONENT.
    #[arg(long, value_name = "EXPONENT", default_value = "0.99", value_parser = units::exponent, help_heading = "Workload")]
    pub zipf_exponent: f64,
    /// Size of values, fixed (100B) or evenly distributed over a range (100B..4KiB). Values are random bytes.
    #[arg(long, value_name = "SIZE", default_value = "100B", help_heading = "Workload")]
    pub value_size: SizeRange,
    /// Make a value from its key's number, as --key-format does, instead of from random bytes.
    #[arg(long, value_name = "FORMAT", conflicts_with = "value_size", help_heading = "Workload")]
    pub value_format: Option<KeyFormat>,
    /// PUT the first N keys before the run, as fast as possible. If the server is a klad with /v1/batch and the URL has
    /// no path, use batches.
    #[arg(long, value_name = "N", value_parser = units::count, requires = "workload", help_heading = "Workload")]
    pub fill: Option<u64>,
    /// Send batches of klad, with N operations in each request, to the path of the URL [default path: /v1/batch]. Rates
    /// and figures count requests, not operations.
    #[arg(long, value_name = "N", value_parser = units::count, requires = "workload", help_heading = "Workload")]
    pub batch: Option<u64>,
    /// Send N requests of one operation, 1 to 64, in a pipeline. The pipeline counts as one request, which ends with
    /// the last answer.
    #[arg(long, value_name = "N", default_value = "1", conflicts_with_all = ["script", "batch"], help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    pub pipeline: u32,
    /// Method of the fixed request.
    #[arg(long, value_name = "METHOD", default_value = "GET", conflicts_with = "workload", help_heading = "Workload")]
    pub method: String,
    /// Add a header to every request; may be repeated.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", help_heading = "Workload")]
    pub headers: Vec<String>,
    /// Body of the fixed request; @FILE reads it from a file.
    #[arg(long, value_name = "BODY", conflicts_with = "workload", help_heading = "Workload")]
    pub body: Option<String>,
    /// Take the requests from a Lua script for wrk or wrk2. The script's function init gets the arguments after --.
    #[arg(
        short,
        long,
        value_name = "FILE",
        conflicts_with_all = ["workload", "method", "body", "key_order", "keys", "key_start", "key_file", "fill"],
        help_heading = "Workload"
    )]
    pub script: Option<PathBuf>,
    /// Arguments of the script.
    #[arg(value_name = "ARGUMENT", last = true, requires = "script", help_heading = "Workload")]
    pub script_arguments: Vec<String>,
    /// Seed of the random arrivals, keys and values.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workload")]
    pub seed: u64,
    /// Distribution of the times between intended starts.
    #[arg(long, value_enum, value_name = "ARRIVAL", default_value = "constant", help_heading = "Load")]
    pub arrival: Arrival,
    /// Number of connections, opened before the start. If all are busy, a request waits, and its response time includes
    /// the wait.
    #[arg(long, value_name = "N", default_value = "64", value_parser = units::count, help_heading = "Load")]
    pub connections: u64,
    /// Let the number of connections grow up to N. If all are busy, a request opens one more.
    #[arg(long, value_name = "N", value_parser = units::count, help_heading = "Load")]
    pub connections_max: Option<u64>,
    /// Number of generator threads [default: one for every four cores, at least one].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256), help_heading = "Load")]
    pub threads: Option<u64>,
    /// In the last 50 us of a wait, poll for answers instead of sleeping, if other threads hardly use the core. Polling
    /// makes sends more punctual.
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "on", help_heading = "Load")]
    pub poll: Poll,
    /// Deadline of each request, counted from its intended start.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration, help_heading = "Load")]
    pub timeout: Duration,
    /// Longest wait, at the end of the load, for the answers to requests in flight.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration_or_zero, help_heading = "Load")]
    pub drain: Duration,
    /// Longest response time that counts as goodput [default: --timeout].
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = "Judgement")]
    pub good_within: Option<Duration>,
    /// Largest send lag: how late the generator may send. The run is not valid if the send lag exceeds this at p99.9,
    /// or, with fewer than 10000 requests, at p99.
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = units::duration, help_heading = "Judgement")]
    pub lag_max: Duration,
}

/// Whether a thread polls at the end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Poll {
    /// Poll if other threads hardly use the core.
    On,
    /// Never poll. A thread sleeps until the kernel wakes it.
    Off,
}

/// When to show progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// Only if stderr is a terminal.
    Auto,
    /// Always. If stderr is not a terminal, progress is shown as lines.
    Always,
    /// Never.
    Never,
}
