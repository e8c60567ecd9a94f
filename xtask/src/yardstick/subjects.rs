//! The servers that are compared, and what is asked of each. Called by `mod`.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytesize::ByteSize;
use rustix::process::Pid;

use super::echo;
use crate::cores;
use crate::entries::Entries;
use crate::fill::Fill;
use crate::http::Connection;
use crate::klad::{Addresses, Klad, Settings};

const START_MAX: Duration = Duration::from_secs(10);

/// For klad: all of the keys are in its cache, and in its memory engine.
const MEMORY: ByteSize = ByteSize::gib(3);

/// Requests that are sent before the first of their answers is read.
const READ_BATCH: usize = 64;

/// A compaction of what was filled.
const COMPACTION_MAX: Duration = Duration::from_mins(2);

/// Which keys are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distribution {
    /// Each as often as any other.
    Uniform,
    /// The second half as often as the first, the third a third as often.
    Zipf,
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// `GET` or `PUT`.
    pub(crate) method: &'static str,
    /// Of the keys.
    pub(crate) distribution: Distribution,
    /// Behind the key.
    pub(crate) query: &'static str,
}

const GET: Load = Load { method: "GET", distribution: Distribution::Uniform, query: "" };
const GET_ZIPF: Load = Load { distribution: Distribution::Zipf, ..GET };
const PUT_ASYNC: Load = Load { method: "PUT", query: "&durability=async", ..GET };
const PUT_SYNC: Load = Load { method: "PUT", query: "&durability=sync", ..GET };

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// hyper and nothing else.
    Echo,
    /// nginx, `return 200`.
    Nginx,
    /// klad on its memory engine, GET.
    Memory,
    /// klad, GET of any key.
    Get,
    /// klad, GET of some keys more than of others.
    GetZipf,
    /// klad, PUT that is answered before its sync.
    PutAsync,
    /// klad, PUT that is answered after its sync.
    PutSync,
}

/// All but the echo, which comes before and after each.
pub(crate) const SUBJECTS: [Subject; 6] =
    [Subject::Nginx, Subject::Memory, Subject::Get, Subject::GetZipf, Subject::PutAsync, Subject::PutSync];

impl Subject {
    /// In tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Subject::Echo => "hyper echo",
            Subject::Nginx => "nginx, return 200",
            Subject::Memory => "klad, memory engine, GET 1 of 1,000",
            Subject::Get => "klad, GET",
            Subject::GetZipf => "klad, GET zipfian",
            Subject::PutAsync => "klad, PUT async",
            Subject::PutSync => "klad, PUT sync",
        }
    }

    /// Of how many keys: on the memory engine it is the way of a request that is measured, not a tree that no cache holds.
    pub(crate) fn keys(self, all: u64) -> u64 {
        if self == Subject::Memory { all.min(1000) } else { all }
    }

    /// What is asked.
    pub(crate) fn load(self) -> Load {
        match self {
            Subject::Echo | Subject::Nginx | Subject::Memory | Subject::Get => GET,
            Subject::GetZipf => GET_ZIPF,
            Subject::PutAsync => PUT_ASYNC,
            Subject::PutSync => PUT_SYNC,
        }
    }

    /// The most CPU time at 64 connections, as a multiple of the echo's.
    pub(crate) fn ratio_max(self) -> Option<f64> {
        match self {
            Subject::Memory => Some(1.15),
            Subject::Get => Some(1.35),
            Subject::PutAsync => Some(1.7),
            Subject::PutSync => Some(2.0),
            Subject::Echo | Subject::Nginx | Subject::GetZipf => None,
        }
    }

    /// What it works off after its answers counts, too: flushes and compactions.
    pub(crate) fn works_on(self) -> bool {
        matches!(self, Subject::PutAsync | Subject::PutSync)
    }
}

/// A running server of one process.
pub(crate) struct Server {
    /// Where it takes requests.
    pub(crate) address: SocketAddr,
    /// Its process.
    pub(crate) pid: Pid,
    /// Kept for its end.
    _process: Process,
}

