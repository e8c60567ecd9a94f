//! Counts the open connections, and makes the acceptor wait at their limit. `accept` calls this.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::Limits;
use crate::limits::SWEEP_INTERVAL;
use klad_base::sync::Live;

/// The places for connections of all peers.
#[derive(Debug)]
pub(crate) struct Places {
    taken: AtomicUsize,
    limits: Arc<Live<Limits>>,
    freed: Notify,
}

/// One connection's place. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct OpenPlace(Arc<Places>);

impl Places {
    /// Creates the places, all free. Their number is the current `connections_max` of `limits`, and may change.
    pub(crate) fn new(limits: Arc<Live<Limits>>) -> Arc<Places> {
        Arc::new(Places { taken: AtomicUsize::new(0), limits, freed: Notify::new() })
    }

    /// Waits until a place is free, and takes it. Only the acceptor calls this.
    pub(crate) async fn take(self: &Arc<Places>) -> OpenPlace {
        // Only the acceptor takes places, so a free place stays free.
        while self.taken.load(Ordering::Acquire) >= self.limits.get().connections_max {
            // The limit may rise although no connection ends.
            let _ = tokio::time::timeout(SWEEP_INTERVAL, self.freed.notified()).await;
        }
        self.taken.fetch_add(1, Ordering::AcqRel);
        OpenPlace(self.clone())
    }
}

impl Drop for OpenPlace {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
        self.0.freed.notify_one();
    }
}
