//! A connection's bytes, with or without TLS. Without TLS, each call costs only one comparison more, so that TLS
//! support does not slow down these connections.
//!
//! `connection` and `admin` create a `Stream`, `io` uses it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A socket with or without TLS.
pub(crate) enum Stream {
    /// Without TLS.
    Clear(TcpStream),
    /// With TLS. Boxed, because its state takes some kilobytes.
    Tls(Box<TlsStream<Socket>>),
}

/// The socket below TLS. It counts the bytes that the kernel takes, because rustls accepts bytes that the kernel does
/// not take yet.
pub(crate) struct Socket {
    tcp: TcpStream,
    taken_bytes: usize,
}

impl Socket {
    pub(crate) fn new(tcp: TcpStream) -> Socket {
        Socket { tcp, taken_bytes: 0 }
    }

    pub(crate) fn into_tcp(self) -> TcpStream {
        self.tcp
    }
}

impl Stream {
    /// Returns the socket, to ask the kernel about it. Reads and writes must go through TLS.
    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Stream::Clear(tcp) => tcp,
            Stream::Tls(tls) => &tls.get_ref().0.tcp,
        }
    }

    /// Returns the socket. Bytes that TLS still holds are lost.
    pub(crate) fn into_tcp(self) -> TcpStream {
        match self {
            Stream::Clear(tcp) => tcp,
            Stream::Tls(tls) => tls.into_inner().0.tcp,
        }
    }

    /// With TLS, returns whether rustls holds decrypted bytes, or the end of the stream, that were not read from
    /// rustls. Without TLS, returns `false`, because the kernel holds all bytes that were not read.
    pub(crate) fn has_unread(&self) -> bool {
        match self {
            Stream::Clear(_) => false,
            Stream::Tls(tls) => !tls.get_ref().1.wants_read(),
        }
    }

    /// With TLS, returns the number of bytes that the kernel has taken, and whether rustls holds more bytes that the
    /// kernel has not taken yet. Without TLS, returns `None`.
    pub(crate) fn write_progress(&self) -> Option<(usize, bool)> {
        match self {
            Stream::Clear(_) => None,
            Stream::Tls(tls) => {
                let (socket, session) = tls.get_ref();
                Some((socket.taken_bytes, session.wants_write()))
            }
        }
    }

    /// Sends as many of `bytes` as the kernel takes now. Drops the other bytes.
    pub(crate) fn send_now(&mut self, bytes: &[u8]) {
        let _ = Pin::new(self).poll_write(&mut Context::from_waker(Waker::noop()), bytes);
    }

    /// With TLS, sends a close notification, if the kernel takes it now. Without this notification a client cannot
    /// distinguish klad's close from one by an attacker. Without TLS, does nothing.
    pub(crate) fn send_close_notify(&mut self) {
        if let Stream::Tls(tls) = self {
            tls.get_mut().1.send_close_notify();
            let _ = Pin::new(tls).poll_flush(&mut Context::from_waker(Waker::noop()));
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Clear(tcp) => Pin::new(tcp).poll_read(context, buffer),
            Stream::Tls(tls) => match Pin::new(tls).poll_read(context, buffer) {
                // The client has closed without a close notification. HTTP's framing shows whether a part of a message
                // is missing.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
                polled => polled,
            },
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Clear(tcp) => Pin::new(tcp).poll_write(context, bytes),
            Stream::Tls(tls) => Pin::new(tls).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Clear(tcp) => Pin::new(tcp).poll_flush(context),
            Stream::Tls(tls) => Pin::new(tls).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Clear(tcp) => Pin::new(tcp).poll_shutdown(context),
            Stream::Tls(tls) => Pin::new(tls).poll_shutdown(context),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_read(context, buffer)
    }
}

impl Socket {
    fn count(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = &written {
            self.taken_bytes = self.taken_bytes.wrapping_add(*count);
        }
        written
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.tcp).poll_write(context, bytes);
        this.count(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.tcp).poll_write_vectored(context, parts);
        this.count(written)
    }

    /// Returns `true`, so that rustls passes several TLS records to the kernel in one call.
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_shutdown(context)
    }
}
