//! `cargo xtask bulk` measures what batches and scans of `/v1` cost, compared with single requests.
//!
//! ```text
//!   for async and sync:  PUTs of one key ─▶ batches of 1,000 ─▶ the engine   CPU time for each entry, entries a second
//!                        alone with the same batches, in turn
//!   fill ─▶ point reads alone ─▶ point reads beside a scan over everything   entries a second, p99, resident memory
//! ```
//!
//! Servers run on one half of the cores, loads on the other half. Figures are medians of the rounds; only the rate of a
//! scan is that of one scan, and the memory is how much the peak grows. The CPU time includes the flushes and
//! compactions that the entries cause. So the measurement of a load ends only when these have ended.

use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use bytes::Bytes;
use klad_bench::recorder::Outcome;
use klad_bench::result::RunResult;
use klad_lab::server::RunningServer;
use klad_storage::changes::Retention;
use klad_storage::limits::{MEMTABLE_BYTES_MAX, MEMTABLES};
use klad_storage::operation::{Change, Durability, Effect, Write};
use klad_storage::rocksdb::{Options, RocksDbEngine};
use klad_storage::{Engine as _, Pending, Reply};
use rustix::process::{Pid, getpid};
use tempfile::TempDir;

use crate::Verdict;
use crate::profile_cost::cpu_of;
use crate::setup::{ProgramArgs, Setup, grouped, mebibytes};

/// The number of keys that are written.
const KEYS: u64 = 1_000_000;

/// The size of the values, bytes.
const VALUE_BYTES: usize = 100;

/// The entries of one batch.
const ITEMS: u64 = 1_000;

/// The most CPU time that the server may add to an entry, compared with the engine alone. As a share of the CPU time
/// of a single PUT.
const CPU_SHARE_MAX: f64 = 0.1;

/// The least number of entries a second through batches.
const BATCHED_PER_S_MIN: f64 = 500_000.0;

/// The least number of entries a second of a scan.
const SCANNED_PER_S_MIN: f64 = 1_000_000.0;

/// The most by which a scan may lengthen the p99 of point reads beside it.
const P99_RATIO_MAX: f64 = 2.0;

/// How much the memory may grow during a scan, bytes. It may grow because the block cache still fills.
const SCAN_BYTES_MAX: u64 = 64 << 20;

/// The longest time of a load or a fill. [`Setup::bench`] kills it two minutes later.
const PATIENCE: Duration = Duration::from_mins(10);

/// Options of `bulk`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Rounds of each comparison.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of each load.
    #[arg(long, value_name = "TIME", default_value = "5s")]
    duration: humantime::Duration,
    /// Entries of the scan.
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    entries: u64,
}

/// Runs the measurement.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let setup = Setup::new(&args.program)?;
    let mut within = true;
    for durability in ["async", "sync"] {
        within &= batches(args, &setup, durability)?;
    }
    within &= scan(args, &setup)?;
    Ok(Verdict::of(within))
}

/// What one load has cost.
struct Cost {
    entries: u64,
    cpu_us_per_entry: f64,
    entries_per_s: f64,
}

fn batches(args: &Args, setup: &Setup, durability: &str) -> Result<bool> {
    let server = setup.serve(durability, &["--memory", "2GiB", "--durability", durability])?;
    let engine = Control::open(durability)?;
    let common = format!(
        "--keys {KEYS} --key-order uniform --value-size {VALUE_BYTES}B --closed --warm-up 0s --duration {}",
        args.duration
    );
    let (mut single, mut batched, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        single.push(cost(setup, &server, &format!("{common} --workload put --connections 64"), 1)?);
        let options = format!("{common} --workload put --connections 4 --batch {ITEMS}");
        let cost = cost(setup, &server, &options, ITEMS)?;
        alone.push(engine.cost(cost.entries)?);
        batched.push(cost);
    }
    server.stop()?;
    let cpu = |costs: &[Cost]| median(costs.iter().map(|cost| cost.cpu_us_per_entry));
    let rate = |costs: &[Cost]| median(costs.iter().map(|cost| cost.entries_per_s));
    let share = |cost: f64| cost / cpu(&single);
    let added = cpu(&batched) - cpu(&alone);
    // The bound is on what the server adds. The engine alone may take more than the bound, and no server can take less
    // than its engine.
    let cheap = Verdict::of(share(added) <= CPU_SHARE_MAX);
    let fast = Verdict::of(rate(&batched) >= BATCHED_PER_S_MIN);
    println!("{durability}: CPU time of an entry, µs, and its share of a PUT");
    println!("  a PUT {:.2}", cpu(&single));
    println!("  in a batch of {ITEMS}: {:.2}, {:.3}", cpu(&batched), share(cpu(&batched)));
    println!("  in the engine without a server: {:.2}, {:.3}", cpu(&alone), share(cpu(&alone)));
    println!("  what the server adds: {added:.2}, {:.3}; {}: at most {CPU_SHARE_MAX}", share(added), cheap.word());
    println!(
        "  entries a second through batches: {:.0}; {}: at least {BATCHED_PER_S_MIN:.0}",
        rate(&batched),
        fast.word()
    );
    println!("  entries a second in the engine without a server: {:.0}", rate(&alone));
    Ok(cheap == Verdict::Within && fast == Verdict::Within)
}

