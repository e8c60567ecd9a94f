//! `klad batch`: sends the lines of its input as batches, and prints the results. Called by `client::run`.
//!
//! Lines go to the server unchanged, in batches of a size that `/v1/limits` allows. With `--atomic` there is one batch.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write as _};
use std::path::Path;

use serde::Deserialize;

use crate::client::Error;
use crate::client::answer::AnswerBody;
use crate::client::bounds::Bounds;
use crate::client::exchange::{Body, Request, Session, header};
use crate::client::items::{Format, ItemError, Items};
use crate::client::list_args::BatchArgs;
use crate::client::output::{check, lock, not_written};
use crate::client::problem::Problem;
use crate::client::write_headers::durability;

/// The members of a result that `klad batch` and `klad import` read. The results have the order of the items.
#[derive(Debug, Deserialize)]
pub(super) struct ItemResult {
    pub(super) status: u16,
    pub(super) code: Option<String>,
}

/// Sends the items.
///
/// # Errors
/// [`Error`].
pub(super) fn run(args: &BatchArgs) -> Result<(), Error> {
    let session = Session::start(&args.server)?;
    check(args.quiet)?;
    let mut items = Items::new(open(args.file.as_deref())?, Format::Ndjson);
    let bounds = Bounds::ask(&session)?;
    let mut batch = Batch { args, session: &session, body: Vec::new(), items: 0, sent: 0, failed: 0 };
    loop {
        let unread = |error: ItemError| {
            let why = match error {
                ItemError::Io(why) => why,
                other => io::Error::other(other.to_string()),
            };
            Error::File { what: "cannot read the items".to_owned(), why }
        };
        let Some(item) = items.next().map_err(unread)? else { break };
        let (bytes, length) = (batch.body.len() as u64, item.len() as u64 + 1);
        if args.atomic && batch.items > 0 && bounds.excludes(batch.items, bytes, length) {
            let Bounds { items_max, bytes_max } = bounds;
            return Err(Error::Failed(format!(
                "the items are more than the server takes in one request ({items_max} items, {bytes_max} bytes), and \
                 --atomic needs one request; nothing has happened"
            )));
        }
        if !args.atomic && bounds.is_enough(batch.items, bytes, length) {
            batch.send()?;
        }
        batch.body.extend_from_slice(item);
        batch.body.push(b'\n');
        batch.items += 1;
    }
    if batch.items > 0 {
        batch.send()?;
    }
    if batch.failed > 0 {
        return Err(Error::Unmet(format!("{} of {} items failed", batch.failed, batch.sent)));
    }
    Ok(())
}

/// Opens a file, or the standard input.
///
/// # Errors
/// The file does not exist or cannot be read.
pub(super) fn open(path: Option<&Path>) -> Result<Box<dyn Read>, Error> {
    let Some(path) = path.filter(|path| *path != Path::new("-")) else { return Ok(Box::new(io::stdin())) };
    let file = File::open(path).map_err(|why| Error::File { what: format!("cannot read {}", path.display()), why })?;
    Ok(Box::new(file))
}

struct Batch<'a> {
    args: &'a BatchArgs,
    session: &'a Session<'a>,
    /// The items to send.
    body: Vec<u8>,
    items: u64,
    /// The number of items that were sent before.
    sent: u64,
    failed: u64,
}

impl Batch<'_> {
    fn send(&mut self) -> Result<(), Error> {
        let target = if self.args.atomic { "/v1/batch?atomic=true" } else { "/v1/batch" }.to_owned();
        let mut headers = durability(self.args.durability);
        headers.extend(["Content-Type", "Accept"].map(|name| header(name, Format::Ndjson.media_type())));
        let body = Some(Body::Bytes(std::mem::take(&mut self.body)));
        let mut body = self.session.send(Request { method: "POST", target, headers, body })?;
        if body.answer.status != 200 {
            let mut problem = Problem::read(&mut body.connection, &mut body.answer);
            // People count from 1.
            if let Some(item) = problem.item {
                problem.about = format!("item {}: ", self.sent + item + 1);
            } else if self.sent > 0 {
                problem.about = format!("items from {} on: ", self.sent + 1);
            }
            return Err(problem.into_error(true));
        }
        self.report(body)?;
        self.sent += self.items;
        self.items = 0;
        Ok(())
    }

    /// Prints the results.
    fn report(&mut self, body: AnswerBody) -> Result<(), Error> {
        let mut out = BufWriter::new(lock()?);
        let mut results = 0;
        let read = each_result(body, |line, result| {
            results += 1;
            // An absent key is a result, not a failure.
            self.failed += u64::from(result.status >= 400 && result.status != 404);
            if self.args.quiet {
                return Ok(());
            }
            out.write_all(line).and_then(|()| out.write_all(b"\n")).map_err(not_written)
        });
        out.flush().map_err(not_written)?;
        read?;
        if results != self.items {
            let first = self.sent + results + 1;
            return Err(Error::Undetermined(format!("the answer has no results from item {first} on")));
        }
        Ok(())
    }
}

/// Passes each result of a batch to `sink`, together with the line that the server sent.
///
/// # Errors
/// The answer is incomplete or invalid, so that the outcome of a write is not known. Also the error of `sink`.
pub(super) fn each_result(
    body: AnswerBody,
    mut sink: impl FnMut(&[u8], &ItemResult) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut items = Items::new(body, Format::Ndjson);
    while let Some(line) = items.next().map_err(|error| Error::Undetermined(error.to_string()))? {
        let invalid = |error| Error::Undetermined(format!("the answer has an invalid result: {error}"));
        let result = serde_json::from_slice(line).map_err(invalid)?;
        sink(line, &result)?;
    }
    Ok(())
}
