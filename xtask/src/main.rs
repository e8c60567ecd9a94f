//! Measurements that a release runs (`make measure`), each as `cargo xtask NAME`.
//!
//! They measure what no test may assert: times, memory and CPU cost. Results go to stdout, messages to stderr. The
//! exit code is 0 when every bound is kept, 1 when one is exceeded or the measurement failed, 2 for wrong usage.
//! `cluster` only prints whether its bounds are kept: its figures depend on how many cores three nodes share.
//! xtask sees of klad what a client sees. Only `bulk` and `yardstick` open an engine, and `cluster` a session with
//! Cassandra, as the control of what a server adds to it. xtask uses the load tester and the process handling of klad, but none of its
//! server code.

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
    /// The measurement.
    #[command(subcommand)]
    chore: Chore,
}

/// The measurements.
#[derive(Debug, Subcommand)]
enum Chore {
    /// Compare what klad bench reports with the record of a server that knows the true response times.
    BenchTruth(bench_truth::Args),
    /// Measure what batches and scans cost beside single requests.
    Bulk(bulk::Args),
    /// Measure klad on Cassandra beside the same requests without klad.
    ///
    /// Starts three Cassandra nodes and up to three klads on this machine, and ends them. `tools/setup.sh cluster`
    /// installs what it needs. Takes about ten minutes and 3 GB of memory. Prints tables in markdown, and a verdict for
    /// each bound: within, EXCEEDED, or NOT SHOWN if only some rounds keep it. The exit code is 0 whatever the verdicts
    /// are, and 1 if an answer of klad is wrong or the measurement fails.
    Cluster(cluster::Args),
    /// Measure the CPU time that open consoles cost per request.
    ConsoleCost(console_cost::Args),
    /// Check that klad's resident memory stays within its budget.
    Memory(memory::Args),
    /// Measure the CPU time that profiles and heap samples cost per request.
    ProfileCost(profile_cost::Args),
    /// Kill klad while it is written to, and measure how soon it serves again.
    Restart(restart::Args),
    /// Stop klad under load again and again, and check that no client notices.
    Stops(stops::Args),
    /// Measure klad beside Redis, beside `--execution inline`, beside RocksDB without a server, and a bulk load.
    ///
    /// Takes about seven minutes, and 10 GB of disk space for temporary files (TMPDIR). Needs redis-server and
    /// redis-benchmark.
    Yardstick(yardstick::Args),
}

/// Whether a measurement kept its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Every bound is kept.
    Within,
    /// A bound is exceeded; the measurement has printed which.
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
