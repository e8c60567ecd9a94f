//! Finds the end of an HTTP/1 answer in a stream of bytes, and what it says of itself. Shares nothing with the server: a
//! mistake in framing at both ends would cancel out.
//!
//! Bodies are counted and forgotten, so a connection's memory is the part of a head that arrived without its end. Framing
//! is that of RFC 9112, section 6: 1xx answers are passed over, `Transfer-Encoding: chunked` wins over `Content-Length`, and
//! an answer with neither ends with its connection. Called by `generator`.

use std::borrow::Cow;

use memchr::memchr;

/// Longest head that is taken, bytes; klad's own are below 300.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Longest line of a chunk's size or of a trailer, bytes.
const LINE_BYTES_MAX: u32 = 8 << 10;

/// Bytes of a body that are kept for a script at the most; the rest is counted and forgotten.
pub const BODY_KEPT_BYTES_MAX: usize = 16 << 20;

/// A whole answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status, 200 to 599 or what the server made of it.
    pub status: u16,
    /// Whether the connection can be used again.
    pub keep_alive: bool,
}

/// These bytes are no HTTP/1 answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The first line is not a status line.
    #[error("no status line")]
    StatusLine,
    /// A header line has no colon, or a length that is no number.
    #[error("a header that cannot be read")]
    Header,
    /// The head is longer than 64 KiB.
    #[error("a head without an end")]
    HeadTooLong,
    /// A chunk's size is no number, or its end is missing.
    #[error("a chunk that cannot be read")]
    Chunk,
}

/// Where in an answer the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Length { left: u64 },
    UntilClose,
    Chunked(Chunk),
}

/// Where in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    /// In the line of a size: what its digits say so far, how many there were, whether its extension has begun.
    Size { size: u64, digits: u32, extension: bool, line: u32 },
    /// In the bytes.
    Data { left: u64 },
    /// In the CR LF after them.
    DataEnd { carriage_return: bool },
    /// In the lines after the last chunk; how long the line is.
    Trailer { line: u32, total: u32 },
}

const SIZE_START: Chunk = Chunk::Size { size: 0, digits: 0, extension: false, line: 0 };

/// The reader of one connection.
#[derive(Debug)]
pub struct Reader {
    state: State,
    /// A head that arrived in parts.
    head: Vec<u8>,
    answer: Answer,
    /// Where a script wants to see answers.
    kept: Option<Box<Kept>>,
}

/// An answer as it came.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// Status line and headers, with the empty line.
    pub head: Vec<u8>,
    /// Its body without framing, of [`BODY_KEPT_BYTES_MAX`] bytes at the most.
    pub body: Vec<u8>,
}

