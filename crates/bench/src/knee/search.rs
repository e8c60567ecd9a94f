//! Chooses the next rate in the search for the highest good rate. The rate doubles until a rate is bad. If the first
//! rate is bad, the rate is halved until a rate is good. Then the range between the last good and the first bad rate is
//! divided until the range is narrow enough. Then both rates are run again, because a single run may be an outlier.
//!
//! This module knows nothing about servers: it receives the results of runs and returns the next rate. Called by
//! `knee`.

use std::cmp::Ordering;

/// The largest number of runs in a search.
const RUNS_MAX: usize = 80;

/// The limits of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The first rate, per second.
    pub from: f64,
    /// The highest rate, per second.
    pub to: f64,
    /// The lowest rate, per second.
    pub least: f64,
    /// The precision: the first bad rate is at most this share, from 0 to 1, above the last good rate.
    pub precision: f64,
    /// The number of runs of the last good rate, and of the first bad rate.
    pub repeats: usize,
}

/// Why a rate is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To find a bad rate, or a good rate below the first bad one.
    Ramp,
    /// To narrow the range between the last good and the first bad rate.
    Bisect,
    /// To confirm that an earlier run was not an outlier.
    Repeat,
}

/// The next step of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Measure this rate.
    Measure(f64, Purpose),
    /// End the search.
    Done(SearchOutcome),
}

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SearchOutcome {
    /// The knee lies between these two rates, which differ by no more than the precision.
    Knee {
        /// The highest good rate.
        good: f64,
        /// The lowest bad rate.
        bad: f64,
    },
    /// All measured rates are good, including the highest allowed rate.
    NotReached {
        /// The highest allowed rate.
        good: f64,
    },
    /// All measured rates are bad, including the lowest allowed rate.
    NoneGood {
        /// The lowest rate that was measured.
        bad: f64,
    },
    /// The search found no knee. Either runs at the same rate differ so much that the largest number of runs was used
    /// up, or an error ended the search.
    Unsteady {
        /// The highest good rate below `bad`, if there is one.
        good: Option<f64>,
        /// The lowest rate at which good runs were not the majority, if there is one.
        bad: Option<f64>,
    },
}

/// A search in progress.
#[derive(Clone, Debug)]
pub struct Search {
    bounds: Bounds,
    /// The rates that were measured, in ascending order, with their good and bad runs.
    rates: Vec<Rate>,
    runs: usize,
}

#[derive(Clone, Copy, Debug)]
struct Rate {
    per_s: f64,
    good: usize,
    bad: usize,
}

impl Rate {
    /// Returns `true` if more runs were good than bad. A draw counts as bad, because most runs at a good rate must be
    /// good.
    fn is_good(&self) -> bool {
        self.good > self.bad
    }

    fn runs(&self) -> usize {
        self.good + self.bad
    }
}

impl Search {
    /// Creates a search before its first run.
    #[must_use]
    pub fn new(bounds: Bounds) -> Search {
        Search { bounds, rates: Vec::new(), runs: 0 }
    }

    /// Adds a run at the rate `per_s`, and whether it was good.
    pub fn add(&mut self, per_s: f64, good: bool) {
        self.runs += 1;
        let at = self.rates.iter().position(|rate| rate.per_s.total_cmp(&per_s) != Ordering::Less);
        let at = at.unwrap_or(self.rates.len());
        if self.rates.get(at).is_none_or(|rate| rate.per_s.total_cmp(&per_s) != Ordering::Equal) {
            self.rates.insert(at, Rate { per_s, good: 0, bad: 0 });
        }
        let rate = &mut self.rates[at];
        if good {
            rate.good += 1;
        } else {
            rate.bad += 1;
        }
    }

    /// Returns the numbers of good and bad runs at a rate.
    #[must_use]
    pub fn tally(&self, per_s: f64) -> (usize, usize) {
        let rate = self.rates.iter().find(|rate| rate.per_s.total_cmp(&per_s) == Ordering::Equal);
        rate.map_or((0, 0), |rate| (rate.good, rate.bad))
    }

    /// Returns the highest good rate below the lowest bad one, and the lowest bad rate.
    fn edge(&self) -> (Option<Rate>, Option<Rate>) {
        let bad = self.rates.iter().position(|rate| !rate.is_good());
        let below = &self.rates[..bad.unwrap_or(self.rates.len())];
        (below.last().copied(), bad.map(|at| self.rates[at]))
    }

    /// Returns the finding so far, for a search that ends early.
    #[must_use]
    pub fn so_far(&self) -> SearchOutcome {
        let (good, bad) = self.edge();
        SearchOutcome::Unsteady { good: good.map(|rate| rate.per_s), bad: bad.map(|rate| rate.per_s) }
    }

