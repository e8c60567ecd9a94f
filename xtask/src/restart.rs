//! `cargo xtask restart` measures how soon klad serves again after a SIGKILL at random moments of a long fill.
//!
//! `tests/it/kill.rs` checks that every acknowledged write survives. Here only the time is measured.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use klad_lab::server::RunningServer;

use crate::Verdict;
use crate::setup::{ProgramArgs, Setup};

/// The time from the start of the process until klad is ready must be less than this.
const RESTART_MAX: Duration = Duration::from_secs(1);

/// The time between a start and the next kill, milliseconds. The range is wide, so that kills meet short logs and long
/// ones.
const KILL_AFTER_MS: std::ops::Range<u64> = 200..4_000;

/// Writes, sent as fast as klad takes them, with so many different keys that the store grows.
const LOAD: &str = "--workload put --key-order uniform --keys 20000000 --value-size 100B --closed --connections 64 \
                    --warm-up 0s --duration 10m";

/// Options of `restart`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Number of kills.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    kills: u64,
    /// Seed of the moments of the kills [default: a random one].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Runs the measurement.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let setup = Setup::new(&args.program)?;
    let start = || setup.serve("restart", &["--memory", "1GiB", "--durability", "async"]);
    let mut server: RunningServer = start()?;
    let mut times = Vec::new();
    for kill in 1..=args.kills {
        let load = setup.start_bench(&server.url(), LOAD)?;
        thread::sleep(Duration::from_millis(random.u64(KILL_AFTER_MS)));
        // Dropping the server sends SIGKILL.
        drop(server);
        drop(load);
        server = start().with_context(|| format!("after kill {kill}"))?;
        times.push(server.start);
    }
    server.stop()?;
    times.sort_unstable();
    let [median, longest] = [times.len() / 2, times.len() - 1].map(|place| times[place]);
    let verdict = Verdict::of(longest < RESTART_MAX);
    println!(
        "{} kills during writes; from the start of the process until klad is ready: median {} ms, longest {} ms",
        times.len(),
        median.as_millis(),
        longest.as_millis()
    );
    println!("{}: each start takes less than {RESTART_MAX:?}", verdict.word());
    Ok(verdict)
}
