//! klad: a durable key-value store spoken to over plain HTTP.
//!
//! ```text
//!     socket ─▶ server (accept, worker) ─▶ http (route, decode) ─▶ execution (admit, choose where to run) ─▶ storage::Engine
//!        ▲                                                                                                        │
//!        └────────── server ◀── http (encode, one status table) ◀── execution (complete) ◀────────────────────────┘
//! ```
//!
//! `ARCHITECTURE.md` has the map, the threads and what holds everywhere. Modules are declared in reading order; imports
//! point down only, which `tests/it/tidy.rs` checks.

pub mod cli;
pub mod exit;
pub mod manual;
pub mod reference;
pub mod settings;

pub mod config;
pub mod control;
mod memory_limit;
pub mod server;
pub mod signals;
pub mod supervisor;

pub mod http;

#[cfg(target_os = "linux")]
pub mod lab;

#[cfg(target_os = "linux")]
pub mod bench;

pub mod client;

#[cfg(feature = "rocksdb")]
pub mod offline;

pub mod execution;
pub mod profile;
pub mod tokens;

pub mod storage;

pub mod logs;
pub mod page;

pub mod operation;

pub mod clock;
pub mod descriptors;
pub mod limits;
pub mod metrics;
pub mod output;
pub mod sampling;
mod scheduler;
pub mod sync;
