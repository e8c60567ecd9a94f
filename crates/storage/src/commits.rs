//! Metrics of the commit section: writes per batch, and the duration of log syncs.
//!
//! The engines record these metrics. `admin` writes them to `/metrics`.

use std::time::Duration;

use klad_base::metrics::Histogram;
use klad_base::metrics::text::{Kind, Page, SECONDS_OF_NS};

/// Histograms of the writes in an engine's batches and of the durations of its syncs. They use atomic read-modify-write
/// instructions: two to four per batch are cheap enough.
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
    /// Records a batch of `writes` that was written to the log, with or without a sync.
    pub fn committed(&self, writes: usize, sync: bool) {
        let batches = if sync { &self.sync_batches } else { &self.async_batches };
        batches.record(writes as u64);
    }

    /// Records a sync of the log that took `time`. A log write with sync is one call of the engine, so its whole
    /// duration counts as the sync's.
    pub fn synced(&self, time: Duration) {
        self.syncs.record_time(time);
    }

    /// Writes all metric families to `page`.
    pub fn write(&self, page: &mut Page) {
        page.family("klad_commit_batch_writes", Kind::Histogram, "Number of writes in one batch of the log.")
            .histogram(&[("durability", "sync")], &self.sync_batches.snapshot(), 1.0)
            .histogram(&[("durability", "async")], &self.async_batches.snapshot(), 1.0);
        page.family(
            "klad_wal_sync_seconds",
            Kind::Histogram,
            "Duration of one sync of the log, including the log write before it if both are one call.",
        )
        .histogram(&[], &self.syncs.snapshot(), SECONDS_OF_NS);
    }
}
