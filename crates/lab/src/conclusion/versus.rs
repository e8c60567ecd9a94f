//! Variants against each other, by the judgement of `bench compare` over their runs, and who is best at what. Called by `stage`.
//!
//! Pieces of a single run could be compared as well. They are not: they know nothing of how two starts of a server differ, and
//! an experiment can be repeated.

use std::cell::OnceCell;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::seen::{Seen, mean};
use klad_bench::compare::figures::Figure;
use klad_bench::compare::finding::{FigureFound, Finding, Judgement as Found};
use klad_bench::compare::interval;
use klad_bench::compare::judge::{self, Evidence, Rules};

/// Relative differences up to this do not count: that of `klad bench compare`.
pub(super) const TOLERANCE: f64 = 0.02;

/// Figures that variants can win.
const CONTESTED: [Contested; 5] = [
    Contested { name: "p50", of: Some(Figure::Percentile(50.0)) },
    Contested { name: "p99", of: Some(Figure::Percentile(99.0)) },
    Contested { name: "p99.9", of: Some(Figure::Percentile(99.9)) },
    Contested { name: "goodput", of: Some(Figure::Goodput) },
    Contested { name: CPU, of: None },
];

/// CPU time of the server by served requests, which the load tester does not know of.
pub(crate) const CPU: &str = "CPU per served request";

struct Contested {
    name: &'static str,
    /// `None`: CPU time.
    of: Option<Figure>,
}

/// What the values of a figure are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Response times, microseconds.
    Time,
    /// Per second.
    Rate,
    /// A part of all requests, 0 to 1.
    Share,
    /// CPU time, microseconds.
    Cpu,
}

/// Whether the other variant is better than the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// Shorter times, more goodput, smaller shares, less CPU time.
    Better,
    /// The contrary.
    Worse,
    /// None beyond the noise.
    NoDifference,
    /// Not judged, for the reason that is given.
    NotJudged,
}

/// Two variants.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// What the other is held against.
    pub first: String,
    /// What is judged.
    pub other: String,
    /// Runs of each that were compared.
    pub runs: [usize; 2],
    /// Each figure.
    pub differences: Vec<Difference>,
    /// Why none of them was judged.
    pub not_judged: Option<String>,
    /// A smaller difference at p99 these runs could not have shown, percent.
    pub smallest_at_p99_percent: Option<f64>,
    /// What else differs between their runs, of which the first's are A and the other's B.
    pub warnings: Vec<String>,
}

/// A figure of two variants.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// `p50` to `p99.99`, `mean`, `goodput`, `refused`, …, `CPU per served request`.
    pub figure: String,
    /// What its values are.
    pub unit: Unit,
    /// Of the first variant, all its runs together.
    pub first: Option<f64>,
    /// Of the other.
    pub other: Option<f64>,
    /// How much more the other has: percent of the first, or percentage points of shares.
    pub percent: Option<f64>,
    /// Lower end of the interval in which the true difference lies.
    pub low_percent: Option<f64>,
    /// Upper end.
    pub high_percent: Option<f64>,
    /// Better or worse.
    pub judgement: Judgement,
    /// Why it was not judged.
    pub why_not: Option<String>,
}

/// How a figure was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// One is better than all others.
    Won,
    /// The best cannot be told from some others.
    Level,
    /// It was not judged.
    NotJudged,
}

/// Who is best at a figure.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Winner {
    /// The figure.
    pub figure: String,
    /// How it was decided.
    pub outcome: Outcome,
    /// The one with the best value, whether it has won or not.
    pub best: Option<String>,
    /// That value, all its runs together.
    pub value: Option<f64>,
    /// How it differs from the one with the next best value, where it has won.
    pub ahead: Option<Difference>,
    /// The next best.
    pub next: Option<String>,
    /// Those that cannot be told from the best.
    pub level_with: Vec<String>,
    /// Whether those are all that could be judged.
    pub all_level: bool,
    /// Variants that could not be judged, and why; they might have been better.
    pub without: Vec<String>,
    /// Why it was not judged.
    pub why_not: Option<String>,
}

impl Comparison {
    /// Of `other` with `first`.
    pub(super) fn of(first: &Seen, other: &Seen) -> Comparison {
        let lacks = first.lacks().or_else(|| other.lacks());
        let finding = match lacks {
            Some(why) => Err(why),
            None => Evidence::of(&first.side, &other.side)
                .map(|evidence| judge::judge(&evidence, Rules::new(TOLERANCE)))
                .map_err(|error| format!("{error:#}")),
        };
        let names = [first.name(), other.name()];
        let cpu = cpu(first, other, finding.as_ref().map_err(Clone::clone));
        let (mut differences, not_judged): (Vec<_>, _) = match &finding {
            Ok(finding) => (finding.figures.iter().map(|figure| Difference::found(figure, names)).collect(), None),
            Err(why) => (unjudged(first, other, why), Some(why.clone())),
        };
        differences.extend(cpu);
        let smallest = differences.iter().find(|one| one.figure == "p99").and_then(Difference::smallest);
        let warnings = finding.map_or_else(|_| Vec::new(), |finding| finding.warnings);
        Comparison {
            first: names[0].to_owned(),
            other: names[1].to_owned(),
            runs: [first.used.len(), other.used.len()],
            differences,
            not_judged,
            smallest_at_p99_percent: smallest,
            warnings,
        }
    }

