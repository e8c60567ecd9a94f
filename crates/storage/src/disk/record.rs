//! The format of a stored value: a small versioned record. `docs/storage-format.md` describes it too; change both
//! together.
//!
//! ```text
//!   byte  0       format, always 1
//!   byte  1       flags: bit 0 expiry, bit 1 metadata, bit 2 time of the change; all others 0
//!   bytes 2..10   version, little-endian
//!   8 bytes       expiry in milliseconds since 1970, little-endian      (with bit 0)
//!   8 bytes       change in milliseconds since 1970, little-endian      (with bit 2)
//!   4 bytes       length of the metadata, little-endian, then its bytes (with bit 1)
//!   the rest      payload
//! ```
//!
//! klad rejects a record of another format or with an unknown flag, because a newer klad wrote it or it is damaged.
//! Called by the engines on disk.

#![cfg_attr(
    not(any(feature = "fjall", feature = "rocksdb")),
    allow(dead_code, reason = "the memory engine uses a part of it")
)]

use std::num::NonZeroU64;

use bytes::Bytes;

use crate::operation::{Attributes, Error, Value, Version};
use crate::plan::Current;

/// The format byte that this klad writes, and the only one that it reads.
pub const FORMAT: u8 = 1;

/// The maximum number of bytes before the metadata.
pub(crate) const HEAD_BYTES: usize = 2 + 3 * 8 + 4;

const FLAG_EXPIRY: u8 = 1 << 0;
const FLAG_METADATA: u8 = 1 << 1;
const FLAG_MODIFIED: u8 = 1 << 2;

/// A decoded record that borrows the stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The version of the write that stored the record.
    pub version: Version,
    /// The time from which on the record counts as absent, milliseconds since 1970.
    pub expires_at_ms: Option<NonZeroU64>,
    /// The time of the change that stored the record, milliseconds since 1970.
    pub modified_ms: Option<NonZeroU64>,
    /// Content type and user metadata, encoded by the layer that uses them. Empty means none.
    pub metadata: &'a [u8],
    /// The value.
    pub payload: &'a [u8],
}

/// Why stored bytes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The format byte is not [`FORMAT`].
    #[error("record format {0} is not known to this klad, which reads format {FORMAT}")]
    UnknownFormat(u8),
    /// A flag bit is set that this format does not define.
    #[error("the record flags {0:#010b} contain an unknown bit")]
    UnknownFlags(u8),
    /// The bytes end before the record does.
    #[error("the record is cut short: {0} bytes")]
    Truncated(usize),
    /// A version or a time is zero, or the metadata block is empty. klad never writes this.
    #[error("the record has a zero version, time or metadata length")]
    Zero,
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Error {
        Error::Unreadable { why: error.to_string() }
    }
}

