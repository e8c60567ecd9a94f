//! The bare echo: hyper on one thread, which answers a request with its own body, or with 100 bytes where it has none. What
//! any HTTP server of this library costs at the least. Run as a process of its own, `cargo xtask echo`.
//!
//! With `--log` what was sent is written to a file and synced before it is answered, together with what else has come meanwhile: what any
//! server that syncs before it answers waits for at the least, without a store.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process;
use std::sync::mpsc;
use std::task::{Context as TaskContext, Poll};
use std::thread;

use anyhow::{Context as _, Result};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::Verdict;

/// What is answered where nothing was sent.
static CONSTANT: [u8; 100] = [b'e'; 100];

/// Options of `echo`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where to listen.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// What is sent is written to this new file and synced before it is answered.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// Bytes of the file, which is written over and over, so that no sync has a new length to write.
const LOG_BYTES: usize = 8 << 20;

/// Of one write at most; what is sent is far shorter.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Where what is sent is left for the thread that writes it.
#[derive(Clone)]
struct Log(mpsc::Sender<(Bytes, oneshot::Sender<()>)>);

impl Log {
    fn new(path: &Path) -> io::Result<Log> {
        let mut file = File::create_new(path)?;
        file.write_all(&vec![0; LOG_BYTES])?;
        file.sync_all()?;
        let (log, sent) = mpsc::channel();
        thread::Builder::new().name("echo-log".to_owned()).spawn(move || {
            // An echo that answers only those who have sent nothing would look better than one that works.
            if let Err(error) = write_batches(&file, &sent) {
                eprintln!("the log cannot be written: {error}");
                process::exit(1);
            }
        })?;
        Ok(Log(log))
    }

    /// Returns when `bytes` are on the disk, or never will be.
    async fn write(&self, bytes: Bytes) -> Result<(), oneshot::error::RecvError> {
        let (done, wait) = oneshot::channel();
        // Where the thread has ended, so has what is waited for.
        let _ = self.0.send((bytes, done));
        wait.await
    }
}

/// One write and one sync for all that has gathered.
fn write_batches(file: &File, sent: &mpsc::Receiver<(Bytes, oneshot::Sender<()>)>) -> io::Result<()> {
    let (mut batch, mut waiting, mut position) = (Vec::new(), Vec::new(), 0);
    while let Ok(first) = sent.recv() {
        batch.clear();
        let mut next = Some(first);
        while let Some((bytes, done)) = next {
            batch.extend_from_slice(&bytes);
            waiting.push(done);
            next = if batch.len() < BATCH_BYTES_MAX { sent.try_recv().ok() } else { None };
        }
        if position + batch.len() > LOG_BYTES {
            position = 0;
        }
        file.write_all_at(&batch, position as u64)?;
        file.sync_data()?;
        position += batch.len();
        for done in waiting.drain(..) {
            // Whoever has left does not want to know.
            let _ = done.send(());
        }
    }
    Ok(())
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
    let log = args.log.as_deref().map(|path| Log::new(path).with_context(|| format!("cannot make {}", path.display())));
    let log = log.transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let listener =
            TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen at {}", args.listen))?;
        println!("{}", listener.local_addr()?);
        io::stdout().flush()?;
        loop {
            let (stream, _) = listener.accept().await.context("cannot accept")?;
            stream.set_nodelay(true)?;
            let log = log.clone();
            tokio::task::spawn_local(async move {
                let answer = service_fn(|request| answer(request, log.as_ref()));
                // How a client leaves is its own affair.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
            });
        }
    })
}

async fn answer(request: Request<Incoming>, log: Option<&Log>) -> Result<Response<Whole>> {
    let mut body = request.into_body();
    let mut whole = Bytes::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        if let Ok(data) = frame?.into_data() {
            // One piece as a rule; the yardstick's bodies are no longer.
            whole = if whole.is_empty() { data } else { [whole, data].concat().into() };
        }
    }
    if let (Some(log), false) = (log, whole.is_empty()) {
        log.write(whole.clone()).await?;
    }
    let whole = if whole.is_empty() { Bytes::from_static(&CONSTANT) } else { whole };
    Ok(Response::new(Whole(Some(whole))))
}

/// As [`Ipv4Addr::LOCALHOST`] with a port of the kernel's.
pub(crate) fn any_port() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_in_the_log_before_it_is_answered() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let log = Log::new(&path).expect("made");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let length = || std::fs::metadata(&path).expect("there").len();
        let before = length();
        for number in 0_u8..40 {
            let bytes = Bytes::from(vec![b'a' + number % 26; 100]);
            runtime.block_on(log.write(bytes.clone())).expect("written");
            let all = std::fs::read(&path).expect("read");
            assert_eq!(all[usize::from(number) * 100..][..100], bytes);
        }
        // Over and over, and never longer.
        for _ in 0..9 {
            runtime.block_on(log.write(Bytes::from(vec![b'z'; BATCH_BYTES_MAX]))).expect("written");
        }
        assert_eq!(length(), before);
        Log::new(&path).err().expect("a file that is there is somebody's");
    }
}
