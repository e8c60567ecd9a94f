//! A klad of our own: started, its start line read, stopped or killed, and never left behind.
//!
//! Called by the chores.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bytesize::ByteSize;
use rustix::process::{Pid, Signal, kill_process};

/// From the start of the process to its start line, or to its first answer: with a full log it may take seconds.
pub(crate) const START_MAX: Duration = Duration::from_mins(1);

/// From SIGTERM to the end of the process, before xtask loses its patience.
const STOP_MAX: Duration = Duration::from_secs(30);

/// Where ports are chosen that a restarted klad takes again: below Linux's ephemeral range (32768 and up), or a client's
/// connection could sit on one while klad is down, even xtask's own, connected to itself.
const FIXED_PORTS: std::ops::Range<u16> = 20_000..32_000;

/// The option that all chores share.
#[derive(clap::Args, Debug)]
pub(crate) struct ProgramArgs {
    /// The klad to run [default: the one beside xtask].
    #[arg(long, value_name = "PATH")]
    klad: Option<PathBuf>,
}

impl ProgramArgs {
    /// The program, which exists.
    pub(crate) fn find(&self) -> Result<PathBuf> {
        if let Some(given) = &self.klad {
            ensure!(given.is_file(), "there is no klad at {}", given.display());
            return Ok(given.clone());
        }
        let own = std::env::current_exe().context("cannot tell where xtask is")?;
        let program = own.with_file_name("klad");
        ensure!(program.is_file(), "there is no klad at {}: run `make build` first", program.display());
        Ok(program)
    }
}

/// Where klad listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// Clients' address.
    pub(crate) data: SocketAddr,
    /// Of `/livez` and `/readyz`.
    pub(crate) admin: SocketAddr,
}

impl Addresses {
    /// Ports that the kernel chooses.
    pub(crate) fn any() -> Addresses {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Addresses { data: any, admin: any }
    }

    /// Free ports that stay ours over a restart.
    pub(crate) fn fixed(random: &mut fastrand::Rng) -> Result<Addresses> {
        // The first listener is held while the second is looked for, so that they differ.
        let data = free_listener(random)?;
        let admin = free_listener(random)?;
        Ok(Addresses { data: data.local_addr()?, admin: admin.local_addr()? })
    }
}

fn free_listener(random: &mut fastrand::Rng) -> Result<TcpListener> {
    let mut tries = 0;
    loop {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, random.u16(FIXED_PORTS))) {
            Ok(listener) => return Ok(listener),
            Err(_) if tries < 100 => tries += 1,
            Err(error) => return Err(error).context("no free port in 100 tries"),
        }
    }
}

/// What klad is started with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The program.
    pub(crate) program: PathBuf,
    /// `--data`.
    pub(crate) data: PathBuf,
    /// `--memory`.
    pub(crate) memory: ByteSize,
    /// `--listen` and `--admin-listen`.
    pub(crate) addresses: Addresses,
    /// Options that only one chore needs.
    pub(crate) more: Vec<String>,
}

/// A running klad; dropping it kills it.
pub(crate) struct Klad {
    child: Child,
    /// Gets the addresses of the start line, and is disconnected when stderr ends.
    start_line: Receiver<Addresses>,
}

impl Klad {
    /// Starts the process, and does not wait for it to serve.
    pub(crate) fn start(settings: &Settings) -> Result<Klad> {
        let Settings { program, data, memory, addresses, more } = settings;
        let mut child = Command::new(program)
            .arg("serve")
            .args(["--listen", &addresses.data.to_string(), "--admin-listen", &addresses.admin.to_string()])
            .arg("--data")
            .arg(data)
            .args(["--memory", &memory.0.to_string()])
            .args(if more.iter().any(|word| word == "--durability") {
                [].as_slice()
            } else {
                &["--durability", "async"]
            })
            .args(more)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let stderr = child.stderr.take().expect("it was asked for");
        let (found, start_line) = mpsc::channel();
        // Not joined: it ends with the process's stderr.
        thread::spawn(move || drain(stderr, &found));
        Ok(Klad { child, start_line })
    }

