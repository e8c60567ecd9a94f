//! One command of `klad bench` from beginning to end: plan, fill, load, check, report. Called by klad's `main`, by
//! this crate's `main`, and by `klad_lab`.

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
use crate::checks::{self, CheckInputs};
use crate::collector::Spectrum;
use crate::compare;
use crate::files::{self, IntervalLog};
use crate::generator::{NEVER, ReturnedStarts, Shared};
use crate::knee;
use crate::machine::{self, CpuTimes};
use crate::page::{self, HeatCounts};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::recorder::Outcome;
use crate::result::{Interval, RunResult, SCHEMA, Started, Target};
use crate::schedule::{Phase, Phases, SECOND, Source, nanos, seconds};
use crate::scripts;
use crate::text;
use crate::threads::{self, FinishedRun};
use crate::workload::{BatchRequest, Values, Workload};
use klad_base::os::descriptors;
use klad_base::os::output;
use klad_base::sync::Mutex;

/// The verdict on a run, a comparison or a search that could be made. It decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Valid, and every objective is met. In a comparison: B is slower at no figure. In a search: the knee was found,
    /// or is above `--to`.
    Met,
    /// Valid, but an objective is missed. In a comparison: B is slower at one figure or more. In a search: no rate
    /// meets the objectives.
    Missed,
    /// The figures are not reliable. In a search: the generator was the limit, runs at the same rate differed too
    /// much, or the search was broken off.
    NotValid,
}

/// Why a command failed: it has no verdict, or the verdict could not be written.
#[derive(Debug)]
pub enum Error {
    /// The options are wrong, or contradict each other.
    Usage(anyhow::Error),
    /// Any other error.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Error {
    fn from(error: anyhow::Error) -> Self {
        Error::Failed(error)
    }
}

/// The number of file descriptors to allow for, in addition to those of connections: standard streams, files, and one
/// epoll for each thread.
const OTHER_DESCRIPTORS: u64 = 300;

/// The most keys that one request of a fill puts. Larger batches are hardly cheaper for each key.
const FILL_BATCH_ITEMS: u64 = 1_000;

/// The space in a batch for each operation in addition to a random value, bytes: for the key, the names of the fields,
/// and a value that is made by a format. With longer keys, a batch can be too long for the server. Then the server
/// answers with status 413 or 503, and the fill ends.
const FILL_ITEM_BYTES: u64 = 4 << 10;

/// The longest wait for `/v1/limits`, which says whether the server takes batches.
const LIMITS_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the command and returns its exit code (docs/bench.md). An error is written to stderr after `program`, the
/// name that the user typed.
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

