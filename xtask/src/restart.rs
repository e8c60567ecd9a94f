//! `cargo xtask restart`: how soon does klad serve again after SIGKILL, at whatever moment of a fill it comes?
//!
//! ```text
//!   fill ─▶ SIGKILL ─▶ same directory, same ports ─▶ /readyz and an acknowledged key answer 200 ─▶ fill goes on ─▶ …
//!                      └──────────────── measured ────────────────┘
//! ```

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bytesize::ByteSize;
use rustix::process::{Signal, kill_process};
use serde_json::json;

use crate::Verdict;
use crate::entries::Entries;
use crate::fill::{Fill, Kill};
use crate::http::Connection;
use crate::klad::{Addresses, Klad, ProgramArgs, START_MAX, Settings, log_bytes};
use crate::progress::Progress;
use crate::range;
use crate::text::{grouped, mebibytes};

/// What klad promises: it serves again in less.
const RESTART_MAX: Duration = Duration::from_secs(1);

/// While klad is down, the next try to connect comes after so long; the measured times are too long by at most so much.
const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// Options of `restart`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Entries to write.
    #[arg(long, value_name = "N", default_value_t = 5_000_000, value_parser = clap::value_parser!(u64).range(2..))]
    entries: u64,
    /// Times that klad is killed.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..))]
    kills: u64,
    /// Klad's memory budget.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    memory: ByteSize,
    /// Bytes of each value.
    #[arg(long, value_name = "BYTES", default_value_t = 10)]
    value_bytes: usize,
    /// Chooses the moments of the kills [default: another one each time].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print a line for each kill.
    #[arg(long)]
    verbose: bool,
    /// Print one JSON object instead of text; it has every kill.
    #[arg(long)]
    json: bool,
}

/// One kill and the start after it.
struct Restart {
    /// Entries that were acknowledged when the kill came.
    acknowledged: u64,
    /// Of RocksDB's logs on disk then.
    log_bytes: u64,
    /// From the start of the process until it served.
    time: Duration,
}

/// What was measured.
struct Report {
    seed: u64,
    /// At least one.
    restarts: Vec<Restart>,
    elapsed: Duration,
}

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    ensure!(args.kills < args.entries, "{} kills need more than {} entries", args.kills, args.entries);
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    // Before the work, for when it fails.
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let directory = tempfile::Builder::new().prefix("klad-xtask-").tempdir().context("no temporary directory")?;
    let settings = Settings {
        program: args.program.find()?,
        data: directory.path().join("data"),
        memory: args.memory,
        addresses: Addresses::fixed(&mut random)?,
        more: Vec::new(),
    };
    let report = measure(args, &settings, seed, &mut random)?;
    if args.json {
        println!("{}", report.json(args));
    } else {
        report.print(args);
    }
    Ok(report.verdict())
}

fn measure(args: &Args, settings: &Settings, seed: u64, random: &mut fastrand::Rng) -> Result<Report> {
    let started = Instant::now();
    let entries = Entries { count: args.entries, value_bytes: args.value_bytes };
    let mut fill = Fill::new(entries);
    let progress = Progress::start("fill", fill.acknowledged(), entries.count);
    let mut klad = Klad::start(settings)?;
    klad.wait_for_start_line()?;
    let mut restarts = Vec::new();
    for at in kill_points(entries.count, args.kills, random) {
        let acknowledged = format!("after {} entries", grouped(at));
        let pid = klad.pid();
        let now = || kill_process(pid, Signal::KILL).context("cannot send SIGKILL");
        fill.run(settings.addresses.data, Some(Kill { at, now: &now })).with_context(|| acknowledged.clone())?;
        klad.wait_for_kill()?;
        let log_bytes = log_bytes(&settings.data)?;
        let (again, time) = restart(settings, entries, &fill).with_context(|| format!("killed {acknowledged}"))?;
        klad = again;
        if args.verbose && !args.json {
            let (log, ms) = (mebibytes(log_bytes), time.as_secs_f64() * 1e3);
            println!("kill {:>3} {acknowledged}: log {log}, serves again in {ms:.1} ms", restarts.len() + 1);
        }
        restarts.push(Restart { acknowledged: at, log_bytes, time });
    }
    fill.run(settings.addresses.data, None)?;
    drop(progress);
    range::check_whole(settings.addresses.data, entries, &AtomicU64::new(0)).context("after the last kill")?;
    klad.stop()?;
    Ok(Report { seed, restarts, elapsed: started.elapsed() })
}

/// When klad is killed, as counts of acknowledged entries: one somewhere in each of `kills` equal parts of the fill, so that
/// every age of the store and of its log is met. `kills` is less than `entries`.
fn kill_points(entries: u64, kills: u64, random: &mut fastrand::Rng) -> Vec<u64> {
    let part = |number: u64| {
        // In 128 bits, for the product. From 1, because an acknowledged key is read after each; the last entry is never
        // reached, because something must be left to interrupt.
        let edge = u128::from(number) * u128::from(entries - 1) / u128::from(kills);
        u64::try_from(edge).expect("at most `entries`") + 1
    };
    (0..kills).map(|number| random.u64(part(number)..part(number + 1))).collect()
}

