//! The value cache: recently read values in front of RocksDB. A hit costs one hash table lookup instead of a search
//! through memtables, filters, indexes and blocks.
//!
//! ```text
//!   read   ── epoch is even, entry exists ─▶ the value
//!          └─ else ─▶ RocksDB ─▶ inserted, if the epoch has not changed since before that read
//!   commit ── epochs become odd ─▶ log, memtable ─▶ existing entries updated ─▶ epochs become the next even ─▶ replies
//! ```
//!
//! A simple cache in front of a store can keep a stale value: a reader misses and reads the old value, a commit writes
//! the new value and updates the cache, and then the reader inserts the old value, which stays.
//!
//! The epochs prevent this. Each key belongs to one epoch by its hash. A commit changes the epochs of its keys before
//! it calls RocksDB and again afterwards. A reader inserts a value only if the epoch is the same as before its read of
//! RocksDB.
//!
//! While an epoch is odd, a commit is running. The cache then returns no value of these keys, because other readers
//! may already have seen the new value in RocksDB. A commit updates existing entries and inserts no others, so a
//! client that only writes does not fill the cache. Several keys share an epoch; the cost is that a read during a
//! commit of another key goes to RocksDB.
//!
//! An entry is one allocation: the key, then the record as RocksDB stores it. A hit copies the value, under the lock of
//! its shard. For small values this costs less than a reference counter and attributes in allocations of their own, each
//! of which is another access of main memory. For a GET of 60,000 bytes the copy takes 9 % more CPU time.
//!
//! Called by `rocksdb`, whose commit section runs one commit at a time.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::unsync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use crate::disk::record::{self, Record};
use crate::operation::{Value, Version};
use klad_base::sync::Mutex;

/// The memory of an entry beyond the bytes of key and record: its slots in the slab and in the hash table, and the
/// rounding of an allocation. The test below measures 200,000 entries: 73 bytes for values of 10 bytes, 79 for 100
/// bytes, 75 for 1,000 bytes.
const ENTRY_OVERHEAD_BYTES: u64 = 76;

/// The minimum number of bytes of the cache per epoch. The number of epochs is a power of two, so the real number of
/// bytes may be up to twice as large. Epochs take at most a sixtieth of the memory.
const BYTES_PER_EPOCH: u64 = 512;

/// The maximum number of epochs. A commit of some hundred keys makes only some hundred epochs odd, and all epochs fit
/// in a core's own CPU cache.
const EPOCHS_MAX: u64 = 1 << 16;

/// The cache has about one shard for each of this many bytes, up to [`SHARDS_MAX`]. When the tables of a shard are
/// full, the cache copies them into larger ones under the shard's lock. With shards of this size, the copy takes at
/// most about 100 µs.
const SHARD_BYTES_MAX: u64 = 1 << 20;

/// The maximum number of shards: 16 bits of the hash select one. This many shards hold 64 GiB.
const SHARDS_MAX: u64 = 1 << 16;

/// The value cache.
pub(super) struct ValueCache {
    hasher: RandomState,
    epochs: Box<[AtomicU64]>,
    shards: Box<[Mutex<Shard>]>,
}

/// The entries by the hash of their keys. Two keys with the same hash replace each other.
type Entries = Cache<u64, Entry, Weight, PrecomputedHash, DefaultLifecycle<u64, Entry>>;

struct Shard {
    entries: Entries,
    hits: u64,
    misses: u64,
}

/// A key and its record.
struct Entry {
    bytes: Box<[u8]>,
    key_bytes: u32,
}

impl Entry {
    fn new(key: &[u8], version: Version, value: &Value) -> Entry {
        let mut head = Vec::new();
        record::write_head(version, value, &mut head);
        let bytes = [key, &head, &value.payload].concat().into_boxed_slice();
        Entry { bytes, key_bytes: u32::try_from(key.len()).expect("the limits of keys are far below 4 GiB") }
    }

    /// The record, if this is the entry of `key`.
    fn record_of(&self, key: &[u8]) -> Option<Record<'_>> {
        let (own, record) = self.bytes.split_at(self.key_bytes as usize);
        (own == key).then(|| Record::decode(record).expect("encoded by `new`"))
    }
}

