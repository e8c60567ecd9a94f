//! Values of keys that were read lately, in front of RocksDB: what is here costs a look into a table instead of a search through
//! memtables, filters, indexes and blocks.
//!
//! ```text
//!   read   ── epoch even, entry there ─▶ the value
//!          └─ else ─▶ RocksDB ─▶ kept, if the epoch is what it was before that read
//!   commit ── epochs odd ─▶ log, memtable ─▶ entries that are there changed ─▶ epochs even again, another ─▶ answers
//! ```
//!
//! A cache in front of a store is a trap: a reader misses and reads the old value, a commit writes the new one and changes the
//! cache's entry, the reader puts the old one in, and it stays. Here every key has a place in `epochs`, and every commit changes the
//! places of its keys before RocksDB is told and again after. What was read is put in only if the place is what it was **before**
//! that read. While a place is odd a commit is under way: nothing is taken from the cache then, because others may have seen the
//! new value in RocksDB already. A commit changes what is there of its keys and puts nothing in that was not: who only writes
//! fills no cache. A few keys share a place, which costs a read that comes in the middle of a commit a way to RocksDB.
//!
//! Called by `rocksdb.rs`, whose commit section lets one commit in at a time.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use quick_cache::{Equivalent, OptionsBuilder, Weighter};

use crate::operation::Version;
use klad_base::sync::Mutex;

/// What an entry costs beside the bytes of key and value: its place in the slab and in the table, three allocations' heads and
/// rounding. Measured with 200,000 entries, each read once: 157 for values of 10 bytes, 163 for 100, 175 for 1,000 (the test below).
const ENTRY_OVERHEAD_BYTES: u64 = 163;

/// An epoch for so many bytes of the cache, or for up to twice as many: at most a sixtieth of the memory.
const BYTES_PER_EPOCH: u64 = 512;

/// A commit of some hundred keys takes some hundred of them, for as long as it lasts; and so many lie in a core's own cache.
const EPOCHS_MAX: u64 = 1 << 16;

/// So that growing one, which happens under its lock, takes no more than some 100 µs.
const SHARD_BYTES_MAX: u64 = 1 << 20;

/// As many as 16 bits of a hash tell apart: 64 GiB of them.
const SHARDS_MAX: u64 = 1 << 16;

/// The cache.
pub(super) struct ValueCache {
    hasher: RandomState,
    epochs: Box<[AtomicU64]>,
    shards: Box<[Mutex<Shard>]>,
}

type Entries = Cache<Key, Entry, Weight, Known, DefaultLifecycle<Key, Entry>>;

struct Shard {
    entries: Entries,
    hits: u64,
    misses: u64,
}

struct Entry {
    version: Version,
    value: Bytes,
}

/// What a commit has made of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made<'v> {
    /// It has a value that may be kept here.
    Value(Version, &'v [u8]),
    /// It has none, or one that is not kept, or nobody knows.
    Other,
}

/// What a read has found.
pub(super) enum Looked {
    /// It need go no further.
    Found(Version, Bytes),
    /// It must; what it finds there may be kept here, if there is a place for it now.
    Unknown(Option<Place>),
}

/// Where a value may be kept, as things were before it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    hash: u64,
    epoch: u64,
}

/// What the cache did so far, and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) entries: u64,
    pub(super) bytes: u64,
    pub(super) capacity_bytes: u64,
}

impl ValueCache {
    /// Holds up to `bytes`, overhead included; `None` for 0.
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

    /// Changes what it may hold. Shards that become smaller begin anew: their slabs would keep what they have grown to.
    pub(super) fn set_bytes(&self, bytes: u64) {
        let each = bytes.saturating_sub(size_of_val(&*self.epochs) as u64) / self.shards.len() as u64;
        for shard in &self.shards {
            let fresh = entries(each);
            let mut shard = shard.lock();
            if each >= shard.entries.capacity() {
                shard.entries.set_capacity(each);
                continue;
            }
            let old = std::mem::replace(&mut shard.entries, fresh);
            drop(shard);
            // Thousands of allocations, with the lock given back.
            drop(old);
        }
    }

    fn epoch(&self, hash: u64) -> &AtomicU64 {
        // A power of two of them; the shard is chosen by other bits.
        &self.epochs[usize::try_from(hash).expect("64 bits") & (self.epochs.len() - 1)]
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        &self.shards[usize::try_from(hash >> 48).expect("16 bits") & (self.shards.len() - 1)]
    }