    /// A figure by its name.
    #[must_use]
    pub fn difference(&self, figure: &str) -> Option<&Difference> {
        self.differences.iter().find(|difference| difference.figure == figure)
    }

    /// How a figure was judged; what never happened on either side is no difference.
    pub(super) fn judgement(&self, figure: &str) -> Judgement {
        match self.difference(figure) {
            Some(difference) => difference.judgement,
            None if self.not_judged.is_some() => Judgement::NotJudged,
            None => Judgement::NoDifference,
        }
    }
}

impl Difference {
    /// Half the width of its interval, as a factor around the middle, percent: of a large difference, as of none.
    fn smallest(&self) -> Option<f64> {
        let (low, high) = (1.0 + self.low_percent? / 100.0, 1.0 + self.high_percent? / 100.0);
        (low > 0.0).then(|| ((high / low).sqrt() - 1.0) * 100.0)
    }

    fn found(figure: &FigureFound, [first, other]: [&str; 2]) -> Difference {
        let named = |why: &String| {
            let named = why.strip_prefix("A has ").map(|rest| format!("{first} has {rest}"));
            named
                .or_else(|| Some(format!("{other} has {}", why.strip_prefix("B has ")?)))
                .unwrap_or_else(|| why.clone())
        };
        Difference {
            figure: figure.figure.clone(),
            unit: match figure.unit {
                "us" => Unit::Time,
                "per_s" => Unit::Rate,
                _ => Unit::Share,
            },
            first: figure.a,
            other: figure.b,
            percent: figure.difference_percent,
            low_percent: figure.low_percent,
            high_percent: figure.high_percent,
            judgement: match figure.verdict {
                Found::Better => Judgement::Better,
                Found::Worse => Judgement::Worse,
                Found::NoDifference => Judgement::NoDifference,
                Found::NotJudged => Judgement::NotJudged,
            },
            why_not: figure.why_not.as_ref().map(named),
        }
    }

    fn unjudged(figure: String, unit: Unit, (first, other): (Option<f64>, Option<f64>), why: &str) -> Difference {
        Difference {
            figure,
            unit,
            first,
            other,
            percent: None,
            low_percent: None,
            high_percent: None,
            judgement: Judgement::NotJudged,
            why_not: Some(why.to_owned()),
        }
    }
}

/// The values that there are.
fn unjudged(first: &Seen, other: &Seen, why: &str) -> Vec<Difference> {
    use klad_bench::compare::figures::Unit as Of;
    let figures = Figure::all().into_iter().map(|figure| (figure, (first.figure(figure), other.figure(figure))));
    let happened = |(figure, (a, b)): &(Figure, (Option<f64>, Option<f64>))| {
        figure.unit() != Of::Share || [a, b].iter().any(|value| value.is_some_and(|value| value > 0.0))
    };
    let unit = |figure: Figure| match figure.unit() {
        Of::Micros => Unit::Time,
        Of::PerSecond => Unit::Rate,
        Of::Share => Unit::Share,
    };
    let all = figures.filter(happened);
    all.map(|(figure, values)| Difference::unjudged(figure.name(), unit(figure), values, why)).collect()
}

/// CPU time by served requests, as sure as each figure of the comparison is; `None` where neither has it.
fn cpu(first: &Seen, other: &Seen, finding: Result<&Finding, String>) -> Option<Difference> {
    let (a, b) = (first.cpu(), other.cpu());
    let values = (mean(&a), mean(&b));
    if values == (None, None) {
        return None;
    }
    let unjudged = |why: &str| Some(Difference::unjudged(CPU.to_owned(), Unit::Cpu, values, why));
    let finding = match finding {
        Ok(finding) => finding,
        Err(why) => return unjudged(&why),
    };
    if a.len() < 2 || b.len() < 2 || a.iter().chain(&b).any(|value| *value <= 0.0) {
        return unjudged("too few runs have it");
    }
    let error = 1.0 - finding.confidence.each_percent / 100.0;
    let logarithms = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<_>>();
    let in_pairs = finding.repeats.paired && a.len() == b.len();
    let method = if in_pairs { interval::in_pairs } else { interval::apart };
    let resolution = first.cpu_resolution().max(other.cpu_resolution());
    let estimate = method(&logarithms(&a), &logarithms(&b), resolution, error);
    let percent = |difference: f64| Some(difference.exp_m1() * 100.0).filter(|percent| *percent < 1e6);
    let matters = estimate.excludes_zero() && estimate.difference.abs() > TOLERANCE.ln_1p();
    Some(Difference {
        figure: CPU.to_owned(),
        unit: Unit::Cpu,
        first: values.0,
        other: values.1,
        percent: percent(estimate.difference),
        low_percent: percent(estimate.difference - estimate.half_width),
        high_percent: percent(estimate.difference + estimate.half_width),
        judgement: match (matters, estimate.difference < 0.0) {
            (false, _) => Judgement::NoDifference,
            (true, true) => Judgement::Better,
            (true, false) => Judgement::Worse,
        },
        why_not: None,
    })
}

