//! Scans the records of RocksDB's write-ahead logs before RocksDB reads them, and finds two defects that RocksDB does
//! not handle: records at which it hangs, and missing writes.
//!
//! ```text
//!   block of 32 KiB: │ checksum 4 │ length 2 │ type 1 │ payload … │ next record … │ fewer than 7 bytes: unused │
//!   a batch's payload: │ sequence number of its first write 8 │ number of writes 4 │ … │
//! ```
//!
//! Recycled logs have record types of their own; klad never recycles logs. If a flipped bit turns a type into one of
//! these types, RocksDB 11.12 reports the record and reads it again for ever (`db/log_reader.cc`: `ReadPhysicalRecord`
//! returns `kBadRecord` without advancing). A start would hang with one busy core and no message.
//!
//! RocksDB numbers writes without gaps. If a log ends early, RocksDB continues with the next log; only the sequence
//! numbers show that writes between the logs are missing. Writes can also be missing within a log, because at zeros in
//! place of a header, RocksDB continues in the next block. A power cut can leave such zeros in place of pages that were
//! not synced. Called by `rocksdb::open`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The size of a block. No record crosses the end of a block.
pub(super) const BLOCK_BYTES: usize = 32 << 10;
/// The size of the header before each record's payload.
pub(super) const HEADER_BYTES: usize = 7;

/// The types of records that occur only in recycled logs: complete records, parts, timestamp sizes, the predecessor
/// log.
const RECYCLED_LOG_TYPES: [u8; 6] = [5, 6, 7, 8, 11, 131];

/// The types of records that begin a batch: a complete batch, or its first part.
pub(super) const BATCH_START_TYPES: [u8; 2] = [1, 2];

/// The types of records that continue a batch: a middle part, or the last part.
pub(super) const BATCH_CONTINUATION_TYPES: [u8; 2] = [3, 4];

/// The size of a batch's header: the sequence number of its first write, and the number of its writes. The header may
/// be split over several records.
pub(super) const BATCH_HEADER_BYTES: usize = 12;

/// A defect of the logs that RocksDB does not handle.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogDefect {
    /// A record at which RocksDB hangs.
    HangingRecord {
        /// The log.
        log: PathBuf,
        /// The position of the record in bytes.
        position: u64,
    },
    /// Writes are missing between two logs, within a log, or between the tables and the first log.
    Gap {
        /// The log with the first write after the gap.
        log: PathBuf,
        /// The sequence number of the last write before the gap.
        last_before: u64,
    },
}

/// The result of scanning one log.
#[derive(Debug, Default, PartialEq, Eq)]
struct LogFileScan {
    /// The position of the first record at which RocksDB hangs.
    hanging_record: Option<u64>,
    /// The sequence numbers of the first and the last write. `None` if there is no write, or if there is damage before
    /// the first write. RocksDB reports such damage and recovers nothing from this log.
    writes: Option<(u64, u64)>,
    /// The sequence number of the last write before the first gap.
    gap: Option<u64>,
    /// The part of the header of an unfinished batch that was read so far.
    header: Option<Vec<u8>>,
    /// The sequence number of the last write in the tables and the logs before this one.
    last_before: u64,
    /// Whether a record was damaged. RocksDB itself reports such a record and recovers nothing after it.
    damaged: bool,
}

/// The result of scanning all logs.
#[derive(Debug, Default)]
pub(super) struct LogScan {
    /// The first defect.
    pub(super) defect: Option<LogDefect>,
    /// The sequence number of the last write before the defect.
    pub(super) last_write: u64,
}

/// The place where a scan of the logs starts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScanStart {
    /// The number of the first log whose writes are not all in tables. The scan skips earlier logs.
    pub(super) first_log: u64,
    /// The sequence number of the last write in the tables.
    pub(super) last_write_in_tables: u64,
}

/// The numbers and paths of the logs in `files`, sorted by number, oldest first.
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

/// Returns the total size of the logs in `files` in bytes. Logs that cannot be read or are being removed count as 0.
pub(super) fn log_bytes(files: &Path) -> u64 {
    let logs = logs(files).into_iter().flatten();
    logs.filter_map(|(_, log)| Some(log.metadata().ok()?.len())).sum()
}

/// Scans the logs in `files` from `start` on, up to the first defect.
pub(super) fn scan(files: &Path, start: ScanStart) -> io::Result<LogScan> {
    let mut logs = logs(files)?;
    logs.retain(|(number, _)| *number >= start.first_log);
    let mut last_write = start.last_write_in_tables;
    for (_, log) in logs {
        let LogFileScan { hanging_record, writes, gap, .. } = scan_log(File::open(&log)?, last_write)?;
        if let Some(position) = hanging_record {
            return Ok(LogScan { defect: Some(LogDefect::HangingRecord { log, position }), last_write });
        }
        let Some((first, last)) = writes else { continue };
        if first > last_write + 1 {
            return Ok(LogScan { defect: Some(LogDefect::Gap { log, last_before: last_write }), last_write });
        }
        if let Some(last_before) = gap {
            return Ok(LogScan { defect: Some(LogDefect::Gap { log, last_before }), last_write: last_before });
        }
        last_write = last_write.max(last);
    }
    Ok(LogScan { defect: None, last_write })
}

