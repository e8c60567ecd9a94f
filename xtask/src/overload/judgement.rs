//! What was measured in one part, and whether it is as it should be.

use std::time::Duration;

use crate::Verdict;
use crate::text::{grouped, mebibytes};

/// Least goodput, as a share of the peak, by multiple of the capacity.
const GOODPUT_MIN: [(u64, f64); 2] = [(2, 0.95), (5, 0.90)];

/// Least goodput at any level, as a share of the capacity: a server that served little at every level would have no peak.
const OF_CAPACITY_MIN: f64 = 0.75;

/// Longest time without a good answer.
pub(super) const GAP_MAX: Duration = Duration::from_millis(100);

/// Longest time from the end of the load until answers are as quick as before.
const BACK_MAX: Duration = Duration::from_secs(1);

/// Without admission goodput must fall below this share, or the part would prove nothing.
pub(super) const TWIN_SHARE_MAX: f64 = 0.5;

/// What was offered at one level, and what came of it.
#[derive(Clone, Debug)]
pub(super) struct Level {
    /// Multiple of the capacity.
    pub(super) multiple: u64,
    /// Per second.
    pub(super) offered: f64,
    /// Served or not found within the deadline, per second.
    pub(super) goodput: f64,
    /// Of the served, microseconds.
    pub(super) p99_us: Option<f64>,
    /// Shares of what was offered.
    pub(super) refused: f64,
    pub(super) timed_out: f64,
    pub(super) gap: Duration,
    /// Until answers were as quick as before; `None`: not within the time that was looked at.
    pub(super) back: Option<Duration>,
    /// What `klad bench` has against its own figures.
    pub(super) doubts: Vec<String>,
}

/// One server under all levels.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) name: &'static str,
    /// Served per second to clients that wait for each other.
    pub(super) capacity: f64,
    pub(super) levels: Vec<Level>,
    /// Largest resident memory, and what it may be, bytes.
    pub(super) resident: u64,
    pub(super) resident_max: u64,
    /// Goodput with `--admission off`, at twice the capacity.
    pub(super) twin: Option<f64>,
}

impl Level {
    /// Adds a further round to so many: rates and shares as the mean, times as the longest.
    pub(super) fn add(&mut self, other: Level, rounds: u32) {
        let mean = |all: f64, one: f64| (all * f64::from(rounds) + one) / f64::from(rounds + 1);
        self.goodput = mean(self.goodput, other.goodput);
        self.refused = mean(self.refused, other.refused);
        self.timed_out = mean(self.timed_out, other.timed_out);
        self.p99_us = self.p99_us.zip(other.p99_us).map(|(all, one)| all.max(one));
        self.gap = self.gap.max(other.gap);
        self.back = self.back.zip(other.back).map(|(all, one)| all.max(one));
        self.doubts.extend(other.doubts);
    }
}

impl Part {
    /// The best goodput at any level.
    fn peak(&self) -> f64 {
        self.levels.iter().map(|level| level.goodput).fold(0.0, f64::max)
    }

