//! Tests with logs that are written here, byte by byte.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::*;
use crate::changes::What;
use crate::disk::record;
use crate::operation::{Value, Version};
use crate::rocksdb::log_records::{BLOCK_BYTES, HEADER_BYTES};

/// An entry of a batch.
enum Write<'w> {
    Put(&'w str, u64, Vec<u8>),
    Delete(&'w str, u64),
    DeleteRange(&'w str, &'w str, u64, bool),
    /// As a klad without change feeds has written it.
    DeleteWithoutVersion(&'w str),
}

fn lengthy(bytes: &[u8]) -> Vec<u8> {
    let (mut length, mut out) = (bytes.len(), Vec::new());
    while length >= 0x80 {
        out.push(u8::try_from(length & 0x7F).expect("seven bits") | 0x80);
        length >>= 7;
    }
    out.push(u8::try_from(length).expect("seven bits"));
    out.extend_from_slice(bytes);
    out
}

fn batch(first: u64, writes: &[Write<'_>]) -> Vec<u8> {
    let count = u32::try_from(writes.len()).expect("few");
    let mut batch = [&first.to_le_bytes()[..], &count.to_le_bytes()].concat();
    for write in writes {
        match write {
            Write::Put(key, version, payload) => {
                let mut stored = Vec::new();
                record::write_head(Version::new(*version), &Value::default(), &mut stored);
                stored.extend_from_slice(payload);
                batch.extend([&[1], &*lengthy(key.as_bytes()), &lengthy(&stored)].concat());
            }
            Write::Delete(key, version) => {
                batch.extend([&[3], &*lengthy(&note(*version, false)), &[0], &lengthy(key.as_bytes())].concat());
            }
            Write::DeleteRange(start, end, version, open_end) => {
                batch.extend([&[3], &*lengthy(&note(*version, *open_end)), &[0xF]].concat());
                batch.extend([lengthy(start.as_bytes()), lengthy(end.as_bytes())].concat());
            }
            Write::DeleteWithoutVersion(key) => batch.extend([&[0], &*lengthy(key.as_bytes())].concat()),
        }
    }
    batch
}

/// Splits batches into records as RocksDB does.
fn log(batches: &[Vec<u8>]) -> Vec<u8> {
    let mut log = Vec::new();
    for batch in batches {
        let (mut rest, mut is_first) = (&batch[..], true);
        while is_first || !rest.is_empty() {
            let left = BLOCK_BYTES - log.len() % BLOCK_BYTES;
            if left < HEADER_BYTES {
                log.resize(log.len() + left, 0);
                continue;
            }
            let (piece, after) = rest.split_at(rest.len().min(left - HEADER_BYTES));
            let kind = match (is_first, after.is_empty()) {
                (true, true) => 1,
                (true, false) => 2,
                (false, false) => 3,
                (false, true) => 4,
            };
            let checksum = crc32c::crc32c_append(crc32c::crc32c(&[kind]), piece);
            let masked = checksum.rotate_right(15).wrapping_add(0xa282_ead8);
            log.extend_from_slice(&masked.to_le_bytes());
            log.extend_from_slice(&u16::try_from(piece.len()).expect("below a block").to_le_bytes());
            log.push(kind);
            log.extend_from_slice(piece);
            (rest, is_first) = (after, false);
        }
    }
    log
}

fn put(key: &str, version: u64) -> Write<'_> {
    Write::Put(key, version, key.as_bytes().to_vec())
}

struct Store {
    directory: tempfile::TempDir,
}

impl Store {
    fn new(logs: &[(u64, Vec<u8>)]) -> Store {
        let store = Store { directory: tempfile::tempdir().expect("a directory") };
        for (number, bytes) in logs {
            fs::write(store.directory.path().join(name_of(*number)), bytes).expect("written");
        }
        store
    }

    fn open(&self, sequence: u64, version: u64) -> ChangeLog {
        ChangeLog::new(self.directory.path(), Retention::EVERYTHING, sequence, version)
    }
}

fn step(position: Position, prefix: &'static str, bytes_max: usize) -> ChangesStep {
    ChangesStep { position, prefix: Bytes::from_static(prefix.as_bytes()), values: true, bytes_max }
}

/// Reads all changes in steps of `bytes_max`. `Err`: the oldest version that is kept.
fn read(log: &ChangeLog, from: u64, prefix: &'static str, bytes_max: usize) -> Result<Vec<(u64, What)>, u64> {
    let (mut position, mut all, mut bytes) = (Position::after(from), Vec::new(), bytes_max);
    loop {
        match log.step(&step(position, prefix, bytes)).expect("read") {
            ChangesPage::Changes { changes, next, more } => {
                all.extend(changes.into_iter().map(|changed| (changed.version.get(), changed.what)));
                (position, bytes) = (next, bytes_max);
                if !more {
                    return Ok(all);
                }
            }
            ChangesPage::TooLarge { at, bytes: needed } => (position, bytes) = (at, needed),
            ChangesPage::Gone { oldest } => return Err(oldest),
        }
    }
}

fn versions(log: &ChangeLog, from: u64) -> Result<Vec<u64>, u64> {
    let all = read(log, from, "", 1 << 20)?;
    Ok(all.into_iter().map(|(version, _)| version).collect())
}

#[test]
fn changes_of_all_kinds_are_read_in_steps_of_any_size() {
    let large: Vec<u8> = (0..100_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let writes = [put("a", 1), Write::Delete("b", 2), Write::Put("big", 3, large.clone()), put("c", 4)];
    let batches = [batch(1, &writes), batch(5, &[Write::DeleteRange("b", "bz", 7, false)]), batch(6, &[put("d", 9)])];
    let store = Store::new(&[(4, log(&batches[..2])), (9, log(&batches[2..]))]);
    let all = read(&store.open(6, 9), 0, "", 1 << 20).expect("kept");
    let (key, end) = (Bytes::from_static(b"big"), Some(Bytes::from_static(b"bz")));
    let value = Value::from(Bytes::from(large));
    assert_eq!(all.iter().map(|(version, _)| *version).collect::<Vec<_>>(), [1, 2, 3, 4, 7, 9]);
    assert_eq!(all[1].1, What::Delete { key: Bytes::from_static(b"b") });
    assert_eq!(all[2].1, What::Put { key, value, value_bytes: 100_000 });
    assert_eq!(all[4].1, What::DeleteRange { start: Bytes::from_static(b"b"), end });
    for bytes_max in [0, 1, 70, 150, 1_000] {
        assert_eq!(read(&store.open(6, 9), 0, "", bytes_max), Ok(all.clone()), "{bytes_max}");
    }
    for from in 0..10 {
        let expected: Vec<_> = all.iter().filter(|(version, _)| *version > from).cloned().collect();
        assert_eq!(read(&store.open(6, 9), from, "", 150), Ok(expected), "{from}");
    }
    let of_prefix = |prefix| -> Vec<u64> {
        read(&store.open(6, 9), 0, prefix, 150).expect("kept").into_iter().map(|(version, _)| version).collect()
    };
    assert_eq!(of_prefix("b"), [2, 3, 7]);
    assert_eq!(of_prefix("bi"), [3, 7], "the range may have had such keys");
    assert_eq!(of_prefix("c"), [4]);
    assert_eq!(of_prefix("bz"), Vec::<u64>::new(), "the end of the range is exclusive");
}

#[test]
fn a_batch_is_read_wherever_its_records_are_split() {
    let mut before = 0;
    for padding in BLOCK_BYTES - 200..BLOCK_BYTES - 60 {
        let batches = [
            batch(1, &[Write::Put("p", 1, vec![7; padding])]),
            batch(2, &[put("key", 2), Write::Delete("gone", 3), put("next", 4)]),
        ];
        let bytes = log(&batches);
        before = before.max(bytes.len());
        let store = Store::new(&[(4, bytes)]);
        assert_eq!(versions(&store.open(4, 4), 0), Ok(vec![1, 2, 3, 4]), "{padding}");
        assert_eq!(versions(&store.open(4, 4), 2), Ok(vec![3, 4]), "{padding}");
    }
    assert!(before > BLOCK_BYTES, "some batches cross a block");
}

#[test]
fn what_is_not_committed_is_not_read() {
    let store = Store::new(&[(4, log(&[batch(1, &[put("a", 1)]), batch(2, &[put("b", 2), put("c", 3)])]))]);
    let log = store.open(1, 1);
    assert_eq!(versions(&log, 0), Ok(vec![1]));
    log.committed(3, 3);
    assert_eq!(versions(&log, 0), Ok(vec![1, 2, 3]));
    assert_eq!(versions(&log, 1), Ok(vec![2, 3]));
}

#[test]
fn the_end_of_a_log_that_was_not_recovered_is_not_read() {
    // A crash has lost the writes from 3 on. The new log uses their numbers again; two lost logs are still there.
    let old = log(&[batch(1, &[put("a", 1), put("b", 2)]), batch(3, &[put("lost", 3)])]);
    let lost = log(&[batch(4, &[put("lost", 4)])]);
    let new = log(&[batch(3, &[put("c", 100)]), batch(4, &[put("d", 101)])]);
    let store = Store::new(&[(4, old), (5, lost), (9, new)]);
    assert_eq!(versions(&store.open(4, 101), 0), Ok(vec![1, 2, 100, 101]));
    assert_eq!(versions(&store.open(4, 101), 2), Ok(vec![100, 101]));
    // A version that is lost may have been seen. What comes after it is complete.
    assert_eq!(versions(&store.open(4, 101), 3), Ok(vec![100, 101]));
}

#[test]
fn a_gap_ends_a_feed() {
    let first = log(&[batch(1, &[put("a", 1)])]);
    let store = Store::new(&[(4, first.clone()), (9, log(&[batch(5, &[put("e", 5)]), batch(6, &[put("f", 6)])]))]);
    let open = store.open(6, 6);
    // The page before the gap is complete.
    let page = open.step(&step(Position::after(0), "", 1_000)).expect("read");
    let ChangesPage::Changes { changes, next, more: true } = page else { panic!("{page:?}") };
    assert_eq!(changes.len(), 1);
    let page = open.step(&step(next, "", 1_000)).expect("read");
    assert!(matches!(page, ChangesPage::Gone { oldest: 5 }), "{page:?}");
    assert_eq!(versions(&open, 4), Ok(vec![5, 6]));
    assert_eq!(versions(&open, 1), Err(5));
    // A damaged record is a gap too.
    let mut damaged = log(&[batch(1, &[put("a", 1)]), batch(2, &[put("b", 2)]), batch(3, &[put("c", 3)])]);
    let second = first.len() + HEADER_BYTES;
    damaged[second] ^= 1;
    let store = Store::new(&[(4, damaged), (9, log(&[batch(4, &[put("d", 4)])]))]);
    assert_eq!(versions(&store.open(4, 4), 0), Err(4));
}

#[test]
fn logs_without_versions_are_not_used() {
    let old = log(&[batch(1, &[put("a", 1)]), batch(2, &[Write::DeleteWithoutVersion("b")])]);
    let older = log(&[batch(1, &[Write::DeleteWithoutVersion("b")]), batch(2, &[put("b", 2)])]);
    let new = log(&[batch(3, &[put("c", 3)])]);
    for first in [old, older] {
        let store = Store::new(&[(4, first), (9, new.clone())]);
        assert_eq!(versions(&store.open(3, 3), 0), Err(3));
        assert_eq!(versions(&store.open(3, 3), 2), Ok(vec![3]));
    }
}

#[test]
fn a_store_from_a_checkpoint_has_no_changes_of_the_original() {
    let ahead = CHECKPOINT_VERSIONS_AHEAD + 10;
    let store = Store::new(&[(4, log(&[batch(1, &[put("a", 1)])]))]);
    assert_eq!(versions(&store.open(1, ahead), 0), Err(ahead + 1));
    fs::write(store.directory.path().join(name_of(9)), log(&[batch(2, &[put("b", ahead + 1)])])).expect("written");
    assert_eq!(versions(&store.open(2, ahead + 1), 0), Err(ahead + 1));
    assert_eq!(versions(&store.open(2, ahead + 1), ahead), Ok(vec![ahead + 1]));
}

#[test]
fn the_oldest_logs_go_and_a_reader_at_the_end_stays() {
    let store = Store::new(&[]);
    let archive = store.directory.path().join("archive");
    fs::create_dir(&archive).expect("made");
    let mut sizes = BTreeMap::new();
    for number in 1..=4 {
        let bytes = log(&[batch(number, &[put("a", 10 * number)])]);
        sizes.insert(number, bytes.len() as u64);
        fs::write(archive.join(name_of(number)), bytes).expect("written");
    }
    fs::write(store.directory.path().join(name_of(5)), b"").expect("written");
    let everything = store.open(4, 40);
    let page = everything.step(&step(Position::after(9), "", 1_000)).expect("read");
    let ChangesPage::Changes { next, more: false, .. } = page else { panic!("{page:?}") };
    let kept = Retention { bytes: sizes[&3] + sizes[&4], ..Retention::EVERYTHING };
    let some = ChangeLog::new(store.directory.path(), kept, 4, 40);
    assert_eq!((versions(&some, 0), versions(&some, 29)), (Err(30), Ok(vec![30, 40])));
    let nothing = ChangeLog::new(store.directory.path(), Retention::NOTHING, 4, 40);
    assert_eq!((versions(&nothing, 39), versions(&nothing, 40)), (Err(41), Ok(Vec::new())));
    // The log that the reader has read last is gone, but the reader has read all of it.
    let more = log(&[batch(5, &[put("b", 50)])]);
    fs::write(store.directory.path().join(name_of(5)), more).expect("written");
    everything.committed(5, 50);
    let page = everything.step(&step(next, "", 1_000)).expect("read");
    let ChangesPage::Changes { changes, more: false, .. } = page else { panic!("{page:?}") };
    assert_eq!(changes.len(), 1);
}
