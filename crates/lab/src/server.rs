//! A server under test, in a process of its own: a klad, or a peer, which is a server that is not klad. Called by
//! `runner`, by `load` and by the project's chores (`xtask`).
//!
//! ```text
//!     start ─▶ waits until the server is ready ─▶ the load runs ─▶ stop: SIGTERM, then its exit status
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal};
use serde::Deserialize;
use tokio::net::TcpSocket;

use crate::process::{RunningProcess, since};
use crate::result::{Part, Slowest};
use crate::scenario::Peer;
use klad_base::clock;
use klad_bench::admin::{Admin, PATIENCE};
use klad_bench::interrupt::{self, Watch};

/// The longest time from the start of a process until it is ready: a large log may have to be read.
const START_MAX: Duration = Duration::from_mins(5);

/// The longest time from SIGTERM to the end of the process.
const STOP_MAX: Duration = Duration::from_mins(2);

/// The time between two requests that ask a server whether it is ready.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The number of lines of a server's log that an error message quotes.
const LOG_LINES_QUOTED: usize = 5;

/// The largest number of slow requests that are kept of a run.
const SLOWEST: usize = 20;

/// How to start a server.
#[derive(Debug)]
pub struct ServerSpec<'s> {
    /// Which server.
    pub kind: ServerKind<'s>,
    /// Its data directory.
    pub data: &'s Path,
    /// The file that its standard output and standard error are written to.
    pub log: PathBuf,
    /// The cores that it may use; empty for all.
    pub cores: &'s [usize],
}

/// The program that serves.
#[derive(Debug)]
pub enum ServerKind<'s> {
    /// `klad serve`.
    Klad {
        /// The klad to run.
        program: &'s Path,
        /// Options of `klad serve`, without addresses and the data directory.
        options: Vec<&'s str>,
    },
    /// A server that is not klad.
    Peer {
        /// Its command, files and path of readiness.
        peer: &'s Peer,
        /// The klad that `{klad}` stands for.
        klad: &'s Path,
    },
}

/// A server that is ready. Dropping it kills the process.
#[derive(Debug)]
pub struct RunningServer {
    process: RunningProcess,
    log: PathBuf,
    /// The name for messages.
    name: String,
    /// The address that takes requests.
    pub address: SocketAddr,
    /// The path of a key in the URL for `klad bench`; `None` for klad's own path.
    path: Option<String>,
    /// The admin address; `None` for a peer.
    pub admin: Option<Arc<Admin>>,
    /// The time from the start of the process until the server was ready. The lab asked the server every 10 ms.
    pub start: Duration,
}

impl RunningServer {
    /// Starts a server and waits until it is ready.
    ///
    /// # Errors
    /// When the process cannot be started, ends, is not ready within 5 minutes, or a signal interrupts the wait.
    pub fn start(spec: &ServerSpec, watch: &Watch) -> anyhow::Result<RunningServer> {
        let reserved = reserve_addresses()?;
        let [address, admin] = [reserved[0].local_addr()?, reserved[1].local_addr()?];
        let name = match &spec.kind {
            ServerKind::Klad { .. } => "klad".to_owned(),
            ServerKind::Peer { peer, .. } => peer.command.first().cloned().unwrap_or_default(),
        };
        let log = File::create(&spec.log).with_context(|| format!("cannot write {}", spec.log.display()))?;
        let (mut command, ready) = match &spec.kind {
            ServerKind::Klad { program, options } => {
                let mut command = Command::new(program);
                command
                    .arg("serve")
                    .args(["--listen", &address.to_string(), "--admin-listen", &admin.to_string(), "--data"])
                    .arg(spec.data)
                    .args(options);
                (command, "/readyz".to_owned())
            }
            ServerKind::Peer { peer, klad } => peer_command(peer, klad, spec.data, address)?,
        };
        command.stdout(log.try_clone()?).stderr(log);
        let is_klad = matches!(spec.kind, ServerKind::Klad { .. });
        // klad can listen on a reserved address. Some peers do not set `SO_REUSEADDR`, so the reservation of a peer
        // ends here.
        let _reserved = is_klad.then_some(reserved);
        let url = format!("http://{}", if is_klad { admin } else { address }).parse().map_err(anyhow::Error::msg)?;
        let asked = Arc::new(Admin { url, token: None });
        let begin = clock::now();
        let mut process = RunningProcess::start(command, spec.cores, watch)?;
        while asked.get(&ready, PATIENCE).is_err() {
            ensure!(!interrupt::asked(), "interrupted");
            if let Some(status) = process.wait(POLL_INTERVAL)? {
                bail!("{name} ended during its start, {status}: {}", end_of_log(&spec.log));
            }
            ensure!(since(begin) < START_MAX, "{name} is not ready after {START_MAX:?}: {}", end_of_log(&spec.log));
        }
        let (log, start) = (spec.log.clone(), since(begin));
        let path = if let ServerKind::Peer { peer, .. } = &spec.kind { peer.path.clone() } else { None };
        Ok(RunningServer { process, log, name, address, path, admin: is_klad.then_some(asked), start })
    }

