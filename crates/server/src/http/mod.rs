//! HTTP: from a request's head and body to an operation, and from its outcome to an answer.
//!
//! Knows connections only as [`exchange::Exchange`], does no IO, starts no thread. Called by `server`, which lets hyper
//! call [`service::Service`] for each request.

pub mod answer;
pub mod api_error;
pub mod authorization;
pub mod body;
pub mod framing;
pub mod plain;
pub mod query;
mod range;
pub mod route;
pub mod service;
mod upload;
