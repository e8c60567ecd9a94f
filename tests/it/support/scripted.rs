//! A server that does what its script says, well or badly, and keeps every request byte for byte: what `klad bench` is held
//! against where klad itself behaves too well.
//!
//! ```text
//!     klad bench ──▶ accept (one thread) ──▶ a thread for each connection: read a request, record it, play the script
//! ```

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

/// How each request is answered, on every connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// 200 with five bytes and a `Content-Length`; without the bytes where HEAD was asked.
    Answers,
    /// As `Answers`, with a header `X-Token: t7` and 201.
    GivesToken,
    /// As `Answers`, with another status.
    AnswersWith(u16),
    /// Each tenth is refused with 503, the others are answered.
    RefusesEveryTenth,
    /// Each tenth is answered with a reset of the connection.
    ResetsEveryTenth,
    /// Answers with `Connection: close`, and closes.
    AnnouncesClose,
    /// Answers as if the connection went on, and closes it.
    ClosesWhenIdle,
    /// Closes in the middle of each answer.
    ClosesInTheMiddle,
    /// Two chunks, with an extension and a trailer.
    Chunked,
    /// No length: the end of the connection is the end of the answer.
    UntilClose,
    /// HTTP/1.0 without `Connection: keep-alive`, and closes.
    Http10,
    /// Each byte is a segment of its own.
    ByteByByte,
    /// 100 and 103 come before the answer.
    InterimFirst,
    /// Two answers to one request.
    AnswersTwice,
    /// The greeting of another protocol.
    Garbage,
    /// Reads, and says nothing.
    Silent,
    /// Reads bodies in pieces, with pauses, and answers then.
    ReadsSlowly,
    /// Each tenth is answered after so many milliseconds, the others after so many.
    Takes { tenth: u64, others: u64 },
    /// Answers 503 as soon as it has the head, and closes with the body unread, which resets the connection.
    RefusesBeforeTheBody,
}

/// What was seen of the clients.
#[derive(Default)]
pub(crate) struct Record {
    /// Whole requests, in the order of their ends.
    pub(crate) requests: Vec<Vec<u8>>,
    /// Connections so far.
    pub(crate) accepted: usize,
    /// Bytes of a next request that came before the answer to the one before.
    pub(crate) too_early: usize,
}

/// A running server; its listener closes when it is dropped.
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    record: Arc<Mutex<Record>>,
    ended: Arc<AtomicBool>,
}

/// A listener that never accepts: its kernel makes connections up to `backlog`, and lets others wait.
pub(crate) struct Deaf {
    pub(crate) address: SocketAddr,
    _listener: Socket,
}

/// Receive buffer of a slow reader, bytes, and what it reads at a time.
const SLOW_BYTES: usize = 64 << 10;

/// Between the pieces that a slow reader reads.
const SLOW_PAUSE: Duration = Duration::from_millis(1);

impl Scripted {
    pub(crate) fn start(script: Script) -> Scripted {
        let socket = bound();
        if script == Script::ReadsSlowly {
            // Connections inherit it.
            socket.set_recv_buffer_size(SLOW_BYTES).unwrap();
        }
        // Room for several runs that connect at once: a handshake that finds none is repeated after a second.
        socket.listen(4096).unwrap();
        let listener = TcpListener::from(socket);
        let address = listener.local_addr().unwrap();
        let (record, ended) = (Arc::<Mutex<Record>>::default(), Arc::<AtomicBool>::default());
        let server = Scripted { address, record: record.clone(), ended: ended.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (stream, record) = (stream.unwrap(), record.clone());
                record.lock().unwrap().accepted += 1;
                std::thread::spawn(move || Connection { stream, buffer: Vec::new(), script, record }.serve());
            }
        });
        server
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap()
    }

    /// `http://ADDRESS` and `path`.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

impl Deaf {
    pub(crate) fn start(backlog: i32) -> Deaf {
        let listener = bound();
        listener.listen(backlog).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        Deaf { address, _listener: listener }
    }
}

/// A socket at a port that the kernel chose.
fn bound() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    socket
}

/// What follows an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Goes,
    Closes,
    Resets,
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    script: Script,
    record: Arc<Mutex<Record>>,
}

