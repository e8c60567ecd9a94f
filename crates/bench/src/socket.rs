//! The real network: non-blocking sockets with one epoll for each thread.
//!
//! Each socket is registered once, edge-triggered for both directions. A request therefore costs one send, one
//! receive and its share of a wait, and no change of registrations (wrk makes two for each request). Waits have a
//! resolution of nanoseconds (`epoll_pwait2`), and the thread's timer slack, 50 µs by default, is turned off. Even so
//! a wait ends 4 to 20 µs late on a quiet machine. The last 50 µs of a wait are therefore polled (`polling`), unless
//! other threads want the core. Called by `threads` and `generator`.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::Instant;

use anyhow::Context as _;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, Protocol, Socket, Type};

use crate::network::{Network, ReadOutcome, ReadyEvent};
use crate::polling::{POLL_MAX, Polling, Schedstat};
use crate::recorder::Failure;
use crate::schedule::{Nanos, SECOND};
use klad_base::clock;

/// The largest number of events that one wait returns.
const EVENTS_MAX: usize = 256;

/// The longest single wait. A wait until a later time ends early, without an event.
const WAIT_MAX: Nanos = 100 * SECOND;

/// The connections of one thread.
pub struct Sockets {
    address: SocketAddr,
    epoll: OwnedFd,
    connections: Vec<Option<Socket>>,
    events: Vec<epoll::Event>,
    polling: Polling<Schedstat>,
    /// The start of the schedule. Until it is set, times count from the creation of this value.
    origin: Instant,
}

impl Sockets {
    /// Creates an empty set of connections to `address`, for use on the calling thread only. With `polls`, the thread
    /// polls at the end of its waits while its core is nearly free.
    ///
    /// # Errors
    /// If the kernel is older than 5.11, or no file descriptor is left.
    pub fn new(address: SocketAddr, polls: bool) -> anyhow::Result<Sockets> {
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).context("cannot turn off timer slack")?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("cannot create an epoll")?;
        let none = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = vec![none; EVENTS_MAX];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&epoll, events.as_mut_slice(), Some(&at_once))
            .context("klad bench needs Linux 5.11 or later, for waits shorter than a millisecond (epoll_pwait2)")?;
        let polling = Polling::new(Schedstat::of_this_thread(), polls);
        Ok(Sockets { address, epoll, connections: Vec::new(), events, polling, origin: clock::now() })
    }

    /// CPU time, nanoseconds, in polls that found nothing, where this thread could have slept.
    #[must_use]
    pub fn empty_poll_ns(&self) -> Nanos {
        self.polling.empty_poll_ns()
    }

    /// Sets the start of the schedule, from which times count.
    pub fn set_origin(&mut self, origin: Instant) {
        self.origin = origin;
        self.polling.reset();
    }

    fn open(&mut self, connection: usize) -> Result<bool, Errno> {
        let plain = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let socket = Socket::new(Domain::for_address(self.address), Type::STREAM.nonblocking(), Some(Protocol::TCP))
            .map_err(plain)?;
        socket.set_tcp_nodelay(true).map_err(plain)?;
        let connected = match socket.connect(&self.address.into()).map_err(plain) {
            Ok(()) => true,
            Err(Errno::INPROGRESS) => false,
            Err(error) => return Err(error),
        };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(connection as u64), flags)?;
        if self.connections.len() <= connection {
            self.connections.resize_with(connection + 1, || None);
        }
        self.connections[connection] = Some(socket);
        Ok(connected)
    }

    /// Waits for events for at most `timeout`; returns their number.
    fn epoll_wait(&mut self, timeout: Nanos) -> usize {
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout / SECOND).expect("at most WAIT_MAX"),
            tv_nsec: i64::try_from(timeout % SECOND).expect("less than a second"),
        };
        // The only possible error is an interruption; the caller then reads the clock again.
        epoll::wait(&self.epoll, self.events.as_mut_slice(), Some(&timeout)).unwrap_or(0)
    }

    /// Polls for events at least once, until there are events or the time is `until`; returns their number.
    fn poll(&mut self, until: Nanos) -> usize {
        let mut now = self.now();
        loop {
            let count = self.epoll_wait(0);
            if count > 0 {
                return count;
            }
            let begin = std::mem::replace(&mut now, self.now());
            self.polling.add_empty_poll(begin, now, until);
            if now >= until {
                return 0;
            }
        }
    }

    /// Waits for events until `until` at the latest; returns their number.
    fn wait_for_events(&mut self, until: Nanos) -> usize {
        let now = self.now();
        let left = until.saturating_sub(now).min(WAIT_MAX);
        if !self.polling.polls_now(now) {
            return self.epoll_wait(left);
        }
        let asleep = left.saturating_sub(POLL_MAX);
        let count = if asleep > 0 { self.epoll_wait(asleep) } else { 0 };
        // If the wait was interrupted early, the caller waits again.
        let near = asleep == 0 || until.saturating_sub(self.now()) <= POLL_MAX;
        if count == 0 && near { self.poll(until) } else { count }
    }

    fn socket(&self, connection: usize) -> Option<&Socket> {
        self.connections.get(connection)?.as_ref()
    }
}

