//! What a comparison has found, as data: the definition of its JSON form, and what its text is made from.
//!
//! Numbers are finite: what is not known is `null`. Percentages are of A; of shares they are percentage points. A change that
//! breaks readers counts [`SCHEMA`] up. Called by `judge` (fills), `text` and `compare`.

use serde::Serialize;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "klad.bench.compare/1";

/// Whether B is faster or slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Better at some figure, worse at none.
    Faster,
    /// Worse at some figure, better at none.
    Slower,
    /// Better at some figure, worse at another.
    Mixed,
    /// Nothing that equal sides would not show.
    NoDifference,
    /// There is nothing to tell noise by.
    NotJudged,
}

/// Whether B is better or worse at one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// A shorter time, more goodput, a smaller share.
    Better,
    /// A longer time, less goodput, a larger share.
    Worse,
    /// The interval holds 0, or the difference is within the tolerance.
    NoDifference,
    /// Not judged, for the reason that is given.
    NotJudged,
}

/// A comparison, whole.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// `klad.bench.compare/1`.
    pub schema: &'static str,
    /// Version of klad that compared.
    pub klad_version: &'static str,
    /// Overall.
    pub verdict: Verdict,
    /// The verdict in words, with the figures that it rests on.
    pub sentence: String,
    /// `false`: at least one run is not valid, and its figures are not to be believed.
    pub valid: bool,
    /// Runs that are not valid, with the checks that failed.
    pub not_valid: Vec<String>,
    /// What differs beside what is compared, in words.
    pub warnings: Vec<String>,
    /// The runs of A.
    pub a: Vec<Source>,
    /// The runs of B.
    pub b: Vec<Source>,
    /// What repeats each other.
    pub repeats: RepeatsUsed,
    /// How often a difference is called one where there is none.
    pub confidence: Confidence,
    /// Each figure, in the order of the table.
    pub figures: Vec<FigureFound>,
    /// Half the width of p99's interval: a smaller difference these runs could not have shown. `null` when it was not judged.
    pub smallest_at_p99_percent: Option<f64>,
}

/// A run that was compared.
#[derive(Clone, Debug, Serialize)]
pub struct Source {
    /// The file.
    pub path: String,
    /// When it was started, RFC 3339, UTC.
    pub started_utc: String,
    /// What it was sent to.
    pub url: String,
    /// The load, in words.
    pub load: String,
    /// Requests of its measured part.
    pub requests: u64,
    /// Whether its checks were passed.
    pub valid: bool,
}

/// What was taken for repeats.
#[derive(Clone, Debug, Serialize)]
pub struct RepeatsUsed {
    /// `runs` or `pieces`.
    pub kind: &'static str,
    /// Whether they were compared in pairs.
    pub paired: bool,
    /// How many A has.
    pub a: usize,
    /// How many B has.
    pub b: usize,
    /// The same in words, and what such repeats do not know.
    pub note: String,
}

/// How sure the verdict is.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Confidence {
    /// That no interval of all figures together misses its true difference, percent.
    pub together_percent: f64,
    /// That the interval of one figure does not, percent.
    pub each_percent: f64,
    /// Figures that were judged.
    pub figures: usize,
    /// `--tolerance`: differences of times and goodput up to this do not matter, percent.
    pub tolerance_percent: f64,
    /// Differences of shares up to this do not matter, percentage points.
    pub share_tolerance_points: f64,
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct FigureFound {
    /// `p50` to `p99.99`, `max`, `mean`, `goodput`, `refused`, `failed`, `timed_out`, `unfinished`.
    pub figure: String,
    /// `us`, `per_s` or `share`.
    pub unit: &'static str,
    /// Of A, all its runs together.
    pub a: Option<f64>,
    /// Of B, all its runs together.
    pub b: Option<f64>,
    /// How much more B has than A, by the mean over repeats: percent, or percentage points of shares.
    pub difference_percent: Option<f64>,
    /// Lower end of the interval in which the true difference lies.
    pub low_percent: Option<f64>,
    /// Upper end.
    pub high_percent: Option<f64>,
    /// Better or worse.
    pub verdict: Judgement,
    /// Why it was not judged.
    pub why_not: Option<String>,
}

impl Finding {
    /// As JSON, with a line feed at its end.
    #[must_use]
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("it has no maps");
        text.push('\n');
        text
    }

    /// A figure by its name.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<&FigureFound> {
        self.figures.iter().find(|figure| figure.figure == name)
    }
}
