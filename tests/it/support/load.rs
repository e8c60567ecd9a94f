//! Clients that load klad until it stops, and check its promises: every request gets a whole answer, and every
//! acknowledged write can be read after the next start.
//!
//! While klad stops, a client may see this: a connection is refused; a connection is closed before the client sends
//! another request on it; an answer says that it is the last one on its connection, and requests behind it had no
//! effect. Everything else is a failure, above all a request without an answer.
//!
//! Called by the tests, and by `cargo xtask stops`, which includes this file. Hence it uses only the standard library,
//! httparse and fastrand.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A client that paused longer than this accepts a closed connection: klad closes idle connections 300 ms after it
/// begins to stop.
const IDLE_MAX: Duration = Duration::from_millis(150);

/// A server that does not answer within this time hangs.
const SILENCE_MAX: Duration = Duration::from_mins(5);

/// The number of requests in a pipeline.
const TOGETHER: usize = 8;

/// The number of keys of each client.
const KEYS: u32 = 16;

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One request after the other on one connection.
    KeepsAlive,
    /// One request after the other, with a pause of up to 20 ms before each.
    Thinks,
    /// A new connection for each request.
    Connects,
    /// Several requests at once on one connection.
    Pipelines,
    /// One request after the other, each in three pieces.
    Dawdles,
}

/// All kinds.
pub(crate) const KINDS: [Kind; 5] = [Kind::KeepsAlive, Kind::Thinks, Kind::Connects, Kind::Pipelines, Kind::Dawdles];

/// One life of klad, from its start to its stop, as all clients and the caller share it.
#[derive(Default)]
pub(crate) struct Round {
    /// Set before klad is told to stop.
    pub(crate) stopping: AtomicBool,
    /// The number of answered requests.
    pub(crate) answered: AtomicU64,
}

/// A client. It keeps its state over restarts of klad.
pub(crate) struct Client {
    kind: Kind,
    number: usize,
    random: fastrand::Rng,
    /// For each key, the number of the last acknowledged write and of the last one sent: the value must be between
    /// them.
    keys: BTreeMap<u32, (u64, u64)>,
    writes: u64,
    /// The number of requests that were refused with 503.
    pub(crate) refused: u64,
}

#[derive(Clone, Copy)]
enum Request {
    Get { key: u32 },
    Put { key: u32, write: u64 },
}

/// How a connection ended.
enum End {
    /// As allowed: the client opens another.
    Closed,
    /// With a missing or wrong answer.
    Failed(String),
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

struct Answer {
    status: u16,
    closes: bool,
    body: Vec<u8>,
}

impl Client {
    /// Makes one client for each of `kinds`.
    pub(crate) fn all(kinds: &[Kind], random: &mut fastrand::Rng) -> Vec<Client> {
        let client = |(number, kind): (usize, &Kind)| Client {
            kind: *kind,
            number,
            random: random.fork(),
            keys: BTreeMap::new(),
            writes: 0,
            refused: 0,
        };
        kinds.iter().enumerate().map(client).collect()
    }

    /// Sends requests until connections are refused, which is allowed once [`Round::stopping`] is set.
    ///
    /// # Errors
    /// The first failure, in words.
    pub(crate) fn run(&mut self, address: SocketAddr, round: &Round) -> Result<(), String> {
        loop {
            let stream = match TcpStream::connect_timeout(&address, SILENCE_MAX) {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused && round.stopping.load(Ordering::SeqCst) => {
                    return Ok(());
                }
                Err(error) => return Err(format!("{:?}: cannot connect: {error}", self.kind)),
            };
            let prepared = Connection::new(stream).map_err(|error| error.to_string());
            match prepared.map_or_else(End::Failed, |mut connection| self.use_up(&mut connection, round)) {
                End::Closed => {}
                End::Failed(why) => return Err(format!("{:?}: {why}", self.kind)),
            }
        }
    }

    /// Sends requests until the connection ends.
    fn use_up(&mut self, connection: &mut Connection, round: &Round) -> End {
        let mut idle_since = Instant::now();
        loop {
            if self.kind == Kind::Thinks {
                thread::sleep(Duration::from_micros(self.random.u64(0..20_000)));
            }
            match connection.is_open() {
                Ok(true) => {}
                Ok(false) => return End::Closed,
                Err(error) => return End::Failed(format!("reset between two requests: {error}")),
            }
            let count = if self.kind == Kind::Pipelines { TOGETHER } else { 1 };
            let requests: Vec<Request> = (0..count).map(|_| self.next_request()).collect();
            let sent = self.send(connection, &requests);
            // On a busy machine this thread may have paused so long that the server took the connection for idle.
            let was_idle = idle_since.elapsed() > IDLE_MAX;
            match sent {
                Ok(()) => {}
                Err(_) if was_idle => return End::Closed,
                Err(error) => return End::Failed(format!("cannot send: {error}")),
            }
            for (position, request) in requests.iter().enumerate() {
                let answer = match connection.answer() {
                    Ok(answer) => answer,
                    Err(_) if was_idle && position == 0 => return End::Closed,
                    Err(error) => {
                        return End::Failed(format!("request {position} of {count} has no answer: {error}"));
                    }
                };
                if was_idle && answer.status == 408 {
                    return End::Closed;
                }
                round.answered.fetch_add(1, Ordering::Relaxed);
                if let Err(why) = self.take(*request, &answer) {
                    return End::Failed(why);
                }
                if answer.closes || (self.kind == Kind::Connects && position + 1 == count) {
                    return End::Closed;
                }
            }
            idle_since = Instant::now();
        }
    }

