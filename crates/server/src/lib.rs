//! Starts and stops the server's threads.
//!
//! ```text
//!   klad-accept ── fewest connections ──▶ klad-worker-N   one single-threaded runtime each; connections as local tasks
//!   klad-admin     the admin listener, with its own runtime: reads the workers' counters, never waits for a worker
//!   klad-memstats  reads the allocator's figures, which may wait
//!   klad-maint     maintenance
//!   threads of execution: klad-queues, klad-sync, klad-monitor; with --execution adaptive klad-commit, klad-storage-N
//! ```
//!
//! `main` calls this, and so do tests with their own engines.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;

use crate::admin::console::Console;
use crate::admin::control::Control;
use crate::admin::{Admin, AllocatorFigures, Shares, listener as admin_thread};
use crate::connection::worker;
use crate::execution::Executor;
use crate::execution::maintenance::{Maintenance, MaintenanceThread};
use crate::http::api_error::ApiError;
use crate::http::authorization::Authorization;
use crate::http::service;
use crate::limits::ALLOCATOR_READ_INTERVAL;
use crate::observe::slowest::{Retention, Slowest};
use crate::request_metrics::Requests;
use klad_base::clock;
use klad_base::os::descriptors;
use klad_base::sync::{self, Live, Signal};
use klad_storage::Engine;

use crate::connection::accept;
use crate::connection::peers::PeerRejecter;

pub mod net;

pub mod connection;

pub mod http;

pub mod exchange;
pub mod observe;

pub mod execution;

pub mod admin;

pub mod limits;
pub mod logs;
pub mod request_metrics;
pub mod tokens;

use connection::figures::Figures;
pub use connection::worker::Pulse;
pub use exchange::Deadlines;
pub use net::safety::Safety;

/// When klad stops, a running maintenance job has at least this long to finish, even if clients have used up the drain
/// timeout. A small checkpoint can then complete.
const MAINTENANCE_PATIENCE_MIN: Duration = Duration::from_secs(1);

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of workers.
    pub threads: usize,
    /// How the limit of open files is divided.
    pub shares: descriptors::Shares,
    /// Settings that may change while klad serves.
    pub limits: Limits,
    /// Settings of the execution strategy.
    pub execution: execution::Options,
    /// The directory for checkpoints.
    pub checkpoints: PathBuf,
    /// Tokens and TLS: who may connect, and what each client may do.
    pub safety: Safety,
}

/// Limits that may change while klad serves, by [`LiveLimits::set`].
#[derive(Clone, Debug)]
pub struct Limits {
    /// The maximum of open connections. At the limit klad stops accepting until a connection closes.
    pub connections_max: usize,
    /// The maximum of connections from one address; klad answers further ones with 503. `None`: no limit.
    pub connections_per_peer: Option<usize>,
    /// The maximum of bytes of a request's head. A change does not affect connections that hyper is serving.
    pub head_bytes_max: usize,
    /// How long klad waits for a client.
    pub deadlines: Deadlines,
    /// A worker's gate may close after a loop iteration that is longer than this. `None`: the gate never closes.
    pub iteration_max: Option<Duration>,
    /// How klad treats connections when it stops.
    pub drain: Drain,
    /// Limits and defaults of requests.
    pub service: service::Options,
    /// Whether workers read plain requests without hyper.
    pub fast_path: bool,
    /// Limits of operations.
    pub operations: execution::Limits,
    /// How the memory budget is divided, for `/debug/memory` and the metrics.
    pub memory: Shares,
}

/// How klad stops.
#[derive(Clone, Debug)]
pub struct Drain {
    /// For this long after the request to stop, klad reports that it is not ready, but serves as before.
    pub delay: Duration,
    /// After `delay`, connections have this long to finish.
    pub timeout: Duration,
    /// klad keeps an idle connection for this long, and closes it if no request has arrived by then. Zero: klad closes
    /// idle connections at once, even if a request has arrived that klad has not read yet.
    pub idle_patience: Duration,
    /// For this long, klad still accepts connections that clients have begun to open. Zero: klad accepts no more
    /// connections, not even those in the backlog.
    pub accept_patience: Duration,
}

