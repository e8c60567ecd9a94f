//! `cargo xtask tail`: how late is the latest in a thousand while RocksDB flushes and compacts?
//!
//! ```text
//!   fill ─▶ closed loop: the first minute is not counted, as compactions begin; then the capacity, while caches still fill
//!        ─▶ open loop at 70 % of it, ten minutes, other keys in another order: p99.9 from the intended start, seconds without an answer, stalls
//!        ─▶ the same rate against a bare echo, while klad keeps its memory: what the machine makes late, whoever serves
//!        ─▶ once more beside a program that syncs a file as often as klad did: what it makes late where something is synced
//!        ─▶ and for as long as klad against an echo that syncs what it was sent before it answers: what is late there, without a store
//! ```
//!
//! klad has a core and the load the other, so that flushes and compactions take theirs from the requests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytesize::ByteSize;

use crate::Verdict;
use crate::bench::{self, RunResult};
use crate::cores::{self, Cores};
use crate::klad::{Addresses, Klad, ProgramArgs, Settings};
use crate::metrics::Metrics;
use crate::process::raise_descriptor_limit;
use crate::syncs::{self, Pace};
use crate::text::{grouped, mebibytes};
use crate::yardstick::subjects::start_echo;

/// The latest but one in a thousand, at most, microseconds.
const P999_MAX_US: f64 = 5000.0;

/// One in so many may be refused, fail or be unfinished: their times are in no percentile.
const LOST_PARTS: u64 = 1000;

/// Connections of both loops. Those of the open one are no more when all are busy: a capacity is one at so many connections. What
/// waits for one is late from its intended start.
const CONNECTIONS: &str = "64";

/// Of keys and arrivals, in the loop that finds the capacity and in the one that is measured. With one seed for both the second asks for the
/// same keys again, which the cache of values holds, until it has asked for as many as the first: 40 % of its time too good, then a
/// tenth of a second in which a third of all reads miss.
const SEEDS: [&str; 2] = ["1", "2"];

/// Before the open loop is measured.
const WARM_UP: Duration = Duration::from_secs(10);

/// Beyond the length of a run, before it is killed.
const PATIENCE: Duration = Duration::from_mins(1);

/// And for each key that is filled.
const FILL_OF_A_KEY_MAX: Duration = Duration::from_micros(200);

/// What the log holds of a write beside its value, roughly: its key, and a part of the frame.
const LOGGED_BESIDE: f64 = 40.0;

/// What klad did meanwhile, and what it is called.
const FIGURES: [&str; 8] = [
    "klad_rocksdb_flushes_total",
    "klad_rocksdb_compactions_total",
    "klad_rocksdb_compaction_written_bytes_total",
    "klad_rocksdb_write_wait_seconds_total",
    "klad_wal_sync_seconds_count",
    "klad_commit_batch_writes_sum",
    "klad_wal_sync_seconds_bucket{le=\"0.005\"",
    "klad_wal_sync_seconds_bucket{le=\"0.025\"",
];

