//! One level of the search: what its run has found, and what stopped it. Called by `knee`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::recorder::Outcome;
use super::super::result::{RunResult, Section, Slo};
use super::super::text::time_us;
use super::result::{Purpose, Stop};

/// Checks of a run whose failing means that the generator was not up to it. `rate` is not among them: that starts were not sent
/// because all connections were busy is the server's doing.
const GENERATOR_CHECKS: [&str; 4] = ["send_lag", "generator_cpu", "connections", "machine_limits"];

/// A run at one rate.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Level {
    /// The rate that was asked for, per second.
    pub rate_per_s: f64,
    /// Why it was run.
    pub purpose: Purpose,
    /// Whether every objective was met, and the generator was up to it.
    pub good: bool,
    /// What was not met: empty when it was good.
    pub stopped_by: Vec<Stop>,
    /// The same in words, with figures.
    pub reasons: Vec<String>,
    /// Each objective.
    pub slo: Slo,
    /// Requests whose intended start lies after the level's warm-up.
    pub measured: Section,
}

impl Level {
    /// Judges a run.
    pub(super) fn of(rate_per_s: f64, purpose: Purpose, run: &RunResult) -> Level {
        let slo = run.slo.clone().expect("every level has objectives");
        let (mut stopped_by, mut reasons) = (Vec::new(), Vec::new());
        for check in run.checks.iter().filter(|check| !check.passed && GENERATOR_CHECKS.contains(&check.name.as_str()))
        {
            stopped_by.push(Stop::Generator);
            reasons.push(format!("{}: {}", check.name, check.detail));
        }
        for objective in slo.objectives.iter().filter(|objective| !objective.met) {
            stopped_by.push(Stop::of(objective.concern));
            let measured = objective.measured.as_deref().unwrap_or("nothing was measured");
            reasons.push(format!("{}: {measured}", objective.text));
        }
        stopped_by.sort();
        stopped_by.dedup();
        Level {
            rate_per_s,
            purpose,
            good: reasons.is_empty(),
            stopped_by,
            reasons,
            slo,
            measured: run.measured.clone(),
        }
    }

    /// Share of requests with one of these outcomes, 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    pub(super) fn share_of(&self, outcomes: &[Outcome]) -> f64 {
        let count: u64 = outcomes.iter().filter_map(|outcome| self.measured.outcomes.get(outcome)).sum();
        count as f64 / self.measured.scheduled.max(1) as f64
    }

    /// In a line.
    pub(super) fn line(&self) -> String {
        let at = |percentile| {
            let point = self.measured.response.at(percentile);
            point.map_or_else(|| "-".to_owned(), |point| time_us(point.value_us))
        };
        let verdict = if self.good { "good".to_owned() } else { self.reasons.join("; ") };
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
