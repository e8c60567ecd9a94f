//! `klad bench knee`: the highest rate that meets an objective.
//!
//! ```text
//!     search ── rate ──▶ runner (one run) ── result ──▶ level: good, or what it was stopped by ──▶ search
//!        └── found ──▶ evidence (a CPU profile and the queues of the last good and the first bad rate) ──▶ text, JSON, page
//! ```
//!
//! Every level is a run of `klad bench` with open load, judged by `--slo` and by the generator's own checks. Called by `runner`.

pub mod args;
mod evidence;
mod level;
mod page;
pub mod result;
pub mod search;
mod text;

use std::path::Path;

use anyhow::Context as _;

use self::args::KneeArgs;
use self::evidence::Witness;
use self::level::Level;
use self::result::{Found, KneeResult, Purpose};
use self::search::{Bounds, Search, Step};
use super::args::BenchArgs;
use super::files;
use super::progress::Note;
use super::result::RunResult;
use super::runner::{self, Error, Verdict};
use super::units::Rate;

/// Rates below this are not looked at: a level of ten seconds would hold no hundred requests.
const RATE_LEAST: f64 = 10.0;

/// No higher than this without `--to`: more than one generator can send.
const RATE_MOST: f64 = 10e6;

/// Searches, and reports what was found.
///
/// # Errors
/// As [`runner::run`].
pub fn run(args: &KneeArgs) -> Result<Verdict, Error> {
    // Before the search, so that a wrong path costs none.
    let json = args.json.as_deref().filter(|path| *path != Path::new("-")).map(files::create).transpose()?;
    let html = args.html.as_deref().map(files::create).transpose()?;
    let witness = Witness::new(args)?;
    let note = Note::new(args.progress);
    runner::fill_for(&level_args(args, args.from.0))?;
    let mut search = Search::new(bounds(args));
    let mut levels: Vec<Level> = Vec::new();
    let mut first: Option<RunResult> = None;
    let found = loop {
        let (rate, purpose) = match search.next() {
            Step::Measure(rate, purpose) => (rate, purpose),
            Step::Done(found) => break found,
        };
        let run = runner::measure(&level_args(args, rate))?;
        let level = Level::of(rate, Purpose::from(purpose), &run);
        note.say(&level.line());
        if run.interrupted_s.is_some() {
            return Err(Error::Failed(anyhow::anyhow!("interrupted after {} levels", levels.len())));
        }
        search.add(rate, level.good);
        levels.push(level);
        first.get_or_insert(run);
    };
    let first = first.context("nothing was measured")?;
    let edge = Found::of(found, |rate| search.tally(rate));
    let evidence = witness.gather(&edge, |rate| {
        let run = runner::measure(&level_args(args, rate))?;
        if run.interrupted_s.is_some() {
            return Err(Error::Failed(anyhow::anyhow!("interrupted after the search, while evidence was taken")));
        }
        let level = Level::of(rate, Purpose::Evidence, &run);
        note.say(&level.line());
        Ok(level)
    })?;
    let result = KneeResult::new(args, first, edge, levels, evidence);
    report(args, &result, json, html)
}

fn report(
    args: &KneeArgs,
    result: &KneeResult,
    json: Option<files::Created>,
    html: Option<files::Created>,
) -> Result<Verdict, Error> {
    if let Some(html) = html {
        files::fill(html, &page::html(result))?;
    }
    if let Some(json) = json {
        files::fill(json, &result.json())?;
    }
    let json_to_stdout = args.json.as_deref() == Some(Path::new("-"));
    runner::print(&if json_to_stdout { result.json() } else { text::report(result) })?;
    Ok(result.verdict())
}

fn bounds(args: &KneeArgs) -> Bounds {
    Bounds {
        from: args.from.0,
        to: args.to.as_ref().map_or(RATE_MOST, |to| to.0),
        least: RATE_LEAST.min(args.from.0),
        precision: args.precision,
        repeats: usize::from(args.repeats),
    }
}

/// The run of one level.
fn level_args(args: &KneeArgs, rate: f64) -> BenchArgs {
    BenchArgs {
        command: None,
        url: Some(args.url.clone()),
        requests: args.requests.clone(),
        rate: Some(Rate(rate)),
        stages: None,
        closed: false,
        duration: args.level,
        warm_up: args.warm_up,
        slo: Some(args.slo.clone()),
        json: None,
        hgrm: None,
        hlog: None,
        html: None,
        progress: super::args::When::Never,
        json_schema: false,
    }
}
