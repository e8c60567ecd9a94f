//! The memory engine: an ordered map behind one lock. For tests, and as the yardstick of a server without a disk.
//!
//! Its data ends with the process, so every acknowledgement says `none`, whatever was asked for. It never waits for a
//! disk, so its calls are made on the workers. Made by `main`, called by `execution`.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::observation::{Holding, Measure, number};
use crate::operation::{Change, Durability, Effect, Error, Operation, Outcome, Page, ScanStep, Version, Write};
use crate::{Capabilities, ChangeKind, Check, Engine, Observation, PageBuilder, Reply, Result};
use klad_base::clock;
use klad_base::metrics::text::Kind;
use klad_base::sync::RwLock;

/// What an entry costs beyond the bytes of key and value: tree node, two reference-counted buffers, allocator classes.
/// Measured with 1,000,000 entries of 20 bytes, put in scrambled order: 179 bytes of resident memory each.
const ENTRY_OVERHEAD_BYTES: u64 = 160;

/// The map with its account.
pub struct MemoryEngine {
    state: RwLock<State>,
    bytes_max: AtomicU64,
}

struct State {
    map: BTreeMap<Bytes, (Version, Bytes)>,
    /// Charged for what is in the map.
    bytes: u64,
    next_version: u64,
}

impl MemoryEngine {
    /// Holds keys and values up to `bytes_max`, overhead included.
    #[must_use]
    pub fn new(bytes_max: u64) -> MemoryEngine {
        // Microseconds since 1970: later than every version of an earlier process that wrote less than once a microsecond.
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
        // BTreeMap::range panics where the start lies behind the end; the contract calls that an empty range.
        if step.end.as_ref().is_none_or(|end| step.from < *end) {
            for (key, (_, value)) in state.map.range::<Bytes, _>((Bound::Included(&step.from), end)) {
                if !page.has_room(key.len() + value.len()) {
                    return page.stop_before(key, value.len());
                }
                page.add(key.clone(), value.clone());
            }
        }
        page.finish()
    }
}

impl State {
    /// Of a write with one change: it says that it has no batches.
    fn apply(&mut self, write: Write, bytes_max: u64) -> Result {
        let [Change { key, effect, .. }] =
            <[Change; 1]>::try_from(write.changes).expect("batches are refused before they come here");
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
            // Both are copied: a value may be a slice of a much larger receive buffer.
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

    /// As of now: what is asked for is under a lock that nobody holds for longer than one operation.
    fn observe(&self) -> Arc<Observation> {
        let (bytes, entries) = {
            let state = self.state.read();
            (state.bytes, state.map.len() as u64)
        };
        let gauge = |name, help, value| Measure::one(name, Kind::Gauge, help, number(value));
        Arc::new(Observation {
            taken: None,
            measures: vec![
                gauge("klad_memory_engine_used_bytes", "Charged for the entries of the memory engine.", bytes),
                gauge("klad_memory_engine_limit_bytes", "What they may be charged together.", self.bytes_max()),
                gauge("klad_memory_engine_entries", "Entries of the memory engine.", entries),
            ],
            memory: vec![Holding { name: "entries", bytes }],
        })
    }
}
