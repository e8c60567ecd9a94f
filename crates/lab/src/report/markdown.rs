//! `report.md`: the conclusion and the tables as Markdown. Called by `klad lab`.

use std::fmt::Write as _;

use crate::conclusion::{Conclusion, StageConclusion};
use crate::report::grid::{Grid, escaped};
use crate::report::wrap::wrapped;
use crate::report::{facts, tables};
use crate::result::{LabResult, StageResult};
use crate::variant_runs::VariantRuns;

/// Returns the text, with a line feed at its end.
#[must_use]
pub fn markdown(result: &LabResult, conclusion: &Conclusion) -> String {
    let scenario = &result.scenario;
    let mut text = String::new();
    let _ = writeln!(text, "# {}\n", escaped(&scenario.title));
    if !scenario.about.is_empty() {
        let _ = writeln!(text, "{}\n", escaped(&scenario.about));
    }
    heading(&mut text, 2, "Answer");
    let _ = writeln!(text, "**{}**\n", escaped(&conclusion.headline));
    match &conclusion.stages[..] {
        [] => {}
        [only] => {
            paragraph(&mut text, only.left_out.as_deref());
            grid(&mut text, &tables::ranking(only));
            grid(&mut text, &tables::winners(only));
        }
        all => {
            let line = |stage: &StageConclusion| {
                let left_out = stage.left_out.as_deref().unwrap_or_default();
                let words = format!("{} {left_out}", stage.headline);
                format!("**{}**: {}", escaped(&stage.stage), escaped(words.trim_end()))
            };
            bullets(&mut text, all.iter().map(line));
            grid(&mut text, &tables::winners_of_stages(all));
        }
    }
    let _ = writeln!(text, "`klad lab`, scenario {}, {}.\n", escaped(&scenario.name), escaped(&result.started.utc));
    if result.scale < 1.0 {
        let _ = writeln!(text, "**Scaled to {}.**\n", result.scale);
    }
    bullets(&mut text, conclusion.across.iter().map(|line| escaped(line)));
    folded(&mut text, "Remarks", &conclusion.remarks);
    if conclusion.stages.len() > 1 {
        heading(&mut text, 3, "All stages at a glance");
        grid(&mut text, &tables::stages(&conclusion.stages));
    }
    for (stage, conclusion) in result.stages.iter().zip(&conclusion.stages) {
        stage_text(&mut text, result, stage, conclusion);
    }
    heading(&mut text, 2, "Is it valid?");
    match tables::checks(result) {
        Some(failed) => grid(&mut text, &failed),
        None => {
            let _ = writeln!(text, "{}.\n", tables::all_well(result));
        }
    }
    if let Some(failures) = tables::failures(result) {
        heading(&mut text, 3, "Failures");
        grid(&mut text, &failures);
    }
    if let Some(published) = &scenario.published {
        heading(&mut text, 2, "Published results");
        let _ = writeln!(text, "{}\n", escaped(&published.about));
        bullets(&mut text, published.conclusions.iter().map(|line| escaped(line)));
    }
    experiment(&mut text, result);
    wrapped(text.trim_end())
}

fn heading(text: &mut String, level: usize, words: &str) {
    let _ = writeln!(text, "{} {}\n", "#".repeat(level), escaped(words));
}

fn bullets(text: &mut String, lines: impl IntoIterator<Item = String>) {
    let mut any = false;
    for line in lines {
        let _ = writeln!(text, "* {line}");
        any = true;
    }
    if any {
        text.push('\n');
    }
}

/// Appends sentences that a reader opens, if there are any.
fn folded(text: &mut String, summary: &str, lines: &[String]) {
    if !lines.is_empty() {
        let _ = writeln!(text, "<details><summary>{summary}</summary>\n");
        bullets(text, lines.iter().map(|line| escaped(line)));
        text.push_str("</details>\n\n");
    }
}

fn paragraph(text: &mut String, words: Option<&str>) {
    if let Some(words) = words {
        let _ = writeln!(text, "{}\n", escaped(words));
    }
}

/// Appends a table that has rows.
fn grid(text: &mut String, grid: &Grid) {
    if grid.rows.is_empty() {
        return;
    }
    text.push_str(&grid.markdown());
    text.push('\n');
}

fn stage_text(text: &mut String, result: &LabResult, stage: &StageResult, conclusion: &StageConclusion) {
    let variants = VariantRuns::of_stage(stage);
    heading(text, 2, &stage.name);
    if !stage.about.is_empty() {
        let _ = writeln!(text, "{}\n", escaped(&stage.about));
    }
    if result.stages.len() > 1 {
        let _ = writeln!(text, "**{}**\n", escaped(&conclusion.headline));
        paragraph(text, conclusion.left_out.as_deref());
        grid(text, &tables::ranking(conclusion));
        grid(text, &tables::winners(conclusion));
    }
    bullets(text, conclusion.sentences.iter().map(|sentence| escaped(sentence)));
    let published = result.scenario.published.as_ref().map_or(&[][..], |published| &published.results);
    grid(text, &tables::variants(stage, conclusion, published));
    let mut parts = Vec::new();
    parts.extend(conclusion.queue.as_ref().map(|queue| ("Sizes of the queue", tables::queue(queue))));
    parts.push(("Outcomes", tables::outcomes(&variants)));
    parts.push(("Operations", tables::operations(&variants)));
    parts.push(("Spread over time", tables::intervals(&variants)));
    parts.push(("Spread over the repeats", tables::spread(&variants)));
    parts.push(("The slowest requests", tables::slowest(&variants)));
    parts.push(("Profiles", tables::profiles(stage, &conclusion.standings)));
    for (name, own) in parts.iter().filter(|(_, own)| !own.rows.is_empty()) {
        heading(text, 3, name);
        grid(text, own);
    }
    folded(text, "Each pair of variants in words", &conclusion.pairs);
    for comparison in &conclusion.comparisons {
        heading(text, 3, &format!("{} against {}", comparison.other, comparison.first));
        grid(text, &tables::differences(comparison));
    }
}

fn experiment(text: &mut String, result: &LabResult) {
    heading(text, 2, "The experiment");
    bullets(text, facts::experiment(result).iter().map(|(name, value)| format!("{name}: {}", escaped(value))));
    heading(text, 3, "Variants");
    let variants = facts::variants(result);
    bullets(text, variants.iter().map(|(name, options)| format!("{}: {}", escaped(name), escaped(options))));
    heading(text, 3, "Commands");
    // Indented: no line can end the block.
    for line in facts::commands(result).lines() {
        let _ = writeln!(text, "    {line}");
    }
}
