//! Decides inside a commit section what each change of a batch stores, and what the result of each write is.
//!
//! A batch has the writes of many clients. Their conditions, counters and reads see the stored state and all changes
//! before them in the batch, so the result is as if each change had been committed alone, one after the other.
//!
//! If no change of a batch depends on stored state, klad reads nothing and stores the changes as they are. This module
//! must never write, and must never block; only the caller's function `read` may block. Called by the engines.

#![cfg_attr(
    not(any(feature = "fjall", feature = "rocksdb")),
    allow(dead_code, reason = "the memory engine uses a part of it")
)]

use std::collections::HashMap;
use std::num::NonZeroU64;

use bytes::Bytes;

use crate::Pending;
use crate::limits::COMMIT_BYTES_MAX;
use crate::operation::{
    Attributes, Change, ChangeError, ChangeResult, Condition, Durability, Effect, Error, Outcome, Value, Version, Write,
};

/// The stored value of a key.
#[derive(Clone, Debug)]
pub(crate) struct Current {
    /// The version of the change that stored the value.
    pub(crate) version: Version,
    /// The value. The payload is missing if the caller did not ask for it, or if it is larger than the caller asked
    /// for.
    pub(crate) value: Value,
    /// The size of the whole value with its metadata.
    pub(crate) bytes: usize,
}

/// What one change stores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Store<'p> {
    pub(crate) key: &'p Bytes,
    pub(crate) version: Version,
    /// The new value; `None` removes the key.
    pub(crate) value: Option<&'p Value>,
}

/// The plan of a batch.
#[derive(Debug)]
pub(crate) struct Plan {
    first: u64,
    /// The number of writes that store something.
    storing: usize,
    /// Whether a write that stores something asks for a sync.
    needs_sync: bool,
    /// The stores and the answers of the batch; `None` if no change depends on the state of its key.
    stateful: Option<Stateful>,
}

#[derive(Debug, Default)]
struct Stateful {
    stores: Vec<OwnedStore>,
    answers: Vec<Answer>,
}

#[derive(Debug)]
struct OwnedStore {
    key: Bytes,
    version: Version,
    value: Option<Value>,
}

/// The answer to one write.
type Answer = Result<Vec<ChangeResult>, WriteFailure>;

/// Why a write has no effect.
#[derive(Clone, Debug)]
enum WriteFailure {
    /// A change of an atomic write failed: the index of the change, and the reason.
    Change(usize, ChangeError),
    /// The state of a key could not be read.
    Read(Error),
}

/// The maximum size of a counter's value with its metadata, bytes. A larger value is not a counter.
const COUNTER_BYTES_MAX: usize = 16 << 10;

/// What one write may still read and rewrite.
struct ByteBudget {
    /// The bytes of values that the write's reads may still return.
    read_bytes: usize,
    /// The bytes of values that the write has stored again to change their expiry.
    rewritten_bytes: usize,
}

impl ByteBudget {
    /// The maximum size of the next value whose expiry may change. The first value may have any size. The total is
    /// bounded, because the log contains each of these values again.
    fn to_rewrite(&self) -> usize {
        if self.rewritten_bytes == 0 { usize::MAX } else { COMMIT_BYTES_MAX.saturating_sub(self.rewritten_bytes) }
    }
}

/// The number of versions that `writes` need: one for each change.
pub(crate) fn versions_of(writes: &[Pending]) -> usize {
    writes.iter().map(|one| one.write.changes.len()).sum()
}

impl Plan {
    /// Plans `writes`, whose first change has the version `first`. `read(key, bytes_max)` returns the stored value of a
    /// key, expired or not; its payload may be empty if the value has more than `bytes_max` bytes. If `read` fails,
    /// only the write that needs the value fails.
    pub(crate) fn new(
        writes: &[Pending],
        first: u64,
        now_ms: impl FnOnce() -> u64,
        read: impl FnMut(&[u8], usize) -> Result<Option<Current>, Error>,
    ) -> Plan {
        let asks_for_sync = |one: &Pending| one.write.durability == Durability::Sync;
        if !writes.iter().any(|one| one.write.depends_on_state()) {
            let needs_sync = writes.iter().any(asks_for_sync);
            return Plan { first, storing: writes.len(), needs_sync, stateful: None };
        }
        let mut planner =
            Planner { now_ms: now_ms(), read, changed: HashMap::new(), undo: Vec::new(), stores: Vec::new() };
        let mut version = first;
        let (mut storing, mut needs_sync) = (0, false);
        let mut answers = Vec::with_capacity(writes.len());
        for pending in writes {
            let stores_before = planner.stores.len();
            answers.push(planner.write(&pending.write, version));
            version += pending.write.changes.len() as u64;
            if planner.stores.len() > stores_before {
                storing += 1;
                needs_sync |= asks_for_sync(pending);
            }
        }
        Plan { first, storing, needs_sync, stateful: Some(Stateful { stores: planner.stores, answers }) }
    }

