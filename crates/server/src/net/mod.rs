//! Sockets: listening, TLS, a connection's bytes.
//!
//! The only HTTP in this module is the answer to a client that speaks plain HTTP to a TLS port. `connection`, `admin`'s
//! listener, and the program itself, which binds before it opens data, call this module.

pub mod handshake;
pub mod listen;
pub mod safety;
pub mod stream;
pub mod tls;
