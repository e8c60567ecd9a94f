//! `klad watch`: prints changes as the server sends them. Called by `client::run`.
//!
//! If the server ends a feed, the last line has the reason, and the command fails with this reason. A feed without a
//! reason was cut, because the connection was lost or the server was killed. Then the command connects again.

use std::io::{BufWriter, StdoutLock, Write as _};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::answer::AnswerBody;
use crate::client::exchange::{Request, Session, header};
use crate::client::items::{Format, Items};
use crate::client::limits::CLIENT_PATIENCE;
use crate::client::list_args::WatchArgs;
use crate::client::output::{lock, not_written};
use crate::client::problem::{Problem, rejection};
use crate::client::{Error, key, show};
use klad_base::clock;
use klad_base::sync::Signal;

/// Time between two attempts to connect again.
const PAUSE: Duration = Duration::from_millis(500);

/// Statuses after which the command tries again: klad is overloaded, or a proxy does not reach it.
const TEMPORARY: [u16; 3] = [502, 503, 504];

/// Prints changes.
///
/// # Errors
/// [`Error`].
pub(super) fn run(args: &WatchArgs) -> Result<(), Error> {
    let prefix = args.prefix.as_ref().map(|prefix| key::decode(prefix, args.keys)).transpose()?;
    let session = Session::start(&args.server)?;
    let out = BufWriter::new(lock()?);
    let mut watch = Watch { args, prefix, session: &session, out, printed: 0, last: args.from, until: None };
    let mut body = session.send(watch.request())?;
    if body.answer.status != 200 {
        return Err(rejection(&mut body.connection, &mut body.answer, false));
    }
    loop {
        let ended = watch.follow(body);
        watch.out.flush().map_err(not_written)?;
        let why = match ended? {
            Ended::AtLimit => return Ok(()),
            Ended::ByServer(why) => return Err(watch.failed(&why)),
            Ended::Lost(why) => why,
        };
        body = watch.reconnect(&why)?;
    }
}

struct Watch<'a> {
    args: &'a WatchArgs,
    prefix: Option<Vec<u8>>,
    session: &'a Session<'a>,
    out: BufWriter<StdoutLock<'static>>,
    /// The number of changes that were printed.
    printed: u64,
    /// The version up to which all changes were received.
    last: Option<u64>,
    /// When to give up, if the connection was lost and no line has arrived since.
    until: Option<Instant>,
}

/// Why a feed ended.
enum Ended {
    /// The command has printed `--limit` changes.
    AtLimit,
    /// The server ended the feed with this reason, or sent a line that klad cannot read.
    ByServer(String),
    /// The connection was lost.
    Lost(String),
}