/// Options of `tail`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Length of the load.
    #[arg(long, value_name = "TIME", default_value = "10m")]
    duration: humantime::Duration,
    /// Length of the closed loop that finds the capacity.
    #[arg(long, value_name = "TIME", default_value = "2m")]
    capacity_duration: humantime::Duration,
    /// And before it: until flushes and compactions are under way. The cache of values takes longer to hold all keys.
    #[arg(long, value_name = "TIME", default_value = "1m")]
    capacity_warm_up: humantime::Duration,
    /// Length of each load on the echo afterwards, but for the last: what a disk holds up is rare, and a minute of syncs can have none of
    /// it, so the echo that syncs before it answers has as long as klad.
    #[arg(long, value_name = "TIME", default_value = "1m")]
    control: humantime::Duration,
    /// Of the capacity, so many hundredths are asked for.
    #[arg(long, value_name = "PERCENT", default_value_t = 70, value_parser = clap::value_parser!(u32).range(1..=100))]
    load: u32,
    /// As klad bench has it.
    #[arg(long, value_name = "NAME", default_value = "mixed:50/50")]
    workload: String,
    /// Durability of writes.
    #[arg(long, value_name = "NAME", default_value = "sync")]
    durability: String,
    /// Keys, filled first.
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Bytes of each value.
    #[arg(long, value_name = "N", default_value_t = 100)]
    value_size: u64,
    /// klad's memory budget.
    #[arg(long, value_name = "SIZE", default_value = "3GiB")]
    memory: ByteSize,
}

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let program = args.program.find()?;
    let cores = Cores::choose()?;
    raise_descriptor_limit();
    let directory = tempfile::Builder::new().prefix("klad-xtask-").tempdir().context("no temporary directory")?;
    let settings = Settings {
        program: program.clone(),
        data: directory.path().join("data"),
        memory: args.memory,
        addresses: Addresses::any(),
        more: ["--threads", "1", "--durability", &args.durability].map(str::to_owned).to_vec(),
    };
    let mut klad = cores::on(cores.server, || Klad::start(&settings))?;
    let addresses = klad.wait_for_start_line()?;
    let bench =
        Bench { args, program: &program, core: cores.client, address: addresses.data, directory: directory.path() };
    println!(
        "{} of {} keys, values of {} bytes, durability {}, --memory {}; klad on core {}, klad bench on core {}",
        args.workload,
        grouped(args.keys),
        args.value_size,
        args.durability,
        args.memory,
        cores.server,
        cores.client
    );
    let fill = args.keys.to_string();
    let loaded = ["--fill", &fill, "--closed", "--connections", CONNECTIONS, "--seed", SEEDS[0]];
    let closed = bench.run(*args.capacity_warm_up, *args.capacity_duration, &loaded)?;
    let capacity = closed.measured.goodput_per_s;
    let rate = format!("{:.0}", capacity * f64::from(args.load) / 100.0);
    println!(
        "capacity {capacity:.0}/s over {}; {} % of it is {rate}/s for {}",
        args.capacity_duration, args.load, args.duration
    );
    let before = figures(addresses.admin)?;
    let open = ["--rate", &rate, "--connections", CONNECTIONS, "--connections-max", CONNECTIONS, "--seed", SEEDS[1]];
    let result = bench.run(WARM_UP, *args.duration, &open)?;
    let after = figures(addresses.admin)?;
    let did = |name: &str| after[name] - before[name];
    println!(
        "meanwhile: {} flushes, {} compactions that wrote {}, writes held up for {:.3} s",
        did(FIGURES[0]),
        did(FIGURES[1]),
        mebibytes(bytes(did(FIGURES[2]))),
        did(FIGURES[3])
    );
    println!(
        "of {:.0} syncs {:.0} took longer than 5 ms, {:.0} of them longer than 25 ms",
        did(FIGURES[4]),
        did(FIGURES[4]) - did(FIGURES[6]),
        did(FIGURES[4]) - did(FIGURES[7])
    );
    let verdict = Verdict::of(judge(&result, did(FIGURES[1])));
    let length = (WARM_UP + *args.duration).as_secs_f64();
    let pace = pace(did(FIGURES[4]), did(FIGURES[5]), args.value_size, length);
    control(&bench, cores.server, &open, pace)?;
    klad.stop()?;
    println!("{}: p99.9 of at most {:.0} ms, and an answer in every second", verdict.word(), P999_MAX_US / 1000.0);
    Ok(verdict)
}

/// `klad bench` against one klad.
struct Bench<'a> {
    args: &'a Args,
    program: &'a Path,
    core: usize,
    address: SocketAddr,
    directory: &'a Path,
}

impl Bench<'_> {
    fn run(&self, warm_up: Duration, length: Duration, more: &[&str]) -> Result<RunResult> {
        let (url, keys) = (format!("http://{}", self.address), self.args.keys.to_string());
        let (size, wall_min) = (self.args.value_size.to_string(), warm_up + length);
        let warm_up = humantime::format_duration(warm_up).to_string();
        let duration = humantime::format_duration(length).to_string();
        let words = [url.as_str(), "--workload", &self.args.workload, "--keys", &keys, "--value-size", &size];
        let times = ["--threads", "1", "--warm-up", &warm_up, "--duration", &duration];
        let arguments: Vec<String> = words.iter().chain(&times).chain(more).map(|word| (*word).to_owned()).collect();
        let wall_max = wall_min + PATIENCE + FILL_OF_A_KEY_MAX * u32::try_from(self.args.keys)?;
        Ok(bench::run(self.program, &arguments, self.core, wall_max, self.directory)?.0)
    }
}

