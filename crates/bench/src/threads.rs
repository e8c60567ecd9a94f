//! The threads of a run: starts and connects them, begins the schedule on all of them at once, and collects their
//! records.
//!
//! ```text
//!     klad-bench-0 … klad-bench-N ── full recorders ──▶ the calling thread: collector, progress, interval log
//!                                 ◀─ empty recorders ──
//! ```
//!
//! Called by `runner`.

use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};

use crate::collector::Collector;
use crate::generator::{Generator, Shared};
use crate::interrupt;
use crate::recorder::{Failure, Recorder, Tally};
use crate::result::Interval;
use crate::schedule::{Nanos, SECOND};
use crate::socket::Sockets;
use klad_base::clock;
use klad_base::sync::{BoundedQueue, Cause, Condvar, Mutex, PushError, spawn_thread};

/// The number of places for each thread in the queue of full recorders, which all threads share. The collector may be
/// late by this many intervals. While the queue is full, a thread keeps its recorder for the next interval, too.
const DELIVERIES_MAX: usize = 16;

/// The longest wait for all connections before the start.
const CONNECT_PATIENCE: Nanos = 5 * SECOND;

/// The longest wait for one more connection, which is tried if no connection could be made. It gives the kernel's error
/// message.
const RETRY_TIMEOUT: Duration = Duration::from_secs(1);

/// A full recorder on its way to the collector.
struct Delivery {
    thread: usize,
    interval: u64,
    recorder: Recorder,
}

/// The queues and the start time that the threads and their caller share.
struct Channels {
    filled: BoundedQueue<Delivery>,
    empty: BoundedQueue<Recorder>,
    ready: BoundedQueue<anyhow::Result<(usize, Option<Failure>)>>,
    running: AtomicUsize,
    origin: Mutex<Origin>,
    origin_known: Condvar,
}

/// The start of the schedule.
#[derive(Clone, Copy)]
enum Origin {
    /// Not known: connections are still being made.
    Unknown,
    /// The moment of the start.
    At(Instant),
    /// There will be no run.
    Never,
}

/// What a thread returns at its end.
struct ThreadResult {
    recorder: Recorder,
    cpu: CpuShares,
}

/// The CPU time of a thread, in shares of the run's time, from 0.0 to 1.0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuShares {
    /// The share in which the thread worked: all CPU time without `polled`.
    pub used: f64,
    /// The share in polls that found nothing. The thread could have slept instead, so it had time left.
    pub polled: f64,
}

impl CpuShares {
    /// Computes the shares from `cpu` nanoseconds of CPU time in a run of length `run`, with `polled` nanoseconds in
    /// empty polls.
    #[expect(clippy::cast_precision_loss, reason = "shares")]
    fn of(cpu: u64, polled: u64, run: u128) -> CpuShares {
        let share = |part: u64| part as f64 / run.max(1) as f64;
        CpuShares { used: share(cpu.saturating_sub(polled)), polled: share(polled) }
    }
}

/// The records of a run that has ended.
#[derive(Debug)]
pub struct FinishedRun {
    /// All records, added up.
    pub collector: Collector,
    /// The CPU shares of each thread.
    pub cpu_shares: Vec<CpuShares>,
    /// The number of connections that were made before the start.
    pub connected: usize,
    /// Why the other connections were not made; `None` if all were made.
    pub unconnected: Option<Failure>,
    /// When the run was ended early, from the start of the schedule; `None` if it was not.
    pub interrupted: Option<Nanos>,
    /// The start of the schedule on `CLOCK_MONOTONIC`, nanoseconds.
    pub started_monotonic_ns: u64,
    /// The start of the schedule, milliseconds since 1970.
    pub started_unix_ms: u64,
}

