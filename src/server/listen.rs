//! Binds listeners. Called by `main` before the data directory is touched, so that a busy port changes nothing.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};

use crate::limits::LISTEN_BACKLOG;

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
