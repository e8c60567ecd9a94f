//! The one acceptor: hands each connection to the worker with the fewest, and stops accepting at the limit.
//!
//! Never reads from a connection. Started by `server`.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use super::runtime;
use super::worker::{Accepted, WorkerHandle};
use crate::sync;

/// After an error that only time can mend (no more descriptors), the next try.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Starts the acceptor's thread.
pub(super) fn start(
    listener: TcpListener,
    workers: Vec<WorkerHandle>,
    connections_max: usize,
    mut stopped: watch::Receiver<bool>,
) -> JoinHandle<()> {
    sync::spawn_thread("klad-accept", move || {
        runtime().block_on(async {
            tokio::select! {
                () = accept_all(listener, workers, connections_max) => {}
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
        });
    })
}

async fn accept_all(listener: TcpListener, workers: Vec<WorkerHandle>, connections_max: usize) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener can be waited for");
    let places = Arc::new(Semaphore::new(connections_max));
    loop {
        // A place first: at the limit a client waits in the kernel's backlog, and gets its turn when another leaves.
        let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
        let stream = accept(&listener).await;
        let fewest = workers.iter().min_by_key(|worker| worker.connections()).expect("at least one worker");
        fewest.hand(Accepted { stream, place });
    }
}

/// The next connection, out of this thread's epoll instance again: it will be in its worker's.
async fn accept(listener: &tokio::net::TcpListener) -> TcpStream {
    loop {
        let accepted = listener.accept().await.and_then(|(stream, _peer)| stream.into_std());
        match accepted {
            Ok(stream) => return stream,
            // The client has gone again.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}
