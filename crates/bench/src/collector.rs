//! Adds up what the generator threads have recorded: by phase for the result, and by interval for the time series. The
//! collector runs on the thread that started the load, so it does not delay the generator. Called by `threads` and
//! `runner`.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::gap::GapFinder;
use crate::pieces::Pieces;
use crate::recorder::{Outcome, Recorder, Tally, histogram};
use crate::result::{Cell, Distribution, Interval, Piece, Section, Summary, micros};
use crate::schedule::{Mode, Nanos, Phases, SECOND, seconds};

/// The largest number of intervals of a schedule. Up to an hour, an interval is one second. In longer schedules,
/// intervals are several seconds long.
const INTERVALS_MAX: u64 = 3_600;

/// The largest number of intervals that wait for a slow thread. If more intervals wait, the oldest is closed without
/// the figures of that thread.
const PENDING_MAX: usize = 16;

/// Returns the length of an interval in a run of length `run`.
#[must_use]
pub fn interval_length(run: Nanos) -> Nanos {
    run.div_ceil(INTERVALS_MAX).div_ceil(SECOND).max(1) * SECOND
}

/// Adds up the records of all threads of a run.
#[derive(Debug)]
pub struct Collector {
    phases: Phases,
    mode: Mode,
    interval: Nanos,
    good_within: Nanos,
    tallies: Vec<Tally>,
    /// For each thread, the number of the next interval that the thread will deliver.
    progress: Vec<u64>,
    /// The sums of each interval that is not closed yet, by the interval's number.
    pending: BTreeMap<u64, Tally>,
    /// The number of the next interval to close.
    next: u64,
    gap: GapFinder,
    pieces: Pieces,
}

impl Collector {
    /// Creates an empty collector for a run of `threads` threads.
    #[must_use]
    pub fn new(phases: Phases, mode: Mode, threads: usize, interval: Nanos, good_within: Nanos) -> Collector {
        let tallies = phases.all().iter().map(|_| Tally::new()).collect();
        let progress = vec![0; threads];
        let gap = GapFinder::new(phases.warm_up(), interval);
        let (pieces, pending) = (Pieces::new(&phases, interval), BTreeMap::new());
        Collector { phases, mode, interval, good_within, tallies, progress, pending, next: 0, gap, pieces }
    }

    /// Adds what `thread` has recorded in the interval with the number `interval`.
    pub fn add(&mut self, thread: usize, interval: u64, recorder: &Recorder) {
        let after_the_end = interval * self.interval >= self.phases.end();
        self.progress[thread] = interval + 1;
        if after_the_end && recorder.phases().all(|(_, tally)| tally.is_empty()) {
            return;
        }
        self.add_to(interval, recorder);
    }

    /// Adds the records that no thread has delivered, because no thread has started the requests, or because the queue
    /// to the collector was full. These records count in the last interval of the schedule, or in the next interval if
    /// that one is closed.
    pub fn add_undelivered(&mut self, recorder: &Recorder) {
        let last = self.phases.end().saturating_sub(1) / self.interval;
        if recorder.phases().all(|(_, tally)| tally.cells().next().is_none()) {
            return;
        }
        self.add_to(last, recorder);
    }

    fn add_to(&mut self, interval: u64, recorder: &Recorder) {
        let into = self.pending.entry(interval.max(self.next)).or_default();
        for (phase, tally) in recorder.phases() {
            self.tallies[phase].add(tally);
            into.add(tally);
            self.pieces.add(interval, tally);
        }
    }

    /// Shortens the phases, because the run was ended early at `at`.
    pub fn truncate(&mut self, at: Nanos) {
        self.phases = self.phases.truncated(at);
    }

