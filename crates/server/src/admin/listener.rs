//! The admin listener, on a thread of its own: it must answer while the workers are at their limits.
//!
//! Started by `server`.

use std::cell::Cell;
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
use crate::net::handshake::{Handshaker, Shaken};
use crate::net::stream::Stream;
use crate::net::tls::TlsSettings;
use crate::runtime;
use klad_base::limits::{ADMIN_CONNECTION_TIMEOUT, CONNECTION_BUFFER_BYTES_MAX, HEAD_TIMEOUT, REFUSED_LINGER_TIMEOUT};
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
            tokio::select! {
                () = serve(listener, Rc::new(admin), tls.map(Handshaker::new).map(Rc::new), places) => {}
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
                tracing::warn!(%error, "cannot accept an admin connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let (admin, handshaker) = (admin.clone(), handshaker.clone());
        tokio::task::spawn_local(async move {
            let Some(stream) = shake_hands(stream, handshaker.as_deref()).await else { return };
            // Grows with what is asked for: a profile takes its time.
            let extra = Cell::new(Duration::ZERO);
            let service =
                service_fn(async |request: Request<Incoming>| Ok::<_, Infallible>(admin.answer(request, &extra).await));
            // Few connections, so a timer for each is cheap here; it also ends idle ones.
            let serving = http1::Builder::new()
                .max_buf_size(CONNECTION_BUFFER_BYTES_MAX)
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            let mut serving = pin!(serving);
            let began = tokio::time::Instant::now();
            let end = || began + ADMIN_CONNECTION_TIMEOUT + extra.get();
            let mut over = false;
            while !over && tokio::time::Instant::now() < end() {
                over = tokio::time::timeout_at(end(), serving.as_mut()).await.is_ok();
            }
            if !over {
                // What is asked is answered; then the place is for somebody else.
                serving.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(ADMIN_CONNECTION_TIMEOUT, serving).await;
            }
            drop(place);
        });
    }
}

/// `None`: there will be no TLS with this client.
async fn shake_hands(tcp: TcpStream, handshaker: Option<&Handshaker>) -> Option<Stream> {
    let Some(handshaker) = handshaker else { return Some(Stream::Plain(tcp)) };
    match tokio::time::timeout(HEAD_TIMEOUT, handshaker.shake(tcp)).await {
        Ok(Shaken::Done(stream)) => Some(stream),
        Ok(Shaken::Refused(mut tcp)) => {
            let read_to_end = async {
                let mut scratch = [0; 4 << 10];
                if tcp.shutdown().await.is_ok() {
                    while let Ok(1..) = tcp.read(&mut scratch).await {}
                }
            };
            let _ = tokio::time::timeout(REFUSED_LINGER_TIMEOUT, read_to_end).await;
            None
        }
        Ok(Shaken::Gone) => None,
        Err(_) => {
            handshaker.late();
            None
        }
    }
}
