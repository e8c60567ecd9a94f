//! `cargo xtask yardstick`: what does a request cost klad, held against the least that it can cost?
//!
//! ```text
//!   echo, nginx, klad × 5 (memory, GET, GET zipfian, PUT async, PUT sync), Redis    one core
//!      ▲
//!      └── wrk, one at a time: echo ─ nginx ─ echo ─ memory ─ echo ─ GET ─ echo ─ …  the other
//! ```
//!
//! What neighbours take from a machine changes from one second to the next by more than what is compared here. So a round is cut
//! into slices of a second, each lies between two of the echo, and its ratio is to the mean of those. CPU time is that of the
//! server's process, from the kernel's account of its threads; of PUTs it counts until the next slice of the same server, so
//! that flushes and compactions are in it.

pub(crate) mod echo;
mod redis;
mod report;
pub(crate) mod subjects;
mod wrk;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use self::redis::Redis;
use self::report::{Beside, Report, Sample};
use self::subjects::{Bench, SUBJECTS, Server, Subject};
use crate::Verdict;
use crate::cores::Cores;
use crate::entries::Entries;
use crate::klad::ProgramArgs;
use crate::process::cpu_of;

/// Bytes of each value.
const VALUE_BYTES: usize = 100;

/// Connections of each run of wrk.
const CONNECTIONS: [u64; 2] = [64, 256];

/// Requests that tell how many Redis does in a round.
const REDIS_TRIAL: u64 = 20_000;

/// Options of `yardstick`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Rounds of each subject.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Slices of a round, a second each.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    slices: u64,
    /// Keys.
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1000..=9_999_999))]
    keys: u64,
    /// Only 64 connections, for which the bounds are.
    #[arg(long)]
    only_64: bool,
    /// Only these of klad's subjects, by parts of their names; without Redis.
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
    /// Writes the report there.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Writes all figures there.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the ratios there, as SVG.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
}

const SLICE: Duration = Duration::from_secs(1);

/// A server with what was asked of it last.
struct Measured {
    subject: Subject,
    server: Server,
    /// Of one whose work goes on after its answers: the sample that it belongs to, and its CPU time before that.
    open: Option<(usize, Duration)>,
}

