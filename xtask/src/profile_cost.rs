//! `cargo xtask profile-cost`: what do profiles cost while they are taken, and what does it cost to have them when nobody does?
//!
//! ```text
//!   klad ◀── klad bench, closed ──┐
//!     core A                      ├── core B, both at once
//!   klad ◀── klad bench, closed ──┘
//! ```
//!
//! CPU time of each server for each of its requests, from the kernel's own account of its threads. What neighbours take from a
//! machine changes from one second to the next by more than what is measured here, so the two that are compared run at the same
//! time, on the same core, in turns of milliseconds, and change places from round to round where they are the same program.
//! The verdict is of the 95 % confidence interval of the median ratio, and a control compares a klad with itself.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytesize::ByteSize;
use rustix::process::Pid;

use crate::Verdict;
use crate::bench;
use crate::cores::{self, Cores};
use crate::http::Connection;
use crate::klad::{Addresses, Klad, ProgramArgs, Settings};
use crate::median::Median;
use crate::process::cpu_of;
use crate::profiles;

/// CPU time for a request, as a multiple of that of what the subject is judged by: less than 2 % more.
const RATIO_MAX: f64 = 1.02;

/// Of a klad that samples nothing.
const NOT_SAMPLED: [&str; 2] = ["--heap-sample", "0"];

/// A profile is asked for so much longer than the load lasts: it begins before and ends after.
const MARGIN: Duration = Duration::from_millis(500);

/// Beyond the length of a load, before it is killed.
const PATIENCE: Duration = Duration::from_secs(20);

/// And for each key, where they are written first.
const FILL_OF_A_KEY_MAX: Duration = Duration::from_micros(100);

/// Connections of the load.
const CONNECTIONS: &str = "64";

/// Options of `profile-cost`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// A klad of before, measured beside the others with nothing being profiled.
    #[arg(long, value_name = "PATH")]
    before: Option<PathBuf>,
    /// Rounds of each comparison.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Length of each load.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    duration: humantime::Duration,
    /// Keys; with many, memtables and caches are those of a store.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Only comparisons and operations whose names contain this, such as "off / before" or "GET".
    #[arg(long, value_name = "WORDS")]
    only: Option<String>,
    /// Rate of CPU samples.
    #[arg(long, value_name = "HZ", default_value_t = 99)]
    hz: u32,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// Nothing is profiled, nothing is sampled.
    Off,
    /// Another klad, as it comes.
    Before,
    /// A CPU profile.
    Cpu,
    /// A lock profile.
    Locks,
    /// Heap samples.
    Heap,
    /// All three.
    All,
}

/// Of what the first is compared with the second, and whether more than [`RATIO_MAX`] is too much.
const COMPARISONS: [(Subject, Subject, bool); 7] = [
    (Subject::Off, Subject::Off, true),
    (Subject::Cpu, Subject::Off, true),
    (Subject::Locks, Subject::Off, false),
    (Subject::Heap, Subject::Off, true),
    (Subject::All, Subject::Off, false),
    (Subject::Off, Subject::Before, true),
    (Subject::Heap, Subject::Before, true),
];

/// What is asked of klad, as name and arguments of the load.
const OPERATIONS: [(&str, &str, &str); 3] = [
    ("GET", "get", "/v0/entity?id={key}"),
    ("PUT async", "put", "/v0/entity?id={key}&durability=async"),
    ("PUT sync", "put", "/v0/entity?id={key}&durability=sync"),
];

/// A klad that runs.
struct Bed {
    pid: Pid,
    addresses: Addresses,
    /// Of its load.
    scratch: PathBuf,
}

