//! `klad lab`: whole experiments in one command each, and the report of what they have found.
//!
//! ```text
//!     scenario (TOML) ─▶ runner ── for each stage, repeat and variant ──▶ served: a klad of its own
//!                          │                                               ▲ load: one `klad bench`
//!                          └─▶ result ─▶ conclusion, computed from the figures ─▶ report (HTML, Markdown, JSON), lab.json
//! ```
//!
//! Variants take turns, so that what changes with time changes for all; profiles are taken in windows of their own, so that they
//! cost no figure anything. A part that fails is named, and the rest goes on. Called by `main`.

#![cfg(target_os = "linux")]

use std::path::Path;

use anyhow::{Context as _, anyhow};

use self::args::{LabCommand, RunArgs};
use self::result::{LabResult, SCHEMA};
use self::runner::Experiment;
use klad_bench::result::RunResult;
use klad_bench::runner::{Error, print};

pub mod args;
mod runner;

mod echo;
pub mod load;
pub mod process;
pub mod server;

pub mod conclusion;
pub mod report;
pub mod result;
pub mod scenario;
mod seen;
pub mod shipped;

#[cfg(test)]
mod testing;

/// How a command that could be done has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Whole.
    Whole,
    /// A part failed, and the report says which.
    InPart,
}

/// Does what was asked for.
///
/// # Errors
/// When there is no such scenario, or no report could be written.
pub fn run(command: &LabCommand) -> Result<Ended, Error> {
    match command {
        LabCommand::Run(args) => experiment(args),
        LabCommand::List => {
            print(&shipped::list())?;
            Ok(Ended::Whole)
        }
        LabCommand::Show { scenario } => {
            let unknown = || Error::Usage(anyhow!("there is no scenario {scenario}; klad lab list shows all"));
            print(shipped::text(scenario).ok_or_else(unknown)?)?;
            Ok(Ended::Whole)
        }
        LabCommand::Echo { listen } => Ok(echo::serve(*listen).map(|()| Ended::Whole)?),
        LabCommand::Schema => {
            print(&report::json_schema())?;
            Ok(Ended::Whole)
        }
        LabCommand::Report { out } => {
            let result = read(out)?;
            write_reports(&result, out)?;
            Ok(ended(&result))
        }
    }
}

fn experiment(args: &RunArgs) -> Result<Ended, Error> {
    let result = Experiment::new(args)?.run()?;
    write_reports(&result, &args.out)?;
    Ok(ended(&result))
}

fn ended(result: &LabResult) -> Ended {
    if result.failures.is_empty() && result.finished { Ended::Whole } else { Ended::InPart }
}

/// The report in all its forms, and its conclusion on the standard output.
fn write_reports(result: &LabResult, out: &Path) -> anyhow::Result<()> {
    let conclusion = conclusion::conclude(result);
    write(&out.join("report.html"), &report::html(result, &conclusion, out))?;
    let markdown = report::markdown(result, &conclusion);
    write(&out.join("report.md"), &markdown)?;
    write(&out.join("report.json"), &report::json(result, &conclusion))?;
    print(&format!("{}\nReport: {}\n", conclusion.text(), out.join("report.html").display()))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// An experiment, with the results of its runs.
///
/// # Errors
/// When one of its files is missing, or is not what it should be.
pub fn read(out: &Path) -> anyhow::Result<LabResult> {
    let path = out.join("lab.json");
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let of_lab = || format!("{} is no {SCHEMA}", path.display());
    let mut result: LabResult = serde_json::from_slice(&text).with_context(of_lab)?;
    anyhow::ensure!(result.schema == SCHEMA, "{}, but {}", of_lab(), result.schema);
    for stage in &mut result.stages {
        for run in stage.variants.iter_mut().flat_map(|variant| &mut variant.runs) {
            let path = out.join(&run.file);
            let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let bench: RunResult =
                serde_json::from_slice(&text).with_context(|| format!("{} is no result", path.display()))?;
            run.bench = Some(Box::new(bench));
        }
    }
    Ok(result)
}
