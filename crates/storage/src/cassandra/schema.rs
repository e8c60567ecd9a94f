//! The keyspace and its tables: `klad cluster init` makes them, `klad serve` checks them, `klad cluster status` shows
//! them.
//!
//! ```text
//!   kv        bucket int, key blob (clustering, ascending), head blob, value blob
//!   settings  name text, number bigint
//!             schema     the version of this layout
//!             buckets    the number of buckets, fixed at the first init
//!             writers    the number of klads that were started; each start takes the next one
//! ```

use std::fmt::Write as _;
use std::time::Duration;

use scylla::client::session::Session;
use scylla::cluster::metadata::Strategy;
use scylla::errors::{ExecutionError, NewSessionError, PrepareError};
use scylla::statement::unprepared::Statement;
use scylla::statement::{Consistency as Cql, SerialConsistency};
use scylla::value::Row;

use crate::cassandra::options::Contact;
use crate::cassandra::session;
use crate::cassandra::versions::WRITERS;

/// The version of the layout that this klad writes and reads.
const SCHEMA: i64 = 1;

/// The largest number of buckets. A scan reads all of them.
pub const BUCKETS_MAX: u32 = 4_096;

/// How long a node waits for a copy before it asks one more copy for a read. Cassandra's default is 2.5 s until
/// Cassandra has measured reads of the table, so a read that asks a copy on a dead node would take 2.5 s.
const SPECULATIVE_RETRY: &str = "MIN(99p,50ms)";

/// The maximum number of attempts to take a number at a start, if other klads start at the same time.
const WRITER_ATTEMPTS: usize = 100;

/// The maximum number of errors after which a start tries again to take a number. Each attempt may take as long as the
/// cluster's timeout.
const WRITER_FAILURES: usize = 10;

/// Why the keyspace cannot be used or made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No contact point answered, or the cluster rejected the connection.
    #[error("cannot connect to the Cassandra cluster at {points}: {why}")]
    NotConnected {
        /// The contact points.
        points: String,
        /// The driver's message.
        why: String,
    },
    /// The keyspace or its tables do not exist.
    #[error("the cluster has no keyspace {keyspace} of klad: run klad cluster init --keyspace {keyspace} first")]
    NoKeyspace {
        /// The keyspace.
        keyspace: String,
    },
    /// A newer klad made the keyspace.
    #[error("keyspace {keyspace} has layout {found}; this klad reads {SCHEMA}: use a newer klad")]
    Newer {
        /// The keyspace.
        keyspace: String,
        /// The version of the keyspace's layout.
        found: i64,
    },
    /// The keyspace has another number of buckets than init asks for.
    #[error("keyspace {keyspace} has {found} buckets, which cannot change; export it, and import it into another one")]
    OtherBuckets {
        /// The keyspace.
        keyspace: String,
        /// The keyspace's number of buckets.
        found: i64,
    },
    /// The data centre has no node.
    #[error("the cluster has no data centre {name}; it has {known}")]
    NoDatacenter {
        /// The given name.
        name: String,
        /// The names of the existing data centres.
        known: String,
    },
    /// A request failed.
    #[error("the Cassandra cluster failed to {action}: {why}")]
    Failed {
        /// What klad asked for.
        action: &'static str,
        /// The driver's message.
        why: String,
    },
}

/// The number of copies in one data centre.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replication {
    /// The data centre.
    pub datacenter: String,
    /// The number of copies of each key.
    pub copies: u8,
}

/// The properties of a keyspace of klad.
#[derive(Clone, Debug)]
pub struct Keyspace {
    /// The number of buckets.
    pub buckets: u32,
    /// The version of the layout.
    pub schema: i64,
    /// The number of klads that were started.
    pub writers: i64,
    /// The copies in each data centre.
    pub replication: Vec<Replication>,
}

/// A node of the cluster.
#[derive(Clone, Debug)]
pub struct Node {
    /// The node's address for clients.
    pub address: String,
    /// The node's data centre.
    pub datacenter: String,
    /// The node's rack.
    pub rack: String,
    /// Whether klad has a connection to the node.
    pub connected: bool,
}

