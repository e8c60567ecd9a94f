//! Sockets: listening, TLS, a connection's bytes.
//!
//! The only HTTP in this module is the answer to a client that speaks plain HTTP to a TLS port. `connection` and
//! `admin`'s listener call this module. The program itself calls it too, because it binds before it opens data.

pub mod handshake;
pub mod listen;
pub mod safety;
pub mod stream;
pub mod tls;
