//! The picture of the answer: a bar for each variant of each stage, by the figure that the scenario is about. Called by
//! `page`.

use maud::{Markup, html};

use crate::conclusion::{Outcome, StageConclusion, words};
use klad_page::parts::{self, Bar};

/// The number of stages whose bars are shown. Those of further stages are folded away.
const STAGES_SHOWN: usize = 4;

const CAPTION: &str = "Best first. Beside each value is its ratio to the best, with the interval of the ratio. \
                       Coloured: the best, and those from which no difference is told.";

/// Returns the bars of all stages in which variants were compared.
pub(super) fn bars(stages: &[StageConclusion]) -> Markup {
    let mut caption = CAPTION;
    let mut groups: Vec<Markup> = Vec::new();
    for stage in stages {
        groups.extend(group(stage, stages.len() > 1, caption));
        // Once, above the first group.
        caption = if groups.is_empty() { caption } else { "" };
    }
    let (shown, folded) = groups.split_at(groups.len().min(STAGES_SHOWN));
    html! {
        @for group in shown { (group) }
        @if !folded.is_empty() {
            details.more { summary { "Bars of the other stages" } @for group in folded { (group) } }
        }
    }
}

fn group(stage: &StageConclusion, named: bool, caption: &str) -> Option<Markup> {
    let answer = stage.answer.as_ref()?;
    let winner = stage.main()?;
    let is_judged = winner.outcome != Outcome::NotJudged;
    let most = answer.ranking.iter().filter_map(|one| one.value).fold(0.0, f64::max);
    let bars: Vec<Bar> = answer
        .ranking
        .iter()
        .map(|one| Bar {
            name: one.variant.clone(),
            share: one.value.map_or(0.0, |value| value / most.max(f64::MIN_POSITIVE)),
            value: one.value.map_or_else(String::new, |value| words::value(answer.unit, value)),
            note: one.ratio.map_or_else(String::new, |ratio| format!("× {}", ratio.words())),
            best: is_judged && (winner.best.as_ref() == Some(&one.variant) || winner.level_with.contains(&one.variant)),
        })
        .collect();
    let title = if named { format!("{} in {}", answer.figure, stage.stage) } else { answer.figure.clone() };
    Some(parts::bars(&title, caption, &bars))
}
