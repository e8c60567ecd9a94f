//! Holds what `klad bench` reported against what is true. Called by `bench_truth`.

use std::time::Duration;

use crate::Verdict;
use crate::bench::{Distribution, RunResult, Section};

use super::server::Record;
use super::truth::{Nanos, Outcome, Percentile, Schedule, Truth, nanos};

/// Resolution of a histogram with three digits: its values are at most so much, as a share, above those recorded.
const RESOLUTION: f64 = 0.001;

/// For the start of the process, its connections and its report.
const AROUND: Duration = Duration::from_secs(1);

/// What a reported value may lie above the true one, beside the histogram's resolution: the kernel's way back, the client's
/// wake-up, and what the machine takes from both. Below it may not lie at all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// Below 99 percent.
    pub(crate) body: Duration,
    /// From there on, where single requests count.
    pub(crate) tail: Duration,
}

/// A percentile of a distribution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    /// Which.
    pub(crate) percentile: Percentile,
    /// What klad bench says, microseconds.
    pub(crate) reported_us: f64,
    /// What is true, microseconds.
    pub(crate) true_us: f64,
    /// What the difference may be, beside the resolution, microseconds.
    pub(crate) allowed_us: f64,
}

/// A distribution.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// Of what.
    pub(crate) name: &'static str,
    /// Percentiles that klad bench reports and that have a true value.
    pub(crate) points: Vec<Point>,
}

/// Requests that klad bench has counted, and the server too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    /// Of what.
    pub(crate) name: String,
    /// By klad bench.
    pub(crate) reported: u64,
    /// By the schedule and the server.
    pub(crate) seen: u64,
}

/// Everything that is compared of a run.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    /// Requests.
    pub(crate) counts: Vec<Count>,
    /// The response times of all and, where there is more than one, of each outcome.
    pub(crate) tables: Vec<Table>,
    /// The time from the actual send, held against the same truth.
    pub(crate) service: Table,
}

impl Point {
    /// Reported less true, microseconds.
    pub(crate) fn difference_us(&self) -> f64 {
        self.reported_us - self.true_us
    }

    /// The same, as a share of the true value in percent.
    pub(crate) fn difference_percent(&self) -> f64 {
        self.difference_us() / self.true_us * 1e2
    }

    /// Whether it is as exact as it must be.
    pub(crate) fn verdict(&self) -> Verdict {
        let resolution = self.true_us * RESOLUTION;
        let within = (-resolution..=resolution + self.allowed_us).contains(&self.difference_us());
        Verdict::of(within)
    }
}

impl Table {
    /// Holds `reported` against `times`, which ascend.
    pub(crate) fn new(name: &'static str, reported: &Distribution, times: &[Nanos], allowance: Allowance) -> Table {
        let point = |percentile: Percentile| {
            let allowed = if percentile.is_tail() { allowance.tail } else { allowance.body };
            Some(Point {
                percentile,
                reported_us: reported.at(percentile.percent())?,
                true_us: micros(percentile.of(times)?),
                allowed_us: micros(nanos(allowed)),
            })
        };
        Table { name, points: Percentile::ALL.into_iter().filter_map(point).collect() }
    }

    /// Of all points; a table without any compares nothing, and so cannot be within.
    pub(crate) fn verdict(&self) -> Verdict {
        let within = !self.points.is_empty() && self.points.iter().all(|point| point.verdict() == Verdict::Within);
        Verdict::of(within)
    }
}

