//! One connection: hyper on it, the verdicts of the sweep, and its end.
//!
//! Called by `worker`, on the worker's thread only.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Options;
use super::gate::Pass;
use super::handshake::{Handshaker, Shaken};
use super::io::Io;
use super::stream::Stream;
use super::worker::Worker;
use crate::http::exchange::{Exchange, Phase};
use crate::http::meter::Flow;
use crate::limits::{
    CONNECTION_BUFFER_BYTES_MAX, EVICTION_AGE_MIN, GROWN_IDLE_TIMEOUT, HEADERS_MAX, LINGER_BYTES_MAX, LINGER_TIMEOUT,
    NOT_SENT_BYTES_MAX,
};

/// How long a connection may wait for its client. All are kept to within
/// [`SWEEP_INTERVAL`](crate::limits::SWEEP_INTERVAL).
#[derive(Clone, Debug)]
pub struct Deadlines {
    /// From the first byte of a head to its last; then 408.
    pub head: Duration,
    /// Between two requests; then the connection closes silently.
    pub idle: Duration,
    /// Without a byte of an expected body, or below the rate; then 408.
    pub body: Duration,
    /// Without the peer taking a byte of an answer, or below the rate; then the connection closes.
    pub write: Duration,
    /// Bytes a second of a body in either direction. 0: no client is ended for being slow.
    pub body_rate_bytes_min: u64,
}

/// While klad stops, a client has so long for the next thing that is waited for.
const DRAIN_PATIENCE: Duration = Duration::from_millis(300);

/// Sent where hyper has no say: in the middle of a head.
const HEAD_TIMED_OUT: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// A connection's state outside hyper.
pub(super) struct Connection {
    exchange: Rc<Exchange>,
    verdict: Cell<Option<Verdict>>,
    waker: RefCell<Option<Waker>>,
}

/// What the sweep has decided; carried out by the connection's own task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// End after the request in progress.
    Finish,
    /// Answer 408 in the middle of a head, and close.
    HeadTimedOut,
    /// Look whether a head has begun in hyper's buffer.
    Look,
    /// Close.
    Close,
}

/// Room that ending a connection would win.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holding {
    pub(super) room_bytes: u64,
    /// What the client does for it.
    pub(super) bytes_per_second: u64,
    /// For how long it was waited for.
    pub(super) waited: Duration,
}

enum End {
    /// hyper has finished; `true` when it met an error that it has answered itself.
    Finished {
        by_error: bool,
    },
    Verdict(Verdict),
}

/// hyper's settings.
pub(super) fn http(options: &Options) -> http1::Builder {
    let mut http = http1::Builder::new();
    // Flat writes: head and small body leave in one write, and a range's chunks in writes of some 64 KiB.
    http.writev(false)
        .max_buf_size(CONNECTION_BUFFER_BYTES_MAX)
        .max_header_size(options.head_bytes_max)
        .max_headers(HEADERS_MAX)
        // A client that has sent its request may close its sending side and still wants the answer.
        .half_close(true)
        // A timer for each request; the sweep does it for nothing.
        .header_read_timeout(None);
    http
}

impl Connection {
    pub(super) fn new(now_ms: Rc<Cell<u64>>) -> Rc<Connection> {
        Rc::new(Connection {
            exchange: Rc::new(Exchange::new(now_ms)),
            verdict: Cell::new(None),
            waker: RefCell::new(None),
        })
    }

    /// Serves until the client leaves, the sweep decides, or klad stops.
    pub(super) async fn serve(&self, worker: &Rc<Worker>, stream: std::net::TcpStream) {
        // A client that is gone already is no event.
        let Ok(stream) = prepare(stream) else { return };
        let stream = match &worker.handshaker {
            None => Stream::Plain(stream),
            // Boxed: what it needs is gone when it is done, and a connection in clear never has it.
            Some(handshaker) => match Box::pin(self.shake_hands(handshaker, stream)).await {
                Some(stream) => stream,
                None => return,
            },
        };
        let stream = Rc::new(RefCell::new(stream));
        let end = self.serve_http(worker, stream.clone()).await;
        let mut stream = Rc::into_inner(stream).expect("hyper is done with it").into_inner();
        match end {
            End::Verdict(Verdict::HeadTimedOut) => {
                stream.send_now(HEAD_TIMED_OUT);
                self.linger(stream).await;
            }
            End::Finished { by_error } if by_error || self.exchange.body_unread() => self.linger(stream).await,
            // In the middle of an answer an end must not look as if it were meant.
            End::Verdict(_) if self.is_between_requests() => stream.say_goodbye(),
            End::Verdict(_) | End::Finished { .. } => {}
        }
    }

    fn is_between_requests(&self) -> bool {
        self.exchange.awaits_request() && self.exchange.write_blocked_since_ms().is_none()
    }

