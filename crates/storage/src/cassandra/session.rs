//! The connection to the cluster: the driver's session with klad's settings, and the prepared statements.
//!
//! A request waits for one node, its coordinator. A frozen node would delay its requests until the timeout. So the
//! driver sends a request that may run twice to another node after 100 ms, and closes a connection that does not answer
//! keepalives. A conditional write may not run twice, so it goes to one node, once.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use scylla::client::PoolSize;
use scylla::client::execution_profile::{ExecutionProfile, ExecutionProfileHandle};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::{NewSessionError, PrepareError};
use scylla::policies::load_balancing::{DefaultPolicy, LoadBalancingPolicy};
use scylla::policies::retry::{DefaultRetryPolicy, FallthroughRetryPolicy};
use scylla::policies::speculative_execution::SimpleSpeculativeExecutionPolicy;
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency as Cql, SerialConsistency};

use crate::cassandra::level::Level;
use crate::cassandra::options::Contact;
use crate::cassandra::traffic::{Counting, Traffic};

/// After this time without an answer, a request that may run twice is also sent to another node.
const SPECULATION_INTERVAL: Duration = Duration::from_millis(100);

/// A request that may run twice is sent to at most this many further nodes.
const SPECULATIONS_MAX: usize = 2;

/// How often the driver sends a keepalive on each connection, and how long it waits for the answer.
const KEEPALIVE: Duration = Duration::from_secs(2);

/// The levels that requests may have.
const LEVELS: [Cql; 8] =
    [Cql::One, Cql::Two, Cql::Three, Cql::Quorum, Cql::LocalQuorum, Cql::All, Cql::Serial, Cql::LocalSerial];

/// Connects to the cluster.
pub(super) async fn connect(contact: &Contact) -> Result<Session, NewSessionError> {
    let mut builder = SessionBuilder::new()
        .known_nodes(&contact.points)
        .default_execution_profile_handle(Profiles::new(contact, SerialConsistency::Serial, Arc::default()).twice)
        .connection_timeout(contact.timeout)
        .keepalive_interval(KEEPALIVE)
        .keepalive_timeout(KEEPALIVE)
        .pool_size(PoolSize::PerHost(NonZeroUsize::MIN));
    builder = builder.tls_context(contact.tls.clone());
    if let Some((user, password)) = &contact.user {
        builder = builder.user(user, password);
    }
    builder.build().await
}

/// How requests are sent.
pub(super) struct Profiles {
    /// For requests that may run twice.
    pub(super) twice: ExecutionProfileHandle,
    /// For conditional writes.
    pub(super) once: ExecutionProfileHandle,
}

impl Profiles {
    pub(super) fn new(contact: &Contact, serial: SerialConsistency, traffic: Arc<Traffic>) -> Profiles {
        let inner: Arc<dyn LoadBalancingPolicy> = match &contact.local_datacenter {
            Some(name) => DefaultPolicy::builder().prefer_datacenter(name.clone()).permit_dc_failover(true).build(),
            None => DefaultPolicy::builder().build(),
        };
        let nodes: Arc<dyn LoadBalancingPolicy> = Arc::new(Counting { inner, traffic });
        let common = || {
            ExecutionProfile::builder()
                .consistency(Cql::Quorum)
                .serial_consistency(Some(serial))
                .request_timeout(Some(contact.timeout))
                .load_balancing_policy(nodes.clone())
        };
        let speculation = SimpleSpeculativeExecutionPolicy {
            max_retry_count: SPECULATIONS_MAX,
            retry_interval: SPECULATION_INTERVAL,
        };
        let twice = common()
            .retry_policy(Arc::new(DefaultRetryPolicy::new()))
            .speculative_execution_policy(Some(Arc::new(speculation)));
        let once = common().retry_policy(Arc::new(FallthroughRetryPolicy::new())).speculative_execution_policy(None);
        Profiles { twice: twice.build().into_handle(), once: once.build().into_handle() }
    }
}

/// A statement, prepared for each level.
pub(super) struct Leveled(Vec<PreparedStatement>);

impl Leveled {
    /// The statement at this level.
    pub(super) fn at(&self, level: Level) -> &PreparedStatement {
        let index = LEVELS.iter().position(|known| *known == level.cql).expect("LEVELS has all that `level` returns");
        &self.0[index]
    }
}

/// All statements.
pub(super) struct Statements {
    pub(super) get: Leveled,
    pub(super) get_head: Leveled,
    pub(super) put: Leveled,
    pub(super) put_if: Leveled,
    pub(super) delete: Leveled,
    pub(super) delete_if: Leveled,
    pub(super) delete_from: Leveled,
    pub(super) delete_between: Leveled,
    /// Scans without an end key: forward, then backward.
    pub(super) scan_from: [Leveled; 2],
    /// Scans with an end key: forward, then backward.
    pub(super) scan_between: [Leveled; 2],
}

impl Statements {
    /// Prepares the statements for this keyspace, whose name is safe in CQL.
    pub(super) async fn prepare(
        session: &Session,
        keyspace: &str,
        profiles: &Profiles,
    ) -> Result<Statements, PrepareError> {
        let table = format!("{keyspace}.kv");
        let (twice, once) = ((&profiles.twice, true), (&profiles.once, false));
        let prepare = async |text: String, (profile, idempotent): (&ExecutionProfileHandle, bool)| {
            let mut statement = session.prepare(text).await?;
            statement.set_is_idempotent(idempotent);
            statement.set_execution_profile_handle(Some(profile.clone()));
            let at = |level| {
                let mut statement = statement.clone();
                statement.set_consistency(level);
                // A serial read runs only once, because a second one would disturb the first.
                if matches!(level, Cql::Serial | Cql::LocalSerial) {
                    statement.set_is_idempotent(false);
                    statement.set_execution_profile_handle(Some(profiles.once.clone()));
                }
                statement
            };
            Ok::<_, PrepareError>(Leveled(LEVELS.into_iter().map(at).collect()))
        };
        let one = "WHERE bucket = ? AND key = ?";
        let (from, between) = ("WHERE bucket = ? AND key >= ?", "WHERE bucket = ? AND key >= ? AND key < ?");
        let scan =
            |range: &str, order: &str| format!("SELECT key, head FROM {table} {range} ORDER BY key {order} LIMIT ?");
        Ok(Statements {
            get: prepare(format!("SELECT head, value, writetime(head) FROM {table} {one}"), twice).await?,
            get_head: prepare(format!("SELECT head, writetime(head) FROM {table} {one}"), twice).await?,
            put: prepare(format!("UPDATE {table} USING TIMESTAMP ? AND TTL ? SET head = ?, value = ? {one}"), twice)
                .await?,
            put_if: prepare(format!("UPDATE {table} USING TTL ? SET head = ?, value = ? {one} IF head = ?"), once)
                .await?,
            delete: prepare(format!("DELETE FROM {table} USING TIMESTAMP ? {one}"), twice).await?,
            delete_if: prepare(format!("DELETE FROM {table} {one} IF head = ?"), once).await?,
            delete_from: prepare(format!("DELETE FROM {table} USING TIMESTAMP ? {from}"), twice).await?,
            delete_between: prepare(format!("DELETE FROM {table} USING TIMESTAMP ? {between}"), twice).await?,
            scan_from: [prepare(scan(from, "ASC"), twice).await?, prepare(scan(from, "DESC"), twice).await?],
            scan_between: [prepare(scan(between, "ASC"), twice).await?, prepare(scan(between, "DESC"), twice).await?],
        })
    }
}
