//! Measures the rate at which a client sends or takes bytes: counts the bytes, and the time that klad has waited.

use std::time::Duration;

/// Counts bytes and the time of waits, both from the beginning of the first wait on. Times are milliseconds of the
/// worker's coarse clock.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Bytes since the first wait began.
    bytes: u64,
    /// The length of all waits that have ended, together.
    waited_ms: u64,
    /// The beginning of the current wait.
    waits_since_ms: Option<u64>,
    /// Whether a wait has begun since the last reset. Only then does the meter count bytes.
    counts: bool,
}

/// The readings of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    /// Bytes since the first wait.
    pub(super) bytes: u64,
    /// The length of all waits together.
    pub(super) waited: Duration,
}

impl Flow {
    /// Returns the average rate over all waits, or `u64::MAX` if there was no wait.
    #[must_use]
    pub(super) fn bytes_per_second(&self) -> u64 {
        let waited_ms = u64::try_from(self.waited.as_millis()).unwrap_or(u64::MAX);
        self.bytes.saturating_mul(1_000).checked_div(waited_ms).unwrap_or(u64::MAX)
    }
}

impl Meter {
    /// Resets the meter, and begins a wait.
    pub(super) fn begin_waiting(&mut self, now_ms: u64) {
        self.bytes = 0;
        self.waited_ms = 0;
        self.waits_since_ms = Some(now_ms);
        self.counts = true;
    }

    /// Resets the meter. If a wait is in progress, the wait continues, and its time counts from its beginning.
    pub(super) fn begin_anew(&mut self) {
        self.bytes = 0;
        self.waited_ms = 0;
        self.counts = self.waits_since_ms.is_some();
    }

    /// A wait begins, unless one is in progress.
    pub(super) fn wait_begins(&mut self, now_ms: u64) {
        if self.waits_since_ms.is_none() {
            self.waits_since_ms = Some(now_ms);
            self.counts = true;
        }
    }

    /// The wait ends.
    pub(super) fn wait_ends(&mut self, now_ms: u64) {
        if let Some(since_ms) = self.waits_since_ms.take() {
            self.waited_ms += now_ms.saturating_sub(since_ms);
        }
    }

    /// Adds `count` bytes.
    pub(super) fn add(&mut self, count: usize) {
        if self.counts {
            self.bytes += count as u64;
        }
    }

    pub(super) fn waits_since_ms(&self) -> Option<u64> {
        self.waits_since_ms
    }

    pub(super) fn flow(&self, now_ms: u64) -> Flow {
        let current_ms = self.waits_since_ms.map_or(0, |since_ms| now_ms.saturating_sub(since_ms));
        Flow { bytes: self.bytes, waited: Duration::from_millis(self.waited_ms + current_ms) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(bytes: u64, waited_ms: u64) -> Flow {
        Flow { bytes, waited: Duration::from_millis(waited_ms) }
    }

    #[test]
    fn only_waits_count_and_only_bytes_since_the_first() {
        let mut meter = Meter::default();
        meter.add(1_000);
        assert_eq!(meter.flow(500), flow(0, 0));
        meter.wait_begins(500);
        meter.wait_begins(700);
        assert_eq!(meter.flow(900), flow(0, 400), "a wait begins once");
        meter.wait_ends(1_000);
        meter.add(64);
        assert_eq!(meter.flow(9_000), flow(64, 500), "what is taken at once costs no time");
        meter.wait_begins(9_000);
        assert_eq!(meter.flow(9_500), flow(64, 1_000));
        assert_eq!(meter.flow(9_500).bytes_per_second(), 64);
    }

    #[test]
    fn a_new_request_does_not_hide_a_wait_in_progress() {
        let mut meter = Meter::default();
        meter.wait_begins(0);
        meter.begin_anew();
        meter.add(10);
        assert_eq!(meter.flow(1_000), flow(10, 1_000));
        meter.wait_ends(1_000);
        meter.begin_anew();
        meter.add(10);
        assert_eq!(meter.flow(2_000), flow(0, 0));
        assert_eq!(meter.flow(2_000).bytes_per_second(), u64::MAX);
    }
}
