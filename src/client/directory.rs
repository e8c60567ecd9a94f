//! The entries of a data directory that no process serves: `export` reads them, and `import` stores them. The engine
//! runs in this process, as it does in a server. No other process can change the data meanwhile.

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::Error;
use crate::client::args::Durability as Wanted;
use crate::client::entry::Entry;
use crate::client::import::{Batch, Target};
use crate::client::limits::{CLIENT_BATCH_BYTES, CLIENT_BATCH_ITEMS};
use crate::client::list::Range;
use crate::client::list_args::ImportArgs;
use crate::disk;
use klad_base::clock;
use klad_base::sync::Mutex;
use klad_server::http::api_error::ApiError;
use klad_server::http::v1::metadata::{Encoder, Metadata};
use klad_server::limits::{KEY_BYTES_CEILING, TTL_RANGE, VALUE_BYTES_CEILING};
use klad_storage::changes::Retention;
use klad_storage::limits::{CHANGES_BYTES, CHANGES_TIME, HOUSEKEEPING_INTERVAL};
use klad_storage::operation::{
    self, Attributes, Change, ChangeResult, Condition, Consistency, Durability, Effect, Operation, Outcome, Page,
    ScanStep, Value, View, Write,
};
use klad_storage::{ChangeKind, Engine, Reply};

/// Maximum number of entries in one step of a scan, and of their bytes. A larger entry is a step by itself.
const STEP_ENTRIES_MAX: usize = 1_000;
const STEP_BYTES_MAX: usize = 1 << 20;

/// A data directory that this process has opened.
pub(super) struct Directory {
    engine: Arc<dyn Engine>,
}

impl Directory {
    /// Opens an existing data directory.
    ///
    /// # Errors
    /// [`Error::Directory`].
    pub(super) fn open(path: &Path) -> Result<Directory, Error> {
        Ok(Directory { engine: disk::open(path, disk::Options::default())? })
    }

    /// Passes the entries of a range to `sink`, in the order of their keys.
    ///
    /// # Errors
    /// An entry cannot be read, or the error of `sink`.
    pub(super) fn entries(
        &self,
        range: &Range,
        sink: &mut dyn FnMut(Entry<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let first = if range.prefix.is_empty() { &range.start } else { &range.prefix };
        let Range { start, end, .. } = range.starting_at(first);
        let mut step = ScanStep {
            from: start.into(),
            end: end.map(Into::into),
            reverse: false,
            keys_only: false,
            entries_max: STEP_ENTRIES_MAX,
            bytes_max: STEP_BYTES_MAX,
            view: View::Latest,
            consistency: Consistency::Default,
        };
        loop {
            match self.execute(Operation::Scan(Box::new(step.clone())))? {
                Outcome::Page(Page::Entries { entries, next, .. }) => {
                    entries.iter().try_for_each(|stored| sink(entry(stored)))?;
                    let Some(next) = next else { return Ok(()) };
                    (step.from, step.bytes_max) = (next, STEP_BYTES_MAX);
                }
                Outcome::Page(Page::TooLarge { bytes }) => step.bytes_max = bytes,
                other => unreachable!("a step of a scan returns a page, not {other:?}"),
            }
        }
    }

    fn execute(&self, operation: Operation) -> Result<Outcome, Error> {
        let answer = Arc::new(Answer::default());
        self.engine.execute(operation, answer.clone());
        let result = answer.0.lock().take();
        result.expect("an engine on disk completes an operation before the call returns").map_err(failed)
    }
}

/// Takes the result of an operation.
#[derive(Default)]
struct Answer(Mutex<Option<klad_storage::Result>>);

impl Reply for Answer {
    fn complete(&self, result: klad_storage::Result) {
        *self.0.lock() = Some(result);
    }
}

/// The error of the engine, in the words of the server.
fn failed(error: operation::Error) -> Error {
    Error::Failed(in_words(&error.into()))
}

pub(super) fn in_words(error: &ApiError) -> String {
    format!("{}: {error}", error.code())
}

/// A stored entry as an export has it.
fn entry(stored: &operation::Entry) -> Entry<'_> {
    let own = stored.value.attributes.as_deref();
    let metadata = own.map(|own| Metadata::read(&own.metadata)).unwrap_or_default();
    Entry {
        key: Cow::Borrowed(&stored.key),
        value: Some(Cow::Borrowed(&stored.value.payload)),
        etag: Some(format!("\"{}\"", stored.version).into()),
        content_type: metadata.content_type.map(Cow::Borrowed),
        content_encoding: metadata.content_encoding.map(Cow::Borrowed),
        meta: metadata.user.into_iter().map(|(name, value)| (name.to_owned(), value.into_owned())).collect(),
        expires_at_ms: own.and_then(|own| own.expires_at_ms).map(NonZeroU64::get),
        modified_ms: own.and_then(|own| own.modified_ms).map(NonZeroU64::get),
        ..Entry::default()
    }
}