/// As often as klad did, and as much each time; nothing where it never synced.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some bytes")]
fn pace(syncs: f64, writes: f64, value_size: u64, seconds: f64) -> Option<Pace> {
    let each = f64::from(u32::try_from(value_size).unwrap_or(u32::MAX)) + LOGGED_BESIDE;
    (syncs > 0.0).then(|| Pace { per_second: syncs / seconds, bytes: (writes / syncs * each) as usize })
}

/// The same rate and connections against a server that does nothing: nobody can be less late on this machine now. klad has nothing to
/// do meanwhile, but its memory is in use, which is work for a kernel that watches memory (DAMON's `kdamond`). Then beside a program that
/// syncs a file as often as klad synced its log, on average: a machine can be late for what its disk has to do. The echo waits for none
/// of these syncs, as a PUT does; the last echo's PUTs do.
fn control(bench: &Bench, core: usize, open: &[&str], pace: Option<Pace>) -> Result<()> {
    let echo = start_echo(core, None)?;
    let late_of = |address, length| -> Result<String> {
        let result = Bench { address, ..*bench }.run(WARM_UP, length, open)?;
        let p999 = result.measured.response.at(99.9).map_or(f64::INFINITY, |us| us / 1000.0);
        Ok(format!("p99.9 {p999:.2} ms; {}{}", of_seconds(&result), of_host(&result)))
    };
    let late = || late_of(echo.address, *bench.args.control);
    println!("a bare echo at that rate, beside an idle klad: {}", late()?);
    let Some(pace) = pace else { return Ok(()) };
    let (late, done) = syncs::beside(core, &bench.directory.join("syncs"), pace, late)?;
    let late = late?;
    let ms = |of_thousand| done.at(of_thousand).as_secs_f64() * 1000.0;
    println!(
        "and beside {:.0} syncs a second of {} bytes each (klad did {:.0}; they took {:.2} ms in the middle, {:.2} ms at p99.9, \
         {:.2} ms at most): {late}",
        done.per_second,
        pace.bytes,
        pace.per_second,
        ms(500),
        ms(999),
        ms(1000)
    );
    if bench.args.durability != "sync" {
        return Ok(());
    }
    let logging = start_echo(core, Some(&bench.directory.join("log")))?;
    let length = bench.args.duration;
    println!(
        "and one that syncs what it was sent before it answers, for {length}: {}",
        late_of(logging.address, *length)?
    );
    Ok(())
}

/// What others had of this machine's time.
fn of_host(result: &RunResult) -> String {
    let steal = result.machine.steal_percent;
    steal.map_or(String::new(), |percent| format!("; the host kept {percent:.1} % of all cores' time"))
}

/// Prints what clients saw; `false`: a bound is exceeded, or the run shows nothing.
fn judge(result: &RunResult, compactions: f64) -> bool {
    let measured = &result.measured;
    let at = |percent: f64| measured.response.at(percent);
    let shown = [50.0, 90.0, 99.0, 99.9, 99.99, 100.0].map(|percent| {
        let value = at(percent).map_or("-".to_owned(), |us| format!("{:.2} ms", us / 1000.0));
        if percent < 100.0 { format!("p{percent} {value}") } else { format!("max {value}") }
    });
    println!("from the intended start: {}", shown.join(", "));
    let served = measured.outcome("served") + measured.outcome("not_found");
    println!(
        "{} served of {} scheduled; the longest time without a good answer was {:.0} ms",
        grouped(served),
        grouped(measured.scheduled),
        result.longest_gap_s * 1000.0
    );
    println!("{}{}", of_seconds(result), of_host(result));
    let lost = measured.scheduled.saturating_sub(served);
    for (outcome, count) in measured.outcomes.iter().filter(|(name, count)| **count > 0 && *name != "served") {
        println!("  {outcome}: {}", grouped(*count));
    }
    for check in result.checks.iter().filter(|check| !check.passed) {
        println!("  klad bench does not believe this run: {}: {}", check.name, check.detail);
    }
    if compactions <= 0.0 {
        println!("  no compaction has ended meanwhile: this shows nothing");
    }
    let answered = lost * LOST_PARTS <= measured.scheduled && result.longest_gap_s < 1.0;
    result.valid && compactions > 0.0 && answered && at(99.9).is_some_and(|us| us <= P999_MAX_US)
}

