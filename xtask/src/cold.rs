//! `cargo xtask cold`: what reads cost whose data no memory of klad holds, and whether anybody else waits for them.
//!
//! ```text
//!   fill of ten times --memory and more ─▶ compaction ─▶ for each of: direct reads, the kernel's page cache, and both with
//!   --execution inline, which waits on the worker:
//!     closed loop of GETs of any key          rate, latency, CPU time
//!     a key that is in memory, every 10 ms    latency: what the worker's loop makes everybody wait
//! ```
//!
//! klad has a core, load and probe the other. Each server starts anew: with empty caches of its own.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytesize::ByteSize;

use crate::Verdict;
use crate::bench;
use crate::cores::{self, Cores};
use crate::http::Connection;
use crate::klad::{Addresses, Klad, ProgramArgs, Settings};
use crate::metrics::Metrics;
use crate::process::cpu_of;
use crate::text::{grouped, mebibytes};

/// So many times the memory budget, at least.
const MULTIPLE: u64 = 10;

/// The 99th percentile of the probe, at most, while storage threads read: the loop does not wait for them.
const PROBE_P99_MAX: Duration = Duration::from_millis(5);

/// Between two probes.
const PROBE_EVERY: Duration = Duration::from_millis(10);

/// In memory, because it is asked for so often.
const PROBE: &str = "/v0/entity?id=probe";

/// Beyond the length of a run, before it is killed.
const PATIENCE: Duration = Duration::from_mins(2);

/// And for each key that is filled.
const FILL_OF_A_KEY_MAX: Duration = Duration::from_millis(1);

/// Servers that are compared: name, options, and whether the probe is judged.
const VARIANTS: [(&str, &[&str], bool); 4] = [
    ("direct reads", &["--direct-reads", "on"], true),
    ("page cache", &["--direct-reads", "off"], true),
    ("direct reads, inline", &["--direct-reads", "on", "--execution", "inline"], false),
    ("page cache, inline", &["--direct-reads", "off", "--execution", "inline"], false),
];

/// Options of `cold`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Length of each load.
    #[arg(long, value_name = "TIME", default_value = "20s")]
    duration: humantime::Duration,
    /// klad's memory budget.
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    memory: ByteSize,
    /// Bytes of each value, which no compression makes smaller.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    value_size: u64,
    /// Connections of the load.
    #[arg(long, value_name = "N", default_value_t = 64)]
    connections: u64,
}

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let cores = Cores::choose()?;
    let directory = tempfile::Builder::new().prefix("klad-xtask-").tempdir().context("no temporary directory")?;
    // A tenth more than what is asked for: what is compared is the size of the tables.
    let keys = MULTIPLE * args.memory.0 * 11 / 10 / args.value_size + 1;
    let lab = Lab { args, program: args.program.find()?, cores, keys, directory: directory.path().to_owned() };
    let data_bytes = lab.fill()?;
    println!(
        "{} keys, values of {} bytes: tables of {}, {} times --memory {}; klad on core {}, load of {} connections on core {}",
        grouped(keys),
        args.value_size,
        mebibytes(data_bytes),
        data_bytes / args.memory.0,
        args.memory,
        cores.server,
        args.connections,
        cores.client
    );
    println!(
        "| Reads | GETs/s | CPU µs each | from memory | p50 ms | p99 ms | p99.9 ms | probe p50 ms | probe p99 ms | probe max ms |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let mut within = true;
    for (name, more, judged) in VARIANTS {
        let probes = lab.measure(name, more).with_context(|| name)?;
        within &= !judged || at(&probes, 99) <= PROBE_P99_MAX;
    }
    let verdict = Verdict::of(within);
    println!("{}: whoever needs no disk waits {PROBE_P99_MAX:?} at most, 99 times in a hundred", verdict.word());
    Ok(verdict)
}

struct Lab<'a> {
    args: &'a Args,
    program: PathBuf,
    cores: Cores,
    keys: u64,
    directory: PathBuf,
}

