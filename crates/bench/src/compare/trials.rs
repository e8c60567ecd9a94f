//! Tests of the judgement: comparisons of sides that are known to be equal or different. The sides are random with
//! fixed seeds, or made by the generator on the simulated clock. A judgement that errs too often is noticed, and so
//! are planted defects.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hdrhistogram::Histogram;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::compare::figures::Figure;
use crate::compare::finding::{Finding, Judgement, Verdict};
use crate::compare::interval::Estimate;
use crate::compare::judge::{Evidence, Rules};
use crate::compare::sides::{Run, Side};
use crate::compare::{conclude, page, runner, text};
use crate::recorder::{Outcome, histogram};
use crate::result::{Distribution, Load, Piece, RunResult, Section, Stage, Started, sample};
use crate::schedule::{Nanos, SECOND};
use crate::simulated::world::{self, Reply, Scenario, ServerBehaviour};

/// A defect that a judgement could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JudgementDefect {
    /// Every difference counts, whatever the repeats show.
    NoiseIgnored,
    /// Only medians are compared.
    MediansOnly,
    /// Only response times are compared.
    TimesOnly,
}

impl JudgementDefect {
    /// Returns an error if the defective judgement leaves a figure out.
    pub(super) fn leaves_out(planted: Option<JudgementDefect>, figure: Figure) -> Result<(), String> {
        let left_out = match planted {
            Some(JudgementDefect::MediansOnly) => figure != Figure::Percentile(50.0),
            Some(JudgementDefect::TimesOnly) => matches!(figure, Figure::Goodput | Figure::Share(_)),
            Some(JudgementDefect::NoiseIgnored) | None => false,
        };
        if left_out { Err("planted".to_owned()) } else { Ok(()) }
    }

    /// Returns the interval that the defective judgement uses.
    pub(super) fn apply(planted: Option<JudgementDefect>, estimate: Estimate) -> Estimate {
        let half_width = if planted == Some(JudgementDefect::NoiseIgnored) { 0.0 } else { estimate.half_width };
        Estimate { half_width, ..estimate }
    }
}

fn judge(a: &Side, b: &Side, rules: Rules) -> anyhow::Result<Finding> {
    Ok(crate::compare::judge::judge(&Evidence::of(a, b)?, rules))
}

fn rules(planted: Option<JudgementDefect>) -> Rules {
    Rules { planted, ..Rules::new(0.02) }
}

/// A run that was started in this second, in which 10,000 requests were served and nothing else was measured.
pub(super) fn run_of(second: u64, pieces: Vec<Piece>) -> RunResult {
    let stage = Stage { from_per_s: Some(1e3), to_per_s: Some(1e3), duration_s: 20.0 };
    let sample = sample();
    RunResult {
        started: Started {
            utc: format!("2026-01-01T00:{:02}:{:02}.000Z", second / 60, second % 60),
            monotonic_ns: second,
        },
        load: Load { seed: second, stages: vec![stage], warm_up_s: 2.0, duration_s: 20.0, ..sample.load },
        measured: section_of(&histogram(), &BTreeMap::from([(Outcome::Served, 10_000)])),
        pieces,
        ..sample
    }
}

/// A side with these runs.
pub(super) fn side_of(runs: Vec<RunResult>) -> Side {
    let named = |(index, result): (usize, RunResult)| Run { path: PathBuf::from(format!("{index}.json")), result };
    Side { runs: runs.into_iter().enumerate().map(named).collect() }
}

/// A piece of two seconds in which all requests were served.
pub(super) fn piece_of(number: u64, response: &Histogram<u64>) -> Piece {
    let served = BTreeMap::from([(Outcome::Served, response.len())]);
    let Section { goodput_per_s, outcomes, response, .. } = section_of(response, &served);
    let start_s = f64::from(u32::try_from(number).expect("small")) * 2.0;
    Piece { start_s, length_s: 2.0, goodput_per_s: goodput_per_s * 10.0, outcomes, response }
}

/// A measured part of 20 seconds.
fn section_of(response: &Histogram<u64>, outcomes: &BTreeMap<Outcome, u64>) -> Section {
    let served = outcomes.get(&Outcome::Served).copied().unwrap_or(0);
    Section {
        duration_s: 20.0,
        scheduled: outcomes.values().sum(),
        goodput_per_s: f64::from(u32::try_from(served).expect("small")) / 20.0,
        good_within_us: 30e6,
        outcomes: outcomes.clone(),
        response: Distribution::of(response),
        ..Section::default()
    }
}

