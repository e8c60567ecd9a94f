//! A worker: one thread with a runtime, its connections as local tasks, and a sweep that checks their deadlines.
//!
//! A worker waits for storage only with `--execution inline`, or, with `adaptive`, in short reads while storage is
//! quick. A worker never waits for a lock that is held long. `Server` starts the workers; `accept` hands connections to
//! them.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use slab::Slab;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use crate::connection::figures::WorkerFigures;
use crate::connection::gate::{Gate, GateStatus};
use crate::connection::peers::Place;
use crate::connection::plain::Workspace;
use crate::connection::{self, eviction};
use crate::connection::{Connection, ms};
use crate::exchange::{CloseReason, Draining, Exchange};
use crate::execution::{Executor, WorkerContext};
use crate::http::authorization::Authorization;
use crate::http::service::Service;
use crate::limits::{CONNECTIONS_CEILING, DRAIN_SWEEP_INTERVAL, SWEEP_COUNTS_MAX, SWEEP_INTERVAL};
use crate::net::handshake::Handshaker;
use crate::observe::slowest::Slowest;
use crate::observe::{Observer, RequestRecord};
use crate::request_metrics::Requests;
use crate::{Drain, Limits, Safety, runtime};
use klad_base::clock;
use klad_base::os::scheduler;
use klad_base::sync::{self, Live};

/// A connection on its way to a worker.
pub(crate) struct Accepted {
    pub(crate) stream: TcpStream,
    pub(crate) peer: Peer,
}

/// Who is at the other end of a connection.
pub(crate) enum Peer {
    /// A client, with its place among all connections.
    Client { _place: Place },
    /// The console, on the admin thread. The stream is one end of a pair of Unix sockets, without TLS.
    Console,
}

/// The acceptor's handle of a worker.
pub(crate) struct WorkerHandle {
    sender: mpsc::Sender<Accepted>,
    figures: Arc<WorkerFigures>,
    sweeps: Arc<AtomicU64>,
}

fn hand(sender: &mpsc::Sender<Accepted>, figures: &WorkerFigures, accepted: Accepted) {
    figures.connections.fetch_add(1, Ordering::Relaxed);
    // The channel has a place for each possible connection, so sending fails only if the channel is closed: klad stops.
    if sender.try_send(accepted).is_err() {
        figures.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Hands connections of the console to workers. Unlike a [`WorkerHandle`], this keeps no channel open, because a worker
/// that stops waits until its channel is closed, and only the acceptor decides when.
pub(crate) struct ConsoleHandles(Vec<(mpsc::WeakSender<Accepted>, Arc<WorkerFigures>)>);

impl ConsoleHandles {
    pub(crate) fn of(workers: &[WorkerHandle]) -> ConsoleHandles {
        ConsoleHandles(workers.iter().map(|worker| (worker.sender.downgrade(), worker.figures.clone())).collect())
    }

    /// Hands `stream` to the worker with the fewest connections. Returns `false` if klad stops.
    pub(crate) fn hand(&self, stream: UnixStream) -> bool {
        let least = |(_, figures): &&(_, Arc<WorkerFigures>)| figures.connections.load(Ordering::Relaxed);
        let (sender, figures) = self.0.iter().min_by_key(least).expect("at least one worker");
        let Some(sender) = sender.upgrade() else { return false };
        // A worker only reads, writes and polls the socket, which works alike for all socket families. So the type of
        // TCP streams is enough, and `Stream` needs no third kind.
        let stream = TcpStream::from(OwnedFd::from(stream));
        hand(&sender, figures, Accepted { stream, peer: Peer::Console });
        true
    }
}

/// The value of a worker's counter of sweeps after the worker has ended.
const ENDED: u64 = u64::MAX;

/// Monitors whether all workers run, by counting their sweeps.
#[derive(Clone, Debug)]
pub struct Pulse(Vec<(Arc<AtomicU64>, u64)>);

impl Pulse {
    pub(crate) fn of(workers: &[WorkerHandle]) -> Pulse {
        Pulse(workers.iter().map(|worker| (worker.sweeps.clone(), 0)).collect())
    }

    /// Whether each worker has made a sweep since the last call of this function, or has ended.
    pub fn beats(&mut self) -> bool {
        let mut all = true;
        for (sweeps, seen) in &mut self.0 {
            let now = sweeps.load(Ordering::Relaxed);
            all &= now == ENDED || now > *seen;
            *seen = now;
        }
        all
    }
}

impl WorkerHandle {
    /// The number of the worker's connections, including those on their way to the worker.
    pub(crate) fn connections(&self) -> usize {
        self.figures.connections.load(Ordering::Relaxed)
    }

    /// The worker's figures.
    pub(crate) fn figures(&self) -> &Arc<WorkerFigures> {
        &self.figures
    }

    /// Whether the worker is strained: its loop iterations are so long that it should get new connections only if all
    /// workers are strained.
    pub(crate) fn is_strained(&self) -> bool {
        self.figures.gate_status.is_strained()
    }

    /// Whether the worker's gate is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.figures.gate_status.is_closed()
    }

    pub(crate) fn hand(&self, accepted: Accepted) {
        hand(&self.sender, &self.figures, accepted);
    }
}

/// What the connections of one worker share.
pub(crate) struct Worker {
    pub(crate) service: Service,
    pub(crate) http: RefCell<hyper::server::conn::http1::Builder>,
    pub(crate) workspace: Workspace,
    context: Rc<WorkerContext>,
    /// `None`: no TLS.
    pub(crate) handshaker: Option<Handshaker>,
    pub(crate) gate: Rc<Gate>,
    pub(crate) observer: Rc<Observer>,
    /// The worker's coarse clock, in milliseconds. Each sweep advances it, by at most [`SWEEP_COUNTS_MAX`], even if the
    /// worker could not run for longer. Reading it costs nothing.
    pub(crate) now_ms: Rc<Cell<u64>>,
    /// When the coarse clock was last advanced.
    ticked: Cell<Instant>,
    sweeps: Arc<AtomicU64>,
    connections: RefCell<Slab<Rc<Connection>>>,
    figures: Arc<WorkerFigures>,
    /// The limits as of the last sweep.
    limits: RefCell<Arc<Limits>>,
    live: Arc<Live<Limits>>,
    draining: Cell<Option<Draining>>,
}

/// What all workers share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) limits: Arc<Live<Limits>>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) slowest: Arc<Slowest>,
    pub(crate) safety: Safety,
    /// `true`: klad stops.
    pub(crate) stopped: watch::Receiver<bool>,
}

