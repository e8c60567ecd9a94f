//! Clients that cost a server more than they use it: some that do nothing, some whose bodies drip, some that ask for much
//! and never read. One thread holds all of them, and opens again what the server has cut.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::{Timespec, epoll};

/// From a cut to the next try.
const PAUSE: Duration = Duration::from_secs(1);

/// Between two bytes of a body.
const DRIP: Duration = Duration::from_secs(1);

/// The thread looks at its clocks so often.
const TICK: Duration = Duration::from_millis(20);

/// Connections that are opened again in one tick, at most: they are to hold the server's room, not its acceptor.
const OPENED_MAX: usize = 20;

/// A connection that is not made in this time is tried again later.
const CONNECT_MAX: Duration = Duration::from_millis(200);

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One read, then nothing.
    Idle,
    /// A large body, a byte each [`DRIP`].
    Drip,
    /// A large value, of which it reads nothing.
    Silent,
}

/// Bytes that dripping bodies announce. Most are large; the others, smaller and smaller, take what the larger ones leave.
const BODY_BYTES: [usize; 6] = [256 << 10, 128 << 10, 64 << 10, 32 << 10, 16 << 10, 8 << 10];

/// Of each of the smaller ones.
const SMALLER: usize = 10;

/// Where the large value is.
pub(super) const LARGE: &str = "/v0/entity?id=large";

/// Counted for each kind.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Connections that are open now.
    pub(super) open: AtomicU64,
    /// Connections that the server has ended.
    pub(super) cut: AtomicU64,
}

/// A running attack; it ends when dropped.
pub(super) struct Attackers {
    stop: Arc<AtomicBool>,
    pub(super) counts: Arc<[Counts; 3]>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Attackers {
    /// Opens so many of each kind, and answers when all have been opened once.
    pub(super) fn start(address: SocketAddr, numbers: [usize; 3]) -> Result<Attackers> {
        let (stop, counts) = (Arc::<AtomicBool>::default(), Arc::<[Counts; 3]>::default());
        let mut crowd = Crowd::new(address, counts.clone())?;
        for (kind, number) in [Kind::Idle, Kind::Drip, Kind::Silent].into_iter().zip(numbers) {
            let large = number.saturating_sub(SMALLER * (BODY_BYTES.len() - 1));
            for index in 0..number {
                let slot = crowd.clients.len();
                let size = if index < large { 0 } else { 1 + (index - large) / SMALLER };
                crowd.clients.push(Client { kind, body_bytes: BODY_BYTES[size], stream: None });
                crowd.open(slot)?;
            }
        }
        let stopped = stop.clone();
        let thread = thread::spawn(move || crowd.run(&stopped));
        Ok(Attackers { stop, counts, thread: Some(thread) })
    }

    /// Ends it.
    pub(super) fn end(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it ends once");
        thread.join().ok().context("the attackers' thread has panicked")?
    }
}

impl Drop for Attackers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Client {
    kind: Kind,
    body_bytes: usize,
    stream: Option<TcpStream>,
}

struct Crowd {
    address: SocketAddr,
    counts: Arc<[Counts; 3]>,
    epoll: std::os::fd::OwnedFd,
    clients: Vec<Client>,
    /// To be opened again, in the order of their times.
    later: VecDeque<(Instant, usize)>,
}

impl Crowd {
    fn new(address: SocketAddr, counts: Arc<[Counts; 3]>) -> Result<Crowd> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("cannot watch connections")?;
        Ok(Crowd { address, counts, epoll, clients: Vec::new(), later: VecDeque::new() })
    }

    fn open(&mut self, slot: usize) -> Result<()> {
        let Client { kind, body_bytes, .. } = self.clients[slot];
        let opened = TcpStream::connect_timeout(&self.address, CONNECT_MAX).and_then(|mut stream| {
            stream.set_nonblocking(true)?;
            stream.write_all(request(kind, body_bytes).as_bytes())?;
            Ok(stream)
        });
        // Out of descriptors or not taken in time: as if it had been cut.
        let Ok(stream) = opened else {
            self.later.push_back((Instant::now() + PAUSE, slot));
            return Ok(());
        };
        let watched = match kind {
            Kind::Silent => epoll::EventFlags::RDHUP,
            Kind::Idle | Kind::Drip => epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
        };
        epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(slot as u64), watched)?;
        self.clients[slot].stream = Some(stream);
        self.counts[kind as usize].open.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The server has ended it.
    fn cut(&mut self, slot: usize) {
        let client = &mut self.clients[slot];
        if client.stream.take().is_some() {
            self.counts[client.kind as usize].open.fetch_sub(1, Ordering::Relaxed);
            self.counts[client.kind as usize].cut.fetch_add(1, Ordering::Relaxed);
            self.later.push_back((Instant::now() + PAUSE, slot));
        }
    }

    fn run(mut self, stopped: &AtomicBool) -> Result<()> {
        let mut events = Vec::with_capacity(256);
        let mut drips = Instant::now();
        let tick = Timespec::try_from(TICK)?;
        while !stopped.load(Ordering::Relaxed) {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&tick)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for connections"),
            }
            for event in &events {
                self.on_event(usize::try_from(event.data.u64()).expect("a slot"));
            }
            let now = Instant::now();
            for _ in 0..OPENED_MAX {
                let Some((_, slot)) = self.later.pop_front_if(|(due, _)| *due <= now) else { break };
                self.open(slot)?;
            }
            if now >= drips {
                drips += DRIP;
                self.drip();
            }
        }
        Ok(())
    }

    /// Something came for an idle or a dripping client, or the server has closed.
    fn on_event(&mut self, slot: usize) {
        let client = &mut self.clients[slot];
        let Some(stream) = &mut client.stream else { return };
        // An answer to a body that is not there yet is a refusal.
        let ended = client.kind != Kind::Idle || matches!(stream.read(&mut [0; 4096]), Ok(0) | Err(_));
        if ended {
            self.cut(slot);
        }
    }

    fn drip(&mut self) {
        for slot in 0..self.clients.len() {
            let client = &mut self.clients[slot];
            if client.kind != Kind::Drip {
                continue;
            }
            let Some(stream) = &mut client.stream else { continue };
            if let Err(error) = stream.write(b"x")
                && error.kind() != ErrorKind::WouldBlock
            {
                self.cut(slot);
            }
        }
    }
}

fn request(kind: Kind, body_bytes: usize) -> String {
    match kind {
        Kind::Idle => "GET /v0/status HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
        Kind::Drip => {
            format!("PUT /v0/entity?id=drip HTTP/1.1\r\nHost: localhost\r\nContent-Length: {body_bytes}\r\n\r\n")
        }
        Kind::Silent => format!("GET {LARGE} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    }
}
