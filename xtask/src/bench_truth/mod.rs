//! `cargo xtask bench-truth` checks whether the response times that `klad bench` reports are true.
//!
//! ```text
//!   klad bench ── requests with numbers in their keys, over real sockets ──▶ scripted server, on another core
//!        │                                                                        │
//!        └─▶ its result, with the start of its schedule ─┐           its record ◀─┘
//!                                                        ▼               ▼
//!                                  reported percentiles ─── compared ─── true percentiles
//! ```
//!
//! The intended start of request n is t0 + n / rate. The true response time ends when the server hands the answer to
//! the kernel. The client cannot see an answer before that. So a reported time is never shorter than the true time,
//! and is longer only by the way back to the client.

mod server;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use klad_bench::recorder::Outcome;
use klad_bench::result::{Distribution, RunResult};

use crate::Verdict;
use crate::setup::{ProgramArgs, Setup};

use server::{Nanos, Record, SECOND, Script, ScriptedServer, nanos};

/// The percentiles that are compared, in hundredths of a percent, so that a rank is a whole number.
const PERCENTILES: [u16; 8] = [5000, 7500, 9000, 9500, 9900, 9990, 9999, 10_000];

/// The resolution of a histogram with three significant digits, as a share of the value.
const RESOLUTION: f64 = 0.001;

/// Options of `bench-truth`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Requests per second.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// Length of the measured part of each run; at least 2 s, because the server freezes for 1 s in one run.
    #[arg(long, value_name = "TIME", default_value = "10s")]
    duration: humantime::Duration,
    /// Warm-up before the measured part, at the same rate.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    warm_up: humantime::Duration,
    /// How much longer than the true value a reported value may be, at percentiles below 99.
    #[arg(long, value_name = "TIME", default_value = "500us")]
    allowance: humantime::Duration,
    /// How much longer a reported value may be at percentiles from 99 on, which depend on few requests.
    #[arg(long, value_name = "TIME", default_value = "5ms")]
    allowance_tail: humantime::Duration,
    /// Number of tries of a run that exceeds a bound and that klad bench itself calls not valid, for example because
    /// the machine is busy.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    tries: u32,
}

/// Runs the measurement.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    ensure!(args.duration.as_secs() >= 2, "a freeze of 1 s needs a measured part of at least 2 s");
    let setup = Setup::new(&args.program)?;
    let mut within = true;
    for script in Script::ALL {
        let mut tries = 1;
        loop {
            println!("{script:?}: {} requests/s for {} after a warm-up of {}", args.rate, args.duration, args.warm_up);
            let (verdict, valid) = measure(args, script, &setup).with_context(|| format!("{script:?}"))?;
            if verdict == Verdict::Within || valid || tries == args.tries {
                within &= verdict == Verdict::Within;
                break;
            }
            println!("  once more: klad bench itself calls the run not valid");
            tries += 1;
        }
    }
    let verdict = Verdict::of(within);
    println!("{}: reported values are true", verdict.word());
    Ok(verdict)
}

/// Makes a run and prints it. Returns the verdict, and whether klad bench calls the run valid.
fn measure(args: &Args, script: Script, setup: &Setup) -> Result<(Verdict, bool)> {
    let (warm_up, duration) = (nanos(*args.warm_up), nanos(*args.duration));
    let server = ScriptedServer::start(script, warm_up + duration / 2, setup.server_cores.clone())?;
    let options = format!(
        "--workload get --key-order sequential --threads 1 --connections 64 --arrival constant --rate {}/s --warm-up \
         {}ns --duration {}ns",
        args.rate, warm_up, duration
    );
    let time = *args.warm_up + *args.duration;
    let result = setup.bench("truth", &format!("http://{}", server.address), &options, time)?;
    let truth = Truth::new(&result, args.rate, (warm_up, duration), &server.finish());
    let allowed = [*args.allowance, *args.allowance_tail];
    let mut verdict = truth.compare_counts(&result);
    if compare("response", &result.measured.response, &truth.responses, allowed) == Verdict::Exceeded {
        verdict = Verdict::Exceeded;
    }
    // A load tester with coordinated omission reports the time from the actual send. The comparison must detect such
    // times.
    if script == Script::Freeze {
        let twin = compare("twin: from the actual send", &result.measured.service, &truth.responses, allowed);
        if twin == Verdict::Within {
            println!("  EXCEEDED: the comparison does not notice coordinated omission");
            verdict = Verdict::Exceeded;
        }
    }
    for check in result.checks.iter().filter(|check| !check.passed) {
        println!("  klad bench calls the run not valid: {}: {}", check.name, check.detail);
    }
    println!("  {}", verdict.word());
    Ok((verdict, result.valid))
}

