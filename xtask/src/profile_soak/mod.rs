//! `cargo xtask profile-soak`: does a loaded klad bear thousands of profiles, and does no client notice?
//!
//! ```text
//!   64 connections, GET and PUT, always one request each ──▶ klad serve ◀── CPU   profiles, one after the other ─┐
//!   every answer compared, all writes read back at the end             ◀── lock  the same, at the same time     ├─ 5 ms each
//!                                                                       ◀── heap  the same                        ─┘
//! ```
//!
//! One klad for each setup lives through all of its runs, so that what grows from run to run is seen. A single run proves
//! little: what such a profiler can do wrong, it does seldom.

mod cycles;
mod load;
mod state;
mod watch;

use std::io::{IsTerminal as _, stderr};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use bytesize::ByteSize;

use crate::Verdict;
use crate::klad::{Addresses, Klad, ProgramArgs, Settings};
use crate::process::raise_descriptor_limit;
use crate::text::grouped;

use cycles::{KINDS, Seen};
use load::Client;
use state::State;
use watch::Pulse;

/// The longest time without any answer, of any client.
const GAP_MAX: Duration = Duration::from_secs(2);

/// Clients of 16 connections.
const CLIENTS: usize = 4;

/// After a run, until what profiles and connections held is given back.
const SETTLES: Duration = Duration::from_secs(2);

/// Options of `profile-soak`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Runs, shared out over the strategies, each with heap samples all the time and only when asked.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Profiles of each of three kinds in a run: CPU, locks, heap.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    cycles: u64,
    /// Klad's --execution, one or several.
    #[arg(long, value_name = "STRATEGY", value_delimiter = ',', default_value = "adaptive,pool")]
    execution: Vec<String>,
    /// Chooses what clients do [default: another one each time].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// `--heap-sample`: all the time, and only within windows, each of which then switches the sampling on and off.
const SAMPLINGS: [&str; 2] = ["512KiB", "0"];

/// How a klad is started.
#[derive(Debug)]
struct Setup {
    strategy: String,
    sampling: &'static str,
}

impl std::fmt::Display for Setup {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(&format!("{}, heap {}", self.strategy, self.sampling))
    }
}

/// What is wrong, and how much was right.
#[derive(Debug, Default)]
struct Report {
    failures: Vec<String>,
    requests: u64,
    profiles: u64,
    gap_max: Duration,
}

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    // Before the work, for when it fails.
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let program = args.program.find()?;
    raise_descriptor_limit();
    let mut report = Report::default();
    let started = Instant::now();
    let setups: Vec<Setup> = args
        .execution
        .iter()
        .flat_map(|strategy| SAMPLINGS.map(|sampling| Setup { strategy: strategy.clone(), sampling }))
        .collect();
    let count = u64::try_from(setups.len())?;
    for (place, setup) in (0..).zip(&setups) {
        let runs = args.runs / count + u64::from(place < args.runs % count);
        if let Err(why) = soak(&program, setup, runs, args.cycles, &mut random, &mut report) {
            eprintln!("{setup}: {why:#}");
            report.failures.push(format!("{setup}: {why:#}"));
        }
    }
    report.print(args, started.elapsed());
    Ok(report.verdict())
}

/// All runs of one setup against one klad.
fn soak(
    program: &Path,
    setup: &Setup,
    runs: u64,
    cycles: u64,
    random: &mut fastrand::Rng,
    report: &mut Report,
) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("klad-xtask-").tempdir().context("no temporary directory")?;
    let settings = Settings {
        program: program.to_owned(),
        data: directory.path().join("data"),
        memory: ByteSize::gib(1),
        addresses: Addresses::any(),
        more: ["--execution", &setup.strategy, "--heap-sample", setup.sampling].map(str::to_owned).to_vec(),
    };
    let mut klad = Klad::start(&settings)?;
    let addresses = klad.wait_for_start_line()?;
    let mut clients: Vec<Client> = (0..CLIENTS).map(|number| Client::new(number, random.fork())).collect();
    let mut states = Vec::new();
    for run in 1..=runs {
        if stderr().is_terminal() {
            eprint!("\r\x1b[K{setup}: run {run} of {runs}");
        }
        let begun = Instant::now();
        let seen = one_run(&klad, addresses, cycles, &mut clients).with_context(|| format!("run {run}"))?;
        let took = begun.elapsed();
        klad.check_running()?;
        let state = settle(&klad, &settings.data, states.first())?;
        states.push(state);
        if stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
        report.note(setup, run, took, &seen, &clients, state);
    }
    for client in &clients {
        client.compare(addresses.data).context("read back at the end")?;
        report.requests += client.answered;
    }
    report.failures.extend(state::growth(&states).into_iter().map(|grown| format!("{setup}: {grown}")));
    klad.stop()?;
    Ok(())
}

