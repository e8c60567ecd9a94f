//! The report of `klad lab` in a browser: all charts are drawn, flame graphs open in place, and nothing is fetched,
//! on a phone and on a wide screen. The experiment is a fake one with known figures.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use hdrhistogram::Histogram;
use klad_bench::knee::result::QueueSample;
use klad_bench::recorder::Outcome;
use klad_bench::result::{Distribution, Interval, Load, Machine, RunResult, Section, Stage, Started, Summary, Target};
use klad_bench::schedule::Mode;
use klad_lab::conclusion::conclude;
use klad_lab::report;
use klad_lab::result::{CoresUsed, LabResult, LabRun, Part, Slowest, StageResult, TakenProfile, VariantResult};
use klad_lab::scenario::{ProfileKind, Scenario};
use klad_profile::{Name, Profile, Sample, ValueType, pprof};
use serde_json::json;

use super::support::pages::{WIDTHS, faults, look};

/// The charts of the page, in their order.
const FIGURES: [&str; 6] =
    ["s0-spectrum", "s0-latency", "s0-goodput", "s0-frontier", "s0-queue-waiting", "s0-queue-oldest"];

const SCENARIO: &str = "
title = 'Sizes of a queue'
about = 'How long may the queue in front of a pool of threads be?'
[[variant]]
name = 'queue-32'
options = ['--execution', 'pool', '--queue-limit', '32']
queue = 32
[[variant]]
name = 'queue-128'
options = ['--execution', 'pool', '--queue-limit', '128']
queue = 128
[[variant]]
name = 'queue-1024'
options = ['--execution', 'pool', '--queue-limit', '1024']
queue = 1024
[data]
keys = 1_000_000
[[stage]]
name = 'put'
about = 'Writes, faster than a small queue can take.'
rate = 1_000.0
connections = 128
duration = '20s'
profiles = ['cpu']
[published]
about = 'Somebody, with another load tester, on another machine.'
conclusions = ['The size of the queue must be chosen.']
[[published.result]]
stage = 'put'
variant = 'queue-32'
per-s = 990.0
p99-ms = 1.9
refused = 0.03
[[published.result]]
stage = 'put'
variant = 'queue-128'
per-s = 999.0
p99-ms = 2.49
p999-ms = 19.9
max-ms = 44.0
";

/// Each variant: its name, its median in microseconds, the requests in a thousand that wait for 2 ms, and the refused
/// requests.
const VARIANTS: [(&str, u64, u64, u64); 3] =
    [("queue-32", 280, 2, 600), ("queue-128", 300, 3, 12), ("queue-1024", 310, 40, 0)];

/// The requests and the seconds of a run.
const REQUESTS: u64 = 20_000;
const SECONDS: u32 = 20;

fn histogram((median_us, waiting): (u64, u64), served: u64, run: u64) -> Histogram<u64> {
    let mut histogram = Histogram::new(3).unwrap();
    for number in 0..served {
        // A fixed spread, and one percent of difference between runs.
        let spread = 70 + (number * 7_919 % 1_000) * 60 / 1_000 + (number * 104_729 % 1_000).pow(3) / 12_000_000;
        let waits = if number % 1_000 < waiting { 2_000_000 + number % 97 * 9_000 } else { 0 };
        histogram.record(median_us * 10 * spread * (100 + run) / 100 + waits).unwrap();
    }
    histogram
}

fn bench(variant: usize, run: u64) -> RunResult {
    let (_, median, waiting, refused) = VARIANTS[variant];
    let served = REQUESTS - refused;
    let response = histogram((median, waiting), served, run);
    let per_s = |count: u64| f64::from(u32::try_from(count).unwrap()) / f64::from(SECONDS);
    let counts = [(Outcome::Served, served), (Outcome::Refused, refused)];
    let interval = |second: u32| {
        let mut summary = Summary::of(&response).unwrap();
        summary.p99_us *= 1.0 + f64::from((second * 7 + u32::try_from(variant).unwrap()) % 5) / 10.0;
        let each = u64::from(SECONDS);
        Interval {
            start_s: f64::from(second),
            length_s: 1.0,
            warm_up: second < 2,
            scheduled_per_s: Some(1_000.0),
            sent: REQUESTS / each,
            outcomes: BTreeMap::from([(Outcome::Served, served / each), (Outcome::Refused, refused / each)]),
            good: served / each - u64::from(second % 3),
            response: Some(summary),
            send_lag: None,
        }
    };
    let stage = Stage { from_per_s: Some(1_000.0), to_per_s: Some(1_000.0), duration_s: f64::from(SECONDS) };
    RunResult {
        schema: "klad.bench/1".to_owned(),
        klad_version: "0.1.0".to_owned(),
        command: ["klad", "bench", "http://127.0.0.1:8080", "--workload", "put"].map(str::to_owned).into(),
        started: Started {
            utc: format!("2026-01-01T00:{run:02}:{variant:02}.000Z"),
            monotonic_ns: run * 10 + variant as u64,
        },
        machine: machine(),
        target: Target { url: String::new(), address: String::new(), same_machine: true },
        load: load(stage),
        interrupted_s: None,
        valid: true,
        checks: Vec::new(),
        slo: None,
        measured: Section {
            duration_s: f64::from(SECONDS),
            scheduled: REQUESTS,
            sent: REQUESTS,
            scheduled_per_s: 1_000.0,
            sent_per_s: 1_000.0,
            answered_per_s: 1_000.0,
            goodput_per_s: per_s(served),
            good_within_us: 30e6,
            outcomes: counts.into_iter().filter(|(_, count)| *count > 0).collect(),
            statuses: BTreeMap::from([(201, served), (503, refused)]),
            response: Distribution::of(&response),
            ..Section::default()
        },
        warm_up: None,
        stages: Vec::new(),
        longest_gap_s: 0.0,
        intervals: (0..SECONDS + 2).map(interval).collect(),
        pieces: Vec::new(),
    }
}

