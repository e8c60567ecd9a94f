//! Binds listeners, and stops the kernel from taking new connections. `main` binds before it opens the data directory,
//! so that klad changes no data if the port is in use. `accept` calls `stop_accepting` when klad stops.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};

use crate::limits::LISTEN_BACKLOG;

/// Why klad cannot listen on an address.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not an address.
    #[error("{0:?} is not an address to listen on; use for example 127.0.0.1:8080")]
    NotAnAddress(String),
    /// The kernel rejected the address.
    #[error("cannot listen on {address}: {cause}{}", hint(cause))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        cause: std::io::Error,
    },
}

fn hint(cause: &std::io::Error) -> &'static str {
    match cause.kind() {
        std::io::ErrorKind::AddrInUse => {
            " (another process listens there: stop it, or choose another port with --listen or --admin-listen)"
        }
        std::io::ErrorKind::PermissionDenied => " (ports below 1024 need privileges; choose a higher one)",
        _ => "",
    }
}

/// Resolves `address` (`host:port`). Returns the first address if there are several.
///
/// # Errors
/// [`Error::NotAnAddress`] if `address` cannot be resolved.
pub fn resolve(address: &str) -> Result<SocketAddr, Error> {
    let no_address = || Error::NotAnAddress(address.to_owned());
    address.to_socket_addrs().map_err(|_| no_address())?.next().ok_or_else(no_address)
}

/// Listens on `address` (`host:port`; with port 0 the kernel chooses the port). After klad has stopped, the address can
/// be used again immediately.
///
/// # Errors
/// [`Error`] if `address` cannot be resolved, or if the kernel rejects it.
pub fn bind(address: &str) -> Result<TcpListener, Error> {
    let address = resolve(address)?;
    let bind = || {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM,
            Some(socket2::Protocol::TCP),
        )?;
        // A connection in TIME_WAIT must not block the port of a restarted klad.
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(i32::try_from(LISTEN_BACKLOG).expect("a small constant"))?;
        Ok(socket.into())
    };
    bind().map_err(|cause| Error::Bind { address, cause })
}

/// Stops the kernel from taking new connections. The kernel drops segments that open a connection, but lets clients
/// complete a handshake that it has answered. Closing the listener would reset those connections, and those in the
/// backlog.
///
/// If a client connects in the meantime, its kernel tries again a second later. Then the closed port rejects the
/// client, or the next klad accepts it. `docs/decisions/2026-11-21-stopping.md` lists other ways that were considered.
///
/// # Errors
/// If the kernel has no socket filters.
#[cfg(target_os = "linux")]
pub(crate) fn stop_accepting(listener: &TcpListener) -> std::io::Result<()> {
    use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET};
    use socket2::SockFilter;
    /// The offset of TCP's flags from the beginning of its header, where the filter begins to read.
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
        // A result of 0 bytes drops the segment. A result of all bytes keeps it.
        step(BPF_RET | BPF_K, 0, 0, 0),
        step(BPF_RET | BPF_K, 0, 0, u32::MAX),
    ])
}

/// Does nothing, because only Linux has such a filter. Connections that arrive between the last accept and the close
/// are reset.
///
/// # Errors
/// This function never fails.
#[cfg(not(target_os = "linux"))]
pub(crate) fn stop_accepting(_listener: &TcpListener) -> std::io::Result<()> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{ErrorKind, Read as _, Write as _};
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;

    /// Whether the kernel answers a new connection.
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
            stop_accepting(&listener).expect("the kernel filters");
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
