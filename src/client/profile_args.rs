//! Command line of `klad profile`. Completions and manual pages are generated from it.

#![expect(
    clippy::doc_markdown,
    rustdoc::bare_urls,
    reason = "the command line prints these comments as help, without markup"
)]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::client::args::TransportArgs;

/// Options of `klad profile`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  klad profile                                          CPU time of ten seconds, as a table
  klad profile --event lock -o waits.html               waits for locks, as a flame graph
  klad profile http://db1:8081 -d 1m -o before.pb.gz    for go tool pprof, or for a later comparison
  klad profile diff before.pb.gz after.pb.gz            what changed
docs/profiling.md describes what each event shows."
)]
pub struct ProfileArgs {
    #[command(subcommand)]
    #[expect(missing_docs, reason = "it would become help")]
    pub command: Option<ProfileCommand>,
    /// The server's admin address [default: KLAD_ADMIN_URL, or http://127.0.0.1:8081].
    #[arg(value_name = "URL", value_hint = clap::ValueHint::Url)]
    pub url: Option<String>,
    /// What to profile.
    #[arg(short, long, value_enum, value_name = "EVENT", default_value = "cpu")]
    pub event: Event,
    /// Time to profile, from 1ms to 5m [default: 10s]. heap and threads show the current moment and have no duration.
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// For cpu: CPU time between two samples of a thread, 1ms to 1s [default: about 10ms]. For lock and block: the
    /// shortest wait that counts, 0s to 1s [default: 10us].
    #[arg(short, long, value_name = "TIME", value_parser = time)]
    pub interval: Option<Duration>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub out: OutArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub transport: TransportArgs,
}

/// Subcommands of `klad profile`.
#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// Show what changed from one profile to another.
    ///
    /// The order is BEFORE, then AFTER: functions that cost more in AFTER are red in the picture and have a plus in the
    /// table. Exit codes: 0 done; 1 a file cannot be read or written, or is not a profile; 2 wrong usage.
    Diff(DiffArgs),
}

/// Options of `klad profile diff`.
#[derive(Args, Debug)]
pub struct DiffArgs {
    /// The base of the comparison: a file with pprof (also without gzip) or collapsed stacks, also of other programs.
    #[arg(value_name = "BEFORE", value_hint = clap::ValueHint::FilePath)]
    pub before: PathBuf,
    /// The profile to compare with BEFORE.
    #[arg(value_name = "AFTER", value_hint = clap::ValueHint::FilePath)]
    pub after: PathBuf,
    /// Scale BEFORE to the sum of AFTER, to compare runs of different length or load. Neither profile may be empty.
    #[arg(long)]
    pub normalize: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub out: OutArgs,
}

/// Destination and format of the result.
#[derive(Args, Debug)]
pub struct OutArgs {
    /// File to write, or - for the standard output [default: print a table]. klad replaces the file only when the
    /// result is complete.
    ///
    /// The extension selects the format: .html; .svg; .pb.gz or .pprof; .collapsed, .folded or .txt.
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Format of the result, instead of the one that the extension selects.
    #[arg(long, value_enum, value_name = "FORMAT", requires = "output")]
    pub format: Option<Format>,
}

/// Values of `--event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Event {
    /// CPU time.
    Cpu,
    /// Memory allocated during the profile.
    Alloc,
    /// Allocated memory that is in use now.
    Heap,
    /// Waits for locks.
    Lock,
    /// All waits of one thread for another, including idle ones.
    Block,
    /// Name, state and stack of each thread now.
    Threads,
}

/// Values of `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A page with a flame graph.
    Html,
    /// The flame graph alone.
    Svg,
    /// The protobuf that Go's tools read.
    Pprof,
    /// One line for each stack.
    Collapsed,
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = time(text)?;
    let range = Duration::from_millis(1)..=Duration::from_mins(5);
    if range.contains(&duration) { Ok(duration) } else { Err("must be from 1ms to 5m".to_owned()) }
}

fn time(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; use for example 500us or 10s"))
}
