//! The memory engine: an ordered map behind one lock. It serves tests, and benchmarks of the server without a disk.
//!
//! Its data is lost when the process ends, so it acknowledges every write with durability `none`. It never waits for a
//! disk, so the workers call it directly. Made by `main`, called by `execution`.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::observation::{Measure, MemoryUse, number};
use crate::operation::{Change, Durability, Effect, Error, Operation, Outcome, Page, ScanStep, Version, Write};
use crate::{Capabilities, ChangeKind, Check, Engine, Observation, PageBuilder, Reply, Result};
use klad_base::clock;
use klad_base::metrics::text::Kind;
use klad_base::sync::RwLock;

/// The memory of an entry beyond the bytes of its key and value: tree node, two reference-counted buffers, rounding by
/// the allocator. Measured with 1,000,000 entries of 20 bytes, put in random order: 179 bytes of resident memory each.
const ENTRY_OVERHEAD_BYTES: u64 = 160;

/// The engine.
pub struct MemoryEngine {
    state: RwLock<State>,
    bytes_max: AtomicU64,
}

struct State {
    map: BTreeMap<Bytes, (Version, Bytes)>,
    /// The total charge of the entries in the map.
    bytes: u64,
    next_version: u64,
}

impl MemoryEngine {
    /// Makes an engine that holds entries up to `bytes_max`, including their overhead.
    #[must_use]
    pub fn new(bytes_max: u64) -> MemoryEngine {
        // Microseconds since 1970: above every version of an earlier process, unless that process wrote more than
        // 1,000,000 times per second.
        let next_version = clock::unix_ms().saturating_mul(1_000).max(1);
        MemoryEngine {
            state: RwLock::new(State { map: BTreeMap::new(), bytes: 0, next_version }),
            bytes_max: AtomicU64::new(bytes_max),
        }
    }

    fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }

    fn lookup(&self, key: &[u8]) -> Outcome {
        match self.state.read().map.get(key) {
            Some((version, value)) => Outcome::Found { version: *version, value: value.clone() },
            None => Outcome::NotFound,
        }
    }

    fn scan_step(&self, step: &ScanStep) -> Page {
        let state = self.state.read();
        let mut page = PageBuilder::new(step);
        let end = step.end.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        // BTreeMap::range panics if the start is after the end; for the engine that is an empty range.
        if step.end.as_ref().is_none_or(|end| step.from < *end) {
            for (key, (_, value)) in state.map.range::<Bytes, _>((Bound::Included(&step.from), end)) {
                if !page.fits(key.len() + value.len()) {
                    return page.stop_before(key, value.len());
                }
                page.add(key.clone(), value.clone());
            }
        }
        page.finish()
    }
}

impl State {
    /// Applies a write, which has one change because the engine does not support batches.
    fn apply(&mut self, write: Write, bytes_max: u64) -> Result {
        let [Change { key, effect, .. }] =
            <[Change; 1]>::try_from(write.changes).expect("batches are rejected before they reach the engine");
        let old = self.map.get(&key).map_or(0, |(_, value)| charge(&key, value));
        let new = match &effect {
            Effect::Put(value) => charge(&key, &value.payload),
            Effect::Delete => 0,
        };
        let bytes = self.bytes - old + new;
        if bytes > bytes_max && new > old {
            return Err(Error::MemoryFull { limit_bytes: bytes_max });
        }
        let version = Version::new(self.next_version);
        self.next_version += 1;
        self.bytes = bytes;
        match effect {
            // Copied, because a value may be a slice of a much larger receive buffer.
            Effect::Put(value) => {
                self.map.insert(Bytes::copy_from_slice(&key), (version, Bytes::copy_from_slice(&value.payload)))
            }
            Effect::Delete => self.map.remove(&key),
        };
        Ok(Outcome::Written { version, durability: Durability::None })
    }
}

fn charge(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64 + ENTRY_OVERHEAD_BYTES
}

impl Engine for MemoryEngine {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn durability(&self, _asked: Durability) -> Durability {
        Durability::None
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { global_order: true, ..Capabilities::default() }
    }

    fn read_cached(&self, key: &[u8]) -> Option<Result> {
        Some(Ok(self.lookup(key)))
    }

    fn execute(&self, operation: Operation, reply: Arc<dyn Reply>) {
        let result = match operation {
            Operation::Get { key } => Ok(self.lookup(&key)),
            Operation::Scan(step) => Ok(Outcome::Page(self.scan_step(&step))),
            Operation::Write(write) => self.state.write().apply(write, self.bytes_max()),
        };
        reply.complete(result);
    }

    fn writable(&self, change: ChangeKind) -> std::result::Result<(), Error> {
        let limit_bytes = self.bytes_max();
        if change == ChangeKind::Put && self.state.read().bytes >= limit_bytes {
            return Err(Error::MemoryFull { limit_bytes });
        }
        Ok(())
    }

    fn set_cache_bytes(&self, bytes: u64) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }

    fn checks(&self) -> Vec<Check> {
        vec![Check::of("memory", self.writable(ChangeKind::Put))]
    }

    /// The current state, not that of the last housekeeping: no thread holds the lock for longer than one operation.
    fn observe(&self) -> Arc<Observation> {
        let (bytes, entries) = {
            let state = self.state.read();
            (state.bytes, state.map.len() as u64)
        };
        let gauge = |name, help, value| Measure::one(name, Kind::Gauge, help, number(value));
        Arc::new(Observation {
            taken: None,
            measures: vec![
                gauge("klad_memory_engine_used_bytes", "Size of all entries, including their overhead.", bytes),
                gauge("klad_memory_engine_limit_bytes", "Maximum size of all entries.", self.bytes_max()),
                gauge("klad_memory_engine_entries", "Number of entries in the memory engine.", entries),
            ],
            memory: vec![MemoryUse { name: "entries", bytes }],
        })
    }
}
