//! Reads with an iterator: steps of ranges, and point reads if the option `iterator_reads` is set. Called by `rocksdb`.
//!
//! A step passes a bounded number of removed entries. RocksDB stops an iterator that has passed too many in a row
//! (`max_skippable_internal_keys`), but does not say at which key. So the step tries again with a nearer bound, until
//! an attempt reaches its bound. Then the scan continues at this bound, and the next bounds are farther away again. The
//! bound differs from the start of the attempt in bit `reach` of the key, so a larger `reach` means a nearer bound. The
//! engine keeps the last `reach`, because neighbouring ranges often have a similar number of removed entries.
//!
//! ```text
//!   low ├──────────────── 1: too many ────────────────┤ high
//!       ├── 2: too many ──┤
//!       ├─ 3 ─┤                        the bound differs in a later bit; the attempt reaches it
//!             ├── 4: too many ──┤
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use rust_rocksdb::{DB, ErrorKind, ReadOptions};
use self_cell::self_cell;

use crate::disk::record::Record;
use crate::limits::{PASSED_PER_STEP_MAX, REMOVED_PER_ATTEMPT_MAX, SCAN_REACH_MAX, SCAN_STEP_TIME_MAX};
use crate::operation::{Error, Outcome, ScanStep, Snapshot, View};
use crate::rocksdb::options;
use crate::rocksdb::perf::Passed;
use crate::rocksdb::{self, RocksDbEngine};
use crate::{PageBuilder, Result};
use klad_base::clock;

type RocksDbSnapshot<'d> = rust_rocksdb::Snapshot<'d>;

self_cell!(
    /// A snapshot together with the database that it belongs to.
    struct OwnedSnapshot {
        owner: Arc<DB>,
        #[covariant]
        dependent: RocksDbSnapshot,
    }
);

/// The number of bits by which `reach` grows at first, so that the bound of the next attempt is nearer.
const REACH_STRIDE: u32 = 8;

/// How an attempt ended.
enum Attempt {
    /// The page ends before this entry, which does not fit: its key and its charge.
    Full(Bytes, usize),
    /// All entries up to the bound of the attempt are in the page.
    Done,
    /// The step has passed [`PASSED_PER_STEP_MAX`] entries. The scan continues with this key.
    PassedMany(Bytes),
    /// The iterator has passed too many removed entries in a row. The value is the last key that the attempt has added,
    /// if any.
    TooManyRemoved(Option<Bytes>),
}

impl RocksDbEngine {
    /// Reads one key with an iterator.
    pub(super) fn seek<T>(
        &self,
        key: &[u8],
        options: ReadOptions,
        read: impl FnOnce(&[u8]) -> T,
    ) -> std::result::Result<Option<T>, rust_rocksdb::Error> {
        let mut iterator = self.db.raw_iterator_opt(options);
        iterator.seek(key);
        if let Some((_, stored)) = iterator.item().filter(|(found, _)| *found == key) {
            return Ok(Some(read(stored)));
        }
        iterator.status().map(|()| None)
    }

    /// Reads one step of a range. `passed` counts the entries that this operation passes.
    pub(super) fn scan_step(&self, step: &ScanStep, passed: &Passed<'_>) -> Result {
        let take = || Snapshot(Arc::new(OwnedSnapshot::new(self.db.clone(), |db| db.snapshot())));
        let returned = match &step.view {
            View::Latest => None,
            View::Take => Some(take()),
            View::At(snapshot) => Some(snapshot.clone()),
        };
        let mut snapshot = returned.clone();
        let mut page = PageBuilder::new(step, returned);
        let mut rest = Rest { low: step.from.clone(), high: step.end.clone(), reverse: step.reverse };
        if rest.high.as_ref().is_some_and(|high| rest.low >= *high) {
            return Ok(Outcome::Page(page.finish()));
        }
        let until = clock::now() + SCAN_STEP_TIME_MAX;
        let is_long = || passed.count() >= PASSED_PER_STEP_MAX || clock::now() >= until;
        let (mut reach, mut stride, mut widening, mut advanced) = (0, REACH_STRIDE, 1, false);
        let page = loop {
            let bound = if reach == 0 { None } else { rest.nearer(reach) };
            // Beyond the last bit, an attempt passes all removed entries, so that the scan makes progress.
            let removed_max = if reach > SCAN_REACH_MAX { 0 } else { REMOVED_PER_ATTEMPT_MAX };
            let options = rest.read_options(bound.as_deref(), removed_max, step.entries_max);
            let passed_before = passed.count();
            match self.attempt(options, snapshot.as_ref(), step.reverse, &mut page, passed)? {
                Attempt::Full(key, charge) => break page.stop_before(&key, charge, step.reverse),
                Attempt::PassedMany(key) => break page.stop_at(PageBuilder::bound(&key, step.reverse)),
                // The bound is `last` as an exclusive end, or the successor of `last` as an inclusive start.
                Attempt::TooManyRemoved(Some(last)) => break page.stop_at(PageBuilder::bound(&last, !step.reverse)),
                Attempt::TooManyRemoved(None) if advanced && (!page.is_empty() || is_long()) => {
                    break page.stop_at(rest.start());
                }
                Attempt::TooManyRemoved(None) => {
                    // This attempt has added nothing. All attempts that add entries must read the same state.
                    snapshot.get_or_insert_with(take);
                    let last = self.scan_reach.load(Ordering::Relaxed).max(REACH_STRIDE);
                    reach = if reach == 0 { last } else { reach + stride };
                    (stride, widening) = (stride * 2, 1);
                }
                Attempt::Done => {
                    let Some(bound) = bound else { break page.finish() };
                    self.scan_reach.store(reach, Ordering::Relaxed);
                    // If this bound was much too near, the next bounds move away in growing strides.
                    let few = passed.count() - passed_before < REMOVED_PER_ATTEMPT_MAX / 8;
                    widening = if few { widening * 2 } else { 1 };
                    (reach, stride, advanced) = (reach.saturating_sub(widening), REACH_STRIDE, true);
                    rest.advance(bound);
                    if is_long() {
                        break page.stop_at(rest.start());
                    }
                }
            }
        };
        Ok(Outcome::Page(page))
    }

