//! What is measured on real servers, and what a busy neighbour can change: times, CPU shares, rates and resident
//! memory. `make measure` runs this binary on a quiet machine, one test at a time. `make test` does not build it.
//!
//! `tests/it` has all other tests that start a server. Both binaries share `support`. Each check here has its twin
//! beside it.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests are clients, not klad")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test that panics has said what is wrong")]
#![allow(clippy::format_push_string, clippy::format_collect, reason = "no test is short of allocations")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the harness shows what a failed test has said")]
#![allow(dead_code, unused_imports, reason = "the shared code has more than this binary uses")]

#[path = "../it/support/mod.rs"]
mod support;

mod capacity;
mod lab_verdicts;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
mod memory;
#[cfg(all(feature = "rocksdb", target_os = "linux"))]
mod profile_shares;
#[cfg(target_os = "linux")]
mod profile_truth;
mod profiles;