/// How a commit changes the entry of a key, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheUpdate<'v> {
    /// Replaces the value by the new one.
    Replace(Version, &'v Value),
    /// Removes the entry, because the new value is absent, not cacheable, or unknown.
    Remove,
}

/// The result of a lookup.
pub(super) enum Lookup {
    /// The cache has the value.
    Hit(Version, Value),
    /// The caller must read RocksDB. With a snapshot, the caller may insert the value that it finds. Without a
    /// snapshot, a commit is running.
    Miss(Option<EpochSnapshot>),
}

/// The epoch of a key before a read of RocksDB.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpochSnapshot {
    hash: u64,
    epoch: u64,
}

/// Statistics of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stats {
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) entries: u64,
    pub(super) bytes: u64,
    pub(super) capacity_bytes: u64,
}

impl ValueCache {
    /// Makes a cache of up to `bytes`, overhead included; `None` for 0.
    pub(super) fn new(bytes: u64) -> Option<ValueCache> {
        if bytes == 0 {
            return None;
        }
        let epochs = 1 << (bytes / BYTES_PER_EPOCH).clamp(1, EPOCHS_MAX).ilog2();
        let shards = (bytes / SHARD_BYTES_MAX).clamp(1, SHARDS_MAX).next_power_of_two();
        let rest = bytes.saturating_sub(epochs * size_of::<AtomicU64>() as u64);
        let shard = |_| Mutex::new(Shard::new(rest / shards));
        Some(ValueCache {
            hasher: RandomState::new(),
            epochs: (0..epochs).map(|_| AtomicU64::new(0)).collect(),
            shards: (0..shards).map(shard).collect(),
        })
    }

    /// Changes the capacity. A shard that becomes smaller is emptied, because its memory would otherwise not shrink.
    pub(super) fn set_bytes(&self, bytes: u64) {
        let shard_bytes = bytes.saturating_sub(size_of_val(&*self.epochs) as u64) / self.shards.len() as u64;
        for shard in &self.shards {
            let empty = new_entries(shard_bytes);
            let mut shard = shard.lock();
            if shard_bytes >= shard.entries.capacity() {
                shard.entries.set_capacity(shard_bytes);
                continue;
            }
            let old = std::mem::replace(&mut shard.entries, empty);
            drop(shard);
            // Dropping `old` frees thousands of allocations, so the lock is released first.
            drop(old);
        }
    }

    fn epoch(&self, hash: u64) -> &AtomicU64 {
        // The number of epochs is a power of two. Other bits of the hash select the shard.
        &self.epochs[usize::try_from(hash).expect("64 bits") & (self.epochs.len() - 1)]
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        &self.shards[usize::try_from(hash >> 48).expect("16 bits") & (self.shards.len() - 1)]
    }

    /// Looks a key up.
    pub(super) fn lookup(&self, key: &[u8]) -> Lookup {
        let hash = self.hasher.hash_one(key);
        let epoch = self.epoch(hash).load(Ordering::SeqCst);
        let mut shard = self.shard(hash).lock();
        if epoch % 2 == 1 {
            shard.misses += 1;
            return Lookup::Miss(None);
        }
        if let Some(record) = shard.entries.get(&hash).and_then(|entry| entry.record_of(key)) {
            let hit = Lookup::Hit(record.version, record.value());
            shard.hits += 1;
            return hit;
        }
        shard.misses += 1;
        Lookup::Miss(Some(EpochSnapshot { hash, epoch }))
    }

    /// Inserts a value that was read from RocksDB after `snapshot` was taken, unless a commit has run since.
    pub(super) fn insert(&self, snapshot: EpochSnapshot, key: &[u8], version: Version, value: &Value) {
        let EpochSnapshot { hash, epoch } = snapshot;
        let entry = Entry::new(key, version, value);
        let mut shard = self.shard(hash).lock();
        // A commit that begins after this check updates the entry at its end.
        if self.epoch(hash).load(Ordering::SeqCst) == epoch {
            shard.entries.insert(hash, entry);
        }
    }

