//! The result of a search as text. Called by `knee`.

use std::fmt::Write as _;

use crate::knee::result::{Edge, Evidence, KneeResult, Level, Outcome, StopReason};
use crate::recorder::Outcome::{Failed, Refused, TimedOut, Unfinished};
use crate::text::time_at;

/// Returns the whole text of a search.
pub(super) fn report(result: &KneeResult) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    line(format!("Knee of {} for {}", result.target.url, result.slo));
    line(format!("  {}", result.load.workload));
    let load = &result.load;
    let arrival = load.arrival.as_deref().unwrap_or_default();
    let connections = load.connections_max;
    line(format!("  Open load, {arrival} arrivals, {connections} connections; levels of {}s", load.duration_s));
    line(String::new());
    line(
        "        Rate       Goodput        p50        p99      p99.9   Refused    Failed  Run       Verdict".to_owned(),
    );
    let mut levels: Vec<&Level> = result.levels.iter().collect();
    levels.sort_by(|one, other| one.rate_per_s.total_cmp(&other.rate_per_s));
    for level in levels {
        line(row(level));
    }
    line(String::new());
    conclusion(result).into_iter().for_each(&mut line);
    result.evidence.iter().flat_map(evidence).for_each(&mut line);
    text
}

fn row(level: &Level) -> String {
    let measured = &level.measured;
    let at = |percentile| time_at(&measured.response, percentile);
    let [refused, failed] =
        [&[Refused][..], &[Failed, TimedOut, Unfinished]].map(|outcomes| level.share_of(outcomes) * 100.0);
    format!(
        "{:>10.1}/s {:>11.1}/s {:>10} {:>10} {:>10} {refused:>8.3}% {failed:>8.3}%  {:<9} {}",
        level.rate_per_s,
        measured.goodput_per_s,
        at(50.0),
        at(99.0),
        at(99.9),
        level.purpose.name(),
        level.verdict()
    )
}

/// Describes the finding in words.
pub(super) fn conclusion(result: &KneeResult) -> Vec<String> {
    let found = &result.found;
    let runs = |edge: &Edge| edge.good_runs + edge.bad_runs;
    let good = found.good.map(|edge| {
        format!("{:.1}/s meets {} ({} of {} runs)", edge.rate_per_s, result.slo, edge.good_runs, runs(&edge))
    });
    let bad = found
        .bad
        .map(|edge| format!("{:.1}/s does not ({} of {} runs missed it)", edge.rate_per_s, edge.bad_runs, runs(&edge)));
    let mut lines = match found.outcome {
        Outcome::Found => {
            let rate = found.good.map_or(0.0, |edge| edge.rate_per_s);
            vec![format!("The knee is at {rate:.1}/s.")]
        }
        Outcome::NotReached => vec!["The knee is above the highest allowed rate (--to).".to_owned()],
        Outcome::NoneGood => vec!["No rate meets the objective.".to_owned()],
        Outcome::BrokenOff => vec!["The search was broken off; these are the results so far.".to_owned()],
        Outcome::Unsteady => {
            vec![
                "The knee was not found: runs at the same rate differ too much. Longer levels may help (--level)."
                    .to_owned(),
            ]
        }
    };
    lines.extend(good.into_iter().chain(bad).map(|words| format!("  {words}")));
    lines.extend(found.broken_off.iter().map(|why| format!("  Broken off {why}")));
    let stopped_by = result.stopped_by();
    if !stopped_by.is_empty() {
        let names: Vec<_> = stopped_by.iter().map(|stop| stop.name()).collect();
        lines.push(format!("  Stopped by: {}", names.join(", ")));
    }
    if stopped_by.contains(&StopReason::Generator) {
        lines.push(
            "  The generator was the limit: the server's knee may be higher. Give klad bench its own cores, or increase --threads."
                .to_owned(),
        );
    }
    lines
}

fn evidence(evidence: &Evidence) -> Vec<String> {
    let which = if evidence.good { "last good" } else { "first bad" };
    let mut words = String::new();
    let profile = evidence.profile.as_deref().unwrap_or("none");
    let _ = write!(words, "  At the {which} rate: CPU profile {profile}; queues in {} samples", evidence.queues.len());
    let mut lines = vec![words];
    lines.extend(evidence.missing.iter().map(|why| format!("    {why}")));
    lines
}
