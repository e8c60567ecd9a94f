//! The socket as hyper sees it: reads pass the worker's gate, and every byte is told to the connection's exchange, from which
//! the sweep knows who is late. Made by `connection`.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::gate::Gate;
use crate::http::exchange::Exchange;

/// A connection's socket.
pub(super) struct Io {
    /// Shared with the connection, which has the last word where hyper has none.
    stream: Rc<RefCell<TcpStream>>,
    exchange: Rc<Exchange>,
    gate: Rc<Gate>,
}

impl Io {
    pub(super) fn new(stream: Rc<RefCell<TcpStream>>, exchange: Rc<Exchange>, gate: Rc<Gate>) -> Io {
        Io { stream, exchange, gate }
    }
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.gate.poll_open(context));
        let before = buffer.filled().len();
        ready!(Pin::new(&mut *self.stream.borrow_mut()).poll_read(context, buffer))?;
        let count = buffer.filled().len() - before;
        if count > 0 {
            self.exchange.bytes_read(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream.borrow_mut()).poll_write(context, bytes);
        self.exchange.bytes_written(written.is_ready(), bytes.len());
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_shutdown(context)
    }
}
