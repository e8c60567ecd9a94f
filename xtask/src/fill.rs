//! Writes entries over a few connections, as fast as klad takes them, and knows what was acknowledged.
//!
//! ```text
//!   lane 0 ── 64 PUTs, pipelined ──▶ klad     each lane has every fourth entry of the scrambled order and goes on
//!   lane 1 ── …                               where its acknowledgements end, also after klad was killed
//! ```
//!
//! Called by the chores.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};

use crate::entries::{Entries, Order};
use crate::http::Connection;

/// Connections.
const LANES: u64 = 4;

/// Requests that are sent before the first of their answers is read.
const BATCH_REQUESTS: usize = 64;

/// A fill, from its first entry to its last.
pub(crate) struct Fill {
    entries: Entries,
    lanes: Vec<Lane>,
    acknowledged: Arc<AtomicU64>,
}

/// What one connection writes.
struct Lane {
    /// Begins with the first entry that is not acknowledged.
    order: Order,
    last_acknowledged: Option<u64>,
}

/// Ends klad in the middle of a fill.
pub(crate) struct Kill<'a> {
    /// When so many entries are acknowledged; at least one entry must be left to write.
    pub(crate) at: u64,
    /// Called once, on one of the connections' threads.
    pub(crate) now: &'a (dyn Fn() -> Result<()> + Sync),
}

/// What the lanes of one run share.
struct Run<'a> {
    entries: Entries,
    address: SocketAddr,
    acknowledged: &'a AtomicU64,
    kill: Option<Kill<'a>>,
    killed: AtomicBool,
}

impl Fill {
    /// Nothing is written yet.
    pub(crate) fn new(entries: Entries) -> Fill {
        let lanes = (0..LANES).map(|lane| Lane { order: entries.order(lane, LANES), last_acknowledged: None });
        Fill { entries, lanes: lanes.collect(), acknowledged: Arc::default() }
    }

    /// How many entries are acknowledged.
    pub(crate) fn acknowledged(&self) -> Arc<AtomicU64> {
        self.acknowledged.clone()
    }

    /// The last acknowledged entry of each connection that has one.
    pub(crate) fn last_acknowledged(&self) -> impl Iterator<Item = u64> {
        self.lanes.iter().filter_map(|lane| lane.last_acknowledged)
    }

    /// Writes on, until everything is acknowledged or `kill` has struck.
    pub(crate) fn run(&mut self, address: SocketAddr, kill: Option<Kill<'_>>) -> Result<()> {
        let kills = kill.is_some();
        let run = Run {
            entries: self.entries,
            address,
            acknowledged: &self.acknowledged,
            kill,
            killed: AtomicBool::new(false),
        };
        thread::scope(|scope| {
            let lanes: Vec<_> = self.lanes.iter_mut().map(|lane| scope.spawn(|| lane.run(&run))).collect();
            // All are waited for; the first error is the one that is told.
            let ended: Vec<_> = lanes.into_iter().map(thread::ScopedJoinHandle::join).collect();
            ended.into_iter().try_for_each(|lane| lane.ok().context("a connection's thread has panicked")?)
        })?;
        let acknowledged = self.acknowledged.load(Ordering::Relaxed);
        if kills {
            ensure!(run.killed.into_inner(), "the fill has ended before the kill");
        } else {
            ensure!(acknowledged == self.entries.count, "{acknowledged} of {} writes", self.entries.count);
        }
        Ok(())
    }
}

impl Lane {
    fn run(&mut self, run: &Run<'_>) -> Result<()> {
        match self.write_all(run) {
            // Only a broken connection follows from the kill; a wrong answer is wrong at any time.
            Err(error) if run.killed.load(Ordering::Acquire) && error.downcast_ref::<io::Error>().is_some() => Ok(()),
            ended => ended.context("the fill failed"),
        }
    }

    fn write_all(&mut self, run: &Run<'_>) -> Result<()> {
        let mut connection = Connection::open(run.address)?;
        let mut requests = Vec::new();
        loop {
            let batch: Vec<u64> = self.order.clone().take(BATCH_REQUESTS).collect();
            if batch.is_empty() {
                return Ok(());
            }
            requests.clear();
            for index in &batch {
                run.entries.push_put(*index, &mut requests);
            }
            connection.send(&requests)?;
            for index in batch {
                connection.answer()?.expect(201).with_context(|| format!("PUT {}", run.entries.key(index)))?;
                self.order.next();
                self.last_acknowledged = Some(index);
                run.count()?;
            }
        }
    }
}

impl Run<'_> {
    /// Counts an acknowledgement, and kills klad when it is the one.
    fn count(&self) -> Result<()> {
        let acknowledged = self.acknowledged.fetch_add(1, Ordering::Relaxed) + 1;
        match &self.kill {
            Some(kill) if acknowledged == kill.at => {
                // First: the other lanes may feel the kill before this thread runs on.
                self.killed.store(true, Ordering::Release);
                (kill.now)()
            }
            _ => Ok(()),
        }
    }
}
