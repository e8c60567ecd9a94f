//! An HTTP/1.1 client on a blocking socket, in the clear or with TLS. It shows what a library hides: chunks, the
//! order of answers, and the end of a connection.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::PATIENCE;

/// A connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    /// `None`: the server had already ended the connection.
    peer: Option<SocketAddr>,
    /// `None`: in the clear.
    pub(crate) tls: Option<Box<rustls::ClientConnection>>,
    buffer: Vec<u8>,
    /// When sending began the last time. klad counts a connection as idle only after that.
    used: Instant,
}

/// A final answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The chunks, if the body had chunks.
    pub(crate) chunks: Option<Vec<Vec<u8>>>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the version in `ETag` or `Klad-Version`.
    pub(crate) fn version(&self) -> u64 {
        let etag = self.header("etag").map(|etag| etag.trim_matches('"'));
        etag.or_else(|| self.header("klad-version")).expect("a version").parse().expect("a number")
    }
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Client {
        Client::try_connect(address).expect("the server accepts connections")
    }

    pub(crate) fn try_connect(address: SocketAddr) -> io::Result<Client> {
        Ok(Client::from_stream(TcpStream::connect_timeout(&address, PATIENCE)?))
    }

    pub(crate) fn from_stream(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let peer = stream.peer_addr().ok();
        Client { stream, peer, tls: None, buffer: Vec::new(), used: Instant::now() }
    }

    pub(crate) fn get(&mut self, target: &str) -> Answer {
        self.request("GET", target, &[], None)
    }

    pub(crate) fn put(&mut self, target: &str, value: &[u8]) -> Answer {
        self.request("PUT", target, &[], Some(value))
    }

    /// Stores a value, and repeats the request while klad answers 503: on a busy machine RocksDB's flushes fall
    /// behind and it stalls writes.
    pub(crate) fn store(&mut self, target: &str, value: &[u8]) {
        super::wait_until("the value is stored", || {
            let status = self.put(target, value).status;
            assert!([201, 503].contains(&status), "{status}");
            status == 201
        });
    }

    pub(crate) fn delete(&mut self, target: &str) -> Answer {
        self.request("DELETE", target, &[], None)
    }

    /// Sends a request and reads its answer. On a busy machine this thread may pause so long that klad closes the
    /// connection as idle before the request arrives (after two seconds, if a large body came before). Then it connects
    /// again.
    pub(crate) fn request(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> Answer {
        loop {
            let used = self.used;
            let sent = self.send(method, target, headers, body);
            let was_late = used.elapsed() > Duration::from_millis(1_500);
            match sent.and_then(|()| self.answer()) {
                Err(error) if was_late && self.tls.is_none() && self.buffer.is_empty() && has_ended(&error) => {
                    *self = Client::connect(self.peer.expect("it was connected"));
                }
                answer => return answer.expect("an answer"),
            }
        }
    }

    pub(crate) fn try_request(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> io::Result<Answer> {
        self.send(method, target, headers, body)?;
        self.answer()
    }

    pub(crate) fn send(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> io::Result<()> {
        let mut request = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n");
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        if let Some(body) = body {
            request += &format!("Content-Length: {}\r\n", body.len());
        }
        let mut bytes = (request + "\r\n").into_bytes();
        bytes.extend_from_slice(body.unwrap_or_default());
        self.try_send_raw(&bytes)
    }

    pub(crate) fn send_raw(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send_raw(bytes.as_ref()).expect("the server reads");
    }

    pub(crate) fn try_send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.used = Instant::now();
        match &mut self.tls {
            None => self.stream.write_all(bytes),
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.stream).write_all(bytes),
        }
    }

    /// Reads some bytes; 0 at the end of the connection, which with TLS the server must announce.
    pub(crate) fn read(&mut self, some: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.stream.read(some),
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.stream).read(some),
        }
    }

    /// Reads the next final answer and skips interim ones (1xx).
    pub(crate) fn answer(&mut self) -> io::Result<Answer> {
        loop {
            let answer = self.any_answer()?;
            if answer.status >= 200 {
                return Ok(answer);
            }
        }
    }

    /// Reads the next answer, final or interim.
    pub(crate) fn any_answer(&mut self) -> io::Result<Answer> {
        let (status, headers) = self.head()?;
        let mut answer = Answer { status, headers, body: Vec::new(), chunks: None };
        if status < 200 {
            return Ok(answer);
        }
        if answer.header("transfer-encoding") == Some("chunked") {
            let mut chunks = Vec::new();
            while let Some(chunk) = self.chunk()? {
                answer.body.extend_from_slice(&chunk);
                chunks.push(chunk);
            }
            answer.chunks = Some(chunks);
        } else if let Some(length) = answer.header("content-length") {
            let length = length.parse().map_err(|_| bad("content-length"))?;
            answer.body = self.take(length).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => bad("an answer without the end of its body"),
                _ => error,
            })?;
        }
        Ok(answer)
    }

    /// Reads status and headers of the next answer, and leaves its body.
    pub(crate) fn head(&mut self) -> io::Result<(u16, Vec<(String, String)>)> {
        loop {
            let mut storage = [httparse::EMPTY_HEADER; 100];
            let mut head = httparse::Response::new(&mut storage);
            match head.parse(&self.buffer).map_err(|error| bad(&error.to_string()))? {
                httparse::Status::Complete(length) => {
                    let status = head.code.expect("complete");
                    let headers = head
                        .headers
                        .iter()
                        .map(|header| (header.name.to_owned(), String::from_utf8_lossy(header.value).into_owned()))
                        .collect();
                    self.buffer.drain(..length);
                    return Ok((status, headers));
                }
                httparse::Status::Partial => self.fill()?,
            }
        }
    }

    /// Reads the next chunk; `None` at the last one.
    pub(crate) fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                break self.take(end + 2)?;
            }
            self.fill()?;
        };
        let digits = std::str::from_utf8(&line[..line.len() - 2]).map_err(|_| bad("chunk size"))?;
        let length = usize::from_str_radix(digits, 16).map_err(|_| bad("chunk size"))?;
        let chunk = self.take(length)?;
        if self.take(2)? != b"\r\n" {
            return Err(bad("chunk end"));
        }
        Ok((length > 0).then_some(chunk))
    }

    /// Takes the bytes that were received and not used.
    pub(crate) fn take_buffered(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < length {
            self.fill()?;
        }
        let rest = self.buffer.split_off(length);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut some = [0; 16 << 10];
        match self.read(&mut some)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            count => {
                self.buffer.extend_from_slice(&some[..count]);
                Ok(())
            }
        }
    }

    /// Returns whether no byte arrives within `time`.
    pub(crate) fn is_silent_for(&mut self, time: Duration) -> bool {
        assert!(self.buffer.is_empty(), "an answer has already arrived");
        self.stream.set_read_timeout(Some(time)).unwrap();
        let ended = self.fill();
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        matches!(ended, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    }

    /// Returns whether the server closes the connection without sending another byte.
    pub(crate) fn is_closed_silently(&mut self) -> bool {
        let ended = self.fill();
        self.buffer.is_empty()
            && matches!(ended, Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset))
    }
}

/// Whether the error means that the server has ended the connection.
pub(crate) fn has_ended(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof].contains(&error.kind())
}

fn bad(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_owned())
}
