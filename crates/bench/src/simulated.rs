//! Tests of the generator against a simulated server with a simulated clock: its report must equal the calculated
//! result.
//!
//! Only the kernel is replaced. The schedule, the generator, the reader of answers, the recorder, the collector and
//! the percentiles are those of a real run; a thousand simulated seconds take less than one second. Each scenario
//! calculates independently what must have been recorded for each request. Some tests plant a defect in the generator,
//! which the comparison must notice.

pub(super) mod world;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use self::world::{DRAIN, END, RATE, Reply, Scenario, WARM_UP};
use crate::author::{Author, Authors, Pipeline};
use crate::recorder::{Outcome, RequestEnd};
use crate::result::Section;
use crate::schedule::{Nanos, Phase, Phases, SECOND, Source};
use crate::shared::Shared;

const MILLISECOND: Nanos = 1_000_000;

/// A defect that a load tester could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeneratorDefect {
    /// Coordinated omission: the wait before the send is not counted.
    LatencyFromSend,
    /// Requests that have no answer at the end of the run are not recorded.
    UnfinishedDropped,
    /// A rejection counts as a served request.
    RefusedAsServed,
    /// Requests that failed are not recorded.
    FailedDropped,
    /// Requests that become due while the generator does not run are not counted as late.
    StallsUnseen,
    /// A start that was taken from the schedule is lost when its thread stops.
    StartsLost,
}

impl GeneratorDefect {
    /// Returns what the defective recorder records instead; `None`: nothing.
    pub fn apply(planted: Option<GeneratorDefect>, mut ended: RequestEnd) -> Option<RequestEnd> {
        match (planted, ended.outcome) {
            (Some(GeneratorDefect::LatencyFromSend), _) => ended.response = ended.service.unwrap_or(0),
            (Some(GeneratorDefect::UnfinishedDropped), Outcome::Unfinished)
            | (Some(GeneratorDefect::FailedDropped), Outcome::Failed) => return None,
            (Some(GeneratorDefect::RefusedAsServed), Outcome::Refused) => ended.outcome = Outcome::Served,
            _ => {}
        }
        Some(ended)
    }
}

/// The response times, by outcome, that must have been recorded in the measured part.
type Expected = BTreeMap<Outcome, Vec<Nanos>>;

/// The intended start of the request with this number.
fn intended(number: u64) -> Nanos {
    number * SECOND / RATE
}

fn numbers() -> std::ops::Range<u64> {
    WARM_UP * RATE / SECOND..END * RATE / SECOND
}

