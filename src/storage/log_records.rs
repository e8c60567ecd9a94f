//! Walks the records of RocksDB's write-ahead logs before RocksDB does, and finds those that it would never get past.
//!
//! ```text
//!   block of 32 KiB: │ checksum 4 │ length 2 │ kind 1 │ payload … │ next record … │ fewer than 7 bytes: nothing │
//! ```
//!
//! A log that is used again has records of kinds of their own; klad's logs never are. Where one bit of a kind is flipped so
//! that it looks like one of those, RocksDB 11.12 reports it and reads it again, for ever (`db/log_reader.cc`,
//! `ReadPhysicalRecord` gives back `kBadRecord` without moving on): a start would hang with one core busy, and say nothing.
//! Everything else that can be wrong with a log RocksDB notices by itself. Called by `rocksdb_open`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

const BLOCK_BYTES: usize = 32 << 10;
const HEADER_BYTES: usize = 7;

/// Kinds of records in logs that are used again: whole and in parts, sizes of timestamps, what the last log was.
const OF_LOGS_USED_AGAIN: [u8; 6] = [5, 6, 7, 8, 11, 131];

/// The first record that RocksDB would not get past: in which log, at which byte.
pub(super) fn first_endless(files: &Path) -> io::Result<Option<(PathBuf, u64)>> {
    for entry in fs::read_dir(files)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log")
            && let Some(position) = endless_in(File::open(&path)?)?
        {
            return Ok(Some((path, position)));
        }
    }
    Ok(None)
}

fn endless_in(mut log: impl Read) -> io::Result<Option<u64>> {
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    let mut before = 0;
    loop {
        block.clear();
        let count = log.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut block)?;
        if let Some(position) = endless_in_block(&block) {
            return Ok(Some(before + position as u64));
        }
        before += count as u64;
        if count < BLOCK_BYTES {
            return Ok(None);
        }
    }
}

/// As RocksDB reads a block: after a record that is not whole, or not what was written, the rest of the block counts for
/// nothing.
fn endless_in_block(block: &[u8]) -> Option<usize> {
    let mut position = 0;
    while let Some((header, rest)) = block.get(position..)?.split_at_checked(HEADER_BYTES) {
        let (kind, length) = (header[6], usize::from(u16::from_le_bytes([header[4], header[5]])));
        if OF_LOGS_USED_AGAIN.contains(&kind) {
            return Some(position);
        }
        let payload = rest.get(..length)?;
        let expected = unmasked(u32::from_le_bytes([header[0], header[1], header[2], header[3]]));
        if crc32c::crc32c_append(crc32c::crc32c(&[kind]), payload) != expected {
            return None;
        }
        position += HEADER_BYTES + length;
    }
    None
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

    #[test]
    fn a_flipped_kind_is_found_and_nothing_else() {
        let whole = [record(1, b"first"), record(1, &vec![7; 30_000]), record(2, &vec![9; 1_000])].concat();
        assert_eq!(endless_in(&whole[..]).expect("read"), None);
        let kind = record(1, b"first").len() + 6;
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[kind] ^= 1 << bit;
            let endless = OF_LOGS_USED_AGAIN.contains(&(1 ^ (1 << bit)));
            assert_eq!(endless_in(&flipped[..]).expect("read").is_some(), endless, "bit {bit}");
        }
        // What stands behind a damaged record of the same block is not looked at, by RocksDB neither; the next block is.
        let mut damaged = [record(1, b"first"), record(5, b"second")].concat();
        damaged[HEADER_BYTES] ^= 1;
        assert_eq!(endless_in(&damaged[..]).expect("read"), None);
        damaged.resize(BLOCK_BYTES, 0);
        damaged.extend(record(5, b"third"));
        assert_eq!(endless_in(&damaged[..]).expect("read"), Some(BLOCK_BYTES as u64));
    }
}
