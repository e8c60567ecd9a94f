//! GET and PUT of one key: what klad adds at a moderate rate, and the highest number of requests a second.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use klad_bench::recorder::Outcome;
use klad_bench::result::RunResult;

use super::direct::{Direct, Load, Operation};
use super::figures::{Spread, print_table};
use super::nodes::{Klad, Nodes, cpu_of_children};
use super::store::store;
use super::{Args, CLIENTS, VALUE_BYTES, fill};
use crate::profile_cost::cpu_of;
use crate::setup::{Setup, grouped};

/// The largest allowed share of klad in the sum of the CPU times of klad and the nodes, percent.
const SHARE_MAX_PERCENT: f64 = 20.0;

/// The most that klad may add to the median response time, milliseconds.
const ADDED_MS_MAX: f64 = 0.3;

/// How long a load may run beyond its length. [`Setup::bench`] kills it two minutes later.
const PATIENCE: Duration = Duration::from_mins(1);

const KEYSPACE: &str = "points";

/// The number of keys that klad stores. They also measure the rate of klad's batches. `store` writes the other keys
/// directly to the nodes, because that is faster.
const KEYS_THROUGH_KLAD: u64 = 10_000;

/// The percentiles in tables.
const PERCENTILES: [f64; 3] = [50.0, 99.0, 99.9];

/// Both sides of the comparison, ready, with all keys stored.
pub(super) struct Points<'a> {
    args: &'a Args,
    setup: &'a Setup,
    nodes: &'a Nodes<'a>,
    klads: [Klad; 2],
    direct: Direct,
}

/// What one load has measured.
struct Sample {
    /// Response times at [`PERCENTILES`], milliseconds.
    response_ms: [f64; 3],
    /// CPU time per request, microseconds: of the nodes, of klad, and of the generator.
    cpu_us: [f64; 3],
    requests: f64,
    failed: u64,
}

impl<'a> Points<'a> {
    /// Starts two klads, and stores the keys.
    pub(super) fn prepare(args: &'a Args, setup: &'a Setup, nodes: &'a Nodes<'a>) -> Result<Points<'a>> {
        nodes.init(KEYSPACE)?;
        let klads = [nodes.klad(KEYSPACE, "klad-1", &[])?, nodes.klad(KEYSPACE, "klad-2", &[])?];
        eprintln!("storing {} keys", grouped(args.keys));
        let through_klad = args.keys.min(KEYS_THROUGH_KLAD);
        let stored = fill(setup, &klads[0].url(), "key{}", through_klad, VALUE_BYTES)?;
        let key = |number: u64| format!("key{number}");
        store(&nodes.addresses(), KEYSPACE, &key(0), (through_klad..args.keys).map(key), VALUE_BYTES)?;
        println!("\nkeys stored through batches of one klad: {stored:.0} per second ({} keys)", grouped(through_klad));
        let direct = Direct::connect(&nodes.addresses(), KEYSPACE, args.keys)?;
        let points = Points { args, setup, nodes, klads, direct };
        // The warm-up lets the JVMs compile the code that the requests need.
        for operation in [Operation::Get, Operation::Put] {
            eprintln!("warming up {}", operation.name());
            points.direct.closed(operation, CLIENTS, *args.duration)?;
            points.closed(operation, &[0])?;
        }
        Ok(points)
    }

    /// Measures open load, and prints the tables.
    pub(super) fn open(&self) -> Result<()> {
        self.nodes.rest()?;
        let idle = self.nodes.cpu_of_a_second()?;
        for operation in [Operation::Get, Operation::Put] {
            let (mut direct, mut klad) = (Vec::new(), Vec::new());
            for round in 0..self.args.rounds {
                eprintln!("{} at {}/s, round {}", operation.name(), self.args.rate.0, round + 1);
                // The sides take turns at being first.
                if round % 2 == 0 {
                    direct.push(self.open_direct(operation)?);
                    klad.push(self.open_klad(operation)?);
                } else {
                    klad.push(self.open_klad(operation)?);
                    direct.push(self.open_direct(operation)?);
                }
            }
            self.print_open(operation, &direct, &klad);
        }
        println!(
            "Response times count from the intended start. The CPU time of the nodes is that of all three, with \
             their work in the background: {} ms in a second without requests.",
            idle.as_millis()
        );
        Ok(())
    }

    fn print_open(&self, operation: Operation, direct: &[Sample], klad: &[Sample]) {
        let title = format!(
            "{} at {:.0}/s: values of {VALUE_BYTES} bytes, {} keys",
            operation.name(),
            self.args.rate.0,
            grouped(self.args.keys)
        );
        let columns = [
            "",
            "p50, ms",
            "p99, ms",
            "p99.9, ms",
            "CPU of the nodes per request, µs",
            "CPU of klad, µs",
            "CPU of the generator, µs",
            "failed",
        ];
        print_table(&title, &columns, &[row("direct", direct), row("klad", klad)]);
        let share = Spread::of(klad.iter().map(|sample| {
            let [nodes, klad, _] = sample.cpu_us;
            100.0 * klad / (klad + nodes)
        }));
        let pairs = direct.iter().zip(klad);
        let added = Spread::of(pairs.map(|(direct, klad)| klad.response_ms[0] - direct.response_ms[0]));
        println!(
            "* {}: klad's share of the CPU time of klad and the nodes, %: {share:.1}; at most {SHARE_MAX_PERCENT}",
            share.judge(SHARE_MAX_PERCENT)
        );
        println!("* {}: klad adds to the p50, ms: {added:.2}; at most {ADDED_MS_MAX}\n", added.judge(ADDED_MS_MAX));
    }

    fn open_direct(&self, operation: Operation) -> Result<Sample> {
        let before = self.nodes.cpu()?;
        let load = self.direct.open(operation, self.args.rate.0, *self.args.duration)?;
        let nodes = self.nodes.cpu()?.saturating_sub(before);
        let response_ms = PERCENTILES.map(|percentile| at(&load, percentile).as_secs_f64() * 1e3);
        Ok(sample(response_ms, [nodes, Duration::ZERO, load.cpu], load.responses.len() as u64, load.failed))
    }

    fn open_klad(&self, operation: Operation) -> Result<Sample> {
        let klad = &self.klads[0];
        let cpu = || Ok::<_, anyhow::Error>([self.nodes.cpu()?, cpu_of(klad.pid())?, cpu_of_children()?]);
        let before = cpu()?;
        let options = format!("--rate {}/s", self.args.rate.0);
        let result = self.bench("open", klad, operation, &options)?;
        let after = cpu()?;
        let used = [0, 1, 2].map(|part| after[part].saturating_sub(before[part]));
        let mut response_ms = [0.0; 3];
        for (response, percentile) in response_ms.iter_mut().zip(PERCENTILES) {
            *response = result.measured.response.at(percentile).context("no request was served")?.value_us / 1e3;
        }
        let served = served(&result)?;
        Ok(sample(response_ms, used, served, result.measured.scheduled - served))
    }

    /// Measures closed load, and prints the tables.
    pub(super) fn capacity(&self) -> Result<()> {
        for operation in [Operation::Get, Operation::Put] {
            let [mut direct, mut one, mut two] = [const { Vec::new() }; 3];
            for round in 0..self.args.rounds {
                eprintln!("{} with {CLIENTS} in flight, round {}", operation.name(), round + 1);
                let begin = Instant::now();
                let load = self.direct.closed(operation, CLIENTS, *self.args.duration)?;
                direct.push(to_f64(load.responses.len() as u64) / begin.elapsed().as_secs_f64());
                one.push(self.closed(operation, &[0])?);
                two.push(self.closed(operation, &[0, 1])?);
            }
            let growth = Spread::of(one.iter().zip(&two).map(|(one, two)| two / one));
            let row =
                |name: &str, rates: Vec<f64>| vec![name.to_owned(), format!("{:.0}", Spread::of(rates.into_iter()))];
            let title = format!("{} with {CLIENTS} requests in flight", operation.name());
            let rows = [row("direct", direct), row("one klad", one), row("two klads, half of the load on each", two)];
            print_table(&title, &["", "requests per second"], &rows);
            println!("* two klads serve {growth:.2} times as much as one");
        }
        println!(
            "\nThe nodes use most of the cores, so a second klad adds capacity only where klad itself is the limit."
        );
        Ok(())
    }

    /// Returns the requests per second of closed load on these klads together.
    fn closed(&self, operation: Operation, klads: &[usize]) -> Result<f64> {
        let options = format!("--closed --connections {}", CLIENTS / klads.len());
        let load = |klad: usize| {
            let result = self.bench(&format!("closed-{klad}"), &self.klads[klad], operation, &options)?;
            Ok::<_, anyhow::Error>(to_f64(served(&result)?) / result.measured.duration_s)
        };
        thread::scope(|scope| {
            let loads: Vec<_> = klads.iter().map(|klad| scope.spawn(move || load(*klad))).collect();
            loads.into_iter().map(|load| load.join().ok().context("a load has panicked")?).sum()
        })
    }

    fn bench(&self, name: &str, klad: &Klad, operation: Operation, options: &str) -> Result<RunResult> {
        let options = format!(
            "--workload {} --keys {} --key-order uniform --value-size {VALUE_BYTES}B {options} --poll off --lag-max \
             10s --warm-up 0s --duration {}ms",
            operation.workload(),
            self.args.keys,
            self.args.duration.as_millis()
        );
        self.setup.bench(name, &klad.url(), &options, *self.args.duration + PATIENCE)
    }
}

