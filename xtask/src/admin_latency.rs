//! `cargo xtask admin-latency`: does the admin listener answer in time while clients ask more of klad than it can do?
//!
//! ```text
//!   klad serve on RocksDB, held to a share of a core where the machine allows that
//!     ▲ closed: the capacity              ▲ open: several times that, a new connection for each request that finds all busy
//!     └── /livez /readyz?verbose /metrics /debug/memory, by turns, each on a connection of its own, one every 10 ms
//! ```
//!
//! The client that asks shares the cores with the load, and the admin thread its share with the workers: what either waits for
//! a core counts against klad.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytesize::ByteSize;

use crate::Verdict;
use crate::bench::{self, RunResult};
use crate::http::Connection;
use crate::klad::{Addresses, Klad, ProgramArgs, Settings};
use crate::process::raise_descriptor_limit;
use crate::quota::Quota;

/// The 99th percentile of each path's answers, at most.
const P99_MAX: Duration = Duration::from_millis(100);

/// Between two questions.
const EVERY: Duration = Duration::from_millis(10);

/// What is asked for.
const PATHS: [&str; 4] = ["/livez", "/readyz?verbose", "/metrics", "/debug/memory"];

/// Klad's memory budget.
const MEMORY: ByteSize = ByteSize(1 << 30);

/// Share of a core, and the period that it is kept in: what is left is for the load, or it would be none.
const SHARE: f64 = 0.4;
const PERIOD: Duration = Duration::from_millis(10);

/// Keys of all workloads.
const KEYS: &str = "1000";

/// Connections of the closed run.
const CLOSED_CONNECTIONS: &str = "256";

/// Connections that the open load may have at the most.
const CONNECTIONS_MAX: &str = "8000";

/// Beyond the length of a run, before it is killed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Options of `admin-latency`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Length of the load.
    #[arg(long, value_name = "TIME", default_value = "8s")]
    duration: humantime::Duration,
    /// So many times the capacity is asked for.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=20))]
    multiple: u32,
}

/// A kind of load.
struct Load {
    words: &'static str,
    workload: &'static [&'static str],
}

const LOADS: [Load; 3] = [
    Load { words: "GET of 100 bytes from memory", workload: &["--workload", "get", "--value-size", "100"] },
    Load { words: "GET of 64,000 bytes from memory", workload: &["--workload", "get", "--value-size", "64000"] },
    Load { words: "PUT of 4 KiB, synced", workload: &["--workload", "put", "--value-size", "4KiB"] },
];

/// Answers of one path.
#[derive(Debug, Default)]
struct Answers {
    took: Vec<Duration>,
    failed: usize,
}

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let program = args.program.find()?;
    raise_descriptor_limit();
    let mut within = true;
    for load in &LOADS {
        within &= measure(load, &program, args).with_context(|| load.words)?;
    }
    let verdict = Verdict::of(within);
    println!("\n{}", verdict.word());
    Ok(verdict)
}

