//! Finds the end of an HTTP/1 answer in a stream of bytes, and reads its status. This module shares no code with klad's
//! server, because no test would notice a mistake in framing that both have.
//!
//! Bodies are stored only if a script wants the answers. Without a script, a connection stores at most an incomplete
//! head. Framing follows RFC 9112, section 6: 1xx answers are skipped, `Transfer-Encoding: chunked` overrides
//! `Content-Length`, and an answer with neither ends with its connection. Called by `generator`, `slots` and `script`.

use std::borrow::Cow;

use memchr::memchr;

/// The longest head that is accepted, bytes. klad's own heads are below 300 bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// The longest line that gives the size of a chunk, and the longest trailer section, bytes.
const LINE_BYTES_MAX: u32 = 8 << 10;

/// The largest part of a body, in bytes, that is stored for a script. The rest is read but not stored.
pub const BODY_STORED_BYTES_MAX: usize = 16 << 20;

/// A complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status of the answer, 200 to 999.
    pub status: u16,
    /// Whether the connection can be used again.
    pub keep_alive: bool,
}

/// Why bytes are not an HTTP/1 answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The first line is not a status line.
    #[error("no status line")]
    StatusLine,
    /// A header line has no colon, or `Content-Length` is not a number or has two values.
    #[error("a malformed header")]
    Header,
    /// The head is longer than 64 KiB.
    #[error("a head without an end")]
    HeadTooLong,
    /// The size of a chunk is not a number, the line break after a chunk is missing, or a size line or the trailer
    /// section is too long.
    #[error("a malformed chunk")]
    Chunk,
}

/// The part of an answer in which the reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Length { left: u64 },
    UntilClose,
    Chunked(Chunk),
}

/// The part of a chunked body in which the reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    /// The reader is in the line with the size of a chunk. The fields are the value and the number of the digits so
    /// far, whether the extension after the size has begun, and the length of the line.
    Size { size: u64, digits: u32, extension: bool, line: u32 },
    /// The reader is in the bytes of the chunk, of which `left` have not been read.
    Data { left: u64 },
    /// The reader is in the CR LF after the bytes of the chunk.
    DataEnd { carriage_return: bool },
    /// The reader is in the lines after the last chunk (the trailer section). The fields are the length of the
    /// current line, and of all lines together.
    Trailer { line: u32, total: u32 },
}

const SIZE_START: Chunk = Chunk::Size { size: 0, digits: 0, extension: false, line: 0 };

/// Reads the answers of one connection.
#[derive(Debug)]
pub struct Reader {
    state: State,
    /// An incomplete head.
    head: Vec<u8>,
    answer: Answer,
    /// The last answer; `None` unless answers are stored for a script.
    stored: Option<Box<StoredAnswer>>,
}

/// An answer as received.
#[derive(Clone, Debug, Default)]
pub struct StoredAnswer {
    /// The status line and headers, with the empty line.
    pub head: Vec<u8>,
    /// The body without framing, at most [`BODY_STORED_BYTES_MAX`] bytes.
    pub body: Vec<u8>,
}

impl StoredAnswer {
    fn add(&mut self, bytes: &[u8]) {
        let free = BODY_STORED_BYTES_MAX - self.body.len();
        self.body.extend_from_slice(&bytes[..bytes.len().min(free)]);
    }
}

/// What the head of an answer says about the body.
struct Head {
    answer: Answer,
    length: Option<u64>,
    chunked: bool,
    other_coding: bool,
}

impl Reader {
    /// Creates a reader that expects the beginning of an answer.
    #[must_use]
    pub fn new() -> Reader {
        let answer = Answer { status: 0, keep_alive: true };
        Reader { state: State::Head, head: Vec::new(), answer, stored: None }
    }

    /// Creates a reader that stores each answer until the next one begins.
    #[must_use]
    pub fn storing() -> Reader {
        Reader { stored: Some(Box::default()), ..Reader::new() }
    }

    /// Returns the last complete answer; `None` unless answers are stored.
    #[must_use]
    pub fn stored(&self) -> Option<&StoredAnswer> {
        self.stored.as_deref()
    }

    /// Forgets an incomplete answer, for a new connection.
    pub fn restart(&mut self) {
        self.state = State::Head;
        self.head.clear();
    }

