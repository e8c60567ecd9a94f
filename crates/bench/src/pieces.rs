//! The measured part in at most ten equal groups of whole intervals: what `klad bench compare` has for repeats where there
//! is one run only. Each has a histogram, so memory does not grow with the run. A request belongs to the piece in which it
//! ended, also one of the warm-up: the slow ones would be missing from the first piece. What ended in an interval that is not
//! whole, or after the end of the schedule, is in none. Called by `collector`.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::recorder::{Outcome, Tally, histogram};
use crate::result::{Distribution, Piece};
use crate::schedule::{Nanos, Phases, seconds};

/// Enough for an interval of a mean, and few enough that each has its share of the slow requests.
const PIECES_MAX: u64 = 10;

/// What ended in one piece.
#[derive(Debug)]
struct PieceTally {
    /// Nanoseconds, of what was waited for.
    response: Histogram<u64>,
    outcomes: BTreeMap<Outcome, u64>,
    /// The good ones among them.
    good: u64,
}

/// All pieces of a run.
#[derive(Debug)]
pub struct Pieces {
    interval: Nanos,
    /// The first whole interval of the measured part.
    first: u64,
    /// Intervals of each piece.
    each: u64,
    all: Vec<PieceTally>,
}

impl Pieces {
    /// For a run of these phases.
    #[must_use]
    pub fn new(phases: &Phases, interval: Nanos) -> Pieces {
        let first = phases.warm_up().div_ceil(interval);
        let whole = (phases.end() / interval).saturating_sub(first);
        let each = whole.div_ceil(PIECES_MAX).max(1);
        let empty = || PieceTally { response: histogram(), outcomes: BTreeMap::new(), good: 0 };
        Pieces { interval, first, each, all: (0..whole / each).map(|_| empty()).collect() }
    }

    /// Adds what ended in the interval with this number, or a part of it.
    pub fn add(&mut self, interval: u64, tally: &Tally) {
        let piece = interval.checked_sub(self.first).map(|since| since / self.each);
        let Some(piece) = piece.and_then(|piece| self.all.get_mut(usize::try_from(piece).ok()?)) else { return };
        for (_, outcome, cell) in tally.cells() {
            *piece.outcomes.entry(outcome).or_insert(0) += cell.response.len();
            piece.good += cell.good;
            if outcome.is_waited_for() {
                piece.response.add(&cell.response).expect("it grows");
            }
        }
    }

    /// Those that are over at `end`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    pub fn until(&self, end: Nanos) -> Vec<Piece> {
        let length = self.each * self.interval;
        let starts = (0..).map(|number| self.first * self.interval + number * length);
        let whole = starts.zip(&self.all).take_while(|(start, _)| start + length <= end);
        whole
            .map(|(start, tally)| Piece {
                start_s: seconds(start),
                length_s: seconds(length),
                goodput_per_s: tally.good as f64 / seconds(length),
                outcomes: tally.outcomes.clone(),
                response: Distribution::of(&tally.response),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{Ended, Operation, Recorder};
    use crate::schedule::{Phase, SECOND};

    fn pieces(warm_up: Nanos, length: Nanos) -> (Pieces, Nanos) {
        let phases = Phases::new(warm_up, &[Phase { from: 1.0, to: 1.0, length }]);
        (Pieces::new(&phases, SECOND), phases.end())
    }

    /// Starts and lengths, in seconds.
    fn cut(warm_up: Nanos, length: Nanos) -> Vec<(f64, f64)> {
        let (pieces, end) = pieces(warm_up, length);
        pieces.until(end).iter().map(|piece| (piece.start_s, piece.length_s)).collect()
    }

    #[test]
    fn pieces_are_equal_whole_intervals_and_ten_at_most() {
        assert_eq!(cut(2 * SECOND, 4 * SECOND), [(2.0, 1.0), (3.0, 1.0), (4.0, 1.0), (5.0, 1.0)]);
        let thirty = cut(2 * SECOND, 30 * SECOND);
        assert_eq!((thirty.len(), thirty[0], thirty[9]), (10, (2.0, 3.0), (29.0, 3.0)));
        assert_eq!(cut(0, 25 * SECOND).len(), 8, "of 3 s each, and a second in none");
        assert_eq!(cut(SECOND / 2, 5 * SECOND / 2), [(1.0, 1.0), (2.0, 1.0)], "half of the first is the warm-up's");
        assert_eq!(cut(0, SECOND / 2), []);
    }

    #[test]
    fn a_run_that_was_ended_early_has_the_pieces_that_were_over() {
        let (pieces, _) = pieces(2 * SECOND, 30 * SECOND);
        assert_eq!(pieces.until(8 * SECOND).len(), 2);
        assert_eq!(pieces.until(8 * SECOND - 1).len(), 1);
        assert_eq!(pieces.until(SECOND).len(), 0);
    }

    #[test]
    fn a_piece_holds_what_ended_in_it_and_refusals_are_counted_but_not_timed() {
        let (mut pieces, end) = pieces(SECOND, 2 * SECOND);
        let mut recorder = Recorder::new(2);
        for outcome in [Outcome::Served, Outcome::Refused] {
            let ended = Ended { phase: 1, operation: Operation::Get, outcome, response: 5_000, service: Some(1) };
            recorder.record(&ended, SECOND);
        }
        for interval in [0, 2, 2, 3] {
            pieces.add(interval, recorder.phase(1));
        }
        let counts: Vec<_> = pieces
            .until(end)
            .iter()
            .map(|piece| (piece.response.count, piece.outcomes.clone(), piece.goodput_per_s.round()))
            .collect();
        let outcomes = BTreeMap::from([(Outcome::Served, 2), (Outcome::Refused, 2)]);
        assert_eq!(counts, [(0, BTreeMap::new(), 0.0), (2, outcomes, 2.0)], "the warm-up and the drain are in none");
    }
}
