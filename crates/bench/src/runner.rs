//! One `klad bench`: plan, fill, load, judge, report. Called by `main`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail, ensure};
use hdrhistogram::serialization::V2DeflateSerializer;

use crate::args::{BenchArgs, BenchCommand, When};
use crate::author::Authors;
use crate::checks::{self, Evidence};
use crate::collector::Spectrum;
use crate::compare;
use crate::files::{self, IntervalLog};
use crate::generator::{NEVER, Returned, Shared};
use crate::knee;
use crate::machine::{self, CpuTimes};
use crate::page::{self, Heat};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::recorder::Outcome;
use crate::result::{Interval, RunResult, SCHEMA, Started, Target};
use crate::schedule::{Phase, Phases, SECOND, Source, nanos, seconds};
use crate::scripts;
use crate::text;
use crate::threads::{self, Driven};
use crate::workload::Workload;
use klad_base::os::descriptors;
use klad_base::os::output;
use klad_base::sync::Mutex;

/// How a run, or a comparison, that could be made has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Valid, and every objective is met; B is not slower.
    Met,
    /// Valid, and an objective is missed; B is slower, at some figure at least.
    Missed,
    /// The figures are not to be believed.
    NotValid,
}

/// Why there was no run.
#[derive(Debug)]
pub enum Error {
    /// The options make no sense together.
    Usage(anyhow::Error),
    /// Something else.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Error {
    fn from(error: anyhow::Error) -> Self {
        Error::Failed(error)
    }
}

/// Descriptors that are not connections: standard streams, an epoll for each thread, files.
const OTHER_DESCRIPTORS: u64 = 300;

/// Runs what the command line asks for, and turns the end into an exit code for scripts (docs/bench.md). A failure is written
/// to stderr behind `program`, the name that the user typed.
#[must_use]
pub fn run_to_exit_code(args: &BenchArgs, program: &str) -> ExitCode {
    let (error, code) = match run(args) {
        Ok(Verdict::Met) => return ExitCode::SUCCESS,
        Ok(Verdict::Missed) => return ExitCode::from(3),
        Ok(Verdict::NotValid) => return ExitCode::from(4),
        Err(Error::Usage(error)) => (error, 2),
        Err(Error::Failed(error)) => (error, 1),
    };
    let _ = writeln!(std::io::stderr(), "{program}: {error:#}");
    ExitCode::from(code)
}

