//! Reads the batches of one log from a position on: the records of the file, the batches in the records, and the
//! entries in a batch. `log_records` draws the format of the records.
//!
//! ```text
//!   batch: │ sequence number 8 │ number of writes 4 │ entries … │
//!   entry: │ kind 1 │ length, varint │ key │ length, varint │ value or end of a range │
//!   note:  │ kind 3 │ length, varint │ format 1 │ flags 1 │ version 8, little-endian │   before each removal
//! ```
//!
//! The version of a put is in its value. A removal has no value, so the commit section writes a note, which has the
//! version, before the removal. RocksDB skips notes (`PutLogData`), and notes have no sequence number.
//!
//! The reader holds one block of the file and one entry in memory, however large the batch is. A value that is not
//! wanted is skipped. Called by `change_log`.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use bytes::Bytes;

use crate::changes::{CHANGED_OVERHEAD_BYTES, Changed, What};
use crate::disk::record::Record;
use crate::operation::{Value, Version};
use crate::rocksdb::log_records::{
    BATCH_CONTINUATION_TYPES, BATCH_HEADER_BYTES, BATCH_START_TYPES, BLOCK_BYTES, HEADER_BYTES, is_valid,
};

/// Kinds of entries in a batch (RocksDB, `db/dbformat.h`).
const DELETION: u8 = 0x0;
const PUT: u8 = 0x1;
const NOTE: u8 = 0x3;
const RANGE_DELETION: u8 = 0xF;

/// The first byte of klad's notes.
const NOTE_FORMAT: u8 = 1;
/// The flag of a range removal that reaches to the last key.
const NOTE_OPEN_END: u8 = 1;
const NOTE_BYTES: usize = 10;

/// The fields of a stored record before its payload fit into this many bytes, because the metadata has at most 4 KiB
/// and the other fields are short.
const RECORD_HEAD_BYTES_MAX: u64 = 16 << 10;

/// The number of bytes at the start of a stored record that include its version.
const RECORD_VERSION_BYTES: u64 = 10;

/// Why a log cannot be read further.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The kernel returned an error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// In the middle of a batch, the log has no more records, or they are damaged.
    #[error("a batch of the log is incomplete")]
    Incomplete,
    /// A batch has an entry that this klad does not write.
    #[error("a batch of the log has an unknown entry: {0}")]
    Unknown(&'static str),
    /// A removal has no version, because a klad without change feeds has written it.
    #[error("a removal in the log has no version")]
    NoVersion,
}

/// Makes the note that comes before a removal in the log.
pub(in crate::rocksdb) fn note(version: u64, open_end: bool) -> [u8; NOTE_BYTES] {
    let mut note = [0; NOTE_BYTES];
    note[..2].copy_from_slice(&[NOTE_FORMAT, if open_end { NOTE_OPEN_END } else { 0 }]);
    note[2..].copy_from_slice(&version.to_le_bytes());
    note
}

fn read_note(note: &[u8]) -> Option<(u64, bool)> {
    let (&[NOTE_FORMAT, flags], version) = note.split_first_chunk::<2>()? else { return None };
    Some((u64::from_le_bytes(version.try_into().ok()?), flags & NOTE_OPEN_END != 0))
}

/// The head of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    /// The position in the log of the batch's first record, bytes.
    pub(super) start: u64,
    /// The sequence number of the batch's first write.
    pub(super) first: u64,
    /// The number of writes in the batch.
    pub(super) count: u64,
}

/// Which changes a caller wants, and whether with values.
pub(super) struct Wanted<'w> {
    /// The caller wants only changes with greater versions.
    pub(super) after: u64,
    /// The caller wants only changes of keys with this prefix.
    pub(super) prefix: &'w [u8],
    /// Whether values are copied.
    pub(super) values: bool,
    /// If values are copied, a put that needs more bytes than this is not read.
    pub(super) bytes_max: usize,
}

/// A change of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A change that the caller wants.
    Wanted(Changed),
    /// A change that the caller does not want, with its version.
    Other(u64),
    /// A change that the caller wants, but that needs this many bytes, more than `bytes_max`.
    TooLarge(usize),
}

/// Reads the records of one file.
struct Records {
    file: File,
    /// The bytes of the file from `block_start` to the end of the block.
    block: Vec<u8>,
    block_start: u64,
    /// The position of the next record in `block`.
    at: usize,
}