    /// Asks for a key.
    pub(super) fn look(&self, key: &[u8]) -> Looked {
        let hash = self.hasher.hash_one(key);
        let epoch = self.epoch(hash).load(Ordering::SeqCst);
        let mut shard = self.shard(hash).lock();
        if epoch % 2 == 1 {
            shard.misses += 1;
            return Looked::Unknown(None);
        }
        if let Some(entry) = shard.entries.get(&Asked { hash, key }) {
            let found = Looked::Found(entry.version, entry.value.clone());
            shard.hits += 1;
            return found;
        }
        shard.misses += 1;
        Looked::Unknown(Some(Place { hash, epoch }))
    }

    /// Keeps what was read from RocksDB after `place` was given, unless a commit has come between.
    pub(super) fn keep(&self, place: Place, key: &[u8], version: Version, value: &Bytes) {
        let Place { hash, epoch } = place;
        let entry = Entry { version, value: value.clone() };
        let key = Key { hash, key: key.into() };
        let mut shard = self.shard(hash).lock();
        // A commit that begins after this look finds the entry when it ends.
        if self.epoch(hash).load(Ordering::SeqCst) == epoch {
            shard.entries.insert(key, entry);
        }
    }

    /// A commit of `keys` is about to be begun: nothing of them is taken from here any more. `places` is for [`Self::end`].
    pub(super) fn begin<'k>(&self, keys: impl Iterator<Item = &'k [u8]>, places: &mut Vec<u64>) {
        places.clear();
        for key in keys {
            let hash = self.hasher.hash_one(key);
            // Odd already where two of them share it: one commit is under way at a time.
            self.epoch(hash).fetch_or(1, Ordering::SeqCst);
            places.push(hash);
        }
    }

    /// It is done, or has failed, and nobody was told so far: what is `made` of each of the keys, in their order, is what is found
    /// from now on, and what is read may be kept.
    pub(super) fn end<'k>(&self, places: &[u64], made: impl Iterator<Item = (&'k [u8], Made<'k>)>) {
        for (&hash, (key, made)) in places.iter().zip(made) {
            self.change(hash, key, made);
        }
        for hash in places {
            let epoch = self.epoch(*hash);
            let now = epoch.load(Ordering::SeqCst);
            if now % 2 == 1 {
                epoch.store(now + 1, Ordering::SeqCst);
            }
        }
    }

    fn change(&self, hash: u64, key: &[u8], made: Made<'_>) {
        let asked = Asked { hash, key };
        let mut shard = self.shard(hash).lock();
        // What goes is freed with the lock given back.
        match made {
            Made::Value(version, value) => {
                let Some(mut entry) = shard.entries.peek_mut(&asked) else { return };
                let old = std::mem::replace(&mut *entry, Entry { version, value: Bytes::copy_from_slice(value) });
                drop(entry);
                drop(shard);
                drop(old);
            }
            Made::Other => {
                let old = shard.entries.remove(&asked);
                drop(shard);
                drop(old);
            }
        }
    }

    /// How it does.
    pub(super) fn figures(&self) -> Figures {
        let mut figures = Figures { bytes: size_of_val(&*self.epochs) as u64, ..Figures::default() };
        for shard in &self.shards {
            let shard = shard.lock();
            figures.hits += shard.hits;
            figures.misses += shard.misses;
            figures.entries += shard.entries.len() as u64;
            figures.bytes += shard.entries.weight();
            figures.capacity_bytes += shard.entries.capacity();
        }
        figures.capacity_bytes += size_of_val(&*self.epochs) as u64;
        figures
    }
}

impl Shard {
    fn new(bytes: u64) -> Shard {
        Shard { entries: entries(bytes), hits: 0, misses: 0 }
    }
}

/// Room for so many bytes, with nothing in it. Keys that have gone are not remembered: each would take a place in the slab that
/// nobody is charged for.
fn entries(bytes: u64) -> Entries {
    let count = usize::try_from(bytes / (2 * ENTRY_OVERHEAD_BYTES)).expect("64 bits").max(1);
    let options =
        OptionsBuilder::new().estimated_items_capacity(count).weight_capacity(bytes).ghost_allocation(0.0).build();
    Cache::with_options(options.expect("both are given"), Weight, Known, DefaultLifecycle::default())
}

