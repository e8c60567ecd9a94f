//! The acceptor: hands each connection to the worker with the fewest connections, stops accepting at the limit, and
//! rejects connections of a peer that has too many. A strained worker (its loop iterations are too long) gets a
//! connection only if all workers are strained.
//!
//! The acceptor's thread reads only from rejected connections, and discards what it reads. `Server` starts the thread.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::watch;

use crate::connection::figures::AcceptFigures;
use crate::connection::peers::{PeerRejecter, Peers, Place};
use crate::connection::places::{OpenPlace, Places};
use crate::connection::worker::{Accepted, Peer, WorkerHandle};
use crate::limits::{
    ACCEPT_PAUSE, ACCEPT_STEP, ACCEPTS_CAUTIOUS, ACCEPTS_MAX, ACCEPTS_MIN, LISTEN_BACKLOG, LISTEN_BACKLOG_CAUTIOUS,
};
use crate::net::listen;
use crate::request_metrics::Requests;
use crate::{Drain, Limits, runtime};
use klad_base::clock;
use klad_base::sync::{self, Live};

/// The pause before the acceptor tries again after an error that only time can resolve, such as no free descriptors.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Starts the acceptor's thread.
pub(crate) fn start(
    listener: TcpListener,
    workers: Vec<WorkerHandle>,
    limits: Arc<Live<Limits>>,
    figures: Arc<AcceptFigures>,
    requests: Arc<Requests>,
    rejecter: PeerRejecter,
    mut stopped: watch::Receiver<bool>,
) -> JoinHandle<()> {
    let acceptor = Acceptor {
        workers,
        places: Places::new(limits.clone()),
        peers: Peers::new(),
        rejecter,
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
    rejecter: PeerRejecter,
}

impl Acceptor {
    async fn accept_all(&self, listener: &tokio::net::TcpListener) {
        let mut rate_limit = AcceptRateLimit::new(self.figures.clone());
        loop {
            // Take a place before accepting. At the limit, a new client waits in the kernel's backlog until another
            // client leaves.
            let of_all = self.places.take().await;
            let (stream, address) = rate_limit.accept(listener, &self.workers).await;
            if rate_limit.is_active() && client_has_left(&stream) {
                self.figures.left.add_owned(1);
                continue;
            }
            if self.hand(of_all, stream, address) {
                rate_limit.accepted();
            }
        }
    }

    /// Gives a connection to a worker, unless the connection's peer has too many. Returns whether a worker got it.
    fn hand(&self, of_all: OpenPlace, stream: TcpStream, address: IpAddr) -> bool {
        let Some(of_peer) = self.peers.take(address, self.limits.get().connections_per_peer) else {
            self.figures.rejected.add_owned(1);
            self.requests.too_many_connections();
            self.rejecter.reject(stream);
            return false;
        };
        let place = Place { _of_all: of_all, _of_peer: of_peer };
        let least = |worker: &&WorkerHandle| (worker.is_strained(), worker.connections());
        let worker = self.workers.iter().min_by_key(least).expect("at least one worker");
        self.figures.accepted.add_owned(1);
        worker.hand(Accepted { stream, peer: Peer::Client { _place: place } });
        true
    }

    /// While klad stops, accepts the connections that wait or that clients have begun to open. Then closes the
    /// listener. With an `accept_patience` of zero, closes the listener immediately.
    async fn accept_rest(&self, listener: tokio::net::TcpListener, drain: &Drain) {
        if drain.accept_patience.is_zero() {
            return;
        }
        let deadline = tokio::time::Instant::now() + drain.timeout;
        let patience = (tokio::time::Instant::now() + drain.accept_patience).min(deadline);
        let listener = match listener.into_std() {
            Ok(listener) => listener,
            Err(error) => {
                return tracing::warn!(%error, "klad cannot accept waiting connections while it stops; they are reset");
            }
        };
        if let Err(error) = listen::stop_accepting(&listener) {
            tracing::warn!(%error, "the kernel has no socket filter: new connections may be reset while klad stops");
        }
        while let Ok(place) = tokio::time::timeout_at(deadline, self.places.take()).await {
            match listener.accept() {
                Ok((stream, peer)) => _ = self.hand(place, stream, peer.ip()),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                Err(_) if tokio::time::Instant::now() >= patience => return,
                // No connection is waiting, or no descriptor is free.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

/// The rate limit for accepting connections. A worker is strained if its loop iterations are too long. The limit
/// applies while all workers are strained, and for some time after that. Accepting a connection costs more than a
/// request, whereas a connection that klad has not accepted waits in the kernel at no cost. The limit begins at
/// [`ACCEPTS_CAUTIOUS`]. After each [`ACCEPT_STEP`], klad halves the limit if all workers are strained, and doubles it
/// otherwise.
struct AcceptRateLimit {
    /// Connections a second. [`ACCEPTS_MAX`] means no limit.
    rate: u32,
    /// The number of connections accepted since the last pause.
    accepted: u32,
    /// When the rate last changed.
    rate_changed: Instant,
    figures: Arc<AcceptFigures>,
}

impl AcceptRateLimit {
    fn new(figures: Arc<AcceptFigures>) -> AcceptRateLimit {
        AcceptRateLimit { rate: ACCEPTS_MAX, accepted: 0, rate_changed: clock::now(), figures }
    }

    /// Returns the next connection, as soon as the limit allows it.
    async fn accept(&mut self, listener: &tokio::net::TcpListener, workers: &[WorkerHandle]) -> (TcpStream, IpAddr) {
        loop {
            self.wait(listener, workers).await;
            if !self.is_active() {
                return accept(listener).await;
            }
            // The limit must grow even if no connection arrives.
            if let Ok(accepted) = tokio::time::timeout(ACCEPT_STEP, accept(listener)).await {
                return accepted;
            }
        }
    }

    /// Waits until klad may accept one more connection. While the gates of all workers are closed, klad accepts none.
    async fn wait(&mut self, listener: &tokio::net::TcpListener, workers: &[WorkerHandle]) {
        loop {
            self.update(listener, workers);
            let batch = ACCEPT_PAUSE.as_secs_f64() * f64::from(self.rate);
            let pause = match (workers.iter().all(WorkerHandle::is_closed), self.is_active()) {
                (true, _) => ACCEPT_PAUSE,
                (false, true) if f64::from(self.accepted) >= batch => ACCEPT_PAUSE.div_f64(batch.min(1.0)),
                (false, _) => return,
            };
            self.accepted = 0;
            tokio::time::sleep(pause).await;
        }
    }

    fn update(&mut self, listener: &tokio::net::TcpListener, workers: &[WorkerHandle]) {
        let strained = workers.iter().all(WorkerHandle::is_strained);
        if !strained && !self.is_active() {
            return;
        }
        let length = clock::now().saturating_duration_since(self.rate_changed);
        if self.is_active() && length < ACCEPT_STEP {
            return;
        }
        let before = self.is_active();
        self.rate = if !strained {
            (self.rate * 2).min(ACCEPTS_MAX)
        } else if before {
            (self.rate / 2).max(ACCEPTS_MIN)
        } else {
            ACCEPTS_CAUTIOUS
        };
        self.rate_changed = clock::now();
        if before != self.is_active() {
            self.figures.is_cautious.store(self.is_active(), Ordering::Relaxed);
            // The kernel's queue is first in, first out, so a long backlog would soon hold only clients that have given
            // up.
            let backlog = if self.is_active() { LISTEN_BACKLOG_CAUTIOUS } else { LISTEN_BACKLOG };
            let backlog = i32::try_from(backlog).expect("a small constant");
            if let Err(error) = rustix::net::listen(listener, backlog) {
                tracing::warn!(%error, "cannot change the length of the listen backlog; klad keeps it as it is");
            }
        }
    }

    fn is_active(&self) -> bool {
        self.rate < ACCEPTS_MAX
    }

    fn accepted(&mut self) {
        self.accepted += 1;
    }
}

/// Whether the client has already closed its sending side. Such a client has probably given up, and serving it would be
/// useless. If the client still waits for an answer, it gets a reset and can try again.
fn client_has_left(stream: &TcpStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Accepts the next connection. `into_std` takes the connection out of this thread's epoll instance. The worker that
/// gets the connection adds it to the worker's epoll instance.
async fn accept(listener: &tokio::net::TcpListener) -> (TcpStream, IpAddr) {
    loop {
        let accepted = listener.accept().await.and_then(|(stream, peer)| Ok((stream.into_std()?, peer.ip())));
        match accepted {
            Ok(accepted) => return accepted,
            // The client has left.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; klad tries again");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}