impl Records {
    fn load(&mut self, position: u64) -> io::Result<()> {
        let block_bytes = BLOCK_BYTES as u64;
        let left = usize::try_from(block_bytes - position % block_bytes).expect("at most a block");
        self.block.resize(left, 0);
        let mut read = 0;
        while read < left {
            match self.file.read_at(&mut self.block[read..], position + read as u64) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.block.truncate(read);
        (self.block_start, self.at) = (position, 0);
        Ok(())
    }

    /// Returns the kind and the payload of the next valid record. As in RocksDB, zeros and a damaged record end a
    /// block. The caller notices missing batches by their sequence numbers.
    fn next(&mut self) -> io::Result<Option<(u8, Range<usize>)>> {
        loop {
            if let Some((header, rest)) = self.block.get(self.at..).and_then(|rest| rest.split_at_checked(HEADER_BYTES))
            {
                let (kind, length) = (header[6], usize::from(u16::from_le_bytes([header[4], header[5]])));
                let is_record = (kind, length) != (0, 0);
                if is_record && rest.get(..length).is_some_and(|payload| is_valid(header, payload)) {
                    let start = self.at + HEADER_BYTES;
                    self.at = start + length;
                    return Ok(Some((kind, start..start + length)));
                }
            }
            let block_bytes = BLOCK_BYTES as u64;
            self.load((self.block_start / block_bytes + 1) * block_bytes)?;
            if self.block.is_empty() {
                return Ok(None);
            }
        }
    }
}

/// Reads the batches of one log.
pub(super) struct BatchReader {
    records: Records,
    /// The part of the batch's current record that has not been read.
    piece: Range<usize>,
    /// The number of the batch's writes that have not been read.
    left: u64,
}

impl BatchReader {
    /// Begins at `position`, which must be the start of a record, or of a block.
    pub(super) fn new(file: File, position: u64) -> io::Result<BatchReader> {
        let mut records = Records { file, block: Vec::new(), block_start: 0, at: 0 };
        records.load(position)?;
        Ok(BatchReader { records, piece: 0..0, left: 0 })
    }

    /// The position after the last record that was read.
    pub(super) fn position(&self) -> u64 {
        self.records.block_start + self.records.at as u64
    }

    /// Goes to the next batch that has writes. `None` at the end of the log.
    pub(super) fn next_batch(&mut self) -> io::Result<Option<Batch>> {
        loop {
            let Some((kind, payload)) = self.records.next()? else { return Ok(None) };
            if !BATCH_START_TYPES.contains(&kind) {
                continue;
            }
            let start = self.records.block_start + (payload.start - HEADER_BYTES) as u64;
            self.piece = payload;
            let mut header = [0; BATCH_HEADER_BYTES];
            match self.read_exact(&mut header) {
                Ok(()) => {}
                Err(Error::Io(error)) => return Err(error),
                Err(_) => continue,
            }
            let (first, count) = header.split_at(8);
            let first = u64::from_le_bytes(first.try_into().expect("eight bytes"));
            let count = u64::from(u32::from_le_bytes(count.try_into().expect("four bytes")));
            if count > 0 {
                self.left = count;
                return Ok(Some(Batch { start, first, count }));
            }
        }
    }

    /// Reads the next change of the batch. `None` at the end of the batch.
    pub(super) fn next_entry(&mut self, wanted: &Wanted<'_>) -> Result<Option<Entry>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        let mut noted = None;
        loop {
            let kind = self.byte()?;
            if kind == NOTE {
                let length = self.varint()?;
                noted = read_note(&self.bytes(length)?);
                continue;
            }
            self.left -= 1;
            let length = self.varint()?;
            let key = Bytes::from(self.bytes(length)?);
            let is_wanted = |version| version > wanted.after && key.starts_with(wanted.prefix);
            let (version, what) = match kind {
                PUT => return self.put(key, wanted).map(Some),
                DELETION => {
                    let (version, _) = noted.ok_or(Error::NoVersion)?;
                    if !is_wanted(version) {
                        return Ok(Some(Entry::Other(version)));
                    }
                    (version, What::Delete { key })
                }
                RANGE_DELETION => {
                    let length = self.varint()?;
                    let end = Bytes::from(self.bytes(length)?);
                    let (version, open_end) = noted.ok_or(Error::NoVersion)?;
                    let before = !key.starts_with(wanted.prefix) && key.as_ref() > wanted.prefix;
                    if version <= wanted.after || before || (end.as_ref() <= wanted.prefix) {
                        return Ok(Some(Entry::Other(version)));
                    }
                    (version, What::DeleteRange { start: key, end: (!open_end).then_some(end) })
                }
                _ => return Err(Error::Unknown("a kind that klad never writes")),
            };
            return Ok(Some(Entry::Wanted(Changed { version: Version::new(version), what })));
        }
    }

