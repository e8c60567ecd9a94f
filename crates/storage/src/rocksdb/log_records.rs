//! Walks the records of RocksDB's write-ahead logs before RocksDB does, and finds what it would not notice: records that it
//! would never get past, and writes that are missing between two logs.
//!
//! ```text
//!   block of 32 KiB: │ checksum 4 │ length 2 │ kind 1 │ payload … │ next record … │ fewer than 7 bytes: nothing │
//!   a batch's payload: │ number of its first write 8 │ how many 4 │ … │
//! ```
//!
//! A log that is used again has records of kinds of their own; klad's logs never are. Where one bit of a kind is flipped so
//! that it looks like one of those, RocksDB 11.12 reports it and reads it again, for ever (`db/log_reader.cc`,
//! `ReadPhysicalRecord` gives back `kBadRecord` without moving on): a start would hang with one core busy, and say nothing.
//!
//! Writes are numbered without gaps. Each log that ends early RocksDB takes for one that ends there, and goes on with the
//! next; only the numbers tell that something stood between. So it is within a log where it finds zeros instead of a header, which a power cut
//! can leave in place of pages that were not synced: it goes on in the next block. Called by `rocksdb_open`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// No record crosses the end of such a block.
pub(super) const BLOCK_BYTES: usize = 32 << 10;
/// Before each.
pub(super) const HEADER_BYTES: usize = 7;

/// Kinds of records in logs that are used again: whole and in parts, sizes of timestamps, what the last log was.
const OF_LOGS_USED_AGAIN: [u8; 6] = [5, 6, 7, 8, 11, 131];

/// Kinds of records that begin a batch: a whole one, or the first part of one.
const BEGINS_A_BATCH: [u8; 2] = [1, 2];

/// And those that go on with it.
const GOES_ON: [u8; 2] = [3, 4];

/// Where a batch says which writes it holds; the first part may have less of it.
const BATCH_HEADER_BYTES: usize = 12;

/// What the logs hold that RocksDB would not notice.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Oddity {
    /// A record that it would never get past.
    Endless {
        /// The log.
        log: PathBuf,
        /// Where in it.
        position: u64,
    },
    /// Writes are missing between two logs, within one, or between the tables and the first log.
    Gap {
        /// The one that goes on behind it.
        log: PathBuf,
        /// The number of the last write before it.
        until: u64,
    },
}

/// What one log holds.
#[derive(Debug, Default, PartialEq, Eq)]
struct Walked {
    endless: Option<u64>,
    /// Numbers of the first write and of the last. None where something was damaged before any: RocksDB gives nothing of such a log, and says
    /// so.
    writes: Option<(u64, u64)>,
    /// The number of the last write before some that are missing, where others go on behind those.
    gap: Option<u64>,
    /// Of the batch that has begun, as much of its header as there was.
    header: Option<Vec<u8>>,
    /// Up to this number writes are there without this log.
    have: u64,
    /// Something was not what was written. RocksDB says so itself, and gives nothing of what comes then.
    damaged: bool,
}

/// What all logs together look like.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// The first oddity.
    pub(super) oddity: Option<Oddity>,
    /// The number of the last write before it.
    pub(super) last_write: u64,
}

/// Where the tables end and the logs begin.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Begin {
    /// The number of the first log whose writes are not all in tables. Earlier ones are not looked at.
    pub(super) log: u64,
    /// The number of the last write that is in tables.
    pub(super) until: u64,
}

/// Numbers and paths of the logs in `files`, in the order in which they were begun.
pub(super) fn logs(files: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut logs = Vec::new();
    for entry in fs::read_dir(files)? {
        let log = entry?.path();
        let number = log.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u64>().ok());
        if let (Some(number), Some("log")) = (number, log.extension().and_then(|extension| extension.to_str())) {
            logs.push((number, log));
        }
    }
    logs.sort();
    Ok(logs)
}

/// Looks at the logs in `files` from `begin` on.
pub(super) fn look(files: &Path, begin: Begin) -> io::Result<Looked> {
    let mut logs = logs(files)?;
    logs.retain(|(number, _)| *number >= begin.log);
    let mut last_write = begin.until;
    for (_, log) in logs {
        let Walked { endless, writes, gap, .. } = walk(File::open(&log)?, last_write)?;
        if let Some(position) = endless {
            return Ok(Looked { oddity: Some(Oddity::Endless { log, position }), last_write });
        }
        let Some((first, last)) = writes else { continue };
        if first > last_write + 1 {
            return Ok(Looked { oddity: Some(Oddity::Gap { log, until: last_write }), last_write });
        }
        if let Some(until) = gap {
            return Ok(Looked { oddity: Some(Oddity::Gap { log, until }), last_write: until });
        }
        last_write = last_write.max(last);
    }
    Ok(Looked { oddity: None, last_write })
}