enum Process {
    Klad { _klad: Klad },
    Other(Child),
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Process::Other(child) = self {
            // It has nothing to lose.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts the bare echo on `core`.
pub(crate) fn start_echo(core: usize, log: Option<&Path>) -> Result<Server> {
    let own = std::env::current_exe().context("cannot tell where xtask is")?;
    let mut command = Command::new(own);
    command.arg("echo").stdin(Stdio::null()).stdout(Stdio::piped());
    if let Some(log) = log {
        command.arg("--log").arg(log);
    }
    let mut child = cores::on(core, || command.spawn().context("cannot run the echo"))?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it was asked for")).read_line(&mut line)?;
    let address = line.trim().parse().with_context(|| format!("the echo has said {line:?}"))?;
    Ok(Server { address, pid: Pid::from_child(&child), _process: Process::Other(child) })
}

/// Where and with what servers are started.
pub(crate) struct Bench<'a> {
    /// klad.
    pub(crate) program: &'a Path,
    /// Of the servers.
    pub(crate) core: usize,
    /// For their files.
    pub(crate) directory: &'a Path,
    /// What klad's servers are filled with.
    pub(crate) entries: Entries,
}

impl Bench<'_> {
    /// Starts what `subject` is asked of, and fills it.
    pub(crate) fn start(&self, subject: Subject) -> Result<Server> {
        match subject {
            Subject::Echo => start_echo(self.core, None),
            Subject::Nginx => self.nginx(),
            Subject::Memory => {
                let (server, _) = self.klad("memory", &["--engine", "memory"])?;
                let entries = Entries { count: subject.keys(self.entries.count), ..self.entries };
                Fill::new(entries).run(server.address, None)?;
                Ok(server)
            }
            Subject::Get | Subject::GetZipf => {
                let (server, admin) = self.klad("get", &[])?;
                Fill::new(self.entries).run(server.address, None)?;
                // How many tables are to be asked does not depend on when the last flush was.
                Connection::open(admin)?.compact(COMPACTION_MAX)?;
                self.read_all(server.address)?;
                Ok(server)
            }
            Subject::PutAsync => Ok(self.klad("put-async", &[])?.0),
            Subject::PutSync => Ok(self.klad("put-sync", &["--durability", "sync"])?.0),
        }
    }

    fn nginx(&self) -> Result<Server> {
        // Nobody else takes it in between: the machine is ours while this runs.
        let address = std::net::TcpListener::bind(echo::any_port())?.local_addr()?;
        let directory = self.directory.join("nginx");
        std::fs::create_dir(&directory)?;
        let body = "n".repeat(100);
        let configuration = format!(
            "daemon off; master_process off; pid nginx.pid; error_log stderr crit;\nevents {{ worker_connections 4096; }}\n\
             http {{ access_log off; client_body_temp_path body; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u;\n\
             scgi_temp_path s; keepalive_requests 1000000000; tcp_nodelay on;\n\
             server {{ listen {address}; location / {{ return 200 \"{body}\"; }} }} }}\n"
        );
        let file = directory.join("nginx.conf");
        std::fs::write(&file, configuration)?;
        let mut command = Command::new("nginx");
        command.arg("-p").arg(&directory).arg("-c").arg(&file).stdin(Stdio::null());
        let child = cores::on(self.core, || command.spawn().context("cannot run nginx"))?;
        let server = Server { address, pid: Pid::from_child(&child), _process: Process::Other(child) };
        wait_for(address)?;
        Ok(server)
    }

    /// And its admin listener.
    fn klad(&self, name: &str, more: &[&str]) -> Result<(Server, SocketAddr)> {
        let data: PathBuf = self.directory.join(name);
        let settings = Settings {
            program: self.program.to_owned(),
            data,
            memory: MEMORY,
            addresses: Addresses::any(),
            more: ["--threads", "1"].iter().chain(more).map(|word| (*word).to_owned()).collect(),
        };
        let mut klad = cores::on(self.core, || Klad::start(&settings))?;
        let addresses = klad.wait_for_start_line()?;
        let server = Server { address: addresses.data, pid: klad.pid(), _process: Process::Klad { _klad: klad } };
        Ok((server, addresses.admin))
    }

    /// Reads each key once: what fits the caches is in them.
    fn read_all(&self, address: SocketAddr) -> Result<()> {
        let mut connection = Connection::open(address)?;
        let mut requests = String::new();
        for first in (0..self.entries.count).step_by(READ_BATCH) {
            let indices = first..self.entries.count.min(first + READ_BATCH as u64);
            requests.clear();
            for index in indices.clone() {
                let target = self.entries.target(index);
                let _ = write!(requests, "GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            }
            connection.send(requests.as_bytes())?;
            for _ in indices {
                connection.answer()?.expect(200)?;
            }
        }
        Ok(())
    }
}

fn wait_for(address: SocketAddr) -> Result<()> {
    let asked = Instant::now();
    while TcpStream::connect(address).is_err() {
        if asked.elapsed() > START_MAX {
            bail!("nobody listens at {address} after {START_MAX:?}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
