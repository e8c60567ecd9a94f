//! `cargo xtask bench-cost`: what does a request cost `klad bench`, held against wrk?
//!
//! ```text
//!   klad serve, memory engine, one thread, core A ◀── klad bench ─ wrk ─ klad bench ─ wrk ─ …, core B, one at a time
//! ```
//!
//! Both run in turn against the same server, so that what the machine takes from one round it takes from both. CPU time is
//! that of the whole process, its start and its report included.

mod wrk;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytesize::ByteSize;
use serde_json::{Value, json};

use crate::Verdict;
use crate::bench;
use crate::cores::{self, Cores};
use crate::http::Connection;
use crate::klad::{Addresses, Klad, ProgramArgs, Settings};
use crate::process::Ended;

/// Least rate, as a share of wrk's.
const RATE_MIN: f64 = 0.85;

/// Most CPU time for a request, as a multiple of wrk's.
const CPU_MAX: f64 = 1.3;

/// Connections of either client.
const CONNECTIONS: u64 = 64;

/// Bytes of the value.
const VALUE_BYTES: usize = 100;

/// Where all requests go.
const TARGET: &str = "/v0/entity?id=key";

/// Beyond the length of a round, before its client is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Options of `bench-cost`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Rounds of each client and method.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Length of a round.
    #[arg(long, value_name = "TIME", default_value = "5s")]
    duration: humantime::Duration,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Get,
    Put,
}

/// What a client has done in a round.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Requests per second.
    per_s: f64,
    /// CPU time of the client for a request, microseconds.
    cpu_us: f64,
}

/// One after the other.
#[derive(Clone, Copy, Debug)]
struct Round {
    klad: Cost,
    wrk: Cost,
}

/// All rounds of a method; at least one.
struct Series {
    method: Method,
    rounds: Vec<Round>,
}

/// What the clients run against.
struct Bed<'a> {
    program: &'a Path,
    url: String,
    cores: Cores,
    duration: Duration,
    directory: &'a Path,
}

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    ensure!(args.duration.subsec_nanos() == 0 && !args.duration.is_zero(), "wrk takes whole seconds only");
    wrk::find()?;
    let program = args.program.find()?;
    let cores = Cores::choose()?;
    let directory = tempfile::Builder::new().prefix("klad-xtask-").tempdir().context("no temporary directory")?;
    let settings = Settings {
        program: program.clone(),
        data: directory.path().join("data"),
        memory: ByteSize::mib(256),
        addresses: Addresses::any(),
        more: ["--engine", "memory", "--threads", "1"].map(str::to_owned).to_vec(),
    };
    let mut klad = cores::on(cores.server, || Klad::start(&settings))?;
    let address = klad.wait_for_start_line()?.data;
    write_key(&mut Connection::open(address)?)?;
    let url = format!("http://{address}{TARGET}");
    let bed = Bed { program: &program, url, cores, duration: *args.duration, directory: directory.path() };
    let mut all = Vec::new();
    for method in [Method::Get, Method::Put] {
        let series = Series { method, rounds: (0..args.rounds).map(|_| bed.round(method)).collect::<Result<_>>()? };
        if !args.json {
            series.print(args, cores);
        }
        all.push(series);
    }
    klad.stop()?;
    let verdict = Verdict::of(all.iter().all(|series| series.verdict() == Verdict::Within));
    if args.json {
        println!("{}", json(args, &all, verdict));
    }
    Ok(verdict)
}

fn write_key(connection: &mut Connection) -> Result<()> {
    let head = format!("PUT {TARGET} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {VALUE_BYTES}\r\n\r\n");
    connection.send(format!("{head}{}", value()).as_bytes())?;
    connection.answer()?.expect(201)
}

fn value() -> String {
    "v".repeat(VALUE_BYTES)
}

