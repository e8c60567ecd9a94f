//! `cargo xtask yardstick` compares klad with Redis, with itself with other options, with RocksDB without a server,
//! with an older klad, and with a bare echo server.
//!
//! ```text
//!   round 1:  comparison 1: klad, control   comparison 2: klad, control   …
//!   round 2:  comparison 1: control, klad   comparison 2: control, klad   …    ratio of each round ─▶ 95 % interval
//! ```
//!
//! All servers run on one half of the cores from the beginning, and the loads on the other half. At the end, a bulk
//! load is measured on all cores.

use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;
use klad_bench::recorder::Outcome;
use klad_bench::result::RunResult;
use klad_lab::process::RunningProcess;
use klad_lab::server::RunningServer;

use self::bare_engine::BareEngine;
use self::redis::Redis;
use crate::Verdict;
use crate::profile_cost::{cpu_of, median_interval};
use crate::setup::{ProgramArgs, Setup, grouped, mebibytes};

mod bare_engine;
mod connections;
mod redis;

/// The number of keys. klad's caches and Redis hold all of them in memory.
const CACHED_KEYS: u64 = 1_000_000;

/// The number of loads before the first round. They fill most of klad's value cache, because a value enters the value
/// cache when it is read. Redis has all values in memory from the time they were written.
const WARM_UP_LOADS: u32 = 5;

/// The number of keys. The page cache holds all of them, but klad's caches do not.
const PAGE_KEYS: u64 = 2_000_000;

/// The number of keys. With values of 1 KiB each, the store has ten times the `--memory` of the klad that reads it
/// from the disk.
const COLD_KEYS: u64 = 2_750_000;

/// The number of threads that read from the disk. The same as the default of `--storage-threads`.
const COLD_THREADS: usize = 4;

/// The rate at which response times are compared, as a share of the throughput of `inline`.
const SHARE_OF_CAPACITY: f64 = 0.7;

/// How long a load may run beyond its length. [`Setup::bench`] kills it two minutes later. Also the longest time of a
/// fill, of a `klad check` and of a load by `redis-benchmark`.
const PATIENCE: Duration = Duration::from_mins(20);

/// Options of `yardstick`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Compare single requests with those of this klad program, for example that of the last release.
    #[arg(long, value_name = "PATH")]
    before: Option<PathBuf>,
    /// Rounds of each comparison.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of each load.
    #[arg(long, value_name = "TIME", default_value = "3s")]
    duration: humantime::Duration,
    /// Entries of the bulk load.
    #[arg(long, value_name = "N", default_value_t = 100_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    entries: u64,
    /// Measure only these parts, separated by commas.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Pipelines of 16 requests, compared with Redis and with a bare echo.
    Pipelines,
    /// Reads from the page cache, compared with `--execution inline`.
    PageCache,
    /// Reads from the disk, compared with the engine in a loop without a server.
    ColdReads,
    /// CPU time of single requests, compared with the klad of `--before`.
    Single,
    /// Memory of connections, and CPU time of GETs on many connections, compared with a bare echo.
    Connections,
    /// A bulk load.
    Load,
}

/// The side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Klad,
    Control,
}

/// The value that the interval of a ratio must reach.
#[derive(Clone, Copy, Debug)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// A comparison of klad with a control.
struct Comparison<'a> {
    name: &'static str,
    unit: &'static str,
    bound: Bound,
    measure: Box<dyn Fn(Side) -> Result<f64> + 'a>,
    /// The figures of each round: klad's, then the control's.
    figures: Vec<[f64; 2]>,
}

/// Runs the measurement.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let setup = Setup::new(&args.program)?;
    let yardstick = Yardstick { args, setup: &setup };
    let parts = if args.only.is_empty() { Part::value_variants() } else { &args.only };
    let mut comparisons = Vec::new();
    for part in parts {
        comparisons.extend(match part {
            Part::Pipelines => yardstick.pipelines()?,
            Part::PageCache => yardstick.page_cache()?,
            Part::ColdReads => yardstick.cold_reads()?,
            Part::Single => yardstick.single_requests()?,
            Part::Connections => yardstick.connections()?,
            Part::Load => Vec::new(),
        });
    }
    for round in 0..args.rounds {
        eprintln!("round {} of {}", round + 1, args.rounds);
        for comparison in &mut comparisons {
            comparison.measure(round % 2 == 1).with_context(|| comparison.name)?;
        }
    }
    println!("Medians of {} rounds of {}; the ratio of klad to the control, 95 % interval", args.rounds, args.duration);
    let verdicts: Vec<Verdict> = comparisons.iter().map(Comparison::report).collect();
    // Ends all servers.
    drop(comparisons);
    if parts.contains(&Part::Load) {
        yardstick.bulk_load()?;
    }
    Ok(Verdict::of(verdicts.iter().all(|verdict| *verdict == Verdict::Within)))
}

