//! Tests: what is planted is found and named, and nothing else is.

use crate::conclusion::*;
use crate::result::{Failed, LabResult, StageResult, VariantResult};
use crate::testing::{Load, experiment, variant};

/// Runs of each variant, where it does not matter.
const RUNS: u64 = 5;

fn made(name: &str, load: Load) -> VariantResult {
    variant(name, &load, RUNS)
}

fn stage(result: &LabResult) -> StageConclusion {
    conclude(result).stages.remove(0)
}

fn two(other: Load) -> StageConclusion {
    stage(&experiment(vec![made("plain", Load::default()), made("other", Load { seed: 2, ..other })], ""))
}

fn judgement(stage: &StageConclusion, figure: &str) -> Judgement {
    stage.comparisons[0].judgement(figure)
}

fn said(stage: &StageConclusion, words: &str) -> bool {
    stage.sentences.iter().any(|sentence| sentence.contains(words))
}

/// What is wrong with what was concluded of a variant that sleeps in one request of a hundred.
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
        stage.headline.starts_with("plain wins at p99 (") && stage.headline.contains("% shorter) before other; ");
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
    let found = two(Load { sleeps_every: 100, ..Load::default() });
    assert_eq!(missed(&found), Vec::<&str>::new(), "{:#?} {}", found.sentences, found.headline);
    let p999 = found.comparisons[0].difference("p99.9").expect("judged");
    let (low, high) = (p999.low_percent.expect("judged"), p999.high_percent.expect("judged"));
    assert!(low > 100.0 && high < 500.0, "2 ms on top of 0.8 ms: {p999:?}");
}

#[test]
fn twin_without_the_sleep_nothing_is_named_and_with_it_everywhere_the_median_is() {
    assert_eq!(missed(&two(Load::default())).len(), 3);
    assert!(missed(&two(Load { sleeps_every: 1, ..Load::default() })).contains(&"the median differs"));
}

/// Whether the variants are called equal in every word.
fn called_equal(stage: &StageConclusion) -> bool {
    let equal = stage.comparisons[0]
        .differences
        .iter()
        .all(|difference| difference.judgement != Judgement::Better && difference.judgement != Judgement::Worse);
    equal
        && stage.winners.iter().all(|winner| winner.outcome == Outcome::Level)
        && stage.headline == "No difference beyond the noise at p50, p99, p99.9, goodput and CPU per served request."
        && said(stage, "other against plain: no difference beyond the noise at p50, ")
}

#[test]
fn identical_variants_are_called_equal() {
    for seed in 2..8 {
        let variants = vec![made("plain", Load::default()), made("other", Load { seed, ..Load::default() })];
        let found = stage(&experiment(variants, ""));
        assert!(called_equal(&found), "seed {seed}: {} {:#?}", found.headline, found.sentences);
        assert!(said(&found, "At p99 these runs could show differences of "), "{:#?}", found.sentences);
    }
}

#[test]
fn twin_variants_that_differ_by_a_fifth_are_not_called_equal() {
    assert!(!called_equal(&two(Load { median_us: 360.0, ..Load::default() })));
    assert!(!called_equal(&two(Load { cpu_us: 24.0, ..Load::default() })));
}

#[test]
fn cpu_time_is_judged_as_times_are() {
    let found = two(Load { cpu_us: 24.0, ..Load::default() });
    assert_eq!(
        (judgement(&found, "CPU per served request"), judgement(&found, "p99")),
        (Judgement::Worse, Judgement::NoDifference)
    );
    assert!(
        found.headline.starts_with("plain wins at CPU per served request (16.7 % less) before other; "),
        "{}",
        found.headline
    );
}

