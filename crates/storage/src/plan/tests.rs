use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;

const NOW_MS: u64 = 1_000_000;
const FIRST: u64 = 100;

struct NoReply;

impl crate::Reply for NoReply {
    fn complete(&self, _: crate::Result) {}
}

/// The stored state of a few keys.
#[derive(Clone, Default)]
struct Stored(BTreeMap<&'static str, (u64, Value)>);

impl Stored {
    fn with(mut self, key: &'static str, version: u64, payload: &'static str) -> Stored {
        self.0.insert(key, (version, value(payload)));
        self
    }

    fn with_value(mut self, key: &'static str, version: u64, value: Value) -> Stored {
        self.0.insert(key, (version, value));
        self
    }
}

fn value(payload: &'static str) -> Value {
    Bytes::from_static(payload.as_bytes()).into()
}

fn expiring(payload: &'static str, expires_at_ms: u64) -> Value {
    let own = Attributes { expires_at_ms: NonZeroU64::new(expires_at_ms), ..Attributes::default() };
    Value { attributes: Some(Box::new(own)), ..value(payload) }
}

fn change(key: &'static str, effect: Effect) -> Change {
    Change::of(Bytes::from_static(key.as_bytes()), effect)
}

fn put(key: &'static str, payload: &'static str) -> Change {
    change(key, Effect::Put(value(payload)))
}

fn delete(key: &'static str) -> Change {
    change(key, Effect::Delete)
}

fn add(key: &'static str, by: i64) -> Change {
    change(key, Effect::Add { by, created: None })
}

fn read(key: &'static str) -> Change {
    change(key, Effect::Read)
}

fn only_if(condition: Condition, change: Change) -> Change {
    Change { condition: Some(condition), ..change }
}

fn atomic(changes: Vec<Change>) -> Write {
    Write { changes, atomic: true, read_bytes_max: 1_000, durability: Durability::Async, ..Write::default() }
}

fn separate(changes: Vec<Change>) -> Write {
    Write { atomic: false, ..atomic(changes) }
}

/// What a plan stores and answers.
#[derive(Debug)]
struct Planned {
    /// Key, version and payload; `None` for a removal.
    stores: Vec<(String, u64, Option<String>)>,
    values: Vec<Option<Value>>,
    outcomes: Vec<Result<Outcome, Error>>,
    storing: usize,
    needs_sync: bool,
    /// The keys that were read, and the largest value that was asked for.
    asked: Vec<(String, usize)>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("a test's text")
}

fn plan(stored: &Stored, writes: Vec<Write>) -> Planned {
    let asked = RefCell::new(Vec::new());
    let writes: Vec<Pending> = writes.into_iter().map(|write| Pending { write, reply: Arc::new(NoReply) }).collect();
    let plan = Plan::new(
        &writes,
        FIRST,
        || NOW_MS,
        |key, bytes_max| {
            asked.borrow_mut().push((text(key), bytes_max));
            if key == b"unreadable" {
                return Err(Error::ReadFailed { why: "planted".to_owned() });
            }
            Ok(stored.0.get(&*text(key)).map(|(version, value)| {
                // An engine may leave the payload out.
                let bytes = value.bytes();
                let value =
                    if bytes <= bytes_max { value.clone() } else { Value { payload: Bytes::new(), ..value.clone() } };
                Current { version: Version::new(*version), value, bytes }
            }))
        },
    );
    let stores: Vec<_> = plan.stores(&writes).collect();
    let values = stores.iter().map(|store| store.value.cloned()).collect();
    let stores = stores
        .iter()
        .map(|Store { key, version, value }| (text(key), version.get(), value.map(|value| text(&value.payload))))
        .collect();
    let (storing, needs_sync) = (plan.storing(), plan.needs_sync());
    let outcomes = plan.outcomes(&writes).collect();
    Planned { stores, values, outcomes, storing, needs_sync, asked: asked.into_inner() }
}

impl Planned {
    /// The results of the only write.
    fn results(&self) -> &[ChangeResult] {
        let [Ok(Outcome::Written { version, results, .. })] = &self.outcomes[..] else { panic!("{self:?}") };
        assert_eq!(version.get(), FIRST);
        results
    }

    /// The failure of the only write, which stores nothing.
    fn failure(&self) -> (usize, ChangeError) {
        assert_eq!((self.stores.len(), self.storing, self.needs_sync), (0, 0, false), "{self:?}");
        let [Ok(Outcome::Failed { index, error })] = self.outcomes[..] else { panic!("{self:?}") };
        (index, error)
    }
}

fn done(version: u64, existed: bool) -> ChangeResult {
    ChangeResult::Done { version: Version::new(version), existed: Some(existed), number: None }
}

fn counted(version: u64, existed: bool, number: i64) -> ChangeResult {
    ChangeResult::Done { version: Version::new(version), existed: Some(existed), number: Some(number) }
}

fn found(version: u64, payload: &'static str) -> ChangeResult {
    ChangeResult::Read(Some((Version::new(version), value(payload))))
}

fn mismatch(current: Option<u64>) -> ChangeError {
    ChangeError::Condition { current: current.map(Version::new) }
}

#[test]
fn unconditional_writes_need_no_reads_and_no_results() {
    let planned = plan(&Stored::default(), vec![atomic(vec![put("a", "1"), delete("b")]), atomic(vec![put("a", "2")])]);
    let stored = |key: &str, version, payload: Option<&str>| (key.to_owned(), version, payload.map(str::to_owned));
    assert_eq!(planned.stores, [stored("a", 100, Some("1")), stored("b", 101, None), stored("a", 102, Some("2"))]);
    assert_eq!((planned.storing, planned.asked.len()), (2, 0));
    for (outcome, first) in planned.outcomes.iter().zip([100, 102]) {
        let Ok(Outcome::Written { version, results, .. }) = outcome else { panic!("{outcome:?}") };
        assert_eq!((version.get(), results.len()), (first, 0));
    }
}

#[test]
fn each_condition_holds_for_its_state_alone() {
    let stored = Stored::default().with("there", 7, "v").with_value("expired", 8, expiring("v", NOW_MS));
    let is = |version| Condition::Is(Version::new(version));
    let rows = [
        ("there", Condition::Present, Ok(true)),
        ("there", Condition::Absent, Err(Some(7))),
        ("there", is(7), Ok(true)),
        ("there", is(6), Err(Some(7))),
        ("there", Condition::Never, Err(Some(7))),
        ("gone", Condition::Present, Err(None)),
        ("gone", Condition::Absent, Ok(false)),
        ("gone", is(7), Err(None)),
        ("gone", Condition::Never, Err(None)),
        ("expired", Condition::Present, Err(None)),
        ("expired", Condition::Absent, Ok(false)),
        ("expired", is(8), Err(None)),
    ];
    for (key, condition, expected) in rows {
        for effect in [Effect::Put(value("new")), Effect::Delete] {
            let planned = plan(&stored, vec![atomic(vec![only_if(condition, change(key, effect.clone()))])]);
            match expected {
                Ok(existed) => {
                    assert_eq!(planned.results(), [done(FIRST, existed)], "{key} {condition:?}");
                    assert_eq!((planned.stores.len(), planned.storing), (1, 1), "{key} {condition:?}");
                }
                Err(current) => assert_eq!(planned.failure(), (0, mismatch(current)), "{key} {condition:?}"),
            }
            assert_eq!(planned.asked, [(key.to_owned(), 0)], "no payload is needed");
        }
    }
}

#[test]
fn existence_is_reported_on_request_alone() {
    let stored = Stored::default().with("there", 7, "v");
    let asked = |key| Change { reports_existence: true, ..put(key, "v") };
    let planned = plan(&stored, vec![atomic(vec![asked("there"), asked("gone"), put("there", "x"), asked("gone")])]);
    let unknown = ChangeResult::Done { version: Version::new(102), existed: None, number: None };
    assert_eq!(planned.results(), [done(100, true), done(101, false), unknown, done(103, true)]);
}

#[test]
fn an_atomic_write_that_fails_leaves_nothing_behind() {
    let stored = Stored::default().with("a", 1, "old").with("n", 2, "5");
    let failing = atomic(vec![
        put("a", "1"),
        put("a", "2"),
        delete("b"),
        add("n", 1),
        only_if(Condition::Absent, put("a", "3")),
        put("c", "1"),
    ]);
    let Planned { stores, outcomes, storing, .. } = plan(
        &stored,
        vec![
            atomic(vec![put("b", "0"), add("n", 1)]),
            failing,
            atomic(vec![read("a"), read("b"), read("c"), add("n", 10)]),
        ],
    );
    let [first, failed, last] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(matches!(first, Ok(Outcome::Written { .. })), "{first:?}");
    let current = Some(Version::new(FIRST + 3));
    assert!(
        matches!(failed, Ok(Outcome::Failed { index: 4, error: ChangeError::Condition { current: found } }) if *found == current),
        "{failed:?}"
    );
    let Ok(Outcome::Written { results, .. }) = last else { panic!("{last:?}") };
    assert_eq!(
        results[..],
        [found(1, "old"), found(100, "0"), ChangeResult::Read(None), counted(111, true, 16)],
        "as if the failing write had never been there"
    );
    let keys: Vec<_> = stores.iter().map(|(key, version, _)| (&**key, *version)).collect();
    assert_eq!((keys, storing), (vec![("b", 100), ("n", 101), ("n", 111)], 2));
}

#[test]
fn a_change_that_fails_leaves_the_others_of_a_separate_write() {
    let stored = Stored::default().with("a", 1, "word");
    let planned = plan(
        &stored,
        vec![separate(vec![
            only_if(Condition::Absent, put("a", "x")),
            put("b", "1"),
            add("a", 1),
            only_if(Condition::Is(Version::new(101)), put("b", "2")),
            change("c", Effect::Expire(None)),
        ])],
    );
    let failed = ChangeResult::Failed;
    let unknown = ChangeResult::Done { version: Version::new(101), existed: None, number: None };
    assert_eq!(
        planned.results(),
        [
            failed(mismatch(Some(1))),
            unknown,
            failed(ChangeError::NotANumber),
            done(103, true),
            failed(ChangeError::Absent)
        ]
    );
    assert_eq!((planned.stores.len(), planned.storing), (2, 1));
}

#[test]
fn a_failed_read_fails_its_write_alone() {
    for write in [atomic, separate] {
        let Planned { outcomes, stores, .. } = plan(
            &Stored::default(),
            vec![
                atomic(vec![add("n", 1)]),
                write(vec![put("a", "1"), read("unreadable")]),
                atomic(vec![read("a"), add("n", 1)]),
            ],
        );
        let [Ok(_), Err(Error::ReadFailed { .. }), Ok(Outcome::Written { results, .. })] = &outcomes[..] else {
            panic!("{outcomes:?}")
        };
        assert_eq!(results[..], [ChangeResult::Read(None), counted(104, true, 2)]);
        assert_eq!(stores.len(), 2);
    }
}

#[test]
fn the_writes_of_a_batch_see_each_other() {
    let absent = |key| only_if(Condition::Absent, put(key, "mine"));
    let Planned { outcomes, stores, .. } = plan(
        &Stored::default().with("k", 9, "v"),
        vec![
            atomic(vec![delete("k")]),
            atomic(vec![absent("k")]),
            atomic(vec![absent("k")]),
            atomic(vec![only_if(Condition::Is(Version::new(101)), put("k", "again"))]),
            atomic(vec![only_if(Condition::Is(Version::new(9)), delete("k"))]),
            atomic(vec![read("k")]),
        ],
    );
    let failures: Vec<_> = outcomes
        .iter()
        .map(|outcome| match outcome {
            Ok(Outcome::Failed { error: ChangeError::Condition { current }, .. }) => current.map(Version::get),
            Ok(Outcome::Written { .. }) => None,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(failures, [None, None, Some(101), None, Some(103), None]);
    let Some(Ok(Outcome::Written { results, .. })) = outcomes.last() else { panic!("{outcomes:?}") };
    assert_eq!(results[..], [found(103, "again")]);
    assert_eq!(stores.len(), 3);
}

#[test]
fn counters_add_and_reject_what_is_no_number() {
    let count = |payload: &'static str, by| {
        let stored = Stored::default().with("n", 1, payload);
        let planned = plan(&stored, vec![separate(vec![add("n", by)])]);
        match planned.results() {
            [ChangeResult::Done { number, existed: Some(true), .. }] => {
                assert_eq!(planned.stores[0].2.as_deref(), Some(&*number.expect("counted").to_string()));
                Ok(number.expect("counted"))
            }
            [ChangeResult::Failed(error)] => {
                assert!(planned.stores.is_empty());
                Err(*error)
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(count("5", 3), Ok(8));
    assert_eq!(count("-5", 3), Ok(-2));
    assert_eq!(count("007", 0), Ok(7));
    assert_eq!(count("9223372036854775806", 1), Ok(i64::MAX));
    assert_eq!(count("9223372036854775807", 1), Err(ChangeError::Overflow));
    assert_eq!(count("-9223372036854775808", -1), Err(ChangeError::Overflow));
    assert_eq!(count("-9223372036854775808", i64::MAX), Ok(-1));
    for payload in ["", "-", "1.5", " 1", "1 ", "0x1", "9223372036854775808", "one", "1\n"] {
        assert_eq!(count(payload, 1), Err(ChangeError::NotANumber), "{payload:?}");
    }
    let planned = plan(&Stored::default(), vec![separate(vec![add("n", i64::MAX), add("n", 1), add("n", -1)])]);
    let overflow = ChangeResult::Failed(ChangeError::Overflow);
    assert_eq!(planned.results(), [counted(100, false, i64::MAX), overflow, counted(102, true, i64::MAX - 1)]);
}

#[test]
fn a_counter_keeps_its_attributes_and_a_new_one_gets_those_of_the_change() {
    let metadata = |text: &'static str| Attributes {
        metadata: Bytes::from_static(text.as_bytes()),
        expires_at_ms: NonZeroU64::new(NOW_MS + 1),
        modified_ms: NonZeroU64::new(1),
    };
    let own = Value { attributes: Some(Box::new(metadata("old"))), ..value("1") };
    let stored = Stored::default().with_value("old", 1, own).with_value("expired", 2, expiring("5", NOW_MS - 1));
    let created = Some(Box::new(metadata("new")));
    let add = |key| change(key, Effect::Add { by: 1, created: created.clone() });
    let planned = plan(&stored, vec![atomic(vec![add("old"), add("new"), add("expired")])]);
    assert_eq!(planned.results(), [counted(100, true, 2), counted(101, false, 1), counted(102, false, 1)]);
    let attributes: Vec<_> =
        planned.values.iter().map(|value| value.as_ref().and_then(|value| value.attributes.as_deref())).collect();
    let touched = Attributes { modified_ms: NonZeroU64::new(NOW_MS), ..metadata("old") };
    assert_eq!(attributes, [Some(&touched), Some(&metadata("new")), Some(&metadata("new"))]);
}

#[test]
fn an_expiry_changes_alone_and_takes_effect_at_once() {
    let stored = Stored::default().with("k", 1, "v");
    let expire = |at| change("k", Effect::Expire(NonZeroU64::new(at)));
    let planned = plan(
        &stored,
        vec![separate(vec![expire(NOW_MS + 5), read("k"), expire(0), expire(NOW_MS), read("k"), expire(0)])],
    );
    let [set, ChangeResult::Read(Some((version, value))), cleared, past, after, failed] = planned.results() else {
        panic!("{planned:?}")
    };
    assert_eq!([set, cleared, past], [&done(100, true), &done(102, true), &done(103, true)]);
    assert_eq!((version.get(), &*value.payload, value.expires_at_ms()), (100, &b"v"[..], NonZeroU64::new(NOW_MS + 5)));
    assert_eq!(value.attributes.as_ref().and_then(|own| own.modified_ms), NonZeroU64::new(NOW_MS));
    assert_eq!([after, failed], [&ChangeResult::Read(None), &ChangeResult::Failed(ChangeError::Absent)]);
    let payloads: Vec<_> = planned.stores.iter().map(|(_, _, payload)| payload.as_deref()).collect();
    assert_eq!(payloads, [Some("v"); 3]);
    let cleared = planned.values[1].as_ref().expect("a value");
    assert_eq!(cleared.expires_at_ms(), None);
}

#[test]
fn reads_stop_at_their_limit() {
    let described = Attributes { metadata: Bytes::from_static(b"1234"), ..Attributes::default() };
    let stored = Stored::default().with("a", 1, "12345").with("b", 2, "123456").with_value(
        "c",
        3,
        Value { attributes: Some(Box::new(described.clone())), ..value("1") },
    );
    let reads = |read_bytes_max, write: fn(Vec<Change>) -> Write| {
        let keys = vec![read("a"), read("b"), read("gone"), read("c")];
        plan(&stored, vec![Write { read_bytes_max, ..write(keys) }])
    };
    let described = Value { attributes: Some(Box::new(described)), ..value("1") };
    let (none, full) = (ChangeResult::Read(None), ChangeResult::Failed(ChangeError::NoRoom));
    let last = ChangeResult::Read(Some((Version::new(3), described)));
    assert_eq!(reads(16, atomic).results(), [found(1, "12345"), found(2, "123456"), none.clone(), last.clone()]);
    assert_eq!(reads(15, separate).results(), [found(1, "12345"), found(2, "123456"), none.clone(), full.clone()]);
    assert_eq!(reads(10, separate).results(), [found(1, "12345"), full.clone(), none.clone(), last]);
    assert_eq!(reads(0, separate).results(), [full.clone(), full.clone(), none, full]);
    assert_eq!(reads(15, atomic).failure(), (3, ChangeError::NoRoom));
}

/// The values whose expiry changes are in the log again, so one write bounds them.
#[test]
fn changes_of_expiry_stop_at_their_limit() {
    let sized = |bytes: usize| Value::from(Bytes::from(vec![b'v'; bytes]));
    let half = COMMIT_BYTES_MAX / 2;
    let stored = Stored::default()
        .with_value("a", 1, sized(half))
        .with_value("b", 2, sized(half + 1))
        .with_value("c", 3, sized(half))
        .with_value("larger", 4, sized(COMMIT_BYTES_MAX + 1))
        .with("small", 5, "v");
    let expire = |key| change(key, Effect::Expire(NonZeroU64::new(NOW_MS + 5)));
    let full = || ChangeResult::Failed(ChangeError::ExpiriesTooLarge);
    let planned = plan(&stored, vec![separate(["a", "b", "c", "small"].map(expire).to_vec())]);
    assert_eq!(planned.results(), [done(100, true), full(), done(102, true), full()], "up to the limit");
    let lengths: Vec<_> = planned.values.iter().map(|value| value.as_ref().map(|value| value.payload.len())).collect();
    assert_eq!(lengths, [Some(half); 2], "whole values");
    // A value alone may have any size, and then nothing fits beside it.
    let planned = plan(&stored, vec![separate(["larger", "small"].map(expire).to_vec())]);
    assert_eq!(planned.results(), [done(100, true), full()]);
    // A value that this write has stored before counts again. A failed condition and an absent key count nothing.
    let twice = vec![expire("a"), expire("a"), expire("small")];
    assert_eq!(plan(&stored, vec![separate(twice)]).results(), [done(100, true), done(101, true), full()]);
    let nothing = vec![only_if(Condition::Absent, expire("larger")), expire("gone"), expire("b")];
    let failed = [ChangeResult::Failed(mismatch(Some(4))), ChangeResult::Failed(ChangeError::Absent), done(102, true)];
    assert_eq!(plan(&stored, vec![separate(nothing)]).results(), failed);
    let whole = vec![put("k", "v"), expire("a"), expire("b")];
    assert_eq!(plan(&stored, vec![atomic(whole)]).failure(), (2, ChangeError::ExpiriesTooLarge));
    // Each write has its own limit.
    let planned = plan(&stored, vec![separate(vec![expire("a")]), separate(vec![expire("b")])]);
    assert_eq!(planned.stores.len(), 2);
}

/// In the commit section, a value that is too large for what asks for it is not copied.
#[test]
fn no_more_is_read_than_a_change_may_use() {
    let large = Value::from(Bytes::from(vec![b'1'; COUNTER_BYTES_MAX + 1]));
    let stored = Stored::default().with_value("large", 1, large).with("small", 2, "12345");
    let asked = |changes: Vec<Change>| plan(&stored, vec![separate(changes)]).asked;
    let bytes_max = |changes| asked(changes).into_iter().map(|(_, bytes_max)| bytes_max).collect::<Vec<_>>();
    assert_eq!(
        bytes_max(vec![only_if(Condition::Present, put("large", "v")), only_if(Condition::Present, delete("small"))]),
        [0, 0]
    );
    assert_eq!(bytes_max(vec![add("large", 1)]), [COUNTER_BYTES_MAX]);
    assert_eq!(bytes_max(vec![read("small"), read("gone"), read("large"), read("small")]), [1_000, 995, 995, 995]);
    let expire = |key| change(key, Effect::Expire(None));
    assert_eq!(bytes_max(vec![expire("small"), expire("gone")]), [usize::MAX, COMMIT_BYTES_MAX - 5]);
    // A value whose payload was left out is neither a counter nor stored.
    let planned = plan(&stored, vec![separate(vec![add("large", 1), read("large")])]);
    let failed = [ChangeError::NotANumber, ChangeError::NoRoom].map(ChangeResult::Failed);
    assert_eq!((planned.results(), planned.stores.len()), (&failed[..], 0));
}

#[test]
fn only_a_write_that_stores_something_needs_a_sync() {
    let sync = |change| Write::one(change, Durability::Sync);
    let stored = Stored::default().with("k", 1, "v");
    let fails = || only_if(Condition::Absent, put("k", "x"));
    let planned = plan(&stored, vec![sync(fails()), atomic(vec![put("l", "v")]), sync(Change { ..read("gone") })]);
    assert_eq!((planned.storing, planned.needs_sync), (1, false), "{planned:?}");
    let planned = plan(&stored, vec![sync(fails()), sync(put("l", "v"))]);
    assert_eq!((planned.storing, planned.needs_sync), (1, true), "{planned:?}");
    let planned = plan(&stored, vec![atomic(vec![put("a", "v")]), sync(put("l", "v"))]);
    assert_eq!((planned.storing, planned.needs_sync), (2, true), "{planned:?}");
}
