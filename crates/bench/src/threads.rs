//! The threads of a run: started, connected, set off at the same moment, and listened to until they end.
//!
//! ```text
//!     klad-bench-0 … klad-bench-N ── filled recorders ──▶ the calling thread: collector, progress, interval log
//!                                 ◀─ empty ones ────────
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

/// Filled recorders that may wait for the collector, for each thread: seconds of it not running. Then a thread goes on with
/// the recorder it has, and its intervals become longer.
const DELIVERIES_MAX: usize = 16;

/// For all connections to be made before the start.
const CONNECT_PATIENCE: Nanos = 5 * SECOND;

/// For one connection, when none could be made.
const RETRY_TIMEOUT: Duration = Duration::from_secs(1);

/// A filled recorder.
struct Delivery {
    thread: usize,
    interval: u64,
    recorder: Recorder,
}

/// What the threads and the caller share beside the run itself.
struct Crew {
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
    /// Connections are still being made.
    Unknown,
    /// It is now.
    At(Instant),
    /// There will be no run.
    Never,
}

/// What a thread leaves.
struct Left {
    recorder: Recorder,
    cpu: CpuShares,
}

/// CPU time of a thread, each as a share of the run's time, from 0.0 to 1.0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuShares {
    /// What its work took.
    pub used: f64,
    /// In polls that found nothing, where it could have slept and had time left.
    pub polled: f64,
}

impl CpuShares {
    /// Of `cpu` nanoseconds on a core in `run`, of which `polled` were in vain.
    #[expect(clippy::cast_precision_loss, reason = "shares")]
    fn of(cpu: u64, polled: u64, run: u128) -> CpuShares {
        let share = |part: u64| part as f64 / run.max(1) as f64;
        CpuShares { used: share(cpu.saturating_sub(polled)), polled: share(polled) }
    }
}

/// A run that has ended.
#[derive(Debug)]
pub struct Driven {
    /// All that was recorded.
    pub collector: Collector,
    /// Of each thread.
    pub cpu_shares: Vec<CpuShares>,
    /// Connections that were made before the start.
    pub connected: usize,
    /// Why others were not; `None`: there are no others.
    pub unconnected: Option<Failure>,
    /// When the run was ended early, from its start.
    pub interrupted: Option<Nanos>,
    /// The start on `CLOCK_MONOTONIC`, nanoseconds.
    pub started_monotonic_ns: u64,
    /// The start, milliseconds since 1970.
    pub started_unix_ms: u64,
}

/// Makes the load of `shared` on `threads` threads with `connections` connections. `show` is called with the
/// start (milliseconds since 1970) and each interval, and ends the run when it fails.
///
/// # Errors
/// When no connection can be made, or what `show` returned.
pub fn drive(
    shared: &Arc<Shared>,
    address: SocketAddr,
    threads: usize,
    connections: usize,
    mut show: impl FnMut(u64, &Interval, &Tally) -> anyhow::Result<()>,
) -> anyhow::Result<Driven> {
    let crew = Arc::new(Crew {
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
            start_thread(crew.clone(), shared.clone(), address, thread, share)
        })
        .collect();
    let (connected, unconnected) = connect_all(&crew, threads, address)?;
    let started_unix_ms = clock::unix_ms();
    let started_monotonic_ns = clock::monotonic_ns();
    let origin = clock::now();
    let watch = interrupt::watch()?;
    watch.over(shared, origin);
    crew.set_off(Origin::At(origin));

    let mut collector =
        Collector::new(shared.phases.clone(), shared.mode(), threads, shared.interval, shared.good_within);
    while let Some(mut delivery) = crew.filled.pop() {
        collector.add(delivery.thread, delivery.interval, &delivery.recorder);
        delivery.recorder.clear();
        // A full queue means that there are enough.
        let _ = crew.empty.push(delivery.recorder);
        while let Some((interval, tally)) = collector.next_interval(false) {
            show(started_unix_ms, &interval, &tally)?;
        }
    }
    let cpu_shares = gather(handles, shared, &mut collector);
    let interrupted = (shared.end() < shared.phases.end()).then(|| shared.end());
    if let Some(at) = interrupted {
        collector.cut(at);
    }
    while let Some((interval, tally)) = collector.next_interval(true) {
        show(started_unix_ms, &interval, &tally)?;
    }
    Ok(Driven { collector, cpu_shares, connected, unconnected, interrupted, started_monotonic_ns, started_unix_ms })
}

/// Not one connection could be made.
#[derive(Debug)]
pub struct NoConnection(String);

