//! One request and the head of its answer; and what is known of a request that was not answered. Called by `commands`.
//!
//! A write counts as sent when its last bytes are being handed to the kernel, which is earlier than it could be known to have
//! arrived: until then a server has no whole request, and carries nothing out.

use std::io::{self, Read, Write as _};
use std::time::Duration;

use crate::client::answer::{Answer, Broken};
use crate::client::args::{ServerArgs, TransportArgs};
use crate::client::connection::{Connection, Deadline};
use crate::client::url::Url;
use crate::client::{Error, TOKEN_FILE_VARIABLE, URL_VARIABLE, token};
use klad_base::clock;
use klad_base::limits::{CLIENT_EXPECT_TIMEOUT, CLIENT_IDLE_TIMEOUT};

/// Bodies up to here go out with their head; larger ones, and those of unknown length, wait for `100 Continue`, so that a refusal
/// comes before the bytes. What klad throws away of a refused body without closing the connection.
const SENT_AT_ONCE_BYTES: u64 = 64 << 10;

/// While an answer is waited for, whoever waits is told so often.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes of a body that are read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// A value on its way out.
pub(super) enum Body {
    /// In memory.
    Bytes(Vec<u8>),
    /// Whatever comes until its end.
    Stream {
        /// Where it is read.
        source: Box<dyn Read>,
        /// What must come, as far as that is known: a file's size, bytes.
        length: Option<u64>,
    },
}

/// What to ask for.
pub(super) struct Request {
    pub(super) method: &'static str,
    /// Path and query, behind the URL's own.
    pub(super) target: String,
    /// Headers of this command.
    pub(super) headers: Vec<(&'static str, String)>,
    /// `None`: a request without a body.
    pub(super) body: Option<Body>,
}

const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// How long an answer may be in coming.
pub(super) struct Patience<'p> {
    /// For so long nothing need come.
    pub(super) silence: Duration,
    /// Is told about once a second for how long it was waited.
    pub(super) each_second: &'p mut dyn FnMut(Duration),
}

/// The server of a command.
///
/// # Errors
/// When it is no URL.
pub(super) fn server(args: &ServerArgs) -> Result<Url, Error> {
    url_from(args.url.as_deref(), URL_VARIABLE, DEFAULT_URL)
}

/// The URL that was given, else that of the environment, else the usual one. An empty variable is as good as none.
///
/// # Errors
/// When it is no URL.
pub(super) fn url_from(given: Option<&str>, variable: &str, usual: &str) -> Result<Url, Error> {
    if let Some(text) = given {
        return Url::parse(text);
    }
    match std::env::var(variable) {
        Ok(text) if !text.is_empty() => {
            Url::parse(&text).map_err(|error| Error::Usage(format!("{variable} in the environment: {error}")))
        }
        Err(std::env::VarError::NotUnicode(_)) => Err(Error::Usage(format!("{variable} is no URL"))),
        _ => Url::parse(usual),
    }
}

/// Sends `request`, and reads the head of its answer.
///
/// # Errors
/// When there is no answer: [`Error::Undetermined`] for a write that was sent whole, otherwise nothing has happened.
pub(super) fn exchange(url: &Url, transport: &TransportArgs, request: Request) -> Result<(Connection, Answer), Error> {
    let mut patience = Patience { silence: CLIENT_IDLE_TIMEOUT, each_second: &mut |_| {} };
    exchange_patiently(url, transport, request, &mut patience)
}

/// As [`exchange`], of a server that takes its time to answer.
///
/// # Errors
/// As there.
pub(super) fn exchange_patiently(
    url: &Url,
    transport: &TransportArgs,
    request: Request,
    patience: &mut Patience<'_>,
) -> Result<(Connection, Answer), Error> {
    let is_write = request.method != "GET";
    let deadline = Deadline::starting(transport.timeout);
    let token = token(transport)?;
    let mut connection = Connection::open(url, transport.ca.as_deref(), deadline)?;
    let head = head(url, &request, token.as_deref(), deadline.left())?;
    let mut sending = Sending { connection: &mut connection, whole: false };
    let answered = match sending.send(head, request.body) {
        Ok(Some(early)) => Ok(early),
        Ok(None) => {
            wait(sending.connection, patience).and_then(|()| Answer::read(sending.connection)).map_err(Unsent::Broken)
        }
        // A server that has refused meanwhile has closed its end: what it said may still be there.
        Err(Unsent::Broken(broken)) => Answer::read(sending.connection).map_err(|_| Unsent::Broken(broken)),
        Err(error) => Err(error),
    };
    let whole = sending.whole;
    match answered {
        Ok(answer) => Ok((connection, answer)),
        Err(Unsent::Value(error)) => Err(error),
        Err(Unsent::Broken(broken)) if is_write && whole => Err(Error::Undetermined(broken.to_string())),
        Err(Unsent::Broken(broken)) => Err(Error::Failed(format!("{}: {broken}; nothing has happened", url.authority))),
    }
}

/// Waits for the first byte of an answer.
fn wait(connection: &mut Connection, patience: &mut Patience<'_>) -> Result<(), Broken> {
    let begun = clock::now();
    while connection.buffered().is_empty() {
        let waited = clock::now().saturating_duration_since(begun);
        let left = patience.silence.saturating_sub(waited);
        if left.is_zero() {
            let text = format!("nothing has moved for {}", humantime::format_duration(patience.silence));
            return Err(io::Error::new(io::ErrorKind::TimedOut, text).into());
        }
        (patience.each_second)(waited);
        if !connection.fill_within(left.min(LOOK_INTERVAL))? {
            return Err(Broken::Ended);
        }
    }
    Ok(())
}

