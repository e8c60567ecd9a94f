//! Reads profiles, metrics and slow requests from the admin port of a klad under load.
//!
//! Each request has its own connection: requests are rare, and one without an answer must not delay the others.
//! Called by `knee` and by `klad_lab`.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use crate::knee::result::QueueSample;
use crate::response::Reader;
use crate::url::Url;
use klad_base::clock;
use klad_base::sync::{Cause, Condvar, Mutex, spawn_thread};

/// The longest wait for an answer, in addition to the time that the request itself takes (such as the length of a
/// profile).
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The time between two samples of the queues.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Prefixes of the metrics that show waiting operations, operations in flight, and rejected requests.
const QUEUES: [&str; 5] = [
    "klad_queue_",
    "klad_operations_in_use",
    "klad_http_requests_in_flight",
    "klad_body_room_used_bytes",
    "klad_refused_total",
];

/// The admin port of a klad.
#[derive(Debug)]
pub struct Admin {
    /// Its URL.
    pub url: Url,
    /// The bearer token, if the port needs one.
    pub token: Option<String>,
}

/// Samples the queues once a second until the run is over.
#[derive(Debug)]
pub struct QueueSampler {
    stop: Arc<StopSignal>,
    thread: JoinHandle<(Vec<QueueSample>, Vec<String>)>,
}

impl QueueSampler {
    /// Starts the sampling thread.
    #[must_use]
    pub fn start(admin: &Arc<Admin>) -> QueueSampler {
        let stop = Arc::<StopSignal>::default();
        let (admin, theirs) = (admin.clone(), stop.clone());
        QueueSampler { stop, thread: spawn_thread("klad-bench-look", move || sample_queues(&admin, &theirs)) }
    }

    /// The signal that ends the sampling, for other threads that must end with it.
    #[must_use]
    pub fn stop_signal(&self) -> Arc<StopSignal> {
        self.stop.clone()
    }

    /// Stops sampling. Returns the samples, and an error message if they are incomplete.
    #[must_use]
    pub fn end(self) -> (Vec<QueueSample>, Vec<String>) {
        self.stop.set();
        self.thread.join().expect("a panic ends the process")
    }
}

/// Samples the queues until the run is over. Returns the samples, and an error message if a sample failed.
fn sample_queues(admin: &Admin, stop: &StopSignal) -> (Vec<QueueSample>, Vec<String>) {
    let (mut samples, mut missing) = (Vec::new(), Vec::new());
    let begin = clock::now();
    let mut due = begin;
    while !stop.wait_until(due) {
        match admin.get("/metrics", PATIENCE) {
            Ok(metrics) => {
                let at_s = clock::now().saturating_duration_since(begin).as_secs_f64();
                samples.push(QueueSample { at_s, values: queues(&metrics) });
            }
            Err(why) if missing.is_empty() => missing.push(format!("no metrics: {why:#}")),
            Err(_) => {}
        }
        due += SAMPLE_INTERVAL;
    }
    (samples, missing)
}

/// Tells threads that a run is over.
#[derive(Debug, Default)]
pub struct StopSignal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl StopSignal {
    /// Sets the signal.
    pub fn set(&self) {
        *self.is_set.lock() = true;
        self.changed.notify_all();
    }

    /// Waits until the signal is set, or until `due`. Returns whether it is set.
    #[must_use]
    pub fn wait_until(&self, due: Instant) -> bool {
        let mut is = self.is_set.lock();
        loop {
            let left = due.saturating_duration_since(clock::now());
            if *is || left.is_zero() {
                return *is;
            }
            is = self.changed.wait_timeout(is, left, Cause::Others);
        }
    }
}

/// Extracts the queues' series from metrics in the text format of Prometheus.
fn queues(metrics: &[u8]) -> BTreeMap<String, f64> {
    let text = String::from_utf8_lossy(metrics);
    let wanted = text.lines().filter(|line| QUEUES.iter().any(|prefix| line.starts_with(prefix)));
    let series = wanted.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    series.filter(|(_, value): &(String, f64)| value.is_finite()).collect()
}

impl Admin {
    /// Returns the body of an answer with status 200.
    ///
    /// # Errors
    /// On any other status, and if there is no answer within `patience`.
    pub fn get(&self, target: &str, patience: Duration) -> anyhow::Result<Vec<u8>> {
        let deadline = clock::now() + patience;
        let mut stream = TcpStream::connect_timeout(&self.url.reach()?, patience)?;
        let token = self.token.as_ref().map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
        let host = &self.url.authority;
        stream.set_write_timeout(Some(patience))?;
        write!(stream, "GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{token}\r\n")?;
        let mut reader = Reader::storing();
        let mut buffer = vec![0; 64 << 10];
        let answer = loop {
            stream.set_read_timeout(Some(left(deadline)?))?;
            let count = stream.read(&mut buffer)?;
            if count == 0 {
                break reader.end().context("the connection was closed before the answer was complete")?;
            }
            if let (_, Some(answer)) = reader.feed(&buffer[..count], false)? {
                break answer;
            }
        };
        let body = reader.stored().map(|stored| stored.body.clone()).unwrap_or_default();
        if answer.status != 200 {
            let said = String::from_utf8_lossy(&body[..body.len().min(300)]).trim().to_owned();
            bail!("GET {target} was answered with {}: {said}", answer.status);
        }
        Ok(body)
    }
}

fn left(deadline: Instant) -> anyhow::Result<Duration> {
    let left = deadline.saturating_duration_since(clock::now());
    ensure!(!left.is_zero(), "no answer within the time limit");
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_found_among_metrics() {
        let metrics =
            b"# HELP klad_queue_depth x\n# TYPE klad_queue_depth gauge\nklad_queue_depth{queue=\"reads\"} 3\n\
            klad_requests_total 7\nklad_queue_oldest_seconds{queue=\"reads\"} 0.25\nklad_queue_wait_seconds NaN\n";
        let found = queues(metrics);
        let expected =
            [("klad_queue_depth{queue=\"reads\"}", 3.0), ("klad_queue_oldest_seconds{queue=\"reads\"}", 0.25)];
        assert_eq!(found, BTreeMap::from(expected.map(|(name, value)| (name.to_owned(), value))));
    }
}
