//! The Cassandra nodes of the measurement, and the klads in front of them.
//!
//! Each node is a process of its own: the script `tools/cassandra/node.sh` replaces itself with Cassandra (`exec`).
//! Dropping [`Nodes`] and [`Klad`] kills their processes. A signal that ends this process kills them too. For every
//! other end of this process there is a guard, a shell. The guard waits for the end of its standard input, kills the
//! processes that still have a `pid` file, and removes the directory of the measurement.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use klad_lab::process::RunningProcess;
use klad_lab::server::RunningServer;
use rustix::process::{Pid, getpid};

use super::{direct, go_on};
use crate::setup::Setup;

/// The number of nodes, and of copies of each key.
pub(super) const NODES: usize = 3;

/// The name of the data centre that Cassandra's nodes have by default.
pub(super) const DATACENTER: &str = "datacenter1";

/// The longest time from the start of the nodes until all nodes serve.
const START_MAX: Duration = Duration::from_mins(5);

/// The longest wait for compactions and other work in the background.
const REST_MAX: Duration = Duration::from_mins(2);

/// The nodes are at rest if they use less CPU time than this in a second.
const REST_CPU: Duration = Duration::from_millis(150);

/// Fails if the machine lacks Java or Cassandra's jars.
pub(super) fn check_installed() -> Result<()> {
    let java = Command::new("java").arg("-version").stderr(Stdio::null()).status().is_ok();
    ensure!(java, "Java 17 is missing: run tools/setup.sh cluster");
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(std::env::home_dir()?.join(".cache"))).context("there is no home directory")?;
    let jars = cache.join("klad/tools/cassandra/lib");
    ensure!(jars.is_dir(), "Cassandra's jars are missing: run tools/setup.sh cluster");
    Ok(())
}

/// Three nodes that serve. Dropping them kills them.
pub(super) struct Nodes<'s> {
    setup: &'s Setup,
    block: u8,
    directory: PathBuf,
    processes: Vec<RunningProcess>,
    guard: Child,
}

impl<'s> Nodes<'s> {
    /// Starts the nodes, and waits until each serves and knows the others.
    pub(super) fn start(setup: &'s Setup) -> Result<Nodes<'s>> {
        let directory = setup.directory().join("nodes");
        fs::create_dir(&directory).context("cannot make a directory")?;
        let guard = Command::new("sh")
            .args(["-c", "cat; for pid in \"$1\"/nodes/*/pid; do kill -9 $(cat \"$pid\"); done; rm -rf \"$1\"", "sh"])
            .arg(setup.directory())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C must not end the guard.
            .process_group(0)
            .spawn()
            .context("cannot run sh")?;
        let mut nodes = Nodes { setup, block: free_block()?, directory, processes: Vec::new(), guard };
        for node in 0..NODES {
            nodes.spawn(node)?;
        }
        let begin = Instant::now();
        while !nodes.serve()? {
            go_on()?;
            ensure!(begin.elapsed() < START_MAX, "the nodes do not serve after {START_MAX:?}");
            std::thread::sleep(Duration::from_millis(500));
        }
        Ok(nodes)
    }

    fn spawn(&mut self, node: usize) -> Result<()> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/cassandra/node.sh");
        let directory = self.node_directory(node);
        fs::create_dir(&directory).context("cannot make a directory")?;
        let log = File::create(directory.join("log")).context("cannot write a log")?;
        let mut command = Command::new(script);
        command.arg(&directory).args([self.block.to_string(), (node + 1).to_string(), NODES.to_string()]);
        command.stdout(log.try_clone()?).stderr(log);
        self.processes.push(self.setup.start(command)?);
        Ok(())
    }

    /// Whether each node serves, lists the other nodes, and has seen that they are up.
    fn serve(&mut self) -> Result<bool> {
        for node in 0..NODES {
            let log = fs::read_to_string(self.node_directory(node).join("log")).context("cannot read a log")?;
            if let Some(status) = self.processes[node].wait(Duration::ZERO)? {
                let lines: Vec<&str> = log.lines().collect();
                bail!("Cassandra has ended, {status}:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"));
            }
            let sees = |other: usize| {
                let address = format!("/{}:7000 ", self.address(other).ip());
                log.lines().any(|line| line.contains(&address) && line.contains("now UP"))
            };
            let sees_all = (0..NODES).filter(|other| *other != node).all(sees);
            if !sees_all || !log.contains("Startup complete") || direct::count_nodes(self.address(node)) != Some(NODES)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn node_directory(&self, node: usize) -> PathBuf {
        self.directory.join(format!("node{node}"))
    }

    /// The address of a node for clients. Nodes count from 0.
    fn address(&self, node: usize) -> SocketAddr {
        let last = u8::try_from(node + 1).expect("there are few nodes");
        SocketAddr::from(([127, 0, self.block, last], 9042))
    }

    /// The addresses of all nodes for clients.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        (0..NODES).map(|node| self.address(node)).collect()
    }

