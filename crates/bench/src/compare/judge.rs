//! Judges each figure by its confidence interval, then all figures together. Called by `compare` and `klad_lab`.
//!
//! At most one in a hundred comparisons of equal sides may find a difference. Each judged figure can err, so each gets
//! an equal part of this probability (Bonferroni). With this method, all confidence intervals hold at the same time,
//! unlike with Holm's procedure. A difference must also exceed the tolerance, because with enough repeats even the
//! smallest difference becomes significant.

use crate::compare::alike;
use crate::compare::figures::{Figure, Observed, Unit};
use crate::compare::finding::{Confidence, FigureFound, Finding, Judgement, RepeatsUsed, SCHEMA, Source, Verdict};
use crate::compare::interval::{self, Estimate};
use crate::compare::repeats::{self, Kind, Repeats};
use crate::compare::sides::Side;
use crate::compare::text;

/// The largest probability that a comparison of equal sides finds a difference.
const ERROR: f64 = 0.01;

/// Differences of shares up to this are ignored: one request in a thousand.
const SHARE_TOLERANCE: f64 = 0.001;

/// A difference, or an end of a confidence interval, that is this large or larger is not reported, percent.
const UNBOUNDED: f64 = 1e6;

/// The relative resolution of a histogram with three digits.
const RESOLUTION: f64 = 0.001;

/// The rules by which figures are judged.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Relative differences of times and goodput up to this share are ignored.
    pub tolerance: f64,
    #[cfg(test)]
    pub(super) planted: Option<crate::compare::trials::JudgementDefect>,
}

impl Rules {
    /// Returns the rules with this tolerance, a share.
    #[must_use]
    pub fn new(tolerance: f64) -> Rules {
        Rules {
            tolerance,
            #[cfg(test)]
            planted: None,
        }
    }
}

/// The values of one figure in all repeats, ready to be compared.
struct Prepared {
    a: Vec<f64>,
    b: Vec<f64>,
    /// `true` if the values are logarithms, `false` if they are shares.
    logarithms: bool,
    /// The resolution of the values.
    resolution: f64,
    /// Differences up to this are ignored.
    tolerance: f64,
}

/// The two sides of a comparison: their runs, the sums of these runs, and their repeats.
pub struct Evidence<'s> {
    /// The runs of A and of B.
    pub sides: (&'s Side, &'s Side),
    /// The sums over all requests of A, and over all requests of B.
    pub together: (Observed, Observed),
    /// The repeats of both sides, which show the noise.
    pub repeats: Repeats,
}

impl<'s> Evidence<'s> {
    /// Collects what is needed to compare `b` with `a`.
    ///
    /// # Errors
    /// If a histogram cannot be read.
    pub fn of(a: &'s Side, b: &'s Side) -> anyhow::Result<Evidence<'s>> {
        Ok(Evidence { sides: (a, b), together: (together(a)?, together(b)?), repeats: Repeats::of(a, b)? })
    }
}