    /// What the batch stores, in order. `writes` are the same as in [`Plan::new`].
    pub(crate) fn stores<'p>(&'p self, writes: &'p [Pending]) -> impl Iterator<Item = Store<'p>> {
        let planned = self.stateful.as_ref().map(|stateful| {
            stateful.stores.iter().map(|OwnedStore { key, version, value }| Store {
                key,
                version: *version,
                value: value.as_ref(),
            })
        });
        let plain = if self.stateful.is_none() { writes } else { &[] };
        let plain = plain.iter().flat_map(|one| &one.write.changes).zip(self.first..).map(|(change, version)| {
            let value = match &change.effect {
                Effect::Put(value) => Some(value),
                Effect::Delete => None,
                Effect::Add { .. } | Effect::Expire(_) | Effect::Read => {
                    unreachable!("a batch with such a change has a plan")
                }
            };
            Store { key: &change.key, version: Version::new(version), value }
        });
        planned.into_iter().flatten().chain(plain)
    }

    /// The number of writes that store something. If it is 0, no log write is needed.
    pub(crate) fn storing(&self) -> usize {
        self.storing
    }

    /// Whether the log write must be synced. A write that stores nothing needs no sync.
    pub(crate) fn needs_sync(&self) -> bool {
        self.needs_sync
    }

    /// Returns the outcome of each write, once the batch is stored.
    pub(crate) fn outcomes(self, writes: &[Pending]) -> impl Iterator<Item = Result<Outcome, Error>> + use<'_> {
        let mut answers = self.stateful.map(|stateful| stateful.answers.into_iter());
        let mut version = self.first;
        writes.iter().map(move |Pending { write, .. }| {
            let first = Version::new(version);
            version += write.changes.len() as u64;
            let answer = answers.as_mut().map_or(Ok(Vec::new()), |answers| answers.next().expect("one for each write"));
            match answer {
                Ok(results) => Ok(Outcome::Written { version: first, durability: write.durability, results }),
                Err(WriteFailure::Change(index, error)) => Ok(Outcome::Failed { index, error }),
                Err(WriteFailure::Read(error)) => Err(error),
            }
        })
    }
}

/// The state of a key after the changes of the batch so far; `None` if the batch has removed the key.
struct Changed(Option<Current>);

struct Planner<'w, R> {
    now_ms: u64,
    read: R,
    /// The keys that the batch has changed so far. Their values always have their payloads.
    changed: HashMap<&'w [u8], Changed>,
    /// What `changed` held before the changes of the current write.
    undo: Vec<(&'w [u8], Option<Changed>)>,
    stores: Vec<OwnedStore>,
}

impl<'w, R: FnMut(&[u8], usize) -> Result<Option<Current>, Error>> Planner<'w, R> {
    fn write(&mut self, write: &'w Write, first: u64) -> Answer {
        let stores_before = self.stores.len();
        self.undo.clear();
        let mut budget = ByteBudget { read_bytes: write.read_bytes_max, rewritten_bytes: 0 };
        let depends_on_state = write.depends_on_state();
        let mut results = Vec::with_capacity(if depends_on_state { write.changes.len() } else { 0 });
        for (index, (change, version)) in write.changes.iter().zip(first..).enumerate() {
            let failure = match self.change(change, Version::new(version), &mut budget) {
                Ok(ChangeResult::Failed(error)) if write.atomic => WriteFailure::Change(index, error),
                Ok(result) => {
                    if depends_on_state {
                        results.push(result);
                    }
                    continue;
                }
                Err(error) => WriteFailure::Read(error),
            };
            self.stores.truncate(stores_before);
            while let Some((key, before)) = self.undo.pop() {
                match before {
                    Some(before) => self.changed.insert(key, before),
                    None => self.changed.remove(key),
                };
            }
            return Err(failure);
        }
        Ok(results)
    }

