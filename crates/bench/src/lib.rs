//! The load tester: sends load to any HTTP/1.1 server, and reports response times. With open load, response times are
//! free of coordinated omission.
//!
//! ```text
//!     args ─▶ plan ─▶ threads: schedule ─▶ generator ─▶ network ─▶ server
//!                                              │
//!                              recorder ◀──────┘
//!                                  │ once for each interval
//!                              collector ─▶ progress, interval log ─▶ result ─▶ checks, slo ─▶ text, files, page
//! ```
//!
//! In open load, each request has an intended start, which the server cannot delay. The response time counts from the
//! intended start. If all connections are busy at that time, the request waits for a connection, and the response time
//! includes the wait.
//!
//! This crate does not use the HTTP code of klad's server, because no test would notice a mistake in framing that both
//! have. Called by klad's `main` as `klad bench`, by this crate's own `main` as `klad-bench`, and by `klad_lab`. The
//! crate `xtask` and klad's other commands use single modules, such as `result`, `units` and `entries`.

#![cfg(target_os = "linux")]

pub mod args;
pub mod runner;

pub mod plan;
pub mod url;

pub mod schedule;

pub mod entries;
pub mod keys;
pub mod workload;

pub mod author;
pub mod generator;
pub mod shared;
mod slots;

pub mod interrupt;

#[cfg(feature = "scripts")]
pub mod script;
#[cfg(feature = "scripts")]
pub mod script_report;
mod scripts;

pub mod response;

pub mod admin;
pub mod network;
mod polling;
pub mod socket;
pub mod threads;

pub mod collector;
pub mod gap;
pub mod pieces;
pub mod recorder;

pub mod checks;
pub mod result;
pub mod slo;

pub mod compare;
pub mod knee;

pub mod files;
pub mod machine;
pub mod page;
pub mod progress;
pub mod text;

pub mod units;

#[cfg(test)]
mod simulated;
