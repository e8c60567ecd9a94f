//! `klad import`: stores the entries of an export by batches. Called by `client::run`.
//!
//! Storing an entry twice changes nothing more, so a request that the server rejects with 503 is repeated, and an
//! import can be repeated as a whole. `import_state` records how far it has come.

use std::time::Duration;

use crate::client::Error;
use crate::client::batch::{each_result, open};
use crate::client::bounds::Bounds;
use crate::client::entry::{self, End, Entry, Item};
use crate::client::exchange::{Body, Request, Session, header};
use crate::client::import_state::ImportState;
use crate::client::items::{Format, ItemError, Items};
use crate::client::list_args::ImportArgs;
use crate::client::output::{check, print_line};
use crate::client::patience::Patience;
use crate::client::problem::Problem;
use crate::client::progress::Progress;
use crate::client::write_headers::{durability, metadata, ttl};
use crate::client::{key, show};
use klad_base::clock;

/// Imports entries.
///
/// # Errors
/// [`Error`].
pub(super) fn run(args: &ImportArgs) -> Result<(), Error> {
    let session = Session::start(&args.server)?;
    check(args.quiet)?;
    let state = match &args.resume_file {
        Some(path) => ImportState::load(path)?,
        None => ImportState::default(),
    };
    let source = open(args.input.as_deref())?;
    let mut items = match args.format {
        Some(format) => Items::new(source, format),
        None => Items::detect(source).map_err(unread)?,
    };
    let mut import = Import {
        args,
        format: items.format(),
        bounds: Bounds::ask(&session)?,
        session: &session,
        batch: Batch::default(),
        entries: 0,
        last_key: Vec::new(),
        since_end: 0,
        ended: false,
        counts: Counts::default(),
        progress: Progress::start("importing"),
    };
    let read = import.all(&mut items, &state);
    // What was read before an error is stored, so that the next import continues from there.
    let sent = import.send();
    read.and(sent)?;
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
        (state.entries, "were imported before"),
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

/// The items of the next request.
#[derive(Default)]
struct Batch {
    body: Vec<u8>,
    /// The number of each item's entry in the input, and its length.
    entries: Vec<(u64, usize)>,
}

struct Import<'a> {
    args: &'a ImportArgs,
    format: Format,
    bounds: Bounds,
    session: &'a Session<'a>,
    batch: Batch,
    /// The number of entries that were read.
    entries: u64,
    /// The key of the last of them.
    last_key: Vec<u8>,
    /// The number of entries that were read since the last end.
    since_end: u64,
    /// Whether the last item was a complete end.
    ended: bool,
    counts: Counts,
    progress: Progress,
}