/// Makes the load of `shared` with `threads` threads and `connections` connections. Calls `show` with the start
/// (milliseconds since 1970) and each interval. After an error from `show`, `drive` returns at once, and
/// the threads go on until the end of the run or of the process.
///
/// # Errors
/// If a thread cannot create its [`Sockets`], no connection can be made, signals cannot be handled, or `show` fails.
pub fn drive(
    shared: &Arc<Shared>,
    address: SocketAddr,
    threads: usize,
    connections: usize,
    mut show: impl FnMut(u64, &Interval, &Tally) -> anyhow::Result<()>,
) -> anyhow::Result<FinishedRun> {
    let channels = Arc::new(Channels {
        filled: BoundedQueue::new(DELIVERIES_MAX * threads),
        empty: BoundedQueue::new(DELIVERIES_MAX * threads),
        ready: BoundedQueue::new(threads),
        running: AtomicUsize::new(threads),
        origin: Mutex::new(Origin::Unknown),
        origin_known: Condvar::new(),
    });
    let handles: Vec<_> = (0..threads)
        .map(|thread| {
            let share = connections / threads + usize::from(thread < connections % threads);
            start_thread(channels.clone(), shared.clone(), address, thread, share)
        })
        .collect();
    let (connected, unconnected) = connect_all(&channels, threads, address)?;
    let started_unix_ms = clock::unix_ms();
    let started_monotonic_ns = clock::monotonic_ns();
    let origin = clock::now();
    let watch = interrupt::watch()?;
    watch.set_run(shared, origin);
    channels.announce_origin(Origin::At(origin));

    let mut collector =
        Collector::new(shared.phases.clone(), shared.mode(), threads, shared.interval, shared.good_within);
    while let Some(mut delivery) = channels.filled.pop() {
        collector.add(delivery.thread, delivery.interval, &delivery.recorder);
        delivery.recorder.clear();
        // If the queue is full, there are enough empty recorders.
        let _ = channels.empty.push(delivery.recorder);
        while let Some((interval, tally)) = collector.next_interval(false) {
            show(started_unix_ms, &interval, &tally)?;
        }
    }
    let cpu_shares = gather(handles, shared, &mut collector);
    let interrupted = (shared.end() < shared.phases.end()).then(|| shared.end());
    if let Some(at) = interrupted {
        collector.truncate(at);
    }
    while let Some((interval, tally)) = collector.next_interval(true) {
        show(started_unix_ms, &interval, &tally)?;
    }
    Ok(FinishedRun {
        collector,
        cpu_shares,
        connected,
        unconnected,
        interrupted,
        started_monotonic_ns,
        started_unix_ms,
    })
}

/// The error when not a single connection could be made.
#[derive(Debug)]
pub struct NoConnection(String);

impl fmt::Display for NoConnection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Waits until every thread has made its connections. Returns their number, and why there are not more.
fn connect_all(channels: &Channels, threads: usize, address: SocketAddr) -> anyhow::Result<(usize, Option<Failure>)> {
    let mut connected = 0;
    let mut failure = None;
    for _ in 0..threads {
        match channels.ready.pop().expect("it is never closed") {
            Ok((count, why)) => {
                connected += count;
                failure = failure.or(why);
            }
            Err(error) => {
                channels.announce_origin(Origin::Never);
                return Err(error);
            }
        }
    }
    if connected == 0 {
        channels.announce_origin(Origin::Never);
        let Some(why) = failure else { bail!("no connection was requested") };
        ensure!(why != Failure::Descriptors, "cannot connect to {address}: no file descriptor is left (ulimit -n)");
        ensure!(
            why != Failure::Ports,
            "cannot connect to {address}: no local port is left (net.ipv4.ip_local_port_range)"
        );
        // Connect once more to get the kernel's error message.
        TcpStream::connect_timeout(&address, RETRY_TIMEOUT)
            .with_context(|| NoConnection(format!("cannot connect to {address}")))?;
        return Err(
            anyhow!("no connection was made in time").context(NoConnection(format!("no connection to {address}")))
        );
    }
    Ok((connected, failure))
}