impl<'a> Comparison<'a> {
    fn new(
        name: &'static str,
        unit: &'static str,
        bound: Bound,
        measure: impl Fn(Side) -> Result<f64> + 'a,
    ) -> Comparison<'a> {
        Comparison { name, unit, bound, measure: Box::new(measure), figures: Vec::new() }
    }

    /// Measures both sides.
    fn measure(&mut self, control_first: bool) -> Result<()> {
        let figures = if control_first {
            let control = (self.measure)(Side::Control)?;
            [(self.measure)(Side::Klad)?, control]
        } else {
            [(self.measure)(Side::Klad)?, (self.measure)(Side::Control)?]
        };
        self.figures.push(figures);
        Ok(())
    }

    fn report(&self) -> Verdict {
        let [low, ratio, high] = median_interval(self.figures.iter().map(|[klad, control]| klad / control).collect());
        let median = |side: usize| median_interval(self.figures.iter().map(|figures| figures[side]).collect())[1];
        let (klad, control) = (median(0), median(1));
        let (verdict, bound) = self.bound.judge(low, high);
        println!("{}: {klad:.2} beside {control:.2} {}", self.name, self.unit);
        println!("  {ratio:.3} ({low:.3} to {high:.3}); {}: {bound}", verdict.word());
        verdict
    }
}

impl Bound {
    /// Judges a ratio by its interval. A bound is exceeded only if the whole interval is beyond the bound.
    fn judge(self, low: f64, high: f64) -> (Verdict, String) {
        match self {
            Bound::AtLeast(bound) => (Verdict::of(high >= bound), format!("at least {bound}")),
            Bound::AtMost(bound) => (Verdict::of(low <= bound), format!("at most {bound}")),
        }
    }
}

#[derive(Clone, Copy)]
struct Yardstick<'a> {
    args: &'a Args,
    setup: &'a Setup,
}

