//! Comparisons of two variants by `bench compare` over their runs, and the best variant at each figure. Called by
//! `stage`, `answer`, `queue` and `published`.
//!
//! Parts of a single run are not compared: they do not show how much two starts of a server differ.

use std::cell::OnceCell;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::variant_runs::{VariantRuns, mean};
use klad_bench::compare::figures::Figure;
use klad_bench::compare::finding::{FigureFound, Finding, Judgement as Found};
use klad_bench::compare::interval;
use klad_bench::compare::judge::{self, Evidence, Rules};

/// Relative differences up to this do not count. It is the default of `klad bench compare --tolerance`, 2 %.
pub(super) const TOLERANCE: f64 = 0.02;

/// The figures for which a winner is determined.
pub(crate) static CONTESTED: [ContestedFigure; 5] = [
    ContestedFigure { name: "p50", of: Some(Figure::Percentile(50.0)) },
    ContestedFigure { name: "p99", of: Some(Figure::Percentile(99.0)) },
    ContestedFigure { name: "p99.9", of: Some(Figure::Percentile(99.9)) },
    ContestedFigure { name: "goodput", of: Some(Figure::Goodput) },
    ContestedFigure { name: CPU, of: None },
];

/// The CPU time of the server per served request, which the load tester does not know.
pub(crate) const CPU: &str = "CPU per served request";

pub(crate) struct ContestedFigure {
    pub(crate) name: &'static str,
    /// `None` for CPU time.
    of: Option<Figure>,
}

impl ContestedFigure {
    /// Returns the value of a variant, of all its runs together; of CPU time, the mean over its runs.
    pub(super) fn value(&self, variant: &VariantRuns) -> Option<f64> {
        self.of.map_or_else(|| mean(&variant.cpu()), |figure| variant.figure(figure))
    }

    pub(super) fn unit(&self) -> Unit {
        match self.of {
            None => Unit::Cpu,
            Some(Figure::Goodput) => Unit::Rate,
            Some(_) => Unit::Time,
        }
    }

    /// Returns the indexes of the variants that have this figure, best first. Variants that cannot be judged are left
    /// out if at least two others can be judged; otherwise they come last.
    pub(super) fn order(&self, variants: &[VariantRuns]) -> Vec<usize> {
        let level = |index: usize| Some((index, self.level(&variants[index])?));
        let mut order: Vec<(usize, f64)> = (0..variants.len()).filter_map(level).collect();
        let judged = |index: usize| variants[index].why_not_judged().is_none();
        if order.iter().filter(|(index, _)| judged(*index)).count() > 1 {
            order.retain(|(index, _)| judged(*index));
        }
        order.sort_by(|one, other| judged(other.0).cmp(&judged(one.0)).then(one.1.total_cmp(&other.1)));
        order.into_iter().map(|(index, _)| index).collect()
    }

    /// Returns the value by which variants are ordered, on the logarithmic scale of the comparisons. Less is better.
    fn level(&self, variant: &VariantRuns) -> Option<f64> {
        let logarithms =
            |values: Vec<f64>| values.into_iter().map(|value| value.max(f64::MIN_POSITIVE).ln()).collect::<Vec<_>>();
        match self.of {
            None => mean(&logarithms(variant.cpu())),
            Some(Figure::Goodput) => mean(&logarithms(variant.per_run(Figure::Goodput))).map(|level| -level),
            Some(figure) => mean(&logarithms(variant.per_run(figure))),
        }
    }
}

/// Returns the contested figure with this name.
pub(super) fn contested(name: &str) -> Option<&'static ContestedFigure> {
    CONTESTED.iter().find(|contested| contested.name == name)
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Response times, microseconds.
    Time,
    /// Answers per second.
    Rate,
    /// A share of all requests, 0 to 1.
    Share,
    /// CPU time, microseconds.
    Cpu,
}

/// Whether the other variant is better than the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// Better: shorter times, more goodput, smaller shares, less CPU time.
    Better,
    /// Worse.
    Worse,
    /// No difference beyond the noise.
    NoDifference,
    /// Not judged, for the given reason.
    NotJudged,
}

/// A comparison of two variants.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The variant that the other is compared with.
    pub first: String,
    /// The variant that is judged.
    pub other: String,
    /// The numbers of usable runs of the first and of the other variant.
    pub runs: [usize; 2],
    /// The figures.
    pub differences: Vec<Difference>,
    /// Why no figure was judged; `null` if figures were judged.
    pub not_judged: Option<String>,
    /// The smallest difference at p99 that these runs can detect, percent.
    pub smallest_at_p99_percent: Option<f64>,
    /// What else differs between their runs: A is the first variant, B the other.
    pub warnings: Vec<String>,
}

/// A figure of two variants, compared.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// `p50` to `p99.99`, `mean`, `goodput`, `refused`, …, `CPU per served request`.
    pub figure: String,
    /// The unit of its values.
    pub unit: Unit,
    /// The value of the first variant, of all its runs together; of CPU time, the mean over its runs.
    pub first: Option<f64>,
    /// The value of the other variant, in the same way.
    pub other: Option<f64>,
    /// The difference, other minus first, by the means over the runs: percent of the first, or percentage points of
    /// shares. `null` if it was not judged, or has no bound.
    pub percent: Option<f64>,
    /// The lower end of the difference's confidence interval.
    pub low_percent: Option<f64>,
    /// The upper end of the difference's confidence interval.
    pub high_percent: Option<f64>,
    /// The judgement of the other variant.
    pub judgement: Judgement,
    /// Why the figure was not judged.
    pub why_not: Option<String>,
}

