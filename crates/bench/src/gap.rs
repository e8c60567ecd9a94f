//! The longest time in which no good answer came, from a bit for each hundredth of each interval: constant memory, and
//! threads are added up by `or`. Called by `generator` and `collector`.

use crate::schedule::Nanos;

/// Pieces that an interval is looked at in.
const PIECES: u64 = 100;

/// Pieces of one interval in which good answers came.
pub type Pieces = u128;

/// The piece that `now` lies in.
#[must_use]
pub fn piece(now: Nanos, interval: Nanos) -> Pieces {
    1 << (now % interval * PIECES / interval)
}

/// Runs over the intervals in order.
#[derive(Debug)]
pub struct Gap {
    interval: Nanos,
    /// End of the last piece with a good answer, or the beginning of what is measured.
    since: Nanos,
    longest: Nanos,
}

impl Gap {
    /// Measures from `begin`.
    #[must_use]
    pub fn new(begin: Nanos, interval: Nanos) -> Gap {
        Gap { interval, since: begin, longest: 0 }
    }

    /// Adds the interval with this number, up to `end`.
    pub fn add(&mut self, number: u64, pieces: Pieces, end: Nanos) {
        for piece in (0..PIECES).filter(|piece| pieces >> piece & 1 == 1) {
            let start = number * self.interval + piece * self.interval / PIECES;
            self.longest = self.longest.max(start.min(end).saturating_sub(self.since));
            self.since = self.since.max(start + self.interval / PIECES);
        }
    }

    /// The longest gap, when nothing more comes before `end`: a hundredth of an interval short at each of its ends, at most.
    #[must_use]
    pub fn longest(&self, end: Nanos) -> Nanos {
        self.longest.max(end.saturating_sub(self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    fn longest(begin: Nanos, end: Nanos, answers_ms: &[u64]) -> u64 {
        let mut intervals = [0; 8];
        for ms in answers_ms {
            let at = ms * 1_000_000;
            intervals[usize::try_from(at / SECOND).expect("small")] |= piece(at, SECOND);
        }
        let mut gap = Gap::new(begin, SECOND);
        for (number, pieces) in (0..).zip(intervals) {
            gap.add(number, pieces, end);
        }
        gap.longest(end) / 1_000_000
    }

    #[test]
    fn a_gap_is_found_wherever_it_lies() {
        assert_eq!(longest(0, 2 * SECOND, &[]), 2_000);
        assert_eq!(longest(0, 2 * SECOND, &[0, 500, 1_990]), 1_480, "over the end of an interval");
        assert_eq!(longest(0, 3 * SECOND, &[5, 10]), 2_980, "up to the end");
        assert_eq!(longest(SECOND, 3 * SECOND, &[2_500]), 1_500, "from the beginning of what is measured");
        assert_eq!(longest(SECOND, 2 * SECOND, &[900, 2_500]), 1_000, "what comes before and after does not count");
        let steady: Vec<u64> = (0..200).map(|number| number * 10).collect();
        assert_eq!(longest(0, 2 * SECOND, &steady), 0);
    }
}