/// Makes a run and reports it.
///
/// # Errors
/// When options contradict each other, the server cannot be reached, the database cannot be filled, or a file cannot be
/// written.
pub fn run(args: &BenchArgs) -> Result<Verdict, Error> {
    if let Some(command) = &args.command {
        return match command {
            BenchCommand::Compare(args) => compare::run(args),
            BenchCommand::Knee(args) => knee::run(args),
        };
    }
    if args.json_schema {
        print(&files::json_schema())?;
        print("\n")?;
        return Ok(Verdict::Met);
    }
    let cores = cores();
    let mut plan = Plan::new(args, cores).map_err(Error::Usage)?;
    check_descriptors(plan.load.connections_max)?;
    // Before the run, so that a wrong path costs no run.
    let json = args.json.as_deref().filter(|path| *path != Path::new("-")).map(files::create).transpose()?;
    let hgrm = args.hgrm.as_deref().map(files::create).transpose()?;
    let mut hlog = args.hlog.as_deref().map(files::create).transpose()?;
    let html = args.html.as_deref().map(files::create).transpose()?;
    let address = plan.url.reach()?;
    let json_to_stdout = args.json.as_deref() == Some(Path::new("-"));
    let script = scripts::load(&mut plan, address, json_to_stdout)?;
    if let Some((keys, workload)) = &plan.fill {
        fill(&plan, address, *keys, workload, args.progress)?;
    }
    let cpu_before = CpuTimes::read();
    let mut heat = html.is_some().then(Heat::new);
    let (driven, intervals) = load(&plan, address, args.progress, hlog.as_mut(), heat.as_mut())?;
    let steal = CpuTimes::read().zip(cpu_before).and_then(|(now, before)| now.steal_percent_since(before));
    if let Some(hlog) = hlog {
        files::finish(hlog)?;
    }
    let (result, spectrum) = conclude(args, &plan, address, &driven, intervals, cores, steal);
    if let Some(hgrm) = hgrm {
        files::fill(hgrm, &text::percentile_spectrum(&spectrum.response))?;
    }
    if let Some(json) = json {
        files::fill(json, &files::json(&result))?;
    }
    if let Some((html, heat)) = html.zip(heat) {
        files::fill(html, &page::html(&result, &spectrum, &heat, nanos(args.requests.lag_max)))?;
    }
    print(&if json_to_stdout { files::json(&result) } else { text::report(&result, &spectrum) })?;
    script.done(&result, &spectrum.response)?;
    Ok(match &result.slo {
        _ if !result.valid => Verdict::NotValid,
        Some(slo) if !slo.met => Verdict::Missed,
        _ => Verdict::Met,
    })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// PUTs the keys of `--fill`, if they are asked for.
///
/// # Errors
/// As [`run`].
pub(super) fn fill_for(args: &BenchArgs) -> Result<(), Error> {
    let plan = Plan::new(args, cores()).map_err(Error::Usage)?;
    check_descriptors(plan.load.connections_max)?;
    if let Some((keys, workload)) = &plan.fill {
        fill(&plan, plan.url.reach()?, *keys, workload, args.progress)?;
    }
    Ok(())
}

/// One run of several, without `--fill` and without files.
///
/// # Errors
/// As [`run`].
pub(super) fn measure(args: &BenchArgs) -> Result<RunResult, Error> {
    let cores = cores();
    let mut plan = Plan::new(args, cores).map_err(Error::Usage)?;
    let address = plan.url.reach()?;
    scripts::load(&mut plan, address, true)?;
    let cpu_before = CpuTimes::read();
    let (driven, intervals) = load(&plan, address, args.progress, None, None)?;
    let steal = CpuTimes::read().zip(cpu_before).and_then(|(now, before)| now.steal_percent_since(before));
    Ok(conclude(args, &plan, address, &driven, intervals, cores, steal).0)
}

fn check_descriptors(connections_max: usize) -> anyhow::Result<()> {
    let limit = descriptors::raise_limit();
    let wanted = connections_max as u64 + OTHER_DESCRIPTORS;
    descriptors::grow_table(wanted.min(limit));
    ensure!(
        limit >= wanted,
        "{connections_max} connections need {wanted} descriptors, and the limit is {limit}: raise it (ulimit -n)"
    );
    Ok(())
}

/// PUTs the first keys, as fast as it goes.
fn fill(plan: &Plan, address: SocketAddr, keys: u64, workload: &Arc<Workload>, when: When) -> anyhow::Result<()> {
    let shared = &plan.shared;
    // As long as it takes: the count ends it.
    let phases = Phases::new(0, &[Phase { from: 0.0, to: 0.0, length: nanos(Duration::from_hours(24 * 365)) }]);
    let filling = Arc::new(Shared {
        phases,
        source: Source::count(keys),
        workload: workload.clone(),
        timeout: shared.timeout,
        drain: 0,
        polls: shared.polls,
        good_within: shared.timeout,
        interval: SECOND,
        connections_max: None,
        connections: AtomicUsize::new(plan.connections),
        authors: Authors::default(),
        failure: Mutex::new(None),
        interrupted: AtomicU64::new(NEVER),
        returned: Returned::default(),
        #[cfg(test)]
        planted: None,
    });
    let progress = Progress::of_fill(when, keys);
    let (mut filled, mut failed) = (0, false);
    let driven = threads::drive(&filling, address, plan.threads, plan.connections, |_, interval, _| {
        filled += interval.outcomes.get(&Outcome::Served).copied().unwrap_or(0);
        progress.filled(filled);
        // One that is not taken is not filled by going on.
        if interval.outcomes.iter().any(|(outcome, count)| *outcome != Outcome::Served && *count > 0) {
            failed = true;
            filling.end_early(0);
        }
        Ok(())
    })?;
    progress.finish();
    let (section, _) = driven.collector.measured();
    ensure!(failed || driven.interrupted.is_none(), "interrupted while {filled} of {keys} keys were filled");
    let served = section.outcomes.get(&Outcome::Served).copied().unwrap_or(0);
    ensure!(
        served == keys,
        "only {served} of {keys} keys could be filled; statuses {:?}, failures {:?}",
        section.statuses,
        section.errors
    );
    Ok(())
}

/// The run itself.
fn load(
    plan: &Plan,
    address: SocketAddr,
    when: When,
    hlog: Option<&mut (std::path::PathBuf, std::io::BufWriter<std::fs::File>)>,
    mut heat: Option<&mut Heat>,
) -> anyhow::Result<(Driven, Vec<Interval>)> {
    let shared = &plan.shared;
    let mut serializer = V2DeflateSerializer::new();
    let mut unbegun = hlog.map(|file| (file, &mut serializer));
    let mut log = None;
    let progress = Progress::of_run(when, Duration::from_nanos(shared.phases.end()));
    let mut intervals = Vec::new();
    let driven = threads::drive(shared, address, plan.threads, plan.connections, |started_unix_ms, interval, tally| {
        progress.show(interval);
        if let Some((file, serializer)) = unbegun.take() {
            log = Some(IntervalLog::begin(file, serializer, since_1970(started_unix_ms))?);
        }
        if let Some(log) = &mut log {
            log.add(interval, tally)?;
        }
        if let Some(heat) = &mut heat {
            heat.add(interval, tally);
        }
        intervals.push(interval.clone());
        Ok(())
    });
    progress.finish();
    if let Some(why) = shared.failure.lock().take() {
        bail!("the script failed: {why}");
    }
    Ok((driven?, intervals))
}

fn conclude(
    args: &BenchArgs,
    plan: &Plan,
    address: SocketAddr,
    driven: &Driven,
    intervals: Vec<Interval>,
    cores: usize,
    steal: Option<f64>,
) -> (RunResult, Spectrum) {
    let shared = &plan.shared;
    let (measured, spectrum) = driven.collector.measured();
    let checks = checks::judge(&Evidence {
        mode: shared.mode(),
        section: &measured,
        lag_max: nanos(args.requests.lag_max),
        cpu_shares: &driven.cpu_shares,
        connections: plan.connections,
        connected: driven.connected,
        unconnected: driven.unconnected,
        grown: shared.connections_max.map(|max| (shared.connections.load(Ordering::Relaxed), max)),
    });
    let started = since_1970(driven.started_unix_ms);
    let result = RunResult {
        schema: SCHEMA.to_owned(),
        klad_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: without_secrets(std::env::args()),
        interrupted_s: driven.interrupted.map(seconds),
        started: Started {
            utc: humantime::format_rfc3339_millis(started).to_string(),
            monotonic_ns: driven.started_monotonic_ns,
        },
        machine: machine::describe(cores, steal),
        target: Target {
            url: args.url.clone().unwrap_or_default(),
            address: address.to_string(),
            same_machine: machine::is_own(address),
        },
        load: plan.load.clone(),
        valid: checks.iter().all(|check| check.passed),
        checks,
        slo: args.slo.as_ref().map(|objectives| objectives.judge(&measured, &spectrum.response)),
        measured,
        warm_up: driven.collector.warm_up(),
        stages: driven.collector.stages(),
        longest_gap_s: seconds(driven.collector.longest_gap()),
        intervals,
        pieces: driven.collector.pieces(),
    };
    (result, spectrum)
}

/// The command, without the values of headers that say who may do what: results are published.
fn without_secrets(arguments: impl Iterator<Item = String>) -> Vec<String> {
    const SECRET: [&str; 3] = ["authorization", "proxy-authorization", "cookie"];
    let hide = |argument: String| match argument.split_once(':') {
        Some((name, _)) if SECRET.iter().any(|secret| name.to_ascii_lowercase().ends_with(secret)) => {
            format!("{name}: ***")
        }
        _ => argument,
    };
    arguments.map(hide).collect()
}

fn since_1970(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// Writes to the standard output.
///
/// # Errors
/// When that fails.
pub fn print(text: &str) -> anyhow::Result<()> {
    output::stdout().and_then(|mut stdout| stdout.write_all(text.as_bytes())).context("cannot write the result")
}
