//! The memory engine: an ordered map behind one lock. It serves tests, and benchmarks of the server without a disk.
//!
//! Its data is lost when the process ends, so it acknowledges every write with durability `none`. It never waits for a
//! disk, so the workers call it directly. Made by `main`, called by `execution`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::limits::REMOVED_PER_ATTEMPT_MAX;
use crate::observation::{Measure, MemoryUse, number};
use crate::operation::{
    Attributes, ChangeError, ChangeResult, Durability, Error, Operation, Outcome, Page, RangeRemoval, ScanStep, Value,
    Version,
};
use crate::plan::{self, Current, Plan, Store};
use crate::{Capabilities, ChangeKind, Check, Engine, Observation, PageBuilder, Pending, Reply, Result};
use klad_base::clock;
use klad_base::metrics::text::Kind;
use klad_base::sync::RwLock;

/// The memory of an entry in addition to the bytes of its key and value: tree node, two reference-counted buffers,
/// rounding by the allocator. In a measurement with 1,000,000 entries of 20 bytes, put in random order, each entry took
/// 179 bytes of resident memory.
const ENTRY_OVERHEAD_BYTES: u64 = 160;

/// The memory of an entry's attributes in addition to the bytes of its metadata.
const ATTRIBUTES_OVERHEAD_BYTES: u64 = 128;

/// The number of expired entries that one write removes at most, so that a write stays short. Each entry that expires
/// needed a write before, so the removals keep up. Only a write that finds no space removes more.
const EXPIRED_AT_ONCE: usize = 16;

/// The engine.
pub struct MemoryEngine {
    state: RwLock<State>,
    bytes_max: AtomicU64,
}

struct State {
    map: BTreeMap<Bytes, (Version, Value)>,
    /// The keys of entries that expire, ordered by the time of expiry.
    expiring: BTreeSet<(NonZeroU64, Bytes)>,
    /// The total charge of the entries in the map.
    bytes: u64,
    next_version: u64,
}

impl MemoryEngine {
    /// Makes an engine that holds entries up to `bytes_max`, including their overhead.
    #[must_use]
    pub fn new(bytes_max: u64) -> MemoryEngine {
        // The microseconds since 1970 are above every version of an earlier process, unless that process wrote more
        // than 1,000,000 times per second.
        let next_version = clock::unix_ms().saturating_mul(1_000).max(1);
        MemoryEngine {
            state: RwLock::new(State { map: BTreeMap::new(), expiring: BTreeSet::new(), bytes: 0, next_version }),
            bytes_max: AtomicU64::new(bytes_max),
        }
    }

    fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }

    fn lookup(&self, key: &[u8]) -> Outcome {
        match self.state.read().get(key) {
            Some((version, value)) => Outcome::Found { version: *version, value: value.clone() },
            None => Outcome::NotFound,
        }
    }

    fn lookup_many(&self, keys: &[Bytes], mut bytes_left: usize) -> Outcome {
        let state = self.state.read();
        let read = |key: &Bytes| {
            let found = state.get(key).cloned();
            match bytes_left.checked_sub(found.as_ref().map_or(0, |(_, value)| value.bytes())) {
                Some(left) => {
                    bytes_left = left;
                    ChangeResult::Read(found)
                }
                None => ChangeResult::Failed(ChangeError::NoRoom),
            }
        };
        Outcome::FoundMany(keys.iter().map(read).collect())
    }

    fn scan_step(&self, step: &ScanStep) -> Page {
        let state = self.state.read();
        let page = PageBuilder::new(step, None);
        // `BTreeMap::range` panics if the start is after the end. The engine treats such a range as empty.
        if step.end.as_ref().is_some_and(|end| step.from >= *end) {
            return page.finish();
        }
        let end = step.end.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let entries = state.map.range::<Bytes, _>((Bound::Included(&step.from), end));
        if step.reverse { fill(page, entries.rev(), true) } else { fill(page, entries, false) }
    }
}

/// Fills `page` with `entries` in their order. The step ends early if it has passed many expired entries.
fn fill<'e>(
    mut page: PageBuilder,
    entries: impl Iterator<Item = (&'e Bytes, &'e (Version, Value))>,
    reverse: bool,
) -> Page {
    let (now_ms, mut expired) = (clock::unix_ms(), 0);
    for (key, (version, value)) in entries {
        if value.expired(|| now_ms) {
            expired += 1;
            if expired > REMOVED_PER_ATTEMPT_MAX {
                return page.stop_at(PageBuilder::bound(key, reverse));
            }
            continue;
        }
        let metadata = value.attributes.as_ref().map_or(&[][..], |own| &own.metadata);
        let charge = page.charge(key, &value.payload, metadata);
        if !page.fits(charge) {
            return page.stop_before(key, charge, reverse);
        }
        page.add(key.clone(), *version, value);
    }
    page.finish()
}

impl State {
    fn get(&self, key: &[u8]) -> Option<&(Version, Value)> {
        self.map.get(key).filter(|(_, value)| !value.expired(clock::unix_ms))
    }

    /// Applies a write.
    fn apply(&mut self, pending: &Pending, bytes_max: u64) -> Result {
        self.remove_expired();
        let writes = std::slice::from_ref(pending);
        let first = self.next_version;
        let plan = Plan::new(writes, first, clock::unix_ms, |key, _| {
            Ok(self.map.get(key).map(|(version, value)| Current {
                version: *version,
                value: value.clone(),
                bytes: value.bytes(),
            }))
        });
        while !self.has_space_for(&plan, writes, bytes_max) {
            if self.remove_expired() == 0 {
                return Err(Error::MemoryFull { limit_bytes: bytes_max });
            }
        }
        self.next_version += plan::versions_of(writes) as u64;
        for Store { key, version, value } in plan.stores(writes) {
            self.remove(key);
            if let Some(value) = value {
                self.insert(key, version, value);
            }
        }
        let outcome = plan.outcomes(writes).next().expect("one for each write")?;
        Ok(match outcome {
            Outcome::Written { version, results, .. } => {
                Outcome::Written { version, durability: Durability::None, results }
            }
            other => other,
        })
    }