fn machine() -> Machine {
    let (host, kernel, cpu) = ("host".to_owned(), "Linux 6".to_owned(), "A processor".to_owned());
    Machine { host, kernel, cpu, cores: 2, memory_bytes: 4 << 30, steal_percent: Some(0.0) }
}

fn load(stage: Stage) -> Load {
    Load {
        mode: Mode::Open,
        arrival: Some("constant".to_owned()),
        seed: 1,
        stages: vec![stage],
        warm_up_s: 2.0,
        duration_s: f64::from(SECONDS),
        drain_s: 1.0,
        timeout_s: 30.0,
        connections: 128,
        connections_max: 128,
        threads: 1,
        polls: true,
        script: None,
        requests_per_start: 1,
        workload: "put".to_owned(),
    }
}

fn lab_run(variant: usize, run: u64) -> LabRun {
    let (name, _, waiting, _) = VARIANTS[variant];
    let sample = |second: u32| {
        let depth = f64::from(second * 13 % 7) * f64::from(u32::try_from(waiting).unwrap());
        let oldest = ("klad_queue_oldest_seconds{queue=\"pool\"}".to_owned(), depth / 1e4);
        let values = BTreeMap::from([("klad_queue_depth{queue=\"pool\"}".to_owned(), depth), oldest]);
        QueueSample { at_s: f64::from(second) + 0.02, values }
    };
    let part = |name: &str, us: f64| Part { name: name.to_owned(), us };
    let slowest = Slowest {
        op: "put".to_owned(),
        status: 201,
        total_us: 3_000.0 + 10.0 * f64::from(u32::try_from(waiting).unwrap()),
        parts: vec![part("queue", 2_500.0), part("engine", 300.0), part("write", 100.0)],
    };
    LabRun {
        repeat: usize::try_from(run + 1).unwrap(),
        file: format!("put/{name}-{run}.json"),
        bench: Some(Box::new(bench(variant, run))),
        server_cpu_us_per_served: Some(31.0 + f64::from(u32::try_from(run).unwrap()) / 50.0),
        server_memory_max_bytes: Some(210 << 20),
        compactions: Some(3),
        start_s: 0.1,
        queues: (0..SECONDS).map(sample).collect(),
        slowest: vec![slowest],
    }
}

/// A profile; `engine` is the number of samples in the engine.
fn profile(engine: i64) -> Profile<Name> {
    let sample = |frames: &[&str], value: i64| Sample {
        thread: "klad-pool-0".to_owned(),
        frames: frames.iter().map(|frame| Name::from(*frame)).collect(),
        values: vec![value, value * 10_000_000],
    };
    Profile {
        title: "CPU time".to_owned(),
        values: vec![ValueType::new("samples", "count"), ValueType::new("cpu", "nanoseconds")],
        shown: 1,
        samples: vec![
            sample(
                &["rocksdb::DBImpl::Write", "klad_storage::rocksdb::put", "klad_server::execution::pool::run"],
                engine,
            ),
            sample(&["klad_server::http::encode", "klad_server::execution::pool::run"], 400),
            sample(&["__futex_wait", "klad_base::sync::Condvar::wait", "klad_server::execution::pool::run"], 300),
        ],
        period: Some((ValueType::new("cpu", "nanoseconds"), 10_000_000)),
        began_unix_ns: 1_767_225_600_000_000_000,
        duration: Duration::from_secs(10),
        facts: vec![("events".to_owned(), (engine + 700).to_string())],
    }
}

