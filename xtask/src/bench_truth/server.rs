//! A server that follows a script, and keeps its own record of every request.
//!
//! ```text
//!   listener ─┐
//!   clients ──┼─▶ epoll ─▶ head complete: recorded, planned ─▶ heap of what is due ─▶ handed to the kernel: recorded
//!   stop ─────┘     ▲                                                  │
//!                   └────── sleeps until the next is due ◀─────────────┘
//! ```
//!
//! One thread that sleeps: thousands of connections do not compete for its core, and a busy one would take the client's
//! share of a small machine. It must never answer before the planned moment, and the recorded moment is that before the
//! call, so that no client can have the answer earlier. Called by `bench_truth`.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap};
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use httparse::Status;
use rustix::event::epoll;
use rustix::time::{ClockId, clock_gettime};

use super::scenario::{Plan, Script};
use super::truth::{Nanos, nanos};

/// Connections that wait to be accepted; the kernel's own bound is 4,096 too.
const BACKLOG: i32 = 4_096;

/// Descriptors that there is room for from the start. The kernel makes room at 256, 512, 1,024, …, each time it keeps a process
/// with threads waiting for 7 to 15 ms (`synchronize_rcu`), and never makes it less.
const DESCRIPTORS: i32 = 8_191;

/// Events that are taken at once, and answers that are sent before arrivals are looked at again.
const BATCH: usize = 64;

/// Longest head of a request; klad bench's has about 100 bytes.
const HEAD_BYTES_MAX: usize = 4 << 10;

/// Headers of a request at most.
const HEADERS_MAX: usize = 32;

/// Where requests go; the rest of the target is their number.
const TARGET: &str = "/v0/entity?id=key";

/// What `epoll` says is ready, beside the numbers of connections.
const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

/// What the server has done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ending {
    /// Answered with this status.
    Answered(u16),
    /// Reset its connection.
    Reset,
}

/// What the server knows of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// From its key.
    pub(crate) number: u64,
    /// When its head was complete.
    pub(crate) arrived: Nanos,
    /// When its answer, or the reset, was handed to the kernel, and which it was; `None`: never.
    pub(crate) ended: Option<(Nanos, Ending)>,
}

/// A running server; dropping it stops it.
pub(crate) struct Server {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Dropping it ends the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<Result<Vec<Record>>>>,
}

impl Server {
    /// Starts it, on the core of the calling thread.
    pub(crate) fn start(script: Script) -> Result<Server> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port to listen on")?;
        listener.set_nonblocking(true)?;
        // The standard library's backlog is 128: what a burst exceeds it by would connect a second later.
        rustix::net::listen(&listener, BACKLOG)?;
        let address = listener.local_addr()?;
        let (stopped, stop) = io::pipe()?;
        let turn = Turn::new(script, listener, stopped)?;
        let thread = thread::spawn(|| turn.run());
        Ok(Server { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Takes what clients have sent before, stops, and answers what it knows, in the order of arrival.
    pub(crate) fn finish(mut self) -> Result<Vec<Record>> {
        drop(self.stop.take());
        let thread = self.thread.take().expect("it is taken here and when dropped only");
        thread.join().ok().context("the scripted server has panicked")?.context("the scripted server")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Whoever drops it has an error already.
            let _ = thread.join();
        }
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, which klad bench gives its start in.
pub(crate) fn now() -> Nanos {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).expect("since the machine's start");
    nanos(now)
}

/// A connection that a client has opened.
struct Client {
    stream: TcpStream,
    received: Vec<u8>,
    /// Whether a request waits for its answer.
    busy: bool,
}

/// What is to be done, and when; ordered by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Nanos,
    /// Index among the records.
    record: usize,
    client: u64,
    ending: Ending,
}

/// All that the thread has.
struct Turn {
    script: Script,
    epoll: OwnedFd,
    listener: TcpListener,
    stop: PipeReader,
    clients: HashMap<u64, Client>,
    /// Number of the next client; never used twice, so that what is due to a client that is gone meets no other.
    next_client: u64,
    due: BinaryHeap<Reverse<Due>>,
    records: Vec<Record>,
}

impl Turn {
    fn new(script: Script, listener: TcpListener, stop: PipeReader) -> Result<Turn> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // Fails where the limit is lower: then the room is made later, as it would be anyway.
        drop(rustix::io::fcntl_dupfd_cloexec(&epoll, DESCRIPTORS));
        watch(&epoll, &listener, LISTENER)?;
        watch(&epoll, &stop, STOP)?;
        let (clients, due, records) = (HashMap::new(), BinaryHeap::new(), Vec::new());
        Ok(Turn { script, epoll, listener, stop, clients, next_client: 0, due, records })
    }

