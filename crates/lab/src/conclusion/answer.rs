//! The answer of a stage: which variant is best by the figure that the scenario is about, and by which ratio. Called by
//! `conclude`, `stage`, and `report` for the cells of tables.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conclusion::comparison::{self, CPU, Difference, Outcome, Pairs, Unit, Winner};
use crate::conclusion::standing::Standing;
use crate::conclusion::{StageConclusion, words};
use crate::scenario::MainFigure;
use crate::variant_runs::VariantRuns;
use klad_page::numbers;

/// Up to this number of variants, the answer has the ratio of each. With more it has the range of the ratios.
const RATIOS_LISTED: usize = 5;

/// The variants of a stage, ordered by the figure that the scenario is about.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// The figure.
    pub figure: String,
    /// The unit of its values.
    pub unit: Unit,
    /// The variants that can be compared by it, best first.
    pub ranking: Vec<Ranked>,
}

/// A variant in its place.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Ranked {
    /// The variant.
    pub variant: String,
    /// The value, of all its runs together; of CPU time, the mean over its runs.
    pub value: Option<f64>,
    /// Its value divided by that of the best variant, by the means over the runs. `null` for the best variant, and
    /// where the ratio is not known.
    pub ratio: Option<Ratio>,
}

/// A ratio of two variants, with its confidence interval.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Ratio {
    /// The ratio.
    pub ratio: f64,
    /// The lower end of its confidence interval.
    pub low: f64,
    /// The upper end of its confidence interval; `null` if it has no bound.
    pub high: Option<f64>,
}

impl Ratio {
    /// Returns the other variant divided by the first; `None` where that was not judged.
    pub(crate) fn of(difference: &Difference) -> Option<Ratio> {
        let ratio = |percent: f64| 1.0 + percent / 100.0;
        Some(Ratio {
            ratio: ratio(difference.percent?),
            low: ratio(difference.low_percent?),
            high: difference.high_percent.map(ratio),
        })
    }

    /// Returns the first variant divided by the other; `None` if the ratio has no bound.
    fn inverse(self) -> Option<Ratio> {
        let high = (self.low > 0.0).then(|| 1.0 / self.low);
        (self.ratio > 0.0).then(|| Ratio {
            ratio: 1.0 / self.ratio,
            low: self.high.map_or(0.0, |high| 1.0 / high),
            high,
        })
    }

    /// Writes the ratio and its interval: `1.11 (1.08 to 1.14)`.
    pub(crate) fn words(self) -> String {
        let interval = match self.high {
            Some(high) => format!("{} to {}", words::times(self.low), words::times(high)),
            None => format!("at least {}", words::times(self.low)),
        };
        format!("{} ({interval})", words::times(self.ratio))
    }
}

/// Returns the figure that the scenario is about. If it names none, or one that no run has: goodput for a closed load or
/// if a variant falls behind, otherwise the highest percentile that was judged.
pub(super) fn main_figure<'w>(
    named: Option<MainFigure>,
    standings: &[Standing],
    winners: &'w [Winner],
) -> Option<&'w Winner> {
    let find = |figure: &str| winners.iter().find(|winner| winner.figure == figure);
    let named = named.and_then(|named| {
        find(match named {
            MainFigure::P50 => "p50",
            MainFigure::P99 => "p99",
            MainFigure::P999 => "p99.9",
            MainFigure::Goodput => "goodput",
            MainFigure::Cpu => CPU,
        })
    });
    if named.is_some() {
        return named;
    }
    let by_rate =
        standings.iter().all(|one| one.offered_per_s.is_none()) || standings.iter().any(Standing::falls_behind);
    let first = if by_rate { "goodput" } else { "p99.9" };
    let order = [first, "p99.9", "p99", "p50", "goodput"];
    let mut judged = order.iter().filter_map(|figure| find(figure));
    judged.find(|winner| winner.outcome != Outcome::NotJudged).or_else(|| find(first))
}

/// Orders the variants by the figure of `winner`.
pub(super) fn answer(winner: &Winner, variants: &[VariantRuns], pairs: &Pairs) -> Option<Answer> {
    let contested = comparison::contested(&winner.figure)?;
    let order = contested.order(variants);
    let best = *order.first()?;
    let ranked = |index: usize| Ranked {
        variant: variants[index].name().to_owned(),
        value: contested.value(&variants[index]),
        ratio: pairs
            .get(index, best)
            .and_then(|pair| pair.difference(&winner.figure))
            .and_then(Ratio::of)
            .and_then(Ratio::inverse),
    };
    let ranking = order.iter().map(|index| ranked(*index)).collect();
    Some(Answer { figure: winner.figure.clone(), unit: contested.unit(), ranking })
}

