//! The project's chores that are more than one call of cargo: `cargo xtask <chore>`.
//!
//! A chore is a file, or a directory of files, with an `Args` and a `run`, and one line in each of [`Chore`] and [`main`].
//! Results go to stdout, messages to stderr; the exit code is 0, 1 for a bound that was exceeded and for a failure, 2 for
//! wrong usage. xtask never depends on klad: it sees of it what any client sees.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod admin_latency;
mod bench_cost;
mod bench_truth;
mod cold;
mod memory;
mod overload;
mod profile_cost;
mod profile_soak;
mod restart;
mod slow_clients;
mod stops;
mod tail;
mod yardstick;

mod bench;
mod cores;
mod entries;
mod fill;
mod http;
mod klad;
mod median;
mod metrics;
mod process;
mod profiles;
mod progress;
mod quota;
mod range;
mod resident;
mod syncs;
mod text;

/// The project's chores.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", max_term_width = 100, disable_help_subcommand = true)]
struct Cli {
    /// What to do.
    #[command(subcommand)]
    chore: Chore,
}

/// The chores.
#[derive(Debug, Subcommand)]
enum Chore {
    /// Ask more of klad than it can do, and check that the admin listener answers in time.
    AdminLatency(admin_latency::Args),
    /// Check that klad bench costs no more than wrk.
    BenchCost(bench_cost::Args),
    /// Check what klad bench reports against a server that knows the truth.
    BenchTruth(bench_truth::Args),
    /// Read what no memory of klad holds, and check that nobody else waits for it.
    Cold(cold::Args),
    /// Check that klad's resident memory stays within its budget.
    Memory(memory::Args),
    /// Ask more of klad than it can do, and check what is left of it.
    Overload(overload::Args),
    /// Check what profiles cost while they are taken, and when they are not.
    ProfileCost(profile_cost::Args),
    /// Take thousands of profiles of a loaded klad, and check that it bears that and that no client notices.
    ProfileSoak(profile_soak::Args),
    /// Kill klad while it is written to, and check how soon it serves again.
    Restart(restart::Args),
    /// Hold klad up with slow and hostile clients, and check what that costs everyone else.
    SlowClients(slow_clients::Args),
    /// Stop klad under load again and again, and check that no client notices.
    Stops(stops::Args),
    /// Load klad while it compacts, and check how late its latest answers are.
    Tail(tail::Args),
    /// Measure klad beside a bare hyper echo, nginx and Redis, and check its share.
    Yardstick(yardstick::Args),
    /// The echo of the yardstick, until it is killed.
    #[command(hide = true)]
    Echo(yardstick::echo::Args),
}

/// How a chore that could be done has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Every bound is kept.
    Within,
    /// One is not; the chore has said which.
    Exceeded,
}

impl Verdict {
    /// Of all bounds together.
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
        Chore::AdminLatency(args) => admin_latency::run(&args),
        Chore::BenchCost(args) => bench_cost::run(&args),
        Chore::BenchTruth(args) => bench_truth::run(&args),
        Chore::Cold(args) => cold::run(&args),
        Chore::Memory(args) => memory::run(&args),
        Chore::Overload(args) => overload::run(&args),
        Chore::ProfileCost(args) => profile_cost::run(&args),
        Chore::ProfileSoak(args) => profile_soak::run(&args),
        Chore::Restart(args) => restart::run(&args),
        Chore::SlowClients(args) => slow_clients::run(&args),
        Chore::Stops(args) => stops::run(&args),
        Chore::Tail(args) => tail::run(&args),
        Chore::Yardstick(args) => yardstick::run(&args),
        Chore::Echo(args) => yardstick::echo::run(&args),
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
    fn the_command_line_holds_together() {
        Cli::command().debug_assert();
    }
}
