//! The generator against a simulated server on a simulated clock: what it reports must be what can be calculated.
//!
//! Nothing but the kernel is replaced. The schedule, the generator, the reading of answers, the recorder, the collector and
//! the percentiles are those of a real run; a thousand seconds take less than one. Each scenario knows, by arithmetic of its
//! own, what every single request must have been recorded with. Each has a planted defect that it must notice.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use super::collector::{Collector, interval_of};
use super::generator::{Generator, NEVER, Shared};
use super::keys::{Keys, Names, Order};
use super::network::{Network, Read, Ready};
use super::recorder::{Ended, Failure, Operation, Outcome, Recorder};
use super::result::Section;
use super::schedule::{Arrival, Nanos, Phase, Phases, SECOND, Schedule, Source};
use super::workload::{Template, Values, Workload};
use crate::sync::Mutex;

const MILLISECOND: Nanos = 1_000_000;

/// A mistake that a load tester could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Coordinated omission: the wait before the send is not counted.
    LatencyFromSend,
    /// Requests that the run has not seen the end of are forgotten.
    UnfinishedDropped,
    /// A refusal is an answer like any other.
    RefusedAsServed,
    /// Every failure is left out.
    FailedDropped,
    /// What falls due while the generator is not run is not its fault.
    StallsUnseen,
}

impl Planted {
    /// What is recorded instead.
    pub fn apply(planted: Option<Planted>, mut ended: Ended) -> Option<Ended> {
        match (planted, ended.outcome) {
            (Some(Planted::LatencyFromSend), _) => ended.response = ended.service.unwrap_or(0),
            (Some(Planted::UnfinishedDropped), Outcome::Unfinished)
            | (Some(Planted::FailedDropped), Outcome::Failed) => return None,
            (Some(Planted::RefusedAsServed), Outcome::Refused) => ended.outcome = Outcome::Served,
            _ => {}
        }
        Some(ended)
    }
}

/// What the server does with a request.
#[derive(Clone, Copy, Debug)]
enum Reply {
    Answer { at: Nanos, status: u16 },
    Reset { at: Nanos },
    Never,
}

/// Decides by the request's number, from 0, and the time of its arrival.
type Script = fn(u64, Nanos) -> Reply;

/// What becomes ready at a time: bytes, or the end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Connected,
    Bytes(Vec<u8>),
    Broken,
}

/// Time, order of making, connection, its life, and what happens.
type Planned = (Nanos, u64, usize, u64, Happening);

#[derive(Debug, Default)]
struct Connection {
    /// Counts the connections that had this number: what was on its way to an earlier one is lost.
    life: u64,
    inbox: Vec<u8>,
    broken: bool,
}

/// The server, the wires and the clock.
struct Simulated {
    now: Nanos,
    script: Script,
    requests: u64,
    connections: Vec<Connection>,
    /// By time, then by order of their making.
    happenings: BinaryHeap<Reverse<Planned>>,
    made: u64,
    stall: Option<(Nanos, Nanos)>,
}

impl Simulated {
    fn new(script: Script) -> Simulated {
        Simulated {
            now: 0,
            script,
            requests: 0,
            connections: Vec::new(),
            happenings: BinaryHeap::new(),
            made: 0,
            stall: None,
        }
    }

    fn happen(&mut self, at: Nanos, connection: usize, happening: Happening) {
        self.made += 1;
        let life = self.connections[connection].life;
        self.happenings.push(Reverse((at, self.made, connection, life, happening)));
    }
}

impl Network for Simulated {
    fn now(&mut self) -> Nanos {
        self.now
    }

    fn connect(&mut self, connection: usize) -> Result<bool, Failure> {
        if self.connections.len() <= connection {
            self.connections.resize_with(connection + 1, Connection::default);
        }
        // As over loopback: sometimes at once, sometimes with the next wait.
        if connection.is_multiple_of(2) {
            return Ok(true);
        }
        self.happen(self.now, connection, Happening::Connected);
        Ok(false)
    }

    fn connected(&mut self, _: usize) -> Result<bool, Failure> {
        Ok(true)
    }

