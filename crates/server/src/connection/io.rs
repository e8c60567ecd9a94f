//! The connection's bytes as hyper and the fast path see them, decrypted if there is TLS. A read that may begin a
//! request waits at the worker's gate. [`Io`] reports every byte to the connection's exchange, which tells the sweep
//! whether the client is late.
//!
//! If hyper cannot read a head, hyper writes a bare status by itself. [`Io`] discards this status unless klad is
//! sending an answer, and the connection sends a better answer instead. `connection` creates the [`Io`].

use std::cell::RefCell;
use std::future::Future as _;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

use crate::connection::gate::Pass;
use crate::exchange::Exchange;
use crate::net::stream::Stream;

/// A connection's socket, and bytes that were read from the socket and put back.
pub(crate) struct Io {
    /// Shared with the connection, which answers if hyper's own answer was discarded.
    stream: Rc<RefCell<Stream>>,
    exchange: Rc<Exchange>,
    pass: Pass,
    /// Bytes that were read from the socket and put back. The next read returns them. `Io` reported them to
    /// the exchange when they came from the socket, so it does not report them again.
    unread: Bytes,
}

impl Io {
    pub(crate) fn new(stream: Rc<RefCell<Stream>>, exchange: Rc<Exchange>, pass: Pass) -> Io {
        Io { stream, exchange, pass, unread: Bytes::new() }
    }
}

impl Io {
    /// Waits for the first byte of a request, then for the gate. `false`: the client has given up.
    fn poll_pass(&self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let stream = self.stream.borrow();
        let tcp = stream.tcp();
        // This call registers the waker, so the following calls need not.
        match tcp.poll_read_ready(context)? {
            // With TLS, a request may already have been read together with earlier bytes.
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
    /// Reports how many bytes of an answer the socket below TLS has taken. The bytes that rustls has accepted do not
    /// show that, because rustls accepts up to 64 KiB at once even if the client takes nothing. `before` and `waited`
    /// are the socket's progress before the write.
    fn sent_in_tls(&self, stream: &Stream, (before, waited): (usize, bool), held: usize) {
        let Some((taken, waits)) = stream.write_progress() else { return };
        let count = taken.wrapping_sub(before);
        if count > 0 || (waited && !waits) {
            self.exchange.bytes_carried(Some(count), held);
        }
        if waits {
            self.exchange.bytes_carried(None, held);
        }
    }

    /// Sends some of `bytes`, and returns how many. The connection holds no buffer of its own for them.
    pub(crate) fn poll_send(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let before = self.stream.borrow().write_progress();
        let written = Pin::new(&mut *self.stream.borrow_mut()).poll_write(context, bytes);
        self.account(before, &written, bytes.len(), 0);
        written
    }

    /// Reports to the exchange how many of `offered` bytes were written. The connection holds a buffer of `held` bytes
    /// for them.
    fn account(&self, before: Option<(usize, bool)>, written: &Poll<io::Result<usize>>, offered: usize, held: usize) {
        let taken = match written {
            Poll::Ready(Ok(count)) => Some(*count),
            Poll::Ready(Err(_)) => Some(0),
            Poll::Pending => None,
        };
        self.exchange.socket_took(taken, offered);
        match before {
            Some(before) => self.sent_in_tls(&self.stream.borrow(), before, held),
            None => self.exchange.bytes_carried(taken, held),
        }
        if let Poll::Ready(Err(_)) = written {
            self.pass.client_has_left();
        }
    }

    /// Puts back the last bytes that were read from here. The next read returns them.
    pub(crate) fn put_back(&mut self, bytes: &[u8]) {
        self.unread = [bytes, &self.unread].concat().into();
    }

    /// Whether there are bytes that were put back and not read again.
    pub(crate) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Takes the bytes that were put back and not read again.
    pub(crate) fn take_unread(&mut self) -> Bytes {
        std::mem::take(&mut self.unread)
    }

    /// Reads the bytes that were put back, and appends the bytes that have arrived since. The bytes that were put back
    /// may begin a request, so they wait at the gate, as bytes from the socket do.
    pub(crate) fn poll_fill(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let continues = !self.unread.is_empty();
        if continues {
            ready!(self.pass.poll(context));
            if let Some(since) = self.pass.used() {
                self.exchange.request().waited_at_gate(since);
            }
        }
        ready!(Pin::new(&mut *self).poll_read(context, buffer))?;
        if continues
            && self.unread.is_empty()
            && buffer.remaining() > 0
            // An end of the stream is ignored here, because the next read finds it again.
            && let Poll::Ready(Ok(count @ 1..)) = self.poll_socket(context, buffer)
        {
            self.exchange.bytes_read(count);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads from the socket. Before the first byte of a request, waits until the gate admits the request. Returns the
    /// number of bytes, 0 at the end of the stream.
    fn poll_socket(&self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        if !self.pass.is_free() && self.exchange.awaits_request() && !ready!(self.poll_pass(context))? {
            // The same as if the client had closed both sides.
            return Poll::Ready(Ok(0));
        }
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut *self.stream.borrow_mut()).poll_read(context, buffer));
        if read.is_err() {
            // The client sent a reset, because it had closed the connection before its answer.
            self.pass.client_has_left();
        }
        read?;
        let count = buffer.filled().len() - before;
        if count > 0
            && let Some(since) = self.pass.used()
        {
            self.exchange.request().waited_at_gate(since);
        }
        Poll::Ready(Ok(count))
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let count = self.unread.len().min(buffer.remaining());
            buffer.put_slice(&self.unread[..count]);
            self.unread.advance(count);
            if self.unread.is_empty() {
                // An empty slice would keep the whole allocation.
                self.unread = Bytes::new();
            }
            return Poll::Ready(Ok(()));
        }
        let count = ready!(self.poll_socket(context, buffer))?;
        if count > 0 {
            self.exchange.bytes_read(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.exchange.mutes_hyper() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let before = self.stream.borrow().write_progress();
        let written = Pin::new(&mut *self.stream.borrow_mut()).poll_write(context, bytes);
        self.account(before, &written, bytes.len(), bytes.len());
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut stream = self.stream.borrow_mut();
        let before = stream.write_progress();
        let flushed = Pin::new(&mut *stream).poll_flush(context);
        if let Some(before) = before {
            self.sent_in_tls(&stream, before, 0);
        }
        if flushed.is_ready() {
            self.exchange.answer_has_left();
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.exchange.hyper_was_muted() {
            // The connection will send its own answer.
            return Poll::Ready(Ok(()));
        }
        let mut stream = self.stream.borrow_mut();
        let before = stream.write_progress();
        let shut = Pin::new(&mut *stream).poll_shutdown(context);
        if let Some(before) = before {
            self.sent_in_tls(&stream, before, 0);
        }
        shut
    }
}
