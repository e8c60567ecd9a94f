//! The commands put, get, del, scan and health: each sends one request and prints the answer. Called by `client::run`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, IsTerminal as _, Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::client::answer::{Answer, AnswerError};
use crate::client::args::{DelArgs, Durability, GetArgs, HealthArgs, PutArgs, ScanArgs, WriteArgs};
use crate::client::connection::Connection;
use crate::client::exchange::{Body, Request, exchange, server, url_from};
use crate::client::limits::{CLIENT_PROBLEM_BYTES_MAX, CLIENT_READ_AHEAD_BYTES};
use crate::client::replace::write_file;
use crate::client::{ADMIN_URL_VARIABLE, Error, key, show};
use klad_base::os::output;

/// Stores a value.
///
/// # Errors
/// [`Error`].
pub(super) fn put(args: &PutArgs) -> Result<(), Error> {
    let key = key::decode_key(&args.key, args.keys)?;
    let url = server(&args.server)?;
    check_output(args.write.quiet)?;
    let body = Some(value(args)?);
    let request = Request { method: "PUT", target: entity(&key), headers: durability(args.write.durability), body };
    let (mut connection, mut answer) = exchange(&url, &args.server.transport, request)?;
    report_write(&mut connection, &mut answer, 201, "etag", &args.write)
}

/// Removes a key.
///
/// # Errors
/// [`Error`].
pub(super) fn del(args: &DelArgs) -> Result<(), Error> {
    let key = key::decode_key(&args.key, args.keys)?;
    let url = server(&args.server)?;
    check_output(args.write.quiet)?;
    let headers = durability(args.write.durability);
    let request = Request { method: "DELETE", target: entity(&key), headers, body: None };
    let (mut connection, mut answer) = exchange(&url, &args.server.transport, request)?;
    report_write(&mut connection, &mut answer, 202, "klad-version", &args.write)
}

/// Prints a value.
///
/// # Errors
/// [`Error`].
pub(super) fn get(args: &GetArgs) -> Result<(), Error> {
    let key = key::decode_key(&args.key, args.keys)?;
    let url = server(&args.server)?;
    let request = Request { method: "GET", target: entity(&key), headers: Vec::new(), body: None };
    let (mut connection, mut answer) = exchange(&url, &args.server.transport, request)?;
    match answer.status {
        200 => {}
        // A 404 with a problem document means that the path does not exist.
        404 if answer.header("content-type").is_none() => return Err(Error::NotFound),
        _ => return Err(rejection(&mut connection, &mut answer, false)),
    }
    let mut copy = |sink: &mut dyn Write, failed: &dyn Fn(io::Error) -> Error| {
        answer.copy_body(&mut connection, |piece| sink.write_all(piece).map_err(|why| CopyError::Sink(failed(why))))
    };
    if let Some(path) = &args.output {
        return write_file(path, |file, failed| copy(file, failed));
    }
    let mut out = output::stdout().map_err(not_written)?.lock();
    copy(&mut out, &not_written)?;
    out.flush().map_err(not_written)
}

/// Lists entries of a range.
///
/// # Errors
/// [`Error`].
pub(super) fn scan(args: &ScanArgs) -> Result<(), Error> {
    let target = range(args)?;
    let url = server(&args.server)?;
    if args.limit == Some(0) {
        return Ok(());
    }
    let request = Request { method: "GET", target, headers: Vec::new(), body: None };
    let (mut connection, mut answer) = exchange(&url, &args.server.transport, request)?;
    if answer.status != 200 {
        return Err(rejection(&mut connection, &mut answer, false));
    }
    // An empty list may have Content-Length: 0 instead of chunks.
    if !answer.is_chunked() && answer.header("content-length") != Some("0") {
        return Err(Error::Failed("the answer has no chunks, so the entries cannot be separated".to_owned()));
    }
    let mut out = BufWriter::new(output::stdout().map_err(not_written)?.lock());
    let mut listed = 0;
    let result = loop {
        if args.limit == Some(listed) {
            break Ok(());
        }
        match answer.next_chunk(&mut connection) {
            Ok(Some(entry)) => show_entry(&mut out, &entry, args)?,
            Ok(None) => break Ok(()),
            Err(error) => {
                break Err(Error::Failed(format!("{error}; the list is incomplete: {listed} entries were printed")));
            }
        }
        listed += 1;
        // Flush before waiting for the server, so that a terminal shows entries as they arrive.
        if connection.buffered().is_empty() {
            out.flush().map_err(not_written)?;
        }
    };
    out.flush().map_err(not_written)?;
    result
}