impl<'a> Yardstick<'a> {
    /// Compares GETs with a Redis without persistence and with an echo, and PUTs with a Redis that syncs its log once
    /// a second.
    fn pipelines(self) -> Result<Vec<Comparison<'a>>> {
        let klad = Rc::new(self.setup.serve("pipelines", &["--memory", "2GiB", "--durability", "async"])?);
        self.load(&klad, &format!("--workload put --fill {CACHED_KEYS}"))?;
        let mut comparisons = Vec::new();
        for (name, workload, test, options) in [
            ("pipelines of 16, GET", "get", "get", &["--appendonly", "no"][..]),
            ("pipelines of 16, PUT async", "put", "set", &["--appendonly", "yes", "--appendfsync", "everysec"]),
        ] {
            let (klad, redis) = (klad.clone(), Redis::start(self.setup, test, options)?);
            redis.requests_per_s("set", CACHED_KEYS * 2)?;
            let load = format!("--workload {workload} --keys {CACHED_KEYS} --key-order uniform --pipeline 16");
            for _ in 0..WARM_UP_LOADS {
                let reads = format!("--workload get --keys {CACHED_KEYS} --key-order uniform --pipeline 16");
                self.load(&klad, &reads)?;
            }
            let measure = move |side| match side {
                Side::Klad => Ok(per_s(&self.load(&klad, &load)?)),
                Side::Control => redis.requests_per_s(test, CACHED_KEYS * self.args.duration.as_secs().max(1)),
            };
            comparisons.push(Comparison::new(name, "requests/s", Bound::AtLeast(1.0), measure));
        }
        let echo = self.echo("echo-pipelines")?;
        let load = format!("--workload get --keys {CACHED_KEYS} --key-order uniform --pipeline 16");
        comparisons.push(Comparison::new(
            "pipelines of 16, GET, beside a bare HTTP echo",
            "requests/s",
            Bound::AtLeast(1.0),
            move |side| Ok(per_s(&self.load(if side == Side::Klad { &klad } else { &echo }, &load)?)),
        ));
        Ok(comparisons)
    }

    /// Compares reads from the page cache with those of a klad that does all reads on the worker.
    fn page_cache(self) -> Result<Vec<Comparison<'a>>> {
        let options = format!("--workload get --keys {PAGE_KEYS} --key-order uniform");
        let serve = |execution| -> Result<_> {
            self.fill(execution, PAGE_KEYS, "100B")?;
            let tables = self.hold_in_page_cache(execution)?;
            Ok((self.setup.serve(execution, &["--memory", "64MiB", "--execution", execution])?, tables))
        };
        let servers = [serve("adaptive")?, serve("inline")?];
        let load = Rc::new(move |side: Side, options: &str| self.bench(&servers[side as usize].0.url(), options));
        let closed = format!("{options} --closed");
        for side in [Side::Klad, Side::Control] {
            // Reads indexes and filters into memory.
            load(side, &closed)?;
        }
        let at_rate = per_s(&load(Side::Control, &closed)?) * SHARE_OF_CAPACITY;
        let of_rate = format!("{options} --rate {at_rate:.0} --lag-max 5ms");
        let loaded = load.clone();
        Ok(vec![
            Comparison::new("page cache, GET", "requests/s", Bound::AtLeast(1.0), move |side| {
                Ok(per_s(&load(side, &closed)?))
            }),
            Comparison::new("page cache, GET at 70 %, p99", "us", Bound::AtMost(1.2), move |side| {
                let response = loaded(side, &of_rate)?.measured.response;
                Ok(response.at(99.0).context("the result has no p99")?.value_us)
            }),
        ])
    }

    /// Compares reads from the disk with those of the engine without a server.
    fn cold_reads(self) -> Result<Vec<Comparison<'a>>> {
        for name in ["cold", "bare"] {
            self.fill(name, COLD_KEYS, "1KiB")?;
        }
        let threads = COLD_THREADS.to_string();
        let options = ["--memory", "256MiB", "--direct-reads", "on", "--threads", "1", "--storage-threads", &threads];
        let klad = self.setup.serve("cold", &options)?;
        let bare = BareEngine::open(self.setup, "bare", &klad)?;
        let load = format!("--workload get --keys {COLD_KEYS} --key-order uniform");
        // Reads indexes and filters into memory.
        self.load(&klad, &load)?;
        bare.reads_per_s(COLD_KEYS, COLD_THREADS, *self.args.duration)?;
        let measure = move |side| match side {
            Side::Klad => Ok(per_s(&self.load(&klad, &load)?)),
            Side::Control => bare.reads_per_s(COLD_KEYS, COLD_THREADS, *self.args.duration),
        };
        Ok(vec![Comparison::new("cold reads, GET", "requests/s", Bound::AtLeast(0.9), measure)])
    }

    /// Compares single requests with those of another klad.
    fn single_requests(self) -> Result<Vec<Comparison<'a>>> {
        let Some(before) = &self.args.before else {
            println!("single requests: left out without --before");
            return Ok(Vec::new());
        };
        let options = ["--memory", "1GiB", "--threads", "1"];
        let servers = Rc::new([self.setup.serve("now", &options)?, self.setup.serve_with(before, "before", &options)?]);
        for server in &*servers {
            self.load(server, &format!("--workload put --fill {CACHED_KEYS}"))?;
        }
        let rows = [("GET", "get", ""), ("PUT async", "put", "&durability=async"), ("PUT sync", "put", "")];
        let comparison = move |(name, workload, durability): (&'static str, &str, &str)| {
            let servers = servers.clone();
            let load = format!("--workload {workload} --keys {CACHED_KEYS}");
            let path = format!("/v0/entity?id={{key}}{durability}");
            Comparison::new(name, "us of CPU time", Bound::AtMost(1.0), move |side| {
                let server = &servers[side as usize];
                let before = cpu_of(server.pid())?;
                let result = self.bench(&format!("{}{path}", server.url()), &format!("{load} --closed"))?;
                Ok(cpu_of(server.pid())?.saturating_sub(before).as_secs_f64() * 1e6 / served(&result))
            })
        };
        Ok(rows.into_iter().map(comparison).collect())
    }

    /// Loads entries like those of the published reports into a new directory, and checks the directory.
    fn bulk_load(self) -> Result<()> {
        let (directory, began) = (self.setup.directory().join("load"), Instant::now());
        let mut command = self.setup.klad("import --key-format {} --value-format value#{}");
        command.args(["--generate", &self.args.entries.to_string(), "--into"]).arg(&directory);
        let (mut load, mut memory) = (self.setup.start(command)?, 0);
        let status = loop {
            memory = load.memory_max().unwrap_or_default().max(memory);
            if let Some(status) = load.wait(Duration::from_millis(20))? {
                break status;
            }
        };
        ensure!(status.success(), "the bulk load failed: {status}");
        let time = began.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let rate = self.args.entries as f64 / time;
        println!(
            "bulk load: {} entries in {time:.1} s, {rate:.0} entries/s, at most {}",
            grouped(self.args.entries),
            mebibytes(memory)
        );
        let began = Instant::now();
        let mut command = self.setup.klad("check --data");
        command.arg(&directory);
        let status = self.setup.start(command)?.wait(PATIENCE)?.context("klad check does not end")?;
        ensure!(status.success(), "klad check: {status}");
        println!("  klad check: sound, {:.1} s", began.elapsed().as_secs_f64());
        Ok(())
    }

    /// Fills the data directory `name`, before a server starts on it.
    fn fill(self, name: &str, keys: u64, value_size: &str) -> Result<()> {
        let mut command = self.setup.klad("import --quiet --key-format key{}");
        command.args(["--generate", &keys.to_string(), "--value-size", value_size, "--into"]);
        command.arg(self.setup.directory().join(name));
        let status = self.setup.start(command)?.wait(PATIENCE)?.context("a fill does not end")?;
        ensure!(status.success(), "a fill failed: {status}");
        Ok(())
    }

    /// Locks the tables of the data directory `name` in the page cache, while the returned process runs. The lock is
    /// needed because a fill drops pages, and some kernels reclaim pages that were not used for a minute (DAMON).
    fn hold_in_page_cache(self, name: &str) -> Result<RunningProcess> {
        let directory = self.setup.directory().join(name).join("rocksdb");
        let mut bytes = 0;
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.path().extension().is_some_and(|extension| extension == "sst") {
                bytes += entry.metadata()?.len();
            }
        }
        let mut command = Command::new("vmtouch");
        command.args(["-q", "-l"]).arg(directory);
        let mut process = self.setup.start(command).context("install vmtouch (Debian: vmtouch)")?;
        let deadline = Instant::now() + PATIENCE;
        while process.memory_locked().is_none_or(|locked| locked < bytes) {
            let ended = process.wait(Duration::from_millis(10))?;
            let why = "vmtouch cannot lock the tables in memory: be root, or raise ulimit -l";
            ensure!(ended.is_none() && Instant::now() < deadline, why);
        }
        Ok(process)
    }

    /// Runs a closed load, which sends as many requests as the server answers.
    fn load(self, server: &RunningServer, options: &str) -> Result<RunResult> {
        self.bench(&server.url(), &format!("{options} --closed"))
    }

    fn bench(self, url: &str, options: &str) -> Result<RunResult> {
        let connections = if options.contains("--connections") { "" } else { " --connections 64" };
        let options = format!(
            "{options}{connections} --threads 1 --value-size 100B --warm-up 0s --duration {}",
            self.args.duration
        );
        let result = self.setup.bench("load", url, &options, *self.args.duration + PATIENCE)?;
        ensure!(served(&result) > 0.0, "no request was served: {:?}", result.measured.statuses);
        Ok(result)
    }
}