/// Starts a worker's thread.
pub(crate) fn start(number: usize, shared: Shared) -> (WorkerHandle, JoinHandle<()>) {
    let Shared { limits: live, executor, requests, slowest, safety, stopped } = shared;
    let (sender, receiver) = mpsc::channel(CONNECTIONS_CEILING);
    let gate_status = Arc::<GateStatus>::default();
    let figures = WorkerFigures::new(gate_status.clone());
    let sweeps = Arc::<AtomicU64>::default();
    let handle = WorkerHandle { sender, figures: figures.clone(), sweeps: sweeps.clone() };
    let thread = sync::spawn_thread(&format!("klad-worker-{number}"), move || {
        scheduler::shorten_time_slices();
        let runtime = runtime();
        let context = WorkerContext::new(executor);
        let limits = live.get();
        let gate = Gate::new(limits.iteration_max, gate_status);
        let worker = Rc::new(Worker {
            service: Service::new(context.clone(), limits.service, Authorization::new(safety.tokens)),
            context,
            handshaker: safety.tls.map(Handshaker::new),
            http: RefCell::new(connection::http(&limits)),
            workspace: Workspace::new(),
            gate,
            observer: Observer::new(requests, slowest, number),
            now_ms: Rc::new(Cell::new(0)),
            connections: RefCell::new(Slab::new()),
            figures,
            limits: RefCell::new(limits),
            live,
            draining: Cell::new(None),
            ticked: Cell::new(clock::now()),
            sweeps,
        });
        runtime.block_on(worker.run(receiver, stopped));
        worker.sweeps.store(ENDED, Ordering::Relaxed);
    });
    (handle, thread)
}

