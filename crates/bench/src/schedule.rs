//! The schedule: a list of intended starts that no behaviour of the server can change.
//!
//! A schedule is a rate over time, in stages that are steps or ramps. Its integral N(t) is the number of requests
//! that are due by time t. Constant arrivals start where N is a whole number. Poisson arrivals start where N is a sum
//! of exponential gaps of mean 1, which is the exact way to make a Poisson process with a changing rate (Çinlar's
//! inversion). Both need only the inverse of N, which has a closed form for a rate that is linear in time.
//!
//! All threads take starts from one schedule. A thread takes the next start only when it has a free connection or may
//! open one. So no thread's connections are idle while requests wait for a connection of another thread. Called by
//! the generator threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use rand::SeedableRng as _;
use rand_distr::{Distribution as _, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use klad_base::sync::Mutex;

/// Nanoseconds. A point in time counts from the start of the schedule.
pub type Nanos = u64;

/// One second.
pub const SECOND: Nanos = 1_000_000_000;

/// What makes a request start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The schedule.
    Open,
    /// The answer to the previous request on the same connection.
    Closed,
}

/// The distribution of the gaps between intended starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Arrival {
    /// Equal gaps.
    Constant,
    /// Exponential gaps, as from many independent clients, with bursts.
    Poisson,
}

/// A phase of the schedule. The rate changes linearly from `from` to `to`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// Requests per second at the beginning; 0 or more.
    pub from: f64,
    /// Requests per second at the end; 0 or more. In open mode `from` and `to` are not both 0.
    pub to: f64,
    /// Length of the phase.
    pub length: Nanos,
}

impl Phase {
    /// The number of requests that are due in the first `seconds` of the phase.
    fn due(&self, seconds: f64) -> f64 {
        let slope = (self.to - self.from) / self.seconds();
        self.from * seconds + slope * seconds * seconds / 2.0
    }

    /// The number of requests that are due in the whole phase.
    fn due_in_all(&self) -> f64 {
        f64::midpoint(self.from, self.to) * self.seconds()
    }

    /// The time in seconds until `count` requests are due: the root of `due`, in the form that is stable for any
    /// slope.
    fn until_due(&self, count: f64) -> f64 {
        if count <= 0.0 && self.from > 0.0 {
            return 0.0;
        }
        let slope = (self.to - self.from) / self.seconds();
        let root = (self.from * self.from + 2.0 * slope * count).max(0.0).sqrt();
        2.0 * count / (self.from + root)
    }

    fn seconds(&self) -> f64 {
        seconds(self.length)
    }
}

/// Converts nanoseconds to seconds.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 ns, which are 104 days")]
pub fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / 1e9
}

/// Converts a duration to nanoseconds. More than 584 years become the largest number.
#[must_use]
pub fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The phases of a run: the warm-up, which may have length 0, then the measured stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Phases(Vec<Phase>);

impl Phases {
    /// Phase 0 is the warm-up, at the first rate of the first stage. The other phases are `stages`, at least one.
    #[must_use]
    pub fn new(warm_up: Nanos, stages: &[Phase]) -> Phases {
        assert!(!stages.is_empty(), "a run needs at least one stage");
        // A ramp from 0 has no first rate to warm up at, so the warm-up uses its last rate.
        let rate = if stages[0].from > 0.0 { stages[0].from } else { stages[0].to };
        let mut all = vec![Phase { from: rate, to: rate, length: warm_up }];
        all.extend_from_slice(stages);
        Phases(all)
    }

    /// All phases, the warm-up first.
    #[must_use]
    pub fn all(&self) -> &[Phase] {
        &self.0
    }

    /// Length of the warm-up.
    #[must_use]
    pub fn warm_up(&self) -> Nanos {
        self.0[0].length
    }

    /// End of the last phase.
    #[must_use]
    pub fn end(&self) -> Nanos {
        self.0.iter().map(|phase| phase.length).sum()
    }

    /// The index of the phase that contains `at`; the last phase for times after the end.
    #[must_use]
    pub fn at(&self, at: Nanos) -> usize {
        let mut end = 0;
        for (index, phase) in self.0.iter().enumerate() {
            end += phase.length;
            if at < end {
                return index;
            }
        }
        self.0.len() - 1
    }

    /// The same phases, ended at `at`: later phases have length 0.
    #[must_use]
    pub fn truncated(&self, at: Nanos) -> Phases {
        let mut left = at;
        let cut = |phase: &Phase| {
            let length = phase.length.min(left);
            left -= length;
            let to = if length == 0 {
                phase.from
            } else {
                phase.from + (phase.to - phase.from) * seconds(length) / phase.seconds()
            };
            Phase { from: phase.from, to, length }
        };
        Phases(self.0.iter().map(cut).collect())
    }

