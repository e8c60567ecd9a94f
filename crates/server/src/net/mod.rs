//! Sockets: listening, accepting, TLS, and how many connections there may be.
//!
//! Knows nothing of HTTP but the answer to a connection that is one too many. Called by the crate's root and by `admin`.

pub mod accept;
pub mod handshake;
pub mod listen;
pub mod peers;
pub mod places;
pub mod safety;
pub mod stream;
pub mod tls;