    fn contact_points(&self) -> String {
        self.addresses().iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    /// Makes a keyspace with klad's tables.
    pub(super) fn init(&self, keyspace: &str) -> Result<()> {
        let (points, replication) = (self.contact_points(), format!("{DATACENTER}:{NODES}"));
        let options = ["--keyspace", keyspace, "--contact-points", &points, "--replication", &replication];
        self.setup.run(&[&["cluster", "init"], &options[..]].concat())
    }

    /// Starts a klad, and waits until it is ready.
    pub(super) fn klad(&self, keyspace: &str, name: &str, options: &[&str]) -> Result<Klad> {
        let points = self.contact_points();
        let own = ["--engine", "cassandra", "--keyspace", keyspace, "--contact-points", &points];
        let place = ["--local-datacenter", DATACENTER];
        let server = self.setup.serve(name, &[&own[..], &place, options].concat())?;
        let directory = self.directory.join(name);
        fs::create_dir_all(&directory).context("cannot make a directory")?;
        let pid_file = directory.join("pid");
        fs::write(&pid_file, server.pid().as_raw_nonzero().to_string()).context("cannot write a pid")?;
        Ok(Klad { server, _pid: PidFile(pid_file) })
    }

    /// The CPU time that all nodes have used so far, in steps of 10 ms.
    pub(super) fn cpu(&self) -> Result<Duration> {
        (0..NODES).try_fold(Duration::ZERO, |sum, node| {
            let pid = fs::read_to_string(self.node_directory(node).join("pid")).context("a node has no pid")?;
            let pid = pid.trim().parse().ok().and_then(Pid::from_raw).context("a pid is no number")?;
            Ok(sum + ticks(pid, OWN)?)
        })
    }

    /// Waits until the nodes have ended background work, such as compactions. Gives up after [`REST_MAX`].
    pub(super) fn rest(&self) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < REST_MAX {
            if self.cpu_of_a_second()? < REST_CPU {
                return Ok(());
            }
        }
        eprintln!("the nodes do not come to rest in {REST_MAX:?}; measuring all the same");
        Ok(())
    }

    /// The CPU time that the nodes use in one second.
    pub(super) fn cpu_of_a_second(&self) -> Result<Duration> {
        go_on()?;
        let before = self.cpu()?;
        std::thread::sleep(Duration::from_secs(1));
        Ok(self.cpu()?.saturating_sub(before))
    }
}

impl Drop for Nodes<'_> {
    fn drop(&mut self) {
        // Kills and reaps the processes. Then their process ids may belong to other processes, so the guard must not
        // find the `pid` files.
        self.processes.clear();
        for node in 0..NODES {
            let _ = fs::remove_file(self.node_directory(node).join("pid"));
        }
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// A klad that is ready. Dropping it kills it.
pub(super) struct Klad {
    // Dropped before `_pid`. Then the process id may belong to another process, so `_pid` hides it from the guard.
    server: RunningServer,
    _pid: PidFile,
}

struct PidFile(PathBuf);

impl Drop for PidFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl std::ops::Deref for Klad {
    type Target = RunningServer;

    fn deref(&self) -> &RunningServer {
        &self.server
    }
}

/// The fields of `/proc/PID/stat` with user and system time. `OWN` is the process itself, `CHILDREN` its children that
/// it has waited for.
const OWN: [usize; 2] = [14, 15];
const CHILDREN: [usize; 2] = [16, 17];

/// The CPU time of all children that this process has waited for, in steps of 10 ms.
pub(super) fn cpu_of_children() -> Result<Duration> {
    ticks(getpid(), CHILDREN)
}

/// Reads CPU times of a process, including threads that have ended.
fn ticks(pid: Pid, fields: [usize; 2]) -> Result<Duration> {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    // The second field is the program's name in parentheses, and may contain spaces.
    let (_, rest) = text.rsplit_once(") ").context("stat has no name")?;
    let words: Vec<&str> = rest.split(' ').collect();
    let number = |field: usize| words.get(field - 3)?.parse::<u64>().ok();
    let ticks = fields.map(number).into_iter().sum::<Option<u64>>().context("stat has no CPU time")?;
    // The kernel counts these times in ticks, 100 per second on every machine that klad runs on (USER_HZ).
    Ok(Duration::from_millis(ticks * 10))
}

/// Returns a number N for which no other cluster on this machine uses the addresses 127.0.N.x.
fn free_block() -> Result<u8> {
    let mut blocks = std::iter::repeat_with(|| fastrand::u8(10..250)).take(1_000);
    let free = |block: &u8| TcpListener::bind(SocketAddr::from(([127, 0, *block, 1], 7000))).is_ok();
    blocks.find(free).context("no address is free for Cassandra")
}
