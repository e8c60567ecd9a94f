//! Starts and stops the threads that serve, and hands connections to workers.
//!
//! ```text
//!   klad-accept ── fewest connections ──▶ klad-worker-N   one single-threaded runtime each; hyper, connections as local tasks
//!   klad-admin     its own listener and runtime: answers whatever the workers do
//!   execution's threads (klad-commit, klad-storage-N, klad-sync, klad-upkeep)
//! ```
//!
//! Called by `main`, and by tests with engines of their own.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;

use crate::execution::{self, Executor};
use crate::http::admin::Admin;
use crate::http::authorization::Authorization;
use crate::http::service;
use crate::storage::Engine;

use self::peers::Refuser;

mod accept;
mod admin;
mod connection;
mod eviction;
pub mod gate;
mod handshake;
mod io;
pub mod listen;
mod peers;
mod safety;
mod stream;
pub mod tls;
mod worker;

pub use connection::Deadlines;
pub use safety::Safety;

/// Everything that serving needs to know.
#[derive(Clone, Debug)]
pub struct Options {
    /// Workers.
    pub threads: usize,
    /// Open connections, at most; then klad stops accepting until one closes.
    pub connections_max: usize,
    /// Of them from one address, at most; then 503. `None`: no such limit.
    pub connections_per_peer: Option<usize>,
    /// Bytes of a request's head.
    pub head_bytes_max: usize,
    /// What a connection may wait for, and how long.
    pub deadlines: Deadlines,
    /// After a longer turn a worker lets requests in by its gate; `None`: never.
    pub turn_max: Option<Duration>,
    /// Requests in flight have so long to finish when klad stops.
    pub drain_timeout: Duration,
    /// Who may connect, and do what.
    pub safety: Safety,
    /// Of requests.
    pub service: service::Options,
    /// Of operations.
    pub execution: execution::Options,
}

/// A serving klad.
pub struct Server {
    address: SocketAddr,
    admin_address: SocketAddr,
    stopping: Arc<AtomicBool>,
    stop: watch::Sender<bool>,
    serving: Vec<JoinHandle<()>>,
    stop_admin: watch::Sender<bool>,
    admin: JoinHandle<()>,
    storage: execution::Threads,
}

impl Server {
    /// Serves `engine` on `listener`, and itself on `admin_listener`.
    ///
    /// # Errors
    /// When the kernel does not let the listeners be used.
    pub fn start(
        options: &Options,
        engine: Arc<dyn Engine>,
        listener: TcpListener,
        admin_listener: TcpListener,
    ) -> std::io::Result<Server> {
        let address = listener.local_addr()?;
        let admin_address = admin_listener.local_addr()?;
        listener.set_nonblocking(true)?;
        admin_listener.set_nonblocking(true)?;
        let (executor, storage) = Executor::start(engine, &options.execution);
        let (stop, stopped) = watch::channel(false);
        let mut serving = Vec::new();
        let mut hands = Vec::new();
        for number in 0..options.threads {
            let (worker, thread) = worker::start(number, options, executor.clone(), stopped.clone());
            hands.push(worker);
            serving.push(thread);
        }
        let (most, per_peer) = (options.connections_max, options.connections_per_peer);
        let refuser = Refuser::new(options.safety.tls.is_some());
        serving.push(accept::start(listener, hands, most, per_peer, refuser, stopped));
        let stopping = Arc::new(AtomicBool::new(false));
        let (stop_admin, admin_stopped) = watch::channel(false);
        let safety = options.safety.clone();
        let admin = Admin::new(executor, stopping.clone(), Authorization::new(safety.tokens));
        let admin = admin::start(admin_listener, admin, safety.tls.filter(|_| safety.admin_tls), admin_stopped);
        Ok(Server { address, admin_address, stopping, stop, serving, stop_admin, admin, storage })
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

    /// Stops accepting, lets requests in flight finish within the drain timeout, ends what was admitted, and syncs.
    ///
    /// # Errors
    /// When the last sync failed, in the engine's words.
    pub fn stop(self) -> Result<(), String> {
        self.stopping.store(true, Ordering::Release);
        self.stop.send_replace(true);
        for thread in self.serving {
            thread.join().expect("a thread that panics ends the process");
        }
        let synced = self.storage.stop();
        self.stop_admin.send_replace(true);
        self.admin.join().expect("a thread that panics ends the process");
        synced
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
