//! The bare echo: hyper on one thread, which answers a request with its own body, or with 100 bytes where it has none. What
//! any HTTP server of this library costs at the least. Run as a process of its own, `cargo xtask echo`.

use std::convert::Infallible;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use anyhow::{Context as _, Result};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::Verdict;

/// What is answered where nothing was sent.
static CONSTANT: [u8; 100] = [b'e'; 100];

/// Options of `echo`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where to listen.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

/// A body of one piece.
struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// Serves until it is killed; says where on its first line.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let listener =
            TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen at {}", args.listen))?;
        println!("{}", listener.local_addr()?);
        std::io::stdout().flush()?;
        loop {
            let (stream, _) = listener.accept().await.context("cannot accept")?;
            stream.set_nodelay(true)?;
            tokio::task::spawn_local(async move {
                // How a client leaves is its own affair.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)).await;
            });
        }
    })
}

async fn answer(request: Request<Incoming>) -> Result<Response<Whole>, hyper::Error> {
    let mut body = request.into_body();
    let mut whole = Bytes::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        if let Ok(data) = frame?.into_data() {
            // One piece as a rule; the yardstick's bodies are no longer.
            whole = if whole.is_empty() { data } else { [whole, data].concat().into() };
        }
    }
    let whole = if whole.is_empty() { Bytes::from_static(&CONSTANT) } else { whole };
    Ok(Response::new(Whole(Some(whole))))
}

/// As [`Ipv4Addr::LOCALHOST`] with a port of the kernel's.
pub(crate) fn any_port() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}