/// Compares B with A.
#[must_use]
pub fn judge(evidence: &Evidence, rules: Rules) -> Finding {
    let Evidence { sides: (a, b), together: (of_a, of_b), repeats } = evidence;
    let shown = Figure::all().into_iter().filter(|figure| is_shown(*figure, of_a, of_b));
    let prepared: Vec<_> = shown.map(|figure| (figure, prepare(figure, repeats, (of_a, of_b), rules))).collect();
    let judged = prepared.iter().filter(|(_, prepared)| prepared.is_ok()).count();
    let error = ERROR / f64::from(u32::try_from(judged.max(1)).expect("there are few figures"));
    let figures: Vec<_> = prepared
        .into_iter()
        .map(|(figure, prepared)| {
            let values = (figure.value(of_a), figure.value(of_b));
            match prepared {
                Ok(prepared) => found(figure, values, &prepared, estimate(&prepared, repeats.paired, error, rules)),
                Err(why) => not_judged(figure, values, why),
            }
        })
        .collect();
    let verdict = overall(&figures);
    let not_valid = alike::not_valid(a, b);
    let half_width = |figure: &FigureFound| Some((figure.high_percent? - figure.low_percent?) / 2.0);
    let mut finding = Finding {
        schema: SCHEMA,
        klad_version: env!("CARGO_PKG_VERSION"),
        verdict,
        sentence: String::new(),
        valid: not_valid.is_empty(),
        not_valid,
        warnings: alike::warnings(a, b, (of_a, of_b)),
        a: sources(a),
        b: sources(b),
        repeats: RepeatsUsed {
            kind: match repeats.kind {
                Kind::Runs => "runs",
                Kind::Pieces => "pieces",
            },
            paired: repeats.paired,
            a: repeats.a.len(),
            b: repeats.b.len(),
            note: text::repeats_note(repeats),
        },
        confidence: Confidence {
            together_percent: (1.0 - ERROR) * 100.0,
            each_percent: (1.0 - error) * 100.0,
            figures: judged,
            tolerance_percent: rules.tolerance * 100.0,
            share_tolerance_points: SHARE_TOLERANCE * 100.0,
        },
        smallest_at_p99_percent: figures.iter().find(|figure| figure.figure == "p99").and_then(half_width),
        figures,
    };
    finding.sentence = text::sentence(&finding, repeats.missing.as_deref());
    finding
}

/// Returns the sums over all runs of a side.
fn together(side: &Side) -> anyhow::Result<Observed> {
    let mut all = Observed::nothing();
    for run in &side.runs {
        all.add(&repeats::whole(run)?);
    }
    Ok(all)
}

/// Returns `true` if a figure is shown. The share of an outcome that never occurred is left out, because each judged
/// figure can err.
fn is_shown(figure: Figure, a: &Observed, b: &Observed) -> bool {
    let is_some = |observed: &Observed| figure.value(observed).is_some_and(|value| value > 0.0);
    figure.unit() != Unit::Share || is_some(a) || is_some(b)
}

/// Returns the values of `figure` in all repeats, ready to be compared. The error says why the figure cannot be judged.
fn prepare(
    figure: Figure,
    repeats: &Repeats,
    together: (&Observed, &Observed),
    rules: Rules,
) -> Result<Prepared, String> {
    #[cfg(test)]
    crate::compare::trials::JudgementDefect::leaves_out(rules.planted, figure)?;
    for (name, side) in [("A", &repeats.a), ("B", &repeats.b)] {
        if side.len() < 2 {
            return Err("no repeats".to_owned());
        }
        if let Some(why) = side.iter().find_map(|repeat| figure.lacks(repeat)) {
            return Err(if figure == Figure::Max { why } else { format!("{name} has {why}") });
        }
    }
    let values = |side: &[Observed]| side.iter().filter_map(|repeat| figure.value(repeat)).collect::<Vec<_>>();
    let (a, b) = (values(&repeats.a), values(&repeats.b));
    // A count has a resolution of one request.
    let one_of = |all: f64| RESOLUTION.max(1.0 / all.max(1.0));
    let each = || repeats.a.iter().chain(&repeats.b);
    Ok(match figure.unit() {
        Unit::Share => {
            let resolution = one_of(each().map(requests).fold(f64::INFINITY, f64::min));
            Prepared { a, b, logarithms: false, resolution, tolerance: SHARE_TOLERANCE }
        }
        // A value of 0 has no logarithm. The values are therefore divided by A's value over all requests, or by B's if
        // A's is 0.
        Unit::PerSecond | Unit::Micros if a.iter().chain(&b).any(|value| *value <= 0.0) => {
            let [of_a, of_b] = [together.0, together.1].map(|side| figure.value(side).unwrap_or(0.0));
            let whole = if of_a > 0.0 { of_a } else { of_b.max(f64::MIN_POSITIVE) };
            let parts = |values: Vec<f64>| values.into_iter().map(|value| value / whole).collect();
            let resolution = one_of(each().map(Observed::good).fold(0.0, f64::max));
            Prepared { a: parts(a), b: parts(b), logarithms: false, resolution, tolerance: rules.tolerance }
        }
        unit => {
            let least = each().map(Observed::good).fold(f64::INFINITY, f64::min);
            let logarithms = |values: Vec<f64>| values.into_iter().map(f64::ln).collect();
            Prepared {
                a: logarithms(a),
                b: logarithms(b),
                logarithms: true,
                resolution: if unit == Unit::PerSecond { one_of(least) } else { RESOLUTION },
                tolerance: rules.tolerance.ln_1p(),
            }
        }
    })
}

