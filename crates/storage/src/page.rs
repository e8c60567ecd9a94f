//! Gathers the entries of one scan step within its bounds. Called by the engines.

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
    /// Within the bounds of `step`.
    pub(crate) fn new(step: &ScanStep) -> PageBuilder {
        assert!(step.entries_max >= 1, "a step that may answer nothing would never get on");
        PageBuilder { entries: Vec::new(), bytes: 0, entries_max: step.entries_max, bytes_max: step.bytes_max }
    }

    /// Whether an entry of `bytes` still fits.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.entries.len() < self.entries_max && self.bytes + bytes <= self.bytes_max
    }

    /// Adds an entry that fits.
    pub(crate) fn add(&mut self, key: Bytes, value: Bytes) {
        self.bytes += key.len() + value.len();
        self.entries.push(Entry { key, value });
    }

    /// The page, where the entry with `key` and so many bytes of value did not fit any more.
    pub(crate) fn stop_before(self, key: &[u8], value_bytes: usize) -> Page {
        if self.entries.is_empty() {
            return Page::TooLarge { bytes: key.len() + value_bytes };
        }
        Page::Entries { entries: self.entries, next: Some(Bytes::copy_from_slice(key)) }
    }

    /// The last page of the range.
    pub(crate) fn finish(self) -> Page {
        Page::Entries { entries: self.entries, next: None }
    }
}
