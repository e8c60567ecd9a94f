//! What the user of `klad lab` typed.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use klad_bench::args::When;

/// Whole experiments.
#[derive(Clone, Debug, Subcommand)]
pub enum LabCommand {
    /// Run an experiment, and write its report.
    ///
    /// Each variant is a klad of its own, started for each run and loaded by klad bench, in turn with the others.
    #[command(after_help = "\
Exit codes: 0 all was run, and the report is written; 1 there is no report; 2 wrong usage; 3 a part failed, or Ctrl-C ended it: \
the report says what.\ndocs/lab.md explains scenarios and reports.")]
    Run(RunArgs),
    /// List the scenarios that come along.
    List,
    /// Print a scenario that comes along, as a file to begin with.
    Show {
        /// Its name.
        #[arg(value_name = "NAME")]
        scenario: String,
    },
    /// Write the report of an experiment anew, from its figures.
    Report {
        /// Directory of its report.
        #[arg(value_name = "DIR")]
        out: PathBuf,
    },
    /// Print the JSON Schema of lab.json and report.json.
    Schema,
    /// Answer every request with its own body, or with 100 bytes: what a server costs that does nothing.
    #[command(hide = true)]
    Echo {
        /// The address to listen at.
        #[arg(long, value_name = "HOST:PORT")]
        listen: std::net::SocketAddr,
    },
}

/// Options of `klad lab run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// A scenario that comes along (klad lab list), or a file.
    #[arg(value_name = "SCENARIO")]
    pub scenario: String,
    /// Directory for the report: report.html, report.md, report.json, lab.json, and what they were made from.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Lengths and numbers of keys times this: 0.1 for a look.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = scale)]
    pub scale: f64,
    /// Keys of filled data instead of the scenario's; --scale does not change them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: Option<u64>,
    /// Runs of each variant and stage [default: the scenario's].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub repeats: Option<u8>,
    /// These variants only, by their names, with commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub variants: Vec<String>,
    /// These stages only.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub stages: Vec<String>,
    /// Directory in which databases are made, and removed at the end [default: the report's].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Take no profiles.
    #[arg(long)]
    pub no_profiles: bool,
    /// A line for each run on stderr; auto: when it is a terminal.
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub progress: When,
}

fn scale(text: &str) -> Result<f64, String> {
    let scale: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    if scale > 0.0 && scale <= 1.0 { Ok(scale) } else { Err("above 0, and up to 1".to_owned()) }
}