/// An import into a data directory.
pub(super) struct ImportDirectory {
    directory: Directory,
    condition: Option<Condition>,
    durability: Durability,
    /// When the engine last checked the free space.
    looked: Instant,
}

impl ImportDirectory {
    /// Opens a data directory, or creates it. The engine keeps as many changes as it does in `klad serve` by default.
    ///
    /// # Errors
    /// [`Error::Directory`].
    pub(super) fn open(path: &Path, args: &ImportArgs) -> Result<ImportDirectory, Error> {
        let changes = Retention { bytes: CHANGES_BYTES, time: CHANGES_TIME };
        let options = disk::Options { changes, ..disk::Options::default() };
        let durability = match args.durability {
            None | Some(Wanted::Sync) => Durability::Sync,
            Some(Wanted::Async) => Durability::Async,
        };
        Ok(ImportDirectory {
            directory: Directory { engine: disk::open_or_create(path, args.engine.as_deref(), options)? },
            condition: args.if_absent.then_some(Condition::Absent),
            durability,
            looked: clock::now(),
        })
    }

    /// Fails if the engine accepts no writes. A stall is no error here, because the write itself waits until
    /// compactions have caught up.
    fn check_writable(&mut self) -> Result<(), Error> {
        let engine = &self.directory.engine;
        if clock::now().saturating_duration_since(self.looked) >= HOUSEKEEPING_INTERVAL {
            engine.local_disk().expect("it is an engine on disk").housekeeping();
            self.looked = clock::now();
        }
        match engine.writable(ChangeKind::Put) {
            Ok(()) | Err(operation::Error::Stalled) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }
}

impl Target for ImportDirectory {
    type Item = Change;

    fn is_full(&self, items: u64, bytes: u64, next_bytes: u64) -> bool {
        items >= CLIENT_BATCH_ITEMS || bytes + next_bytes > CLIENT_BATCH_BYTES
    }

    fn item(&self, entry: &Entry<'_>, expires_at_ms: Option<u64>) -> Result<Change, String> {
        let effect = Effect::Put(value(entry, expires_at_ms).map_err(|error| in_words(&error))?);
        let key = entry.key.to_vec().into();
        Ok(Change { key, condition: self.condition, effect, reports_existence: false })
    }

    fn bytes(change: &Change) -> usize {
        change.bytes()
    }

    fn store(&mut self, batch: Batch<Change>) -> Result<u64, Error> {
        self.check_writable()?;
        let write = Write { changes: batch.items, durability: self.durability, ..Write::default() };
        match self.directory.execute(Operation::Write(write))? {
            Outcome::Written { results, .. } => {
                let kept = results.iter().filter(|result| matches!(result, ChangeResult::Failed(_)));
                Ok(kept.count() as u64)
            }
            other => unreachable!("a write that is not atomic is written, not {other:?}"),
        }
    }

    fn finish(&mut self) -> Result<(), Error> {
        let disk = self.directory.engine.local_disk().expect("it is an engine on disk");
        disk.sync().map_err(|why| Error::Failed(format!("the last sync failed: {why}; import the input again")))
    }
}

/// Makes the value of an entry. The limits are those of a server whose options have their largest values.
pub(super) fn value(entry: &Entry<'_>, expires_at_ms: Option<u64>) -> Result<Value, ApiError> {
    let payload = entry.value.as_deref().unwrap_or_default();
    let now_ms = clock::unix_ms();
    if entry.key.is_empty() {
        return Err(ApiError::MissingParameter("key"));
    }
    if entry.key.len() as u64 > KEY_BYTES_CEILING {
        return Err(ApiError::KeyTooLong { limit_bytes: KEY_BYTES_CEILING });
    }
    if payload.len() as u64 > VALUE_BYTES_CEILING {
        return Err(ApiError::ValueTooLarge { limit_bytes: VALUE_BYTES_CEILING });
    }
    if expires_at_ms.is_some_and(|at| Duration::from_millis(at.saturating_sub(now_ms)) > *TTL_RANGE.end()) {
        return Err(ApiError::BadTtl);
    }
    let mut metadata = Encoder::default();
    if let Some(content_type) = &entry.content_type {
        metadata.content_type(content_type.as_bytes())?;
    }
    if let Some(content_encoding) = &entry.content_encoding {
        metadata.content_encoding(content_encoding.as_bytes())?;
    }
    for (name, value) in &entry.meta {
        metadata.user(name, value)?;
    }
    let attributes = Attributes {
        modified_ms: NonZeroU64::new(now_ms),
        expires_at_ms: expires_at_ms.and_then(NonZeroU64::new),
        metadata: metadata.finish(),
    };
    Ok(Value { payload: payload.to_vec().into(), attributes: Some(Box::new(attributes)) })
}
