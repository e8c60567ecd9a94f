//! One run of wrk with the yardstick's script. Called by `mod`.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::subjects::{Distribution, Load};
use crate::cores;
use crate::process::Running;

const SCRIPT: &str = include_str!("wrk.lua");

/// Beyond the length of a run, before wrk is killed.
const PATIENCE: Duration = Duration::from_secs(20);

/// What one client has seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Seen {
    /// Requests that were answered.
    pub(crate) requests: f64,
    /// In a second.
    pub(crate) rate: f64,
    /// Latencies in microseconds: the median, 99 %, 99.9 %.
    pub(crate) latency_us: [f64; 3],
}

/// Loads `address` for `duration` from `core`; `directory` holds script and report.
pub(crate) fn run(
    address: SocketAddr,
    load: &Load,
    keys: u64,
    connections: u64,
    duration: Duration,
    core: usize,
    directory: &Path,
) -> Result<Seen> {
    let script = directory.join("wrk.lua");
    fs::write(&script, SCRIPT)?;
    let report = directory.join("wrk.txt");
    let distribution = match load.distribution {
        Distribution::Uniform => "uniform",
        Distribution::Zipf => "zipf",
    };
    let query = if load.query.is_empty() { "-" } else { load.query };
    let mut command = Command::new("wrk");
    command
        .args(["-t1", &format!("-c{connections}"), &format!("-d{}s", duration.as_secs()), "-s"])
        .arg(&script)
        .args([&format!("http://{address}/"), "--", load.method, &keys.to_string(), distribution, query])
        .arg(super::VALUE_BYTES.to_string())
        .stdin(Stdio::null())
        .stdout(File::create(&report)?);
    let ended = cores::on(core, || Running::start(&mut command))?.wait(duration + PATIENCE).context("wrk")?;
    ensure!(ended.status.success(), "wrk has failed with {}", ended.status);
    parse(&fs::read_to_string(&report)?)
}

fn parse(report: &str) -> Result<Seen> {
    let line = report.lines().find_map(|line| line.strip_prefix("yardstick "));
    let line = line.with_context(|| format!("wrk's script has said nothing:\n{report}"))?;
    let figures: Vec<f64> = line.split(' ').map(str::parse).collect::<Result<_, _>>().context(line.to_owned())?;
    let &[requests, duration_us, p50, p99, p999, errors] = figures.as_slice() else {
        anyhow::bail!("wrk's script has said {line}");
    };
    ensure!(errors == 0.0 && requests > 0.0, "{errors} of {requests} requests have failed:\n{report}");
    Ok(Seen { requests, rate: requests * 1e6 / duration_us, latency_us: [p50, p99, p999] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_read_and_trouble_is_an_error() {
        let seen = parse("Running 1s test\nyardstick 50000 1000000 900 2500 4000 0\n").expect("a report");
        assert_eq!(seen, Seen { requests: 50_000.0, rate: 50_000.0, latency_us: [900.0, 2500.0, 4000.0] });
        for wrong in ["yardstick 50000 1000000 900 2500 4000 1", "yardstick 0 1 0 0 0 0", "yardstick 1 2", "Running"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
