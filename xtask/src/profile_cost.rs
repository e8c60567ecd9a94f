//! `cargo xtask profile-cost` measures how much CPU time per request profiles and heap samples cost.
//!
//! ```text
//!   klad ◀── klad bench, closed ──┐
//!     cores of servers            ├── cores of loads, both at once
//!   klad ◀── klad bench, closed ──┘
//! ```
//!
//! The speed of a noisy machine changes from one second to the next by more than the cost that is measured here. So
//! the two servers of a comparison run at the same time, on the same cores, and change places from round to round. The
//! verdict depends on the 95 % confidence interval of the median ratio. The first comparison is a control: both
//! servers are the same, without profiles.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use klad_bench::recorder::Outcome;
use klad_lab::server::RunningServer;
use rustix::process::Pid;

use crate::Verdict;
use crate::setup::{ProgramArgs, Setup};

/// The largest allowed CPU time per request with profiles, as a multiple of the time without profiles.
const RATIO_MAX: f64 = 1.02;

/// A profile begins this long before the load, and ends this long after it.
const MARGIN: Duration = Duration::from_millis(250);

/// How long a load may run beyond its length. [`Setup::bench`] kills it two minutes later. Also the longest time of a
/// compaction.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connections of the load.
const CONNECTIONS: u64 = 64;

/// Options of `profile-cost`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Rounds of each comparison.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of each load.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    duration: humantime::Duration,
    /// Number of keys.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Rate of CPU samples.
    #[arg(long, value_name = "HZ", default_value_t = 99)]
    hz: u32,
}

/// The kind of profile that is taken while a klad is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// Nothing.
    Off,
    /// A CPU profile.
    Cpu,
    /// A lock profile.
    Locks,
    /// Heap samples.
    Heap,
    /// A CPU profile, a lock profile and heap samples together.
    All,
}

/// The subjects that are compared with a klad without profiles. `true`: the measurement fails unless the whole interval
/// of the ratio is below [`RATIO_MAX`].
const COMPARISONS: [(Subject, bool); 5] =
    [(Subject::Off, true), (Subject::Cpu, true), (Subject::Locks, false), (Subject::Heap, true), (Subject::All, false)];

/// Name, workload and path of each kind of request.
const OPERATIONS: [(&str, &str, &str); 3] = [
    ("GET", "get", "/v0/entity?id={key}"),
    ("PUT async", "put", "/v0/entity?id={key}&durability=async"),
    ("PUT sync", "put", "/v0/entity?id={key}&durability=sync"),
];

struct Measurement<'a> {
    args: &'a Args,
    setup: Setup,
    /// Two klads without heap samples, and two with them.
    plain: [RunningServer; 2],
    sampled: [RunningServer; 2],
}

/// Runs the measurement.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let setup = Setup::new(&args.program)?;
    let start =
        |name, options: &[&str]| setup.serve(name, &[&["--memory", "1GiB", "--threads", "1"], options].concat());
    let plain = [start("plain-0", &["--heap-sample", "0"])?, start("plain-1", &["--heap-sample", "0"])?];
    let sampled = [start("sampled-0", &[])?, start("sampled-1", &[])?];
    let measurement = Measurement { args, setup, plain, sampled };
    let fill = format!("--fill {}", args.keys);
    for server in measurement.servers() {
        measurement.load(server, "put", OPERATIONS[0].2, &fill)?;
    }
    println!("CPU time of klad per request, {} rounds of {}: median ratio (95 % interval)", args.rounds, args.duration);
    let mut within = true;
    for (name, workload, path) in OPERATIONS {
        println!("\n{name}");
        for server in measurement.servers() {
            measurement.load(server, "put", path, "")?;
            // With memtables of different sizes, two klads would not cost the same.
            compact(server)?;
        }
        for (subject, judged) in COMPARISONS {
            within &= measurement.compare(subject, judged, workload, path)? == Verdict::Within;
        }
    }
    for server in measurement.plain.into_iter().chain(measurement.sampled) {
        server.stop()?;
    }
    let (verdict, allowed) = (Verdict::of(within), (RATIO_MAX - 1.0) * 100.0);
    println!("{}: a CPU profile at {} Hz and heap samples cost less than {allowed:.0} % each", verdict.word(), args.hz);
    Ok(verdict)
}

