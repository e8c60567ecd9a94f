//! One level of the search: the result of its run, and why it is not good. Called by `knee`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::knee::result::{Purpose, StopReason};
use crate::recorder::Outcome;
use crate::result::{RunResult, Section, Slo};
use crate::text::time_at;

/// The checks of a run that make a level bad, each with the reason that is reported. The check `rate` is not in this
/// list: if requests were not sent because all connections were busy, the server was the cause, and the response times
/// show it. The server is also the cause of missing connections, unless the check `machine_limits` has failed too.
const CHECKS: [(&str, StopReason); 4] = [
    ("send_lag", StopReason::Generator),
    ("generator_cpu", StopReason::Generator),
    ("machine_limits", StopReason::Generator),
    ("connections", StopReason::Failures),
];

/// A run of the search at one rate.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Level {
    /// The scheduled rate, per second.
    pub rate_per_s: f64,
    /// Why the level was run.
    pub purpose: Purpose,
    /// Whether every objective was met and the generator could make the load.
    pub good: bool,
    /// `false` if the search ignores this run, because the generator could not make the load and the level was
    /// repeated.
    #[serde(default = "counted")]
    pub counted: bool,
    /// Why the level is not good; empty if it is good.
    pub stopped_by: Vec<StopReason>,
    /// Why the level is not good, in words with figures; empty if it is good.
    pub reasons: Vec<String>,
    /// The objectives, and whether they were met.
    pub slo: Slo,
    /// Requests with an intended start after the level's warm-up.
    pub measured: Section,
}

fn counted() -> bool {
    true
}

impl Level {
    /// Marks the level as one that the search ignores, because it was repeated.
    pub(super) fn not_counted(self) -> Level {
        Level { counted: false, ..self }
    }

    /// Returns `true` if the generator could not make the load, so that the server's limit is unknown.
    pub(super) fn is_of_generator(&self) -> bool {
        self.stopped_by.contains(&StopReason::Generator)
    }

    /// The verdict in words: `good`, or why the level is not good.
    pub(super) fn verdict(&self) -> String {
        match (self.good, self.counted) {
            (true, _) => "good".to_owned(),
            (false, true) => self.reasons.join("; "),
            (false, false) => format!("run again: {}", self.reasons.join("; ")),
        }
    }

    /// Judges a run at `rate_per_s`, and returns its level.
    pub(super) fn of(rate_per_s: f64, purpose: Purpose, run: &RunResult) -> Level {
        let slo = run.slo.clone().expect("every level has objectives");
        let (mut stopped_by, mut reasons) = (Vec::new(), Vec::new());
        for check in run.checks.iter().filter(|check| !check.passed) {
            let Some((_, stop)) = CHECKS.iter().find(|(name, _)| *name == check.name) else { continue };
            stopped_by.push(*stop);
            reasons.push(format!("{}: {}", check.name, check.detail));
        }
        for objective in slo.objectives.iter().filter(|objective| !objective.met) {
            stopped_by.push(StopReason::of(objective.concern));
            let measured = objective.measured.as_deref().unwrap_or("nothing was measured");
            reasons.push(format!("{}: {measured}", objective.text));
        }
        stopped_by.sort();
        stopped_by.dedup();
        Level {
            rate_per_s,
            purpose,
            good: reasons.is_empty(),
            counted: true,
            stopped_by,
            reasons,
            slo,
            measured: run.measured.clone(),
        }
    }

    /// The share of requests with one of these outcomes, from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    pub(super) fn share_of(&self, outcomes: &[Outcome]) -> f64 {
        let count: u64 = outcomes.iter().filter_map(|outcome| self.measured.outcomes.get(outcome)).sum();
        count as f64 / self.measured.scheduled.max(1) as f64
    }

    /// Describes the level in one line.
    pub(super) fn line(&self) -> String {
        let at = |percentile| time_at(&self.measured.response, percentile);
        let verdict = self.verdict();
        format!(
            "{:>10.0}/s  goodput {:>10.1}/s  p50 {:>9}  p99 {:>9}  {:<8} {verdict}",
            self.rate_per_s,
            self.measured.goodput_per_s,
            at(50.0),
            at(99.0),
            self.purpose.name()
        )
    }
}
