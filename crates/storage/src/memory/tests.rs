use super::*;
use crate::operation::{Change, Condition, Consistency, Effect, Write};

struct NoReply;

impl Reply for NoReply {
    fn complete(&self, _: Result) {}
}

fn write(engine: &MemoryEngine, changes: Vec<Change>) -> Result {
    let write =
        Write { changes, atomic: true, read_bytes_max: 1 << 20, durability: Durability::Async, ..Write::default() };
    engine.state.write().apply(&Pending { write, reply: Arc::new(NoReply) }, engine.bytes_max())
}

fn put(key: u64, bytes: usize, expires_at_ms: Option<u64>) -> Change {
    let own = Attributes { expires_at_ms: expires_at_ms.and_then(NonZeroU64::new), ..Attributes::default() };
    let attributes = expires_at_ms.map(|_| Box::new(own));
    Change::of(name(key), Effect::Put(Value { payload: vec![7; bytes].into(), attributes }))
}

fn name(key: u64) -> Bytes {
    Bytes::from(format!("{key:04}"))
}

/// Checks the sums and the index that the engine keeps.
fn check(engine: &MemoryEngine) {
    let state = engine.state.read();
    assert_eq!(state.bytes, state.map.iter().map(|(key, (_, value))| charge(key, value)).sum::<u64>());
    let expiring: BTreeSet<_> =
        state.map.iter().filter_map(|(key, (_, value))| Some((value.expires_at_ms()?, key.clone()))).collect();
    assert_eq!(state.expiring, expiring);
}

#[test]
fn the_sums_follow_every_change() {
    let engine = MemoryEngine::new(1 << 20);
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for _ in 0..2_000 {
        let key = next(50);
        let change = match next(7) {
            0 => Change::of(name(key), Effect::Delete),
            1 => Change::of(name(key), Effect::Add { by: 1, created: None }),
            2 => Change::of(name(key), Effect::Expire(NonZeroU64::new(clock::unix_ms() + 1_000_000))),
            3 => put(key, 10, Some(1)),
            4 => put(key, 10, Some(clock::unix_ms() + 1_000_000)),
            5 => Change { condition: Some(Condition::Absent), ..put(key, 5, None) },
            _ => put(key, usize::try_from(next(100)).expect("small"), None),
        };
        let _ = write(&engine, vec![change, put(next(50), 20, None)]);
        if next(100) == 0 {
            let (from, end) = (name(next(50)), Some(name(next(50))));
            engine.state.write().remove_range(&RangeRemoval {
                from,
                end,
                durability: Durability::Async,
                ..RangeRemoval::default()
            });
        }
        check(&engine);
    }
    let all = RangeRemoval { durability: Durability::Async, ..RangeRemoval::default() };
    engine.state.write().remove_range(&all);
    check(&engine);
    assert_eq!(engine.state.read().bytes, 0);
}

#[test]
fn a_write_that_does_not_fit_changes_nothing_even_if_it_repeats_a_key() {
    let each = charge(&name(0), &Value::from(Bytes::from(vec![0; 1_000])));
    let engine = MemoryEngine::new(2 * each);
    write(&engine, vec![put(0, 1_000, None)]).expect("fits");
    // The old value makes space once, not twice.
    let twice = vec![put(0, 1_000, None), put(0, 2_500, None)];
    assert_eq!(write(&engine, twice).expect_err("too large"), Error::MemoryFull { limit_bytes: 2 * each });
    // The last change of a key counts.
    write(&engine, vec![put(1, 5_000, None), put(1, 1_000, None)]).expect("fits");
    assert!(write(&engine, vec![put(2, 1, None)]).is_err());
    // A full engine accepts writes that do not make it larger.
    write(&engine, vec![put(1, 999, None)]).expect("smaller");
    write(&engine, vec![Change::of(name(0), Effect::Delete), put(2, 1_000, None)]).expect("in exchange");
    check(&engine);
}

#[test]
fn expired_entries_make_space() {
    let engine = MemoryEngine::new(1 << 20);
    let soon = clock::unix_ms() + 1_000_000;
    let mut count = 0;
    while write(&engine, vec![put(count, 1_000, Some(soon))]).is_ok() {
        count += 1;
    }
    assert!(engine.writable(ChangeKind::Put).is_ok());
    engine.set_cache_bytes(1 << 19);
    assert!(engine.writable(ChangeKind::Put).is_err(), "full of entries that have not expired");
    // Replaces all values by values that have expired.
    let keys: Vec<_> = engine.state.read().map.keys().cloned().collect();
    for key in keys {
        let mut state = engine.state.write();
        let (version, mut value) = state.map.get(&key).cloned().expect("there");
        value.attributes.as_mut().expect("expires").expires_at_ms = NonZeroU64::new(1);
        state.remove(&key);
        state.insert(&key, version, &value);
    }
    assert!(engine.writable(ChangeKind::Put).is_ok());
    write(&engine, vec![put(9_000, 500_000, None)]).expect("fits in place of many");
    check(&engine);
}

#[test]
fn a_scan_step_passes_a_bounded_number_of_expired_entries() {
    let engine = MemoryEngine::new(100 << 20);
    for key in 0..2 * REMOVED_PER_ATTEMPT_MAX + 10 {
        let (key, value) = (Bytes::from(format!("{key:08}")), Value::from(Bytes::new()));
        let own = Attributes { expires_at_ms: NonZeroU64::new(1), ..Attributes::default() };
        engine.state.write().insert(&key, Version::new(1), &Value { attributes: Some(Box::new(own)), ..value });
    }
    for reverse in [false, true] {
        let mut step = ScanStep {
            from: Bytes::new(),
            end: None,
            reverse,
            keys_only: true,
            entries_max: 1,
            bytes_max: 100,
            view: crate::operation::View::Latest,
            consistency: Consistency::Default,
        };
        let mut steps = 1;
        while let Page::Entries { entries, next: Some(next), .. } = engine.scan_step(&step) {
            assert!(entries.is_empty());
            *(if reverse { step.end.insert(Bytes::new()) } else { &mut step.from }) = next;
            steps += 1;
        }
        assert_eq!(steps, 3);
    }
}