impl Kept {
    fn add(&mut self, bytes: &[u8]) {
        let room = BODY_KEPT_BYTES_MAX - self.body.len();
        self.body.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// What a head says of the body after it.
struct Head {
    answer: Answer,
    length: Option<u64>,
    chunked: bool,
    other_coding: bool,
}

impl Reader {
    /// Before the first answer.
    #[must_use]
    pub fn new() -> Reader {
        let answer = Answer { status: 0, keep_alive: true };
        Reader { state: State::Head, head: Vec::new(), answer, kept: None }
    }

    /// One that keeps each answer until the next begins.
    #[must_use]
    pub fn keeping() -> Reader {
        Reader { kept: Some(Box::default()), ..Reader::new() }
    }

    /// The answer that was whole last, where answers are kept.
    #[must_use]
    pub fn kept(&self) -> Option<&Kept> {
        self.kept.as_deref()
    }

    /// Forgets a half answer: the connection is a new one.
    pub fn restart(&mut self) {
        self.state = State::Head;
        self.head.clear();
    }

    /// Takes bytes up to the end of the answer. `bodiless`: the request was a HEAD. Returns how many bytes were taken, and
    /// the answer when it is whole.
    ///
    /// # Errors
    /// [`Malformed`]; the connection is then of no more use.
    pub fn feed(&mut self, bytes: &[u8], bodiless: bool) -> Result<(usize, Option<Answer>), Malformed> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let (taken, whole) = match self.state {
                State::Head => self.feed_head(rest, bodiless)?,
                State::Length { left } => {
                    let taken = u64::min(left, rest.len() as u64);
                    self.state = State::Length { left: left - taken };
                    let bytes = usize::try_from(taken).expect("no more than there is");
                    self.keep(&rest[..bytes]);
                    (bytes, taken == left)
                }
                State::UntilClose => {
                    self.keep(rest);
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

    /// The server has closed the connection: the answer, when that was its end.
    pub fn end(&mut self) -> Option<Answer> {
        let whole = self.state == State::UntilClose;
        self.restart();
        whole.then_some(self.answer)
    }

    /// Takes a head or a part of one; `true`: the answer is whole with it.
    fn feed_head(&mut self, bytes: &[u8], bodiless: bool) -> Result<(usize, bool), Malformed> {
        if self.head.is_empty() {
            let Some((taken, head)) = parse_head(bytes)? else {
                self.head.extend_from_slice(bytes);
                return if self.head.len() > HEAD_BYTES_MAX {
                    Err(Malformed::HeadTooLong)
                } else {
                    Ok((bytes.len(), false))
                };
            };
            self.keep_head(&bytes[..taken], &head);
            return Ok((taken, self.begin(&head, bodiless)));
        }
        let before = self.head.len();
        self.head.extend_from_slice(bytes);
        let parsed = parse_head(&self.head)?;
        let Some((end, head)) = parsed else {
            return if self.head.len() > HEAD_BYTES_MAX {
                Err(Malformed::HeadTooLong)
            } else {
                Ok((bytes.len(), false))
            };
        };
        let whole = std::mem::take(&mut self.head);
        self.keep_head(&whole[..end], &head);
        Ok((end - before, self.begin(&head, bodiless)))
    }

    fn keep_head(&mut self, bytes: &[u8], head: &Head) {
        if let Some(kept) = self.kept.as_deref_mut().filter(|_| head.answer.status >= 200) {
            kept.head.clear();
            kept.head.extend_from_slice(bytes);
            // A large one is not held for as long as the connection lives.
            kept.body = Vec::new();
        }
    }

    fn keep(&mut self, body: &[u8]) {
        if let Some(kept) = &mut self.kept {
            kept.add(body);
        }
    }

    /// Begins the body that the head announces; `true`: there is none.
    fn begin(&mut self, head: &Head, bodiless: bool) -> bool {
        self.answer = head.answer;
        if (100..200).contains(&head.answer.status) {
            // Another answer follows.
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

    /// Takes a piece of a chunked body; `true`: it was the last.
    fn feed_chunk(&mut self, chunk: Chunk, bytes: &[u8]) -> Result<(usize, bool), Malformed> {
        if let Chunk::Data { left } = chunk {
            let taken = u64::min(left, bytes.len() as u64);
            let left = left - taken;
            let next = if left == 0 { Chunk::DataEnd { carriage_return: false } } else { Chunk::Data { left } };
            self.state = State::Chunked(next);
            let taken = usize::try_from(taken).expect("no more than there is");
            self.keep(&bytes[..taken]);
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

/// One byte of the framing between chunks' data.
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

/// A head and its length, or `None` when its end is not there.
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

/// A header line and where the next begins. Lines that begin with white space go on with the one before (RFC 9112, section 5.2).
fn next_field(bytes: &[u8], from: usize) -> Option<(Cow<'_, [u8]>, usize)> {
    let (line, mut at) = next_line(bytes, from)?;
    let mut line = Cow::Borrowed(line);
    // The empty line is the last of a head; what is behind it is not looked at.
    while !line.is_empty() && matches!(bytes.get(at)?, b' ' | b'\t') {
        let (more, next) = next_line(bytes, at)?;
        let line = line.to_mut();
        line.push(b' ');
        line.extend_from_slice(more.trim_ascii());
        at = next;
    }
    Some((line, at))
}

/// A line without its end, and where the next begins.
fn next_line(bytes: &[u8], from: usize) -> Option<(&[u8], usize)> {
    let end = from + memchr(b'\n', &bytes[from..])?;
    let line = &bytes[from..end];
    Some((line.strip_suffix(b"\r").unwrap_or(line), end + 1))
}

/// `HTTP/1.1 200 OK`, and whether the version is at least 1.1.
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
    // Most headers are none of these three, which their length tells.
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
            // What HTTP/1.1 called no coding at all until 2014.
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

/// Names and values of the header lines of a head that was read, as they came.
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

    /// All answers of a stream that is given in pieces of `piece` bytes, then closed.
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
    fn identity_is_no_coding() {
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
    fn answers_are_kept_without_their_framing() {
        let stream =
            b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nA:  b \r\n\r\n\
            5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
        for piece in 1..=stream.len() {
            let mut reader = Reader::keeping();
            for bytes in stream.chunks(piece) {
                let _ = reader.feed(bytes, false).expect("an answer");
            }
            let kept = reader.kept().expect("it keeps");
            assert_eq!(kept.body, b"hello world", "in pieces of {piece}");
            let lines = header_lines(&kept.head);
            let lines: Vec<_> = lines.iter().map(|(name, value)| (&name[..], &value[..])).collect();
            assert_eq!(lines, [(&b"Transfer-Encoding"[..], &b"chunked"[..]), (b"A", b"b")], "in pieces of {piece}");
        }
        let mut reader = Reader::keeping();
        let _ = reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none", false).expect("an answer");
        let _ = reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n22", false).expect("an answer");
        assert_eq!(reader.kept().expect("it keeps").body, b"22");
    }

    #[test]
    fn interim_answers_are_passed_over() {
        reads(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\nHTTP/1.1 201 C\r\nContent-Length: 0\r\n\r\n",
            &[(201, true)],
        );
    }

    #[test]
    fn the_connection_header_says_whether_it_goes_on() {
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
    fn what_is_not_http_is_refused() {
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