impl Connection {
    fn serve(mut self) {
        self.stream.set_nodelay(true).unwrap();
        while let Some(request) = self.request() {
            let head = request.starts_with(b"HEAD ");
            let number = {
                let mut record = self.record.lock().unwrap();
                record.too_early += self.buffer.len();
                record.requests.push(request);
                record.requests.len()
            };
            if let Script::Takes { tenth, others } = self.script {
                let milliseconds = if number.is_multiple_of(10) { tenth } else { others };
                std::thread::sleep(Duration::from_millis(milliseconds));
            }
            let (answer, then) = answer(self.script, number, head);
            let piece = if self.script == Script::ByteByByte { 1 } else { usize::MAX };
            for piece in answer.chunks(piece) {
                if self.stream.write_all(piece).is_err() {
                    return;
                }
            }
            match then {
                Then::Goes => {}
                Then::Closes => return,
                Then::Resets => return SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap(),
            }
        }
    }

    /// The next request, head and body; `None`: the client has gone.
    fn request(&mut self) -> Option<Vec<u8>> {
        let (head, body) = loop {
            if let Some(lengths) = lengths(&self.buffer) {
                break lengths;
            }
            self.fill()?;
        };
        let whole = if self.script == Script::RefusesBeforeTheBody { head } else { head + body };
        while self.buffer.len() < whole {
            if self.script == Script::ReadsSlowly {
                std::thread::sleep(SLOW_PAUSE);
            }
            self.fill()?;
        }
        let rest = self.buffer.split_off(whole);
        Some(std::mem::replace(&mut self.buffer, rest))
    }

    fn fill(&mut self) -> Option<()> {
        // So little that a head whose body is to stay unread does not bring all of it along.
        let most = if self.script == Script::ReadsSlowly { SLOW_BYTES } else { 16 << 10 };
        let before = self.buffer.len();
        self.buffer.resize(before + most, 0);
        let read = loop {
            match self.stream.read(&mut self.buffer[before..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.unwrap_or(0),
            }
        };
        self.buffer.truncate(before + read);
        (read > 0).then_some(())
    }
}

/// Lengths of a request's head and body, when the head is whole.
fn lengths(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(bytes).expect("klad bench speaks HTTP");
    let httparse::Status::Complete(head) = parsed else { return None };
    let length = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let body = length.map_or(0, |header| std::str::from_utf8(header.value).unwrap().parse().unwrap());
    Some((head, body))
}

/// The answer to the request with this number, from 1, and what follows it.
fn answer(script: Script, number: usize, head: bool) -> (Vec<u8>, Then) {
    let tenth = number.is_multiple_of(10);
    let plain = |status: u16| format!("HTTP/1.1 {status} Said\r\nContent-Length: 5\r\n\r\nhello");
    let (text, then) = match script {
        Script::Answers if head => (plain(200).replace("hello", ""), Then::Goes),
        Script::RefusesEveryTenth if tenth => (plain(503), Then::Goes),
        Script::ResetsEveryTenth if tenth => (String::new(), Then::Resets),
        Script::Answers
        | Script::RefusesEveryTenth
        | Script::ResetsEveryTenth
        | Script::ByteByByte
        | Script::Takes { .. }
        | Script::ReadsSlowly => (plain(200), Then::Goes),
        Script::GivesToken => (plain(201).replace("\r\n\r\n", "\r\nX-Token: t7\r\n\r\n"), Then::Goes),
        Script::AnswersWith(status) => (plain(status), Then::Goes),
        Script::AnnouncesClose => (plain(200).replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"), Then::Closes),
        Script::ClosesWhenIdle => (plain(200), Then::Closes),
        Script::ClosesInTheMiddle => (plain(200).replace("hello", "hell"), Then::Closes),
        Script::Chunked => {
            let chunks = "2;why=\"not\"\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: yes\r\n\r\n";
            (format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"), Then::Goes)
        }
        Script::UntilClose => ("HTTP/1.1 200 OK\r\n\r\nhello".to_owned(), Then::Closes),
        Script::Http10 => (plain(200).replace("HTTP/1.1", "HTTP/1.0"), Then::Closes),
        Script::InterimFirst => {
            let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
            (interim.to_owned() + &plain(200), Then::Goes)
        }
        Script::AnswersTwice => (plain(200) + &plain(500), Then::Goes),
        Script::Garbage => ("SSH-2.0-OpenSSH_9.6\r\n".to_owned(), Then::Goes),
        Script::Silent => (String::new(), Then::Goes),
        Script::RefusesBeforeTheBody => (plain(503).replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"), Then::Closes),
    };
    (text.into_bytes(), then)
}