    /// Returns the URL for `klad bench`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}{}", self.address, self.path.as_deref().unwrap_or_default())
    }

    /// Waits for `time`. Fails as soon as the server ends.
    pub(super) fn keeps_running_for(&mut self, time: Duration) -> anyhow::Result<()> {
        match self.process.wait(time)? {
            Some(status) => bail!("{} ended by itself, {status}: {}", self.name, end_of_log(&self.log)),
            None => Ok(()),
        }
    }

    /// Returns the CPU time that all threads of the server have used so far, in steps of 10 ms.
    pub(super) fn cpu(&self) -> Option<Duration> {
        self.process.cpu()
    }

    /// Returns the largest resident set that the server has had, bytes.
    #[must_use]
    pub fn memory_max(&self) -> Option<u64> {
        self.process.memory_max()
    }

    /// Returns the number of the server's process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Returns the slowest requests of the last minute, as the server saw them, at most [`SLOWEST`]; none for a peer.
    pub(super) fn slowest(&self) -> anyhow::Result<Vec<Slowest>> {
        let Some(admin) = &self.admin else { return Ok(Vec::new()) };
        let answer = admin.get(&format!("/debug/slow?limit={SLOWEST}"), PATIENCE)?;
        let report: SlowReport =
            serde_json::from_slice(&answer).context("/debug/slow has another form than expected")?;
        Ok(report.requests.into_iter().map(SlowRequest::into_slowest).collect())
    }

    /// Returns the number of RocksDB's compactions that have ended since the server's start; `None` for another engine
    /// and for a peer.
    pub(super) fn compactions(&self) -> Option<u64> {
        let metrics = self.admin.as_ref()?.get("/metrics", PATIENCE).ok()?;
        let text = String::from_utf8_lossy(&metrics);
        text.lines().find_map(|line| line.strip_prefix("klad_rocksdb_compactions_total "))?.parse().ok()
    }

    /// Stops the server with SIGTERM and waits for its end.
    ///
    /// # Errors
    /// When the process ended before, when it does not end within 2 minutes, or when a klad ends with another status
    /// than 0.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.keeps_running_for(Duration::ZERO)?;
        self.process.signal(Signal::TERM);
        let name = &self.name;
        match self.process.wait(STOP_MAX)? {
            Some(status) if status.success() || self.admin.is_none() => Ok(()),
            Some(status) => bail!("{name} ended with {status} after SIGTERM: {}", end_of_log(&self.log)),
            None => bail!("{name} has not stopped {STOP_MAX:?} after SIGTERM"),
        }
    }
}

/// Writes the files of a peer. Returns its command and the path that it answers when it is ready.
fn peer_command(peer: &Peer, klad: &Path, data: &Path, address: SocketAddr) -> anyhow::Result<(Command, String)> {
    let [klad, data_text] = [klad, data].map(|path| path.display().to_string());
    let filled = |text: &str| {
        let text = text.replace("{address}", &address.to_string()).replace("{port}", &address.port().to_string());
        text.replace("{data}", &data_text).replace("{klad}", &klad)
    };
    std::fs::create_dir_all(data).with_context(|| format!("cannot make {data_text}"))?;
    for (name, text) in &peer.files {
        std::fs::write(data.join(name), filled(text)).with_context(|| format!("cannot write {name}"))?;
    }
    let mut words = peer.command.iter().map(|word| filled(word));
    let mut command = Command::new(words.next().ok_or_else(|| anyhow!("the command is empty"))?);
    command.args(words);
    Ok((command, filled(&peer.ready)))
}

