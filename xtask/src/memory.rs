//! `cargo xtask memory`: does klad's resident memory stay within its budget, in everything that fills memory?
//!
//! ```text
//!   start ─▶ fill ─▶ point reads ─▶ idle connections ─▶ range, with point reads beside it ─▶ SIGTERM
//!   └───────────────── resident memory, every 50 ms ─────────────────┘
//! ```

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytesize::ByteSize;
use serde_json::json;

use crate::Verdict;
use crate::entries::Entries;
use crate::fill::Fill;
use crate::http::Connection;
use crate::klad::{Addresses, Klad, ProgramArgs, Settings};
use crate::process::raise_descriptor_limit;
use crate::progress::Progress;
use crate::range;
use crate::resident::{Phase, Sampler};
use crate::text::{grouped, mebibytes};

/// What klad may need beside its budget and a tenth of it, bytes: the program, its stacks, the allocator's own.
const FREE_BYTES: u64 = 64 << 20;

/// Point reads before the range, so many that the block cache of any budget up to 256 MiB is full of blocks.
const POINT_READS: u64 = 200_000;

/// Which keys are read at random; any number would do, and the same one repeats a run.
const READS_SEED: u64 = 1;

/// Options of `memory`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Klad's memory budget.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    memory: ByteSize,
    /// Entries to write.
    #[arg(long, value_name = "N", default_value_t = 5_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    entries: u64,
    /// Bytes of each value.
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    value_bytes: usize,
    /// Connections that stay open after one read each.
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    idle: u64,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// What was measured.
struct Report {
    phases: Vec<Phase>,
    /// The kernel's own peak of the process, bytes.
    high_water_bytes: u64,
    bound_bytes: u64,
    stop: Duration,
}

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let program = args.program.find()?;
    raise_descriptor_limit();
    let directory = tempfile::Builder::new().prefix("klad-xtask-").tempdir().context("no temporary directory")?;
    let report = measure(args, &program, &directory.path().join("data"))?;
    if args.json {
        println!("{}", report.json(args));
    } else {
        report.print(args);
    }
    Ok(report.verdict())
}

fn measure(args: &Args, program: &Path, data: &Path) -> Result<Report> {
    let entries = Entries { count: args.entries, value_bytes: args.value_bytes };
    let settings = Settings {
        program: program.to_owned(),
        data: data.to_owned(),
        memory: args.memory,
        addresses: Addresses::any(),
        // The idle ones must hold their memory until the end of the range, however long it takes.
        more: ["--idle-timeout", "1h"].map(str::to_owned).to_vec(),
    };
    let mut klad = Klad::start(&settings)?;
    let pid = klad.pid().as_raw_nonzero().get().unsigned_abs();
    let sampler = Sampler::start(pid, "start")?;
    let addresses = klad.wait_for_start_line()?;

    sampler.phase("fill")?;
    let mut fill = Fill::new(entries);
    let progress = Progress::start("fill", fill.acknowledged(), entries.count);
    fill.run(addresses.data, None)?;
    drop(progress);

    sampler.phase("point reads")?;
    let mut random = fastrand::Rng::with_seed(READS_SEED);
    let mut connection = Connection::open(addresses.data)?;
    for _ in 0..POINT_READS {
        read_one(&mut connection, entries, &mut random)?;
    }
    drop(connection);

    sampler.phase("idle connections")?;
    let idle: Vec<Connection> =
        (0..args.idle).map(|_| idle_connection(addresses, entries, &mut random)).collect::<Result<_>>()?;

    sampler.phase("range")?;
    range_with_point_reads(addresses, entries, random)?;
    for connection in &idle {
        connection.check_idle().context("an idle connection")?;
    }

    let (phases, high_water_bytes) = sampler.finish()?;
    let stop = klad.stop()?;
    Ok(Report { phases, high_water_bytes, bound_bytes: bound(args.memory), stop })
}

/// A connection after one read.
fn idle_connection(addresses: Addresses, entries: Entries, random: &mut fastrand::Rng) -> Result<Connection> {
    let mut connection = Connection::open(addresses.data)?;
    read_one(&mut connection, entries, random)?;
    Ok(connection)
}

/// Reads an entry at random and compares it.
fn read_one(connection: &mut Connection, entries: Entries, random: &mut fastrand::Rng) -> Result<()> {
    let index = random.u64(..entries.count);
    let answer = connection.get(&entries.target(index))?;
    answer.expect(200).with_context(|| format!("GET {}", entries.key(index)))?;
    anyhow::ensure!(answer.body == entries.value(index), "GET {} answers another value", entries.key(index));
    Ok(())
}

