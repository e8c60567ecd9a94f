//! A worker: one thread, one runtime, its connections as local tasks, and the sweep that keeps their deadlines.
//!
//! Nothing here waits for storage or for a lock that is held long. Started by `server`; fed by `accept`.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use slab::Slab;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use super::connection::{self, Connection};
use super::figures::WorkerFigures;
use super::gate::{Gate, Sign};
use super::peers::Place;
use super::{Limits, eviction, runtime};
use crate::clock;
use crate::execution::{Executor, Local};
use crate::http::service::Service;
use crate::limits::{CONNECTIONS_CEILING, SWEEP_INTERVAL};
use crate::sync::{self, Live};

/// A connection on its way to a worker, with its place among all connections.
pub(super) struct Accepted {
    pub(super) stream: TcpStream,
    pub(super) place: Place,
}

/// The acceptor's end of a worker.
pub(super) struct WorkerHandle {
    sender: mpsc::Sender<Accepted>,
    figures: Arc<WorkerFigures>,
}

impl WorkerHandle {
    /// How many the worker has, those on their way included.
    pub(super) fn connections(&self) -> usize {
        self.figures.connections.load(Ordering::Relaxed)
    }

    /// What the worker shows of itself.
    pub(super) fn figures(&self) -> &Arc<WorkerFigures> {
        &self.figures
    }

    /// Whether it should have no more connections for now.
    pub(super) fn is_strained(&self) -> bool {
        self.figures.sign.is_strained()
    }

    /// Whether it lets in only what it can serve.
    pub(super) fn is_closed(&self) -> bool {
        self.figures.sign.is_closed()
    }

    pub(super) fn hand(&self, accepted: Accepted) {
        self.figures.connections.fetch_add(1, Ordering::Relaxed);
        // The channel has a place for each connection that there may be; it is closed only while klad stops.
        if self.sender.try_send(accepted).is_err() {
            self.figures.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What the connections of one worker share.
pub(super) struct Worker {
    pub(super) service: Service,
    pub(super) http: RefCell<hyper::server::conn::http1::Builder>,
    local: Rc<Local>,
    pub(super) gate: Rc<Gate>,
    /// Milliseconds since the worker's start, as of the last sweep: costs nothing to read.
    pub(super) now_ms: Rc<Cell<u64>>,
    connections: RefCell<Slab<Rc<Connection>>>,
    figures: Arc<WorkerFigures>,
    /// As of the last sweep.
    limits: RefCell<Arc<Limits>>,
    live: Arc<Live<Limits>>,
    draining: Cell<bool>,
}

/// Starts a worker's thread.
pub(super) fn start(
    number: usize,
    live: Arc<Live<Limits>>,
    executor: Arc<Executor>,
    stopped: watch::Receiver<bool>,
) -> (WorkerHandle, JoinHandle<()>) {
    let (sender, receiver) = mpsc::channel(CONNECTIONS_CEILING);
    let sign = Arc::<Sign>::default();
    let figures = WorkerFigures::new(sign.clone());
    let handle = WorkerHandle { sender, figures: figures.clone() };
    let thread = sync::spawn_thread(&format!("klad-worker-{number}"), move || {
        let runtime = runtime();
        let local = Local::new(executor);
        let limits = live.get();
        let gate = Gate::new(limits.turn_max, sign);
        let worker = Rc::new(Worker {
            service: Service::new(local.clone(), limits.service),
            local,
            http: RefCell::new(connection::http(&limits)),
            gate,
            now_ms: Rc::new(Cell::new(0)),
            connections: RefCell::new(Slab::new()),
            figures,
            limits: RefCell::new(limits),
            live,
            draining: Cell::new(false),
        });
        runtime.block_on(worker.run(receiver, stopped));
    });
    (handle, thread)
}

impl Worker {
    async fn run(self: &Rc<Worker>, mut receiver: mpsc::Receiver<Accepted>, mut stopped: watch::Receiver<bool>) {
        let sweep = tokio::task::spawn_local(self.clone().sweep());
        let turns = tokio::task::spawn_local(self.clone().turns());
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
        // Refuses, by closing them, connections that were accepted and never served.
        receiver.close();
        while let Some(accepted) = receiver.recv().await {
            drop(accepted);
            self.figures.connections.fetch_sub(1, Ordering::Relaxed);
        }
        self.drain(self.live.get().drain_timeout).await;
        sweep.abort();
        turns.abort();
    }

    fn serve(self: &Rc<Worker>, accepted: Accepted) {
        let Accepted { stream, place } = accepted;
        let connection = Connection::new(self.now_ms.clone());
        let key = self.connections.borrow_mut().insert(connection.clone());
        let worker = self.clone();
        tokio::task::spawn_local(async move {
            let why = connection.serve(&worker, stream).await;
            worker.connections.borrow_mut().remove(key);
            worker.figures.connections.fetch_sub(1, Ordering::Relaxed);
            worker.figures.count_closed(why);
            drop(place);
        });
    }

    /// Tells every connection to end after what it is doing, and waits for them, for `timeout` at most.
    async fn drain(&self, timeout: Duration) {
        self.draining.set(true);
        self.check_all();
        let deadline = clock::now() + timeout;
        while !self.connections.borrow().is_empty() && clock::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let left = self.connections.borrow().len();
        if left > 0 {
            tracing::warn!(connections = left, "closed before they had finished: the drain timeout is over");
        }
    }

    /// The turn's own task.
    async fn turns(self: Rc<Worker>) {
        poll_fn(|context| {
            if let Some(turn) = self.local.poll_turn(context) {
                self.figures.turns.record_time_owned(turn.length);
                if self.gate.turn_ended(turn) {
                    self.local.turn_goes_on();
                }
            }
            Poll::<()>::Pending
        })
        .await;
    }

    async fn sweep(self: Rc<Worker>) {
        let start = clock::now();
        let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now_ms = u64::try_from((clock::now() - start).as_millis()).expect("klad runs for less than an aeon");
            self.now_ms.set(now_ms);
            let used_ns = clock::thread_cpu_ns();
            self.figures.cpu_ns.add_owned(used_ns.saturating_sub(self.figures.cpu_ns.get()));
            self.gate.rested();
            self.look_at_limits();
            self.check_all();
            if self.limits.borrow().deadlines.body_rate_bytes_min > 0 {
                eviction::make_room(&self.connections.borrow(), self.service.room(), now_ms);
            }
        }
    }

    /// Takes over limits that have changed.
    fn look_at_limits(&self) {
        let limits = self.live.get();
        if !Arc::ptr_eq(&limits, &self.limits.borrow()) {
            self.service.set_options(limits.service);
            self.gate.set_turn_max(limits.turn_max);
            *self.http.borrow_mut() = connection::http(&limits);
            *self.limits.borrow_mut() = limits;
        }
    }

    fn check_all(&self) {
        let limits = self.limits.borrow().clone();
        for (_, connection) in self.connections.borrow().iter() {
            if self.gate.is_closed() {
                connection.restart_idle_clock();
            }
            connection.check(self.now_ms.get(), &limits.deadlines, self.draining.get());
        }
    }
}
