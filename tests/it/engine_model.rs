//! Each engine does the same as a map in memory: random writes, reads, scans with small pages, snapshots, removals of
//! ranges, expiry and restarts.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use klad_storage::Engine;
use klad_storage::operation::{
    Attributes, Change, ChangeError, ChangeResult, Condition, Consistency, Durability, Effect, Entry, Operation,
    Outcome, Page, RangeRemoval, ScanStep, Snapshot, Value, Version, View, Write,
};

use super::support::engine::{Defect, OPEN, Open, Planted, ask, commit, memory};

/// The number of keys. The fewer, the more often changes meet.
const KEYS: usize = 24;

/// Times that have passed, and that have not, milliseconds since 1970.
const PAST_MS: u64 = 1_000;
const FUTURE_MS: u64 = 4_000_000_000_000;

/// Stands for the time at which the engine changed a value.
const TOUCHED_MS: u64 = 2_000;

/// A version that no write has.
const UNKNOWN_VERSION: u64 = u64::MAX / 2;

type State = BTreeMap<Bytes, (Version, Value)>;

/// The map, which contains no expired values.
#[derive(Clone, Default)]
struct Model {
    state: State,
    last_version: u64,
}

impl Model {
    /// Applies a write whose first change has the version `first`. Returns what the engine must answer.
    fn write(&mut self, write: &Write, first: u64) -> Result<Vec<ChangeResult>, (usize, ChangeError)> {
        let before = self.state.clone();
        let (mut results, mut bytes_left) = (Vec::new(), write.read_bytes_max);
        for (index, change) in write.changes.iter().enumerate() {
            let result = self.change(change, Version::new(first + index as u64), &mut bytes_left);
            if let (ChangeResult::Failed(error), true) = (&result, write.atomic) {
                self.state = before;
                return Err((index, *error));
            }
            results.push(result);
        }
        Ok(if write.depends_on_state() { results } else { Vec::new() })
    }

    fn change(&mut self, change: &Change, version: Version, bytes_left: &mut usize) -> ChangeResult {
        let current = self.state.get(&change.key).cloned();
        let present = current.as_ref().map(|(version, _)| *version);
        let holds = change.condition.is_none_or(|condition| match condition {
            Condition::Present => present.is_some(),
            Condition::Absent => present.is_none(),
            Condition::Is(version) => present == Some(version),
            Condition::Never => false,
        });
        if !holds {
            return ChangeResult::Failed(ChangeError::Condition { current: present });
        }
        let touched = |value: &Value| {
            let own = value.attributes.as_deref().cloned().unwrap_or_default();
            Attributes { modified_ms: NonZeroU64::new(TOUCHED_MS), ..own }
        };
        let mut number = None;
        let new = match &change.effect {
            Effect::Put(value) => Some(value.clone()),
            Effect::Delete => None,
            Effect::Add { by, created } => {
                let old = current.as_ref().map_or(Ok(0), |(_, value)| {
                    std::str::from_utf8(&value.payload).ok().and_then(|text| text.parse().ok()).ok_or(())
                });
                let Ok(old) = old else { return ChangeResult::Failed(ChangeError::NotANumber) };
                let Some(sum) = i64::checked_add(old, *by) else {
                    return ChangeResult::Failed(ChangeError::Overflow);
                };
                number = Some(sum);
                let attributes = current.as_ref().map_or(created.clone(), |(_, value)| Some(Box::new(touched(value))));
                Some(Value { payload: sum.to_string().into(), attributes })
            }
            Effect::Expire(expires_at_ms) => {
                let Some((_, value)) = &current else { return ChangeResult::Failed(ChangeError::Absent) };
                let own = Attributes { expires_at_ms: *expires_at_ms, ..touched(value) };
                Some(Value { payload: value.payload.clone(), attributes: Some(Box::new(own)) })
            }
            Effect::Read => {
                let bytes = current.as_ref().map_or(0, |(_, value)| value.bytes());
                let Some(left) = bytes_left.checked_sub(bytes) else {
                    return ChangeResult::Failed(ChangeError::NoRoom);
                };
                *bytes_left = left;
                return ChangeResult::Read(current);
            }
        };
        match new.filter(|value| value.expires_at_ms().is_none_or(|time| time.get() > PAST_MS)) {
            Some(value) => self.state.insert(change.key.clone(), (version, value)),
            None => self.state.remove(&change.key),
        };
        let existed = change.depends_on_state().then_some(current.is_some());
        ChangeResult::Done { version, existed, number }
    }
}

