//! Measures contention: many clients add to one counter, through one klad and through three.
//!
//! Each add is a lightweight transaction. One klad queues the transactions of a directory, but those of three klads
//! disturb each other. At the end, the counter must be at least the number of confirmed adds. It must be at most that
//! number plus the adds with an unknown outcome.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::figures::print_table;
use super::nodes::{Klad, Nodes};
use super::{Args, CLIENTS, go_on};
use crate::setup::grouped;

const KEYSPACE: &str = "counters";

/// How long a client waits for an answer. Longer than the longest wait of a conditional write in klad.
const TIMEOUT: Duration = Duration::from_mins(1);

/// The pause of a client after a rejection.
const PAUSE: Duration = Duration::from_millis(100);

/// The largest allowed number of unknown outcomes in a thousand adds: through one klad, and through three.
const UNKNOWN_PER_MILLE_MAX: [u64; 2] = [0, 10];

/// The number of adds with each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Adds {
    /// Answered with 200. These adds have happened.
    done: u64,
    /// Answered with 500 `undetermined` or 504, or not at all. These adds may have happened.
    unknown: u64,
    /// Answered with 503. These adds have not happened.
    rejected: u64,
}

impl Adds {
    fn plus(self, other: Adds) -> Adds {
        Adds {
            done: self.done + other.done,
            unknown: self.unknown + other.unknown,
            rejected: self.rejected + other.rejected,
        }
    }

    /// Whether a counter can have this value after these adds.
    fn allow(self, counter: u64) -> bool {
        (self.done..=self.done + self.unknown).contains(&counter)
    }

    /// Whether at most `unknown_per_mille_max` in a thousand adds have an unknown outcome.
    fn are_known(self, unknown_per_mille_max: u64) -> bool {
        self.unknown * 1_000 <= (self.done + self.unknown) * unknown_per_mille_max
    }
}

/// Runs the measurement, and prints its table.
pub(super) fn run(args: &Args, nodes: &Nodes) -> Result<()> {
    nodes.init(KEYSPACE)?;
    let klads: Vec<Klad> =
        (1..=3).map(|number| nodes.klad(KEYSPACE, &format!("counter-{number}"), &[])).collect::<Result<_>>()?;
    let (mut rows, mut verdicts) = (Vec::new(), Vec::new());
    for (klads, most) in [&klads[..1], &klads[..]].into_iter().zip(UNKNOWN_PER_MILLE_MAX) {
        eprintln!("{CLIENTS} clients add to one counter, klads: {}", klads.len());
        let counter = format!("d/counter{}", klads.len());
        let begin = Instant::now();
        let adds = load(klads, &counter, *args.duration)?;
        let seconds = begin.elapsed().as_secs_f64();
        let value = read(&klads[0], &counter)?;
        #[expect(clippy::cast_precision_loss, reason = "adds of seconds are far below 2^52")]
        let rate = adds.done as f64 / seconds;
        let counts = [adds.done, adds.unknown, adds.rejected, value].map(grouped);
        let name = if klads.len() == 1 { "one klad" } else { "three klads" };
        let mut row = vec![name.to_owned(), format!("{rate:.0}")];
        row.extend(counts);
        rows.push(row);
        let word = if adds.are_known(most) { "within" } else { "EXCEEDED" };
        let share = format!("{} unknown of {}", adds.unknown, adds.done + adds.unknown);
        verdicts.push(format!("* {word}: {share} at {name}; at most {most} of 1,000"));
        ensure!(adds.allow(value), "WRONG: the counter is {value} after {adds:?}");
    }
    let columns = ["at", "adds per second", "done", "outcome unknown", "rejected", "the counter at the end"];
    print_table(&format!("{CLIENTS} clients add to one counter"), &columns, &rows);
    println!("{}", verdicts.join("\n"));
    println!("* the counter is at least the adds done, and at most those and the unknown ones");
    Ok(())
}

/// Adds to `counter` for `duration`, with the clients spread over the klads.
fn load(klads: &[Klad], counter: &str, duration: Duration) -> Result<Adds> {
    let end = Instant::now() + duration;
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let url = format!("http://{}/v1/kv/{counter}?op=add&by=1", klads[client % klads.len()].address);
                scope.spawn(move || one_client(&url, end))
            })
            .collect();
        let mut sum = Adds::default();
        for client in clients {
            sum = sum.plus(client.join().ok().context("a client has panicked")??);
        }
        Ok(sum)
    })
}

fn one_client(url: &str, end: Instant) -> Result<Adds> {
    let agent = agent();
    let mut adds = Adds::default();
    while Instant::now() < end {
        go_on()?;
        let Ok(mut answer) = agent.post(url).send_empty() else {
            adds.unknown += 1;
            continue;
        };
        let status = answer.status().as_u16();
        let text = answer.body_mut().read_to_string().unwrap_or_default();
        match status {
            200 => adds.done += 1,
            500 if text.contains("\"undetermined\"") => adds.unknown += 1,
            504 => adds.unknown += 1,
            503 => {
                adds.rejected += 1;
                thread::sleep(PAUSE);
            }
            _ => bail!("klad answered an add with {status}: {text}"),
        }
    }
    Ok(adds)
}

/// Reads the value of the counter, after all transactions in progress have ended.
fn read(klad: &Klad, counter: &str) -> Result<u64> {
    let request = agent().get(format!("http://{}/v1/kv/{counter}", klad.address)).header("Klad-Consistency", "serial");
    let text = request.call().context("the counter cannot be read")?.body_mut().read_to_string()?;
    text.parse().with_context(|| format!("the counter is {text:?}"))
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false).build().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_lies_between_the_adds_done_and_those_that_may_have_happened() {
        let adds = Adds { done: 5, unknown: 2, rejected: 9 };
        assert_eq!([4, 5, 7, 8].map(|counter| adds.allow(counter)), [false, true, true, false]);
    }

    #[test]
    fn twin_one_unknown_outcome_too_many_is_noticed() {
        let adds = |unknown| Adds { done: 1_000 - unknown, unknown, rejected: 0 };
        assert!(adds(0).are_known(0) && !adds(1).are_known(0));
        assert!(adds(10).are_known(10) && !adds(11).are_known(10));
    }
}
