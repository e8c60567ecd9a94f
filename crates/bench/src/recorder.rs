//! Records the outcome and the times of each request on the thread that made the request. Each thread has its own
//! recorder, so no lock is needed. Memory is allocated only for the first request of a phase, operation and outcome,
//! and when a histogram grows.
//!
//! A thread fills a recorder during one interval, then exchanges it with the collector for an empty one. Memory
//! therefore depends on the numbers of phases, operations and outcomes and on the longest response time, but not on the
//! length of the run. Called by `generator` (records) and `collector` (adds up).

use hdrhistogram::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gap::Hundredths;
use crate::schedule::Nanos;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Read a key.
    Get,
    /// Write a key.
    Put,
    /// Remove a key.
    Delete,
    /// Many operations in one request.
    Batch,
    /// The fixed request, or a script's request.
    Request,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Status 2xx or 3xx.
    Served,
    /// Status 404.
    NotFound,
    /// Status 429 or 503: the server rejected the request because of overload.
    Refused,
    /// Any other status, or no complete answer: not connected, reset, closed early, or not HTTP.
    Failed,
    /// Status 504, or no answer by the deadline, even if the request was never sent.
    TimedOut,
    /// No answer by the end of the run. The response time is the age of the request: at the end of the drain if it had
    /// a connection, otherwise at the end of the schedule. The request would have taken at least that long.
    Unfinished,
}

impl Operation {
    /// All operations, in the order of their discriminants.
    pub const ALL: [Operation; 5] =
        [Operation::Get, Operation::Put, Operation::Delete, Operation::Batch, Operation::Request];

    /// The name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Operation::Get => "get",
            Operation::Put => "put",
            Operation::Delete => "delete",
            Operation::Batch => "batch",
            Operation::Request => "request",
        }
    }
}

impl Outcome {
    /// All outcomes, in the order of their discriminants.
    pub const ALL: [Outcome; 6] =
        [Outcome::Served, Outcome::NotFound, Outcome::Refused, Outcome::Failed, Outcome::TimedOut, Outcome::Unfinished];

    /// Returns the outcome of an answer with this status.
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

    /// The name in JSON.
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

    /// Returns `true` if the outcome is good for a client that asked for `operation`. Status 404 is good for
    /// operations on keys, also in a batch, but not for a fixed request or a script's request.
    #[must_use]
    pub fn is_good_for(self, operation: Operation) -> bool {
        match self {
            Outcome::Served => true,
            Outcome::NotFound => operation != Operation::Request,
            Outcome::Refused | Outcome::Failed | Outcome::TimedOut | Outcome::Unfinished => false,
        }
    }

    /// Returns `true` if requests with this outcome count in the latency distribution. Rejected and failed requests do
    /// not count, because quick ones would improve the distribution. Timed-out and unfinished requests count, because
    /// to leave them out would hide the longest waits.
    #[must_use]
    pub fn counts_for_latency(self) -> bool {
        !matches!(self, Outcome::Refused | Outcome::Failed)
    }
}

/// Why a failed request has no complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// The connection could not be opened, for example because the server refused it.
    Connect,
    /// The connection was reset or broke after it was opened.
    Reset,
    /// The connection was closed before the answer was complete.
    Closed,
    /// The answer was not HTTP/1.
    Malformed,
    /// This machine has no free port for a connection.
    Ports,
    /// This process or this machine has no free descriptor for a connection.
    Descriptors,
}

impl Failure {
    /// All failures, in the order of their discriminants.
    pub const ALL: [Failure; 6] =
        [Failure::Connect, Failure::Reset, Failure::Closed, Failure::Malformed, Failure::Ports, Failure::Descriptors];

    /// The name in JSON.
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

/// The requests of one operation with one outcome.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Response times, from the intended start, nanoseconds.
    pub response: Histogram<u64>,
    /// Service times, from the actual send, nanoseconds; without requests that were never sent.
    pub service: Histogram<u64>,
    /// The number of good answers: a good outcome, and a response time of at most `--good-within`.
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

/// Creates an empty histogram with three digits, from one nanosecond up. The histogram grows with its largest value.
/// With a value of ten seconds it takes about 200 KiB.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("3 digits are valid")
}

fn add(into: &mut Histogram<u64>, from: &Histogram<u64>) {
    into.add(from).expect("the histogram grows");
}

/// The HTTP statuses that are counted individually.
const STATUSES: std::ops::Range<u16> = 100..1000;

/// The counters of a phase that are not split by operation and outcome.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that were never sent, and ended as timed out or unfinished.
    pub unsent: u64,
    /// Requests that were sent and had no answer at the end of the run.
    pub in_flight: u64,
    /// Answers that arrived in this phase, no matter in which phase their requests should have started.
    pub answered: u64,
    /// Good answers that arrived in this phase, no matter in which phase their requests should have started.
    pub good: u64,
    /// The hundredths of the current interval in which good answers arrived, as a bit mask.
    pub good_hundredths: Hundredths,
    /// Bytes of heads and bodies of answers.
    pub bytes_received: u64,
    /// Bytes of heads and bodies of requests.
    pub bytes_sent: u64,
    /// The number of answers with each status, from status 100 on.
    statuses: Box<[u64]>,
    /// The number of failures of each kind, in the order of [`Failure::ALL`].
    failures: [u64; Failure::ALL.len()],
    /// Send lag: how late the generator itself was, nanoseconds.
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
            good_hundredths: 0,
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
        self.good_hundredths |= other.good_hundredths;
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

    /// Counts an answer by its status.
    pub fn count_status(&mut self, status: u16) {
        if STATUSES.contains(&status) {
            self.statuses[usize::from(status - STATUSES.start)] += 1;
        }
    }

    /// Counts a failure.
    pub fn count_failure(&mut self, failure: Failure) {
        self.failures[failure as usize] += 1;
    }

    /// The statuses that occurred, with their counts.
    pub fn statuses(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        STATUSES.zip(self.statuses.iter().copied()).filter(|(_, count)| *count > 0)
    }

    /// The failures that occurred, with their counts.
    pub fn failures(&self) -> impl Iterator<Item = (Failure, u64)> + '_ {
        Failure::ALL.into_iter().zip(self.failures).filter(|(_, count)| *count > 0)
    }
}