/// Replaces a time that the engine has chosen.
fn normal(mut value: Value) -> Value {
    if let Some(own) = &mut value.attributes
        && own.modified_ms.is_some_and(|time| time.get() > TOUCHED_MS)
    {
        own.modified_ms = NonZeroU64::new(TOUCHED_MS);
    }
    value
}

fn normal_result(result: ChangeResult) -> ChangeResult {
    match result {
        ChangeResult::Read(Some((version, value))) => ChangeResult::Read(Some((version, normal(value)))),
        other => other,
    }
}

/// An engine and the map that it must equal.
struct Run<'r> {
    random: fastrand::Rng,
    keys: Vec<Bytes>,
    open: &'r dyn Fn(&Path) -> Arc<dyn Engine>,
    directory: tempfile::TempDir,
    /// `None` only while it is opened again.
    engine: Option<Arc<dyn Engine>>,
    model: Model,
    snapshots: Vec<(Snapshot, State)>,
}

type Checked = Result<(), String>;

/// Fails with both sides if they differ.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Checked {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?} instead of {expected:?}")) }
}

impl Run<'_> {
    fn engine(&self) -> &dyn Engine {
        &**self.engine.as_ref().unwrap()
    }

    fn key(&mut self) -> Bytes {
        self.keys[self.random.usize(..self.keys.len())].clone()
    }

    /// A bound of a range: sometimes a key, sometimes none that is stored.
    fn bound(&mut self) -> Bytes {
        match self.random.u8(..4) {
            0 => Bytes::new(),
            1 => random_key(&mut self.random),
            _ => self.key(),
        }
    }

    fn attributes(&mut self) -> Option<Box<Attributes>> {
        if self.random.u8(..3) > 0 {
            return None;
        }
        let expires = [0, 0, FUTURE_MS, PAST_MS][self.random.usize(..4)];
        let own = Attributes {
            modified_ms: NonZeroU64::new(self.random.u64(..2)),
            expires_at_ms: NonZeroU64::new(expires),
            metadata: vec![b'm'; self.random.usize(..3) * 10].into(),
        };
        // No engine can tell attributes that are all missing from none.
        (own != Attributes::default()).then(|| Box::new(own))
    }

    fn value(&mut self) -> Value {
        let payload = match self.random.u8(..4) {
            0 => Bytes::new(),
            1 => vec![b'x'; self.random.usize(..100)].into(),
            2 => i64::MAX.to_string().into(),
            _ => self.random.i64(-100..100).to_string().into(),
        };
        Value { payload, attributes: self.attributes() }
    }

    fn change(&mut self) -> Change {
        let key = self.key();
        let effect = match self.random.u8(..12) {
            0..5 => Effect::Put(self.value()),
            5..7 => Effect::Delete,
            7..9 => Effect::Add { by: self.random.i64(-5..50), created: self.attributes() },
            9 => Effect::Expire(NonZeroU64::new([0, PAST_MS, FUTURE_MS][self.random.usize(..3)])),
            _ => Effect::Read,
        };
        let present = self.model.state.get(&key).map(|(version, _)| *version);
        let condition = match self.random.u8(..10) {
            0 => Some(Condition::Present),
            1 => Some(Condition::Absent),
            // For an absent key, a version that no engine gives out: a new engine gives out low versions.
            2 => Some(Condition::Is(present.unwrap_or(Version::new(u64::MAX)))),
            3 if self.random.u8(..4) == 0 => Some(Condition::Never),
            _ => None,
        };
        Change { key, condition, effect, reports_existence: self.random.u8(..5) == 0 }
    }

    fn a_write(&mut self) -> Write {
        let count = if self.random.bool() { 1 } else { self.random.usize(2..7) };
        Write {
            changes: (0..count).map(|_| self.change()).collect(),
            atomic: self.random.bool(),
            read_bytes_max: [0, 50, 100_000][self.random.usize(..3)],
            durability: if self.random.u8(..20) == 0 { Durability::Sync } else { Durability::Async },
            consistency: Consistency::Default,
        }
    }

    fn batch(&mut self) -> Checked {
        let writes: Vec<Write> = (0..self.random.usize(1..5)).map(|_| self.a_write()).collect();
        let outcomes = commit(self.engine(), writes.clone());
        for (write, outcome) in writes.iter().zip(outcomes) {
            match outcome {
                Outcome::Written { version, results, durability } => {
                    same("durability", &durability, &self.engine().durability(write.durability))?;
                    self.versions(version, write.changes.len())?;
                    let results: Vec<_> = results.into_iter().map(normal_result).collect();
                    let expected = self.model.write(write, version.get());
                    same(&format!("results of {write:?}"), &Ok(results), &expected)?;
                }
                Outcome::Failed { index, error } => {
                    // A write that fails reports no versions, so the model may use any.
                    let expected = self.model.write(write, UNKNOWN_VERSION);
                    let changed_before = write.changes[..index].iter().any(|one| one.key == write.changes[index].key);
                    let known = |error| match error {
                        ChangeError::Condition { .. } if changed_before => ChangeError::Condition { current: None },
                        other => other,
                    };
                    let expected = expected.map_err(|(index, error)| (index, known(error)));
                    same(&format!("failure of {write:?}"), &Err((index, known(error))), &expected)?;
                }
                other => return Err(format!("{write:?}: {other:?}")),
            }
        }
        Ok(())
    }

    /// Versions grow, also over restarts.
    fn versions(&mut self, first: Version, count: usize) -> Checked {
        if first.get() <= self.model.last_version {
            return Err(format!("version {first} after {}", self.model.last_version));
        }
        self.model.last_version = first.get() + count as u64 - 1;
        Ok(())
    }

    fn read(&mut self) -> Checked {
        let key = self.key();
        let expected = self.model.state.get(&key).cloned();
        let found = |outcome| match outcome {
            Outcome::Found { version, value } => Some((version, normal(value))),
            Outcome::NotFound => None,
            other => panic!("{other:?}"),
        };
        if let Some(cached) = self.engine().read_cached(&key) {
            same(&format!("cached {key:?}"), &found(cached.unwrap()), &expected)?;
        }
        same(
            &format!("{key:?}"),
            &found(ask(self.engine(), Operation::Get { key: key.clone(), consistency: Consistency::Default })),
            &expected,
        )?;
        let keys: Vec<Bytes> = (0..4).map(|_| self.key()).collect();
        let bytes_max = self.random.usize(..200);
        let mut left = bytes_max;
        let expected = keys.iter().map(|key| {
            let found = self.model.state.get(key).cloned();
            match left.checked_sub(found.as_ref().map_or(0, |(_, value)| value.bytes())) {
                Some(rest) => {
                    left = rest;
                    ChangeResult::Read(found)
                }
                None => ChangeResult::Failed(ChangeError::NoRoom),
            }
        });
        let expected: Vec<_> = expected.collect();
        let many =
            ask(self.engine(), Operation::GetMany { keys: keys.clone(), bytes_max, consistency: Consistency::Default });
        let Outcome::FoundMany(results) = many else { panic!("{many:?}") };
        same(&format!("{keys:?}"), &results.into_iter().map(normal_result).collect(), &expected)
    }

    fn remove_range(&mut self) -> Checked {
        let (from, end) = (self.bound(), (self.random.u8(..8) > 0).then(|| self.bound()));
        let durability = Durability::Async;
        let removal = RangeRemoval { from: from.clone(), end: end.clone(), durability, ..RangeRemoval::default() };
        let removal = Operation::RemoveRange(removal);
        let outcome = ask(self.engine(), removal);
        let Outcome::Written { version, results, .. } = outcome else { panic!("{outcome:?}") };
        assert!(results.is_empty());
        self.versions(version, 1)?;
        self.model.state.retain(|key, _| *key < from || end.as_ref().is_some_and(|end| key >= end));
        Ok(())
    }

    /// Scans a range in small steps. Sometimes other writes go on between the steps.
    fn scan(&mut self) -> Checked {
        let (from, end) = (self.bound(), self.random.bool().then(|| self.bound()));
        let mut step = ScanStep {
            from: from.clone(),
            end: end.clone(),
            reverse: self.random.bool(),
            keys_only: self.random.bool(),
            entries_max: self.random.usize(1..5),
            bytes_max: self.random.usize(..150),
            view: View::Latest,
            consistency: Consistency::Default,
        };
        let mut state = self.model.state.clone();
        if self.engine().capabilities().snapshots && self.random.bool() {
            step.view = View::Take;
            if !self.snapshots.is_empty() && self.random.bool() {
                let (snapshot, its_state) = self.snapshots[self.random.usize(..self.snapshots.len())].clone();
                (step.view, state) = (View::At(snapshot), its_state);
            }
        }
        let what = format!("{step:?}");
        let writes_go_on = !matches!(step.view, View::Latest) && self.random.bool();
        let mut found = Vec::new();
        loop {
            let page = ask(self.engine(), Operation::Scan(Box::new(step.clone())));
            let (entries, next) = match page {
                Outcome::Page(Page::TooLarge { bytes }) if bytes > step.bytes_max => {
                    step.bytes_max = bytes;
                    continue;
                }
                Outcome::Page(Page::Entries { entries, next, snapshot }) => {
                    step.view = snapshot.map_or(step.view, View::At);
                    (entries, next)
                }
                other => return Err(format!("{step:?}: {other:?}")),
            };
            check_page(&step, &entries, next.as_ref()).map_err(|wrong| format!("{step:?}: {wrong}"))?;
            found.extend(entries.into_iter().map(|entry| Entry { value: normal(entry.value), ..entry }));
            let Some(next) = next else { break };
            *(if step.reverse { step.end.get_or_insert_default() } else { &mut step.from }) = next;
            if writes_go_on {
                self.batch()?;
            }
        }
        same(&what, &found, &expected_entries(&state, &from, end.as_ref(), &step))?;
        if let View::At(snapshot) = step.view {
            self.snapshots.truncate(2);
            self.snapshots.insert(0, (snapshot, state));
        }
        Ok(())
    }

    fn compact(&self) {
        if self.engine().capabilities().compactions {
            self.engine().local_disk().expect("it compacts").compact(true, &|_, _| true).expect("compacted");
        }
    }

    fn open_again(&mut self) {
        if self.engine().local_disk().is_some() {
            self.snapshots.clear();
            self.engine = None;
            self.engine = Some((self.open)(self.directory.path()));
        }
    }

    fn step(&mut self) -> Checked {
        match self.random.u8(..100) {
            0..50 => self.batch(),
            50..65 => self.read(),
            65..93 => self.scan(),
            93..97 => self.remove_range(),
            97..99 => {
                self.compact();
                Ok(())
            }
            _ => {
                self.open_again();
                Ok(())
            }
        }
    }
}