/// Starts klad on what the kill left behind, measures until it serves, and checks what must be there.
fn restart(settings: &Settings, entries: Entries, fill: &Fill) -> Result<(Klad, Duration)> {
    let known = fill.last_acknowledged().next().context("nothing is acknowledged")?;
    let Addresses { data, admin } = settings.addresses;
    let spawned = Instant::now();
    let mut klad = Klad::start(settings)?;
    until_ok(&mut klad, admin, "/readyz", spawned)?;
    until_ok(&mut klad, data, &entries.target(known), spawned)?;
    let time = spawned.elapsed();
    let mut connection = Connection::open(data)?;
    for index in fill.last_acknowledged() {
        let answer = connection.get(&entries.target(index))?;
        answer.expect(200).with_context(|| format!("{} was acknowledged", entries.key(index)))?;
        ensure!(answer.body == entries.value(index), "{} was acknowledged with another value", entries.key(index));
    }
    Ok((klad, time))
}

/// Asks again and again, on new connections, until the answer is 200.
fn until_ok(klad: &mut Klad, address: SocketAddr, target: &str, spawned: Instant) -> Result<()> {
    loop {
        let status = Connection::open(address).and_then(|mut connection| Ok(connection.get(target)?.status));
        match status {
            Ok(200) => return Ok(()),
            // An acknowledged key that is not there will not come back.
            Ok(404) => bail!("{target} is answered 404"),
            _ if spawned.elapsed() < START_MAX => {
                klad.check_running()?;
                thread::sleep(RETRY_PAUSE);
            }
            Ok(status) => bail!("{target} is still answered {status} after {START_MAX:?}"),
            Err(error) => return Err(error).with_context(|| format!("{target} has no answer after {START_MAX:?}")),
        }
    }
}

impl Report {
    fn slowest(&self) -> &Restart {
        self.restarts.iter().max_by_key(|restart| restart.time).expect("at least one kill")
    }

    fn verdict(&self) -> Verdict {
        if self.slowest().time < RESTART_MAX { Verdict::Within } else { Verdict::Exceeded }
    }

    /// Shortest, median and longest time until klad served.
    fn times(&self) -> [Duration; 3] {
        let mut times: Vec<Duration> = self.restarts.iter().map(|restart| restart.time).collect();
        times.sort_unstable();
        let (lower, upper) = (times[(times.len() - 1) / 2], times[times.len() / 2]);
        [times[0], (lower + upper) / 2, times[times.len() - 1]]
    }

    fn print(&self, args: &Args) {
        println!(
            "klad with --memory {}: {} entries with values of {} bytes, {} kills, seed {}, in {:.1} s",
            mebibytes(args.memory.0),
            grouped(args.entries),
            grouped(args.value_bytes as u64),
            args.kills,
            self.seed,
            self.elapsed.as_secs_f64()
        );
        let [min, median, max] = self.times().map(|time| format!("{:.1} ms", time.as_secs_f64() * 1e3));
        println!("from start to serving: min {min}, median {median}, max {max}");
        let Restart { acknowledged, log_bytes, .. } = self.slowest();
        println!("at the slowest: log {}, {} entries acknowledged", mebibytes(*log_bytes), grouped(*acknowledged));
        let largest_log = self.restarts.iter().map(|restart| restart.log_bytes).max().unwrap_or_default();
        println!("largest log at a kill: {}; every acknowledged entry is there at the end", mebibytes(largest_log));
        println!("{} the bound of {} ms", self.verdict().word(), RESTART_MAX.as_millis());
    }

    fn json(&self, args: &Args) -> serde_json::Value {
        let [min, median, max] = self.times().map(|time| time.as_secs_f64());
        let restarts = self.restarts.iter().map(|Restart { acknowledged, log_bytes, time }| {
            json!({ "acknowledged": acknowledged, "log_bytes": log_bytes, "seconds": time.as_secs_f64() })
        });
        json!({
            "chore": "restart",
            "memory_bytes": args.memory.0,
            "entries": args.entries,
            "value_bytes": args.value_bytes,
            "seed": self.seed,
            "min_seconds": min,
            "median_seconds": median,
            "max_seconds": max,
            "log_bytes_at_slowest": self.slowest().log_bytes,
            "bound_seconds": RESTART_MAX.as_secs_f64(),
            "within": self.verdict() == Verdict::Within,
            "restarts": restarts.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(times_ms: &[u64]) -> Report {
        let restart = |ms: &u64| Restart { acknowledged: 1, log_bytes: 0, time: Duration::from_millis(*ms) };
        Report { seed: 0, restarts: times_ms.iter().map(restart).collect(), elapsed: Duration::ZERO }
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_two() {
        assert_eq!(report(&[40, 10, 20, 30]).times().map(|time| time.as_millis()), [10, 25, 40]);
        assert_eq!(report(&[30, 10, 20]).times().map(|time| time.as_millis()), [10, 20, 30]);
    }

    #[test]
    fn one_restart_of_a_second_exceeds() {
        assert_eq!(report(&[1, 999]).verdict(), Verdict::Within);
        assert_eq!(report(&[1, 1000]).verdict(), Verdict::Exceeded);
    }

    #[test]
    fn kill_points_ascend_and_leave_an_entry_before_and_after() {
        for (entries, kills) in [(2, 1), (41, 40), (1000, 40), (5_000_000, 40)] {
            let points = kill_points(entries, kills, &mut fastrand::Rng::with_seed(7));
            assert_eq!(points.len() as u64, kills);
            assert!(points.is_sorted_by(|one, other| one < other), "{points:?}");
            assert!(points[0] >= 1 && *points.last().expect("one") < entries, "{points:?}");
        }
    }
}