fn token(transport: &TransportArgs) -> Result<Option<String>, Error> {
    let environment = || std::env::var_os(TOKEN_FILE_VARIABLE).filter(|path| !path.is_empty()).map(Into::into);
    transport.token_file.clone().or_else(environment).map(|path| token::read(&path)).transpose()
}

fn head(url: &Url, request: &Request, token: Option<&str>, left: Option<Duration>) -> Result<Vec<u8>, Error> {
    let mut head = format!(
        "{} {}{} HTTP/1.1\r\nHost: {}\r\nUser-Agent: klad/{}\r\nConnection: close\r\n",
        request.method,
        url.base,
        request.target,
        url.authority,
        env!("CARGO_PKG_VERSION")
    );
    let mut add = |name: &str, value: &str| {
        for part in [name, ": ", value, "\r\n"] {
            head.push_str(part);
        }
    };
    for (name, value) in &request.headers {
        add(name, value);
    }
    if let Some(token) = token {
        add("Authorization", &format!("Bearer {token}"));
    }
    if let Some(left) = left {
        // The server's time ends first, so that there is time for it to say that nothing has happened.
        let theirs = u64::try_from(left.as_millis()).expect("at most an hour") * 9 / 10;
        if theirs == 0 {
            return Err(Error::Failed(
                "--timeout was over before the request was sent; nothing has happened".to_owned(),
            ));
        }
        add("Klad-Timeout", &format!("{theirs}ms"));
    }
    let length = match &request.body {
        None => None,
        Some(Body::Bytes(bytes)) => Some(bytes.len() as u64),
        Some(Body::Stream { length, .. }) => {
            if length.is_none() {
                add("Transfer-Encoding", "chunked");
            }
            *length
        }
    };
    if let Some(length) = length {
        add("Content-Length", &length.to_string());
    }
    if request.body.as_ref().is_some_and(waits_for_continue) {
        add("Expect", "100-continue");
    }
    head.push_str("\r\n");
    Ok(head.into_bytes())
}

fn waits_for_continue(body: &Body) -> bool {
    match body {
        Body::Bytes(bytes) => bytes.len() as u64 > SENT_AT_ONCE_BYTES,
        Body::Stream { .. } => true,
    }
}

/// Why a request has no answer.
enum Unsent {
    /// The value could not be read.
    Value(Error),
    Broken(Broken),
}

impl From<Broken> for Unsent {
    fn from(broken: Broken) -> Unsent {
        Unsent::Broken(broken)
    }
}

/// A request on its way out.
struct Sending<'c> {
    connection: &'c mut Connection,
    /// From here on the server may have all of it.
    whole: bool,
}

impl Sending<'_> {
    /// Sends everything; an answer that comes instead of `100 Continue` is the answer.
    fn send(&mut self, head: Vec<u8>, body: Option<Body>) -> Result<Option<Answer>, Unsent> {
        let mut first = head;
        let waits = body.as_ref().is_some_and(waits_for_continue);
        match body {
            None => self.last(&first)?,
            Some(Body::Bytes(bytes)) if !waits => {
                first.extend_from_slice(&bytes);
                self.last(&first)?;
            }
            Some(body) => {
                self.connection.send(&first).map_err(Broken::from)?;
                if waits && let Some(answer) = self.refused()? {
                    return Ok(Some(answer));
                }
                self.send_body(body)?;
            }
        }
        Ok(None)
    }

    /// Waits for `100 Continue`, not for long: some that stand before servers never send it.
    fn refused(&mut self) -> Result<Option<Answer>, Unsent> {
        if !self.connection.fill_within(CLIENT_EXPECT_TIMEOUT).map_err(Broken::from)? {
            return Err(Broken::Ended.into());
        }
        if self.connection.buffered().is_empty() {
            return Ok(None);
        }
        let answer = Answer::read_any(self.connection)?;
        Ok((answer.status >= 200).then_some(answer))
    }

    fn send_body(&mut self, body: Body) -> Result<(), Unsent> {
        match body {
            Body::Bytes(bytes) => {
                let (most, end) = bytes.split_at(bytes.len().saturating_sub(PIECE_BYTES));
                self.connection.send(most).map_err(Broken::from)?;
                self.last(end)?;
            }
            Body::Stream { mut source, length: Some(length) } => {
                let changed =
                    |how| Unsent::Value(unread(io::Error::other(format!("the file has become {how} meanwhile"))));
                let mut left = length;
                let mut piece = vec![0; PIECE_BYTES];
                while left > 0 {
                    let room = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
                    let count = read(&mut source, &mut piece[..room])?;
                    if count == 0 {
                        return Err(changed("shorter"));
                    }
                    left -= count as u64;
                    // Before the last bytes are sent: without them the server stores nothing.
                    if left == 0 && read(&mut source, &mut [0])? > 0 {
                        return Err(changed("longer"));
                    }
                    self.whole = left == 0;
                    self.connection.send(&piece[..count]).map_err(Broken::from)?;
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
                    write!(chunk, "{count:x}\r\n").expect("memory takes what it is given");
                    chunk.extend_from_slice(&piece[..count]);
                    chunk.extend_from_slice(b"\r\n");
                    self.connection.send(&chunk).map_err(Broken::from)?;
                }
                self.last(b"0\r\n\r\n")?;
            }
        }
        Ok(())
    }

    /// Sends the end of the request.
    fn last(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        self.whole = true;
        Ok(self.connection.send(bytes)?)
    }
}

fn read(source: &mut impl Read, piece: &mut [u8]) -> Result<usize, Unsent> {
    loop {
        match source.read(piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map_err(|why| Unsent::Value(unread(why))),
        }
    }
}

fn unread(why: io::Error) -> Error {
    Error::File { what: "cannot read the value, and nothing has happened".to_owned(), why }
}
