//! What may be in progress at once: operation slots, counted, and body room, in bytes. Each is given back by being dropped.
//!
//! Called by `execution` and, for room, by `http`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use klad_base::clock;
use klad_base::limits::{
    BODY_BUDGET_LACK_LIFETIME, BODY_BUDGET_LACK_STANDS, BODY_BUDGET_RETRY, BODY_BUDGET_UNIT_BYTES,
    LARGE_BODY_LEAVES_PARTS, SLOTS_CEILING, SMALL_BODY_BYTES, SMALL_BODY_ROOM_PARTS,
};
use klad_base::sync::Mutex;

/// A number of places, and the bytes of the keys that those in them have.
#[derive(Debug)]
pub struct Slots {
    /// How many, in the lower [`TAKEN_BITS`]; above them the bytes. In one word, so that the bytes cost nothing.
    taken: AtomicU64,
    limit: AtomicUsize,
}

/// Enough for [`SLOTS_CEILING`]; leaves bits for 8 GiB of keys. Beyond that the bytes, and they alone, would be told wrong.
const TAKEN_BITS: u32 = 31;

const _: () = assert!(SLOTS_CEILING < 1 << TAKEN_BITS);

/// One place; free again when dropped.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    /// What it has added.
    added: u64,
}

impl Slots {
    /// `limit` places (at least 1), all free.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Slots> {
        assert!(limit >= 1, "without a place nothing could ever be done");
        Arc::new(Slots { taken: AtomicU64::new(0), limit: AtomicUsize::new(limit) })
    }

    /// A place, if one is free, for what has a key of so many bytes.
    #[must_use]
    pub fn take(self: &Arc<Slots>, key_bytes: usize) -> Option<Slot> {
        let limit = self.limit();
        let added = 1 + ((key_bytes as u64) << TAKEN_BITS);
        let one_more = |taken: u64| (count(taken) < limit).then_some(taken.wrapping_add(added));
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more).ok()?;
        Some(Slot { slots: self.clone(), added })
    }

    /// How many are taken now.
    #[must_use]
    pub fn taken(&self) -> usize {
        count(self.taken.load(Ordering::Relaxed))
    }

    /// How many are taken now, and the bytes of their keys.
    #[must_use]
    pub fn look(&self) -> (usize, u64) {
        let taken = self.taken.load(Ordering::Relaxed);
        (count(taken), taken >> TAKEN_BITS)
    }

    /// How many there are.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// From now on there are `limit` (at least 1). Where more are taken, none is free until enough have come back.
    pub fn set_limit(&self, limit: usize) {
        assert!(limit >= 1, "without a place nothing could ever be done");
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

/// Bytes that request bodies and large answers may take together, in units of [`BODY_BUDGET_UNIT_BYTES`].
///
/// ```text
///   ├──────────── larger than SMALL_BODY_BYTES, together ────────────┼── small bodies ──┤
///   0                                                               7/8                 8/8
/// ```
///
/// What can be refused also leaves as much free as it takes, up to [`LARGE_BODY_LEAVES_PARTS`]: when room runs out, the
/// largest are refused first, and those half their size still find some.
#[derive(Debug)]
pub struct BodyBudget {
    all: Share,
    /// What all but small bodies may take of it.
    large: Share,
    lack: Mutex<Option<Lack>>,
}

#[derive(Debug)]
struct Share {
    free: Arc<Semaphore>,
    units: u32,
}

/// What of a share is taken, and what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLook {
    /// Taken now.
    pub used_bytes: u64,
    /// All there is.
    pub limit_bytes: u64,
}

/// Some of the room; free again when dropped.
#[derive(Debug)]
pub struct BodyPermit {
    // In this order: whoever finds some of the large share free finds as much free of all.
    all: OwnedSemaphorePermit,
    large: Option<OwnedSemaphorePermit>,
}

/// What a request that was refused lacked: the sweeps end slow clients until as much is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lack {
    /// Of the room, missing when it was refused, less what has been won since.
    pub bytes: u64,
    /// What the request wanted.
    wanted_bytes: u64,
    /// When the first of those was refused that came close upon each other, and the last.
    since: Instant,
    noted: Instant,
}