/// Scans one log. `last_before` is the last write in the tables and the earlier logs.
fn scan_log(mut log: impl Read, last_before: u64) -> io::Result<LogFileScan> {
    let mut scan = LogFileScan { last_before, ..LogFileScan::default() };
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    let mut block_start = 0;
    loop {
        block.clear();
        let count = log.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut block)?;
        if let Some(position) = scan.scan_block(&block) {
            scan.hanging_record = Some(block_start + position as u64);
            return Ok(scan);
        }
        block_start += count as u64;
        if count < BLOCK_BYTES {
            return Ok(scan);
        }
    }
}

impl LogFileScan {
    /// Scans a block, and returns the position of a record at which RocksDB hangs, if there is one. As in RocksDB, an
    /// incomplete or damaged record ends the block.
    fn scan_block(&mut self, block: &[u8]) -> Option<usize> {
        let mut position = 0;
        while let Some((header, rest)) = block.get(position..).and_then(|rest| rest.split_at_checked(HEADER_BYTES)) {
            let (kind, length) = (header[6], usize::from(u16::from_le_bytes([header[4], header[5]])));
            if RECYCLED_LOG_TYPES.contains(&kind) {
                return Some(position);
            }
            if (kind, length) == (0, 0) {
                // RocksDB skips the rest of the block without checking the checksum.
                return None;
            }
            let Some(payload) = rest.get(..length).filter(|payload| is_valid(header, payload)) else {
                self.damaged = true;
                return None;
            };
            self.add_record(kind, payload);
            position += HEADER_BYTES + length;
        }
        None
    }

    /// Collects the header of a batch from the records that contain the batch.
    fn add_record(&mut self, kind: u8, payload: &[u8]) {
        if BATCH_START_TYPES.contains(&kind) {
            self.header = Some(Vec::with_capacity(BATCH_HEADER_BYTES));
        } else if !BATCH_CONTINUATION_TYPES.contains(&kind) {
            return;
        }
        let Some(mut header) = self.header.take() else { return };
        header.extend(payload.iter().take(BATCH_HEADER_BYTES - header.len()));
        if header.len() < BATCH_HEADER_BYTES {
            self.header = Some(header);
        } else if let Some((first, count)) = parse_batch_header(&header) {
            self.add_batch(first, (first + count).saturating_sub(1));
        }
    }

    /// Adds a batch with the writes `first` to `last`.
    fn add_batch(&mut self, first: u64, last: u64) {
        let Some((log_first, log_last)) = self.writes else {
            self.writes = (!self.damaged).then_some((first, last));
            return;
        };
        if first > log_last.max(self.last_before) + 1 && !self.damaged {
            self.gap = self.gap.or(Some(log_last.max(self.last_before)));
        }
        self.writes = Some((log_first, log_last.max(last)));
    }
}

/// Parses the sequence number of a batch's first write, and the number of its writes. `None` for an empty batch, with
/// which RocksDB begins each log.
fn parse_batch_header(header: &[u8]) -> Option<(u64, u64)> {
    let first = u64::from_le_bytes(header.get(..8)?.try_into().ok()?);
    let count = u32::from_le_bytes(header.get(8..BATCH_HEADER_BYTES)?.try_into().ok()?);
    (count > 0).then_some((first, u64::from(count)))
}

/// Whether the checksum in a record's header is that of its type and `payload`.
pub(super) fn is_valid(header: &[u8], payload: &[u8]) -> bool {
    let stored = unmask(u32::from_le_bytes([header[0], header[1], header[2], header[3]]));
    crc32c::crc32c_append(crc32c::crc32c(&[header[6]]), payload) == stored
}

