//! A server that answers by a script and records the time of each answer. `bench-truth` compares `klad bench` with
//! these records. Each connection has its own thread.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds: a time of `CLOCK_MONOTONIC`, or a duration.
pub(super) type Nanos = u64;

/// One second.
pub(super) const SECOND: Nanos = 1_000_000_000;

/// The time from a request to its answer, unless the script says otherwise. Longer than the noise of a machine.
const SERVICE: Nanos = SECOND / 1_000;

/// The time until a refusal. Longer than [`SERVICE`], so that the comparison notices if refusals are counted as
/// response times.
const REFUSAL: Nanos = SECOND / 50;

/// The time from a request to a slow answer.
const SLOW: Nanos = SECOND / 20;

/// How the server behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    /// Every answer takes 1 ms.
    Constant,
    /// In the middle of the measured part the server answers no request for 1 s. Then it answers all requests that have
    /// arrived.
    Freeze,
    /// One answer in a hundred takes 50 ms.
    Slow,
    /// One request in ten is answered with 503.
    Refused,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// The number in the request's key.
    pub(super) number: u64,
    /// When the request's head was complete.
    pub(super) arrived: Nanos,
    /// Just before the server handed the answer to the kernel, and just after. On a busy core the two times may be
    /// milliseconds apart.
    pub(super) answered: [Nanos; 2],
    /// The status of the answer.
    pub(super) status: u16,
}

impl Script {
    pub(super) const ALL: [Script; 4] = [Script::Constant, Script::Freeze, Script::Slow, Script::Refused];

    /// Returns the status of the answer, and the time from the arrival of the request to its answer. `at` is the
    /// arrival, counted from the start of the run. `middle` is the middle of the measured part, counted from the same
    /// start.
    fn plan(self, number: u64, at: Nanos, middle: Nanos) -> (u16, Nanos) {
        match self {
            Script::Freeze => {
                // A frozen server answers neither new requests nor those that it has begun.
                let (from, until) = (middle.saturating_sub(SECOND / 2), middle + SECOND / 2);
                let is_frozen = (from..until).contains(&(at + SERVICE));
                (200, if is_frozen { until - at } else { SERVICE })
            }
            Script::Slow if number % 100 == 50 => (200, SLOW),
            Script::Refused if number % 10 == 5 => (503, REFUSAL),
            _ => (200, SERVICE),
        }
    }
}

/// What the connections' threads share.
struct Shared {
    script: Script,
    middle: Nanos,
    /// When the first request arrived. This is the start of the run.
    start: OnceLock<Nanos>,
    records: Mutex<Vec<Record>>,
    stopping: AtomicBool,
}

/// A running server.
pub(super) struct ScriptedServer {
    /// The address that takes requests.
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: JoinHandle<()>,
}

impl ScriptedServer {
    /// Starts a server on `cores`, or on all cores if `cores` is empty.
    pub(super) fn start(script: Script, middle: Nanos, cores: Vec<usize>) -> Result<ScriptedServer> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port to listen on")?;
        let address = listener.local_addr()?;
        let (records, stopping) = (Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { script, middle, start: OnceLock::new(), records, stopping });
        let theirs = shared.clone();
        let acceptor = thread::spawn(move || {
            // The threads of connections inherit the cores.
            let mut only = CpuSet::new();
            for core in &cores {
                only.set(*core);
            }
            if !cores.is_empty() {
                let _ = sched_setaffinity(None, &only);
            }
            let mut connections = Vec::new();
            for stream in listener.incoming().map_while(Result::ok) {
                if theirs.stopping.load(Ordering::SeqCst) {
                    break;
                }
                let shared = theirs.clone();
                connections.push(thread::spawn(move || shared.serve(stream)));
            }
            for connection in connections {
                let _ = connection.join();
            }
        });
        Ok(ScriptedServer { address, shared, acceptor })
    }

    /// Stops the server. Call this only after the client has ended. Returns the records of all answered requests.
    pub(super) fn finish(self) -> Vec<Record> {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wakes the acceptor.
        let _ = TcpStream::connect(self.address);
        let _ = self.acceptor.join();
        std::mem::take(&mut *self.shared.records())
    }
}

impl Shared {
    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().expect("no thread panics while it holds the lock")
    }

    /// Answers requests until the client closes the connection.
    fn serve(&self, mut stream: TcpStream) {
        // Without timer slack, a sleep ends on time and not up to 50 µs later.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let _ = stream.set_nodelay(true);
        let (mut received, mut buffer) = (Vec::new(), [0; 4 << 10]);
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            received.extend_from_slice(&buffer[..count]);
            if !received.ends_with(b"\r\n\r\n") {
                continue;
            }
            let arrived = now();
            let Some(number) = number_of(&received) else { return };
            received.clear();
            let start = *self.start.get_or_init(|| arrived);
            let (status, after) = self.script.plan(number, arrived.saturating_sub(start), self.middle);
            thread::sleep(Duration::from_nanos((arrived + after).saturating_sub(now())));
            let before = now();
            if stream.write_all(answer(status)).is_err() {
                return;
            }
            let answered = [before, now()];
            self.records().push(Record { number, arrived, answered, status });
        }
    }
}

fn answer(status: u16) -> &'static [u8] {
    match status {
        200 => b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nvalue",
        _ => b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
    }
}

/// The number of a request, from its key.
fn number_of(head: &[u8]) -> Option<u64> {
    let line = str::from_utf8(head).ok()?.lines().next()?;
    line.strip_prefix("GET /v0/entity?id=key")?.split(' ').next()?.parse().ok()
}

/// Converts a duration, at most 584 years, to nanoseconds.
pub(super) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time of `CLOCK_MONOTONIC`, the clock in which klad bench reports the start of its schedule.
fn now() -> Nanos {
    nanos(Duration::try_from(clock_gettime(ClockId::Monotonic)).expect("it counts from the machine's start"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_meet_the_freeze_are_answered_at_its_end() {
        let after_ms = |at_ms: u64| Script::Freeze.plan(0, at_ms * SECOND / 1_000, 3 * SECOND).1 * 1_000 / SECOND;
        assert_eq!([2_498, 2_499, 3_000, 3_499, 3_500].map(after_ms), [1, 1_001, 500, 1, 1]);
    }

    #[test]
    fn requests_are_answered_as_planned_and_recorded() {
        let server = ScriptedServer::start(Script::Refused, 0, Vec::new()).expect("started");
        let mut stream = TcpStream::connect(server.address).expect("connected");
        let mut buffer = [0; 1024];
        for (number, status) in [(0, "200"), (5, "503")] {
            let request = format!("GET /v0/entity?id=key{number} HTTP/1.1\r\nHost: a\r\n\r\n");
            stream.write_all(request.as_bytes()).expect("sent");
            let count = stream.read(&mut buffer).expect("an answer");
            assert_eq!(str::from_utf8(&buffer[9..12]).ok(), Some(status), "{count} bytes");
        }
        drop(stream);
        let records = server.finish();
        assert_eq!(
            records.iter().map(|record| (record.number, record.status)).collect::<Vec<_>>(),
            [(0, 200), (5, 503)]
        );
        assert!(records[1].answered[0] >= records[1].arrived + REFUSAL, "{records:?}");
    }
}