impl Measurement<'_> {
    fn servers(&self) -> impl Iterator<Item = &RunningServer> {
        self.plain.iter().chain(&self.sampled)
    }

    /// Measures `subject` beside a klad without profiles, and prints the result.
    fn compare(&self, subject: Subject, judged: bool, workload: &str, path: &str) -> Result<Verdict> {
        let mut ratios = Vec::new();
        for round in 0..self.args.rounds {
            let place = usize::from(round % 2 == 1);
            let servers = if matches!(subject, Subject::Heap | Subject::All) { &self.sampled } else { &self.plain };
            let (cost, base) = thread::scope(|scope| {
                let base = scope.spawn(|| self.cost(&self.plain[1 - place], Subject::Off, workload, path));
                (self.cost(&servers[place], subject, workload, path), base.join())
            });
            ratios.push(cost? / base.ok().context("a load has panicked")??);
        }
        let [low, median, high] = median_interval(ratios);
        let (verdict, words) = if judged { judge(low, high, RATIO_MAX) } else { (Verdict::Within, "") };
        println!("  {:<14}{median:>7.3} ({low:.3} to {high:.3}) {words}", subject.name());
        Ok(verdict)
    }

    /// Returns the CPU time per request while `subject` is taken, microseconds.
    fn cost(&self, server: &RunningServer, subject: Subject, workload: &str, path: &str) -> Result<f64> {
        let seconds = (*self.args.duration + 2 * MARGIN).as_secs_f64();
        let mut targets = Vec::new();
        if matches!(subject, Subject::Cpu | Subject::All) {
            targets.push(format!("/debug/pprof/profile?seconds={seconds}&hz={}", self.args.hz));
        }
        if matches!(subject, Subject::Locks | Subject::All) {
            targets.push(format!("/debug/pprof/mutex?seconds={seconds}&threshold=10us"));
        }
        let admin = server.admin.as_ref().context("klad has an admin address")?;
        thread::scope(|scope| {
            let patience = *self.args.duration + PATIENCE;
            let get = |target| scope.spawn(move || admin.get(target, patience));
            let profiles: Vec<_> = targets.iter().map(|target| get(target)).collect();
            thread::sleep(MARGIN);
            let before = cpu_of(server.pid())?;
            let requests = self.load(server, workload, path, "")?;
            let used = cpu_of(server.pid())?.saturating_sub(before);
            for profile in profiles {
                profile.join().ok().context("a client of profiles has panicked")??;
            }
            Ok(used.as_secs_f64() * 1e6 / requests)
        })
    }

    /// Loads a server. Returns the number of requests that were served.
    #[expect(clippy::cast_precision_loss, reason = "requests of seconds are far below 2^52")]
    fn load(&self, server: &RunningServer, workload: &str, path: &str, options: &str) -> Result<f64> {
        let options = format!(
            "{options} --workload {workload} --keys {} --value-size 100B --closed --threads 1 --connections \
             {CONNECTIONS} --warm-up 0s --duration {}ms",
            self.args.keys,
            self.args.duration.as_millis()
        );
        let url = format!("http://{}{path}", server.address);
        let name = format!("load-{}", server.address.port());
        let result = self.setup.bench(&name, &url, &options, *self.args.duration + PATIENCE)?;
        let count = result.measured.outcomes.get(&Outcome::Served).copied().unwrap_or_default();
        // At the end, at most one request on each connection has no answer, and does not count as served.
        ensure!(result.measured.sent - count <= CONNECTIONS, "{count} of {} were served", result.measured.sent);
        Ok(count as f64)
    }
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Subject::Off => "nothing",
            Subject::Cpu => "CPU profile",
            Subject::Locks => "lock profile",
            Subject::Heap => "heap samples",
            Subject::All => "all three",
        }
    }
}

