//! Admission: a limited number of slots for operations, for ranges and for change feeds, and the body budget, which is
//! a number of bytes. Dropping a slot or permit gives it back.
//!
//! `execution` calls this; `http` uses the body budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{
    BODY_BUDGET_RETRY, BODY_BUDGET_SHORTAGE_LASTS, BODY_BUDGET_SHORTAGE_LIFETIME, BODY_BUDGET_UNIT_BYTES,
    LARGE_BODY_LEAVES_PARTS, SLOTS_CEILING, SMALL_BODY_BUDGET_PARTS, SMALL_BODY_BYTES,
};
use klad_base::clock;
use klad_base::sync::Mutex;

/// A limited number of slots, and the total length of the keys of the operations in them.
#[derive(Debug)]
pub struct Slots {
    /// The number of taken slots in the lower [`TAKEN_BITS`] bits, and the bytes of keys in the bits above. One word,
    /// so that counting the bytes costs nothing.
    taken: AtomicU64,
    limit: AtomicUsize,
}

/// The number of bits that count slots: enough for [`SLOTS_CEILING`]. The other 33 bits count up to 8 GiB of keys. With
/// more, only the count of bytes would be wrong.
const TAKEN_BITS: u32 = 31;

const _: () = assert!(SLOTS_CEILING < 1 << TAKEN_BITS);

/// One slot, or the slots of one operation with many keys. Dropping this frees the slots.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    /// What this slot has added to `taken`.
    added: u64,
}

impl Slots {
    /// Creates `limit` free slots (at least 1).
    #[must_use]
    pub fn new(limit: usize) -> Arc<Slots> {
        assert!(limit >= 1, "at least one slot is needed");
        Arc::new(Slots { taken: AtomicU64::new(0), limit: AtomicUsize::new(limit) })
    }

    /// Takes a slot for an operation whose key has `key_bytes` bytes, if one is free.
    #[must_use]
    pub fn take(self: &Arc<Slots>, key_bytes: usize) -> Option<Slot> {
        self.take_many(1, key_bytes)
    }

    /// Takes `wanted` slots (at least 1) for an operation whose keys have `key_bytes` bytes together, if so many are
    /// free. If there are fewer slots in all, the operation takes all of them.
    #[must_use]
    pub fn take_many(self: &Arc<Slots>, wanted: usize, key_bytes: usize) -> Option<Slot> {
        let limit = self.limit();
        let wanted = wanted.min(limit);
        let added = wanted as u64 + ((key_bytes as u64) << TAKEN_BITS);
        let more = |taken: u64| (count(taken) + wanted <= limit).then_some(taken.wrapping_add(added));
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).ok()?;
        Some(Slot { slots: self.clone(), added })
    }

    /// The number of taken slots.
    #[must_use]
    pub fn taken(&self) -> usize {
        count(self.taken.load(Ordering::Relaxed))
    }

    /// The number of taken slots, and the bytes of their keys.
    #[must_use]
    pub fn figures(&self) -> (usize, u64) {
        let taken = self.taken.load(Ordering::Relaxed);
        (count(taken), taken >> TAKEN_BITS)
    }

    /// The number of slots.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the number of slots to `limit` (at least 1). If more slots are taken, none is free until enough have
    /// been given back.
    pub fn set_limit(&self, limit: usize) {
        assert!(limit >= 1, "at least one slot is needed");
        self.limit.store(limit, Ordering::Relaxed);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let before = self.slots.taken.fetch_sub(self.added, Ordering::AcqRel);
        assert!(count(before) >= 1, "a slot was given back twice");
    }
}

fn count(taken: u64) -> usize {
    usize::try_from(taken & ((1 << TAKEN_BITS) - 1)).expect("the lower bits of a word")
}

/// The memory budget for request bodies and large answers, in units of [`BODY_BUDGET_UNIT_BYTES`].
///
/// ```text
///   ├──────────── larger than SMALL_BODY_BYTES, together ────────────┼── only small ────┤
///   0                                                               7/8                 8/8
/// ```
///
/// A body or answer that is not small, and that klad may reject, must also leave bytes free: as many as it takes, but
/// at most one part in [`LARGE_BODY_LEAVES_PARTS`] of the budget. So when the budget runs out, klad rejects the largest
/// requests first, while smaller ones still fit.
#[derive(Debug)]
pub struct BodyBudget {
    all: Share,
    /// The part of `all` for bodies and answers that are not small.
    large: Share,
    shortage: Mutex<Option<Shortage>>,
}

#[derive(Debug)]
struct Share {
    free: Arc<Semaphore>,
    units: u32,
}

/// The used bytes and the limit of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareFigures {
    /// Bytes in use.
    pub used_bytes: u64,
    /// The size of the share, bytes.
    pub limit_bytes: u64,
}

