//! A stage: its figures, then the sentences that they give. Called by `conclude`.

use crate::conclusion::StageConclusion;
use crate::conclusion::published::{self, Agreement, Beside, Order};
use crate::conclusion::standing::{Standing, Validity};
use crate::conclusion::versus::{Comparison, Outcome, Pairs, Winner, winners};
use crate::conclusion::words;
use crate::conclusion::{queue, versus};
use crate::result::{LabResult, StageResult};
use crate::scenario::PublishedResult;
use crate::seen::Seen;
use klad_page::numbers;

/// So many published orders are told one by one; more are counted.
const ORDERS_TOLD: usize = 6;

/// Of a stage, whose variants are `seen`.
pub(super) fn conclude(result: &LabResult, stage: &StageResult, seen: &[Seen]) -> StageConclusion {
    let standings: Vec<_> = seen.iter().map(Standing::of).collect();
    let pairs = Pairs::of(seen);
    let comparisons: Vec<_> = (1..seen.len()).filter_map(|other| pairs.get(0, other).cloned()).collect();
    let winners = winners(seen, &pairs);
    let size = |seen: &Seen| result.scenario.variants.iter().find(|variant| variant.name == seen.name())?.queue;
    let queue = queue::frontier(&seen.iter().map(size).collect::<Vec<_>>(), &standings, &pairs);
    // What was published is of the loads of the scenario, not of those that were derived from them.
    let results = result.scenario.published.iter().flat_map(|published| &published.results);
    let results: Vec<&PublishedResult> = results.filter(|published| published.stage == stage.name).collect();
    let mut conclusion = StageConclusion {
        stage: stage.name.clone(),
        headline: words::plain(&headline(&standings, &winners, &comparisons)),
        sentences: Vec::new(),
        published: published::beside(&results, &standings),
        orders: published::orders(&results, &standings, &pairs),
        standings,
        comparisons,
        winners,
        queue,
    };
    conclusion.sentences = sentences(stage, &conclusion).iter().map(|sentence| words::plain(sentence)).collect();
    conclusion
}

/// In one line.
fn headline(standings: &[Standing], winners: &[Winner], comparisons: &[Comparison]) -> String {
    match standings {
        [] => return "Nothing was measured.".to_owned(),
        [only] => return alone(only),
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
        (of(Outcome::Level, false), "several are level at"),
        (of(Outcome::NotJudged, false), "not judged:"),
    ];
    parts.extend(
        ends.into_iter()
            .filter(|(figures, _)| !figures.is_empty())
            .map(|(figures, words)| format!("{words} {figures}")),
    );
    // Whoever could not be judged might have won.
    if !judged.without.is_empty() {
        parts.push(format!("not judged, because {}", words::listed(&judged.without)));
    }
    let mut line = parts.join("; ");
    // Names of variants are as they were given, and begin many lines; words begin with a capital.
    if line.starts_with("no ") || line.starts_with("not ") || line.starts_with("several ") {
        line = line[..1].to_uppercase() + &line[1..];
    }
    format!("{line}.")
}

/// `p50 (6.7 % shorter) and p99 (7.1 % shorter) before inline`: before the next best, which may be another at each figure.
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
    if together { format!("{listed} before {}", nexts[0]) } else { listed }
}

/// Where there is nothing to compare with.
fn alone(standing: &Standing) -> String {
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
    all.extend(beside(&conclusion.published));
    all.extend(orders(&conclusion.orders));
    all.extend(smallest(&conclusion.comparisons));
    all.extend(warnings(&conclusion.comparisons));
    all
}