impl Comparison {
    /// Of the run that `result` describes, with what the server saw of it.
    pub(crate) fn new(result: &RunResult, schedule: &Schedule, records: &[Record], allowance: Allowance) -> Comparison {
        let seen = by_number(records);
        let measured = Truth::new(schedule, &seen, schedule.measured());
        let warm_up = Truth::new(schedule, &seen, schedule.warm_up());
        let mut counts = section_counts("", &result.measured, &measured);
        if let Some(section) = &result.warm_up {
            counts.extend(section_counts("warm-up, ", section, &warm_up));
        }
        counts.extend(run_counts(result, schedule, records));
        let responses = measured.responses();
        let table = |name, reported, times: &[Nanos]| Table::new(name, reported, times, allowance);
        let mut tables = vec![table("response", &result.measured.response, &responses)];
        let outcomes: Vec<_> = Outcome::ALL.into_iter().filter(|outcome| measured.count(*outcome) > 0).collect();
        if outcomes.len() > 1 {
            // An outcome that klad bench does not report at all differs in its count.
            tables.extend(outcomes.into_iter().filter_map(|outcome| {
                let cell = result.measured.cells.iter().find(|cell| cell.outcome == outcome.name())?;
                Some(table(outcome.name(), &cell.response, measured.times(outcome)))
            }));
        }
        Comparison { counts, tables, service: table("service", &result.measured.service, &responses) }
    }

    /// Of all counts and response times.
    pub(crate) fn verdict(&self) -> Verdict {
        let within = self.counts.iter().all(|count| count.reported == count.seen)
            && self.tables.iter().all(|table| table.verdict() == Verdict::Within);
        Verdict::of(within)
    }
}

/// What the server saw of request n, at index n. Of a request that came twice the first one counts; `run_counts` has it.
fn by_number(records: &[Record]) -> Vec<Option<Record>> {
    let mut seen: Vec<Option<Record>> = vec![None; records.len()];
    for record in records {
        // A number beyond all that were sent leaves a gap, which is a request without an answer.
        if let Some(slot) = usize::try_from(record.number).ok().and_then(|number| seen.get_mut(number)) {
            slot.get_or_insert(*record);
        }
    }
    seen
}

/// Counts of a part of the run.
fn section_counts(part: &str, reported: &Section, truth: &Truth) -> Vec<Count> {
    let count = |name: &str, reported, seen| Count { name: format!("{part}{name}"), reported, seen };
    let scheduled = Outcome::ALL.into_iter().map(|outcome| truth.count(outcome)).sum();
    let mut counts = vec![
        count("scheduled", reported.scheduled, scheduled),
        count("sent or unsent", reported.sent + reported.unsent, scheduled),
        count("not found", reported.outcome("not_found"), 0),
        count("samples of response", reported.response.count, truth.responses().len() as u64),
    ];
    counts.extend(
        Outcome::ALL.map(|outcome| count(outcome.name(), reported.outcome(outcome.name()), truth.count(outcome))),
    );
    for (status, outcome) in [(200, Outcome::Served), (503, Outcome::Refused)] {
        let answers = reported.statuses.get(&status).copied().unwrap_or_default();
        counts.push(count(&format!("status {status}"), answers, truth.count(outcome)));
    }
    counts
}

/// Counts of the whole run, warm-up included.
fn run_counts(result: &RunResult, schedule: &Schedule, records: &[Record]) -> Vec<Count> {
    let sections = || [Some(&result.measured), result.warm_up.as_ref()].into_iter().flatten();
    let sent = sections().map(|section| section.sent).sum();
    let in_flight = sections().map(|section| section.in_flight_at_end).sum();
    let timed_out: u64 = sections().map(|section| section.outcome(Outcome::TimedOut.name())).sum();
    let unanswered = records.iter().filter(|record| record.ended.is_none()).count() as u64;
    let early = records.iter().filter(|record| record.arrived < schedule.intended(record.number)).count() as u64;
    let different = by_number(records).iter().flatten().count() as u64;
    let count = |name: &str, reported, seen| Count { name: name.to_owned(), reported, seen };
    let mut counts = vec![
        count("sent, whole run", sent, records.len() as u64),
        count("numbers that came once", records.len() as u64, different),
        count("sent before their time", early, 0),
    ];
    if timed_out == 0 {
        // What the server has not answered is still under way; with a deadline it was given up.
        counts.push(count("in flight at the end", in_flight, unanswered));
    }
    counts
}