/// Bytes that were taken from the budget. Dropping the permit gives them back.
#[derive(Debug)]
pub struct BodyPermit {
    // `large` is taken before `all` and dropped after it, so that a free part of the large share is also free in `all`.
    all: OwnedSemaphorePermit,
    large: Option<OwnedSemaphorePermit>,
}

/// The bytes that were missing when a request was rejected. The sweeps end slow requests until so many bytes are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The missing bytes, less those that sweeps have freed since.
    pub bytes: u64,
    /// The bytes that the request asked for.
    wanted_bytes: u64,
    /// When the first of several rejections in close succession happened.
    since: Instant,
    /// When the last of these rejections happened.
    noted: Instant,
}

impl BodyBudget {
    /// Creates a budget of `bytes`, all free.
    ///
    /// # Panics
    /// If `bytes` is 4 TiB or more. No `--memory` gives so large a body budget.
    #[must_use]
    pub fn new(bytes: u64) -> BodyBudget {
        let units = u32::try_from(bytes / BODY_BUDGET_UNIT_BYTES).expect("the budget is far below 4 TiB");
        let small_units = u32::try_from(u64::from(units) / SMALL_BODY_BUDGET_PARTS).expect("a part of it");
        BodyBudget { all: Share::new(units), large: Share::new(units - small_units), shortage: Mutex::default() }
    }

    /// The smallest budget into which a body of `body_bytes` fits.
    #[must_use]
    pub fn bytes_for(body_bytes: u64) -> u64 {
        let units = body_bytes.div_ceil(BODY_BUDGET_UNIT_BYTES);
        // Of this many parts, one must stay free, and some are reserved for small bodies.
        let parts = LARGE_BODY_LEAVES_PARTS;
        (units * parts).div_ceil(parts - 1 - parts / SMALL_BODY_BUDGET_PARTS) * BODY_BUDGET_UNIT_BYTES
    }

    /// Whether a permit for `bytes` is free now.
    #[must_use]
    pub fn has_free(&self, bytes: u64) -> bool {
        self.free_bytes(bytes) >= self.needed_bytes(bytes)
    }

    /// Takes a permit for `bytes` if the share of the budget for this size has these bytes free, and also the bytes
    /// that the permit must leave free. Otherwise returns `None`. If `bytes` fit into the share at all, it also notes
    /// the shortage, so that workers look for slow requests to end.
    #[must_use]
    pub fn try_take(&self, bytes: u64) -> Option<BodyPermit> {
        let units = self.share(bytes).units_of(bytes)?;
        let taken = if self.has_free(bytes) { self.take_now(bytes, units) } else { None };
        if taken.is_none() {
            self.note_shortage(bytes);
        }
        taken
    }

    fn take_now(&self, bytes: u64, units: u32) -> Option<BodyPermit> {
        let large = if is_small(bytes) { None } else { Some(self.large.try_take(units)?) };
        Some(BodyPermit { all: self.all.try_take(units)?, large })
    }

    /// Waits until `bytes` are free, and takes a permit for them. Ranges call this, because a range must not be
    /// rejected at once. If `bytes` is more than the large share, takes the whole large share.
    pub async fn take(&self, bytes: u64) -> BodyPermit {
        let units = self.share(bytes).units_of(bytes).unwrap_or(self.large.units);
        loop {
            if let Some(taken) = self.take_now(bytes, units) {
                return taken;
            }
            self.note_shortage(bytes);
            // Retries, because a waiter in the semaphore's queue would take every free unit until it has enough.
            tokio::time::sleep(BODY_BUDGET_RETRY).await;
        }
    }

