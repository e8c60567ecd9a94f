//! Redis beside the others: how many SETs it takes a second, by its own benchmark. Called by `mod`.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::Pid;

use crate::cores;

const START_MAX: Duration = Duration::from_secs(10);

/// A running Redis; dropping it kills it.
pub(crate) struct Redis {
    child: Child,
    address: SocketAddr,
}

impl Redis {
    /// Starts one that appends each write to its log, and syncs that as `fsync` says: `always`, `everysec`.
    pub(crate) fn start(fsync: &str, port: u16, directory: &Path, core: usize) -> Result<Redis> {
        std::fs::create_dir(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"])
            .arg(directory)
            .args(["--appendonly", "yes", "--appendfsync", fsync, "--save", "", "--loglevel", "warning"])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = cores::on(core, || command.spawn().context("cannot run redis-server"))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let redis = Redis { child, address };
        let asked = Instant::now();
        while TcpStream::connect(address).is_err() {
            if asked.elapsed() > START_MAX {
                bail!("Redis does not listen at {address} after {START_MAX:?}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(redis)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// SETs of so many requests: rate, and latencies in microseconds at the median, 99 % and 99.9 %.
    pub(crate) fn set(&self, requests: u64, connections: u64, keys: u64, core: usize) -> Result<(f64, [f64; 3])> {
        let mut command = Command::new("redis-benchmark");
        command
            .args(["-p", &self.address.port().to_string(), "-t", "set", "-d", &super::VALUE_BYTES.to_string()])
            .args(["-c", &connections.to_string(), "-n", &requests.to_string(), "-r", &keys.to_string()])
            .args(["--precision", "3"])
            .stdin(Stdio::null());
        let output = cores::on(core, || command.output().context("cannot run redis-benchmark"))?;
        if !output.status.success() {
            bail!("redis-benchmark has failed with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        parse(&String::from_utf8_lossy(&output.stdout))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Nothing of it is needed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `12.345% <= 0.123 milliseconds (…)`, and `throughput summary: 12345.67 requests per second`.
fn parse(report: &str) -> Result<(f64, [f64; 3])> {
    let mut rate = None;
    let mut latency = [None; 3];
    // The progress lines end in carriage returns.
    for line in report.split(['\n', '\r']).map(str::trim) {
        if let Some(text) = line.strip_prefix("throughput summary: ") {
            rate = text.split(' ').next().and_then(|word| word.parse().ok());
        } else if let Some((percent, rest)) = line.split_once("% <= ")
            && let (Ok(percent), Some(milliseconds)) = (percent.parse::<f64>(), rest.split(' ').next())
        {
            let microseconds = milliseconds.parse::<f64>().context(line.to_owned())? * 1e3;
            for (place, least) in latency.iter_mut().zip([50.0, 99.0, 99.9]) {
                if place.is_none() && percent >= least {
                    *place = Some(microseconds);
                }
            }
        }
    }
    match (rate, latency) {
        (Some(rate), [Some(p50), Some(p99), Some(p999)]) => Ok((rate, [p50, p99, p999])),
        _ => bail!("redis-benchmark has said:\n{report}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_percentiles_are_read() {
        let report = "SET: rps=1.0 (overall: 2.0)\rLatency by percentile distribution:\n0.000% <= 0.111 milliseconds (cumulative count 2)\n\
                      50.000% <= 0.687 milliseconds (cumulative count 5)\n99.219% <= 1.500 milliseconds (cumulative count 8)\n\
                      99.902% <= 2.250 milliseconds (cumulative count 9)\nSummary:\n  throughput summary: 61234.50 requests per second\n";
        assert_eq!(parse(report).expect("a report"), (61_234.5, [687.0, 1500.0, 2250.0]));
        assert!(parse("Could not connect").is_err());
    }
}
