//! `cargo xtask slow-clients`: what does it cost everyone else when thousands of clients are slow or hostile?
//!
//! ```text
//!   small load: 950 reads and writes of 100 bytes a second ──┐
//!   large load: 50 writes of 16 KiB a second ────────────────┼──▶ klad serve
//!   10,000 idle, 1,000 dripping bodies, 1,000 that never read ┘    in turns: with them, without them
//! ```
//!
//! Last the same with body deadlines off, which must fail.

mod attackers;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytesize::ByteSize;

use crate::Verdict;
use crate::bench::{self, Section};
use crate::http::Connection;
use crate::klad::{Addresses, Klad, ProgramArgs, Settings};
use crate::process::raise_descriptor_limit;
use crate::resident::Sampler;
use crate::text::{grouped, mebibytes};

use attackers::{Attackers, LARGE};

/// Idle, dripping, never reading.
const CLIENTS: [usize; 3] = [10_000, 1_000, 1_000];

/// Bytes of what is never read.
const LARGE_BYTES: usize = 1 << 20;

/// Klad's memory budget, and what is allowed beside it and a tenth of it, as in `memory`.
const MEMORY: ByteSize = ByteSize(1 << 30);
const FREE_BYTES: u64 = 64 << 20;

/// Of the quiet 99th percentile.
const P99_MAX: f64 = 2.0;

/// A 99th percentile is that of all requests: with more of them refused or failed there is none.
const UNSERVED_MAX: f64 = 0.01;

/// Before what is measured.
const WARM_UP: Duration = Duration::from_secs(1);

/// After the attack has begun: the first bodies are past their deadline.
const SETTLED: Duration = Duration::from_secs(12);

/// Beyond the length of a run, before it is killed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Options of `slow-clients`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Rounds, each without and with the slow clients.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Length of each measurement.
    #[arg(long, value_name = "TIME", default_value = "10s")]
    duration: humantime::Duration,
}

/// A part of the normal load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Small,
    Large,
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Load::Small => "950/s, 100 bytes, 90 % GET",
            Load::Large => "50/s, PUT of 16 KiB",
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Load::Small => {
                &["--workload", "mixed:90/10", "--rate", "950/s", "--value-size", "100", "--connections", "32"]
            }
            Load::Large => &["--workload", "put", "--rate", "50/s", "--value-size", "16KiB", "--connections", "8"],
        }
    }
}

/// What the normal load got in one measurement.
#[derive(Clone, Copy, Debug)]
struct Got {
    p50_us: f64,
    /// Infinite where too many were not served.
    p99_us: f64,
    /// Share that was refused, failed or timed out.
    unserved: f64,
}

impl Got {
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    fn of(section: &Section) -> Got {
        let good = section.outcome("served") + section.outcome("not_found");
        let unserved = 1.0 - good as f64 / section.scheduled.max(1) as f64;
        let at = |percent| section.response.at(percent).unwrap_or(f64::INFINITY);
        let p99_us = if unserved > UNSERVED_MAX { f64::INFINITY } else { at(99.0) };
        Got { p50_us: at(50.0), p99_us, unserved }
    }

    /// The middle of several measurements, each figure for itself.
    fn middle(all: &[Got]) -> Got {
        let middle = |figure: fn(&Got) -> f64| {
            let mut figures: Vec<f64> = all.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        Got { p50_us: middle(|got| got.p50_us), p99_us: middle(|got| got.p99_us), unserved: middle(|got| got.unserved) }
    }
}

/// Quiet and attacked, round by round, of one load.
#[derive(Clone, Debug, Default)]
struct Series {
    quiet: Vec<Got>,
    attacked: Vec<Got>,
}

impl Series {
    fn ratio(&self) -> f64 {
        Got::middle(&self.attacked).p99_us / Got::middle(&self.quiet).p99_us
    }

    fn is_within(&self) -> bool {
        self.ratio() <= P99_MAX
    }
}

/// What one server went through.
struct Report {
    small: Series,
    large: Series,
    /// Open at the end and cut so far, by kind.
    clients: [(u64, u64); 3],
    resident: u64,
}

impl Report {
    fn resident_max() -> u64 {
        MEMORY.0 + MEMORY.0 / 10 + FREE_BYTES
    }

    fn verdict(&self) -> Verdict {
        let attacked = self.clients[0].0 >= CLIENTS[0] as u64 * 99 / 100;
        let within = self.small.is_within() && self.large.is_within() && self.resident <= Report::resident_max();
        Verdict::of(attacked && within)
    }

    fn print(&self) {
        println!("{:<30}{:>10}{:>12}{:>12}{:>14}", "load", "", "p50", "p99", "not served");
        for (load, series) in [(Load::Small, &self.small), (Load::Large, &self.large)] {
            for (name, all) in [("quiet", &series.quiet), ("attacked", &series.attacked)] {
                let Got { p50_us, p99_us, unserved } = Got::middle(all);
                let ms = |us: f64| if us.is_finite() { format!("{:.2} ms", us / 1e3) } else { "-".to_owned() };
                let share = format!("{:.2} %", unserved * 100.0);
                println!("{:<30}{name:>10}{:>12}{:>12}{share:>14}", load.name(), ms(p50_us), ms(p99_us));
            }
            println!("{:<30}{:>10}{:>24.2}", "", "ratio", series.ratio());
        }
        for (name, (open, cut)) in ["idle", "dripping", "never reading"].into_iter().zip(self.clients) {
            println!("{name}: {} open at the end, {} cut", grouped(open), grouped(cut));
        }
        println!("resident memory {}, bound {}", mebibytes(self.resident), mebibytes(Report::resident_max()));
        println!("{}", self.verdict().word());
    }
}

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let program = args.program.find()?;
    raise_descriptor_limit();
    println!("protected, {} rounds of {}", args.rounds, args.duration);
    let report = measure(&program, args.rounds, *args.duration, &[])?;
    report.print();
    println!("\ntwin: the same with body deadlines off");
    let off = ["--body-timeout", "1h", "--body-rate-min", "0"];
    let twin = measure(&program, 1, *args.duration, &off)?;
    twin.print();
    // By what deadlines are for: room that nobody gives back.
    let fails = Got::middle(&twin.large.attacked).unserved > 0.5;
    println!("twin {}", if fails { "exceeds, as demanded" } else { "DOES NOT EXCEED" });
    Ok(Verdict::of(report.verdict() == Verdict::Within && fails))
}