/// What else differs between two variants; what is said of all loads alike, once.
fn warnings(comparisons: &[Comparison]) -> Vec<String> {
    let mut all = Vec::new();
    for one in comparisons {
        for warning in &one.warnings {
            let names = format!(" in {} (A) and {} (B)", one.first, one.other);
            let names = if warning.starts_with("closed load") { "" } else { &names };
            let line = format!("Beware{names}: {warning}.");
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
    let rate = stage.rate_per_s.map_or_else(|| "As many as are answered".to_owned(), numbers::per_second);
    let capacity = stage.capacity_per_s.map_or_else(String::new, |capacity| {
        let of = stage
            .rate_per_s
            .map_or_else(String::new, |rate| format!(", of which this is {}", words::percent(rate / capacity)));
        let who = stage.capacity_of.as_deref().unwrap_or("the first variant");
        format!("; in a closed load {who} gives {} good answers{of}", numbers::per_second(capacity))
    });
    format!("{rate} over {connections} for {length}{capacity}.")
}

/// What a variant could not do.
fn kept_up(standing: &Standing) -> Option<String> {
    let name = &standing.variant;
    match standing.validity {
        Validity::NotMeasured => return Some(format!("{name} has no figures: no run has ended with a result.")),
        Validity::NotValid => return Some(format!("{name}: no run is valid, and its figures are not to be believed.")),
        Validity::Valid | Validity::Overloaded => {}
    }
    let (answered, offered) = (standing.answered_per_s?, standing.offered_per_s?);
    standing.falls_behind().then(|| {
        let busy = if standing.validity == Validity::Overloaded { ", and all connections were busy" } else { "" };
        format!(
            "{name} answered {} of {} asked for{busy}: its response times are those of a queue, and grow with the length of \
             the run.",
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
            let unit = winner.ahead.as_ref().map_or(versus::Unit::Time, |ahead| ahead.unit);
            let value = winner.value.map_or_else(String::new, |value| format!(", {}", words::value(unit, value)));
            format!("{most} {figure}: {best}{value}, {by} than the next, {}.", winner.next.as_deref().unwrap_or("none"))
        }
        Outcome::Level if winner.all_level => {
            format!("{most} {figure}: none is ahead beyond the noise.")
        }
        Outcome::Level => {
            format!(
                "{most} {figure}: {best}, from which the noise does not tell {}.",
                words::listed(&winner.level_with)
            )
        }
        Outcome::NotJudged => {
            format!("{most} {figure}: not judged, because {}.", winner.why_not.as_deref().unwrap_or("nothing is known"))
        }
    }
}

fn not_served(standing: &Standing) -> Option<String> {
    let parts = [
        (standing.refused, "refused"),
        (standing.failed, "failed"),
        (standing.unanswered, "left without an answer in time"),
    ];
    let there = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = there
        .map(|(count, what)| {
            let share = standing.share(*count).unwrap_or(0.0);
            format!("{} ({}) {what}", numbers::count(*count), words::percent(share))
        })
        .collect();
    let all = numbers::count(standing.requests);
    (!parts.is_empty()).then(|| format!("{}: of {all} requests {}.", standing.variant, words::listed(&parts)))
}

/// A sentence for each variant of which something was published.
fn beside(published: &[Beside]) -> Vec<String> {
    let mut variants: Vec<&str> = published.iter().map(|one| one.variant.as_str()).collect();
    variants.dedup();
    let phrase = |one: &Beside| {
        let published = words::value(one.unit, one.published);
        let Some(here) = one.here else { return format!("{} not measured here, {published} published", one.figure) };
        let ratio = one.ratio.map_or_else(String::new, |ratio| format!(" ({} times)", three_digits(ratio)));
        format!("{} {} against {published}{ratio}", one.figure, words::value(one.unit, here))
    };
    let sentence = |variant: &str| {
        let own = published.iter().filter(|one| one.variant == variant).map(phrase);
        format!("{variant} here against what was published: {}.", own.collect::<Vec<_>>().join(", "))
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

/// Few are told one by one; of many those are named that are the other way round.
fn orders(orders: &[Order]) -> Vec<String> {
    let pair = |order: &Order| format!("{} below {}", order.less, order.more);
    if orders.len() <= ORDERS_TOLD {
        let sentence = |order: &Order| {
            let [less, more] = order.published.map(|value| words::value(order.unit, value));
            let here = match order.agreement {
                Agreement::Same => "here too, beyond the noise",
                Agreement::Reversed => "here the other way round, beyond the noise",
                Agreement::NoDifference => "here no difference beyond the noise",
                Agreement::NotJudged => "here not judged",
            };
            format!("Published at {}: {} ({less} against {more}); {here}.", order.figure, pair(order))
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
            "Of {} published orders at {figure}, {} are the same here beyond the noise, {} the other way round{named}, {} show no \
             difference, {} were not judged.",
            own.len(),
            of(Agreement::Same).len(),
            reversed.len(),
            of(Agreement::NoDifference).len(),
            of(Agreement::NotJudged).len()
        )
    };
    figures.into_iter().map(sentence).collect()
}

/// A difference that is larger is one of magnitude.
const UNTOLD_PERCENT: f64 = 900.0;

/// What these runs could not have shown.
fn smallest(comparisons: &[Comparison]) -> Option<String> {
    let all = comparisons.iter().filter_map(|one| one.smallest_at_p99_percent);
    let most = all.fold(None, |most: Option<f64>, percent| Some(most.map_or(percent, |most| most.max(percent))))?;
    Some(if most > UNTOLD_PERCENT {
        "At p99 the runs differ so much among themselves that no difference below a factor of ten could be shown."
            .to_owned()
    } else {
        format!("At p99 these runs could show differences of {most:.1} % or more.")
    })
}
