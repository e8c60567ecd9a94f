//! Stores the entries of an import in a server. Entries go in batches; an entry that is larger than a batch goes in a
//! PUT. Called by `import`.
//!
//! Storing an entry twice stores the same value, so a request that the server rejects with 503 is repeated.

use std::time::Duration;

use crate::client::batch::each_result;
use crate::client::bounds::Bounds;
use crate::client::entry::{self, Entry};
use crate::client::exchange::{Body, Header, Request, Session, header};
use crate::client::import::{Batch, Target};
use crate::client::items::Format;
use crate::client::list_args::ImportArgs;
use crate::client::patience::Patience;
use crate::client::problem::Problem;
use crate::client::write_headers::{durability, metadata, ttl};
use crate::client::{Error, key, show};
use klad_base::clock;

/// How long to wait if single items of a batch were rejected with 503.
const PAUSE: Duration = Duration::from_millis(500);

/// An import into a server.
pub(super) struct Upload<'a> {
    args: &'a ImportArgs,
    session: &'a Session<'a>,
    format: Format,
    bounds: Bounds,
}

/// An entry to store.
pub(super) enum Put {
    /// The item of a batch.
    Item(Vec<u8>),
    /// An entry that is larger than the server takes in a batch: the size of its item, and its own request.
    Alone { item_bytes: usize, target: String, headers: Vec<Header>, value: Vec<u8> },
}

/// What happened to a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// The batch was stored, except for this number of items whose keys exist.
    Stored(u64),
    /// The batch is to be sent again.
    Busy,
}

impl<'a> Upload<'a> {
    /// Asks the server for its limits of a batch. The entries have the form `format`.
    ///
    /// # Errors
    /// [`Error`].
    pub(super) fn start(session: &'a Session<'a>, args: &'a ImportArgs, format: Format) -> Result<Upload<'a>, Error> {
        Ok(Upload { args, session, format, bounds: Bounds::ask(session)? })
    }

    /// The request of an entry that is larger than a batch.
    fn alone(&self, entry: &Entry<'_>, left: Option<Duration>, item_bytes: usize) -> Result<Put, String> {
        let mut headers = durability(self.args.durability);
        headers.extend(left.map(ttl));
        headers.extend(entry.content_type.as_deref().map(|text| header("Content-Type", text)));
        headers.extend(entry.content_encoding.as_deref().map(|text| header("Content-Encoding", text)));
        for (name, value) in &entry.meta {
            headers.push(metadata(name, value).ok_or("it has invalid metadata")?);
        }
        if self.args.if_absent {
            headers.push(header("If-None-Match", "*"));
        }
        let value = entry.value.as_deref().unwrap_or_default().to_vec();
        Ok(Put::Alone { item_bytes, target: key::target(&entry.key, ""), headers, value })
    }

    fn try_send(&self, batch: &Batch<Put>, patience: &mut Patience<'_>) -> Result<Sent, Error> {
        let items = batch.items.iter().map(|put| match put {
            Put::Item(item) => item.as_slice(),
            Put::Alone { .. } => unreachable!("it is a batch by itself"),
        });
        let mut headers = durability(self.args.durability);
        headers.push(header("Content-Type", self.format.media_type()));
        headers.push(header("Accept", Format::Ndjson.media_type()));
        let body = Some(Body::Bytes(items.collect::<Vec<_>>().concat()));
        let request = Request { method: "POST", target: "/v1/batch".to_owned(), headers, body };
        let mut body = self.session.send(request)?;
        let number = |item: usize| batch.numbers.get(item).copied().unwrap_or_default();
        if body.answer.status != 200 {
            let mut problem = Problem::read(&mut body.connection, &mut body.answer);
            if let Some(item) = problem.item.and_then(|item| usize::try_from(item).ok()) {
                problem.about = format!("entry {}: ", number(item));
            }
            patience.wait_after(problem, true)?;
            return Ok(Sent::Busy);
        }
        let (mut results, mut kept, mut failed, mut busy) = (0, 0, None, false);
        each_result(body, |_, result| {
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
        })?;
        if let Some(why) = failed {
            return Err(Error::Failed(format!("{why}; other entries of its batch were stored")));
        }
        if results != batch.items.len() {
            return Err(Error::Undetermined("the answer has not all results".to_owned()));
        }
        if busy {
            let text = "overloaded: the server rejects entries with status 503";
            return if patience.wait(PAUSE) { Ok(Sent::Busy) } else { Err(Error::Refused(text.to_owned())) };
        }
        Ok(Sent::Stored(kept))
    }

    /// Stores an entry that is larger than a batch.
    fn try_put(&self, put: &Put, number: u64, patience: &mut Patience<'_>) -> Result<Sent, Error> {
        let Put::Alone { target, headers, value, .. } = put else { unreachable!("only called with such an entry") };
        let (target, headers, body) = (target.clone(), headers.clone(), Some(Body::Bytes(value.clone())));
        let mut body = self.session.send(Request { method: "PUT", target, headers, body })?;
        match body.answer.status {
            201 | 204 => Ok(Sent::Stored(0)),
            412 if self.args.if_absent => Ok(Sent::Stored(1)),
            _ => {
                let mut problem = Problem::read(&mut body.connection, &mut body.answer);
                problem.about = format!("entry {number}: ");
                patience.wait_after(problem, true).map(|()| Sent::Busy)
            }
        }
    }
}

impl Target for Upload<'_> {
    type Item = Put;

    fn is_full(&self, items: u64, bytes: u64, next_bytes: u64) -> bool {
        self.bounds.is_enough(items, bytes, next_bytes)
    }

    fn item(&self, entry: &Entry<'_>, expires_at_ms: Option<u64>) -> Result<Put, String> {
        let left = expires_at_ms.map(|at| Duration::from_millis(at.saturating_sub(clock::unix_ms()).max(1)));
        let (left_s, mut item) = (left.map(|left| left.as_secs_f64()), Vec::new());
        entry::encode_put(self.format, entry, left_s, self.args.if_absent, &mut item);
        if item.len() as u64 > self.bounds.bytes_max {
            self.alone(entry, left, item.len())
        } else {
            Ok(Put::Item(item))
        }
    }

    fn bytes(put: &Put) -> usize {
        match put {
            Put::Item(item) => item.len(),
            Put::Alone { item_bytes, .. } => *item_bytes,
        }
    }

    fn store(&mut self, batch: Batch<Put>) -> Result<u64, Error> {
        let mut patience = Patience::new(self.session, true);
        loop {
            let sent = match &batch.items[..] {
                [put @ Put::Alone { .. }] => self.try_put(put, batch.numbers[0], &mut patience),
                _ => self.try_send(&batch, &mut patience),
            };
            if let Sent::Stored(kept) = sent.map_err(harmless)? {
                return Ok(kept);
            }
        }
    }

    fn finish(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Turns an unknown outcome into a failure, because an import may be repeated.
fn harmless(error: Error) -> Error {
    match error {
        Error::Undetermined(why) => {
            Error::Failed(format!("{why}; the last entries may or may not be stored, and the import may be repeated"))
        }
        other => other,
    }
}
