//! What is true of a run: when each request was to start, and by the server's record what became of it.
//!
//! ```text
//!   t0        t0 + n / rate          arrived            answered
//!   ├── … ──────────┼───────────────────┼───────────────────┤─ ─ ─ ─▶ klad bench has it: the kernel's way back, its wake-up
//!                   └──────── true response time ───────────┘
//! ```
//!
//! It is computed from the schedule and the record alone, and from the client takes only `t0`. The client cannot know of an
//! answer before the server hands it over, so what it reports is never less. Called by `bench_truth` and its `judgement`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::server::{Ending, Record};

/// Nanoseconds: of `CLOCK_MONOTONIC`, or a length of time.
pub(crate) type Nanos = u64;

/// One second.
pub(crate) const SECOND: Nanos = 1_000_000_000;

/// A length of time; at most 584 years.
pub(crate) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// When requests are to start, and until when they are waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// Start of the warm-up.
    pub(crate) start: Nanos,
    /// Requests per second; more than 0.
    pub(crate) rate: u64,
    /// Length of the warm-up.
    pub(crate) warm_up: Nanos,
    /// Length of the measured part.
    pub(crate) duration: Nanos,
    /// Wait for answers after it.
    pub(crate) drain: Nanos,
    /// Deadline of each request, from its intended start.
    pub(crate) timeout: Nanos,
}

/// What a client should say of a request; the names are those of klad's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// Answered 200.
    Served,
    /// Answered 503.
    Refused,
    /// Its connection was reset.
    Failed,
    /// No answer by its deadline.
    TimedOut,
    /// No answer by the end of the run.
    Unfinished,
}

/// The truth of a part of the run.
#[derive(Debug)]
pub(crate) struct Truth {
    /// Response times by outcome, ascending; those of which there is none are absent.
    times: BTreeMap<Outcome, Vec<Nanos>>,
}

impl Outcome {
    /// All of them.
    pub(crate) const ALL: [Outcome; 5] =
        [Outcome::Served, Outcome::Refused, Outcome::Failed, Outcome::TimedOut, Outcome::Unfinished];

    /// As klad's results have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Outcome::Served => "served",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
            Outcome::TimedOut => "timed_out",
            Outcome::Unfinished => "unfinished",
        }
    }

    /// Whether it belongs to the distribution of all response times: a refusal and a failure are no responses.
    pub(crate) fn is_response(self) -> bool {
        !matches!(self, Outcome::Refused | Outcome::Failed)
    }

    /// Of a request that is done; `None` for a status that no script has.
    pub(crate) fn of(ending: Ending) -> Option<Outcome> {
        match ending {
            Ending::Answered(200) => Some(Outcome::Served),
            Ending::Answered(503) => Some(Outcome::Refused),
            Ending::Answered(_) => None,
            Ending::Reset => Some(Outcome::Failed),
        }
    }
}

impl Schedule {
    /// When request `number` is to start, rounded down.
    pub(crate) fn intended(&self, number: u64) -> Nanos {
        let after = u128::from(number) * u128::from(SECOND) / u128::from(self.rate);
        self.start + u64::try_from(after).unwrap_or(u64::MAX)
    }

    /// The numbers of the warm-up's requests.
    pub(crate) fn warm_up(&self) -> Range<u64> {
        0..self.due(self.warm_up)
    }

    /// The numbers of the measured requests.
    pub(crate) fn measured(&self) -> Range<u64> {
        self.due(self.warm_up)..self.due(self.warm_up + self.duration)
    }

    /// Requests that are to start in the first `length`.
    fn due(&self, length: Nanos) -> u64 {
        let due = (u128::from(length) * u128::from(self.rate)).div_ceil(u128::from(SECOND));
        u64::try_from(due).unwrap_or(u64::MAX)
    }

    /// When a request is given up: one that was sent at the end of the drain, another at the end of the schedule, after
    /// which nothing is sent.
    fn end(&self, sent: bool) -> Nanos {
        self.start + self.warm_up + self.duration + if sent { self.drain } else { 0 }
    }

    /// What is true of request `number`, with its time; `record` is `None` when it never reached the server.
    fn truth(&self, number: u64, record: Option<&Record>) -> (Outcome, Nanos) {
        let intended = self.intended(number);
        let given_up = self.end(record.is_some()).saturating_sub(intended);
        let done = record.and_then(|record| record.ended).map(|(at, ending)| (at.saturating_sub(intended), ending));
        match done.and_then(|(time, ending)| Some((Outcome::of(ending)?, time))) {
            Some(done) if done.1 <= self.timeout.min(given_up) => done,
            _ if self.timeout <= given_up => (Outcome::TimedOut, self.timeout),
            _ => (Outcome::Unfinished, given_up),
        }
    }
}

impl Truth {
    /// Of the requests `numbers`. `records` has at index n what the server saw of request n.
    ///
    /// A request that was given up before it was sent has no number, and those after it have a lower one than their place in
    /// the schedule. That does no harm as long as the server answers none of them, as in the scenarios that are given up.
    pub(crate) fn new(schedule: &Schedule, records: &[Option<Record>], numbers: Range<u64>) -> Truth {
        let mut times: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for number in numbers {
            let record = usize::try_from(number).ok().and_then(|index| records.get(index)?.as_ref());
            let (outcome, time) = schedule.truth(number, record);
            times.entry(outcome).or_default().push(time);
        }
        for times in times.values_mut() {
            times.sort_unstable();
        }
        Truth { times }
    }

    /// Requests with `outcome`.
    pub(crate) fn count(&self, outcome: Outcome) -> u64 {
        self.times(outcome).len() as u64
    }