/// Nanoseconds as microseconds.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 ns, which are 104 days")]
fn micros(time: Nanos) -> f64 {
    time as f64 / 1e3
}

/// What a run may take, from the start of its process to its end.
pub(crate) fn wall_max(warm_up: Duration, duration: Duration, drain: Duration) -> Duration {
    warm_up + duration + drain + AROUND
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::super::truth::SECOND;
    use super::*;
    use crate::bench::tests::distribution;

    const ALLOWANCE: Allowance = Allowance { body: Duration::from_micros(500), tail: Duration::from_millis(5) };

    /// What an exact client reports of `times`, each of them later by `late`.
    fn reported(times: &[Nanos], late: Nanos) -> Distribution {
        let values: Vec<_> = Percentile::ALL
            .iter()
            .filter_map(|percentile| Some((percentile.percent(), micros(percentile.of(times)? + late))))
            .collect();
        distribution(times.len() as u64, &values)
    }

    fn verdict(reported: &Distribution, times: &[Nanos]) -> Verdict {
        Table::new("response", reported, times, ALLOWANCE).verdict()
    }

    /// 1 ms, but for the second in which 2,000 requests find the server frozen.
    fn frozen() -> Vec<Nanos> {
        let waiting = (0..2_000).map(|number| SECOND * number / 2_000);
        let mut times: Vec<_> = waiting.chain(iter::repeat_n(0, 18_000)).map(|wait| wait + SECOND / 1_000).collect();
        times.sort_unstable();
        times
    }

    #[test]
    fn what_the_way_back_takes_is_allowed_and_no_more() {
        let times = frozen();
        assert_eq!(verdict(&reported(&times, 0), &times), Verdict::Within);
        assert_eq!(verdict(&reported(&times, 499_000), &times), Verdict::Within);
        assert_eq!(verdict(&reported(&times, 600_000), &times), Verdict::Exceeded);
    }

    #[test]
    fn nothing_is_known_before_it_is_true() {
        let early: Vec<_> = frozen().iter().map(|time| time - 2_000).collect();
        assert_eq!(verdict(&reported(&early, 0), &frozen()), Verdict::Exceeded);
    }

    #[test]
    fn nothing_compared_is_not_within() {
        assert_eq!(verdict(&distribution(0, &[]), &frozen()), Verdict::Exceeded);
        assert_eq!(verdict(&reported(&frozen(), 0), &[]), Verdict::Exceeded);
    }

    #[test]
    fn twin_coordinated_omission_is_found() {
        // Of 64 connections each has one request that meets the freeze; all others are sent after it.
        let mut omitted = vec![SECOND / 1_000; 19_936];
        omitted.extend([SECOND; 64]);
        assert_eq!(verdict(&reported(&omitted, 0), &frozen()), Verdict::Exceeded);
    }

    #[test]
    fn twin_refusals_among_the_responses_are_found() {
        let times = vec![SECOND / 1_000; 18_000];
        let mut mixed = times.clone();
        mixed.extend([20 * SECOND / 1_000; 2_000]);
        assert_eq!(verdict(&reported(&times, 0), &times), Verdict::Within);
        assert_eq!(verdict(&reported(&mixed, 0), &times), Verdict::Exceeded);
    }

    #[test]
    fn twin_unfinished_requests_that_are_left_out_are_found() {
        let mut times = vec![SECOND / 1_000; 10_000];
        let finished = times.clone();
        times.extend((0..10_000).map(|number| SECOND + SECOND * number / 2_000));
        assert_eq!(verdict(&reported(&finished, 0), &times), Verdict::Exceeded);
    }

    #[test]
    fn a_request_that_comes_twice_counts_once() {
        let record = |number, arrived| Record { number, arrived, ended: None };
        let seen = by_number(&[record(1, 10), record(0, 20), record(1, 30), record(7, 40)]);
        let arrived: Vec<_> = seen.iter().map(|record| record.map(|record| record.arrived)).collect();
        assert_eq!(arrived, [Some(20), Some(10), None, None]);
    }
}