/// Returns whether the program of a peer can be run: as a path, by its name on `PATH`, or as `{klad}`.
pub(super) fn is_installed(peer: &Peer) -> bool {
    let Some(program) = peer.command.first() else { return false };
    let runs = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    if program.contains(['/', '{']) {
        return program == "{klad}" || runs(Path::new(program));
    }
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|each| runs(&each.join(program))))
}

/// The answer of `/debug/slow`.
#[derive(Deserialize)]
struct SlowReport {
    requests: Vec<SlowRequest>,
}

#[derive(Deserialize)]
struct SlowRequest {
    op: String,
    status: u16,
    total_ms: f64,
    phases: BTreeMap<String, f64>,
}

impl SlowRequest {
    fn into_slowest(self) -> Slowest {
        let parts = self.phases.into_iter().filter(|(_, ms)| *ms > 0.0);
        let mut parts: Vec<Part> = parts
            .map(|(name, ms)| Part { name: name.strip_suffix("_ms").unwrap_or(&name).to_owned(), us: ms * 1e3 })
            .collect();
        parts.sort_by(|one, other| other.us.total_cmp(&one.us));
        Slowest { op: self.op, status: self.status, total_us: self.total_ms * 1e3, parts }
    }
}

/// Reserves two addresses. Until the sockets are dropped, no program gets one of them by chance. A server that sets
/// `SO_REUSEADDR` can listen there.
fn reserve_addresses() -> anyhow::Result<[TcpSocket; 2]> {
    let reserve = || {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).context("no port is free")?;
        anyhow::Ok(socket)
    };
    Ok([reserve()?, reserve()?])
}

fn end_of_log(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LOG_LINES_QUOTED)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_requests_are_read_with_what_they_waited_for() {
        let answer = br#"{"recent_s":60,"requests":[{"op":"put","status":201,"total_ms":5.5,"mostly":"sync",
            "phases":{"head_ms":0.0,"sync_ms":5.25,"queue_ms":0.25},"storage":null}]}"#;
        let report: SlowReport = serde_json::from_slice(answer).expect("the form of /debug/slow");
        let slowest: Vec<Slowest> = report.requests.into_iter().map(SlowRequest::into_slowest).collect();
        let parts: Vec<(&str, f64)> = slowest[0].parts.iter().map(|part| (part.name.as_str(), part.us)).collect();
        assert_eq!((slowest[0].status, parts), (201, vec![("sync", 5250.0), ("queue", 250.0)]));
    }

    #[test]
    fn only_the_end_of_a_log_is_quoted() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "1\n2\n3\n4\n5\n\n6\n").expect("written");
        assert_eq!(end_of_log(file.path()), "2\n3\n4\n5\n6");
        assert_eq!(end_of_log(Path::new("/nowhere")), "");
    }

    #[test]
    fn a_peer_gets_its_address_its_directory_and_its_files() {
        let place = tempfile::tempdir().expect("a directory");
        let data = place.path().join("data");
        let peer =
            "command = ['{klad}', '-c', '{data}/c', '{address}']\nready = '/{port}'\nfiles.c = 'listen {port};'\n";
        let peer: Peer = toml::from_str(peer).expect("a peer");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 4001));
        let (command, ready) = peer_command(&peer, Path::new("/bin/klad"), &data, address).expect("made");
        let arguments: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!((command.get_program().to_str(), ready.as_str()), (Some("/bin/klad"), "/4001"));
        assert_eq!(arguments, ["-c", &format!("{}/c", data.display()), "127.0.0.1:4001"]);
        assert_eq!(std::fs::read_to_string(data.join("c")).expect("written"), "listen 4001;");
    }

    #[test]
    fn a_program_is_installed_where_a_shell_would_find_it() {
        let installed = |program: &str| {
            let command = vec![program.to_owned()];
            is_installed(&Peer { command, ready: "/".to_owned(), files: BTreeMap::new(), path: None, fill: true })
        };
        assert!(["sh", "/bin/sh", "{klad}"].iter().all(|program| installed(program)));
        assert!(["no-such-program", "/etc/passwd", "/nowhere/sh", ""].iter().all(|program| !installed(program)));
    }
}
