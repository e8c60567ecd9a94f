//! Reads HTTP answers: the head, and the body by length or by chunks. Called by `exchange`, `commands`, `profile` and
//! the commands that read many items.
//!
//! This module rejects a body that has neither a length nor chunks, and therefore ends with the connection. klad sends
//! no such body, and a truncated body of this kind looks like a complete one.

use std::io::{self, Read};

use crate::client::connection::Connection;
use crate::client::limits::CLIENT_HEAD_BYTES_MAX;

/// Maximum number of headers of an answer. klad's own answers have about ten, and up to 32 more for metadata.
const HEADERS_MAX: usize = 100;

/// Maximum length of a line with a chunk's size, or of a trailer, bytes.
const LINE_BYTES_MAX: usize = 8 << 10;

/// Why an answer cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    /// The socket failed, or the time is over.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The connection ended before the answer did.
    #[error("the connection ended before the answer did")]
    Ended,
    /// The bytes are not an HTTP/1.1 answer.
    #[error("the answer is not valid HTTP/1.1 ({0})")]
    Malformed(&'static str),
}

/// How the end of a body is found. `left` is the number of bytes that are left of the body, or of the current chunk.
/// `begun` says whether a chunk was read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length { left: u64 },
    Chunked { left: u64, begun: bool },
    Ended,
    UntilClose,
}

/// A final answer. The head was read, the body was not.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    framing: Framing,
}

impl Answer {
    /// Reads heads until one is not interim (1xx), and returns that answer.
    ///
    /// # Errors
    /// [`AnswerError`].
    pub(super) fn read(connection: &mut Connection) -> Result<Answer, AnswerError> {
        loop {
            let answer = Answer::read_any(connection)?;
            if answer.status >= 200 {
                return Ok(answer);
            }
        }
    }

    /// Reads the next head, interim or not.
    ///
    /// # Errors
    /// [`AnswerError`].
    pub(super) fn read_any(connection: &mut Connection) -> Result<Answer, AnswerError> {
        loop {
            if let Some((length, answer)) = parse(connection.buffered())? {
                connection.consume(length);
                return Ok(answer);
            }
            if connection.buffered().len() > CLIENT_HEAD_BYTES_MAX {
                return Err(AnswerError::Malformed("a head without an end"));
            }
            fill(connection)?;
        }
    }

    /// Returns the first header of this name.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Returns all headers, in their order.
    pub(super) fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// Passes the rest of the body to `sink`.
    ///
    /// # Errors
    /// [`AnswerError`], or the error of `sink`.
    pub(super) fn copy_body<E: From<AnswerError>>(
        &mut self,
        connection: &mut Connection,
        mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(left) = self.left(connection)? {
            if connection.buffered().is_empty() {
                fill(connection)?;
            }
            let there = connection.buffered();
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(there.len());
            sink(&there[..count])?;
            self.take(connection, count);
        }
        Ok(())
    }

    /// Reads some bytes of the body into `out`; returns 0 at its end.
    fn read_body(&mut self, connection: &mut Connection, out: &mut [u8]) -> Result<usize, AnswerError> {
        let Some(left) = self.left(connection)? else { return Ok(0) };
        if connection.buffered().is_empty() {
            fill(connection)?;
        }
        let there = connection.buffered();
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(there.len()).min(out.len());
        out[..count].copy_from_slice(&there[..count]);
        self.take(connection, count);
        Ok(count)
    }

    /// Consumes `count` bytes of the current chunk or body.
    fn take(&mut self, connection: &mut Connection, count: usize) {
        connection.consume(count);
        self.framing = match self.framing {
            Framing::Length { left } => Framing::Length { left: left - count as u64 },
            Framing::Chunked { left, begun } => Framing::Chunked { left: left - count as u64, begun },
            other => other,
        };
    }

    /// Returns the number of bytes left in the chunk or the body, at least 1; `None` at the end of the body. If the
    /// current chunk has ended, reads the size of the next one.
    fn left(&mut self, connection: &mut Connection) -> Result<Option<u64>, AnswerError> {
        match self.framing {
            Framing::Ended | Framing::Length { left: 0 } => Ok(None),
            Framing::Length { left } | Framing::Chunked { left: left @ 1.., .. } => Ok(Some(left)),
            Framing::UntilClose => Err(AnswerError::Malformed("a body without a length")),
            Framing::Chunked { left: 0, begun } => {
                if begun && !line(connection)?.is_empty() {
                    return Err(AnswerError::Malformed("a chunk does not end where it should"));
                }
                let left = chunk_size(&line(connection)?)?;
                if left > 0 {
                    self.framing = Framing::Chunked { left, begun: true };
                    return Ok(Some(left));
                }
                // Trailers are ignored.
                while !line(connection)?.is_empty() {}
                self.framing = Framing::Ended;
                Ok(None)
            }
        }
    }
}

/// The body of an answer as a reader. The reader ends where the body ends. If the connection ends earlier, a read
/// fails.
pub(super) struct AnswerBody {
    pub(super) connection: Connection,
    pub(super) answer: Answer,
}

impl Read for AnswerBody {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.answer.read_body(&mut self.connection, out).map_err(|error| match error {
            AnswerError::Io(error) => error,
            other => io::Error::other(other),
        })
    }
}