impl BodyBudget {
    /// `bytes` of room, all free.
    ///
    /// # Panics
    /// Beyond 4 TiB, which no memory budget reaches.
    #[must_use]
    pub fn new(bytes: u64) -> BodyBudget {
        let units = u32::try_from(bytes / BODY_BUDGET_UNIT_BYTES).expect("room is far below 4 TiB");
        let small_units = u32::try_from(u64::from(units) / SMALL_BODY_ROOM_PARTS).expect("a part of it");
        BodyBudget { all: Share::new(units), large: Share::new(units - small_units), lack: Mutex::default() }
    }

    /// The least room in which one body of `body_bytes` is taken.
    #[must_use]
    pub fn bytes_for(body_bytes: u64) -> u64 {
        let units = body_bytes.div_ceil(BODY_BUDGET_UNIT_BYTES);
        // Of so many parts: one is left free, and as many are kept for small bodies as make their share.
        let parts = LARGE_BODY_LEAVES_PARTS;
        (units * parts).div_ceil(parts - 1 - parts / SMALL_BODY_ROOM_PARTS) * BODY_BUDGET_UNIT_BYTES
    }

    /// Room for `bytes`, if there is. If not, what is lacking is noted for the sweeps.
    #[must_use]
    pub fn try_take(&self, bytes: u64) -> Option<BodyPermit> {
        let units = self.share(bytes).units_of(bytes)?;
        let fits = self.free_bytes(bytes) >= self.needed_bytes(bytes);
        let taken = if fits { self.take_now(bytes, units) } else { None };
        if taken.is_none() {
            self.note_lack(bytes);
        }
        taken
    }

    fn take_now(&self, bytes: u64, units: u32) -> Option<BodyPermit> {
        let large = if is_small(bytes) { None } else { Some(self.large.try_take(units)?) };
        Some(BodyPermit { all: self.all.try_take(units)?, large })
    }

    /// Room for `bytes`, tried again until it is there; for what is under way and cannot be refused any more. More than there
    /// is at all gets all of it.
    pub async fn take(&self, bytes: u64) -> BodyPermit {
        let units = self.share(bytes).units_of(bytes).unwrap_or(self.large.units);
        loop {
            if let Some(taken) = self.take_now(bytes, units) {
                return taken;
            }
            self.note_lack(bytes);
            // Not in the semaphores' queues: whoever waits there takes all that is free until it is enough.
            tokio::time::sleep(BODY_BUDGET_RETRY).await;
        }
    }

    /// All there is, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.all.units) * BODY_BUDGET_UNIT_BYTES
    }

    /// All of it.
    #[must_use]
    pub fn all(&self) -> ShareLook {
        self.all.look()
    }

    /// What all but small bodies have and may have of it.
    #[must_use]
    pub fn large(&self) -> ShareLook {
        self.large.look()
    }

    /// What a request of the last [`BODY_BUDGET_LACK_LIFETIME`] has lacked and would lack still, for one sweep to win; the other
    /// workers' sweeps do not see it until [`BodyBudget::put_back`].
    #[must_use]
    pub fn take_lack(&self) -> Option<Lack> {
        let lacks = |lack: &Lack| self.free_bytes(lack.wanted_bytes) < self.needed_bytes(lack.wanted_bytes);
        self.lack.lock().take().filter(|lack| lack.is_fresh() && lacks(lack))
    }

    /// The sweep that took `lack` has won `won_bytes` of it; the rest is for other workers.
    pub fn put_back(&self, lack: Lack, won_bytes: u64) {
        let bytes = lack.bytes.saturating_sub(won_bytes);
        let mut noted = self.lack.lock();
        if bytes > 0 && noted.is_none_or(|noted| noted.bytes < bytes) {
            *noted = Some(Lack { bytes, ..lack });
        }
    }

    /// The most that any of those refused lately lacked, not all of it: clients that are refused come again, some of them
    /// many times, and would have everybody ended.
    fn note_lack(&self, wanted_bytes: u64) {
        let bytes = self.needed_bytes(wanted_bytes).saturating_sub(self.free_bytes(wanted_bytes));
        let now = clock::now();
        let mut noted = self.lack.lock();
        let fresh = noted.filter(Lack::is_fresh);
        if fresh.is_none_or(|fresh| fresh.bytes <= bytes) {
            let since = fresh.map_or(now, |fresh| fresh.since);
            *noted = Some(Lack { bytes, wanted_bytes, since, noted: now });
        }
    }

    /// What must be free for a request for `bytes` that can be refused.
    fn needed_bytes(&self, bytes: u64) -> u64 {
        let leaves = if is_small(bytes) { 0 } else { bytes.min(self.bytes() / LARGE_BODY_LEAVES_PARTS) };
        bytes.saturating_add(leaves)
    }

    /// What a request for `bytes` may find now.
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

    fn look(&self) -> ShareLook {
        let limit_bytes = u64::from(self.units) * BODY_BUDGET_UNIT_BYTES;
        ShareLook { used_bytes: limit_bytes.saturating_sub(self.free_bytes()), limit_bytes }
    }

    fn units_of(&self, bytes: u64) -> Option<u32> {
        u32::try_from(bytes.div_ceil(BODY_BUDGET_UNIT_BYTES)).ok().filter(|units| *units <= self.units)
    }
}

