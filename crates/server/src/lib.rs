//! Starts and stops the threads that serve, and hands connections to workers.
//!
//! ```text
//!   klad-accept ── fewest connections ──▶ klad-worker-N   one single-threaded runtime each; hyper, connections as local tasks
//!   klad-admin     its own listener and runtime: answers whatever the workers do, from what they count (`figures`)
//!   klad-figures   asks the allocator for its figures, which may wait
//!   execution's threads (klad-commit, klad-storage-N, klad-sync, klad-upkeep, klad-care)
//! ```
//!
//! Called by `main`, and by tests with engines of their own.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;

use crate::admin::control::Control;
use crate::admin::{Admin, AllocatorWatch, Shares, listener as admin_thread};
use crate::connection::worker;
use crate::execution::Executor;
use crate::execution::maintenance::{Maintenance, MaintenanceThread};
use crate::http::api_error::ApiError;
use crate::http::authorization::Authorization;
use crate::http::service;
use crate::observe::slowest::{Extent, Slowest};
use crate::request_metrics::Requests;
use klad_base::clock;
use klad_base::limits::ALLOCATOR_LOOK_INTERVAL;
use klad_base::os::descriptors;
use klad_base::sync::{self, Live, Signal};
use klad_storage::Engine;

use crate::connection::accept;
use crate::connection::peers::Refuser;

pub mod net;

pub mod connection;

pub mod http;

pub mod exchange;
pub mod observe;

pub mod execution;

pub mod admin;

pub mod logs;
pub mod request_metrics;
pub mod tokens;

use connection::figures::Figures;
pub use connection::worker::Pulse;
pub use exchange::Deadlines;
pub use net::safety::Safety;

/// What takes care of data has at least so long to end when klad stops: what is small is made to its end even when clients
/// have used up the drain timeout.
const MAINTENANCE_PATIENCE_MIN: Duration = Duration::from_secs(1);

/// Everything that serving needs to know.
#[derive(Clone, Debug)]
pub struct Options {
    /// Workers.
    pub threads: usize,
    /// Of the limit of open files.
    pub shares: descriptors::Shares,
    /// What may change while klad serves.
    pub limits: Limits,
    /// Of operations.
    pub execution: execution::Options,
    /// Where checkpoints are made.
    pub checkpoints: PathBuf,
    /// Who may connect, and do what.
    pub safety: Safety,
}

/// Bounds that may change while klad serves; [`LiveLimits::set`].
#[derive(Clone, Debug)]
pub struct Limits {
    /// Open connections, at most; then klad stops accepting until one closes.
    pub connections_max: usize,
    /// Of them from one address, at most; then 503. `None`: no such limit.
    pub connections_per_peer: Option<usize>,
    /// Bytes of a request's head; of connections that are accepted from now on.
    pub head_bytes_max: usize,
    /// What a connection may wait for, and how long.
    pub deadlines: Deadlines,
    /// After a longer turn a worker lets requests in by its gate; `None`: never.
    pub iteration_max: Option<Duration>,
    /// What happens to connections when klad stops.
    pub drain: Drain,
    /// Of requests.
    pub service: service::Options,
    /// Plain requests are read without hyper.
    pub fast_path: bool,
    /// Of operations.
    pub operations: execution::Limits,
    /// How the memory budget is shared out, for `/debug/memory`.
    pub memory: Shares,
}

/// How klad stops serving.
#[derive(Clone, Debug)]
pub struct Drain {
    /// It is not ready any more, and serves as ever, for so long.
    pub delay: Duration,
    /// Then connections have so long to finish.
    pub timeout: Duration,
    /// A connection without a request is kept for so long, then closed unless one has come. Zero: closed at once,
    /// whatever has come.
    pub idle_patience: Duration,
    /// Connections whose clients have begun to open them are accepted for so long. Zero: none is, not even those that wait
    /// to be accepted.
    pub accept_patience: Duration,
}

/// A serving klad.
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

/// Changes the bounds of a serving klad.
#[derive(Clone)]
pub struct LiveLimits {
    limits: Arc<Live<Limits>>,
    executor: Arc<Executor>,
}

impl LiveLimits {
    /// What holds now.
    #[must_use]
    pub fn get(&self) -> Arc<Limits> {
        self.limits.get()
    }

