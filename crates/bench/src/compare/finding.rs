//! The finding of a comparison as data, and the definition of its JSON form. The text and the page are made from this
//! data.
//!
//! Numbers are finite: an unknown value is `null`. Percentages are relative to A; for shares they are percentage
//! points. A change that breaks programs which read the JSON increments the number in [`SCHEMA`]. Called by `judge`
//! (fills), `text`, `page`, `compare` and `klad_lab`.

use serde::Serialize;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "klad.bench.compare/1";

/// The verdict on B, the second side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// B is better at one figure or more, and worse at none.
    Faster,
    /// B is worse at one figure or more, and better at none.
    Slower,
    /// B is better at one figure or more, and worse at another.
    Mixed,
    /// No figure is better or worse, because equal sides could show the same differences.
    NoDifference,
    /// No figure could be judged, because there are no repeats to measure the noise with, or the repeats have too few
    /// samples.
    NotJudged,
}

/// The verdict on one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// B has a shorter time, more goodput, or a smaller share.
    Better,
    /// B has a longer time, less goodput, or a larger share.
    Worse,
    /// The confidence interval of the difference contains 0, or the difference is within the tolerance.
    NoDifference,
    /// The figure was not judged. `why_not` has the reason.
    NotJudged,
}

/// The result of one comparison of B with A.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Always `klad.bench.compare/1`, the name and version of this JSON form.
    pub schema: &'static str,
    /// The version of the klad that made the comparison.
    pub klad_version: &'static str,
    /// The verdict over all figures.
    pub verdict: Verdict,
    /// The verdict in words, with its figures.
    pub sentence: String,
    /// `false` if at least one run is not valid, so that its figures are not reliable.
    pub valid: bool,
    /// The runs that are not valid, with the checks that failed.
    pub not_valid: Vec<String>,
    /// Differences between the settings of the sides, such as another rate or machine, and other warnings, in words.
    pub warnings: Vec<String>,
    /// The runs of A.
    pub a: Vec<Source>,
    /// The runs of B.
    pub b: Vec<Source>,
    /// The repeats that were compared.
    pub repeats: RepeatsUsed,
    /// The confidence of the verdict.
    pub confidence: Confidence,
    /// All figures, in the order of the table.
    pub figures: Vec<FigureFound>,
    /// Half the width of p99's confidence interval, percent: the smallest difference that these runs could show. `null`
    /// if p99 was not judged, or if the interval has no upper end.
    pub smallest_at_p99_percent: Option<f64>,
}

/// A run that was compared.
#[derive(Clone, Debug, Serialize)]
pub struct Source {
    /// The file of the run.
    pub path: String,
    /// The time at which the run began, RFC 3339, UTC.
    pub started_utc: String,
    /// The URL that received the load.
    pub url: String,
    /// The load, in words.
    pub load: String,
    /// The number of requests in the measured part of the run.
    pub requests: u64,
    /// Whether the run is valid.
    pub valid: bool,
}

/// The repeats that were compared.
#[derive(Clone, Debug, Serialize)]
pub struct RepeatsUsed {
    /// `runs` or `pieces`.
    pub kind: &'static str,
    /// `true` if the repeats of A and B were compared in pairs.
    pub paired: bool,
    /// The number of repeats of A.
    pub a: usize,
    /// The number of repeats of B.
    pub b: usize,
    /// A sentence about the repeats, and about what repeats of this kind cannot show.
    pub note: String,
}

/// The confidence of the verdict.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Confidence {
    /// The smallest probability that all confidence intervals contain the true differences, percent.
    pub together_percent: f64,
    /// The probability that the confidence interval of one figure contains the true difference, percent.
    pub each_percent: f64,
    /// The number of figures that were judged.
    pub figures: usize,
    /// The value of `--tolerance`: differences of times and goodput up to this are ignored, percent.
    pub tolerance_percent: f64,
    /// Differences of shares up to this are ignored, percentage points.
    pub share_tolerance_points: f64,
}

/// One figure of both sides, and the verdict on B.
#[derive(Clone, Debug, Serialize)]
pub struct FigureFound {
    /// `p50` to `p99.99`, `max`, `mean`, `goodput`, `refused`, `failed`, `timed_out`, `unfinished`.
    pub figure: String,
    /// `us`, `per_s` or `share`.
    pub unit: &'static str,
    /// The value of A, from all requests of A's runs together.
    pub a: Option<f64>,
    /// The value of B, from all requests of B's runs together.
    pub b: Option<f64>,
    /// The difference B minus A of the means over the repeats: percent of A, or percentage points for shares.
    pub difference_percent: Option<f64>,
    /// The lower end of the confidence interval of the difference, in the unit of `difference_percent`.
    pub low_percent: Option<f64>,
    /// The upper end of the confidence interval of the difference. `null` if the figure was not judged, or if the upper
    /// end is too large to be reported.
    pub high_percent: Option<f64>,
    /// The verdict on B at this figure.
    pub verdict: Judgement,
    /// Why the figure was not judged; `null` if it was judged.
    pub why_not: Option<String>,
}

impl Finding {
    /// Returns the finding as JSON, with a line feed at the end.
    #[must_use]
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a finding has no maps");
        text.push('\n');
        text
    }

    /// Returns the figure with this name, such as `p99`; `None` if the finding does not have it.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<&FigureFound> {
        self.figures.iter().find(|figure| figure.figure == name)
    }
}
