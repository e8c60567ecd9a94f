//! Tests of the conclusion on fake experiments: a planted difference is found and named, and nothing else is.

use crate::conclusion::*;
use crate::result::{Failure, LabResult, StageResult, VariantResult};
use crate::testing::{FakeServer, experiment, variant};

/// The number of runs of each variant, where it does not matter.
const RUNS: u64 = 5;

fn fake(name: &str, load: FakeServer) -> VariantResult {
    variant(name, &load, RUNS)
}

fn stage(result: &LabResult) -> StageConclusion {
    conclude(result).stages.remove(0)
}

fn two(other: FakeServer) -> StageConclusion {
    stage(&experiment(vec![fake("plain", FakeServer::default()), fake("other", FakeServer { seed: 2, ..other })], ""))
}

fn judgement(stage: &StageConclusion, figure: &str) -> Judgement {
    stage.comparisons[0].judgement(figure)
}

fn said(stage: &StageConclusion, words: &str) -> bool {
    stage.sentences.iter().chain(&stage.pairs).any(|sentence| sentence.contains(words))
}

fn verdict(stage: &StageConclusion, figure: &str) -> (Outcome, Option<String>) {
    let winner = stage.winners.iter().find(|winner| winner.figure == figure).expect("contested");
    (winner.outcome, winner.best.clone().filter(|_| winner.outcome == Outcome::Won))
}

/// Returns what is wrong with the conclusion on a variant that sleeps in one request of a hundred.
fn missed(stage: &StageConclusion) -> Vec<&'static str> {
    let mut missed = Vec::new();
    if judgement(stage, "p99.9") != Judgement::Worse || judgement(stage, "p99") != Judgement::Worse {
        missed.push("it is not worse at p99 and p99.9");
    }
    if judgement(stage, "p50") != Judgement::NoDifference {
        missed.push("the median differs");
    }
    let won = |figure: &str| stage.winners.iter().any(|one| one.figure == figure && one.outcome == Outcome::Won);
    let plain_wins =
        stage.headline.starts_with("plain wins by p99.9 with ") && stage.headline.ends_with(" times that of other.");
    if !plain_wins || !won("p99") || !won("p99.9") || won("p50") {
        missed.push("the headline names another");
    }
    if !said(stage, "other is worse than plain: ") || !said(stage, "no difference beyond the noise at p50") {
        missed.push("no sentence names it");
    }
    missed
}

#[test]
fn a_sleep_in_one_request_of_a_hundred_is_named_at_p99_and_not_at_p50() {
    let found = two(FakeServer { sleeps_every: 100, ..FakeServer::default() });
    assert_eq!(missed(&found), Vec::<&str>::new(), "{:#?} {}", found.sentences, found.headline);
    let p999 = found.comparisons[0].difference("p99.9").expect("judged");
    let (low, high) = (p999.low_percent.expect("judged"), p999.high_percent.expect("judged"));
    assert!(low > 100.0 && high < 500.0, "2 ms on top of 0.8 ms: {p999:?}");
}

#[test]
fn twin_without_the_sleep_nothing_is_named_and_with_it_in_every_request_the_median_is() {
    assert_eq!(missed(&two(FakeServer::default())).len(), 3);
    assert!(missed(&two(FakeServer { sleeps_every: 1, ..FakeServer::default() })).contains(&"the median differs"));
}

/// Returns whether all parts of the conclusion call the variants equal.
fn called_equal(stage: &StageConclusion) -> bool {
    let equal = stage.comparisons[0]
        .differences
        .iter()
        .all(|difference| difference.judgement != Judgement::Better && difference.judgement != Judgement::Worse);
    equal
        && stage.winners.iter().all(|winner| winner.outcome == Outcome::Level)
        && stage.headline.starts_with("No difference told by p99.9 between ")
        && stage.headline.contains(": the ratio is 1.0")
        && said(stage, "other against plain: no difference beyond the noise at p50, ")
}