    /// The number of requests that are due in `from..to` according to the rates.
    #[must_use]
    pub fn due(&self, from: Nanos, to: Nanos) -> f64 {
        self.due_by(to) - self.due_by(from)
    }

    fn due_by(&self, at: Nanos) -> f64 {
        let mut start = 0;
        let mut due = 0.0;
        for phase in self.0.iter().filter(|phase| phase.length > 0) {
            due += phase.due(seconds(at.saturating_sub(start).min(phase.length)));
            start += phase.length;
        }
        due
    }
}

/// A request that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The intended start of the request.
    pub intended: Nanos,
    /// The index of the phase that contains the intended start.
    pub phase: usize,
}

/// The intended starts of a run, in order.
#[derive(Debug)]
pub struct Schedule {
    phases: Phases,
    arrival: Arrival,
    random: Xoshiro256PlusPlus,
    /// The phase of the next start, and the beginning of that phase.
    phase: usize,
    phase_start: Nanos,
    /// The number of requests due before `phase`.
    due_before: f64,
    /// The value of N (see the module) at the next start: the number of requests due until then.
    position: f64,
}

impl Schedule {
    /// Returns the schedule of `phases`, at its first start. The same `seed` gives the same starts on every machine.
    #[must_use]
    pub fn new(phases: Phases, arrival: Arrival, seed: u64) -> Schedule {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let position = match arrival {
            Arrival::Constant => 0.0,
            Arrival::Poisson => Exp1.sample(&mut random),
        };
        Schedule { phases, arrival, random, phase: 0, phase_start: 0, due_before: 0.0, position }
    }

    fn advance(&mut self) {
        self.position += match self.arrival {
            Arrival::Constant => 1.0,
            Arrival::Poisson => Exp1.sample(&mut self.random),
        };
    }
}

impl Iterator for Schedule {
    type Item = Start;

