//! klad: a durable key-value store with an HTTP interface.
//!
//! ```text
//!     socket ─▶ server (accept, worker) ─▶ http (route, decode) ─▶ execution (admit, choose where to run) ─▶ storage::Engine
//!        ▲                                                                                                        │
//!        └────────── server ◀── http (encode, one status table) ◀── execution (complete) ◀────────────────────────┘
//! ```
//!
//! `ARCHITECTURE.md` has the list of files, the threads and the invariants. The modules are declared in reading
//! order. Imports point downwards only; `tests/it/tidy.rs` checks this.

pub mod cli;
pub mod exit;
pub mod manual;
pub mod reference;
pub mod settings;

pub mod config;
pub mod control;
pub mod os;

pub mod client;
#[cfg(feature = "rocksdb")]
pub mod offline;
