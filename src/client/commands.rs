//! The commands for one key (put, get, del, add and expire), and health. Each sends one request and prints the answer.
//! Called by `client::run`.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal as _, Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::client::answer::Answer;
use crate::client::args::{AddArgs, DelArgs, ExpireArgs, GetArgs, HealthArgs, Lifetime, PutArgs, WriteArgs};
use crate::client::connection::Connection;
use crate::client::exchange::{Body, Request, exchange, server, url_from};
use crate::client::limits::CLIENT_READ_AHEAD_BYTES;
use crate::client::output::{CopyError, check, lock, not_written, print_line, write_out};
use crate::client::problem::rejection;
use crate::client::replace::write_file;
use crate::client::write_headers::{condition, described, durability, if_match, ttl};
use crate::client::{ADMIN_URL_VARIABLE, Error, key, show};

/// Stores a value.
///
/// # Errors
/// [`Error`].
pub(super) fn put(args: &PutArgs) -> Result<(), Error> {
    let key = key::decode_key(&args.key, args.keys)?;
    let url = server(&args.server)?;
    let mut headers = durability(args.write.durability);
    headers.extend(condition(&args.condition)?);
    headers.extend(args.ttl.map(ttl));
    headers.extend(described(args.content_type.as_deref(), args.content_encoding.as_deref(), &args.meta)?);
    check(args.write.quiet)?;
    let body = Some(value(args)?);
    let request = Request { method: "PUT", target: key::target(&key, ""), headers, body };
    let (mut connection, mut answer) = exchange(&url, &args.server.transport, request)?;
    report_write(&mut connection, &mut answer, &[201, 204], &args.write)
}

/// Removes a key.
///
/// # Errors
/// [`Error`].
pub(super) fn del(args: &DelArgs) -> Result<(), Error> {
    let key = key::decode_key(&args.key, args.keys)?;
    let url = server(&args.server)?;
    let mut headers = durability(args.write.durability);
    headers.extend(if_match(args.condition.if_match.as_deref())?);
    check(args.write.quiet)?;
    let request = Request { method: "DELETE", target: key::target(&key, ""), headers, body: None };
    let (mut connection, mut answer) = exchange(&url, &args.server.transport, request)?;
    match report_write(&mut connection, &mut answer, &[204], &args.write) {
        Err(Error::NotFound) => print_line(args.write.quiet, "absent"),
        reported => reported,
    }
}

/// Adds to a counter.
///
/// # Errors
/// [`Error`].
pub(super) fn add(args: &AddArgs) -> Result<(), Error> {
    let key = key::decode_key(&args.key, args.keys)?;
    let url = server(&args.server)?;
    let mut headers = durability(args.write.durability);
    headers.extend(condition(&args.condition)?);
    headers.extend(args.ttl.map(ttl));
    check(args.write.quiet)?;
    let target = key::target(&key, &format!("op=add&by={}", args.by));
    let request = Request { method: "POST", target, headers, body: None };
    let (mut connection, mut answer) = exchange(&url, &args.server.transport, request)?;
    if answer.status != 200 {
        return Err(rejection(&mut connection, &mut answer, true));
    }
    let mut sum = Vec::new();
    let read = answer.copy_body::<CopyError>(&mut connection, |piece| {
        sum.extend_from_slice(piece);
        Ok(())
    });
    if let Err(CopyError::Answer(why)) = read {
        return Err(Error::Failed(format!("{why}; the number was added, and the sum is not known")));
    }
    print_line(args.write.quiet, &show::printable(&String::from_utf8_lossy(&sum)))
}

/// Changes when a value expires.
///
/// # Errors
/// [`Error`].
pub(super) fn expire(args: &ExpireArgs) -> Result<(), Error> {
    let key = key::decode_key(&args.key, args.keys)?;
    let url = server(&args.server)?;
    let mut headers = durability(args.write.durability);
    headers.extend(if_match(args.condition.if_match.as_deref())?);
    check(args.write.quiet)?;
    let lifetime = match args.ttl {
        Lifetime::Ends(ttl) => ttl.as_secs_f64().to_string(),
        Lifetime::Unlimited => "none".to_owned(),
    };
    let target = key::target(&key, &format!("op=expire&ttl={lifetime}"));
    let request = Request { method: "POST", target, headers, body: None };
    let (mut connection, mut answer) = exchange(&url, &args.server.transport, request)?;
    report_write(&mut connection, &mut answer, &[204], &args.write)
}

/// Prints a value.
///
/// # Errors
/// [`Error`].
pub(super) fn get(args: &GetArgs) -> Result<(), Error> {
    let key = key::decode_key(&args.key, args.keys)?;
    let url = server(&args.server)?;
    let request = Request { method: "GET", target: key::target(&key, ""), headers: Vec::new(), body: None };
    let (mut connection, mut answer) = exchange(&url, &args.server.transport, request)?;
    if answer.status != 200 {
        return Err(rejection(&mut connection, &mut answer, false));
    }
    if args.headers {
        write_out(value_headers(&answer).as_bytes())?;
    }
    let mut copy = |sink: &mut dyn Write, failed: &dyn Fn(io::Error) -> Error| {
        answer.copy_body(&mut connection, |piece| sink.write_all(piece).map_err(|why| CopyError::Sink(failed(why))))
    };
    if let Some(path) = &args.output {
        return write_file(path, |file, failed| copy(file, failed));
    }
    let mut out = lock()?;
    copy(&mut out, &not_written)?;
    out.flush().map_err(not_written)
}

/// Returns the headers that describe a value, and an empty line.
fn value_headers(answer: &Answer) -> String {
    let describes = |name: &str| {
        ["etag", "last-modified", "content-type", "content-encoding", "content-length", "klad-ttl"].contains(&name)
            || name.starts_with("klad-meta-")
    };
    let mut text = String::new();
    for (name, value) in answer.headers() {
        let name = name.to_ascii_lowercase();
        if describes(&name) {
            text.push_str(&show::printable(&format!("{name}: {value}")));
            text.push('\n');
        }
    }
    text.push('\n');
    text
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
/// as a stream. `size` is the size of a file as the system reports it. For some files, such as those of /proc, the
/// system reports 0 or one page.
fn read_ahead(mut source: impl Read + 'static, size: Option<u64>) -> io::Result<Body> {
    let mut bytes = Vec::new();
    source.by_ref().take(CLIENT_READ_AHEAD_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 <= CLIENT_READ_AHEAD_BYTES {
        return Ok(Body::Bytes(bytes));
    }
    let length = size.filter(|size| *size > bytes.len() as u64);
    Ok(Body::Stream { source: Box::new(io::Cursor::new(bytes).chain(source)), length })
}

/// Prints version and durability of a write whose answer has one of the statuses `expected`. Any other answer is an
/// error.
fn report_write(
    connection: &mut Connection,
    answer: &mut Answer,
    expected: &[u16],
    args: &WriteArgs,
) -> Result<(), Error> {
    if !expected.contains(&answer.status) {
        return Err(rejection(connection, answer, true));
    }
    // The answer to a removal has no ETag, because there is no value. Its version is in another header.
    let version = answer.header("etag").or_else(|| answer.header("klad-version"));
    let version = version.map_or("unknown", |version| version.trim_matches('"'));
    let durability = answer.header("klad-durability").unwrap_or("unknown");
    print_line(args.quiet, &show::printable(&format!("version {version}, durability {durability}")))
}
