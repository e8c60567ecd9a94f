//! Sends one request and reads the head of its answer; decides what a missing answer means. Called by `commands`,
//! `profile` and the commands that send many requests.
//!
//! A write counts as sent from the moment at which its last bytes go to the kernel. Before that, the server has no
//! complete request and executes nothing. After that, the outcome is undetermined if there is no answer.

use std::borrow::Cow;
use std::io::{self, Read, Write as _};
use std::time::Duration;

use crate::client::answer::{Answer, AnswerBody, AnswerError};
use crate::client::args::{ServerArgs, TransportArgs};
use crate::client::connection::{Connection, Deadline};
use crate::client::limits::{CLIENT_EXPECT_TIMEOUT, CLIENT_IDLE_TIMEOUT};
use crate::client::url::Url;
use crate::client::{Error, TOKEN_FILE_VARIABLE, URL_VARIABLE, token};
use klad_base::clock;

/// Maximum length of a body that is sent together with the head. Larger bodies, and those of unknown length, wait for
/// `100 Continue`, so that a rejection comes before the body is sent. A klad server discards as many bytes of a
/// rejected body without closing the connection.
const SENT_AT_ONCE_BYTES: u64 = 64 << 10;

/// Interval of the calls of [`AnswerWait::each_second`].
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Number of bytes of a body that are read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// A value to send.
pub(super) enum Body {
    /// A value in memory.
    Bytes(Vec<u8>),
    /// A value that is read while it is sent.
    Stream {
        /// The reader of the value.
        source: Box<dyn Read>,
        /// The size of the file, bytes; `None` if it is not known.
        length: Option<u64>,
    },
}

/// The name and the value of a header. The value may contain any bytes of header values.
pub(super) type Header = (Cow<'static, str>, Vec<u8>);

/// Makes a header.
pub(super) fn header(name: &'static str, value: impl Into<Vec<u8>>) -> Header {
    (Cow::Borrowed(name), value.into())
}

/// A request.
pub(super) struct Request {
    pub(super) method: &'static str,
    /// Path and query. The path of the URL is put before it.
    pub(super) target: String,
    /// Headers in addition to those that every request has.
    pub(super) headers: Vec<Header>,
    /// `None`: a request without a body.
    pub(super) body: Option<Body>,
}

const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// How long to wait for an answer.
pub(super) struct AnswerWait<'p> {
    /// Maximum time without a byte from the server.
    pub(super) silence_max: Duration,
    /// Called about once a second with the time waited so far.
    pub(super) each_second: &'p mut dyn FnMut(Duration),
}

/// Returns the URL of the server for a command.
///
/// # Errors
/// The text is not a URL.
pub(super) fn server(args: &ServerArgs) -> Result<Url, Error> {
    url_from(args.url.as_deref(), URL_VARIABLE, DEFAULT_URL)
}

/// Returns `given`, or else the URL in the environment, or else `default`. An empty variable counts as unset.
///
/// # Errors
/// The text is not a URL.
pub(super) fn url_from(given: Option<&str>, variable: &str, default: &str) -> Result<Url, Error> {
    if let Some(text) = given {
        return Url::parse(text);
    }
    match std::env::var(variable) {
        Ok(text) if !text.is_empty() => {
            Url::parse(&text).map_err(|error| Error::Usage(format!("{variable} in the environment: {error}")))
        }
        Err(std::env::VarError::NotUnicode(_)) => Err(Error::Usage(format!("{variable} is not a URL"))),
        _ => Url::parse(default),
    }
}

/// Sends `request`, and reads the head of its answer.
///
/// # Errors
/// There is no answer: [`Error::Undetermined`] for a write that was sent completely, otherwise nothing has happened.
pub(super) fn exchange(url: &Url, transport: &TransportArgs, request: Request) -> Result<(Connection, Answer), Error> {
    let mut answer_wait = AnswerWait { silence_max: CLIENT_IDLE_TIMEOUT, each_second: &mut |_| {} };
    exchange_with(url, transport, request, &mut answer_wait)
}

/// The server of a command that sends several requests, each on its own connection. `--timeout` limits the whole
/// command.
pub(super) struct Session<'a> {
    url: Url,
    transport: &'a TransportArgs,
    deadline: Deadline,
}