    /// The size of the budget in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.all.units) * BODY_BUDGET_UNIT_BYTES
    }

    /// The figures of the whole budget.
    #[must_use]
    pub fn all(&self) -> ShareFigures {
        self.all.figures()
    }

    /// The figures of the share for all but small bodies.
    #[must_use]
    pub fn large(&self) -> ShareFigures {
        self.large.figures()
    }

    /// Takes the noted shortage, if it is not older than [`BODY_BUDGET_SHORTAGE_LIFETIME`] and its request would still
    /// be rejected. The sweeps of other workers do not see the shortage until [`BodyBudget::put_back`].
    #[must_use]
    pub fn take_shortage(&self) -> Option<Shortage> {
        let lacks =
            |shortage: &Shortage| self.free_bytes(shortage.wanted_bytes) < self.needed_bytes(shortage.wanted_bytes);
        self.shortage.lock().take().filter(|shortage| shortage.is_fresh() && lacks(shortage))
    }

    /// Notes the rest of a shortage for the sweeps of other workers, after the sweep that took it has freed
    /// `freed_bytes`.
    pub fn put_back(&self, shortage: Shortage, freed_bytes: u64) {
        let bytes = shortage.bytes.saturating_sub(freed_bytes);
        let mut noted = self.shortage.lock();
        if bytes > 0 && noted.is_none_or(|noted| noted.bytes < bytes) {
            *noted = Some(Shortage { bytes, ..shortage });
        }
    }

    /// Notes the largest of the recent shortages, not their sum. Rejected clients try again, and a sum that counts
    /// their retries would end all other requests.
    fn note_shortage(&self, wanted_bytes: u64) {
        let bytes = self.needed_bytes(wanted_bytes).saturating_sub(self.free_bytes(wanted_bytes));
        let now = clock::now();
        let mut noted = self.shortage.lock();
        let fresh = noted.filter(Shortage::is_fresh);
        if fresh.is_none_or(|fresh| fresh.bytes <= bytes) {
            let since = fresh.map_or(now, |fresh| fresh.since);
            *noted = Some(Shortage { bytes, wanted_bytes, since, noted: now });
        }
    }

    /// The bytes that must be free for a permit of `bytes`, including those that must stay free afterwards.
    fn needed_bytes(&self, bytes: u64) -> u64 {
        let leaves = if is_small(bytes) { 0 } else { bytes.min(self.bytes() / LARGE_BODY_LEAVES_PARTS) };
        bytes.saturating_add(leaves)
    }

    /// The free bytes that a request for `bytes` may use.
    fn free_bytes(&self, bytes: u64) -> u64 {
        self.share(bytes).free_bytes().min(self.all.free_bytes())
    }

    fn share(&self, bytes: u64) -> &Share {
        if is_small(bytes) { &self.all } else { &self.large }
    }
}

fn is_small(bytes: u64) -> bool {
    bytes <= SMALL_BODY_BYTES
}

impl Share {
    fn new(units: u32) -> Share {
        Share { free: Arc::new(Semaphore::new(units as usize)), units }
    }

    fn try_take(&self, units: u32) -> Option<OwnedSemaphorePermit> {
        self.free.clone().try_acquire_many_owned(units).ok()
    }

    fn free_bytes(&self) -> u64 {
        self.free.available_permits() as u64 * BODY_BUDGET_UNIT_BYTES
    }

    fn figures(&self) -> ShareFigures {
        let limit_bytes = u64::from(self.units) * BODY_BUDGET_UNIT_BYTES;
        ShareFigures { used_bytes: limit_bytes.saturating_sub(self.free_bytes()), limit_bytes }
    }

    fn units_of(&self, bytes: u64) -> Option<u32> {
        u32::try_from(bytes.div_ceil(BODY_BUDGET_UNIT_BYTES)).ok().filter(|units| *units <= self.units)
    }
}

impl Shortage {
    /// Whether the shortage has lasted so long that every worker has looked for very slow requests.
    #[must_use]
    pub fn has_lasted(&self) -> bool {
        clock::now() - self.since >= BODY_BUDGET_SHORTAGE_LASTS
    }

    fn is_fresh(&self) -> bool {
        clock::now() - self.noted < BODY_BUDGET_SHORTAGE_LIFETIME
    }
}

