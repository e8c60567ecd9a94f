//! The figures that are compared, of a repeat or of a whole side. Called by `judge` and `klad_lab`.

use std::collections::BTreeMap;

use anyhow::Context as _;
use hdrhistogram::Histogram;

use crate::recorder::{Outcome, histogram};
use crate::result::{Percentile, Piece, SAMPLES_ABOVE_MIN, Section, micros};

/// The percentiles that a comparison judges, if there are enough samples.
pub const PERCENTILES: [f64; 7] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99];

/// The outcomes whose shares a comparison judges. Response times alone would not be fair: a server that rejects half of
/// its requests may answer the others quickly.
const SHARES: [Outcome; 4] = [Outcome::Refused, Outcome::Failed, Outcome::TimedOut, Outcome::Unfinished];

/// A figure that is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    /// The response time that this percentage of the requests does not exceed.
    Percentile(f64),
    /// The mean response time.
    Mean,
    /// The maximum response time. The maximum depends on a single request, so it is shown but not judged.
    Max,
    /// Good answers per second.
    Goodput,
    /// The share of requests with this outcome among all requests that ended.
    Share(Outcome),
}

/// The unit of a figure, and whether more or less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds. Less is better.
    Micros,
    /// Good answers per second. More is better.
    PerSecond,
    /// A share of the requests, from 0 to 1. Less is better.
    Share,
}

impl Figure {
    /// All figures, in the order of the table.
    #[must_use]
    pub fn all() -> Vec<Figure> {
        let percentiles = PERCENTILES.into_iter().map(Figure::Percentile);
        let others = [Figure::Max, Figure::Mean, Figure::Goodput];
        percentiles.chain(others).chain(SHARES.into_iter().map(Figure::Share)).collect()
    }

    /// The name in tables and JSON: `p99.9`, `mean`, `goodput`, `refused`.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Figure::Percentile(percent) => percentile_name(percent),
            Figure::Mean => "mean".to_owned(),
            Figure::Max => "max".to_owned(),
            Figure::Goodput => "goodput".to_owned(),
            Figure::Share(outcome) => outcome.name().to_owned(),
        }
    }

    /// The unit of the figure.
    #[must_use]
    pub fn unit(self) -> Unit {
        match self {
            Figure::Percentile(_) | Figure::Mean | Figure::Max => Unit::Micros,
            Figure::Goodput => Unit::PerSecond,
            Figure::Share(_) => Unit::Share,
        }
    }

    /// Returns the value of the figure in the unit of [`Figure::unit`]; `None` if there is no request to compute it
    /// from.
    #[must_use]
    pub fn value(self, observed: &Observed) -> Option<f64> {
        let response = &observed.response;
        let any = !response.is_empty();
        match self {
            Figure::Percentile(percent) => any.then(|| Percentile::of(response, percent).value_us),
            Figure::Mean => any.then(|| response.mean() / 1e3),
            Figure::Max => any.then(|| micros(response.max())),
            Figure::Goodput => Some(observed.goodput_per_s()),
            Figure::Share(outcome) => observed.share(outcome),
        }
    }

    /// Returns why this figure cannot be judged from `repeat`; `None` if it can be judged.
    #[must_use]
    pub fn lacks(self, repeat: &Observed) -> Option<String> {
        match self {
            Figure::Max => Some("the value of a single request".to_owned()),
            Figure::Percentile(_) | Figure::Mean if repeat.response.is_empty() => {
                Some("a repeat without a response".to_owned())
            }
            Figure::Percentile(percent) => {
                let above = Percentile::of(&repeat.response, percent).samples_above;
                let too_few = above < SAMPLES_ABOVE_MIN;
                too_few.then(|| format!("a repeat with {above} samples above, {SAMPLES_ABOVE_MIN} are needed"))
            }
            Figure::Share(_) if repeat.ended() == 0 => Some("a repeat without a request".to_owned()),
            Figure::Mean | Figure::Goodput | Figure::Share(_) => None,
        }
    }
}

/// Returns the name of a percentile, such as `p99.9`.
#[must_use]
pub fn percentile_name(percent: f64) -> String {
    format!("p{percent}")
}

