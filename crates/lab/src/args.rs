//! The command line of `klad lab`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use klad_bench::args::When;

/// Experiments: servers, loads and a report in one command.
#[derive(Clone, Debug, Subcommand)]
pub enum LabCommand {
    /// Run an experiment and write its report.
    ///
    /// Each run starts a server of its own and loads it with klad bench. Variants take turns: A B A B.
    #[command(after_help = "\
Exit codes: 0 everything was run, and the report is written; 1 there is no report; 2 wrong usage; 3 a part failed or \
Ctrl-C ended the experiment: the report says which.\ndocs/lab.md explains scenarios and reports.")]
    Run(RunArgs),
    /// List the built-in scenarios.
    List,
    /// Print a built-in scenario, as a start for your own.
    Show {
        /// Name of the scenario.
        #[arg(value_name = "NAME")]
        scenario: String,
    },
    /// Write the report of an experiment again, from its figures.
    Report {
        /// Directory of the report.
        #[arg(value_name = "DIR")]
        out: PathBuf,
    },
    /// Print the JSON Schema of lab.json and report.json.
    Schema,
    /// Answer every request with its own body, or with 100 bytes if it has none. The scenario yardstick measures the
    /// cost of this server, which does nothing else.
    #[command(hide = true)]
    Echo {
        /// Address to listen at.
        #[arg(long, value_name = "HOST:PORT")]
        listen: std::net::SocketAddr,
    },
}

/// Options of `klad lab run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Scenario: a built-in one (klad lab list) or a file.
    #[arg(value_name = "SCENARIO")]
    pub scenario: String,
    /// Directory for the report: report.html, report.md, report.json, lab.json, results, profiles and logs.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Multiply lengths of runs and numbers of keys by this, at most 1; 0.1 gives a quick look.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = scale)]
    pub scale: f64,
    /// Number of keys of filled data [default: the scenario's, times --scale].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: Option<u64>,
    /// Number of runs of each variant in each stage [default: the scenario's].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub repeats: Option<u8>,
    /// Run these variants only, separated by commas [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub variants: Vec<String>,
    /// Run these stages only, separated by commas [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub stages: Vec<String>,
    /// Directory for databases, which are removed at the end [default: that of --out].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Take no profiles.
    #[arg(long)]
    pub no_profiles: bool,
    /// Print a line for each run on stderr; auto: on a terminal.
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub progress: When,
}

fn scale(text: &str) -> Result<f64, String> {
    let scale: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if scale > 0.0 && scale <= 1.0 { Ok(scale) } else { Err("it must be above 0 and at most 1".to_owned()) }
}