impl<'a> Record<'a> {
    /// Decodes a record that fills all of `bytes`.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &'a [u8]) -> Result<Record<'a>, DecodeError> {
        let truncated = DecodeError::Truncated(bytes.len());
        let (&format, rest) = bytes.split_first().ok_or(truncated)?;
        if format != FORMAT {
            return Err(DecodeError::UnknownFormat(format));
        }
        let (&flags, rest) = rest.split_first().ok_or(truncated)?;
        if flags & !(FLAG_EXPIRY | FLAG_METADATA | FLAG_MODIFIED) != 0 {
            return Err(DecodeError::UnknownFlags(flags));
        }
        let (version, mut rest) = rest.split_first_chunk::<8>().ok_or(truncated)?;
        let version = NonZeroU64::new(u64::from_le_bytes(*version)).ok_or(DecodeError::Zero)?;
        let mut time = |flag| {
            if flags & flag == 0 {
                return Ok(None);
            }
            let (time, after) = rest.split_first_chunk::<8>().ok_or(truncated)?;
            rest = after;
            NonZeroU64::new(u64::from_le_bytes(*time)).map(Some).ok_or(DecodeError::Zero)
        };
        let (expires_at_ms, modified_ms) = (time(FLAG_EXPIRY)?, time(FLAG_MODIFIED)?);
        let mut metadata: &[u8] = &[];
        if flags & FLAG_METADATA != 0 {
            let (length, after) = rest.split_first_chunk::<4>().ok_or(truncated)?;
            let length = u32::from_le_bytes(*length) as usize;
            if length == 0 {
                return Err(DecodeError::Zero);
            }
            (metadata, rest) = after.split_at_checked(length).ok_or(truncated)?;
        }
        Ok(Record { version: Version::new(version.get()), expires_at_ms, modified_ms, metadata, payload: rest })
    }

    /// Appends all fields before the payload.
    ///
    /// # Panics
    /// The version is 0, or the metadata is longer than 4 GiB. The limits exclude both.
    pub fn encode_head(&self, into: &mut Vec<u8>) {
        assert!(self.version.get() != 0, "version 0 is never given out");
        let mut flags = 0;
        if self.expires_at_ms.is_some() {
            flags |= FLAG_EXPIRY;
        }
        if !self.metadata.is_empty() {
            flags |= FLAG_METADATA;
        }
        if self.modified_ms.is_some() {
            flags |= FLAG_MODIFIED;
        }
        into.extend_from_slice(&[FORMAT, flags]);
        into.extend_from_slice(&self.version.get().to_le_bytes());
        for time in [self.expires_at_ms, self.modified_ms].into_iter().flatten() {
            into.extend_from_slice(&time.get().to_le_bytes());
        }
        if !self.metadata.is_empty() {
            let length = u32::try_from(self.metadata.len()).expect("metadata is far below 4 GiB");
            into.extend_from_slice(&length.to_le_bytes());
            into.extend_from_slice(self.metadata);
        }
    }

    /// The attributes, if there are any.
    #[must_use]
    pub fn attributes(&self) -> Option<Box<Attributes>> {
        let Record { expires_at_ms, modified_ms, metadata, .. } = *self;
        if expires_at_ms.is_none() && modified_ms.is_none() && metadata.is_empty() {
            return None;
        }
        Some(Box::new(Attributes { modified_ms, expires_at_ms, metadata: Bytes::copy_from_slice(metadata) }))
    }

    /// Copies the value with its attributes.
    #[must_use]
    pub fn value(&self) -> Value {
        Value { payload: Bytes::copy_from_slice(self.payload), attributes: self.attributes() }
    }

    /// The value in the form that a plan needs, without its payload if the value has more than `bytes_max` bytes.
    pub(crate) fn current(&self, bytes_max: usize) -> Current {
        let bytes = self.payload.len() + self.metadata.len();
        let whole = bytes <= bytes_max;
        let value = if whole { self.value() } else { Value { attributes: self.attributes(), ..Value::default() } };
        Current { version: self.version, value, bytes }
    }

    /// Whether the record counts as absent at `now_ms` (milliseconds since 1970).
    #[must_use]
    pub fn expired(&self, now_ms: impl FnOnce() -> u64) -> bool {
        self.expires_at_ms.is_some_and(|expiry| expiry.get() <= now_ms())
    }
}

/// Whether `stored` is a record that has expired at `now_ms`. Compactions call this for every entry. They keep an entry
/// that cannot be decoded, so that a read can report it.
pub(crate) fn is_expired(stored: &[u8], now_ms: impl FnOnce() -> u64) -> bool {
    stored.get(1).is_some_and(|flags| flags & FLAG_EXPIRY != 0)
        && Record::decode(stored).is_ok_and(|record| record.expired(now_ms))
}

/// Replaces the version of an encoded record.
///
/// # Panics
/// `stored` has fewer than 10 bytes, so it is not a record.
pub(crate) fn set_version(stored: &mut [u8], version: Version) {
    stored[2..10].copy_from_slice(&version.get().to_le_bytes());
}