/// A running server.
pub struct Server {
    address: SocketAddr,
    admin_address: SocketAddr,
    pulse: Pulse,
    stopping: Arc<AtomicBool>,
    stop: watch::Sender<bool>,
    serving: Vec<JoinHandle<()>>,
    stop_admin: watch::Sender<bool>,
    admin: JoinHandle<()>,
    stop_figures: Arc<Signal>,
    figures: JoinHandle<()>,
    maintenance: MaintenanceThread,
    storage: execution::Threads,
    limits: LiveLimits,
}

/// Reads and changes the limits of a running server.
#[derive(Clone)]
pub struct LiveLimits {
    limits: Arc<Live<Limits>>,
    executor: Arc<Executor>,
}

impl LiveLimits {
    /// Returns the current limits.
    #[must_use]
    pub fn get(&self) -> Arc<Limits> {
        self.limits.get()
    }

    /// Changes the limits. They take effect within [`SWEEP_INTERVAL`](crate::limits::SWEEP_INTERVAL). Operations that
    /// klad has already admitted continue, even if they exceed the new limits.
    pub fn set(&self, limits: Limits) {
        self.executor.set_limits(&limits.operations);
        self.limits.set(limits);
    }
}

impl Server {
    /// Starts to serve `engine` on `listener`, and the admin interface on `admin_listener`. `control` is called once
    /// with the handle that changes the limits, and returns the object that answers `/config` and `/reload`.
    ///
    /// # Errors
    /// When the kernel does not allow klad to use the listeners.
    pub fn start(
        options: &Options,
        engine: Arc<dyn Engine>,
        listener: TcpListener,
        admin_listener: TcpListener,
        control: impl FnOnce(LiveLimits) -> Arc<dyn Control>,
    ) -> std::io::Result<Server> {
        let address = listener.local_addr()?;
        let admin_address = admin_listener.local_addr()?;
        listener.set_nonblocking(true)?;
        admin_listener.set_nonblocking(true)?;
        let (maintenance, maintenance_thread) = Maintenance::start(engine.clone(), options.checkpoints.clone());
        let (executor, storage) = Executor::start(engine, &options.execution, &options.limits.operations);
        let limits = Live::new(options.limits.clone());
        let (stop, stopped) = watch::channel(false);
        let safety = options.safety.clone();
        let requests = Arc::new(Requests::new(options.threads, ApiError::CODES));
        let slowest = Arc::new(Slowest::new(options.threads, Retention::DEFAULT));
        let shared = worker::Shared {
            limits: limits.clone(),
            executor: executor.clone(),
            requests: requests.clone(),
            slowest: slowest.clone(),
            safety: safety.clone(),
            stopped: stopped.clone(),
        };
        let start = |number| worker::start(number, shared.clone());
        let (handles, mut serving): (Vec<_>, Vec<_>) = (0..options.threads).map(start).unzip();
        let figures = Arc::new(figures_of(&handles, limits.clone()));
        let pulse = Pulse::of(&handles);
        let console = Console::new(worker::ConsoleHandles::of(&handles), !safety.admin_is_weaker());
        let rejecter = PeerRejecter::new(safety.tls.is_some(), options.shares.lingering);
        let (accepts, live) = (figures.accept.clone(), limits.clone());
        serving.push(accept::start(listener, handles, live, accepts, requests.clone(), rejecter, stopped));
        let stopping = Arc::new(AtomicBool::new(false));
        let (stop_admin, admin_stopped) = watch::channel(false);
        let limits = LiveLimits { limits, executor: executor.clone() };
        let allocator = Arc::<AllocatorFigures>::default();
        let stop_figures = Arc::<Signal>::default();
        let figures_thread = start_allocator_figures(allocator.clone(), stop_figures.clone());
        let admin = {
            let live = limits.clone();
            Admin {
                maintenance,
                control: control(limits.clone()),
                authorization: Authorization::new(safety.tokens.clone()),
                executor,
                stopping: stopping.clone(),
                draining: std::cell::Cell::new(false),
                shares: Box::new(move || live.get().memory.clone()),
                allocator,
                slowest,
                sources: vec![requests, figures.clone(), Arc::new(safety.clone())],
                connections: Box::new(move || figures.open()),
                console,
                started: clock::now(),
                #[cfg(target_os = "linux")]
                profiler: admin::Profiler::default(),
            }
        };
        let tls = safety.tls.filter(|_| safety.admin_tls);
        let admin = admin_thread::start(admin_listener, admin, tls, options.shares.admin, admin_stopped);
        Ok(Server {
            address,
            admin_address,
            pulse,
            stopping,
            stop,
            serving,
            stop_admin,
            admin,
            stop_figures,
            figures: figures_thread,
            maintenance: maintenance_thread,
            storage,
            limits,
        })
    }

