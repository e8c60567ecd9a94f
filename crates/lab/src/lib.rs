//! `klad lab`: an experiment in one command, and the report of what it found.
//!
//! ```text
//!     scenario (TOML) ─▶ runner ── for each stage, repeat and variant ──▶ server: a process of its own
//!                          │                                               ▲ load: one `klad bench`
//!                          └─▶ result ─▶ conclusion, from the figures ─▶ report (HTML, Markdown, JSON), lab.json
//! ```
//!
//! Variants take turns, so that a machine that changes over time changes for all of them. Profiles are taken in runs
//! of their own, so that they disturb no other figure. If a part fails, the report names it, and the other parts are
//! run. Called by `main`; the project's measurements (`xtask`) use `server`, `load`, `process` and `scenario`.

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
pub mod shipped;
mod variant_runs;

#[cfg(test)]
mod testing;

/// How much of a command was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Everything.
    Complete,
    /// A part failed or was interrupted; the report says which.
    Partial,
}

/// Runs a command of `klad lab`.
///
/// # Errors
/// When the command cannot do its work. For `run`: when the scenario or an option is wrong, or no report could be
/// written. A failed run is no error, but [`Completion::Partial`].
pub fn run(command: &LabCommand) -> Result<Completion, Error> {
    match command {
        LabCommand::Run(args) => return run_experiment(args),
        LabCommand::List => print(&shipped::list())?,
        LabCommand::Show { scenario } => {
            let unknown = || Error::Usage(anyhow!("there is no scenario {scenario}; klad lab list shows all"));
            print(shipped::text(scenario).ok_or_else(unknown)?)?;
        }
        LabCommand::Echo { listen } => echo::serve(*listen)?,
        LabCommand::Schema => print(&report::json_schema())?,
        LabCommand::Report { out } => {
            let result = read(out)?;
            write_reports(&result, out)?;
            return Ok(completion(&result));
        }
    }
    Ok(Completion::Complete)
}

fn run_experiment(args: &RunArgs) -> Result<Completion, Error> {
    let result = Experiment::new(args)?.run()?;
    write_reports(&result, &args.out)?;
    Ok(completion(&result))
}

fn completion(result: &LabResult) -> Completion {
    if result.failures.is_empty() && result.finished { Completion::Complete } else { Completion::Partial }
}

/// Writes all forms of the report, and the conclusion to stdout.
fn write_reports(result: &LabResult, out: &Path) -> anyhow::Result<()> {
    let conclusion = conclusion::conclude(result);
    write(&out.join("report.html"), &report::html(result, &conclusion, out))?;
    write(&out.join("report.md"), &report::markdown(result, &conclusion))?;
    write(&out.join("report.json"), &report::json(result, &conclusion))?;
    print(&format!("{}\nReport: {}\n", conclusion.text(), out.join("report.html").display()))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Reads the figures of an experiment, and the results of its runs, from the report's directory `out`.
///
/// # Errors
/// When one of the files is missing or has another form.
pub fn read(out: &Path) -> anyhow::Result<LabResult> {
    let path = out.join("lab.json");
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let wrong_form = || format!("{} is not {SCHEMA}", path.display());
    let mut result: LabResult = serde_json::from_slice(&text).with_context(wrong_form)?;
    anyhow::ensure!(result.schema == SCHEMA, "{}, but {}", wrong_form(), result.schema);
    for stage in &mut result.stages {
        for run in stage.variants.iter_mut().flat_map(|variant| &mut variant.runs) {
            let path = out.join(&run.file);
            let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let bench: RunResult = serde_json::from_slice(&text)
                .with_context(|| format!("{} is not a result of klad bench", path.display()))?;
            run.bench = Some(Box::new(bench));
        }
    }
    Ok(result)
}
