//! What became of each request, counted where it happened: one recorder for each thread, no lock, no allocation but for the
//! first request of a kind.
//!
//! A thread fills a recorder for one interval, then gives it to the collector for an empty one; so memory depends on how
//! many kinds of outcome there are and how long the longest request was, and not on the length of the run.
//! Called by `generator` (fills) and `collector` (adds up).

use hdrhistogram::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gap::Pieces;
use crate::schedule::Nanos;

/// What was asked of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Read a key.
    Get,
    /// Write a key.
    Put,
    /// Remove a key.
    Delete,
    /// The fixed request.
    Request,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// 2xx or 3xx.
    Served,
    /// 404.
    NotFound,
    /// 429 or 503: the server had no room, and said so.
    Refused,
    /// Any other status, or no whole answer: not connected, reset, closed, not HTTP.
    Failed,
    /// 504, or no answer by the deadline, sent or not.
    TimedOut,
    /// No answer by the end of the run, sent or not; recorded at its age, which is the least it would have taken.
    Unfinished,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 4] = [Operation::Get, Operation::Put, Operation::Delete, Operation::Request];

    /// As in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Operation::Get => "get",
            Operation::Put => "put",
            Operation::Delete => "delete",
            Operation::Request => "request",
        }
    }
}

impl Outcome {
    /// All of them.
    pub const ALL: [Outcome; 6] =
        [Outcome::Served, Outcome::NotFound, Outcome::Refused, Outcome::Failed, Outcome::TimedOut, Outcome::Unfinished];

    /// Of an answer.
    #[must_use]
    pub fn of_status(status: u16) -> Outcome {
        match status {
            200..400 => Outcome::Served,
            404 => Outcome::NotFound,
            429 | 503 => Outcome::Refused,
            504 => Outcome::TimedOut,
            _ => Outcome::Failed,
        }
    }

    /// As in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Served => "served",
            Outcome::NotFound => "not_found",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
            Outcome::TimedOut => "timed_out",
            Outcome::Unfinished => "unfinished",
        }
    }

    /// Whether it is what the client wanted to know: that a key is absent is, that a page is not there is not.
    #[must_use]
    pub fn is_good_for(self, operation: Operation) -> bool {
        match self {
            Outcome::Served => true,
            Outcome::NotFound => operation != Operation::Request,
            Outcome::Refused | Outcome::Failed | Outcome::TimedOut | Outcome::Unfinished => false,
        }
    }

    /// Whether it belongs in the distribution of response times: neither a refusal nor a failure is a response, and what
    /// was still waited for must not be missing.
    #[must_use]
    pub fn is_waited_for(self) -> bool {
        !matches!(self, Outcome::Refused | Outcome::Failed)
    }
}

/// Why there was no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// The connection was refused or could not be made.
    Connect,
    /// It was reset, or broke otherwise, after the request was sent.
    Reset,
    /// It was closed before the answer was whole.
    Closed,
    /// The answer was not HTTP/1.
    Malformed,
    /// This machine has no port left for a connection.
    Ports,
    /// This process has no descriptor left for a connection.
    Descriptors,
}

impl Failure {
    /// All of them.
    pub const ALL: [Failure; 6] =
        [Failure::Connect, Failure::Reset, Failure::Closed, Failure::Malformed, Failure::Ports, Failure::Descriptors];

    /// As in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Failure::Connect => "connect",
            Failure::Reset => "reset",
            Failure::Closed => "closed",
            Failure::Malformed => "malformed",
            Failure::Ports => "no_port_left",
            Failure::Descriptors => "no_descriptor_left",
        }
    }
}

/// One operation with one outcome.
#[derive(Clone, Debug)]
pub struct Cell {
    /// From the intended start, nanoseconds.
    pub response: Histogram<u64>,
    /// From the actual send, nanoseconds; requests that were never sent are not in it.
    pub service: Histogram<u64>,
    /// Good outcomes within the time for goodput.
    pub good: u64,
}

impl Cell {
    fn new() -> Cell {
        Cell { response: histogram(), service: histogram(), good: 0 }
    }

    fn add(&mut self, other: &Cell) {
        add(&mut self.response, &other.response);
        add(&mut self.service, &other.service);
        self.good += other.good;
    }

    fn clear(&mut self) {
        self.response.reset();
        self.service.reset();
        self.good = 0;
    }
}

/// Three digits, from a nanosecond up, growing with its largest value: 200 KiB for ten seconds.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("3 is a number of digits that it takes")
}

fn add(into: &mut Histogram<u64>, from: &Histogram<u64>) {
    into.add(from).expect("it grows to what it is given");
}

/// Statuses that are counted one by one.
const STATUSES: std::ops::Range<u16> = 100..1000;

