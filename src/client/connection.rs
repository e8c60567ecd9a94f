//! A socket with deadlines, in the clear or with TLS, and the bytes that have come from it. Called by `exchange` and `answer`.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, StreamOwned};

use crate::client::url::Url;
use crate::client::{Error, tls};
use klad_base::clock;
use klad_base::limits::{CLIENT_CONNECT_TIMEOUT, CLIENT_IDLE_TIMEOUT};

/// Bytes asked for at a time.
const READ_BYTES: usize = 64 << 10;

/// How long to wait: for each byte, and for everything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    end: Option<Instant>,
    total: Duration,
    idle: Duration,
}

impl Deadline {
    /// From now on, `timeout` for everything, if there is one.
    pub(super) fn starting(timeout: Option<Duration>) -> Deadline {
        Deadline {
            end: timeout.map(|timeout| clock::now() + timeout),
            total: timeout.unwrap_or_default(),
            idle: CLIENT_IDLE_TIMEOUT,
        }
    }

    /// What is left of the whole, where it has an end.
    pub(super) fn left(&self) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(clock::now()))
    }

    /// The longest that the next step may wait.
    fn next(&self) -> io::Result<Duration> {
        match self.left() {
            Some(left) if left.is_zero() => Err(self.over()),
            Some(left) => Ok(left.min(self.idle)),
            None => Ok(self.idle),
        }
    }

    fn over(&self) -> io::Error {
        let text = match self.left() {
            Some(left) if left.is_zero() => {
                format!("the {} of --timeout are over", humantime::format_duration(self.total))
            }
            _ => format!("nothing has moved for {}", humantime::format_duration(self.idle)),
        };
        io::Error::new(ErrorKind::TimedOut, text)
    }
}

/// A socket whose every call has a deadline.
struct Timed {
    socket: TcpStream,
    deadline: Deadline,
}

impl Timed {
    /// A timed call of the kernel says "would block" when its time is over.
    fn named(&self, result: io::Result<usize>) -> io::Result<usize> {
        result.map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => self.deadline.over(),
            _ => error,
        })
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.deadline.next()?))?;
        let result = self.socket.read(buffer);
        self.named(result)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.deadline.next()?))?;
        let result = self.socket.write(bytes);
        self.named(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

enum Stream {
    Plain(Timed),
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

/// A connection to a server.
pub(super) struct Connection {
    stream: Stream,
    /// What has come and was not taken yet; `taken` bytes at its front were.
    buffer: Vec<u8>,
    taken: usize,
}

impl Connection {
    /// Connects, with TLS up to the end of its handshake.
    ///
    /// # Errors
    /// When none of the host's addresses can be connected to, or the two cannot agree on TLS.
    pub(super) fn open(url: &Url, ca: Option<&Path>, deadline: Deadline) -> Result<Connection, Error> {
        if ca.is_some() && !url.https {
            return Err(Error::Usage("--ca is for https:// URLs".to_owned()));
        }
        // Before the network is touched, so that what was typed wrong is said first.
        let tls = url.https.then(|| tls::connection(&url.host, ca)).transpose()?;
        let mut timed = Timed { socket: connect(url, deadline)?, deadline };
        let stream = match tls {
            None => Stream::Plain(timed),
            Some(mut tls) => {
                while tls.is_handshaking() {
                    tls.complete_io(&mut timed).map_err(|error| {
                        Error::Failed(format!("TLS with {}: {}", url.authority, tls::in_words(&error)))
                    })?;
                }
                Stream::Tls(Box::new(StreamOwned::new(tls, timed)))
            }
        };
        Ok(Connection { stream, buffer: Vec::new(), taken: 0 })
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// When the connection is broken or the time is over.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.stream {
            Stream::Plain(timed) => timed.write_all(bytes),
            Stream::Tls(stream) => {
                stream.write_all(bytes)?;
                stream.flush()
            }
        }
    }

    /// What has come and was not taken yet.
    pub(super) fn buffered(&self) -> &[u8] {
        &self.buffer[self.taken..]
    }

    /// Takes the first `count` bytes of what has come.
    pub(super) fn consume(&mut self, count: usize) {
        self.taken += count;
        assert!(self.taken <= self.buffer.len(), "no more is taken than has come");
        if self.taken == self.buffer.len() {
            self.buffer.clear();
            self.taken = 0;
        }
    }

    /// Waits for more bytes; `false`: the server has ended the connection.
    ///
    /// # Errors
    /// When the connection is broken or the time is over.
    pub(super) fn fill(&mut self) -> io::Result<bool> {
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        let before = self.buffer.len();
        self.buffer.resize(before + READ_BYTES, 0);
        let result = match &mut self.stream {
            Stream::Plain(timed) => timed.read(&mut self.buffer[before..]),
            Stream::Tls(stream) => stream.read(&mut self.buffer[before..]),
        };
        self.buffer.truncate(before + *result.as_ref().unwrap_or(&0));
        match result {
            Ok(count) => Ok(count > 0),
            // TLS without its farewell: each caller knows whether it has all that it was promised.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// As `fill`, for `time` at most, within which nothing need come; `false`: the connection has ended.
    ///
    /// # Errors
    /// When the connection is broken or all the time is over.
    pub(super) fn fill_within(&mut self, time: Duration) -> io::Result<bool> {
        let idle = std::mem::replace(&mut self.timed().deadline.idle, time);
        let filled = self.fill();
        let timed = self.timed();
        timed.deadline.idle = idle;
        match filled {
            Err(error) if error.kind() == ErrorKind::TimedOut && timed.deadline.next().is_ok() => Ok(true),
            other => other,
        }
    }

    fn timed(&mut self) -> &mut Timed {
        match &mut self.stream {
            Stream::Plain(timed) => timed,
            Stream::Tls(stream) => &mut stream.sock,
        }
    }
}

/// The host's addresses in turn, as `localhost` may have two. The name's own look-up is bounded by the system's resolver.
fn connect(url: &Url, deadline: Deadline) -> Result<TcpStream, Error> {
    let failed = |why: &io::Error| Error::Failed(format!("cannot connect to {}: {why}", url.authority));
    let addresses = (url.host.as_str(), url.port).to_socket_addrs().map_err(|error| failed(&error))?;
    let mut failure = None;
    for address in addresses {
        let wait = deadline.next().map_err(|error| failed(&error))?.min(CLIENT_CONNECT_TIMEOUT);
        match TcpStream::connect_timeout(&address, wait) {
            Ok(socket) => {
                // A small request in two pieces is not held back until the first is acknowledged. Not vital.
                let _ = socket.set_nodelay(true);
                return Ok(socket);
            }
            Err(error) => failure = Some(error),
        }
    }
    Err(failed(&failure.unwrap_or_else(|| io::Error::new(ErrorKind::NotFound, "the name has no address"))))
}