/// A key with its hash, which is reckoned once.
#[derive(PartialEq, Eq)]
struct Key {
    hash: u64,
    key: Box<[u8]>,
}

/// The same as it is asked for.
struct Asked<'k> {
    hash: u64,
    key: &'k [u8],
}

impl std::hash::Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl std::hash::Hash for Asked<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Equivalent<Key> for Asked<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.hash == key.hash && *self.key == *key.key
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<Key, Entry> for Weight {
    fn weight(&self, key: &Key, entry: &Entry) -> u64 {
        (key.key.len() + entry.value.len()) as u64 + ENTRY_OVERHEAD_BYTES
    }
}

/// Gives back the hash that is there already; it was made with random keys, so nobody can choose keys that collide.
#[derive(Clone, Default)]
struct Known;

struct Given(u64);

impl BuildHasher for Known {
    type Hasher = Given;

    fn build_hasher(&self) -> Given {
        Given(0)
    }
}

impl Hasher for Given {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a key is hashed as one number");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"key";

    fn cache() -> ValueCache {
        ValueCache::new(1 << 20).expect("not 0 bytes")
    }

    fn place(cache: &ValueCache) -> Option<Place> {
        match cache.look(KEY) {
            Looked::Unknown(place) => place,
            Looked::Found(..) => panic!("it is known"),
        }
    }

    fn found(cache: &ValueCache) -> Option<u64> {
        match cache.look(KEY) {
            Looked::Found(version, _) => Some(version.get()),
            Looked::Unknown(_) => None,
        }
    }

    /// Of the key twice and another, and what it has made of the key in the end.
    fn commit(cache: &ValueCache, made: Made<'_>, during: impl FnOnce()) {
        let mut places = Vec::new();
        let keys: [&[u8]; 3] = [KEY, KEY, b"other"];
        cache.begin(keys.into_iter(), &mut places);
        during();
        cache.end(&places, keys.into_iter().zip([Made::Value(Version::new(1000), b"first"), made, made]));
    }

    fn keep(cache: &ValueCache, place: Option<Place>, version: u64) {
        cache.keep(place.expect("there is one"), KEY, Version::new(version), &Bytes::from_static(b"value"));
    }

    #[test]
    fn what_was_read_is_found_and_what_a_commit_has_made_of_it_after_that() {
        let cache = cache();
        keep(&cache, place(&cache), 1);
        assert_eq!(found(&cache), Some(1));
        let changed = Made::Value(Version::new(2), b"a longer value");
        commit(&cache, changed, || assert_eq!(found(&cache), None, "others may have seen the new value"));
        let Looked::Found(version, value) = cache.look(KEY) else { panic!("it was changed") };
        assert_eq!(version, Version::new(2));
        assert_eq!(value, "a longer value");
        assert!(matches!(cache.look(b"other"), Looked::Unknown(_)), "what only was written is not kept");
        commit(&cache, Made::Other, || ());
        assert_eq!(found(&cache), None, "removed, or too large, or failed");
        commit(&cache, changed, || ());
        assert_eq!(found(&cache), None);
        let Figures { hits, misses, entries, .. } = cache.figures();
        assert_eq!((hits, misses, entries), (2, 5, 0));
    }

    #[test]
    fn twin_a_commit_that_leaves_the_entry_as_it_was_is_noticed() {
        let cache = cache();
        keep(&cache, place(&cache), 1);
        let mut places = Vec::new();
        cache.begin([KEY].into_iter(), &mut places);
        cache.end(&places, std::iter::empty());
        assert_eq!(found(&cache), Some(1), "planted: the old value is found after the commit");
    }

    #[test]
    fn what_a_commit_has_changed_is_charged_as_it_is_now() {
        let cache = cache();
        keep(&cache, place(&cache), 1);
        let before = cache.figures().bytes;
        commit(&cache, Made::Value(Version::new(2), &[7; 1000]), || ());
        assert_eq!(cache.figures().bytes, before + 1000 - b"value".len() as u64);
    }

    /// The trap: the old value is read, the new one committed, the old one kept; what is found then? `place_of` says when the
    /// reader looks where it may keep it.
    fn trapped(place_of: fn(&ValueCache, before: Option<Place>) -> Option<Place>) -> Option<u64> {
        let cache = cache();
        let before = place(&cache);
        commit(&cache, Made::Value(Version::new(2), b"new"), || ());
        keep(&cache, place_of(&cache, before), 1);
        found(&cache)
    }