#[test]
fn identical_variants_are_called_equal() {
    for seed in 2..8 {
        let variants =
            vec![fake("plain", FakeServer::default()), fake("other", FakeServer { seed, ..FakeServer::default() })];
        let found = stage(&experiment(variants, ""));
        assert!(called_equal(&found), "seed {seed}: {} {:#?}", found.headline, found.sentences);
        assert!(said(&found, "At p99 these runs can detect differences of "), "{:#?}", found.sentences);
    }
}

#[test]
fn twin_variants_that_differ_by_a_fifth_are_not_called_equal() {
    assert!(!called_equal(&two(FakeServer { median_us: 360.0, ..FakeServer::default() })));
    assert!(!called_equal(&two(FakeServer { cpu_us: 24.0, ..FakeServer::default() })));
}

#[test]
fn cpu_time_is_judged() {
    let found = two(FakeServer { cpu_us: 24.0, ..FakeServer::default() });
    assert_eq!(
        (judgement(&found, "CPU per served request"), judgement(&found, "p99")),
        (Judgement::Worse, Judgement::NoDifference)
    );
    assert_eq!(verdict(&found, "CPU per served request"), (Outcome::Won, Some("plain".to_owned())));
}

#[test]
fn single_runs_are_not_judged() {
    let slow = FakeServer { seed: 2, sleeps_every: 100, ..FakeServer::default() };
    let of = |runs| {
        stage(&experiment(vec![variant("plain", &FakeServer::default(), runs), variant("slow", &slow, runs)], ""))
    };
    let found = of(1);
    let why = "plain has only one usable run, and the noise is unknown with fewer than two";
    assert_eq!(found.headline, format!("Not judged by p99.9: {why}."));
    assert_eq!(found.left_out, None, "none is compared");
    assert!(said(&found, &format!("slow against plain: not judged, because {why}.")), "{:#?}", found.sentences);
    let comparison = &found.comparisons[0];
    assert!(comparison.differences.iter().all(|difference| difference.judgement == Judgement::NotJudged));
    assert!(
        comparison.difference("p99").is_some_and(|p99| p99.first.is_some() && p99.percent.is_none()),
        "values are shown"
    );
    assert!(found.winners.iter().all(|winner| winner.outcome == Outcome::NotJudged));
    // The twin: the same with more runs is judged.
    assert!(of(5).comparisons[0].not_judged.is_none());
}

#[test]
fn of_three_variants_the_best_is_named_with_those_that_do_not_differ_from_it() {
    let slow = FakeServer { sleeps_every: 100, ..FakeServer::default() };
    let variants = vec![
        fake("slow", slow),
        fake("one", FakeServer { seed: 2, ..FakeServer::default() }),
        fake("other", FakeServer { seed: 3, ..FakeServer::default() }),
    ];
    let found = stage(&experiment(variants, ""));
    let p999 = found.winners.iter().find(|winner| winner.figure == "p99.9").expect("contested");
    assert_eq!((p999.outcome, p999.level_with.len()), (Outcome::Level, 1), "{p999:?}");
    let start = "No difference told by p99.9 between o";
    assert!(found.headline.starts_with(start) && found.headline.contains(", slow "), "{}", found.headline);
    let answer = found.answer.as_ref().expect("compared");
    assert_eq!((answer.figure.as_str(), answer.ranking.len(), &answer.ranking[2].variant[..]), ("p99.9", 3, "slow"));
    let [best, level, last] = [0, 1, 2].map(|index| answer.ranking[index].ratio);
    let (level, last) = (level.expect("judged"), last.expect("judged"));
    assert!(best.is_none() && level.low < 1.0 && level.high > Some(1.0), "{level:?}");
    assert!(last.low > 1.5 && last.ratio > last.low && last.high > Some(last.ratio), "{last:?}");
    assert_eq!(found.comparisons.len(), 2, "each with the first");
}