/// A server with random response times.
#[derive(Clone, Copy)]
struct Server {
    /// A factor for the times of the slowest 2 % of requests.
    slowest: f64,
    /// A factor for all times.
    all: f64,
    /// The standard deviation of the influence that all times of a repeat have in common.
    noise: f64,
    /// Whether one in ten repeats has a disturbance, in which 15 of 1,000 requests wait 10 ms.
    disturbed: bool,
}

const SAME: Server = Server { slowest: 1.0, all: 1.0, noise: 0.03, disturbed: true };

/// Requests in a repeat.
const REQUESTS: u64 = 3_000;

impl Server {
    /// Makes the response times of a repeat: around a millisecond, with a tail.
    fn repeat(self, random: &mut Xoshiro256PlusPlus) -> Histogram<u64> {
        let normal = |random: &mut Xoshiro256PlusPlus| -> f64 { StandardNormal.sample(random) };
        let common = (self.noise * normal(random)).exp() * self.all;
        let disturbed = self.disturbed && random.random_range(0..10) == 0;
        let mut response = histogram();
        for number in 0..REQUESTS {
            let time = time_of(normal(random), self.slowest) * common;
            let waits = disturbed && number % 1_000 < 15;
            response.record(nanos(time) + if waits { 10_000_000 } else { 0 }).expect("it grows");
        }
        response
    }

    /// Makes a run of ten pieces.
    fn in_pieces(self, random: &mut Xoshiro256PlusPlus) -> Side {
        let mut all = histogram();
        let pieces: Vec<_> = (0..10)
            .map(|number| {
                let response = self.repeat(random);
                all.add(&response).expect("it grows");
                piece_of(number, &response)
            })
            .collect();
        let mut run = run_of(random.random_range(0..3_600), pieces);
        run.measured = section_of(&all, &BTreeMap::from([(Outcome::Served, all.len())]));
        side_of(vec![run])
    }

    /// Makes one run for each pair of a start time in seconds and a factor, which multiplies all times of the run.
    fn in_runs(self, random: &mut Xoshiro256PlusPlus, seconds: &[(u64, f64)]) -> Side {
        let run = |(second, longer): &(u64, f64)| {
            let response = Server { all: self.all * longer, ..self }.repeat(random);
            let outcomes = BTreeMap::from([(Outcome::Served, response.len())]);
            RunResult { measured: section_of(&response, &outcomes), ..run_of(*second, Vec::new()) }
        };
        side_of(seconds.iter().map(run).collect())
    }
}