    fn send(&mut self, connection: usize, bytes: &[u8]) -> Result<usize, Failure> {
        assert!(bytes.ends_with(b"\r\n\r\n"), "a whole GET");
        let reply = (self.script)(self.requests, self.now);
        self.requests += 1;
        match reply {
            Reply::Answer { at, status } => {
                // In two segments.
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: 5\r\n\r\n").into_bytes();
                self.happen(at, connection, Happening::Bytes(head));
                self.happen(at, connection, Happening::Bytes(b"hello".to_vec()));
            }
            Reply::Reset { at } => self.happen(at, connection, Happening::Broken),
            Reply::Never => {}
        }
        Ok(bytes.len())
    }

    fn read(&mut self, connection: usize, into: &mut [u8]) -> Read {
        let connection = &mut self.connections[connection];
        let bytes = std::mem::take(&mut connection.inbox);
        if bytes.is_empty() {
            return if connection.broken { Read::Broken } else { Read::Nothing };
        }
        into[..bytes.len()].copy_from_slice(&bytes);
        Read::Bytes(bytes.len())
    }

    fn close(&mut self, connection: usize) {
        if let Some(connection) = self.connections.get_mut(connection) {
            *connection = Connection { life: connection.life + 1, ..Connection::default() };
        }
    }

    fn wait(&mut self, until: Nanos, ready: &mut Vec<Ready>) {
        ready.clear();
        if let Some((_, length)) = self.stall.take_if(|(at, _)| *at <= self.now) {
            self.now += length;
        }
        let Some(Reverse((at, ..))) = self.happenings.peek().filter(|Reverse((at, ..))| *at <= until) else {
            self.now = self.now.max(until);
            return;
        };
        self.now = self.now.max(*at);
        let Some(Reverse((_, _, number, life, happening))) = self.happenings.pop() else { return };
        let connection = &mut self.connections[number];
        if connection.life != life {
            return;
        }
        let (readable, ended) = (happening != Happening::Connected, happening == Happening::Broken);
        match happening {
            Happening::Connected => {}
            Happening::Bytes(bytes) => connection.inbox.extend_from_slice(&bytes),
            Happening::Broken => connection.broken = true,
        }
        ready.push(Ready { connection: number, readable, writable: true, ended });
    }
}

/// A run: 2 s of warm-up and 20 s at 1,000 a second.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    script: Script,
    connections: usize,
    connections_max: Option<usize>,
    timeout: Nanos,
    interrupted: Nanos,
    /// The generator's thread is not run for so long from then on.
    stall: Option<(Nanos, Nanos)>,
    planted: Option<Planted>,
}

const RATE: u64 = 1_000;
const WARM_UP: Nanos = 2 * SECOND;
const END: Nanos = 22 * SECOND;
const DRAIN: Nanos = SECOND;

impl Scenario {
    fn fixed(script: Script) -> Scenario {
        Scenario {
            script,
            connections: 64,
            connections_max: None,
            timeout: 60 * SECOND,
            interrupted: NEVER,
            stall: None,
            planted: None,
        }
    }

    fn on_demand(script: Script) -> Scenario {
        Scenario { connections: 1, connections_max: Some(100_000), ..Scenario::fixed(script) }
    }

    fn source() -> (Phases, Source) {
        let rate = 1e3;
        let phases = Phases::new(WARM_UP, &[Phase { from: rate, to: rate, length: END - WARM_UP }]);
        let source = Source::Open(Mutex::new(Schedule::new(phases.clone(), Arrival::Constant, 1)));
        (phases, source)
    }

    fn run(self) -> (Section, Section) {
        let (phases, source) = Scenario::source();
        let collector = self.run_source(phases, source);
        (collector.warm_up().expect("there is one"), collector.measured().0)
    }