/// Returns the conclusion on the sizes of the queue. `sizes` has the size of each variant and its fake server.
fn queues(sizes: &[(u64, FakeServer)]) -> Frontier {
    let one =
        |(seed, (size, load)): (u64, &(u64, FakeServer))| fake(&format!("queue-{size}"), FakeServer { seed, ..*load });
    let variants = (1..).zip(sizes).map(one).collect();
    stage(&experiment(variants, "")).queue.expect("sizes are known")
}

fn refusing(refused: u64) -> FakeServer {
    FakeServer { refused, ..FakeServer::default() }
}

#[test]
fn the_smallest_queue_that_refuses_little_is_recommended() {
    let found = queues(&[(1_024, refusing(0)), (32, refusing(600)), (128, refusing(10))]);
    assert_eq!(found.recommended.as_deref(), Some("queue-128"), "{}", found.sentence);
    assert!(found.sentence.starts_with("Queue: 128 is enough: queue-128 refuses 0.050 %"), "{}", found.sentence);
    let sizes: Vec<_> = found.points.iter().map(|point| (point.queue, point.refuses_little)).collect();
    assert_eq!(sizes, [(32, false), (128, true), (1_024, true)]);
}

#[test]
fn twin_a_queue_that_is_slower_beyond_the_noise_is_not_recommended() {
    let slow = FakeServer { sleeps_every: 100, ..refusing(10) };
    assert_eq!(
        queues(&[(32, refusing(600)), (128, slow), (1_024, refusing(0))]).recommended.as_deref(),
        Some("queue-1024")
    );
}

#[test]
fn no_size_is_recommended_where_none_qualifies() {
    let found = queues(&[(32, refusing(600)), (128, refusing(100))]);
    assert_eq!(found.recommended, None);
    assert_eq!(
        found.sentence.replace('\u{a0}', " "),
        "Queue: no size refuses 0.10 % of the requests or less; queue-128 refuses least, 0.50 %."
    );
    let single =
        vec![variant("queue-1", &refusing(0), 1), variant("queue-2", &FakeServer { seed: 2, ..refusing(0) }, 1)];
    let found = stage(&experiment(single, "")).queue.expect("sizes are known");
    assert!(found.recommended.is_none() && found.sentence.contains("was not judged"), "{}", found.sentence);
}

/// Returns the conclusion on the variants `plain` and `slow` with these published p99, milliseconds.
fn ordered(plain_ms: f64, slow_ms: f64, slow: FakeServer) -> StageConclusion {
    let result = |variant: &str, p99: f64| {
        format!("[[published.result]]\nstage = 'get'\nvariant = '{variant}'\np99-ms = {p99:?}\nmax-ms = 40.0\n")
    };
    let published =
        format!("[published]\nabout = 'somebody'\n{}{}", result("plain", plain_ms), result("slow", slow_ms));
    let variants = vec![fake("plain", FakeServer::default()), fake("slow", FakeServer { seed: 2, ..slow })];
    stage(&experiment(variants, &published))
}

#[test]
fn a_published_order_is_confirmed_or_reversed_by_the_figures() {
    let slow = FakeServer { sleeps_every: 50, ..FakeServer::default() };
    let agreement = |stage: &StageConclusion| stage.orders.iter().map(|order| order.agreement).collect::<Vec<_>>();
    let same = ordered(5.0, 9.0, slow);
    assert_eq!(agreement(&same), [Agreement::Same]);
    assert!(said(&same, "Published order at p99: plain below slow (5.00 ms against 9.00 ms): confirmed here."));
    let reversed = ordered(9.0, 5.0, slow);
    assert_eq!(agreement(&reversed), [Agreement::Reversed]);
    assert!(said(&reversed, "reversed here, beyond the noise."), "{:#?}", reversed.sentences);
    assert_eq!(agreement(&ordered(5.0, 9.0, FakeServer::default())), [Agreement::NoDifference]);
    assert_eq!(agreement(&ordered(5.0, 5.05, slow)), [], "equal values have no order");
}