impl<'a> Session<'a> {
    /// Starts the time of the whole command.
    ///
    /// # Errors
    /// The URL is invalid.
    pub(super) fn start(args: &'a ServerArgs) -> Result<Session<'a>, Error> {
        let deadline = Deadline::starting(args.transport.timeout);
        Ok(Session { url: server(args)?, transport: &args.transport, deadline })
    }

    /// Sends `request`, and reads the head of its answer.
    ///
    /// # Errors
    /// Like [`exchange`].
    pub(super) fn send(&self, request: Request) -> Result<AnswerBody, Error> {
        let mut answer_wait = AnswerWait { silence_max: CLIENT_IDLE_TIMEOUT, each_second: &mut |_| {} };
        let exchanged = exchange_until(&self.url, self.transport, self.deadline, request, &mut answer_wait);
        exchanged.map(|(connection, answer)| AnswerBody { connection, answer })
    }

    /// Returns whether the time that is left for the command is longer than `pause`.
    pub(super) fn has_time_for(&self, pause: Duration) -> bool {
        self.deadline.left().is_none_or(|left| left > pause)
    }
}

/// Like [`exchange`], but waits for the answer as long as `answer_wait` says.
///
/// # Errors
/// Like [`exchange`].
pub(super) fn exchange_with(
    url: &Url,
    transport: &TransportArgs,
    request: Request,
    answer_wait: &mut AnswerWait<'_>,
) -> Result<(Connection, Answer), Error> {
    exchange_until(url, transport, Deadline::starting(transport.timeout), request, answer_wait)
}

fn exchange_until(
    url: &Url,
    transport: &TransportArgs,
    deadline: Deadline,
    request: Request,
    answer_wait: &mut AnswerWait<'_>,
) -> Result<(Connection, Answer), Error> {
    let is_write = request.method != "GET";
    let token = token(transport)?;
    let mut connection = Connection::open(url, transport.ca.as_deref(), deadline)?;
    let head = head(url, &request, token.as_deref(), deadline.left())?;
    let mut sending = Sending { connection: &mut connection, whole: false };
    let answered = match sending.send(head, request.body) {
        Ok(Some(early)) => Ok(early),
        Ok(None) => wait(sending.connection, answer_wait)
            .and_then(|()| Answer::read(sending.connection))
            .map_err(Unanswered::Answer),
        // A server that rejects the request may close the connection while the client still sends. The answer may have
        // arrived.
        Err(Unanswered::Answer(error)) => Answer::read(sending.connection).map_err(|_| Unanswered::Answer(error)),
        Err(error) => Err(error),
    };
    let whole = sending.whole;
    match answered {
        Ok(answer) => Ok((connection, answer)),
        Err(Unanswered::Value(error)) => Err(error),
        Err(Unanswered::Answer(error)) if is_write && whole => Err(Error::Undetermined(error.to_string())),
        Err(Unanswered::Answer(error)) => {
            Err(Error::Failed(format!("{}: {error}; nothing has happened", url.authority)))
        }
    }
}

/// Waits for the first byte of an answer.
fn wait(connection: &mut Connection, answer_wait: &mut AnswerWait<'_>) -> Result<(), AnswerError> {
    let begun = clock::now();
    while connection.buffered().is_empty() {
        let waited = clock::now().saturating_duration_since(begun);
        let left = answer_wait.silence_max.saturating_sub(waited);
        if left.is_zero() {
            let text = format!("no byte was transferred for {}", humantime::format_duration(answer_wait.silence_max));
            return Err(io::Error::new(io::ErrorKind::TimedOut, text).into());
        }
        (answer_wait.each_second)(waited);
        if !connection.fill_within(left.min(REPORT_INTERVAL))? {
            return Err(AnswerError::Ended);
        }
    }
    Ok(())
}

fn token(transport: &TransportArgs) -> Result<Option<String>, Error> {
    let environment = || std::env::var_os(TOKEN_FILE_VARIABLE).filter(|path| !path.is_empty()).map(Into::into);
    transport.token_file.clone().or_else(environment).map(|path| token::read(&path)).transpose()
}

fn head(url: &Url, request: &Request, token: Option<&str>, left: Option<Duration>) -> Result<Vec<u8>, Error> {
    let mut head = Vec::new();
    write!(
        head,
        "{} {}{} HTTP/1.1\r\nHost: {}\r\nUser-Agent: klad/{}\r\nConnection: close\r\n",
        request.method,
        url.base,
        request.target,
        url.authority,
        env!("CARGO_PKG_VERSION")
    )
    .expect("writing to memory does not fail");
    let mut add = |name: &str, value: &[u8]| {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            head.extend_from_slice(part);
        }
    };
    for (name, value) in &request.headers {
        add(name, value);
    }
    if let Some(token) = token {
        add("Authorization", format!("Bearer {token}").as_bytes());
    }
    if let Some(left) = left {
        // The deadline of the server is earlier, so that the server has time to answer that nothing has happened.
        let server_ms = u64::try_from(left.as_millis()).expect("at most an hour") * 9 / 10;
        if server_ms == 0 {
            return Err(Error::Failed(
                "--timeout was over before the request was sent; nothing has happened".to_owned(),
            ));
        }
        add("Klad-Timeout", format!("{server_ms}ms").as_bytes());
    }
    let length = match &request.body {
        None => None,
        Some(Body::Bytes(bytes)) => Some(bytes.len() as u64),
        Some(Body::Stream { length, .. }) => {
            if length.is_none() {
                add("Transfer-Encoding", b"chunked");
            }
            *length
        }
    };
    if let Some(length) = length {
        add("Content-Length", length.to_string().as_bytes());
    }
    if request.body.as_ref().is_some_and(waits_for_continue) {
        add("Expect", b"100-continue");
    }
    head.extend_from_slice(b"\r\n");
    Ok(head)
}

