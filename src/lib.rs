//! klad: a durable key-value store with an HTTP interface. This crate is the program: its command line, its settings
//! and the client commands. The drawing shows the path of a request; its code is in other crates:
//!
//! ```text
//!     socket ─▶ server (accept, worker) ─▶ http (route, decode) ─▶ execution (admit, choose thread) ─▶ storage::Engine
//!        ▲                                                                                                  │
//!        └──── server ◀── http (encode, one status table) ◀── execution (complete) ◀────────────────────────┘
//! ```
//!
//! `ARCHITECTURE.md` lists the directories, the threads and the invariants. The modules below are declared in reading
//! order. A test in `tests/it/tidy.rs` checks which module imports which; its table `ROWS` has the allowed imports.

pub mod cli;
pub mod exit;
pub mod manual;
pub mod reference;
pub mod settings;

pub mod config;
pub mod control;
pub mod os;

#[cfg(feature = "cassandra")]
pub mod cluster;

pub mod client;
#[cfg(feature = "rocksdb")]
pub mod offline;

pub mod disk;
