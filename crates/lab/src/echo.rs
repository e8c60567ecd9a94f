//! `klad lab echo`: a bare HTTP server of hyper on one thread. It answers a request with its own body, or with 100
//! bytes where there is none: the least that any HTTP server of this library costs for a request. The scenario
//! `yardstick` and `cargo xtask yardstick` run it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::Context as _;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// The answer to a request without a body. It is as long as a value of `klad bench` by default, 100 bytes.
static CONSTANT: [u8; 100] = [b'e'; 100];

/// Serves until the process is killed, or an error occurs.
pub(super) fn serve(listen: SocketAddr) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen at {listen}"))?;
        loop {
            let (stream, _) = listener.accept().await.context("cannot accept a connection")?;
            stream.set_nodelay(true)?;
            tokio::task::spawn_local(async move {
                // A client may close its connection at any time.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)).await;
            });
        }
    })
}

async fn answer(request: Request<Incoming>) -> hyper::Result<Response<OnePiece>> {
    let mut body = request.into_body();
    let mut bytes = Bytes::new();
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        if let Ok(data) = frame?.into_data() {
            bytes = if bytes.is_empty() { data } else { [bytes, data].concat().into() };
        }
    }
    Ok(Response::new(OnePiece(Some(if bytes.is_empty() { Bytes::from_static(&CONSTANT) } else { bytes }))))
}

/// A body of one piece.
struct OnePiece(Option<Bytes>);

impl Body for OnePiece {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