    /// Reads `bytes` up to the end of the answer. `bodiless` says that the request was a HEAD, whose answer has no
    /// body. Returns the number of bytes that were read, and the answer if it is complete.
    ///
    /// # Errors
    /// [`Malformed`], if the bytes are not an HTTP/1 answer. The connection must then not be used any more.
    pub fn feed(&mut self, bytes: &[u8], bodiless: bool) -> Result<(usize, Option<Answer>), Malformed> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let (taken, whole) = match self.state {
                State::Head => self.feed_head(rest, bodiless)?,
                State::Length { left } => {
                    let taken = u64::min(left, rest.len() as u64);
                    self.state = State::Length { left: left - taken };
                    let bytes = usize::try_from(taken).expect("at most the length of a slice");
                    self.store(&rest[..bytes]);
                    (bytes, taken == left)
                }
                State::UntilClose => {
                    self.store(rest);
                    (rest.len(), false)
                }
                State::Chunked(chunk) => self.feed_chunk(chunk, rest)?,
            };
            at += taken;
            if whole {
                self.state = State::Head;
                return Ok((at, Some(self.answer)));
            }
        }
        Ok((at, None))
    }

    /// Tells the reader that the server has closed the connection. Returns the answer if it ends with the connection.
    pub fn end(&mut self) -> Option<Answer> {
        let whole = self.state == State::UntilClose;
        self.restart();
        whole.then_some(self.answer)
    }

    /// Reads a head, or a part of it. Returns the number of bytes that were read, and `true` if the answer ends with
    /// the head.
    fn feed_head(&mut self, bytes: &[u8], bodiless: bool) -> Result<(usize, bool), Malformed> {
        if self.head.is_empty() {
            let Some((taken, head)) = parse_head(bytes)? else {
                self.head.extend_from_slice(bytes);
                return self.wait_for_head(bytes.len());
            };
            self.store_head(&bytes[..taken], &head);
            return Ok((taken, self.begin(&head, bodiless)));
        }
        let before = self.head.len();
        self.head.extend_from_slice(bytes);
        let Some((end, head)) = parse_head(&self.head)? else { return self.wait_for_head(bytes.len()) };
        let whole = std::mem::take(&mut self.head);
        self.store_head(&whole[..end], &head);
        Ok((end - before, self.begin(&head, bodiless)))
    }

    /// Accepts `bytes` more bytes of an incomplete head, unless the head becomes too long.
    fn wait_for_head(&self, bytes: usize) -> Result<(usize, bool), Malformed> {
        if self.head.len() > HEAD_BYTES_MAX { Err(Malformed::HeadTooLong) } else { Ok((bytes, false)) }
    }

    fn store_head(&mut self, bytes: &[u8], head: &Head) {
        if let Some(stored) = self.stored.as_deref_mut().filter(|_| head.answer.status >= 200) {
            stored.head.clear();
            stored.head.extend_from_slice(bytes);
            // A new vector is used, so that the connection does not keep the memory of a large body.
            stored.body = Vec::new();
        }
    }

    fn store(&mut self, body: &[u8]) {
        if let Some(stored) = &mut self.stored {
            stored.add(body);
        }
    }

    /// Begins the body that the head announces. Returns `true` if the answer is complete, because it has no body.
    fn begin(&mut self, head: &Head, bodiless: bool) -> bool {
        self.answer = head.answer;
        if (100..200).contains(&head.answer.status) {
            // After a 1xx answer, the final answer follows.
            return false;
        }
        if bodiless || matches!(head.answer.status, 204 | 304) {
            return true;
        }
        self.state = match head.length {
            _ if head.chunked => State::Chunked(SIZE_START),
            Some(left) if !head.other_coding => State::Length { left },
            _ => {
                self.answer.keep_alive = false;
                State::UntilClose
            }
        };
        self.state == State::Length { left: 0 }
    }

    /// Reads a part of a chunked body. Returns the number of bytes that were read, and `true` if the body is complete.
    fn feed_chunk(&mut self, chunk: Chunk, bytes: &[u8]) -> Result<(usize, bool), Malformed> {
        if let Chunk::Data { left } = chunk {
            let taken = u64::min(left, bytes.len() as u64);
            let left = left - taken;
            let next = if left == 0 { Chunk::DataEnd { carriage_return: false } } else { Chunk::Data { left } };
            self.state = State::Chunked(next);
            let taken = usize::try_from(taken).expect("at most the length of a slice");
            self.store(&bytes[..taken]);
            return Ok((taken, false));
        }
        let (next, whole) = next_of_chunk(chunk, bytes[0])?;
        self.state = State::Chunked(next);
        Ok((1, whole))
    }
}

