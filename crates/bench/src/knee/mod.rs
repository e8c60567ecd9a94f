//! `klad bench knee`: finds the highest rate that meets the objectives of `--slo`.
//!
//! ```text
//!     search ── rate ──▶ runner (one run) ── result ──▶ level: good, or the reason why not ──▶ search
//!        └── finding ──▶ evidence: CPU profile and queues at the last good and the first bad rate
//!               └──▶ text, JSON, page
//! ```
//!
//! Each level is a run of `klad bench` with open load, judged by `--slo` and by the generator's own checks. Called by
//! `runner`.

pub mod args;
mod evidence;
mod level;
mod page;
pub mod result;
pub mod search;
mod text;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow};

use self::args::KneeArgs;
use self::evidence::EvidenceRecorder;
use self::level::Level;
use self::result::{KneeResult, Purpose, SearchResult};
use self::search::{Bounds, Search, Step};
use crate::args::BenchArgs;
use crate::files;
use crate::interrupt;
use crate::progress::Note;
use crate::result::RunResult;
use crate::runner::{self, Error, Verdict};
use crate::threads::NoConnection;
use crate::units::Rate;

/// The lowest rate to try, requests per second, unless `--from` is lower. At a lower rate, a level of ten seconds would
/// have fewer than a hundred requests.
const RATE_LEAST: f64 = 10.0;

/// The highest rate to try without `--to`, requests per second. It is more than a generator can send.
const RATE_MOST: f64 = 10e6;

/// If `--slo` demands a rate of answers, the rate of the first level is at least this multiple of the demanded rate. At
/// exactly the demanded rate, the objective would be missed narrowly.
const ABOVE_WANTED: f64 = 1.05;

/// The number of times that a level is repeated if the generator could not make its load, because such a level tells
/// nothing about the server. If the last repeat fails too, the search treats the rate as bad.
const GENERATOR_AGAIN: usize = 2;

/// The pauses before new attempts to reach a server that has become unreachable. The attempts are made because an
/// overload may soon be over.
const RETRY_PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(6)];

/// Searches for the knee, and reports the finding. If a later run than the first fails, the search ends early, and the
/// report has the levels so far and the error. If the first run fails, returns its error.
///
/// # Errors
/// As for [`runner::run`].
pub fn run(args: &KneeArgs) -> Result<Verdict, Error> {
    let bounds = bounds(args)?;
    // Files are created before the search, so that a wrong path is found before any load.
    let json = args.json.as_deref().filter(|path| *path != Path::new("-")).map(files::create).transpose()?;
    let html = args.html.as_deref().map(files::create).transpose()?;
    let recorder = EvidenceRecorder::new(args)?;
    let note = Note::new(args.progress);
    let _watch = interrupt::watch()?;
    runner::fill_for(&level_args(args, bounds.from))?;
    let mut search = Search::new(bounds);
    let mut levels: Vec<Level> = Vec::new();
    let mut first: Option<RunResult> = None;
    // How often the present rate was repeated because the generator could not make the load.
    let mut again = 0;
    let (found, broken_off) = loop {
        let (rate, purpose) = match search.next() {
            Step::Measure(rate, purpose) => (rate, purpose),
            Step::Done(found) => break (found, None),
        };
        match measure(args, rate, first.is_some(), &note) {
            Ok(run) => {
                let level = Level::of(rate, Purpose::from(purpose), &run);
                first.get_or_insert(run);
                if level.is_of_generator() && again < GENERATOR_AGAIN {
                    again += 1;
                    let level = level.not_counted();
                    note.say(&level.line());
                    levels.push(level);
                    continue;
                }
                again = 0;
                note.say(&level.line());
                search.add(rate, level.good);
                levels.push(level);
            }
            Err(Error::Failed(why)) if first.is_some() => {
                break (search.so_far(), Some(format!("after {} levels, at {rate:.1}/s: {why:#}", levels.len())));
            }
            Err(error) => return Err(error),
        }
    };
    let first = first.context("no level was run")?;
    let mut edge = SearchResult::of(found, broken_off, |rate| search.tally(rate));
    let evidence = match edge.outcome {
        result::Outcome::BrokenOff => Vec::new(),
        _ => recorder.gather(&mut edge, |rate| {
            let level = Level::of(rate, Purpose::Evidence, &measure(args, rate, true, &note)?);
            note.say(&level.line());
            Ok(level)
        })?,
    };
    let result = KneeResult::new(args, first, edge, levels, evidence);
    report(args, &result, json, html)
}

/// Runs one level. `again` means that the server was reachable before. In this case, if the server is unreachable now,
/// new attempts follow after pauses.
fn measure(args: &KneeArgs, rate: f64, again: bool, note: &Note) -> Result<RunResult, Error> {
    let mut pauses = RETRY_PAUSES.iter().filter(|_| again);
    loop {
        not_interrupted()?;
        match runner::measure(&level_args(args, rate)) {
            Ok(run) => {
                not_interrupted()?;
                if let Some(at) = run.interrupted_s {
                    let why =
                        format!("the script stopped its threads after {at:.3} s, but a level needs its whole time");
                    return Err(Error::Failed(anyhow!(why)));
                }
                return Ok(run);
            }
            Err(Error::Failed(why)) if why.downcast_ref::<NoConnection>().is_some() => {
                let Some(pause) = pauses.next() else { return Err(Error::Failed(why)) };
                note.say(&format!("{why:#}; trying again in {} s", pause.as_secs()));
                interrupt::sleep(*pause);
            }
            Err(error) => return Err(error),
        }
    }
}

fn not_interrupted() -> Result<(), Error> {
    if interrupt::asked() { Err(Error::Failed(anyhow!("interrupted"))) } else { Ok(()) }
}

fn report(
    args: &KneeArgs,
    result: &KneeResult,
    json: Option<files::OutputFile>,
    html: Option<files::OutputFile>,
) -> Result<Verdict, Error> {
    if let Some(html) = html {
        files::write(html, &page::html(result))?;
    }
    if let Some(json) = json {
        files::write(json, &result.json())?;
    }
    let json_to_stdout = args.json.as_deref() == Some(Path::new("-"));
    runner::print(&if json_to_stdout { result.json() } else { text::report(result) })?;
    Ok(result.verdict())
}

/// Returns the limits of the search.
///
/// # Errors
/// If `--slo` demands a rate of answers that is not below `--to`.
fn bounds(args: &KneeArgs) -> Result<Bounds, Error> {
    let to = args.to.as_ref().map_or(RATE_MOST, |to| to.0);
    let (mut from, mut least) = (args.from.0, RATE_LEAST.min(args.from.0));
    if let Some(answers) = args.slo.answers_wanted() {
        if answers >= to {
            return Err(Error::Usage(anyhow!(
                "--slo {} demands more answers than {to:.0} requests a second can have, so no rate up to that can meet it",
                args.slo
            )));
        }
        // At a rate below the demanded rate of answers, the objective cannot be met.
        (from, least) = (from.max(answers * ABOVE_WANTED), least.max(answers));
    }
    Ok(Bounds { from, to, least, precision: args.precision, repeats: usize::from(args.repeats) })
}

/// Returns the options of the run of one level.
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
        progress: crate::args::When::Never,
        json_schema: false,
    }
}