fn walk(mut log: impl Read, have: u64) -> io::Result<Walked> {
    let mut walked = Walked { have, ..Walked::default() };
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    let mut before = 0;
    loop {
        block.clear();
        let count = log.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut block)?;
        if let Some(position) = walked.walk_block(&block) {
            walked.endless = Some(before + position as u64);
            return Ok(walked);
        }
        before += count as u64;
        if count < BLOCK_BYTES {
            return Ok(walked);
        }
    }
}

impl Walked {
    /// As RocksDB reads a block: after a record that is not whole, or not what was written, the rest of the block counts for
    /// nothing.
    fn walk_block(&mut self, block: &[u8]) -> Option<usize> {
        let mut position = 0;
        while let Some((header, rest)) = block.get(position..).and_then(|rest| rest.split_at_checked(HEADER_BYTES)) {
            let (kind, length) = (header[6], usize::from(u16::from_le_bytes([header[4], header[5]])));
            if OF_LOGS_USED_AGAIN.contains(&kind) {
                return Some(position);
            }
            if (kind, length) == (0, 0) {
                // Whatever its checksum is.
                return None;
            }
            let stored = unmasked(u32::from_le_bytes([header[0], header[1], header[2], header[3]]));
            let whole =
                rest.get(..length).filter(|payload| crc32c::crc32c_append(crc32c::crc32c(&[kind]), payload) == stored);
            let Some(payload) = whole else {
                self.damaged = true;
                return None;
            };
            self.part(kind, payload);
            position += HEADER_BYTES + length;
        }
        None
    }

    fn part(&mut self, kind: u8, payload: &[u8]) {
        if BEGINS_A_BATCH.contains(&kind) {
            self.header = Some(Vec::with_capacity(BATCH_HEADER_BYTES));
        } else if !GOES_ON.contains(&kind) {
            return;
        }
        let Some(mut header) = self.header.take() else { return };
        header.extend(payload.iter().take(BATCH_HEADER_BYTES - header.len()));
        if header.len() < BATCH_HEADER_BYTES {
            self.header = Some(header);
        } else if let Some((first, count)) = numbers_of(&header) {
            self.batch(first, (first + count).saturating_sub(1));
        }
    }

    fn batch(&mut self, first: u64, last: u64) {
        let Some((begin, until)) = self.writes else {
            self.writes = (!self.damaged).then_some((first, last));
            return;
        };
        if first > until.max(self.have) + 1 && !self.damaged {
            self.gap = self.gap.or(Some(until.max(self.have)));
        }
        self.writes = Some((begin, until.max(last)));
    }
}

/// Of a batch: the number of its first write, and how many it holds. RocksDB begins each log with one that holds none.
fn numbers_of(payload: &[u8]) -> Option<(u64, u64)> {
    let first = u64::from_le_bytes(payload.get(..8)?.try_into().ok()?);
    let count = u32::from_le_bytes(payload.get(8..BATCH_HEADER_BYTES)?.try_into().ok()?);
    (count > 0).then_some((first, u64::from(count)))
}