/// The experiment. Its profiles are written to `directory`.
fn experiment(directory: &Path) -> LabResult {
    let variant = |(index, (name, ..)): (usize, &(&str, u64, u64, u64))| {
        let file = format!("{name}.cpu.pb.gz");
        let taken = TakenProfile {
            kind: ProfileKind::Cpu,
            file: file.clone(),
            events: 1_200,
            goodput_per_s: 968.0,
            p99_us: Some(900.0),
            server_cpu_us_per_served: Some(32.5),
        };
        let mut profiles = Vec::new();
        // The last variant has none: there are two profiles and one difference.
        if index < 2 {
            let engine = if index == 0 { 500 } else { 900 };
            std::fs::write(directory.join(&file), pprof::encode(&profile(engine))).unwrap();
            profiles.push(taken);
        }
        VariantResult { name: (*name).to_owned(), runs: (0..5).map(|run| lab_run(index, run)).collect(), profiles }
    };
    let scenario = Scenario::parse("queues", SCENARIO).unwrap();
    LabResult {
        schema: klad_lab::result::SCHEMA.to_owned(),
        klad_version: "0.1.0".to_owned(),
        command: ["klad", "lab", "queues", "--scale", "0.1"].map(str::to_owned).into(),
        started: Started { utc: "2026-01-01T00:00:00.000Z".to_owned(), monotonic_ns: 1 },
        took_s: 754.0,
        finished: true,
        keys: 100_000,
        file_system: Some("ext4".to_owned()),
        remarks: Vec::new(),
        scale: 0.1,
        repeats: 5,
        machine: machine(),
        cores: Some(CoresUsed { server: vec![0], load: vec![1] }),
        stages: vec![StageResult {
            name: "put".to_owned(),
            of: "put".to_owned(),
            about: scenario.stages[0].about.clone(),
            rate_per_s: Some(1_000.0),
            capacity_per_s: Some(8_000.0),
            capacity_of: Some("queue-32".to_owned()),
            share_of_capacity: None,
            connections: 128,
            duration_s: f64::from(SECONDS),
            variants: VARIANTS.iter().enumerate().map(variant).collect(),
        }],
        scenario,
        failures: Vec::new(),
    }
}

/// The page, made once.
fn page() -> &'static str {
    static PAGE: OnceLock<String> = OnceLock::new();
    PAGE.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let result = experiment(directory.path());
        report::html(&result, &conclude(&result), directory.path())
    })
}

#[test]
fn the_report_has_its_charts_on_a_phone_and_on_a_wide_screen_in_light_and_dark() {
    for dark in [false, true] {
        assert_eq!(faults(&look(page(), dark), dark, &FIGURES), Vec::<String>::new(), "dark: {dark}");
    }
}

#[test]
fn the_report_has_the_sentences_of_its_figures() {
    for words in [
        "Scaled to 0.1",
        "Queue: 128 is enough: queue-128 refuses 0.060 % (the limit is 0.10 %)",
        "queue-32: of 100,000 requests, 3,000 (3 %) refused.",
        "queue-128, published",
        "queue 82.8 %, engine 9.93 %",
        "server on 0, load on 1",
        "All runs passed all checks",
    ] {
        assert!(page().replace('\u{a0}', " ").contains(words), "{words}");
    }
}

/// The page with all flame graphs open.
fn opened(page: &str) -> String {
    page.replace("<details class=\"embedded\">", "<details class=\"embedded\" open>").replace("loading=\"lazy\"", "")
}

/// Returns what is wrong with the flame graphs of an opened page.
fn flame_graph_faults(page: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (seen, width) in look(page, false).iter().zip(WIDTHS) {
        for kind in ["errors", "refused", "fetched"] {
            if seen[kind] != json!([]) {
                faults.push(format!("{width}: {kind}: {}", seen[kind]));
            }
        }
        if seen["wider"] != 0 {
            faults.push(format!("{width}: {} wider than its window", seen["wider"]));
        }
        let frames: Vec<_> = seen["embedded"].as_array().unwrap().iter().map(|count| count.as_i64().unwrap()).collect();
        if frames.len() != 3 || frames.iter().any(|count| *count < 6) {
            faults.push(format!("{width}: numbers of frames of the flame graphs: {frames:?}"));
        }
    }
    faults
}

#[test]
fn flame_graphs_open_in_place() {
    assert_eq!(flame_graph_faults(&opened(page())), Vec::<String>::new());
    assert!(page().contains("CPU time: difference of queue-128 from queue-32"));
}

#[test]
fn twin_a_report_whose_chart_or_flame_graph_is_empty_is_noticed() {
    let without = flame_graph_faults(&opened(page()).replace("&lt;rect", "&lt;g"));
    assert_eq!(without.len(), WIDTHS.len(), "{without:?}");
    let lost = page().replacen("\"kind\":\"percentile\"", "\"kind\":percentile", 1);
    let found = faults(&look(&lost, false), false, &FIGURES);
    assert!(found.iter().any(|fault| fault.contains("\"s0-spectrum\": \"failed\"")), "{found:?}");
    let fetching = page().replacen("<h1>", "<img src=\"http://127.0.0.1:1/x.png\"><h1>", 1);
    assert!(faults(&look(&fetching, false), false, &FIGURES).iter().any(|fault| fault.contains("refused: ")));
}
