//! Divides the measured part of a run into at most ten equal groups of whole intervals, the pieces. If one side of
//! `klad bench compare` is a single run, the pieces of all runs serve as repeats.
//!
//! Each piece has one histogram, so memory does not grow with the run. A request belongs to the piece in which it
//! ended, even if it started in the warm-up. Otherwise the first piece would lack slow requests. Requests belong to no
//! piece if they ended after the schedule, in an incomplete interval, or in one of the intervals that remain after the
//! division. Called by `collector`.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::recorder::{Outcome, Tally, histogram};
use crate::result::{Distribution, Piece};
use crate::schedule::{Nanos, Phases, seconds};

/// The largest number of pieces. Ten repeats are enough for the confidence interval of a mean. With more, a piece would
/// be too short to have its share of slow requests.
const PIECES_MAX: u64 = 10;

/// The figures of the requests that ended in one piece.
#[derive(Debug)]
struct PieceTally {
    /// Response times, nanoseconds, of requests whose outcomes count for latency.
    response: Histogram<u64>,
    outcomes: BTreeMap<Outcome, u64>,
    /// The number of good answers.
    good: u64,
}

/// All pieces of a run.
#[derive(Debug)]
pub struct Pieces {
    interval: Nanos,
    /// The number of the first complete interval of the measured part.
    first: u64,
    /// The number of intervals in each piece.
    each: u64,
    all: Vec<PieceTally>,
}

impl Pieces {
    /// Creates empty pieces for a run with these phases. `interval` is the length of an interval.
    #[must_use]
    pub fn new(phases: &Phases, interval: Nanos) -> Pieces {
        let first = phases.warm_up().div_ceil(interval);
        let whole = (phases.end() / interval).saturating_sub(first);
        let each = whole.div_ceil(PIECES_MAX).max(1);
        let empty = || PieceTally { response: histogram(), outcomes: BTreeMap::new(), good: 0 };
        Pieces { interval, first, each, all: (0..whole / each).map(|_| empty()).collect() }
    }

    /// Adds requests that ended in the interval with this number.
    pub fn add(&mut self, interval: u64, tally: &Tally) {
        let piece = interval.checked_sub(self.first).map(|since| since / self.each);
        let Some(piece) = piece.and_then(|piece| self.all.get_mut(usize::try_from(piece).ok()?)) else { return };
        for (_, outcome, cell) in tally.cells() {
            *piece.outcomes.entry(outcome).or_insert(0) += cell.response.len();
            piece.good += cell.good;
            if outcome.counts_for_latency() {
                piece.response.add(&cell.response).expect("it grows");
            }
        }
    }

    /// Returns the pieces that ended before or at `end`.
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
    use crate::recorder::{Operation, Recorder, RequestEnd};
    use crate::schedule::{Phase, SECOND};

    fn pieces(warm_up: Nanos, length: Nanos) -> (Pieces, Nanos) {
        let phases = Phases::new(warm_up, &[Phase { from: 1.0, to: 1.0, length }]);
        (Pieces::new(&phases, SECOND), phases.end())
    }

    /// Begins and lengths of the pieces, in seconds.
    fn cut(warm_up: Nanos, length: Nanos) -> Vec<(f64, f64)> {
        let (pieces, end) = pieces(warm_up, length);
        pieces.until(end).iter().map(|piece| (piece.start_s, piece.length_s)).collect()
    }

    #[test]
    fn pieces_are_equal_whole_intervals_and_ten_at_most() {
        assert_eq!(cut(2 * SECOND, 4 * SECOND), [(2.0, 1.0), (3.0, 1.0), (4.0, 1.0), (5.0, 1.0)]);
        let thirty = cut(2 * SECOND, 30 * SECOND);
        assert_eq!((thirty.len(), thirty[0], thirty[9]), (10, (2.0, 3.0), (29.0, 3.0)));
        assert_eq!(cut(0, 25 * SECOND).len(), 8, "pieces of 3 s each; the last second is in none");
        assert_eq!(cut(SECOND / 2, 5 * SECOND / 2), [(1.0, 1.0), (2.0, 1.0)], "the first interval is partly warm-up");
        assert_eq!(cut(0, SECOND / 2), []);
    }

    #[test]
    fn a_run_that_was_ended_early_has_the_complete_pieces() {
        let (pieces, _) = pieces(2 * SECOND, 30 * SECOND);
        assert_eq!(pieces.until(8 * SECOND).len(), 2);
        assert_eq!(pieces.until(8 * SECOND - 1).len(), 1);
        assert_eq!(pieces.until(SECOND).len(), 0);
    }

    #[test]
    fn a_piece_counts_rejections_without_their_times() {
        let (mut pieces, end) = pieces(SECOND, 2 * SECOND);
        let mut recorder = Recorder::new(2);
        for outcome in [Outcome::Served, Outcome::Refused] {
            let ended = RequestEnd { phase: 1, operation: Operation::Get, outcome, response: 5_000, service: Some(1) };
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
        assert_eq!(counts, [(0, BTreeMap::new(), 0.0), (2, outcomes, 2.0)], "warm-up and drain are in no piece");
    }
}