    /// Adds the entries within the bounds of `options` to the page.
    fn attempt(
        &self,
        mut options: ReadOptions,
        snapshot: Option<&Snapshot>,
        reverse: bool,
        page: &mut PageBuilder,
        passed: &Passed<'_>,
    ) -> std::result::Result<Attempt, Error> {
        if let Some(Snapshot(snapshot)) = snapshot {
            let owned = snapshot.downcast_ref::<OwnedSnapshot>().expect("the engine made it");
            options.set_snapshot(owned.borrow_dependent());
        }
        let mut iterator = self.db.raw_iterator_opt(options);
        if reverse {
            iterator.seek_to_last();
        } else {
            iterator.seek_to_first();
        }
        let (mut first, mut added) = (true, false);
        while let Some((key, stored)) = iterator.item() {
            // The first entry is always taken, so that each step makes progress.
            if !first && passed.count() >= PASSED_PER_STEP_MAX {
                return Ok(Attempt::PassedMany(Bytes::copy_from_slice(key)));
            }
            first = false;
            let record = Record::decode(stored)?;
            if !record.expired(clock::unix_ms) {
                // Checked before the copy, because a value may be large.
                let charge = page.charge(key, record.payload, record.metadata);
                if !page.fits(charge) {
                    return Ok(Attempt::Full(Bytes::copy_from_slice(key), charge));
                }
                page.add_copy(key, &record);
                added = true;
            }
            if reverse {
                iterator.prev();
            } else {
                iterator.next();
            }
        }
        // The loop also ends at an error of the iterator.
        match iterator.status() {
            Ok(()) => Ok(Attempt::Done),
            Err(error) if error.kind() == ErrorKind::Incomplete => {
                Ok(Attempt::TooManyRemoved(if added { page.last_key() } else { None }))
            }
            Err(error) => Err(rocksdb::read_failed(error)),
        }
    }
}

/// The part of a step's range that is not read yet.
struct Rest {
    low: Bytes,
    high: Option<Bytes>,
    reverse: bool,
}

impl Rest {
    /// The bound at which the next step begins.
    fn start(&self) -> Bytes {
        if self.reverse { self.high.clone().expect("an attempt has reached its bound") } else { self.low.clone() }
    }

    /// Removes the part before `bound`, which an attempt has reached.
    fn advance(&mut self, bound: Bytes) {
        if self.reverse {
            self.high = Some(bound);
        } else {
            self.low = bound;
        }
    }

    /// The options of an attempt up to `bound`, or up to the end of the range if `bound` is `None`.
    fn read_options(&self, bound: Option<&[u8]>, removed_max: u64, entries_max: usize) -> ReadOptions {
        let (low, high) = (&*self.low, self.high.as_deref());
        let mut options = match (bound, self.reverse) {
            (None, _) => options::scan(low, high, entries_max),
            (Some(bound), false) => options::scan(low, Some(bound), entries_max),
            (Some(bound), true) => options::scan(bound, high, entries_max),
        };
        options.set_max_skippable_internal_keys(removed_max);
        options
    }

    /// A key inside the rest that differs from its start by one unit of bit `reach` (0 is the highest bit of the first
    /// byte). The start is `low`, or `high` in a reverse scan. Returns `None` if there is no such key.
    fn nearer(&self, reach: u32) -> Option<Bytes> {
        let (byte, bit) = ((reach / 8) as usize, 0x80_u8 >> (reach % 8));
        let start = if self.reverse { self.high.as_deref().unwrap_or(&[]) } else { &*self.low };
        let fill = if self.reverse && self.high.is_none() { 0xFF } else { 0 };
        let mut key = start.to_vec();
        key.resize(byte + 1, fill);
        // Addition or subtraction with carry; a carry out of the first byte leaves `unit` at 1.
        let mut unit = bit;
        for digit in key.iter_mut().rev() {
            let (sum, carry) = if self.reverse { digit.overflowing_sub(unit) } else { digit.overflowing_add(unit) };
            *digit = sum;
            unit = u8::from(carry);
            if !carry {
                break;
            }
        }
        let inside = unit == 0 && *key > *self.low && self.high.as_ref().is_none_or(|high| *key < **high);
        inside.then(|| key.into())
    }
}

#[cfg(test)]
mod tests;
