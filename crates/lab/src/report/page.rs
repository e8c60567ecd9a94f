//! `report.html`: the order of its parts. Called by `klad lab`.

use std::path::Path;

use maud::{Markup, html};

use crate::conclusion::{Conclusion, Outcome, StageConclusion, Validity};
use crate::report::profiles::FlameGraphs;
use crate::report::{charts, facts, tables};
use crate::result::{LabResult, StageResult, VariantResult};
use crate::scenario::PublishedResult;
use crate::variant_runs::VariantRuns;
use klad_page::Page;
use klad_page::numbers::{micros, seconds};
use klad_page::parts::{self, Tile, Tone};

/// The largest number of stages with a key figure at the top.
const STAGES_AT_TOP: usize = 6;

/// Returns the page. Profiles are read from `directory`; the page names those that cannot be read.
#[must_use]
pub fn html(result: &LabResult, conclusion: &Conclusion, directory: &Path) -> String {
    let scenario = &result.scenario;
    let graphs = FlameGraphs::of(result, directory);
    let mut page = Page::new(format!("klad lab: {}", scenario.title))
        .with(html! {
            header {
                p.kind { "klad lab " (scenario.name) " · " (result.started.utc) }
                h1 { (scenario.title) }
                @if !scenario.about.is_empty() { p { (scenario.about) } }
            }
            (warnings(result, conclusion))
            (parts::tiles(&tiles(result, conclusion)))
        })
        .section("Conclusion", &conclusions(result, conclusion));
    for (index, (stage, conclusion)) in result.stages.iter().zip(&conclusion.stages).enumerate() {
        page = page.with(section(index, stage, conclusion, result, &graphs));
    }
    page = page.section("Is it valid?", &validity(result, &graphs));
    if let Some(published) = &scenario.published {
        page = page.section(
            "Published results",
            &html! {
                p { (published.about) }
                @if !published.conclusions.is_empty() {
                    ul.notes { @for line in &published.conclusions { li { (line) } } }
                }
            },
        );
    }
    page.section("The experiment", &experiment(result)).into_html()
}

/// Returns the warnings about the figures. They come before the figures.
fn warnings(result: &LabResult, conclusion: &Conclusion) -> Markup {
    let standings = conclusion.stages.iter().flat_map(|stage| stage.standings.iter().map(move |one| (stage, one)));
    let bad = standings.filter(|(_, one)| one.validity == Validity::NotValid);
    let bad: Vec<_> = bad.map(|(stage, one)| format!("{}: every run of {}.", stage.stage, one.variant)).collect();
    let failures: Vec<_> = result.failures.iter().map(ToString::to_string).collect();
    html! {
        @if result.scale < 1.0 {
            (parts::banner(Tone::Warning, &format!("Scaled to {}", result.scale), &[
                "Lengths of runs and numbers of keys are the scenario's, multiplied by this. The figures are not \
                 those of the full experiment.".to_owned(),
            ]))
        }
        @if !bad.is_empty() { (parts::banner(Tone::Bad, "NOT VALID", &bad)) }
        @if !failures.is_empty() { (parts::banner(Tone::Bad, "A part failed", &failures)) }
    }
}

/// Returns the key figures: the best p99.9 of each of the first [`STAGES_AT_TOP`] stages, the number of runs, and how
/// long the experiment took.
fn tiles(result: &LabResult, conclusion: &Conclusion) -> Vec<Tile> {
    let tile = |stage: &StageConclusion| {
        let winner = stage.winners.iter().find(|winner| winner.figure == "p99.9")?;
        let best = stage.standings.iter().find(|standing| winner.best.as_ref() == Some(&standing.variant))?.label();
        let note = match (winner.outcome, winner.all_level) {
            (Outcome::Won, _) => format!("{best} wins"),
            (Outcome::Level, true) => "no difference beyond the noise".to_owned(),
            (Outcome::Level, false) => format!("{best}, no different from {}", winner.level_with.join(", ")),
            (Outcome::NotJudged, _) => format!("{best}, not judged"),
        };
        let value = winner.value.map_or_else(|| "–".to_owned(), micros);
        Some(Tile { name: format!("{}: best p99.9", stage.stage), value, note, tone: Tone::Plain })
    };
    let mut tiles: Vec<_> = conclusion.stages.iter().filter_map(tile).take(STAGES_AT_TOP).collect();
    let runs = || result.stages.iter().flat_map(|stage| &stage.variants).flat_map(VariantResult::benches);
    let (all, valid) = (runs().count(), runs().filter(|bench| bench.valid).count());
    tiles.push(Tile {
        name: "Runs".to_owned(),
        value: all.to_string(),
        note: if all == valid && all > 0 { "all valid".to_owned() } else { format!("{valid} valid") },
        tone: if all == valid && all > 0 { Tone::Plain } else { Tone::Warning },
    });
    tiles.push(Tile {
        name: "Took".to_owned(),
        value: seconds(result.took_s.round()),
        note: facts::scale(result),
        tone: if result.scale < 1.0 { Tone::Warning } else { Tone::Plain },
    });
    tiles
}

/// Returns the headline of each stage, the sentences across stages, the remarks, and, for several stages, their table.
fn conclusions(result: &LabResult, conclusion: &Conclusion) -> Markup {
    html! {
        dl.facts.wide {
            @for (index, stage) in conclusion.stages.iter().enumerate() {
                div { dt { a href=(format!("#s{index}")) { (stage.stage) } } dd { (kept_together(&stage.headline)) } }
            }
        }
        @if conclusion.stages.is_empty() { p { (conclusion.headline) } }
        @if !conclusion.across.is_empty() {
            ul.sentences { @for sentence in &conclusion.across { li { (kept_together(sentence)) } } }
        }
        @if result.stages.len() > 1 { details.more { summary { "All stages at a glance" } (tables::stages(&conclusion.stages).html()) } }
        @if !conclusion.remarks.is_empty() { ul.notes { @for remark in &conclusion.remarks { li { (remark) } } } }
        @if result.stages.len() > 1 {
            p { "All variants are compared with the first, " (first(result)) ". The sentences are computed from the figures." }
        }
    }
}