impl Lack {
    /// Whether every worker has looked for the very slow by now.
    #[must_use]
    pub fn stands(&self) -> bool {
        clock::now() - self.since >= BODY_BUDGET_LACK_STANDS
    }

    fn is_fresh(&self) -> bool {
        clock::now() - self.noted < BODY_BUDGET_LACK_LIFETIME
    }
}

impl BodyPermit {
    /// How many bytes it stands for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.all.num_permits() as u64 * BODY_BUDGET_UNIT_BYTES
    }

    /// Gives back all but what `bytes` need.
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
    fn the_bytes_of_keys_are_told_to_the_byte() {
        let slots = Slots::new(3);
        let long = slots.take(16 << 10).expect("free");
        let _short = slots.take(1).expect("free");
        let _none = slots.take(0).expect("free");
        assert_eq!(slots.look(), (3, (16 << 10) + 1));
        assert!(slots.take(7).is_none(), "the bytes do not count as places");
        drop(long);
        assert_eq!(slots.look(), (2, 1));
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
    fn room_is_counted_in_units_and_shrinks() {
        let budget = BodyBudget::new(16 << 10);
        let mut most = budget.try_take((13 << 10) + 1).expect("there is just room");
        assert!(budget.try_take(5 << 10).is_none());
        most.shrink((5 << 10) + 1);
        assert_eq!(most.bytes(), 6 << 10);
        assert_eq!(budget.all(), ShareLook { used_bytes: 6 << 10, limit_bytes: 16 << 10 });
        assert_eq!(budget.large(), ShareLook { used_bytes: 6 << 10, limit_bytes: 14 << 10 });
        // A large one leaves a 64th free.
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
    fn what_turned_out_to_be_small_leaves_the_large_share() {
        let budget = BodyBudget::new(64 << 10);
        let mut unknown = budget.try_take(55 << 10).expect("seven eighths, less what it leaves");
        unknown.shrink(SMALL_BODY_BYTES);
        assert!(budget.try_take(55 << 10).is_some());
        assert!(budget.try_take(60 << 10).is_none());
    }

    #[test]
    fn room_for_a_body_is_room_enough() {
        for body_bytes in [0, 1, 1_024, 1_025, 8 << 10, 100_000, (16 << 20) - 1, 16 << 20, 1 << 30] {
            let bytes = BodyBudget::bytes_for(body_bytes);
            assert!(BodyBudget::new(bytes).try_take(body_bytes).is_some(), "{body_bytes}");
        }
    }

    #[test]
    fn a_smaller_one_still_finds_room_where_a_large_one_does_not() {
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
    fn what_was_lacking_is_won_once() {
        let budget = BodyBudget::new(64 << 10);
        assert_eq!(budget.take_lack(), None);
        let held = budget.try_take(50 << 10).expect("free");
        assert!(budget.try_take(20 << 10).is_none());
        assert!(budget.try_take(8 << 10).is_none());
        let lack = budget.take_lack().expect("just refused");
        assert_eq!(lack.bytes, 15 << 10, "the most that one lacked, with what it leaves");
        assert_eq!(budget.take_lack(), None, "another worker has it");
        budget.put_back(lack, 10 << 10);
        let rest = budget.take_lack().expect("not all was won");
        assert_eq!(rest.bytes, 5 << 10);
        budget.put_back(rest, 5 << 10);
        assert_eq!(budget.take_lack(), None);
        budget.put_back(rest, 0);
        drop(held);
        assert_eq!(budget.take_lack(), None, "there is room by now");
    }
}
