//! Cassandra clusters of three nodes on this machine: one that most tests of a run share, and one for tests that harm
//! nodes. `tools/cassandra/node.sh` runs a node, here as in `make cluster`.
//!
//! A test takes the shared cluster with [`whole`], and the other one with [`alone`]: if all had the same, most tests
//! would wait for the few that harm nodes. When the run ends, in whatever way, a shell kills the nodes and removes their
//! data.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rcgen::SanType;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::command::Klad;
use super::programs::program;
use super::tls::Authority;
use super::{Client, PATIENCE, Server, ServerBuilder, wait_until};

/// The number of nodes, and of copies of each key.
pub(crate) const NODES: usize = 3;

/// Nodes on addresses of their own.
pub(crate) struct Cluster {
    block: u8,
    directory: PathBuf,
    nodes: Vec<Mutex<Option<Child>>>,
    /// Lines for `cassandra.yaml`.
    settings: String,
    /// Keeps others from the addresses.
    _reservation: TcpListener,
    /// Its end ends the nodes.
    _guard: Child,
}

static SHARED: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(NODES, |_| SETTINGS.to_owned()));

static HARMED: LazyLock<Mutex<Cluster>> = LazyLock::new(|| Mutex::new(Cluster::start(NODES, |_| SETTINGS.to_owned())));

/// The read timeout of [`SETTINGS`].
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Hints would bring a copy what it has missed, and so hide reads that ask too few copies. The timeouts are long enough
/// for busy machines.
const SETTINGS: &str = "hinted_handoff_enabled: false
read_request_timeout: 10s
write_request_timeout: 10s
range_request_timeout: 10s
cas_contention_timeout: 10s";

/// Returns the shared cluster, whose nodes are all up. `None`: the machine has no Cassandra, and the test is to be
/// skipped.
pub(crate) fn whole() -> Option<&'static Cluster> {
    is_here().then(|| &*SHARED)
}

/// Returns the cluster for a test that harms nodes. They are all up again when it drops the cluster.
pub(crate) fn alone() -> Option<Alone> {
    is_here().then(|| Alone(HARMED.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// Returns a node of its own that serves only clients with TLS and a password. `authority` signs its certificate. The
/// user is `cassandra`, the password too.
pub(crate) fn secured(authority: &Authority) -> Option<Cluster> {
    let settings = |block| {
        let pair = authority.pair_with("node", |params| {
            params.subject_alt_names = vec![SanType::IpAddress(IpAddr::from([127, 0, block, 1]))];
        });
        let chain = authority.path("node.chain");
        let parts = [pair.key, pair.certificate].map(|path| std::fs::read_to_string(path).unwrap());
        std::fs::write(&chain, parts.concat()).unwrap();
        format!(
            "{SETTINGS}
authenticator: PasswordAuthenticator
client_encryption_options:
  enabled: true
  optional: false
  ssl_context_factory:
    class_name: org.apache.cassandra.security.PEMBasedSslContextFactory
  keystore: {}",
            chain.display()
        )
    };
    is_here().then(|| Cluster::start(1, settings))
}

/// A cluster for one test. Mends it when dropped.
pub(crate) struct Alone(MutexGuard<'static, Cluster>);

impl std::ops::Deref for Alone {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.0
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let mended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.0.mend()));
        // A second panic would end all tests.
        if let Err(cause) = mended
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(cause);
        }
    }
}

/// Whether the machine has Cassandra. Says what is missing.
///
/// # Panics
/// Something is missing although `KLAD_TEST_CLUSTER` is `required`.
fn is_here() -> bool {
    let java = Command::new("java").arg("-version").stderr(Stdio::null()).status().is_ok();
    let missing = match (java, program("cassandra/pom.xml").is_absolute()) {
        (true, true) => return true,
        (false, _) => "Java 17 is missing",
        (true, false) => "Cassandra's jars are missing",
    };
    assert_ne!(std::env::var("KLAD_TEST_CLUSTER").as_deref(), Ok("required"), "{missing}");
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    // Not by `eprintln!`, which shows nothing for a test that passes.
    let _ = writeln!(std::io::stderr(), "skipped {test}: {missing}; `tools/setup.sh cluster` installs it");
    false
}

