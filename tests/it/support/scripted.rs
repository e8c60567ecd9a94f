//! A server that behaves as a script says, correctly or not, and records every request byte for byte. The tests of
//! `klad bench` use it for behaviour that klad itself does not have.
//!
//! ```text
//!     klad bench ──▶ accept (one thread) ──▶ a thread for each connection: read a request, record it, answer
//! ```

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

/// How the server answers each request, on every connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// 200 with a body of five bytes and a `Content-Length`; without the body for HEAD.
    Answers,
    /// As `Answers`, but with status 201 and a header `X-Token: t7`.
    GivesToken,
    /// As `Answers`, but with another status.
    AnswersWith(u16),
    /// Answers every tenth request with 503.
    RefusesEveryTenth,
    /// Resets the connection instead of every tenth answer.
    ResetsEveryTenth,
    /// Answers with `Connection: close`, and closes the connection.
    AnnouncesClose,
    /// Answers as if the connection stayed open, and closes it.
    ClosesWhenIdle,
    /// Closes the connection in the middle of each answer.
    ClosesInTheMiddle,
    /// Answers in two chunks, with an extension and a trailer.
    Chunked,
    /// Answers without a length: the end of the connection is the end of the answer.
    UntilClose,
    /// Answers with HTTP/1.0 without `Connection: keep-alive`, and closes the connection.
    Http10,
    /// Sends each byte in its own segment.
    ByteByByte,
    /// Sends 100 and 103 before the answer.
    InterimFirst,
    /// Sends two answers to one request.
    AnswersTwice,
    /// Sends the greeting of another protocol.
    Garbage,
    /// Reads requests and never answers.
    Silent,
    /// Reads bodies in pieces with pauses, then answers.
    ReadsSlowly,
    /// Answers after so many milliseconds.
    Takes(u64),
    /// Answers 503 after the head, and closes the connection without reading the body, which resets the connection.
    RefusesBeforeTheBody,
}

/// What the server has received.
#[derive(Default)]
pub(crate) struct Record {
    /// Complete requests, in the order of their ends.
    pub(crate) requests: Vec<Vec<u8>>,
    /// The number of connections so far.
    pub(crate) accepted: usize,
    /// Bytes of a request that arrived before the previous request was answered.
    pub(crate) too_early: usize,
}

/// A running server; dropping it closes its listener.
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    record: Arc<Mutex<Record>>,
    ended: Arc<AtomicBool>,
}

/// A listener that never accepts: the kernel opens connections up to `backlog`, and the others wait.
pub(crate) struct NeverAccepts {
    pub(crate) address: SocketAddr,
    _listener: Socket,
}

/// The receive buffer of a slow reader, and the amount that it reads at a time, bytes.
const SLOW_BYTES: usize = 64 << 10;

/// The pause between two reads of a slow reader.
const SLOW_PAUSE: Duration = Duration::from_millis(1);

impl Scripted {
    pub(crate) fn start(script: Script) -> Scripted {
        let socket = bound();
        if script == Script::ReadsSlowly {
            // Accepted connections inherit the buffer size.
            socket.set_recv_buffer_size(SLOW_BYTES).unwrap();
        }
        // Enough for several runs that connect at once: without a place in the backlog, a handshake is repeated after
        // a second.
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

    /// Returns `http://ADDRESS` and `path`.
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

impl NeverAccepts {
    pub(crate) fn start(backlog: i32) -> NeverAccepts {
        let listener = bound();
        listener.listen(backlog).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        NeverAccepts { address, _listener: listener }
    }
}

/// A socket with a port that the kernel chose.
fn bound() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    socket
}

/// What happens to the connection after an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterAnswer {
    Continues,
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
            if let Script::Takes(milliseconds) = self.script {
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
                AfterAnswer::Continues => {}
                AfterAnswer::Closes => return,
                AfterAnswer::Resets => return SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap(),
            }
        }
    }

    /// Reads the next request, head and body; `None` if the client has closed the connection.
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
        // A small amount, so that a body that must stay unread does not arrive together with its head.
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

/// Returns the lengths of a request's head and body, if the head is complete.
fn lengths(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(bytes).expect("klad bench sends valid HTTP");
    let httparse::Status::Complete(head) = parsed else { return None };
    let length = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let body = length.map_or(0, |header| std::str::from_utf8(header.value).unwrap().parse().unwrap());
    Some((head, body))
}

/// Returns the answer to the request with this number, from 1, and what follows it.
fn answer(script: Script, number: usize, head: bool) -> (Vec<u8>, AfterAnswer) {
    let tenth = number.is_multiple_of(10);
    let plain = |status: u16| format!("HTTP/1.1 {status} Said\r\nContent-Length: 5\r\n\r\nhello");
    let (text, then) = match script {
        Script::Answers if head => (plain(200).replace("hello", ""), AfterAnswer::Continues),
        Script::RefusesEveryTenth if tenth => (plain(503), AfterAnswer::Continues),
        Script::ResetsEveryTenth if tenth => (String::new(), AfterAnswer::Resets),
        Script::Answers
        | Script::RefusesEveryTenth
        | Script::ResetsEveryTenth
        | Script::ByteByByte
        | Script::Takes(_)
        | Script::ReadsSlowly => (plain(200), AfterAnswer::Continues),
        Script::GivesToken => (plain(201).replace("\r\n\r\n", "\r\nX-Token: t7\r\n\r\n"), AfterAnswer::Continues),
        Script::AnswersWith(status) => (plain(status), AfterAnswer::Continues),
        Script::AnnouncesClose => {
            (plain(200).replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"), AfterAnswer::Closes)
        }
        Script::ClosesWhenIdle => (plain(200), AfterAnswer::Closes),
        Script::ClosesInTheMiddle => (plain(200).replace("hello", "hell"), AfterAnswer::Closes),
        Script::Chunked => {
            let chunks = "2;why=\"not\"\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: yes\r\n\r\n";
            (format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"), AfterAnswer::Continues)
        }
        Script::UntilClose => ("HTTP/1.1 200 OK\r\n\r\nhello".to_owned(), AfterAnswer::Closes),
        Script::Http10 => (plain(200).replace("HTTP/1.1", "HTTP/1.0"), AfterAnswer::Closes),
        Script::InterimFirst => {
            let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
            (interim.to_owned() + &plain(200), AfterAnswer::Continues)
        }
        Script::AnswersTwice => (plain(200) + &plain(500), AfterAnswer::Continues),
        Script::Garbage => ("SSH-2.0-OpenSSH_9.6\r\n".to_owned(), AfterAnswer::Continues),
        Script::Silent => (String::new(), AfterAnswer::Continues),
        Script::RefusesBeforeTheBody => {
            (plain(503).replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"), AfterAnswer::Closes)
        }
    };
    (text.into_bytes(), then)
}

/// Starts a server that gives one of the answers to each connection, in turn, and returns the requests at the end.
pub(crate) fn answers(all: Vec<String>) -> (SocketAddr, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let mut requests = Vec::new();
        for answer in all {
            let mut stream = listener.accept().unwrap().0;
            let mut request = Vec::new();
            let mut some = [0; 4096];
            while !request.windows(4).any(|four| four == b"\r\n\r\n") {
                let count = stream.read(&mut some).unwrap();
                request.extend_from_slice(&some[..count]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            requests.push(String::from_utf8(request).unwrap());
        }
        requests
    });
    (address, thread)
}

/// An answer for [`answers`] with a length.
pub(crate) fn whole_answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}
