//! The one acceptor: hands each connection to the worker with the fewest, stops accepting at the limit, and refuses those of
//! a peer that has too many.
//!
//! Never reads from a connection. Started by `server`.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::watch;

use crate::connection::figures::AcceptFigures;
use crate::connection::peers::{Peers, Place, Refuser};
use crate::connection::places::{OpenPlace, Places};
use crate::connection::worker::{Accepted, WorkerHandle};
use crate::net::listen;
use crate::request_metrics::Requests;
use crate::{Drain, Limits, runtime};
use klad_base::clock;
use klad_base::limits::{
    ACCEPT_PAUSE, ACCEPT_STEP, ACCEPTS_CAUTIOUS, ACCEPTS_MAX, ACCEPTS_MIN, LISTEN_BACKLOG, LISTEN_BACKLOG_CAUTIOUS,
};
use klad_base::sync::{self, Live};

/// After an error that only time can mend (no more descriptors), the next try.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Starts the acceptor's thread.
pub(crate) fn start(
    listener: TcpListener,
    workers: Vec<WorkerHandle>,
    limits: Arc<Live<Limits>>,
    figures: Arc<AcceptFigures>,
    requests: Arc<Requests>,
    refuser: Refuser,
    mut stopped: watch::Receiver<bool>,
) -> JoinHandle<()> {
    let acceptor = Acceptor {
        workers,
        places: Places::new(limits.clone()),
        peers: Peers::new(),
        refuser,
        limits: limits.clone(),
        figures,
        requests,
    };
    sync::spawn_thread("klad-accept", move || {
        runtime().block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener can be waited for");
            tokio::select! {
                () = acceptor.accept_all(&listener) => {}
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
            acceptor.accept_rest(listener, &limits.get().drain).await;
        });
    })
}

struct Acceptor {
    workers: Vec<WorkerHandle>,
    limits: Arc<Live<Limits>>,
    figures: Arc<AcceptFigures>,
    requests: Arc<Requests>,
    places: Arc<Places>,
    peers: Arc<Peers>,
    refuser: Refuser,
}

impl Acceptor {
    async fn accept_all(&self, listener: &tokio::net::TcpListener) {
        let mut caution = Caution::new(self.figures.clone());
        loop {
            // A place first: at the limit a client waits in the kernel's backlog, and gets its turn when another leaves.
            let of_all = self.places.take().await;
            let (stream, address) = caution.accept(listener, &self.workers).await;
            if caution.is_taken() && has_left(&stream) {
                self.figures.left.add_owned(1);
                continue;
            }
            if self.hand(of_all, stream, address) {
                caution.accepted();
            }
        }
    }

    /// Gives a connection to a worker, unless its peer has too many; `false`: it was refused.
    fn hand(&self, of_all: OpenPlace, stream: TcpStream, address: IpAddr) -> bool {
        let Some(of_peer) = self.peers.take(address, self.limits.get().connections_per_peer) else {
            self.figures.refused.add_owned(1);
            self.requests.too_many_connections();
            self.refuser.refuse(stream);
            return false;
        };
        let place = Place { _of_all: of_all, _of_peer: of_peer };
        let least = |worker: &&WorkerHandle| (worker.is_strained(), worker.connections());
        let worker = self.workers.iter().min_by_key(least).expect("at least one worker");
        self.figures.accepted.add_owned(1);
        worker.hand(Accepted { stream, place });
        true
    }