/// Whether a figure has a winner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// One variant is better than all others.
    Won,
    /// The best variant does not differ from some others beyond the noise.
    Level,
    /// The figure was not judged.
    NotJudged,
}

/// The best variant at a figure.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Winner {
    /// The figure.
    pub figure: String,
    /// Whether there is a winner.
    pub outcome: Outcome,
    /// The variant with the best value, whether it won or not.
    pub best: Option<String>,
    /// The value of the best variant, of all its runs together; of CPU time, the mean over its runs.
    pub value: Option<f64>,
    /// The difference of the best variant from the next best, if the best one won.
    pub ahead: Option<Difference>,
    /// The next best variant, if the best one won.
    pub next: Option<String>,
    /// The variants that do not differ from the best beyond the noise.
    pub level_with: Vec<String>,
    /// Whether `level_with` has all other variants that could be judged.
    pub all_level: bool,
    /// The variants that could not be judged, and why; they may be better.
    pub without: Vec<String>,
    /// Why the figure was not judged.
    pub why_not: Option<String>,
}

impl Comparison {
    /// Compares `other` with `first`.
    pub(super) fn of(first: &VariantRuns, other: &VariantRuns) -> Comparison {
        let unusable = first.why_not_judged().or_else(|| other.why_not_judged());
        let finding = match unusable {
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

    /// Returns the difference at the figure with this name.
    #[must_use]
    pub fn difference(&self, figure: &str) -> Option<&Difference> {
        self.differences.iter().find(|difference| difference.figure == figure)
    }

    /// Returns the judgement of the figure with this name. The share of an outcome that neither variant has is not
    /// among `differences`; it counts as no difference.
    pub(super) fn judgement(&self, figure: &str) -> Judgement {
        match self.difference(figure) {
            Some(difference) => difference.judgement,
            None if self.not_judged.is_some() => Judgement::NotJudged,
            None => Judgement::NoDifference,
        }
    }
}

impl Difference {
    /// Returns the smallest difference that the runs can detect, percent: half the width of the confidence interval, as
    /// a factor around its middle.
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

/// Returns all figures of two variants that cannot be judged, each with the reason `why`.
fn unjudged(first: &VariantRuns, other: &VariantRuns, why: &str) -> Vec<Difference> {
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

/// Compares the CPU time per served request, with the confidence of the other figures; `None` where neither variant
/// has it.
fn cpu(first: &VariantRuns, other: &VariantRuns, finding: Result<&Finding, String>) -> Option<Difference> {
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
        return unjudged("too few runs have a CPU time");
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

/// The comparisons of each two variants. Each is made when it is first needed; most never are.
pub(super) struct Pairs<'s, 'r> {
    variants: &'s [VariantRuns<'r>],
    /// The comparison of variant `other` with variant `first` is at `first * variants.len() + other`.
    made: Vec<OnceCell<Comparison>>,
}

impl<'s, 'r> Pairs<'s, 'r> {
    pub(super) fn of(variants: &'s [VariantRuns<'r>]) -> Pairs<'s, 'r> {
        Pairs { variants, made: vec![OnceCell::new(); variants.len() * variants.len()] }
    }

    /// Returns the comparison of the variant at index `other` with that at index `first`; `None` if both are the same,
    /// or if one does not exist.
    pub(super) fn get(&self, first: usize, other: usize) -> Option<&Comparison> {
        let (one, two) = (self.variants.get(first)?, self.variants.get(other)?);
        let made = &self.made[first * self.variants.len() + other];
        (first != other).then(|| made.get_or_init(|| Comparison::of(one, two)))
    }
}

/// Returns the best variant at each figure; empty where there is one variant only.
pub(super) fn winners(variants: &[VariantRuns], pairs: &Pairs) -> Vec<Winner> {
    if variants.len() < 2 {
        return Vec::new();
    }
    CONTESTED.iter().filter_map(|contested| winner(variants, pairs, contested)).collect()
}

fn winner(variants: &[VariantRuns], pairs: &Pairs, contested: &ContestedFigure) -> Option<Winner> {
    let order = contested.order(variants);
    let best = *order.first()?;
    let able = order.iter().filter(|index| variants[**index].why_not_judged().is_none()).count();
    let mut winner = Winner {
        figure: contested.name.to_owned(),
        outcome: Outcome::NotJudged,
        best: Some(variants[best].name().to_owned()),
        value: contested.value(&variants[best]),
        ahead: None,
        next: None,
        level_with: Vec::new(),
        all_level: false,
        without: variants.iter().filter_map(VariantRuns::why_not_judged).collect(),
        why_not: None,
    };
    if able < 2 {
        winner.why_not =
            winner.without.first().cloned().or_else(|| Some("only one variant has this figure".to_owned()));
        return Some(winner);
    }
    for other in &order[1..] {
        let found = pairs.get(*other, best)?.difference(contested.name)?;
        match found.judgement {
            Judgement::NotJudged => winner.why_not = winner.why_not.or_else(|| found.why_not.clone()),
            Judgement::Better => {}
            Judgement::NoDifference | Judgement::Worse => winner.level_with.push(variants[*other].name().to_owned()),
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
    let next = *order.get(1)?;
    let ahead = pairs.get(next, best)?.difference(contested.name).cloned();
    Some(Winner { outcome: Outcome::Won, ahead, next: Some(variants[next].name().to_owned()), ..winner })
}