/// The failure that an error of connect means.
fn connect_failure(error: Errno) -> Failure {
    match error {
        Errno::ADDRNOTAVAIL => Failure::Ports,
        Errno::MFILE | Errno::NFILE => Failure::Descriptors,
        _ => Failure::Connect,
    }
}

impl Network for Sockets {
    fn now(&mut self) -> Nanos {
        u64::try_from(clock::now().saturating_duration_since(self.origin).as_nanos()).unwrap_or(u64::MAX)
    }

    fn connect(&mut self, connection: usize) -> Result<bool, Failure> {
        self.open(connection).map_err(connect_failure)
    }

    fn connected(&mut self, connection: usize) -> Result<bool, Failure> {
        let Some(socket) = self.socket(connection) else { return Ok(false) };
        match socket.take_error() {
            Ok(None) => Ok(socket.peer_addr().is_ok()),
            Ok(Some(error)) | Err(error) => Err(Errno::from_io_error(&error).map_or(Failure::Connect, connect_failure)),
        }
    }

    fn send(&mut self, connection: usize, bytes: &[u8]) -> Result<usize, Failure> {
        let Some(socket) = self.socket(connection) else { return Err(Failure::Reset) };
        loop {
            match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => return Ok(sent),
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                Err(_) => return Err(Failure::Reset),
            }
        }
    }

    fn read(&mut self, connection: usize, into: &mut [u8]) -> ReadOutcome {
        let Some(socket) = self.socket(connection) else { return ReadOutcome::Broken };
        loop {
            match rustix::net::recv(socket, &mut *into, RecvFlags::empty()) {
                Ok((_, 0)) => return ReadOutcome::End,
                Ok((_, count)) => return ReadOutcome::Bytes(count),
                Err(Errno::AGAIN) => return ReadOutcome::Nothing,
                Err(Errno::INTR) => {}
                Err(_) => return ReadOutcome::Broken,
            }
        }
    }

    fn close(&mut self, connection: usize) {
        // Closing the descriptor also removes it from the epoll.
        if let Some(socket) = self.connections.get_mut(connection) {
            *socket = None;
        }
    }

    fn wait(&mut self, until: Nanos, ready: &mut Vec<ReadyEvent>) {
        ready.clear();
        let count = self.wait_for_events(until);
        for event in &self.events[..count] {
            // Copied, because the kernel's struct is packed.
            let flags = event.flags;
            let broken = epoll::EventFlags::ERR | epoll::EventFlags::HUP | epoll::EventFlags::RDHUP;
            ready.push(ReadyEvent {
                // The last event of a closed connection may be among these. Nothing can be read from its number then.
                connection: usize::try_from(event.data.u64()).expect("it was a usize"),
                readable: flags.intersects(epoll::EventFlags::IN | broken),
                writable: flags.intersects(epoll::EventFlags::OUT | broken),
                ended: flags.intersects(broken),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use super::*;

    fn listening() -> (TcpListener, Sockets) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let sockets = Sockets::new(listener.local_addr().expect("bound"), true).expect("an epoll");
        (listener, sockets)
    }

    /// Waits for `length`. A signal may end a wait early; the generator's loop then waits again, as this function
    /// does.
    fn wait_whole(sockets: &mut Sockets, length: Nanos, ready: &mut Vec<ReadyEvent>) {
        let until = sockets.now() + length;
        while sockets.now() < until {
            sockets.wait(until, ready);
            assert!(ready.is_empty());
        }
    }

    #[test]
    fn waits_end_at_their_time_and_only_their_ends_are_polled() {
        let (_listener, mut sockets) = listening();
        let mut ready = vec![ReadyEvent { connection: 7, readable: true, writable: false, ended: false }];
        // Whether the thread polls at all depends on the load of the machine.
        for _ in 0..60 {
            let (before, now) = (sockets.empty_poll_ns(), sockets.now());
            wait_whole(&mut sockets, 20_000_000, &mut ready);
            let (polled, took) = (sockets.empty_poll_ns() - before, sockets.now() - now);
            assert!(polled <= POLL_MAX && took >= 20_000_000, "{polled} ns of {took} were polled");
        }
    }

    #[test]
    fn a_poll_finds_an_event_even_after_its_time() {
        let (listener, mut sockets) = listening();
        sockets.connect(0).expect("it listens");
        let (mut other, _) = listener.accept().expect("connected");
        other.write_all(b"x").expect("taken");
        let late = clock::now() + std::time::Duration::from_mins(1);
        let readable = loop {
            assert!(clock::now() < late, "the written byte has not arrived");
            let now = sockets.now();
            // An event covers all that has arrived so far.
            let count = sockets.poll(now);
            // Copied, because the kernel's struct is packed.
            let flags = sockets.events[0].flags;
            if count > 0 && flags.contains(epoll::EventFlags::IN) {
                break sockets.read(0, &mut [0; 8]);
            }
        };
        assert_eq!(readable, ReadOutcome::Bytes(1));
        assert_eq!(sockets.empty_poll_ns(), 0, "these waits had no time left");
    }
}