#[expect(clippy::cast_precision_loss, reason = "a count of requests")]
fn requests(observed: &Observed) -> f64 {
    observed.ended() as f64
}

#[cfg_attr(not(test), expect(unused_variables, reason = "only tests use the rules, to plant defects"))]
fn estimate(prepared: &Prepared, paired: bool, error: f64, rules: Rules) -> Estimate {
    let method = if paired { interval::in_pairs } else { interval::apart };
    let estimate = method(&prepared.a, &prepared.b, prepared.resolution, error);
    #[cfg(test)]
    let estimate = crate::compare::trials::JudgementDefect::apply(rules.planted, estimate);
    estimate
}

/// Judges `figure` by the confidence interval in `estimate`.
fn found(figure: Figure, (a, b): (Option<f64>, Option<f64>), prepared: &Prepared, estimate: Estimate) -> FigureFound {
    let percent = |difference: f64| {
        let part = if prepared.logarithms { difference.exp_m1() } else { difference };
        // A value cannot fall by more than 100 %. A share cannot rise by more than 100 percentage points.
        let most = if figure.unit() == Unit::Share { 100.0 } else { f64::INFINITY };
        Some((part * 100.0).clamp(-100.0, most)).filter(|percent| *percent < UNBOUNDED)
    };
    let matters = estimate.excludes_zero() && estimate.difference.abs() > prepared.tolerance;
    let more_is_better = figure.unit() == Unit::PerSecond;
    let verdict = match (matters, (estimate.difference > 0.0) == more_is_better) {
        (false, _) => Judgement::NoDifference,
        (true, true) => Judgement::Better,
        (true, false) => Judgement::Worse,
    };
    FigureFound {
        figure: figure.name(),
        unit: unit(figure),
        a,
        b,
        difference_percent: percent(estimate.difference),
        low_percent: percent(estimate.difference - estimate.half_width),
        high_percent: percent(estimate.difference + estimate.half_width),
        verdict,
        why_not: None,
    }
}

fn not_judged(figure: Figure, (a, b): (Option<f64>, Option<f64>), why: String) -> FigureFound {
    FigureFound {
        figure: figure.name(),
        unit: unit(figure),
        a,
        b,
        difference_percent: None,
        low_percent: None,
        high_percent: None,
        verdict: Judgement::NotJudged,
        why_not: Some(why),
    }
}

fn unit(figure: Figure) -> &'static str {
    match figure.unit() {
        Unit::Micros => "us",
        Unit::PerSecond => "per_s",
        Unit::Share => "share",
    }
}

fn overall(figures: &[FigureFound]) -> Verdict {
    let any = |judgement| figures.iter().any(|figure| figure.verdict == judgement);
    match (any(Judgement::Better), any(Judgement::Worse)) {
        (true, true) => Verdict::Mixed,
        (true, false) => Verdict::Faster,
        (false, true) => Verdict::Slower,
        (false, false) if any(Judgement::NoDifference) => Verdict::NoDifference,
        (false, false) => Verdict::NotJudged,
    }
}

fn sources(side: &Side) -> Vec<Source> {
    let source = |run: &crate::compare::sides::Run| Source {
        path: run.path.display().to_string(),
        started_utc: run.result.started.utc.clone(),
        url: run.result.target.url.clone(),
        load: alike::stages(&run.result.load.stages),
        requests: run.result.measured.scheduled,
        valid: run.result.valid,
    };
    side.runs.iter().map(source).collect()
}
