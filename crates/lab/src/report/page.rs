//! `report.html`: the order of its parts. Called by `klad lab`.

use std::path::Path;

use maud::{Markup, html};

use crate::conclusion::{Conclusion, StageConclusion, Validity};
use crate::report::profiles::FlameGraphs;
use crate::report::{bars, charts, facts, tables};
use crate::result::{LabResult, StageResult, VariantResult};
use crate::scenario::PublishedResult;
use crate::variant_runs::VariantRuns;
use klad_page::Page;
use klad_page::parts::{self, Tone};

/// Up to this number of stages, the answer of each stage is shown at the top. Those of more stages are folded away.
const STAGES_LISTED: usize = 6;

/// Returns the page. Profiles are read from `directory`; the page names those that cannot be read.
#[must_use]
pub fn html(result: &LabResult, conclusion: &Conclusion, directory: &Path) -> String {
    let scenario = &result.scenario;
    let graphs = FlameGraphs::of(result, directory);
    let mut page = Page::new(format!("klad lab: {}", scenario.title)).with(html! {
        header {
            p.kind { "klad lab " (scenario.name) " · " (result.started.utc) " · " (runs(result)) }
            h1 { (scenario.title) }
            @if !scenario.about.is_empty() { p { (scenario.about) } }
        }
        (answer(conclusion))
        (warnings(result, conclusion))
        (bars::bars(&conclusion.stages))
        (winners(conclusion))
        (remarks(result, conclusion))
    });
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

/// Returns the number of runs, and how many are valid.
fn runs(result: &LabResult) -> String {
    let runs = || result.stages.iter().flat_map(|stage| &stage.variants).flat_map(VariantResult::benches);
    let (all, valid) = (runs().count(), runs().filter(|bench| bench.valid).count());
    let valid = if all == valid { "all valid".to_owned() } else { format!("{valid} valid") };
    format!("{all} runs, {valid}")
}

/// Returns the answer, and that of each stage if there are several.
fn answer(conclusion: &Conclusion) -> Markup {
    let stages = html! {
        dl.facts.wide {
            @for (index, stage) in conclusion.stages.iter().enumerate() {
                div { dt { a href=(format!("#s{index}")) { (stage.stage) } } dd { (kept_together(&stage.headline)) } }
            }
        }
    };
    html! {
        (parts::banner(Tone::Plain, &kept_together(&conclusion.headline), &[]))
        @match conclusion.stages.len() {
            0 | 1 => {}
            2..=STAGES_LISTED => { (stages) }
            _ => { details.more { summary { "The answer of each stage" } (stages) } }
        }
    }
}

/// Returns what was left out of the comparison, and what else limits the figures.
fn warnings(result: &LabResult, conclusion: &Conclusion) -> Markup {
    let several = conclusion.stages.len() > 1;
    let line = |stage: &StageConclusion| {
        let line = stage.left_out.as_ref()?;
        Some(if several { format!("{}: {line}", stage.stage) } else { line.clone() })
    };
    let left_out: Vec<String> = conclusion.stages.iter().filter_map(line).collect();
    let unmeasured = |stage: &str, variant: &str| {
        let stages = conclusion.stages.iter().filter(|one| one.stage == stage && one.left_out.is_some());
        let mut standings = stages.flat_map(|one| &one.standings);
        standings.any(|one| one.variant == variant && one.validity == Validity::NotMeasured)
    };
    let failures = result.failures.iter().filter(|failed| !unmeasured(&failed.stage, &failed.variant));
    let failures: Vec<_> = failures.map(ToString::to_string).collect();
    html! {
        @if !left_out.is_empty() { (parts::banner(Tone::Bad, "Not all variants are compared", &left_out)) }
        @if !failures.is_empty() { (parts::banner(Tone::Bad, "A part failed", &failures)) }
        @if result.scale < 1.0 {
            (parts::banner(Tone::Warning, &format!("Scaled to {}", result.scale), &[
                "Lengths of runs and numbers of keys are the scenario's, multiplied by this. The figures are not \
                 those of the full experiment.".to_owned(),
            ]))
        }
    }
}

/// Returns the table of winners: with all details of a single stage, or with a row for each of several stages.
fn winners(conclusion: &Conclusion) -> Markup {
    html! {
        @match &conclusion.stages[..] {
            [] => {}
            [only] => { @if !only.winners.is_empty() { div.roomy { (tables::winners(only).html()) } } }
            all => { div.wide { (tables::winners_of_stages(all).html()) } }
        }
    }
}

/// Returns the sentences across stages, the table of all stages, and the remarks.
fn remarks(result: &LabResult, conclusion: &Conclusion) -> Markup {
    html! {
        @if !conclusion.across.is_empty() {
            ul.sentences { @for sentence in &conclusion.across { li { (kept_together(sentence)) } } }
        }
        @if result.stages.len() > 1 { details.more { summary { "All stages at a glance" } (tables::stages(&conclusion.stages).html()) } }
        @if !conclusion.remarks.is_empty() {
            details.more {
                summary { "Remarks: " (conclusion.remarks.len()) }
                ul.notes { @for remark in &conclusion.remarks { li { (remark) } } }
            }
        }
    }
}

/// Joins figures and units with no-break spaces.
fn kept_together(sentence: &str) -> String {
    [" %", " ms", " µs"].iter().fold(sentence.to_owned(), |text, unit| text.replace(unit, &unit.replace(' ', "\u{a0}")))
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
            (parts::banner(tone(conclusion), &kept_together(&conclusion.headline), conclusion.left_out.as_slice()))
            @if result.stages.len() > 1 && !conclusion.winners.is_empty() {
                div.roomy { (tables::winners(conclusion).html()) }
            }
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
            @if !conclusion.pairs.is_empty() {
                details.more {
                    summary { "Each pair of variants in words" }
                    ul.sentences { @for sentence in &conclusion.pairs { li { (kept_together(sentence)) } } }
                }
            }
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
