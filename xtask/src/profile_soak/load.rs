//! Clients that keep klad busy and remember all that it has said: GET and PUT in turn at random, one request under way on each
//! connection, every answer compared. Called by `profile_soak`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::http::Connection;

/// Connections of each client.
const CONNECTIONS: usize = 16;

/// Keys of each connection: no other writes them, so each read has one right answer.
const KEYS: u32 = 64;

/// One PUT in so many waits for the disk.
const SYNCED: u32 = 16;

/// A thread's worth of connections, over any number of runs against the same klad.
pub(crate) struct Client {
    number: usize,
    random: fastrand::Rng,
    /// The last acknowledged write of each key, by connection and number.
    written: BTreeMap<(usize, u32), u64>,
    writes: u64,
    /// Requests that were answered as they should be.
    pub(crate) answered: u64,
    /// The longest time between two answers.
    pub(crate) gap_max: Duration,
}

#[derive(Clone, Copy)]
enum Request {
    Get { key: u32 },
    Put { key: u32, write: u64 },
}

impl Client {
    /// One that writes keys of its own.
    pub(crate) fn new(number: usize, random: fastrand::Rng) -> Client {
        let written = BTreeMap::new();
        Client { number, random, written, writes: 0, answered: 0, gap_max: Duration::ZERO }
    }

    /// Sends requests until `over`, counting answers in `pulse`.
    ///
    /// # Errors
    /// The first request that has no answer, or not the right one.
    pub(crate) fn run(&mut self, address: SocketAddr, over: &AtomicBool, pulse: &AtomicU64) -> Result<()> {
        let opened: Result<Vec<_>> = (0..CONNECTIONS).map(|_| Connection::open(address)).collect();
        let mut connections = opened?;
        let mut last = Instant::now();
        self.gap_max = Duration::ZERO;
        while !over.load(Ordering::Relaxed) {
            let requests: Vec<Request> = (0..CONNECTIONS).map(|_| self.next()).collect();
            for (place, (connection, request)) in connections.iter_mut().zip(&requests).enumerate() {
                let bytes = self.bytes(place, *request);
                connection.send(bytes.as_bytes())?;
            }
            for (place, (connection, request)) in connections.iter_mut().zip(&requests).enumerate() {
                self.take(place, *request, connection)?;
                self.gap_max = self.gap_max.max(last.elapsed());
                last = Instant::now();
                pulse.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Reads back all that was acknowledged.
    ///
    /// # Errors
    /// The first write that is not there.
    pub(crate) fn compare(&self, address: SocketAddr) -> Result<u64> {
        let mut connection = Connection::open(address)?;
        for ((place, key), write) in &self.written {
            let target = self.target(*place, *key);
            let answer = connection.get(&target).with_context(|| target.clone())?;
            answer.expect(200)?;
            ensure!(answer.body == value(*write).as_bytes(), "{target} has lost write {write}");
        }
        Ok(u64::try_from(self.written.len())?)
    }

    fn next(&mut self) -> Request {
        let key = self.random.u32(0..KEYS);
        if self.random.bool() {
            return Request::Get { key };
        }
        self.writes += 1;
        Request::Put { key, write: self.writes }
    }

    fn target(&self, place: usize, key: u32) -> String {
        format!("/v0/entity?id=client{}-{place}-{key}", self.number)
    }

    fn bytes(&mut self, place: usize, request: Request) -> String {
        match request {
            Request::Get { key } => {
                format!("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", self.target(place, key))
            }
            Request::Put { key, write } => {
                let durability = if self.random.u32(0..SYNCED) == 0 { "sync" } else { "async" };
                let value = value(write);
                format!(
                    "PUT {}&durability={durability} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{value}",
                    self.target(place, key),
                    value.len()
                )
            }
        }
    }

    /// Reads the answer, and compares it with what is known.
    fn take(&mut self, place: usize, request: Request, connection: &mut Connection) -> Result<()> {
        let target = match request {
            Request::Get { key } | Request::Put { key, .. } => self.target(place, key),
        };
        let answer = connection.answer().with_context(|| target.clone())?;
        match request {
            Request::Put { key, write } => {
                answer.expect(201).context(target)?;
                self.written.insert((place, key), write);
            }
            Request::Get { key } => match self.written.get(&(place, key)) {
                None => answer.expect(404).context(target)?,
                Some(write) => {
                    answer.expect(200).with_context(|| target.clone())?;
                    ensure!(answer.body == value(*write).as_bytes(), "{target} does not hold write {write}");
                }
            },
        }
        self.answered += 1;
        Ok(())
    }
}

/// Some 100 bytes that tell which write they are.
fn value(write: u64) -> String {
    format!("{write:<100}")
}
