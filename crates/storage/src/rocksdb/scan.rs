//! Reads with an iterator: steps of ranges, and point reads if the option `iterator_reads` is set. Called by `rocksdb`.
//!
//! A step passes a bounded number of removed entries. RocksDB stops an iterator that has passed too many
//! (`max_skippable_internal_keys`), but does not say at which key. So the step tries again with a nearer bound, until
//! an attempt reaches its bound; then the scan continues there. `reach` says how near: the bound differs from the start
//! of the attempt in bit `reach` of the key. The engine keeps the last reach, because neighbouring ranges often have
//! as many removed entries.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use rust_rocksdb::{DB, ErrorKind, ReadOptions};
use self_cell::self_cell;

use crate::disk::record::Record;
use crate::limits::{REMOVED_PER_ATTEMPT_MAX, SCAN_REACH_MAX, SCAN_STEP_TIME_MAX};
use crate::operation::{Error, Outcome, ScanStep, Snapshot, View};
use crate::rocksdb::options;
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

/// What an attempt has met.
enum Attempt {
    /// The page ends before this entry, which does not fit: its key and the size of its value.
    Full(Bytes, usize),
    /// All entries up to the bound of the attempt are in the page.
    Done,
    /// The attempt has passed many expired entries. The scan continues with this key.
    ManyExpired(Bytes),
    /// The iterator has passed too many removed entries. With the last key that it has added, if any.
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

    pub(super) fn scan_step(&self, step: &ScanStep) -> Result {
        let snapshot = match &step.view {
            View::Latest => None,
            View::Take => {
                let owned = OwnedSnapshot::new(self.db.clone(), |db| db.snapshot());
                Some(Snapshot(Arc::new(owned)))
            }
            View::At(snapshot) => Some(snapshot.clone()),
        };
        let until = clock::now() + SCAN_STEP_TIME_MAX;
        let mut page = PageBuilder::new(step, snapshot.clone());
        let (mut low, mut high) = (step.from.clone(), step.end.clone());
        let (mut reach, mut stride) = (0, 8);
        loop {
            let bound = if reach == 0 { None } else { bound(&low, high.as_deref(), reach, step.reverse) };
            let (from, end) = match (&bound, step.reverse) {
                (None, _) => (&low, high.as_ref()),
                (Some(bound), false) => (&low, Some(bound)),
                (Some(bound), true) => (bound, high.as_ref()),
            };
            let skips_max = if reach > SCAN_REACH_MAX { 0 } else { REMOVED_PER_ATTEMPT_MAX };
            let mut read = options::scan(from, end.map(|end| &**end));
            read.set_max_skippable_internal_keys(skips_max);
            let attempt = match &snapshot {
                None => self.attempt(read, step.reverse, &mut page),
                Some(snapshot) => {
                    let owned = snapshot.0.downcast_ref::<OwnedSnapshot>().expect("the engine made it");
                    read.set_snapshot(owned.borrow_dependent());
                    self.attempt(read, step.reverse, &mut page)
                }
            };
            match attempt? {
                Attempt::Full(key, value_bytes) => {
                    return Ok(Outcome::Page(page.stop_before(&key, value_bytes, step.reverse)));
                }
                Attempt::Done => {
                    let Some(bound) = &bound else { return Ok(Outcome::Page(page.finish())) };
                    self.scan_reach.store(reach, Ordering::Relaxed);
                    (reach, stride) = (reach - 1, 8);
                    if step.reverse {
                        high = Some(bound.clone());
                    } else {
                        low = bound.clone();
                    }
                }
                Attempt::ManyExpired(key) => {
                    if step.reverse {
                        high = Some(PageBuilder::bound(&key, true));
                    } else {
                        low = key;
                    }
                }
                Attempt::TooManyRemoved(last) => {
                    match last {
                        Some(last) if step.reverse => high = Some(last),
                        Some(last) => low = PageBuilder::bound(&last, true),
                        None => {}
                    }
                    reach = if reach == 0 { self.scan_reach.load(Ordering::Relaxed).max(8) } else { reach + stride };
                    stride *= 2;
                }
            }
            if clock::now() >= until {
                let next = if step.reverse { high.clone() } else { Some(low.clone()) };
                // Backwards without an end, no attempt has reached a bound yet, so there is no place to continue.
                if let Some(next) = next {
                    return Ok(Outcome::Page(page.stop_at(next)));
                }
            }
        }
    }

    /// Adds the entries within the bounds of `options` to the page.
    fn attempt(
        &self,
        options: ReadOptions,
        reverse: bool,
        page: &mut PageBuilder,
    ) -> std::result::Result<Attempt, Error> {
        let mut iterator = self.db.raw_iterator_opt(options);
        if reverse {
            iterator.seek_to_last();
        } else {
            iterator.seek_to_first();
        }
        let (mut added, mut expired) = (false, 0);
        while let Some((key, stored)) = iterator.item() {
            let record = Record::decode(stored)?;
            if !record.expired(clock::unix_ms) {
                // Checked before the copy, because a value may be large.
                if !page.fits(key, record.payload.len()) {
                    return Ok(Attempt::Full(Bytes::copy_from_slice(key), record.payload.len()));
                }
                page.add_copy(key, &record);
                added = true;
            } else if expired < REMOVED_PER_ATTEMPT_MAX {
                expired += 1;
            } else {
                return Ok(Attempt::ManyExpired(Bytes::copy_from_slice(key)));
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

/// A key between `low` and `high` that differs from the start of the scan, `low` or with `reverse` `high`, by one unit
/// of bit `reach` (0 is the highest bit of the first byte). `None` if there is none.
fn bound(low: &[u8], high: Option<&[u8]>, reach: u32, reverse: bool) -> Option<Bytes> {
    let (byte, bit) = ((reach / 8) as usize, 0x80_u8 >> (reach % 8));
    let start = if reverse { high.unwrap_or(&[]) } else { low };
    let fill = if reverse && high.is_none() { 0xFF } else { 0 };
    let mut key = start.to_vec();
    key.resize(byte + 1, fill);
    // Addition or subtraction with carry; a carry out of the first byte leaves `unit` at 1.
    let mut unit = bit;
    for digit in key.iter_mut().rev() {
        let (sum, carry) = if reverse { digit.overflowing_sub(unit) } else { digit.overflowing_add(unit) };
        *digit = sum;
        unit = u8::from(carry);
        if !carry {
            break;
        }
    }
    let inside = unit == 0 && *key > *low && high.is_none_or(|high| *key < *high);
    inside.then(|| key.into())
}
