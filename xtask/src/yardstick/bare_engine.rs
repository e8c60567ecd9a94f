//! RocksDB with klad's options, read by threads in a loop. No server on this engine can cost less.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use klad_lab::server::RunningServer;
use klad_storage::operation::{Consistency, Operation, Outcome};
use klad_storage::rocksdb::{Options, RocksDbEngine};
use klad_storage::{Engine as _, Reply};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::setup::Setup;

pub(super) struct BareEngine {
    engine: RocksDbEngine,
    cores: Vec<usize>,
}

impl BareEngine {
    /// Opens the data directory `name` with direct reads, and with as much memory as `klad` has.
    pub(super) fn open(setup: &Setup, name: &str, klad: &RunningServer) -> Result<BareEngine> {
        let metrics = klad.admin.as_ref().context("klad has an admin address")?;
        let metrics = String::from_utf8(metrics.get("/metrics", Duration::from_secs(5))?)?;
        let bytes = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse::<u64>().ok()).with_context(|| format!("there is no {name}"))
        };
        let (blocks, values) =
            (bytes("klad_rocksdb_block_cache_capacity_bytes")?, bytes("klad_value_cache_capacity_bytes")?);
        let memtable_bytes = bytes("klad_rocksdb_memtable_limit_bytes")?;
        let options = Options {
            cache_bytes: blocks + values,
            memtable_bytes,
            value_cache_percent: values * 100 / (blocks + values).saturating_sub(memtable_bytes).max(1),
            direct_reads: true,
            ..Options::default()
        };
        let path = setup.directory().join(name);
        let engine = RocksDbEngine::open(&path, &options).map_err(|error| anyhow!("{error}"))?;
        Ok(BareEngine { engine, cores: setup.server_cores.clone() })
    }

    /// Reads random keys with `threads` threads on the cores of servers. Returns the number of reads a second.
    #[expect(clippy::cast_precision_loss, reason = "reads of seconds are far below 2^52")]
    pub(super) fn reads_per_s(&self, keys: u64, threads: usize, time: Duration) -> Result<f64> {
        let (reads, ends) = (AtomicU64::new(0), AtomicBool::new(false));
        let began = Instant::now();
        thread::scope(|scope| {
            let readers: Vec<_> =
                (0..threads).map(|_| scope.spawn(|| -> Result<()> { self.read(keys, &reads, &ends) })).collect();
            thread::sleep(time);
            ends.store(true, Ordering::Relaxed);
            readers.into_iter().try_for_each(|reader| reader.join().ok().context("a reader has panicked")?)
        })?;
        Ok(reads.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
    }

    fn read(&self, keys: u64, reads: &AtomicU64, ends: &AtomicBool) -> Result<()> {
        if !self.cores.is_empty() {
            let mut cores = CpuSet::new();
            self.cores.iter().for_each(|core| cores.set(*core));
            sched_setaffinity(None, &cores)?;
        }
        let found = Arc::new(Found);
        while !ends.load(Ordering::Relaxed) {
            let key = Bytes::from(format!("key{}", fastrand::u64(..keys)));
            self.engine.execute(Operation::Get { key, consistency: Consistency::Default }, found.clone());
            reads.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

struct Found;

impl Reply for Found {
    fn complete(&self, result: klad_storage::Result) {
        assert!(matches!(result, Ok(Outcome::Found { .. })), "{result:?}");
    }
}
