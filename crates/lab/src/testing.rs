//! Fake experiments for tests: random figures from seeds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use rand::SeedableRng as _;
use rand_distr::{Distribution as _, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::result::{LabResult, LabRun, Part, SCHEMA, Slowest, StageResult, VariantResult};
use crate::scenario::Scenario;
use klad_bench::recorder::{Outcome, histogram};
use klad_bench::result::{Distribution, Interval, Machine, RunResult, Section, Stage, Started, Summary, sample};
use klad_profile::{Name, Profile, Sample, ValueType};

/// The length of a run, seconds.
const SECONDS: u32 = 10;

/// How a fake server answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct FakeServer {
    /// The seed of its noise. Each variant has another one.
    pub(super) seed: u64,
    /// The median response time, microseconds.
    pub(super) median_us: f64,
    /// One in this many requests takes 2 ms longer; 0 for none.
    pub(super) sleeps_every: u64,
    /// The number of requests in a run.
    pub(super) requests: u64,
    /// The number of refused requests in a run, among `requests`.
    pub(super) refused: u64,
    /// The CPU time of each answer, microseconds.
    pub(super) cpu_us: f64,
}

impl Default for FakeServer {
    fn default() -> FakeServer {
        FakeServer { seed: 1, median_us: 300.0, sleeps_every: 0, requests: 20_000, refused: 0, cpu_us: 20.0 }
    }
}

/// Returns the result of a variant with this name and number of runs.
pub(super) fn variant(name: &str, server: &FakeServer, runs: u64) -> VariantResult {
    let run = |number: u64| LabRun {
        repeat: usize::try_from(number + 1).expect("few"),
        file: format!("runs/{name}-{number}.json"),
        bench: Some(Box::new(bench(server, number))),
        server_cpu_us_per_served: Some(server.cpu_us * (1.0 + 0.002 * f64::from(u32::try_from(number).expect("few")))),
        server_memory_max_bytes: Some(300 << 20),
        compactions: Some(3),
        start_s: 0.2,
        queues: Vec::new(),
        slowest: vec![Slowest {
            op: "get".to_owned(),
            status: 200,
            total_us: 3_000.0,
            parts: vec![
                Part { name: "queue".to_owned(), us: 2_000.0 },
                Part { name: "engine".to_owned(), us: 1_000.0 },
            ],
        }],
    };
    VariantResult { name: name.to_owned(), runs: (0..runs).map(run).collect(), profiles: Vec::new() }
}

/// Returns a result with lognormal times, 2 % of noise common to the run, and the planted sleeps.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of some milliseconds")]
fn bench(server: &FakeServer, number: u64) -> RunResult {
    let random = &mut Xoshiro256PlusPlus::seed_from_u64((server.seed << 16) | number);
    let common = (0.02 * normal(random)).exp();
    let (mut response, served) = (histogram(), server.requests - server.refused);
    for request in 0..served {
        let slow = if server.sleeps_every > 0 && request % server.sleeps_every == 0 { 2e6 } else { 0.0 };
        let nanos = server.median_us * 1e3 * common * (0.3 * normal(random)).exp() + slow;
        response.record(nanos as u64).expect("it grows");
    }
    let outcomes = [(Outcome::Served, served), (Outcome::Refused, server.refused)];
    let outcomes: BTreeMap<_, _> = outcomes.into_iter().filter(|(_, count)| *count > 0).collect();
    let per_s = |count: u64| f64::from(u32::try_from(count).expect("small")) / f64::from(SECONDS);
    let summary = Summary::of(&response);
    let sample = sample();
    let interval = |second: u32| Interval {
        start_s: f64::from(second),
        length_s: 1.0,
        warm_up: false,
        scheduled_per_s: Some(per_s(server.requests)),
        sent: server.requests / u64::from(SECONDS),
        outcomes: BTreeMap::from([(Outcome::Served, served / u64::from(SECONDS))]),
        good: served / u64::from(SECONDS),
        response: summary.clone(),
        send_lag: None,
    };
    let stage = Stage { from_per_s: Some(per_s(server.requests)), to_per_s: None, duration_s: f64::from(SECONDS) };
    let started = Started {
        // Variants with ascending seeds take turns.
        utc: format!("2026-01-01T00:{number:02}:{:02}.000Z", server.seed),
        monotonic_ns: (number << 16) | server.seed,
    };
    RunResult {
        started,
        load: klad_bench::result::Load { stages: vec![stage], duration_s: f64::from(SECONDS), ..sample.load },
        measured: Section {
            duration_s: f64::from(SECONDS),
            scheduled: server.requests,
            sent: server.requests,
            scheduled_per_s: per_s(server.requests),
            answered_per_s: per_s(server.requests),
            goodput_per_s: per_s(served),
            good_within_us: 30e6,
            outcomes,
            statuses: BTreeMap::from([(200, served)]),
            response: Distribution::of(&response),
            ..Section::default()
        },
        intervals: (0..SECONDS).map(interval).collect(),
        ..sample
    }
}

fn normal(random: &mut Xoshiro256PlusPlus) -> f64 {
    StandardNormal.sample(random)
}

/// Returns an experiment of one stage, `get`. `more` is appended to its scenario.
pub(super) fn experiment(variants: Vec<VariantResult>, more: &str) -> LabResult {
    let mut scenario = "title = 'Fake'\n[[stage]]\nname = 'get'\nduration = '10s'\n".to_owned();
    for variant in &variants {
        // The name queue-32 stands for a queue of 32.
        let queue = variant.name.strip_prefix("queue-").map_or_else(String::new, |size| format!("queue = {size}\n"));
        let _ = writeln!(scenario, "[[variant]]\nname = '{}'\n{queue}", variant.name);
    }
    scenario.push_str(more);
    LabResult {
        schema: SCHEMA.to_owned(),
        klad_version: "0".to_owned(),
        command: vec!["klad".to_owned(), "lab".to_owned(), "fake".to_owned()],
        started: Started::default(),
        took_s: 100.0,
        finished: true,
        scale: 1.0,
        repeats: variants.iter().map(|variant| variant.runs.len()).max().unwrap_or(0),
        keys: 0,
        machine: Machine::default(),
        cores: None,
        file_system: None,
        remarks: Vec::new(),
        scenario: Scenario::parse("fake", &scenario).expect("valid"),
        stages: vec![StageResult {
            name: "get".to_owned(),
            of: "get".to_owned(),
            about: String::new(),
            rate_per_s: Some(2_000.0),
            capacity_per_s: None,
            capacity_of: None,
            share_of_capacity: None,
            connections: 64,
            duration_s: f64::from(SECONDS),
            variants,
        }],
        failures: Vec::new(),
    }
}

/// Returns a profile with this many functions, the first the widest.
pub(super) fn profile(functions: i64) -> Profile<Name> {
    let sample = |number: i64| Sample {
        thread: "klad-worker-0".to_owned(),
        frames: [format!("klad::some_function_{number}"), "klad::busy::run".to_owned()].map(Name::from).into(),
        values: vec![1, 100_000_000 / number],
    };
    Profile {
        title: "CPU time".to_owned(),
        values: vec![ValueType::new("samples", "count"), ValueType::new("cpu", "nanoseconds")],
        shown: 1,
        samples: (1..=functions).map(sample).collect(),
        period: Some((ValueType::new("cpu", "nanoseconds"), 10_000_000)),
        began_unix_ns: 1_000,
        duration: Duration::from_secs(10),
        facts: vec![("events".to_owned(), functions.to_string())],
    }
}