    /// Closes and returns the next interval. Returns `None` if no interval is left. Also returns `None` if a thread has
    /// not delivered that interval yet, unless the run is `over`, or more than `PENDING_MAX` intervals wait.
    pub fn next_interval(&mut self, over: bool) -> Option<(Interval, Tally)> {
        let last = *self.pending.last_key_value()?.0;
        let complete = self.progress.iter().copied().min().unwrap_or(0);
        if self.next > last || !(over || self.next < complete || self.pending.len() > PENDING_MAX) {
            return None;
        }
        let tally = self.pending.remove(&self.next).unwrap_or_default();
        self.gap.add(self.next, tally.counters.good_hundredths, self.phases.end());
        let row = self.row(self.next, &tally);
        self.next += 1;
        Some((row, tally))
    }

    fn row(&self, interval: u64, tally: &Tally) -> Interval {
        let start = interval * self.interval;
        // An interval that begins after the schedule has requests that ended during the drain. Its length is not cut.
        let over = start >= self.phases.end();
        let end = if over { start + self.interval } else { (start + self.interval).min(self.phases.end()) };
        let scheduled = (self.mode == Mode::Open).then(|| self.phases.due(start, end) / seconds(end - start));
        let mut outcomes = BTreeMap::new();
        let mut good = 0;
        let mut latency = histogram();
        for (_, outcome, cell) in tally.cells() {
            *outcomes.entry(outcome).or_insert(0) += cell.response.len();
            good += cell.good;
            if outcome.counts_for_latency() {
                latency.add(&cell.response).expect("it grows");
            }
        }
        Interval {
            start_s: seconds(start),
            length_s: seconds(end - start),
            warm_up: start < self.phases.warm_up(),
            scheduled_per_s: scheduled,
            sent: tally.counters.sent,
            outcomes,
            good,
            response: Summary::of(&latency),
            send_lag: Summary::of(&tally.counters.send_lag),
        }
    }

    /// Returns the longest time without a good answer in the measured part. The caller must have closed all intervals.
    #[must_use]
    pub fn longest_gap(&self) -> Nanos {
        self.gap.longest(self.phases.end())
    }

    /// Returns the completed pieces of the measured part. Pieces are up to ten equal groups of intervals.
    #[must_use]
    pub fn pieces(&self) -> Vec<Piece> {
        self.pieces.until(self.phases.end())
    }

    /// Returns the figures of the warm-up; `None` without a warm-up.
    #[must_use]
    pub fn warm_up(&self) -> Option<Section> {
        let length = self.phases.warm_up();
        (length > 0).then(|| section(&self.tallies[0], length, self.good_within))
    }

    /// Returns the figures and the histograms of the whole measured part.
    #[must_use]
    pub fn measured(&self) -> (Section, Spectrum) {
        let mut all = Tally::new();
        self.tallies[1..].iter().for_each(|tally| all.add(tally));
        let section = section(&all, self.phases.end() - self.phases.warm_up(), self.good_within);
        (section, Spectrum::of(&all))
    }

    /// Returns the figures of each stage that was begun. Empty if there is only one stage.
    #[must_use]
    pub fn stages(&self) -> Vec<Section> {
        let stages = &self.phases.all()[1..];
        if stages.len() == 1 {
            return Vec::new();
        }
        stages
            .iter()
            .zip(&self.tallies[1..])
            .filter(|(stage, _)| stage.length > 0)
            .map(|(stage, tally)| section(tally, stage.length, self.good_within))
            .collect()
    }
}

/// The histograms of [`Section::response`] and [`Section::service`], in nanoseconds.
#[derive(Debug)]
pub struct Spectrum {
    /// Response times, from the intended start.
    pub response: Histogram<u64>,
    /// Service times, from the send.
    pub service: Histogram<u64>,
}