fn row(name: &str, samples: &[Sample]) -> Vec<String> {
    let mut row = vec![name.to_owned()];
    for index in 0..PERCENTILES.len() {
        row.push(format!("{:.2}", Spread::of(samples.iter().map(|sample| sample.response_ms[index]))));
    }
    for index in 0..3 {
        row.push(format!("{:.0}", Spread::of(samples.iter().map(|sample| sample.cpu_us[index]))));
    }
    let failed: u64 = samples.iter().map(|sample| sample.failed).sum();
    let requests: f64 = samples.iter().map(|sample| sample.requests).sum();
    row.push(format!("{failed} of {:.0}", requests + to_f64(failed)));
    row
}

fn sample(response_ms: [f64; 3], cpu: [Duration; 3], served: u64, failed: u64) -> Sample {
    let requests = to_f64(served);
    Sample { response_ms, cpu_us: cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / requests), requests, failed }
}

/// Returns the response time at a percentile of a load.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank among the responses")]
fn at(load: &Load, percentile: f64) -> Duration {
    let count = to_f64(load.responses.len() as u64);
    let rank = (count * percentile / 100.0).ceil() as usize;
    load.responses[rank.clamp(1, load.responses.len()) - 1]
}

fn served(result: &RunResult) -> Result<u64> {
    let served = result.measured.outcomes.get(&Outcome::Served).copied().unwrap_or_default();
    ensure!(served > 0, "no request was served: {:?}", result.measured.statuses);
    Ok(served)
}

#[expect(clippy::cast_precision_loss, reason = "requests of minutes are far below 2^52")]
fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_least_time_that_so_many_requests_do_not_exceed() {
        let responses = (1..=200).map(Duration::from_millis).collect();
        let load = Load { responses, failed: 0, cpu: Duration::ZERO };
        assert_eq!(PERCENTILES.map(|percentile| at(&load, percentile).as_millis()), [100, 198, 200]);
    }
}