/// Returns the answer of a stage in one or two sentences.
pub(super) fn sentence(winner: &Winner, answer: &Answer, standings: &[Standing]) -> String {
    let figure = &winner.figure;
    let others: Vec<&Ranked> = answer.ranking.iter().skip(1).collect();
    match (winner.outcome, &others[..]) {
        (Outcome::NotJudged, _) => format!("Not judged by {figure}: {}.", why_not(winner)),
        (Outcome::Won, [_]) => format!("{}.", verdict(winner, standings, true)),
        (Outcome::Level, [only]) => {
            let ratio = only.ratio.map_or_else(String::new, |ratio| format!(": the ratio is {}", ratio.words()));
            format!("{}{ratio}.", verdict(winner, standings, true))
        }
        (_, others) => format!("{}.{}", verdict(winner, standings, true), compared(answer, others)),
    }
}

/// Returns a sentence with the ratios of all variants but the best one.
fn compared(answer: &Answer, others: &[&Ranked]) -> String {
    let best = answer.ranking.first().map_or("the best", |best| &best.variant);
    if others.len() < RATIOS_LISTED {
        let ratio = |one: &&Ranked| Some(format!("{} {}", one.variant, one.ratio?.words()));
        let ratios: Vec<String> = others.iter().filter_map(ratio).collect();
        return if ratios.is_empty() { String::new() } else { format!(" Ratios to {best}: {}.", ratios.join(", ")) };
    }
    let ratios = || others.iter().filter_map(|one| Some(one.ratio?.ratio));
    let (low, high) = (ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max));
    if low > high {
        return String::new();
    }
    format!(" The ratios of the others to {best} are {} to {}.", words::times(low), words::times(high))
}

/// Writes who is best at a figure, without a full stop. With `figure` it names the figure.
pub(crate) fn verdict(winner: &Winner, standings: &[Standing], figure: bool) -> String {
    let by = if figure { format!(" by {}", winner.figure) } else { String::new() };
    match winner.outcome {
        Outcome::Won => {
            let unit = winner.ahead.as_ref().map_or(Unit::Time, |ahead| ahead.unit);
            let value = winner.value.map_or_else(String::new, |value| format!(" with {}", words::value(unit, value)));
            let next = winner.next.as_deref().unwrap_or("the next");
            let ratio = winner.ahead.as_ref().and_then(Ratio::of);
            let ratio = ratio
                .map_or_else(|| format!("ahead of {next}"), |ratio| format!("{} times that of {next}", ratio.words()));
            format!("{} wins{by}{value}, {ratio}", label(winner, standings))
        }
        Outcome::Level => {
            let mut level = vec![label(winner, standings)];
            level.extend(winner.level_with.iter().cloned());
            let start = if figure { "No difference told" } else { "no difference told" };
            format!("{start}{by} between {}", words::listed(&level))
        }
        Outcome::NotJudged => format!("not judged{by}, because {}", why_not(winner)),
    }
}

/// Returns the name of the best variant, with its share of refused and failed requests.
pub(crate) fn label(winner: &Winner, standings: &[Standing]) -> String {
    let best = standings.iter().find(|standing| winner.best.as_ref() == Some(&standing.variant));
    best.map_or_else(|| "none".to_owned(), Standing::label)
}

fn why_not(winner: &Winner) -> &str {
    winner.why_not.as_deref().unwrap_or("there are no figures")
}

/// Returns the figures of the only variant that has any.
pub(super) fn without_comparison(standing: &Standing) -> String {
    let time = |value: Option<f64>| value.map_or_else(|| "none".to_owned(), words::time);
    let good = standing.goodput_per_s.map_or_else(|| "nothing".to_owned(), numbers::per_second);
    format!(
        "{}: {good} good, p50 {}, p99 {}, p99.9 {}.",
        standing.variant,
        time(standing.p50_us),
        time(standing.p99_us),
        time(standing.p999_us)
    )
}

/// Returns the answer of several stages in one sentence: how many each variant wins.
pub(super) fn of_stages(stages: &[StageConclusion]) -> String {
    // The place of each kind of answer in the sentence, its words, and the number of stages.
    let mut counts: Vec<(u8, String, usize)> = Vec::new();
    for stage in stages {
        let (place, words) = match stage.main().map(|winner| (winner.outcome, &winner.best)) {
            Some((Outcome::Won, best)) => (0, format!("{} wins", best.as_deref().unwrap_or("one"))),
            Some((Outcome::Level, _)) => (1, "no difference told in".to_owned()),
            Some((Outcome::NotJudged, _)) => (2, "not judged in".to_owned()),
            None => (3, "nothing to compare in".to_owned()),
        };
        match counts.iter_mut().find(|(_, known, _)| *known == words) {
            Some((.., count)) => *count += 1,
            None => counts.push((place, words, 1)),
        }
    }
    counts.sort_by_key(|(place, _, count)| (*place, std::cmp::Reverse(*count)));
    let counts: Vec<String> = counts.iter().map(|(_, words, count)| format!("{words} {count}")).collect();
    format!("Of {} stages: {}.", stages.len(), counts.join("; "))
}
