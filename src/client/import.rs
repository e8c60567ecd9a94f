//! `klad import`: reads the entries of an export, and stores them by batches. Called by `client::run`.
//!
//! ```text
//!   items ──▶ entry ─┬▶ batch ──┬──▶ upload       a server
//!   generated entries┘          ├──▶ directory    a data directory that no process serves, by writes
//!                               └──▶ load         the same, by whole tables
//! ```
//!
//! Storing an entry twice stores the same value, so an import can be repeated as a whole. `import_state` records how
//! far an import has come.

use std::io::Read;
use std::time::Duration;

use crate::client::Error;
use crate::client::args::Durability;
use crate::client::batch::open;
use crate::client::directory::ImportDirectory;
use crate::client::entry::{self, End, Entry, Item};
use crate::client::exchange::Session;
use crate::client::import_state::ImportState;
use crate::client::items::{Format, ItemError, Items};
use crate::client::list_args::ImportArgs;
use crate::client::load::Load;
use crate::client::output::{check, print_line};
use crate::client::progress::Progress;
use crate::client::upload::Upload;
use klad_base::clock;
use klad_bench::entries::Entries;

/// Where an import stores entries.
pub(super) trait Target {
    /// An entry in the form in which it is stored.
    type Item;

    /// Returns whether a batch of `items` items and `bytes` bytes has no place for a further item of `next_bytes`. An
    /// item that is larger than any batch is a batch by itself.
    fn is_full(&self, items: u64, bytes: u64, next_bytes: u64) -> bool;

    /// Makes an item of an entry, which has a value. The error says why the entry cannot be stored.
    fn item(&self, entry: &Entry<'_>, expires_at_ms: Option<u64>) -> Result<Self::Item, String>;

    /// Returns the size of an item.
    fn bytes(item: &Self::Item) -> usize;

    /// Stores a batch. Returns the number of entries that were not stored because their keys exist (`--if-absent`).
    ///
    /// # Errors
    /// [`Error`]. Some of the entries may be stored.
    fn store(&mut self, batch: Batch<Self::Item>) -> Result<u64, Error>;

    /// Ends a complete import.
    ///
    /// # Errors
    /// [`Error`].
    fn finish(&mut self) -> Result<(), Error>;
}

/// Entries that are stored together.
pub(super) struct Batch<I> {
    pub(super) items: Vec<I>,
    /// For each item, the number of its entry in the input.
    pub(super) numbers: Vec<u64>,
    /// The size of each item.
    sizes: Vec<usize>,
}

impl<I> Default for Batch<I> {
    fn default() -> Batch<I> {
        Batch { items: Vec::new(), numbers: Vec::new(), sizes: Vec::new() }
    }
}

/// Imports entries.
///
/// # Errors
/// [`Error`].
pub(super) fn run(args: &ImportArgs) -> Result<(), Error> {
    check(args.quiet)?;
    if args.data.is_some() && args.resume_file.is_some() && matches!(args.durability, Some(Durability::Async)) {
        return Err(Error::Usage(
            "--resume-file needs --durability sync with --data: after a crash of the machine it would skip lost entries"
                .to_owned(),
        ));
    }
    if let Some(path) = &args.data {
        // The input is opened before the directory, so that a wrong name of the input creates no directory.
        let input = Input::open(args)?;
        return import(args, input, ImportDirectory::open(path, args)?);
    }
    if let Some(path) = &args.into {
        let input = Input::open(args)?;
        return import(args, input, Load::open(path, args)?);
    }
    let session = Session::start(&args.server)?;
    let input = Input::open(args)?;
    let upload = Upload::start(&session, args, input.format())?;
    import(args, input, upload)
}

/// What an import reads.
struct Input {
    source: Source,
    /// How far an earlier import of the same input has come.
    state: ImportState,
}

impl Input {
    fn open(args: &ImportArgs) -> Result<Input, Error> {
        let state = match &args.resume_file {
            Some(path) => ImportState::load(path)?,
            None => ImportState::default(),
        };
        if !state.is_of(generated_from(args).as_deref()) {
            return Err(other_input(args));
        }
        if let Some(directory) = args.into.as_ref().or(args.data.as_ref())
            && state.entries > 0
            && !directory.exists()
        {
            let what = format!("{} does not exist, and the resume file says that it has entries", directory.display());
            return Err(Error::Usage(what));
        }
        if let Some(count) = args.generate {
            let entries = Entries::new(args.key_format.clone(), args.value_format.clone(), args.value_size, count);
            return Ok(Input { source: Source::Generated(entries), state });
        }
        let source = open(args.input.as_deref())?;
        let items = match args.format {
            Some(format) => Items::new(source, format),
            None => Items::detect(source).map_err(unread)?,
        };
        Ok(Input { source: Source::Items(items), state })
    }

