//! The Cassandra engine: klad as a stateless server in front of a cluster that speaks CQL. Any number of klads may
//! serve one keyspace. `docs/cluster-model.md` describes the tables and what each operation promises.
//!
//! ```text
//!   worker ─▶ execute ─▶ a task on the thread klad-cluster ─▶ driver ─▶ the nodes
//!                          read, write, conditional, scan          ◀─ Reply::complete
//! ```
//!
//! No call blocks. One thread runs the driver and all operations; the admission of `execution` bounds the number of
//! operations. Only the code in this directory uses the driver's crate. Made by `main`, called by `execution`.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use scylla::client::session::Session;
use scylla::statement::SerialConsistency;
use tokio::runtime::{self, Handle, Runtime};
use tokio::sync::{Notify, Semaphore};

use crate::operation::{Consistency, Durability, Error, Operation, Outcome};
use crate::{Capabilities, ChangeKind, Check, Engine, Observation, Reply};
use klad_base::sync;

mod bucket;
mod conditional;
mod counters;
mod failure;
mod level;
mod options;
mod read;
mod row;
mod scan;
mod schema;
mod session;
mod traffic;
mod versions;
mod write;

use counters::Counters;
use level::Levels;
pub use options::{Ask, BadName, Contact};
pub use schema::{BUCKETS_MAX, Keyspace, Node, OpenError, Replication};
use session::{Profiles, Statements};
use traffic::Traffic;
use versions::Versions;

/// The engine's name.
const NAME: &str = "cassandra";

/// The number of requests that one operation sends at the same time.
const AT_ONCE: usize = 32;

/// The engine.
pub struct CassandraEngine {
    cluster: Arc<Cluster>,
    runtime: Handle,
    /// Tells the thread to end.
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

/// What all operations share.
struct Cluster {
    session: Session,
    statements: Statements,
    profiles: Profiles,
    versions: Versions,
    levels: Levels,
    buckets: u32,
    /// One for each bucket: conditional writes of a bucket run one after the other.
    queues: Vec<Semaphore>,
    counters: Counters,
    traffic: Arc<Traffic>,
    timeout: Duration,
}

impl CassandraEngine {
    /// Connects to the cluster, and checks the keyspace.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(contact: &Contact, ask: Ask) -> Result<CassandraEngine, OpenError> {
        let runtime = runtime()?;
        let cluster = Arc::new(runtime.block_on(Cluster::open(contact, ask))?);
        let (handle, stop) = (runtime.handle().clone(), Arc::new(Notify::new()));
        let stopped = stop.clone();
        let thread = sync::spawn_thread("klad-cluster", move || runtime.block_on(stopped.notified()));
        Ok(CassandraEngine { cluster, runtime: handle, stop, thread: Some(thread) })
    }
}

/// Makes the keyspace and its tables, unless they exist.
///
/// # Errors
/// [`OpenError`].
pub fn init(contact: &Contact, replication: &[Replication], buckets: u32) -> Result<Keyspace, OpenError> {
    runtime()?.block_on(async {
        let session = schema::connect(contact).await?;
        schema::init(&session, &contact.keyspace, replication, buckets).await
    })
}

/// Reads the nodes of the cluster and the properties of the keyspace.
///
/// # Errors
/// [`OpenError`] if klad cannot connect. The inner [`OpenError`] says that the keyspace cannot be read.
pub fn status(contact: &Contact) -> Result<(Vec<Node>, Result<Keyspace, OpenError>), OpenError> {
    runtime()?.block_on(async {
        let session = schema::connect(contact).await?;
        Ok((schema::nodes(&session), schema::read(&session, &contact.keyspace).await))
    })
}

fn runtime() -> Result<Runtime, OpenError> {
    let built = runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| OpenError::Failed { action: "start", why: error.to_string() })
}