/// The sums over the requests of a repeat (a run or a piece of a run), or of a whole side.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Response times as in `Section::response`, nanoseconds.
    pub response: Histogram<u64>,
    /// The number of good answers.
    good: f64,
    /// The time in which the requests ended, seconds.
    seconds: f64,
    /// The number of requests with each outcome.
    outcomes: BTreeMap<Outcome, u64>,
}

impl Observed {
    /// Returns the sums of no requests, in a time of length 0.
    #[must_use]
    pub fn nothing() -> Observed {
        Observed { response: histogram(), good: 0.0, seconds: 0.0, outcomes: BTreeMap::new() }
    }

    /// Returns the requests of the measured part of a run.
    ///
    /// # Errors
    /// If the histogram of the measured part cannot be read.
    pub fn of_section(section: &Section) -> anyhow::Result<Observed> {
        let response = section.response.to_histogram().context("the histogram of its response times is damaged")?;
        let (good, outcomes) = (section.goodput_per_s * section.duration_s, section.outcomes.clone());
        Ok(Observed { response, good, seconds: section.duration_s, outcomes })
    }

    /// Returns the requests of a piece of a run.
    ///
    /// # Errors
    /// If the histogram of the piece cannot be read.
    pub fn of_piece(piece: &Piece) -> anyhow::Result<Observed> {
        let response = piece.response.to_histogram().context("the histogram of a piece is damaged")?;
        let (good, outcomes) = (piece.goodput_per_s * piece.length_s, piece.outcomes.clone());
        Ok(Observed { response, good, seconds: piece.length_s, outcomes })
    }

    /// Adds the requests of `other`.
    pub fn add(&mut self, other: &Observed) {
        self.response.add(&other.response).expect("it grows");
        self.good += other.good;
        self.seconds += other.seconds;
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(*outcome).or_insert(0) += count;
        }
    }

    /// The number of requests that ended.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.outcomes.values().sum()
    }

    /// Returns the share of requests with this outcome among all requests that ended; `None` if none ended.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    pub fn share(&self, outcome: Outcome) -> Option<f64> {
        let (all, own) = (self.ended(), self.outcomes.get(&outcome).copied().unwrap_or(0));
        (all > 0).then(|| own as f64 / all as f64)
    }

    /// Returns the number of good answers per second; 0 if the time has length 0.
    #[must_use]
    pub fn goodput_per_s(&self) -> f64 {
        if self.seconds > 0.0 { self.good / self.seconds } else { 0.0 }
    }

    /// The number of good answers.
    #[must_use]
    pub fn good(&self) -> f64 {
        self.good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(count: u64) -> Observed {
        let mut observed = Observed::nothing();
        observed.response.record_n(1_000_000, count).expect("in range");
        observed
    }

    #[test]
    fn a_percentile_needs_samples_above_it_and_the_maximum_is_never_judged() {
        assert_eq!(Figure::Percentile(99.0).lacks(&observed(1_000)), None);
        assert!(Figure::Percentile(99.0).lacks(&observed(999)).expect("too few").contains("9 samples above"));
        assert!(Figure::Percentile(50.0).lacks(&observed(0)).is_some() && Figure::Mean.lacks(&observed(0)).is_some());
        assert!(Figure::Max.lacks(&observed(1_000_000)).is_some());
        assert_eq!(Figure::Goodput.lacks(&observed(0)), None, "without answers the goodput is 0");
    }

    #[test]
    fn requests_are_added_up() {
        let mut all = Observed { seconds: 1.0, good: 10.0, ..observed(10) };
        all.outcomes.insert(Outcome::Served, 10);
        let mut other = Observed { seconds: 3.0, good: 0.0, ..observed(30) };
        other.outcomes.insert(Outcome::Refused, 30);
        all.add(&other);
        assert_eq!((all.ended(), all.share(Outcome::Refused), all.response.len()), (40, Some(0.75), 40));
        assert!((all.goodput_per_s() - 2.5).abs() < 1e-9);
        assert_eq!(Figure::Share(Outcome::Failed).value(&Observed::nothing()), None);
        assert_eq!(Figure::Percentile(99.9).name(), "p99.9");
    }
}
