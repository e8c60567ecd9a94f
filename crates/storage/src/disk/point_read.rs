//! What a point read of stored bytes has found, as an answer. Called by the engines that keep files.

use bytes::Bytes;

use crate::disk::record::Record;
use crate::operation::{Error, Outcome};
use crate::{Reply, Result};
use klad_base::clock;
use klad_base::limits::CACHED_VALUE_BYTES_MAX;

/// What a point read has found.
pub(crate) struct Read {
    /// As it is told.
    pub(crate) answer: Result,
    /// It is the same until the next write.
    #[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "only a cache of values asks"))]
    pub(crate) lasts: bool,
}

impl Read {
    /// There is none.
    pub(crate) const NOT_FOUND: Read = Read { answer: Ok(Outcome::NotFound), lasts: false };

    /// Of a stored record.
    pub(crate) fn of(stored: &[u8]) -> Read {
        let record = match Record::decode(stored) {
            Ok(record) => record,
            Err(error) => return Read::failed(Error::Unreadable { why: error.to_string() }),
        };
        if record.expired(clock::unix_ms) {
            return Read::NOT_FOUND;
        }
        let answer = Ok(Outcome::Found { version: record.version, value: Bytes::copy_from_slice(record.payload) });
        Read { answer, lasts: record.expires_at_ms.is_none() }
    }

    /// The same, if there is room for the copy.
    pub(crate) fn with_room(stored: &[u8], reply: &dyn Reply) -> Read {
        if stored.len() > CACHED_VALUE_BYTES_MAX && !reply.admits(stored.len()) {
            return Read::failed(Error::NoRoom { bytes: stored.len() as u64 });
        }
        Read::of(stored)
    }

    /// It could not be read.
    pub(crate) fn failed(error: Error) -> Read {
        Read { answer: Err(error), lasts: false }
    }
}