/// Compares a report with the expected times: counts exactly, and every percentile within HdrHistogram's three
/// digits.
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
        if outcome.counts_for_latency() {
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
fn check_percentiles(name: &str, points: &[crate::result::Percentile], mut times: Vec<Nanos>) -> Result<(), String> {
    times.sort_unstable();
    if points.is_empty() != times.is_empty() {
        return Err(format!("{name}: {} percentiles of {} requests", points.len(), times.len()));
    }
    for point in points {
        // Percentiles have at most three decimals.
        let thousandths = (point.percentile * 1e3).round() as usize;
        let rank = (times.len() * thousandths).div_ceil(100_000).max(1);
        let exact = crate::result::micros(times[rank - 1]);
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

/// Every answer takes one millisecond.
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

/// With a connection for each request, requests during the freeze wait for its end.
fn frozen_on_demand() -> Expected {
    all(Outcome::Served, |number| {
        let start = intended(number);
        let from = if FREEZE.contains(&start) { FREEZE.end } else { start };
        from + MILLISECOND - start
    })
}

/// With a fixed number of connections, request n does not start before request n − `connections` has ended, because
/// answers come in order.
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
    // 1,000 of 20,000 requests waited, and 1 % of all waited 0.8 s or more.
    let p99 = on_demand.response.at(99.0).expect("there").value_us;
    assert!((p99 - 802_000.0).abs() < 1_000.0, "{p99}");
    let (_, fixed) = Scenario::fixed(freeze).run();
    assert_eq!(check(&fixed, &frozen_fixed(64)), Ok(()));
    // Counted from the send, only the requests on a connection have waited.
    assert!(fixed.service.at(99.0).expect("there").value_us < 1_001.0);
}

#[test]
fn twin_coordinated_omission_is_noticed() {
    let planted = Some(GeneratorDefect::LatencyFromSend);
    let (_, fixed) = Scenario { planted, ..Scenario::fixed(freeze) }.run();
    assert!(check(&fixed, &frozen_fixed(64)).is_err());
    // With a connection for each request, even times from the send hide nothing.
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
fn exactly_one_in_a_hundred_is_slow() {
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
fn rejections_have_their_own_histogram() {
    let (_, measured) = Scenario::fixed(every_tenth_refused).run();
    assert_eq!(check(&measured, &every_tenth(Outcome::Refused, 1_000)), Ok(()));
    assert!((measured.goodput_per_s - 900.0).abs() < 1e-9);
}

#[test]
fn twin_rejections_counted_as_served_are_noticed() {
    let planted = Some(GeneratorDefect::RefusedAsServed);
    let (_, measured) = Scenario { planted, ..Scenario::fixed(every_tenth_refused) }.run();
    assert!(check(&measured, &every_tenth(Outcome::Refused, 1_000)).is_err());
}

fn every_tenth_reset(number: u64, at: Nanos) -> Reply {
    if number % 10 == 9 { Reply::Reset { at: at + 2 * MILLISECOND } } else { constant(number, at) }
}

#[test]
fn resets_are_failures_and_the_run_continues() {
    for scenario in [Scenario::fixed(every_tenth_reset), Scenario::on_demand(every_tenth_reset)] {
        let (_, measured) = scenario.run();
        assert_eq!(check(&measured, &every_tenth(Outcome::Failed, 2 * MILLISECOND)), Ok(()));
        assert_eq!(measured.errors, BTreeMap::from([("reset".to_owned(), 2_000)]));
    }
}

#[test]
fn twin_failures_left_out_are_noticed() {
    let planted = Some(GeneratorDefect::FailedDropped);
    let (_, measured) = Scenario { planted, ..Scenario::fixed(every_tenth_reset) }.run();
    assert!(check(&measured, &every_tenth(Outcome::Failed, 2 * MILLISECOND)).is_err());
}

const SILENT_FROM: Nanos = 12 * SECOND;

fn silent(number: u64, at: Nanos) -> Reply {
    if at < SILENT_FROM { constant(number, at) } else { Reply::Never }
}

/// The result with a server that answers nothing from [`SILENT_FROM`] on. The first requests from then on, one for each
/// connection, wait until the end of the drain. The others are never sent, and wait until the end of the schedule.
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
fn requests_without_an_answer_count_with_their_age() {
    let (_, fixed) = Scenario::fixed(silent).run();
    assert_eq!(check(&fixed, &silence_fixed(64)), Ok(()));
    assert_eq!((fixed.in_flight_at_end, fixed.unsent), (64, 10_000 - 64));
    let (_, on_demand) = Scenario::on_demand(silent).run();
    assert_eq!(check(&on_demand, &silence_fixed(100_000)), Ok(()));
    assert_eq!((on_demand.in_flight_at_end, on_demand.unsent), (10_000, 0));
}

#[test]
fn twin_dropped_unfinished_requests_are_noticed() {
    let planted = Some(GeneratorDefect::UnfinishedDropped);
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

    // With few connections most requests are never sent, and no wait is longer than the deadline.
    let (_, fixed) = Scenario { timeout, ..Scenario::fixed(silent) }.run();
    assert_eq!(fixed.outcomes[&Outcome::TimedOut] + fixed.outcomes[&Outcome::Unfinished], 10_000);
    assert!(fixed.outcomes[&Outcome::Unfinished] <= 2_000);
    assert_eq!(fixed.sent + fixed.unsent, fixed.scheduled);
    assert!((fixed.response.max_us.expect("there") - 2e6).abs() < 2e3);
}

#[test]
fn closed_load_sends_after_each_answer() {
    let phases = Phases::new(SECOND, &[Phase { from: 0.0, to: 0.0, length: 4 * SECOND }]);
    let scenario = Scenario { connections: 8, ..Scenario::fixed(constant) };
    let (measured, _) = scenario.run_source(phases.clone(), Source::Closed).measured();
    assert_eq!(measured.outcomes[&Outcome::Served], 8 * 4_000);
    let (counted, _) = scenario.run_source(phases, Source::count(100)).measured();
    assert_eq!(counted.scheduled, 0, "a hundred requests end within the warm-up");
}

#[test]
fn an_interrupted_run_reports_the_part_that_was_run() {
    let (phases, source) = world::source();
    let mut collector = Scenario { interrupted: 7 * SECOND, ..Scenario::fixed(constant) }.run_source(phases, source);
    collector.truncate(7 * SECOND);
    let (measured, _) = collector.measured();
    assert_eq!((measured.scheduled, measured.outcomes[&Outcome::Served]), (5_000, 5_000));
    assert!((measured.sent_per_s - 1_000.0).abs() < 1e-9);
}

/// A run in which the generator stalls. Its only connection is busy during the stall, and the answer waits unread.
fn stalled(planted: Option<GeneratorDefect>) -> (Section, Section) {
    let stall = Some((10 * SECOND, 300 * MILLISECOND));
    Scenario { connections: 1, stall, planted, ..Scenario::fixed(constant) }.run()
}

#[test]
fn a_stall_of_the_generator_shows_in_the_send_lag() {
    // 300 of 20,000 requests became due in 300 ms.
    let (_, section) = stalled(None);
    assert!((270_000.0..=300_000.0).contains(&section.send_lag.at(99.9).expect("there").value_us));
}

#[test]
fn twin_an_ignored_stall_is_noticed() {
    let (_, section) = stalled(Some(GeneratorDefect::StallsUnseen));
    assert!(section.send_lag.at(99.9).expect("there").value_us < 2_000.0);
}

fn slow(_: u64, at: Nanos) -> Reply {
    Reply::Answer { at: at + 10 * MILLISECOND, status: 200 }
}

fn late(_: u64, at: Nanos) -> Reply {
    Reply::Answer { at: at + SECOND / 2, status: 200 }
}

#[test]
fn rates_count_answers_by_the_time_at_which_they_arrived() {
    let (_, section) = Scenario { connections: 1, ..Scenario::fixed(slow) }.run();
    assert!((section.answered_per_s - 100.0).abs() <= 0.1, "{}", section.answered_per_s);
    let (warm_up, section) = Scenario::on_demand(late).run();
    assert!((section.answered_per_s - 1_000.0).abs() <= 0.1 && (warm_up.answered_per_s - 750.0).abs() <= 1.0);
}

#[test]
fn intervals_show_when_requests_ended() {
    let (phases, source) = world::source();
    let mut collector = Scenario::on_demand(freeze).run_source(phases, source);
    let rows: Vec<_> = std::iter::from_fn(|| collector.next_interval(true)).map(|(row, _)| row).collect();
    let done = |second: usize| rows[second].outcomes.values().sum::<u64>();
    assert!(rows[0].warm_up && rows[1].warm_up && !rows[2].warm_up);
    assert_eq!((done(11), done(12), done(13)), (1_000, 1, 1_999));
    assert_eq!((rows[12].sent, rows[12].scheduled_per_s), (1_000, Some(1_000.0)));
    // The freeze lasts a second; the resolution is a hundredth of an interval at each end.
    let gap = collector.longest_gap();
    assert!((980 * MILLISECOND..=SECOND).contains(&gap), "{gap}");
    let (phases, source) = world::source();
    let mut steady = Scenario::on_demand(constant).run_source(phases, source);
    while steady.next_interval(true).is_some() {}
    assert!(steady.longest_gap() <= 10 * MILLISECOND, "{}", steady.longest_gap());
}

#[test]
fn pieces_are_equal_parts_of_the_measured_part() {
    let (phases, source) = world::source();
    let pieces = Scenario::on_demand(freeze).run_source(phases, source).pieces();
    let done: Vec<u64> = pieces.iter().map(|piece| piece.response.count).collect();
    // The freeze is in the thirteenth second. Requests that it delays end in the sixth piece, as they would without
    // it. The first piece has the answer of the last warm-up request, and no piece has that of the very last request.
    assert_eq!(done, [2_000; 10]);
    assert!(pieces[5].response.at(75.0).expect("there").value_us > 400_000.0);
    assert!(pieces[4].response.at(100.0).expect("there").value_us < 1_002.0);
    for (piece, count) in pieces.iter().zip(&done) {
        assert_eq!(piece.outcomes, BTreeMap::from([(Outcome::Served, *count)]));
        assert!((piece.goodput_per_s - 1_000.0).abs() <= 1.0, "{}", piece.goodput_per_s);
    }
}

/// The shared state of a run of the usual length.
pub(super) fn shared_for_tests() -> Arc<Shared> {
    let (phases, source) = world::source();
    Arc::new(Scenario::fixed(constant).shared(phases, source))
}

/// An author that stops after this many answers, while its thread has taken the next start.
#[derive(Debug)]
struct StopsAfter(usize);

impl Author for StopsAfter {
    fn next(&mut self, into: &mut Vec<u8>) -> Result<Option<Pipeline>, String> {
        into.extend_from_slice(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        Ok(Some(Pipeline { requests: 1, bodiless: 0 }))
    }

    fn delay(&mut self) -> Result<Option<Nanos>, String> {
        Ok(None)
    }

    fn wants_answers(&self) -> bool {
        true
    }

    fn answered(&mut self, _: u16, _: &[u8], _: &[u8]) -> Result<(), String> {
        self.0 = self.0.saturating_sub(1);
        Ok(())
    }

    fn has_stopped(&self) -> bool {
        self.0 == 0
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 80))
    }
}

/// A run of two threads, of which the first stops in the middle.
fn one_that_stops(planted: Option<GeneratorDefect>) -> Section {
    let scenario = Scenario { planted, ..Scenario::fixed(constant) };
    let (phases, source) = world::source();
    let mut shared = scenario.shared(phases, source);
    shared.authors = Authors::new(vec![Box::new(StopsAfter(5_000)), Box::new(StopsAfter(usize::MAX))]);
    scenario.run_threads(shared, 2).measured().0
}

#[test]
fn a_start_of_a_stopped_thread_is_sent_by_another() {
    let section = one_that_stops(None);
    assert_eq!((section.scheduled, section.outcomes[&Outcome::Served]), (20_000, 20_000));
}

#[test]
fn twin_a_start_that_is_lost_with_its_thread_is_noticed() {
    assert_eq!(one_that_stops(Some(GeneratorDefect::StartsLost)).scheduled, 19_999);
}