#[expect(clippy::cast_precision_loss, reason = "entries of seconds are far below 2^52")]
fn cost(setup: &Setup, server: &RunningServer, options: &str, items: u64) -> Result<Cost> {
    let before = cpu_of(server.pid())?;
    let result = setup.bench("bulk", &server.url(), options, PATIENCE)?;
    let used = cpu_at_rest(server.pid())?.saturating_sub(before);
    let entries = served(&result) * items;
    ensure!(entries > 0, "no request was served: {:?}", result.measured.statuses);
    Ok(Cost {
        entries,
        cpu_us_per_entry: used.as_secs_f64() * 1e6 / entries as f64,
        entries_per_s: entries as f64 / result.measured.duration_s,
    })
}

/// Waits until the flushes and compactions of a process have ended, and returns its CPU time.
fn cpu_at_rest(pid: Pid) -> Result<Duration> {
    let mut before = cpu_of(pid)?;
    for _ in 0..600 {
        thread::sleep(Duration::from_millis(500));
        let now = cpu_of(pid)?;
        if now.saturating_sub(before) < Duration::from_millis(10) {
            return Ok(now);
        }
        before = now;
    }
    anyhow::bail!("the process does not come to rest")
}

/// The engine in this process, without a server. A server on this engine cannot cost less.
struct Control {
    engine: RocksDbEngine,
    durability: Durability,
    _directory: TempDir,
}

impl Control {
    /// Opens an engine with the options that `klad serve --memory 2GiB` uses.
    fn open(durability: &str) -> Result<Control> {
        let directory = tempfile::tempdir().context("no temporary directory")?;
        let options = Options {
            cache_bytes: 1536 << 20,
            memtable_bytes: MEMTABLES * MEMTABLE_BYTES_MAX,
            value_cache_percent: 25,
            changes: Retention { bytes: 256 << 20, time: Duration::from_hours(24) },
            ..Options::default()
        };
        let engine = RocksDbEngine::open(directory.path(), &options).map_err(|error| anyhow!("{error}"))?;
        let durability = if durability == "sync" { Durability::Sync } else { Durability::Async };
        Ok(Control { engine, durability, _directory: directory })
    }

    /// Stores `entries` entries in batches of 1,000, and returns what they cost.
    #[expect(clippy::cast_precision_loss, reason = "entries of seconds are far below 2^52")]
    fn cost(&self, entries: u64) -> Result<Cost> {
        let (before, began) = (cpu_of(getpid())?, Instant::now());
        let values = std::iter::repeat_with(|| fastrand::u8(..)).take(1 << 20).collect::<Bytes>();
        // The CPU time that the loop spends on making the batches.
        let mut made = Duration::ZERO;
        for _ in 0..entries / ITEMS {
            let put = |_| {
                let at = fastrand::usize(..values.len() - VALUE_BYTES);
                let value = values.slice(at..at + VALUE_BYTES);
                let key = Bytes::from(fastrand::u64(..KEYS).to_string());
                Change { key, condition: None, effect: Effect::Put(value.into()), reports_existence: false }
            };
            let made_at = thread_cpu();
            let changes = (0..ITEMS).map(put).collect();
            made += thread_cpu().saturating_sub(made_at);
            let write = Write { changes, durability: self.durability, ..Write::default() };
            self.engine.commit(vec![Pending { write, reply: Arc::new(Written) }]);
        }
        let entries_per_s = entries as f64 / began.elapsed().as_secs_f64();
        let used = cpu_at_rest(getpid())?.saturating_sub(before + made);
        Ok(Cost { entries, cpu_us_per_entry: used.as_secs_f64() * 1e6 / entries as f64, entries_per_s })
    }
}