/// What a phase has beside its cells.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that timed out or were left open without having been sent.
    pub unsent: u64,
    /// Requests that were under way at the end of the run.
    pub in_flight: u64,
    /// Answers that came in this phase, whenever their requests were to start.
    pub answered: u64,
    /// The good ones among them.
    pub good: u64,
    /// When good answers came, in this interval.
    pub good_pieces: Pieces,
    /// Heads and bodies of answers.
    pub bytes_received: u64,
    /// Heads and bodies of requests.
    pub bytes_sent: u64,
    /// Answers by status, from 100.
    statuses: Box<[u64]>,
    /// Failures, in the order of [`Failure::ALL`].
    failures: [u64; Failure::ALL.len()],
    /// The generator's lag, nanoseconds.
    pub send_lag: Histogram<u64>,
}

impl Counters {
    fn new() -> Counters {
        Counters {
            sent: 0,
            unsent: 0,
            in_flight: 0,
            answered: 0,
            good: 0,
            good_pieces: 0,
            bytes_received: 0,
            bytes_sent: 0,
            statuses: vec![0; STATUSES.len()].into(),
            failures: [0; Failure::ALL.len()],
            send_lag: histogram(),
        }
    }

    fn add(&mut self, other: &Counters) {
        self.sent += other.sent;
        self.unsent += other.unsent;
        self.in_flight += other.in_flight;
        self.answered += other.answered;
        self.good += other.good;
        self.good_pieces |= other.good_pieces;
        self.bytes_received += other.bytes_received;
        self.bytes_sent += other.bytes_sent;
        self.statuses.iter_mut().zip(&other.statuses).for_each(|(into, from)| *into += from);
        self.failures.iter_mut().zip(&other.failures).for_each(|(into, from)| *into += from);
        add(&mut self.send_lag, &other.send_lag);
    }

    fn clear(&mut self) {
        let mut send_lag = std::mem::replace(&mut self.send_lag, Histogram::new(0).expect("a placeholder"));
        send_lag.reset();
        *self = Counters { send_lag, ..Counters::new() };
    }

    /// Counts an answer.
    pub fn count_status(&mut self, status: u16) {
        if STATUSES.contains(&status) {
            self.statuses[usize::from(status - STATUSES.start)] += 1;
        }
    }

    /// Counts a failure.
    pub fn count_failure(&mut self, failure: Failure) {
        self.failures[failure as usize] += 1;
    }

    /// Statuses that were seen, with how often.
    pub fn statuses(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        STATUSES.zip(self.statuses.iter().copied()).filter(|(_, count)| *count > 0)
    }

    /// Failures that were seen, with how often.
    pub fn failures(&self) -> impl Iterator<Item = (Failure, u64)> + '_ {
        Failure::ALL.into_iter().zip(self.failures).filter(|(_, count)| *count > 0)
    }
}

/// Everything about one phase.
#[derive(Clone, Debug)]
pub struct Tally {
    /// By operation and outcome; boxed, and made when first needed.
    cells: [[Option<Box<Cell>>; Outcome::ALL.len()]; Operation::ALL.len()],
    /// The rest.
    pub counters: Counters,
}

impl Tally {
    /// Nothing has been recorded.
    #[must_use]
    pub fn new() -> Tally {
        Tally { cells: Default::default(), counters: Counters::new() }
    }

    /// The cell of a kind, made when it is missing.
    pub fn cell(&mut self, operation: Operation, outcome: Outcome) -> &mut Cell {
        self.cells[operation as usize][outcome as usize].get_or_insert_with(|| Box::new(Cell::new()))
    }

    /// The cells that hold anything.
    pub fn cells(&self) -> impl Iterator<Item = (Operation, Outcome, &Cell)> {
        Operation::ALL.into_iter().zip(&self.cells).flat_map(|(operation, row)| {
            Outcome::ALL.into_iter().zip(row).filter_map(move |(outcome, cell)| {
                let cell = cell.as_deref().filter(|cell| !cell.response.is_empty())?;
                Some((operation, outcome, cell))
            })
        })
    }

    /// Adds what `other` holds.
    pub fn add(&mut self, other: &Tally) {
        for (operation, outcome, cell) in other.cells() {
            self.cell(operation, outcome).add(cell);
        }
        self.counters.add(&other.counters);
    }

    /// Whether nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let counters = &self.counters;
        let nothing = counters.sent + counters.answered + counters.bytes_received + counters.bytes_sent == 0;
        nothing && self.cells().next().is_none()
    }

    fn clear(&mut self) {
        self.cells.iter_mut().flatten().flatten().for_each(|cell| cell.clear());
        self.counters.clear();
    }
}

impl Default for Tally {
    fn default() -> Self {
        Tally::new()
    }
}

/// What one thread has seen in one interval, by phase. Requests of an earlier phase may end in a later one, so there is
/// more than one; a phase without a request costs a pointer.
#[derive(Debug)]
pub struct Recorder {
    tallies: Vec<Option<Box<Tally>>>,
}

