//! The connection's bytes as hyper sees them, above TLS where there is TLS: reads pass the worker's gate, and every byte is told to the connection's exchange, from which
//! the sweep knows who is late. Made by `connection`.

use std::cell::RefCell;
use std::future::Future as _;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

use super::gate::Pass;
use super::stream::Stream;
use crate::http::exchange::Exchange;

/// A connection's socket.
pub(super) struct Io {
    /// Shared with the connection, which has the last word where hyper has none.
    stream: Rc<RefCell<Stream>>,
    exchange: Rc<Exchange>,
    pass: Pass,
}

impl Io {
    pub(super) fn new(stream: Rc<RefCell<Stream>>, exchange: Rc<Exchange>, pass: Pass) -> Io {
        Io { stream, exchange, pass }
    }
}

impl Io {
    /// Waits for a request, then for the gate; `false`: the client has given up.
    fn poll_pass(&self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let stream = self.stream.borrow();
        let tcp = stream.tcp();
        // This remembers whom to wake; what follows does not, and does not have to.
        match tcp.poll_read_ready(context)? {
            // In TLS a request may have come with what was read before.
            Poll::Pending if !stream.has_unread() => return Poll::Pending,
            Poll::Ready(()) | Poll::Pending => {}
        }
        let ready = match pin!(tcp.ready(Interest::READABLE)).poll(context) {
            Poll::Ready(ready) => ready?,
            Poll::Pending => Ready::READABLE,
        };
        if ready.is_read_closed() && !self.pass.is_passed() {
            self.pass.client_has_left();
            return Poll::Ready(Ok(false));
        }
        self.pass.poll(context).map(|()| Ok(true))
    }
}

impl Io {
    /// What a client takes of an answer is told by the socket below TLS: rustls takes up to 64 KiB at once, whatever the client
    /// does.
    fn sent_in_tls(&self, stream: &Stream, (before, waited): (usize, bool), offered: usize) {
        let Some((taken, waits)) = stream.on_the_way() else { return };
        let count = taken.wrapping_sub(before);
        if count > 0 || (waited && !waits) {
            self.exchange.bytes_written(Some(count), offered);
        }
        if waits {
            self.exchange.bytes_written(None, offered);
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.pass.is_free() && self.exchange.awaits_request() && !ready!(self.poll_pass(context))? {
            // As if the client had closed both sides.
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut *self.stream.borrow_mut()).poll_read(context, buffer));
        if read.is_err() {
            // What it was sent came back: it had closed before its answer.
            self.pass.client_has_left();
        }
        read?;
        let count = buffer.filled().len() - before;
        if count > 0 {
            self.pass.used();
            self.exchange.bytes_read(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = {
            let mut stream = self.stream.borrow_mut();
            let before = stream.on_the_way();
            let written = Pin::new(&mut *stream).poll_write(context, bytes);
            if let Some(before) = before {
                self.sent_in_tls(&stream, before, bytes.len());
            } else {
                let taken = match &written {
                    Poll::Ready(Ok(count)) => Some(*count),
                    Poll::Ready(Err(_)) => Some(0),
                    Poll::Pending => None,
                };
                self.exchange.bytes_written(taken, bytes.len());
            }
            written
        };
        if let Poll::Ready(Err(_)) = written {
            self.pass.client_has_left();
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut stream = self.stream.borrow_mut();
        let before = stream.on_the_way();
        let flushed = Pin::new(&mut *stream).poll_flush(context);
        if let Some(before) = before {
            self.sent_in_tls(&stream, before, 0);
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut stream = self.stream.borrow_mut();
        let before = stream.on_the_way();
        let shut = Pin::new(&mut *stream).poll_shutdown(context);
        if let Some(before) = before {
            self.sent_in_tls(&stream, before, 0);
        }
        shut
    }
}
