//! One connection: what is served on it, by hyper or without, the verdicts of the sweep, and its end.
//!
//! Called by `worker`, on the worker's thread only.

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
use crate::connection::worker::Worker;
use crate::exchange::{Closed, Deadlines, Draining, Exchange, Verdict};
use crate::http::api_error::ApiError;
use crate::net::handshake::{Handshaker, Shaken};
use crate::net::stream::Stream;
use klad_base::limits::{CONNECTION_BUFFER_BYTES_MAX, HYPER_REQUESTS_MIN, LINGER_BYTES_MAX, NOT_SENT_BYTES_MAX};

pub mod accept;
pub mod eviction;
pub mod figures;
pub mod gate;
mod io;
pub mod peers;
pub mod places;
mod plain;
pub mod worker;

/// One connection, as its worker keeps it.
pub(crate) struct Connection {
    exchange: Rc<Exchange>,
    /// Wakes the connection's task.
    waker: RefCell<Option<Waker>>,
}

enum End {
    /// There are no more requests.
    Finished {
        by_error: bool,
    },
    /// hyper cannot read a head, and has not been heard.
    Refused(ApiError),
    Verdict(Verdict),
    /// hyper is between two requests, and has had enough of them.
    Enough,
}

/// hyper's settings.
pub(crate) fn http(limits: &Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    // No `max_headers`: HEADERS_MAX is hyper's own, and a bound that is set makes it fill two tables for each request.
    // Flat writes: head and small body leave in one write, and a range's chunks in writes of some 64 KiB.
    http.writev(false)
        .max_buf_size(CONNECTION_BUFFER_BYTES_MAX)
        .max_header_size(limits.head_bytes_max)
        // A client that has sent its request may close its sending side and still wants the answer.
        .half_close(true)
        // A timer for each request; the sweep does it for nothing.
        .header_read_timeout(None);
    http
}

impl Connection {
    pub(crate) fn new(exchange: Exchange) -> Rc<Connection> {
        Rc::new(Connection { exchange: Rc::new(exchange), waker: RefCell::default() })
    }

    /// Serves until the client leaves, the sweep decides, or klad stops; answers which.
    pub(crate) async fn serve(self: &Rc<Self>, worker: &Rc<Worker>, stream: std::net::TcpStream) -> Closed {
        // A client that is gone already is no event.
        let Ok(stream) = prepare(stream) else { return Closed::ByClient };
        let stream = match &worker.handshaker {
            None => Stream::Plain(stream),
            // Boxed: what it needs is gone when it is done, and a connection in clear never has it.
            Some(handshaker) => match Box::pin(self.shake_hands(handshaker, stream)).await {
                Some(stream) => stream,
                None => return self.exchange.closed().unwrap_or(Closed::Error),
            },
        };
        let stream = Rc::new(RefCell::new(stream));
        let end = self.serve_http(worker, &stream).await;
        let mut stream = Rc::into_inner(stream).expect("hyper is done with it").into_inner();
        self.exchange.connection_ends();
        let stops = worker.draining().is_some();
        let why = match end {
            End::Finished { by_error: true } | End::Refused(_) => Closed::Error,
            _ if stops => Closed::Stopping,
            _ => Closed::ByClient,
        };
        match end {
            End::Verdict(Verdict::HeadTimedOut) => self.refuse(worker, stream, ApiError::HeadTimeout).await,
            End::Refused(api_error) => self.refuse(worker, stream, api_error).await,
            // While klad stops: what a client sends behind a closing answer is not answered, but must not cost it the
            // answer.
            End::Finished { by_error } if by_error || self.exchange.body_unread() || stops => self.linger(stream).await,
            // In the middle of an answer an end must not look as if it were meant.
            End::Verdict(_) if self.exchange.is_idle() => stream.say_goodbye(),
            End::Finished { .. } => stream.say_goodbye(),
            End::Verdict(_) | End::Enough => {}
        }
        self.exchange.closed().unwrap_or(why)
    }

    /// The last answer, where no head was read.
    async fn refuse(&self, worker: &Worker, mut stream: Stream, api_error: ApiError) {
        worker.observer.refused(api_error.code());
        stream.send_now(&api_error.into_last_words());
        self.linger(stream).await;
    }

    /// `None`: there will be no TLS with this client, and its connection has ended.
    async fn shake_hands(&self, handshaker: &Handshaker, stream: TcpStream) -> Option<Stream> {
        self.exchange.handshake_begins();
        let mut shaking = pin!(handshaker.shake(stream));
        let shaken = poll_fn(|context| {
            self.remember(context.waker());
            match self.exchange.take_verdict() {
                Some(Verdict::Close) => Poll::Ready(None),
                _ => shaking.as_mut().poll(context).map(Some),
            }
        })
        .await;
        match shaken {
            Some(Shaken::Done(stream)) => {
                self.exchange.handshake_ends();
                return Some(stream);
            }
            Some(Shaken::Refused(tcp)) => self.linger(Stream::Plain(tcp)).await,
            Some(Shaken::Gone) => self.exchange.set_closed(Some(Closed::ByClient)),
            None => handshaker.late(),
        }
        None
    }

