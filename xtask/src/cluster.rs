//! `cargo xtask cluster` measures klad on Cassandra, and compares it with the same requests without klad.
//!
//! ```text
//!   klad bench ─HTTP─▶ klad ─CQL─▶ three Cassandra nodes    in turn, on the same cores and the same keys
//!   direct ───────────────CQL────▶
//! ```
//!
//! The direct side uses klad's driver, statements, rows and levels (see `direct`), so the difference between the two
//! sides is what klad costs. Everything runs on one machine and shares its cores. So the figures show what klad adds,
//! not what a cluster can do. Bounds are printed with a verdict. Only a wrong answer, such as a scan out of order,
//! fails the measurement.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use klad_bench::interrupt;
use klad_bench::units::Rate;

use crate::Verdict;
use crate::setup::{ProgramArgs, Setup};

mod counters;
mod direct;
mod figures;
mod nodes;
mod points;
mod scans;
mod store;

use nodes::Nodes;

/// The bytes of the values of point requests.
const VALUE_BYTES: usize = 100;

/// The number of requests in flight of closed loads, and of clients that add to the counter.
const CLIENTS: usize = 64;

/// The longest time of a fill. [`Setup::bench`] kills it two minutes later.
const PATIENCE: Duration = Duration::from_mins(30);

/// Options of `cluster`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Parts to measure, separated by commas. The cluster starts whatever the parts are.
    #[arg(long, value_enum, value_name = "PART,...", value_delimiter = ',')]
    #[arg(default_values_t = Part::value_variants().to_vec())]
    parts: Vec<Part>,
    /// Rate of each open load: direct and through klad, GET and PUT. Choose a rate that the machine serves with ease,
    /// because queues would hide what klad adds.
    #[arg(long, value_name = "RATE", default_value = "500/s")]
    rate: Rate,
    /// Rounds of each comparison. The tables show the median of the rounds, and in brackets the least and the greatest.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of each load.
    #[arg(long, value_name = "TIME", default_value = "10s")]
    duration: humantime::Duration,
    /// Number of keys of the point requests. They are stored before the first load.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Entries of the large scan, spread over all buckets. The directory that is scanned alone has a tenth of this
    /// number.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(10..=99_999_999))]
    entries: u64,
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Response and CPU time of GET and PUT at a moderate rate.
    Points,
    /// Requests per second with 64 in flight: direct, through one klad, through two.
    Capacity,
    /// 64 clients add to one counter, at one klad and at three.
    Counters,
    /// A scan of one directory, and one of everything.
    Scans,
}

/// Runs the measurement.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    nodes::check_installed()?;
    let setup = Setup::unpinned(&args.program)?;
    let has = |part| args.parts.contains(&part);
    let load_average = std::fs::read_to_string("/proc/loadavg").context("cannot read the load of the machine")?;
    let load_average = load_average.split(' ').next().unwrap_or_default();
    eprintln!("starting three Cassandra nodes");
    let nodes = Nodes::start(&setup)?;
    println!(
        "klad on three Cassandra nodes. Nodes, klads and load generators share {} cores. Rounds: {} of {}. Figures are \
         the medians (least to greatest). Load average of the machine before the start: {load_average}.",
        std::thread::available_parallelism()?,
        args.rounds,
        args.duration
    );
    if has(Part::Points) || has(Part::Capacity) {
        let points = points::Points::prepare(args, &setup, &nodes)?;
        if has(Part::Points) {
            points.open()?;
        }
        if has(Part::Capacity) {
            points.capacity()?;
        }
    }
    if has(Part::Counters) {
        counters::run(args, &nodes)?;
    }
    if has(Part::Scans) {
        scans::run(args, &setup, &nodes)?;
    }
    Ok(Verdict::Within)
}

/// Stores `count` keys through batches of klad. Returns the number of entries a second.
fn fill(setup: &Setup, url: &str, format: &str, count: u64, value_bytes: usize) -> Result<f64> {
    let options = format!(
        "--workload get --key-format {format} --keys {count} --value-size {value_bytes}B --fill {count} --closed \
         --connections 4 --warm-up 0s --duration 1ms"
    );
    let begin = std::time::Instant::now();
    setup.bench("fill", url, &options, PATIENCE)?;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

/// Fails if Ctrl-C was pressed.
fn go_on() -> Result<()> {
    ensure!(!interrupt::asked(), "interrupted");
    Ok(())
}