#[test]
fn one_run_is_no_reason_to_judge() {
    let slow = Load { seed: 2, sleeps_every: 100, ..Load::default() };
    let of =
        |runs| stage(&experiment(vec![variant("plain", &Load::default(), runs), variant("slow", &slow, runs)], ""));
    let found = of(1);
    let why = "plain has one run that counts, and noise is told by two at least";
    assert_eq!(found.headline, format!("Not judged: {why}."));
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
fn of_three_the_best_is_named_and_who_cannot_be_told_from_it() {
    let slow = Load { sleeps_every: 100, ..Load::default() };
    let variants = vec![
        made("slow", slow),
        made("one", Load { seed: 2, ..Load::default() }),
        made("other", Load { seed: 3, ..Load::default() }),
    ];
    let found = stage(&experiment(variants, ""));
    let p999 = found.winners.iter().find(|winner| winner.figure == "p99.9").expect("contested");
    assert_eq!((p999.outcome, p999.level_with.len()), (Outcome::Level, 1), "{p999:?}");
    assert!(found.headline.contains("several are level at p99 and p99.9"), "{}", found.headline);
    assert!(said(&found, "Shortest p99.9: ") && said(&found, "the noise does not tell "), "{:#?}", found.sentences);
    assert_eq!(found.comparisons.len(), 2, "each against the first");
}

/// Sizes with the requests that each has refused of 20,000.
fn queues(sizes: &[(u64, Load)]) -> Frontier {
    let one = |(seed, (size, load)): (u64, &(u64, Load))| made(&format!("queue-{size}"), Load { seed, ..*load });
    let variants = (1..).zip(sizes).map(one).collect();
    stage(&experiment(variants, "")).queue.expect("sizes are known")
}

fn refusing(refused: u64) -> Load {
    Load { refused, ..Load::default() }
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
    let slow = Load { sleeps_every: 100, ..refusing(10) };
    assert_eq!(
        queues(&[(32, refusing(600)), (128, slow), (1_024, refusing(0))]).recommended.as_deref(),
        Some("queue-1024")
    );
}

#[test]
fn where_no_size_qualifies_none_is_recommended() {
    let found = queues(&[(32, refusing(600)), (128, refusing(100))]);
    assert_eq!(found.recommended, None);
    assert_eq!(
        found.sentence.replace('\u{a0}', " "),
        "Queue: no size refuses 0.10 % of the requests or less: the least, 0.50 %, by queue-128."
    );
    let single = vec![variant("queue-1", &refusing(0), 1), variant("queue-2", &Load { seed: 2, ..refusing(0) }, 1)];
    let found = stage(&experiment(single, "")).queue.expect("sizes are known");
    assert!(found.recommended.is_none() && found.sentence.contains("was not judged"), "{}", found.sentence);
}

/// What is found of a published order in which `plain` is quicker than `slow`, or the other way round.
fn ordered(plain_ms: f64, slow_ms: f64, slow: Load) -> StageConclusion {
    let result = |variant: &str, p99: f64| {
        format!("[[published.result]]\nstage = 'get'\nvariant = '{variant}'\np99-ms = {p99:?}\nmax-ms = 40.0\n")
    };
    let published =
        format!("[published]\nabout = 'somebody'\n{}{}", result("plain", plain_ms), result("slow", slow_ms));
    let variants = vec![made("plain", Load::default()), made("slow", Load { seed: 2, ..slow })];
    stage(&experiment(variants, &published))
}

#[test]
fn a_published_order_is_confirmed_or_contradicted_by_figures_alone() {
    let slow = Load { sleeps_every: 50, ..Load::default() };
    let agreement = |stage: &StageConclusion| stage.orders.iter().map(|order| order.agreement).collect::<Vec<_>>();
    let same = ordered(5.0, 9.0, slow);
    assert_eq!(agreement(&same), [Agreement::Same]);
    assert!(said(&same, "Published at p99: plain below slow (5.00 ms against 9.00 ms); here too, beyond the noise."));
    let reversed = ordered(9.0, 5.0, slow);
    assert_eq!(agreement(&reversed), [Agreement::Reversed]);
    assert!(said(&reversed, "here the other way round, beyond the noise."), "{:#?}", reversed.sentences);
    assert_eq!(agreement(&ordered(5.0, 9.0, Load::default())), [Agreement::NoDifference]);
    assert_eq!(agreement(&ordered(5.0, 5.05, slow)), [], "what is published as equal has no order");
}

#[test]
fn ours_stands_beside_what_was_published_as_a_ratio() {
    let found = ordered(5.0, 9.0, Load::default());
    let p99 = found.published.iter().find(|one| one.figure == "p99").expect("published");
    let (here, ratio) = (p99.here.expect("measured"), p99.ratio.expect("both"));
    assert!((ratio - here / 5_000.0).abs() < 1e-9 && ratio < 0.2, "{p99:?}");
    assert!(
        said(&found, "plain here against what was published: p99 ") && said(&found, " against 5.00 ms (0.1"),
        "{:#?}",
        found.sentences
    );
}

#[test]
fn what_was_published_of_one_load_is_not_held_against_another() {
    let published = "[published]\nabout = ''\n[[published.result]]\nstage = 'get'\nvariant = 'plain'\np99-ms = 5.0\n";
    let mut result = experiment(vec![made("plain", Load::default())], published);
    "get-at-70".clone_into(&mut result.stages[0].name);
    assert!(stage(&result).published.is_empty());
}

#[test]
fn refusals_failures_and_what_was_left_out_are_told() {
    let mut result =
        experiment(vec![made("plain", Load::default()), made("other", Load { seed: 2, ..refusing(600) })], "");
    result.scale = 0.1;
    result.failures.push(Failed {
        stage: "get".to_owned(),
        variant: "other".to_owned(),
        what: "profile cpu".to_owned(),
        why: "nobody answers".to_owned(),
    });
    let late = result.stages[0].variants[0].runs[0].bench.as_mut().expect("made up with one");
    late.valid = false;
    late.machine.steal_percent = Some(9.0);
    late.checks = vec![klad_bench::result::Check { name: "send_lag".into(), passed: false, detail: "late".into() }];
    result.stages[0].variants[1].runs[1].bench.as_mut().expect("made up").machine.steal_percent = Some(2.5);
    let conclusion = conclude(&result);
    for words in [
        "Shortened to 0.1: ",
        "Failed: get, other, profile cpu: nobody answers",
        "Left out in get: run 1 of plain: not valid (send_lag).",
        "The hypervisor kept up to 2.5 % of the CPU time",
        "1 comparison with the first variant.",
    ] {
        assert!(
            conclusion.remarks.iter().any(|remark| remark.starts_with(words)),
            "{words}: {:#?}",
            conclusion.remarks
        );
    }
    let stage = &conclusion.stages[0];
    assert!(said(stage, "other: of 100,000 requests 3,000 (3 %) refused."), "{:#?}", stage.sentences);
    assert!(!said(stage, "response times are those of a queue"), "a refusal is an answer: {:#?}", stage.sentences);
    assert_eq!(judgement(stage, "refused"), Judgement::Worse);
    assert_eq!(stage.standings[0].used, 4);
}

#[test]
fn a_winner_that_sheds_load_does_not_win_without_a_word() {
    let quick = Load { seed: 2, median_us: 200.0, ..refusing(600) };
    let found = two(quick);
    assert!(found.headline.contains("other (3 % refused or failed) wins at p50 ("), "{}", found.headline);
    assert!(found.headline.contains("plain wins at goodput ("), "{}", found.headline);
    assert!(
        said(&found, "other is better here and worse there than plain: goodput 3.0 % less"),
        "{:#?}",
        found.sentences
    );
    // The twin: without refusals, it wins without a word.
    assert!(two(Load { refused: 0, ..quick }).headline.starts_with("other wins at p50 ("));
}

#[test]
fn what_else_differs_is_told() {
    let mut result =
        experiment(vec![made("plain", Load::default()), made("other", Load { seed: 2, ..Load::default() })], "");
    for run in &mut result.stages[0].variants[1].runs {
        run.bench.as_mut().expect("made up with one").load.workload = "put".to_owned();
    }
    let found = stage(&result);
    assert!(
        said(&found, "Beware in plain (A) and other (B): different workload: A get; B put."),
        "{:#?}",
        found.sentences
    );
}

#[test]
fn who_does_not_keep_up_is_told() {
    let mut result =
        experiment(vec![made("plain", Load::default()), made("busy", Load { seed: 2, ..Load::default() })], "");
    for run in &mut result.stages[0].variants[1].runs {
        let bench = run.bench.as_mut().expect("made up with one");
        bench.valid = false;
        bench.checks = vec![klad_bench::result::Check { name: "rate".into(), passed: false, detail: "busy".into() }];
        (bench.measured.answered_per_s, bench.measured.goodput_per_s) = (1_200.0, 1_200.0);
    }
    let found = stage(&result);
    let words = "busy answered 1,200/s of 2,000/s asked for, and all connections were busy: its response times";
    assert!(said(&found, words), "{:#?}", found.sentences);
    assert_eq!((judgement(&found, "goodput"), found.standings[1].validity), (Judgement::Worse, Validity::Overloaded));
}

#[test]
fn a_variant_without_runs_is_named_and_nothing_is_judged_by_it() {
    let result = experiment(vec![made("plain", Load::default()), variant("gone", &Load::default(), 0)], "");
    let found = stage(&result);
    assert_eq!(found.headline, "Not judged: gone has no run.");
    assert!(said(&found, "gone has no figures: no run has ended with a result."), "{:#?}", found.sentences);
    assert!(found.winners.iter().all(|winner| winner.outcome == Outcome::NotJudged));
}

#[test]
fn of_three_one_without_runs_keeps_nobody_from_winning() {
    let slow = Load { seed: 2, sleeps_every: 100, ..Load::default() };
    let variants = vec![made("plain", Load::default()), made("slow", slow), variant("gone", &Load::default(), 0)];
    let found = stage(&experiment(variants, ""));
    assert!(found.headline.starts_with("plain wins at p99 ("), "{}", found.headline);
    assert!(found.headline.ends_with("; not judged, because gone has no run."), "{}", found.headline);
}

#[test]
fn a_conclusion_is_data_that_is_read_back() {
    let conclusion = conclude(&experiment(
        vec![made("plain", Load::default()), made("other", Load { seed: 2, ..Load::default() })],
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
fn a_conclusion_is_told_in_lines() {
    let mut result = experiment(vec![made("plain", Load::default()), variant("gone", &Load::default(), 0)], "");
    result.scale = 0.5;
    let conclusion = conclude(&result);
    let text = conclusion.text();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("Shortened to 0.5"), "{text}");
    assert!(lines.contains(&"get: Not judged: gone has no run."), "{text}");
    assert!(text.ends_with('\n') && conclusion.stages[0].sentences.iter().all(|sentence| text.contains(sentence)));
}

/// Stages that differ in their connections, or in their share of the capacity.
fn several(more: &str, share: Option<f64>) -> Conclusion {
    let mut result = experiment(vec![made("plain", Load::default())], &format!("[[stage]]\nname = 'next'\n{more}"));
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
fn stages_that_differ_in_one_thing_are_told_side_by_side() {
    let by_connections = several("duration = '10s'\nconnections = 8\n", None).across;
    assert!(by_connections[0].starts_with("p99 of get to next (2,000/s) of plain: "), "{by_connections:?}");
    assert!(by_connections[0].ends_with(" over 8."), "{by_connections:?}");
    let by_share = several("duration = '10s'\nof-capacity = 2.0\n", Some(1.0)).across;
    let told = "Goodput of plain: 2,000/s at 100.0 % of the capacity and 2,000/s at 200.0 % of the capacity; the least is 100.0 % of the \
                most.";
    assert_eq!(by_share, [told]);
}

#[test]
fn twin_stages_that_differ_in_more_are_not() {
    assert_eq!(several("duration = '20s'\nconnections = 8\n", None).across, Vec::<String>::new());
    assert_eq!(several("duration = '20s'\nof-capacity = 2.0\n", Some(1.0)).across, Vec::<String>::new());
}

#[test]
fn a_queue_that_does_not_keep_up_is_not_recommended() {
    let slow = |name: &str| {
        let mut variant = made(name, Load::default());
        for run in &mut variant.runs {
            run.bench.as_mut().expect("made up with one").measured.answered_per_s = 1_000.0;
        }
        variant
    };
    let found = stage(&experiment(vec![slow("queue-32"), slow("queue-128")], "")).queue.expect("two sizes");
    assert!(found.recommended.is_none() && found.sentence.contains("keep up with this load"), "{}", found.sentence);
    let found = stage(&experiment(vec![slow("queue-32"), made("queue-128", Load::default())], "")).queue;
    assert_eq!(found.expect("two sizes").recommended.as_deref(), Some("queue-128"));
    // Who takes everything and falls behind does not refuse least.
    let refusing = made("queue-32", Load { refused: 1_000, ..Load::default() });
    let found = stage(&experiment(vec![refusing, slow("queue-128")], "")).queue.expect("two sizes");
    let why = "Queue: no size with which the variant keeps up refuses 0.10 % of the requests or less: the least, 5 %, by queue-32.";
    assert_eq!((found.recommended, found.sentence.as_str()), (None, why));
}

#[test]
fn cpu_time_of_few_ticks_is_no_difference() {
    let of = |name: &str, cpu_us: f64, seed: u64| {
        // 200 requests of 250 us or 300: five or six ticks.
        variant(name, &Load { seed, cpu_us, requests: 200, ..Load::default() }, RUNS)
    };
    let found = stage(&experiment(vec![of("plain", 250.0, 1), of("other", 300.0, 2)], ""));
    assert_eq!(judgement(&found, "CPU per served request"), Judgement::NoDifference);
}
