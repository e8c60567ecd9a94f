//! `cargo xtask overload`: what is left of klad when more is asked of it than it can do?
//!
//! ```text
//!   klad serve, held to a fifth of a core, or with storage that takes 1 ms a call
//!     ▲ 1,000 connections, closed: the capacity
//!     ▲ 1, 2 and 5 times that, open, a new connection for each request that finds all busy, deadline 250 ms
//!     ▲ one quiet reader: how soon are answers as quick as before, when the load is over?
//! ```
//!
//! Last the same at twice the capacity with `--admission off`, which must fail.

mod judgement;
mod probe;

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytesize::ByteSize;

use crate::Verdict;
use crate::bench::{self, RunResult};
use crate::klad::{Addresses, Klad, ProgramArgs, Settings};
use crate::process::raise_descriptor_limit;
use crate::quota::Quota;
use crate::resident::Sampler;

use judgement::{Level, Part};
use probe::Sample;

/// What clients wait for an answer.
const DEADLINE: Duration = Duration::from_millis(250);

/// Share of a core, and the period that it is kept in.
const SHARE: f64 = 0.2;
const PERIOD: Duration = Duration::from_millis(10);

/// Multiples of the capacity.
const MULTIPLES: [u64; 3] = [1, 2, 5];

/// Klad's memory budget.
const MEMORY: ByteSize = ByteSize(1 << 30);

/// Beside the budget and a tenth of it, bytes, as in `memory`.
const FREE_BYTES: u64 = 64 << 20;

/// Connections of the closed run.
const CLOSED_CONNECTIONS: &str = "1000";

/// Connections that the open load may have at the most.
const CONNECTIONS_MAX: &str = "12000";

/// Before what is measured, at the same rate.
const WARM_UP: Duration = Duration::from_secs(2);

/// How long quiet reads go on after the load.
const AFTER: Duration = Duration::from_secs(3);

/// A level is made so often at most, while `klad bench` says that the machine had no time for it.
const TRIES: usize = 3;

/// Beyond the length of a run, before it is killed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Keys of all workloads.
const KEYS: &str = "1000";

/// Options of `overload`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Part to run; may be repeated [default: cpu-get and engine].
    #[arg(long, value_name = "NAME", value_enum)]
    only: Vec<Name>,
    /// Length of the measured part of each level.
    #[arg(long, value_name = "TIME", default_value = "6s")]
    duration: humantime::Duration,
    /// Rounds over all levels.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// What is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    /// Reads from memory, at a fifth of a core.
    CpuGet,
    /// Synced writes, at a fifth of a core that RocksDB's flushes share: klad does not reach the goals there.
    CpuPut,
    /// Reads from storage that takes 1 ms.
    Engine,
}

impl Name {
    fn words(self) -> &'static str {
        match self {
            Name::CpuGet => "GET of 64,000 bytes from memory, a fifth of a core",
            Name::CpuPut => "PUT of 16 KiB, synced, a fifth of a core",
            Name::Engine => "GET of 100 bytes, storage of 1 ms a call",
        }
    }

    fn is_held(self) -> bool {
        self != Name::Engine
    }

    fn server(self) -> &'static [&'static str] {
        match self {
            Name::CpuGet | Name::CpuPut => &["--durability", "sync"],
            Name::Engine => &["--engine", "memory", "--engine-delay", "1ms"],
        }
    }

    fn workload(self) -> [&'static str; 6] {
        // Large enough that five times the capacity is what a generator on the same machine can offer.
        let (workload, value) = match self {
            Name::CpuGet => ("get", "64000"),
            Name::CpuPut => ("put", "16KiB"),
            Name::Engine => ("get", "100"),
        };
        ["--workload", workload, "--keys", KEYS, "--value-size", value]
    }
}

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let program = args.program.find()?;
    raise_descriptor_limit();
    let default = [Name::CpuGet, Name::Engine];
    let mut within = true;
    for name in if args.only.is_empty() { &default } else { args.only.as_slice() }.iter().copied() {
        if name.is_held()
            && let Err(why) = Quota::new(&group_name("tried"), SHARE, PERIOD)
        {
            println!("\n{}: skipped, a control group cannot be held to a share of a core here: {why:#}", name.words());
            continue;
        }
        let part = measure(name, &program, *args.duration, args.rounds).with_context(|| name.words())?;
        part.print();
        within &= part.verdict() == Verdict::Within;
    }
    let verdict = Verdict::of(within);
    println!("\n{}", verdict.word());
    Ok(verdict)
}

fn group_name(purpose: &str) -> String {
    format!("klad-xtask-{}-{purpose}", std::process::id())
}

/// A server under load.
struct Bed<'a> {
    name: Name,
    program: &'a Path,
    directory: &'a Path,
    klad: Klad,
    addresses: Addresses,
    duration: Duration,
    /// Removed after the server has ended.
    quota: Option<Quota>,
}

fn measure(name: Name, program: &Path, duration: Duration, rounds: u32) -> Result<Part> {
    let directory = tempfile::Builder::new().prefix("klad-xtask-").tempdir().context("no temporary directory")?;
    let bed = Bed::start(name, program, directory.path(), duration, "on")?;
    let sampler = Sampler::start(bed.pid(), "load")?;
    let capacity = bed.capacity()?;
    let quiet = probe::read(bed.addresses.data, &target(), AFTER)?;
    let mut levels: Vec<Level> = Vec::new();
    for round in 0..rounds {
        for (index, multiple) in MULTIPLES.into_iter().enumerate() {
            let level = bed.level(multiple, capacity, &quiet)?;
            match levels.get_mut(index) {
                Some(all) => all.add(level, round),
                None => levels.push(level),
            }
        }
    }
    let (phases, high_water) = sampler.finish()?;
    let resident = phases.iter().map(|phase| phase.peak.total).fold(high_water, u64::max);
    bed.klad.stop()?;
    let twin_directory = directory.path().join("twin");
    std::fs::create_dir(&twin_directory)?;
    let twin = Bed::start(name, program, &twin_directory, duration, "off")?;
    let (result, _) = twin.offer(2.0 * capacity)?;
    Ok(Part {
        name: name.words(),
        capacity,
        levels,
        resident,
        resident_max: MEMORY.0 + MEMORY.0 / 10 + FREE_BYTES,
        twin: Some(result.measured.goodput_per_s),
    })
}

