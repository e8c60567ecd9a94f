//! A connection with deadlines, in the clear or with TLS, and its receive buffer. Called by `exchange` and `answer`.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, StreamOwned};

use crate::client::limits::{CLIENT_CONNECT_TIMEOUT, CLIENT_IDLE_TIMEOUT};
use crate::client::url::Url;
use crate::client::{Error, tls};
use klad_base::clock;

/// Number of bytes to read at a time.
const READ_BYTES: usize = 64 << 10;

/// Limits of waiting: for each byte, and for the whole command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    end: Option<Instant>,
    total: Duration,
    idle: Duration,
}

impl Deadline {
    /// Starts the limit for the whole command at `timeout`, if given.
    pub(super) fn starting(timeout: Option<Duration>) -> Deadline {
        Deadline {
            end: timeout.map(|timeout| clock::now() + timeout),
            total: timeout.unwrap_or_default(),
            idle: CLIENT_IDLE_TIMEOUT,
        }
    }

    /// Returns what is left of the time for the whole command; `None` if it has no limit.
    pub(super) fn left(&self) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(clock::now()))
    }

    /// Returns the maximum time of the next wait.
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
                format!("the time of --timeout ({}) is over", humantime::format_duration(self.total))
            }
            _ => format!("no byte was transferred for {}", humantime::format_duration(self.idle)),
        };
        io::Error::new(ErrorKind::TimedOut, text)
    }
}

/// A socket with a deadline for every call.
struct Timed {
    socket: TcpStream,
    deadline: Deadline,
}

impl Timed {
    /// Replaces "would block", which the kernel returns when the time of a call is over, by an error that names the
    /// limit.
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
    /// Received bytes. The first `consumed` of them were consumed.
    buffer: Vec<u8>,
    consumed: usize,
}

impl Connection {
    /// Connects, and completes the handshake of TLS.
    ///
    /// # Errors
    /// None of the host's addresses accepts a connection, or the handshake fails.
    pub(super) fn open(url: &Url, ca: Option<&Path>, deadline: Deadline) -> Result<Connection, Error> {
        if ca.is_some() && !url.https {
            return Err(Error::Usage("--ca is for https:// URLs".to_owned()));
        }
        // The TLS configuration is made before the network is used, so that a mistake in the arguments is reported
        // first.
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
        Ok(Connection { stream, buffer: Vec::new(), consumed: 0 })
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// The connection failed or the time is over.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.stream {
            Stream::Plain(timed) => timed.write_all(bytes),
            Stream::Tls(stream) => {
                stream.write_all(bytes)?;
                stream.flush()
            }
        }
    }

    /// Returns the received bytes that were not consumed.
    pub(super) fn buffered(&self) -> &[u8] {
        &self.buffer[self.consumed..]
    }

    /// Consumes the first `count` of the received bytes.
    pub(super) fn consume(&mut self, count: usize) {
        self.consumed += count;
        assert!(self.consumed <= self.buffer.len(), "only received bytes can be consumed");
        if self.consumed == self.buffer.len() {
            self.buffer.clear();
            self.consumed = 0;
        }
    }

    /// Waits for more bytes. Returns `false` if the server ended the connection.
    ///
    /// # Errors
    /// The connection failed or the time is over.
    pub(super) fn fill(&mut self) -> io::Result<bool> {
        if self.consumed > 0 {
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
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
            // The server ended TLS without its closing message. The caller knows from the framing whether the answer is
            // complete.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Like [`Connection::fill`], but waits at most for `time`. Returns `true` also if no byte arrived.
    ///
    /// # Errors
    /// The connection failed or the time for the whole command is over.
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

/// Tries the addresses of the host, such as the two of `localhost`, one after the other. The system's resolver limits
/// the time of the look-up.
fn connect(url: &Url, deadline: Deadline) -> Result<TcpStream, Error> {
    let failed = |why: &io::Error| Error::Failed(format!("cannot connect to {}: {why}", url.authority));
    let addresses = (url.host.as_str(), url.port).to_socket_addrs().map_err(|error| failed(&error))?;
    let mut failure = None;
    for address in addresses {
        let wait = deadline.next().map_err(|error| failed(&error))?.min(CLIENT_CONNECT_TIMEOUT);
        match TcpStream::connect_timeout(&address, wait) {
            Ok(socket) => {
                // Without this option the kernel may delay the second part of a request. The request is correct even if
                // this call fails.
                let _ = socket.set_nodelay(true);
                return Ok(socket);
            }
            Err(error) => failure = Some(error),
        }
    }
    Err(failed(&failure.unwrap_or_else(|| io::Error::new(ErrorKind::NotFound, "the name has no address"))))
}