fn waits_for_continue(body: &Body) -> bool {
    match body {
        Body::Bytes(bytes) => bytes.len() as u64 > SENT_AT_ONCE_BYTES,
        Body::Stream { .. } => true,
    }
}

/// Why there is no answer.
enum Unanswered {
    /// The value could not be read, so the request was not sent completely.
    Value(Error),
    Answer(AnswerError),
}

impl From<AnswerError> for Unanswered {
    fn from(error: AnswerError) -> Unanswered {
        Unanswered::Answer(error)
    }
}

/// A request that is being sent.
struct Sending<'c> {
    connection: &'c mut Connection,
    /// Whether the server may have the whole request.
    whole: bool,
}

impl Sending<'_> {
    /// Sends the request. Returns the answer if a final one comes instead of `100 Continue`.
    fn send(&mut self, head: Vec<u8>, body: Option<Body>) -> Result<Option<Answer>, Unanswered> {
        let mut first = head;
        let waits = body.as_ref().is_some_and(waits_for_continue);
        match body {
            None => self.last(&first)?,
            Some(Body::Bytes(bytes)) if !waits => {
                first.extend_from_slice(&bytes);
                self.last(&first)?;
            }
            Some(body) => {
                self.connection.send(&first).map_err(AnswerError::from)?;
                if waits && let Some(answer) = self.early_answer()? {
                    return Ok(Some(answer));
                }
                self.send_body(body)?;
            }
        }
        Ok(None)
    }

    /// Waits for `100 Continue`, for a short time only, because some proxies never send it. Returns the answer if a
    /// final one comes instead; `None`: the body may be sent.
    fn early_answer(&mut self) -> Result<Option<Answer>, Unanswered> {
        if !self.connection.fill_within(CLIENT_EXPECT_TIMEOUT).map_err(AnswerError::from)? {
            return Err(AnswerError::Ended.into());
        }
        if self.connection.buffered().is_empty() {
            return Ok(None);
        }
        let answer = Answer::read_any(self.connection)?;
        Ok((answer.status >= 200).then_some(answer))
    }

    fn send_body(&mut self, body: Body) -> Result<(), Unanswered> {
        match body {
            Body::Bytes(bytes) => {
                let (most, end) = bytes.split_at(bytes.len().saturating_sub(PIECE_BYTES));
                self.connection.send(most).map_err(AnswerError::from)?;
                self.last(end)?;
            }
            Body::Stream { mut source, length: Some(length) } => {
                let changed = |how| {
                    Unanswered::Value(not_read(io::Error::other(format!("the file became {how} during the upload"))))
                };
                let mut left = length;
                let mut piece = vec![0; PIECE_BYTES];
                while left > 0 {
                    let size = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
                    let count = read(&mut source, &mut piece[..size])?;
                    if count == 0 {
                        return Err(changed("shorter"));
                    }
                    left -= count as u64;
                    // The end of the file is checked before the last bytes are sent, because without them the server
                    // stores nothing.
                    if left == 0 && read(&mut source, &mut [0])? > 0 {
                        return Err(changed("longer"));
                    }
                    self.whole = left == 0;
                    self.connection.send(&piece[..count]).map_err(AnswerError::from)?;
                }
            }
            Body::Stream { mut source, length: None } => {
                let mut piece = vec![0; PIECE_BYTES];
                loop {
                    let count = read(&mut source, &mut piece)?;
                    if count == 0 {
                        break;
                    }
                    let mut chunk = Vec::with_capacity(count + 16);
                    write!(chunk, "{count:x}\r\n").expect("writing to memory does not fail");
                    chunk.extend_from_slice(&piece[..count]);
                    chunk.extend_from_slice(b"\r\n");
                    self.connection.send(&chunk).map_err(AnswerError::from)?;
                }
                self.last(b"0\r\n\r\n")?;
            }
        }
        Ok(())
    }

    /// Sends the end of the request.
    fn last(&mut self, bytes: &[u8]) -> Result<(), AnswerError> {
        self.whole = true;
        Ok(self.connection.send(bytes)?)
    }
}

fn read(source: &mut impl Read, piece: &mut [u8]) -> Result<usize, Unanswered> {
    loop {
        match source.read(piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map_err(|why| Unanswered::Value(not_read(why))),
        }
    }
}

fn not_read(why: io::Error) -> Error {
    Error::File { what: "cannot read the value, and nothing has happened".to_owned(), why }
}
