//! The kernel's connections: non-blocking sockets behind one epoll for each thread.
//!
//! Each socket is registered once, edge-triggered for both directions, so a request costs one send, one receive and its
//! share of a wait, and no change of registrations (wrk makes two for each request). Waits are bounded in nanoseconds
//! (`epoll_pwait2`), with the thread's timer slack, by default 50 µs, turned off: on a quiet machine a wait ends 4 to 20 µs
//! after its time. So the last 50 µs of a wait are polled (`polling`), unless others want the core. Called by `generator`.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::Instant;

use anyhow::Context as _;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, Protocol, Socket, Type};

use crate::network::{Network, Read, Ready};
use crate::polling::{POLL_MAX, Polling, Schedstat};
use crate::recorder::Failure;
use crate::schedule::{Nanos, SECOND};
use klad_base::clock;

/// Events that are taken with one wait.
const EVENTS_MAX: usize = 256;

/// Longest single wait. It bounds what a clock that was set wrong could do.
const WAIT_MAX: Nanos = 100 * SECOND;

/// The connections of one thread.
pub struct Sockets {
    address: SocketAddr,
    epoll: OwnedFd,
    connections: Vec<Option<Socket>>,
    events: Vec<epoll::Event>,
    polling: Polling<Schedstat>,
    /// The start of the schedule. Until it is set, times count from the making of this.
    origin: Instant,
}

impl Sockets {
    /// For connections to `address`, all made and used on the calling thread, which `polls` for the ends of its waits where
    /// it has the core for it.
    ///
    /// # Errors
    /// When the kernel is older than 5.11, or has no descriptor left.
    pub fn new(address: SocketAddr, polls: bool) -> anyhow::Result<Sockets> {
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).context("cannot turn off timer slack")?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("cannot make an epoll")?;
        let none = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = vec![none; EVENTS_MAX];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&epoll, events.as_mut_slice(), Some(&at_once))
            .context("waits of less than a millisecond need Linux 5.11 or later (epoll_pwait2)")?;
        let polling = Polling::new(Schedstat::of_this_thread(), polls);
        Ok(Sockets { address, epoll, connections: Vec::new(), events, polling, origin: clock::now() })
    }

    /// CPU time, nanoseconds, that this thread has spent in waits where it could have slept.
    #[must_use]
    pub fn polled_in_vain(&self) -> Nanos {
        self.polling.fruitless()
    }

    /// Sets the start of the schedule.
    pub fn set_origin(&mut self, origin: Instant) {
        self.origin = origin;
        self.polling.forget_times();
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

    /// Waits for events, for `timeout` at the most; returns how many there are.
    fn ask(&mut self, timeout: Nanos) -> usize {
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout / SECOND).expect("at most WAIT_MAX"),
            tv_nsec: i64::try_from(timeout % SECOND).expect("less than a second"),
        };
        // An error can only be an interruption, after which the caller looks at the clock again.
        epoll::wait(&self.epoll, self.events.as_mut_slice(), Some(&timeout)).unwrap_or(0)
    }

    /// Asks for events, once at least, until there are any or it is `until`; returns how many there are.
    fn poll(&mut self, until: Nanos) -> usize {
        let mut now = self.now();
        loop {
            let count = self.ask(0);
            if count > 0 {
                return count;
            }
            let begin = std::mem::replace(&mut now, self.now());
            self.polling.found_nothing(begin, now, until);
            if now >= until {
                return 0;
            }
        }
    }

    /// Waits for events up to `until`, at the latest; returns how many there are.
    fn wait_for_events(&mut self, until: Nanos) -> usize {
        let now = self.now();
        let left = until.saturating_sub(now).min(WAIT_MAX);
        if !self.polling.may(now) {
            return self.ask(left);
        }
        let asleep = left.saturating_sub(POLL_MAX);
        let count = if asleep > 0 { self.ask(asleep) } else { 0 };
        // What was interrupted is gone on with by the caller.
        let near = asleep == 0 || until.saturating_sub(self.now()) <= POLL_MAX;
        if count == 0 && near { self.poll(until) } else { count }
    }

    fn socket(&self, connection: usize) -> Option<&Socket> {
        self.connections.get(connection)?.as_ref()
    }
}

/// Why a connection could not be made.
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

    fn read(&mut self, connection: usize, into: &mut [u8]) -> Read {
        let Some(socket) = self.socket(connection) else { return Read::Broken };
        loop {
            match rustix::net::recv(socket, &mut *into, RecvFlags::empty()) {
                Ok((_, 0)) => return Read::End,
                Ok((_, count)) => return Read::Bytes(count),
                Err(Errno::AGAIN) => return Read::Nothing,
                Err(Errno::INTR) => {}
                Err(_) => return Read::Broken,
            }
        }
    }

    fn close(&mut self, connection: usize) {
        // Closing the descriptor takes it out of the epoll as well.
        if let Some(socket) = self.connections.get_mut(connection) {
            *socket = None;
        }
    }

    fn wait(&mut self, until: Nanos, ready: &mut Vec<Ready>) {
        ready.clear();
        let count = self.wait_for_events(until);
        for event in &self.events[..count] {
            // Copied: the kernel's struct is packed.
            let flags = event.flags;
            let broken = epoll::EventFlags::ERR | epoll::EventFlags::HUP | epoll::EventFlags::RDHUP;
            ready.push(Ready {
                // A closed connection's last event may still be among these; its number then tells of nothing to read.
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

    /// Signals end waits early; the load's loop goes on then, and so does this.
    fn wait_whole(sockets: &mut Sockets, length: Nanos, ready: &mut Vec<Ready>) {
        let until = sockets.now() + length;
        while sockets.now() < until {
            sockets.wait(until, ready);
            assert!(ready.is_empty());
        }
    }

    #[test]
    fn waits_end_at_their_time_and_only_their_ends_are_polled() {
        let (_listener, mut sockets) = listening();
        let mut ready = vec![Ready { connection: 7, readable: true, writable: false, ended: false }];
        // Whether it polls at all depends on what else the machine does.
        for _ in 0..60 {
            let (before, now) = (sockets.polled_in_vain(), sockets.now());
            wait_whole(&mut sockets, 20_000_000, &mut ready);
            let (polled, took) = (sockets.polled_in_vain() - before, sockets.now() - now);
            assert!(polled <= POLL_MAX && took >= 20_000_000, "{polled} ns of {took} were polled");
        }
    }

    #[test]
    fn a_poll_sees_what_has_come_also_when_its_time_is_over() {
        let (listener, mut sockets) = listening();
        sockets.connect(0).expect("it listens");
        let (mut other, _) = listener.accept().expect("connected");
        other.write_all(b"x").expect("taken");
        let late = clock::now() + std::time::Duration::from_mins(1);
        let readable = loop {
            assert!(clock::now() < late, "what was written has never come");
            let now = sockets.now();
            // An event tells of all that has come so far.
            let count = sockets.poll(now);
            // Copied: the kernel's struct is packed.
            let flags = sockets.events[0].flags;
            if count > 0 && flags.contains(epoll::EventFlags::IN) {
                break sockets.read(0, &mut [0; 8]);
            }
        };
        assert_eq!(readable, Read::Bytes(1));
        assert_eq!(sockets.polled_in_vain(), 0, "no time was left in these waits");
    }
}
