//! What a klad says of itself while it is loaded: profiles, metrics, slow requests, from its admin address.
//!
//! A connection for each question: the answers are rare, and one that never comes must not keep the others. Called by `knee` and
//! by `lab`.

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

/// For an answer, beside the time that it takes by its nature.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Between two looks at the queues.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What the series begin with that say what waits, what is under way, and what is refused.
const QUEUES: [&str; 5] = [
    "klad_queue_",
    "klad_operations_in_use",
    "klad_http_requests_in_flight",
    "klad_body_room_used_bytes",
    "klad_refused_total",
];

/// An admin address.
#[derive(Debug)]
pub struct Admin {
    /// Where.
    pub url: Url,
    /// For who may ask.
    pub token: Option<String>,
}

/// Looks at the queues once a second, until it is told that the run is over.
#[derive(Debug)]
pub struct Looking {
    over: Arc<Over>,
    thread: JoinHandle<(Vec<QueueSample>, Vec<String>)>,
}

impl Looking {
    /// From now on.
    #[must_use]
    pub fn start(admin: &Arc<Admin>) -> Looking {
        let over = Arc::<Over>::default();
        let (admin, theirs) = (admin.clone(), over.clone());
        Looking { over, thread: spawn_thread("klad-bench-look", move || look(&admin, &theirs)) }
    }

    /// To know when it ends.
    #[must_use]
    pub fn over(&self) -> Arc<Over> {
        self.over.clone()
    }

    /// The run is over: what was seen, and why there is nothing.
    #[must_use]
    pub fn end(self) -> (Vec<QueueSample>, Vec<String>) {
        self.over.tell();
        self.thread.join().expect("a panic ends the process")
    }
}

/// The queues, until the run is over; and why there are none.
fn look(admin: &Admin, over: &Over) -> (Vec<QueueSample>, Vec<String>) {
    let (mut samples, mut missing) = (Vec::new(), Vec::new());
    let begin = clock::now();
    let mut due = begin;
    while !over.by(due) {
        match admin.get("/metrics", PATIENCE) {
            Ok(metrics) => {
                let at_s = clock::now().saturating_duration_since(begin).as_secs_f64();
                samples.push(QueueSample { at_s, values: queues(&metrics) });
            }
            Err(why) if missing.is_empty() => missing.push(format!("no metrics: {why:#}")),
            Err(_) => {}
        }
        due += LOOK_INTERVAL;
    }
    (samples, missing)
}

/// Whether a run is over.
#[derive(Debug, Default)]
pub struct Over {
    is: Mutex<bool>,
    told: Condvar,
}

impl Over {
    /// It is.
    pub fn tell(&self) {
        *self.is.lock() = true;
        self.told.notify_all();
    }

    /// Waits until it is, or until `due`; says whether it is.
    #[must_use]
    pub fn by(&self, due: Instant) -> bool {
        let mut is = self.is.lock();
        loop {
            let left = due.saturating_duration_since(clock::now());
            if *is || left.is_zero() {
                return *is;
            }
            is = self.told.wait_timeout(is, left, Cause::Others);
        }
    }
}

/// Series of queues in the text format of Prometheus.
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
    /// The body of a 200.
    ///
    /// # Errors
    /// Any other answer, or none within `patience`.
    pub fn get(&self, target: &str, patience: Duration) -> anyhow::Result<Vec<u8>> {
        let deadline = clock::now() + patience;
        let mut stream = TcpStream::connect_timeout(&self.url.reach()?, patience)?;
        let token = self.token.as_ref().map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
        let host = &self.url.authority;
        stream.set_write_timeout(Some(patience))?;
        write!(stream, "GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{token}\r\n")?;
        let mut reader = Reader::keeping();
        let mut buffer = vec![0; 64 << 10];
        let answer = loop {
            stream.set_read_timeout(Some(left(deadline)?))?;
            let count = stream.read(&mut buffer)?;
            if count == 0 {
                break reader.end().context("the connection was closed before the answer was whole")?;
            }
            if let (_, Some(answer)) = reader.feed(&buffer[..count], false)? {
                break answer;
            }
        };
        let body = reader.kept().map(|kept| kept.body.clone()).unwrap_or_default();
        if answer.status != 200 {
            let said = String::from_utf8_lossy(&body[..body.len().min(300)]).trim().to_owned();
            bail!("{target} is answered {}: {said}", answer.status);
        }
        Ok(body)
    }
}

fn left(deadline: Instant) -> anyhow::Result<Duration> {
    let left = deadline.saturating_duration_since(clock::now());
    ensure!(!left.is_zero(), "no answer in time");
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