/// Replaces the contents of `head` by the bytes before the payload of `value`.
pub fn write_head(version: Version, value: &Value, head: &mut Vec<u8>) {
    head.clear();
    let own = value.attributes.as_deref();
    let record = Record {
        version,
        expires_at_ms: own.and_then(|own| own.expires_at_ms),
        modified_ms: own.and_then(|own| own.modified_ms),
        metadata: own.map_or(&[], |own| &own.metadata),
        payload: &[],
    };
    record.encode_head(head);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(record: &Record<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.encode_head(&mut bytes);
        bytes.extend_from_slice(record.payload);
        bytes
    }

    proptest! {
        #[test]
        fn an_encoded_record_decodes_to_itself(
            version in 1_u64..,
            (expiry, modified) in any::<(u64, u64)>(),
            metadata in proptest::collection::vec(any::<u8>(), 0..40),
            payload in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let record = Record {
                version: Version::new(version),
                expires_at_ms: NonZeroU64::new(expiry),
                modified_ms: NonZeroU64::new(modified),
                metadata: &metadata,
                payload: &payload,
            };
            let bytes = encode(&record);
            prop_assert_eq!(Record::decode(&bytes), Ok(record));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Record::decode(&bytes);
        }
    }

    #[test]
    fn the_documented_example_matches_the_encoder() {
        // docs/storage-format.md contains the same bytes.
        let (version, expires_at_ms, modified_ms) = (Version::new(258), None, None);
        let record = Record { version, expires_at_ms, modified_ms, metadata: &[], payload: b"hello" };
        let bytes = encode(&record);
        assert_eq!(bytes, b"\x01\x00\x02\x01\x00\x00\x00\x00\x00\x00hello");
        let mut head = Vec::new();
        write_head(version, &Value::default(), &mut head);
        assert_eq!(&bytes[..10], head);
        let own = Attributes {
            expires_at_ms: NonZeroU64::new(2_000_000_000_000),
            modified_ms: NonZeroU64::new(1_800_000_000_000),
            metadata: Bytes::from_static(b"m"),
        };
        let value = Value { payload: Bytes::from_static(b"hello"), attributes: Some(Box::new(own)) };
        write_head(version, &value, &mut head);
        let (versions, times) = (b"\x01\x07\x02\x01\x00\x00\x00\x00\x00\x00", b"\x00\x20\x4a\xa9\xd1\x01\x00\x00");
        let documented = [&versions[..], times, b"\x00\x50\x5c\x18\xa3\x01\x00\x00\x01\x00\x00\x00m"].concat();
        assert_eq!(head, documented);
        assert_eq!(Record::decode(&[&head[..], b"hello"].concat()).expect("valid").value(), value);
    }

    #[test]
    fn unknown_formats_and_flags_are_rejected() {
        let (version, expires_at_ms, modified_ms) = (Version::new(1), None, None);
        let mut bytes = encode(&Record { version, expires_at_ms, modified_ms, metadata: &[], payload: b"v" });
        bytes[1] = 0b1000;
        assert_eq!(Record::decode(&bytes), Err(DecodeError::UnknownFlags(0b1000)));
        bytes[0] = 2;
        assert_eq!(Record::decode(&bytes), Err(DecodeError::UnknownFormat(2)));
        assert_eq!(Record::decode(&[]), Err(DecodeError::Truncated(0)));
        assert_eq!(Record::decode(&[1, 0, 1]), Err(DecodeError::Truncated(3)));
    }

    #[test]
    fn a_record_expires_at_its_time() {
        let (version, expires_at_ms, modified_ms) = (Version::new(1), NonZeroU64::new(10), None);
        let record = Record { version, expires_at_ms, modified_ms, metadata: &[], payload: b"" };
        assert!(!record.expired(|| 9));
        assert!(record.expired(|| 10));
    }
}