    /// Begins a commit of `keys`: until [`Self::end_commit`] the cache returns none of them. Stores the hashes of the
    /// keys in `hashes` for `end_commit`.
    pub(super) fn begin_commit<'k>(&self, keys: impl Iterator<Item = &'k [u8]>, hashes: &mut Vec<u64>) {
        hashes.clear();
        for key in keys {
            let hash = self.hasher.hash_one(key);
            // The epoch may be odd already because another key of this commit shares it. No other commit is running.
            self.epoch(hash).fetch_or(1, Ordering::SeqCst);
            hashes.push(hash);
        }
    }

    /// Ends a commit that has succeeded or failed, before any reply: applies the `updates` of its keys, in the order of
    /// `hashes`.
    pub(super) fn end_commit<'k>(&self, hashes: &[u64], updates: impl Iterator<Item = (&'k [u8], CacheUpdate<'k>)>) {
        for (&hash, (key, update)) in hashes.iter().zip(updates) {
            self.update(hash, key, update);
        }
        for hash in hashes {
            let epoch = self.epoch(*hash);
            let now = epoch.load(Ordering::SeqCst);
            if now % 2 == 1 {
                epoch.store(now + 1, Ordering::SeqCst);
            }
        }
    }

    fn update(&self, hash: u64, key: &[u8], update: CacheUpdate<'_>) {
        let mut shard = self.shard(hash).lock();
        // The old value is freed after the lock is released.
        match update {
            CacheUpdate::Replace(version, value) => {
                let Some(mut entry) = shard.entries.peek_mut(&hash) else { return };
                let old = std::mem::replace(&mut *entry, Entry::new(key, version, value));
                drop(entry);
                drop(shard);
                drop(old);
            }
            CacheUpdate::Remove => {
                let old = shard.entries.remove(&hash);
                drop(shard);
                drop(old);
            }
        }
    }

    /// Removes all entries. While `write` runs, the cache returns no value. Called in the commit section.
    pub(super) fn clear<T>(&self, write: impl FnOnce() -> T) -> T {
        for epoch in &self.epochs {
            epoch.fetch_or(1, Ordering::SeqCst);
        }
        let written = write();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let empty = new_entries(shard.entries.capacity());
            let old = std::mem::replace(&mut shard.entries, empty);
            drop(shard);
            // Dropping `old` frees thousands of allocations, so the lock is released first.
            drop(old);
        }
        for epoch in &self.epochs {
            epoch.fetch_add(1, Ordering::SeqCst);
        }
        written
    }

    /// Returns the statistics of all shards together.
    pub(super) fn stats(&self) -> Stats {
        let epoch_bytes = size_of_val(&*self.epochs) as u64;
        let mut stats = Stats { bytes: epoch_bytes, capacity_bytes: epoch_bytes, ..Stats::default() };
        for shard in &self.shards {
            let shard = shard.lock();
            stats.hits += shard.hits;
            stats.misses += shard.misses;
            stats.entries += shard.entries.len() as u64;
            stats.bytes += shard.entries.weight();
            stats.capacity_bytes += shard.entries.capacity();
        }
        stats
    }
}

impl Shard {
    fn new(bytes: u64) -> Shard {
        Shard { entries: new_entries(bytes), hits: 0, misses: 0 }
    }
}

/// Makes an empty cache of `bytes`. It has no ghost entries (keys that were evicted), because they would take slots in
/// the slab that are not charged.
fn new_entries(bytes: u64) -> Entries {
    let count = usize::try_from(bytes / (2 * ENTRY_OVERHEAD_BYTES)).expect("64 bits").max(1);
    let options =
        OptionsBuilder::new().estimated_items_capacity(count).weight_capacity(bytes).ghost_allocation(0.0).build();
    Cache::with_options(options.expect("both are given"), Weight, PrecomputedHash, DefaultLifecycle::default())
}

#[derive(Clone)]
struct Weight;

impl Weighter<u64, Entry> for Weight {
    fn weight(&self, _: &u64, entry: &Entry) -> u64 {
        entry.bytes.len() as u64 + ENTRY_OVERHEAD_BYTES
    }
}

/// Returns its input, which is already a hash. That hash has a random seed, so clients cannot choose keys that collide.
#[derive(Clone, Default)]
struct PrecomputedHash;

struct PrecomputedHasher(u64);

impl BuildHasher for PrecomputedHash {
    type Hasher = PrecomputedHasher;

    fn build_hasher(&self) -> PrecomputedHasher {
        PrecomputedHasher(0)
    }
}

