//! How a variant changes from stage to stage. Called by `conclude`.
//!
//! Stages are held beside each other where they differ in nothing but the share of the capacity, or the number of connections. This
//! is what was measured, one after the other; no noise is judged here.

use crate::conclusion::standing::{Standing, Validity};
use crate::conclusion::{StageConclusion, words};
use crate::result::{LabResult, StageResult};
use crate::scenario::{Scenario, Stage};
use klad_page::numbers;

/// What stages of a group differ in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Share,
    Connections,
}

/// A sentence for each variant of each group of stages.
pub(super) fn across(result: &LabResult, conclusions: &[StageConclusion]) -> Vec<String> {
    let mut sentences = Vec::new();
    for by in [By::Share, By::Connections] {
        for group in groups(&result.scenario, by) {
            for variant in &result.scenario.variants {
                let of_stage = |stage: &&Stage| measured(result, conclusions, &stage.name, &variant.name);
                let own: Vec<_> = group.iter().filter_map(of_stage).collect();
                sentences.extend(sentence(&variant.name, by, &own));
            }
        }
    }
    sentences.iter().map(|sentence| words::plain(sentence)).collect()
}

/// A stage, and the figures of a variant in it where they are to be believed.
fn measured<'r>(
    result: &'r LabResult,
    conclusions: &'r [StageConclusion],
    stage: &str,
    variant: &str,
) -> Option<(&'r StageResult, &'r Standing)> {
    let (stage, conclusion) = result.stages.iter().zip(conclusions).find(|(one, _)| one.name == stage)?;
    let standing = conclusion.standings.iter().find(|one| one.variant == variant)?;
    matches!(standing.validity, Validity::Valid | Validity::Overloaded).then_some((stage, standing))
}

/// Stages that differ in nothing else, of which there are two at least.
fn groups(scenario: &Scenario, by: By) -> Vec<Vec<&Stage>> {
    // Two that are the same but for this are the same with it left out, as they are written.
    let rest = |stage: &Stage| {
        let (name, about) = (String::new(), String::new());
        let mut rest =
            Stage { name, about, profiles: Vec::new(), profiled: None, also_below_capacity: true, ..stage.clone() };
        match by {
            By::Share => rest.of_capacity = None,
            By::Connections => rest.connections = 0,
        }
        format!("{rest:?}")
    };
    // With another number of connections the capacity is another.
    let is_told = |stage: &&Stage| (by == By::Share) == stage.of_capacity.is_some();
    let mut groups: Vec<(String, Vec<&Stage>)> = Vec::new();
    for stage in scenario.stages.iter().filter(is_told) {
        let rest = rest(stage);
        match groups.iter_mut().find(|(own, _)| *own == rest) {
            Some((_, group)) => group.push(stage),
            None => groups.push((rest, vec![stage])),
        }
    }
    groups.into_iter().map(|(_, group)| group).filter(|group| group.len() > 1).collect()
}

fn sentence(variant: &str, by: By, stages: &[(&StageResult, &Standing)]) -> Option<String> {
    if stages.len() < 2 {
        return None;
    }
    let each = |(stage, standing): &(&StageResult, &Standing)| {
        let figure = match by {
            By::Share => numbers::per_second(standing.goodput_per_s?),
            By::Connections => words::time(standing.p99_us?),
        };
        let at = match by {
            By::Share => format!("at {} of the capacity", words::percent(stage.share_of_capacity?)),
            By::Connections if stage.connections == 1 => "over 1 connection".to_owned(),
            By::Connections => format!("over {}", stage.connections),
        };
        Some(format!("{figure} {at}"))
    };
    let all: Vec<String> = stages.iter().filter_map(each).collect();
    let what = match by {
        By::Share => "Goodput".to_owned(),
        By::Connections => {
            let rate = stages[0].0.rate_per_s.map_or_else(|| "as many as are answered".to_owned(), numbers::per_second);
            format!("p99 of {} to {} ({rate})", stages[0].0.name, stages[stages.len() - 1].0.name)
        }
    };
    let least = match by {
        By::Share => {
            let goodput = || stages.iter().filter_map(|(_, standing)| standing.goodput_per_s);
            let (least, most) = (goodput().fold(f64::INFINITY, f64::min), goodput().fold(0.0, f64::max));
            format!("; the least is {} of the most", words::percent(least / most.max(f64::MIN_POSITIVE)))
        }
        By::Connections => String::new(),
    };
    (all.len() > 1).then(|| format!("{what} of {variant}: {}{least}.", words::listed(&all)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shipped;

    #[test]
    fn the_connections_of_report_002_stand_beside_each_other() {
        let scenario = Scenario::parse("seed-002", shipped::text("seed-002").expect("there")).expect("one");
        let groups = groups(&scenario, By::Connections);
        let names = |group: &Vec<&Stage>| group.iter().map(|stage| stage.name.as_str()).collect::<Vec<_>>().join(" ");
        let names: Vec<_> = groups.iter().map(names).collect();
        assert_eq!(names, ["put-1-choked put-3 put-8 put-16", "get-1 get-4 get-8 get-16 get-8-again"]);
    }
}