/// Joins figures and units with no-break spaces.
fn kept_together(sentence: &str) -> String {
    [" %", " ms", " µs"].iter().fold(sentence.to_owned(), |text, unit| text.replace(unit, &unit.replace(' ', "\u{a0}")))
}

fn first(result: &LabResult) -> &str {
    result.scenario.variants.first().map_or("", |variant| &variant.name)
}

/// Returns the section of a stage.
fn section(
    index: usize,
    stage: &StageResult,
    conclusion: &StageConclusion,
    result: &LabResult,
    graphs: &FlameGraphs,
) -> Markup {
    let variants = VariantRuns::of_stage(stage);
    let published: &[PublishedResult] = result.scenario.published.as_ref().map_or(&[], |published| &published.results);
    let id = |what: &str| format!("s{index}-{what}");
    let queues = charts::queues(&id("queue"), &variants);
    let slowest = tables::slowest(&variants);
    let operations = tables::operations(&variants);
    html! {
        section id=(format!("s{index}")) {
            h2 { (stage.name) }
            @if !stage.about.is_empty() { p { (stage.about) } }
            p { (facts::stage(stage)) }
            (parts::banner(tone(conclusion), &kept_together(&conclusion.headline), &[]))
            ul.sentences { @for sentence in &conclusion.sentences { li { (kept_together(sentence)) } } }
            div.wide { (tables::variants(stage, conclusion, published).html()) }
            @if let Some(chart) = charts::spectrum(&id("spectrum"), &variants) { (chart) }
            @if let Some(chart) = charts::latency(&id("latency"), &variants) { (chart) }
            @if let Some(chart) = charts::goodput(&id("goodput"), &variants) { (chart) }
            @if let Some(frontier) = &conclusion.queue {
                h3 { "Sizes of the queue" }
                p { (kept_together(&frontier.sentence)) }
                @if let Some(chart) = charts::frontier(&id("frontier"), frontier, &variants) { (chart) }
                (tables::queue(frontier).html())
            }
            @if !queues.is_empty() { h3 { "Queues in the server" } @for chart in &queues { (chart) } }
            h3 { "Outcomes" }
            (tables::outcomes(&variants).html())
            @if !operations.rows.is_empty() { h3 { "Operations" } (operations.html()) }
            h3 { "Spread over time" }
            (tables::intervals(&variants).html())
            h3 { "Spread over the repeats" }
            div.roomy { (tables::spread(&variants).html()) }
            @for comparison in &conclusion.comparisons {
                details.more {
                    summary { "Every figure of " (comparison.other) " against " (comparison.first) }
                    (tables::differences(comparison).html())
                }
            }
            @if !slowest.rows.is_empty() { h3 { "The slowest requests" } div.roomy { (slowest.html()) } }
            (profiles(index, stage, conclusion, graphs))
        }
    }
}

/// Returns the colour of a stage's headline.
fn tone(conclusion: &StageConclusion) -> Tone {
    let any = |validity: Validity| conclusion.standings.iter().any(|one| one.validity == validity);
    match (any(Validity::NotValid), any(Validity::NotMeasured)) {
        (true, _) => Tone::Bad,
        (_, true) => Tone::Warning,
        _ => Tone::Plain,
    }
}

fn profiles(index: usize, stage: &StageResult, conclusion: &StageConclusion, graphs: &FlameGraphs) -> Markup {
    let costs = tables::profiles(stage, &conclusion.standings);
    html! {
        @if !costs.rows.is_empty() {
            h3 { "Profiles" }
            p { "Taken under this load in runs of their own, which no other figure includes. The table shows what the profiles cost, beside the runs without them." }
            (costs.html())
            @if graphs.has(index) { p { "Click to open a flame graph." } (graphs.of_stage(index)) }
        }
    }
}

fn validity(result: &LabResult, graphs: &FlameGraphs) -> Markup {
    html! {
        @match tables::checks(result) {
            Some(failed) => {
                (failed.html())
                p {
                    "A run that fails a check is not used if its variant has other runs. A run that fails only the \
                     check rate is used: all connections were busy, and requests that could not be sent count at \
                     their age."
                }
            }
            None => { (parts::banner(Tone::Plain, tables::all_well(result), &[])) }
        }
        @if let Some(failures) = tables::failures(result) { h3 { "Failures" } (failures.html()) }
        @if !graphs.warnings.is_empty() { (parts::banner(Tone::Warning, "Profiles that are not shown", &graphs.warnings)) }
        @if let Some(note) = &graphs.note { p { (note) } }
    }
}

fn experiment(result: &LabResult) -> Markup {
    let scenario = toml::to_string(&result.scenario).unwrap_or_else(|error| error.to_string());
    html! {
        (parts::facts(&facts::experiment(result)))
        h3 { "Variants" }
        dl.facts.wide { @for (name, options) in facts::variants(result) { div { dt { (name) } dd { (options) } } } }
        h3 { "Stages" }
        dl.facts.wide { @for stage in &result.stages { div { dt { (stage.name) } dd { (facts::stage(stage)) } } } }
        details.more { summary { "The commands" } pre { (facts::commands(result)) } }
        details.more { summary { "The scenario" } pre { (scenario) } }
    }
}