impl Import<'_> {
    /// Reads all items, and sends them except for the last batch.
    fn all(&mut self, items: &mut Items<impl std::io::Read>, state: &ImportState) -> Result<(), Error> {
        let mut put = Vec::new();
        while let Some(bytes) = items.next().map_err(unread)? {
            let number = self.entries + 1;
            let invalid = |why: &str| Error::Failed(format!("the item after entry {} is invalid: {why}", number - 1));
            match entry::decode(self.format, bytes).map_err(|why| invalid(&why))? {
                Item::Entry(entry) => {
                    if number <= state.entries {
                        self.skip(&entry, state)?;
                    } else {
                        self.add(&entry, &mut put)?;
                    }
                }
                Item::Prefix(_) => return Err(invalid("it is a common prefix of keys and not an entry")),
                Item::End(end) => self.end(&end)?,
            }
        }
        if self.entries < state.entries {
            return Err(other_input(self.args));
        }
        Ok(())
    }

    /// Passes an entry that was imported before.
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

    /// Adds an entry to the batch. `put` is scratch memory.
    fn add(&mut self, entry: &Entry<'_>, put: &mut Vec<u8>) -> Result<(), Error> {
        let number = self.entries + 1;
        if entry.value.is_none() {
            return Err(Error::Failed(format!("entry {number} has no value: it is from a list of keys only")));
        }
        let left = match left(entry) {
            Left::Expired => {
                self.count(entry);
                self.counts.expired += 1;
                return Ok(());
            }
            Left::Unlimited => None,
            Left::Time(left) => Some(left),
        };
        put.clear();
        entry::encode_put(self.format, entry, left.map(|left| left.as_secs_f64()), self.args.if_absent, put);
        let length = put.len() as u64;
        if length > self.bounds.bytes_max {
            self.send()?;
            self.put_alone(entry, left)?;
            self.count(entry);
            return self.save();
        }
        if self.bounds.is_enough(self.batch.entries.len() as u64, self.batch.body.len() as u64, length) {
            self.send()?;
        }
        self.count(entry);
        self.batch.body.extend_from_slice(put);
        self.batch.entries.push((self.entries, put.len()));
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

    /// Sends the batch, and records how far the import has come.
    fn send(&mut self) -> Result<(), Error> {
        if self.batch.entries.is_empty() {
            return Ok(());
        }
        // Taken out, so that it is not sent again after an error.
        let batch = std::mem::take(&mut self.batch);
        let mut patience = Patience::new(self.session, true);
        while self.try_send(&batch, &mut patience)? == Sent::Busy {}
        for (_, length) in batch.entries {
            self.progress.add(length);
        }
        self.save()
    }

    fn save(&self) -> Result<(), Error> {
        match &self.args.resume_file {
            Some(path) => ImportState::save(path, self.entries, &self.last_key),
            None => Ok(()),
        }
    }

    fn try_send(&mut self, batch: &Batch, patience: &mut Patience<'_>) -> Result<Sent, Error> {
        let mut headers = durability(self.args.durability);
        headers.push(header("Content-Type", self.format.media_type()));
        headers.push(header("Accept", Format::Ndjson.media_type()));
        let body = Some(Body::Bytes(batch.body.clone()));
        let request = Request { method: "POST", target: "/v1/batch".to_owned(), headers, body };
        let mut body = self.session.send(request).map_err(harmless)?;
        let entries = &batch.entries;
        let number = |item: usize| entries.get(item).map_or(0, |(number, _)| *number);
        if body.answer.status != 200 {
            let mut problem = Problem::read(&mut body.connection, &mut body.answer);
            if let Some(item) = problem.item.and_then(|item| usize::try_from(item).ok()) {
                problem.about = format!("entry {}: ", number(item));
            }
            patience.wait_after(problem, true).map_err(harmless)?;
            return Ok(Sent::Busy);
        }
        let (mut results, mut kept, mut failed, mut busy) = (0, 0, None, false);
        let read = each_result(body, |_, result| {
            match result.status {
                200..300 => {}
                412 if self.args.if_absent => kept += 1,
                503 => busy = true,
                status => {
                    let code = show::printable(result.code.as_deref().unwrap_or("no code"));
                    failed = failed.take().or(Some(format!("entry {}: {code} (status {status})", number(results))));
                }
            }
            results += 1;
            Ok(())
        });
        read.map_err(harmless)?;
        if let Some(why) = failed {
            return Err(Error::Failed(format!("{why}; other entries of its batch were stored")));
        }
        if results != entries.len() {
            return Err(harmless(Error::Undetermined("the answer has not all results".to_owned())));
        }
        if busy {
            let text = "overloaded: the server rejects entries with status 503";
            return if patience.wait(PAUSE) { Ok(Sent::Busy) } else { Err(Error::Refused(text.to_owned())) };
        }
        self.counts.kept += kept;
        Ok(Sent::Stored)
    }

    /// Stores an entry that is larger than a batch.
    fn put_alone(&mut self, entry: &Entry<'_>, left: Option<Duration>) -> Result<(), Error> {
        let mut patience = Patience::new(self.session, true);
        let value = entry.value.as_deref().unwrap_or_default();
        loop {
            let mut headers = durability(self.args.durability);
            headers.extend(left.map(ttl));
            headers.extend(entry.content_type.as_deref().map(|content_type| header("Content-Type", content_type)));
            headers.extend(entry.content_encoding.as_deref().map(|coding| header("Content-Encoding", coding)));
            for (name, value) in &entry.meta {
                let invalid = || Error::Failed(format!("entry {} has invalid metadata", self.entries + 1));
                headers.push(metadata(name, value).ok_or_else(invalid)?);
            }
            if self.args.if_absent {
                headers.push(header("If-None-Match", "*"));
            }
            let body = Some(Body::Bytes(value.to_vec()));
            let request = Request { method: "PUT", target: key::target(&entry.key, ""), headers, body };
            let mut body = self.session.send(request).map_err(harmless)?;
            match body.answer.status {
                201 | 204 => break,
                412 if self.args.if_absent => {
                    self.counts.kept += 1;
                    break;
                }
                _ => {
                    let mut problem = Problem::read(&mut body.connection, &mut body.answer);
                    problem.about = format!("entry {}: ", self.entries + 1);
                    patience.wait_after(problem, true).map_err(harmless)?;
                }
            }
        }
        self.progress.add(value.len());
        Ok(())
    }
}

/// How long to wait if single items of a batch were rejected with 503.
const PAUSE: Duration = Duration::from_millis(500);

/// What happened to a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Stored,
    /// The batch is to be sent again.
    Busy,
}

/// The time that a value has left.
#[derive(Debug, PartialEq)]
enum Left {
    Unlimited,
    Time(Duration),
    Expired,
}

fn left(entry: &Entry<'_>) -> Left {
    let left = match (entry.expires_at_ms, entry.ttl_s) {
        (Some(at), _) => Duration::from_millis(at.saturating_sub(clock::unix_ms())),
        (None, Some(ttl_s)) => Duration::try_from_secs_f64(ttl_s).unwrap_or_default(),
        (None, None) => return Left::Unlimited,
    };
    if left.as_millis() == 0 { Left::Expired } else { Left::Time(left) }
}

fn other_input(args: &ImportArgs) -> Error {
    let path = args.resume_file.as_deref().unwrap_or_else(|| std::path::Path::new(""));
    Error::Usage(format!("{} records the import of another input", path.display()))
}

/// An unknown outcome does no harm here.
fn harmless(error: Error) -> Error {
    match error {
        Error::Undetermined(why) => {
            Error::Failed(format!("{why}; the last entries may or may not be stored, and the import may be repeated"))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_in_the_past_is_no_time_to_live() {
        let entry = |expires_at_ms, ttl_s| left(&Entry { ttl_s, expires_at_ms, ..Entry::default() });
        assert_eq!(entry(None, None), Left::Unlimited);
        assert_eq!(entry(Some(1), None), Left::Expired);
        assert_eq!(entry(None, Some(1.5)), Left::Time(Duration::from_millis(1_500)));
        assert_eq!(entry(None, Some(-1.0)), Left::Expired);
        assert!(matches!(entry(Some(u64::MAX), Some(1.0)), Left::Time(left) if left > Duration::from_hours(1)));
    }
}
