//! Bulk loads: an engine adds whole tables instead of single writes. Implemented by `rocksdb`, called by
//! `klad import --into`.

#![cfg_attr(not(feature = "rocksdb"), allow(dead_code, reason = "only RocksDB has bulk loads"))]

use crate::disk::record::{self, Record};
use crate::maintenance::Error;
use crate::operation::{Value, Version};

/// The interface of an engine that was opened for a bulk load. No other write may use the engine.
pub trait BulkLoad {
    /// Stores entries, in any order. On return, either all entries are stored and synced, or none. Of several entries
    /// with the same key the last one is stored.
    ///
    /// With `if_absent`, an existing key keeps its value, and of several entries with the same key the first one is
    /// stored. Returns the number of entries that `if_absent` left out.
    ///
    /// # Errors
    /// [`Error`]. Then no entry was stored, unless the message says that tables were added with a wrong number of
    /// entries.
    fn load(&self, entries: Vec<LoadEntry>, if_absent: bool) -> Result<u64, Error>;

    /// Ends the load: compacts the tables if they overlap so much that reads would be slow.
    ///
    /// # Errors
    /// [`Error`]. All entries are stored.
    fn finish(&self) -> Result<(), Error>;
}

/// An entry in its stored form. Key and record share one allocation, because a load holds millions of entries.
#[derive(Debug)]
pub struct LoadEntry {
    /// The key, then the record.
    bytes: Box<[u8]>,
    key_bytes: u32,
}

impl LoadEntry {
    /// Makes the entry of a key of less than 4 GiB.
    ///
    /// # Panics
    /// The key has 4 GiB or more.
    #[must_use]
    pub fn new(key: &[u8], value: &Value) -> LoadEntry {
        let own = value.attributes.as_deref();
        let head = Record {
            // `set_version` replaces this version.
            version: Version::new(u64::MAX),
            expires_at_ms: own.and_then(|own| own.expires_at_ms),
            modified_ms: own.and_then(|own| own.modified_ms),
            metadata: own.map_or(&[], |own| &own.metadata),
            payload: &[],
        };
        let mut bytes = Vec::with_capacity(key.len() + record::HEAD_BYTES + head.metadata.len() + value.payload.len());
        bytes.extend_from_slice(key);
        head.encode_head(&mut bytes);
        bytes.extend_from_slice(&value.payload);
        let key_bytes = u32::try_from(key.len()).expect("a key is far below 4 GiB");
        LoadEntry { bytes: bytes.into_boxed_slice(), key_bytes }
    }

    /// The number of bytes of the key, the metadata and the value.
    ///
    /// # Panics
    /// Never: `new` makes a valid record.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let (key, stored) = self.parts();
        let record = Record::decode(stored).expect("`new` makes a valid record");
        key.len() + record.metadata.len() + record.payload.len()
    }

    pub(crate) fn key(&self) -> &[u8] {
        self.parts().0
    }

    /// The key and the record.
    pub(crate) fn parts(&self) -> (&[u8], &[u8]) {
        self.bytes.split_at(self.key_bytes as usize)
    }

    pub(crate) fn set_version(&mut self, version: Version) {
        record::set_version(&mut self.bytes[self.key_bytes as usize..], version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_bytes_of_a_record() {
        let value = Value { payload: bytes::Bytes::from_static(b"hello"), attributes: None };
        let mut entry = LoadEntry::new(b"k", &value);
        entry.set_version(Version::new(258));
        assert_eq!(entry.parts(), (&b"k"[..], &b"\x01\x00\x02\x01\x00\x00\x00\x00\x00\x00hello"[..]));
        assert_eq!(Record::decode(entry.parts().1).expect("valid").value(), value);
    }
}
