//! Reads profiles, metrics and slow requests from the admin port of a klad under load.
//!
//! Each request has its own connection, because requests are rare, and a request without an answer must not delay
//! others. Called by `knee` and by `klad_lab`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::knee::result::QueueSample;
use crate::url::Url;
use klad_base::clock;
use klad_base::sync::{Cause, Condvar, Mutex, spawn_thread};

/// The longest wait for an answer. If the request takes a profile, the length of the profile is added.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The largest answer that is read, bytes. klad's own answers are far smaller: the largest are profiles of some MiB.
const BODY_BYTES_MAX: u64 = 256 << 20;

/// The time between two samples of the server's queues.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Prefixes of the metrics that show waiting operations, operations and requests in flight, memory used by bodies, and
/// rejected requests.
const QUEUES: [&str; 5] = [
    "klad_queue_",
    "klad_operations_in_use",
    "klad_http_requests_in_flight",
    "klad_body_budget_used_bytes",
    "klad_refused_total",
];

/// The admin port of a klad.
#[derive(Debug)]
pub struct Admin {
    /// The URL of the admin port.
    pub url: Url,
    /// The bearer token, if the port needs one.
    pub token: Option<String>,
}

/// Reads the metrics of the server's queues once a second on its own thread, until [`QueueSampler::end`] is called.
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

    /// Returns the signal that ends the sampling. Other threads that must end at the same time can wait for it.
    #[must_use]
    pub fn stop_signal(&self) -> Arc<StopSignal> {
        self.stop.clone()
    }

    /// Stops sampling. Returns the samples, and the error message of the first sample that failed, if any.
    #[must_use]
    pub fn end(self) -> (Vec<QueueSample>, Vec<String>) {
        self.stop.set();
        self.thread.join().expect("a panic ends the process")
    }
}

/// Reads the queues' metrics until `stop` is set. Returns the samples, and the error message of the first sample that
/// failed, if any.
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

/// A signal to threads that a run is over.
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

    /// Waits until the signal is set, but at most until `due`. Returns `true` if the signal is set.
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

/// Returns the names and values of the series that begin with one of [`QUEUES`], from `metrics` in Prometheus text
/// format.
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
    /// Sends a GET request for `target`, and returns the body of the answer. The status of the answer must be 200.
    ///
    /// # Errors
    /// If the status is not 200, or if there is no answer within `patience`.
    pub fn get(&self, target: &str, patience: Duration) -> anyhow::Result<Vec<u8>> {
        let agent = ureq::Agent::config_builder().timeout_global(Some(patience)).http_status_as_error(false).build();
        let mut request = agent.new_agent().get(format!("http://{}{target}", self.url.authority));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let mut answer = request.call()?;
        let body = answer.body_mut().with_config().limit(BODY_BYTES_MAX).read_to_vec()?;
        if answer.status() != 200 {
            let said = String::from_utf8_lossy(&body[..body.len().min(300)]).trim().to_owned();
            bail!("GET {target} was answered with {}: {said}", answer.status().as_u16());
        }
        Ok(body)
    }
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