impl Default for Reader {
    fn default() -> Self {
        Reader::new()
    }
}

/// Reads one byte of the framing around chunks. Returns the next position, and `true` if the body is complete.
fn next_of_chunk(chunk: Chunk, byte: u8) -> Result<(Chunk, bool), Malformed> {
    let next = match (chunk, byte) {
        (Chunk::Size { digits: 0, .. }, b'\n') => return Err(Malformed::Chunk),
        (Chunk::Size { size: 0, .. }, b'\n') => Chunk::Trailer { line: 0, total: 0 },
        (Chunk::Size { size, .. }, b'\n') => Chunk::Data { left: size },
        (Chunk::Size { line: LINE_BYTES_MAX, .. }, _) => return Err(Malformed::Chunk),
        (Chunk::Size { size, digits, extension: false, line }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
            let digit = char::from(byte).to_digit(16).expect("a digit");
            if digits == 15 {
                return Err(Malformed::Chunk);
            }
            Chunk::Size { size: size * 16 + u64::from(digit), digits: digits + 1, extension: false, line: line + 1 }
        }
        (Chunk::Size { size, digits, line, .. }, b';' | b' ' | b'\t' | b'\r') if digits > 0 => {
            Chunk::Size { size, digits, extension: true, line: line + 1 }
        }
        (Chunk::Size { size, digits, extension: true, line }, _) => {
            Chunk::Size { size, digits, extension: true, line: line + 1 }
        }
        (Chunk::DataEnd { carriage_return: false }, b'\r') => Chunk::DataEnd { carriage_return: true },
        (Chunk::DataEnd { .. }, b'\n') => SIZE_START,
        (Chunk::Trailer { line: 0, total }, b'\n') => return Ok((Chunk::Trailer { line: 0, total }, true)),
        (Chunk::Trailer { total, .. }, b'\n') if total < LINE_BYTES_MAX => Chunk::Trailer { line: 0, total: total + 1 },
        (Chunk::Trailer { line, total }, b'\r') if total < LINE_BYTES_MAX => Chunk::Trailer { line, total: total + 1 },
        (Chunk::Trailer { line, total }, _) if total < LINE_BYTES_MAX => {
            Chunk::Trailer { line: line + 1, total: total + 1 }
        }
        (Chunk::Size { .. } | Chunk::DataEnd { .. } | Chunk::Data { .. } | Chunk::Trailer { .. }, _) => {
            return Err(Malformed::Chunk);
        }
    };
    Ok((next, false))
}

/// Parses a head. Returns its length and contents; `None` if the end of the head has not arrived.
fn parse_head(bytes: &[u8]) -> Result<Option<(usize, Head)>, Malformed> {
    let Some((line, mut at)) = next_line(bytes, 0) else { return Ok(None) };
    let (answer, version_1_1) = parse_status_line(line)?;
    let mut head = Head { answer, length: None, chunked: false, other_coding: false };
    head.answer.keep_alive = version_1_1;
    while let Some((line, next)) = next_field(bytes, at) {
        at = next;
        if line.is_empty() {
            return Ok(Some((at, head)));
        }
        parse_header(&line, &mut head)?;
    }
    Ok(None)
}

/// Returns the header line at `from`, and the start of the next one. A line that begins with white space continues the
/// previous one (RFC 9112, section 5.2).
fn next_field(bytes: &[u8], from: usize) -> Option<(Cow<'_, [u8]>, usize)> {
    let (line, mut at) = next_line(bytes, from)?;
    let mut line = Cow::Borrowed(line);
    // The empty line ends the head. The bytes after it are not part of the head.
    while !line.is_empty() && matches!(bytes.get(at)?, b' ' | b'\t') {
        let (more, next) = next_line(bytes, at)?;
        let line = line.to_mut();
        line.push(b' ');
        line.extend_from_slice(more.trim_ascii());
        at = next;
    }
    Some((line, at))
}

/// Returns the line at `from` without its line end, and the start of the next line.
fn next_line(bytes: &[u8], from: usize) -> Option<(&[u8], usize)> {
    let end = from + memchr(b'\n', &bytes[from..])?;
    let line = &bytes[from..end];
    Some((line.strip_suffix(b"\r").unwrap_or(line), end + 1))
}

