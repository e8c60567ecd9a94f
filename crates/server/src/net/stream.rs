//! A connection's bytes, in clear or in TLS. Which of the two is one comparison for each call, so that what is in clear gets no
//! slower.
//!
//! Made by `connection` and `admin`, used by `io`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A socket that may be in TLS.
pub(crate) enum Stream {
    /// In clear.
    Plain(TcpStream),
    /// In TLS; apart, as its state is some kilobytes.
    Tls(Box<TlsStream<Socket>>),
}

/// The socket below TLS, which counts what the kernel takes: rustls itself takes more than the client does.
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
    /// The socket, to look at.
    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => &tls.get_ref().0.tcp,
        }
    }

    /// The socket, whatever TLS still holds.
    pub(crate) fn into_tcp(self) -> TcpStream {
        match self {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => tls.into_inner().0.tcp,
        }
    }

    /// Whether bytes, or the end, have come out of the socket and were not read.
    pub(crate) fn has_unread(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Tls(tls) => !tls.get_ref().1.wants_read(),
        }
    }

    /// For TLS: the bytes that the kernel took so far, and whether more wait for it to take them. They were taken from hyper, but
    /// by no client.
    pub(crate) fn on_the_way(&self) -> Option<(usize, bool)> {
        match self {
            Stream::Plain(_) => None,
            Stream::Tls(tls) => {
                let (socket, session) = tls.get_ref();
                Some((socket.taken_bytes, session.wants_write()))
            }
        }
    }

    /// Sends as much of `bytes` as the kernel takes now.
    pub(crate) fn send_now(&mut self, bytes: &[u8]) {
        let _ = Pin::new(self).poll_write(&mut Context::from_waker(Waker::noop()), bytes);
    }

    /// In TLS: says that this end is meant, as far as the kernel takes it now. Without it a client cannot tell it from an end
    /// that somebody on the way has made.
    pub(crate) fn say_goodbye(&mut self) {
        if let Stream::Tls(tls) = self {
            tls.get_mut().1.send_close_notify();
            let _ = Pin::new(tls).poll_flush(&mut Context::from_waker(Waker::noop()));
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_read(context, buffer),
            Stream::Tls(tls) => match Pin::new(tls).poll_read(context, buffer) {
                // A client that closes without saying so. HTTP's own framing tells whether something is missing.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
                polled => polled,
            },
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_write(context, bytes),
            Stream::Tls(tls) => Pin::new(tls).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_flush(context),
            Stream::Tls(tls) => Pin::new(tls).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_shutdown(context),
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

    /// Records leave together.
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