/// Connects to the cluster. The error is the one that `klad` prints.
pub(super) async fn connect(contact: &Contact) -> Result<Session, OpenError> {
    let session = session::connect(contact).await.map_err(|error: NewSessionError| OpenError::NotConnected {
        points: contact.points.join(", "),
        why: error.to_string(),
    })?;
    let nodes = nodes(&session);
    if let Some(name) = &contact.local_datacenter
        && !nodes.iter().any(|node| node.datacenter == *name)
    {
        let mut known: Vec<String> = nodes.into_iter().map(|node| node.datacenter).collect();
        known.sort();
        known.dedup();
        return Err(OpenError::NoDatacenter { name: name.clone(), known: known.join(", ") });
    }
    Ok(session)
}

/// Makes the keyspace and its tables, unless they exist. Two calls at the same time end with the same keyspace.
pub(super) async fn init(
    session: &Session,
    keyspace: &str,
    replication: &[Replication],
    buckets: u32,
) -> Result<Keyspace, OpenError> {
    let mut copies = String::new();
    for Replication { datacenter, copies: count } in replication {
        let _ = write!(copies, ", '{}': '{count}'", datacenter.replace('\'', "''"));
    }
    let class = "'class': 'NetworkTopologyStrategy'";
    let make = async |what: String| ddl(session, what).await;
    make(format!("CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {{{class}{copies}}}")).await?;
    make(format!("CREATE TABLE IF NOT EXISTS {keyspace}.settings (name text PRIMARY KEY, number bigint)")).await?;
    make(format!(
        "CREATE TABLE IF NOT EXISTS {keyspace}.kv \
         (bucket int, key blob, head blob, value blob, PRIMARY KEY (bucket, key)) \
         WITH speculative_retry = '{SPECULATIVE_RETRY}'"
    ))
    .await?;
    for (name, number) in [("schema", SCHEMA), ("buckets", i64::from(buckets)), ("writers", 0)] {
        let text = format!("INSERT INTO {keyspace}.settings (name, number) VALUES (?, ?) IF NOT EXISTS");
        let inserted = session.query_unpaged(once(text), (name, number)).await;
        inserted.map_err(failed("store the settings of the keyspace"))?;
    }
    session.refresh_metadata().await.map_err(|error| failed_to("read the new keyspace", &error))?;
    let found = read(session, keyspace).await?;
    if found.buckets == buckets {
        Ok(found)
    } else {
        Err(OpenError::OtherBuckets { keyspace: keyspace.to_owned(), found: i64::from(found.buckets) })
    }
}

/// Reads the properties of the keyspace.
pub(super) async fn read(session: &Session, keyspace: &str) -> Result<Keyspace, OpenError> {
    let none = || OpenError::NoKeyspace { keyspace: keyspace.to_owned() };
    let replication = replication(session, keyspace).ok_or_else(none)?;
    let is_there = session
        .get_cluster_state()
        .get_keyspace(keyspace)
        .is_some_and(|found| found.tables.contains_key("settings") && found.tables.contains_key("kv"));
    if !is_there {
        return Err(none());
    }
    let mut statement = Statement::new(format!("SELECT name, number FROM {keyspace}.settings"));
    statement.set_is_idempotent(true);
    let rows = session.query_unpaged(statement, ()).await.map_err(failed("read the settings of the keyspace"))?;
    let rows = rows.into_rows_result().map_err(|error| failed_to("read the settings of the keyspace", &error))?;
    let mut found = std::collections::HashMap::new();
    for row in rows.rows::<(String, i64)>().map_err(|error| failed_to("read the settings of the keyspace", &error))? {
        let (name, number) = row.map_err(|error| failed_to("read the settings of the keyspace", &error))?;
        found.insert(name, number);
    }
    let number = |name| found.get(name).copied().ok_or_else(none);
    let schema = number("schema")?;
    if schema != SCHEMA {
        return Err(OpenError::Newer { keyspace: keyspace.to_owned(), found: schema });
    }
    let buckets = u32::try_from(number("buckets")?).ok().filter(|count| (1..=BUCKETS_MAX).contains(count));
    Ok(Keyspace { buckets: buckets.ok_or_else(none)?, schema, writers: number("writers")?, replication })
}