impl Bed<'_> {
    fn round(&self, method: Method) -> Result<Round> {
        Ok(Round { klad: self.klad(method)?, wrk: self.wrk(method)? })
    }

    fn klad(&self, method: Method) -> Result<Cost> {
        let mut arguments = vec![
            self.url.clone(),
            "--closed".to_owned(),
            "--threads=1".to_owned(),
            format!("--connections={CONNECTIONS}"),
            "--warm-up=0s".to_owned(),
            format!("--duration={}s", self.duration.as_secs()),
        ];
        if method == Method::Put {
            arguments.extend(["--method=PUT".to_owned(), format!("--body={}", value())]);
        }
        let wall_max = self.duration + PATIENCE;
        let (result, ended) = bench::run(self.program, &arguments, self.cores.client, wall_max, self.directory)?;
        let (served, all) = (result.measured.outcome("served"), result.measured.sent);
        // The few that were under way at the end are neither client's loss.
        let missing = all - served;
        ensure!(missing <= CONNECTIONS, "{missing} of {all} requests of klad bench were not served");
        Ok(Cost::new(served, as_f64(served) / result.measured.duration_s, ended))
    }

    fn wrk(&self, method: Method) -> Result<Cost> {
        let mut arguments = vec![format!("-c{CONNECTIONS}"), format!("-d{}s", self.duration.as_secs())];
        if method == Method::Put {
            let script = self.directory.join("put.lua");
            // Without a function `request` wrk makes the request once, as klad bench does.
            fs::write(&script, format!("wrk.method = \"PUT\"\nwrk.body = \"{}\"\n", value()))?;
            arguments.extend(["-s".to_owned(), script.display().to_string()]);
        }
        arguments.push(self.url.clone());
        let (done, ended) = wrk::run(&arguments, self.cores.client, self.duration + PATIENCE, self.directory)?;
        Ok(Cost::new(done.requests, done.per_s, ended))
    }
}

impl Cost {
    fn new(requests: u64, per_s: f64, ended: Ended) -> Cost {
        Cost { per_s, cpu_us: ended.cpu.as_secs_f64() * 1e6 / as_f64(requests) }
    }
}

impl Round {
    fn rate_ratio(&self) -> f64 {
        self.klad.per_s / self.wrk.per_s
    }

    fn cpu_ratio(&self) -> f64 {
        self.klad.cpu_us / self.wrk.cpu_us
    }
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Put => "PUT",
        }
    }
}

impl Series {
    /// Least, median and greatest of a figure over the rounds.
    fn spread(&self, figure: impl Fn(&Round) -> f64) -> [f64; 3] {
        let mut figures: Vec<f64> = self.rounds.iter().map(figure).collect();
        figures.sort_unstable_by(f64::total_cmp);
        let (lower, upper) = (figures[(figures.len() - 1) / 2], figures[figures.len() / 2]);
        [figures[0], f64::midpoint(lower, upper), figures[figures.len() - 1]]
    }

    /// By the medians of the rounds' ratios: what disturbs a round disturbs both of its clients.
    fn verdict(&self) -> Verdict {
        let ([_, rate, _], [_, cpu, _]) = (self.spread(Round::rate_ratio), self.spread(Round::cpu_ratio));
        Verdict::of(rate >= RATE_MIN && cpu <= CPU_MAX)
    }

