//! What the commit section does: how many writes share a batch, and how long the log's syncs take.
//!
//! Written by the engine; read by whoever builds `/metrics`.

use std::time::Duration;

use klad_base::metrics::Histogram;
use klad_base::metrics::text::{Kind, Page, SECONDS_OF_NS};

/// An engine's batches and syncs. A batch is counted once, so locked instructions are cheap enough here.
#[derive(Debug)]
pub struct Commits {
    sync_batches: Histogram<11>,
    async_batches: Histogram<11>,
    syncs: Histogram<21>,
}

impl Default for Commits {
    fn default() -> Commits {
        Commits { sync_batches: Histogram::counts(), async_batches: Histogram::counts(), syncs: Histogram::times() }
    }
}

impl Commits {
    /// A batch of so many writes was written to the log, with a sync or without.
    pub fn committed(&self, writes: usize, sync: bool) {
        let batches = if sync { &self.sync_batches } else { &self.async_batches };
        batches.record(writes as u64);
    }

    /// The log was synced, in so much time; a write with sync is one call, and its time is taken for the sync's.
    pub fn synced(&self, time: Duration) {
        self.syncs.record_time(time);
    }

    /// All families.
    pub fn write(&self, page: &mut Page) {
        page.family("klad_commit_batch_writes", Kind::Histogram, "Writes that one batch of the log holds.")
            .histogram(&[("durability", "sync")], &self.sync_batches.snapshot(), 1.0)
            .histogram(&[("durability", "async")], &self.async_batches.snapshot(), 1.0);
        page.family(
            "klad_wal_sync_seconds",
            Kind::Histogram,
            "Time of one sync of the log, with the write it belongs to.",
        )
        .histogram(&[], &self.syncs.snapshot(), SECONDS_OF_NS);
    }
}