/// Every variant against every other, compared when it is asked for: of ten, most pairs never are.
pub(super) struct Pairs<'s, 'r> {
    seen: &'s [Seen<'r>],
    /// By the first, then by the other.
    made: Vec<OnceCell<Comparison>>,
}

impl<'s, 'r> Pairs<'s, 'r> {
    pub(super) fn of(seen: &'s [Seen<'r>]) -> Pairs<'s, 'r> {
        Pairs { seen, made: vec![OnceCell::new(); seen.len() * seen.len()] }
    }

    /// `other` against `first`; `None` where they are one, or not there.
    pub(super) fn get(&self, first: usize, other: usize) -> Option<&Comparison> {
        let (one, two) = (self.seen.get(first)?, self.seen.get(other)?);
        let made = &self.made[first * self.seen.len() + other];
        (first != other).then(|| made.get_or_init(|| Comparison::of(one, two)))
    }
}

/// Who is best at what; nothing where there is no second.
pub(super) fn winners(seen: &[Seen], pairs: &Pairs) -> Vec<Winner> {
    if seen.len() < 2 {
        return Vec::new();
    }
    CONTESTED.iter().filter_map(|contested| winner(seen, pairs, contested)).collect()
}

fn winner(seen: &[Seen], pairs: &Pairs, contested: &Contested) -> Option<Winner> {
    let mut order: Vec<(usize, f64)> =
        (0..seen.len()).filter_map(|index| Some((index, level(&seen[index], contested)?))).collect();
    if order.is_empty() {
        return None;
    }
    let judged = |index: usize| seen[index].lacks().is_none();
    let able = order.iter().filter(|(index, _)| judged(*index)).count();
    if able > 1 {
        order.retain(|(index, _)| judged(*index));
    }
    order.sort_by(|one, other| one.1.total_cmp(&other.1));
    let (best, _) = *order.first()?;
    let mut winner = Winner {
        figure: contested.name.to_owned(),
        outcome: Outcome::NotJudged,
        best: Some(seen[best].name().to_owned()),
        value: contested.of.map_or_else(|| mean(&seen[best].cpu()), |figure| seen[best].figure(figure)),
        ahead: None,
        next: None,
        level_with: Vec::new(),
        all_level: false,
        without: seen.iter().filter_map(Seen::lacks).collect(),
        why_not: None,
    };
    if able < 2 {
        winner.why_not = winner.without.first().cloned().or_else(|| Some("only one variant has it".to_owned()));
        return Some(winner);
    }
    for (other, _) in &order[1..] {
        let found = pairs.get(*other, best)?.difference(contested.name)?;
        match found.judgement {
            Judgement::NotJudged => winner.why_not = winner.why_not.or_else(|| found.why_not.clone()),
            Judgement::Better => {}
            Judgement::NoDifference | Judgement::Worse => winner.level_with.push(seen[*other].name().to_owned()),
        }
    }
    if winner.why_not.is_some() {
        winner.level_with.clear();
        return Some(winner);
    }
    if !winner.level_with.is_empty() {
        winner.all_level = winner.level_with.len() + 1 == order.len();
        return Some(Winner { outcome: Outcome::Level, ..winner });
    }
    let (next, _) = *order.get(1)?;
    let ahead = pairs.get(next, best)?.difference(contested.name).cloned();
    Some(Winner { outcome: Outcome::Won, ahead, next: Some(seen[next].name().to_owned()), ..winner })
}

/// Less is better; in the scale in which differences are judged.
fn level(seen: &Seen, contested: &Contested) -> Option<f64> {
    let logarithms =
        |values: Vec<f64>| values.into_iter().map(|value| value.max(f64::MIN_POSITIVE).ln()).collect::<Vec<_>>();
    match contested.of {
        None => mean(&logarithms(seen.cpu())),
        Some(Figure::Goodput) => mean(&logarithms(seen.each(Figure::Goodput))).map(|level| -level),
        Some(figure) => mean(&logarithms(seen.each(figure))),
    }
}
