//! One level of the search: what its run has found, and what stopped it. Called by `knee`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::knee::result::{Purpose, Stop};
use crate::recorder::Outcome;
use crate::result::{RunResult, Section, Slo};
use crate::text::time_us;

/// Checks of a run, and what their failing stands for. `rate` is not among them: that starts were not sent because all connections
/// were busy is the server's doing, and shows in response times. Connections that were not made are the server's doing too, unless
/// `machine_limits` has failed with them.
const CHECKS: [(&str, Stop); 4] = [
    ("send_lag", Stop::Generator),
    ("generator_cpu", Stop::Generator),
    ("machine_limits", Stop::Generator),
    ("connections", Stop::Failures),
];

/// A run at one rate.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Level {
    /// The rate that was asked for, per second.
    pub rate_per_s: f64,
    /// Why it was run.
    pub purpose: Purpose,
    /// Whether every objective was met, and the generator was up to it.
    pub good: bool,
    /// `false`: the generator was not up to it, and the rate was run again; the search knows nothing of this run.
    #[serde(default = "counted")]
    pub counted: bool,
    /// What was not met: empty when it was good.
    pub stopped_by: Vec<Stop>,
    /// The same in words, with figures.
    pub reasons: Vec<String>,
    /// Each objective.
    pub slo: Slo,
    /// Requests whose intended start lies after the level's warm-up.
    pub measured: Section,
}

fn counted() -> bool {
    true
}

impl Level {
    /// The same, run again because of the generator.
    pub(super) fn not_counted(self) -> Level {
        Level { counted: false, ..self }
    }

    /// Whether what the server would have done is not known.
    pub(super) fn is_of_generator(&self) -> bool {
        self.stopped_by.contains(&Stop::Generator)
    }

    /// For people.
    pub(super) fn verdict(&self) -> String {
        match (self.good, self.counted) {
            (true, _) => "good".to_owned(),
            (false, true) => self.reasons.join("; "),
            (false, false) => format!("run again: {}", self.reasons.join("; ")),
        }
    }

    /// Judges a run.
    pub(super) fn of(rate_per_s: f64, purpose: Purpose, run: &RunResult) -> Level {
        let slo = run.slo.clone().expect("every level has objectives");
        let (mut stopped_by, mut reasons) = (Vec::new(), Vec::new());
        for check in run.checks.iter().filter(|check| !check.passed) {
            let Some((_, stop)) = CHECKS.iter().find(|(name, _)| *name == check.name) else { continue };
            stopped_by.push(*stop);
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
            counted: true,
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
