//! `klad bench compare`: is B faster or slower than A, and how certain is the answer?
//!
//! ```text
//!     A.json,…  ─▶ sides ─▶ alike: other differences ────────────┐
//!     B.json,…      │                                            ▼
//!                   └─▶ repeats ─▶ judge, figure by figure ─▶ finding ─▶ text, JSON, page, exit code
//!                        runs or     figures, interval
//!                        pieces
//! ```
//!
//! A difference counts only if noise does not explain it, and if it exceeds the tolerance. Of comparisons of
//! equal sides, at most one in a hundred finds a difference, however many figures it compares. A figure that cannot be
//! judged is reported as not judged, and never as equal. Called by `runner`.

use std::path::Path;

use anyhow::anyhow;

use self::args::CompareArgs;
use self::finding::{Finding, Verdict};
use self::judge::{Evidence, Rules};
use self::sides::Side;
use crate::files;
use crate::runner::{self, Error, print};

pub mod args;

pub mod sides;

pub mod alike;

pub mod repeats;

pub mod figures;

pub mod interval;

pub mod judge;

pub mod finding;

pub mod page;
pub mod text;

#[cfg(test)]
mod trials;

/// Compares two sides and reports the finding.
///
/// # Errors
/// If a file is not a result, if no figure can be judged (the values are printed before the error), or if the finding
/// cannot be written.
pub fn run(args: &CompareArgs) -> Result<runner::Verdict, Error> {
    let (a, b) = (Side::read(&args.before)?, Side::read(&args.after)?);
    let evidence = Evidence::of(&a, &b)?;
    let finding = judge::judge(&evidence, Rules::new(args.tolerance));
    let to_stdout = args.json.as_deref() == Some(Path::new("-"));
    if let Some(path) = args.json.as_deref().filter(|_| !to_stdout) {
        files::write(files::create(path)?, &finding.json())?;
    }
    if let Some(path) = &args.html {
        let together = (&evidence.together.0, &evidence.together.1);
        files::write(files::create(path)?, &page::html(&finding, together, &evidence.repeats))?;
    }
    print(&if to_stdout { finding.json() } else { text::report(&finding) })?;
    conclude(&finding, args.allow_invalid)
}

fn conclude(finding: &Finding, allow_invalid: bool) -> Result<runner::Verdict, Error> {
    match finding.verdict {
        Verdict::NotJudged => Err(Error::Failed(anyhow!("cannot compare: {}", finding.sentence))),
        _ if !finding.valid && !allow_invalid => Ok(runner::Verdict::NotValid),
        Verdict::Slower | Verdict::Mixed => Ok(runner::Verdict::Missed),
        Verdict::Faster | Verdict::NoDifference => Ok(runner::Verdict::Met),
    }
}
