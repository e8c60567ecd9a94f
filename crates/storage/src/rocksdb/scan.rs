//! Reads with an iterator: steps of ranges, and point reads if the option `iterator_reads` is set. Called by `rocksdb`.

use rust_rocksdb::ReadOptions;

use crate::disk::record::Record;
use crate::operation::{Error, Outcome, ScanStep};
use crate::rocksdb::options;
use crate::rocksdb::{self, RocksDbEngine};
use crate::{PageBuilder, Result};
use klad_base::clock;

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
        let mut page = PageBuilder::new(step);
        let mut iterator = self.db.raw_iterator_opt(options::scan(step.end.as_deref()));
        iterator.seek(&step.from);
        while let Some((key, stored)) = iterator.item() {
            let record = Record::decode(stored).map_err(|error| Error::Unreadable { why: error.to_string() })?;
            if !record.expired(clock::unix_ms) {
                // Checked before the copy, because a value may be large.
                if !page.fits(key.len() + record.payload.len()) {
                    return Ok(Outcome::Page(page.stop_before(key, record.payload.len())));
                }
                page.add_copy(key, record.payload);
            }
            iterator.next();
        }
        // The loop also ends at an error of the iterator.
        iterator.status().map_err(rocksdb::read_failed)?;
        Ok(Outcome::Page(page.finish()))
    }
}
