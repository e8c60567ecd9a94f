//! Counts the requests to each node. The driver calls [`Counting`] for each request, and `Counting` calls the driver's
//! own choice of nodes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use scylla::client::session::Session;
use scylla::cluster::{ClusterState, NodeRef};
use scylla::errors::{DbError, RequestAttemptError};
use scylla::policies::load_balancing::{FallbackPlan, LoadBalancingPolicy, RoutingInfo};
use scylla::routing::Shard;

use crate::observation::{Measure, number};
use klad_base::metrics::text::Kind;
use klad_base::sync::Mutex;

/// The counts of what was sent to the nodes.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// Requests, each counted once.
    requests: AtomicU64,
    /// Requests that needed a second node.
    second_nodes: AtomicU64,
    nodes: Mutex<BTreeMap<SocketAddr, OfNode>>,
    failures: [AtomicU64; KINDS.len()],
}

#[derive(Debug, Default, Clone, Copy)]
struct OfNode {
    answered: u64,
    failed: u64,
    time: Duration,
}

/// The kinds of failed attempts.
const KINDS: [&str; 4] = ["unavailable", "timeout", "connection", "other"];

/// The driver's choice of nodes, with counters.
#[derive(Debug)]
pub(super) struct Counting {
    pub(super) inner: Arc<dyn LoadBalancingPolicy>,
    pub(super) traffic: Arc<Traffic>,
}

impl LoadBalancingPolicy for Counting {
    fn pick<'a>(
        &'a self,
        request: &'a RoutingInfo<'_>,
        cluster: &'a ClusterState,
    ) -> Option<(NodeRef<'a>, Option<Shard>)> {
        self.traffic.requests.fetch_add(1, Ordering::Relaxed);
        self.inner.pick(request, cluster)
    }

    /// Called when a request goes to a second node, after an error or because the first node is slow. Also called for
    /// the first node if `pick` has found none.
    fn fallback<'a>(&'a self, request: &'a RoutingInfo<'_>, cluster: &'a ClusterState) -> FallbackPlan<'a> {
        self.traffic.second_nodes.fetch_add(1, Ordering::Relaxed);
        self.inner.fallback(request, cluster)
    }

    fn on_request_success(&self, request: &RoutingInfo<'_>, latency: Duration, node: NodeRef<'_>) {
        self.traffic.note(node, latency, None);
        self.inner.on_request_success(request, latency, node);
    }

    fn on_request_failure(
        &self,
        request: &RoutingInfo<'_>,
        latency: Duration,
        node: NodeRef<'_>,
        error: &RequestAttemptError,
    ) {
        self.traffic.note(node, latency, Some(kind(error)));
        self.inner.on_request_failure(request, latency, node, error);
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

/// The index of `error` in [`KINDS`].
fn kind(error: &RequestAttemptError) -> usize {
    match error {
        RequestAttemptError::DbError(DbError::Unavailable { .. }, _) => 0,
        RequestAttemptError::DbError(DbError::ReadTimeout { .. } | DbError::WriteTimeout { .. }, _) => 1,
        RequestAttemptError::BrokenConnectionError(_) => 2,
        _ => 3,
    }
}

impl Traffic {
    fn note(&self, node: NodeRef<'_>, latency: Duration, failure: Option<usize>) {
        let address = SocketAddr::new(node.address.ip(), node.address.port());
        let mut nodes = self.nodes.lock();
        let own = nodes.entry(address).or_default();
        match failure {
            None => own.answered += 1,
            Some(kind) => {
                own.failed += 1;
                self.failures[kind].fetch_add(1, Ordering::Relaxed);
            }
        }
        own.time += latency;
    }

    /// The current metrics. Removes the counts of nodes that left the cluster.
    pub(super) fn measures(&self, session: &Session) -> Vec<Measure> {
        let state = session.get_cluster_state();
        let known: BTreeMap<SocketAddr, bool> = state
            .get_nodes_info()
            .iter()
            .map(|node| (SocketAddr::new(node.address.ip(), node.address.port()), node.is_connected()))
            .collect();
        let nodes: BTreeMap<SocketAddr, OfNode> = {
            let mut nodes = self.nodes.lock();
            nodes.retain(|address, _| known.contains_key(address));
            known.keys().map(|address| (*address, nodes.get(address).copied().unwrap_or_default())).collect()
        };
        let one = |name, help, counter: &AtomicU64| {
            Measure::one(name, Kind::Counter, help, number(counter.load(Ordering::Relaxed)))
        };
        let each = |name, help, value: fn(&OfNode) -> f64| {
            Measure::each(name, Kind::Counter, help, "node", nodes.iter().map(|(address, own)| (*address, value(own))))
        };
        let failures = KINDS.iter().zip(&self.failures);
        let failures = failures.map(|(kind, count)| (*kind, number(count.load(Ordering::Relaxed))));
        let mut measures = vec![
            one("klad_cluster_requests_total", "Requests to the cluster.", &self.requests),
            one(
                "klad_cluster_second_node_total",
                "Requests that were also sent to a second node: after an error, or because the first was slow.",
                &self.second_nodes,
            ),
            Measure::each(
                "klad_cluster_attempts_failed_total",
                Kind::Counter,
                "Attempts that failed, at any node. Another node may have answered the request.",
                "reason",
                failures,
            ),
        ];
        if !known.is_empty() {
            let connected = known.iter().map(|(address, connected)| (*address, f64::from(u8::from(*connected))));
            measures.extend([
                each("klad_cluster_node_answered_total", "Attempts that the node answered.", |own| {
                    number(own.answered)
                }),
                each("klad_cluster_node_failed_total", "Attempts that failed at the node.", |own| number(own.failed)),
                each("klad_cluster_node_seconds_total", "Time of all attempts at the node.", |own| {
                    own.time.as_secs_f64()
                }),
                Measure::each(
                    "klad_cluster_node_connected",
                    Kind::Gauge,
                    "1 if klad has a connection to the node, otherwise 0.",
                    "node",
                    connected,
                ),
            ]);
        }
        measures
    }
}
