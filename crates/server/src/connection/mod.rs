//! One connection: how klad serves it with or without hyper, carries out the sweep's verdicts, and ends the connection.
//!
//! `worker` calls this, on the worker's thread only.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::Limits;
use crate::connection::gate::Pass;
use crate::connection::io::Io;
use crate::connection::worker::{Peer, Worker};
use crate::exchange::{CloseReason, Deadlines, Draining, Exchange, Verdict};
use crate::http::api_error::ApiError;
use crate::limits::{CONNECTION_BUFFER_BYTES_MAX, HYPER_REQUESTS_MIN, LINGER_BYTES_MAX, NOT_SENT_BYTES_MAX};
use crate::net::handshake::{HandshakeOutcome, Handshaker};
use crate::net::stream::Stream;

pub mod accept;
pub mod eviction;
pub mod figures;
pub mod gate;
mod io;
pub mod peers;
pub mod places;
mod plain;
pub mod worker;

/// One connection in its worker's list.
pub(crate) struct Connection {
    exchange: Rc<Exchange>,
    /// Wakes the task of the connection.
    waker: RefCell<Option<Waker>>,
}

enum End {
    /// hyper or the fast path has ended the connection: no request will follow.
    Finished {
        by_error: bool,
    },
    /// hyper cannot read a head. klad has discarded hyper's own answer, and sends this error instead.
    Rejected(ApiError),
    Verdict(Verdict),
    /// hyper is between two requests, and the fast path may continue.
    BackToFastPath,
}

/// Returns hyper's settings.
pub(crate) fn http(limits: &Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    // `max_headers` is not set, because HEADERS_MAX is hyper's default, and a set value makes hyper fill two tables for
    // each request. With flat writes, a head and a small body leave in one write, and a range's chunks in writes of
    // about 64 KiB.
    http.writev(false)
        .max_buf_size(CONNECTION_BUFFER_BYTES_MAX)
        .max_header_size(limits.head_bytes_max)
        // A client may close its sending side after its request and still wait for the answer.
        .half_close(true)
        // hyper would set a timer for each request. klad's sweep checks the time of the head at no cost.
        .header_read_timeout(None);
    http
}

impl Connection {
    pub(crate) fn new(exchange: Exchange) -> Rc<Connection> {
        Rc::new(Connection { exchange: Rc::new(exchange), waker: RefCell::default() })
    }

    /// Serves the connection until the client leaves, an error or the sweep ends the connection, or klad stops. Returns
    /// why the connection has ended.
    pub(crate) async fn serve(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        stream: std::net::TcpStream,
        peer: &Peer,
    ) -> CloseReason {
        // A client that has already left is not an error.
        let Ok(stream) = prepare(stream, peer) else { return CloseReason::ByClient };
        let stream = match &worker.handshaker {
            Some(_) if matches!(peer, Peer::Console) => Stream::Clear(stream),
            None => Stream::Clear(stream),
            // The handshake is boxed, so that its memory is freed after the handshake, and a connection without TLS
            // never allocates this memory.
            Some(handshaker) => match Box::pin(self.tls_handshake(handshaker, stream)).await {
                Some(stream) => stream,
                None => return self.exchange.close_reason().unwrap_or(CloseReason::Error),
            },
        };
        let stream = Rc::new(RefCell::new(stream));
        let end = self.serve_http(worker, &stream).await;
        let mut stream = Rc::into_inner(stream).expect("hyper is done with it").into_inner();
        self.exchange.connection_ends();
        let stops = worker.draining().is_some();
        let why = match end {
            End::Finished { by_error: true } | End::Rejected(_) => CloseReason::Error,
            _ if stops => CloseReason::Stopping,
            _ => CloseReason::ByClient,
        };
        match end {
            End::Verdict(Verdict::HeadTimedOut) => self.reject(worker, stream, ApiError::HeadTimeout).await,
            End::Rejected(api_error) => self.reject(worker, stream, api_error).await,
            // While klad stops, it does not answer requests that a client sends after a closing answer. klad still
            // reads their bytes, because unread bytes would cause a reset, and the client might lose the answer.
            End::Finished { by_error } if by_error || self.exchange.body_unread() || stops => self.linger(stream).await,
            // In the middle of an answer, klad sends no close notification, because the end must not look like a
            // regular one.
            End::Verdict(_) if self.exchange.is_idle() => stream.send_close_notify(),
            End::Finished { .. } => stream.send_close_notify(),
            End::Verdict(_) | End::BackToFastPath => {}
        }
        self.exchange.close_reason().unwrap_or(why)
    }