/// A stored checksum as it was computed (RocksDB, `util/crc32c.h`).
fn unmasked(stored: u32) -> u32 {
    stored.wrapping_sub(0xa282_ead8).rotate_right(17)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&[kind]), payload);
        let masked = checksum.rotate_right(15).wrapping_add(0xa282_ead8);
        let length = u16::try_from(payload.len()).expect("short");
        [&masked.to_le_bytes()[..], &length.to_le_bytes(), &[kind], payload].concat()
    }

    fn endless_in(log: &[u8]) -> io::Result<Option<u64>> {
        walk(log, 0).map(|walked| walked.endless)
    }

    fn batch(first: u64, count: u32) -> Vec<u8> {
        record(1, &[&first.to_le_bytes()[..], &count.to_le_bytes(), b"puts"].concat())
    }

    #[test]
    fn writes_that_are_missing_between_two_logs_are_found() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let write = |number: u64, batches: &[Vec<u8>]| {
            fs::write(directory.path().join(format!("{number:06}.log")), batches.concat()).expect("written");
        };
        let find_from = |log, until| look(directory.path(), Begin { log, until }).expect("read").oddity;
        let find = || find_from(0, 4);
        write(9, &[batch(5, 2), batch(7, 1)]);
        write(12, &[batch(8, 3)]);
        assert_eq!(find(), None);
        write(9, &[batch(5, 2)]);
        let log = directory.path().join("000012.log");
        assert_eq!(find(), Some(Oddity::Gap { log: log.clone(), until: 6 }));
        assert_eq!(find_from(10, 6), Some(Oddity::Gap { log: log.clone(), until: 6 }));
        assert_eq!(find_from(10, 7), None, "the log before it is not looked at");
        // Nor is one whose beginning cannot be read, which RocksDB would say.
        let mut damaged = [batch(9, 1), vec![0; BLOCK_BYTES]].concat();
        damaged.truncate(BLOCK_BYTES);
        damaged[HEADER_BYTES] ^= 1;
        write(12, &[damaged, batch(10, 1)]);
        assert_eq!(find_from(0, 4), None);
        write(12, &[batch(8, 3)]);
        // A log without a write is no gap.
        write(9, &[batch(5, 3)]);
        write(10, &[]);
        assert_eq!(find(), None);
    }

    #[test]
    fn writes_that_zeros_stand_in_place_of_are_found() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let log = directory.path().join("000009.log");
        let find = |blocks: [&[Vec<u8>]; 3]| {
            let block = |records: &[Vec<u8>]| {
                let mut block = records.concat();
                block.resize(BLOCK_BYTES, 0);
                block
            };
            fs::write(&log, blocks.map(block).concat()).expect("written");
            look(directory.path(), Begin { log: 0, until: 4 }).expect("read")
        };
        let gap = Some(Oddity::Gap { log: log.clone(), until: 6 });
        let looked = find([&[batch(5, 2)], &[], &[batch(7, 1)]]);
        assert_eq!((looked.oddity, looked.last_write), (None, 7), "nothing is missing");
        let looked = find([&[batch(5, 2)], &[], &[batch(8, 1)]]);
        assert_eq!((looked.oddity, looked.last_write), (gap, 6));
        // From the first block on, too: none of it, or no more than what RocksDB begins a log with.
        let gap = || Some(Oddity::Gap { log: log.clone(), until: 4 });
        assert_eq!(find([&[], &[batch(7, 1)], &[]]).oddity, gap());
        assert_eq!(find([&[batch(5, 0)], &[], &[batch(7, 1)]]).oddity, gap());
        assert_eq!(find([&[], &[batch(5, 1)], &[]]).oddity, None);
        // What RocksDB would notice it is left to.
        let damaged = {
            let mut record = batch(7, 1);
            record[HEADER_BYTES] ^= 1;
            record
        };
        assert_eq!(find([&[batch(5, 2)], &[damaged], &[batch(8, 1)]]).oddity, None);
        // So are writes that tables have.
        fs::write(&log, [batch(1, 1), batch(3, 1), batch(4, 3)].concat()).expect("written");
        assert_eq!(look(directory.path(), Begin { log: 0, until: 4 }).expect("read").oddity, None);
    }

    #[test]
    fn a_batch_is_counted_wherever_its_first_part_ends() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let whole = [&5_u64.to_le_bytes()[..], &2_u32.to_le_bytes(), b"puts"].concat();
        for cut in 0..whole.len() {
            let (first, last) = whole.split_at(cut);
            let log = [batch(4, 1), record(2, first), record(4, last), batch(7, 1)].concat();
            fs::write(directory.path().join("000009.log"), log).expect("written");
            let looked = look(directory.path(), Begin { log: 0, until: 3 }).expect("read");
            assert_eq!((looked.oddity, looked.last_write), (None, 7), "cut after {cut} bytes");
        }
    }

    #[test]
    fn a_flipped_kind_is_found_and_nothing_else() {
        let whole = [record(1, b"first"), record(1, &vec![7; 30_000]), record(2, &vec![9; 1_000])].concat();
        assert_eq!(endless_in(&whole).expect("read"), None);
        let kind = record(1, b"first").len() + 6;
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[kind] ^= 1 << bit;
            let endless = OF_LOGS_USED_AGAIN.contains(&(1 ^ (1 << bit)));
            assert_eq!(endless_in(&flipped).expect("read").is_some(), endless, "bit {bit}");
        }
        // What stands behind a damaged record of the same block is not looked at, by RocksDB neither; the next block is.
        let mut damaged = [record(1, b"first"), record(5, b"second")].concat();
        damaged[HEADER_BYTES] ^= 1;
        assert_eq!(endless_in(&damaged).expect("read"), None);
        damaged.resize(BLOCK_BYTES, 0);
        damaged.extend(record(5, b"third"));
        assert_eq!(endless_in(&damaged).expect("read"), Some(BLOCK_BYTES as u64));
    }
}