impl Hasher for PrecomputedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a hash is one number");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const KEY: &[u8] = b"key";

    fn cache() -> ValueCache {
        ValueCache::new(1 << 20).expect("not 0 bytes")
    }

    fn value(payload: &'static str) -> Value {
        Bytes::from_static(payload.as_bytes()).into()
    }

    fn snapshot(cache: &ValueCache) -> Option<EpochSnapshot> {
        match cache.lookup(KEY) {
            Lookup::Miss(snapshot) => snapshot,
            Lookup::Hit(..) => panic!("the cache has the key"),
        }
    }

    fn cached_version(cache: &ValueCache) -> Option<u64> {
        match cache.lookup(KEY) {
            Lookup::Hit(version, _) => Some(version.get()),
            Lookup::Miss(_) => None,
        }
    }

    /// Commits two changes of the key and one of another. `update` is that of the key's second change.
    fn commit(cache: &ValueCache, update: CacheUpdate<'_>, during: impl FnOnce()) {
        let mut hashes = Vec::new();
        let keys: [&[u8]; 3] = [KEY, KEY, b"other"];
        let value = value("first");
        let first = CacheUpdate::Replace(Version::new(1000), &value);
        cache.begin_commit(keys.into_iter(), &mut hashes);
        during();
        cache.end_commit(&hashes, keys.into_iter().zip([first, update, update]));
    }

    fn insert(cache: &ValueCache, snapshot: Option<EpochSnapshot>, version: u64) {
        cache.insert(snapshot.expect("no commit is running"), KEY, Version::new(version), &value("value"));
    }

    #[test]
    fn a_lookup_finds_the_inserted_value_and_then_the_committed_one() {
        let cache = cache();
        insert(&cache, snapshot(&cache), 1);
        assert_eq!(cached_version(&cache), Some(1));
        let longer = value("a longer value");
        let changed = CacheUpdate::Replace(Version::new(2), &longer);
        commit(&cache, changed, || assert_eq!(cached_version(&cache), None, "others may have seen the new value"));
        let Lookup::Hit(version, found) = cache.lookup(KEY) else { panic!("the commit has updated it") };
        assert_eq!(version, Version::new(2));
        assert_eq!(found, longer);
        assert!(matches!(cache.lookup(b"other"), Lookup::Miss(_)), "a commit inserts no entry");
        commit(&cache, CacheUpdate::Remove, || ());
        assert_eq!(cached_version(&cache), None, "removed, or too large, or failed");
        commit(&cache, changed, || ());
        assert_eq!(cached_version(&cache), None);
        let Stats { hits, misses, entries, .. } = cache.stats();
        assert_eq!((hits, misses, entries), (2, 5, 0));
    }

    #[test]
    fn twin_a_commit_without_an_update_leaves_a_stale_value() {
        let cache = cache();
        insert(&cache, snapshot(&cache), 1);
        let mut hashes = Vec::new();
        cache.begin_commit([KEY].into_iter(), &mut hashes);
        cache.end_commit(&hashes, std::iter::empty());
        assert_eq!(cached_version(&cache), Some(1), "planted: the old value is found after the commit");
    }

    #[test]
    fn an_updated_entry_is_charged_with_its_new_size() {
        let cache = cache();
        insert(&cache, snapshot(&cache), 1);
        let before = cache.stats().bytes;
        let thousand = Value::from(Bytes::from(vec![7; 1000]));
        commit(&cache, CacheUpdate::Replace(Version::new(2), &thousand), || ());
        assert_eq!(cache.stats().bytes, before + 1000 - b"value".len() as u64);
    }

    /// A reader reads the old value, a commit writes the new one, and then the reader inserts the old one. Returns the
    /// version that the cache contains afterwards. `choose` returns the snapshot that the reader uses.
    fn insert_after_commit(
        choose: fn(&ValueCache, before: Option<EpochSnapshot>) -> Option<EpochSnapshot>,
    ) -> Option<u64> {
        let cache = cache();
        let before = snapshot(&cache);
        commit(&cache, CacheUpdate::Replace(Version::new(2), &value("new")), || ());
        insert(&cache, choose(&cache, before), 1);
        cached_version(&cache)
    }

    #[test]
    fn a_value_that_was_read_before_a_commit_is_not_inserted_after_it() {
        assert_eq!(insert_after_commit(|_, before| before), None);
    }

    #[test]
    fn twin_a_snapshot_taken_after_the_commit_lets_a_stale_value_in() {
        assert_eq!(insert_after_commit(|cache, _| snapshot(cache)), Some(1), "planted: the old value is found");
    }

    #[test]
    fn a_value_that_was_read_during_a_commit_is_not_inserted() {
        let cache = cache();
        commit(&cache, CacheUpdate::Remove, || assert!(snapshot(&cache).is_none()));
        assert!(snapshot(&cache).is_some());
    }

    #[test]
    fn the_cache_stays_within_its_capacity() {
        let cache = ValueCache::new(4 << 20).expect("not 0 bytes");
        let fill = || {
            for number in 0..50_000_u32 {
                let key = number.to_le_bytes();
                if let Lookup::Miss(Some(snapshot)) = cache.lookup(&key) {
                    cache.insert(snapshot, &key, Version::new(1), &Bytes::from(vec![0; 100]).into());
                }
            }
            cache.stats()
        };
        let all = fill();
        assert!(all.bytes <= 4 << 20 && all.entries > 10_000, "{all:?}");
        cache.set_bytes(1 << 20);
        let less = fill();
        assert!(less.bytes <= 1 << 20 && less.capacity_bytes <= 1 << 20, "{less:?}");
        // A value larger than a shard is not inserted.
        let snapshot = snapshot(&cache).expect("no commit is running");
        cache.insert(snapshot, KEY, Version::new(1), &Bytes::from(vec![0; 5 << 20]).into());
        assert_eq!(cached_version(&cache), None);
        assert!(ValueCache::new(0).is_none());
    }

    /// The number of bytes that this thread has allocated and not freed.
    #[expect(clippy::cast_precision_loss, reason = "for a ratio")]
    fn allocated_bytes() -> f64 {
        let allocated = tikv_jemalloc_ctl::thread::allocatedp::read().expect("jemalloc counts").get();
        let freed = tikv_jemalloc_ctl::thread::deallocatedp::read().expect("jemalloc counts").get();
        allocated as f64 - freed as f64
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "for a ratio")]
    fn the_charge_of_an_entry_is_its_memory() {
        for value_bytes in [10, 100, 1000] {
            let before = allocated_bytes();
            let cache = ValueCache::new(1 << 30).expect("not 0 bytes");
            // The epochs are charged separately.
            let empty = allocated_bytes() - before;
            for number in 0..200_000_u32 {
                let key = format!("key{number:07}").into_bytes();
                let Lookup::Miss(Some(snapshot)) = cache.lookup(&key) else { panic!("the key is new") };
                cache.insert(snapshot, &key, Version::new(1), &Bytes::from(vec![7; value_bytes]).into());
            }
            let stats = cache.stats();
            assert_eq!(stats.entries, 200_000);
            let charged = stats.bytes as f64 - size_of_val(&*cache.epochs) as f64;
            let taken = allocated_bytes() - before - empty;
            assert!((charged / taken - 1.0).abs() < 0.1, "{value_bytes}: charged {charged}, takes {taken}");
        }
    }

    /// Returns the memory of a full cache after many evictions, and after its capacity was reduced. Each value has
    /// `value_bytes`.
    fn memory_full_and_reduced(value_bytes: usize) -> [f64; 2] {
        let before = allocated_bytes();
        let cache = ValueCache::new(16 << 20).expect("not 0 bytes");
        let churn = |from: u32| {
            for number in from..from + 300_000 {
                let key = number.to_le_bytes();
                if let Lookup::Miss(Some(snapshot)) = cache.lookup(&key) {
                    cache.insert(snapshot, &key, Version::new(1), &Bytes::from(vec![7; value_bytes]).into());
                    drop(cache.lookup(&key));
                }
            }
            allocated_bytes() - before
        };
        let full = churn(0);
        cache.set_bytes(4 << 20);
        [full, churn(1_000_000)]
    }

    #[test]
    fn memory_follows_the_capacity() {
        for value_bytes in [10, 100, 1000] {
            let [full, reduced] = memory_full_and_reduced(value_bytes).map(|bytes| bytes / f64::from(1 << 20));
            // The slab grows by doubling, so up to half of it may be unused.
            assert!(full < 16.0 * 1.3 && reduced < 4.0 * 1.3, "{value_bytes}: {full} MiB, {reduced} MiB");
        }
    }
}