/// All that is measured with.
struct Lab<'a> {
    args: &'a Args,
    program: PathBuf,
    cores: Cores,
    plain: [Bed; 2],
    sampled: [Bed; 2],
    before: Option<Bed>,
}

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let program = args.program.find()?;
    let cores = Cores::choose()?;
    let directory = tempfile::Builder::new().prefix("klad-xtask-").tempdir().context("no temporary directory")?;
    let mut klads = Vec::new();
    let mut start = |program: &Path, name: &str, more: &[&str]| -> Result<Bed> {
        let (klad, bed) = start(program, directory.path(), name, more, cores)?;
        klads.push(klad);
        Ok(bed)
    };
    let before = args.before.as_deref().map(|before| {
        ensure!(before.is_file(), "there is no klad at {}", before.display());
        start(before, "before", &[])
    });
    let lab = Lab {
        args,
        cores,
        plain: [start(&program, "plain-0", &NOT_SAMPLED)?, start(&program, "plain-1", &NOT_SAMPLED)?],
        sampled: [start(&program, "sampled-0", &[])?, start(&program, "sampled-1", &[])?],
        before: before.transpose()?,
        program,
    };
    println!(
        "CPU time of klad for a request, {} rounds of {} each; both servers of a comparison at once on core {}, loads of \
         {CONNECTIONS} connections on core {}; median ratio (95 % confidence interval)",
        args.rounds, args.duration, cores.server, cores.client
    );
    let fill = args.keys.to_string();
    for bed in lab.beds() {
        lab.load(bed, "put", OPERATIONS[0].2, Duration::from_secs(1), &["--fill", &fill])?;
    }
    let mut verdict = Verdict::Within;
    for (name, workload, target) in OPERATIONS {
        let wanted = |words: &str| args.only.as_ref().is_none_or(|only| words.contains(only.as_str()));
        println!("\n{name}");
        for bed in lab.beds() {
            lab.load(bed, "put", target, Duration::from_secs(1), &[])?;
            // A memtable is the slower the more was written, so that no two klads would be alike.
            Connection::open(bed.addresses.admin)?.compact(PATIENCE)?;
        }
        for (subject, base, judged) in COMPARISONS {
            if !wanted(&format!("{name}: {} / {}", subject.words(), base.words())) {
                continue;
            }
            if lab.compare(subject, base, judged, workload, target)? == Verdict::Exceeded {
                verdict = Verdict::Exceeded;
            }
        }
    }
    for klad in klads {
        klad.stop()?;
    }
    println!(
        "{}: a CPU profile at {} Hz, heap samples, and what nobody asks for cost less than {:.0} % each",
        verdict.word(),
        args.hz,
        (RATIO_MAX - 1.0) * 100.0
    );
    Ok(verdict)
}

fn start(program: &Path, directory: &Path, name: &str, more: &[&str], cores: Cores) -> Result<(Klad, Bed)> {
    let settings = Settings {
        program: program.to_owned(),
        data: directory.join(name),
        memory: ByteSize::gib(1),
        addresses: Addresses::any(),
        more: ["--threads", "1"].iter().chain(more).map(|word| (*word).to_owned()).collect(),
    };
    let mut klad = cores::on(cores.server, || Klad::start(&settings))?;
    let addresses = klad.wait_for_start_line()?;
    let scratch = directory.join(format!("load-{name}"));
    fs::create_dir(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    let bed = Bed { pid: klad.pid(), addresses, scratch };
    Ok((klad, bed))
}

impl Lab<'_> {
    fn beds(&self) -> impl Iterator<Item = &Bed> {
        self.plain.iter().chain(&self.sampled).chain(&self.before)
    }

    /// The server of `subject` in place 0 or 1; `None`: there is none.
    fn bed(&self, subject: Subject, place: usize) -> Option<&Bed> {
        match subject {
            Subject::Off | Subject::Cpu | Subject::Locks => Some(&self.plain[place]),
            Subject::Heap | Subject::All => Some(&self.sampled[place]),
            Subject::Before => self.before.as_ref(),
        }
    }

    /// Measures `subject` beside `base`, and prints it.
    fn compare(&self, subject: Subject, base: Subject, judged: bool, workload: &str, target: &str) -> Result<Verdict> {
        let (mut ratios, mut costs) = (Vec::new(), Vec::new());
        for round in 0..self.args.rounds {
            let place = usize::from(round % 2 == 1);
            let (Some(bed), Some(beside)) = (self.bed(subject, place), self.bed(base, 1 - place)) else {
                return Ok(Verdict::Within);
            };
            let (cost, of_base) = thread::scope(|scope| {
                let other = scope.spawn(|| self.cost(beside, base, workload, target));
                let cost = self.cost(bed, subject, workload, target);
                (cost, other.join())
            });
            let cost = cost.with_context(|| format!("{subject:?}"))?;
            let of_base = of_base.ok().context("a load has panicked")?.with_context(|| format!("{base:?}"))?;
            ratios.push(cost / of_base);
            costs.push(cost);
        }
        let ratio = Median::of(ratios);
        let (verdict, words) = if judged { judge(ratio) } else { (Verdict::Within, "") };
        let names = format!("{} / {}", subject.words(), base.words());
        let Median { least, middle, most } = ratio;
        let cost = Median::of(costs).middle;
        println!("  {names:<24}{cost:>7.2} µs {middle:>7.3} ({least:.3} to {most:.3}) {words}");
        Ok(verdict)
    }

    /// Microseconds of CPU time for a request, while `subject`'s profiles are taken.
    fn cost(&self, bed: &Bed, subject: Subject, workload: &str, target: &str) -> Result<f64> {
        let admin = bed.addresses.admin;
        let length = (*self.args.duration + MARGIN).as_secs_f64();
        let mut wanted = Vec::new();
        if matches!(subject, Subject::Cpu | Subject::All) {
            let target = format!("/debug/pprof/profile?seconds={length}&hz={}", self.args.hz);
            wanted.push((target, "/debug/pprof/profile?seconds=0.001&hz=1000"));
        }
        if matches!(subject, Subject::Locks | Subject::All) {
            let target = format!("/debug/pprof/mutex?seconds={length}&threshold=10us");
            wanted.push((target, "/debug/pprof/mutex?seconds=0.001&threshold=1s"));
        }
        thread::scope(|scope| {
            let taken: Vec<_> = wanted.iter().map(|(target, _)| scope.spawn(move || taken(admin, target))).collect();
            for (_, other) in &wanted {
                profiles::wait_until_busy(admin, other)?;
            }
            let before = cpu_of(bed.pid)?;
            let served = self.load(bed, workload, target, *self.args.duration, &[])?;
            let used = cpu_of(bed.pid)?.saturating_sub(before);
            for profile in taken {
                profile.join().ok().context("a client of profiles has panicked")??;
            }
            Ok(used.as_secs_f64() * 1e6 / served)
        })
    }

    /// Loads for `duration`; answers the number of requests that were served.
    #[expect(clippy::cast_precision_loss, reason = "requests of seconds are far below 2^52")]
    fn load(&self, bed: &Bed, workload: &str, target: &str, duration: Duration, other: &[&str]) -> Result<f64> {
        let url = format!("http://{}{target}", bed.addresses.data);
        let length = humantime::format_duration(duration).to_string();
        let keys = self.args.keys.to_string();
        let words = ["--workload", workload, "--keys", &keys, "--value-size", "100", "--closed", "--threads", "1"];
        let more = ["--connections", CONNECTIONS, "--warm-up", "0s", "--duration", &length];
        let arguments: Vec<String> =
            [url.as_str()].iter().chain(&words).chain(&more).chain(other).map(|word| (*word).to_owned()).collect();
        let wall_max = duration + PATIENCE + FILL_OF_A_KEY_MAX * u32::try_from(self.args.keys)?;
        let (result, _) = bench::run(&self.program, &arguments, self.cores.client, wall_max, &bed.scratch)?;
        let (served, sent) = (result.measured.outcome("served"), result.measured.sent);
        // Those that were under way at the end.
        ensure!(sent - served <= 64, "{} of {sent} requests were not served", sent - served);
        Ok(served as f64)
    }
}