    fn run_source(self, phases: Phases, source: Source) -> Collector {
        let workload = Workload {
            weights: vec![(Operation::Get, 1.0)],
            template: Template { target: vec![b"/".to_vec(), Vec::new()], headers: b"Host: h\r\n".to_vec() },
            fixed: None,
            keys: Keys::new(Names::Format("{}".parse().expect("valid")), Order::Sequential, 0, None),
            zipf_exponent: 1.0,
            values: Values::Format("{}".parse().expect("valid")),
            seed: 1,
        };
        let shared = Arc::new(Shared {
            interval: interval_of(phases.end()),
            phases,
            source,
            workload: Arc::new(workload),
            timeout: self.timeout,
            drain: DRAIN,
            good_within: self.timeout,
            connections_max: self.connections_max,
            connections: AtomicUsize::new(self.connections),
            interrupted: AtomicU64::new(self.interrupted),
            planted: self.planted,
        });
        let mut collector =
            Collector::new(shared.phases.clone(), shared.mode(), 1, shared.interval, shared.good_within);
        let deliver = |interval, recorder: &mut Recorder| {
            collector.add(0, interval, recorder);
            recorder.clear();
        };
        let network = Simulated { stall: self.stall, ..Simulated::new(self.script) };
        let mut generator = Generator::new(shared.clone(), network, 0, self.connections, deliver);
        let (connected, failure) = generator.connect(SECOND);
        assert_eq!((connected, failure), (self.connections, None));
        generator.run();
        drop(generator);
        let mut rest = Recorder::new(shared.phases.all().len());
        shared.record_rest(&mut rest);
        collector.add_rest(&rest);
        collector
    }
}

/// Response times that must have been recorded in the measured part, by outcome.
type Expected = BTreeMap<Outcome, Vec<Nanos>>;

/// When the request with this number is to start.
fn intended(number: u64) -> Nanos {
    number * SECOND / RATE
}

fn numbers() -> std::ops::Range<u64> {
    WARM_UP * RATE / SECOND..END * RATE / SECOND
}

