//! Scans of `/v1`: the entries of a range in one or several requests. Each request continues at the cursor of the
//! previous one. Called by `scan` and `export`.

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};

use crate::client::answer::AnswerBody;
use crate::client::bounds::read_json;
use crate::client::entry::{self, Item};
use crate::client::exchange::{Request, Session, header};
use crate::client::items::{Format, Items};
use crate::client::list_args::RangeArgs;
use crate::client::patience::Patience;
use crate::client::problem::Problem;
use crate::client::{Error, key};

/// A range of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Range {
    /// The bytes with which all keys of the range begin; empty: all keys. If `prefix` is set, `start` and `end` are
    /// not.
    pub(super) prefix: Vec<u8>,
    /// The first key; empty: the first key of the store.
    pub(super) start: Vec<u8>,
    /// The key behind the range; `None`: after the last key.
    pub(super) end: Option<Vec<u8>>,
}

impl Range {
    /// Returns the range of a command line.
    ///
    /// # Errors
    /// If a key does not have the form that `args.keys` names, or if END is an empty key.
    pub(super) fn of(args: &RangeArgs) -> Result<Range, Error> {
        let decoded = |argument: &Option<std::ffi::OsString>| match argument {
            Some(argument) => key::decode(argument, args.keys).map(Some),
            None => Ok(None),
        };
        let end = decoded(&args.end)?;
        if end.as_ref().is_some_and(Vec::is_empty) {
            let text = "no key is before an empty END: leave END out to list to the last key";
            return Err(Error::Usage(text.to_owned()));
        }
        let (prefix, start) = (decoded(&args.prefix)?, decoded(&args.start)?);
        Ok(Range { prefix: prefix.unwrap_or_default(), start: start.unwrap_or_default(), end })
    }

    /// Returns the part of the range from `first` on.
    pub(super) fn starting_at(&self, first: &[u8]) -> Range {
        let end = if self.prefix.is_empty() { self.end.clone() } else { key::after_prefix(&self.prefix) };
        Range { prefix: Vec::new(), start: first.to_vec(), end }
    }

    /// Returns whether the range contains a key.
    pub(super) fn contains(&self, key: &[u8]) -> bool {
        key.starts_with(&self.prefix) && key >= &*self.start && self.end.as_ref().is_none_or(|end| key < &**end)
    }
}

/// A scan.
#[derive(Debug, Default)]
pub(super) struct List {
    pub(super) range: Range,
    pub(super) reverse: bool,
    pub(super) keys_only: bool,
    pub(super) delimiter: Option<Vec<u8>>,
    pub(super) limit: Option<u64>,
    /// Whether a request that the server rejects with 503 is repeated.
    pub(super) patient: bool,
}

/// What [`List::run`] reports.
#[expect(clippy::large_enum_variant, reason = "an event is passed on at once, and never stored")]
pub(super) enum Event<'a> {
    /// An entry or a common prefix.
    Item(Item<'a>),
    /// The next item has not arrived yet.
    Waiting,
}