fn fill(connection: &mut Connection) -> Result<(), AnswerError> {
    if connection.fill()? { Ok(()) } else { Err(AnswerError::Ended) }
}

/// Reads a line and returns it without its end.
fn line(connection: &mut Connection) -> Result<Vec<u8>, AnswerError> {
    loop {
        let there = connection.buffered();
        if let Some(end) = memchr::memchr(b'\n', there) {
            let line = there[..end].strip_suffix(b"\r").ok_or(AnswerError::Malformed("a line without a CR"))?.to_vec();
            connection.consume(end + 1);
            return Ok(line);
        }
        if there.len() > LINE_BYTES_MAX {
            return Err(AnswerError::Malformed("a line without an end"));
        }
        fill(connection)?;
    }
}

fn chunk_size(line: &[u8]) -> Result<u64, AnswerError> {
    let wrong = AnswerError::Malformed("a chunk without a size");
    // The parser takes a line without digits for the last chunk: a truncated list would look complete.
    if !line.first().is_some_and(u8::is_ascii_hexdigit) {
        return Err(wrong);
    }
    let mut with_end = line.to_vec();
    with_end.extend_from_slice(b"\r\n");
    match httparse::parse_chunk_size(&with_end) {
        Ok(httparse::Status::Complete((_, size))) => Ok(size),
        _ => Err(wrong),
    }
}

/// Parses a head and returns its length; `None` if it is incomplete.
fn parse(bytes: &[u8]) -> Result<Option<(usize, Answer)>, AnswerError> {
    let mut storage = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut storage);
    // Some servers and proxies still fold long lines.
    let mut parser = httparse::ParserConfig::default();
    parser.allow_obsolete_multiline_headers_in_responses(true);
    let length = match parser.parse_response(&mut head, bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(AnswerError::Malformed("an invalid head")),
    };
    let status = head.code.ok_or(AnswerError::Malformed("no status"))?;
    let headers: Vec<_> = head
        .headers
        .iter()
        .map(|header| (header.name.to_owned(), String::from_utf8_lossy(header.value).trim().to_owned()))
        .collect();
    let framing = framing(status, &headers)?;
    Ok(Some((length, Answer { status, headers, framing })))
}

/// Returns the framing of the body by RFC 9112, section 6.3, for requests other than HEAD and CONNECT.
fn framing(status: u16, headers: &[(String, String)]) -> Result<Framing, AnswerError> {
    if status < 200 || matches!(status, 204 | 304) {
        return Ok(Framing::Ended);
    }
    let all = |name: &'static str| {
        headers.iter().filter(move |(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    };
    let mut codings = all("transfer-encoding").flat_map(|value| value.split(',')).map(str::trim);
    match (codings.next(), codings.next()) {
        (Some(coding), None) if coding.eq_ignore_ascii_case("chunked") => {
            return Ok(Framing::Chunked { left: 0, begun: false });
        }
        (None, _) => {}
        (Some(coding), None) if coding.eq_ignore_ascii_case("identity") => {}
        _ => return Err(AnswerError::Malformed("an unexpected transfer coding")),
    }
    let mut lengths = all("content-length");
    let Some(length) = lengths.next() else { return Ok(Framing::UntilClose) };
    if lengths.any(|other| other != length) || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(AnswerError::Malformed("an invalid Content-Length"));
    }
    let left = length.parse().map_err(|_| AnswerError::Malformed("an invalid Content-Length"))?;
    Ok(Framing::Length { left })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framing_of(headers: &str) -> Option<Framing> {
        let head = format!("HTTP/1.1 200 OK\r\n{headers}\r\n");
        parse(head.as_bytes()).ok().flatten().map(|(_, answer)| answer.framing)
    }

    #[test]
    fn headers_determine_the_framing() {
        assert_eq!(framing_of("Content-Length: 5\r\n"), Some(Framing::Length { left: 5 }));
        assert_eq!(framing_of("content-length: 5\r\nContent-Length: 5\r\n"), Some(Framing::Length { left: 5 }));
        let chunked = Some(Framing::Chunked { left: 0, begun: false });
        assert_eq!(framing_of("Transfer-Encoding: Chunked\r\nContent-Length: 5\r\n"), chunked);
        assert_eq!(
            framing_of("Transfer-Encoding: identity\r\nContent-Length: 5\r\n"),
            Some(Framing::Length { left: 5 })
        );
        assert_eq!(framing_of("A: b\r\n c\r\nContent-Length:\r\n 5\r\n"), Some(Framing::Length { left: 5 }));
        assert_eq!(framing_of(""), Some(Framing::UntilClose));
        for wrong in [
            "Content-Length: 5\r\nContent-Length: 6\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: gzip\r\n",
        ] {
            assert_eq!(framing_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn chunk_sizes_are_hexadecimal() {
        assert_eq!(chunk_size(b"1aB;x=y").ok(), Some(0x1ab));
        for wrong in [&b""[..], b"g", b"-1", b"11111111111111111"] {
            assert!(chunk_size(wrong).is_err(), "{wrong:?}");
        }
    }
}