    /// Waits for the start line; answers where klad listens.
    pub(crate) fn wait_for_start_line(&mut self) -> Result<Addresses> {
        match self.start_line.recv_timeout(START_MAX) {
            Ok(addresses) => Ok(addresses),
            Err(RecvTimeoutError::Timeout) => bail!("klad has not printed its start line in {START_MAX:?}"),
            Err(RecvTimeoutError::Disconnected) => bail!("klad has ended at its start: {}", self.child.wait()?),
        }
    }

    /// The process.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Fails when the process has ended.
    pub(crate) fn check_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("klad has ended by itself: {status}"),
            None => Ok(()),
        }
    }

    /// Waits for a process that was sent SIGKILL.
    pub(crate) fn wait_for_kill(mut self) -> Result<()> {
        use std::os::unix::process::ExitStatusExt as _;
        let status = self.child.wait()?;
        ensure!(status.signal() == Some(Signal::KILL.as_raw()), "klad has ended before it was killed: {status}");
        Ok(())
    }

    /// Stops with SIGTERM, checks that klad exits with 0, and answers how long it took.
    pub(crate) fn stop(mut self) -> Result<Duration> {
        let asked = Instant::now();
        self.check_running()?;
        kill_process(self.pid(), Signal::TERM).context("cannot send SIGTERM")?;
        loop {
            let left = STOP_MAX.saturating_sub(asked.elapsed());
            match self.start_line.recv_timeout(left) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => bail!("klad has not stopped in {STOP_MAX:?} after SIGTERM"),
            }
        }
        let status = self.child.wait()?;
        ensure!(status.success(), "klad was asked to stop, and ended with {status}");
        Ok(asked.elapsed())
    }
}

impl Drop for Klad {
    fn drop(&mut self) {
        // Both do nothing when it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads klad's stderr to its end, or klad would block on a full pipe. What is not information is passed on.
fn drain(stderr: ChildStderr, found: &Sender<Addresses>) {
    for line in BufReader::new(stderr).lines() {
        let Ok(line) = line else { return };
        if let Some(addresses) = parse_start_line(&line) {
            // No one may be interested.
            let _ = found.send(addresses);
        } else if !line.contains(" INFO ") && !line.contains(r#""level":"INFO""#) {
            eprintln!("klad: {line}");
        }
    }
}

fn parse_start_line(line: &str) -> Option<Addresses> {
    let text = |name: &str| line.split_once(&format!(" {name}="))?.1.split_whitespace().next();
    let json = |name: &str| line.split_once(&format!("\"{name}\":\""))?.1.split('"').next();
    let field = |name| json(name).or_else(|| text(name))?.parse().ok();
    Some(Addresses { data: field("listen")?, admin: field("admin")? })
}

/// Bytes of the log files of RocksDB in `data`: what a start has to read again is among them.
pub(crate) fn log_bytes(data: &Path) -> Result<u64> {
    let directory = data.join("rocksdb");
    let mut bytes = 0;
    for file in directory.read_dir().with_context(|| format!("cannot list {}", directory.display()))? {
        let file = file?;
        if file.path().extension().is_some_and(|extension| extension == "log") {
            bytes += file.metadata()?.len();
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_the_start_line() {
        let line = "2026-01-01T00:00:00Z  INFO serving version=\"0.1.0\" listen=127.0.0.1:4001 admin=127.0.0.1:4002 \
                    engine=\"rocksdb\"";
        let addresses = parse_start_line(line).expect("both are there");
        assert_eq!((addresses.data.port(), addresses.admin.port()), (4001, 4002));
        let line =
            r#"{"timestamp":"2026-01-01T00:00:00Z","level":"INFO","listen":"127.0.0.1:4001","admin":"127.0.0.1:4002"}"#;
        assert_eq!(parse_start_line(line).expect("both are there").data.port(), 4001);
        assert_eq!(parse_start_line("2026-01-01T00:00:00Z  INFO stopping"), None);
    }

    #[test]
    fn only_log_files_count() {
        let data = tempfile::tempdir().expect("a directory");
        let files = data.path().join("rocksdb");
        std::fs::create_dir(&files).expect("made");
        for (name, bytes) in [("000004.log", 10), ("000007.log", 5), ("000005.sst", 100), ("LOG", 1000)] {
            std::fs::write(files.join(name), vec![0; bytes]).expect("written");
        }
        assert_eq!(log_bytes(data.path()).expect("listed"), 15);
    }
}