/// Asks the admin address whether the server is alive or ready.
///
/// # Errors
/// [`Error`].
pub(super) fn health(args: &HealthArgs) -> Result<(), Error> {
    let url = url_from(args.url.as_deref(), ADMIN_URL_VARIABLE, "http://127.0.0.1:8081")?;
    let target = if args.live { "/livez" } else { "/readyz" }.to_owned();
    let request = Request { method: "GET", target, headers: Vec::new(), body: None };
    let (mut connection, mut answer) = exchange(&url, &args.transport, request)?;
    if answer.status != 200 {
        return Err(rejection(&mut connection, &mut answer, false));
    }
    print_line(args.quiet, if args.live { "alive" } else { "ready" })
}

fn entity(key: &[u8]) -> String {
    format!("/v0/entity?id={}", key::encode(key))
}

/// Returns path and query of the request for a list. Without a START the list begins at the smallest possible key.
fn range(args: &ScanArgs) -> Result<String, Error> {
    let decoded = |argument: &Option<_>| {
        let argument: Option<&OsStr> = argument.as_deref();
        argument.map(|argument| key::decode(argument, args.keys)).transpose()
    };
    let (start, end) = match decoded(&args.prefix)? {
        Some(prefix) => {
            let end = key::after_prefix(&prefix);
            (Some(prefix), end)
        }
        None => (decoded(&args.start)?, decoded(&args.end)?),
    };
    if end.as_ref().is_some_and(Vec::is_empty) {
        return Err(Error::Usage("no key is before an empty END: leave END out to list to the last key".to_owned()));
    }
    let start = start.filter(|start| !start.is_empty()).unwrap_or_else(|| vec![0]);
    let end = end.map(|end| format!("&end={}", key::encode(&end))).unwrap_or_default();
    Ok(format!("/v0/entities?start={}{end}", key::encode(&start)))
}

fn durability(wanted: Option<Durability>) -> Vec<(&'static str, String)> {
    let word = |durability| match durability {
        Durability::Sync => "sync",
        Durability::Async => "async",
    };
    wanted.map(|wanted| ("Klad-Durability", word(wanted).to_owned())).into_iter().collect()
}

/// Returns the value to put: from the argument, a file, or the standard input.
fn value(args: &PutArgs) -> Result<Body, Error> {
    if let Some(path) = args.file.as_deref().filter(|path| *path != Path::new("-")) {
        let failed = |why| Error::File { what: format!("cannot read {}", path.display()), why };
        let file = File::open(path).map_err(failed)?;
        let facts = file.metadata().map_err(failed)?;
        if facts.is_dir() {
            return Err(failed(io::Error::from(ErrorKind::IsADirectory)));
        }
        return read_ahead(file, facts.is_file().then_some(facts.len())).map_err(failed);
    }
    match &args.value {
        Some(value) if value != "-" => Ok(Body::Bytes(value.as_bytes().to_vec())),
        _ => {
            let input = io::stdin();
            if input.is_terminal() {
                let _ = writeln!(io::stderr(), "klad put: type the value; Ctrl-D at the start of a line ends it");
            }
            read_ahead(input, None).map_err(|why| Error::File { what: "cannot read the value".to_owned(), why })
        }
    }
}

