//! The figures of a variant in a stage: all runs that count, together. Called by `stage`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conclusion::words;
use crate::seen::{Seen, Trust, mean};
use klad_bench::compare::figures::Figure;
use klad_bench::recorder::Outcome;
use klad_bench::result::{Distribution, RunResult};

/// Less of what was asked for than this being answered, in whatever way, the variant did not keep up.
const KEEPS_UP: f64 = 0.98;

/// Shares of requests that were refused or failed, up to this, make nobody quicker.
const SHED_UNTOLD: f64 = 0.001;

/// How far figures can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Validity {
    /// The runs passed the checks of the generator on itself.
    Valid,
    /// Not all requests could be sent, because all connections were busy; they count at their age.
    Overloaded,
    /// No run is valid, and the figures are not to be believed.
    NotValid,
    /// There is no run.
    NotMeasured,
}

/// A variant's figures.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Standing {
    /// Its name.
    pub variant: String,
    /// Runs that were made.
    pub runs: usize,
    /// Runs that the figures are of.
    pub used: usize,
    /// How far they can be believed.
    pub validity: Validity,
    /// Asked for, per second; `null` for a closed load.
    pub offered_per_s: Option<f64>,
    /// Answers of any kind, per second.
    pub answered_per_s: Option<f64>,
    /// Good answers, per second.
    pub goodput_per_s: Option<f64>,
    /// Response times of all runs together, microseconds, from the intended start.
    pub mean_us: Option<f64>,
    /// Median.
    pub p50_us: Option<f64>,
    /// 99 %.
    pub p99_us: Option<f64>,
    /// 99.9 %.
    pub p999_us: Option<f64>,
    /// 99.99 %.
    pub p9999_us: Option<f64>,
    /// The longest.
    pub max_us: Option<f64>,
    /// Percentiles, of these, that fewer than ten samples lie above.
    pub weak: Vec<String>,
    /// Requests.
    pub requests: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests that had no answer in time, or none at all.
    pub unanswered: u64,
    /// How late the latest in a thousand requests were sent, in the worst run, microseconds; it is part of their response times.
    pub send_lag_p999_us: Option<f64>,
    /// CPU time of the server by served requests, microseconds, mean over the runs.
    pub cpu_us_per_served: Option<f64>,
    /// The largest resident set of the server.
    pub memory_max_bytes: Option<u64>,
}

impl Standing {
    pub(super) fn of(seen: &Seen) -> Standing {
        let percentile = |percent| seen.figure(Figure::Percentile(percent));
        let distribution = Distribution::of(&seen.all.response);
        let is_weak = |percent: &f64| distribution.at(*percent).is_some_and(|point| !point.enough);
        let weak = [50.0, 99.0, 99.9, 99.99].into_iter().filter(is_weak);
        Standing {
            variant: seen.name().to_owned(),
            runs: seen.variant.runs.len(),
            used: seen.used.len(),
            validity: match seen.trust {
                Trust::Valid => Validity::Valid,
                Trust::Overloaded => Validity::Overloaded,
                Trust::NotValid => Validity::NotValid,
                Trust::NotMeasured => Validity::NotMeasured,
            },
            offered_per_s: seen.mean(|bench| bench.measured.scheduled_per_s).filter(|_| is_open(seen)),
            answered_per_s: seen.mean(|bench| bench.measured.answered_per_s),
            goodput_per_s: seen.figure(Figure::Goodput),
            mean_us: seen.figure(Figure::Mean),
            p50_us: percentile(50.0),
            p99_us: percentile(99.0),
            p999_us: percentile(99.9),
            p9999_us: percentile(99.99),
            max_us: seen.figure(Figure::Max),
            weak: weak.map(|percent| Figure::Percentile(percent).name()).collect(),
            requests: seen.all.ended(),
            refused: seen.count(&[Outcome::Refused]),
            failed: seen.count(&[Outcome::Failed]),
            unanswered: seen.count(&[Outcome::TimedOut, Outcome::Unfinished]),
            send_lag_p999_us: seen.send_lag(),
            cpu_us_per_served: mean(&seen.cpu()),
            memory_max_bytes: seen.used.iter().filter_map(|(run, _)| run.server_memory_max_bytes).max(),
        }
    }

    /// Its name; with what it has refused or failed, where that is more than one request in a thousand: who sheds load is
    /// quick with the rest, and does not win without that being said.
    #[must_use]
    pub fn label(&self) -> String {
        match self.share(self.refused + self.failed).filter(|share| *share > SHED_UNTOLD) {
            Some(share) => format!("{} ({} refused or failed)", self.variant, words::percent(share)),
            None => self.variant.clone(),
        }
    }

    /// Requests that were refused, of all, 0 to 1; `None` without any.
    #[must_use]
    pub fn refused_share(&self) -> Option<f64> {
        self.share(self.refused)
    }

    /// A number of its requests, as a share of all.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    pub fn share(&self, number: u64) -> Option<f64> {
        (self.requests > 0).then(|| number as f64 / self.requests as f64)
    }

    /// Whether it answered markedly less than it was asked; a refusal is an answer.
    #[must_use]
    pub fn falls_behind(&self) -> bool {
        self.answered_per_s.zip(self.offered_per_s).is_some_and(|(answered, offered)| answered < offered * KEEPS_UP)
    }
}

fn is_open(seen: &Seen) -> bool {
    let open = |bench: &RunResult| bench.load.mode == klad_bench::schedule::Mode::Open;
    seen.used.iter().all(|(_, bench)| open(bench))
}
