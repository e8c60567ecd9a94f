//! Signals: takes them on a thread and turns them into requests to stop or to reload.
//!
//! ```text
//!   SIGTERM, SIGINT    shut down in order; at the second one exit at once with code 1
//!   SIGHUP             reload the configuration, tokens and certificates
//!   SIGUSR1, SIGUSR2   log a line: there is no log file to reopen, and the default action would end the process
//!   SIGXFSZ            no action: a write beyond the file size limit then fails with an error, as on a full disk
//!   SIGPIPE            no action (Rust's runtime ignores it): a write to a closed connection fails with an error
//!   SIGQUIT, others    the default action; SIGQUIT ends the process with a core dump
//! ```
//!
//! klad installs the handlers before it opens the data. If a signal to stop arrives while klad opens the data, klad
//! finishes opening, answers the clients that have connected meanwhile, and shuts down. The handlers are also needed
//! for process 1 of a container: the kernel delivers to it only signals that have a handler. Called by `main`.

use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};

use klad_base::sync::{self, BoundedQueue};

/// A request to the main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Stop,
    Reload,
}

/// The requests that arrived as signals.
#[derive(Debug)]
pub struct Signals {
    requests: Arc<BoundedQueue<Request>>,
}

/// The queue holds at most one stop and one reload. While a reload waits, further SIGHUPs add no reload, because the
/// waiting reload will read the newest state.
const REQUESTS_MAX: usize = 2;

impl Signals {
    /// Starts the thread that handles signals. At a second signal to stop it calls `end`, which must end the process.
    ///
    /// # Errors
    /// The kernel does not accept a handler.
    pub fn take(end: fn() -> !) -> std::io::Result<Signals> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let mut handlers = {
            let _inside = runtime.enter();
            Handlers::install()?
        };
        let requests = Arc::new(BoundedQueue::new(REQUESTS_MAX));
        let shared = requests.clone();
        sync::spawn_thread("klad-signals", move || runtime.block_on(handlers.run(&shared, end)));
        Ok(Signals { requests })
    }

    /// Waits for a signal to stop. Calls `reload` on this thread for each request to reload.
    pub fn wait_for_stop(self, mut reload: impl FnMut()) {
        while self.requests.pop() == Some(Request::Reload) {
            reload();
        }
    }
}

struct Handlers {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    user: [Signal; 2],
    _file_size: Signal,
}

impl Handlers {
    fn install() -> std::io::Result<Handlers> {
        Ok(Handlers {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            user: [signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?],
            _file_size: signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?,
        })
    }

    async fn run(&mut self, requests: &BoundedQueue<Request>, end: fn() -> !) {
        let mut stops = false;
        loop {
            let [user1, user2] = &mut self.user;
            tokio::select! {
                biased;
                _ = self.terminate.recv() => stop(&mut stops, requests, end),
                _ = self.interrupt.recv() => stop(&mut stops, requests, end),
                _ = self.hang_up.recv() => {
                    // If a reload already waits, it will read the newest state.
                    if requests.is_empty() && !stops {
                        let _ = requests.push(Request::Reload);
                    }
                }
                _ = user1.recv() => unused("SIGUSR1"),
                _ = user2.recv() => unused("SIGUSR2"),
            }
        }
    }
}

fn stop(stops: &mut bool, requests: &BoundedQueue<Request>, end: fn() -> !) {
    if std::mem::replace(stops, true) {
        end();
    }
    requests.push(Request::Stop).expect("the queue has a place for the one stop");
}

fn unused(name: &str) {
    tracing::info!("{name} has no effect: klad logs to stderr and has no log file to reopen");
}
