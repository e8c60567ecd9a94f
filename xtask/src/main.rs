//! The project's measurements. `cargo xtask NAME` runs one, `make measure` runs those that a release needs.
//!
//! Measurements check figures that no test may assert: times, memory and CPU cost. Results go to stdout, messages to
//! stderr. The exit code is 0 if every bound is kept, 1 if a bound is exceeded or the measurement failed, 2 for wrong
//! usage. `cluster` only prints whether its bounds are kept, because its figures depend on how many cores the three
//! nodes share. xtask sees only what a client of klad sees, with two exceptions. `bulk` and `yardstick` also open an
//! engine, and `cluster` opens a session with Cassandra. These serve as controls, which show what a server adds. xtask
//! uses the load tester and the process handling of klad, but none of its server code.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench_truth;
mod bulk;
mod cluster;
mod console_cost;
mod memory;
mod profile_cost;
mod restart;
mod stops;
mod yardstick;

mod setup;

/// The project's measurements.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", max_term_width = 100, disable_help_subcommand = true)]
struct Cli {
    /// The measurement to run.
    #[command(subcommand)]
    chore: Chore,
}

/// The measurements.
#[derive(Debug, Subcommand)]
enum Chore {
    /// Compare the response times that klad bench reports with the true times, which a test server records.
    BenchTruth(bench_truth::Args),
    /// Measure what batches and scans cost, compared with single requests.
    Bulk(bulk::Args),
    /// Measure klad on Cassandra, compared with the same requests without klad.
    ///
    /// Starts three Cassandra nodes and up to three klads on this machine, and ends them. `tools/setup.sh cluster`
    /// installs Java and Cassandra. Takes about ten minutes and 3 GB of memory. Prints tables in markdown, and a
    /// verdict for each bound: within, EXCEEDED, or NOT SHOWN if only some rounds keep the bound. The exit code is 0
    /// whatever the verdicts are, and 1 if an answer of klad is wrong or the measurement fails.
    Cluster(cluster::Args),
    /// Measure the CPU time that open consoles cost per request.
    ConsoleCost(console_cost::Args),
    /// Check that klad's resident memory stays within 1.1 times its budget plus 64 MiB.
    Memory(memory::Args),
    /// Measure the CPU time that profiles and heap samples cost per request.
    ProfileCost(profile_cost::Args),
    /// Kill klad during writes, and measure how soon it serves again after a restart.
    Restart(restart::Args),
    /// Stop klad under load again and again, and check that no client notices.
    Stops(stops::Args),
    /// Compare klad with Redis, with `--execution inline` and with RocksDB without a server, and measure a bulk load.
    ///
    /// Takes about seven minutes, and 10 GB of disk space for temporary files (TMPDIR). Needs redis-server,
    /// redis-benchmark and vmtouch.
    Yardstick(yardstick::Args),
}

/// Whether a measurement kept its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Every bound is kept.
    Within,
    /// At least one bound is exceeded. The measurement has printed which one.
    Exceeded,
}

impl Verdict {
    fn of(within: bool) -> Verdict {
        if within { Verdict::Within } else { Verdict::Exceeded }
    }

    /// The word in reports.
    fn word(self) -> &'static str {
        match self {
            Verdict::Within => "within",
            Verdict::Exceeded => "EXCEEDED",
        }
    }
}

fn main() -> ExitCode {
    let ended = match Cli::parse().chore {
        Chore::BenchTruth(args) => bench_truth::run(&args),
        Chore::Bulk(args) => bulk::run(&args),
        Chore::Cluster(args) => cluster::run(&args),
        Chore::ConsoleCost(args) => console_cost::run(&args),
        Chore::Memory(args) => memory::run(&args),
        Chore::ProfileCost(args) => profile_cost::run(&args),
        Chore::Restart(args) => restart::run(&args),
        Chore::Stops(args) => stops::run(&args),
        Chore::Yardstick(args) => yardstick::run(&args),
    };
    match ended {
        Ok(Verdict::Within) => ExitCode::SUCCESS,
        Ok(Verdict::Exceeded) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
