//! `cargo xtask profile-cost`: what do profiles cost while they are taken, and what does it cost to have them when nobody does?
//!
//! ```text
//!   klad without heap samples ─┐
//!   klad with them            ─┼─ core A ◀── klad bench, closed, core B, one subject after the other, round by round
//!   klad of before, if given  ─┘
//! ```
//!
//! CPU time of the server for each request, from the kernel's own account of its threads: the rate says less, because what the
//! machine takes from a run it takes from the rate. All subjects of a round follow each other, so that each is compared with
//! what was measured beside it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytesize::ByteSize;

use crate::Verdict;
use crate::bench;
use crate::cores::{self, Cores};
use crate::http::Connection;
use crate::klad::{Addresses, Klad, ProgramArgs, Settings};
use crate::process::cpu_of;
use crate::profiles;

/// CPU time for a request while a CPU profile is taken at the default rate, as a multiple of that without.
const CPU_PROFILE_MAX: f64 = 1.02;

/// Between heap samples, where there are any: klad's default.
const HEAP_SAMPLE: &str = "512KiB";

/// A profile is asked for so much longer than the load lasts: it begins before and ends after.
const MARGIN: Duration = Duration::from_secs(3);

/// Beyond the length of a load, before it is killed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Connections of the load.
const CONNECTIONS: &str = "64";

/// Keys.
const KEYS: &str = "1000";

/// Options of `profile-cost`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// A klad of before, measured beside the others with nothing being profiled.
    #[arg(long, value_name = "PATH")]
    before: Option<PathBuf>,
    /// Rounds of each operation.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Length of each load.
    #[arg(long, value_name = "TIME", default_value = "4s")]
    duration: humantime::Duration,
    /// Rate of CPU samples.
    #[arg(long, value_name = "HZ", default_value_t = 99)]
    hz: u32,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// Nothing is profiled, nothing is sampled: what all others are compared with.
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

const SUBJECTS: [Subject; 6] =
    [Subject::Off, Subject::Before, Subject::Cpu, Subject::Locks, Subject::Heap, Subject::All];

/// What is asked of klad, as name and arguments of the load.
const OPERATIONS: [(&str, &str, &str); 3] = [
    ("GET", "get", "/v0/entity?id={key}"),
    ("PUT async", "put", "/v0/entity?id={key}&durability=async"),
    ("PUT sync", "put", "/v0/entity?id={key}&durability=sync"),
];

/// A klad that runs, and is told to stop at the end.
struct Bed {
    klad: Klad,
    addresses: Addresses,
}

/// All that is measured with.
struct Lab<'a> {
    args: &'a Args,
    program: PathBuf,
    cores: Cores,
    directory: &'a Path,
    plain: Bed,
    sampled: Bed,
    before: Option<Bed>,
}

/// Microseconds of CPU time for a request, by subject, of one round.
type Round = Vec<(Subject, f64)>;

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let program = args.program.find()?;
    let cores = Cores::choose()?;
    let directory = tempfile::Builder::new().prefix("klad-xtask-").tempdir().context("no temporary directory")?;
    let start = |program: &Path, name: &str, more: &[&str]| start(program, directory.path(), name, more, cores);
    let before = args.before.as_deref().map(|before| {
        ensure!(before.is_file(), "there is no klad at {}", before.display());
        start(before, "before", &[])
    });
    let lab = Lab {
        args,
        cores,
        directory: directory.path(),
        plain: start(&program, "plain", &["--heap-sample", "0"])?,
        sampled: start(&program, "sampled", &["--heap-sample", HEAP_SAMPLE])?,
        before: before.transpose()?,
        program,
    };
    println!(
        "CPU time of klad for a request, {} rounds of {} each; server on core {}, load of {CONNECTIONS} connections on core {}",
        args.rounds, args.duration, cores.server, cores.client
    );
    let mut verdict = Verdict::Within;
    for (name, workload, target) in OPERATIONS {
        lab.fill(target)?;
        let rounds: Vec<Round> = (0..args.rounds).map(|_| lab.round(workload, target)).collect::<Result<_>>()?;
        if print(name, &rounds) == Verdict::Exceeded {
            verdict = Verdict::Exceeded;
        }
    }
    for bed in [Some(lab.plain), Some(lab.sampled), lab.before].into_iter().flatten() {
        bed.klad.stop()?;
    }
    println!(
        "{}: a CPU profile at {} Hz costs less than {:.0} %",
        verdict.word(),
        args.hz,
        (CPU_PROFILE_MAX - 1.0) * 100.0
    );
    Ok(verdict)
}

fn start(program: &Path, directory: &Path, name: &str, more: &[&str], cores: Cores) -> Result<Bed> {
    let settings = Settings {
        program: program.to_owned(),
        data: directory.join(name),
        memory: ByteSize::gib(1),
        addresses: Addresses::any(),
        more: ["--threads", "1"].iter().chain(more).map(|word| (*word).to_owned()).collect(),
    };
    let mut klad = cores::on(cores.server, || Klad::start(&settings))?;
    let addresses = klad.wait_for_start_line()?;
    Ok(Bed { klad, addresses })
}

