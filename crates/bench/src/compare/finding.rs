//! The finding of a comparison as data: the definition of its JSON form. The text and the page are made from it.
//!
//! Numbers are finite: an unknown value is `null`. Percentages are relative to A; for shares they are percentage
//! points. A change that breaks readers increments the number in [`SCHEMA`]. Called by `judge` (fills), `text`,
//! `page`, `compare` and `klad_lab`.

use serde::Serialize;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "klad.bench.compare/1";

/// The verdict on B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// B is better at one figure or more, worse at none.
    Faster,
    /// B is worse at one figure or more, better at none.
    Slower,
    /// B is better at one figure or more, and worse at another.
    Mixed,
    /// No figure is better or worse: equal sides could show the same differences.
    NoDifference,
    /// No figure could be judged: there are no repeats to measure the noise by, or they have too few samples.
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
    /// The interval contains 0, or the difference is within the tolerance.
    NoDifference,
    /// Not judged; `why_not` has the reason.
    NotJudged,
}

/// The finding of one comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// `klad.bench.compare/1`.
    pub schema: &'static str,
    /// The version of the klad that compared.
    pub klad_version: &'static str,
    /// The verdict over all figures.
    pub verdict: Verdict,
    /// The verdict in words, with its figures.
    pub sentence: String,
    /// `false` if at least one run is not valid: its figures are not reliable.
    pub valid: bool,
    /// The runs that are not valid, with the checks that failed.
    pub not_valid: Vec<String>,
    /// Differences between the sides that are not in figures, such as another rate or machine, and other warnings, in
    /// words.
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
    /// Half the width of p99's interval: these runs could not show a smaller difference. `null` if p99 was not
    /// judged, or if the interval has no upper end.
    pub smallest_at_p99_percent: Option<f64>,
}

/// A run that was compared.
#[derive(Clone, Debug, Serialize)]
pub struct Source {
    /// The file of the run.
    pub path: String,
    /// The start of the run, RFC 3339, UTC.
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
    /// Whether repeats were compared in pairs.
    pub paired: bool,
    /// The number of repeats of A.
    pub a: usize,
    /// The number of repeats of B.
    pub b: usize,
    /// The repeats in words, and what such repeats cannot show.
    pub note: String,
}

/// The confidence of the verdict.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Confidence {
    /// The probability, at least, that the intervals of all figures contain the true differences, percent.
    pub together_percent: f64,
    /// The probability for the interval of one figure, percent.
    pub each_percent: f64,
    /// The number of figures that were judged.
    pub figures: usize,
    /// `--tolerance`: differences of times and goodput up to this are ignored, percent.
    pub tolerance_percent: f64,
    /// Differences of shares up to this are ignored, percentage points.
    pub share_tolerance_points: f64,
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct FigureFound {
    /// `p50` to `p99.99`, `max`, `mean`, `goodput`, `refused`, `failed`, `timed_out`, `unfinished`.
    pub figure: String,
    /// `us`, `per_s` or `share`.
    pub unit: &'static str,
    /// The value of A, over all its runs together.
    pub a: Option<f64>,
    /// The value of B, over all its runs together.
    pub b: Option<f64>,
    /// B minus A, by the mean over the repeats: percent, or percentage points for shares.
    pub difference_percent: Option<f64>,
    /// The lower end of the confidence interval of the difference; the unit is that of `difference_percent`.
    pub low_percent: Option<f64>,
    /// The upper end of the confidence interval; `null` also if it is too large to be reported.
    pub high_percent: Option<f64>,
    /// Whether B is better or worse.
    pub verdict: Judgement,
    /// Why the figure was not judged.
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

    /// Returns a figure by its name.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<&FigureFound> {
        self.figures.iter().find(|figure| figure.figure == name)
    }
}