/// Checks the limits of a page, and that the next step is behind it.
fn check_page(step: &ScanStep, entries: &[Entry], next: Option<&Bytes>) -> Checked {
    let bytes = |entry: &Entry| entry.key.len() + entry.value.bytes();
    let sum: usize = entries.iter().map(bytes).sum();
    if entries.len() > step.entries_max || sum > step.bytes_max {
        return Err(format!("{} entries of {sum} bytes", entries.len()));
    }
    let Some(next) = next else { return Ok(()) };
    let advanced = if step.reverse {
        step.end.as_ref().is_none_or(|end| next < end) && entries.iter().all(|entry| entry.key >= *next)
    } else {
        *next > step.from && entries.iter().all(|entry| entry.key < *next)
    };
    if advanced { Ok(()) } else { Err(format!("next {next:?} after {entries:?}")) }
}

/// What a whole scan must find.
fn expected_entries(state: &State, from: &Bytes, end: Option<&Bytes>, step: &ScanStep) -> Vec<Entry> {
    if end.is_some_and(|end| from >= end) {
        return Vec::new();
    }
    let entry = |(key, (version, value)): (&Bytes, &(Version, Value))| {
        let payload = if step.keys_only { Bytes::new() } else { value.payload.clone() };
        let value_bytes = value.payload.len();
        let value = Value { payload, ..value.clone() };
        Entry { key: key.clone(), version: *version, value, value_bytes }
    };
    let range = (Bound::Included(from), end.map_or(Bound::Unbounded, Bound::Excluded));
    let mut entries: Vec<_> = state.range::<Bytes, _>(range).map(entry).collect();
    if step.reverse {
        entries.reverse();
    }
    entries
}