#[test]
fn measured_figures_stand_beside_published_ones_with_their_ratio() {
    let found = ordered(5.0, 9.0, FakeServer::default());
    let p99 = found.published.iter().find(|one| one.figure == "p99").expect("published");
    let (here, ratio) = (p99.here.expect("measured"), p99.ratio.expect("both"));
    assert!((ratio - here / 5_000.0).abs() < 1e-9 && ratio < 0.2, "{p99:?}");
    assert!(
        said(&found, "plain, measured here against published: p99 ") && said(&found, " against 5.00 ms (0.1"),
        "{:#?}",
        found.sentences
    );
}

#[test]
fn published_figures_are_not_compared_with_another_load() {
    let published = "[published]\nabout = ''\n[[published.result]]\nstage = 'get'\nvariant = 'plain'\np99-ms = 5.0\n";
    let mut result = experiment(vec![fake("plain", FakeServer::default())], published);
    "get-at-70".clone_into(&mut result.stages[0].name);
    assert!(stage(&result).published.is_empty());
}

#[test]
fn refused_requests_failures_and_unused_runs_are_named() {
    let mut result = experiment(
        vec![fake("plain", FakeServer::default()), fake("other", FakeServer { seed: 2, ..refusing(600) })],
        "",
    );
    result.scale = 0.1;
    result.failures.push(Failure {
        stage: "get".to_owned(),
        variant: "other".to_owned(),
        what: "profile cpu".to_owned(),
        why: "no answer".to_owned(),
    });
    let late = result.stages[0].variants[0].runs[0].bench.as_mut().expect("every fake run has one");
    late.valid = false;
    late.machine.steal_percent = Some(9.0);
    late.checks = vec![klad_bench::result::Check { name: "send_lag".into(), passed: false, detail: "late".into() }];
    result.stages[0].variants[1].runs[1].bench.as_mut().expect("every fake run has one").machine.steal_percent =
        Some(2.5);
    let conclusion = conclude(&result);
    for words in [
        "Scaled to 0.1: ",
        "Failed: get, other, profile cpu: no answer",
        "Not used in get: run 1 of plain: not valid (send_lag).",
        "The hypervisor took up to 2.5 % of the CPU time",
        "1 comparison with the first variant that can be compared.",
    ] {
        assert!(
            conclusion.remarks.iter().any(|remark| remark.starts_with(words)),
            "{words}: {:#?}",
            conclusion.remarks
        );
    }
    let stage = &conclusion.stages[0];
    assert!(said(stage, "other: of 100,000 requests, 3,000 (3 %) refused."), "{:#?}", stage.sentences);
    assert!(!said(stage, "A queue grew"), "a refused request is answered: {:#?}", stage.sentences);
    assert_eq!(judgement(stage, "refused"), Judgement::Worse);
    assert_eq!(stage.standings[0].used, 4);
}

#[test]
fn a_winner_that_sheds_load_is_named_with_its_refused_share() {
    let quick = FakeServer { seed: 2, median_us: 200.0, ..refusing(600) };
    let found = two(quick);
    assert!(found.headline.starts_with("other (3 % refused or failed) wins by p99.9 with "), "{}", found.headline);
    assert_eq!(verdict(&found, "goodput"), (Outcome::Won, Some("plain".to_owned())));
    assert!(
        said(&found, "other is better in some figures and worse in others than plain: goodput 3.0 % less"),
        "{:#?}",
        found.sentences
    );
    // The twin: without refused requests, the share is not named.
    assert!(two(FakeServer { refused: 0, ..quick }).headline.starts_with("other wins by p99.9 "));
}

#[test]
fn other_differences_between_the_loads_are_named() {
    let mut result = experiment(
        vec![fake("plain", FakeServer::default()), fake("other", FakeServer { seed: 2, ..FakeServer::default() })],
        "",
    );
    for run in &mut result.stages[0].variants[1].runs {
        run.bench.as_mut().expect("every fake run has one").load.workload = "put".to_owned();
    }
    let found = stage(&result);
    assert!(
        said(&found, "Warning in plain (A) and other (B): different workload: A get; B put."),
        "{:#?}",
        found.sentences
    );
}

