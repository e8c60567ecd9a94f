//! Finds the longest time without a good answer. Each interval of the run has a hundred parts, and a bit mask with one
//! bit for each part. The bit is set if a good answer arrived in that part. The masks need constant memory, and a
//! bitwise OR combines the masks of several threads. Called by `generator` and `collector`.

use crate::schedule::Nanos;

/// The number of parts into which an interval is divided.
const HUNDREDTHS: u64 = 100;

/// A bit mask of the hundred parts of an interval. A bit is 1 if a good answer arrived in that part.
pub type Hundredths = u128;

/// Returns a mask whose only bit is that of the part which contains `now`. `interval` is the length of an interval.
#[must_use]
pub fn hundredth(now: Nanos, interval: Nanos) -> Hundredths {
    1 << (now % interval * HUNDREDTHS / interval)
}

/// Finds the longest time without a good answer (a gap) in a series of intervals.
#[derive(Debug)]
pub struct GapFinder {
    interval: Nanos,
    /// The end of the last part with a good answer, or the beginning of the measured part.
    since: Nanos,
    longest: Nanos,
}

impl GapFinder {
    /// Creates a finder of gaps that begins at `begin`. `interval` is the length of an interval.
    #[must_use]
    pub fn new(begin: Nanos, interval: Nanos) -> GapFinder {
        GapFinder { interval, since: begin, longest: 0 }
    }

    /// Adds the good answers of the interval with this number. Time after `end`, the end of the measured part, does not
    /// count. Intervals must be added in order.
    pub fn add(&mut self, number: u64, hundredths: Hundredths, end: Nanos) {
        for part in (0..HUNDREDTHS).filter(|part| hundredths >> part & 1 == 1) {
            let start = number * self.interval + part * self.interval / HUNDREDTHS;
            self.longest = self.longest.max(start.min(end).saturating_sub(self.since));
            self.since = self.since.max(start + self.interval / HUNDREDTHS);
        }
    }

    /// Returns the longest gap up to `end`, the end of the measured part. The result may be too short by up to a
    /// hundredth of an interval at each of the two ends of the gap.
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
            intervals[usize::try_from(at / SECOND).expect("small")] |= hundredth(at, SECOND);
        }
        let mut gap = GapFinder::new(begin, SECOND);
        for (number, hundredths) in (0..).zip(intervals) {
            gap.add(number, hundredths, end);
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