fn random_key(random: &mut fastrand::Rng) -> Bytes {
    let length = random.usize(1..5);
    (0..length).map(|_| [0, 1, b'a', b'b', 0xFF][random.usize(..5)]).collect()
}

/// Runs random operations. Returns the first difference between the engine and the map.
fn difference(open: &dyn Fn(&Path) -> Arc<dyn Engine>, seed: u64, steps: usize) -> Option<String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let keys = (0..KEYS).map(|_| random_key(&mut random)).collect();
    let directory = tempfile::tempdir().unwrap();
    let engine = Some(open(directory.path()));
    let mut run = Run { random, keys, open, directory, engine, model: Model::default(), snapshots: Vec::new() };
    (0..steps).find_map(|step| run.step().err().map(|wrong| format!("seed {seed}, step {step}: {wrong}")))
}

#[test]
fn each_engine_equals_a_map() {
    for open in OPEN {
        // A seed that fails is in the message; replace the random one by it.
        let first = fastrand::u64(..u64::MAX / 2);
        for seed in first..first + 6 {
            assert_eq!(difference(open, seed, 300), None);
        }
    }
}

/// Runs until the defect is found.
fn find(defect: Defect, open: Open) {
    let planted = |directory: &Path| -> Arc<dyn Engine> { Arc::new(Planted::new(open(directory), defect)) };
    let wrong = (0..200).find_map(|seed| difference(&planted, seed, 300));
    let wrong = wrong.unwrap_or_else(|| panic!("{defect:?} is not found"));
    println!("{defect:?}: {wrong}");
}

#[test]
fn twin_an_engine_with_a_defect_differs_from_a_map() {
    for defect in [
        Defect::ForgetsAdditions,
        Defect::AppliesHalfABatch,
        Defect::IgnoresExpiry,
        Defect::RemovesTheEnd,
        Defect::RepeatsAtBackwardSteps,
        Defect::ForgetsSizes,
        Defect::DropsAttributes,
    ] {
        find(defect, memory);
    }
}

#[cfg(feature = "rocksdb")]
#[test]
fn twin_an_engine_that_forgets_its_snapshots_differs_from_a_map() {
    find(Defect::ForgetsSnapshots, |directory| Arc::new(super::support::engine::rocksdb(directory)));
}