    /// Returns the form of the items. For generated entries, which have none, the result has no meaning.
    fn format(&self) -> Format {
        match &self.source {
            Source::Items(items) => items.format(),
            Source::Generated(_) => Format::Cbor,
        }
    }
}

/// Where the entries come from.
enum Source {
    Items(Items<Box<dyn Read>>),
    Generated(Entries),
}

fn import(args: &ImportArgs, mut input: Input, target: impl Target) -> Result<(), Error> {
    let mut import = Import {
        args,
        format: input.format(),
        target,
        batch: Batch::default(),
        batch_bytes: 0,
        entries: 0,
        last_key: Vec::new(),
        since_end: 0,
        ended: false,
        counts: Counts::default(),
        progress: Progress::start("importing"),
    };
    let read = import.all(&mut input);
    // What was read before an error is stored, so that the next import continues from there.
    let stored = import.store().and_then(|()| import.target.finish());
    read.and(stored)?;
    if !import.ended && !args.partial {
        return Err(Error::Failed(format!(
            "the input does not end as an export does: it is cut, or another program wrote it, which --partial allows; \
             {} entries were read and stored",
            import.entries
        )));
    }
    if let Some(path) = &args.resume_file
        && let Err(why) = std::fs::remove_file(path)
        && why.kind() != std::io::ErrorKind::NotFound
    {
        return Err(Error::File { what: format!("cannot delete {}", path.display()), why });
    }
    let Counts { expired, kept } = import.counts;
    let mut line = format!("imported {}", import.progress.finish());
    for (count, what) in [
        (input.state.entries, "were imported before"),
        (expired, "had expired"),
        (kept, "had a key that exists, which was kept"),
    ] {
        if count > 0 {
            line.extend(["; ".to_owned(), count.to_string(), format!(" {what}")]);
        }
    }
    print_line(args.quiet, &line)
}

fn unread(error: ItemError) -> Error {
    let why = match error {
        ItemError::Io(why) => why,
        other => return Error::Failed(format!("the input cannot be read to its end: {other}")),
    };
    Error::File { what: "cannot read the input".to_owned(), why }
}

/// Entries that were not stored.
#[derive(Debug, Default)]
struct Counts {
    expired: u64,
    kept: u64,
}

struct Import<'a, T: Target> {
    args: &'a ImportArgs,
    format: Format,
    target: T,
    /// The items that are stored next, and their size.
    batch: Batch<T::Item>,
    batch_bytes: u64,
    /// The number of entries that were read.
    entries: u64,
    /// The key of the last of them.
    last_key: Vec<u8>,
    /// The number of entries that were read since the last end item.
    since_end: u64,
    /// Whether the last item was a complete end.
    ended: bool,
    counts: Counts,
    progress: Progress,
}