fn measure(program: &Path, rounds: u64, duration: Duration, more: &[&str]) -> Result<Report> {
    let directory = tempfile::Builder::new().prefix("klad-xtask-").tempdir().context("no temporary directory")?;
    let server = ["--durability", "sync", "--connections-max", "12500", "--idle-timeout", "1h"];
    let settings = Settings {
        program: program.to_owned(),
        data: directory.path().join("data"),
        memory: MEMORY,
        addresses: Addresses::any(),
        more: server.iter().chain(more).map(|word| (*word).to_owned()).collect(),
    };
    let mut klad = Klad::start(&settings)?;
    let address = klad.wait_for_start_line()?.data;
    let sampler = Sampler::start(klad.pid().as_raw_nonzero().get().unsigned_abs(), "all")?;
    write_large(address)?;
    let bed = Bed { program, address, duration, directory: directory.path() };
    let (mut small, mut large) = (Series::default(), Series::default());
    let mut clients = [(0, 0); 3];
    for _ in 0..rounds {
        let (one, other) = bed.load()?;
        small.quiet.push(one);
        large.quiet.push(other);
        let attackers = Attackers::start(address, CLIENTS)?;
        thread::sleep(SETTLED);
        let (one, other) = bed.load()?;
        small.attacked.push(one);
        large.attacked.push(other);
        for ((open, cut), counts) in clients.iter_mut().zip(&*attackers.counts) {
            *open = counts.open.load(Ordering::Relaxed);
            *cut += counts.cut.load(Ordering::Relaxed);
        }
        attackers.end()?;
    }
    let (phases, high_water) = sampler.finish()?;
    let resident = phases.iter().map(|phase| phase.peak.total).fold(high_water, u64::max);
    klad.stop()?;
    Ok(Report { small, large, clients, resident })
}

fn write_large(address: SocketAddr) -> Result<()> {
    let mut connection = Connection::open(address)?;
    let head = format!("PUT {LARGE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {LARGE_BYTES}\r\n\r\n");
    connection.send(head.as_bytes())?;
    connection.send(&vec![b'x'; LARGE_BYTES])?;
    connection.answer()?.expect(201)
}

struct Bed<'a> {
    program: &'a Path,
    address: SocketAddr,
    duration: Duration,
    directory: &'a Path,
}

impl Bed<'_> {
    /// Both parts of the normal load, at once.
    fn load(&self) -> Result<(Got, Got)> {
        thread::scope(|scope| {
            let small = scope.spawn(|| self.bench(Load::Small));
            let large = scope.spawn(|| self.bench(Load::Large));
            let small = small.join().ok().context("a thread has panicked")??;
            let large = large.join().ok().context("a thread has panicked")??;
            Ok((small, large))
        })
    }

    fn bench(&self, load: Load) -> Result<Got> {
        let directory = self.directory.join(if load == Load::Small { "small" } else { "large" });
        std::fs::create_dir_all(&directory)?;
        let mut arguments = vec![format!("http://{}", self.address)];
        arguments.extend(load.options().iter().map(|word| (*word).to_owned()));
        let [warm_up, duration] = [WARM_UP, self.duration].map(|time| humantime::format_duration(time).to_string());
        // The keys of the small load, of which some are there and some are not.
        let common = [
            "--keys",
            "10000",
            "--key-order",
            "uniform",
            "--threads",
            "1",
            "--timeout",
            "5s",
            "--warm-up",
            &warm_up,
            "--duration",
            &duration,
        ];
        arguments.extend(common.map(str::to_owned));
        let wall_max = WARM_UP + self.duration + PATIENCE;
        let (result, _) = bench::run_anywhere(self.program, &arguments, wall_max, &directory)?;
        Ok(Got::of(&result.measured))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn got(p99_us: f64) -> Got {
        Got { p50_us: 1.0, p99_us, unserved: 0.0 }
    }

    fn series(quiet: &[f64], attacked: &[f64]) -> Series {
        let all = |figures: &[f64]| figures.iter().copied().map(got).collect();
        Series { quiet: all(quiet), attacked: all(attacked) }
    }

    #[test]
    fn the_middle_round_decides() {
        assert!(series(&[1.0, 1.0, 9.0], &[2.0, 2.0, 99.0]).is_within());
        assert!(!series(&[1.0, 1.0, 9.0], &[2.0, 2.1, 99.0]).is_within());
    }

    #[test]
    fn twin_what_is_not_served_is_infinitely_late() {
        assert!(!series(&[1.0], &[f64::INFINITY]).is_within());
        assert!(
            !series(&[f64::INFINITY], &[f64::INFINITY]).is_within(),
            "a quiet server that does not serve shows nothing"
        );
    }
}
