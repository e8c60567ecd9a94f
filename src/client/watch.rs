//! `klad watch`: prints changes as the server sends them. Called by `client::run`.

use std::io::{BufWriter, Write as _};

use serde_json::Value;

use crate::client::exchange::{Request, Session, header};
use crate::client::items::{Format, Items};
use crate::client::list_args::WatchArgs;
use crate::client::output::{lock, not_written};
use crate::client::problem::rejection;
use crate::client::{Error, key, show};

/// Prints changes.
///
/// # Errors
/// [`Error`].
pub(super) fn run(args: &WatchArgs) -> Result<(), Error> {
    let target = target(args)?;
    let session = Session::start(&args.server)?;
    let headers = vec![header("Accept", Format::Ndjson.media_type())];
    let mut body = session.send(Request { method: "GET", target, headers, body: None })?;
    if body.answer.status != 200 {
        return Err(rejection(&mut body.connection, &mut body.answer, false));
    }
    let mut out = BufWriter::new(lock()?);
    let mut items = Items::new(body, Format::Ndjson);
    let (mut printed, mut last) = (0, args.from);
    let why = loop {
        if args.limit == Some(printed) {
            return out.flush().map_err(not_written);
        }
        match items.is_ready() {
            Ok(true) => {}
            Ok(false) => out.flush().map_err(not_written)?,
            Err(error) => break error.to_string(),
        }
        let line = match items.next() {
            Ok(Some(line)) => line,
            Ok(None) => break "the server ended the stream".to_owned(),
            Err(error) => break error.to_string(),
        };
        let change: Value = match serde_json::from_slice(line) {
            Ok(change) => change,
            Err(error) => break format!("the answer has an invalid change: {error}"),
        };
        let text = match in_words(&change) {
            Ok(Line::Change(text)) => text,
            Ok(Line::SignOfLife) => {
                last = change["heartbeat"].as_u64().or(last);
                continue;
            }
            Err(why) => break why,
        };
        last = change["version"].as_u64().or(last);
        let line = if args.json { line } else { text.as_bytes() };
        out.write_all(line).and_then(|()| out.write_all(b"\n")).map_err(not_written)?;
        printed += 1;
    };
    out.flush().map_err(not_written)?;
    let rest = last.map(|version| format!("; --from {version} continues after the last change")).unwrap_or_default();
    Err(Error::Failed(format!("{why}{rest}")))
}

fn target(args: &WatchArgs) -> Result<String, Error> {
    let mut parameters = Vec::new();
    if let Some(prefix) = &args.prefix {
        parameters.push(format!("prefix64={}", key::to_base64url(&key::decode(prefix, args.keys)?)));
    }
    parameters.extend(args.from.map(|version| format!("from={version}")));
    if args.values {
        parameters.push("values=true".to_owned());
    }
    let question = if parameters.is_empty() { "" } else { "?" };
    Ok(format!("/v1/changes{question}{}", parameters.join("&")))
}

/// A line of the server.
#[derive(Debug, PartialEq)]
enum Line {
    /// Version, operation, key and value, separated by tabs. The removal of a range has its bounds instead of a key.
    Change(String),
    /// The server has nothing new.
    SignOfLife,
}

/// Returns what a line of the server says. An error is the reason for which the server ends the stream.
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