    /// Returns the next step.
    #[must_use]
    pub fn next(&self) -> Step {
        let Bounds { from, to, least, precision, repeats } = self.bounds;
        let (good, bad) = self.edge();
        if self.runs >= RUNS_MAX {
            return Step::Done(self.so_far());
        }
        match (good, bad) {
            (None, None) => Step::Measure(from.min(to), Purpose::Ramp),
            (Some(good), None) if good.per_s >= to => {
                repeat(good, repeats).unwrap_or(Step::Done(SearchOutcome::NotReached { good: good.per_s }))
            }
            (Some(good), None) => Step::Measure((good.per_s * 2.0).min(to), Purpose::Ramp),
            (None, Some(bad)) if bad.per_s <= least => {
                repeat(bad, repeats).unwrap_or(Step::Done(SearchOutcome::NoneGood { bad: bad.per_s }))
            }
            (None, Some(bad)) => Step::Measure((bad.per_s / 2.0).max(least), Purpose::Ramp),
            (Some(good), Some(bad)) if bad.per_s / good.per_s > 1.0 + precision => {
                Step::Measure(between(good.per_s, bad.per_s), Purpose::Bisect)
            }
            (Some(good), Some(bad)) => repeat(good, repeats)
                .or_else(|| repeat(bad, repeats))
                .unwrap_or(Step::Done(SearchOutcome::Knee { good: good.per_s, bad: bad.per_s })),
        }
    }
}

/// Returns the step that measures a rate again; `None` if the rate has `repeats` runs.
fn repeat(rate: Rate, repeats: usize) -> Option<Step> {
    (rate.runs() < repeats).then_some(Step::Measure(rate.per_s, Purpose::Repeat))
}

/// Returns the geometric mean of two rates, rounded to four digits if the rounded value still lies between them.
fn between(good: f64, bad: f64) -> f64 {
    let middle = (good * bad).sqrt();
    let unit = 10_f64.powf(middle.log10().floor() - 3.0);
    let round = (middle / unit).round() * unit;
    if round > good && round < bad { round } else { middle }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { from: 1_000.0, to: 1e6, least: 1.0, precision: 0.02, repeats: 3 };

    fn search(bounds: Bounds, mut is_good: impl FnMut(f64, usize) -> bool) -> (SearchOutcome, Vec<(f64, Purpose)>) {
        let mut search = Search::new(bounds);
        let mut runs = Vec::new();
        loop {
            match search.next() {
                Step::Measure(rate, purpose) => {
                    search.add(rate, is_good(rate, runs.len()));
                    runs.push((rate, purpose));
                }
                Step::Done(found) => return (found, runs),
            }
        }
    }

    #[test]
    fn the_knee_is_found_within_the_precision_wherever_it_is() {
        for knee in [1.5, 30.0, 999.0, 1_000.0, 1_001.0, 1_999.0, 23_456.7, 999_999.0] {
            let (found, runs) = search(BOUNDS, |rate, _| rate <= knee);
            let SearchOutcome::Knee { good, bad } = found else { panic!("{knee}: {found:?}") };
            assert!(good <= knee && knee < bad && bad / good <= 1.02, "{knee}: {good} {bad}");
            let count = |rate: f64| runs.iter().filter(|(at, _)| at.total_cmp(&rate) == Ordering::Equal).count();
            assert_eq!((count(good), count(bad)), (3, 3), "{knee}");
            assert!(runs.len() < 30, "{knee}: {}", runs.len());
        }
    }

    #[test]
    fn rates_outside_the_limits_are_reported() {
        assert_eq!(search(BOUNDS, |_, _| true).0, SearchOutcome::NotReached { good: 1e6 });
        assert_eq!(search(BOUNDS, |_, _| false).0, SearchOutcome::NoneGood { bad: 1.0 });
        let narrow = Bounds { from: 5_000.0, to: 2_000.0, ..BOUNDS };
        assert_eq!(search(narrow, |_, _| true).0, SearchOutcome::NotReached { good: 2_000.0 });
    }

    #[test]
    fn a_single_bad_run_does_not_make_a_knee() {
        // The third run, at 4,000 on the way up, is an outlier.
        let (found, _) = search(BOUNDS, |rate, run| rate <= 50_000.0 && run != 2);
        let SearchOutcome::Knee { good, bad } = found else { panic!("{found:?}") };
        assert!(good <= 50_000.0 && bad > 50_000.0, "{good} {bad}");
    }

    #[test]
    fn twin_without_repeats_a_single_bad_run_makes_a_knee() {
        let (found, _) = search(Bounds { repeats: 1, ..BOUNDS }, |rate, run| rate <= 50_000.0 && run != 2);
        let SearchOutcome::Knee { bad, .. } = found else { panic!("{found:?}") };
        assert!(bad <= 4_000.0, "{bad}");
    }

    #[test]
    fn a_search_whose_runs_always_differ_ends() {
        let (found, runs) = search(Bounds { repeats: 1_000, ..BOUNDS }, |_, run| run % 2 == 0);
        assert!(matches!(found, SearchOutcome::Unsteady { .. }), "{found:?}");
        assert_eq!(runs.len(), RUNS_MAX);
    }
}
