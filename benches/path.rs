//! Parts of the path of a request, in instructions: `cargo bench --bench path` (`tools/setup.sh bench` brings what it needs).
//!
//! What callgrind counts is the same from run to run where time is not, so a change of some hundredths shows. Each figure is of
//! [`TIMES`] operations. Caches, branches and the kernel are not in it: `klad lab run yardstick` measures those.

#![allow(missing_docs, unused_qualifications, reason = "the macros of the harness write them")]

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use gungraun::prelude::*;
use hyper::{HeaderMap, Method};
use klad_server::http::plain;
use klad_server::http::route::{Head, route};
use klad_storage::disk::record::Record;
use klad_storage::memory::MemoryEngine;
use klad_storage::operation::{Durability, Effect, Write};
use klad_storage::{Engine, Pending, Reply, Result};

/// Operations of each figure.
const TIMES: usize = 100;

/// Keys of a store.
const KEYS: usize = 10_000;

const KEY_BYTES_MAX: u64 = 1024;

struct Nobody;

impl Reply for Nobody {
    fn complete(&self, result: Result) {
        assert!(black_box(result).is_ok());
    }
}

fn key(index: usize) -> Vec<u8> {
    format!("key{index:07}").into_bytes()
}

/// Neighbours in time are no neighbours in order.
fn keys() -> Vec<Vec<u8>> {
    (0..TIMES).map(|number| key(number * 7919 % KEYS)).collect()
}

fn writes(keys: &[Vec<u8>]) -> Vec<Pending> {
    let reply: Arc<dyn Reply> = Arc::new(Nobody);
    let put = || Effect::Put(Bytes::from(vec![b'v'; 100]).into());
    let write = |key: &Vec<u8>| Pending {
        write: Write::of(key.clone().into(), put(), Durability::Async),
        reply: reply.clone(),
    };
    keys.iter().map(write).collect()
}

fn fill(engine: &dyn Engine) {
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    engine.commit(writes(&keys));
}

/// An engine and what is asked of it; given back, so that its end is not counted.
struct Asked<E> {
    engine: E,
    keys: Vec<Vec<u8>>,
    batches: Vec<Vec<Pending>>,
}

impl<E: Engine> Asked<E> {
    /// Of reads.
    fn reads(engine: E) -> Asked<E> {
        fill(&engine);
        Asked { engine, keys: keys(), batches: Vec::new() }
    }

    /// Of [`TIMES`] writes in batches of `batch`.
    fn writes(engine: E, batch: usize) -> Asked<E> {
        fill(&engine);
        let batches = keys().chunks(batch).map(writes).collect();
        Asked { engine, keys: Vec::new(), batches }
    }

    fn read(self) -> Asked<E> {
        for key in &self.keys {
            assert!(black_box(self.engine.read_cached(black_box(key))).is_some());
        }
        self
    }

    fn write(mut self) -> Asked<E> {
        for batch in self.batches.drain(..) {
            assert!(self.engine.try_commit(batch).is_ok());
        }
        self
    }
}

fn memory() -> MemoryEngine {
    MemoryEngine::new(1 << 30)
}

#[library_benchmark]
#[bench::get("/v0/entity", "id=key0001234")]
#[bench::escaped("/v0/entity", "id=key%2F0001234")]
#[bench::range("/v0/entities", "start=key0001234&end=key0002345")]
fn routes(path: &str, query: &str) -> HeaderMap {
    let headers = HeaderMap::new();
    for _ in 0..TIMES {
        let head = Head { method: &Method::GET, path, query, headers: &headers };
        let routed = route(black_box(&head), KEY_BYTES_MAX);
        assert!(black_box(routed).is_ok());
    }
    headers
}

#[library_benchmark]
#[bench::get("GET /v0/entity?id=key0001234 HTTP/1.1\r\nHost: localhost\r\n\r\n")]
#[bench::put("PUT /v0/entity?id=key0001234 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nnew")]
#[bench::with_a_token(
    "GET /v0/entity?id=key0001234 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer token\r\n\r\n"
)]
fn plain_requests(request: &str) {
    for _ in 0..TIMES {
        assert!(black_box(plain::read(black_box(request.as_bytes()), request.len())).is_some());
    }
}

#[library_benchmark]
fn records() {
    let stored = [1, 0, 0, 0, 0, 0, 0, 0, 7, 0].iter().chain(&[b'v'; 100]).copied().collect::<Vec<u8>>();
    for _ in 0..TIMES {
        assert!(black_box(Record::decode(black_box(&stored))).is_ok());
    }
}

#[library_benchmark]
#[bench::of_memory(Asked::reads(memory()))]
fn memory_reads(asked: Asked<MemoryEngine>) -> Asked<MemoryEngine> {
    asked.read()
}

#[library_benchmark]
#[bench::one_by_one(Asked::writes(memory(), 1))]
fn memory_writes(asked: Asked<MemoryEngine>) -> Asked<MemoryEngine> {
    asked.write()
}

#[cfg(feature = "rocksdb")]
mod rocksdb {
    use klad_storage::rocksdb::{Options, RocksDbEngine};

    use super::{Asked, library_benchmark};

    /// Left behind in the directory for temporary files: its end would be counted.
    pub(super) fn engine(value_cache_percent: u64) -> RocksDbEngine {
        let options =
            Options { cache_bytes: 64 << 20, memtable_bytes: 32 << 20, value_cache_percent, ..Options::default() };
        let directory = tempfile::tempdir().expect("a directory").keep();
        RocksDbEngine::open(&directory, &options).expect("a new store")
    }

    /// In the cache of values, where there is one, or in a memtable.
    pub(super) fn read_before(value_cache_percent: u64) -> Asked<RocksDbEngine> {
        Asked::reads(engine(value_cache_percent)).read()
    }

    #[library_benchmark]
    #[bench::of_the_cache_of_values(read_before(25))]
    #[bench::of_a_memtable(read_before(0))]
    fn rocksdb_reads(asked: Asked<RocksDbEngine>) -> Asked<RocksDbEngine> {
        asked.read()
    }

    #[library_benchmark]
    #[bench::one_by_one(Asked::writes(engine(25), 1))]
    #[bench::in_batches_of_25(Asked::writes(engine(25), 25))]
    fn rocksdb_writes(asked: Asked<RocksDbEngine>) -> Asked<RocksDbEngine> {
        asked.write()
    }
}

#[cfg(feature = "rocksdb")]
use rocksdb::{rocksdb_reads, rocksdb_writes};

library_benchmark_group!(name = requests, benchmarks = [plain_requests, routes, records]);
library_benchmark_group!(name = memory_engine, benchmarks = [memory_reads, memory_writes]);
#[cfg(feature = "rocksdb")]
library_benchmark_group!(name = rocksdb_engine, benchmarks = [rocksdb_reads, rocksdb_writes]);

#[cfg(feature = "rocksdb")]
main!(library_benchmark_groups = [requests, memory_engine, rocksdb_engine]);
#[cfg(not(feature = "rocksdb"))]
main!(library_benchmark_groups = [requests, memory_engine]);