impl Cluster {
    async fn open(contact: &Contact, ask: Ask) -> Result<Cluster, OpenError> {
        let session = schema::connect(contact).await?;
        let keyspace = schema::read(&session, &contact.keyspace).await?;
        let writer = schema::take_writer(&session, &contact.keyspace).await?;
        let serial = if ask.local_serial { SerialConsistency::LocalSerial } else { SerialConsistency::Serial };
        let traffic = Arc::<Traffic>::default();
        let profiles = Profiles::new(contact, serial, traffic.clone());
        let statements = Statements::prepare(&session, &contact.keyspace, &profiles).await?;
        let copies = |of: &dyn Fn(&Replication) -> bool| {
            let all = keyspace.replication.iter().filter(|one| of(one)).map(|one| one.copies);
            all.fold(0_u8, u8::saturating_add).max(1)
        };
        let is_local = |one: &Replication| contact.local_datacenter.as_ref().is_none_or(|name| *name == one.datacenter);
        let levels = Levels {
            copies: copies(&|_| true),
            local_copies: copies(&is_local),
            default: ask.consistency,
            local_serial: ask.local_serial,
        };
        Ok(Cluster {
            session,
            statements,
            profiles,
            versions: Versions::new(writer),
            levels,
            buckets: keyspace.buckets,
            queues: (0..keyspace.buckets).map(|_| Semaphore::new(1)).collect(),
            counters: Counters::default(),
            traffic,
            timeout: contact.timeout,
        })
    }

    async fn execute(&self, operation: Operation, reply: &Arc<dyn Reply>) -> crate::Result {
        match operation {
            Operation::Get { key, consistency } => self.get(&key, self.levels.of_read(consistency), &**reply).await,
            Operation::GetMany { keys, bytes_max, consistency } => {
                self.get_many(keys, bytes_max, self.levels.of_read(consistency)).await
            }
            Operation::Prefetch { .. } => Ok(Outcome::NotFound),
            Operation::Scan(step) => self.scan(*step).await,
            Operation::Write(write) => self.write(write, reply).await,
            Operation::RemoveRange(removal) => self.remove_range(removal).await,
            Operation::Changes(_) => Err(Error::NotSupported { engine: NAME, what: "changes" }),
        }
    }

    /// Checks that klad has a connection to at least `asked` nodes. With fewer nodes, klad cannot get enough answers
    /// for any key.
    fn reaches(&self, asked: u8) -> Result<(), Error> {
        let state = self.session.get_cluster_state();
        let connected = state.get_nodes_info().iter().filter(|node| node.is_connected());
        let answered = connected.take(asked.into()).count();
        if answered >= asked.into() {
            return Ok(());
        }
        Err(Error::NotEnoughReplicas { answered: u32::try_from(answered).expect("few"), asked: asked.into() })
    }
}

impl Engine for CassandraEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            conditions: true,
            expiry: true,
            metadata: true,
            batches: true,
            range_removals: true,
            ..Capabilities::default()
        }
    }

    fn copies(&self) -> u8 {
        self.cluster.levels.copies
    }

    fn durability(&self, _asked: Durability) -> Durability {
        Durability::Replicated(self.cluster.levels.of_write(Consistency::Default).acks)
    }

    /// Always `None` (unknown), because other klads may have written the key.
    fn read_cached(&self, _key: &[u8]) -> Option<crate::Result> {
        None
    }

    fn execute(&self, operation: Operation, reply: Arc<dyn Reply>) {
        let cluster = self.cluster.clone();
        self.runtime.spawn(async move { reply.complete(cluster.execute(operation, &reply).await) });
    }

    /// Rejects writes only if klad has no connection to any node. More cannot be checked here, because the level and
    /// the key of the write are not known.
    fn writable(&self, _change: ChangeKind) -> Result<(), Error> {
        self.cluster.reaches(1)
    }

    fn set_cache_bytes(&self, _bytes: u64) {}

    fn checks(&self) -> Vec<Check> {
        vec![Check::of("cluster", self.cluster.reaches(self.cluster.levels.of_write(Consistency::Default).acks))]
    }

    fn observe(&self) -> Arc<Observation> {
        let traffic = self.cluster.traffic.measures(&self.cluster.session);
        Arc::new(self.cluster.counters.observe(traffic))
    }
}

impl Drop for CassandraEngine {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a thread that panics ends the process");
        }
    }
}
