//! Whether answers are as quick as before: one GET at a time on a connection of its own, when it is due.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};

use crate::http::Connection;

/// Between two reads.
const EVERY: Duration = Duration::from_millis(10);

/// What a normal answer may take in any case: a server that is held to a share of a core pauses for some milliseconds.
const NORMAL_MIN: Duration = Duration::from_millis(30);

/// What an answer that is none counts as.
const REFUSED: Duration = Duration::from_hours(1);

/// One read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// When it was due, on `CLOCK_MONOTONIC`.
    due: Duration,
    /// Since then, until its answer was there.
    took: Duration,
}

/// `CLOCK_MONOTONIC`, which `klad bench` tells the start of its schedule on.
pub(super) fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).expect("since the machine's start")
}

/// Reads `target` for `length`. What is refused, or whose connection is closed, counts as slow: it is tried again at the next
/// turn, on another connection.
pub(super) fn read(address: SocketAddr, target: &str, length: Duration) -> Result<Vec<Sample>> {
    let begin = now();
    let mut connection = None;
    let mut samples = Vec::new();
    for number in 0.. {
        let due = begin + EVERY * number;
        if due >= begin + length {
            break;
        }
        std::thread::sleep(due.saturating_sub(now()));
        let mut open = match connection.take() {
            Some(open) => open,
            None => Connection::open(address)?,
        };
        let served = open.get(target).is_ok_and(|answer| answer.status == 200);
        let took = if served { now().saturating_sub(due) } else { REFUSED };
        if served {
            connection = Some(open);
        }
        samples.push(Sample { due, took });
    }
    Ok(samples)
}

/// What counts as quick: twice the 99th percentile of quiet reads.
pub(super) fn normal(quiet: &[Sample]) -> Duration {
    let mut took: Vec<Duration> = quiet.iter().map(|sample| sample.took).collect();
    took.sort_unstable();
    let p99 = took.get(took.len().saturating_sub(1) * 99 / 100).copied().unwrap_or_default();
    (2 * p99).max(NORMAL_MIN)
}

/// From `end` until reads took no longer than `normal` for good; `None`: the last one did not, or there is none.
pub(super) fn back_after(samples: &[Sample], end: Duration, normal: Duration) -> Option<Duration> {
    let slow = |sample: &&Sample| sample.took > normal;
    if samples.last().is_none_or(|last| last.due < end || last.took > normal) {
        return None;
    }
    let last_slow = samples.iter().rev().find(slow);
    let over = |sample: &Sample| if sample.took == REFUSED { sample.due } else { sample.due + sample.took };
    Some(last_slow.map_or(Duration::ZERO, |sample| over(sample).saturating_sub(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(took_ms: &[u64]) -> Vec<Sample> {
        let sample = |(number, ms): (u32, &u64)| Sample { due: EVERY * number, took: Duration::from_millis(*ms) };
        (0..).zip(took_ms).map(sample).collect()
    }

    #[test]
    fn the_last_slow_read_ends_the_wait() {
        let (end, normal) = (Duration::from_millis(10), Duration::from_millis(5));
        assert_eq!(back_after(&samples(&[100, 1, 8, 2]), end, normal), Some(Duration::from_millis(18)));
        assert_eq!(back_after(&samples(&[1, 1, 1]), end, normal), Some(Duration::ZERO));
        assert_eq!(back_after(&samples(&[1, 1, 8]), end, normal), None, "it never came back");
        assert_eq!(back_after(&samples(&[1]), end, normal), None, "nothing was read after the end");
    }

    #[test]
    fn normal_is_twice_the_quiet_tail() {
        assert_eq!(normal(&samples(&[50; 10])), Duration::from_millis(100));
        assert_eq!(normal(&samples(&[1; 10])), NORMAL_MIN);
    }
}