    fn print(&self, args: &Args, cores: Cores) {
        println!(
            "{} of {VALUE_BYTES} bytes over {CONNECTIONS} connections, {} rounds of {}; server on core {}, client on core {}",
            self.method.name(),
            self.rounds.len(),
            args.duration,
            cores.server,
            cores.client
        );
        println!("{:<8}{:>24}{:>24}{:>20}", "", "klad bench", "wrk", "klad bench / wrk");
        let units = ("requests/s", "CPU µs each");
        println!(
            "{:<8}{:>12}{:>12}{:>12}{:>12}{:>10}{:>10}",
            "round", units.0, units.1, units.0, units.1, "rate", "CPU"
        );
        let line = |name: &str, [klad_rate, klad_cpu, wrk_rate, wrk_cpu, rate, cpu]: [f64; 6]| {
            println!(
                "{name:<8}{klad_rate:>12.0}{klad_cpu:>12.2}{wrk_rate:>12.0}{wrk_cpu:>12.2}{rate:>10.3}{cpu:>10.3}"
            );
        };
        for (index, round) in self.rounds.iter().enumerate() {
            line(&(index + 1).to_string(), FIGURES.map(|(_, figure)| figure(round)));
        }
        for (index, name) in ["least", "median", "most"].into_iter().enumerate() {
            line(name, FIGURES.map(|(_, figure)| self.spread(figure)[index]));
        }
        println!("{}: rate at least {RATE_MIN} of wrk's, CPU at most {CPU_MAX} of wrk's\n", self.verdict().word());
    }

    fn json(&self) -> Value {
        let round = |round: &Round| -> Value { FIGURES.iter().map(|(name, figure)| (*name, figure(round))).collect() };
        let spread = |(name, figure): &Figure| {
            let [least, median, most] = self.spread(figure);
            ((*name).to_owned(), json!({ "least": least, "median": median, "most": most }))
        };
        json!({
            "method": self.method.name(),
            "rounds": self.rounds.iter().map(round).collect::<Vec<_>>(),
            "spread": FIGURES.iter().map(spread).collect::<serde_json::Map<_, _>>(),
            "within": self.verdict() == Verdict::Within,
        })
    }
}

/// A figure of a round, and its name.
type Figure = (&'static str, fn(&Round) -> f64);

/// What is said of a round, in the order of the table's columns.
const FIGURES: [Figure; 6] = [
    ("klad_bench_per_s", |round| round.klad.per_s),
    ("klad_bench_cpu_us", |round| round.klad.cpu_us),
    ("wrk_per_s", |round| round.wrk.per_s),
    ("wrk_cpu_us", |round| round.wrk.cpu_us),
    ("rate_ratio", Round::rate_ratio),
    ("cpu_ratio", Round::cpu_ratio),
];

fn json(args: &Args, all: &[Series], verdict: Verdict) -> Value {
    json!({
        "chore": "bench-cost",
        "rounds": args.rounds,
        "duration_seconds": args.duration.as_secs_f64(),
        "connections": CONNECTIONS,
        "value_bytes": VALUE_BYTES,
        "rate_ratio_min": RATE_MIN,
        "cpu_ratio_max": CPU_MAX,
        "methods": all.iter().map(Series::json).collect::<Vec<_>>(),
        "within": verdict == Verdict::Within,
    })
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 requests")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(ratios: &[(f64, f64)]) -> Series {
        let wrk = Cost { per_s: 100.0, cpu_us: 10.0 };
        let round = |(rate, cpu): &(f64, f64)| Round { klad: Cost { per_s: 100.0 * rate, cpu_us: 10.0 * cpu }, wrk };
        Series { method: Method::Get, rounds: ratios.iter().map(round).collect() }
    }

    #[test]
    fn the_median_of_the_rounds_is_judged() {
        assert_eq!(series(&[(0.5, 2.0), (0.9, 1.2), (1.0, 1.1)]).verdict(), Verdict::Within);
        assert_eq!(series(&[(0.5, 1.0), (0.84, 1.0), (1.0, 1.0)]).verdict(), Verdict::Exceeded);
        assert_eq!(series(&[(1.0, 1.0), (1.0, 1.31), (1.0, 1.4)]).verdict(), Verdict::Exceeded);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_two() {
        let [least, median, most] = series(&[(4.0, 1.0), (1.0, 1.0), (2.0, 1.0), (3.0, 1.0)]).spread(Round::rate_ratio);
        assert_eq!([least, median, most].map(|ratio| format!("{ratio:.2}")), ["1.00", "2.50", "4.00"]);
    }
}