#[test]
fn a_variant_that_falls_behind_is_named() {
    let mut result = experiment(
        vec![fake("plain", FakeServer::default()), fake("busy", FakeServer { seed: 2, ..FakeServer::default() })],
        "",
    );
    for run in &mut result.stages[0].variants[1].runs {
        let bench = run.bench.as_mut().expect("every fake run has one");
        bench.valid = false;
        bench.checks = vec![klad_bench::result::Check { name: "rate".into(), passed: false, detail: "busy".into() }];
        (bench.measured.answered_per_s, bench.measured.goodput_per_s) = (1_200.0, 1_200.0);
    }
    let found = stage(&result);
    let words = "busy answered 1,200/s of 2,000/s offered; all connections were busy. A queue grew";
    assert!(said(&found, words), "{:#?}", found.sentences);
    assert_eq!((judgement(&found, "goodput"), found.standings[1].validity), (Judgement::Worse, Validity::Overloaded));
}

#[test]
fn a_variant_without_runs_is_named_and_nothing_is_judged_by_it() {
    let result = experiment(vec![fake("plain", FakeServer::default()), variant("gone", &FakeServer::default(), 0)], "");
    let found = stage(&result);
    assert!(found.headline.starts_with("No comparison. plain: 2,000/s good, p50 "), "{}", found.headline);
    assert_eq!(found.left_out.as_deref(), Some("Left out: gone has no run."));
    assert!(found.winners.iter().all(|winner| winner.outcome == Outcome::NotJudged));
}

/// Three variants; `gone` has no run because of a failure, and no run of `late` is valid. They are the first and the
/// last.
fn with_invalid_variants() -> LabResult {
    let slow = FakeServer { seed: 2, sleeps_every: 100, ..FakeServer::default() };
    let mut late = fake("late", FakeServer { seed: 3, ..FakeServer::default() });
    for run in &mut late.runs {
        let bench = run.bench.as_mut().expect("every fake run has one");
        bench.valid = false;
        bench.checks =
            vec![klad_bench::result::Check { name: "send_lag".into(), passed: false, detail: "late".into() }];
    }
    let gone = variant("gone", &FakeServer::default(), 0);
    let mut result = experiment(vec![late, fake("plain", FakeServer::default()), fake("slow", slow), gone], "");
    let [stage, variant, what, why] = ["get", "gone", "run 1", "klad ended\nlast words"].map(str::to_owned);
    result.failures.push(Failure { stage, variant, what, why });
    result
}

#[test]
fn invalid_variants_are_left_out_in_one_line_and_the_others_are_compared() {
    let found = stage(&with_invalid_variants());
    assert!(found.headline.starts_with("plain wins by p99.9 with "), "{}", found.headline);
    assert!(found.headline.ends_with(" times that of slow."), "{}", found.headline);
    let line = "Left out: no run of late is valid (send_lag); gone has no run (klad ended).";
    assert_eq!(found.left_out.as_deref(), Some(line));
    let pairs: Vec<_> = found.comparisons.iter().map(|one| (one.first.as_str(), one.other.as_str())).collect();
    assert_eq!(pairs, [("plain", "slow")], "the first variant cannot be compared");
    assert!(found.pairs.iter().all(|sentence| !sentence.contains("late") && !sentence.contains("gone")));
}

