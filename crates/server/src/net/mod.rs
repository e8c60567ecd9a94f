//! Sockets: listening, TLS, a connection's bytes.
//!
//! Knows nothing of HTTP. Called by `connection`, by `admin`'s listener, and by the program, which binds before it opens data.

pub mod handshake;
pub mod listen;
pub mod safety;
pub mod stream;
pub mod tls;
