//! The conclusion of a stage: its figures, then sentences from them. Called by `conclude`.

use crate::conclusion::StageConclusion;
use crate::conclusion::comparison::{Comparison, Outcome, Pairs, Winner, winners};
use crate::conclusion::published::{self, Agreement, PublishedFigure, PublishedOrder};
use crate::conclusion::standing::Standing;
use crate::conclusion::words;
use crate::conclusion::{comparison, queue};
use crate::result::{LabResult, StageResult};
use crate::scenario::PublishedResult;
use crate::variant_runs::{Validity, VariantRuns};
use klad_page::numbers;

/// Up to this number of published orders, each has a sentence. If there are more, one sentence for each figure counts
/// them.
const ORDERS_LISTED: usize = 6;

/// Computes the conclusion of a stage from the runs of its variants.
pub(super) fn conclude(result: &LabResult, stage: &StageResult, variants: &[VariantRuns]) -> StageConclusion {
    let standings: Vec<_> = variants.iter().map(Standing::of).collect();
    let pairs = Pairs::of(variants);
    let comparisons: Vec<_> = (1..variants.len()).filter_map(|other| pairs.get(0, other).cloned()).collect();
    let winners = winners(variants, &pairs);
    let size = |runs: &VariantRuns| result.scenario.variants.iter().find(|variant| variant.name == runs.name())?.queue;
    let queue = queue::frontier(&variants.iter().map(size).collect::<Vec<_>>(), &standings, &pairs);
    // Published figures are of the scenario's loads, not of the stages that the lab adds.
    let results = result.scenario.published.iter().flat_map(|published| &published.results);
    let results: Vec<&PublishedResult> = results.filter(|published| published.stage == stage.name).collect();
    let mut conclusion = StageConclusion {
        stage: stage.name.clone(),
        headline: words::plain(&headline(&standings, &winners, &comparisons)),
        sentences: Vec::new(),
        published: published::figures(&results, &standings),
        orders: published::orders(&results, &standings, &pairs),
        standings,
        comparisons,
        winners,
        queue,
    };
    conclusion.sentences = sentences(stage, &conclusion).iter().map(|sentence| words::plain(sentence)).collect();
    conclusion
}

/// Returns the conclusion in one line.
fn headline(standings: &[Standing], winners: &[Winner], comparisons: &[Comparison]) -> String {
    match standings {
        [] => return "Nothing was measured.".to_owned(),
        [only] => return without_comparison(only),
        _ => {}
    }
    let judged = winners.iter().find(|winner| winner.outcome != Outcome::NotJudged);
    let Some(judged) = judged else {
        let why = winners.iter().find_map(|winner| winner.why_not.as_deref());
        let why = why.or_else(|| comparisons.iter().find_map(|one| one.not_judged.as_deref()));
        return format!("Not judged: {}.", why.unwrap_or("no variant has a figure"));
    };
    let mut parts = Vec::new();
    for standing in standings {
        let own =
            winners.iter().filter(|one| one.outcome == Outcome::Won && one.best.as_ref() == Some(&standing.variant));
        let own: Vec<_> = own.collect();
        if !own.is_empty() {
            parts.push(format!("{} wins at {}", standing.label(), wins(&own)));
        }
    }
    let of = |outcome: Outcome, everyone: bool| {
        let all = winners.iter().filter(|one| one.outcome == outcome && one.all_level == everyone);
        words::listed(&all.map(|one| one.figure.clone()).collect::<Vec<_>>())
    };
    let ends = [
        (of(Outcome::Level, true), "no difference beyond the noise at"),
        (of(Outcome::Level, false), "no single winner at"),
        (of(Outcome::NotJudged, false), "not judged:"),
    ];
    parts.extend(
        ends.into_iter()
            .filter(|(figures, _)| !figures.is_empty())
            .map(|(figures, words)| format!("{words} {figures}")),
    );
    // A variant that could not be judged might be better.
    if !judged.without.is_empty() {
        parts.push(format!("not judged, because {}", words::listed(&judged.without)));
    }
    let mut line = parts.join("; ");
    // A line may begin with a name of a variant, which stays as it is; other words begin with a capital.
    if line.starts_with("no ") || line.starts_with("not ") {
        line = line[..1].to_uppercase() + &line[1..];
    }
    format!("{line}.")
}