    fn put(&mut self, key: Bytes, wanted: &Wanted<'_>) -> Result<Entry, Error> {
        let length = self.varint()?;
        let mut stored = self.bytes(length.min(RECORD_VERSION_BYTES))?;
        let version = stored.get(2..10).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        let version = version.filter(|version| *version > 0).ok_or(Error::Unknown("a value without a version"))?;
        let rest = length - stored.len() as u64;
        if version <= wanted.after || !key.starts_with(wanted.prefix) {
            self.skip(rest)?;
            return Ok(Entry::Other(version));
        }
        let copied = if wanted.values { rest } else { rest.min(RECORD_HEAD_BYTES_MAX) };
        let needed = key.len() + usize::try_from(copied).unwrap_or(usize::MAX) + CHANGED_OVERHEAD_BYTES;
        if wanted.values && needed > wanted.bytes_max {
            return Ok(Entry::TooLarge(needed));
        }
        // At most `bytes_max`, or without values `RECORD_HEAD_BYTES_MAX` and the overhead. So a damaged length cannot
        // reserve more.
        stored.reserve_exact(needed - key.len());
        self.append(copied, &mut stored)?;
        self.skip(rest - copied)?;
        let stored = Bytes::from(stored);
        let record = Record::decode(&stored).map_err(|_| Error::Unknown("a value that klad cannot decode"))?;
        let value_bytes = record.payload.len() as u64 + (rest - copied);
        // The payload is a slice of `stored`, not another copy.
        let payload = if wanted.values { stored.slice_ref(record.payload) } else { Bytes::new() };
        let value = Value { payload, attributes: record.attributes() };
        Ok(Entry::Wanted(Changed { version: Version::new(version), what: What::Put { key, value, value_bytes } }))
    }

    /// Makes `piece` the payload of the batch's next record.
    fn next_piece(&mut self) -> Result<(), Error> {
        let at = self.records.at;
        match self.records.next()? {
            Some((kind, payload)) if BATCH_CONTINUATION_TYPES.contains(&kind) => {
                self.piece = payload;
                Ok(())
            }
            Some((_, payload)) => {
                // The record belongs to another batch, which `next_batch` must find.
                self.records.at = payload.start - HEADER_BYTES;
                Err(Error::Incomplete)
            }
            None => {
                self.records.at = self.records.at.max(at.min(self.records.block.len()));
                Err(Error::Incomplete)
            }
        }
    }

    fn byte(&mut self) -> Result<u8, Error> {
        let mut byte = [0];
        self.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    fn varint(&mut self) -> Result<u64, Error> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::Unknown("a length of more than 32 bits"))
    }

    fn read_exact(&mut self, mut into: &mut [u8]) -> Result<(), Error> {
        while !into.is_empty() {
            if self.piece.is_empty() {
                self.next_piece()?;
                continue;
            }
            let count = self.piece.len().min(into.len());
            let (head, tail) = into.split_at_mut(count);
            head.copy_from_slice(&self.records.block[self.piece.start..self.piece.start + count]);
            self.piece.start += count;
            into = tail;
        }
        Ok(())
    }

    fn bytes(&mut self, length: u64) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.append(length, &mut bytes)?;
        Ok(bytes)
    }

    /// Appends the next `length` bytes. Grows `into` only by bytes that the log has, so that a damaged length reserves
    /// no memory.
    fn append(&mut self, length: u64, into: &mut Vec<u8>) -> Result<(), Error> {
        self.pieces(length, |bytes| into.extend_from_slice(bytes))
    }

    fn skip(&mut self, length: u64) -> Result<(), Error> {
        self.pieces(length, |_| {})
    }

    fn pieces(&mut self, mut length: u64, mut each: impl FnMut(&[u8])) -> Result<(), Error> {
        while length > 0 {
            if self.piece.is_empty() {
                self.next_piece()?;
                continue;
            }
            let count = self.piece.len().min(usize::try_from(length).unwrap_or(usize::MAX));
            each(&self.records.block[self.piece.start..self.piece.start + count]);
            self.piece.start += count;
            length -= count as u64;
        }
        Ok(())
    }
}
