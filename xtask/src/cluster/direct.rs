//! The direct side: a load generator without HTTP sends the CQL requests that klad sends for a GET and a PUT of `/v0`.
//!
//! ```text
//!   schedule thread: sleeps until each intended start ─▶ thread klad-direct: runtime, driver ─▶ the nodes
//!   results ◀───────────────────────────────────────────────┘
//! ```
//!
//! Change this file along with `crates/storage/src/cassandra`. Settings and statements are those of `session` there,
//! the bucket of a key is that of `bucket`, and rows are copies of a row that klad wrote. For an open load, a thread of
//! its own sleeps until each start, because tokio's timers have steps of 1 ms. A closed load needs no schedule.

use std::net::SocketAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use klad_bench::interrupt;
use rustix::time::{ClockId, clock_gettime};
use scylla::client::PoolSize;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::speculative_execution::SimpleSpeculativeExecutionPolicy;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;
use xxhash_rust::xxh3::xxh3_64;

use super::nodes::DATACENTER;
use super::{VALUE_BYTES, go_on};

/// The same as the default of klad's `--request-timeout`.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The same as klad's interval of keepalives.
const KEEPALIVE: Duration = Duration::from_secs(2);

/// A kind of request that both sides send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Get,
    Put,
}

impl Operation {
    /// The name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Operation::Get => "GET",
            Operation::Put => "PUT",
        }
    }

    /// The name of the workload in klad bench.
    pub(super) fn workload(self) -> &'static str {
        match self {
            Operation::Get => "get",
            Operation::Put => "put",
        }
    }
}

/// The figures of one load of the direct side.
pub(super) struct Load {
    /// Response times, ascending. Those of open load count from the intended start.
    pub(super) responses: Vec<Duration>,
    /// Requests that failed.
    pub(super) failed: u64,
    /// The CPU time of the generator.
    pub(super) cpu: Duration,
}

/// The connected load generator. Dropping it ends its thread.
pub(super) struct Direct {
    requests: Arc<Requests>,
    keys: u64,
    runtime: Handle,
    stop: Arc<Notify>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Direct {
    /// Connects to a keyspace with `keys` keys, from `key0` on. klad has stored `key0`.
    pub(super) fn connect(nodes: &[SocketAddr], keyspace: &str, keys: u64) -> Result<Direct> {
        let runtime = runtime()?;
        let requests = Arc::new(runtime.block_on(Requests::prepare(nodes, keyspace, "key0", VALUE_BYTES))?);
        let (handle, stop) = (runtime.handle().clone(), Arc::new(Notify::new()));
        let stopped = stop.clone();
        let thread = thread::Builder::new()
            .name("klad-direct".to_owned())
            .spawn(move || runtime.block_on(stopped.notified()))
            .context("cannot start a thread")?;
        Ok(Direct { requests, keys, runtime: handle, stop, thread: Some(thread) })
    }

    /// Sends open load: requests for random keys at `rate` per second.
    pub(super) fn open(&self, operation: Operation, rate: f64, duration: Duration) -> Result<Load> {
        let (sender, results) = mpsc::channel();
        let before = own_cpu();
        // The schedule has a thread of its own, because its exact timer must not apply to the rest of the program.
        thread::scope(|scope| {
            let schedule = scope.spawn(move || -> Result<()> {
                rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).context("cannot turn off timer slack")?;
                let begin = Instant::now() + Duration::from_millis(1);
                for intended in (0_u32..).map(|number| Duration::from_secs_f64(f64::from(number) / rate)) {
                    if intended >= duration {
                        return Ok(());
                    }
                    let intended = begin + intended;
                    thread::sleep(intended.saturating_duration_since(Instant::now()));
                    go_on()?;
                    let (requests, sender, keys) = (self.requests.clone(), sender.clone(), self.keys);
                    self.runtime.spawn(async move {
                        let result = requests.send(operation, keys).await;
                        // The receiver may have given up.
                        let _ = sender.send(result.map(|()| intended.elapsed()));
                    });
                }
                Ok(())
            });
            schedule.join().ok().context("the thread of the schedule has panicked")?
        })?;
        collect(&results, before)
    }

