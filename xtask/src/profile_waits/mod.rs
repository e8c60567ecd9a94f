//! `cargo xtask profile-waits`: which strategy waits for what, and how long?
//!
//! ```text
//!   klad serve --execution …, core A ◀── klad bench, core B: first at a rate that all carry, then closed with 64 connections
//!        └── a lock profile and one of all waits, of the middle of each load
//! ```
//!
//! It judges nothing but that every load was served: the table is for docs/profiling.md, and for whoever chooses a strategy.

mod table;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytesize::ByteSize;

use crate::Verdict;
use crate::bench;
use crate::cores::{self, Cores};
use crate::klad::{Addresses, Klad, ProgramArgs, Settings};
use crate::profiles::{self, Collapsed};

use table::Row;

/// From the start of a load until it is looked at, and from then to its end at least.
const MARGIN: Duration = Duration::from_secs(1);

/// Beyond the length of a load, before it is killed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Keys.
const KEYS: &str = "10000";

/// An offered load counts as carried when so much of it was served.
const CARRIED: f64 = 0.99;

/// All strategies, with what they are started with.
const STRATEGIES: [(&str, &[&str]); 4] = [
    ("adaptive", &[]),
    ("inline", &[]),
    ("pool", &["--pool-threads", "4", "--queue-limit", "1024"]),
    ("stealing", &["--pool-threads", "4", "--queue-limit", "1024"]),
];

/// What is done under a load.
#[derive(Clone, Copy)]
struct Operation {
    name: &'static str,
    workload: &'static str,
    target: &'static str,
    /// Whether each waits for a sync.
    synced: bool,
}

const GET: Operation = Operation { name: "GET", workload: "get", target: "/v0/entity?id={key}", synced: false };
const PUT_ASYNC: Operation =
    Operation { name: "PUT async", workload: "put", target: "/v0/entity?id={key}&durability=async", synced: false };
const PUT_SYNC: Operation =
    Operation { name: "PUT sync", workload: "put", target: "/v0/entity?id={key}&durability=sync", synced: true };

/// Options of `profile-waits`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Requests per second of the open load of reads and unsynced writes: what all strategies carry.
    #[arg(long, value_name = "N", default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// The same of synced writes, each of which waits for a sync of its own where they are not gathered.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    sync_rate: u32,
    /// How long is looked at each load.
    #[arg(long, value_name = "TIME", default_value = "6s")]
    duration: humantime::Duration,
    /// Waits from here on are kept.
    #[arg(long, value_name = "TIME", default_value = "10us")]
    threshold: String,
}

/// What is measured with.
struct Lab<'a> {
    args: &'a Args,
    program: PathBuf,
    cores: Cores,
    directory: &'a Path,
}

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let program = args.program.find()?;
    let cores = Cores::choose()?;
    let directory = tempfile::Builder::new().prefix("klad-xtask-").tempdir().context("no temporary directory")?;
    let lab = Lab { args, program, cores, directory: directory.path() };
    println!(
        "Waits of {} and more, values of 100 bytes, klad on core {}, load on core {}, {} each\n",
        args.threshold, cores.server, cores.client, args.duration
    );
    println!("{}", table::HEAD);
    let mut carried = true;
    for load in ["open", "full"] {
        for operation in [GET, PUT_ASYNC, PUT_SYNC] {
            for (strategy, more) in STRATEGIES {
                let row = lab.row(load, operation, strategy, more);
                let row = row.with_context(|| format!("{load} load of {} with {strategy}", operation.name))?;
                println!("{}", row.line());
                carried &= row.carried;
            }
        }
    }
    let verdict = Verdict::of(carried);
    println!("\n{}: every strategy serves what is offered", verdict.word());
    Ok(verdict)
}

impl Lab<'_> {
    /// One load on a klad of its own.
    fn row(&self, load: &'static str, operation: Operation, strategy: &'static str, more: &[&str]) -> Result<Row> {
        let data = tempfile::Builder::new().prefix("data-").tempdir_in(self.directory)?;
        let words = ["--execution", strategy].into_iter().chain(more.iter().copied());
        let settings = Settings {
            program: self.program.clone(),
            data: data.path().join("data"),
            memory: ByteSize::gib(1),
            addresses: Addresses::any(),
            more: words.map(str::to_owned).collect(),
        };
        let mut klad = cores::on(self.cores.server, || Klad::start(&settings))?;
        let addresses = klad.wait_for_start_line()?;
        let window = *self.args.duration;
        let fill = ["--workload", "put", "--fill", KEYS, "--closed"];
        self.bench(addresses, &fill, PUT_ASYNC.target, Duration::from_secs(1)).context("cannot fill the store")?;
        let rate = if operation.synced { self.args.sync_rate } else { self.args.rate }.to_string();
        let how: &[&str] = if load == "open" {
            &["--rate", &rate, "--connections", "64"]
        } else {
            &["--closed", "--connections", "64"]
        };
        let words = ["--workload", operation.workload, "--keys", KEYS];
        let arguments: Vec<&str> = words.iter().chain(how).copied().collect();
        let (measured, looked) = thread::scope(|scope| {
            let looking = scope.spawn(move || {
                thread::sleep(MARGIN);
                self.look(addresses.admin, window)
            });
            let measured = self.bench(addresses, &arguments, operation.target, window + MARGIN * 2);
            (measured, looking.join())
        });
        let (per_s, scheduled_per_s) = measured?;
        let (mutex, block) = looked.ok().context("a client of profiles has panicked")??;
        klad.stop()?;
        let carried = load != "open" || per_s >= scheduled_per_s * CARRIED;
        let (mutex_waits, block_waits) = (mutex.waits()?, block.waits()?);
        Ok(Row {
            load,
            operation: operation.name,
            strategy,
            per_s,
            window,
            carried,
            mutex,
            mutex_waits,
            block,
            block_waits,
        })
    }

    /// Both profiles, at the same time.
    fn look(&self, admin: SocketAddr, window: Duration) -> Result<(Collapsed, Collapsed)> {
        let seconds = window.as_secs_f64();
        let take = |what: &str| {
            let threshold = &self.args.threshold;
            let target = format!("/debug/pprof/{what}?seconds={seconds}&threshold={threshold}&format=collapsed");
            profiles::take_collapsed(admin, &target)
        };
        thread::scope(|scope| {
            let mutex = scope.spawn(|| take("mutex"));
            let block = take("block")?;
            Ok((mutex.join().ok().context("a client of profiles has panicked")??, block))
        })
    }

    /// Operations in a second that ended well, and that were to be.
    #[expect(clippy::cast_precision_loss, reason = "requests of seconds are far below 2^52")]
    fn bench(&self, addresses: Addresses, arguments: &[&str], target: &str, duration: Duration) -> Result<(f64, f64)> {
        let url = format!("http://{}{target}", addresses.data);
        let length = humantime::format_duration(duration).to_string();
        let more = ["--value-size", "100", "--threads", "1", "--warm-up", "0s", "--duration", &length];
        let words = [url.as_str()].into_iter().chain(arguments.iter().copied()).chain(more);
        let arguments: Vec<String> = words.map(str::to_owned).collect();
        let wall_max = duration + PATIENCE;
        let (result, _) = bench::run(&self.program, &arguments, self.cores.client, wall_max, self.directory)?;
        let measured = &result.measured;
        Ok((measured.goodput_per_s, measured.scheduled as f64 / measured.duration_s))
    }
}
