//! A worker: one thread, one runtime, its connections as local tasks, and the sweep that keeps their deadlines.
//!
//! Nothing here waits for storage or for a lock that is held long. Started by `server`; fed by `accept`.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use slab::Slab;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use super::connection::{self, Connection};
use super::gate::{Gate, Sign};
use super::handshake::Handshaker;
use super::peers::Place;
use super::{Deadlines, Options, eviction, runtime};
use crate::clock;
use crate::execution::{Executor, Local};
use crate::http::authorization::Authorization;
use crate::http::service::Service;
use crate::limits::SWEEP_INTERVAL;
use crate::sync;

/// A connection on its way to a worker, with its place among all connections.
pub(super) struct Accepted {
    pub(super) stream: TcpStream,
    pub(super) place: Place,
}

/// The acceptor's end of a worker.
pub(super) struct WorkerHandle {
    sender: mpsc::Sender<Accepted>,
    connections: Arc<AtomicUsize>,
    sign: Arc<Sign>,
}

impl WorkerHandle {
    /// How many the worker has, those on their way included.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Whether it should have no more connections for now.
    pub(super) fn is_strained(&self) -> bool {
        self.sign.is_strained()
    }

    /// Whether it lets in only what it can serve.
    pub(super) fn is_closed(&self) -> bool {
        self.sign.is_closed()
    }

    pub(super) fn hand(&self, accepted: Accepted) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        // The channel has a place for each connection that there may be; it is closed only while klad stops.
        if self.sender.try_send(accepted).is_err() {
            self.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What the connections of one worker share.
pub(super) struct Worker {
    pub(super) service: Service,
    pub(super) http: hyper::server::conn::http1::Builder,
    local: Rc<Local>,
    /// `None`: in clear.
    pub(super) handshaker: Option<Handshaker>,
    pub(super) gate: Rc<Gate>,
    /// Milliseconds since the worker's start, as of the last sweep: costs nothing to read.
    pub(super) now_ms: Rc<Cell<u64>>,
    connections: RefCell<Slab<Rc<Connection>>>,
    count: Arc<AtomicUsize>,
    deadlines: Deadlines,
    draining: Cell<bool>,
}

/// Starts a worker's thread.
pub(super) fn start(
    number: usize,
    options: &Options,
    executor: Arc<Executor>,
    stopped: watch::Receiver<bool>,
) -> (WorkerHandle, JoinHandle<()>) {
    let (sender, receiver) = mpsc::channel(options.connections_max);
    let connections = Arc::new(AtomicUsize::new(0));
    let sign = Arc::<Sign>::default();
    let handle = WorkerHandle { sender, connections: connections.clone(), sign: sign.clone() };
    let options = options.clone();
    let thread = sync::spawn_thread(&format!("klad-worker-{number}"), move || {
        let runtime = runtime();
        let local = Local::new(executor);
        let gate = Gate::new(options.turn_max, sign);
        let worker = Rc::new(Worker {
            service: Service::new(
                local.clone(),
                options.service.clone(),
                Authorization::new(options.safety.tokens.clone()),
            ),
            local,
            handshaker: options.safety.tls.clone().map(Handshaker::new),
            http: connection::http(&options),
            gate,
            now_ms: Rc::new(Cell::new(0)),
            connections: RefCell::new(Slab::new()),
            count: connections,
            deadlines: options.deadlines.clone(),
            draining: Cell::new(false),
        });
        runtime.block_on(worker.run(receiver, stopped, options.drain_timeout));
    });
    (handle, thread)
}

impl Worker {
    async fn run(
        self: &Rc<Worker>,
        mut receiver: mpsc::Receiver<Accepted>,
        mut stopped: watch::Receiver<bool>,
        drain_timeout: Duration,
    ) {
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
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        self.drain(drain_timeout).await;
        sweep.abort();
        turns.abort();
    }

    fn serve(self: &Rc<Worker>, accepted: Accepted) {
        let Accepted { stream, place } = accepted;
        let connection = Connection::new(self.now_ms.clone());
        let key = self.connections.borrow_mut().insert(connection.clone());
        let worker = self.clone();
        tokio::task::spawn_local(async move {
            connection.serve(&worker, stream).await;
            worker.connections.borrow_mut().remove(key);
            worker.count.fetch_sub(1, Ordering::Relaxed);
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
            if let Some(turn) = self.local.poll_turn(context)
                && self.gate.turn_ended(turn)
            {
                self.local.turn_goes_on();
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
            self.gate.rested();
            self.check_all();
            if self.deadlines.body_rate_bytes_min > 0 {
                eviction::make_room(&self.connections.borrow(), self.service.room(), now_ms);
            }
        }
    }

    fn check_all(&self) {
        for (_, connection) in self.connections.borrow().iter() {
            if self.gate.is_closed() {
                connection.restart_idle_clock();
            }
            connection.check(self.now_ms.get(), &self.deadlines, self.draining.get());
        }
    }
}
