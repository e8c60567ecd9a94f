//! An answer's framing: where its head ends, where its body ends, where a chunk ends. Called by `exchange` and `commands`.
//!
//! A body that ends with its connection is refused: a whole one and a cut one would look the same, and klad sends none.

use std::io;

use crate::client::connection::Connection;
use klad_base::limits::{CLIENT_ENTRY_BYTES_MAX, CLIENT_HEAD_BYTES_MAX};

/// Headers that an answer may have; klad's own have fewer than ten.
const HEADERS_MAX: usize = 100;

/// Longest line of a chunk's size, or of a trailer, bytes.
const LINE_BYTES_MAX: usize = 8 << 10;

/// Why an answer cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The socket says so, or the time is over.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The connection ended before the answer did.
    #[error("the connection ended before the answer did")]
    Ended,
    /// These bytes are no HTTP/1.1 answer.
    #[error("the answer is not HTTP/1.1 as klad speaks it ({0})")]
    Malformed(&'static str),
}

/// How the end of a body is known, and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length { left: u64 },
    Chunked { left: u64, begun: bool },
    Ended,
    UntilClose,
}

/// A final answer, whose body is still to be read.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    framing: Framing,
}

impl Answer {
    /// Reads the head of the next answer that is not an interim one.
    ///
    /// # Errors
    /// [`Broken`].
    pub(super) fn read(connection: &mut Connection) -> Result<Answer, Broken> {
        loop {
            let answer = Answer::read_any(connection)?;
            if answer.status >= 200 {
                return Ok(answer);
            }
        }
    }

    /// Reads the head of the next answer, interim or not.
    ///
    /// # Errors
    /// [`Broken`].
    pub(super) fn read_any(connection: &mut Connection) -> Result<Answer, Broken> {
        loop {
            if let Some((length, answer)) = parse(connection.buffered())? {
                connection.consume(length);
                return Ok(answer);
            }
            if connection.buffered().len() > CLIENT_HEAD_BYTES_MAX {
                return Err(Broken::Malformed("a head without an end"));
            }
            fill(connection)?;
        }
    }

    /// The first header of this name.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Whether chunks have borders to be seen.
    pub(super) fn is_chunked(&self) -> bool {
        matches!(self.framing, Framing::Chunked { .. })
    }

    /// Passes what comes of the body to `sink`, to its end.
    ///
    /// # Errors
    /// [`Broken`], or what `sink` says.
    pub(super) fn copy_body<E: From<Broken>>(
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
            connection.consume(count);
            self.framing = match self.framing {
                Framing::Length { left } => Framing::Length { left: left - count as u64 },
                Framing::Chunked { left, begun } => Framing::Chunked { left: left - count as u64, begun },
                other => other,
            };
        }
        Ok(())
    }

    /// The next chunk, whole: an entry of a range. `None`: there was no further one, and the body has ended as it should.
    ///
    /// # Errors
    /// [`Broken`].
    pub(super) fn next_chunk(&mut self, connection: &mut Connection) -> Result<Option<Vec<u8>>, Broken> {
        let Some(size) = self.left(connection)? else { return Ok(None) };
        if size > CLIENT_ENTRY_BYTES_MAX {
            return Err(Broken::Malformed("an entry longer than any that a server may hold"));
        }
        // Grows with what comes, not with what is announced.
        let mut chunk = Vec::new();
        let mut left = usize::try_from(size).expect("little more than 1 GiB");
        while left > 0 {
            if connection.buffered().is_empty() {
                fill(connection)?;
            }
            let count = left.min(connection.buffered().len());
            chunk.extend_from_slice(&connection.buffered()[..count]);
            connection.consume(count);
            left -= count;
        }
        self.framing = Framing::Chunked { left: 0, begun: true };
        Ok(Some(chunk))
    }

    /// Bytes to come before the next border, more than none; `None`: the body has ended.
    fn left(&mut self, connection: &mut Connection) -> Result<Option<u64>, Broken> {
        match self.framing {
            Framing::Ended | Framing::Length { left: 0 } => Ok(None),
            Framing::Length { left } | Framing::Chunked { left: left @ 1.., .. } => Ok(Some(left)),
            Framing::UntilClose => Err(Broken::Malformed("a body without a length")),
            Framing::Chunked { left: 0, begun } => {
                if begun && !line(connection)?.is_empty() {
                    return Err(Broken::Malformed("a chunk that does not end where it should"));
                }
                let left = chunk_size(&line(connection)?)?;
                if left > 0 {
                    self.framing = Framing::Chunked { left, begun: true };
                    return Ok(Some(left));
                }
                // Trailers mean nothing here.
                while !line(connection)?.is_empty() {}
                self.framing = Framing::Ended;
                Ok(None)
            }
        }
    }
}

fn fill(connection: &mut Connection) -> Result<(), Broken> {
    if connection.fill()? { Ok(()) } else { Err(Broken::Ended) }
}

/// A line without its end.
fn line(connection: &mut Connection) -> Result<Vec<u8>, Broken> {
    loop {
        let there = connection.buffered();
        if let Some(end) = memchr::memchr(b'\n', there) {
            let line = there[..end].strip_suffix(b"\r").ok_or(Broken::Malformed("a line without a CR"))?.to_vec();
            connection.consume(end + 1);
            return Ok(line);
        }
        if there.len() > LINE_BYTES_MAX {
            return Err(Broken::Malformed("a line without an end"));
        }
        fill(connection)?;
    }
}

fn chunk_size(line: &[u8]) -> Result<u64, Broken> {
    let wrong = Broken::Malformed("a chunk without a size");
    // The parser takes a line without digits for the last chunk, which would make a cut list a whole one.
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

/// The length of the head and what it says; `None`: it has not come whole.
fn parse(bytes: &[u8]) -> Result<Option<(usize, Answer)>, Broken> {
    let mut storage = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut storage);
    // Servers and proxies of the field still fold long lines.
    let mut parser = httparse::ParserConfig::default();
    parser.allow_obsolete_multiline_headers_in_responses(true);
    let length = match parser.parse_response(&mut head, bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Broken::Malformed("no head")),
    };
    let status = head.code.ok_or(Broken::Malformed("no status"))?;
    let headers: Vec<_> = head
        .headers
        .iter()
        .map(|header| (header.name.to_owned(), String::from_utf8_lossy(header.value).trim().to_owned()))
        .collect();
    let framing = framing(status, &headers)?;
    Ok(Some((length, Answer { status, headers, framing })))
}

/// RFC 9112, section 6.3, for requests that are neither HEAD nor CONNECT.
fn framing(status: u16, headers: &[(String, String)]) -> Result<Framing, Broken> {
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
        _ => return Err(Broken::Malformed("a coding that was not asked for")),
    }
    let mut lengths = all("content-length");
    let Some(length) = lengths.next() else { return Ok(Framing::UntilClose) };
    if lengths.any(|other| other != length) || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Broken::Malformed("a length that cannot be"));
    }
    let left = length.parse().map_err(|_| Broken::Malformed("a length that cannot be"))?;
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
    fn bodies_end_where_their_heads_say() {
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
    fn sizes_of_chunks_are_hexadecimal() {
        assert_eq!(chunk_size(b"1aB;x=y").ok(), Some(0x1ab));
        for wrong in [&b""[..], b"g", b"-1", b"11111111111111111"] {
            assert!(chunk_size(wrong).is_err(), "{wrong:?}");
        }
    }
}