    #[test]
    fn an_old_value_that_comes_late_is_not_found() {
        assert_eq!(trapped(|_, before| before), None);
    }

    #[test]
    fn twin_a_value_kept_as_of_now_is_noticed() {
        assert_eq!(trapped(|cache, _| place(cache)), Some(1), "without the epoch of before, the old value is found");
    }

    #[test]
    fn nothing_that_is_read_during_a_commit_is_kept() {
        let cache = cache();
        commit(&cache, Made::Other, || assert!(place(&cache).is_none()));
        assert!(place(&cache).is_some());
    }

    #[test]
    fn it_holds_no_more_than_it_may() {
        let cache = ValueCache::new(4 << 20).expect("not 0 bytes");
        let fill = || {
            for number in 0..50_000_u32 {
                let key = number.to_le_bytes();
                if let Looked::Unknown(Some(place)) = cache.look(&key) {
                    cache.keep(place, &key, Version::new(1), &Bytes::from(vec![0; 100]));
                }
            }
            cache.figures()
        };
        let all = fill();
        assert!(all.bytes <= 4 << 20 && all.entries > 10_000, "{all:?}");
        cache.set_bytes(1 << 20);
        let less = fill();
        assert!(less.bytes <= 1 << 20 && less.capacity_bytes <= 1 << 20, "{less:?}");
        // One that is larger than a shard is not kept, and harms nobody.
        let place = place(&cache).expect("there is one");
        cache.keep(place, KEY, Version::new(1), &Bytes::from(vec![0; 5 << 20]));
        assert_eq!(found(&cache), None);
        assert!(ValueCache::new(0).is_none());
    }

    /// Bytes that this thread has allocated and not freed.
    #[expect(clippy::cast_precision_loss, reason = "for a ratio")]
    fn held() -> f64 {
        let allocated = tikv_jemalloc_ctl::thread::allocatedp::read().expect("jemalloc counts").get();
        let freed = tikv_jemalloc_ctl::thread::deallocatedp::read().expect("jemalloc counts").get();
        allocated as f64 - freed as f64
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "for a ratio")]
    fn what_an_entry_is_charged_is_what_it_takes() {
        for value_bytes in [10, 100, 1000] {
            let before = held();
            let cache = ValueCache::new(1 << 30).expect("not 0 bytes");
            // Its epochs are charged as they are.
            let empty = held() - before;
            for number in 0..200_000_u32 {
                let key = format!("key{number:07}").into_bytes();
                let Looked::Unknown(Some(place)) = cache.look(&key) else { panic!("it is new") };
                cache.keep(place, &key, Version::new(1), &Bytes::copy_from_slice(&vec![7; value_bytes]));
                // An answer holds it for a while, which costs a counter the first time.
                drop(cache.look(&key));
            }
            let figures = cache.figures();
            assert_eq!(figures.entries, 200_000);
            let charged = figures.bytes as f64 - size_of_val(&*cache.epochs) as f64;
            let taken = held() - before - empty;
            assert!((charged / taken - 1.0).abs() < 0.1, "{value_bytes}: charged {charged}, takes {taken}");
        }
    }

    /// Full, with entries going as others come, and smaller again, it takes what it is charged for; `value_bytes` each.
    fn held_of_a_full_one(value_bytes: usize) -> [f64; 2] {
        let before = held();
        let cache = ValueCache::new(16 << 20).expect("not 0 bytes");
        let churn = |from: u32| {
            for number in from..from + 300_000 {
                let key = number.to_le_bytes();
                if let Looked::Unknown(Some(place)) = cache.look(&key) {
                    cache.keep(place, &key, Version::new(1), &Bytes::copy_from_slice(&vec![7; value_bytes]));
                    drop(cache.look(&key));
                }
            }
            held() - before
        };
        let full = churn(0);
        cache.set_bytes(4 << 20);
        [full, churn(1_000_000)]
    }

    #[test]
    fn a_full_one_takes_what_it_may_hold_and_gives_back_what_it_no_longer_may() {
        for value_bytes in [10, 100, 1000] {
            let [full, smaller] = held_of_a_full_one(value_bytes).map(|bytes| bytes / f64::from(1 << 20));
            // The slab grows by doubling, so up to half of it may be room that nobody has touched.
            assert!(full < 16.0 * 1.3 && smaller < 4.0 * 1.3, "{value_bytes}: {full} MiB, {smaller} MiB");
        }
    }
}