    /// Changes bounds, within [`SWEEP_INTERVAL`](klad_base::limits::SWEEP_INTERVAL). What is under way goes on under the old
    /// ones; nothing that was admitted is refused for it.
    pub fn set(&self, limits: Limits) {
        self.executor.set_limits(&limits.operations);
        self.limits.set(limits);
    }
}

impl Server {
    /// Serves `engine` on `listener`, and itself on `admin_listener`; `control` makes what changes its bounds.
    ///
    /// # Errors
    /// When the kernel does not let the listeners be used.
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
        let slowest = Arc::new(Slowest::new(options.threads, Extent::USUAL));
        let shared = worker::Shared {
            limits: limits.clone(),
            executor: executor.clone(),
            requests: requests.clone(),
            slowest: slowest.clone(),
            safety: safety.clone(),
            stopped: stopped.clone(),
        };
        let start = |number| worker::start(number, shared.clone());
        let (hands, mut serving): (Vec<_>, Vec<_>) = (0..options.threads).map(start).unzip();
        let figures = figures_of(&hands, limits.clone());
        let pulse = Pulse::of(&hands);
        let refuser = Refuser::new(safety.tls.is_some(), options.shares.lingering);
        let (accepts, live) = (figures.accept.clone(), limits.clone());
        serving.push(accept::start(listener, hands, live, accepts, requests.clone(), refuser, stopped));
        let stopping = Arc::new(AtomicBool::new(false));
        let (stop_admin, admin_stopped) = watch::channel(false);
        let limits = LiveLimits { limits, executor: executor.clone() };
        let allocator = Arc::<AllocatorWatch>::default();
        let stop_figures = Arc::<Signal>::default();
        let looking = watch_allocator(allocator.clone(), stop_figures.clone());
        let admin = {
            let figures = Arc::new(figures);
            let live = limits.clone();
            Admin {
                maintenance,
                control: control(limits.clone()),
                authorization: Authorization::new(safety.tokens.clone()),
                executor,
                stopping: stopping.clone(),
                shares: Box::new(move || live.get().memory.clone()),
                allocator,
                slowest,
                sources: vec![requests, figures.clone(), Arc::new(safety.clone())],
                connections: Box::new(move || figures.open()),
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
            figures: looking,
            maintenance: maintenance_thread,
            storage,
            limits,
        })
    }

    /// Where clients are served; with port 0 in the options, the port that the kernel chose.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the admin listener is.
    #[must_use]
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// The bounds that may change.
    #[must_use]
    pub fn limits(&self) -> &LiveLimits {
        &self.limits
    }

    /// Whether the workers turn, as often as it is asked.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Is not ready any more; after the drain delay accepts what has come and no more, answers every request that has come
    /// within the drain timeout, ends what was admitted, and syncs. Then a checkpoint that is being made has what is left of
    /// the drain timeout, and at least a second, to end.
    ///
    /// # Errors
    /// When the last sync failed, in the engine's words.
    pub fn stop(self) -> Result<(), String> {
        self.stopping.store(true, Ordering::Release);
        // Nobody raises it: whoever is in a hurry asks a second time, which ends the process.
        let drain = self.limits.get().drain.clone();
        Signal::default().wait_timeout(drain.delay);
        let draining = clock::now();
        self.maintenance.close();
        self.stop.send_replace(true);
        for thread in self.serving {
            thread.join().expect("a thread that panics ends the process");
        }
        // First what was acknowledged: a disk that holds up a checkpoint does not hold up this.
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

/// A thread that asks the allocator for its figures, which may wait.
fn watch_allocator(allocator: Arc<AllocatorWatch>, stop: Arc<Signal>) -> JoinHandle<()> {
    allocator.look();
    sync::spawn_thread("klad-figures", move || {
        while !stop.wait_timeout(ALLOCATOR_LOOK_INTERVAL) {
            allocator.look();
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

/// A runtime for one thread, whose tasks stay on it.
fn runtime() -> tokio::runtime::LocalRuntime {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build_local(tokio::runtime::LocalOptions::default())
        .expect("a runtime needs an epoll instance and a few descriptors, which a machine that starts klad has")
}
