//! The command line of `klad bench knee`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::args::{RequestArgs, When};
use crate::slo::Objectives;
use crate::units::{self, Rate};

/// Options of `klad bench knee`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Exit codes: 0 the knee was found, or is above --to; 1 the search could not be made; 2 wrong usage; 3 no rate meets --slo;\n\
4 the generator was the limit, runs differed too much, or the search was broken off. docs/bench.md explains the search.")]
pub struct KneeArgs {
    /// URL of the server, as for klad bench.
    #[arg(value_name = "URL")]
    pub url: String,

    /// The options for requests, connections and limits, as for `klad bench`.
    #[command(flatten)]
    pub requests: RequestArgs,

    /// Objectives such as 'p99<5ms,refused<0.1%'. The knee is the highest rate that meets all of them.
    #[arg(long, value_name = "OBJECTIVES", help_heading = "Search")]
    pub slo: Objectives,
    /// Rate of the first run (level). The rate doubles while levels are good. If --slo demands a rate of answers, the
    /// first level is at least 5 % above that rate.
    #[arg(long, value_name = "RATE", default_value = "1k/s", help_heading = "Search")]
    pub from: Rate,
    /// Highest rate to try [default: 10M/s].
    #[arg(long, value_name = "RATE", help_heading = "Search")]
    pub to: Option<Rate>,
    /// Precision of the search: the first bad rate is at most this percentage above the last good rate.
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = units::share, help_heading = "Search")]
    pub precision: f64,
    /// Number of runs of the last good rate, and of the first bad rate. A rate is good if most of its runs are good.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u8).range(1..=20),
        help_heading = "Search"
    )]
    pub repeats: u8,
    /// Length of the measured part of each level. Increase it if runs at the same rate differ.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration, help_heading = "Search")]
    pub level: Duration,
    /// Length of the warm-up of each level, at the rate of the level.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::duration_or_zero, help_heading = "Search")]
    pub warm_up: Duration,

    /// Admin address of the loaded klad, as http://HOST:PORT. With this option, klad bench runs the last good and the
    /// first bad rate once more after the search, and records CPU profiles and the server's queues.
    #[arg(long, value_name = "URL", help_heading = "Evidence")]
    pub admin: Option<String>,
    /// Read the token for the admin address from this file.
    #[arg(long, value_name = "FILE", requires = "admin", help_heading = "Evidence")]
    pub admin_token_file: Option<PathBuf>,
    /// Write CPU profiles of the last good and the first bad rate, taken in separate runs, to this directory.
    #[arg(long, value_name = "DIR", requires = "admin", help_heading = "Evidence")]
    pub evidence: Option<PathBuf>,

    /// Write the result as JSON to this file. With -, write JSON to the standard output instead of the text.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Write the result as an HTML page, with charts, levels, profiles and queues in one file.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Write a line for each level on stderr.
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", help_heading = "Output")]
    pub progress: When,
}