/// Lets klad compact everything, and waits for the end of the compaction.
fn compact(server: &RunningServer) -> Result<()> {
    let admin = server.admin.as_ref().context("klad has an admin address")?;
    ureq::post(format!("http://{}/compact", admin.url.authority)).send_empty().context("cannot compact")?;
    let pause = Duration::from_millis(20);
    for _ in 0..PATIENCE.as_millis() / pause.as_millis() {
        let status: serde_json::Value = serde_json::from_slice(&admin.get("/compact", PATIENCE)?)?;
        if status["running"].is_null() {
            return Ok(());
        }
        thread::sleep(pause);
    }
    bail!("klad has not compacted in {PATIENCE:?}")
}

/// Returns the CPU time that all present threads of a process have used so far. The difference of two such times is
/// right only if no thread has ended between the two calls.
pub(crate) fn cpu_of(pid: Pid) -> Result<Duration> {
    let mut nanoseconds = 0;
    let path = format!("/proc/{}/task", pid.as_raw_nonzero());
    for task in fs::read_dir(&path).with_context(|| format!("cannot list {path}"))? {
        // A thread may end between the listing and this read.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let first = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        nanoseconds += first.with_context(|| format!("{path}: no CPU time in schedstat"))?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// Returns the median, between the lower and the upper end of the interval that holds the true median with 95 %
/// probability. The ends follow from the binomial distribution of ranks, in its normal approximation (Conover,
/// Practical Nonparametric Statistics, 3rd ed., 3.2). `figures` must not be empty.
#[expect(clippy::cast_precision_loss, reason = "rounds are far below 2^52")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the number of rounds")]
pub(crate) fn median_interval(mut figures: Vec<f64>) -> [f64; 3] {
    figures.sort_unstable_by(f64::total_cmp);
    let (count, last) = (figures.len() as f64, figures.len() - 1);
    let rank = ((count - 1.0 - 1.96 * count.sqrt()) / 2.0).max(0.0).floor() as usize;
    [figures[rank], f64::midpoint(figures[last / 2], figures[figures.len() / 2]), figures[last - rank]]
}

/// Judges a ratio by its interval. The ratio is within the bound only if the whole interval is below `ratio_max`.
pub(crate) fn judge(low: f64, high: f64, ratio_max: f64) -> (Verdict, &'static str) {
    if high < ratio_max {
        (Verdict::Within, "within")
    } else if low < ratio_max {
        (Verdict::Exceeded, "NOT SHOWN: more rounds are needed")
    } else {
        (Verdict::Exceeded, "EXCEEDED")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(ratios: &[f64]) -> Verdict {
        let [low, _, high] = median_interval(ratios.to_vec());
        judge(low, high, RATIO_MAX).0
    }

    #[test]
    fn the_interval_of_a_median_is_that_of_the_tables() {
        // By the binomial distribution: 95.9 % for 20, 96.7 % for 50.
        for (count, low, high) in [(1, 1.0, 1.0), (5, 1.0, 5.0), (20, 6.0, 15.0), (50, 18.0, 33.0)] {
            let interval = median_interval((1..=count).map(f64::from).collect());
            assert_eq!((interval[0], interval[2]), (low, high), "{count}");
        }
    }

    #[test]
    fn twin_a_cost_above_the_bound_and_one_that_noise_hides_exceed() {
        let cheap: Vec<f64> = (0..30).map(|round| if round % 10 == 0 { 1.4 } else { 1.005 }).collect();
        assert_eq!(judged(&cheap), Verdict::Within);
        assert_eq!(judged(&cheap.iter().map(|ratio| ratio * 1.02).collect::<Vec<_>>()), Verdict::Exceeded);
        let noise: Vec<f64> = (0..30).map(|round| 0.9 + f64::from(round) / 150.0).collect();
        assert_eq!(judged(&noise), Verdict::Exceeded);
    }
}