fn measure(load: &Load, program: &Path, args: &Args) -> Result<bool> {
    let directory = tempfile::Builder::new().prefix("klad-xtask-").tempdir().context("no temporary directory")?;
    let settings = Settings {
        program: program.to_owned(),
        data: directory.path().join("data"),
        memory: MEMORY,
        addresses: Addresses::any(),
        more: ["--durability", "sync"].map(str::to_owned).to_vec(),
    };
    // Before klad: it is removed after klad has ended.
    let name = format!("klad-xtask-{}-admin", std::process::id());
    let quota = Quota::new(&name, SHARE, PERIOD);
    let mut klad = Klad::start(&settings)?;
    let addresses = klad.wait_for_start_line()?;
    let run = |length: Duration, more: &[&str]| -> Result<RunResult> {
        let length_word = humantime::format_duration(length).to_string();
        let url = format!("http://{}", addresses.data);
        let words = [url.as_str(), "--keys", KEYS, "--warm-up", "0s", "--duration", &length_word];
        let arguments: Vec<String> =
            words.iter().chain(load.workload).chain(more).map(|word| (*word).to_owned()).collect();
        Ok(bench::run_anywhere(program, &arguments, length + PATIENCE, directory.path())?.0)
    };
    println!("\n{}", load.words);
    run(Duration::from_secs(1), &["--fill", KEYS, "--closed", "--connections", "16"])
        .context("cannot fill the store")?;
    match &quota {
        Ok(quota) => quota.hold(klad.pid().as_raw_nonzero().get().unsigned_abs())?,
        Err(why) => println!("  a control group cannot be held to a share of a core here: {why:#}"),
    }
    print("idle", &ask(addresses.admin, || false, Duration::from_secs(1)));
    let closed = run(Duration::from_secs(3), &["--closed", "--connections", CLOSED_CONNECTIONS])?;
    let capacity = closed.measured.goodput_per_s;
    let rate = format!("{:.0}", capacity * f64::from(args.multiple));
    let over = AtomicBool::new(false);
    let (offered, answers) = thread::scope(|scope| {
        let asking = scope.spawn(|| ask(addresses.admin, || over.load(Ordering::Relaxed), *args.duration + PATIENCE));
        let open = ["--rate", &rate, "--connections", "64", "--connections-max", CONNECTIONS_MAX];
        let hurry = ["--timeout", "250ms", "--header", "Klad-Timeout: 250ms", "--threads", "2"];
        let open: Vec<&str> = open.into_iter().chain(hurry).collect();
        let offered = run(*args.duration, &open);
        over.store(true, Ordering::Relaxed);
        let answers = asking.join().ok().context("the asking thread has panicked")?;
        anyhow::Ok((offered?, answers))
    })?;
    klad.check_running()?;
    let measured = &offered.measured;
    println!(
        "  capacity {capacity:.0}/s; offered {rate}/s, sent {}, served {} of {} scheduled",
        measured.sent,
        measured.outcome("served"),
        measured.scheduled,
    );
    ensure!(measured.outcome("served") < measured.scheduled, "all was served: that is no overload");
    print("overloaded", &answers);
    klad.stop()?;
    Ok(answers.iter().all(|(_, answers)| answers.within()))
}

/// Asks for each path by turns until `over`, for `length` at most.
fn ask(admin: SocketAddr, over: impl Fn() -> bool, length: Duration) -> Vec<(&'static str, Answers)> {
    let mut all: Vec<_> = PATHS.map(|path| (path, Answers::default())).into();
    let begin = Instant::now();
    for number in 0.. {
        let due = EVERY * number;
        if over() || due > length {
            break;
        }
        thread::sleep(due.saturating_sub(begin.elapsed()));
        let (path, answers) = &mut all[number as usize % PATHS.len()];
        let asked = Instant::now();
        let answered = Connection::open(admin).and_then(|mut connection| Ok(connection.get(path)?.status));
        match answered {
            Ok(200) => answers.took.push(asked.elapsed()),
            // Not ready is an answer too.
            Ok(503) if path.starts_with("/readyz") => answers.took.push(asked.elapsed()),
            Ok(_) | Err(_) => answers.failed += 1,
        }
    }
    for (_, answers) in &mut all {
        answers.took.sort_unstable();
    }
    all
}

impl Answers {
    /// Of the sorted times.
    fn at(&self, percent: usize) -> Duration {
        let last = self.took.len().saturating_sub(1);
        self.took.get(last * percent / 100).copied().unwrap_or(Duration::MAX)
    }

    fn within(&self) -> bool {
        self.failed == 0 && self.at(99) <= P99_MAX
    }
}

fn print(when: &str, all: &[(&str, Answers)]) {
    println!(
        "  {when:<12} {:<16} {:>7} {:>9} {:>9} {:>9} {:>7}",
        "path", "answers", "p50 ms", "p99 ms", "max ms", "failed"
    );
    for (path, answers) in all {
        let ms = |percent| answers.at(percent).as_secs_f64() * 1e3;
        println!(
            "  {:<12} {path:<16} {:>7} {:>9.2} {:>9.2} {:>9.2} {:>7}  {}",
            "",
            answers.took.len(),
            ms(50),
            ms(99),
            ms(100),
            answers.failed,
            Verdict::of(answers.within()).word(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(took_ms: &[u64], failed: usize) -> Answers {
        Answers { took: took_ms.iter().copied().map(Duration::from_millis).collect(), failed }
    }

    #[test]
    fn one_in_a_hundred_may_be_late_and_none_may_fail() {
        let mut took = vec![1; 199];
        took.push(5_000);
        assert!(answers(&took, 0).within());
        assert!(!answers(&took, 1).within());
        took[190..].fill(101);
        assert!(!answers(&took, 0).within());
        assert!(!answers(&[], 0).within(), "no answer at all");
    }
}