/// Parses a line such as `HTTP/1.1 200 OK`. Returns the answer, and `true` if the version is at least 1.1.
fn parse_status_line(line: &[u8]) -> Result<(Answer, bool), Malformed> {
    let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor @ b'0'..=b'9', b' ', a, b, c, rest @ ..] = line else {
        return Err(Malformed::StatusLine);
    };
    let digits = [a, b, c];
    if !digits.iter().all(|digit| digit.is_ascii_digit()) || *a == b'0' || !matches!(rest, [] | [b' ', ..]) {
        return Err(Malformed::StatusLine);
    }
    let status = digits.iter().fold(0, |status, digit| status * 10 + u16::from(**digit - b'0'));
    Ok((Answer { status, keep_alive: true }, *minor >= b'1'))
}

fn parse_header(line: &[u8], head: &mut Head) -> Result<(), Malformed> {
    let colon = memchr(b':', line).ok_or(Malformed::Header)?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    // Compare the length first: it rules out most headers without a comparison of names.
    match name.len() {
        14 if name.eq_ignore_ascii_case(b"content-length") => {
            let length = parse_length(value)?;
            if head.length.is_some_and(|other| other != length) {
                return Err(Malformed::Header);
            }
            head.length = Some(length);
        }
        17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
            let last = value.rsplit(|byte| *byte == b',').next().unwrap_or_default().trim_ascii();
            head.chunked = last.eq_ignore_ascii_case(b"chunked");
            // Until 2014, HTTP/1.1 used the name `identity` for no coding at all.
            head.other_coding = !head.chunked && !value.eq_ignore_ascii_case(b"identity");
        }
        10 if name.eq_ignore_ascii_case(b"connection") => {
            for token in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                if token.eq_ignore_ascii_case(b"close") {
                    head.answer.keep_alive = false;
                } else if token.eq_ignore_ascii_case(b"keep-alive") {
                    head.answer.keep_alive = true;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// Returns the names and values of the header lines of a head, as received.
#[must_use]
pub fn header_lines(head: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut lines = Vec::new();
    let mut at = next_line(head, 0).map_or(head.len(), |(_, next)| next);
    while let Some((line, next)) = next_field(head, at) {
        at = next;
        if let Some(colon) = memchr(b':', &line) {
            lines.push((line[..colon].trim_ascii().to_vec(), line[colon + 1..].trim_ascii().to_vec()));
        }
    }
    lines
}

fn parse_length(value: &[u8]) -> Result<u64, Malformed> {
    if value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) {
        return Err(Malformed::Header);
    }
    Ok(value.iter().fold(0, |length, digit| length * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads all answers of a stream that arrives in pieces of `piece` bytes and then closes.
    fn read(stream: &[u8], piece: usize) -> Result<Vec<(u16, bool)>, Malformed> {
        let mut reader = Reader::new();
        let mut answers = Vec::new();
        for mut bytes in stream.chunks(piece) {
            while !bytes.is_empty() {
                let (taken, answer) = reader.feed(bytes, false)?;
                bytes = &bytes[taken..];
                answers.extend(answer.map(|answer| (answer.status, answer.keep_alive)));
            }
        }
        answers.extend(reader.end().map(|answer| (answer.status, answer.keep_alive)));
        Ok(answers)
    }

    #[track_caller]
    fn reads(stream: &str, expected: &[(u16, bool)]) {
        for piece in 1..=stream.len() {
            assert_eq!(read(stream.as_bytes(), piece).as_deref(), Ok(expected), "in pieces of {piece}");
        }
    }

    #[track_caller]
    fn refuses(stream: &str, expected: Malformed) {
        for piece in [1, stream.len()] {
            assert_eq!(read(stream.as_bytes(), piece), Err(expected), "in pieces of {piece}");
        }
    }

    #[test]
    fn answers_with_a_length_follow_each_other() {
        reads(
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n",
            &[(200, true), (201, true)],
        );
    }

    #[test]
    fn chunked_answers_end_with_their_last_chunk() {
        reads(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\nContent-Length: 3\r\n\r\n\
             5;ext=\"1\"\r\nhello\r\n1A\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nTrailer: x\r\n\r\n\
             HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            &[(200, true), (404, true)],
        );
    }

    #[test]
    fn an_answer_without_a_length_ends_with_its_connection() {
        reads("HTTP/1.1 200 OK\r\n\r\nhello", &[(200, false)]);
        reads("HTTP/1.0 200 OK\r\n\r\nhello", &[(200, false)]);
        reads("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nContent-Length: 3\r\n\r\nhello", &[(200, false)]);
    }

    #[test]
    fn folded_lines_belong_to_the_header_before_them() {
        reads(
            "HTTP/1.1 200 OK\r\nX-Long: a,\r\n\t b\r\n : c\r\nContent-Length:\r\n 5\r\n\r\nhello\
             HTTP/1.1 201 Created\r\nTransfer-Encoding:\n\tchunked\r\n\r\n0\r\n\r\n",
            &[(200, true), (201, true)],
        );
        let head = b"HTTP/1.1 200 OK\r\nA: b\r\n  c:d \r\nE: f\r\n\r\n";
        let lines = header_lines(head);
        let lines: Vec<_> = lines.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        assert_eq!(lines, [(&b"A"[..], &b"b c:d"[..]), (b"E", b"f")]);
    }

    #[test]
    fn identity_is_not_a_coding() {
        reads(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: Identity\r\nContent-Length: 5\r\n\r\nhello\
             HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            &[(200, true), (404, true)],
        );
    }

    #[test]
    fn statuses_without_a_body_have_none() {
        reads(
            "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
            &[(204, true), (304, true)],
        );
        let mut reader = Reader::new();
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n";
        assert_eq!(reader.feed(head, true), Ok((head.len(), Some(Answer { status: 200, keep_alive: true }))));
    }

    #[test]
    fn answers_are_stored_without_their_framing() {
        let stream =
            b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nA:  b \r\n\r\n\
            5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
        for piece in 1..=stream.len() {
            let mut reader = Reader::storing();
            for bytes in stream.chunks(piece) {
                let _ = reader.feed(bytes, false).expect("an answer");
            }
            let stored = reader.stored().expect("it keeps");
            assert_eq!(stored.body, b"hello world", "in pieces of {piece}");
            let lines = header_lines(&stored.head);
            let lines: Vec<_> = lines.iter().map(|(name, value)| (&name[..], &value[..])).collect();
            assert_eq!(lines, [(&b"Transfer-Encoding"[..], &b"chunked"[..]), (b"A", b"b")], "in pieces of {piece}");
        }
        let mut reader = Reader::storing();
        let _ = reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none", false).expect("an answer");
        let _ = reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n22", false).expect("an answer");
        assert_eq!(reader.stored().expect("it keeps").body, b"22");
    }

    #[test]
    fn interim_answers_are_skipped() {
        reads(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\nHTTP/1.1 201 C\r\nContent-Length: 0\r\n\r\n",
            &[(201, true)],
        );
    }

    #[test]
    fn the_connection_header_decides_whether_the_connection_stays_open() {
        reads("HTTP/1.1 503 X\r\nConnection: foo, Close\r\nContent-Length: 0\r\n\r\n", &[(503, false)]);
        reads("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", &[(200, true)]);
        reads("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", &[(200, false)]);
    }

    #[test]
    fn a_connection_that_ends_early_gives_no_answer() {
        for cut in ["HTTP/1.1 2", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", "HTTP/1.1 200 OK\r\nA: b\r\n"] {
            reads(cut, &[]);
        }
    }

    #[test]
    fn bytes_that_are_not_http_are_rejected() {
        refuses("SSH-2.0-OpenSSH_9\r\n", Malformed::StatusLine);
        refuses("HTTP/2.0 200 OK\r\n", Malformed::StatusLine);
        refuses("HTTP/1.1 2x0 OK\r\n", Malformed::StatusLine);
        refuses("HTTP/1.1 200 OK\r\nno colon\r\n\r\n", Malformed::Header);
        refuses("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", Malformed::Header);
        refuses("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", Malformed::Header);
        refuses("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", Malformed::Chunk);
        refuses("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", Malformed::Chunk);
        let endless = format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(read(endless.as_bytes(), 1000), Err(Malformed::HeadTooLong));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(stream in proptest::collection::vec(any::<u8>(), 0..300), piece in 1_usize..50) {
            let _ = read(&stream, piece);
            let framed = [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".as_slice(), &stream].concat();
            let _ = read(&framed, piece);
        }
    }
}