    fn run(mut self) -> Result<Vec<Record>> {
        // A sleep ends when it should, not up to 50 µs later.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        let mut stopping = false;
        loop {
            let mut events =
                [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; BATCH];
            let patience = if stopping { Some(Duration::ZERO) } else { self.patience() };
            let count =
                match epoll::wait(&self.epoll, &mut events, patience.map(TryInto::try_into).transpose()?.as_ref()) {
                    Err(rustix::io::Errno::INTR) => continue,
                    count => count?,
                };
            if stopping && count == 0 {
                return Ok(self.records);
            }
            for event in &events[..count] {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    STOP => {
                        // What clients have sent before they ended is still to be taken.
                        epoll::delete(&self.epoll, &self.stop)?;
                        stopping = true;
                    }
                    client => self.receive(client)?,
                }
            }
            self.end_due()?;
        }
    }

    /// Time until something is due; `None`: nothing is.
    fn patience(&self) -> Option<Duration> {
        let Reverse(due) = self.due.peek()?;
        Some(Duration::from_nanos(due.at.saturating_sub(now())))
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // It was reset while it waited.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error).context("cannot accept"),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            watch(&self.epoll, &stream, self.next_client)?;
            self.clients.insert(self.next_client, Client { stream, received: Vec::new(), busy: false });
            self.next_client += 1;
        }
    }

    /// Takes what a client has sent.
    fn receive(&mut self, number: u64) -> Result<()> {
        // It may have been reset since the event.
        let Some(client) = self.clients.get_mut(&number) else { return Ok(()) };
        let mut bytes = [0; HEAD_BYTES_MAX];
        match client.stream.read(&mut bytes) {
            // Closed or reset, with or without an answer.
            Ok(0) => drop(self.clients.remove(&number)),
            Ok(count) => {
                client.received.extend_from_slice(&bytes[..count]);
                if let Some(request) = parse(&client.received)? {
                    ensure!(!client.busy, "request {request} comes before the answer to the one before it");
                    client.received.clear();
                    client.busy = true;
                    self.plan(number, request);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => drop(self.clients.remove(&number)),
        }
        Ok(())
    }

    /// Records the arrival of `request`, and plans its end.
    fn plan(&mut self, client: u64, request: u64) {
        let arrived = now();
        // The first request is there as soon as the run has started.
        let start = self.records.first().map_or(arrived, |first| first.arrived);
        self.records.push(Record { number: request, arrived, ended: None });
        if let Some(Plan { after, ending }) = self.script.plan(request, arrived - start) {
            let record = self.records.len() - 1;
            self.due.push(Reverse(Due { at: arrived + after, record, client, ending }));
        }
    }

    /// Does what is due, for some requests.
    fn end_due(&mut self) -> Result<()> {
        for _ in 0..BATCH {
            let at = now();
            let due = match self.due.peek_mut() {
                Some(due) if due.0.at <= at => PeekMut::pop(due).0,
                _ => return Ok(()),
            };
            // A client that is gone has given the request up.
            let Some(client) = self.clients.get_mut(&due.client) else { continue };
            client.busy = false;
            match due.ending {
                Ending::Answered(status) => match client.stream.write(answer(status)?) {
                    Ok(written) => ensure!(written == answer(status)?.len(), "an answer does not fit into a socket"),
                    // It has closed the connection this moment; `receive` will notice.
                    Err(_) => continue,
                },
                Ending::Reset => {
                    rustix::net::sockopt::set_socket_linger(&client.stream, Some(Duration::ZERO))?;
                    drop(self.clients.remove(&due.client));
                }
            }
            self.records[due.record].ended = Some((at, due.ending));
        }
        Ok(())
    }
}

fn watch(epoll: &OwnedFd, source: &impl AsFd, name: u64) -> Result<()> {
    Ok(epoll::add(epoll, source, epoll::EventData::new_u64(name), epoll::EventFlags::IN)?)
}

fn answer(status: u16) -> Result<&'static [u8]> {
    match status {
        200 => Ok(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nvalue"),
        503 => Ok(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"),
        _ => bail!("there is no answer {status}"),
    }
}

/// The number of the request that `received` is; `None` while its head is not complete.
fn parse(received: &[u8]) -> Result<Option<u64>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(received).context("a request is not HTTP/1.1")? {
        Status::Complete(length) => ensure!(length == received.len(), "more bytes than a request's"),
        Status::Partial => {
            ensure!(received.len() < HEAD_BYTES_MAX, "a request's head is longer than {HEAD_BYTES_MAX} bytes");
            return Ok(None);
        }
    }
    let (method, target) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    let number = target.strip_prefix(TARGET).and_then(|number| number.parse().ok());
    ensure!(method == "GET" && number.is_some(), "{method} {target} is no request of the script");
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::super::scenario::Scenario;
    use super::*;
    use crate::http::Connection;

    fn server(scenario: Scenario) -> Server {
        Server::start(Script::new(scenario, Duration::ZERO, Duration::from_mins(1))).expect("started")
    }

    fn send(connection: &mut Connection, number: u64) {
        connection.send_get(&format!("{TARGET}{number}")).expect("sent");
    }

    #[test]
    fn requests_are_answered_as_planned_and_recorded() {
        let server = server(Scenario::Refused);
        let before = now();
        let mut connection = Connection::open(server.address).expect("connected");
        for (number, status) in [(0, 200), (5, 503)] {
            send(&mut connection, number);
            assert_eq!(connection.answer().expect("an answer").status, status);
        }
        let after = now();
        let records = server.finish().expect("no trouble");
        assert_eq!(records.iter().map(|record| record.number).collect::<Vec<_>>(), [0, 5]);
        let ends: Vec<_> = records.iter().filter_map(|record| record.ended).collect();
        assert_eq!(ends.iter().map(|(_, ending)| *ending).collect::<Vec<_>>(), [200, 503].map(Ending::Answered));
        // Never earlier than planned, and known to the server before it was known to the client.
        let plan = Script::new(Scenario::Refused, Duration::ZERO, Duration::ZERO).plan(5, 0).expect("planned");
        assert!(records[0].arrived > before && ends[1].0 < after, "{records:?}");
        assert!(ends[1].0 >= records[1].arrived + plan.after, "{records:?}");
    }

    #[test]
    fn a_reset_is_an_error_to_the_client_and_leaves_the_others_alone() {
        let server = server(Scenario::Resets);
        let mut reset = Connection::open(server.address).expect("connected");
        let mut other = Connection::open(server.address).expect("connected");
        send(&mut reset, 50);
        send(&mut other, 51);
        let error = reset.answer().expect_err("no answer");
        let kind = error.downcast_ref::<io::Error>().expect("of the socket").kind();
        assert_eq!(kind, ErrorKind::ConnectionReset);
        assert_eq!(other.answer().expect("an answer").status, 200);
        let records = server.finish().expect("no trouble");
        assert!(records.iter().any(|record| record.ended.is_some_and(|(_, ending)| ending == Ending::Reset)));
    }

    #[test]
    fn what_was_sent_before_the_stop_is_recorded() {
        let server = Server::start(Script::new(Scenario::Silence, Duration::ZERO, Duration::ZERO)).expect("started");
        for number in 0..200 {
            send(&mut Connection::open(server.address).expect("connected"), number);
        }
        let records = server.finish().expect("no trouble");
        assert_eq!(records.len(), 200);
        assert!(records.iter().all(|record| record.ended.is_none()));
    }

    #[test]
    fn what_is_no_request_of_the_script_is_an_error() {
        assert_eq!(parse(b"GET /v0/entity?id=key17 HTTP/1.1\r\nHost: a\r\n\r\n").expect("a request"), Some(17));
        assert_eq!(parse(b"GET /v0/entity?id=key17 HTTP/1.1\r\nHo").expect("its start"), None);
        for wrong in ["PUT /v0/entity?id=key17 HTTP/1.1", "GET /v0/entity?id=17 HTTP/1.1", "GET / HTTP/1.1", "hello"] {
            assert!(parse(format!("{wrong}\r\n\r\n").as_bytes()).is_err(), "{wrong}");
        }
        assert!(parse(b"GET /v0/entity?id=key1 HTTP/1.1\r\n\r\nGET").is_err(), "two at once");
    }
}
