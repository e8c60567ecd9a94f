//! What was typed after `klad profile`. Completions and manual pages are made from these definitions.

#![expect(
    clippy::doc_markdown,
    rustdoc::bare_urls,
    reason = "the command line shows its help as it stands here, without markup"
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
  klad profile                                          ten seconds of CPU time, as a table
  klad profile --event lock -o waits.html               waits for locks, as a flame graph
  klad profile http://db1:8081 -d 1m -o before.pb.gz    for go tool pprof, and to compare with
  klad profile diff before.pb.gz after.pb.gz            what has changed
docs/profiling.md says what each event shows, and what not."
)]
pub struct ProfileArgs {
    #[command(subcommand)]
    #[expect(missing_docs, reason = "it would become help")]
    pub command: Option<ProfileCommand>,
    /// The server's admin address [default: KLAD_ADMIN_URL, or http://127.0.0.1:8081].
    #[arg(value_name = "URL", value_hint = clap::ValueHint::Url)]
    pub url: Option<String>,
    /// What is looked at.
    #[arg(short, long, value_enum, value_name = "EVENT", default_value = "cpu")]
    pub event: Event,
    /// For how long, from 1ms to 5m [default: 10s; heap and threads are about this moment, and take none].
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// CPU time between two looks at a thread, 1ms (also where less is asked for) to 1s [default: about 10ms]; the shortest wait
    /// that counts, up to 1s [default: 10us].
    #[arg(short, long, value_name = "TIME", value_parser = time)]
    pub interval: Option<Duration>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub out: OutArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub transport: TransportArgs,
}

/// What else `klad profile` does.
#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// Show what changed from one profile to another.
    ///
    /// The order is BEFORE, then AFTER: what there is more of in AFTER is red in the picture, and has a plus in the table.
    /// Exit codes: 0 done, 1 a file cannot be read or written or is no profile, 2 wrong usage.
    Diff(DiffArgs),
}

/// Options of `klad profile diff`.
#[derive(Args, Debug)]
pub struct DiffArgs {
    /// The profile that is compared with: pprof (also without gzip) or collapsed stacks, also of other programs.
    #[arg(value_name = "BEFORE", value_hint = clap::ValueHint::FilePath)]
    pub before: PathBuf,
    /// The profile that is looked at.
    #[arg(value_name = "AFTER", value_hint = clap::ValueHint::FilePath)]
    pub after: PathBuf,
    /// Scale BEFORE to the sum of AFTER, so that runs of different length or load can be compared; neither may be empty.
    #[arg(long)]
    pub normalize: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub out: OutArgs,
}

/// Where the result goes, and in which form.
#[derive(Args, Debug)]
pub struct OutArgs {
    /// File to write, replaced only when the result is whole, or - for the standard output [default: a table there].
    ///
    /// The form follows the ending: .html, .svg, .pb.gz or .pprof, .collapsed or .folded or .txt.
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// The form, whatever the file's ending.
    #[arg(long, value_enum, value_name = "FORM", requires = "output")]
    pub format: Option<Form>,
}

/// What a profile is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Event {
    /// CPU time.
    Cpu,
    /// What is allocated meanwhile.
    Alloc,
    /// What is allocated and in use now.
    Heap,
    /// Waits for locks.
    Lock,
    /// All waits of one thread for another, idle ones too.
    Block,
    /// Each thread's name, state and stack now.
    Threads,
}

/// How a result is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// A page with a flame graph.
    Html,
    /// The flame graph alone.
    Svg,
    /// As Go's tools read it.
    Pprof,
    /// A line for each stack.
    Collapsed,
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = time(text)?;
    let range = Duration::from_millis(1)..=Duration::from_mins(5);
    if range.contains(&duration) { Ok(duration) } else { Err("is from 1ms to 5m".to_owned()) }
}

fn time(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; use for example 500us or 10s"))
}
