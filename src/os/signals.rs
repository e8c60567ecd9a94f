//! What klad does when it is sent a signal.
//!
//! ```text
//!   SIGTERM, SIGINT    stop in order; a second one, of either kind: exit code 1, at once
//!   SIGHUP             reload what can be reloaded
//!   SIGUSR1, SIGUSR2   a line in the log: logs go to stderr, so that there is nothing to reopen, and nobody should die of it
//!   SIGXFSZ            nothing: a file beyond the limit of the process is an error of the write, as on a full disk
//!   SIGPIPE            nothing (Rust's runtime sees to that): a write to a closed connection is an error
//!   SIGQUIT, others    as the kernel does it; SIGQUIT ends the process with a core dump, for whoever wants one
//! ```
//!
//! All are taken from the first moment on, so that one that comes while the data is being opened is not lost: klad opens
//! and begins to serve, so that clients which have connected meanwhile are answered, and stops. That a handler exists also
//! makes klad stop as process 1 of a container, where the kernel delivers no signal that has none. Called by `main`.

use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};

use klad_base::sync::{self, BoundedQueue};

/// What `main` is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Stop,
    Reload,
}

/// The signals that klad was sent.
#[derive(Debug)]
pub struct Signals {
    requests: Arc<BoundedQueue<Request>>,
}

/// One stop and one reload: a second reload that comes before the first has begun is the same.
const REQUESTS_MAX: usize = 2;

impl Signals {
    /// Takes signals from now on, on a thread of its own; at a second stop `end` must end the process.
    ///
    /// # Errors
    /// When the kernel does not let them be taken.
    pub fn take(end: fn() -> !) -> std::io::Result<Signals> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let mut taken = {
            let _inside = runtime.enter();
            Taken::new()?
        };
        let requests = Arc::new(BoundedQueue::new(REQUESTS_MAX));
        let shared = requests.clone();
        sync::spawn_thread("klad-signals", move || runtime.block_on(taken.run(&shared, end)));
        Ok(Signals { requests })
    }

    /// Waits until klad is to stop; calls `reload`, on this thread, when it is to reload.
    pub fn wait_for_stop(self, mut reload: impl FnMut()) {
        while self.requests.pop() == Some(Request::Reload) {
            reload();
        }
    }
}

struct Taken {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    user: [Signal; 2],
    _file_size: Signal,
}

impl Taken {
    fn new() -> std::io::Result<Taken> {
        Ok(Taken {
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
                    // One that waits already will see whatever there is to be seen.
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
    requests.push(Request::Stop).expect("there is a place for it, which only one stop takes");
}

fn unused(name: &str) {
    tracing::info!("{name} means nothing to klad: its log goes to stderr, and nothing need be reopened");
}
