//! What follows from the figures of an experiment: computed, never written beforehand.
//!
//! ```text
//!     runs ─▶ seen (which of them count) ─▶ standing (figures of each variant) ────────────┐
//!                      └─▶ versus (bench::compare, each against each) ─▶ winners ──────────┼─▶ words ─▶ sentences
//!                                                                    └─▶ queue, published ─┤
//!                                              stages that differ in one thing ─▶ across ──┘
//! ```
//!
//! A difference is one only where `bench::compare` calls it one; what was not judged is said to be, and is never taken for
//! equal. Called by `report` and by whoever runs an experiment.

mod stage;

mod standing;
mod versus;

mod queue;

mod published;

mod across;

pub(super) mod words;

#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::result::LabResult;
use crate::seen::{Seen, Trust};

pub use published::{Agreement, Beside, Order};
pub use queue::{Frontier, QueuePoint};
pub use standing::{Standing, Validity};
pub(super) use versus::CPU;
pub use versus::{Comparison, Difference, Judgement, Outcome, Unit, Winner};

/// The hypervisor may keep so much of the CPU time, percent, before it is worth a word.
const STEAL_PERCENT: f64 = 1.0;

/// What an experiment has shown.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Conclusion {
    /// In one line.
    pub headline: String,
    /// What must be known before the figures are: shortened, failed, left out, how sure.
    pub remarks: Vec<String>,
    /// How each variant changes from stage to stage, where stages differ in one thing only.
    pub across: Vec<String>,
    /// Each stage, in their order.
    pub stages: Vec<StageConclusion>,
}

/// What a stage has shown.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StageConclusion {
    /// Its name.
    pub stage: String,
    /// In one line.
    pub headline: String,
    /// The same at length; each is made from the figures below.
    pub sentences: Vec<String>,
    /// Figures of each variant.
    pub standings: Vec<Standing>,
    /// Each variant against the first.
    pub comparisons: Vec<Comparison>,
    /// Who is best at p50, p99, p99.9, goodput and CPU time by served requests.
    pub winners: Vec<Winner>,
    /// What each size of the queue costs, where the variants differ in that.
    pub queue: Option<Frontier>,
    /// Ours beside what was published.
    pub published: Vec<Beside>,
    /// The order of the variants, as it was published and as it is here.
    pub orders: Vec<Order>,
}

impl Conclusion {
    /// For a terminal: what must be known, then each stage in a line and at length. With a line feed at its end.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = self.remarks.clone();
        lines.extend(self.across.iter().cloned());
        for stage in &self.stages {
            lines.push(format!("{}: {}", stage.stage, stage.headline));
            lines.extend(stage.sentences.iter().map(|sentence| format!("  {sentence}")));
        }
        if self.stages.is_empty() {
            lines.push(self.headline.clone());
        }
        lines.join("\n") + "\n"
    }
}

/// Concludes.
#[must_use]
pub fn conclude(result: &LabResult) -> Conclusion {
    let seen: Vec<_> = result.stages.iter().map(Seen::of_stage).collect();
    let stages: Vec<_> =
        result.stages.iter().zip(&seen).map(|(stage, seen)| stage::conclude(result, stage, seen)).collect();
    let headline = match &stages[..] {
        [] => "Nothing was measured.".to_owned(),
        [only] => only.headline.clone(),
        all => all.iter().map(|stage| format!("{}: {}", stage.stage, stage.headline)).collect::<Vec<_>>().join(" "),
    };
    let remarks = remarks(result, &seen, &stages);
    let across = across::across(result, &stages);
    Conclusion { headline, remarks, across, stages }
}

/// What must be known before the figures are.
fn remarks(result: &LabResult, seen: &[Vec<Seen>], stages: &[StageConclusion]) -> Vec<String> {
    let mut remarks = Vec::new();
    if result.scale < 1.0 {
        remarks.push(format!(
            "Shortened to {}: lengths of runs and numbers of keys are those of the scenario times this, and the figures are \
             not those of the whole.",
            result.scale
        ));
    }
    if !result.finished {
        remarks.push("The experiment has not come to its end: later stages are missing.".to_owned());
    }
    remarks.extend(result.remarks.iter().cloned());
    remarks.extend(result.failures.iter().map(|failed| format!("Failed: {failed}")));
    for (stage, seen) in result.stages.iter().zip(seen) {
        for one in seen {
            remarks.extend(one.left_out.iter().map(|why| format!("Left out in {}: {why}.", stage.name)));
            if one.trust == Trust::NotValid {
                remarks.push(format!("Not valid in {}: every run of {}.", stage.name, one.name()));
            }
        }
    }
    let steal = |seen: &Seen| seen.used.iter().filter_map(|(_, bench)| bench.machine.steal_percent).fold(0.0, f64::max);
    let steal = seen.iter().flatten().map(steal).fold(0.0, f64::max);
    if steal >= STEAL_PERCENT {
        remarks.push(format!("The hypervisor kept up to {steal:.1} % of the CPU time of a run for others."));
    }
    let judged = stages.iter().flat_map(|stage| &stage.comparisons).filter(|one| one.not_judged.is_none()).count();
    if judged > 0 {
        let count = if judged == 1 { "1 comparison".to_owned() } else { format!("{judged} comparisons") };
        remarks.push(format!(
            "{count} with the first variant. Of a hundred between equal variants one may find a difference; differences up to \
             {} % do not count.",
            versus::TOLERANCE * 100.0
        ));
    }
    remarks.into_iter().map(|remark| words::plain(&remark)).collect()
}