/// Takes a number for this klad. None of the last [`WRITERS`] starts took the same number.
pub(super) async fn take_writer(session: &Session, keyspace: &str) -> Result<u64, OpenError> {
    let action = "give this klad a number";
    let text = format!("UPDATE {keyspace}.settings SET number = ? WHERE name = 'writers' IF number = ?");
    let mut failures_left = WRITER_FAILURES;
    for attempt in 0..WRITER_ATTEMPTS {
        let next = read(session, keyspace).await?.writers;
        let taken = match session.query_unpaged(once(text.clone()), (next + 1, next)).await {
            Ok(taken) => taken,
            // Several klads start at the same time. If this klad has taken the number all the same, the number stays
            // unused.
            Err(_) if failures_left > 0 => {
                failures_left -= 1;
                tokio::time::sleep(Duration::from_millis(fastrand::u64(0..500))).await;
                continue;
            }
            Err(error) => return Err(failed(action)(error)),
        };
        let taken = taken.into_rows_result().map_err(|error| failed_to(action, &error))?;
        let row = taken.first_row::<Row>().map_err(|error| failed_to(action, &error))?;
        if is_applied(&row) {
            return Ok(u64::try_from(next).unwrap_or(0) % WRITERS);
        }
        let wait = Duration::from_millis(fastrand::u64(0..20 << attempt.min(5)));
        tokio::time::sleep(wait).await;
    }
    Err(OpenError::Failed { action, why: "other klads took each number first".to_owned() })
}

/// Whether a conditional statement was applied, as its result says.
pub(super) fn is_applied(row: &Row) -> bool {
    matches!(row.columns.first(), Some(Some(applied)) if applied.as_boolean() == Some(true))
}

/// The copies in each data centre; `None` if there is no such keyspace.
pub(super) fn replication(session: &Session, keyspace: &str) -> Option<Vec<Replication>> {
    let state = session.get_cluster_state();
    let copies = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
    Some(match &state.get_keyspace(keyspace)?.strategy {
        Strategy::NetworkTopologyStrategy { datacenter_repfactors } => {
            let mut all: Vec<Replication> = datacenter_repfactors
                .iter()
                .map(|(name, count)| Replication { datacenter: name.clone(), copies: copies(*count) })
                .collect();
            all.sort_by(|one, other| one.datacenter.cmp(&other.datacenter));
            all
        }
        Strategy::SimpleStrategy { replication_factor } => {
            vec![Replication { datacenter: "all".to_owned(), copies: copies(*replication_factor) }]
        }
        _ => vec![Replication { datacenter: "all".to_owned(), copies: 1 }],
    })
}

/// The nodes that the driver knows.
pub(super) fn nodes(session: &Session) -> Vec<Node> {
    let state = session.get_cluster_state();
    let node = |node: &std::sync::Arc<scylla::cluster::Node>| Node {
        address: node.address.to_string(),
        datacenter: node.datacenter.clone().unwrap_or_default(),
        rack: node.rack.clone().unwrap_or_default(),
        connected: node.is_connected(),
    };
    let mut all: Vec<Node> = state.get_nodes_info().iter().map(node).collect();
    all.sort_by(|one, other| one.address.cmp(&other.address));
    all
}

async fn ddl(session: &Session, text: String) -> Result<(), OpenError> {
    // The nodes need some time to agree on a new schema.
    let mut statement = Statement::new(text);
    statement.set_request_timeout(Some(Duration::from_secs(30)));
    session.query_unpaged(statement, ()).await.map(|_| ()).map_err(failed("make the keyspace"))
}

/// A conditional statement.
fn once(text: String) -> Statement {
    let mut statement = Statement::new(text);
    statement.set_consistency(Cql::Quorum);
    statement.set_serial_consistency(Some(SerialConsistency::Serial));
    statement.set_is_idempotent(false);
    statement
}

fn failed(action: &'static str) -> impl Fn(ExecutionError) -> OpenError {
    move |error| failed_to(action, &error)
}

fn failed_to(action: &'static str, error: &dyn std::fmt::Display) -> OpenError {
    OpenError::Failed { action, why: error.to_string() }
}

impl From<PrepareError> for OpenError {
    fn from(error: PrepareError) -> OpenError {
        failed_to("prepare klad's statements", &error)
    }
}
