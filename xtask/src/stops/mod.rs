//! `cargo xtask stops`: does a client notice when klad is stopped under load?
//!
//! ```text
//!   clients of five kinds ──▶ klad serve ◀── SIGTERM at a random instant
//!        until refused        same directory, started again: is every acknowledged write there?
//! ```
//!
//! klad may have fewer connections than there are clients, so that some wait to be accepted at any instant.

mod load;

use std::io::{IsTerminal as _, stderr};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bytesize::ByteSize;
use serde_json::json;

use crate::Verdict;
use crate::klad::{Addresses, Klad, ProgramArgs, Settings};
use crate::text::grouped;

use load::{Client, KINDS};

/// What klad promises normally: where no client keeps it waiting, and the disk does not. Hence of the median.
const STOP_MAX: Duration = Duration::from_secs(1);

/// Clients that wait to be accepted.
const WAITING: usize = 2;

/// Options of `stops`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Times that klad is stopped.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Clients of each of five kinds.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=200))]
    clients: u64,
    /// Klad's --execution.
    #[arg(long, value_name = "STRATEGY", default_value = "adaptive")]
    execution: String,
    /// Klad's --engine.
    #[arg(long, value_name = "ENGINE", default_value = "rocksdb")]
    engine: String,
    /// Klad's --drain-timeout.
    #[arg(long, value_name = "TIME", default_value = "5s")]
    drain_timeout: humantime::Duration,
    /// Chooses the instants of the stops, and what clients do [default: another one each time].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Default)]
struct Report {
    clients: usize,
    /// Answered requests, and those of them that were refused, by 503.
    requests: u64,
    refused: u64,
    /// What clients should never see, in words.
    failures: Vec<String>,
    /// Acknowledged writes that were not there after a start, in words.
    lost: Vec<String>,
    /// From SIGTERM to the end of the process, which ended with 0; at least one.
    stops: Vec<Duration>,
    elapsed: Duration,
}

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    // Before the work, for when it fails.
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let directory = tempfile::Builder::new().prefix("klad-xtask-").tempdir().context("no temporary directory")?;
    let kinds = KINDS.repeat(usize::try_from(args.clients)?);
    let drain_timeout = args.drain_timeout.to_string();
    let more = ["--execution", &args.execution, "--engine", &args.engine, "--drain-timeout", &drain_timeout];
    let connections_max = (kinds.len() - WAITING).to_string();
    let settings = Settings {
        program: args.program.find()?,
        data: directory.path().join("data"),
        memory: ByteSize::gib(1),
        addresses: Addresses::any(),
        more: more.into_iter().chain(["--connections-max", &connections_max]).map(str::to_owned).collect(),
    };
    let mut clients = Client::all(&kinds, &mut random);
    let mut report = Report { clients: clients.len(), ..Report::default() };
    let started = Instant::now();
    for round in 1..=args.rounds {
        report.round(args, &settings, &mut clients, &mut random).with_context(|| format!("stop {round}"))?;
        if stderr().is_terminal() {
            eprint!("\r\x1b[Kstops: {round} of {}", args.rounds);
        }
    }
    if stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    let mut klad = Klad::start(&settings)?;
    let address = klad.wait_for_start_line()?.data;
    report.compare(address, &mut clients, args);
    klad.stop()?;
    report.elapsed = started.elapsed();
    for client in &clients {
        report.requests += client.answered;
        report.refused += client.refused;
    }
    if args.json {
        println!("{}", report.json(args, seed));
    } else {
        report.print(args, seed);
    }
    Ok(report.verdict())
}

impl Report {
    /// Starts, looks for what was acknowledged before, loads, stops.
    fn round(
        &mut self,
        args: &Args,
        settings: &Settings,
        clients: &mut [Client],
        random: &mut fastrand::Rng,
    ) -> Result<()> {
        let mut klad = Klad::start(settings)?;
        let address = klad.wait_for_start_line()?.data;
        self.compare(address, clients, args);
        let stopping = AtomicBool::new(false);
        let then = Duration::from_micros(random.u64(20_000..300_000));
        let (stopped, ends) = thread::scope(|scope| {
            let stopping = &stopping;
            let running: Vec<_> =
                clients.iter_mut().map(|client| scope.spawn(move || client.run(address, stopping))).collect();
            thread::sleep(then);
            stopping.store(true, Ordering::SeqCst);
            let stopped = klad.stop();
            let ends: Vec<_> = running.into_iter().map(thread::ScopedJoinHandle::join).collect();
            (stopped, ends)
        });
        self.stops.push(stopped?);
        for end in ends {
            if let Err(why) = end.unwrap_or_else(|_| Err("a client has panicked".to_owned())) {
                eprintln!("stop {}: {why}", self.stops.len());
                self.failures.push(why);
            }
        }
        Ok(())
    }

    /// Looks for what was acknowledged before a start.
    fn compare(&mut self, address: SocketAddr, clients: &mut [Client], args: &Args) {
        for client in clients {
            if args.engine == "memory" {
                client.forget();
            }
            if let Err(why) = client.compare(address) {
                eprintln!("after stop {}: {why}", self.stops.len());
                self.lost.push(why);
                // Once is enough.
                client.forget();
            }
        }
    }

    /// Shortest, median and longest.
    fn times(&self) -> [Duration; 3] {
        let mut times = self.stops.clone();
        times.sort_unstable();
        [0, times.len() / 2, times.len() - 1].map(|position| times[position])
    }

    fn verdict(&self) -> Verdict {
        Verdict::of(self.failures.is_empty() && self.lost.is_empty() && self.times()[1] < STOP_MAX)
    }

    fn print(&self, args: &Args, seed: u64) {
        let Report { clients, requests, refused, failures, lost, stops, elapsed } = self;
        println!(
            "klad with --engine {} --execution {}: {} stops under the load of {clients} clients, seed {seed}, in {:.1} s",
            args.engine,
            args.execution,
            stops.len(),
            elapsed.as_secs_f64()
        );
        println!("{} requests, {} of them refused for load by 503", grouped(*requests), grouped(*refused));
        println!("failed requests: {}; acknowledged writes that were lost: {}", failures.len(), lost.len());
        let [min, median, max] = self.times().map(|time| time.as_millis());
        println!("exit code 0 each time; from SIGTERM to the end: min {min} ms, median {median} ms, max {max} ms");
        println!(
            "{} the bound: no failure, none lost, the median stop in less than {STOP_MAX:?}",
            self.verdict().word()
        );
    }

    fn json(&self, args: &Args, seed: u64) -> serde_json::Value {
        json!({
            "chore": "stops",
            "engine": args.engine,
            "execution": args.execution,
            "clients": self.clients,
            "seed": seed,
            "requests": self.requests,
            "refused": self.refused,
            "failures": self.failures,
            "lost": self.lost,
            "stop_seconds": self.stops.iter().map(Duration::as_secs_f64).collect::<Vec<_>>(),
            "bound_seconds": STOP_MAX.as_secs_f64(),
            "within": self.verdict() == Verdict::Within,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_the_bounds_counts() {
        let report = || Report { stops: vec![Duration::from_millis(300)], ..Report::default() };
        assert_eq!(report().verdict(), Verdict::Within);
        assert_eq!(Report { failures: vec![String::new()], ..report() }.verdict(), Verdict::Exceeded);
        assert_eq!(Report { lost: vec![String::new()], ..report() }.verdict(), Verdict::Exceeded);
        assert_eq!(Report { stops: vec![STOP_MAX], ..report() }.verdict(), Verdict::Exceeded);
    }
}
