//! What the user of `klad bench` typed. `plan` turns it into what the program needs.

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
docs/bench.md explains every option and every figure.")]
pub struct BenchArgs {
    /// What to do beside a run.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,

    /// Server, as http://HOST:PORT; a path may hold {key} [default path: /; with --workload klad's, /v0/entity?id={key}].
    #[arg(value_name = "URL", required_unless_present = "json_schema")]
    pub url: Option<String>,

    /// What is sent, and over which connections.
    #[command(flatten)]
    pub requests: RequestArgs,

    /// Requests per second, such as 20k/s: sent when they are due, whatever became of those before.
    #[arg(long, value_name = "RATE", required_unless_present_any = ["stages", "closed", "json_schema"], help_heading = "Load")]
    pub rate: Option<Rate>,
    /// Steps and ramps instead of one rate: 5k/s:10s,5k/s..20k/s:30s,20k/s:10s.
    #[arg(long, value_name = "STAGES", conflicts_with_all = ["rate", "duration", "closed"], help_heading = "Load")]
    pub stages: Option<units::Stages>,
    /// Closed load: each connection sends when its answer is there. For throughput; latencies suffer coordinated omission.
    #[arg(long, conflicts_with_all = ["rate", "connections_max"], help_heading = "Load")]
    pub closed: bool,
    /// Length of the measured part.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration, help_heading = "Load")]
    pub duration: Duration,
    /// Before the measured part, at its first rate (of a ramp from 0, its last); kept apart in the result.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::duration_or_zero, help_heading = "Load")]
    pub warm_up: Duration,

    /// Objectives such as 'p99<5ms,refused<0.1%'; one that is missed sets exit code 3.
    #[arg(long, value_name = "OBJECTIVES", help_heading = "Judgement")]
    pub slo: Option<Objectives>,

    /// Result as JSON; - is the standard output, instead of the text.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Percentile spectrum for HdrHistogram's plotters, milliseconds.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub hgrm: Option<PathBuf>,
    /// Interval histograms as an HdrHistogram log, nanoseconds, tagged operation.outcome.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub hlog: Option<PathBuf>,
    /// Result as a page: charts and tables in one file, for a browser.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Live figures on stderr; auto: when it is a terminal.
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", help_heading = "Output")]
    pub progress: When,
    /// Print the JSON Schema of --json and end.
    #[arg(long, help_heading = "Output")]
    pub json_schema: bool,
}

/// What `klad bench` does beside a run.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchCommand {
    /// Say whether B is faster or slower than A, by their results, and how sure that is.
    Compare(CompareArgs),
    /// Find the highest rate that meets an objective.
    Knee(Box<KneeArgs>),
}

/// What is sent, over which connections, and how it is judged: the same for a run and for a search.
#[derive(Args, Clone, Debug)]
pub struct RequestArgs {
    /// Requests: get, put, delete, mixed:95/5 (percent of get and put), ycsb-a, ycsb-b, ycsb-c [default: one fixed request].
    #[arg(long, value_name = "NAME", help_heading = "Workload")]
    pub workload: Option<Mix>,
    /// Order of keys [default: sequential; uniform for mixed; zipfian for YCSB].
    #[arg(long, value_enum, value_name = "ORDER", help_heading = "Workload")]
    pub key_order: Option<Order>,
    /// Keys to choose from [default: those of --fill, of the file, no end when sequential, else 1000000].
    #[arg(long, value_name = "N", value_parser = units::count, help_heading = "Workload")]
    pub keys: Option<u64>,
    /// Number of the first key.
    #[arg(long, value_name = "N", default_value = "0", value_parser = units::count_or_zero, help_heading = "Workload")]
    pub key_start: u64,
    /// Key from its number: {} or, with zeros in front, {:07}.
    #[arg(long, value_name = "FORMAT", default_value = "key{}", help_heading = "Workload")]
    pub key_format: KeyFormat,
    /// Keys from a file, one for each line.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key_format", "key_start"], help_heading = "Workload")]
    pub key_file: Option<PathBuf>,
    /// Exponent of zipfian and latest: the key of rank k is asked for as often as 1/k^EXPONENT.
    #[arg(long, value_name = "EXPONENT", default_value = "0.99", value_parser = units::exponent, help_heading = "Workload")]
    pub zipf_exponent: f64,
    /// Size of values, fixed (100B) or even over a range (100B..4KiB); random bytes.
    #[arg(long, value_name = "SIZE", default_value = "100B", help_heading = "Workload")]
    pub value_size: SizeRange,
    /// Value from the key's number instead of random bytes, as --key-format.
    #[arg(long, value_name = "FORMAT", conflicts_with = "value_size", help_heading = "Workload")]
    pub value_format: Option<KeyFormat>,
    /// PUT the first N keys before the run, as fast as it goes.
    #[arg(long, value_name = "N", value_parser = units::count, requires = "workload", help_heading = "Workload")]
    pub fill: Option<u64>,
    /// Method of the fixed request.
    #[arg(long, value_name = "METHOD", default_value = "GET", conflicts_with = "workload", help_heading = "Workload")]
    pub method: String,
    /// Header of every request; may be repeated.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", help_heading = "Workload")]
    pub headers: Vec<String>,
    /// Body of the fixed request; @FILE reads it from a file.
    #[arg(long, value_name = "BODY", conflicts_with = "workload", help_heading = "Workload")]
    pub body: Option<String>,
    /// Requests from a Lua script of wrk or wrk2; what follows -- is for its init.
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
    /// Of arrivals, keys and values.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workload")]
    pub seed: u64,
    /// Gaps between intended starts.
    #[arg(long, value_enum, value_name = "ARRIVAL", default_value = "constant", help_heading = "Load")]
    pub arrival: Arrival,
    /// Connections, opened before the start; a request that finds all busy waits, and that counts.
    #[arg(long, value_name = "N", default_value = "64", value_parser = units::count, help_heading = "Load")]
    pub connections: u64,
    /// Connections may grow to so many: a request that finds all busy opens one.
    #[arg(long, value_name = "N", value_parser = units::count, help_heading = "Load")]
    pub connections_max: Option<u64>,
    /// Threads of the generator [default: one for each four cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256), help_heading = "Load")]
    pub threads: Option<u64>,
    /// Ask for answers in the last 50 us of a wait instead of sleeping, on a core that hardly anybody else wants.
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "on", help_heading = "Load")]
    pub poll: Poll,
    /// Deadline of each request, from its intended start.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration, help_heading = "Load")]
    pub timeout: Duration,
    /// At the end, how long to wait for answers that are under way.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration_or_zero, help_heading = "Load")]
    pub drain: Duration,
    /// Longest response time of an answer that counts as goodput [default: --timeout].
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = "Judgement")]
    pub good_within: Option<Duration>,
    /// The run is not valid when the generator's own lag at 99.9 percent exceeds this.
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = units::duration, help_heading = "Judgement")]
    pub lag_max: Duration,
}

/// Whether the ends of waits are polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Poll {
    /// Where there is a core for it.
    On,
    /// Never: a thread sleeps until it is woken.
    Off,
}

/// Whether to show progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// On a terminal.
    Auto,
    /// A line for each second where there is no terminal.
    Always,
    /// Never.
    Never,
}
