//! `cargo xtask bench-truth`: is what `klad bench` reports true?
//!
//! ```text
//!   klad bench, core B ── requests with numbers, over real sockets ──▶ scripted server, core A
//!        │                                                                   │
//!        └─▶ its result, with the start of its schedule ─┐      its record ◀─┘
//!                                                        ▼          ▼
//!                                  reported percentiles ─ compared ─ true percentiles
//! ```
//!
//! Request n carries n in its key, and was to start at t0 + n / rate; when its answer was handed over, the server knows.

mod judgement;
mod scenario;
mod server;
mod truth;

mod report;

use std::io::{IsTerminal as _, stderr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::Verdict;
use crate::bench::{self, Check};
use crate::cores::{self, Cores};
use crate::klad::ProgramArgs;
use crate::process::raise_descriptor_limit;

use judgement::{Allowance, Comparison, Table, wall_max};
use scenario::{Case, Scenario, Script};
use server::Server;
use truth::{Schedule, nanos};

/// `--drain`: in silence a run ends so long after its last start.
const DRAIN: Duration = Duration::from_secs(1);

/// Beyond the time that a run may take, before it is killed: to see how late it is, within reason.
const PATIENCE: Duration = Duration::from_secs(10);

/// Options of `bench-truth`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Scenario to run; may be repeated [default: all].
    #[arg(long, value_name = "NAME", value_enum)]
    only: Vec<Scenario>,
    /// Requests per second.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// Length of the measured part of each run.
    #[arg(long, value_name = "TIME", default_value = "10s")]
    duration: humantime::Duration,
    /// Before the measured part, at the same rate.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    warm_up: humantime::Duration,
    /// What a reported value may exceed the true one by, at percentiles below 99.
    #[arg(long, value_name = "TIME", default_value = "500us")]
    allowance: humantime::Duration,
    /// The same at percentiles from 99 on.
    #[arg(long, value_name = "TIME", default_value = "5ms")]
    allowance_tail: humantime::Duration,
    /// Times that a run is made at most, while it exceeds and klad bench itself says that the machine had no time for it.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    tries: u64,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

/// A run, compared.
struct Run {
    case: Case,
    /// How often it was made until it was judged.
    tries: u64,
    comparison: Comparison,
    /// From the start of the process to its end, and what it may be.
    wall: Duration,
    wall_max: Duration,
    /// What klad bench has against its own run.
    doubts: Vec<Check>,
}

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    ensure!(args.duration.as_secs() >= 2, "a freeze of 1 s needs a measured part of at least 2 s");
    let program = args.program.find()?;
    let cores = Cores::choose()?;
    raise_descriptor_limit();
    let directory = tempfile::Builder::new().prefix("klad-xtask-").tempdir().context("no temporary directory")?;
    let cases = Case::all(&args.only);
    let mut runs = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        if stderr().is_terminal() {
            eprintln!("run {} of {}: {}", index + 1, cases.len(), case.name());
        }
        let run = judge(args, *case, &program, cores, directory.path()).with_context(|| case.name())?;
        if !args.json {
            run.print(args);
        }
        runs.push(run);
    }
    let within = runs.iter().all(|run| run.verdict() == Verdict::Within);
    let verdict = Verdict::of(within);
    if args.json {
        println!("{}", report::json(args, &runs, verdict));
    } else {
        println!("{} in {} runs", verdict.word(), runs.len());
    }
    Ok(verdict)
}

/// Checks of klad bench that fail when the machine has no time for it, whatever the server does.
const MACHINE_CHECKS: [&str; 2] = ["send_lag", "generator_cpu"];

/// Makes a run. What klad bench says of a run that it does not believe itself, because the machine had no time for it, is
/// not held against it at once; what it believes is.
fn judge(args: &Args, case: Case, program: &Path, cores: Cores, directory: &Path) -> Result<Run> {
    let mut tries = 1;
    loop {
        let run = measure(args, case, program, cores, directory)?;
        let disturbed = run.doubts.iter().find(|doubt| MACHINE_CHECKS.contains(&doubt.name.as_str()));
        match disturbed {
            Some(doubt) if tries < args.tries && run.verdict() == Verdict::Exceeded => {
                eprintln!("{}: made again, for {}", case.name(), doubt.detail);
            }
            _ => return Ok(Run { tries, ..run }),
        }
        tries += 1;
    }
}

fn measure(args: &Args, case: Case, program: &Path, cores: Cores, directory: &Path) -> Result<Run> {
    let (warm_up, duration) = (*args.warm_up, *args.duration);
    let script = Script::new(case.scenario, warm_up, duration);
    let server = cores::on(cores.server, || Server::start(script))?;
    let url = format!("http://{}", server.address);
    let wall_max = wall_max(warm_up, duration, DRAIN);
    let (result, ended) =
        bench::run(program, &arguments(args, case, url), cores.client, wall_max + PATIENCE, directory)?;
    let records = server.finish()?;
    let schedule = Schedule {
        start: result.started.monotonic_ns,
        rate: args.rate,
        warm_up: nanos(warm_up),
        duration: nanos(duration),
        drain: nanos(DRAIN),
        timeout: nanos(case.scenario.timeout()),
    };
    let allowance = Allowance { body: *args.allowance, tail: *args.allowance_tail };
    let comparison = Comparison::new(&result, &schedule, &records, allowance);
    let doubts = result.checks.into_iter().filter(|check| !check.passed).collect();
    Ok(Run { case, tries: 1, comparison, wall: ended.wall, wall_max, doubts })
}

/// The command line of klad bench. One thread, so that the order of sending is that of the intended starts.
fn arguments(args: &Args, case: Case, url: String) -> Vec<String> {
    let time = |time: Duration| format!("{}us", time.as_micros());
    let mut arguments = vec![
        url,
        "--workload=get".to_owned(),
        "--key-order=sequential".to_owned(),
        "--key-format=key{}".to_owned(),
        "--threads=1".to_owned(),
        "--arrival=constant".to_owned(),
        format!("--rate={}/s", args.rate),
        format!("--warm-up={}", time(*args.warm_up)),
        format!("--duration={}", time(*args.duration)),
        format!("--drain={}", time(DRAIN)),
        format!("--timeout={}", time(case.scenario.timeout())),
    ];
    arguments.extend(case.connections.arguments());
    arguments
}

impl Run {
    /// The time from the actual send, where it must not pass for the response time.
    fn twin(&self) -> Option<&Table> {
        self.case.has_twin().then_some(&self.comparison.service)
    }

    fn verdict(&self) -> Verdict {
        // A comparison that the twin passes could not fail.
        let can_fail = self.twin().is_none_or(|twin| twin.verdict() == Verdict::Exceeded);
        let within = can_fail && self.comparison.verdict() == Verdict::Within && self.wall <= self.wall_max;
        Verdict::of(within)
    }
}