impl Spectrum {
    fn of(tally: &Tally) -> Spectrum {
        let mut spectrum = Spectrum { response: histogram(), service: histogram() };
        for (_, _, cell) in tally.cells().filter(|(_, outcome, _)| outcome.counts_for_latency()) {
            spectrum.response.add(&cell.response).expect("it grows");
            spectrum.service.add(&cell.service).expect("it grows");
        }
        spectrum
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn section(tally: &Tally, length: Nanos, good_within: Nanos) -> Section {
    let mut outcomes: BTreeMap<_, _> = Outcome::ALL.into_iter().map(|outcome| (outcome, 0)).collect();
    let mut cells = Vec::new();
    for (operation, outcome, cell) in tally.cells() {
        *outcomes.entry(outcome).or_insert(0) += cell.response.len();
        let (response, service) = (Distribution::of(&cell.response), Distribution::of(&cell.service));
        cells.push(Cell { operation, outcome, response, service });
    }
    let counters = &tally.counters;
    let statuses: BTreeMap<u16, u64> = counters.statuses().collect();
    let scheduled = outcomes.values().sum();
    // If a run was ended during its warm-up, the measured part has length 0.
    let per_second = |count: u64| if length == 0 { 0.0 } else { count as f64 / seconds(length) };
    let spectrum = Spectrum::of(tally);
    Section {
        duration_s: seconds(length),
        scheduled,
        sent: counters.sent,
        unsent: counters.unsent,
        in_flight_at_end: counters.in_flight,
        scheduled_per_s: per_second(scheduled),
        sent_per_s: per_second(counters.sent),
        answered_per_s: per_second(counters.answered),
        goodput_per_s: per_second(counters.good),
        good_within_us: micros(good_within),
        bytes_received: counters.bytes_received,
        bytes_sent: counters.bytes_sent,
        outcomes,
        statuses,
        errors: counters.failures().map(|(failure, count)| (failure.name().to_owned(), count)).collect(),
        response: Distribution::of(&spectrum.response),
        service: Distribution::of(&spectrum.service),
        send_lag: Distribution::of(&counters.send_lag),
        cells,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{Operation, RequestEnd};
    use crate::schedule::Phase;

    fn collector(threads: usize) -> Collector {
        let phases = Phases::new(SECOND, &[Phase { from: 2.0, to: 2.0, length: 2 * SECOND }]);
        Collector::new(phases, Mode::Open, threads, SECOND, SECOND)
    }

    fn recorded(phase: usize, response: Nanos) -> Recorder {
        let mut recorder = Recorder::new(2);
        let (operation, outcome) = (Operation::Get, Outcome::Served);
        recorder.record(&RequestEnd { phase, operation, outcome, response, service: Some(1) }, SECOND);
        recorder
    }

    #[test]
    fn an_interval_is_closed_when_every_thread_has_delivered_it() {
        let mut collector = collector(2);
        collector.add(0, 0, &recorded(0, 5));
        assert!(collector.next_interval(false).is_none());
        collector.add(1, 0, &recorded(0, 7));
        let (row, _) = collector.next_interval(false).expect("both are there");
        assert_eq!((row.outcomes[&Outcome::Served], row.warm_up, row.scheduled_per_s), (2, true, Some(2.0)));
        assert!(collector.next_interval(false).is_none());
    }

    #[test]
    fn a_thread_that_was_stalled_leaves_rows_without_it_and_none_is_missing() {
        let mut collector = collector(1);
        collector.add(0, 0, &recorded(0, 5));
        collector.add(0, 3, &recorded(1, 5));
        let rows: Vec<_> = std::iter::from_fn(|| collector.next_interval(true)).map(|(row, _)| row.start_s).collect();
        assert_eq!(rows, [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(collector.measured().0.outcomes[&Outcome::Served], 1);
    }

    #[test]
    fn a_thread_that_delivers_nothing_holds_a_bounded_number_of_intervals() {
        let mut collector = collector(2);
        for interval in 0..100 {
            collector.add(0, interval, &recorded(1, 5));
            while collector.next_interval(false).is_some() {}
            assert!(collector.pending.len() <= PENDING_MAX);
        }
    }

    #[test]
    fn long_runs_have_longer_intervals() {
        assert_eq!(interval_length(60 * SECOND), SECOND);
        assert_eq!(interval_length(3_600 * SECOND), SECOND);
        assert_eq!(interval_length(3_601 * SECOND), 2 * SECOND);
        assert_eq!(interval_length(86_400 * SECOND), 24 * SECOND);
    }
}