    /// `None`: there will be no TLS with this client, and its connection has ended.
    async fn shake_hands(&self, handshaker: &Handshaker, stream: TcpStream) -> Option<Stream> {
        self.exchange.handshake_begins();
        let mut shaking = pin!(handshaker.shake(stream));
        let shaken = poll_fn(|context| {
            self.remember(context.waker());
            match self.verdict.take() {
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
            Some(Shaken::Gone) => {}
            None => handshaker.late(),
        }
        None
    }

    async fn serve_http(&self, worker: &Rc<Worker>, stream: Rc<RefCell<Stream>>) -> End {
        let mut io = TokioIo::new(Io::new(stream, self.exchange.clone(), Pass::new(worker.gate.clone())));
        loop {
            let service = service_fn(|request| {
                let (worker, exchange) = (worker.clone(), self.exchange.clone());
                async move { Ok::<_, Infallible>(worker.service.answer(request, &exchange).await) }
            });
            let mut http = worker.http.serve_connection(io, service);
            let end = poll_fn(|context| {
                self.remember(context.waker());
                match self.verdict.take() {
                    Some(Verdict::Finish) => Pin::new(&mut http).graceful_shutdown(),
                    // Since the sweep asked a request may have come.
                    Some(Verdict::Look) if self.exchange.phase().0 != Phase::Idle => {}
                    Some(verdict) => return Poll::Ready(End::Verdict(verdict)),
                    None => {}
                }
                Pin::new(&mut http).poll(context).map(|finished| End::Finished { by_error: finished.is_err() })
            })
            .await;
            let End::Verdict(Verdict::Look) = end else { return end };
            // hyper shows what it has read only by being taken apart. It is idle and everything is written, so there is
            // nothing else to lose, and a new one goes on where it was.
            let parts = http.into_parts();
            if parts.read_buf.iter().any(|byte| !b"\r\n".contains(byte)) {
                return End::Verdict(Verdict::HeadTimedOut);
            }
            io = parts.io;
        }
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
            match self.verdict.take() {
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
    pub(super) fn check(&self, now_ms: u64, deadlines: &Deadlines, draining: bool) {
        let (phase, since_ms) = self.exchange.phase();
        let waited = Duration::from_millis(now_ms.saturating_sub(since_ms));
        let patience = |deadline: Duration| if draining { deadline.min(DRAIN_PATIENCE) } else { deadline };
        let too_slow =
            |flow: Flow, deadline| flow.waited > deadline && flow.bytes_per_second() < deadlines.body_rate_bytes_min;
        let write_blocked = self.exchange.write_blocked_since_ms().is_some_and(|since_ms| {
            let stalled = now_ms.saturating_sub(since_ms) > ms(patience(deadlines.write));
            stalled || too_slow(self.exchange.taken(), deadlines.write)
        });
        let verdict = match phase {
            _ if write_blocked => Verdict::Close,
            // Not while the last answer is still on its way out.
            Phase::Idle if self.exchange.write_blocked_since_ms().is_some() => return,
            Phase::Idle if draining => Verdict::Finish,
            Phase::Idle if waited > deadlines.idle.min(deadlines.head) && self.exchange.take_unlooked() => {
                Verdict::Look
            }
            Phase::Idle if waited > deadlines.idle => Verdict::Close,
            Phase::Idle if self.exchange.grown() && waited > GROWN_IDLE_TIMEOUT => Verdict::Close,
            Phase::Linger if waited > patience(LINGER_TIMEOUT) => Verdict::Close,
            Phase::Handshake if waited > patience(deadlines.head) => Verdict::Close,
            Phase::Head if waited > patience(deadlines.head) => Verdict::HeadTimedOut,
            Phase::Body if waited > patience(deadlines.body) || too_slow(self.exchange.sent(), deadlines.body) => {
                self.exchange.set_body_timed_out();
                return self.wake();
            }
            Phase::Busy | Phase::Body | Phase::Head if draining => Verdict::Finish,
            Phase::Idle | Phase::Busy if self.exchange.oversized() => Verdict::Finish,
            Phase::Handshake | Phase::Idle | Phase::Head | Phase::Busy | Phase::Body | Phase::Linger => return,
        };
        self.verdict.set(Some(verdict));
        self.wake();
    }

    /// What could be won by [`Connection::evict`]; `None` where nothing is, or where it is too early to tell.
    pub(super) fn evictable(&self, now_ms: u64) -> Option<Holding> {
        let room_bytes = self.exchange.room_held_bytes();
        let ends = self.verdict.get() == Some(Verdict::Close) || self.exchange.body_timed_out();
        if room_bytes == 0 || ends {
            return None;
        }
        let (bytes_per_second, waited) = match self.exchange.write_blocked_since_ms() {
            Some(since_ms) => (0, Duration::from_millis(now_ms.saturating_sub(since_ms))),
            None if self.exchange.phase().0 == Phase::Body => {
                let sent = self.exchange.sent();
                (sent.bytes_per_second(), sent.waited)
            }
            None => return None,
        };
        (waited > EVICTION_AGE_MIN).then_some(Holding { room_bytes, bytes_per_second, waited })
    }

    /// Ends what holds room: an upload by 408, an answer by closing.
    pub(super) fn evict(&self) {
        if self.exchange.write_blocked_since_ms().is_some() {
            self.verdict.set(Some(Verdict::Close));
        } else {
            self.exchange.set_body_timed_out();
        }
        self.wake();
    }

    /// No request is read, by klad's own doing.
    pub(super) fn restart_idle_clock(&self) {
        self.exchange.restart_idle_clock();
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

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