    /// Sends closed load with `in_flight` requests in flight. Response times count from the send.
    pub(super) fn closed(&self, operation: Operation, in_flight: usize, duration: Duration) -> Result<Load> {
        let (sender, results) = mpsc::channel();
        let (before, end) = (own_cpu(), Instant::now() + duration);
        for _ in 0..in_flight {
            let (requests, sender, keys) = (self.requests.clone(), sender.clone(), self.keys);
            self.runtime.spawn(async move {
                while Instant::now() < end && !interrupt::asked() {
                    let sent = Instant::now();
                    let result = requests.send(operation, keys).await;
                    let _ = sender.send(result.map(|()| sent.elapsed()));
                }
            });
        }
        drop(sender);
        collect(&results, before)
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Collects results until all senders are gone.
fn collect(results: &mpsc::Receiver<Result<Duration>>, cpu_before: Duration) -> Result<Load> {
    let (mut responses, mut failed, mut last) = (Vec::new(), 0, None);
    for result in results {
        match result {
            Ok(response) => responses.push(response),
            Err(error) => {
                failed += 1;
                last = Some(error);
            }
        }
    }
    let cpu = own_cpu().saturating_sub(cpu_before);
    go_on()?;
    if let Some(error) = &last {
        eprintln!("{failed} direct requests failed, the last one: {error:#}");
    }
    ensure!(!responses.is_empty(), "no direct request succeeded");
    responses.sort_unstable();
    Ok(Load { responses, failed, cpu })
}

/// The session, statements and values that all requests share.
pub(super) struct Requests {
    pub(super) session: Session,
    get: PreparedStatement,
    pub(super) put: PreparedStatement,
    buckets: u64,
    /// The column `head` of a row that klad wrote. The last bytes of it are the value.
    head: Bytes,
    value_bytes: usize,
}

/// The parameters of the write statement: time, time to live, head, value, bucket, key.
pub(super) type Row = (i64, i32, Bytes, Bytes, i32, Vec<u8>);

impl Requests {
    /// Connects to a keyspace in which klad has stored `first` with a value of `value_bytes`.
    pub(super) async fn prepare(
        nodes: &[SocketAddr],
        keyspace: &str,
        first: &str,
        value_bytes: usize,
    ) -> Result<Requests> {
        let session = session(nodes).await?;
        let table = format!("{keyspace}.kv");
        let place = "WHERE bucket = ? AND key = ?";
        let get = session.prepare(format!("SELECT head, value, writetime(head) FROM {table} {place}"));
        let mut get = get.await.context("cannot prepare the read")?;
        let put = format!("UPDATE {table} USING TIMESTAMP ? AND TTL ? SET head = ?, value = ? {place}");
        let mut put = session.prepare(put).await.context("cannot prepare the write")?;
        get.set_is_idempotent(true);
        put.set_is_idempotent(true);
        let settings = format!("SELECT number FROM {keyspace}.settings WHERE name = 'buckets'");
        let buckets = session.query_unpaged(settings, ()).await?.into_rows_result()?.first_row::<(i64,)>()?.0;
        let buckets = u64::try_from(buckets).context("the number of buckets is negative")?;
        let mut requests = Requests { session, get, put, buckets, head: Bytes::new(), value_bytes };
        requests.head = requests.read(first).await.context("klad's row cannot be read")?;
        ensure!(requests.head.len() > value_bytes, "klad's row has no value of {value_bytes} bytes");
        Ok(requests)
    }

    /// Sends a request for a random key.
    async fn send(&self, operation: Operation, keys: u64) -> Result<()> {
        let key = format!("key{}", fastrand::u64(..keys));
        match operation {
            Operation::Get => self.read(&key).await.map(drop),
            Operation::Put => {
                self.session.execute_unpaged(&self.put, self.row(&key)?).await?;
                Ok(())
            }
        }
    }

    async fn read(&self, key: &str) -> Result<Bytes> {
        let result = self.session.execute_unpaged(&self.get, (self.bucket(key), key.as_bytes())).await?;
        let row = result.into_rows_result()?.maybe_first_row::<(Option<Bytes>, Option<Bytes>, Option<i64>)>()?;
        row.and_then(|row| row.0).context("a key is missing")
    }

    /// Makes a row like those that klad writes, with a random value.
    pub(super) fn row(&self, key: &str) -> Result<Row> {
        let mut head = self.head.to_vec();
        let value_at = head.len() - self.value_bytes;
        fastrand::fill(&mut head[value_at..]);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let time_us = i64::try_from(now.as_micros())?;
        Ok((time_us, 0, Bytes::from(head), Bytes::new(), self.bucket(key), key.as_bytes().to_vec()))
    }

    /// The bucket of a key.
    pub(super) fn bucket(&self, key: &str) -> i32 {
        let directory = key.rfind('/').map_or(key, |slash| &key[..=slash]);
        i32::try_from(xxh3_64(directory.as_bytes()) % self.buckets).expect("there are few buckets")
    }
}

/// Connects with klad's settings.
async fn session(nodes: &[SocketAddr]) -> Result<Session> {
    let nearest = DefaultPolicy::builder().prefer_datacenter(DATACENTER.to_owned()).permit_dc_failover(true).build();
    let speculation =
        SimpleSpeculativeExecutionPolicy { max_retry_count: 2, retry_interval: Duration::from_millis(100) };
    let profile = ExecutionProfile::builder()
        .consistency(Consistency::Quorum)
        .request_timeout(Some(TIMEOUT))
        .load_balancing_policy(nearest)
        .speculative_execution_policy(Some(Arc::new(speculation)))
        .build();
    let builder = SessionBuilder::new()
        .known_nodes_addr(nodes)
        .default_execution_profile_handle(profile.into_handle())
        .connection_timeout(TIMEOUT)
        .keepalive_interval(KEEPALIVE)
        .keepalive_timeout(KEEPALIVE)
        .pool_size(PoolSize::PerHost(NonZeroUsize::MIN));
    builder.build().await.context("cannot connect to Cassandra")
}

/// Returns the number of nodes that `node` lists, itself included; `None` if `node` does not answer.
pub(super) fn count_nodes(node: SocketAddr) -> Option<usize> {
    runtime().ok()?.block_on(async { Some(session(&[node]).await.ok()?.get_cluster_state().get_nodes_info().len()) })
}

pub(super) fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("cannot start a runtime")
}

/// The CPU time of this process.
fn own_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).expect("time is positive")
}