    fn next_request(&mut self) -> Request {
        let key = self.random.u32(0..KEYS);
        if self.random.bool() {
            return Request::Get { key };
        }
        self.writes += 1;
        self.keys.entry(key).or_default().1 = self.writes;
        Request::Put { key, write: self.writes }
    }

    fn target(&self, key: u32) -> String {
        format!("/v0/entity?id=client{}key{key}", self.number)
    }

    fn send(&mut self, connection: &mut Connection, requests: &[Request]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for request in requests {
            match request {
                Request::Get { key } => {
                    write!(bytes, "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", self.target(*key))?;
                }
                Request::Put { key, write } => {
                    let durability = if self.random.bool() { "sync" } else { "async" };
                    // One in eight is large.
                    let padding = if self.random.u8(0..8) == 0 { self.random.usize(10_000..30_000) } else { 0 };
                    let value = format!("{write}{}", " ".repeat(padding));
                    let target = self.target(*key);
                    write!(
                        bytes,
                        "PUT {target}&durability={durability} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{value}",
                        value.len()
                    )?;
                }
            }
        }
        if self.kind == Kind::Dawdles {
            for piece in bytes.chunks(bytes.len() / 3 + 1) {
                connection.stream.write_all(piece)?;
                thread::sleep(Duration::from_micros(self.random.u64(0..10_000)));
            }
            return Ok(());
        }
        connection.stream.write_all(&bytes)
    }

    /// Checks an answer.
    fn take(&mut self, request: Request, answer: &Answer) -> Result<(), String> {
        match (request, answer.status) {
            (Request::Put { key, write }, 201) => {
                self.keys.entry(key).or_default().0 = write;
                Ok(())
            }
            (Request::Get { key }, 200 | 404) => self.check(key, answer),
            // Load shedding is allowed; an answer that klad is stopping is not.
            (_, 503) if !String::from_utf8_lossy(&answer.body).contains("stopping") => {
                self.refused += 1;
                Ok(())
            }
            (Request::Get { .. }, status) => Err(format!("a GET was answered {status}")),
            (Request::Put { .. }, status) => Err(format!("a PUT was answered {status}")),
        }
    }

    fn check(&self, key: u32, answer: &Answer) -> Result<(), String> {
        let (acknowledged, sent) = self.keys.get(&key).copied().unwrap_or_default();
        let found = match answer.status {
            404 => 0,
            _ => String::from_utf8_lossy(&answer.body).trim().parse().unwrap_or(u64::MAX),
        };
        if (acknowledged..=sent).contains(&found) {
            return Ok(());
        }
        Err(format!("{} is lost: write {found} is there, {acknowledged} was acknowledged", self.target(key)))
    }

    /// Reads all written keys after a start.
    ///
    /// # Errors
    /// The first acknowledged write that is missing.
    pub(crate) fn compare(&self, address: SocketAddr) -> Result<(), String> {
        let problem = |error: io::Error| format!("cannot read after the start: {error}");
        let mut connection = TcpStream::connect(address).and_then(Connection::new).map_err(problem)?;
        for key in self.keys.keys() {
            let request = format!("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", self.target(*key));
            connection.stream.write_all(request.as_bytes()).map_err(problem)?;
            self.check(*key, &connection.answer().map_err(problem)?)?;
        }
        Ok(())
    }

    /// Forgets all writes, as for an engine that does not keep them.
    pub(crate) fn forget(&mut self) {
        self.keys.clear();
    }
}

impl Connection {
    fn new(stream: TcpStream) -> io::Result<Connection> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        Ok(Connection { stream, buffer: Vec::new() })
    }

    /// Whether the server has the connection still open, as clients check before they reuse one.
    fn is_open(&self) -> io::Result<bool> {
        self.stream.set_nonblocking(true)?;
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false)?;
        match peeked {
            Ok(count) => Ok(count > 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn answer(&mut self) -> io::Result<Answer> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; 32];
            let mut head = httparse::Response::new(&mut headers);
            let parsed = head.parse(&self.buffer).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            let httparse::Status::Complete(length) = parsed else {
                self.fill()?;
                continue;
            };
            let header = |name: &str| head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            let text = |header: &httparse::Header<'_>| String::from_utf8_lossy(header.value).into_owned();
            let body_length = header("content-length").and_then(|header| text(header).parse().ok()).unwrap_or(0);
            let closes = header("connection").is_some_and(|header| text(header).eq_ignore_ascii_case("close"));
            let status = head.code.unwrap_or_default();
            self.buffer.drain(..length);
            while self.buffer.len() < body_length {
                self.fill()?;
            }
            let body = self.buffer.drain(..body_length).collect();
            return Ok(Answer { status, closes, body });
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut some = [0; 16 << 10];
        match self.stream.read(&mut some)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            count => {
                self.buffer.extend_from_slice(&some[..count]);
                Ok(())
            }
        }
    }
}