/// Loads klad until each kind of profile was taken `cycles` times.
fn one_run(klad: &Klad, addresses: Addresses, cycles: u64, clients: &mut [Client]) -> Result<[Seen; 3]> {
    let pulses = [Pulse::new("load"), Pulse::new("CPU"), Pulse::new("lock"), Pulse::new("heap")];
    let [load, profiles @ ..] = &pulses;
    let (over, (end, ended)) = (AtomicBool::new(false), mpsc::channel());
    let pid = klad.pid();
    let (hang, results, loaded) = thread::scope(|scope| {
        let pulses = &pulses;
        let watching = scope.spawn(move || watch::watch(pid, pulses, &ended));
        let over = &over;
        let loading: Vec<_> = clients
            .iter_mut()
            .map(|client| {
                scope.spawn(move || {
                    let loaded = client.run(addresses.data, over, &load.steps);
                    // One that has failed has said why: the others stop too, and that is no hang.
                    over.store(true, Relaxed);
                    load.end();
                    loaded
                })
            })
            .collect();
        let profiling: Vec<_> = KINDS
            .into_iter()
            .zip(profiles)
            .map(|(kind, pulse)| {
                scope.spawn(move || {
                    // All three at once until the slowest has its profiles, or one has failed.
                    let lacking = || profiles.iter().any(|pulse| pulse.steps.load(Relaxed) < cycles);
                    let seen = kind.run(addresses.admin, || lacking() && !over.load(Relaxed), &pulse.steps);
                    if seen.is_err() {
                        over.store(true, Relaxed);
                    }
                    pulse.end();
                    seen
                })
            })
            .collect();
        let results: Vec<_> = profiling.into_iter().map(thread::ScopedJoinHandle::join).collect();
        over.store(true, Relaxed);
        let loaded: Vec<_> = loading.into_iter().map(thread::ScopedJoinHandle::join).collect();
        drop(end);
        (watching.join(), results, loaded)
    });
    if let Some(words) = hang.map_err(|_| anyhow!("the watching thread has panicked"))? {
        return Err(anyhow!("it hangs: {words}"));
    }
    for client in loaded {
        client.map_err(|_| anyhow!("a client has panicked"))?.context("the load")?;
    }
    let mut seen = [Seen::default(); 3];
    for (place, result) in seen.iter_mut().zip(results) {
        *place = result.map_err(|_| anyhow!("a client of profiles has panicked"))?.context("a profile")?;
    }
    Ok(seen)
}

/// What klad holds when nobody asks for anything, as soon as that is no more than after the first run.
fn settle(klad: &Klad, data: &Path, first: Option<&State>) -> Result<State> {
    let begun = Instant::now();
    loop {
        let state = State::read(klad.pid(), data)?;
        let as_before = first.is_some_and(|first| state::growth(&[*first, state]).is_empty());
        if as_before || begun.elapsed() > SETTLES {
            return Ok(state);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

impl Report {
    /// Adds a run, and prints its line.
    fn note(&mut self, setup: &Setup, run: u64, took: Duration, seen: &[Seen; 3], clients: &[Client], state: State) {
        let gap = clients.iter().map(|client| client.gap_max).max().unwrap_or_default();
        self.gap_max = self.gap_max.max(gap);
        self.profiles += seen.iter().map(|seen| seen.profiles).sum::<u64>();
        if gap > GAP_MAX {
            self.failures.push(format!("{setup}, run {run}: a client had no answer for {gap:?}"));
        }
        let mut filled = Vec::new();
        for (kind, seen) in KINDS.into_iter().zip(seen) {
            filled.push(format!("{} {} of {}", kind.word(), seen.filled, seen.texts));
            if seen.filled == 0 && seen.texts > 0 {
                self.failures.push(format!("{setup}, run {run}: no {} profile holds a stack", kind.word()));
            }
        }
        println!(
            "{setup:<24} run {run:>2}: {:>6.1} s, longest gap {:>5} ms; texts with stacks: {}; {}",
            took.as_secs_f64(),
            gap.as_millis(),
            filled.join(", "),
            state.words()
        );
    }

    fn verdict(&self) -> Verdict {
        Verdict::of(self.failures.is_empty())
    }

    fn print(&self, args: &Args, took: Duration) {
        println!(
            "{} runs with {} profiles of each kind: {} profiles and {} requests in {:.0} s, longest gap {} ms",
            args.runs,
            grouped(args.cycles),
            grouped(self.profiles),
            grouped(self.requests),
            took.as_secs_f64(),
            self.gap_max.as_millis()
        );
        for failure in &self.failures {
            println!("  {failure}");
        }
        println!(
            "{} the bound: every request and profile answered, no write lost, no gap over {GAP_MAX:?}, nothing grows, exit code 0",
            self.verdict().word()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(filled: u64) -> Seen {
        Seen { profiles: 10, texts: 4, filled }
    }

    #[test]
    fn profiles_that_are_always_empty_and_gaps_count() {
        let state = State::default();
        let noted = |seen: &[Seen; 3], gap_ms| {
            let mut client = Client::new(0, fastrand::Rng::with_seed(1));
            client.gap_max = Duration::from_millis(gap_ms);
            let mut report = Report::default();
            let setup = Setup { strategy: "adaptive".to_owned(), sampling: SAMPLINGS[0] };
            report.note(&setup, 1, Duration::from_secs(1), seen, &[client], state);
            report.verdict()
        };
        assert_eq!(noted(&[seen(1); 3], 100), Verdict::Within);
        assert_eq!(noted(&[seen(1), seen(1), seen(0)], 100), Verdict::Exceeded);
        assert_eq!(noted(&[seen(1); 3], 2_001), Verdict::Exceeded);
    }
}