/// The true counts and response times of the measured part of a run.
struct Truth {
    scheduled: u64,
    refused: u64,
    /// Requests that reached the server before their intended start.
    early: u64,
    /// Response times of the served requests, from the intended start, ascending. The first list has the times until
    /// just before the server handed the answers to the kernel, the second list until just after.
    responses: [Vec<Nanos>; 2],
}

impl Truth {
    /// Computes the truth from the schedule and the server's records. It uses only the start of the schedule from the
    /// client's `result`.
    fn new(result: &RunResult, rate: u64, (warm_up, duration): (Nanos, Nanos), records: &[Record]) -> Truth {
        let due = |length: Nanos| {
            let due = (u128::from(length) * u128::from(rate)).div_ceil(u128::from(SECOND));
            u64::try_from(due).unwrap_or(u64::MAX)
        };
        let intended = |number: u64| {
            let after = u128::from(number) * u128::from(SECOND) / u128::from(rate);
            result.started.monotonic_ns + u64::try_from(after).unwrap_or(u64::MAX)
        };
        let measured = due(warm_up)..due(warm_up + duration);
        let mut truth =
            Truth { scheduled: measured.end - measured.start, refused: 0, early: 0, responses: Default::default() };
        for record in records.iter().filter(|record| measured.contains(&record.number)) {
            truth.early += u64::from(record.arrived < intended(record.number));
            match record.status {
                200 => {
                    for (times, answered) in truth.responses.iter_mut().zip(record.answered) {
                        times.push(answered.saturating_sub(intended(record.number)));
                    }
                }
                _ => truth.refused += 1,
            }
        }
        truth.responses.iter_mut().for_each(|times| times.sort_unstable());
        truth
    }

    fn compare_counts(&self, result: &RunResult) -> Verdict {
        let of = |outcome: Outcome| result.measured.outcomes.get(&outcome).copied().unwrap_or_default();
        let counts = [
            ("scheduled", result.measured.scheduled, self.scheduled),
            ("sent", result.measured.sent, self.scheduled),
            ("served", of(Outcome::Served), self.responses[0].len() as u64),
            ("refused", of(Outcome::Refused), self.refused),
            ("sent before their intended start", 0, self.early),
        ];
        for (name, reported, seen) in counts.iter().filter(|(_, reported, seen)| reported != seen) {
            println!("  EXCEEDED {name}: reported {reported}, true {seen}");
        }
        Verdict::of(counts.iter().all(|(_, reported, seen)| reported == seen))
    }
}

/// Returns a percentile (in hundredths of a percent) of `times`, which ascend; `None` if `times` is empty.
fn percentile(times: &[Nanos], hundredths: u16) -> Option<Nanos> {
    let rank = (times.len() * usize::from(hundredths)).div_ceil(10_000).max(1);
    times.get(rank - 1).copied()
}

