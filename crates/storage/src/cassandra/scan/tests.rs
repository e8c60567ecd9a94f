//! Scans over buckets in memory, compared with a sorted list.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;
use crate::cassandra::{bucket, row};
use crate::operation::{Consistency, Value, Version};

/// The keys of each bucket, with the lengths of their values. 0: the row has expired in part.
type Buckets = Vec<BTreeMap<Bytes, usize>>;

fn head(payload_bytes: usize) -> Head {
    let value = Value::from(Bytes::from(vec![b'v'; payload_bytes]));
    Head::decode(row::encode(Version::new(1), &value, &[]).0).expect("just encoded")
}

fn read(buckets: &Buckets, ahead: &mut Ahead, lanes: &[usize]) -> usize {
    for index in lanes.iter().copied() {
        let lane = &ahead.lanes[index];
        let (from, end) = ahead.unread(lane);
        let inside = |key: &Bytes| *key >= from && end.as_ref().is_none_or(|end| key < end);
        let mut rows: Vec<(Bytes, Option<Head>)> = buckets[index]
            .iter()
            .filter(|(key, _)| inside(key))
            .map(|(key, bytes)| (key.clone(), (*bytes > 0).then(|| head(*bytes))))
            .collect();
        if ahead.reverse {
            rows.reverse();
        }
        rows.truncate(lane.limit);
        ahead.add(index, rows);
    }
    lanes.len()
}

/// Scans a range step by step. Returns the keys, and the number of reads of lanes. With `defect` a step does not wait
/// for lanes that run low.
fn scan(buckets: &Buckets, mut step: ScanStep, defect: bool) -> (Vec<Bytes>, usize) {
    let (mut keys, mut reads) = (Vec::new(), 0);
    let mut kept: Option<Ahead> = None;
    loop {
        let count = u32::try_from(buckets.len()).expect("few");
        let mut ahead = kept.take().and_then(|ahead| ahead.narrowed(&step)).unwrap_or_else(|| Ahead::new(&step, count));
        let mut building = Building { step: &step, entries: Vec::new(), bytes: 0, expired: 0 };
        let next = loop {
            match advance(&mut ahead, &mut building, 0) {
                Progress::Read(mut lanes) => {
                    let skipped = if defect && lanes.len() > 1 { lanes.pop() } else { None };
                    if let Some(index) = skipped {
                        ahead.lanes[index].more = false;
                    }
                    reads += read(buckets, &mut ahead, &lanes);
                }
                Progress::Ends(next) => break next,
                Progress::TooLarge(bytes) => panic!("{bytes} bytes are more than any entry has"),
            }
        };
        keys.extend(building.entries.into_iter().map(|(key, _)| key));
        let Some(next) = next else { return (keys, reads) };
        if step.reverse {
            step.end = Some(next);
        } else {
            step.from = next;
        }
        kept = Some(ahead);
    }
}

fn step(from: &[u8], end: Option<&[u8]>, reverse: bool, entries_max: usize) -> ScanStep {
    ScanStep {
        from: Bytes::copy_from_slice(from),
        end: end.map(Bytes::copy_from_slice),
        reverse,
        keys_only: false,
        entries_max,
        bytes_max: 4_096,
        view: View::Take,
        consistency: Consistency::Default,
    }
}

fn in_buckets(all: &BTreeMap<Vec<u8>, usize>, count: u32) -> Buckets {
    let mut buckets = vec![BTreeMap::new(); count as usize];
    for (key, bytes) in all {
        let index = usize::try_from(bucket::of(key, count)).expect("not negative");
        buckets[index].insert(Bytes::copy_from_slice(key), *bytes);
    }
    buckets
}

proptest! {
    #[test]
    fn a_scan_returns_each_key_once_and_in_order(
        all in btree_map(vec(prop_oneof![Just(b'/'), b'a'..b'd'], 1..6), prop_oneof![Just(0), 1_usize..600], 0..300),
        count in 1_u32..9,
        bounds in (vec(b'/'..b'd', 0..3), proptest::option::of(vec(b'/'..b'd', 1..3))),
        reverse in any::<bool>(),
        entries_max in 1_usize..50,
    ) {
        let (from, end) = (&bounds.0[..], bounds.1.as_deref());
        let buckets = in_buckets(&all, count);
        let (found, _) = scan(&buckets, step(from, end, reverse, entries_max), false);
        let inside = |key: &&Vec<u8>| key.as_slice() >= from && end.is_none_or(|end| key.as_slice() < end);
        let whole = all.iter().filter(|(_, bytes)| **bytes > 0).map(|(key, _)| key);
        let mut expected: Vec<Bytes> = whole.filter(inside).map(|key| Bytes::copy_from_slice(key)).collect();
        if reverse {
            expected.reverse();
        }
        prop_assert_eq!(found, expected);
    }
}

fn many() -> BTreeMap<Vec<u8>, usize> {
    (0..20_000).map(|number| (format!("key{number:05}").into_bytes(), 5)).collect()
}

#[test]
fn rows_are_read_about_once() {
    let buckets = in_buckets(&many(), 64);
    let (keys, reads) = scan(&buckets, step(b"", None, false, 256), false);
    assert_eq!(keys.len(), 20_000);
    // 64 buckets of 312 keys, 8 in the first read of each, 16 in the second, 32 in the others.
    assert!(reads < 64 * 16, "{reads} reads");
    let directory: BTreeMap<Vec<u8>, usize> =
        (0..20_000).map(|number| (format!("dir/{number:05}").into_bytes(), 5)).collect();
    let (keys, reads) = scan(&in_buckets(&directory, 64), step(b"dir/", Some(b"dir0"), false, 256), false);
    assert_eq!(keys.len(), 20_000);
    // All buckets once; the one with the directory in pages of up to 2,048.
    assert!(reads < 64 + 25, "{reads} reads");
}

#[test]
fn twin_a_merge_that_leaves_out_a_lane_is_noticed() {
    let (keys, _) = scan(&in_buckets(&many(), 64), step(b"", None, false, 256), true);
    assert!(keys.len() < 20_000);
}