impl Cluster {
    /// Starts `count` nodes. `settings` makes lines for `cassandra.yaml` from the third number of their addresses.
    fn start(count: usize, settings: impl FnOnce(u8) -> String) -> Cluster {
        let directory = tempfile::Builder::new().prefix("klad-cluster-").tempdir().unwrap();
        let directory = TempDir::keep(directory);
        // The shell waits for the end of its input, which is the end of this process.
        let guard = Command::new("sh")
            .args(["-c", "cat; kill -9 $(cat \"$1\"/node*/pid); rm -rf \"$1\"", "sh"])
            .arg(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C ends the tests, and not the guard.
            .process_group(0)
            .spawn()
            .unwrap();
        let nodes = (0..count).map(|_| Mutex::new(None)).collect();
        let (block, reservation) = free_block();
        let settings = settings(block);
        let cluster = Cluster { block, directory, nodes, settings, _reservation: reservation, _guard: guard };
        for node in 0..count {
            cluster.spawn(node);
        }
        cluster.wait();
        cluster
    }

    /// The address of a node for clients. Nodes count from 0.
    pub(crate) fn address(&self, node: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, self.block, u8::try_from(node + 1).unwrap()], 9042))
    }

    /// The addresses as `--contact-points` takes them.
    pub(crate) fn contact_points(&self) -> String {
        (0..self.nodes.len()).map(|node| self.address(node).to_string()).collect::<Vec<_>>().join(",")
    }

    /// Returns a command such as `cluster init`, with time for busy nodes.
    pub(crate) fn command(&self, words: &str) -> Klad {
        Klad::new(words).arg("--request-timeout").arg("1m").arg("--contact-points").arg(self.contact_points())
    }

    /// Returns what starts a klad for a keyspace.
    pub(crate) fn builder(&self, keyspace: &str) -> ServerBuilder {
        ServerBuilder::new("cassandra")
            .arg("--contact-points", &self.contact_points())
            .arg("--local-datacenter", "datacenter1")
            .arg("--keyspace", keyspace)
            .arg("--request-timeout", "15s")
    }

    fn node_directory(&self, node: usize) -> PathBuf {
        self.directory.join(format!("node{node}"))
    }

    /// What a node has logged since it was started last.
    pub(crate) fn log(&self, node: usize) -> String {
        std::fs::read_to_string(self.node_directory(node).join("log")).unwrap()
    }

    fn spawn(&self, node: usize) {
        let directory = self.node_directory(node);
        std::fs::create_dir_all(&directory).unwrap();
        let log = File::create(directory.join("log")).unwrap();
        let child = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/cassandra/node.sh"))
            .arg(&directory)
            .args([self.block.to_string(), (node + 1).to_string(), self.nodes.len().to_string()])
            .env("CASSANDRA_YAML", &self.settings)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        *self.nodes[node].lock().unwrap() = Some(child);
    }

    /// Waits until each node that runs serves, lists the others, and knows that those that run are up.
    fn wait(&self) {
        let running = |node: &usize| self.nodes[*node].lock().unwrap().is_some();
        let running: Vec<usize> = (0..self.nodes.len()).filter(running).collect();
        for &node in &running {
            wait_until(&format!("Cassandra node {node} serves"), || {
                let ended = self.nodes[node].lock().unwrap().as_mut().unwrap().try_wait().unwrap();
                assert_eq!(ended, None, "Cassandra has ended:\n{}", self.log(node));
                // A single node waits for no others, and may not answer without TLS.
                let others = self.nodes.len() - 1;
                self.log(node).contains("Startup complete")
                    && (others == 0 || peers(self.address(node)) == Some(others))
            });
        }
        for &node in &running {
            let others = running.iter().filter(|other| **other != node);
            for &other in others {
                wait_until(&format!("node {node} knows that node {other} is up"), || self.sees(node, other));
            }
        }
    }

    /// Whether `node` knows that `other` is up, by the last line of its log about that.
    fn sees(&self, node: usize, other: usize) -> bool {
        let other = format!("/{}:7000 ", self.address(other).ip());
        let log = self.log(node);
        let mut news = log.lines().rev().filter(|line| line.contains(&other));
        news.find_map(|line| match (line.contains("now UP"), line.contains("now DOWN")) {
            (false, false) => None,
            (up, _) => Some(up),
        })
        .unwrap_or(false)
    }

    fn signal(&self, node: usize, signal: Signal) {
        let child = self.nodes[node].lock().unwrap();
        kill_process(Pid::from_child(child.as_ref().expect("the node runs")), signal).unwrap();
    }

    /// Kills a node.
    pub(crate) fn kill(&self, node: usize) {
        let mut child = self.nodes[node].lock().unwrap().take().expect("the node runs");
        child.kill().unwrap();
        child.wait().unwrap();
        // The number may belong to another process when the run ends.
        std::fs::remove_file(self.node_directory(node).join("pid")).unwrap();
    }

    /// Waits until the nodes that run know that `node` is down. Until then they keep writes for `node` for a while.
    pub(crate) fn wait_until_missed(&self, node: usize) {
        let running = |other: &usize| self.nodes[*other].lock().unwrap().is_some();
        for other in (0..self.nodes.len()).filter(running) {
            wait_until(&format!("node {other} knows that node {node} is down"), || !self.sees(other, node));
        }
    }

    /// Stops all threads of a node. Its connections stay open.
    pub(crate) fn freeze(&self, node: usize) {
        self.signal(node, Signal::STOP);
    }

    /// Lets a frozen node continue.
    pub(crate) fn thaw(&self, node: usize) {
        self.signal(node, Signal::CONT);
    }

    /// Starts killed nodes, and waits until they serve.
    pub(crate) fn restart(&self, nodes: &[usize]) {
        for node in nodes {
            self.spawn(*node);
        }
        self.wait();
    }

    /// Thaws and starts nodes until all are up.
    fn mend(&self) {
        let (up, down): (Vec<usize>, Vec<usize>) = (0..NODES).partition(|node| {
            let child = self.nodes[*node].lock().unwrap_or_else(PoisonError::into_inner);
            child.is_some()
        });
        for node in up {
            self.thaw(node);
        }
        self.restart(&down);
    }
}

