//! What the user of `klad bench knee` typed.

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
4 the generator was the limit, the runs were too unsteady, or the search was broken off. docs/bench.md explains the search.")]
pub struct KneeArgs {
    /// Server, as for a run.
    #[arg(value_name = "URL")]
    pub url: String,

    /// What is sent, and over which connections.
    #[command(flatten)]
    pub requests: RequestArgs,

    /// Objectives such as 'p99<5ms,refused<0.1%': the knee is the highest rate that meets them all.
    #[arg(long, value_name = "OBJECTIVES", help_heading = "Search")]
    pub slo: Objectives,
    /// Rate of the first level; while levels are good, the next has twice the rate.
    #[arg(long, value_name = "RATE", default_value = "1k/s", help_heading = "Search")]
    pub from: Rate,
    /// Highest rate.
    #[arg(long, value_name = "RATE", help_heading = "Search")]
    pub to: Option<Rate>,
    /// The first bad rate is at most so much above the last good one.
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = units::share, help_heading = "Search")]
    pub precision: f64,
    /// Runs of the last good and of the first bad rate; most of each must agree.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u8).range(1..=20),
        help_heading = "Search"
    )]
    pub repeats: u8,
    /// Measured part of each level.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration, help_heading = "Search")]
    pub level: Duration,
    /// Before the measured part of each level, at its rate.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::duration_or_zero, help_heading = "Search")]
    pub warm_up: Duration,

    /// Admin address of the klad that is loaded, as http://HOST:PORT: profiles and queues at the edge.
    #[arg(long, value_name = "URL", help_heading = "Evidence")]
    pub admin: Option<String>,
    /// File with the token for the admin address.
    #[arg(long, value_name = "FILE", requires = "admin", help_heading = "Evidence")]
    pub admin_token_file: Option<PathBuf>,
    /// Directory for CPU profiles and metrics of the last good and the first bad rate, in runs of their own.
    #[arg(long, value_name = "DIR", requires = "admin", help_heading = "Evidence")]
    pub evidence: Option<PathBuf>,

    /// Result as JSON; - is the standard output, instead of the text.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Result as a page: charts, levels, profiles and queues in one file, for a browser.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// A line for each level on stderr; auto: when it is a terminal.
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", help_heading = "Output")]
    pub progress: When,
}