    /// The seam between the fast path and hyper: plain requests go the first way (`plain`), and from the first byte of one that
    /// is not on hyper has the connection, until it has answered some and is between two. With `--fast-path off` hyper has all.
    async fn serve_http(self: &Rc<Self>, worker: &Rc<Worker>, stream: &Rc<RefCell<Stream>>) -> End {
        let pass = Pass::new(worker.gate.clone());
        let mut io = Io::new(stream.clone(), self.exchange.clone(), pass);
        loop {
            if worker.has_fast_path()
                && let Some(end) = self.serve_plain(worker, &mut io, stream).await
            {
                return end;
            }
            // Boxed: a connection that has only plain requests has no room for hyper.
            io = match Box::pin(self.serve_by_hyper(worker, stream, io)).await {
                Ok(io) => io,
                Err(end) => return end,
            };
        }
    }

    /// Serves by hyper, until the connection ends or hyper has had enough of it.
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
                let begun = worker.service.begin(request, &connection.exchange);
                async move {
                    let mut answer = worker.service.end(begun, &connection.exchange).await;
                    answer.fields.closes |= worker.draining().is_some();
                    Ok::<_, Infallible>(answer.into_response())
                }
            });
            let mut http = worker.http.borrow().serve_connection(io, service);
            let end = poll_fn(|context| {
                self.remember(context.waker());
                match self.exchange.take_verdict() {
                    Some(Verdict::Finish) => Pin::new(&mut http).graceful_shutdown(),
                    // Since the sweep asked a request may have come.
                    Some(Verdict::Look) if !self.exchange.awaits_request() => {}
                    Some(Verdict::Leave) if self.is_wanted(&stream.borrow()) => self.exchange.set_closed(None),
                    Some(verdict) => return Poll::Ready(End::Verdict(verdict)),
                    None => {}
                }
                let polled = Pin::new(&mut http).poll(context);
                let enough = worker.has_fast_path() && requests.get() >= HYPER_REQUESTS_MIN;
                if polled.is_pending() && enough && self.is_between_requests() {
                    return Poll::Ready(End::Enough);
                }
                polled.map(|finished| match finished {
                    // hyper says nothing to a client that begins in HTTP/2.
                    Err(error)
                        if error.is_parse() && (self.exchange.hyper_was_muted() || self.exchange.mutes_hyper()) =>
                    {
                        End::Refused(if error.is_parse_too_large() {
                            ApiError::HeadTooLarge
                        } else {
                            ApiError::MalformedHead
                        })
                    }
                    finished => End::Finished { by_error: finished.is_err() },
                })
            })
            .await;
            // hyper shows what it has read only by being taken apart. It is idle and everything is written, so there is
            // nothing else to lose, and a new one goes on where it was.
            let mut parts = match end {
                End::Verdict(Verdict::Look) | End::Enough => http.into_parts(),
                End::Verdict(_) | End::Finished { .. } | End::Refused(_) => return Err(end),
            };
            let read_ahead = [parts.read_buf, parts.io.inner_mut().take_unread()].concat();
            if let End::Enough = end {
                requests.set(0);
                if read_ahead.is_empty() && !self.exchange.oversized() {
                    self.exchange.buffers_are_gone();
                    return Ok(parts.io.into_inner());
                }
                parts.io.inner_mut().put_back(read_ahead.into());
            } else if read_ahead.iter().any(|byte| !b"\r\n".contains(byte)) {
                self.exchange.set_closed(Some(Closed::HeadTimeout));
                return Err(End::Verdict(Verdict::HeadTimedOut));
            }
            io = parts.io;
        }
    }

    /// Whether hyper waits for a request, and has written everything. An answer that leaves a body unread
    /// is the last one: hyper closes when it is polled again, and what comes until then is no request.
    fn is_between_requests(&self) -> bool {
        self.exchange.is_idle() && !self.exchange.body_unread()
    }

    /// Whether a connection that was idle no longer is.
    fn is_wanted(&self, stream: &Stream) -> bool {
        let has_arrived = rustix::io::ioctl_fionread(stream.tcp()).is_ok_and(|bytes| bytes > 0);
        !self.exchange.awaits_request() || has_arrived || stream.has_unread()
    }

    /// Closes a connection whose client may still be sending: if its bytes met a closed socket, the kernel would answer with
    /// a reset, and the client might lose the answer that explains the close.
    async fn linger(&self, mut stream: Stream) {
        self.exchange.lingers();
        let mut read_to_end = pin!(async {
            if stream.shutdown().await.is_err() {
                return;
            }
            let mut scratch = vec![0; 16 << 10];
            let mut left = LINGER_BYTES_MAX;
            // Nobody wants to know what is in it, in TLS or not.
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

    /// Decides whether the client is late.
    pub(crate) fn check(&self, deadlines: &Deadlines, draining: Option<Draining>) {
        if self.exchange.check(deadlines, draining) {
            self.wake();
        }
    }

    /// What the connection does.
    pub(crate) fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// Ends what holds memory of the body budget.
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

fn prepare(stream: std::net::TcpStream) -> std::io::Result<TcpStream> {
    stream.set_nonblocking(true)?;
    // An answer is one write; waiting for more to send would only delay it.
    stream.set_nodelay(true)?;
    socket2::SockRef::from(&stream).set_tcp_notsent_lowat(NOT_SENT_BYTES_MAX)?;
    TcpStream::from_std(stream)
}

/// Milliseconds.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
