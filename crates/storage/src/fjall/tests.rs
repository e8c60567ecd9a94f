//! Tests of the engine alone. Those that all engines share are in the program's tests.

use super::*;

/// A reply that stores the result of one operation.
#[derive(Default)]
struct StoredReply(Mutex<Option<Result>>);

impl Reply for StoredReply {
    fn complete(&self, result: Result) {
        assert!(self.0.lock().replace(result).is_none(), "once");
    }
}

impl StoredReply {
    fn outcome(&self) -> Outcome {
        self.0.lock().take().expect("completed").expect("well")
    }
}

fn open(path: &Path) -> FjallEngine {
    let options = Options { cache_bytes: 16 << 20, memtable_bytes: 4 << 20, ..Options::default() };
    FjallEngine::open(path, &options).expect("opens")
}

/// Commits all `changes` as one batch, and returns their versions.
fn commit(engine: &FjallEngine, changes: &[(&'static str, Option<&'static str>)]) -> Vec<Version> {
    let replies: Vec<_> = changes.iter().map(|_| Arc::new(StoredReply::default())).collect();
    let write = |((key, value), reply): (&(&'static str, Option<&'static str>), &Arc<StoredReply>)| {
        let put = |value: &'static str| Effect::Put(Bytes::from_static(value.as_bytes()).into());
        let key = Bytes::from_static(key.as_bytes());
        let write = Write::of(key, value.map_or(Effect::Delete, put), Durability::Async);
        Pending { write, reply: reply.clone() }
    };
    engine.commit(changes.iter().zip(&replies).map(write).collect());
    let version = |reply: &Arc<StoredReply>| match reply.outcome() {
        Outcome::Written { version, durability: Durability::Async, .. } => version,
        other => panic!("{other:?}"),
    };
    replies.iter().map(version).collect()
}

fn read(engine: &FjallEngine, key: &str) -> Option<(Version, Bytes)> {
    match engine.read(key.as_bytes(), &StoredReply::default()).expect("it is read") {
        Outcome::Found { version, value } => Some((version, value.payload)),
        Outcome::NotFound => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_last_change_of_a_key_in_a_batch_wins() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = open(directory.path());
    let changes = [("a", Some("1")), ("b", Some("1")), ("a", None), ("c", Some("1")), ("a", Some("2")), ("b", None)];
    let versions = commit(&engine, &changes);
    assert!(versions.is_sorted_by(|one, next| one.get() + 1 == next.get()), "{versions:?}");
    let expected = |engine: &FjallEngine| {
        assert_eq!(read(engine, "a"), Some((versions[4], Bytes::from_static(b"2"))));
        assert_eq!(read(engine, "b"), None);
        assert_eq!(read(engine, "c"), Some((versions[3], Bytes::from_static(b"1"))));
    };
    expected(&engine);
    drop(engine);
    expected(&open(directory.path()));
}

/// A batch of removals alone leaves no entry in the tables, but its sequence number must not be used again.
#[test]
fn batches_of_removals_stay_newer_than_the_removed_entries() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut last = 0;
    for round in 0..4 {
        let engine = open(directory.path());
        assert_eq!(read(&engine, "k"), None, "{round}");
        let put = commit(&engine, &[("k", Some("v"))])[0];
        assert!(put.get() > last, "{put:?} after {last:?}");
        assert_eq!(read(&engine, "k"), Some((put, Bytes::from_static(b"v"))), "{round}");
        last = commit(&engine, &[("k", None)])[0].get();
        assert_eq!(read(&engine, "k"), None);
        if round % 2 == 0 {
            engine.keyspace.rotate_memtable_and_wait().expect("flushed");
            engine.keyspace.major_compact().expect("compacted");
        }
        engine.sync().expect("synced");
    }
}

/// Returns the number of entries of the keyspace, expired ones included, without the mark.
fn stored_entries(engine: &FjallEngine) -> usize {
    engine.db.snapshot().iter(&engine.keyspace).count() - 1
}

#[test]
fn expired_entries_leave_the_disk_by_compaction() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = open(directory.path());
    let expired = crate::operation::Attributes { expires_at_ms: std::num::NonZeroU64::new(1), ..Default::default() };
    for number in 0..100 {
        let attributes = (number % 2 == 0).then(|| Box::new(expired.clone()));
        let value = crate::operation::Value { payload: Bytes::from_static(b"v"), attributes };
        let reply = Arc::new(StoredReply::default());
        let write = Write::of(format!("{number:03}").into(), Effect::Put(value), Durability::Async);
        engine.commit(vec![Pending { write, reply }]);
    }
    assert_eq!(stored_entries(&engine), 100);
    engine.keyspace.rotate_memtable_and_wait().expect("flushed");
    engine.keyspace.major_compact().expect("compacted");
    assert_eq!(stored_entries(&engine), 50);
    assert_eq!(read(&engine, "000"), None);
    assert!(read(&engine, "001").is_some());
    drop(engine);
    assert_eq!(stored_entries(&open(directory.path())), 50);
}

fn remove_range(engine: &FjallEngine, from: &'static str, end: Option<&'static str>) -> Result {
    let (from, end) = (Bytes::from_static(from.as_bytes()), end.map(|end| Bytes::from_static(end.as_bytes())));
    engine.remove_range(&RangeRemoval { from, end, durability: Durability::Async, ..RangeRemoval::default() })
}

#[test]
fn a_range_of_too_many_keys_is_removed_as_a_whole_or_not_at_all() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = open(directory.path());
    let put = |number: usize| Change::of(format!("{number:06}").into(), Effect::Put(Bytes::new().into()));
    let changes = (0..=RANGE_REMOVAL_KEYS_MAX).map(put).collect();
    let write = Write { changes, atomic: true, durability: Durability::Async, ..Write::default() };
    engine.commit(vec![Pending { write, reply: Arc::new(StoredReply::default()) }]);
    let limit = RANGE_REMOVAL_KEYS_MAX as u64;
    assert_eq!(remove_range(&engine, "", None).expect_err("too many"), Error::RangeTooLarge { limit });
    assert_eq!(stored_entries(&engine), RANGE_REMOVAL_KEYS_MAX + 1);
    remove_range(&engine, "", Some("100000")).expect("just not too many");
    assert_eq!(stored_entries(&engine), 1);
    assert!(read(&engine, "100000").is_some());
}

#[test]
fn a_stopped_engine_removes_no_range() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = open(directory.path());
    engine.gate.stop("planted");
    assert!(matches!(remove_range(&engine, "", None), Err(Error::WritesStopped { .. })), "even if it is empty");
}