fn target() -> String {
    "/v0/entity?id=key0000001".to_owned()
}

impl<'a> Bed<'a> {
    fn start(
        name: Name,
        program: &'a Path,
        directory: &'a Path,
        duration: Duration,
        admission: &str,
    ) -> Result<Bed<'a>> {
        let quota = name.is_held().then(|| Quota::new(&group_name(admission), SHARE, PERIOD)).transpose()?;
        let more = name.server().iter().copied().chain(["--admission", admission]);
        let settings = Settings {
            program: program.to_owned(),
            data: directory.join("data"),
            memory: MEMORY,
            addresses: Addresses::any(),
            more: more.map(str::to_owned).collect(),
        };
        let mut klad = Klad::start(&settings)?;
        let addresses = klad.wait_for_start_line()?;
        let bed = Bed { name, program, directory, klad, addresses, duration, quota };
        bed.fill()?;
        if let Some(quota) = &bed.quota {
            quota.hold(bed.pid())?;
        }
        Ok(bed)
    }

    fn pid(&self) -> u32 {
        self.klad.pid().as_raw_nonzero().get().unsigned_abs()
    }

    /// Runs `klad bench` for `length` with the part's workload.
    fn bench(&self, length: Duration, more: &[String]) -> Result<RunResult> {
        let mut arguments = vec![format!("http://{}", self.addresses.data)];
        arguments.extend(self.name.workload().map(str::to_owned));
        arguments.extend(["--key-format".to_owned(), "key{:07}".to_owned()]);
        arguments.extend_from_slice(more);
        let wall_max = length + PATIENCE;
        Ok(bench::run_anywhere(self.program, &arguments, wall_max, self.directory)?.0)
    }

    fn fill(&self) -> Result<()> {
        let second = Duration::from_secs(1);
        let more = ["--fill", KEYS, "--closed", "--connections", "16", "--warm-up", "0s", "--duration", "1s"];
        self.bench(second, &more.map(str::to_owned)).map(drop).context("cannot fill the store")
    }

    /// What is served to clients that wait for each other.
    fn capacity(&self) -> Result<f64> {
        let [warm_up, duration] = [WARM_UP, self.duration].map(|time| humantime::format_duration(time).to_string());
        let more = [
            "--closed",
            "--connections",
            CLOSED_CONNECTIONS,
            "--warm-up",
            &warm_up,
            "--duration",
            &duration,
            "--threads",
            "1",
        ];
        let result = self.bench(WARM_UP + self.duration, &more.map(str::to_owned))?;
        Ok(result.measured.goodput_per_s)
    }

    /// Offers `rate`; answers with the reads that went on beside it and after it.
    fn offer(&self, rate: f64) -> Result<(RunResult, Vec<Sample>)> {
        let length = WARM_UP + self.duration;
        let [warm_up, duration, deadline] =
            [WARM_UP, self.duration, DEADLINE].map(|time| humantime::format_duration(time).to_string());
        let header = format!("Klad-Timeout: {deadline}");
        let rate = format!("{rate:.0}");
        // How late the generator is matters against the deadline, not against an answer of microseconds.
        let more = [
            "--rate",
            &rate,
            "--connections",
            "64",
            "--connections-max",
            CONNECTIONS_MAX,
            "--threads",
            "2",
            "--warm-up",
            &warm_up,
            "--duration",
            &duration,
            "--timeout",
            &deadline,
            "--header",
            &header,
            "--lag-max",
            "25ms",
        ];
        let address = self.addresses.data;
        thread::scope(|scope| {
            // A connection of its own, made while there is no load yet.
            let reads = scope.spawn(move || probe::read(address, &target(), length + AFTER));
            let result = self.bench(length, &more.map(str::to_owned));
            let samples = reads.join().ok().context("the reading thread has panicked")??;
            Ok((result?, samples))
        })
    }

    fn level(&self, multiple: u64, capacity: f64, quiet: &[Sample]) -> Result<Level> {
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let rate = capacity * multiple as f64;
        let mut tries = 1;
        let (result, samples) = loop {
            let (result, samples) = self.offer(rate)?;
            if result.valid || tries >= TRIES {
                break (result, samples);
            }
            tries += 1;
        };
        let end = Duration::from_nanos(result.started.monotonic_ns) + WARM_UP + self.duration;
        let measured = &result.measured;
        #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
        let share = |outcome| measured.outcome(outcome) as f64 / measured.scheduled.max(1) as f64;
        let served = measured.cells.iter().find(|cell| cell.outcome == "served");
        let doubts = result.checks.iter().filter(|check| !check.passed);
        Ok(Level {
            multiple,
            offered: rate,
            goodput: measured.goodput_per_s,
            p99_us: served.and_then(|cell| cell.response.at(99.0)),
            refused: share("refused"),
            timed_out: share("timed_out") + share("unfinished") + share("failed"),
            gap: Duration::from_secs_f64(result.longest_gap_s),
            back: probe::back_after(&samples, end, probe::normal(quiet)),
            doubts: doubts.map(|check| format!("{}: {}", check.name, check.detail)).collect(),
        })
    }
}
