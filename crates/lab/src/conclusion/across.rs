//! How a variant changes between stages that differ only in their share of the capacity, or in their number of
//! connections. Called by `conclude`. The sentences give measured values; they do not judge whether a difference is
//! noise.

use crate::conclusion::standing::Standing;
use crate::conclusion::{StageConclusion, words};
use crate::result::{LabResult, StageResult};
use crate::scenario::{Scenario, Stage};
use crate::variant_runs::Validity;
use klad_page::numbers;

/// The setting in which the stages of a group differ.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Varied {
    Share,
    Connections,
}

/// Returns a sentence for each variant and each group of stages, if the variant has figures of two of them or more.
pub(super) fn across(result: &LabResult, conclusions: &[StageConclusion]) -> Vec<String> {
    let mut sentences = Vec::new();
    for by in [Varied::Share, Varied::Connections] {
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

/// Returns a stage and the figures of a variant in it, if they can be trusted.
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

/// Returns the groups of two or more stages that differ only in the setting `by`. Names and profiles do not matter.
fn groups(scenario: &Scenario, by: Varied) -> Vec<Vec<&Stage>> {
    // Two stages are in one group if they are equal without this setting.
    let rest = |stage: &Stage| {
        let (name, about) = (String::new(), String::new());
        let mut rest =
            Stage { name, about, profiles: Vec::new(), profiled: None, also_below_capacity: true, ..stage.clone() };
        match by {
            Varied::Share => rest.of_capacity = None,
            Varied::Connections => rest.connections = 0,
        }
        format!("{rest:?}")
    };
    // The capacity depends on the number of connections: stages with a share of it are grouped by the share only.
    let is_grouped = |stage: &&Stage| (by == Varied::Share) == stage.of_capacity.is_some();
    let mut groups: Vec<(String, Vec<&Stage>)> = Vec::new();
    for stage in scenario.stages.iter().filter(is_grouped) {
        let rest = rest(stage);
        match groups.iter_mut().find(|(own, _)| *own == rest) {
            Some((_, group)) => group.push(stage),
            None => groups.push((rest, vec![stage])),
        }
    }
    groups.into_iter().map(|(_, group)| group).filter(|group| group.len() > 1).collect()
}

fn sentence(variant: &str, by: Varied, stages: &[(&StageResult, &Standing)]) -> Option<String> {
    if stages.len() < 2 {
        return None;
    }
    let each = |(stage, standing): &(&StageResult, &Standing)| {
        let figure = match by {
            Varied::Share => numbers::per_second(standing.goodput_per_s?),
            Varied::Connections => words::time(standing.p99_us?),
        };
        let at = match by {
            Varied::Share => format!("at {} of the capacity", words::percent(stage.share_of_capacity?)),
            Varied::Connections if stage.connections == 1 => "over 1 connection".to_owned(),
            Varied::Connections => format!("over {}", stage.connections),
        };
        Some(format!("{figure} {at}"))
    };
    let all: Vec<String> = stages.iter().filter_map(each).collect();
    let what = match by {
        Varied::Share => "Goodput".to_owned(),
        Varied::Connections => {
            let rate = stages[0].0.rate_per_s.map_or_else(|| "closed load".to_owned(), numbers::per_second);
            format!("p99 of {} to {} ({rate})", stages[0].0.name, stages[stages.len() - 1].0.name)
        }
    };
    let least = match by {
        Varied::Share => {
            let goodput = || stages.iter().filter_map(|(_, standing)| standing.goodput_per_s);
            let (least, most) = (goodput().fold(f64::INFINITY, f64::min), goodput().fold(0.0, f64::max));
            format!("; the lowest is {} of the highest", words::percent(least / most.max(f64::MIN_POSITIVE)))
        }
        Varied::Connections => String::new(),
    };
    (all.len() > 1).then(|| format!("{what} of {variant}: {}{least}.", words::listed(&all)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shipped;

    #[test]
    fn stages_of_seed_002_are_grouped_by_connections() {
        let scenario = Scenario::parse("seed-002", shipped::text("seed-002").expect("built in")).expect("valid");
        let groups = groups(&scenario, Varied::Connections);
        let names = |group: &Vec<&Stage>| group.iter().map(|stage| stage.name.as_str()).collect::<Vec<_>>().join(" ");
        let names: Vec<_> = groups.iter().map(names).collect();
        assert_eq!(names, ["put-1-choked put-3 put-8 put-16", "get-1 get-4 get-8 get-16 get-8-again"]);
    }
}
