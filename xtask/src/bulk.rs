//! `cargo xtask bulk`: what batches and scans of `/v1` cost, beside single requests.
//!
//! ```text
//!   for async and sync:  PUTs of one key ─▶ batches of 1,000, in turn        CPU time for each entry, entries a second
//!   fill ─▶ point reads alone ─▶ point reads beside a scan over everything   entries a second, p99, resident memory
//! ```
//!
//! Servers run on their own core, loads on the other. Each figure is the median of the rounds.

use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use klad_bench::recorder::Outcome;
use klad_bench::result::RunResult;
use klad_lab::server::RunningServer;

use crate::Verdict;
use crate::profile_cost::cpu_of;
use crate::setup::{ProgramArgs, Setup, grouped, mebibytes};

/// The entries of one batch.
const ITEMS: u64 = 1_000;

/// The most that an entry of a batch may cost, as a share of a single PUT.
const CPU_SHARE_MAX: f64 = 0.1;

/// The least number of entries a second through batches.
const BATCHED_PER_S_MIN: f64 = 500_000.0;

/// The least number of entries a second of a scan.
const SCANNED_PER_S_MIN: f64 = 1_000_000.0;

/// The most by which a scan may lengthen the p99 of point reads beside it.
const P99_RATIO_MAX: f64 = 2.0;

/// By how much memory may grow during a scan, bytes: the block cache may still fill.
const SCAN_BYTES_MAX: u64 = 64 << 20;

/// The longest time of a fill or a scan.
const PATIENCE: Duration = Duration::from_mins(10);

/// Options of `bulk`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Rounds of the comparison of PUTs and batches.
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
    cpu_us_per_entry: f64,
    entries_per_s: f64,
}

fn batches(args: &Args, setup: &Setup, durability: &str) -> Result<bool> {
    let server = setup.serve(durability, &["--memory", "2GiB", "--durability", durability])?;
    let common = format!(
        "--keys 1000000 --key-order uniform --value-size 100B --closed --warm-up 0s --duration {}",
        args.duration
    );
    let (mut single, mut batched) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        single.push(cost(setup, &server, &format!("{common} --workload put --connections 64"), 1)?);
        let options = format!("{common} --workload put --connections 4 --batch {ITEMS}");
        batched.push(cost(setup, &server, &options, ITEMS)?);
    }
    server.stop()?;
    let cpu = |costs: &[Cost]| median(costs.iter().map(|cost| cost.cpu_us_per_entry));
    let share = cpu(&batched) / cpu(&single);
    let rate = median(batched.iter().map(|cost| cost.entries_per_s));
    let (cheap, fast) = (Verdict::of(share <= CPU_SHARE_MAX), Verdict::of(rate >= BATCHED_PER_S_MIN));
    println!(
        "{durability}: an entry costs {:.2} µs of CPU time in a PUT and {:.2} in a batch of {ITEMS}: {share:.3} of it",
        cpu(&single),
        cpu(&batched)
    );
    println!("  {}: at most {CPU_SHARE_MAX}", cheap.word());
    println!("  {rate:.0} entries a second through batches; {}: at least {BATCHED_PER_S_MIN:.0}", fast.word());
    Ok(cheap == Verdict::Within && fast == Verdict::Within)
}

#[expect(clippy::cast_precision_loss, reason = "entries of seconds are far below 2^52")]
fn cost(setup: &Setup, server: &RunningServer, options: &str, items: u64) -> Result<Cost> {
    let before = cpu_of(server.pid())?;
    let result = setup.bench("bulk", &server.url(), options, PATIENCE)?;
    let used = cpu_of(server.pid())?.saturating_sub(before);
    let entries = (served(&result) * items) as f64;
    ensure!(entries > 0.0, "no request was served: {:?}", result.measured.statuses);
    Ok(Cost {
        cpu_us_per_entry: used.as_secs_f64() * 1e6 / entries,
        entries_per_s: entries / result.measured.duration_s,
    })
}

#[expect(clippy::cast_precision_loss, reason = "entries are far below 2^52")]
fn scan(args: &Args, setup: &Setup) -> Result<bool> {
    let server = setup.serve("scan", &["--memory", "1GiB", "--durability", "async"])?;
    let reads = format!(
        "--key-format key{{:08}} --value-format value-{{:014}} --keys {} --key-order uniform --workload get",
        args.entries
    );
    let fill = format!("{reads} --fill {} --closed --warm-up 0s --duration 100ms", args.entries);
    setup.bench("fill", &server.url(), &fill, PATIENCE)?;
    let reads = format!("{reads} --rate 2k/s --connections 16 --lag-max 10s --warm-up 1s --duration 10s");
    let alone = p99_us(&setup.bench("alone", &server.url(), &reads, PATIENCE)?)?;
    let memory_before = server.memory_max().context("the kernel does not tell the process's memory")?;
    // A scan by itself, then scans one after the other as long as the point reads last.
    let began = Instant::now();
    let entries = read_scan(server.address)?;
    let rate = entries as f64 / began.elapsed().as_secs_f64();
    ensure!(entries == args.entries, "the scan has {entries} entries instead of {}", args.entries);
    let (stop, beside_entries) = (AtomicBool::new(false), AtomicU64::new(0));
    let beside = thread::scope(|scope| {
        let scanner = scope.spawn(|| -> Result<()> {
            while !stop.load(Ordering::Relaxed) {
                beside_entries.fetch_add(read_scan(server.address)?, Ordering::Relaxed);
            }
            Ok(())
        });
        let result = setup.bench("beside", &server.url(), &reads, PATIENCE);
        stop.store(true, Ordering::Relaxed);
        scanner.join().ok().context("the thread of the scans has panicked")??;
        p99_us(&result?)
    })?;
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