impl Worker {
    async fn run(self: &Rc<Worker>, mut receiver: mpsc::Receiver<Accepted>, mut stopped: watch::Receiver<bool>) {
        let sweep = tokio::task::spawn_local(self.clone().sweep());
        let iterations = tokio::task::spawn_local(self.clone().iterations());
        loop {
            tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => break,
                accepted = receiver.recv() => match accepted {
                    Some(accepted) => self.serve(accepted),
                    None => break,
                },
            }
        }
        let drain = self.live.get().drain.clone();
        self.drain(receiver, &drain).await;
        sweep.abort();
        iterations.abort();
    }

    /// Serves connections that still arrive, lets every connection finish its request, and waits until all connections
    /// have ended or the drain timeout is over.
    async fn drain(self: &Rc<Worker>, mut receiver: mpsc::Receiver<Accepted>, drain: &Drain) {
        let deadline = clock::now() + drain.timeout;
        self.tick();
        self.context.stop_feeds();
        self.draining.set(Some(Draining { since_ms: self.now_ms.get(), idle_patience: drain.idle_patience }));
        let mut ticks = tokio::time::interval(DRAIN_SWEEP_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut accepting = true;
        while (accepting || !self.connections.borrow().is_empty()) && clock::now() < deadline {
            tokio::select! {
                biased;
                _ = ticks.tick() => self.check_all(),
                accepted = receiver.recv(), if accepting => match accepted {
                    Some(accepted) => self.serve(accepted),
                    None => accepting = false,
                },
            }
        }
        let left = self.connections.borrow().len() + receiver.len();
        if left > 0 {
            tracing::warn!(
                connections = left,
                "the drain timeout has ended; klad closes these connections before they have finished"
            );
        }
        for (_, connection) in self.connections.borrow().iter() {
            connection.exchange().connection_ends();
            self.figures.count_closed(CloseReason::Stopping);
        }
    }

    /// Whether the worker reads plain requests without hyper.
    pub(crate) fn has_fast_path(&self) -> bool {
        self.limits.borrow().fast_path
    }

    /// Since when klad has been stopping; `None` if klad is not stopping. While klad stops, each answer says
    /// `Connection: close`.
    pub(crate) fn draining(&self) -> Option<Draining> {
        self.draining.get()
    }

    /// Counts requests that were read without hyper.
    pub(crate) fn count_plain(&self, requests: u64) {
        self.figures.plain.add_owned(requests);
    }

    /// The maximum of bytes of a head, `--head-max`. The fast path leaves a longer head to hyper, which rejects it.
    pub(crate) fn head_bytes_max(&self) -> usize {
        self.limits.borrow().head_bytes_max
    }

    /// Advances the coarse clock to now, but by at most [`SWEEP_COUNTS_MAX`]. If the process was stopped (SIGSTOP, a
    /// paused container) or the worker had no CPU time, clients may have sent bytes that klad has not read. So this
    /// time must not count against the clients.
    fn tick(&self) {
        let ticked = self.ticked.get();
        let passed_ms = ms(clock::now().saturating_duration_since(ticked));
        self.ticked.set(ticked + Duration::from_millis(passed_ms));
        self.now_ms.set(self.now_ms.get() + passed_ms.min(ms(SWEEP_COUNTS_MAX)));
    }

    fn serve(self: &Rc<Worker>, accepted: Accepted) {
        let Accepted { stream, peer } = accepted;
        let request = RequestRecord::new(self.observer.clone(), stream.peer_addr().ok());
        let connection = Connection::new(Exchange::new(self.now_ms.clone(), request));
        let key = self.connections.borrow_mut().insert(connection.clone());
        let worker = self.clone();
        tokio::task::spawn_local(async move {
            let why = connection.serve(&worker, stream, &peer).await;
            worker.connections.borrow_mut().remove(key);
            worker.figures.connections.fetch_sub(1, Ordering::Relaxed);
            // The counters do not count the console's connections.
            if let Peer::Client { .. } = peer {
                worker.figures.count_closed(why);
            }
            drop(peer);
        });
    }

    /// The worker's task that runs at the end of each loop iteration, and never completes.
    async fn iterations(self: Rc<Worker>) {
        poll_fn(|context| {
            if let Some(iteration) = self.context.poll_iteration(context) {
                self.figures.iterations.record_time_owned(iteration.length);
                if self.gate.iteration_ended(iteration) {
                    self.context.begin_iteration();
                }
            }
            Poll::<()>::Pending
        })
        .await;
    }

    async fn sweep(self: Rc<Worker>) {
        let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.sweeps.fetch_add(1, Ordering::Relaxed);
            let used_ns = clock::thread_cpu_ns();
            self.figures.cpu_ns.add_owned(used_ns.saturating_sub(self.figures.cpu_ns.get()));
            self.workspace.tick();
            self.gate.rested();
            self.apply_changed_limits();
            self.observer.tick();
            self.check_all();
            if self.limits.borrow().deadlines.body_rate_bytes_min > 0 {
                eviction::end_slow_requests(&self.connections.borrow(), self.service.budget());
            }
        }
    }

    /// Applies limits that have changed.
    fn apply_changed_limits(&self) {
        let limits = self.live.get();
        if !Arc::ptr_eq(&limits, &self.limits.borrow()) {
            self.service.set_options(limits.service);
            self.gate.set_iteration_max(limits.iteration_max);
            *self.http.borrow_mut() = connection::http(&limits);
            *self.limits.borrow_mut() = limits;
        }
    }

    fn check_all(&self) {
        let limits = self.limits.borrow().clone();
        self.tick();
        for (_, connection) in self.connections.borrow().iter() {
            if self.gate.is_closed() {
                connection.exchange().restart_idle_clock();
            }
            connection.check(&limits.deadlines, self.draining.get());
        }
    }
}