/// Reads the start of `source`. Returns a value that ends within [`CLIENT_READ_AHEAD_BYTES`] as bytes, and a longer one
/// as a stream. `size`: the size of a file by the system, which is 0 or a page for some files such as those of /proc.
fn read_ahead(mut source: impl Read + 'static, size: Option<u64>) -> io::Result<Body> {
    let mut bytes = Vec::new();
    source.by_ref().take(CLIENT_READ_AHEAD_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 <= CLIENT_READ_AHEAD_BYTES {
        return Ok(Body::Bytes(bytes));
    }
    let length = size.filter(|size| *size > bytes.len() as u64);
    Ok(Body::Stream { source: Box::new(io::Cursor::new(bytes).chain(source)), length })
}

/// Prints version and durability of a write whose answer has the status `expected`. Any other answer is an error.
fn report_write(
    connection: &mut Connection,
    answer: &mut Answer,
    expected: u16,
    version_header: &str,
    args: &WriteArgs,
) -> Result<(), Error> {
    if answer.status != expected {
        return Err(rejection(connection, answer, true));
    }
    let version = answer.header(version_header).map_or("unknown", |version| version.trim_matches('"'));
    let durability = answer.header("klad-durability").unwrap_or("unknown");
    print_line(args.quiet, &show::printable(&format!("version {version}, durability {durability}")))
}

fn print_line(quiet: bool, line: &str) -> Result<(), Error> {
    if quiet { Ok(()) } else { output::stdout().and_then(|mut out| writeln!(out, "{line}")).map_err(not_written) }
}

/// Checks the standard output before a write is sent: an output error after the write would make it look failed.
fn check_output(quiet: bool) -> Result<(), Error> {
    if quiet { Ok(()) } else { output::stdout().map(drop).map_err(not_written) }
}

/// Returns an unexpected answer as an error: code and detail of the problem document, whether the write happened, and
/// when to try again.
pub(super) fn rejection(connection: &mut Connection, answer: &mut Answer, is_write: bool) -> Error {
    let mut body = Vec::new();
    // A part of the document is enough.
    let _ = answer.copy_body::<CopyError>(connection, |piece| {
        let left = CLIENT_PROBLEM_BYTES_MAX - body.len();
        body.extend_from_slice(&piece[..piece.len().min(left)]);
        if body.len() < CLIENT_PROBLEM_BYTES_MAX { Ok(()) } else { Err(CopyError::Answer(AnswerError::Ended)) }
    });
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let code = problem["code"].as_str();
    let detail = problem["detail"].as_str().map(|detail| format!(": {detail}")).unwrap_or_default();
    let status = answer.status;
    let text = match code {
        Some(code) => format!("{code}{detail} (status {status})"),
        None => format!("the answer has status {status} and no reason"),
    };
    // klad's own rejections had no effect, except the one with code "undetermined". The answer of a proxy says nothing
    // about what klad did.
    let undetermined = is_write && (code == Some("undetermined") || status < 400 || (status >= 500 && code.is_none()));
    if undetermined {
        return Error::Undetermined(text);
    }
    let later = match answer.header("retry-after") {
        Some(seconds) => format!("; try again after {seconds} s"),
        None => String::new(),
    };
    let nothing = if is_write { "; nothing has happened" } else { "" };
    Error::Refused(format!("{text}{nothing}{later}"))
}

/// Why a body was not copied to its end.
pub(super) enum CopyError {
    /// The connection or the server failed.
    Answer(AnswerError),
    /// The writer of the bytes failed.
    Sink(Error),
}

impl From<AnswerError> for CopyError {
    fn from(error: AnswerError) -> CopyError {
        CopyError::Answer(error)
    }
}

impl From<CopyError> for Error {
    fn from(error: CopyError) -> Error {
        match error {
            CopyError::Answer(error) => Error::Failed(format!("{error}; the value is incomplete")),
            CopyError::Sink(error) => error,
        }
    }
}

/// Writes `bytes` to the standard output.
///
/// # Errors
/// [`Error::OutputClosed`], [`Error::File`].
pub(super) fn write_out(bytes: &[u8]) -> Result<(), Error> {
    let mut out = output::stdout().map_err(not_written)?.lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(not_written)
}

fn show_entry(out: &mut impl Write, entry: &[u8], args: &ScanArgs) -> Result<(), Error> {
    // The first line feed ends the key. The format cannot represent a key that contains one.
    let (key, value) = match memchr::memchr(b'\n', entry) {
        Some(end) => (&entry[..end], &entry[end + 1..]),
        None => {
            return Err(Error::Failed(
                "an entry without a line feed: is this server klad, and does a proxy merge chunks?".to_owned(),
            ));
        }
    };
    let value = (!args.keys_only).then_some(value);
    let line = match (args.json, value) {
        (true, value) => show::json(key, value),
        (false, None) => show::escape(key),
        (false, Some(value)) => format!("{}\t{}", show::escape(key), show::escape(value)),
    };
    writeln!(out, "{line}").map_err(not_written)
}

fn not_written(why: io::Error) -> Error {
    if why.kind() == ErrorKind::BrokenPipe {
        Error::OutputClosed
    } else {
        Error::File { what: "cannot write the output".to_owned(), why }
    }
}