    fn next(&mut self) -> Option<Start> {
        loop {
            let phase = self.phases.all().get(self.phase)?;
            let end = self.due_before + phase.due_in_all();
            // The tolerance is far below one request. A start that only rounding puts before the end of a phase belongs
            // to the next phase.
            if phase.length > 0 && self.position < end - 1e-6 {
                let after = seconds_to_nanos(phase.until_due(self.position - self.due_before));
                let start = Start { intended: self.phase_start + after.min(phase.length - 1), phase: self.phase };
                self.advance();
                return Some(start);
            }
            self.due_before = end;
            self.phase_start += phase.length;
            self.phase += 1;
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded, and not below zero")]
fn seconds_to_nanos(seconds: f64) -> Nanos {
    (seconds * 1e9).round() as Nanos
}

/// Where the threads take their starts from.
#[derive(Debug)]
pub enum Source {
    /// The shared schedule. For each request a thread holds the lock for about 20 ns.
    Open(Mutex<Schedule>),
    /// No schedule: a start for each free connection, until the phases end.
    Closed,
    /// No schedule: a start for each free connection, until none is left. The value is the number of starts left.
    Count(AtomicU64),
}

impl Source {
    /// A source of `count` starts, as fast as possible.
    #[must_use]
    pub fn count(count: u64) -> Source {
        Source::Count(AtomicU64::new(count))
    }

    /// Takes the next start; `None` if there are no more. In closed mode the intended start is `now`.
    pub fn take(&self, now: Nanos, phases: &Phases) -> Option<Start> {
        match self {
            Source::Open(schedule) => schedule.lock().next(),
            Source::Count(left) => {
                let less = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
                less.is_ok().then(|| Start { intended: now, phase: phases.at(now) })
            }
            Source::Closed => (now < phases.end()).then(|| Start { intended: now, phase: phases.at(now) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phases(warm_up: Nanos, stages: &[(f64, f64, u64)]) -> Phases {
        let stages: Vec<_> =
            stages.iter().map(|(from, to, s)| Phase { from: *from, to: *to, length: s * SECOND }).collect();
        Phases::new(warm_up, &stages)
    }

    fn starts(phases: &Phases, arrival: Arrival, seed: u64) -> Vec<Start> {
        Schedule::new(phases.clone(), arrival, seed).collect()
    }

    #[test]
    fn constant_starts_are_a_grid() {
        let phases = phases(SECOND, &[(3.0, 3.0, 2)]);
        let starts = starts(&phases, Arrival::Constant, 1);
        assert_eq!(starts.len(), 9);
        for (index, start) in starts.iter().enumerate() {
            let exact = u64::try_from(index).expect("small") * SECOND;
            assert!(start.intended.abs_diff(exact / 3) <= 1, "{start:?}");
            assert_eq!(start.phase, usize::from(index >= 3));
        }
    }

    #[test]
    fn a_long_run_at_a_fractional_rate_has_the_exact_number_of_starts() {
        let phases = phases(0, &[(14_999.7, 14_999.7, 100)]);
        assert_eq!(starts(&phases, Arrival::Constant, 1).len(), 1_499_970);
    }

    #[test]
    fn a_ramp_starts_where_its_integral_is_whole() {
        // N(t) = t² for a ramp from 0 to 20 in 10 s.
        let phases = phases(0, &[(0.0, 20.0, 10)]);
        let starts = starts(&phases, Arrival::Constant, 1);
        assert_eq!(starts.len(), 100);
        for (index, start) in starts.iter().enumerate() {
            let index = f64::from(u32::try_from(index).expect("small"));
            assert!((seconds(start.intended) - index.sqrt()).abs() < 1e-6, "{start:?}");
        }
        assert!((phases.due(0, 5 * SECOND) - 25.0).abs() < 1e-9);
    }

    #[test]
    fn a_ramp_down_to_nothing_ends() {
        let phases = phases(0, &[(20.0, 0.0, 10)]);
        assert_eq!(starts(&phases, Arrival::Constant, 1).len(), 100);
    }

    #[test]
    fn truncated_phases_keep_what_was_before_the_end() {
        let whole = phases(SECOND, &[(0.0, 20.0, 10), (5.0, 5.0, 10)]);
        let cut = whole.truncated(6 * SECOND);
        assert_eq!(cut.end(), 6 * SECOND);
        assert_eq!(cut.all()[1], Phase { from: 0.0, to: 10.0, length: 5 * SECOND });
        assert_eq!(cut.all()[2].length, 0);
        assert!((whole.due(0, 6 * SECOND) - cut.due(0, 6 * SECOND)).abs() < 1e-9);
    }

    #[test]
    fn steps_follow_each_other_without_a_gap() {
        let phases = phases(0, &[(10.0, 10.0, 1), (1000.0, 1000.0, 1)]);
        let starts = starts(&phases, Arrival::Constant, 1);
        assert_eq!(starts.iter().filter(|start| start.phase == 1).count(), 10);
        assert_eq!(starts.iter().filter(|start| start.phase == 2).count(), 1000);
        assert!(starts.is_sorted_by_key(|start| start.intended));
    }

    #[test]
    fn poisson_starts_have_the_rate_and_variance_of_poisson() {
        let phases = phases(0, &[(1000.0, 1000.0, 100)]);
        let starts = starts(&phases, Arrival::Poisson, 7);
        let mut counts = [0_u32; 100];
        for start in &starts {
            counts[usize::try_from(start.intended / SECOND).expect("small")] += 1;
        }
        let mean = f64::from(counts.iter().sum::<u32>()) / 100.0;
        let variance = counts.iter().map(|count| (f64::from(*count) - mean).powi(2)).sum::<f64>() / 99.0;
        // Five standard errors on either side; constant arrivals would have no variance.
        assert!((mean - 1000.0).abs() < 5.0 * (1000.0_f64 / 100.0).sqrt(), "{mean}");
        assert!((variance / 1000.0 - 1.0).abs() < 5.0 * (2.0_f64 / 99.0).sqrt(), "{variance}");
    }

    #[test]
    fn a_seed_repeats_its_starts_and_another_does_not() {
        let phases = phases(0, &[(1000.0, 1000.0, 1)]);
        assert_eq!(starts(&phases, Arrival::Poisson, 1), starts(&phases, Arrival::Poisson, 1));
        assert_ne!(starts(&phases, Arrival::Poisson, 1), starts(&phases, Arrival::Poisson, 2));
    }

    #[test]
    fn closed_load_has_starts_until_the_end() {
        let phases = phases(SECOND, &[(0.0, 0.0, 1)]);
        assert_eq!(Source::Closed.take(5, &phases), Some(Start { intended: 5, phase: 0 }));
        assert_eq!(Source::Closed.take(SECOND, &phases), Some(Start { intended: SECOND, phase: 1 }));
        assert_eq!(Source::Closed.take(2 * SECOND, &phases), None);
    }
}
