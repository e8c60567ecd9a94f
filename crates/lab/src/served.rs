//! A variant, serving: a klad process of its own, from its start to its last word. Called by `runner`.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rustix::process::Signal;
use serde::Deserialize;

use crate::process::{Running, since};
use crate::result::{Part, Slowest};
use klad_base::clock;
use klad_bench::admin::{Admin, PATIENCE};
use klad_bench::interrupt::{self, Watch};

/// From its start to its first answer: a large log may have to be read.
const START_MAX: Duration = Duration::from_mins(5);

/// From SIGTERM to its end.
const STOP_MAX: Duration = Duration::from_mins(2);

/// Between two questions whether it serves.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Lines of its log that an error shows.
const LAST_LINES: usize = 5;

/// The slowest requests that are kept of a run.
const SLOWEST: usize = 20;

/// How to start one.
#[derive(Debug)]
pub(super) struct Settings<'s> {
    /// The program.
    pub(super) program: &'s Path,
    /// Options of `klad serve`.
    pub(super) options: Vec<&'s str>,
    /// Its data directory.
    pub(super) data: &'s Path,
    /// File for its log.
    pub(super) log: PathBuf,
    /// Where it runs; anywhere when there are none.
    pub(super) cores: &'s [usize],
}

/// A serving klad; dropping it kills it.
#[derive(Debug)]
pub(super) struct Served {
    process: Running,
    log: PathBuf,
    /// Clients' address.
    pub(super) address: SocketAddr,
    /// The other.
    pub(super) admin: Arc<Admin>,
    /// From its start to its first answer.
    pub(super) start: Duration,
}

impl Served {
    /// Starts one, and waits until it serves.
    pub(super) fn start(settings: &Settings, watch: &Watch) -> anyhow::Result<Served> {
        let [address, admin] = free_addresses()?;
        let log = File::create(&settings.log).with_context(|| format!("cannot write {}", settings.log.display()))?;
        let mut command = Command::new(settings.program);
        command
            .arg("serve")
            .args(["--listen", &address.to_string(), "--admin-listen", &admin.to_string(), "--data"])
            .arg(settings.data)
            .args(&settings.options)
            .stdout(log.try_clone()?)
            .stderr(log);
        let begin = clock::now();
        let mut process = Running::start(command, settings.cores, watch)?;
        let url = format!("http://{admin}").parse().map_err(anyhow::Error::msg)?;
        let admin = Arc::new(Admin { url, token: None });
        while admin.get("/readyz", PATIENCE).is_err() {
            ensure!(!interrupt::asked(), "interrupted");
            if let Some(status) = process.wait(LOOK_INTERVAL)? {
                bail!("klad has ended at its start, {status}: {}", last_words(&settings.log));
            }
            ensure!(since(begin) < START_MAX, "klad does not serve after {START_MAX:?}: {}", last_words(&settings.log));
        }
        Ok(Served { process, log: settings.log.clone(), address, admin, start: since(begin) })
    }

    /// Leaves it alone for `time`.
    pub(super) fn stays_for(&mut self, time: Duration) -> anyhow::Result<()> {
        match self.process.wait(time)? {
            Some(status) => bail!("klad has ended by itself, {status}: {}", last_words(&self.log)),
            None => Ok(()),
        }
    }

    /// CPU time of all its threads so far.
    pub(super) fn cpu(&self) -> Option<Duration> {
        self.process.cpu()
    }

    /// The largest resident set that it ever had, bytes.
    pub(super) fn memory_max(&self) -> Option<u64> {
        self.process.memory_max()
    }

    /// The slowest requests of the last minute, as it saw them.
    pub(super) fn slowest(&self) -> anyhow::Result<Vec<Slowest>> {
        let answer = self.admin.get(&format!("/debug/slow?limit={SLOWEST}"), PATIENCE)?;
        let said: Said = serde_json::from_slice(&answer).context("/debug/slow is not what it was")?;
        Ok(said.requests.into_iter().map(Request::into_slowest).collect())
    }

    /// Stops it in order.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        self.stays_for(Duration::ZERO)?;
        self.process.signal(Signal::TERM);
        match self.process.wait(STOP_MAX)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("klad was asked to stop, and ended with {status}: {}", last_words(&self.log)),
            None => bail!("klad has not stopped {STOP_MAX:?} after SIGTERM"),
        }
    }
}

/// Of `/debug/slow`.
#[derive(Deserialize)]
struct Said {
    requests: Vec<Request>,
}

#[derive(Deserialize)]
struct Request {
    op: String,
    status: u16,
    total_ms: f64,
    phases: BTreeMap<String, f64>,
}

impl Request {
    fn into_slowest(self) -> Slowest {
        let parts = self.phases.into_iter().filter(|(_, ms)| *ms > 0.0);
        let mut parts: Vec<Part> = parts
            .map(|(name, ms)| Part { name: name.strip_suffix("_ms").unwrap_or(&name).to_owned(), us: ms * 1e3 })
            .collect();
        parts.sort_by(|one, other| other.us.total_cmp(&one.us));
        Slowest { op: self.op, status: self.status, total_us: self.total_ms * 1e3, parts }
    }
}

/// Two that are free now. The listeners are held until both are known, so that they differ.
fn free_addresses() -> anyhow::Result<[SocketAddr; 2]> {
    let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free");
    let (one, other) = (free()?, free()?);
    Ok([one.local_addr()?, other.local_addr()?])
}

/// The end of a log.
fn last_words(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_requests_are_read_with_what_they_waited_for() {
        let said = br#"{"recent_s":60,"requests":[{"op":"put","status":201,"total_ms":5.5,"mostly":"sync",
            "phases":{"head_ms":0.0,"sync_ms":5.25,"queue_ms":0.25},"storage":null}]}"#;
        let said: Said = serde_json::from_slice(said).expect("as it is");
        let slowest: Vec<Slowest> = said.requests.into_iter().map(Request::into_slowest).collect();
        let parts: Vec<(&str, f64)> = slowest[0].parts.iter().map(|part| (part.name.as_str(), part.us)).collect();
        assert_eq!((slowest[0].status, parts), (201, vec![("sync", 5250.0), ("queue", 250.0)]));
    }

    #[test]
    fn only_the_end_of_a_log_is_shown() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "1\n2\n3\n4\n5\n\n6\n").expect("written");
        assert_eq!(last_words(file.path()), "2\n3\n4\n5\n6");
        assert_eq!(last_words(Path::new("/nowhere")), "");
    }
}