/// Returns the figures that a variant wins: `p50 (6.7 % shorter) and p99 (7.1 % shorter), ahead of inline`. If the next
/// best variant is not the same at all figures, it is named at each figure.
fn wins(own: &[&Winner]) -> String {
    let mut nexts: Vec<&str> = own.iter().filter_map(|winner| winner.next.as_deref()).collect();
    nexts.dedup();
    let together = nexts.len() == 1;
    let each = |winner: &&Winner| {
        let by = winner.ahead.as_ref().map_or_else(String::new, |ahead| words::by(ahead, false));
        let next =
            winner.next.as_deref().filter(|_| !together).map_or_else(String::new, |next| format!(" than {next}"));
        format!("{} ({by}{next})", winner.figure)
    };
    let listed = words::listed(&own.iter().map(each).collect::<Vec<_>>());
    if together { format!("{listed}, ahead of {}", nexts[0]) } else { listed }
}

/// Returns the figures of a single variant in one line.
fn without_comparison(standing: &Standing) -> String {
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

fn sentences(stage: &StageResult, conclusion: &StageConclusion) -> Vec<String> {
    let standings = &conclusion.standings;
    let mut all = vec![load(stage)];
    all.extend(standings.iter().filter_map(kept_up));
    all.extend(conclusion.comparisons.iter().map(words::comparison));
    if standings.len() > 2 {
        all.extend(conclusion.winners.iter().map(|winner| best(winner, standings)));
    }
    all.extend(standings.iter().filter_map(not_served));
    all.extend(conclusion.queue.iter().map(|queue| queue.sentence.clone()));
    all.extend(published_figures(&conclusion.published));
    all.extend(orders(&conclusion.orders));
    all.extend(smallest(&conclusion.comparisons));
    all.extend(warnings(&conclusion.comparisons));
    all
}

/// Returns a sentence for each other difference between two variants. The warning that a load is closed concerns all
/// variants, so it names none and is given once.
fn warnings(comparisons: &[Comparison]) -> Vec<String> {
    let mut all = Vec::new();
    for one in comparisons {
        for warning in &one.warnings {
            let names = format!(" in {} (A) and {} (B)", one.first, one.other);
            let names = if warning.starts_with("closed load") { "" } else { &names };
            let line = format!("Warning{names}: {warning}.");
            if !all.contains(&line) {
                all.push(line);
            }
        }
    }
    all
}

fn load(stage: &StageResult) -> String {
    let connections = match stage.connections {
        1 => "1 connection".to_owned(),
        more => format!("{more} connections"),
    };
    let length = numbers::seconds(stage.duration_s);
    let rate = stage.rate_per_s.map_or_else(|| "Closed load".to_owned(), numbers::per_second);
    let capacity = stage.capacity_per_s.map_or_else(String::new, |capacity| {
        let rate = stage.rate_per_s.unwrap_or(capacity);
        let variant = stage.capacity_of.as_deref().unwrap_or("the first variant");
        let share = words::percent(rate / capacity);
        format!(
            ", {share} of the capacity of {variant}: {} good answers in a closed load",
            numbers::per_second(capacity)
        )
    });
    format!("{rate} over {connections} for {length}{capacity}.")
}

/// Returns a sentence for a variant that could not serve the load, has no valid run, or was not measured.
fn kept_up(standing: &Standing) -> Option<String> {
    let name = &standing.variant;
    match standing.validity {
        Validity::NotMeasured => return Some(format!("{name} has no figures: no run gave a result.")),
        Validity::NotValid => return Some(format!("{name}: no run is valid; do not trust its figures.")),
        Validity::Valid | Validity::Overloaded => {}
    }
    let (answered, offered) = (standing.answered_per_s?, standing.offered_per_s?);
    standing.falls_behind().then(|| {
        let busy = if standing.validity == Validity::Overloaded { "; all connections were busy" } else { "" };
        format!(
            "{name} answered {} of {} offered{busy}. A queue grew during the run, so its response times depend on \
             the length of the run.",
            numbers::per_second(answered),
            numbers::per_second(offered)
        )
    })
}

fn best(winner: &Winner, standings: &[Standing]) -> String {
    let figure = &winner.figure;
    let best = standings.iter().find(|standing| winner.best.as_ref() == Some(&standing.variant));
    let best = best.map_or_else(|| "none".to_owned(), Standing::label);
    let most = match figure.as_str() {
        "goodput" => "Most",
        time if time.starts_with('p') => "Shortest",
        _ => "Least",
    };
    match winner.outcome {
        Outcome::Won => {
            let by = winner.ahead.as_ref().map_or_else(String::new, |ahead| words::by(ahead, true));
            let unit = winner.ahead.as_ref().map_or(comparison::Unit::Time, |ahead| ahead.unit);
            let value = winner.value.map_or_else(String::new, |value| format!(", {}", words::value(unit, value)));
            format!("{most} {figure}: {best}{value}, {by} than the next, {}.", winner.next.as_deref().unwrap_or("none"))
        }
        Outcome::Level if winner.all_level => {
            format!("{most} {figure}: no variant is ahead beyond the noise.")
        }
        Outcome::Level => {
            format!(
                "{most} {figure}: {best}, which the noise does not distinguish from {}.",
                words::listed(&winner.level_with)
            )
        }
        Outcome::NotJudged => {
            format!(
                "{most} {figure}: not judged, because {}.",
                winner.why_not.as_deref().unwrap_or("there are no figures")
            )
        }
    }
}

fn not_served(standing: &Standing) -> Option<String> {
    let parts = [
        (standing.refused, "refused"),
        (standing.failed, "failed"),
        (standing.unanswered, "without an answer in time"),
    ];
    let there = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = there
        .map(|(count, what)| {
            let share = standing.share(*count).unwrap_or(0.0);
            format!("{} ({}) {what}", numbers::count(*count), words::percent(share))
        })
        .collect();
    let all = numbers::count(standing.requests);
    (!parts.is_empty()).then(|| format!("{}: of {all} requests, {}.", standing.variant, words::listed(&parts)))
}

/// Returns a sentence for each variant with published figures.
fn published_figures(published: &[PublishedFigure]) -> Vec<String> {
    let mut variants: Vec<&str> = published.iter().map(|one| one.variant.as_str()).collect();
    variants.dedup();
    let phrase = |one: &PublishedFigure| {
        let published = words::value(one.unit, one.published);
        let Some(here) = one.here else { return format!("{} not measured against {published}", one.figure) };
        let ratio = one.ratio.map_or_else(String::new, |ratio| format!(" ({} times)", three_digits(ratio)));
        format!("{} {} against {published}{ratio}", one.figure, words::value(one.unit, here))
    };
    let sentence = |variant: &str| {
        let own = published.iter().filter(|one| one.variant == variant).map(phrase);
        format!("{variant}, measured here against published: {}.", own.collect::<Vec<_>>().join(", "))
    };
    variants.into_iter().map(sentence).collect()
}

fn three_digits(ratio: f64) -> String {
    match ratio {
        ..0.1 => format!("{ratio:.3}"),
        ..10.0 => format!("{ratio:.2}"),
        _ => format!("{ratio:.0}"),
    }
}

/// Returns a sentence for each published order if there are few; otherwise the counts, with the reversed orders by
/// name.
fn orders(orders: &[PublishedOrder]) -> Vec<String> {
    let pair = |order: &PublishedOrder| format!("{} below {}", order.less, order.more);
    if orders.len() <= ORDERS_LISTED {
        let sentence = |order: &PublishedOrder| {
            let [less, more] = order.published.map(|value| words::value(order.unit, value));
            let here = match order.agreement {
                Agreement::Same => "confirmed here",
                Agreement::Reversed => "reversed here, beyond the noise",
                Agreement::NoDifference => "no difference here beyond the noise",
                Agreement::NotJudged => "not judged here",
            };
            format!("Published order at {}: {} ({less} against {more}): {here}.", order.figure, pair(order))
        };
        return orders.iter().map(sentence).collect();
    }
    let mut figures: Vec<&str> = orders.iter().map(|order| order.figure.as_str()).collect();
    figures.dedup();
    let sentence = |figure: &str| {
        let own: Vec<_> = orders.iter().filter(|order| order.figure == figure).collect();
        let of = |agreement: Agreement| own.iter().filter(|order| order.agreement == agreement).collect::<Vec<_>>();
        let reversed = of(Agreement::Reversed);
        let named: Vec<_> = reversed.iter().map(|order| pair(order)).collect();
        let named = if named.is_empty() { String::new() } else { format!(" (published: {})", named.join("; ")) };
        format!(
            "Of {} published orders at {figure}, {} are confirmed here, {} are reversed beyond the noise{named}, {} \
             show no difference, {} were not judged.",
            own.len(),
            of(Agreement::Same).len(),
            reversed.len(),
            of(Agreement::NoDifference).len(),
            of(Agreement::NotJudged).len()
        )
    };
    figures.into_iter().map(sentence).collect()
}

/// If the smallest detectable difference is above this, percent, the sentence says "a factor of ten" instead.
const FACTOR_OF_TEN_PERCENT: f64 = 900.0;

/// Returns a sentence with the smallest difference at p99 that all comparisons can detect.
fn smallest(comparisons: &[Comparison]) -> Option<String> {
    let all = comparisons.iter().filter_map(|one| one.smallest_at_p99_percent);
    let most = all.fold(None, |most: Option<f64>, percent| Some(most.map_or(percent, |most| most.max(percent))))?;
    Some(if most > FACTOR_OF_TEN_PERCENT {
        "At p99 the runs vary so much that they cannot detect a difference below a factor of ten.".to_owned()
    } else {
        format!("At p99 these runs can detect differences of {most:.1} % or more.")
    })
}
