//! How many connections are open, and how many there may be. Called by `accept`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::Limits;
use klad_base::limits::SWEEP_INTERVAL;
use klad_base::sync::Live;

/// The places of all connections.
#[derive(Debug)]
pub(crate) struct Places {
    taken: AtomicUsize,
    limits: Arc<Live<Limits>>,
    freed: Notify,
}

/// One connection's place; free again when dropped.
#[derive(Debug)]
pub(crate) struct OpenPlace(Arc<Places>);

impl Places {
    /// As many as `limits` says, at any time.
    pub(crate) fn new(limits: Arc<Live<Limits>>) -> Arc<Places> {
        Arc::new(Places { taken: AtomicUsize::new(0), limits, freed: Notify::new() })
    }

    /// A place, when one is free; for the acceptor alone.
    pub(crate) async fn take(self: &Arc<Places>) -> OpenPlace {
        // Only the acceptor takes places, so what is free now stays free.
        while self.taken.load(Ordering::Acquire) >= self.limits.get().connections_max {
            // The limit may be raised while nobody leaves.
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
