//! A socket's bytes, read and written without the C library: its `recv` and `send` take the frame pointer's register for
//! something else meanwhile, so that a sample of a profile within them has no callers, and that is half of a worker's time.
//!
//! Otherwise as tokio does it: what fills the room only in part has emptied the socket, or filled it, and need not be tried again
//! (epoll tells what comes later). Called by `stream`.

#![expect(unsafe_code, reason = "the kernel fills room that nobody has cleared before")]

use std::io;
use std::task::{Context, Poll, ready};

use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use tokio::io::{Interest, ReadBuf};
use tokio::net::TcpStream;

/// So many parts the kernel takes at once (`UIO_MAXIOV`).
const PARTS_MAX: usize = 1024;

/// Reads what is there, as much as `buffer` has room for; nothing at the end.
pub(super) fn poll_read(tcp: &TcpStream, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    // SAFETY: nothing that was cleared or written becomes uninitialized: the kernel only writes.
    let room = unsafe { buffer.unfilled_mut() };
    let wanted = room.len();
    let read = poll_call(tcp, context, Interest::READABLE, wanted, || {
        rustix::net::recv(tcp, &mut *room, RecvFlags::empty()).map(|((filled, _), _)| filled.len())
    });
    let count = ready!(read)?;
    // SAFETY: the kernel has written so many.
    unsafe { buffer.assume_init(count) };
    buffer.advance(count);
    Poll::Ready(Ok(()))
}

/// Hands over as many of `bytes` as the kernel takes, and answers how many.
pub(super) fn poll_write(tcp: &TcpStream, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    poll_call(tcp, context, Interest::WRITABLE, bytes.len(), || rustix::net::send(tcp, bytes, SendFlags::NOSIGNAL))
}

/// As [`poll_write`], of parts that leave together.
pub(super) fn poll_write_parts(
    tcp: &TcpStream,
    context: &mut Context<'_>,
    parts: &[io::IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let parts = &parts[..parts.len().min(PARTS_MAX)];
    let wanted = parts.iter().map(|part| part.len()).sum();
    poll_call(tcp, context, Interest::WRITABLE, wanted, || {
        rustix::net::sendmsg(tcp, parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
    })
}

/// Calls the kernel once the socket is ready, until it does something; answers the number of bytes, of `wanted`.
fn poll_call(
    tcp: &TcpStream,
    context: &mut Context<'_>,
    interest: Interest,
    wanted: usize,
    mut call: impl FnMut() -> rustix::io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        let ready = if interest.is_readable() { tcp.poll_read_ready(context) } else { tcp.poll_write_ready(context) };
        ready!(ready)?;
        let mut done = None;
        let called = tcp.try_io(interest, || {
            let count = call()?;
            done = Some(count);
            // What says that it would block is not tried again before the socket is ready.
            if (1..wanted).contains(&count) { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match (done, called) {
            (Some(count), _) => return Poll::Ready(Ok(count)),
            (None, Err(error)) if error.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(Err(error)),
            // Somebody else was quicker, or there was nothing: the next look waits for more.
            (None, _) => {}
        }
    }
}