/// Returns the figure that the answer of two variants is about. With `busy` both answer a half of the offered requests.
/// Without CPU time no run has that figure.
fn answered_by(figure: &str, busy: bool, server: FakeServer) -> String {
    let mut result = experiment(vec![fake("plain", server), fake("other", FakeServer { seed: 2, ..server })], "");
    let named = format!("title = 't'\n{figure}\n[[variant]]\nname = 'a'\n[[stage]]\nname = 's'\nduration = '1s'\n");
    result.scenario.figure = crate::scenario::Scenario::parse("s", &named).expect("valid").figure;
    for run in result.stages[0].variants.iter_mut().flat_map(|variant| &mut variant.runs) {
        let measured = &mut run.bench.as_mut().expect("every fake run has one").measured;
        measured.answered_per_s /= if busy { 2.0 } else { 1.0 };
    }
    if server.cpu_us == 0.0 {
        result.stages[0].variants.iter_mut().flat_map(|variant| &mut variant.runs).for_each(|run| {
            run.server_cpu_us_per_served = None;
        });
    }
    stage(&result).answer.expect("compared").figure
}

#[test]
fn the_answer_is_about_the_figure_of_the_scenario_or_of_the_load() {
    let usual = FakeServer::default();
    for (named, figure) in
        [("cpu", "CPU per served request"), ("goodput", "goodput"), ("p50", "p50"), ("p99.9", "p99.9")]
    {
        assert_eq!(answered_by(&format!("figure = '{named}'"), false, usual), figure);
    }
    assert_eq!([false, true].map(|busy| answered_by("", busy, usual)), ["p99.9", "goodput"]);
    assert_eq!(answered_by("figure = 'cpu'", false, FakeServer { cpu_us: 0.0, ..usual }), "p99.9", "no run has it");
    // Of 2,000 requests, two are above p99.9, too few to judge it.
    assert_eq!(answered_by("", false, FakeServer { requests: 2_000, ..usual }), "p99");
}

#[test]
fn a_conclusion_can_be_read_back_from_json() {
    let conclusion = conclude(&experiment(
        vec![fake("plain", FakeServer::default()), fake("other", FakeServer { seed: 2, ..FakeServer::default() })],
        "",
    ));
    let json = serde_json::to_string(&conclusion).expect("JSON");
    let again: Conclusion = serde_json::from_str(&json).expect("the same form");
    assert_eq!(serde_json::to_string(&again).expect("JSON"), json);
    let schema = serde_json::to_value(schemars::schema_for!(Conclusion)).expect("JSON");
    assert!(schema["properties"]["stages"].is_object(), "{schema}");
    assert!(!json.contains('\u{a0}') && !json.contains("NaN"));
}

#[test]
fn the_text_of_a_conclusion_has_its_remarks_headlines_and_sentences() {
    let mut result =
        experiment(vec![fake("plain", FakeServer::default()), variant("gone", &FakeServer::default(), 0)], "");
    result.scale = 0.5;
    let conclusion = conclude(&result);
    let text = conclusion.text();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("Scaled to 0.5"), "{text}");
    assert!(lines.iter().any(|line| line.starts_with("get: No comparison. plain: ")), "{text}");
    assert!(lines.contains(&"  Left out: gone has no run."), "{text}");
    assert!(text.ends_with('\n') && conclusion.stages[0].sentences.iter().all(|sentence| text.contains(sentence)));
}

#[test]
fn the_answer_of_several_stages_counts_what_each_variant_wins() {
    let equal = |seed| FakeServer { seed, ..FakeServer::default() };
    let stage_of = |name: &str, other: FakeServer| {
        let stage = experiment(vec![fake("plain", equal(1)), fake("other", other)], "").stages.remove(0);
        StageResult { name: name.to_owned(), ..stage }
    };
    let slow = FakeServer { sleeps_every: 100, ..equal(2) };
    let mut result = experiment(vec![fake("plain", equal(1)), fake("other", equal(2))], "");
    result.stages = ["a", "b", "c"].map(|name| stage_of(name, slow)).into();
    result.stages.push(stage_of("d", equal(2)));
    result.stages[2].variants.swap(0, 1);
    result.stages[2].variants[0].name = "plain".to_owned();
    result.stages[2].variants[1].name = "other".to_owned();
    let conclusion = conclude(&result);
    assert_eq!(conclusion.headline, "Of 4 stages: plain wins 2; other wins 1; no difference told in 1.");
    assert!(conclusion.text().ends_with(&format!("\n{}\n", conclusion.headline)));
}

