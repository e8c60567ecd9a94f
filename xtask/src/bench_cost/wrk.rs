//! One run of wrk, the client that `klad bench` is measured against, and what it prints. Called by `bench_cost`.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::cores;
use crate::process::{Ended, Running};

/// What wrk has done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Done {
    /// Requests.
    pub(crate) requests: u64,
    /// Of them, in a second.
    pub(crate) per_s: f64,
}

/// Fails, and says what to do, when there is no wrk.
pub(crate) fn find() -> Result<()> {
    // `-v` prints the version, and ends with 1.
    match Command::new("wrk").arg("-v").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(error).context("there is no wrk: install it, on Debian and Ubuntu with `apt-get install wrk`")
        }
        ended => ended.map(drop).context("cannot run wrk"),
    }
}

/// Runs wrk on `core`, with one thread; `arguments` are the rest. `directory` holds its report for a while.
pub(crate) fn run(arguments: &[String], core: usize, wall_max: Duration, directory: &Path) -> Result<(Done, Ended)> {
    let report = directory.join("wrk.txt");
    let mut command = Command::new("wrk");
    command.arg("-t1").args(arguments).stdin(Stdio::null()).stdout(File::create(&report)?);
    let ended = cores::on(core, || Running::start(&mut command))?.wait(wall_max).context("wrk")?;
    ensure!(ended.status.success(), "wrk has failed with {}: wrk {}", ended.status, arguments.join(" "));
    let done = parse(&fs::read_to_string(&report)?)?;
    Ok((done, ended))
}

/// Reads wrk's report. Answers other than 2xx and 3xx, and failures, are requests of another kind: an error.
fn parse(report: &str) -> Result<Done> {
    for trouble in ["Non-2xx or 3xx responses:", "Socket errors:"] {
        let line = report.lines().find(|line| line.trim().starts_with(trouble));
        ensure!(line.is_none(), "wrk reports trouble: {}", line.unwrap_or_default().trim());
    }
    let requests = report.lines().find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok());
    let per_s = report.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:")?.trim().parse().ok());
    let (requests, per_s) = requests.zip(per_s).with_context(|| format!("wrk's report has no requests:\n{report}"))?;
    Ok(Done { requests, per_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
Running 5s test @ http://127.0.0.1:8080/v0/entity?id=key
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   571.83us   95.09us   5.10ms   92.05%
    Req/Sec   112.10k     4.05k  117.60k    90.20%
  568817 requests in 5.10s, 125.31MB read
Requests/sec: 111536.63
Transfer/sec:     24.57MB
";

    #[test]
    fn requests_are_found_in_the_report() {
        assert_eq!(parse(REPORT).expect("a report"), Done { requests: 568_817, per_s: 111_536.63 });
    }

    #[test]
    fn trouble_is_an_error() {
        for line in ["  Non-2xx or 3xx responses: 3\n", "  Socket errors: connect 0, read 1, write 0, timeout 0\n"] {
            let report = REPORT.replace("Requests/sec", &format!("{line}Requests/sec"));
            assert!(parse(&report).is_err(), "{line}");
        }
        assert!(parse("unable to connect to 127.0.0.1:1 Connection refused\n").is_err());
    }
}