impl Lab<'_> {
    fn start(&self, more: &[&str]) -> Result<(Klad, Addresses)> {
        let settings = Settings {
            program: self.program.clone(),
            data: self.directory.join("data"),
            memory: self.args.memory,
            addresses: Addresses::any(),
            more: ["--threads", "1"].iter().chain(more).map(|word| (*word).to_owned()).collect(),
        };
        let mut klad = cores::on(self.cores.server, || Klad::start(&settings))?;
        let addresses = klad.wait_for_start_line()?;
        Ok((klad, addresses))
    }

    /// Answers how many bytes of tables there are.
    fn fill(&self) -> Result<u64> {
        let (klad, addresses) = self.start(&[])?;
        self.load(addresses.data, Duration::from_secs(1), &["--fill", &self.keys.to_string()])?;
        Connection::open(addresses.admin)?.compact(PATIENCE)?;
        klad.stop()?;
        let bytes = table_bytes(&self.directory.join("data/rocksdb"))?;
        let wanted = MULTIPLE * self.args.memory.0;
        ensure!(bytes >= wanted, "the tables have {}, and were to have {}", mebibytes(bytes), mebibytes(wanted));
        Ok(bytes)
    }

    /// Prints a row; answers how long the probe waited, sorted.
    fn measure(&self, name: &str, more: &[&str]) -> Result<Vec<Duration>> {
        let (klad, addresses) = self.start(more)?;
        put_probe(addresses.data)?;
        let (pid, over) = (klad.pid(), AtomicBool::new(false));
        let before = (cpu_of(pid)?, reads(addresses.admin)?);
        let (seen, probes) = thread::scope(|scope| {
            let probing = scope.spawn(|| cores::on(self.cores.client, || probe(addresses.data, &over)));
            let seen = self.load(addresses.data, *self.args.duration, &[]);
            over.store(true, Ordering::Relaxed);
            let probes = probing.join().ok().context("the probe has panicked")?;
            anyhow::Ok((seen?, probes?))
        })?;
        let (used, after) = (cpu_of(pid)?.saturating_sub(before.0), reads(addresses.admin)?);
        klad.stop()?;
        let measured = &seen.measured;
        let served = precise(measured.outcome("served"));
        for (outcome, count) in measured.outcomes.iter().filter(|(name, count)| **count > 0 && *name != "served") {
            ensure!(outcome == "unfinished", "{count} GETs were {outcome}");
        }
        ensure!(served > 0.0, "no GET was served");
        let ms = |percent| measured.response.at(percent).map_or("-".to_owned(), |us| format!("{:.2}", us / 1000.0));
        let probe_ms = |percent| at(&probes, percent).as_secs_f64() * 1e3;
        let (here, elsewhere) = (after.0 - before.1.0, after.1 - before.1.1);
        ensure!(elsewhere > here, "memory has answered {here} of {} reads: they are not cold", here + elsewhere);
        println!(
            "| {name} | {:.0} | {:.1} | {:.0} % | {} | {} | {} | {:.2} | {:.2} | {:.2} |",
            measured.goodput_per_s,
            used.as_secs_f64() * 1e6 / served,
            100.0 * here / (here + elsewhere).max(1.0),
            ms(50.0),
            ms(99.0),
            ms(99.9),
            probe_ms(50),
            probe_ms(99),
            probe_ms(100)
        );
        Ok(probes)
    }

    fn load(&self, address: SocketAddr, length: Duration, more: &[&str]) -> Result<bench::RunResult> {
        let (url, keys) = (format!("http://{address}"), self.keys.to_string());
        let (size, connections) = (self.args.value_size.to_string(), self.args.connections.to_string());
        let duration = humantime::format_duration(length).to_string();
        let words = [url.as_str(), "--workload", "get", "--keys", &keys, "--value-size", &size, "--closed"];
        let rest = ["--threads", "1", "--connections", &connections, "--warm-up", "0s", "--duration", &duration];
        let arguments: Vec<String> = words.iter().chain(&rest).chain(more).map(|word| (*word).to_owned()).collect();
        let wall_max = length + PATIENCE + FILL_OF_A_KEY_MAX * u32::try_from(self.keys)?;
        Ok(bench::run(&self.program, &arguments, self.cores.client, wall_max, &self.directory)?.0)
    }
}

fn put_probe(address: SocketAddr) -> Result<()> {
    let mut connection = Connection::open(address)?;
    connection.send(format!("PUT {PROBE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nprobe").as_bytes())?;
    connection.answer()?.expect(201)?;
    connection.get(PROBE)?.expect(200)
}

/// Asks for what is in memory until `over`, at least once; answers how long that took each time, sorted.
fn probe(address: SocketAddr, over: &AtomicBool) -> Result<Vec<Duration>> {
    let mut connection = Connection::open(address)?;
    let (mut took, begin) = (Vec::new(), Instant::now());
    for number in 0.. {
        if over.load(Ordering::Relaxed) && !took.is_empty() {
            break;
        }
        // From when it was due: one that comes late because of the one before waits, too.
        let due = PROBE_EVERY * number;
        thread::sleep(due.saturating_sub(begin.elapsed()));
        connection.get(PROBE)?.expect(200)?;
        took.push(begin.elapsed().saturating_sub(due));
    }
    took.sort_unstable();
    Ok(took)
}

/// Of sorted times that are some.
fn at(took: &[Duration], percent: usize) -> Duration {
    took[(took.len() - 1) * percent / 100]
}

/// Reads that memory has answered, and that storage threads were asked for.
fn reads(admin: SocketAddr) -> Result<(f64, f64)> {
    let metrics = Metrics::scrape(admin)?;
    let by = |what: &str| metrics.sum(&format!("klad_reads_total{{answered_by=\"{what}\""));
    Ok((by("memory")?, by("storage")?))
}

fn table_bytes(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "sst") {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}

#[expect(clippy::cast_precision_loss, reason = "requests of seconds are far below 2^52")]
fn precise(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_sorted_times() {
        let took: Vec<_> = (0..=100).map(Duration::from_millis).collect();
        assert_eq!([at(&took, 0), at(&took, 99), at(&took, 100)].map(|time| time.as_millis()), [0, 99, 100]);
        assert_eq!(at(&took[..1], 99), Duration::ZERO);
    }
}