impl fmt::Display for NoConnection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Waits until every thread has made its connections; returns how many there are, and why there are no more.
fn connect_all(crew: &Crew, threads: usize, address: SocketAddr) -> anyhow::Result<(usize, Option<Failure>)> {
    let mut connected = 0;
    let mut failure = None;
    for _ in 0..threads {
        match crew.ready.pop().expect("it is never closed") {
            Ok((count, why)) => {
                connected += count;
                failure = failure.or(why);
            }
            Err(error) => {
                crew.set_off(Origin::Never);
                return Err(error);
            }
        }
    }
    if connected == 0 {
        crew.set_off(Origin::Never);
        let Some(why) = failure else { bail!("no connection was asked for") };
        ensure!(why != Failure::Descriptors, "cannot connect to {address}: no descriptor is left (ulimit -n)");
        ensure!(why != Failure::Ports, "cannot connect to {address}: no local port is left");
        // Once more, for the kernel's words.
        TcpStream::connect_timeout(&address, RETRY_TIMEOUT)
            .with_context(|| NoConnection(format!("cannot connect to {address}")))?;
        return Err(anyhow!("none could be made in time").context(NoConnection(format!("no connection to {address}"))));
    }
    Ok((connected, failure))
}

/// What the threads leave, and what none of them has taken from the schedule.
fn gather(handles: Vec<JoinHandle<Option<Left>>>, shared: &Shared, collector: &mut Collector) -> Vec<CpuShares> {
    let mut cpu_shares = Vec::new();
    for handle in handles {
        if let Some(left) = handle.join().expect("a panic ends the process") {
            collector.add_rest(&left.recorder);
            cpu_shares.push(left.cpu);
        }
    }
    let mut rest = Recorder::new(shared.phases.all().len());
    shared.record_rest(&mut rest);
    collector.add_rest(&rest);
    cpu_shares
}

fn start_thread(
    crew: Arc<Crew>,
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: usize,
    connections: usize,
) -> JoinHandle<Option<Left>> {
    spawn_thread(&format!("klad-bench-{thread}"), move || {
        let left = run_thread(&crew, shared, address, thread, connections);
        if crew.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            crew.filled.close();
        }
        left
    })
}

fn run_thread(
    crew: &Crew,
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: usize,
    connections: usize,
) -> Option<Left> {
    let phases = shared.phases.all().len();
    let address = shared.authors.address(thread).unwrap_or(address);
    let sockets = match Sockets::new(address, shared.polls) {
        Ok(sockets) => sockets,
        Err(error) => {
            crew.ready.push(Err(error)).unwrap_or_else(|_| unreachable!("there is a place for each thread"));
            return None;
        }
    };
    let mut generator = Generator::new(shared, sockets, thread, connections, |interval, recorder: &mut Recorder| {
        crew.deliver(thread, interval, recorder, phases);
    });
    let connected = generator.connect(CONNECT_PATIENCE);
    crew.ready.push(Ok(connected)).unwrap_or_else(|_| unreachable!("there is a place for each thread"));
    let origin = crew.wait_for_origin()?;
    generator.network().set_origin(origin);
    let (cpu_before, vain_before) = (clock::thread_cpu_ns(), generator.network().polled_in_vain());
    generator.run();
    let cpu = CpuShares::of(
        clock::thread_cpu_ns().saturating_sub(cpu_before),
        generator.network().polled_in_vain().saturating_sub(vain_before),
        clock::now().saturating_duration_since(origin).as_nanos(),
    );
    Some(Left { recorder: generator.into_recorder(), cpu })
}

impl Crew {
    /// Hands a filled recorder over, and leaves an empty one; or leaves it as it is when the collector is far behind.
    fn deliver(&self, thread: usize, interval: u64, recorder: &mut Recorder, phases: usize) {
        let fresh = self.empty.try_pop().unwrap_or_else(|| Recorder::new(phases));
        let delivery = Delivery { thread, interval, recorder: std::mem::replace(recorder, fresh) };
        if let Err(PushError::Full(delivery) | PushError::Closed(delivery)) = self.filled.push(delivery) {
            let _ = self.empty.push(std::mem::replace(recorder, delivery.recorder));
        }
    }

    fn set_off(&self, origin: Origin) {
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
    fn polls_in_vain_are_no_work() {
        assert_eq!(CpuShares::of(900, 400, 1000), CpuShares { used: 0.5, polled: 0.4 });
        // Two clocks, read one after the other.
        assert_eq!(CpuShares::of(300, 400, 1000), CpuShares { used: 0.0, polled: 0.4 });
    }
}