    /// All that is not as it should be, in words.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for level in &self.levels {
            let at = format!("at {} times", level.multiple);
            let share = level.goodput / self.peak();
            let least =
                GOODPUT_MIN.iter().find(|(multiple, _)| *multiple == level.multiple).map_or(0.0, |(_, least)| *least);
            // Not `<`: nothing by nothing is no share.
            if !(share >= least && level.goodput > 0.0) {
                faults.push(format!(
                    "{at}: goodput is {:.1} % of the peak, at least {:.0} % are wanted",
                    share * 100.0,
                    least * 100.0
                ));
            }
            if level.goodput < self.capacity * OF_CAPACITY_MIN {
                let least = OF_CAPACITY_MIN * 100.0;
                faults.push(format!(
                    "{at}: goodput is {:.1} % of the capacity, at least {least:.0} % are wanted",
                    level.goodput / self.capacity * 100.0
                ));
            }
            if level.gap > GAP_MAX {
                faults.push(format!("{at}: {:?} without a good answer, at most {GAP_MAX:?} are allowed", level.gap));
            }
            if level.back.is_none_or(|back| back > BACK_MAX) {
                faults.push(format!("{at}: answers were not as quick as before within {BACK_MAX:?} of the end"));
            }
            faults.extend(level.doubts.iter().map(|doubt| format!("{at}: klad bench doubts itself: {doubt}")));
        }
        if self.resident > self.resident_max {
            let (resident, most) = (mebibytes(self.resident), mebibytes(self.resident_max));
            faults.push(format!("resident memory was {resident}, at most {most} are allowed"));
        }
        if let Some(twin) = self.twin
            && twin / self.peak() >= TWIN_SHARE_MAX
        {
            let share = twin / self.peak() * 100.0;
            faults
                .push(format!("twin: without admission goodput is {share:.1} % of the peak: this part shows nothing"));
        }
        faults
    }

    pub(super) fn verdict(&self) -> Verdict {
        Verdict::of(self.faults().is_empty())
    }

    pub(super) fn print(&self) {
        println!("\n{}: capacity {}/s, closed", self.name, count(self.capacity));
        println!(
            "{:>8}{:>12}{:>12}{:>9}{:>12}{:>10}{:>9}{:>11}{:>9}{:>12}",
            "load",
            "offered/s",
            "goodput/s",
            "of peak",
            "of capacity",
            "p99",
            "refused",
            "timed out",
            "gap",
            "back after"
        );
        for level in &self.levels {
            println!(
                "{:>7}x{:>12}{:>12}{:>9}{:>12}{:>10}{:>9}{:>11}{:>9}{:>12}",
                level.multiple,
                count(level.offered),
                count(level.goodput),
                percent(level.goodput / self.peak()),
                percent(level.goodput / self.capacity),
                level.p99_us.map_or_else(|| "-".to_owned(), |us| format!("{:.1} ms", us / 1e3)),
                percent(level.refused),
                percent(level.timed_out),
                format!("{} ms", level.gap.as_millis()),
                level.back.map_or_else(|| "never".to_owned(), |back| format!("{} ms", back.as_millis())),
            );
        }
        println!("resident memory {}, bound {}", mebibytes(self.resident), mebibytes(self.resident_max));
        if let Some(twin) = self.twin {
            let share = twin / self.peak();
            let word = if share < TWIN_SHARE_MAX { "falls as demanded" } else { "DOES NOT FALL" };
            println!("twin, --admission off at 2 x: goodput {}/s, {} of the peak: {word}", count(twin), percent(share));
        }
        for fault in self.faults() {
            println!("EXCEEDED {fault}");
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn count(per_s: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate of requests")]
    grouped(per_s.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(multiple: u64, goodput: f64) -> Level {
        Level {
            multiple,
            offered: 1_000.0,
            goodput,
            p99_us: Some(1_000.0),
            refused: 0.0,
            timed_out: 0.0,
            gap: GAP_MAX,
            back: Some(BACK_MAX),
            doubts: Vec::new(),
        }
    }

    fn part() -> Part {
        let levels = vec![level(1, 1_000.0), level(2, 950.0), level(5, 900.0)];
        Part { name: "test", capacity: 1_000.0, levels, resident: 1, resident_max: 1, twin: Some(499.0) }
    }

    fn faults(change: impl Fn(&mut Part)) -> usize {
        let mut part = part();
        change(&mut part);
        assert_eq!(part.verdict() == Verdict::Within, part.faults().is_empty());
        part.faults().len()
    }

    #[test]
    fn rounds_are_added_up() {
        let mut all = level(1, 900.0);
        all.add(Level { gap: 2 * GAP_MAX, back: None, ..level(1, 1_200.0) }, 1);
        all.add(level(1, 1_200.0), 2);
        assert!((all.goodput - 1_100.0).abs() < 1e-9);
        assert_eq!((all.gap, all.back), (2 * GAP_MAX, None), "the worst round counts");
    }

    #[test]
    fn the_bounds_themselves_are_within() {
        assert_eq!(faults(|_| {}), 0);
        assert_eq!(faults(|part| part.twin = None), 0);
    }

    #[test]
    fn twin_each_bound_can_be_exceeded() {
        assert_eq!(faults(|part| part.levels[1].goodput = 949.0), 1);
        assert_eq!(faults(|part| part.levels[2].goodput = 899.0), 1);
        assert_eq!(faults(|part| part.levels[2].gap += Duration::from_millis(1)), 1);
        assert_eq!(faults(|part| part.levels[0].back = None), 1);
        assert_eq!(faults(|part| part.levels[0].back = Some(BACK_MAX + Duration::from_millis(1))), 1);
        assert_eq!(faults(|part| part.levels[0].doubts.push("late".to_owned())), 1);
        assert_eq!(faults(|part| part.resident = 2), 1);
        assert_eq!(faults(|part| part.twin = Some(500.0)), 1);
        assert_eq!(
            faults(|part| part.levels.iter_mut().for_each(|level| level.goodput = 0.0)),
            7,
            "nothing was served"
        );
        assert_eq!(faults(|part| part.capacity = 1_300.0), 2, "little at every level");
    }
}
