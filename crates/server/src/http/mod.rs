//! HTTP: turns a request's head and body into an operation, and the outcome of the operation into an answer.
//!
//! This module does no IO, starts no thread, and knows connections only as
//! [`exchange::Exchange`](crate::exchange::Exchange). `connection` calls it, directly or through hyper.

pub mod answer;
pub mod api_error;
pub mod authorization;
pub mod body;
pub mod consistency;
pub mod duration;
pub mod framing;
pub mod plain;
pub mod query;
mod range;
pub mod route;
pub mod service;
mod upload;
pub mod v1;
pub mod write_run;
