//! The figures of a variant in a stage, from all used runs together. Called by `stage`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conclusion::words;
use crate::variant_runs::{Validity, VariantRuns, mean};
use klad_bench::compare::figures::Figure;
use klad_bench::recorder::Outcome;
use klad_bench::result::{Distribution, RunResult};

/// A variant that answers a smaller share of the offered requests falls behind. A refused request counts as answered.
const KEEPS_UP: f64 = 0.98;

/// If the share of refused and failed requests is larger, sentences name it beside the variant.
const SHED_UNNAMED: f64 = 0.001;

/// The figures of a variant in a stage.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Standing {
    /// The variant.
    pub variant: String,
    /// The number of runs.
    pub runs: usize,
    /// The number of runs that the figures are made from.
    pub used: usize,
    /// How far the figures can be trusted.
    pub validity: Validity,
    /// Offered requests per second; `null` for a closed load.
    pub offered_per_s: Option<f64>,
    /// Answers of any kind per second.
    pub answered_per_s: Option<f64>,
    /// Good answers per second.
    pub goodput_per_s: Option<f64>,
    /// The mean response time from the intended start, microseconds.
    pub mean_us: Option<f64>,
    /// The median, microseconds.
    pub p50_us: Option<f64>,
    /// The 99th percentile, microseconds.
    pub p99_us: Option<f64>,
    /// The 99.9th percentile, microseconds.
    pub p999_us: Option<f64>,
    /// The 99.99th percentile, microseconds.
    pub p9999_us: Option<f64>,
    /// The longest response time, microseconds.
    pub max_us: Option<f64>,
    /// The percentiles with fewer than ten samples above them.
    pub weak: Vec<String>,
    /// The number of requests in the used runs.
    pub requests: u64,
    /// The number of refused requests.
    pub refused: u64,
    /// The number of failed requests.
    pub failed: u64,
    /// The number of requests without an answer in time.
    pub unanswered: u64,
    /// The 99.9th percentile of how late requests were sent, in the worst run, microseconds. Response times include it.
    pub send_lag_p999_us: Option<f64>,
    /// CPU time of the server per served request, microseconds, mean over the runs.
    pub cpu_us_per_served: Option<f64>,
    /// The largest resident set of the server, bytes.
    pub memory_max_bytes: Option<u64>,
}

impl Standing {
    pub(super) fn of(variant: &VariantRuns) -> Standing {
        let percentile = |percent| variant.figure(Figure::Percentile(percent));
        let distribution = Distribution::of(&variant.pooled.response);
        let is_weak = |percent: &f64| distribution.at(*percent).is_some_and(|point| !point.enough);
        let weak = [50.0, 99.0, 99.9, 99.99].into_iter().filter(is_weak);
        Standing {
            variant: variant.name().to_owned(),
            runs: variant.result.runs.len(),
            used: variant.used.len(),
            validity: variant.validity,
            offered_per_s: variant.mean(|bench| bench.measured.scheduled_per_s).filter(|_| is_open(variant)),
            answered_per_s: variant.mean(|bench| bench.measured.answered_per_s),
            goodput_per_s: variant.figure(Figure::Goodput),
            mean_us: variant.figure(Figure::Mean),
            p50_us: percentile(50.0),
            p99_us: percentile(99.0),
            p999_us: percentile(99.9),
            p9999_us: percentile(99.99),
            max_us: variant.figure(Figure::Max),
            weak: weak.map(|percent| Figure::Percentile(percent).name()).collect(),
            requests: variant.pooled.ended(),
            refused: variant.count(&[Outcome::Refused]),
            failed: variant.count(&[Outcome::Failed]),
            unanswered: variant.count(&[Outcome::TimedOut, Outcome::Unfinished]),
            send_lag_p999_us: variant.send_lag(),
            cpu_us_per_served: mean(&variant.cpu()),
            memory_max_bytes: variant.used.iter().filter_map(|(run, _)| run.server_memory_max_bytes).max(),
        }
    }

    /// Returns the name of the variant, with its share of refused and failed requests where that is above 0.1 %: a
    /// server that sheds load answers the rest quickly, and must not win without that being said.
    #[must_use]
    pub fn label(&self) -> String {
        match self.share(self.refused + self.failed).filter(|share| *share > SHED_UNNAMED) {
            Some(share) => format!("{} ({} refused or failed)", self.variant, words::percent(share)),
            None => self.variant.clone(),
        }
    }

    /// Returns the share of refused requests, 0 to 1; `None` without requests.
    #[must_use]
    pub fn refused_share(&self) -> Option<f64> {
        self.share(self.refused)
    }

    /// Returns a number of requests as a share of all, 0 to 1; `None` without requests.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    pub fn share(&self, number: u64) -> Option<f64> {
        (self.requests > 0).then(|| number as f64 / self.requests as f64)
    }

    /// Returns whether the variant answered less than 98 % of the offered requests; a refused request is answered.
    #[must_use]
    pub fn falls_behind(&self) -> bool {
        self.answered_per_s.zip(self.offered_per_s).is_some_and(|(answered, offered)| answered < offered * KEEPS_UP)
    }
}

fn is_open(variant: &VariantRuns) -> bool {
    let open = |bench: &RunResult| bench.load.mode == klad_bench::schedule::Mode::Open;
    variant.used.iter().all(|(_, bench)| open(bench))
}