impl Recorder {
    /// For so many phases.
    #[must_use]
    pub fn new(phases: usize) -> Recorder {
        Recorder { tallies: (0..phases).map(|_| None).collect() }
    }

    /// The tally of a phase, made when it is missing.
    pub fn phase(&mut self, phase: usize) -> &mut Tally {
        self.tallies[phase].get_or_insert_with(|| Box::new(Tally::new()))
    }

    /// The phases that something was recorded of.
    pub fn phases(&self) -> impl Iterator<Item = (usize, &Tally)> {
        self.tallies.iter().enumerate().filter_map(|(phase, tally)| Some((phase, tally.as_deref()?)))
    }

    /// Forgets what was recorded, and keeps the memory, so that the next interval allocates nothing; a phase in which
    /// nothing happened this time gives its memory back, or long runs of stages would hold it for each.
    pub fn clear(&mut self) {
        for tally in &mut self.tallies {
            let idle = tally.as_ref().is_some_and(|tally| tally.is_empty());
            if idle {
                *tally = None;
            } else if let Some(tally) = tally {
                tally.clear();
            }
        }
    }
}

/// How a request ended, to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Its phase.
    pub phase: usize,
    /// What was asked.
    pub operation: Operation,
    /// What came of it.
    pub outcome: Outcome,
    /// Since its intended start.
    pub response: Nanos,
    /// Since it was sent; `None`: it was not.
    pub service: Option<Nanos>,
}

impl Recorder {
    /// Records one request, and says whether it counts as goodput: `good_within` bounds its response time.
    pub fn record(&mut self, ended: &Ended, good_within: Nanos) -> bool {
        let tally = self.phase(ended.phase);
        let cell = tally.cell(ended.operation, ended.outcome);
        cell.response.record(ended.response).expect("the histogram grows");
        if let Some(service) = ended.service {
            cell.service.record(service).expect("the histogram grows");
        }
        let good = ended.outcome.is_good_for(ended.operation) && ended.response <= good_within;
        cell.good += u64::from(good);
        let waited = matches!(ended.outcome, Outcome::TimedOut | Outcome::Unfinished);
        tally.counters.unsent += u64::from(waited && ended.service.is_none());
        good
    }

    /// Records `count` requests that were never sent and have ended alike.
    pub fn record_unsent(&mut self, ended: &Ended, count: u64) {
        assert!(ended.service.is_none(), "it was never sent");
        let tally = self.phase(ended.phase);
        let cell = tally.cell(ended.operation, ended.outcome);
        cell.response.record_n(ended.response, count).expect("the histogram grows");
        tally.counters.unsent += count;
    }
}

impl Ended {
    /// Whether no figure tells one from the other: their times differ by less than 2^-13, a quarter of what the histogram
    /// can tell apart.
    #[must_use]
    pub fn is_alike(&self, other: &Ended) -> bool {
        let apart = self.response.abs_diff(other.response);
        (self.phase, self.operation, self.outcome) == (other.phase, other.operation, other.outcome)
            && self.service == other.service
            && apart <= self.response >> 13
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(phase: usize, outcome: Outcome, response: Nanos) -> Ended {
        Ended { phase, operation: Operation::Get, outcome, response, service: Some(response / 2) }
    }

    #[test]
    fn outcomes_and_phases_are_kept_apart() {
        let mut recorder = Recorder::new(3);
        recorder.record(&ended(1, Outcome::Served, 1000), 1000);
        recorder.record(&ended(1, Outcome::Served, 1001), 1000);
        recorder.record(&ended(1, Outcome::Refused, 10), 1000);
        recorder.record(&ended(2, Outcome::Served, 10), 1000);
        let mut total = Tally::new();
        for (phase, tally) in recorder.phases() {
            if phase == 1 {
                total.add(tally);
            }
        }
        let cells: Vec<_> = total.cells().map(|(_, outcome, cell)| (outcome, cell.response.len(), cell.good)).collect();
        assert_eq!(cells, [(Outcome::Served, 2, 1), (Outcome::Refused, 1, 0)]);
    }

    #[test]
    fn a_cleared_recorder_is_empty() {
        let mut recorder = Recorder::new(1);
        recorder.record(&ended(0, Outcome::Served, 1000), 1000);
        recorder.phase(0).counters.count_status(200);
        recorder.phase(0).counters.sent = 1;
        recorder.clear();
        assert!(recorder.phases().all(|(_, tally)| tally.cells().next().is_none()));
        assert_eq!(recorder.phase(0).counters.statuses().count(), 0);
    }

    #[test]
    fn names_are_those_of_the_json_form() {
        for outcome in Outcome::ALL {
            assert_eq!(serde_json::to_value(outcome).expect("json"), outcome.name());
        }
        for operation in Operation::ALL {
            assert_eq!(serde_json::to_value(operation).expect("json"), operation.name());
        }
        for (index, failure) in Failure::ALL.into_iter().enumerate() {
            assert_eq!(failure as usize, index);
        }
    }
}