/// Waits for the threads, and adds their last records and the starts that no thread has recorded.
fn gather(
    handles: Vec<JoinHandle<Option<ThreadResult>>>,
    shared: &Shared,
    collector: &mut Collector,
) -> Vec<CpuShares> {
    let mut cpu_shares = Vec::new();
    for handle in handles {
        if let Some(left) = handle.join().expect("a panic ends the process") {
            collector.add_undelivered(&left.recorder);
            cpu_shares.push(left.cpu);
        }
    }
    let mut rest = Recorder::new(shared.phases.all().len());
    shared.record_untaken_starts(&mut rest);
    collector.add_undelivered(&rest);
    cpu_shares
}

fn start_thread(
    channels: Arc<Channels>,
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: usize,
    connections: usize,
) -> JoinHandle<Option<ThreadResult>> {
    spawn_thread(&format!("klad-bench-{thread}"), move || {
        let left = run_thread(&channels, shared, address, thread, connections);
        if channels.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            channels.filled.close();
        }
        left
    })
}

fn run_thread(
    channels: &Channels,
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: usize,
    connections: usize,
) -> Option<ThreadResult> {
    let phases = shared.phases.all().len();
    let address = shared.authors.address(thread).unwrap_or(address);
    let sockets = match Sockets::new(address, shared.polls) {
        Ok(sockets) => sockets,
        Err(error) => {
            channels.ready.push(Err(error)).unwrap_or_else(|_| unreachable!("there is a place for each thread"));
            return None;
        }
    };
    let mut generator = Generator::new(shared, sockets, thread, connections, |interval, recorder: &mut Recorder| {
        channels.deliver(thread, interval, recorder, phases);
    });
    let connected = generator.connect(CONNECT_PATIENCE);
    channels.ready.push(Ok(connected)).unwrap_or_else(|_| unreachable!("there is a place for each thread"));
    let origin = channels.wait_for_origin()?;
    generator.network().set_origin(origin);
    let (cpu_before, empty_before) = (clock::thread_cpu_ns(), generator.network().empty_poll_ns());
    generator.run();
    let cpu = CpuShares::of(
        clock::thread_cpu_ns().saturating_sub(cpu_before),
        generator.network().empty_poll_ns().saturating_sub(empty_before),
        clock::now().saturating_duration_since(origin).as_nanos(),
    );
    Some(ThreadResult { recorder: generator.into_recorder(), cpu })
}

impl Channels {
    /// Hands a full recorder over and leaves an empty one. If the collector is far behind, the recorder stays as it
    /// is.
    fn deliver(&self, thread: usize, interval: u64, recorder: &mut Recorder, phases: usize) {
        let fresh = self.empty.try_pop().unwrap_or_else(|| Recorder::new(phases));
        let delivery = Delivery { thread, interval, recorder: std::mem::replace(recorder, fresh) };
        if let Err(PushError::Full(delivery) | PushError::Closed(delivery)) = self.filled.push(delivery) {
            let _ = self.empty.push(std::mem::replace(recorder, delivery.recorder));
        }
    }

    fn announce_origin(&self, origin: Origin) {
        *self.origin.lock() = origin;
        self.origin_known.notify_all();
    }

    fn wait_for_origin(&self) -> Option<Instant> {
        let mut origin = self.origin.lock();
        loop {
            match *origin {
                Origin::At(origin) => return Some(origin),
                Origin::Never => return None,
                Origin::Unknown => origin = self.origin_known.wait(origin, Cause::Others),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_polls_are_not_work() {
        assert_eq!(CpuShares::of(900, 400, 1000), CpuShares { used: 0.5, polled: 0.4 });
        // The two clocks are read one after the other, so `polled` may be larger than `cpu`.
        assert_eq!(CpuShares::of(300, 400, 1000), CpuShares { used: 0.0, polled: 0.4 });
    }
}