/// Everything recorded in one phase.
#[derive(Clone, Debug)]
pub struct Tally {
    /// The cells, by operation and outcome, each allocated on first use.
    cells: [[Option<Box<Cell>>; Outcome::ALL.len()]; Operation::ALL.len()],
    /// Counters that are not split by operation and outcome.
    pub counters: Counters,
}

impl Tally {
    /// Creates an empty tally.
    #[must_use]
    pub fn new() -> Tally {
        Tally { cells: Default::default(), counters: Counters::new() }
    }

    /// Returns the cell of an operation and outcome, and creates it if necessary.
    pub fn cell(&mut self, operation: Operation, outcome: Outcome) -> &mut Cell {
        self.cells[operation as usize][outcome as usize].get_or_insert_with(|| Box::new(Cell::new()))
    }

    /// The cells with at least one request.
    pub fn cells(&self) -> impl Iterator<Item = (Operation, Outcome, &Cell)> {
        Operation::ALL.into_iter().zip(&self.cells).flat_map(|(operation, row)| {
            Outcome::ALL.into_iter().zip(row).filter_map(move |(outcome, cell)| {
                let cell = cell.as_deref().filter(|cell| !cell.response.is_empty())?;
                Some((operation, outcome, cell))
            })
        })
    }

    /// Adds all of `other`.
    pub fn add(&mut self, other: &Tally) {
        for (operation, outcome, cell) in other.cells() {
            self.cell(operation, outcome).add(cell);
        }
        self.counters.add(&other.counters);
    }

    /// Whether nothing was recorded.
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

/// What one thread has recorded in one interval, with a tally for each phase of the run. An interval can have records
/// of several phases, because requests of an earlier phase may end in a later one. A phase without a request costs one
/// pointer.
#[derive(Debug)]
pub struct Recorder {
    tallies: Vec<Option<Box<Tally>>>,
}

impl Recorder {
    /// Creates an empty recorder for a run of `phases` phases.
    #[must_use]
    pub fn new(phases: usize) -> Recorder {
        Recorder { tallies: (0..phases).map(|_| None).collect() }
    }

    /// Returns the tally of a phase, and creates it if necessary.
    pub fn phase(&mut self, phase: usize) -> &mut Tally {
        self.tallies[phase].get_or_insert_with(|| Box::new(Tally::new()))
    }

    /// Returns the phases that have a tally, each with its index.
    pub fn phases(&self) -> impl Iterator<Item = (usize, &Tally)> {
        self.tallies.iter().enumerate().filter_map(|(phase, tally)| Some((phase, tally.as_deref()?)))
    }

    /// Removes all records but keeps the memory, so that the next interval allocates nothing. Exception: the memory of
    /// a phase that has no records in this interval is freed, so that a run of many phases does not hold memory for
    /// all.
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

/// How one request ended, for the recorder.
#[derive(Clone, Copy, Debug)]
pub struct RequestEnd {
    /// The index of the phase that contains the intended start.
    pub phase: usize,
    /// The operation of the request.
    pub operation: Operation,
    /// The outcome of the request.
    pub outcome: Outcome,
    /// The time from the intended start to the end.
    pub response: Nanos,
    /// The time from the send to the end; `None` if the request was never sent.
    pub service: Option<Nanos>,
}

impl Recorder {
    /// Records one request. Returns `true` if the request counts as goodput: its outcome is good, and its response time
    /// is at most `good_within`.
    pub fn record(&mut self, ended: &RequestEnd, good_within: Nanos) -> bool {
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

    /// Records `count` requests that were never sent and ended in the same way.
    pub fn record_unsent(&mut self, ended: &RequestEnd, count: u64) {
        assert!(ended.service.is_none(), "it was never sent");
        let tally = self.phase(ended.phase);
        let cell = tally.cell(ended.operation, ended.outcome);
        cell.response.record_n(ended.response, count).expect("the histogram grows");
        tally.counters.unsent += count;
    }
}

impl RequestEnd {
    /// Returns `true` if `self` and `other` may be recorded as equal. Their response times may differ by up to 2^-13 of
    /// the time, at most a quarter of the histogram's resolution.
    #[must_use]
    pub fn is_alike(&self, other: &RequestEnd) -> bool {
        let apart = self.response.abs_diff(other.response);
        (self.phase, self.operation, self.outcome) == (other.phase, other.operation, other.outcome)
            && self.service == other.service
            && apart <= self.response >> 13
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(phase: usize, outcome: Outcome, response: Nanos) -> RequestEnd {
        RequestEnd { phase, operation: Operation::Get, outcome, response, service: Some(response / 2) }
    }

    #[test]
    fn outcomes_and_phases_are_recorded_separately() {
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
    fn names_equal_those_in_json() {
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
