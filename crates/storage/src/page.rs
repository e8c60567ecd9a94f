//! Collects the entries of one scan step within its limits. Called by the engines.

use bytes::Bytes;

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
use crate::disk::record::Record;
use crate::operation::{Entry, Page, ScanStep, Snapshot, Value, Version};

/// A page under construction.
pub(crate) struct PageBuilder {
    entries: Vec<Entry>,
    bytes: usize,
    entries_max: usize,
    bytes_max: usize,
    keys_only: bool,
    /// The snapshot that the page returns for the next steps.
    snapshot: Option<Snapshot>,
}

impl PageBuilder {
    /// Makes an empty page of `snapshot` with the limits of `step`.
    pub(crate) fn new(step: &ScanStep, snapshot: Option<Snapshot>) -> PageBuilder {
        assert!(step.entries_max >= 1, "a step without entries would make no progress");
        PageBuilder {
            entries: Vec::new(),
            bytes: 0,
            entries_max: step.entries_max,
            bytes_max: step.bytes_max,
            keys_only: step.keys_only,
            snapshot,
        }
    }

    /// The bytes of an entry that count towards the limit of the step. The metadata counts even if the page has no
    /// values.
    pub(crate) fn charge(&self, key: &[u8], payload: &[u8], metadata: &[u8]) -> usize {
        key.len() + metadata.len() + if self.keys_only { 0 } else { payload.len() }
    }

    /// Whether another entry of `charge` bytes fits.
    pub(crate) fn fits(&self, charge: usize) -> bool {
        self.entries.len() < self.entries_max && charge <= self.bytes_max.saturating_sub(self.bytes)
    }

    /// Whether the page has no entries.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry. The caller has checked that the entry [fits](PageBuilder::fits), together with its metadata.
    pub(crate) fn add(&mut self, key: Bytes, version: Version, value: &Value) {
        let value_bytes = value.payload.len();
        let metadata = value.attributes.as_ref().map_or(&[][..], |own| &own.metadata);
        self.bytes += self.charge(&key, &value.payload, metadata);
        let payload = if self.keys_only { Bytes::new() } else { value.payload.clone() };
        let value = Value { payload, attributes: value.attributes.clone() };
        self.entries.push(Entry { key, version, value, value_bytes });
    }

    /// Adds a copy of an entry that fits. Key and value share one allocation.
    #[cfg(any(feature = "fjall", feature = "rocksdb"))]
    pub(crate) fn add_copy(&mut self, key: &[u8], record: &Record<'_>) {
        let value_bytes = record.payload.len();
        self.bytes += self.charge(key, record.payload, record.metadata);
        let payload = if self.keys_only { &[] } else { record.payload };
        let mut both = bytes::BytesMut::with_capacity(key.len() + payload.len());
        both.extend_from_slice(key);
        both.extend_from_slice(payload);
        let payload = both.split_off(key.len()).freeze();
        let value = Value { payload, attributes: record.attributes() };
        self.entries.push(Entry { key: both.freeze(), version: record.version, value, value_bytes });
    }

    /// The key of the last entry.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn last_key(&self) -> Option<Bytes> {
        self.entries.last().map(|entry| entry.key.clone())
    }

    /// The bound of the next step if the entry with `key` does not fit. The bound is `key` itself; in a reverse scan it
    /// is the smallest key behind `key`.
    pub(crate) fn bound(key: &[u8], reverse: bool) -> Bytes {
        let behind: &[u8] = if reverse { &[0] } else { &[] };
        [key, behind].concat().into()
    }

    /// Ends the page before the entry with `key`, whose `charge` does not fit.
    pub(crate) fn stop_before(self, key: &[u8], charge: usize, reverse: bool) -> Page {
        if self.entries.is_empty() {
            return Page::TooLarge { bytes: charge };
        }
        self.stop_at(Self::bound(key, reverse))
    }

    /// Ends the page. The scan continues at `bound`. The page may be empty.
    pub(crate) fn stop_at(self, bound: Bytes) -> Page {
        Page::Entries { entries: self.entries, next: Some(bound), snapshot: self.snapshot }
    }

    /// Ends the page at the end of the range.
    pub(crate) fn finish(self) -> Page {
        Page::Entries { entries: self.entries, next: None, snapshot: self.snapshot }
    }
}
