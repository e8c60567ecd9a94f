//! Runs the tests of every engine against klad in front of Cassandra too, if this machine has it.

use std::sync::{Mutex, Once, PoisonError};

use super::{Client, Server, cassandra};

/// The setup's name.
pub(crate) const CASSANDRA: &str = "cassandra";

/// What answers to writes say there: a majority of three copies.
pub(crate) const REPLICATED: &str = "replicated; acks=2";

/// Runs `check` against a klad with an empty store whose keys are in several buckets.
pub(crate) fn on_cassandra(check: impl FnOnce(&Server, &mut Client)) {
    static MADE: Once = Once::new();
    in_keyspace("conformance", "8", &MADE, check);
}

/// As [`on_cassandra`], with one bucket, so that atomic batches of any keys are possible.
pub(crate) fn on_one_bucket(check: impl FnOnce(&Server, &mut Client)) {
    static MADE: Once = Once::new();
    in_keyspace("conformance1", "1", &MADE, check);
}

/// One at a time: all use the same keyspaces, because a table takes memory of each node for as long as the node runs.
fn in_keyspace(keyspace: &str, buckets: &str, made: &Once, check: impl FnOnce(&Server, &mut Client)) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if !cfg!(feature = "cassandra") {
        return;
    }
    let Some(cluster) = cassandra::whole() else { return };
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    made.call_once(|| {
        let init = cluster.command("cluster init --replication datacenter1:3");
        init.arg("--keyspace").arg(keyspace).arg("--buckets").arg(buckets).succeeds();
    });
    println!("setup {CASSANDRA}");
    let server = cluster.builder(keyspace).start();
    let mut client = server.client();
    assert_eq!(client.delete("/v1/kv?all=true").status, 204);
    check(&server, &mut client);
}
