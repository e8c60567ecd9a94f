//! Collects the entries of one scan step within its limits. Called by the engines.

use bytes::Bytes;

use crate::operation::{Entry, Page, ScanStep};

/// A page under construction.
pub(crate) struct PageBuilder {
    entries: Vec<Entry>,
    bytes: usize,
    entries_max: usize,
    bytes_max: usize,
}

impl PageBuilder {
    /// Makes an empty page with the limits of `step`.
    pub(crate) fn new(step: &ScanStep) -> PageBuilder {
        assert!(step.entries_max >= 1, "a step without entries would make no progress");
        PageBuilder { entries: Vec::new(), bytes: 0, entries_max: step.entries_max, bytes_max: step.bytes_max }
    }

    /// Whether another entry of `bytes` fits.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        self.entries.len() < self.entries_max && self.bytes + bytes <= self.bytes_max
    }

    /// Adds an entry. The caller has checked that it [fits](PageBuilder::fits).
    pub(crate) fn add(&mut self, key: Bytes, value: Bytes) {
        self.bytes += key.len() + value.len();
        self.entries.push(Entry { key, value });
    }

    /// Adds a copy of an entry that fits. Key and value share one allocation.
    #[cfg(any(feature = "fjall", feature = "rocksdb"))]
    pub(crate) fn add_copy(&mut self, key: &[u8], value: &[u8]) {
        let mut both = bytes::BytesMut::with_capacity(key.len() + value.len());
        both.extend_from_slice(key);
        both.extend_from_slice(value);
        let value = both.split_off(key.len()).freeze();
        self.add(both.freeze(), value);
    }

    /// Ends the page before the entry with `key` and `value_bytes`, which does not fit.
    pub(crate) fn stop_before(self, key: &[u8], value_bytes: usize) -> Page {
        if self.entries.is_empty() {
            return Page::TooLarge { bytes: key.len() + value_bytes };
        }
        Page::Entries { entries: self.entries, next: Some(Bytes::copy_from_slice(key)) }
    }

    /// Ends the page at the end of the range.
    pub(crate) fn finish(self) -> Page {
        Page::Entries { entries: self.entries, next: None }
    }
}
