//! An HTTP/1.1 client that a reader can check: blocking, one connection, answers in the order of the requests.
//!
//! It must never share code with klad, or both could be wrong in the same way. A failing socket is an [`io::Error`] at the
//! root of the chain, whatever the context around it. Called by `fill`, `range` and the chores.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use httparse::Status;

/// A server that is silent for so long hangs.
const SILENCE_MAX: Duration = Duration::from_mins(1);

/// The receive buffer at first, bytes; it grows when an answer's piece is larger. 2,000 idle connections are 8 MiB.
const BUFFER_BYTES: usize = 4 << 10;

/// Headers of an answer; klad sends fewer than ten.
const HEADERS_MAX: usize = 32;

/// One keep-alive connection.
pub(crate) struct Connection {
    stream: TcpStream,
    /// Received bytes that are not yet taken are `buffer[start..end]`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// `Content-Length`, bytes.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// Status and framing of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// The status code.
    pub(crate) status: u16,
    /// The body's framing.
    pub(crate) framing: Framing,
}

/// An answer with its whole body.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    /// The status code.
    pub(crate) status: u16,
    /// The body.
    pub(crate) body: &'a [u8],
}

impl Answer<'_> {
    /// Fails, with the body's words, unless the status is `expected`.
    pub(crate) fn expect(&self, expected: u16) -> Result<()> {
        let words = String::from_utf8_lossy(self.body);
        ensure!(self.status == expected, "the answer is {} instead of {expected}: {}", self.status, words.trim());
        Ok(())
    }
}

impl Connection {
    /// Connects.
    pub(crate) fn open(address: SocketAddr) -> Result<Connection> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        // A batch of requests is one write; waiting for more to send would only delay it.
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        Ok(Connection { stream, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0 })
    }

    /// Sends requests as they are.
    pub(crate) fn send(&mut self, requests: &[u8]) -> Result<()> {
        self.stream.write_all(requests).context("cannot send")
    }

    /// Sends a GET; its answer is read with [`Connection::answer`], or [`Connection::head`] and [`Connection::chunk`].
    pub(crate) fn send_get(&mut self, target: &str) -> Result<()> {
        self.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())
    }

    /// Sends a GET and reads the answer.
    pub(crate) fn get(&mut self, target: &str) -> Result<Answer<'_>> {
        self.send_get(target)?;
        self.answer()
    }

    /// Has klad compact everything, over a connection to its admin listener, and waits until it has.
    pub(crate) fn compact(&mut self, patience: Duration) -> Result<()> {
        self.send(b"POST /compact HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")?;
        self.answer()?.expect(202)?;
        let asked = Instant::now();
        while asked.elapsed() < patience {
            let answer = self.get("/compact")?;
            answer.expect(200)?;
            let status: serde_json::Value = serde_json::from_slice(answer.body)?;
            if status["running"].is_null() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        bail!("klad has not compacted in {patience:?}")
    }

    /// Reads an answer that has a `Content-Length`.
    pub(crate) fn answer(&mut self) -> Result<Answer<'_>> {
        let Head { status, framing } = self.head()?;
        let Framing::Length(length) = framing else { bail!("an answer {status} in chunks where none are expected") };
        let length = usize::try_from(length).context("a body larger than memory")?;
        self.receive_until(length)?;
        let body = self.start..self.start + length;
        self.start = body.end;
        Ok(Answer { status, body: &self.buffer[body] })
    }

    /// Reads the head of an answer.
    pub(crate) fn head(&mut self) -> Result<Head> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            let mut answer = httparse::Response::new(&mut headers);
            match answer.parse(&self.buffer[self.start..self.end]).context("the answer is not HTTP/1.1")? {
                Status::Complete(length) => {
                    let status = answer.code.context("an answer without a status")?;
                    let framing = framing(answer.headers)?;
                    self.start += length;
                    return Ok(Head { status, framing });
                }
                Status::Partial => self.receive()?,
            }
        }
    }

    /// Reads the next chunk of a body, or `None` at its end.
    pub(crate) fn chunk(&mut self) -> Result<Option<&[u8]>> {
        let (head, length) = loop {
            match httparse::parse_chunk_size(&self.buffer[self.start..self.end]) {
                Ok(Status::Complete(sizes)) => break sizes,
                Ok(Status::Partial) => self.receive()?,
                Err(_) => bail!("a chunk's size is not a number"),
            }
        };
        let length = usize::try_from(length).context("a chunk larger than memory")?;
        self.receive_until(head + length + 2)?;
        let chunk = self.start + head..self.start + head + length;
        // Klad sends no trailers, so this holds of the last chunk too.
        ensure!(&self.buffer[chunk.end..chunk.end + 2] == b"\r\n", "a chunk does not end where its size says");
        self.start = chunk.end + 2;
        Ok((length > 0).then(|| &self.buffer[chunk]))
    }

    /// Reads a body of `length` bytes, which may be many times the buffer.
    pub(crate) fn read_exactly(&mut self, length: usize, body: &mut Vec<u8>) -> Result<()> {
        while body.len() < length {
            if self.start == self.end {
                self.receive()?;
            }
            let piece = (length - body.len()).min(self.end - self.start);
            body.extend_from_slice(&self.buffer[self.start..self.start + piece]);
            self.start += piece;
        }
        Ok(())
    }

    /// Fails unless the server has neither closed the connection nor sent what no one asked for.
    pub(crate) fn check_idle(&self) -> Result<()> {
        ensure!(self.start == self.end, "more bytes than the answer's");
        self.stream.set_nonblocking(true)?;
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false)?;
        match peeked {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Ok(0) => bail!("klad has closed the connection"),
            Ok(_) => bail!("more bytes than the answer's"),
            Err(error) => Err(error.into()),
        }
    }

    fn receive_until(&mut self, length: usize) -> Result<()> {
        while self.end - self.start < length {
            self.receive()?;
        }
        Ok(())
    }

    /// Waits for more bytes.
    fn receive(&mut self) -> Result<()> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        match self.stream.read(&mut self.buffer[self.end..]).context("no answer")? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)).context("the connection was closed"),
            count => {
                self.end += count;
                Ok(())
            }
        }
    }
}