    /// Sends `api_error` as the last answer, to a client whose head klad could not read, and lingers.
    async fn reject(&self, worker: &Worker, mut stream: Stream, api_error: ApiError) {
        worker.observer.rejected(api_error.code());
        stream.send_now(&api_error.into_closing_response());
        self.linger(stream).await;
    }

    /// Does the TLS handshake. `None`: the handshake has failed, and the connection has ended.
    async fn tls_handshake(&self, handshaker: &Handshaker, stream: TcpStream) -> Option<Stream> {
        self.exchange.handshake_begins();
        let mut handshake = pin!(handshaker.handshake(stream));
        let outcome = poll_fn(|context| {
            self.remember(context.waker());
            match self.exchange.take_verdict() {
                Some(Verdict::Close) => Poll::Ready(None),
                _ => handshake.as_mut().poll(context).map(Some),
            }
        })
        .await;
        match outcome {
            Some(HandshakeOutcome::Done(stream)) => {
                self.exchange.handshake_ends();
                return Some(stream);
            }
            Some(HandshakeOutcome::Rejected(tcp)) => self.linger(Stream::Clear(tcp)).await,
            Some(HandshakeOutcome::Gone) => self.exchange.set_close_reason(Some(CloseReason::ByClient)),
            None => handshaker.count_late(),
        }
        None
    }

    /// Serves HTTP until the connection ends. The fast path (`plain`) answers plain requests. From the first byte of a
    /// request that is not plain, hyper serves the connection, until hyper has read [`HYPER_REQUESTS_MIN`] requests and
    /// waits for the next one. With `--fast-path off`, hyper answers all requests.
    async fn serve_http(self: &Rc<Self>, worker: &Rc<Worker>, stream: &Rc<RefCell<Stream>>) -> End {
        let pass = Pass::new(worker.gate.clone());
        let mut io = Io::new(stream.clone(), self.exchange.clone(), pass);
        loop {
            if worker.has_fast_path()
                && let Some(end) = self.serve_plain(worker, &mut io, stream).await
            {
                return end;
            }
            // Boxed, so that a connection with only plain requests has no memory for hyper.
            io = match Box::pin(self.serve_by_hyper(worker, stream, io)).await {
                Ok(io) => io,
                Err(end) => return end,
            };
        }
    }

    /// Serves with hyper until the connection ends or the fast path can continue. Returns the socket for the fast path.
    async fn serve_by_hyper(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        stream: &Rc<RefCell<Stream>>,
        io: Io,
    ) -> Result<Io, End> {
        let mut io = TokioIo::new(io);
        let requests = Cell::new(0);
        loop {
            let service = service_fn(|request: Request<Incoming>| {
                requests.set(requests.get() + 1);
                let (worker, connection) = (worker.clone(), self.clone());
                let started = worker.service.begin(request, &connection.exchange);
                async move {
                    let mut answer = worker.service.end(started, &connection.exchange).await;
                    answer.fields.closes |= worker.draining().is_some();
                    Ok::<_, Infallible>(answer.into_response())
                }
            });
            let mut http = worker.http.borrow().serve_connection(io, service);
            let end = poll_fn(|context| {
                self.remember(context.waker());
                match self.exchange.take_verdict() {
                    Some(Verdict::FinishRequest) => Pin::new(&mut http).graceful_shutdown(),
                    // A request may have arrived since the sweep decided.
                    Some(Verdict::CheckHead) if !self.exchange.awaits_request() => {}
                    Some(Verdict::CloseIfIdle) if self.is_wanted(&stream.borrow()) => {
                        self.exchange.set_close_reason(None);
                    }
                    Some(verdict) => return Poll::Ready(End::Verdict(verdict)),
                    None => {}
                }
                let polled = Pin::new(&mut http).poll(context);
                let enough = worker.has_fast_path() && requests.get() >= HYPER_REQUESTS_MIN;
                if polled.is_pending() && enough && self.is_between_requests() {
                    return Poll::Ready(End::BackToFastPath);
                }
                polled.map(|finished| match finished {
                    // hyper sends nothing to a client that begins in HTTP/2.
                    Err(error)
                        if error.is_parse() && (self.exchange.hyper_was_muted() || self.exchange.mutes_hyper()) =>
                    {
                        End::Rejected(if error.is_parse_too_large() {
                            ApiError::HeadTooLarge
                        } else {
                            ApiError::MalformedHead
                        })
                    }
                    finished => End::Finished { by_error: finished.is_err() },
                })
            })
            .await;
            // Only `into_parts` returns the bytes that hyper has read ahead. hyper is idle and has written everything,
            // so nothing else is lost, and a new hyper connection continues at the same place.
            let mut parts = match end {
                End::Verdict(Verdict::CheckHead) | End::BackToFastPath => http.into_parts(),
                End::Verdict(_) | End::Finished { .. } | End::Rejected(_) => return Err(end),
            };
            let read_ahead = [parts.read_buf, parts.io.inner_mut().take_unread()].concat();
            if let End::BackToFastPath = end {
                requests.set(0);
                parts.io.inner_mut().put_back(&read_ahead);
                if !self.exchange.oversized() {
                    self.exchange.buffers_are_gone();
                    return Ok(parts.io.into_inner());
                }
            } else if read_ahead.iter().any(|byte| !b"\r\n".contains(byte)) {
                self.exchange.set_close_reason(Some(CloseReason::HeadTimeout));
                return Err(End::Verdict(Verdict::HeadTimedOut));
            }
            io = parts.io;
        }
    }