impl Watch<'_> {
    /// The request for the changes after the last one.
    fn request(&self) -> Request {
        let mut parameters = Vec::new();
        parameters.extend(self.prefix.as_ref().map(|prefix| format!("prefix64={}", key::to_base64url(prefix))));
        parameters.extend(self.last.map(|version| format!("from={version}")));
        parameters.extend(self.args.values.then(|| "values=true".to_owned()));
        let question = if parameters.is_empty() { "" } else { "?" };
        let target = format!("/v1/changes{question}{}", parameters.join("&"));
        let headers = vec![header("Accept", Format::Ndjson.media_type())];
        Request { method: "GET", target, headers, body: None }
    }

    /// Prints the changes of a feed up to its end.
    fn follow(&mut self, body: AnswerBody) -> Result<Ended, Error> {
        let mut items = Items::new(body, Format::Ndjson);
        loop {
            if self.args.limit == Some(self.printed) {
                return Ok(Ended::AtLimit);
            }
            match items.is_ready() {
                Ok(true) => {}
                Ok(false) => self.out.flush().map_err(not_written)?,
                Err(error) => return Ok(Ended::Lost(error.to_string())),
            }
            let line = match items.next() {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(Ended::Lost("the stream ended without a reason".to_owned())),
                Err(error) => return Ok(Ended::Lost(error.to_string())),
            };
            self.until = None;
            let change: Value = match serde_json::from_slice(line) {
                Ok(change) => change,
                Err(error) => return Ok(Ended::ByServer(format!("the answer has an invalid change: {error}"))),
            };
            let text = match in_words(&change) {
                Ok(Line::Change(text)) => text,
                Ok(Line::SignOfLife) => {
                    self.last = change["heartbeat"].as_u64().or(self.last);
                    continue;
                }
                Err(why) => return Ok(Ended::ByServer(why)),
            };
            self.last = change["version"].as_u64().or(self.last);
            let line = if self.args.json { line } else { text.as_bytes() };
            self.out.write_all(line).and_then(|()| self.out.write_all(b"\n")).map_err(not_written)?;
            self.printed += 1;
        }
    }

    /// Connects again, for the changes after the last one. Gives up when no line has come for [`CLIENT_PATIENCE`].
    fn reconnect(&mut self, why: &str) -> Result<AnswerBody, Error> {
        // Before the first line no version is known. A new feed would then begin later, and miss changes.
        let Some(last) = self.last.filter(|_| self.session.has_time_for(PAUSE)) else { return Err(self.failed(why)) };
        let message = show::printable(&format!("{why}; connecting again after version {last}"));
        let _ = writeln!(std::io::stderr(), "klad watch: {message}");
        let mut failure = self.failed(why);
        let until = *self.until.get_or_insert_with(|| clock::now() + CLIENT_PATIENCE);
        let mut pause = PAUSE;
        while clock::now() + pause < until && self.session.has_time_for(pause) {
            Signal::default().wait_timeout(pause);
            pause = PAUSE;
            match self.session.send(self.request()) {
                Ok(body) if body.answer.status == 200 => return Ok(body),
                Ok(mut body) => {
                    let problem = Problem::read(&mut body.connection, &mut body.answer);
                    if !TEMPORARY.contains(&problem.status) {
                        return Err(problem.into_error(false));
                    }
                    pause = PAUSE.max(problem.pause());
                    failure = problem.into_error(false);
                }
                Err(Error::Failed(why)) => failure = self.failed(&why),
                Err(other) => return Err(other),
            }
        }
        Err(failure)
    }

    fn failed(&self, why: &str) -> Error {
        let rest = self.last.map(|version| format!("; --from {version} continues after the last change"));
        Error::Failed(format!("{why}{}", rest.unwrap_or_default()))
    }
}

/// A line of the server.
#[derive(Debug, PartialEq)]
enum Line {
    /// Version, operation, key and value, separated by tabs. The removal of a range has its bounds instead of a key.
    Change(String),
    /// The server has nothing new.
    SignOfLife,
}

/// Returns what a line of the server says. The error is the reason why the feed ends.
fn in_words(change: &Value) -> Result<Line, String> {
    if let Some(problem) = change.get("error") {
        let text = |name: &str| problem[name].as_str().unwrap_or("no reason");
        return Err(format!("the server ended the stream: {}: {}", text("code"), text("detail")));
    }
    let Some(op) = change["op"].as_str() else { return Ok(Line::SignOfLife) };
    let version = change["version"].as_u64().map_or_else(|| "-".to_owned(), |version| version.to_string());
    let mut line = format!("{version}\t{}", show::printable(op));
    for name in ["key", "start", "end", "value"] {
        let bytes = match (change[name].as_str(), change[format!("{name}64")].as_str()) {
            (Some(text), _) => text.as_bytes().to_vec(),
            (None, Some(text)) => key::from_base64(text.as_bytes())
                .ok_or_else(|| format!("the answer has an invalid change: {name}64 is not base64"))?,
            (None, None) => continue,
        };
        line.push('\t');
        line.push_str(&show::escape(&bytes));
    }
    Ok(Line::Change(line))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_is_a_line() {
        let line = |change: &Value| in_words(change);
        let change = |text: &str| Ok(Line::Change(text.to_owned()));
        let put = json!({"op": "put", "key": "a\tb", "version": 7, "etag": "\"7\"", "value64": "/w=="});
        assert_eq!(line(&put), change("7\tput\ta\\tb\t\\xff"));
        let delete = json!({"op": "delete", "key64": "_w", "version": 8});
        assert_eq!(line(&delete), change("8\tdelete\t\\xff"));
        let range = json!({"op": "delete_range", "start": "a", "end": "b", "version": 9});
        assert_eq!(line(&range), change("9\tdelete_range\ta\tb"));
        assert_eq!(line(&json!({"heartbeat": 7})), Ok(Line::SignOfLife));
        assert!(line(&json!({"op": "put", "key64": "?"})).is_err());
        let error = json!({"error": {"code": "stopping", "detail": "why"}});
        assert_eq!(line(&error), Err("the server ended the stream: stopping: why".to_owned()));
    }
}
