//! `klad export`: writes entries to a file or to the standard output, and continues a file that was cut. Called by
//! `client::run`.
//!
//! ```text
//!   list       a server ─────────────────────────────────────┐
//!   directory  a data directory that no process serves ──────┴──▶ entry ──▶ file ──▶ the end, with the count
//! ```
//!
//! The file has its final name from the beginning, so that `--resume` finds what was written. The last item tells
//! whether the file is complete.

use std::fs::File;
use std::io::{BufReader, BufWriter, Seek as _, SeekFrom, Write};
use std::path::Path;

use crate::client::Error;
use crate::client::directory::Directory;
use crate::client::entry::{self, End, Entry, Item};
use crate::client::exchange::Session;
use crate::client::items::{Format, ItemError, Items};
use crate::client::list::{Event, List, Range};
use crate::client::list_args::ExportArgs;
use crate::client::output::{lock, not_written, print_line};
use crate::client::progress::Progress;
use klad_base::clock;

/// Bytes that are written to a file at a time.
const WRITE_BYTES: usize = 256 << 10;

/// Exports entries.
///
/// # Errors
/// [`Error`].
pub(super) fn run(args: &ExportArgs) -> Result<(), Error> {
    let range = Range::of(&args.range)?;
    let exists = args.output.as_ref().is_some_and(|path| path.exists());
    if let Some(path) = args.output.as_ref().filter(|_| exists && !args.resume) {
        return Err(Error::Usage(format!("{} exists: delete it, or continue it with --resume", path.display())));
    }
    let source = match &args.data {
        Some(path) => Source::Directory(Directory::open(path)?),
        None => Source::Server(Session::start(&args.server)?),
    };
    let Some(path) = &args.output else {
        let mut out = BufWriter::with_capacity(WRITE_BYTES, lock()?);
        return export(&source, range, args.format, &Part::default(), &mut out, not_written).map(drop).map_err(
            |error| match error {
                // If a reader such as a compressor ends early, it has not got the whole export.
                Error::OutputClosed => Error::Failed("the output was closed before the export was complete".to_owned()),
                other => other,
            },
        );
    };
    let failed = |why| Error::File { what: format!("cannot write {}", path.display()), why };
    let part = if exists { Part::read(path, args.format, &range)? } else { Part::default() };
    if part.is_complete {
        return print_line(args.quiet, &format!("the export is complete: {} entries", part.entries));
    }
    let mut file = File::options().write(true).create(true).truncate(false).open(path).map_err(failed)?;
    file.set_len(part.bytes).and_then(|()| file.seek(SeekFrom::End(0))).map_err(failed)?;
    let mut out = BufWriter::with_capacity(WRITE_BYTES, &file);
    let before = part.entries;
    let exported = export(&source, range, args.format, &part, &mut out, failed);
    let exported = exported.map_err(|error| match error {
        Error::Failed(text) => Error::Failed(format!("{text}; --resume continues the export")),
        Error::Refused(text) => Error::Refused(format!("{text}; --resume continues the export")),
        other => other,
    })?;
    drop(out);
    file.sync_all().map_err(failed)?;
    let resumed = if before > 0 { format!(", after {before} that were in the file") } else { String::new() };
    print_line(args.quiet, &format!("exported {exported}{resumed}"))
}

/// Where entries come from.
enum Source<'a> {
    Server(Session<'a>),
    Directory(Directory),
}

impl Source<'_> {
    /// Passes the entries of a range to `sink`, in the order of their keys.
    fn entries(
        &self,
        range: Range,
        format: Format,
        sink: &mut dyn FnMut(Entry<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let session = match self {
            Source::Server(session) => session,
            Source::Directory(directory) => return directory.entries(&range, sink),
        };
        let list = List { range, patient: true, ..List::default() };
        let listed = list.run(session, format, |event| match event {
            Event::Item(Item::Entry(entry)) if entry.value.is_some() => sink(with_expiry(entry)),
            Event::Item(_) => Err(Error::Failed("the answer has an item that is not an entry with a value".to_owned())),
            Event::Waiting => Ok(()),
        });
        listed.map(drop)
    }
}

/// Writes the entries that follow `part`, and the last item. Returns the counts in words.
fn export(
    source: &Source<'_>,
    range: Range,
    format: Format,
    part: &Part,
    out: &mut dyn Write,
    failed: impl Fn(std::io::Error) -> Error,
) -> Result<String, Error> {
    let range = if part.last_key.is_empty() { range } else { range.starting_at(&part.last_key) };
    let mut progress = Progress::start("exporting");
    let mut bytes = Vec::new();
    let listed = source.entries(range, format, &mut |entry| {
        if *entry.key == *part.last_key {
            return Ok(());
        }
        bytes.clear();
        entry::encode(format, &Item::Entry(entry), &mut bytes);
        progress.add(bytes.len());
        out.write_all(&bytes).map_err(&failed)
    });
    // What was listed before an error stays, so that `--resume` continues from there.
    let flushed = out.flush().map_err(&failed);
    listed?;
    flushed?;
    let entries = part.entries + progress.entries;
    bytes.clear();
    entry::encode(format, &Item::End(End { next: None, complete: true, entries: Some(entries) }), &mut bytes);
    out.write_all(&bytes).and_then(|()| out.flush()).map_err(&failed)?;
    Ok(progress.finish())
}