    /// klad stops: accepts those that wait, and those whose clients believe that they are connected, then closes.
    async fn accept_rest(&self, listener: tokio::net::TcpListener, drain: &Drain) {
        if drain.accept_patience.is_zero() {
            return;
        }
        let deadline = tokio::time::Instant::now() + drain.timeout;
        let patience = (tokio::time::Instant::now() + drain.accept_patience).min(deadline);
        let listener = match listener.into_std() {
            Ok(listener) => listener,
            Err(error) => return tracing::warn!(%error, "connections that were not accepted yet are reset"),
        };
        if let Err(error) = listen::take_no_more(&listener) {
            tracing::warn!(%error, "connections that come while klad stops may be reset");
        }
        while let Ok(place) = tokio::time::timeout_at(deadline, self.places.take()).await {
            match listener.accept() {
                Ok((stream, peer)) => _ = self.hand(place, stream, peer.ip()),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                Err(_) if tokio::time::Instant::now() >= patience => return,
                // Nobody waits now, or there is no descriptor.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

/// How fast connections are accepted while workers are strained, and after: what is not accepted waits in the kernel and
/// costs nothing, where taking it in costs more than a request. As the window of TCP: half as many after each
/// [`ACCEPT_STEP`] under strain, twice as many after each without.
struct Caution {
    /// Connections a second; at [`ACCEPTS_MAX`] as many as come.
    rate: u32,
    /// Since the last pause.
    accepted: u32,
    step: Instant,
    figures: Arc<AcceptFigures>,
}

impl Caution {
    fn new(figures: Arc<AcceptFigures>) -> Caution {
        Caution { rate: ACCEPTS_MAX, accepted: 0, step: clock::now(), figures }
    }

    /// The next connection, when it may be accepted.
    async fn accept(&mut self, listener: &tokio::net::TcpListener, workers: &[WorkerHandle]) -> (TcpStream, IpAddr) {
        loop {
            self.wait(listener, workers).await;
            if !self.is_taken() {
                return accept(listener).await;
            }
            // The bound grows whether connections come or not.
            if let Ok(accepted) = tokio::time::timeout(ACCEPT_STEP, accept(listener)).await {
                return accepted;
            }
        }
    }

    /// Waits until one more may be accepted.
    async fn wait(&mut self, listener: &tokio::net::TcpListener, workers: &[WorkerHandle]) {
        loop {
            self.look(listener, workers);
            let batch = ACCEPT_PAUSE.as_secs_f64() * f64::from(self.rate);
            let pause = match (workers.iter().all(WorkerHandle::is_closed), self.is_taken()) {
                (true, _) => ACCEPT_PAUSE,
                (false, true) if f64::from(self.accepted) >= batch => ACCEPT_PAUSE.div_f64(batch.min(1.0)),
                (false, _) => return,
            };
            self.accepted = 0;
            tokio::time::sleep(pause).await;
        }
    }

    fn look(&mut self, listener: &tokio::net::TcpListener, workers: &[WorkerHandle]) {
        let strained = workers.iter().all(WorkerHandle::is_strained);
        if !strained && !self.is_taken() {
            return;
        }
        let length = clock::now().saturating_duration_since(self.step);
        if self.is_taken() && length < ACCEPT_STEP {
            return;
        }
        let before = self.is_taken();
        self.rate = if !strained {
            (self.rate * 2).min(ACCEPTS_MAX)
        } else if before {
            (self.rate / 2).max(ACCEPTS_MIN)
        } else {
            ACCEPTS_CAUTIOUS
        };
        self.step = clock::now();
        if before != self.is_taken() {
            self.figures.is_cautious.store(self.is_taken(), Ordering::Relaxed);
            // First come, first served: a long backlog would soon hold only clients that have given up.
            let backlog = if self.is_taken() { LISTEN_BACKLOG_CAUTIOUS } else { LISTEN_BACKLOG };
            let backlog = i32::try_from(backlog).expect("a small constant");
            if let Err(error) = rustix::net::listen(listener, backlog) {
                tracing::warn!(%error, "cannot change the length of the listen backlog");
            }
        }
    }

    fn is_taken(&self) -> bool {
        self.rate < ACCEPTS_MAX
    }

    fn accepted(&mut self) {
        self.accepted += 1;
    }
}

/// Whether the client has closed its side already: it has given up while it waited, and serving it would be in vain. A
/// client that only says so early, and waits for its answer, is told by the reset to try again.
fn has_left(stream: &TcpStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// The next connection, out of this thread's epoll instance again: it will be in its worker's.
async fn accept(listener: &tokio::net::TcpListener) -> (TcpStream, IpAddr) {
    loop {
        let accepted = listener.accept().await.and_then(|(stream, peer)| Ok((stream.into_std()?, peer.ip())));
        match accepted {
            Ok(accepted) => return accepted,
            // The client has gone again.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}