/// Takes a profile, which must succeed.
fn taken(admin: SocketAddr, target: &str) -> Result<()> {
    profiles::take_when_free(admin, target)?;
    // The listener answers others again.
    Connection::open(admin)?.get("/livez")?.expect(200)
}

impl Subject {
    fn words(self) -> &'static str {
        match self {
            Subject::Off => "off",
            Subject::Before => "before",
            Subject::Cpu => "CPU profile",
            Subject::Locks => "lock profile",
            Subject::Heap => "heap samples",
            Subject::All => "all three",
        }
    }
}

/// What is not shown is not within.
fn judge(ratio: Median) -> (Verdict, &'static str) {
    if ratio.most < RATIO_MAX {
        (Verdict::Within, "within")
    } else if ratio.least < RATIO_MAX {
        (Verdict::Exceeded, "NOT SHOWN, more rounds are needed")
    } else {
        (Verdict::Exceeded, "EXCEEDED")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(ratios: &[f64]) -> Verdict {
        judge(Median::of(ratios.to_vec())).0
    }

    #[test]
    fn what_is_dear_exceeds_and_disturbed_rounds_do_not() {
        let cheap: Vec<f64> = (0..30).map(|round| if round % 10 == 0 { 1.4 } else { 1.005 }).collect();
        assert_eq!(judged(&cheap), Verdict::Within);
        let dear: Vec<f64> = cheap.iter().map(|ratio| ratio * 1.02).collect();
        assert_eq!(judged(&dear), Verdict::Exceeded);
    }

    #[test]
    fn what_noise_hides_is_not_within() {
        let noise: Vec<f64> = (0..30).map(|round| 0.9 + f64::from(round) / 150.0).collect();
        let Median { least, middle, most } = Median::of(noise.clone());
        assert!(middle < RATIO_MAX && least < middle && RATIO_MAX < most, "{least} {middle} {most}");
        assert_eq!(judged(&noise), Verdict::Exceeded);
    }
}
