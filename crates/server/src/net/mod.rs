//! Sockets: listening, TLS, a connection's bytes.
//!
//! This module knows nothing about HTTP. `connection`, `admin`'s listener, and the program itself, which binds before
//! it opens data, call it.

pub mod handshake;
pub mod listen;
pub mod safety;
pub mod stream;
pub mod tls;