/// Undoes RocksDB's masking of a stored checksum (RocksDB, `util/crc32c.h`).
fn unmask(stored: u32) -> u32 {
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

    fn hanging_record(log: &[u8]) -> Option<u64> {
        scan_log(log, 0).expect("read").hanging_record
    }

    fn batch(first: u64, count: u32) -> Vec<u8> {
        record(1, &[&first.to_le_bytes()[..], &count.to_le_bytes(), b"puts"].concat())
    }

    #[test]
    fn a_gap_between_two_logs_is_found() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let write = |number: u64, batches: &[Vec<u8>]| {
            fs::write(directory.path().join(format!("{number:06}.log")), batches.concat()).expect("written");
        };
        let find_from = |first_log, last_write_in_tables| {
            scan(directory.path(), ScanStart { first_log, last_write_in_tables }).expect("read").defect
        };
        let find = || find_from(0, 4);
        write(9, &[batch(5, 2), batch(7, 1)]);
        write(12, &[batch(8, 3)]);
        assert_eq!(find(), None);
        write(9, &[batch(5, 2)]);
        let log = directory.path().join("000012.log");
        assert_eq!(find(), Some(LogDefect::Gap { log: log.clone(), last_before: 6 }));
        assert_eq!(find_from(10, 6), Some(LogDefect::Gap { log: log.clone(), last_before: 6 }));
        assert_eq!(find_from(10, 7), None, "the scan skips the log before it");
        // A log whose first record is damaged is no gap; RocksDB reports it.
        let mut damaged = [batch(9, 1), vec![0; BLOCK_BYTES]].concat();
        damaged.truncate(BLOCK_BYTES);
        damaged[HEADER_BYTES] ^= 1;
        write(12, &[damaged, batch(10, 1)]);
        assert_eq!(find_from(0, 4), None);
        write(12, &[batch(8, 3)]);
        // An empty log is no gap.
        write(9, &[batch(5, 3)]);
        write(10, &[]);
        assert_eq!(find(), None);
    }

    #[test]
    fn a_gap_at_zeros_within_a_log_is_found() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let log = directory.path().join("000009.log");
        let find = |blocks: [&[Vec<u8>]; 3]| {
            let block = |records: &[Vec<u8>]| {
                let mut block = records.concat();
                block.resize(BLOCK_BYTES, 0);
                block
            };
            fs::write(&log, blocks.map(block).concat()).expect("written");
            scan(directory.path(), ScanStart { first_log: 0, last_write_in_tables: 4 }).expect("read")
        };
        let gap = Some(LogDefect::Gap { log: log.clone(), last_before: 6 });
        let found = find([&[batch(5, 2)], &[], &[batch(7, 1)]]);
        assert_eq!((found.defect, found.last_write), (None, 7), "nothing is missing");
        let found = find([&[batch(5, 2)], &[], &[batch(8, 1)]]);
        assert_eq!((found.defect, found.last_write), (gap, 6));
        // The first block may be all zeros, or contain only the empty batch with which RocksDB begins a log.
        let gap = || Some(LogDefect::Gap { log: log.clone(), last_before: 4 });
        assert_eq!(find([&[], &[batch(7, 1)], &[]]).defect, gap());
        assert_eq!(find([&[batch(5, 0)], &[], &[batch(7, 1)]]).defect, gap());
        assert_eq!(find([&[], &[batch(5, 1)], &[]]).defect, None);
        // RocksDB itself reports a damaged record.
        let damaged = {
            let mut record = batch(7, 1);
            record[HEADER_BYTES] ^= 1;
            record
        };
        assert_eq!(find([&[batch(5, 2)], &[damaged], &[batch(8, 1)]]).defect, None);
        // Missing writes that the tables contain are no gap.
        fs::write(&log, [batch(1, 1), batch(3, 1), batch(4, 3)].concat()).expect("written");
        let start = ScanStart { first_log: 0, last_write_in_tables: 4 };
        assert_eq!(scan(directory.path(), start).expect("read").defect, None);
    }

    #[test]
    fn a_batch_header_may_be_split_anywhere() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let whole = [&5_u64.to_le_bytes()[..], &2_u32.to_le_bytes(), b"puts"].concat();
        for cut in 0..whole.len() {
            let (first, last) = whole.split_at(cut);
            let log = [batch(4, 1), record(2, first), record(4, last), batch(7, 1)].concat();
            fs::write(directory.path().join("000009.log"), log).expect("written");
            let start = ScanStart { first_log: 0, last_write_in_tables: 3 };
            let found = scan(directory.path(), start).expect("read");
            assert_eq!((found.defect, found.last_write), (None, 7), "cut after {cut} bytes");
        }
    }

    #[test]
    fn a_flipped_bit_of_a_record_type_is_found_if_rocksdb_hangs_at_it() {
        let whole = [record(1, b"first"), record(1, &vec![7; 30_000]), record(2, &vec![9; 1_000])].concat();
        assert_eq!(hanging_record(&whole), None);
        let kind = record(1, b"first").len() + 6;
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[kind] ^= 1 << bit;
            let hangs = RECYCLED_LOG_TYPES.contains(&(1 ^ (1 << bit)));
            assert_eq!(hanging_record(&flipped).is_some(), hangs, "bit {bit}");
        }
        // After a damaged record, RocksDB and the scan skip the rest of the block, but read the next block.
        let mut damaged = [record(1, b"first"), record(5, b"second")].concat();
        damaged[HEADER_BYTES] ^= 1;
        assert_eq!(hanging_record(&damaged), None);
        damaged.resize(BLOCK_BYTES, 0);
        damaged.extend(record(5, b"third"));
        assert_eq!(hanging_record(&damaged), Some(BLOCK_BYTES as u64));
    }

    #[test]
    fn only_log_files_count_as_the_log() {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, bytes) in [("000004.log", 10), ("000007.log", 5), ("000005.sst", 100), ("LOG", 1000)] {
            fs::write(directory.path().join(name), vec![0; bytes]).expect("written");
        }
        assert_eq!(log_bytes(directory.path()), 15);
        assert_eq!(log_bytes(&directory.path().join("nowhere")), 0);
    }
}