    /// The address of the data listener. If the options have port 0, this has the port that the kernel chose.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the admin listener.
    #[must_use]
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// The handle that changes the limits.
    #[must_use]
    pub fn limits(&self) -> &LiveLimits {
        &self.limits
    }

    /// A monitor that tells whether all workers run.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Stops the server.
    ///
    /// klad first reports that it is not ready and waits for the drain delay. Then it accepts the connections that are
    /// already waiting, and answers requests until all connections have ended or the drain timeout is over. It
    /// completes all admitted operations, and syncs. A running checkpoint may take the rest of the drain timeout, and
    /// in any case a second.
    ///
    /// # Errors
    /// The engine's message if the last sync failed.
    pub fn stop(self) -> Result<(), String> {
        self.stopping.store(true, Ordering::Release);
        // Always waits for the full delay. A second signal to stop ends the process.
        let drain = self.limits.get().drain.clone();
        Signal::default().wait_timeout(drain.delay);
        let draining = clock::now();
        self.maintenance.close();
        self.stop.send_replace(true);
        for thread in self.serving {
            thread.join().expect("a thread that panics ends the process");
        }
        // Storage stops before maintenance, because acknowledged writes must be synced even if the disk is too slow for
        // a running checkpoint.
        let synced = self.storage.stop();
        let left = drain.timeout.saturating_sub(clock::now().duration_since(draining));
        self.maintenance.stop(left.max(MAINTENANCE_PATIENCE_MIN));
        self.stop_admin.send_replace(true);
        self.stop_figures.raise();
        for thread in [self.admin, self.figures] {
            thread.join().expect("a thread that panics ends the process");
        }
        synced
    }
}

/// Starts the thread that reads the allocator's figures. This is a separate thread because reading the figures may
/// wait.
fn start_allocator_figures(allocator: Arc<AllocatorFigures>, stop: Arc<Signal>) -> JoinHandle<()> {
    allocator.refresh();
    sync::spawn_thread("klad-memstats", move || {
        while !stop.wait_timeout(ALLOCATOR_READ_INTERVAL) {
            allocator.refresh();
        }
    })
}

fn figures_of(workers: &[worker::WorkerHandle], limits: Arc<Live<Limits>>) -> Figures {
    Figures {
        workers: workers.iter().map(|worker| worker.figures().clone()).collect(),
        accept: Arc::default(),
        connections_max: Box::new(move || limits.get().connections_max),
    }
}

/// Returns a single-threaded runtime whose tasks stay on their thread.
fn runtime() -> tokio::runtime::LocalRuntime {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build_local(tokio::runtime::LocalOptions::default())
        .expect("a runtime needs an epoll instance and a few descriptors, which a machine that starts klad has")
}