/// Turns a standard normal value into a time in nanoseconds: median 1 ms, standard deviation of the logarithm 0.3.
fn time_of(normal: f64, slowest: f64) -> f64 {
    // One in fifty values is larger.
    let slow = if normal > 2.0537 { slowest } else { 1.0 };
    1e6 * (0.3 * normal).exp() * slow
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of some milliseconds")]
fn nanos(time: f64) -> Nanos {
    time as Nanos
}

fn seeded(seed: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

/// Judges two sides in each of `count` trials.
fn trials(
    count: u64,
    planted: Option<JudgementDefect>,
    sides: fn(&mut Xoshiro256PlusPlus) -> (Side, Side),
) -> Vec<Finding> {
    let trial = |seed| {
        let (a, b) = sides(&mut seeded(seed));
        judge(&a, &b, rules(planted)).expect("readable")
    };
    (0..count).map(trial).collect()
}

/// In how many of a thousand findings `is` holds.
fn per_mille(findings: &[Finding], is: impl Fn(&Finding) -> bool) -> usize {
    findings.iter().filter(|finding| is(finding)).count() * 1_000 / findings.len()
}

fn differs(finding: &Finding) -> bool {
    finding.verdict != Verdict::NoDifference
}

fn same_pieces(random: &mut Xoshiro256PlusPlus) -> (Side, Side) {
    (SAME.in_pieces(random), SAME.in_pieces(random))
}

fn same_runs(random: &mut Xoshiro256PlusPlus) -> (Side, Side) {
    let seconds = |from: u64| (0..5).map(|number| (from + number, 1.0)).collect::<Vec<_>>();
    (SAME.in_runs(random, &seconds(0)), SAME.in_runs(random, &seconds(10)))
}

/// B is 10 % slower at p99. There are no disturbances: with one in ten repeats, p99 would measure the disturbances.
fn slower_pieces(random: &mut Xoshiro256PlusPlus) -> (Side, Side) {
    let before = Server { disturbed: false, ..SAME };
    (before.in_pieces(random), Server { slowest: 1.1, ..before }.in_pieces(random))
}

fn named(finding: &Finding, figure: &str) -> bool {
    finding.figure(figure).is_some_and(|figure| figure.verdict == Judgement::Worse)
}

#[test]
fn equal_sides_are_seldom_called_different() {
    for (sides, of) in [(same_pieces as fn(&mut _) -> _, "pieces"), (same_runs, "runs")] {
        let alarms = per_mille(&trials(500, None, sides), differs);
        assert!(alarms < 20, "{alarms} of 1,000 comparisons of {of} are false alarms");
    }
}

#[test]
fn twin_ignored_noise_is_noticed() {
    for sides in [same_pieces as fn(&mut _) -> _, same_runs] {
        let alarms = per_mille(&trials(50, Some(JudgementDefect::NoiseIgnored), sides), differs);
        assert!(alarms > 500, "only {alarms} of 1,000");
    }
}

#[test]
fn ten_percent_at_p99_are_found_at_p99_and_not_at_p50() {
    let findings = trials(200, None, slower_pieces);
    let found = per_mille(&findings, |finding| named(finding, "p99") && finding.verdict == Verdict::Slower);
    assert!(found > 900, "found in {found} of 1,000");
    let elsewhere = per_mille(&findings, |finding| named(finding, "p50") || named(finding, "p90"));
    assert!(elsewhere < 20, "{elsewhere} of 1,000 name p50 or p90");
}

#[test]
fn twin_a_comparison_of_medians_only_is_noticed() {
    let found =
        per_mille(&trials(50, Some(JudgementDefect::MediansOnly), slower_pieces), |finding| named(finding, "p99"));
    assert_eq!(found, 0);
}

/// A server on the simulated clock with random noise: of each request, and common to all requests of a second.
fn noisy(seed: u64, slowest: f64) -> impl ServerBehaviour + Copy {
    let normal = move |of: u64| -> f64 { StandardNormal.sample(&mut seeded((seed << 32) | of)) };
    move |number, at| {
        let common = (0.02 * normal((1 << 31) | (at / SECOND))).exp();
        Reply::Answer { at: at + nanos(time_of(normal(number), slowest) * common), status: 200 }
    }
}

/// Makes a run of the generator against the server of [`noisy`].
fn measured(seed: u64, slowest: f64) -> Side {
    let (phases, source) = world::source();
    let collector = Scenario::fixed(noisy(seed, slowest)).run_source(phases, source);
    let run = run_of(seed % 3_600, collector.pieces());
    side_of(vec![RunResult { measured: collector.measured().0, ..run }])
}

fn compared(seed: u64, slowest: f64, planted: Option<JudgementDefect>) -> Finding {
    judge(&measured(2 * seed, 1.0), &measured(2 * seed + 1, slowest), rules(planted)).expect("readable")
}

#[test]
fn runs_against_one_server_compare_as_equal() {
    for seed in 0..50 {
        let finding = compared(seed, 1.0, None);
        assert_eq!(
            (finding.verdict, finding.repeats.a),
            (Verdict::NoDifference, 10),
            "seed {seed}: {}",
            finding.sentence
        );
    }
}

#[test]
fn runs_against_a_server_with_a_slower_tail_differ() {
    for seed in 0..20 {
        let finding = compared(seed, 1.1, None);
        assert!(named(&finding, "p99") && !named(&finding, "p50"), "seed {seed}: {}", finding.sentence);
        let p99 = finding.figure("p99").expect("judged");
        let (low, high) = (p99.low_percent.expect("judged"), p99.high_percent.expect("judged"));
        assert!(low < 10.0 && 10.0 < high, "seed {seed}: 10 % is planted, and {low} to {high} % is found");
        assert!(finding.sentence.starts_with("B is slower: p99 "), "{}", finding.sentence);
        let text = text::report(&finding);
        assert!(
            text.contains(&finding.sentence) && text.contains("At p99 these runs could show a difference of "),
            "{text}"
        );
    }
}

#[test]
fn twin_planted_defects_show_in_runs_of_the_generator() {
    assert!(
        (0..50).any(|seed| differs(&compared(seed, 1.0, Some(JudgementDefect::NoiseIgnored)))),
        "all 50 must be equal"
    );
    assert!((0..5).all(|seed| !named(&compared(seed, 1.1, Some(JudgementDefect::MediansOnly)), "p99")));
}

/// Runs in which this percentage of the requests was rejected at once.
fn refusing(seconds: std::ops::Range<u64>, percent: u64) -> Side {
    let run = |second| {
        let mut response = histogram();
        let served = 10_000 - percent * 100;
        // A server that rejects half of its requests has more time for the others.
        response.record_n(2_000_000 - percent * 10_000 + second * 1_000, served).expect("in range");
        let outcomes = BTreeMap::from([(Outcome::Served, served), (Outcome::Refused, percent * 100)]);
        RunResult { measured: section_of(&response, &outcomes), ..run_of(second, Vec::new()) }
    };
    side_of(seconds.map(run).collect())
}

fn judged(a: &Side, b: &Side, planted: Option<JudgementDefect>) -> Finding {
    judge(a, b, rules(planted)).expect("readable")
}

#[test]
fn a_side_that_rejects_half_is_not_called_faster() {
    let finding = judged(&refusing(0..5, 0), &refusing(5..10, 50), None);
    assert_eq!(finding.verdict, Verdict::Mixed);
    assert!(
        named(&finding, "goodput") && named(&finding, "refused") && !named(&finding, "p50"),
        "{}",
        finding.sentence
    );
    assert!(finding.sentence.contains("refused 50.00 points more") && finding.sentence.contains("and faster: p50"));
    // A side without answers has no response times to judge.
    let finding = judged(&refusing(0..5, 0), &refusing(5..10, 100), None);
    assert_eq!(finding.verdict, Verdict::Slower);
    assert!(finding.figure("p50").is_some_and(|figure| figure.verdict == Judgement::NotJudged));
    assert!(finding.sentence.contains("goodput 100.0 % less"), "{}", finding.sentence);
    let finding = judged(&refusing(0..5, 100), &refusing(5..10, 0), None);
    assert_eq!(finding.verdict, Verdict::Faster);
}

#[test]
fn a_loss_is_at_most_100_percent() {
    let mut uneven = refusing(0..2, 0);
    uneven.runs.extend(refusing(2..4, 20).runs);
    let finding = judged(&uneven, &refusing(5..9, 100), None);
    let goodput = finding.figure("goodput").expect("shown");
    assert_eq!((goodput.low_percent, goodput.verdict), (Some(-100.0), Judgement::Worse), "{goodput:?}");
    assert!(goodput.high_percent.is_some_and(|high| high > -90.0), "the other end keeps its noise: {goodput:?}");
    let refused = finding.figure("refused").expect("shown");
    assert_eq!(refused.high_percent, Some(100.0), "{refused:?}");
}

#[test]
fn twin_a_comparison_of_times_only_is_noticed() {
    let finding = judged(&refusing(0..5, 0), &refusing(5..10, 50), Some(JudgementDefect::TimesOnly));
    assert_eq!(finding.verdict, Verdict::Faster);
}

/// Compares two servers on a machine that becomes 0.4 % slower with each second. B is 5 % slower than A. `order` has
/// the seconds in which the six runs of A and the six runs of B start.
fn drifting(order: [[u64; 6]; 2]) -> Finding {
    let steady = Server { noise: 0.0, disturbed: false, ..SAME };
    let drift = |seconds: [u64; 6]| {
        seconds.map(|second| (second, 1.0 + 0.004 * f64::from(u32::try_from(second).expect("small"))))
    };
    let random = &mut seeded(7);
    let a = steady.in_runs(random, &drift(order[0]));
    let b = Server { all: 1.05, ..steady }.in_runs(random, &drift(order[1]));
    judged(&a, &b, None)
}

#[test]
fn drift_of_the_machine_cancels_if_runs_were_made_in_turn() {
    let finding = drifting([[0, 11, 20, 31, 40, 51], [1, 10, 21, 30, 41, 50]]);
    assert!(finding.repeats.paired && named(&finding, "p50"), "{}", finding.sentence);
    // The twin: the same servers, but in an order that makes no pairs.
    let finding = drifting([[0, 1, 21, 30, 40, 51], [10, 11, 20, 31, 41, 50]]);
    assert!(!finding.repeats.paired && !named(&finding, "p50"), "{}", finding.sentence);
}

#[test]
fn a_difference_within_the_tolerance_is_ignored_even_if_it_is_certain() {
    let side = |seconds: std::ops::Range<u64>, nanos: u64| {
        let run = |second| {
            let mut response = histogram();
            response.record_n(nanos, 10_000).expect("in range");
            let outcomes = BTreeMap::from([(Outcome::Served, 10_000)]);
            RunResult { measured: section_of(&response, &outcomes), ..run_of(second, Vec::new()) }
        };
        side_of(seconds.map(run).collect())
    };
    let (a, b) = (side(0..5, 1_000_000), side(5..10, 1_010_000));
    let verdict = |tolerance| judge(&a, &b, Rules::new(tolerance)).expect("readable").verdict;
    assert_eq!((verdict(0.02), verdict(0.005)), (Verdict::NoDifference, Verdict::Slower));
}

#[test]
fn results_without_pieces_need_several_runs() {
    let finding = judged(&refusing(0..1, 0), &refusing(5..6, 0), None);
    assert_eq!(finding.verdict, Verdict::NotJudged);
    assert!(finding.sentence.contains("0.json has no pieces") && finding.sentence.contains("several runs"));
    assert!(finding.figures.iter().all(|figure| figure.verdict == Judgement::NotJudged));
    assert!(finding.figure("p50").is_some_and(|figure| figure.a.is_some()), "the values are shown nevertheless");
    assert_eq!(judged(&refusing(0..2, 0), &refusing(5..7, 0), None).repeats.kind, "runs");
}

#[test]
fn exit_codes_follow_from_the_verdict_and_the_validity_of_the_runs() {
    use runner::Verdict::{Met, Missed, NotValid};
    let code = |finding: &Finding, allow| conclude(finding, allow).ok();
    let equal = judged(&refusing(0..5, 0), &refusing(5..10, 0), None);
    let mixed = judged(&refusing(0..5, 0), &refusing(5..10, 50), None);
    let missing = judged(&refusing(0..1, 0), &refusing(5..6, 0), None);
    assert_eq!([&equal, &mixed, &missing].map(|finding| code(finding, false)), [Some(Met), Some(Missed), None]);
    let mut wrong = refusing(0..5, 0);
    wrong.runs[3].result.valid = false;
    for (a, b) in [(&wrong, &refusing(5..10, 0)), (&refusing(5..10, 0), &wrong)] {
        let finding = judged(a, b, None);
        assert_eq!((code(&finding, false), code(&finding, true)), (Some(NotValid), Some(Met)));
        assert!(text::report(&finding).starts_with("NOT VALID: 3.json"), "{}", text::report(&finding));
    }
}

#[test]
fn unknown_values_are_null_in_json_and_named_in_the_text() {
    // The two runs of a side differ so much that the upper end of the interval is too large to report.
    let side = |seconds: [u64; 2], times: [u64; 2]| {
        let run = |(second, time): (u64, u64)| {
            let mut response = histogram();
            response.record_n(time, 10_000).expect("in range");
            let outcomes = BTreeMap::from([(Outcome::Served, 10_000)]);
            RunResult { measured: section_of(&response, &outcomes), ..run_of(second, Vec::new()) }
        };
        side_of(seconds.into_iter().zip(times).map(run).collect())
    };
    let finding = judged(&side([0, 1], [1_000, 1_000_000_000]), &side([2, 3], [1_000, 1_000_000_000]), None);
    let json: serde_json::Value = serde_json::from_str(&finding.json()).expect("JSON");
    let p50 = &json["figures"][0];
    assert!(p50["high_percent"].is_null() && p50["low_percent"].is_number(), "{p50}");
    assert_eq!((&json["schema"], &json["verdict"]), (&"klad.bench.compare/1".into(), &"no_difference".into()));
    assert!(text::report(&finding).contains("too few repeats"), "{}", text::report(&finding));
}

#[test]
fn a_page_shows_the_finding_and_turns_no_input_into_markup() {
    let page = |a: &Side, b: &Side| {
        let evidence = Evidence::of(a, b).expect("readable");
        let finding = crate::compare::judge::judge(&evidence, rules(None));
        (page::html(&finding, (&evidence.together.0, &evidence.together.1), &evidence.repeats), finding)
    };
    let (a, mut b) = (refusing(0..5, 0), refusing(5..10, 50));
    let (clean, finding) = page(&a, &b);
    for words in
        ["Mixed", &finding.sentence, &finding.repeats.note, "id=\"percentiles\"", "id=\"differences\"", "worse: more"]
    {
        assert!(clean.contains(words), "{words}");
    }
    for Run { path, .. } in &mut b.runs {
        *path = PathBuf::from("</script><script>alert(1)</script>");
    }
    b.runs[0].result.machine.host = "<script>".to_owned();
    b.runs[0].result.valid = false;
    let (page, _) = page(&a, &b);
    assert_eq!(page.matches("<script").count(), clean.matches("<script").count());
    assert!(page.find("NOT VALID") < page.find("class=\"tiles\"") && page.contains("different machine"));
}
