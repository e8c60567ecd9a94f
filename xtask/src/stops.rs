//! `cargo xtask stops` stops klad many times, with SIGTERM at random instants under load.
//!
//! ```text
//!   clients of five kinds ──▶ klad serve ◀── SIGTERM at a random instant
//!        until refused        the same directory, started again: is every acknowledged write there?
//! ```
//!
//! `--connections-max` is smaller than the number of clients, so that some clients wait to be accepted at any instant.
//! `tests/it/stops.rs` does the same with only a few stops.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::Verdict;
use crate::setup::{ProgramArgs, Setup, grouped};

#[path = "../../tests/it/support/load.rs"]
mod load;

use load::{Client, KINDS, Round};

/// The median stop must take less than this.
const STOP_MAX: Duration = Duration::from_secs(1);

/// The number of clients that wait to be accepted.
const WAITING: usize = 2;

/// Options of `stops`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Number of stops.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Number of clients of each of the five kinds.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=200))]
    clients: u64,
    /// Klad's --execution.
    #[arg(long, value_name = "STRATEGY", default_value = "adaptive")]
    execution: String,
    /// Seed of the instants and of the requests [default: a random one].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Runs the measurement.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let setup = Setup::new(&args.program)?;
    let kinds = KINDS.repeat(usize::try_from(args.clients)?);
    let connections_max = (kinds.len() - WAITING).to_string();
    let options = ["--execution", &args.execution, "--memory", "1GiB", "--connections-max", &connections_max];
    let mut clients = Client::all(&kinds, &mut random);
    let (mut faults, mut answered, mut stops) = (0, 0, Vec::new());
    for round in 1..=args.rounds {
        let server = setup.serve("stops", &options).with_context(|| format!("start {round}"))?;
        faults += compare(server.address, &mut clients, round);
        let (address, life) = (server.address, Round::default());
        let pause = Duration::from_micros(random.u64(20_000..300_000));
        let (stopped, ends) = thread::scope(|scope| {
            let life = &life;
            let running: Vec<_> =
                clients.iter_mut().map(|client| scope.spawn(move || client.run(address, life))).collect();
            thread::sleep(pause);
            life.stopping.store(true, Ordering::SeqCst);
            let asked = Instant::now();
            let stopped = server.stop().map(|()| asked.elapsed());
            (stopped, running.into_iter().map(thread::ScopedJoinHandle::join).collect::<Vec<_>>())
        });
        answered += life.answered.into_inner();
        stops.push(stopped.with_context(|| format!("stop {round}"))?);
        for end in ends {
            if let Err(why) = end.unwrap_or_else(|_| Err("a client has panicked".to_owned())) {
                eprintln!("stop {round}: {why}");
                faults += 1;
            }
        }
    }
    let server = setup.serve("stops", &options)?;
    faults += compare(server.address, &mut clients, args.rounds);
    server.stop()?;
    stops.sort_unstable();
    let [shortest, median, longest] = [0, stops.len() / 2, stops.len() - 1].map(|place| stops[place].as_millis());
    println!(
        "{} stops under the load of {} clients, {} requests, of which {} were refused with 503",
        args.rounds,
        clients.len(),
        grouped(answered),
        grouped(clients.iter().map(|client| client.refused).sum())
    );
    println!("SIGTERM to the end with exit code 0: shortest {shortest} ms, median {median} ms, longest {longest} ms");
    let verdict = Verdict::of(faults == 0 && stops[stops.len() / 2] < STOP_MAX);
    println!(
        "{}: {faults} failed requests and lost writes (none is allowed); the median stop takes less than {STOP_MAX:?}",
        verdict.word()
    );
    Ok(verdict)
}

/// Reads back all writes that were acknowledged before this start of klad. Returns the number of clients that miss a
/// write.
fn compare(address: SocketAddr, clients: &mut [Client], stops: u64) -> u64 {
    let mut lost = 0;
    for client in clients {
        if let Err(why) = client.compare(address) {
            eprintln!("after stop {stops}: {why}");
            lost += 1;
            // So that each loss is reported only once.
            client.forget();
        }
    }
    lost
}