impl BodyPermit {
    /// The number of bytes of the permit.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.all.num_permits() as u64 * BODY_BUDGET_UNIT_BYTES
    }

    /// Gives back what the permit has beyond `bytes`.
    pub fn shrink(&mut self, bytes: u64) {
        let needed = usize::try_from(bytes.div_ceil(BODY_BUDGET_UNIT_BYTES)).unwrap_or(usize::MAX);
        let Some(rest) = self.all.num_permits().checked_sub(needed) else { return };
        drop(self.all.split(rest));
        match &mut self.large {
            large if is_small(bytes) => *large = None,
            Some(large) => drop(large.split(rest)),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_end_at_their_limit_and_come_back() {
        let slots = Slots::new(2);
        let first = slots.take(0).expect("free");
        let _second = slots.take(0).expect("free");
        assert!(slots.take(0).is_none());
        drop(first);
        assert!(slots.take(0).is_some());
    }

    #[test]
    fn the_bytes_of_keys_are_counted_exactly() {
        let slots = Slots::new(3);
        let long = slots.take(16 << 10).expect("free");
        let _short = slots.take(1).expect("free");
        let _none = slots.take(0).expect("free");
        assert_eq!(slots.figures(), (3, (16 << 10) + 1));
        assert!(slots.take(7).is_none(), "the bytes do not count as places");
        drop(long);
        assert_eq!(slots.figures(), (2, 1));
    }

    #[test]
    fn a_limit_may_change_while_slots_are_taken() {
        let slots = Slots::new(2);
        let (first, second) = (slots.take(0).expect("free"), slots.take(0).expect("free"));
        slots.set_limit(1);
        drop(first);
        assert!(slots.take(0).is_none(), "the second fills the one place that is left");
        slots.set_limit(3);
        let third = slots.take(0).expect("free");
        let fourth = slots.take(0).expect("free");
        assert!(slots.take(0).is_none() && slots.taken() == 3);
        drop((second, third, fourth));
        assert_eq!(slots.taken(), 0);
    }

    #[test]
    fn permits_are_counted_in_units_and_shrink() {
        let budget = BodyBudget::new(16 << 10);
        let mut most = budget.try_take((13 << 10) + 1).expect("it just fits");
        assert!(budget.try_take(5 << 10).is_none());
        most.shrink((5 << 10) + 1);
        assert_eq!(most.bytes(), 6 << 10);
        assert_eq!(budget.all(), ShareFigures { used_bytes: 6 << 10, limit_bytes: 16 << 10 });
        assert_eq!(budget.large(), ShareFigures { used_bytes: 6 << 10, limit_bytes: 14 << 10 });
        // A large body must leave a 64th free.
        assert!(budget.try_take((8 << 10) - 256).is_some());
        assert!(budget.try_take((8 << 10) - 255).is_none());
        drop(most);
        assert!(budget.try_take((14 << 10) - 256).is_some());
        assert!(budget.try_take((14 << 10) + 1).is_none(), "more than there is at all");
    }

    #[test]
    fn large_requests_leave_an_eighth_to_small_ones() {
        let budget = BodyBudget::new(64 << 10);
        let _large = budget.try_take(55 << 10).expect("seven eighths, less what it leaves");
        assert!(budget.try_take(SMALL_BODY_BYTES + 1).is_none());
        let first = budget.try_take(SMALL_BODY_BYTES).expect("small");
        let _second = budget.try_take(SMALL_BODY_BYTES).expect("small");
        let _third = budget.try_take(1 << 10).expect("small");
        assert!(budget.try_take(1).is_none());
        drop(first);
        assert!(budget.try_take(SMALL_BODY_BYTES + 1).is_none());
        assert!(budget.try_take(1).is_some());
    }

    #[test]
    fn a_permit_that_shrinks_to_a_small_one_leaves_the_large_share() {
        let budget = BodyBudget::new(64 << 10);
        let mut unknown = budget.try_take(55 << 10).expect("seven eighths, less what it leaves");
        unknown.shrink(SMALL_BODY_BYTES);
        assert!(budget.try_take(55 << 10).is_some());
        assert!(budget.try_take(60 << 10).is_none());
    }

    #[test]
    fn the_budget_for_a_body_is_large_enough() {
        for body_bytes in [0, 1, 1_024, 1_025, 8 << 10, 100_000, (16 << 20) - 1, 16 << 20, 1 << 30] {
            let bytes = BodyBudget::bytes_for(body_bytes);
            assert!(BodyBudget::new(bytes).try_take(body_bytes).is_some(), "{body_bytes}");
        }
    }

    #[test]
    fn a_smaller_body_still_fits_where_a_large_one_does_not() {
        let budget = BodyBudget::new(1 << 20);
        let mut held = Vec::new();
        while let Some(permit) = budget.try_take(16 << 10) {
            held.push(permit);
        }
        assert!(budget.try_take(8 << 10).is_some());
        while let Some(permit) = budget.try_take(8 << 10) {
            held.push(permit);
        }
        assert!(budget.try_take(5 << 10).is_none() && budget.try_take(SMALL_BODY_BYTES).is_some());
    }

    #[test]
    fn a_shortage_is_resolved_once() {
        let budget = BodyBudget::new(64 << 10);
        assert_eq!(budget.take_shortage(), None);
        let held = budget.try_take(50 << 10).expect("free");
        assert!(budget.try_take(20 << 10).is_none());
        // The shortage must not grow old if the test pauses.
        budget.shortage.lock().as_mut().expect("just noted").noted += std::time::Duration::from_hours(1);
        assert!(budget.try_take(8 << 10).is_none());
        let shortage = budget.take_shortage().expect("just rejected");
        assert_eq!(shortage.bytes, 15 << 10, "the most that one lacked, with what it leaves");
        assert_eq!(budget.take_shortage(), None, "another worker has it");
        budget.put_back(shortage, 10 << 10);
        let rest = budget.take_shortage().expect("not all was freed");
        assert_eq!(rest.bytes, 5 << 10);
        budget.put_back(rest, 5 << 10);
        assert_eq!(budget.take_shortage(), None);
        budget.put_back(rest, 0);
        drop(held);
        assert_eq!(budget.take_shortage(), None, "enough is free by now");
    }
}
