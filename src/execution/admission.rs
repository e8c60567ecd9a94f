//! What may be in progress at once: operation slots, counted, and body room, in bytes. Each is given back by being dropped.
//!
//! Called by `execution` and, for room, by `http`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::ROOM_UNIT_BYTES;

/// A number of places.
#[derive(Debug)]
pub struct Slots {
    taken: AtomicUsize,
    limit: usize,
}

/// One place; free again when dropped.
#[derive(Debug)]
pub struct Slot(Arc<Slots>);

impl Slots {
    /// `limit` places (at least 1), all free.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Slots> {
        assert!(limit >= 1, "without a place nothing could ever be done");
        Arc::new(Slots { taken: AtomicUsize::new(0), limit })
    }

    /// A place, if one is free.
    #[must_use]
    pub fn take(self: &Arc<Slots>) -> Option<Slot> {
        let one_more = |taken| (taken < self.limit).then_some(taken + 1);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more).ok()?;
        Some(Slot(self.clone()))
    }

    /// How many there are.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let before = self.0.taken.fetch_sub(1, Ordering::AcqRel);
        assert!(before >= 1, "a slot was given back twice");
    }
}

/// Bytes that request bodies and large answers may take together, in units of [`ROOM_UNIT_BYTES`].
#[derive(Debug)]
pub struct Room {
    free: Arc<Semaphore>,
    units: u32,
}

/// Some of the room; free again when dropped.
#[derive(Debug)]
pub struct RoomPermit(OwnedSemaphorePermit);

impl Room {
    /// `bytes` of room, all free.
    ///
    /// # Panics
    /// Beyond 4 TiB, which no memory budget reaches.
    #[must_use]
    pub fn new(bytes: u64) -> Room {
        let units = u32::try_from(bytes / ROOM_UNIT_BYTES).expect("room is far below 4 TiB");
        Room { free: Arc::new(Semaphore::new(units as usize)), units }
    }

    /// Room for `bytes`, if there is.
    #[must_use]
    pub fn try_take(&self, bytes: u64) -> Option<RoomPermit> {
        self.free.clone().try_acquire_many_owned(self.units(bytes)?).ok().map(RoomPermit)
    }

    /// Room for `bytes`, first come, first served; for what is under way and cannot be refused any more. More than there
    /// is at all gets all of it.
    pub async fn take(&self, bytes: u64) -> RoomPermit {
        let units = self.units(bytes).unwrap_or(self.units);
        RoomPermit(self.free.clone().acquire_many_owned(units).await.expect("the semaphore is never closed"))
    }

    /// All there is, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.units) * ROOM_UNIT_BYTES
    }

    fn units(&self, bytes: u64) -> Option<u32> {
        u32::try_from(bytes.div_ceil(ROOM_UNIT_BYTES)).ok().filter(|units| *units <= self.units)
    }
}

impl RoomPermit {
    /// Gives back all but what `bytes` need.
    pub fn shrink(&mut self, bytes: u64) {
        let needed = usize::try_from(bytes.div_ceil(ROOM_UNIT_BYTES)).unwrap_or(usize::MAX);
        if let Some(rest) = self.0.num_permits().checked_sub(needed) {
            drop(self.0.split(rest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_end_at_their_limit_and_come_back() {
        let slots = Slots::new(2);
        let first = slots.take().expect("free");
        let _second = slots.take().expect("free");
        assert!(slots.take().is_none());
        drop(first);
        assert!(slots.take().is_some());
    }

    #[test]
    fn room_is_counted_in_units_and_shrinks() {
        let room = Room::new(16 << 10);
        let mut most = room.try_take((15 << 10) + 1).expect("there is just room");
        assert!(room.try_take(1).is_none());
        most.shrink(1_025);
        assert!(room.try_take(14 << 10).is_some());
        assert!(room.try_take((14 << 10) + 1).is_none());
        drop(most);
        assert!(room.try_take(16 << 10).is_some());
        assert!(room.try_take((16 << 10) + 1).is_none(), "more than there is at all");
    }
}