impl List {
    /// Passes all items to `sink`, and returns their number.
    ///
    /// # Errors
    /// [`Error`], also of `sink`. If the list is incomplete, the message says so.
    pub(super) fn run(
        &self,
        session: &Session<'_>,
        format: Format,
        mut sink: impl FnMut(Event<'_>) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let mut listed = 0;
        let mut cursor: Option<String> = None;
        loop {
            let target = self.target(cursor.as_deref(), listed);
            let mut items = Items::new(get(session, &target, Some(format), self.patient)?, format);
            let end = loop {
                let incomplete = |why: String| {
                    Error::Failed(format!("{why}; the list is incomplete: it ends after {listed} entries"))
                };
                let unread = |error: crate::client::items::ItemError| incomplete(error.to_string());
                if !items.is_ready().map_err(unread)? {
                    sink(Event::Waiting)?;
                }
                let Some(bytes) = items.next().map_err(unread)? else {
                    return Err(incomplete("the answer ended without its last item".to_owned()));
                };
                match entry::decode(format, bytes) {
                    Ok(Item::End(end)) => break end,
                    Ok(item) => sink(Event::Item(item))?,
                    Err(why) => return Err(incomplete(format!("the answer has an invalid item: {why}"))),
                }
                listed += 1;
            };
            if end.complete || self.limit.is_some_and(|limit| listed >= limit) {
                return Ok(listed);
            }
            if end.next.is_none() || end.next == cursor {
                return Err(Error::Failed(format!("the answer ended without a new cursor after {listed} entries")));
            }
            cursor = end.next;
        }
    }

    /// Returns the number of entries.
    ///
    /// # Errors
    /// [`Error`].
    pub(super) fn count(&self, session: &Session<'_>) -> Result<u64, Error> {
        let (mut count, mut cursor) = (0, None);
        loop {
            let target = self.target(cursor.as_deref(), 0);
            let target = format!("{target}{}count=true", if target.contains('?') { "&" } else { "?" });
            let document = read_json(get(session, &target, None, false)?)?;
            let invalid = || Error::Failed("the answer is not a count: is this server klad?".to_owned());
            count += document["count"].as_u64().ok_or_else(invalid)?;
            if document["complete"].as_bool().ok_or_else(invalid)? {
                return Ok(count);
            }
            cursor = Some(document["next"].as_str().ok_or_else(invalid)?.to_owned());
        }
    }

    /// Returns path and query. With a cursor they have no range, direction and delimiter, because the cursor contains
    /// these.
    fn target(&self, cursor: Option<&str>, listed: u64) -> String {
        let mut target = "/v1/kv".to_owned();
        let mut add = |name: &str, value: &str| {
            for part in [if target.contains('?') { "&" } else { "?" }, name, "=", value] {
                target.push_str(part);
            }
        };
        let encoded = |bytes: &[u8]| percent_encode(bytes, NON_ALPHANUMERIC).to_string();
        if let Some(cursor) = cursor {
            add("cursor", &encoded(cursor.as_bytes()));
        } else {
            for (name, bytes) in [("prefix64", &self.range.prefix), ("start64", &self.range.start)] {
                if !bytes.is_empty() {
                    add(name, &key::to_base64url(bytes));
                }
            }
            if let Some(end) = &self.range.end {
                add("end64", &key::to_base64url(end));
            }
            if self.reverse {
                add("reverse", "true");
            }
            if let Some(delimiter) = &self.delimiter {
                add("delimiter", &encoded(delimiter));
            }
        }
        if self.keys_only {
            add("keys_only", "true");
        }
        if let Some(limit) = self.limit {
            add("limit", &(limit - listed).to_string());
        }
        target
    }
}

/// Sends a request for items, or without `format` for a JSON document. If `patient` is set, repeats the request while
/// the server rejects it with 503.
fn get(session: &Session<'_>, target: &str, format: Option<Format>, patient: bool) -> Result<AnswerBody, Error> {
    let mut patience = Patience::new(session, patient);
    loop {
        let headers = vec![header("Accept", format.map_or("application/json", Format::media_type))];
        let mut body = session.send(Request { method: "GET", target: target.to_owned(), headers, body: None })?;
        if body.answer.status == 200 {
            return Ok(body);
        }
        let problem = Problem::read(&mut body.connection, &mut body.answer);
        patience.wait_after(problem, false)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_what_differs_from_the_defaults() {
        let list = |range| List { range, ..List::default() };
        assert_eq!(list(Range::default()).target(None, 0), "/v1/kv");
        let range = Range { start: b"a".to_vec(), end: Some(b"\xff".to_vec()), ..Range::default() };
        assert_eq!(list(range.clone()).target(None, 0), "/v1/kv?start64=YQ&end64=_w");
        let whole = List {
            range: Range { prefix: b"p".to_vec(), ..Range::default() },
            reverse: true,
            keys_only: true,
            delimiter: Some(b"/".to_vec()),
            limit: Some(10),
            patient: false,
        };
        let expected = "/v1/kv?prefix64=cA&reverse=true&delimiter=%2F&keys_only=true&limit=10";
        assert_eq!(whole.target(None, 0), expected);
        assert_eq!(whole.target(Some("a="), 4), "/v1/kv?cursor=a%3D&keys_only=true&limit=6");
    }

    #[test]
    fn a_range_continues_from_a_key() {
        let prefix = Range { prefix: b"a/".to_vec(), ..Range::default() };
        let rest = prefix.starting_at(b"a/b");
        assert_eq!(rest, Range { start: b"a/b".to_vec(), end: Some(b"a0".to_vec()), ..Range::default() });
        assert!(prefix.contains(b"a/b") && !prefix.contains(b"a0") && rest.contains(b"a/b") && !rest.contains(b"a/a"));
    }
}