/// Returns the conclusion on two stages. The second has the settings `more` in the scenario. With `share`, it offers
/// twice the first stage's share of the capacity.
fn several(more: &str, share: Option<f64>) -> Conclusion {
    let mut result =
        experiment(vec![fake("plain", FakeServer::default())], &format!("[[stage]]\nname = 'next'\n{more}"));
    let first = result.stages[0].clone();
    let of = |share: Option<f64>, times: f64| share.map(|share| share * times);
    let next = StageResult {
        name: "next".to_owned(),
        of: "next".to_owned(),
        connections: result.scenario.stages[1].connections,
        share_of_capacity: of(share, 2.0),
        ..first
    };
    result.stages[0].share_of_capacity = of(share, 1.0);
    result.scenario.stages[0].of_capacity = of(share, 1.0);
    result.stages.push(next);
    conclude(&result)
}

#[test]
fn stages_that_differ_in_one_setting_are_compared() {
    let by_connections = several("duration = '10s'\nconnections = 8\n", None).across;
    assert!(by_connections[0].starts_with("p99 of get to next (2,000/s) of plain: "), "{by_connections:?}");
    assert!(by_connections[0].ends_with(" over 8."), "{by_connections:?}");
    let by_share = several("duration = '10s'\nof-capacity = 2.0\n", Some(1.0)).across;
    let expected = "Goodput of plain: 2,000/s at 100.0 % of the capacity and 2,000/s at 200.0 % of the capacity; the lowest is 100.0 % of \
                the highest.";
    assert_eq!(by_share, [expected]);
}

#[test]
fn twin_stages_that_differ_in_more_settings_are_not() {
    assert_eq!(several("duration = '20s'\nconnections = 8\n", None).across, Vec::<String>::new());
    assert_eq!(several("duration = '20s'\nof-capacity = 2.0\n", Some(1.0)).across, Vec::<String>::new());
}

#[test]
fn a_queue_that_does_not_keep_up_is_not_recommended() {
    let slow = |name: &str| {
        let mut variant = fake(name, FakeServer::default());
        for run in &mut variant.runs {
            run.bench.as_mut().expect("every fake run has one").measured.answered_per_s = 1_000.0;
        }
        variant
    };
    let found = stage(&experiment(vec![slow("queue-32"), slow("queue-128")], "")).queue.expect("two sizes");
    assert!(found.recommended.is_none() && found.sentence.contains("keep up with this load"), "{}", found.sentence);
    let found = stage(&experiment(vec![slow("queue-32"), fake("queue-128", FakeServer::default())], "")).queue;
    assert_eq!(found.expect("two sizes").recommended.as_deref(), Some("queue-128"));
    // A variant that falls behind is not the one that refuses least.
    let refusing = fake("queue-32", FakeServer { refused: 1_000, ..FakeServer::default() });
    let found = stage(&experiment(vec![refusing, slow("queue-128")], "")).queue.expect("two sizes");
    let why = "Queue: no size that keeps up with the load refuses 0.10 % of the requests or less; queue-32 refuses least, 5 %.";
    assert_eq!((found.recommended, found.sentence.as_str()), (None, why));
}

#[test]
fn cpu_time_of_few_ticks_is_no_difference() {
    let of = |name: &str, cpu_us: f64, seed: u64| {
        // 200 requests of 250 µs or 300 µs take five or six ticks.
        variant(name, &FakeServer { seed, cpu_us, requests: 200, ..FakeServer::default() }, RUNS)
    };
    let found = stage(&experiment(vec![of("plain", 250.0, 1), of("other", 300.0, 2)], ""));
    assert_eq!(judgement(&found, "CPU per served request"), Judgement::NoDifference);
}
