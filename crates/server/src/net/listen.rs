//! Binds listeners, and closes them to newcomers. Called by `main` before the data directory is touched, so that a busy port
//! changes nothing, and by `accept`.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};

use klad_base::limits::LISTEN_BACKLOG;

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The words are not an address.
    #[error("{0:?} is not an address to listen on; use for example 127.0.0.1:8080")]
    NotAnAddress(String),
    /// The kernel said no.
    #[error("cannot listen on {address}: {cause}{}", hint(cause))]
    Bind {
        /// Where.
        address: SocketAddr,
        /// The kernel's answer.
        cause: std::io::Error,
    },
}

fn hint(cause: &std::io::Error) -> &'static str {
    match cause.kind() {
        std::io::ErrorKind::AddrInUse => " (another process listens there; choose another port)",
        std::io::ErrorKind::PermissionDenied => " (ports below 1024 need privileges; choose a higher one)",
        _ => "",
    }
}

/// The address that `address` (`host:port`) stands for, the first where it stands for several.
///
/// # Errors
/// [`Error::NotAnAddress`].
pub fn resolve(address: &str) -> Result<SocketAddr, Error> {
    let no_address = || Error::NotAnAddress(address.to_owned());
    address.to_socket_addrs().map_err(|_| no_address())?.next().ok_or_else(no_address)
}

/// Listens on `address` (`host:port`; port 0 lets the kernel choose). The address may be reused at once after a stop.
///
/// # Errors
/// [`Error`].
pub fn bind(address: &str) -> Result<TcpListener, Error> {
    let address = resolve(address)?;
    let bind = || {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM,
            Some(socket2::Protocol::TCP),
        )?;
        // A connection in TIME_WAIT must not keep a restarted klad from its port.
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(i32::try_from(LISTEN_BACKLOG).expect("a small constant"))?;
        Ok(socket.into())
    };
    bind().map_err(|cause| Error::Bind { address, cause })
}

/// From now on the kernel takes no new connection: it drops segments that ask for one, and still lets clients that have its
/// answer already complete theirs. Closing the listener instead would reset those, and the ones that wait to be accepted.
///
/// Whoever asks meanwhile asks again a second later, and is refused then by a closed port, or accepted by the next klad.
/// `docs/decisions/2026-11-21-stopping.md` has what else was tried.
///
/// # Errors
/// When the kernel does not filter.
#[cfg(target_os = "linux")]
pub(crate) fn take_no_more(listener: &TcpListener) -> std::io::Result<()> {
    use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET};
    use socket2::SockFilter;
    /// Where TCP has its flags, bytes from the begin of its header, which is where the kernel lets a filter begin.
    const FLAGS_AT: u32 = 13;
    const SYN: u32 = 0x02;
    const ACK: u32 = 0x10;
    let step = |code: u32, jump_true, jump_false, operand| {
        SockFilter::new(u16::try_from(code).expect("codes have 16 bits"), jump_true, jump_false, operand)
    };
    socket2::SockRef::from(listener).attach_filter(&[
        step(BPF_LD | BPF_B | BPF_ABS, 0, 0, FLAGS_AT),
        step(BPF_ALU | BPF_AND | BPF_K, 0, 0, SYN | ACK),
        step(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYN),
        // Nothing of it is kept, or all.
        step(BPF_RET | BPF_K, 0, 0, 0),
        step(BPF_RET | BPF_K, 0, 0, u32::MAX),
    ])
}

/// Elsewhere there is no such filter: connections that come between the last look and the close are reset.
///
/// # Errors
/// Never.
#[cfg(not(target_os = "linux"))]
pub(crate) fn take_no_more(_listener: &TcpListener) -> std::io::Result<()> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{ErrorKind, Read as _, Write as _};
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;

    /// Whether a new connection is answered at all.
    fn answers(listener: &TcpListener) -> bool {
        let address = listener.local_addr().expect("bound");
        match TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::TimedOut, "neither taken nor refused");
                false
            }
        }
    }

    #[test]
    fn a_listener_that_takes_no_more_keeps_who_is_connected() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no IPv6.
            let Ok(listener) = bind(host) else { continue };
            assert!(answers(&listener));
            let mut waits = TcpStream::connect(listener.local_addr().expect("bound")).expect("taken");
            waits.write_all(b"before").expect("sent");
            take_no_more(&listener).expect("the kernel filters");
            assert!(!answers(&listener), "{host}");
            waits.write_all(b" and after").expect("sent");
            drop(listener.accept().expect("the first, which has gone"));
            let (mut accepted, _) = listener.accept().expect("waits");
            let mut text = [0; 16];
            accepted.read_exact(&mut text).expect("all of it");
            assert_eq!(&text, b"before and after");
            accepted.write_all(b"answer").expect("sent");
            waits.read_exact(&mut text[..6]).expect("answered");
        }
    }
}