#[expect(clippy::cast_precision_loss, reason = "requests of seconds are far below 2^52")]
fn served(result: &RunResult) -> f64 {
    let served = result.measured.outcomes.get(&Outcome::Served).copied().unwrap_or_default();
    (served * u64::from(result.load.requests_per_start)) as f64
}

fn per_s(result: &RunResult) -> f64 {
    served(result) / result.measured.duration_s
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(bound: Bound, ratios: [f64; 5]) -> Verdict {
        let figures = ratios.map(|ratio| [ratio, 1.0]).to_vec();
        Comparison { figures, ..Comparison::new("", "", bound, |_| Ok(1.0)) }.report()
    }

    #[test]
    fn a_bound_is_kept_if_the_interval_reaches_it() {
        assert_eq!(judged(Bound::AtLeast(1.0), [0.8, 0.9, 0.95, 0.97, 1.01]), Verdict::Within);
        assert_eq!(judged(Bound::AtMost(1.2), [1.1, 1.3, 1.3, 1.3, 1.3]), Verdict::Within);
    }

    #[test]
    fn twin_a_klad_that_is_slower_in_each_round_exceeds() {
        assert_eq!(judged(Bound::AtLeast(1.0), [0.8, 0.9, 0.95, 0.97, 0.98]), Verdict::Exceeded);
        assert_eq!(judged(Bound::AtMost(1.2), [1.25, 1.3, 1.3, 1.3, 1.3]), Verdict::Exceeded);
    }
}
