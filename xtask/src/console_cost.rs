//! `cargo xtask console-cost` measures how much CPU time per request open consoles cost.
//!
//! ```text
//!   klad ◀── klad bench, closed        klad ◀── klad bench, closed     both at once, on the same cores
//!     ◀── consoles: streams of samples
//! ```
//!
//! The two servers of a round run at the same time, and change places from round to round, as in `profile_cost`. The
//! CPU time is that of all of klad's threads, so it includes the work of the admin thread for the consoles. The first
//! comparison is a control: neither klad has consoles. klad also takes samples without a console, so both sides have
//! this cost.

use std::io::{BufRead as _, BufReader};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use klad_bench::recorder::Outcome;
use klad_lab::server::RunningServer;

use crate::Verdict;
use crate::profile_cost::{cpu_of, judge, median_interval};
use crate::setup::{ProgramArgs, Setup};

/// The largest allowed CPU time per request with open consoles, as a multiple of the time without consoles.
const RATIO_MAX: f64 = 1.01;

/// How long a load may run beyond its length. [`Setup::bench`] kills it two minutes later.
const PATIENCE: Duration = Duration::from_secs(30);

/// Options of `console-cost`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Rounds of each comparison.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of each load.
    #[arg(long, value_name = "TIME", default_value = "3s")]
    duration: humantime::Duration,
    /// Number of open consoles.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    consoles: u32,
}

/// Runs the measurement.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let setup = Setup::new(&args.program)?;
    let start = |name| setup.serve(name, &["--memory", "1GiB", "--threads", "1"]);
    let servers = [start("first")?, start("second")?];
    for server in &servers {
        load(&setup, server, "put", args)?;
    }
    println!("CPU time of klad per request, {} rounds of {}: median ratio (95 % interval)", args.rounds, args.duration);
    let mut within = true;
    for (workload, consoles) in [("get", 0), ("get", args.consoles), ("put", args.consoles)] {
        let mut ratios = Vec::new();
        for round in 0..args.rounds {
            let place = usize::from(round % 2 == 1);
            let (with, without) = thread::scope(|scope| {
                let without = scope.spawn(|| cost(&setup, &servers[1 - place], workload, 0, args));
                (cost(&setup, &servers[place], workload, consoles, args), without.join())
            });
            ratios.push(with? / without.ok().context("a load has panicked")??);
        }
        let [low, median, high] = median_interval(ratios);
        let (verdict, words) = judge(low, high, RATIO_MAX);
        println!("  {workload}, {consoles} consoles{median:>9.4} ({low:.4} to {high:.4}) {words}");
        within &= verdict == Verdict::Within;
    }
    for server in servers {
        server.stop()?;
    }
    println!("  both also take samples");
    let (verdict, allowed) = (Verdict::of(within), (RATIO_MAX - 1.0) * 100.0);
    println!("{}: {} open consoles cost less than {allowed:.0} %", verdict.word(), args.consoles);
    Ok(verdict)
}

/// Returns the CPU time per request while `consoles` consoles are open, microseconds.
fn cost(setup: &Setup, server: &RunningServer, workload: &str, consoles: u32, args: &Args) -> Result<f64> {
    let admin = server.admin.as_ref().context("klad has an admin address")?;
    let url = format!("http://{}/console/events", admin.url.authority);
    let stop = &AtomicBool::new(false);
    let read = move |mut lines: Lines| -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            lines.next().context("the stream has ended")??;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let streams = (0..consoles).map(|_| open(&url)).collect::<Result<Vec<_>>>()?;
        let readers: Vec<_> = streams.into_iter().map(|lines| scope.spawn(move || read(lines))).collect();
        let measured = (|| {
            let before = cpu_of(server.pid())?;
            let requests = load(setup, server, workload, args)?;
            Ok(cpu_of(server.pid())?.saturating_sub(before).as_secs_f64() * 1e6 / requests)
        })();
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().ok().context("a console has panicked")??;
        }
        measured
    })
}

/// The lines of a stream of samples.
type Lines = std::io::Lines<BufReader<ureq::BodyReader<'static>>>;

/// Opens a console, and reads its stream up to the first new sample. klad first sends the samples of the last minutes.
fn open(url: &str) -> Result<Lines> {
    let mut lines = BufReader::new(ureq::get(url).call().context("no stream")?.into_body().into_reader()).lines();
    while lines.next().context("the stream has ended")?? != "event: sample" {}
    Ok(lines)
}

/// Loads a server. Returns the number of requests that were served.
#[expect(clippy::cast_precision_loss, reason = "requests of seconds are far below 2^52")]
fn load(setup: &Setup, server: &RunningServer, workload: &str, args: &Args) -> Result<f64> {
    let options = format!(
        "--workload {workload} --keys 1000 --value-size 100B --closed --threads 1 --connections 64 --warm-up 0s \
         --duration {}ms",
        args.duration.as_millis()
    );
    let url = format!("http://{}/v1/kv/{{key}}?durability=async", server.address);
    let url = if workload == "put" { url } else { url.replace("?durability=async", "") };
    let name = format!("load-{}", server.address.port());
    let result = setup.bench(&name, &url, &options, *args.duration + PATIENCE)?;
    let count = result.measured.outcomes.get(&Outcome::Served).copied().unwrap_or_default();
    ensure!(count > 0, "no request was served: {:?}", result.measured.statuses);
    Ok(count as f64)
}
