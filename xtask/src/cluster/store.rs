//! Stores many entries directly in Cassandra, in batches of one partition each. This is faster than through klad,
//! which reads each key before it stores the entry.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use scylla::statement::Consistency;
use scylla::statement::batch::{Batch, BatchType};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::direct::{Requests, Row, runtime};
use super::go_on;

/// The number of rows in one batch. With values of 100 bytes a batch is smaller than `batch_size_fail_threshold`.
const ROWS: usize = 100;

/// The number of batches in flight.
const IN_FLIGHT: usize = 16;

/// Stores a row for each of `keys`, like the row of `first`, which klad has stored with a value of `value_bytes`.
pub(super) fn store(
    nodes: &[SocketAddr],
    keyspace: &str,
    first: &str,
    keys: impl Iterator<Item = String>,
    value_bytes: usize,
) -> Result<()> {
    runtime()?.block_on(async {
        let requests = Arc::new(Requests::prepare(nodes, keyspace, first, value_bytes).await?);
        let permits = Arc::new(Semaphore::new(IN_FLIGHT));
        let mut batches: HashMap<i32, Vec<Row>> = HashMap::new();
        let mut running = JoinSet::new();
        let send = async |running: &mut JoinSet<Result<()>>, rows: Vec<Row>| -> Result<()> {
            go_on()?;
            let permit = permits.clone().acquire_owned().await?;
            let requests = requests.clone();
            running.spawn(async move {
                let ended = send(&requests, rows).await;
                drop(permit);
                ended
            });
            while let Some(ended) = running.try_join_next() {
                ended.context("a task has panicked")??;
            }
            Ok(())
        };
        for key in keys {
            let rows = batches.entry(requests.bucket(&key)).or_default();
            rows.push(requests.row(&key)?);
            if rows.len() == ROWS {
                let rows = std::mem::take(rows);
                send(&mut running, rows).await?;
            }
        }
        for rows in batches.into_values().filter(|rows| !rows.is_empty()) {
            send(&mut running, rows).await?;
        }
        while let Some(ended) = running.join_next().await {
            ended.context("a task has panicked")??;
        }
        Ok(())
    })
}

/// Sends the rows of one bucket.
async fn send(requests: &Requests, rows: Vec<Row>) -> Result<()> {
    let mut batch = Batch::new(BatchType::Unlogged);
    batch.set_consistency(Consistency::Quorum);
    batch.set_is_idempotent(true);
    for _ in &rows {
        batch.append_statement(requests.put.clone());
    }
    requests.session.batch(&batch, rows).await.context("a batch failed")?;
    Ok(())
}