/// Replaces the time left by the time at which the value expires, because only the latter stays true in a file.
fn with_expiry(mut entry: Entry<'_>) -> Entry<'_> {
    if let Some(ttl_s) = entry.ttl_s.take() {
        let left = std::time::Duration::try_from_secs_f64(ttl_s).unwrap_or_default();
        entry.expires_at_ms = Some(clock::unix_ms() + u64::try_from(left.as_millis()).unwrap_or_default());
    }
    entry
}

/// The part of an export that a file contains.
#[derive(Debug, Default)]
struct Part {
    entries: u64,
    /// The length of the file up to the end of the last complete entry.
    bytes: u64,
    /// The key of the last complete entry; empty if there is none.
    last_key: Vec<u8>,
    is_complete: bool,
}

impl Part {
    /// Reads a file up to its last complete entry.
    ///
    /// # Errors
    /// The file cannot be read, or is not the beginning of an export of this range in this format.
    fn read(path: &Path, format: Format, range: &Range) -> Result<Part, Error> {
        let failed = |why| Error::File { what: format!("cannot read {}", path.display()), why };
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let mut items = Items::new(BufReader::with_capacity(WRITE_BYTES, file), format);
        let mut part = Part::default();
        let other = |why: &str| {
            Error::Usage(format!("{} is not the beginning of this export: {why}; delete it", path.display()))
        };
        loop {
            let item = match items.next() {
                Ok(Some(bytes)) => entry::decode(format, bytes).map(|item| match item {
                    Item::Entry(entry) => Ok(entry.key.into_owned()),
                    Item::End(end) => Err(end.complete),
                    Item::Prefix(_) => Err(false),
                }),
                Ok(None) | Err(ItemError::Cut) => break,
                Err(ItemError::Io(why)) => return Err(failed(why)),
                Err(error) => return Err(other(&error.to_string())),
            };
            // The last item may be cut. It then has no line feed.
            let is_last = items.offset() == length;
            match item {
                Ok(Ok(key)) if range.contains(&key) && key > part.last_key => {
                    if is_last && format == Format::Ndjson && !ends_with_line_feed(path).map_err(failed)? {
                        break;
                    }
                    (part.entries, part.bytes, part.last_key) = (part.entries + 1, items.offset(), key);
                }
                Ok(Ok(_)) => return Err(other("it has a key that is not in the range, or not in order")),
                Ok(Err(true)) => {
                    part.is_complete = true;
                    break;
                }
                Ok(Err(false)) => return Err(other("it has an item that is not an entry")),
                Err(_) if is_last && part.entries > 0 => break,
                Err(why) => return Err(other(&why)),
            }
        }
        // A file in the other format must not be overwritten.
        if part.entries == 0 && length > 0 && !part.is_complete {
            return Err(other("it has no complete entry"));
        }
        Ok(part)
    }
}

fn ends_with_line_feed(path: &Path) -> std::io::Result<bool> {
    use std::io::Read as _;
    let mut file = File::open(path)?;
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(bytes: &[u8], format: Format) -> Option<(u64, u64, bool)> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("out");
        std::fs::write(&path, bytes).expect("written");
        let part = Part::read(&path, format, &Range::default()).ok()?;
        Some((part.entries, part.bytes, part.is_complete))
    }

    /// An export of two entries, and where each item ends.
    fn export(format: Format) -> (Vec<u8>, Vec<u64>) {
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        for item in [
            Item::Entry(Entry { key: b"a"[..].into(), value: Some(b"1\n"[..].into()), ..Entry::default() }),
            Item::Entry(Entry { key: b"b"[..].into(), value: Some(b"\xff"[..].into()), ..Entry::default() }),
            Item::End(End { complete: true, entries: Some(2), next: None }),
        ] {
            entry::encode(format, &item, &mut bytes);
            ends.push(bytes.len() as u64);
        }
        (bytes, ends)
    }

    #[test]
    fn an_export_continues_after_the_last_complete_entry() {
        for format in [Format::Ndjson, Format::Cbor] {
            let (bytes, ends) = export(format);
            for length in 1..=bytes.len() {
                let whole = ends[..2].iter().filter(|end| **end <= length as u64).count();
                let expected = match whole {
                    _ if length == bytes.len() => Some((2, ends[1], true)),
                    0 => None,
                    _ => Some((whole as u64, ends[whole - 1], false)),
                };
                // The end needs no line feed.
                let is_end = format == Format::Ndjson && length + 1 == bytes.len();
                let expected = if is_end { Some((2, ends[1], true)) } else { expected };
                assert_eq!(part(&bytes[..length], format), expected, "{format:?} {length}");
            }
        }
        assert_eq!(part(b"", Format::Ndjson), Some((0, 0, false)));
    }

    #[test]
    fn a_file_that_is_no_export_is_not_overwritten() {
        assert_eq!(part(&export(Format::Ndjson).0, Format::Cbor), None);
        assert_eq!(part(&export(Format::Cbor).0, Format::Ndjson), None);
        assert_eq!(part(b"{\"key\":\"b\",\"value\":\"\"}\n{\"key\":\"a\",\"value\":\"\"}\n", Format::Ndjson), None);
        assert_eq!(part(b"{\"key\":\"b\",\"value\":\"\"}\nnothing\n{}\n", Format::Ndjson), None);
        assert_eq!(part(b"a file", Format::Ndjson), None);
    }
}
