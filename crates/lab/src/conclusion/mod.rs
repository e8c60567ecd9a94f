//! The conclusion of an experiment, computed from its figures.
//!
//! ```text
//!     runs ─▶ variant_runs (selected) ─▶ standing (figures of each variant) ──────────────────┐
//!                      └─▶ comparison (`bench compare` of each two) ─▶ winners ─▶ answer ───────┼─▶ words ─▶ sentences
//!                                                                    └─▶ queue, published ────┤
//!                                              stages that differ in one thing ─▶ across ─────┘
//! ```
//!
//! Only a difference that `bench compare` confirms counts. What was not judged is called so, and is never taken for
//! equal. Called by `klad lab run` and `report`.

mod stage;

mod comparison;
mod standing;

pub(super) mod answer;

mod queue;

mod published;

mod across;

pub(super) mod words;

#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::result::LabResult;
use crate::variant_runs::VariantRuns;

pub use crate::variant_runs::Validity;
pub use answer::{Answer, Ranked, Ratio};
pub(super) use comparison::{CONTESTED, CPU};
pub use comparison::{Comparison, Difference, Judgement, Outcome, Unit, Winner};
pub use published::{Agreement, PublishedFigure, PublishedOrder};
pub use queue::{Frontier, QueuePoint};
pub use standing::Standing;

/// If the hypervisor took at least this share (percent) of the CPU time of a run, a remark says so.
const STEAL_PERCENT: f64 = 1.0;

/// The conclusion of an experiment.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Conclusion {
    /// The answer: that of the only stage, or how many stages each variant wins.
    pub headline: String,
    /// What limits the figures: the scale, failures, runs that were left out, differences found by chance.
    pub remarks: Vec<String>,
    /// Sentences on how each variant changes between stages that differ only in their share of the capacity, or in
    /// their number of connections.
    pub across: Vec<String>,
    /// The stages, in their order.
    pub stages: Vec<StageConclusion>,
}

/// The conclusion of a stage.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StageConclusion {
    /// The name of the stage.
    pub stage: String,
    /// The answer in one or two sentences: who is best by the figure that the scenario is about, and by which ratio.
    pub headline: String,
    /// The variants that cannot be compared, and why, in one line; `null` if all can be compared, or none can.
    pub left_out: Option<String>,
    /// Sentences about the load and about single variants, made from the figures below.
    pub sentences: Vec<String>,
    /// Sentences about two variants each, and about variants and their published figures.
    pub pairs: Vec<String>,
    /// The figures of each variant.
    pub standings: Vec<Standing>,
    /// Each variant that can be compared, with the first of them. If fewer than two can be compared, each variant with
    /// the first; then nothing is judged.
    pub comparisons: Vec<Comparison>,
    /// The variants in the order of the figure that the scenario is about; `null` for a single variant.
    pub answer: Option<Answer>,
    /// The best variant at p50, p99, p99.9, goodput and CPU time per served request.
    pub winners: Vec<Winner>,
    /// The sizes of the queue, if at least two variants with a known size were measured; otherwise `null`.
    pub queue: Option<Frontier>,
    /// Published figures beside those of this experiment.
    pub published: Vec<PublishedFigure>,
    /// For each two variants the published order, and whether this experiment confirms it.
    pub orders: Vec<PublishedOrder>,
}

impl Conclusion {
    /// Returns the text for a terminal: the remarks, the sentences of `across`, each stage, then, unless there is
    /// exactly one stage, the answer of all stages. It ends with a line feed.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = self.remarks.clone();
        lines.extend(self.across.iter().cloned());
        for stage in &self.stages {
            lines.push(format!("{}: {}", stage.stage, stage.headline));
            let verdict = |one: &Winner| format!("{}: {}.", one.figure, answer::verdict(one, &stage.standings, false));
            let verdicts = stage.winners.iter().map(|winner| words::plain(&verdict(winner)));
            let sentences = stage.left_out.iter().cloned().chain(verdicts);
            let sentences = sentences.chain(stage.sentences.iter().cloned()).chain(stage.pairs.iter().cloned());
            lines.extend(sentences.map(|sentence| format!("  {sentence}")));
        }
        if self.stages.len() != 1 {
            lines.push(self.headline.clone());
        }
        lines.join("\n") + "\n"
    }
}

impl StageConclusion {
    /// Returns the verdict by the figure that the scenario is about.
    pub(crate) fn main(&self) -> Option<&Winner> {
        let figure = &self.answer.as_ref()?.figure;
        self.winners.iter().find(|winner| winner.figure == *figure)
    }
}

/// Computes the conclusion.
#[must_use]
pub fn conclude(result: &LabResult) -> Conclusion {
    let runs: Vec<_> = result.stages.iter().map(VariantRuns::of_stage).collect();
    let stages: Vec<_> =
        result.stages.iter().zip(&runs).map(|(stage, variants)| stage::conclude(result, stage, variants)).collect();
    let headline = match &stages[..] {
        [] => "Nothing was measured.".to_owned(),
        [only] => only.headline.clone(),
        all => answer::of_stages(all),
    };
    let remarks = remarks(result, &runs, &stages);
    let across = across::across(result, &stages);
    Conclusion { headline, remarks, across, stages }
}

/// Returns sentences on what limits the figures: [`Conclusion::remarks`].
fn remarks(result: &LabResult, runs: &[Vec<VariantRuns>], stages: &[StageConclusion]) -> Vec<String> {
    let mut remarks = Vec::new();
    if result.scale < 1.0 {
        remarks.push(format!(
            "Scaled to {}: lengths of runs and numbers of keys are the scenario's, multiplied by this. The figures \
             are not those of the full experiment.",
            result.scale
        ));
    }
    if !result.finished {
        remarks.push("The experiment did not finish: later stages are missing.".to_owned());
    }
    remarks.extend(result.remarks.iter().cloned());
    remarks.extend(result.failures.iter().map(|failed| format!("Failed: {failed}")));
    for (stage, variants) in result.stages.iter().zip(runs) {
        for one in variants {
            remarks.extend(one.left_out.iter().map(|why| format!("Not used in {}: {why}.", stage.name)));
        }
    }
    let steal = |variant: &VariantRuns| {
        variant.used.iter().filter_map(|(_, bench)| bench.machine.steal_percent).fold(0.0, f64::max)
    };
    let steal = runs.iter().flatten().map(steal).fold(0.0, f64::max);
    if steal >= STEAL_PERCENT {
        remarks.push(format!("The hypervisor took up to {steal:.1} % of the CPU time of a run (steal)."));
    }
    let judged = stages.iter().flat_map(|stage| &stage.comparisons).filter(|one| one.not_judged.is_none()).count();
    if judged > 0 {
        let count = if judged == 1 { "1 comparison".to_owned() } else { format!("{judged} comparisons") };
        remarks.push(format!(
            "{count} with the first variant that can be compared. About one in a hundred comparisons of equal variants \
             finds a difference by chance. Differences up to {} % do not count.",
            comparison::TOLERANCE * 100.0
        ));
    }
    remarks.into_iter().map(|remark| words::plain(&remark)).collect()
}
