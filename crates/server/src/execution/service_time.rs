//! Measures how long a thread takes for one operation of a queue, and estimates from it how long a new operation would
//! wait. The strategies call this.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use klad_base::clock;

/// The measured service time of one queue.
#[derive(Debug, Default)]
pub(super) struct ServiceTime {
    /// Time that threads have spent serving since the last [`ServiceTime::tick`], ns.
    busy_ns: AtomicU64,
    /// The number of operations that threads have served since the last [`ServiceTime::tick`].
    served: AtomicU64,
    /// The average time of one operation on one thread, ns. 0: unknown.
    each_ns: AtomicU64,
}

impl ServiceTime {
    /// Records that a thread has served `count` operations since `began`. Returns the time since `began`.
    pub(super) fn served(&self, count: usize, began: Instant) -> Duration {
        let busy = clock::now().saturating_duration_since(began);
        self.busy_ns.fetch_add(u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.served.fetch_add(count as u64, Ordering::Relaxed);
        busy
    }

    /// Sets the average to the mean of the old average and the average since the last tick. Only one thread calls this,
    /// at regular intervals.
    pub(super) fn tick(&self) {
        let (busy_ns, served) = (self.busy_ns.swap(0, Ordering::Relaxed), self.served.swap(0, Ordering::Relaxed));
        let Some(now_ns) = busy_ns.checked_div(served) else { return };
        let before_ns = self.each_ns.load(Ordering::Relaxed);
        let each_ns = if before_ns == 0 { now_ns } else { before_ns.midpoint(now_ns) };
        self.each_ns.store(each_ns.max(1), Ordering::Relaxed);
    }

    /// Estimates how long an operation waits behind `waiting` others, which `threads` threads serve. `None`: nothing
    /// was measured.
    pub(super) fn wait(&self, waiting: usize, threads: usize) -> Option<Duration> {
        let each_ns = self.each_ns.load(Ordering::Relaxed);
        let total_ns = each_ns.saturating_mul(waiting as u64) / threads.max(1) as u64;
        (each_ns > 0).then(|| Duration::from_nanos(total_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_the_queue_length_divided_by_the_measured_rate() {
        let service_time = ServiceTime::default();
        assert_eq!(service_time.wait(100, 4), None);
        service_time.busy_ns.store(50_000_000, Ordering::Relaxed);
        service_time.served.store(50, Ordering::Relaxed);
        service_time.tick();
        assert_eq!(service_time.wait(100, 4), Some(Duration::from_millis(25)));
        service_time.tick();
        assert_eq!(service_time.wait(100, 4), Some(Duration::from_millis(25)), "nothing new was measured");
        service_time.busy_ns.store(150_000_000, Ordering::Relaxed);
        service_time.served.store(50, Ordering::Relaxed);
        service_time.tick();
        assert_eq!(service_time.wait(100, 4), Some(Duration::from_millis(50)), "the mean of 1 ms and 3 ms");
    }
}