/// Compares the reported distribution with the true times, and prints both. `times` has lower and upper bounds of the
/// true times. `allowed` is how much a reported value may exceed the upper bound, for percentiles below 99 and for
/// those from 99 on. Without any percentile to compare, the verdict is `Exceeded`.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 ns, which are 104 days")]
fn compare(name: &str, reported: &Distribution, times: &[Vec<Nanos>; 2], allowed: [Duration; 2]) -> Verdict {
    println!("  {name:<28}{:>14}{:>14}{:>14}", "reported µs", "true µs", "difference µs");
    let (mut compared, mut within) = (0, true);
    for hundredths in PERCENTILES {
        let percent = f64::from(hundredths) / 100.0;
        let [Some(least), Some(most)] = times.each_ref().map(|times| percentile(times, hundredths)) else { continue };
        let Some(reported) = reported.at(percent).map(|point| point.value_us) else { continue };
        let (least, most) = (least as f64 / 1e3, most as f64 / 1e3);
        let more = allowed[usize::from(hundredths >= 9900)].as_secs_f64() * 1e6;
        let is_true = (least * (1.0 - RESOLUTION)..=most * (1.0 + RESOLUTION) + more).contains(&reported);
        println!(
            "  {:<28}{reported:>14.1}{least:>14.1}{:>14.1}{}",
            format!("p{percent}"),
            reported - least,
            if is_true { "" } else { "  beyond what is allowed" }
        );
        compared += 1;
        within &= is_true;
    }
    Verdict::of(within && compared > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(5)];

    /// The verdict on a client that reports exactly `times`, each longer by `late`.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn verdict(times: &[Nanos], late: Nanos, truth: &[Nanos]) -> Verdict {
        let point = |hundredths: u16| {
            let value_us = (percentile(times, hundredths)? + late) as f64 / 1e3;
            let percentile = f64::from(hundredths) / 100.0;
            Some(klad_bench::result::Percentile { percentile, value_us, samples_above: 0, enough: true })
        };
        let percentiles = PERCENTILES.into_iter().filter_map(point).collect();
        let reported = Distribution { percentiles, ..Distribution::default() };
        compare("test", &reported, &[truth.to_vec(), truth.to_vec()], ALLOWED)
    }

    /// Response times of 1 ms, but longer for 2,000 of 20,000 requests, which meet a server that is frozen for a
    /// second.
    fn frozen() -> Vec<Nanos> {
        let waits = (0..2_000).map(|number| SECOND * number / 2_000).chain(std::iter::repeat_n(0, 18_000));
        let mut times: Vec<_> = waits.map(|wait| wait + SECOND / 1_000).collect();
        times.sort_unstable();
        times
    }

    #[test]
    fn the_way_back_is_allowed_and_no_more() {
        assert_eq!(verdict(&frozen(), 0, &frozen()), Verdict::Within);
        assert_eq!(verdict(&frozen(), 499_000, &frozen()), Verdict::Within);
        assert_eq!(verdict(&frozen(), 600_000, &frozen()), Verdict::Exceeded);
    }

    #[test]
    fn twin_early_values_nothing_and_coordinated_omission_are_noticed() {
        let early: Vec<_> = frozen().iter().map(|time| time - 2_000).collect();
        assert_eq!(verdict(&early, 0, &frozen()), Verdict::Exceeded);
        assert_eq!(verdict(&[], 0, &frozen()), Verdict::Exceeded);
        // One request of each of 64 connections meets the freeze; all others are sent after it.
        let mut omitted = vec![SECOND / 1_000; 19_936];
        omitted.extend([SECOND; 64]);
        assert_eq!(verdict(&omitted, 0, &frozen()), Verdict::Exceeded);
    }

    #[test]
    fn response_times_begin_at_the_intended_start() {
        let mut result = klad_bench::result::sample();
        result.started.monotonic_ns = 5 * SECOND;
        let record =
            |number, arrived, answered, status| Record { number, arrived, answered: [answered, answered + 1], status };
        let ms = SECOND / 1_000;
        let records = [
            record(2, 5 * SECOND, 6 * SECOND, 200),
            record(3, 6 * SECOND, 6 * SECOND + 10 * ms, 200),
            record(4, 6 * SECOND, 6 * SECOND + 400 * ms, 503),
        ];
        let truth = Truth::new(&result, 3, (SECOND, 2 * SECOND), &records);
        assert_eq!((truth.scheduled, truth.refused, truth.early), (6, 1, 1));
        assert_eq!(truth.responses, [[10 * ms], [10 * ms + 1]], "request 2 is of the warm-up");
        assert_eq!(truth.compare_counts(&result), Verdict::Exceeded);
    }
}