/// Three klads that serve a keyspace of their own.
pub(crate) struct Klads(Vec<Server>);

impl Klads {
    pub(crate) fn start(cluster: &Cluster) -> Klads {
        static KEYSPACES: AtomicUsize = AtomicUsize::new(0);
        let keyspace = format!("test{}", KEYSPACES.fetch_add(1, Ordering::Relaxed));
        let replication = format!("datacenter1:{NODES}");
        cluster
            .command("cluster init")
            .arg("--keyspace")
            .arg(&keyspace)
            .arg("--replication")
            .arg(replication)
            .succeeds();
        Klads((0..NODES).map(|_| cluster.builder(&keyspace).start()).collect())
    }

    pub(crate) fn address(&self, klad: usize) -> SocketAddr {
        self.0[klad].address
    }

    pub(crate) fn server(&self, klad: usize) -> &Server {
        &self.0[klad]
    }

    /// Connects to one of the klads, which count from 0.
    pub(crate) fn client(&self, klad: usize) -> Client {
        self.0[klad].client()
    }

    /// Returns what `/readyz` of a klad answers.
    pub(crate) fn ready(&self, klad: usize) -> u16 {
        self.0[klad].admin("/readyz").status
    }

    /// Kills the last klad.
    pub(crate) fn kill_last(&mut self) {
        self.0.pop().expect("one is left").kill();
    }
}

/// Returns a number whose addresses no other cluster of this machine has, and a listener that reserves them.
fn free_block() -> (u8, TcpListener) {
    let mut blocks = std::iter::repeat_with(|| fastrand::u8(10..250));
    let reserve = |block: u8| {
        let listen = |port| TcpListener::bind(SocketAddr::from(([127, 0, block, 1], port))).ok();
        // 7000 is that of a node, 7999 that of no program.
        listen(7000).and(listen(7999)).map(|reservation| (block, reservation))
    };
    blocks.find_map(reserve).expect("the iterator is endless")
}

/// Asks a node how many others it lists; `None` if it does not answer. Speaks version 4 of CQL's protocol.
fn peers(address: SocketAddr) -> Option<usize> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut ask = |opcode: u8, body: &[u8]| -> Option<Vec<u8>> {
        let length = u32::try_from(body.len()).ok()?.to_be_bytes();
        stream.write_all(&[&[4, 0, 0, 0, opcode], &length[..], body].concat()).ok()?;
        let mut head = [0; 9];
        stream.read_exact(&mut head).ok()?;
        let [.., a, b, c, d] = head;
        let mut body = vec![0; u32::from_be_bytes([a, b, c, d]) as usize];
        stream.read_exact(&mut body).ok()?;
        // 0 is an error.
        (head[4] != 0).then_some(body)
    };
    let text = |text: &str| [&u16::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes()].concat();
    let startup = [&[0, 1][..], &text("CQL_VERSION"), &text("3.0.0")].concat();
    ask(1, &startup)?;
    let query = "SELECT count(*) FROM system.peers_v2";
    let length = u32::try_from(query.len()).ok()?.to_be_bytes();
    // At consistency ONE, without parameters.
    let rows = ask(7, &[&length[..], query.as_bytes(), &[0, 1, 0]].concat())?;
    // The last column of the last row ends the answer.
    usize::try_from(u64::from_be_bytes(*rows.last_chunk()?)).ok()
}
