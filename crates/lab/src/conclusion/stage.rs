//! The conclusion of a stage: its figures, then sentences from them. Called by `conclude`.

use crate::conclusion::StageConclusion;
use crate::conclusion::answer::{self, Answer};
use crate::conclusion::comparison::{Comparison, Pairs, Winner, winners};
use crate::conclusion::published::{self, Agreement, PublishedFigure, PublishedOrder};
use crate::conclusion::queue;
use crate::conclusion::standing::Standing;
use crate::conclusion::words;
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
    let pairs_of = Pairs::of(variants);
    // A variant that cannot be judged does not prevent the comparison of the others.
    let able: Vec<usize> = (0..variants.len()).filter(|index| variants[*index].why_not_judged().is_none()).collect();
    let compared = if able.len() > 1 { able.clone() } else { (0..variants.len()).collect() };
    let others = compared.iter().skip(1);
    let comparisons: Vec<_> = others.filter_map(|other| pairs_of.get(compared[0], *other).cloned()).collect();
    let winners = winners(variants, &pairs_of);
    let main = answer::main_figure(result.scenario.figure, &standings, &winners);
    let answer = main.and_then(|main| answer::answer(main, variants, &pairs_of));
    let size = |runs: &VariantRuns| result.scenario.variants.iter().find(|variant| variant.name == runs.name())?.queue;
    let queue = queue::frontier(&variants.iter().map(size).collect::<Vec<_>>(), &standings, &pairs_of);
    // Published figures are of the scenario's loads, not of the stages that the lab adds.
    let results = result.scenario.published.iter().flat_map(|published| &published.results);
    let results: Vec<&PublishedResult> = results.filter(|published| published.stage == stage.name).collect();
    let mut conclusion = StageConclusion {
        stage: stage.name.clone(),
        headline: words::plain(&headline(&standings, &able, main, answer.as_ref())),
        left_out: left_out(result, stage, variants).map(|line| words::plain(&line)),
        sentences: Vec::new(),
        pairs: Vec::new(),
        published: published::figures(&results, &standings),
        orders: published::orders(&results, &standings, &pairs_of),
        standings,
        comparisons,
        answer,
        winners,
        queue,
    };
    conclusion.sentences = sentences(stage, &conclusion).iter().map(|sentence| words::plain(sentence)).collect();
    conclusion.pairs = pairs(&conclusion).iter().map(|sentence| words::plain(sentence)).collect();
    conclusion
}

/// Returns the answer of the stage in one or two sentences.
fn headline(standings: &[Standing], able: &[usize], winner: Option<&Winner>, answer: Option<&Answer>) -> String {
    match (standings, able, winner.zip(answer)) {
        ([], ..) => "Nothing was measured.".to_owned(),
        ([only], ..) => answer::without_comparison(only),
        (_, [only], _) => format!("No comparison. {}", answer::without_comparison(&standings[*only])),
        (_, _, Some((winner, answer))) => answer::sentence(winner, answer, standings),
        _ => "Not judged: no variant has a figure.".to_owned(),
    }
}

/// Returns a line with the variants that cannot be compared and the reasons; `None` if all can be compared, or none
/// can.
fn left_out(result: &LabResult, stage: &StageResult, variants: &[VariantRuns]) -> Option<String> {
    let reason = |one: &VariantRuns| {
        let why = one.why_not_judged()?;
        let failed = result.failures.iter().find(|failed| failed.stage == stage.name && failed.variant == one.name());
        let failed = failed.filter(|_| one.used.is_empty()).and_then(|failed| failed.why.lines().next());
        Some(failed.map_or_else(|| why.clone(), |failed| format!("{why} ({failed})")))
    };
    let reasons: Vec<String> = variants.iter().filter_map(reason).collect();
    let any = !reasons.is_empty() && reasons.len() < variants.len();
    any.then(|| format!("Left out: {}.", reasons.join("; ")))
}

/// Returns the sentences about the load and about single variants.
fn sentences(stage: &StageResult, conclusion: &StageConclusion) -> Vec<String> {
    let standings = &conclusion.standings;
    let mut all = vec![load(stage)];
    let named = |one: &&Standing| conclusion.left_out.is_none() || one.answered_per_s.is_some();
    all.extend(standings.iter().filter(named).filter_map(kept_up));
    all.extend(standings.iter().filter_map(not_served));
    all.extend(conclusion.queue.iter().map(|queue| queue.sentence.clone()));
    all.extend(smallest(&conclusion.comparisons));
    all.extend(warnings(&conclusion.comparisons));
    all
}

/// Returns the sentences about two variants each, and about a variant and its published figures.
fn pairs(conclusion: &StageConclusion) -> Vec<String> {
    let mut all: Vec<String> = conclusion.comparisons.iter().map(words::comparison).collect();
    all.extend(published_figures(&conclusion.published));
    all.extend(orders(&conclusion.orders));
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
        let ratio = one.ratio.map_or_else(String::new, |ratio| format!(" ({} times)", words::times(ratio)));
        format!("{} {} against {published}{ratio}", one.figure, words::value(one.unit, here))
    };
    let sentence = |variant: &str| {
        let own = published.iter().filter(|one| one.variant == variant).map(phrase);
        format!("{variant}, measured here against published: {}.", own.collect::<Vec<_>>().join(", "))
    };
    variants.into_iter().map(sentence).collect()
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
