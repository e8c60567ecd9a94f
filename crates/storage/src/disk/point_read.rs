//! Decodes the records that point reads have found. Called by the engines on disk.

use crate::disk::record::Record;
use crate::limits::CACHED_VALUE_BYTES_MAX;
use crate::operation::{ChangeError, ChangeResult, Error, Outcome};
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
            Err(error) => return PointRead::failed(error.into()),
        };
        if record.expired(clock::unix_ms) {
            return PointRead::NOT_FOUND;
        }
        let result = Ok(Outcome::Found { version: record.version, value: record.value() });
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

/// The results of reading many keys, with a limit on the size of all values.
pub(crate) struct ReadMany {
    results: Vec<ChangeResult>,
    bytes_left: usize,
}

impl ReadMany {
    pub(crate) fn new(bytes_max: usize) -> ReadMany {
        ReadMany { results: Vec::new(), bytes_left: bytes_max }
    }

    /// Adds the result for the next key: its stored record, or `None` if it has none.
    pub(crate) fn add(&mut self, stored: Option<&[u8]>) -> std::result::Result<(), Error> {
        let record = stored.map(Record::decode).transpose()?;
        let Some(record) = record.filter(|record| !record.expired(clock::unix_ms)) else {
            self.results.push(ChangeResult::Read(None));
            return Ok(());
        };
        let bytes = record.payload.len() + record.metadata.len();
        self.results.push(match self.bytes_left.checked_sub(bytes) {
            Some(left) => {
                self.bytes_left = left;
                ChangeResult::Read(Some((record.version, record.value())))
            }
            None => ChangeResult::Failed(ChangeError::NoRoom),
        });
        Ok(())
    }

    pub(crate) fn finish(self) -> Outcome {
        Outcome::FoundMany(self.results)
    }
}