impl Lab<'_> {
    fn bed(&self, subject: Subject) -> Option<&Bed> {
        match subject {
            Subject::Off | Subject::Cpu | Subject::Locks => Some(&self.plain),
            Subject::Heap | Subject::All => Some(&self.sampled),
            Subject::Before => self.before.as_ref(),
        }
    }

    /// Every key is there, in each klad.
    fn fill(&self, target: &str) -> Result<()> {
        for bed in [Some(&self.plain), Some(&self.sampled), self.before.as_ref()].into_iter().flatten() {
            self.load(bed, "put", target, Duration::from_secs(1))?;
        }
        Ok(())
    }

    fn round(&self, workload: &str, target: &str) -> Result<Round> {
        let mut round = Vec::new();
        for subject in SUBJECTS {
            let Some(bed) = self.bed(subject) else { continue };
            let cost = self.cost(bed, subject, workload, target).with_context(|| format!("{subject:?}"))?;
            round.push((subject, cost));
        }
        Ok(round)
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
            let before = cpu_of(bed.klad.pid())?;
            let served = self.load(bed, workload, target, *self.args.duration)?;
            let used = cpu_of(bed.klad.pid())?.saturating_sub(before);
            for profile in taken {
                profile.join().ok().context("a client of profiles has panicked")??;
            }
            Ok(used.as_secs_f64() * 1e6 / served)
        })
    }

    /// Loads for `duration`; answers the number of requests that were served.
    #[expect(clippy::cast_precision_loss, reason = "requests of seconds are far below 2^52")]
    fn load(&self, bed: &Bed, workload: &str, target: &str, duration: Duration) -> Result<f64> {
        let url = format!("http://{}{target}", bed.addresses.data);
        let length = humantime::format_duration(duration).to_string();
        let words = ["--workload", workload, "--keys", KEYS, "--value-size", "100", "--closed", "--threads", "1"];
        let more = ["--connections", CONNECTIONS, "--warm-up", "0s", "--duration", &length];
        let arguments: Vec<String> =
            [url.as_str()].iter().chain(&words).chain(&more).map(|word| (*word).to_owned()).collect();
        let wall_max = duration + PATIENCE;
        let (result, _) = bench::run(&self.program, &arguments, self.cores.client, wall_max, self.directory)?;
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

/// Least, median and greatest.
fn spread(figures: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_unstable_by(f64::total_cmp);
    let (lower, upper) = (figures[(figures.len() - 1) / 2], figures[figures.len() / 2]);
    [figures[0], f64::midpoint(lower, upper), figures[figures.len() - 1]]
}

fn figure(round: &Round, subject: Subject) -> Option<f64> {
    round.iter().find(|(own, _)| *own == subject).map(|(_, cost)| *cost)
}

/// The ratios to what was measured beside, of all rounds.
fn ratios(rounds: &[Round], subject: Subject) -> Vec<f64> {
    let ratio = |round: &Round| Some(figure(round, subject)? / figure(round, Subject::Off)?);
    rounds.iter().filter_map(ratio).collect()
}

/// By the median of the ratios: what disturbs a round disturbs all of it.
fn judge(rounds: &[Round]) -> Verdict {
    let [_, median, _] = spread(ratios(rounds, Subject::Cpu).into_iter());
    Verdict::of(median < CPU_PROFILE_MAX)
}

fn print(name: &str, rounds: &[Round]) -> Verdict {
    println!("\n{name}\n{:<14}{:>12}{:>26}", "", "CPU µs each", "/ off: median (spread)");
    for subject in SUBJECTS {
        let ratios = ratios(rounds, subject);
        if ratios.is_empty() {
            continue;
        }
        let [_, cost, _] = spread(rounds.iter().filter_map(|round| figure(round, subject)));
        let [least, median, most] = spread(ratios.into_iter());
        println!("{:<14}{cost:>12.2}{median:>12.3} ({least:.3} to {most:.3})", subject.words());
    }
    let verdict = judge(rounds);
    println!("{}", verdict.word());
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dear_profile_exceeds_and_a_disturbed_round_does_not() {
        let round = |off: f64, cpu: f64| vec![(Subject::Off, off), (Subject::Cpu, cpu)];
        assert_eq!(judge(&[round(10.0, 10.1), round(12.0, 12.1), round(10.0, 13.0)]), Verdict::Within);
        assert_eq!(judge(&[round(10.0, 10.3), round(12.0, 12.1), round(10.0, 10.4)]), Verdict::Exceeded);
    }

    #[test]
    fn a_subject_that_was_not_measured_has_no_ratio() {
        assert!(ratios(&[vec![(Subject::Off, 1.0)]], Subject::Before).is_empty());
        assert_eq!(ratios(&[vec![(Subject::Off, 2.0), (Subject::Heap, 3.0)]], Subject::Heap), [1.5]);
    }
}