impl<T: Target> Import<'_, T> {
    /// Reads all items, and stores them except for the last batch.
    fn all(&mut self, input: &mut Input) -> Result<(), Error> {
        let Input { source, state } = input;
        match source {
            Source::Items(items) => self.items(items, state)?,
            Source::Generated(entries) => self.generated(entries, state)?,
        }
        if self.entries < state.entries {
            return Err(other_input(self.args));
        }
        Ok(())
    }

    fn items(&mut self, items: &mut Items<Box<dyn Read>>, state: &ImportState) -> Result<(), Error> {
        while let Some(bytes) = items.next().map_err(unread)? {
            let number = self.entries + 1;
            let invalid = |why: &str| Error::Failed(format!("the item after entry {} is invalid: {why}", number - 1));
            match entry::decode(self.format, bytes).map_err(|why| invalid(&why))? {
                Item::Entry(entry) if number <= state.entries => self.skip(&entry, state)?,
                Item::Entry(entry) => self.add(&entry)?,
                Item::Prefix(_) => return Err(invalid("it is a common prefix of keys and not an entry")),
                Item::End(end) => self.end(&end)?,
            }
        }
        Ok(())
    }

    fn generated(&mut self, entries: &mut Entries, state: &ImportState) -> Result<(), Error> {
        while let Some((key, value)) = entries.next_entry() {
            let entry = Entry { key: key.into(), value: Some(value.into()), ..Entry::default() };
            if self.entries < state.entries { self.skip(&entry, state)? } else { self.add(&entry)? }
        }
        self.ended = true;
        Ok(())
    }

    /// Skips an entry that an earlier import has stored. Checks the key of the last such entry.
    fn skip(&mut self, entry: &Entry<'_>, state: &ImportState) -> Result<(), Error> {
        self.count(entry);
        if self.entries == state.entries && !state.ends_with(&entry.key) {
            return Err(other_input(self.args));
        }
        Ok(())
    }

    fn count(&mut self, entry: &Entry<'_>) {
        self.entries += 1;
        self.since_end += 1;
        self.ended = false;
        self.last_key.clear();
        self.last_key.extend_from_slice(&entry.key);
    }

    /// Adds an entry to the batch. If the entry does not fit, stores the batch first.
    fn add(&mut self, entry: &Entry<'_>) -> Result<(), Error> {
        let number = self.entries + 1;
        if entry.value.is_none() {
            return Err(Error::Failed(format!("entry {number} has no value: it is from a list of keys only")));
        }
        let expires_at_ms = expires_at_ms(entry);
        if expires_at_ms.is_some_and(|at| at <= clock::unix_ms()) {
            self.count(entry);
            self.counts.expired += 1;
            return Ok(());
        }
        let item = self.target.item(entry, expires_at_ms);
        let item = item.map_err(|why| Error::Failed(format!("entry {number}: {why}")))?;
        let bytes = T::bytes(&item);
        let items = self.batch.items.len() as u64;
        if items > 0 && self.target.is_full(items, self.batch_bytes, bytes as u64) {
            self.store()?;
        }
        self.count(entry);
        self.batch.items.push(item);
        self.batch.numbers.push(number);
        self.batch.sizes.push(bytes);
        self.batch_bytes += bytes as u64;
        Ok(())
    }

    /// Compares the number of entries with what the export says.
    fn end(&mut self, end: &End) -> Result<(), Error> {
        if let Some(entries) = end.entries.filter(|entries| end.complete && *entries != self.since_end) {
            return Err(Error::Failed(format!(
                "the export has {entries} entries by its end, and {} were read: the input is damaged",
                self.since_end
            )));
        }
        self.ended = end.complete;
        if end.complete {
            self.since_end = 0;
        }
        Ok(())
    }

    /// Stores the batch, and records how far the import has come.
    fn store(&mut self) -> Result<(), Error> {
        if self.batch.items.is_empty() {
            return Ok(());
        }
        // The batch is taken out, so that it is not stored again after an error.
        let mut batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        let sizes = std::mem::take(&mut batch.sizes);
        self.counts.kept += self.target.store(batch)?;
        for bytes in sizes {
            self.progress.add(bytes);
        }
        match &self.args.resume_file {
            Some(path) => ImportState::save(path, self.entries, &self.last_key, generated_from(self.args).as_deref()),
            None => Ok(()),
        }
    }
}

/// Returns the time at which an entry expires, milliseconds since 1970.
fn expires_at_ms(entry: &Entry<'_>) -> Option<u64> {
    let after = |ttl_s| {
        let left = Duration::try_from_secs_f64(ttl_s).unwrap_or_default();
        clock::unix_ms().saturating_add(u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
    };
    entry.expires_at_ms.or_else(|| entry.ttl_s.map(after))
}

/// Returns a text of the options from which the entries are generated; `None` if the entries are read.
fn generated_from(args: &ImportArgs) -> Option<String> {
    let count = args.generate?;
    Some(format!("{:?}", (count, &args.key_format, &args.value_format, args.value_size)))
}

fn other_input(args: &ImportArgs) -> Error {
    let path = args.resume_file.as_deref().unwrap_or_else(|| std::path::Path::new(""));
    Error::Usage(format!("{} records the import of another input", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_a_time_or_a_time_left() {
        let at = |expires_at_ms, ttl_s| expires_at_ms_of(expires_at_ms, ttl_s);
        let now = clock::unix_ms();
        assert_eq!(at(None, None), None);
        assert_eq!(at(Some(1), Some(9.0)), Some(1));
        assert!(at(None, Some(1.5)).is_some_and(|at| at >= now + 1_500));
        assert!(at(None, Some(-1.0)).is_some_and(|at| (now..now + 1_000_000).contains(&at)));
        assert_eq!(at(None, Some(1e18)), Some(u64::MAX));
    }

    fn expires_at_ms_of(expires_at_ms: Option<u64>, ttl_s: Option<f64>) -> Option<u64> {
        super::expires_at_ms(&Entry { ttl_s, expires_at_ms, ..Entry::default() })
    }
}