fn framing(headers: &[httparse::Header<'_>]) -> Result<Framing> {
    for header in headers {
        let value = str::from_utf8(header.value).with_context(|| format!("the header {} is not text", header.name))?;
        if header.name.eq_ignore_ascii_case("content-length") {
            return Ok(Framing::Length(value.parse().context("Content-Length is not a number")?));
        }
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            ensure!(value.eq_ignore_ascii_case("chunked"), "Transfer-Encoding is {value}");
            return Ok(Framing::Chunked);
        }
    }
    bail!("an answer with neither a Content-Length nor chunks")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A connection to a server that sends `bytes`, one in each packet, whatever it is asked, and closes.
    fn connected_to(bytes: &'static [u8]) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            stream.set_nodelay(true).expect("set");
            for byte in bytes {
                // The client may have seen enough already.
                let _ = stream.write_all(&[*byte]);
            }
        });
        Connection::open(address).expect("connected")
    }

    #[test]
    fn answers_are_read_one_after_the_other() {
        let mut connection = connected_to(
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nvalueHTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        );
        assert_eq!(connection.answer().expect("an answer").body, b"value");
        assert_eq!(connection.answer().expect("an answer").status, 404);
    }

    #[test]
    fn chunks_are_read_up_to_the_last() {
        let mut connection = connected_to(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nk\n1\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n",
        );
        assert_eq!(connection.head().expect("a head").framing, Framing::Chunked);
        assert_eq!(connection.chunk().expect("a chunk"), Some(&b"k\n1"[..]));
        assert_eq!(connection.chunk().expect("a chunk"), Some(&b"0123456789abcdef"[..]));
        assert_eq!(connection.chunk().expect("the end"), None);
    }

    #[test]
    fn an_answer_that_breaks_off_is_an_io_error() {
        for bytes in [&b"HTTP/1.1 200 OK\r\nContent-Le"[..], b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nval"] {
            let mut connection = connected_to(bytes);
            let error = connection.answer().expect_err("not whole");
            assert!(error.downcast_ref::<io::Error>().is_some(), "{error:#}");
        }
    }

    #[test]
    fn a_chunk_longer_than_its_size_is_refused() {
        let mut connection =
            connected_to(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nk\n12\r\n0\r\n\r\n");
        connection.head().expect("a head");
        assert!(connection.chunk().is_err());
    }
}