    /// Whether hyper waits for a request and has written the whole last answer. If an answer leaves a part of the
    /// request's body unread, no request follows: hyper closes the connection at the next poll, and bytes that arrive
    /// until then are not a request.
    fn is_between_requests(&self) -> bool {
        self.exchange.is_idle() && !self.exchange.body_unread()
    }

    /// Whether a request has begun, or bytes have arrived, since the sweep found the connection idle.
    fn is_wanted(&self, stream: &Stream) -> bool {
        let has_arrived = rustix::io::ioctl_fionread(stream.tcp()).is_ok_and(|bytes| bytes > 0);
        !self.exchange.awaits_request() || has_arrived || stream.has_unread()
    }

    /// Closes a connection whose client may still be sending: closes klad's sending side, then reads and discards what
    /// arrives, until the client closes too or a limit is reached. If bytes arrived at a closed socket, the kernel
    /// would answer with a reset, and the client might lose the answer that explains the close.
    async fn linger(&self, mut stream: Stream) {
        self.exchange.lingers();
        let mut read_to_end = pin!(async {
            if stream.shutdown().await.is_err() {
                return;
            }
            let mut scratch = vec![0; 16 << 10];
            let mut left = LINGER_BYTES_MAX;
            // The content does not matter, so TLS is not decoded.
            let mut tcp = stream.into_tcp();
            while let Ok(count @ 1..) = tcp.read(&mut scratch).await {
                match left.checked_sub(count) {
                    Some(rest) => left = rest,
                    None => return,
                }
            }
        });
        poll_fn(|context| {
            self.remember(context.waker());
            match self.exchange.take_verdict() {
                Some(Verdict::Close) => Poll::Ready(()),
                _ => read_to_end.as_mut().poll(context),
            }
        })
        .await;
    }

    fn remember(&self, waker: &Waker) {
        let mut remembered = self.waker.borrow_mut();
        if !remembered.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *remembered = Some(waker.clone());
        }
    }

    /// Checks whether the client is late, and wakes the connection's task if the task must act.
    pub(crate) fn check(&self, deadlines: &Deadlines, draining: Option<Draining>) {
        if self.exchange.check(deadlines, draining) {
            self.wake();
        }
    }

    /// The state of the connection's current request.
    pub(crate) fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// Ends the request, which holds body budget: see [`Exchange::evict`].
    pub(crate) fn evict(&self) {
        self.exchange.evict();
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }
}

fn prepare(stream: std::net::TcpStream, peer: &Peer) -> std::io::Result<TcpStream> {
    stream.set_nonblocking(true)?;
    if let Peer::Client { .. } = peer {
        // Each answer is one write; waiting for more bytes would only delay it.
        stream.set_nodelay(true)?;
        socket2::SockRef::from(&stream).set_tcp_notsent_lowat(NOT_SENT_BYTES_MAX)?;
    }
    TcpStream::from_std(stream)
}

/// Returns the duration in whole milliseconds.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
