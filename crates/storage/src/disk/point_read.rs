//! Decodes the record that a point read has found. Called by the engines on disk.

use bytes::Bytes;

use crate::disk::record::Record;
use crate::limits::CACHED_VALUE_BYTES_MAX;
use crate::operation::{Error, Outcome};
use crate::{Reply, Result};
use klad_base::clock;

/// The result of a point read.
pub(crate) struct PointRead {
    /// The result for the client.
    pub(crate) result: Result,
    /// Whether the result stays valid until the next write of the key, so that a cache may keep it.
    #[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "only the value cache reads it"))]
    pub(crate) cacheable: bool,
}

impl PointRead {
    /// The key is absent.
    pub(crate) const NOT_FOUND: PointRead = PointRead { result: Ok(Outcome::NotFound), cacheable: false };

    /// Decodes a stored record and copies its value.
    pub(crate) fn decode(stored: &[u8]) -> PointRead {
        let record = match Record::decode(stored) {
            Ok(record) => record,
            Err(error) => return PointRead::failed(Error::Unreadable { why: error.to_string() }),
        };
        if record.expired(clock::unix_ms) {
            return PointRead::NOT_FOUND;
        }
        let result = Ok(Outcome::Found { version: record.version, value: Bytes::copy_from_slice(record.payload) });
        PointRead { result, cacheable: record.expires_at_ms.is_none() }
    }

    /// As [`PointRead::decode`], but fails if `reply` does not admit the copy of a large value.
    pub(crate) fn decode_if_admitted(stored: &[u8], reply: &dyn Reply) -> PointRead {
        if stored.len() > CACHED_VALUE_BYTES_MAX && !reply.admits(stored.len()) {
            return PointRead::failed(Error::NoRoom { bytes: stored.len() as u64 });
        }
        PointRead::decode(stored)
    }

    /// The read failed.
    pub(crate) fn failed(error: Error) -> PointRead {
        PointRead { result: Err(error), cacheable: false }
    }
}