/// Runs the command line: a run with its report, a comparison, or a search.
///
/// # Errors
/// If options are wrong, the server cannot be reached, the database cannot be filled, a script fails, or a file
/// cannot be written.
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
    // Files are created before the run, so that a wrong path is found before any load.
    let json = args.json.as_deref().filter(|path| *path != Path::new("-")).map(files::create).transpose()?;
    let hgrm = args.hgrm.as_deref().map(files::create).transpose()?;
    let mut hlog = args.hlog.as_deref().map(files::create).transpose()?;
    let html = args.html.as_deref().map(files::create).transpose()?;
    let address = plan.url.reach()?;
    let json_to_stdout = args.json.as_deref() == Some(Path::new("-"));
    let script = scripts::load(&mut plan, address, json_to_stdout)?;
    if let Some((keys, workload)) = plan.fill.take() {
        fill(&plan, address, keys, workload, args.progress)?;
    }
    let cpu_before = CpuTimes::read();
    let mut heat = html.is_some().then(HeatCounts::new);
    let (finished, intervals) = load(&plan, address, args.progress, hlog.as_mut(), heat.as_mut())?;
    let steal = CpuTimes::read().zip(cpu_before).and_then(|(now, before)| now.steal_percent_since(before));
    if let Some(hlog) = hlog {
        files::finish(hlog)?;
    }
    let (result, spectrum) = conclude(args, &plan, address, &finished, intervals, cores, steal);
    if let Some(hgrm) = hgrm {
        files::write(hgrm, &text::percentile_spectrum(&spectrum.response))?;
    }
    if let Some(json) = json {
        files::write(json, &files::json(&result))?;
    }
    if let Some((html, heat)) = html.zip(heat) {
        files::write(html, &page::html(&result, &spectrum, &heat, nanos(args.requests.lag_max)))?;
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

/// PUTs the keys of `--fill`, if the option is given.
///
/// # Errors
/// As [`run`].
pub(super) fn fill_for(args: &BenchArgs) -> Result<(), Error> {
    let mut plan = Plan::new(args, cores()).map_err(Error::Usage)?;
    check_descriptors(plan.load.connections_max)?;
    if let Some((keys, workload)) = plan.fill.take() {
        fill(&plan, plan.url.reach()?, keys, workload, args.progress)?;
    }
    Ok(())
}

/// Makes one run of a search, without `--fill` and without files, and returns its result.
///
/// # Errors
/// As [`run`].
pub(super) fn measure(args: &BenchArgs) -> Result<RunResult, Error> {
    let cores = cores();
    let mut plan = Plan::new(args, cores).map_err(Error::Usage)?;
    let address = plan.url.reach()?;
    scripts::load(&mut plan, address, true)?;
    let cpu_before = CpuTimes::read();
    let (finished, intervals) = load(&plan, address, args.progress, None, None)?;
    let steal = CpuTimes::read().zip(cpu_before).and_then(|(now, before)| now.steal_percent_since(before));
    Ok(conclude(args, &plan, address, &finished, intervals, cores, steal).0)
}

fn check_descriptors(connections_max: usize) -> anyhow::Result<()> {
    let limit = descriptors::raise_limit();
    let wanted = connections_max as u64 + OTHER_DESCRIPTORS;
    descriptors::grow_table(wanted.min(limit));
    ensure!(
        limit >= wanted,
        "{connections_max} connections need {wanted} file descriptors, but the limit is {limit}; raise it with ulimit -n"
    );
    Ok(())
}

/// Returns the number of keys that one request of a fill puts. If the server is a klad, this is the number of keys that
/// fit a batch even if all values have the largest size, at most [`FILL_BATCH_ITEMS`]. If the server is not a klad, or
/// the URL has a path, it is 1.
fn batch_items(plan: &Plan, values: &Values) -> u64 {
    if plan.url.has_path() || plan.shared.workload.fixed.is_some() {
        return 1;
    }
    let agent =
        ureq::Agent::new_with_config(ureq::Agent::config_builder().timeout_global(Some(LIMITS_TIMEOUT)).build());
    let mut request = agent.get(format!("http://{}/v1/limits", plan.url.authority));
    let headers = String::from_utf8_lossy(&plan.shared.workload.template.headers).into_owned();
    for (name, value) in headers.lines().filter_map(|line| line.split_once(": ")) {
        if !name.eq_ignore_ascii_case("host") {
            request = request.header(name, value);
        }
    }
    let limits = request.call().ok().and_then(|mut answer| answer.body_mut().read_to_string().ok());
    let limits = limits.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    let limit = |name: &str| limits.as_ref()?[name].as_u64();
    let [Some(items), Some(batch_bytes), Some(body_bytes)] =
        ["batch_items_max", "batch_bytes_max", "value_bytes_max"].map(limit)
    else {
        return 1;
    };
    // A server has memory for a body as long as its largest value. A longer batch may not fit the memory.
    let bytes = batch_bytes.min(body_bytes);
    let value_bytes = match values {
        Values::Random { sizes, .. } => sizes.max as u64,
        Values::Format(_) => 0,
    };
    items.min(bytes / (value_bytes + FILL_ITEM_BYTES)).clamp(1, FILL_BATCH_ITEMS)
}

/// PUTs the first `keys` keys as fast as possible, in batches if the server takes them.
fn fill(plan: &Plan, address: SocketAddr, keys: u64, mut workload: Workload, when: When) -> anyhow::Result<()> {
    let shared = &plan.shared;
    let items = batch_items(plan, &workload.values).min(keys);
    if items > 1 {
        workload.template.target = vec![plan.url.batch_target()];
        workload.batch = Some(BatchRequest { items });
    }
    // Batches on several connections would together exceed the server's limit of operations.
    let (threads, connections) = if items > 1 { (1, 1) } else { (plan.threads, plan.connections) };
    // The last batch begins again with the first keys, if it has more items than keys are left.
    let requests = keys.div_ceil(items);
    // The count of keys ends this phase, not its length.
    let phases = Phases::new(0, &[Phase { from: 0.0, to: 0.0, length: nanos(Duration::from_hours(24 * 365)) }]);
    let filling = Arc::new(Shared {
        phases,
        source: Source::count(requests),
        workload: Arc::new(workload),
        timeout: shared.timeout,
        drain: 0,
        polls: shared.polls,
        good_within: shared.timeout,
        interval: SECOND,
        connections_max: None,
        connections: AtomicUsize::new(connections),
        authors: Authors::default(),
        failure: Mutex::new(None),
        interrupted: AtomicU64::new(NEVER),
        returned: ReturnedStarts::default(),
        #[cfg(test)]
        planted: None,
    });
    let progress = Progress::of_fill(when, keys);
    let (mut filled, mut failed) = (0, false);
    let finished = threads::drive(&filling, address, threads, connections, |_, interval, _| {
        filled += interval.outcomes.get(&Outcome::Served).copied().unwrap_or(0);
        progress.filled((filled * items).min(keys));
        // A PUT that failed is not repeated, so the fill cannot become complete: end it.
        if interval.outcomes.iter().any(|(outcome, count)| *outcome != Outcome::Served && *count > 0) {
            failed = true;
            filling.end_early(0);
        }
        Ok(())
    })?;
    progress.finish();
    let (section, _) = finished.collector.measured();
    let served = section.outcomes.get(&Outcome::Served).copied().unwrap_or(0);
    let filled = (served * items).min(keys);
    ensure!(failed || finished.interrupted.is_none(), "interrupted after {filled} of {keys} keys were filled");
    ensure!(
        served == requests,
        "only {filled} of {keys} keys could be filled; statuses {:?}, failures {:?}",
        section.statuses,
        section.errors
    );
    Ok(())
}

/// Makes the load, and returns the finished run with its intervals.
fn load(
    plan: &Plan,
    address: SocketAddr,
    when: When,
    hlog: Option<&mut files::OutputFile>,
    mut heat: Option<&mut HeatCounts>,
) -> anyhow::Result<(FinishedRun, Vec<Interval>)> {
    let shared = &plan.shared;
    let mut serializer = V2DeflateSerializer::new();
    let mut unbegun = hlog.map(|file| (file, &mut serializer));
    let mut log = None;
    let progress = Progress::of_run(when, Duration::from_nanos(shared.phases.end()));
    let mut intervals = Vec::new();
    let finished =
        threads::drive(shared, address, plan.threads, plan.connections, |started_unix_ms, interval, tally| {
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
    Ok((finished?, intervals))
}

fn conclude(
    args: &BenchArgs,
    plan: &Plan,
    address: SocketAddr,
    finished: &FinishedRun,
    intervals: Vec<Interval>,
    cores: usize,
    steal: Option<f64>,
) -> (RunResult, Spectrum) {
    let shared = &plan.shared;
    let (measured, spectrum) = finished.collector.measured();
    let checks = checks::judge(&CheckInputs {
        mode: shared.mode(),
        section: &measured,
        lag_max: nanos(args.requests.lag_max),
        cpu_shares: &finished.cpu_shares,
        connections: plan.connections,
        connected: finished.connected,
        unconnected: finished.unconnected,
        grown: shared.connections_max.map(|max| (shared.connections.load(Ordering::Relaxed), max)),
    });
    let started = since_1970(finished.started_unix_ms);
    let result = RunResult {
        schema: SCHEMA.to_owned(),
        klad_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: without_secrets(std::env::args()),
        interrupted_s: finished.interrupted.map(seconds),
        started: Started {
            utc: humantime::format_rfc3339_millis(started).to_string(),
            monotonic_ns: finished.started_monotonic_ns,
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
        warm_up: finished.collector.warm_up(),
        stages: finished.collector.stages(),
        longest_gap_s: seconds(finished.collector.longest_gap()),
        intervals,
        pieces: finished.collector.pieces(),
    };
    (result, spectrum)
}

/// Returns the command line without the values of headers that hold credentials, because results are published.
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

/// Writes `text` to the standard output.
///
/// # Errors
/// If the write fails.
pub fn print(text: &str) -> anyhow::Result<()> {
    output::stdout().and_then(|mut stdout| stdout.write_all(text.as_bytes())).context("cannot write the result")
}