/// The CPU time of this thread.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("time is positive")
}

struct Written;

impl Reply for Written {
    fn complete(&self, result: klad_storage::Result) {
        assert!(result.is_ok(), "{result:?}");
    }
}

fn scan(args: &Args, setup: &Setup) -> Result<bool> {
    let server = setup.serve("scan", &["--memory", "1GiB", "--durability", "async"])?;
    let reads = format!(
        "--key-format key{{:08}} --value-format value-{{:014}} --keys {} --key-order uniform --workload get",
        args.entries
    );
    let fill = format!("{reads} --fill {} --closed --warm-up 0s --duration 100ms", args.entries);
    setup.bench("fill", &server.url(), &fill, PATIENCE)?;
    let reads = format!("{reads} --rate 2k/s --connections 16 --lag-max 10s --warm-up 1s --duration {}", args.duration);
    cpu_at_rest(server.pid())?;
    let memory_before = server.memory_max().context("the kernel does not tell the process's memory")?;
    // First one scan alone. Later, while point reads run, one scan after the other.
    let began = Instant::now();
    let entries = read_scan(server.address)?;
    #[expect(clippy::cast_precision_loss, reason = "entries are far below 2^52")]
    let rate = entries as f64 / began.elapsed().as_secs_f64();
    ensure!(entries == args.entries, "the scan has {entries} entries instead of {}", args.entries);
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        alone.push(p99_us(&setup.bench("alone", &server.url(), &reads, PATIENCE)?)?);
        let stop = AtomicBool::new(false);
        beside.push(thread::scope(|scope| {
            let scanner = scope.spawn(|| -> Result<()> {
                while !stop.load(Ordering::Relaxed) {
                    read_scan(server.address)?;
                }
                Ok(())
            });
            let result = setup.bench("beside", &server.url(), &reads, PATIENCE);
            stop.store(true, Ordering::Relaxed);
            scanner.join().ok().context("the thread of the scans has panicked")??;
            p99_us(&result?)
        })?);
    }
    let (alone, beside) = (median(alone.into_iter()), median(beside.into_iter()));
    let grown = server.memory_max().context("no memory")?.saturating_sub(memory_before);
    server.stop()?;
    let verdicts = [
        ("entries a second of a scan", format!("{rate:.0}"), rate >= SCANNED_PER_S_MIN),
        (
            "p99 of point reads beside a scan, of that alone",
            format!("{:.2}", beside / alone),
            beside / alone <= P99_RATIO_MAX,
        ),
        ("memory that scans add", mebibytes(grown), grown <= SCAN_BYTES_MAX),
    ];
    println!("a scan of {} entries; p99 of reads {alone:.0} µs alone, {beside:.0} µs beside it", grouped(args.entries));
    for (what, figure, kept) in &verdicts {
        println!("  {what}: {figure}; {}", Verdict::of(*kept).word());
    }
    Ok(verdicts.iter().all(|(.., kept)| *kept))
}

/// Reads everything as one stream of lines. Returns the number of entries.
fn read_scan(address: SocketAddr) -> Result<u64> {
    let request = ureq::get(format!("http://{address}/v1/kv")).header("Accept", "application/x-ndjson");
    let mut body = request.call().context("the scan failed")?.into_body().into_reader();
    let (mut buffer, mut lines) = (vec![0; 256 << 10], 0);
    loop {
        match body.read(&mut buffer).context("the scan breaks off")? {
            0 => break,
            count => lines += line_ends(&buffer[..count]),
        }
    }
    // The last line says where the scan has ended.
    Ok(lines.saturating_sub(1))
}

fn line_ends(bytes: &[u8]) -> u64 {
    bytes.split(|byte| *byte == b'\n').count() as u64 - 1
}

fn served(result: &RunResult) -> u64 {
    result.measured.outcomes.get(&Outcome::Served).copied().unwrap_or_default()
}

fn p99_us(result: &RunResult) -> Result<f64> {
    Ok(result.measured.response.at(99.0).context("the result has no p99")?.value_us)
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}