/// Holds what was reported against what is true: counts exactly, every percentile within HdrHistogram's three digits.
fn check(section: &Section, expected: &Expected) -> Result<(), String> {
    let scheduled: usize = expected.values().map(Vec::len).sum();
    if section.scheduled != scheduled as u64 {
        return Err(format!("{} requests instead of {scheduled}", section.scheduled));
    }
    let mut waited_for = Vec::new();
    for outcome in Outcome::ALL {
        let times = expected.get(&outcome).map_or(&[][..], Vec::as_slice);
        if section.outcomes[&outcome] != times.len() as u64 {
            return Err(format!("{} {outcome:?} instead of {}", section.outcomes[&outcome], times.len()));
        }
        if outcome.is_waited_for() {
            waited_for.extend_from_slice(times);
        }
        let cell = section.cells.iter().find(|cell| cell.outcome == outcome);
        if let Some(cell) = cell {
            check_percentiles(&format!("{outcome:?}"), &cell.response.percentiles, times.to_vec())?;
        }
    }
    check_percentiles("response", &section.response.percentiles, waited_for)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 100,000")]
fn check_percentiles(name: &str, points: &[super::result::Percentile], mut times: Vec<Nanos>) -> Result<(), String> {
    times.sort_unstable();
    if points.is_empty() != times.is_empty() {
        return Err(format!("{name}: {} percentiles of {} requests", points.len(), times.len()));
    }
    for point in points {
        // Percentiles have three decimals at the most.
        let thousandths = (point.percentile * 1e3).round() as usize;
        let rank = (times.len() * thousandths).div_ceil(100_000).max(1);
        let exact = super::result::micros(times[rank - 1]);
        if (point.value_us - exact).abs() > exact / 1e3 + 0.001 {
            return Err(format!("{name}: {} % is {} µs instead of {exact}", point.percentile, point.value_us));
        }
        if point.samples_above != (times.len() - rank) as u64 {
            return Err(format!("{name}: {} samples above {} %", point.samples_above, point.percentile));
        }
    }
    Ok(())
}

fn all(outcome: Outcome, time: impl Fn(u64) -> Nanos) -> Expected {
    BTreeMap::from([(outcome, numbers().map(time).collect())])
}

/// One millisecond for each.
fn constant(_: u64, at: Nanos) -> Reply {
    Reply::Answer { at: at + MILLISECOND, status: 200 }
}

#[test]
fn constant_service_time_is_reported_as_it_is() {
    for scenario in [Scenario::fixed(constant), Scenario::on_demand(constant)] {
        let (warm_up, measured) = scenario.run();
        assert_eq!(check(&measured, &all(Outcome::Served, |_| MILLISECOND)), Ok(()));
        assert_eq!(warm_up.scheduled, WARM_UP * RATE / SECOND);
        assert_eq!(measured.send_lag.max_us, Some(0.0));
        assert_eq!(measured.statuses, BTreeMap::from([(200, 20_000)]));
    }
}

const FREEZE: std::ops::Range<Nanos> = 12 * SECOND..13 * SECOND;

fn freeze(_: u64, at: Nanos) -> Reply {
    let at = if FREEZE.contains(&at) { FREEZE.end } else { at };
    Reply::Answer { at: at + MILLISECOND, status: 200 }
}

/// With a connection for each, what arrives in the freeze waits for its end.
fn frozen_on_demand() -> Expected {
    all(Outcome::Served, |number| {
        let start = intended(number);
        let from = if FREEZE.contains(&start) { FREEZE.end } else { start };
        from + MILLISECOND - start
    })
}

/// With `connections`, a request starts when the one so many before it has ended: answers come in order.
fn frozen_fixed(connections: usize) -> Expected {
    let mut ends: Vec<Nanos> = Vec::new();
    for number in 0..numbers().end {
        let before = ends.len().checked_sub(connections).map_or(0, |before| ends[before]);
        let start = intended(number).max(before);
        ends.push(if FREEZE.contains(&start) { FREEZE.end } else { start } + MILLISECOND);
    }
    all(Outcome::Served, |number| ends[usize::try_from(number).expect("small")] - intended(number))
}

#[test]
fn a_freeze_is_seen_by_every_request_that_should_have_run_in_it() {
    let (_, on_demand) = Scenario::on_demand(freeze).run();
    assert_eq!(check(&on_demand, &frozen_on_demand()), Ok(()));
    // 1,000 of 20,000 requests waited; the hundredth part of all waited 0.8 s and more.
    let p99 = on_demand.response.at(99.0).expect("there").value_us;
    assert!((p99 - 802_000.0).abs() < 1_000.0, "{p99}");
    let (_, fixed) = Scenario::fixed(freeze).run();
    assert_eq!(check(&fixed, &frozen_fixed(64)), Ok(()));
    // From the send, only those on a connection have waited.
    assert!(fixed.service.at(99.0).expect("there").value_us < 1_001.0);
}

#[test]
fn twin_coordinated_omission_is_noticed() {
    let planted = Some(Planted::LatencyFromSend);
    let (_, fixed) = Scenario { planted, ..Scenario::fixed(freeze) }.run();
    assert!(check(&fixed, &frozen_fixed(64)).is_err());
    // A single connection for each request hides nothing, even from the send.
    let (_, on_demand) = Scenario { planted, ..Scenario::on_demand(freeze) }.run();
    assert_eq!(check(&on_demand, &frozen_on_demand()), Ok(()));
}

fn one_in_a_hundred_slow(number: u64, at: Nanos) -> Reply {
    Reply::Answer { at: at + one_in_a_hundred(number), status: 200 }
}

fn one_in_a_hundred(number: u64) -> Nanos {
    if number % 100 == 99 { 50 * MILLISECOND } else { MILLISECOND }
}

#[test]
fn one_in_a_hundred_is_slow_and_no_more() {
    for scenario in [Scenario::fixed(one_in_a_hundred_slow), Scenario::on_demand(one_in_a_hundred_slow)] {
        let (_, measured) = scenario.run();
        assert_eq!(check(&measured, &all(Outcome::Served, one_in_a_hundred)), Ok(()));
    }
}

fn every_tenth(outcome: Outcome, time: Nanos) -> Expected {
    let mut expected = all(Outcome::Served, |_| MILLISECOND);
    let times = expected.get_mut(&Outcome::Served).expect("there");
    let others = times.len() / 10;
    times.truncate(times.len() - others);
    expected.insert(outcome, vec![time; others]);
    expected
}

fn every_tenth_refused(number: u64, at: Nanos) -> Reply {
    if number % 10 == 9 { Reply::Answer { at: at + 1_000, status: 503 } } else { constant(number, at) }
}

#[test]
fn refusals_have_a_histogram_of_their_own() {
    let (_, measured) = Scenario::fixed(every_tenth_refused).run();
    assert_eq!(check(&measured, &every_tenth(Outcome::Refused, 1_000)), Ok(()));
    assert!((measured.goodput_per_s - 900.0).abs() < 1e-9);
}

#[test]
fn twin_refusals_among_the_served_are_noticed() {
    let planted = Some(Planted::RefusedAsServed);
    let (_, measured) = Scenario { planted, ..Scenario::fixed(every_tenth_refused) }.run();
    assert!(check(&measured, &every_tenth(Outcome::Refused, 1_000)).is_err());
}

fn every_tenth_reset(number: u64, at: Nanos) -> Reply {
    if number % 10 == 9 { Reply::Reset { at: at + 2 * MILLISECOND } } else { constant(number, at) }
}

#[test]
fn resets_are_failures_and_the_rest_goes_on() {
    for scenario in [Scenario::fixed(every_tenth_reset), Scenario::on_demand(every_tenth_reset)] {
        let (_, measured) = scenario.run();
        assert_eq!(check(&measured, &every_tenth(Outcome::Failed, 2 * MILLISECOND)), Ok(()));
        assert_eq!(measured.errors, BTreeMap::from([("reset".to_owned(), 2_000)]));
    }
}

#[test]
fn twin_failures_left_out_are_noticed() {
    let planted = Some(Planted::FailedDropped);
    let (_, measured) = Scenario { planted, ..Scenario::fixed(every_tenth_reset) }.run();
    assert!(check(&measured, &every_tenth(Outcome::Failed, 2 * MILLISECOND)).is_err());
}

const SILENT_FROM: Nanos = 12 * SECOND;

fn silent(number: u64, at: Nanos) -> Reply {
    if at < SILENT_FROM { constant(number, at) } else { Reply::Never }
}

/// What has a connection waits to the end of the drain, what has none to the end of the run.
fn silence_fixed(connections: u64) -> Expected {
    let first = SILENT_FROM * RATE / SECOND;
    let (before, after): (Vec<u64>, Vec<u64>) = numbers().partition(|number| *number < first);
    let age = |number: u64| {
        let until = if number < first + connections { END + DRAIN } else { END };
        until - intended(number)
    };
    BTreeMap::from([
        (Outcome::Served, vec![MILLISECOND; before.len()]),
        (Outcome::Unfinished, after.into_iter().map(age).collect()),
    ])
}

#[test]
fn what_a_silent_server_leaves_open_counts_at_its_age() {
    let (_, fixed) = Scenario::fixed(silent).run();
    assert_eq!(check(&fixed, &silence_fixed(64)), Ok(()));
    assert_eq!((fixed.in_flight_at_end, fixed.unsent), (64, 10_000 - 64));
    let (_, on_demand) = Scenario::on_demand(silent).run();
    assert_eq!(check(&on_demand, &silence_fixed(100_000)), Ok(()));
    assert_eq!((on_demand.in_flight_at_end, on_demand.unsent), (10_000, 0));
}

#[test]
fn twin_open_requests_that_are_dropped_are_noticed() {
    let planted = Some(Planted::UnfinishedDropped);
    let (_, measured) = Scenario { planted, ..Scenario::fixed(silent) }.run();
    assert!(check(&measured, &silence_fixed(64)).is_err());
}

#[test]
fn deadlines_end_requests_at_their_time_sent_or_not() {
    let timeout = 2 * SECOND;
    let mut expected = silence_fixed(100_000);
    let open = expected.remove(&Outcome::Unfinished).expect("there");
    let (late, open): (Vec<Nanos>, Vec<Nanos>) = open.into_iter().partition(|age| *age >= timeout);
    expected.insert(Outcome::TimedOut, vec![timeout; late.len()]);
    expected.insert(Outcome::Unfinished, open);
    let (_, on_demand) = Scenario { timeout, ..Scenario::on_demand(silent) }.run();
    assert_eq!(check(&on_demand, &expected), Ok(()));

    // With few connections most are never sent, and no wait is counted beyond the deadline.
    let (_, fixed) = Scenario { timeout, ..Scenario::fixed(silent) }.run();
    assert_eq!(fixed.outcomes[&Outcome::TimedOut] + fixed.outcomes[&Outcome::Unfinished], 10_000);
    assert!(fixed.outcomes[&Outcome::Unfinished] <= 2_000);
    assert_eq!(fixed.sent + fixed.unsent, fixed.scheduled);
    assert!((fixed.response.max_us.expect("there") - 2e6).abs() < 2e3);
}

#[test]
fn closed_load_sends_when_the_answer_is_there() {
    let phases = Phases::new(SECOND, &[Phase { from: 0.0, to: 0.0, length: 4 * SECOND }]);
    let scenario = Scenario { connections: 8, ..Scenario::fixed(constant) };
    let (measured, _) = scenario.run_source(phases.clone(), Source::Closed).measured();
    assert_eq!(measured.outcomes[&Outcome::Served], 8 * 4_000);
    let (counted, _) = scenario.run_source(phases, Source::count(100)).measured();
    assert_eq!(counted.scheduled, 0, "a hundred are done within the warm-up");
}

#[test]
fn an_interrupted_run_reports_what_was_run() {
    let (phases, source) = Scenario::source();
    let mut collector = Scenario { interrupted: 7 * SECOND, ..Scenario::fixed(constant) }.run_source(phases, source);
    collector.cut(7 * SECOND);
    let (measured, _) = collector.measured();
    assert_eq!((measured.scheduled, measured.outcomes[&Outcome::Served]), (5_000, 5_000));
    assert!((measured.sent_per_s - 1_000.0).abs() < 1e-9);
}

/// With connections that are all busy, so that answers wait unread and no request finds one free.
fn stalled(planted: Option<Planted>) -> (Section, Section) {
    let stall = Some((10 * SECOND, 300 * MILLISECOND));
    Scenario { connections: 1, stall, planted, ..Scenario::fixed(constant) }.run()
}

#[test]
fn a_generator_that_was_not_run_says_so() {
    // 300 of 20,000 fell due in 300 ms.
    let (_, section) = stalled(None);
    assert!((270_000.0..=300_000.0).contains(&section.send_lag.at(99.9).expect("there").value_us));
}

#[test]
fn twin_a_stall_that_is_blamed_on_the_server_is_noticed() {
    let (_, section) = stalled(Some(Planted::StallsUnseen));
    assert!(section.send_lag.at(99.9).expect("there").value_us < 2_000.0);
}

fn slow(_: u64, at: Nanos) -> Reply {
    Reply::Answer { at: at + 10 * MILLISECOND, status: 200 }
}

fn late(_: u64, at: Nanos) -> Reply {
    Reply::Answer { at: at + SECOND / 2, status: 200 }
}

#[test]
fn rates_count_what_came_in_time() {
    let (_, section) = Scenario { connections: 1, ..Scenario::fixed(slow) }.run();
    assert!((section.answered_per_s - 100.0).abs() <= 0.1, "{}", section.answered_per_s);
    let (warm_up, section) = Scenario::on_demand(late).run();
    assert!((section.answered_per_s - 1_000.0).abs() <= 0.1 && (warm_up.answered_per_s - 750.0).abs() <= 1.0);
}

#[test]
fn intervals_show_when_it_happened() {
    let (phases, source) = Scenario::source();
    let mut collector = Scenario::on_demand(freeze).run_source(phases, source);
    let rows: Vec<_> = std::iter::from_fn(|| collector.next_interval(true)).map(|(row, _)| row).collect();
    let done = |second: usize| rows[second].outcomes.values().sum::<u64>();
    assert!(rows[0].warm_up && rows[1].warm_up && !rows[2].warm_up);
    assert_eq!((done(11), done(12), done(13)), (1_000, 1, 1_999));
    assert_eq!((rows[12].sent, rows[12].scheduled_per_s), (1_000, Some(1_000.0)));
    // The freeze of a second, seen to a hundredth on either side.
    let gap = collector.longest_gap();
    assert!((980 * MILLISECOND..=SECOND).contains(&gap), "{gap}");
    let (phases, source) = Scenario::source();
    let mut steady = Scenario::on_demand(constant).run_source(phases, source);
    while steady.next_interval(true).is_some() {}
    assert!(steady.longest_gap() <= 10 * MILLISECOND, "{}", steady.longest_gap());
}
