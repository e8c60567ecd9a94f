//! The admin listener. It has its own thread, so that it answers while the workers are overloaded.
//!
//! `server` starts it.

use std::convert::Infallible;
use std::net::TcpListener;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};

use crate::admin::Admin;
use crate::admin::deadline::Deadline;
use crate::limits::{ADMIN_CONNECTION_TIMEOUT, CONNECTION_BUFFER_BYTES_MAX, HEAD_TIMEOUT, REFUSED_LINGER_TIMEOUT};
use crate::net::handshake::{HandshakeOutcome, Handshaker};
use crate::net::stream::Stream;
use crate::net::tls::TlsSettings;
use crate::runtime;
use klad_base::sync;

/// Starts the admin thread.
pub(crate) fn start(
    listener: TcpListener,
    admin: Admin,
    tls: Option<Arc<TlsSettings>>,
    places: u64,
    mut stopped: watch::Receiver<bool>,
) -> JoinHandle<()> {
    sync::spawn_thread("klad-admin", move || {
        runtime().block_on(async {
            let admin = Rc::new(admin);
            tokio::select! {
                () = admin.take_samples() => {}
                () = serve(listener, admin.clone(), tls.map(Handshaker::new).map(Rc::new), places) => {}
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
        });
    })
}

async fn serve(listener: TcpListener, admin: Rc<Admin>, handshaker: Option<Rc<Handshaker>>, places: u64) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener can be waited for");
    let places = Arc::new(Semaphore::new(usize::try_from(places).expect("few")));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _peer)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept an admin connection; klad tries again");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let (admin, handshaker) = (admin.clone(), handshaker.clone());
        tokio::task::spawn_local(async move {
            let Some(stream) = tls_handshake(stream, handshaker.as_deref()).await else { return };
            let deadline = Deadline::new();
            let service = service_fn(async |request: Request<Incoming>| {
                Ok::<_, Infallible>(admin.answer(request, &deadline).await)
            });
            // There are few connections, so a timer for each is cheap. The timer also ends idle connections.
            let serving = http1::Builder::new()
                .max_buf_size(CONNECTION_BUFFER_BYTES_MAX)
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            let mut serving = pin!(serving);
            let mut over = false;
            while !over && !deadline.has_passed() {
                over = tokio::time::timeout_at(deadline.get(), serving.as_mut()).await.is_ok();
            }
            if !over {
                // Answer the current request, then free the place for another connection.
                serving.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(ADMIN_CONNECTION_TIMEOUT, serving).await;
            }
            drop(place);
        });
    }
}

/// Does the TLS handshake, if the listener uses TLS. Returns `None` if the handshake has failed.
async fn tls_handshake(tcp: TcpStream, handshaker: Option<&Handshaker>) -> Option<Stream> {
    let Some(handshaker) = handshaker else { return Some(Stream::Clear(tcp)) };
    match tokio::time::timeout(HEAD_TIMEOUT, handshaker.handshake(tcp)).await {
        Ok(HandshakeOutcome::Done(stream)) => Some(stream),
        Ok(HandshakeOutcome::Rejected(mut tcp)) => {
            let read_to_end = async {
                let mut scratch = [0; 4 << 10];
                if tcp.shutdown().await.is_ok() {
                    while let Ok(1..) = tcp.read(&mut scratch).await {}
                }
            };
            let _ = tokio::time::timeout(REFUSED_LINGER_TIMEOUT, read_to_end).await;
            None
        }
        Ok(HandshakeOutcome::Gone) => None,
        Err(_) => {
            handshaker.count_late();
            None
        }
    }
}
