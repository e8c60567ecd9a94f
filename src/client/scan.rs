//! `klad scan`: lists entries of a range, or counts them. Called by `client::run`.

use std::io::{BufWriter, Write as _};
use std::os::unix::ffi::OsStrExt as _;

use crate::client::entry::{self, Item};
use crate::client::exchange::Session;
use crate::client::items::Format;
use crate::client::list::{Event, List, Range};
use crate::client::list_args::ScanArgs;
use crate::client::output::{lock, not_written, print_line};
use crate::client::{Error, show};

/// Lists entries.
///
/// # Errors
/// [`Error`].
pub(super) fn run(args: &ScanArgs) -> Result<(), Error> {
    let list = List {
        range: Range::of(&args.range)?,
        reverse: args.reverse,
        keys_only: args.keys_only,
        delimiter: args.delimiter.as_ref().map(|delimiter| delimiter.as_bytes().to_vec()),
        limit: args.limit,
        patient: false,
    };
    let session = Session::start(&args.server)?;
    if args.limit == Some(0) {
        return Ok(());
    }
    if args.count {
        let count = list.count(&session)?;
        let line = if args.json { format!("{{\"count\":{count}}}") } else { count.to_string() };
        return print_line(false, &line);
    }
    let mut out = BufWriter::new(lock()?);
    let mut line = Vec::new();
    let listed = list.run(&session, Format::Ndjson, |event| match event {
        // A terminal shows entries as they arrive.
        Event::Waiting => out.flush().map_err(not_written),
        Event::Item(item) => {
            line.clear();
            show_item(&item, args.json, &mut line);
            out.write_all(&line).map_err(not_written)
        }
    });
    out.flush().map_err(not_written)?;
    listed.map(drop)
}

fn show_item(item: &Item<'_>, as_json: bool, line: &mut Vec<u8>) {
    if as_json {
        return entry::encode(Format::Ndjson, item, line);
    }
    let text = match item {
        Item::Entry(entry) => match &entry.value {
            Some(value) => format!("{}\t{}", show::escape(&entry.key), show::escape(value)),
            None => show::escape(&entry.key),
        },
        Item::Prefix(prefix) => show::escape(prefix),
        Item::End(_) => unreachable!("`List` does not pass it on"),
    };
    line.extend_from_slice(text.as_bytes());
    line.push(b'\n');
}