/// The whole range, while point reads of random keys fill the block cache, which ranges pass by.
fn range_with_point_reads(addresses: Addresses, entries: Entries, mut random: fastrand::Rng) -> Result<()> {
    let done = Arc::new(AtomicU64::new(0));
    let _progress = Progress::start("range", done.clone(), entries.count);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let point_reads = scope.spawn(|| {
            let mut connection = Connection::open(addresses.data)?;
            while !ended.load(Ordering::Relaxed) {
                read_one(&mut connection, entries, &mut random)?;
            }
            anyhow::Ok(())
        });
        let range = range::check_whole(addresses.data, entries, &done);
        ended.store(true, Ordering::Relaxed);
        let point_reads = point_reads.join().ok().context("the point reads' thread has panicked")?;
        range.context("the range failed")?;
        point_reads.context("a point read beside the range failed")
    })
}

/// What klad promises about its resident memory, bytes.
fn bound(memory: ByteSize) -> u64 {
    memory.0.saturating_add(memory.0 / 10).saturating_add(FREE_BYTES)
}

impl Report {
    /// The largest resident memory that was seen, bytes, by us or by the kernel.
    fn peak_bytes(&self) -> u64 {
        self.phases.iter().map(|phase| phase.peak.total).fold(self.high_water_bytes, u64::max)
    }

    fn verdict(&self) -> Verdict {
        if self.peak_bytes() <= self.bound_bytes { Verdict::Within } else { Verdict::Exceeded }
    }

    fn print(&self, args: &Args) {
        println!(
            "klad with --memory {}: {} entries with values of {} bytes, {} idle connections",
            mebibytes(args.memory.0),
            grouped(args.entries),
            grouped(args.value_bytes as u64),
            grouped(args.idle)
        );
        println!("{:<18}{:>10}{:>16}{:>16}{:>16}", "phase", "time", "peak resident", "of it, heap", "of it, files");
        for Phase { name, peak, elapsed, .. } in &self.phases {
            let time = format!("{:.1} s", elapsed.as_secs_f64());
            let [total, anonymous, file] = [peak.total, peak.anonymous, peak.file].map(mebibytes);
            println!("{name:<18}{time:>10}{total:>16}{anonymous:>16}{file:>16}");
        }
        println!("{:<28}{:>16}", "kernel's peak (VmHWM)", mebibytes(self.high_water_bytes));
        println!("{:<28}{:>16}", "1.1 × memory + 64 MiB", mebibytes(self.bound_bytes));
        println!("{}; stopped in {:.3} s with exit code 0", self.verdict().word(), self.stop.as_secs_f64());
    }

    fn json(&self, args: &Args) -> serde_json::Value {
        let phases = self.phases.iter().map(|Phase { name, peak, elapsed, .. }| {
            json!({
                "name": name,
                "seconds": elapsed.as_secs_f64(),
                "peak_resident_bytes": peak.total,
                "anonymous_bytes": peak.anonymous,
                "file_bytes": peak.file,
            })
        });
        json!({
            "chore": "memory",
            "memory_bytes": args.memory.0,
            "entries": args.entries,
            "value_bytes": args.value_bytes,
            "idle_connections": args.idle,
            "phases": phases.collect::<Vec<_>>(),
            "high_water_bytes": self.high_water_bytes,
            "bound_bytes": self.bound_bytes,
            "within": self.verdict() == Verdict::Within,
            "stop_seconds": self.stop.as_secs_f64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resident::Resident;

    fn report(high_water_bytes: u64) -> Report {
        Report { phases: Vec::new(), high_water_bytes, bound_bytes: bound(ByteSize(100 << 20)), stop: Duration::ZERO }
    }

    #[test]
    fn the_bound_itself_is_within_and_a_byte_more_is_not() {
        assert_eq!(report(174 << 20).verdict(), Verdict::Within);
        assert_eq!(report((174 << 20) + 1).verdict(), Verdict::Exceeded);
    }

    #[test]
    fn a_sample_above_the_kernels_peak_counts() {
        let mut report = report(0);
        let peak = Resident { total: 175 << 20, ..Resident::default() };
        report.phases.push(Phase::new("fill", peak));
        assert_eq!(report.verdict(), Verdict::Exceeded);
    }
}
