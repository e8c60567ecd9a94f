//! The load tester: open load against any HTTP/1.1 server, with figures that can be believed.
//!
//! ```text
//!     args ─▶ plan ─▶ threads: schedule ─▶ generator ─▶ network ─▶ server
//!                                              │
//!                              recorder ◀──────┘
//!                                  │ once a second
//!                              collector ─▶ progress, interval log ─▶ result ─▶ checks, slo ─▶ text, files, page
//! ```
//!
//! A request has an intended start that no server can put off, and its response time counts from there. It must never wait
//! for an answer to another, but for a connection, and that shows. Nothing here is shared with `server` and `http`: a mistake
//! in framing at both ends would cancel out. Called by `main`.

#![cfg(target_os = "linux")]

pub mod args;
pub mod runner;

pub mod plan;
pub mod url;

pub mod schedule;

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