    fn change(&mut self, change: &'w Change, version: Version, budget: &mut ByteBudget) -> Result<ChangeResult, Error> {
        let current = if change.depends_on_state() { self.current(change, budget)? } else { None };
        if let Some(condition) = change.condition {
            let found = current.as_ref().map(|current| current.version);
            let holds = match condition {
                Condition::Present => found.is_some(),
                Condition::Absent => found.is_none(),
                Condition::Is(version) => found == Some(version),
                Condition::Never => false,
            };
            if !holds {
                return Ok(ChangeResult::Failed(ChangeError::Condition { current: found }));
            }
        }
        let existed = change.depends_on_state().then_some(current.is_some());
        let mut number = None;
        let value = match &change.effect {
            Effect::Put(value) => Some(value.clone()),
            Effect::Delete => None,
            Effect::Add { by, created } => match add(current.as_ref(), *by) {
                Ok(sum) => {
                    number = Some(sum);
                    let attributes = match current {
                        Some(current) => Some(Box::new(self.touched(current.value.attributes))),
                        None => created.clone(),
                    };
                    Some(Value { payload: sum.to_string().into(), attributes })
                }
                Err(error) => return Ok(ChangeResult::Failed(error)),
            },
            Effect::Expire(expires_at_ms) => {
                let Some(current) = current else { return Ok(ChangeResult::Failed(ChangeError::Absent)) };
                if current.bytes > budget.to_rewrite() {
                    return Ok(ChangeResult::Failed(ChangeError::ExpiriesTooLarge));
                }
                budget.rewritten_bytes += current.bytes;
                let attributes = self.touched(current.value.attributes);
                let attributes = Some(Box::new(Attributes { expires_at_ms: *expires_at_ms, ..attributes }));
                Some(Value { payload: current.value.payload, attributes })
            }
            Effect::Read => {
                let bytes = current.as_ref().map_or(0, |current| current.bytes);
                let Some(left) = budget.read_bytes.checked_sub(bytes) else {
                    return Ok(ChangeResult::Failed(ChangeError::NoRoom));
                };
                budget.read_bytes = left;
                return Ok(ChangeResult::Read(current.map(|current| (current.version, current.value))));
            }
        };
        self.store(change, version, value);
        Ok(ChangeResult::Done { version, existed, number })
    }

    /// The value that `change` finds. A value that is too large for the change is not copied.
    fn current(&mut self, change: &Change, budget: &ByteBudget) -> Result<Option<Current>, Error> {
        let found = if let Some(Changed(current)) = self.changed.get(&*change.key) {
            current.clone()
        } else {
            let bytes_max = match change.effect {
                Effect::Put(_) | Effect::Delete => 0,
                Effect::Add { .. } => COUNTER_BYTES_MAX,
                Effect::Expire(_) => budget.to_rewrite(),
                Effect::Read => budget.read_bytes,
            };
            (self.read)(&change.key, bytes_max)?
        };
        Ok(found.filter(|current| !current.value.expired(|| self.now_ms)))
    }

    /// Returns `attributes` with the present time as `modified_ms`, for a value that the batch changes.
    fn touched(&self, attributes: Option<Box<Attributes>>) -> Attributes {
        let attributes = attributes.map_or_else(Attributes::default, |own| *own);
        Attributes { modified_ms: NonZeroU64::new(self.now_ms), ..attributes }
    }

    fn store(&mut self, change: &'w Change, version: Version, value: Option<Value>) {
        let current = value.clone().map(|value| Current { version, bytes: value.bytes(), value });
        let before = self.changed.insert(&change.key, Changed(current));
        self.undo.push((&change.key, before));
        self.stores.push(OwnedStore { key: change.key.clone(), version, value });
    }
}

/// Adds `by` to the number that a value holds. The value must be decimal digits with an optional sign, and nothing
/// else.
fn add(current: Option<&Current>, by: i64) -> Result<i64, ChangeError> {
    let Some(current) = current else { return Ok(by) };
    let text = std::str::from_utf8(&current.value.payload).map_err(|_| ChangeError::NotANumber)?;
    let number: i64 = text.parse().map_err(|_| ChangeError::NotANumber)?;
    number.checked_add(by).ok_or(ChangeError::Overflow)
}

#[cfg(test)]
mod tests;