struct Lab<'a> {
    args: &'a Args,
    cores: Cores,
    directory: &'a Path,
    echo: Server,
    servers: Vec<Measured>,
    samples: Vec<Sample>,
}

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let program = args.program.find()?;
    for program in ["wrk", "nginx", "redis-server"] {
        // Whatever it says of its version.
        let found = Command::new(program).arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.with_context(|| format!("cannot run {program}: tools/setup.sh yardstick brings it"))?;
    }
    let cores = Cores::choose()?;
    let directory = tempfile::Builder::new().prefix("klad-xtask-").tempdir().context("no temporary directory")?;
    let entries = Entries { count: args.keys, value_bytes: VALUE_BYTES };
    let bench = Bench { program: &program, core: cores.server, directory: directory.path(), entries };
    let wanted = |subject: &Subject| args.only.as_ref().is_none_or(|word| subject.name().contains(word.as_str()));
    let start = |subject: Subject| {
        eprintln!("xtask: starting {}", subject.name());
        let server = bench.start(subject).with_context(|| subject.name())?;
        Ok(Measured { subject, server, open: None })
    };
    // Of the same data, GET and GET zipfian have one server.
    let servers: Result<Vec<_>> =
        SUBJECTS.into_iter().filter(wanted).filter(|s| *s != Subject::GetZipf).map(start).collect();
    let echo = bench.start(Subject::Echo)?;
    let mut lab = Lab { args, cores, directory: directory.path(), echo, servers: servers?, samples: Vec::new() };
    let redis = if args.only.is_none() { lab.redis()? } else { Vec::new() };
    let connections = if args.only_64 { &CONNECTIONS[..1] } else { &CONNECTIONS };
    // Not counted: caches of all kinds are filled.
    lab.cycle(CONNECTIONS[0])?;
    lab.finish()?;
    lab.samples.clear();
    let mut beside = Vec::new();
    for round in 0..args.rounds {
        eprintln!("xtask: round {} of {}", round + 1, args.rounds);
        for connections in connections {
            for _ in 0..args.slices {
                lab.cycle(*connections)?;
            }
            for (name, redis) in &redis {
                beside.push(lab.beside(name, redis, *connections)?);
            }
        }
    }
    lab.finish()?;
    let report = Report::new(args.keys, &lab.samples, &beside, lab.resident()?);
    print!("{}", report.table());
    if let Some(path) = &args.markdown {
        fs::write(path, report.markdown()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.json {
        fs::write(path, report.json()?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.picture {
        fs::write(path, report.picture()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(report.judge())
}

impl Lab<'_> {
    /// One slice of each subject, each between two of the echo.
    fn cycle(&mut self, connections: u64) -> Result<()> {
        let mut before = self.echo_slice(connections)?;
        for number in 0..self.servers.len() {
            let subject = self.servers[number].subject;
            before = self.slice(number, subject, connections, before)?;
            if subject == Subject::Get {
                before = self.slice(number, Subject::GetZipf, connections, before)?;
            }
        }
        Ok(())
    }

    /// CPU time of a request to the echo, microseconds.
    fn echo_slice(&mut self, connections: u64) -> Result<f64> {
        let before = cpu_of(self.echo.pid)?;
        let seen = self.load(&self.echo, Subject::Echo, connections)?;
        let used = cpu_of(self.echo.pid)?.saturating_sub(before);
        let cost_us = used.as_secs_f64() * 1e6 / seen.requests;
        self.samples.push(Sample { subject: Subject::Echo, connections, seen, cost_us, echo_us: cost_us });
        Ok(cost_us)
    }

    fn slice(&mut self, number: usize, subject: Subject, connections: u64, echo_before: f64) -> Result<f64> {
        self.close(number)?;
        let server = &self.servers[number].server;
        let before = cpu_of(server.pid)?;
        let seen = self.load(server, subject, connections)?;
        let used = cpu_of(server.pid)?.saturating_sub(before);
        let cost_us = used.as_secs_f64() * 1e6 / seen.requests;
        let at = self.samples.len();
        self.samples.push(Sample { subject, connections, seen, cost_us, echo_us: echo_before });
        if subject.works_on() {
            self.servers[number].open = Some((at, before));
        }
        let echo_after = self.echo_slice(connections)?;
        self.samples[at].echo_us = f64::midpoint(echo_before, echo_after);
        Ok(echo_after)
    }

    /// What a server has done since its last slice belongs to that.
    fn close(&mut self, number: usize) -> Result<()> {
        let measured = &mut self.servers[number];
        if let Some((at, before)) = measured.open.take() {
            let used = cpu_of(measured.server.pid)?.saturating_sub(before);
            let sample = &mut self.samples[at];
            sample.cost_us = used.as_secs_f64() * 1e6 / sample.seen.requests;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        (0..self.servers.len()).try_for_each(|number| self.close(number))
    }

    fn load(&self, server: &Server, subject: Subject, connections: u64) -> Result<wrk::Seen> {
        let load = subject.load();
        wrk::run(
            server.address,
            &load,
            subject.keys(self.args.keys),
            connections,
            SLICE,
            self.cores.client,
            self.directory,
        )
        .with_context(|| subject.name())
    }

    /// Each Redis, with its name.
    fn redis(&self) -> Result<Vec<(&'static str, Redis)>> {
        let start = |(name, fsync): (&'static str, &str)| {
            let port = TcpListener::bind(echo::any_port())?.local_addr()?.port();
            Ok((name, Redis::start(fsync, port, &self.directory.join(fsync), self.cores.server)?))
        };
        [("Redis SET, appendfsync always", "always"), ("Redis SET, appendfsync everysec", "everysec")]
            .into_iter()
            .map(start)
            .collect()
    }

    /// A round of Redis, about as long as one of the others.
    #[expect(clippy::cast_precision_loss, reason = "requests of seconds are far below 2^52")]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number of requests")]
    fn beside(&self, name: &'static str, redis: &Redis, connections: u64) -> Result<Beside> {
        let client = self.cores.client;
        let (rate, _) = redis.set(REDIS_TRIAL, connections, self.args.keys, client)?;
        let requests = (rate * SLICE.as_secs_f64() * self.args.slices as f64) as u64;
        ensure!(requests > 0, "Redis does nothing");
        let before = cpu_of(redis.pid())?;
        let (rate, latency_us) = redis.set(requests, connections, self.args.keys, client)?;
        let used = cpu_of(redis.pid())?.saturating_sub(before);
        Ok(Beside { name, connections, rate, latency_us, cost_us: used.as_secs_f64() * 1e6 / requests as f64 })
    }

    /// Resident memory of each server.
    fn resident(&self) -> Result<Vec<(Subject, u64)>> {
        let all = self.servers.iter().map(|measured| (measured.subject, &measured.server));
        let all = all.chain([(Subject::Echo, &self.echo)]);
        let resident = |(subject, server): (Subject, &Server)| {
            Ok((subject, crate::resident::of(server.pid.as_raw_nonzero().get().unsigned_abs())?.total))
        };
        all.map(resident).collect()
    }
}
