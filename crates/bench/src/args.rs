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
    /// A subcommand; `None`: make a run.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,

    /// Server, as http://HOST:PORT. A path may contain {key}, which stands for the key of each request [default path:
    /// /; with --workload klad's own, /v0/entity?id={key}].
    #[arg(value_name = "URL", required_unless_present = "json_schema")]
    pub url: Option<String>,

    /// Requests, connections and limits, which `klad bench knee` has too.
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
    /// Length of the warm-up before the measured part. Its rate is the first rate of the measured part (the last rate
    /// of the first stage, if that is a ramp from 0). The result reports the warm-up separately.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::duration_or_zero, help_heading = "Load")]
    pub warm_up: Duration,

    /// Objectives such as 'p99<5ms,refused<0.1%'. The exit code is 3 if a valid run misses one.
    #[arg(long, value_name = "OBJECTIVES", help_heading = "Judgement")]
    pub slo: Option<Objectives>,

    /// Write the result as JSON to this file; - writes it to the standard output, instead of the text.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Write the percentile spectrum of response times, in milliseconds, for HdrHistogram's plotters.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub hgrm: Option<PathBuf>,
    /// Write an HdrHistogram log: response times in nanoseconds, with a histogram for each interval, operation and
    /// outcome, tagged operation.outcome.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub hlog: Option<PathBuf>,
    /// Write the result as an HTML page: charts and tables in one file.
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
    /// Compare two results: is B faster or slower than A, and how certain is that?
    Compare(CompareArgs),
    /// Find the highest rate that meets an objective.
    Knee(Box<KneeArgs>),
}

/// Options that a run and a search for the knee share: requests, connections, deadlines.
#[derive(Args, Clone, Debug)]
pub struct RequestArgs {
    /// Requests to send: get, put, delete, mixed:95/5 (percent of get and put), ycsb-a, ycsb-b, ycsb-c [default: one
    /// fixed request].
    #[arg(long, value_name = "NAME", help_heading = "Workload")]
    pub workload: Option<Mix>,
    /// Order in which keys are used [default: sequential; uniform for mixed; zipfian for YCSB].
    #[arg(long, value_enum, value_name = "ORDER", help_heading = "Workload")]
    pub key_order: Option<Order>,
    /// Number of keys to choose from [default: the keys of --key-file; else --fill; else unlimited if sequential,
    /// 1000000 for other orders].
    #[arg(long, value_name = "N", value_parser = units::count, help_heading = "Workload")]
    pub keys: Option<u64>,
    /// Number of the first key.
    #[arg(long, value_name = "N", default_value = "0", value_parser = units::count_or_zero, help_heading = "Workload")]
    pub key_start: u64,
    /// Make a key from its number: {}, or {:07} for leading zeros.
    #[arg(long, value_name = "FORMAT", default_value = "key{}", help_heading = "Workload")]
    pub key_format: KeyFormat,
    /// Read the keys from a file, one on each line.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key_format", "key_start"], help_heading = "Workload")]
    pub key_file: Option<PathBuf>,
    /// Exponent of the orders zipfian and latest: the key of rank k is used in proportion to 1/k^EXPONENT.
    #[arg(long, value_name = "EXPONENT", default_value = "0.99", value_parser = units::exponent, help_heading = "Workload")]
    pub zipf_exponent: f64,
    /// Size of values, fixed (100B) or evenly distributed over a range (100B..4KiB). Values are random bytes.
    #[arg(long, value_name = "SIZE", default_value = "100B", help_heading = "Workload")]
    pub value_size: SizeRange,
    /// Make a value from its key's number, as --key-format does, instead of from random bytes.
    #[arg(long, value_name = "FORMAT", conflicts_with = "value_size", help_heading = "Workload")]
    pub value_format: Option<KeyFormat>,
    /// PUT the first N keys before the run, as fast as possible: in batches if the server is a klad that takes them.
    #[arg(long, value_name = "N", value_parser = units::count, requires = "workload", help_heading = "Workload")]
    pub fill: Option<u64>,
    /// Put N operations into each request: a batch of klad, sent to /v1/batch. Rates and figures count requests.
    #[arg(long, value_name = "N", value_parser = units::count, requires = "workload", help_heading = "Workload")]
    pub batch: Option<u64>,
    /// Send N requests of one operation in a pipeline, as one start: 1 to 64. It ends with the last answer.
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
    /// Take the requests from a Lua script of wrk or wrk2. The arguments after -- go to its init function.
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
    /// Seed of arrivals, keys and values.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workload")]
    pub seed: u64,
    /// Distribution of the gaps between intended starts.
    #[arg(long, value_enum, value_name = "ARRIVAL", default_value = "constant", help_heading = "Load")]
    pub arrival: Arrival,
    /// Number of connections, opened before the start. A request that finds all of them busy waits, and that time
    /// counts.
    #[arg(long, value_name = "N", default_value = "64", value_parser = units::count, help_heading = "Load")]
    pub connections: u64,
    /// Let the number of connections grow up to N: a request that finds all of them busy opens one more.
    #[arg(long, value_name = "N", value_parser = units::count, help_heading = "Load")]
    pub connections_max: Option<u64>,
    /// Number of generator threads [default: one for each four cores, at least one].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256), help_heading = "Load")]
    pub threads: Option<u64>,
    /// Poll for answers in the last 50 us of a wait instead of sleeping, if other threads hardly use the core. Sends
    /// are then more punctual.
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "on", help_heading = "Load")]
    pub poll: Poll,
    /// Deadline of each request, counted from its intended start.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration, help_heading = "Load")]
    pub timeout: Duration,
    /// Longest wait, after the end of the load, for the answers to requests in flight.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration_or_zero, help_heading = "Load")]
    pub drain: Duration,
    /// Longest response time that counts as goodput [default: --timeout].
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = "Judgement")]
    pub good_within: Option<Duration>,
    /// Largest send lag: the run is not valid if the generator's lag exceeds this at p99.9 (at p99, with fewer than
    /// 10000 requests).
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = units::duration, help_heading = "Judgement")]
    pub lag_max: Duration,
}

/// Whether a thread polls at the end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Poll {
    /// Poll if the core is nearly free.
    On,
    /// Never poll: a thread sleeps until the kernel wakes it.
    Off,
}

/// When to show progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// Only if stderr is a terminal.
    Auto,
    /// Always; if stderr is not a terminal, as lines.
    Always,
    /// Never.
    Never,
}