/// The same second by second, which tells a machine that others slowed down for a while from a klad that is always late.
fn of_seconds(result: &RunResult) -> String {
    let measured = result.intervals.iter().filter(|one| !one.warm_up);
    // A second in which nothing has ended is as late as can be.
    let mut seconds: Vec<f64> =
        measured.map(|one| one.response.as_ref().map_or(f64::INFINITY, |found| found.p999_us)).collect();
    seconds.sort_by(f64::total_cmp);
    let within = seconds.iter().filter(|us| **us <= P999_MAX_US).count();
    let at = |part: usize| seconds.get(seconds.len() * part / 10).map_or(0.0, |us| us / 1000.0);
    let limit = P999_MAX_US / 1000.0;
    format!(
        "p99.9 of each second: {:.2} ms in the middle, {:.2} ms for nine of ten; {within} of {} within {limit:.0} ms",
        at(5),
        at(9),
        seconds.len()
    )
}

fn figures(admin: SocketAddr) -> Result<BTreeMap<&'static str, f64>> {
    let metrics = Metrics::scrape(admin)?;
    FIGURES.into_iter().map(|name| Ok((name, metrics.sum(name)?))).collect()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a counter of bytes")]
fn bytes(count: f64) -> u64 {
    count as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::tests::{distribution, with_response};
    use crate::bench::{Interval, Summary};

    #[test]
    fn seconds_are_judged_each_and_silent_ones_are_late() {
        let mut result = with_response(distribution(1000, &[(99.9, 1.0)]));
        let of = |p999_ms: Option<f64>, warm_up| Interval {
            warm_up,
            response: p999_ms.map(|ms| Summary { p999_us: ms * 1000.0 }),
        };
        result.intervals = (1..=9).map(|ms| of(Some(f64::from(ms)), false)).collect();
        result.intervals.extend([of(None, false), of(Some(1.0), true)]);
        assert_eq!(
            of_seconds(&result),
            "p99.9 of each second: 6.00 ms in the middle, inf ms for nine of ten; 5 of 10 within 5 ms"
        );
    }

    #[test]
    fn the_control_syncs_as_klad_did() {
        assert_eq!(pace(5000.0, 20_000.0, 100, 10.0), Some(Pace { per_second: 500.0, bytes: 560 }));
        assert_eq!(pace(0.0, 20_000.0, 100, 10.0), None);
    }

    #[test]
    fn what_the_host_kept_is_said_where_it_is_known() {
        let mut result = with_response(distribution(1000, &[(99.9, 1.0)]));
        result.machine.steal_percent = Some(4.06);
        assert_eq!(of_host(&result), "; the host kept 4.1 % of all cores' time");
        result.machine.steal_percent = None;
        assert_eq!(of_host(&result), "");
    }

    #[test]
    fn late_answers_silence_refusals_and_idle_compactions_exceed() {
        let run = |p999: f64, gap_s: f64, served: u64| {
            let mut result = with_response(distribution(1000, &[(99.9, p999)]));
            (result.longest_gap_s, result.measured.scheduled) = (gap_s, 10_000);
            result.measured.outcomes = [("served".to_owned(), served), ("refused".to_owned(), 10_000 - served)].into();
            result
        };
        assert!(judge(&run(4999.0, 0.9, 9_990), 1.0));
        assert!(!judge(&run(5001.0, 0.9, 9_990), 1.0), "late");
        assert!(!judge(&run(4999.0, 0.9, 9_990), 0.0), "nothing was compacted");
        assert!(!judge(&run(4999.0, 1.0, 9_990), 1.0), "silence");
        assert!(!judge(&run(4999.0, 0.9, 9_989), 1.0), "refused");
        let mut doubted = run(4999.0, 0.9, 9_990);
        doubted.valid = false;
        assert!(!judge(&doubted, 1.0), "klad bench does not believe it");
    }
}