    /// Response times of `outcome`, ascending.
    pub(crate) fn times(&self, outcome: Outcome) -> &[Nanos] {
        self.times.get(&outcome).map_or(&[], Vec::as_slice)
    }

    /// All response times, ascending.
    pub(crate) fn responses(&self) -> Vec<Nanos> {
        let responses = self.times.iter().filter(|(outcome, _)| outcome.is_response());
        let mut all: Vec<_> = responses.flat_map(|(_, times)| times).copied().collect();
        all.sort_unstable();
        all
    }
}

/// A percentile, in hundredths of a percent, so that its rank is a matter of whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) struct Percentile(u16);

impl Percentile {
    /// Those that are compared.
    pub(crate) const ALL: [Percentile; 8] = [
        Percentile(5000),
        Percentile(7500),
        Percentile(9000),
        Percentile(9500),
        Percentile(9900),
        Percentile(9990),
        Percentile(9999),
        Percentile(10_000),
    ];

    /// Percent.
    pub(crate) fn percent(self) -> f64 {
        f64::from(self.0) / 1e2
    }

    /// The value that so many percent of `times`, which ascend, do not exceed; `None` when there are none.
    pub(crate) fn of(self, times: &[Nanos]) -> Option<Nanos> {
        let rank = (times.len() * usize::from(self.0)).div_ceil(10_000).max(1);
        times.get(rank - 1).copied()
    }

    /// Whether it is that of few requests, whose times are the machine's hiccups as much as the server's. 99 is among them:
    /// with one slow answer in a hundred it is the slowest of all others.
    pub(crate) fn is_tail(self) -> bool {
        self.0 >= 9900
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = SECOND / 1_000;

    fn schedule() -> Schedule {
        Schedule {
            start: 5 * SECOND,
            rate: 3,
            warm_up: SECOND,
            duration: 2 * SECOND,
            drain: SECOND,
            timeout: 30 * SECOND,
        }
    }

    fn record(ended: Option<(Nanos, Ending)>) -> Record {
        Record { number: 0, arrived: 0, ended }
    }

    #[test]
    fn percentiles_are_values_of_a_rank() {
        let times: Vec<Nanos> = (1..=1_000).collect();
        let values: Vec<_> = Percentile::ALL.iter().filter_map(|percentile| percentile.of(&times)).collect();
        assert_eq!(values, [500, 750, 900, 950, 990, 999, 1_000, 1_000]);
        assert_eq!(Percentile(9990).of(&times[..999]), Some(999));
        assert_eq!(Percentile(5000).of(&[7]), Some(7));
        assert_eq!(Percentile(5000).of(&[]), None);
    }

    #[test]
    fn intended_starts_are_a_grid_without_a_drift() {
        assert_eq!(schedule().intended(0), 5 * SECOND);
        assert_eq!(schedule().intended(1), 5 * SECOND + 333_333_333);
        assert_eq!(schedule().intended(3_000_000_000), 5 * SECOND + 1_000_000_000 * SECOND);
    }

    #[test]
    fn the_warm_up_has_the_first_numbers() {
        assert_eq!((schedule().warm_up(), schedule().measured()), (0..3, 3..9));
        // The request at 1.5 s, the last of a grid of 0.5 s that starts before 1.6 s.
        let odd = Schedule { rate: 2, warm_up: 600 * MS, duration: SECOND, ..schedule() };
        assert_eq!((odd.warm_up(), odd.measured()), (0..2, 2..4));
        assert_eq!(Schedule { warm_up: 0, ..schedule() }.warm_up(), 0..0);
    }

    #[test]
    fn response_times_begin_at_the_intended_start() {
        let schedule = schedule();
        let mut records = vec![None; 9];
        records[3] = Some(record(Some((6 * SECOND + 10 * MS, Ending::Answered(200)))));
        records[4] = Some(record(Some((6 * SECOND + 400 * MS, Ending::Answered(503)))));
        records[5] = Some(record(Some((7 * SECOND, Ending::Reset))));
        let truth = Truth::new(&schedule, &records, 3..6);
        assert_eq!(truth.times(Outcome::Served), [10 * MS]);
        assert_eq!(truth.times(Outcome::Refused), [66_666_667]);
        assert_eq!(truth.times(Outcome::Failed), [333_333_334]);
        assert_eq!(truth.responses(), [10 * MS]);
    }

    #[test]
    fn what_has_no_answer_has_its_age() {
        let schedule = schedule();
        // Number 3 starts 1 s after the start; the schedule ends 3 s after it, the drain 4 s. 3 was seen, the others were
        // never sent.
        let records = [None, None, None, Some(record(None))];
        let truth = Truth::new(&schedule, &records, 3..9);
        assert_eq!(truth.count(Outcome::Unfinished), 6);
        assert_eq!(truth.times(Outcome::Unfinished)[5], 3 * SECOND);
        assert_eq!(truth.times(Outcome::Unfinished)[2], SECOND);
        assert_eq!(truth.responses().len(), 6);
    }

    #[test]
    fn a_deadline_comes_before_the_end_of_the_run_or_not_at_all() {
        let schedule = Schedule { timeout: 1_500 * MS, ..schedule() };
        // Late: its deadline is over when it is answered.
        let late = record(Some((schedule.intended(3) + 1_501 * MS, Ending::Answered(200))));
        let truth = Truth::new(&schedule, &[None, None, None, Some(late)], 3..9);
        assert_eq!(truth.times(Outcome::TimedOut), [1_500 * MS; 2]);
        assert_eq!(truth.times(Outcome::Unfinished), [333_333_334, 666_666_667, SECOND, 1_333_333_334]);
    }
}
