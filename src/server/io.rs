//! The socket as hyper sees it: reads pass the worker's gate, and every byte is told to the connection's exchange, from which
//! the sweep knows who is late. Made by `connection`.

use std::cell::RefCell;
use std::future::Future as _;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;

use super::gate::Pass;
use crate::http::exchange::Exchange;
use crate::http::refusal::Refusal;

/// A connection's socket.
pub(super) struct Io {
    /// Shared with the connection, which has the last word where hyper has none.
    stream: Rc<RefCell<TcpStream>>,
    exchange: Rc<Exchange>,
    pass: Pass,
    /// klad's words in place of hyper's, as far as they have not been taken.
    last_words: Option<Vec<u8>>,
}

impl Io {
    pub(super) fn new(stream: Rc<RefCell<TcpStream>>, exchange: Rc<Exchange>, pass: Pass) -> Io {
        Io { stream, exchange, pass, last_words: None }
    }
}

impl Io {
    /// Waits for a request, then for the gate; `false`: the client has given up.
    fn poll_pass(&self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let stream = self.stream.borrow();
        // This remembers whom to wake; what follows does not, and does not have to.
        ready!(stream.poll_read_ready(context))?;
        let ready = match pin!(stream.ready(Interest::READABLE)).poll(context) {
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
    /// hyper answers a head that it cannot read by a bare status, and writes nothing after it. klad says more: all of its own
    /// words count as all of hyper's.
    fn poll_last_words(&mut self, context: &mut Context<'_>, hypers: usize) -> Poll<io::Result<usize>> {
        let Some(words) = &mut self.last_words else { return Poll::Ready(Ok(hypers)) };
        while !words.is_empty() {
            let taken = ready!(Pin::new(&mut *self.stream.borrow_mut()).poll_write(context, words))?;
            words.drain(..taken);
        }
        Poll::Ready(Ok(hypers))
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
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // A head is being read: what hyper writes now is its own.
        if self.last_words.is_none() && self.exchange.awaits_head() {
            self.last_words = Refusal::of_hyper(bytes).map(Refusal::into_last_words);
        }
        let written = if self.last_words.is_some() {
            self.poll_last_words(context, bytes.len())
        } else {
            Pin::new(&mut *self.stream.borrow_mut()).poll_write(context, bytes)
        };
        let taken = match &written {
            Poll::Ready(Ok(count)) => Some(*count),
            Poll::Ready(Err(_)) => Some(0),
            Poll::Pending => None,
        };
        self.exchange.bytes_written(taken, bytes.len());
        if let Poll::Ready(Err(_)) = written {
            self.pass.client_has_left();
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_shutdown(context)
    }
}
