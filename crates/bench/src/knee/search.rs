//! Where to look next for the highest rate that is good: from below upwards, then between the last good and the first bad one,
//! then both of these again and again, because a single run may have been lucky or unlucky.
//!
//! Knows nothing of servers: it is told what was found, and says which rate comes next. Called by `knee`.

use std::cmp::Ordering;

/// Runs of one search at the most.
const RUNS_MAX: usize = 80;

/// How to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Where to begin, per second.
    pub from: f64,
    /// No higher than this, per second.
    pub to: f64,
    /// No lower than this, per second.
    pub least: f64,
    /// The first bad rate is at most so much above the last good one, as a share.
    pub precision: f64,
    /// Runs of these two.
    pub repeats: usize,
}

/// Why a rate is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To find a bad one.
    Ramp,
    /// To narrow what is between good and bad.
    Bisect,
    /// To see whether it was chance.
    Repeat,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Measure this rate.
    Measure(f64, Purpose),
    /// The search has ended.
    Done(Found),
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Found {
    /// Good at the first, bad at the second, and no more between them than the precision.
    Knee {
        /// The highest good rate.
        good: f64,
        /// The lowest bad rate.
        bad: f64,
    },
    /// Good up to the highest rate that was allowed.
    NotReached {
        /// That rate.
        good: f64,
    },
    /// Bad down to the lowest.
    NoneGood {
        /// The lowest that was measured.
        bad: f64,
    },
    /// So unsteady that the number of runs was used up.
    Unsteady {
        /// The highest rate that was good more often than not, if there is one.
        good: Option<f64>,
        /// The lowest above it that was not.
        bad: Option<f64>,
    },
}

/// A search under way.
#[derive(Clone, Debug)]
pub struct Search {
    bounds: Bounds,
    /// Each rate that was measured, in order, with how often it was good and how often not.
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
    /// A draw counts as bad: what is promised must hold more often than not.
    fn is_good(&self) -> bool {
        self.good > self.bad
    }

    fn runs(&self) -> usize {
        self.good + self.bad
    }
}

impl Search {
    /// Before the first run.
    #[must_use]
    pub fn new(bounds: Bounds) -> Search {
        Search { bounds, rates: Vec::new(), runs: 0 }
    }

    /// A run at `per_s` was good, or was not.
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

    /// How often a rate was good, and how often not.
    #[must_use]
    pub fn tally(&self, per_s: f64) -> (usize, usize) {
        let rate = self.rates.iter().find(|rate| rate.per_s.total_cmp(&per_s) == Ordering::Equal);
        rate.map_or((0, 0), |rate| (rate.good, rate.bad))
    }

    /// The lowest bad rate, and the highest good one below it.
    fn edge(&self) -> (Option<Rate>, Option<Rate>) {
        let bad = self.rates.iter().position(|rate| !rate.is_good());
        let below = &self.rates[..bad.unwrap_or(self.rates.len())];
        (below.last().copied(), bad.map(|at| self.rates[at]))
    }

    /// What is known before the end of the search.
    #[must_use]
    pub fn so_far(&self) -> Found {
        let (good, bad) = self.edge();
        Found::Unsteady { good: good.map(|rate| rate.per_s), bad: bad.map(|rate| rate.per_s) }
    }

    /// What to do next.
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
                repeat(good, repeats).unwrap_or(Step::Done(Found::NotReached { good: good.per_s }))
            }
            (Some(good), None) => Step::Measure((good.per_s * 2.0).min(to), Purpose::Ramp),
            (None, Some(bad)) if bad.per_s <= least => {
                repeat(bad, repeats).unwrap_or(Step::Done(Found::NoneGood { bad: bad.per_s }))
            }
            (None, Some(bad)) => Step::Measure((bad.per_s / 2.0).max(least), Purpose::Ramp),
            (Some(good), Some(bad)) if bad.per_s / good.per_s > 1.0 + precision => {
                Step::Measure(between(good.per_s, bad.per_s), Purpose::Bisect)
            }
            (Some(good), Some(bad)) => repeat(good, repeats)
                .or_else(|| repeat(bad, repeats))
                .unwrap_or(Step::Done(Found::Knee { good: good.per_s, bad: bad.per_s })),
        }
    }
}

/// Until a rate was measured often enough, or the rest cannot change what it is.
fn repeat(rate: Rate, repeats: usize) -> Option<Step> {
    (rate.runs() < repeats).then_some(Step::Measure(rate.per_s, Purpose::Repeat))
}

/// The middle of two rates by their ratio, as a number that can be typed: four digits, where that lies between them.
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

    fn search(bounds: Bounds, mut is_good: impl FnMut(f64, usize) -> bool) -> (Found, Vec<(f64, Purpose)>) {
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
    fn the_knee_is_found_within_the_precision_wherever_it_lies() {
        for knee in [1.5, 30.0, 999.0, 1_000.0, 1_001.0, 1_999.0, 23_456.7, 999_999.0] {
            let (found, runs) = search(BOUNDS, |rate, _| rate <= knee);
            let Found::Knee { good, bad } = found else { panic!("{knee}: {found:?}") };
            assert!(good <= knee && knee < bad && bad / good <= 1.02, "{knee}: {good} {bad}");
            let count = |rate: f64| runs.iter().filter(|(at, _)| at.total_cmp(&rate) == Ordering::Equal).count();
            assert_eq!((count(good), count(bad)), (3, 3), "{knee}");
            assert!(runs.len() < 30, "{knee}: {}", runs.len());
        }
    }

    #[test]
    fn its_ends_are_said() {
        assert_eq!(search(BOUNDS, |_, _| true).0, Found::NotReached { good: 1e6 });
        assert_eq!(search(BOUNDS, |_, _| false).0, Found::NoneGood { bad: 1.0 });
        let narrow = Bounds { from: 5_000.0, to: 2_000.0, ..BOUNDS };
        assert_eq!(search(narrow, |_, _| true).0, Found::NotReached { good: 2_000.0 });
    }

    #[test]
    fn a_single_bad_run_does_not_make_a_knee() {
        // The third run, at 4,000 on the way up, was unlucky.
        let (found, _) = search(BOUNDS, |rate, run| rate <= 50_000.0 && run != 2);
        let Found::Knee { good, bad } = found else { panic!("{found:?}") };
        assert!(good <= 50_000.0 && bad > 50_000.0, "{good} {bad}");
    }

    #[test]
    fn twin_without_repeats_a_single_bad_run_makes_a_knee() {
        let (found, _) = search(Bounds { repeats: 1, ..BOUNDS }, |rate, run| rate <= 50_000.0 && run != 2);
        let Found::Knee { bad, .. } = found else { panic!("{found:?}") };
        assert!(bad <= 4_000.0, "{bad}");
    }

    #[test]
    fn what_is_never_the_same_twice_ends_too() {
        let (found, runs) = search(Bounds { repeats: 1_000, ..BOUNDS }, |_, run| run % 2 == 0);
        assert!(matches!(found, Found::Unsteady { .. }), "{found:?}");
        assert_eq!(runs.len(), RUNS_MAX);
    }
}