    /// Whether the map has at most `bytes_max` after `plan`, or does not grow.
    fn has_space_for(&self, plan: &Plan, writes: &[Pending], bytes_max: u64) -> bool {
        // Of several changes of a key, the last one counts.
        let last: HashMap<&Bytes, Option<&Value>> =
            plan.stores(writes).map(|Store { key, value, .. }| (key, value)).collect();
        let (mut old, mut new) = (0, 0);
        for (key, value) in last {
            old += self.map.get(key).map_or(0, |(_, value)| charge(key, value));
            new += value.map_or(0, |value| charge(key, value));
        }
        new <= old || self.bytes - old + new <= bytes_max
    }

    /// Removes all keys of a range.
    fn remove_range(&mut self, RangeRemoval { from, end, .. }: &RangeRemoval) -> Outcome {
        let version = Version::new(self.next_version);
        self.next_version += 1;
        if end.as_ref().is_none_or(|end| from < end) {
            let end = end.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let keys: Vec<Bytes> =
                self.map.range::<Bytes, _>((Bound::Included(from), end)).map(|(key, _)| key.clone()).collect();
            for key in keys {
                self.remove(&key);
            }
        }
        Outcome::Written { version, durability: Durability::None, results: Vec::new() }
    }

    fn insert(&mut self, key: &Bytes, version: Version, value: &Value) {
        // Copied, because a value may be a slice of a much larger receive buffer.
        let key = Bytes::copy_from_slice(key);
        let value = value.compact_copy();
        self.bytes += charge(&key, &value);
        if let Some(expiry) = value.expires_at_ms() {
            self.expiring.insert((expiry, key.clone()));
        }
        self.map.insert(key, (version, value));
    }

    fn remove(&mut self, key: &Bytes) {
        let Some((_, old)) = self.map.remove(key) else { return };
        self.bytes -= charge(key, &old);
        if let Some(expiry) = old.expires_at_ms() {
            self.expiring.remove(&(expiry, key.clone()));
        }
    }

    /// Removes up to [`EXPIRED_AT_ONCE`] of the entries that have expired. Returns the number of removed entries.
    fn remove_expired(&mut self) -> usize {
        if self.expiring.is_empty() {
            return 0;
        }
        let now_ms = clock::unix_ms();
        for removed in 0..EXPIRED_AT_ONCE {
            match self.expiring.first() {
                Some((expiry, key)) if expiry.get() <= now_ms => {
                    let key = key.clone();
                    self.remove(&key);
                }
                _ => return removed,
            }
        }
        EXPIRED_AT_ONCE
    }
}

fn charge(key: &[u8], value: &Value) -> u64 {
    let of = |own: &Attributes| {
        let expiring = if own.expires_at_ms.is_some() { ENTRY_OVERHEAD_BYTES } else { 0 };
        own.metadata.len() as u64 + ATTRIBUTES_OVERHEAD_BYTES + expiring
    };
    let attributes = value.attributes.as_deref().map_or(0, of);
    (key.len() + value.payload.len()) as u64 + ENTRY_OVERHEAD_BYTES + attributes
}

impl Engine for MemoryEngine {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn durability(&self, _asked: Durability) -> Durability {
        Durability::None
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            conditions: true,
            expiry: true,
            metadata: true,
            batches: true,
            range_removals: true,
            global_order: true,
            ..Capabilities::default()
        }
    }

    fn read_cached(&self, key: &[u8]) -> Option<Result> {
        Some(Ok(self.lookup(key)))
    }

    fn execute(&self, operation: Operation, reply: Arc<dyn Reply>) {
        let result = match operation {
            Operation::Get { key, .. } => Ok(self.lookup(&key)),
            Operation::GetMany { keys, bytes_max, .. } => Ok(self.lookup_many(&keys, bytes_max)),
            Operation::Prefetch { .. } => Ok(Outcome::NotFound),
            Operation::Scan(step) => Ok(Outcome::Page(self.scan_step(&step))),
            Operation::Write(write) => {
                self.state.write().apply(&Pending { write, reply: reply.clone() }, self.bytes_max())
            }
            Operation::RemoveRange(removal) => Ok(self.state.write().remove_range(&removal)),
            Operation::Changes(_) => Err(Error::NotSupported { engine: self.name(), what: "changes" }),
        };
        reply.complete(result);
    }

    fn writable(&self, change: ChangeKind) -> std::result::Result<(), Error> {
        let limit_bytes = self.bytes_max();
        if change == ChangeKind::Put && self.state.read().bytes >= limit_bytes {
            // klad rejects writes while the memory is full, so no write would remove the expired entries.
            let mut state = self.state.write();
            while state.bytes >= limit_bytes {
                if state.remove_expired() == 0 {
                    return Err(Error::MemoryFull { limit_bytes });
                }
            }
        }
        Ok(())
    }

    fn set_cache_bytes(&self, bytes: u64) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }

    fn checks(&self) -> Vec<Check> {
        vec![Check::of("memory", self.writable(ChangeKind::Put))]
    }

    /// Observes the current state, not that of the last housekeeping. The call may take the lock, because no thread
    /// holds the lock for longer than one operation.
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

#[cfg(test)]
mod tests;
