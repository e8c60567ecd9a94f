//! The integration tests. Every test goes through the socket of a server that it starts, except tests of the
//! sources.
//!
//! `support` starts servers and sends requests; the other modules are named after what they test. A check of a
//! promise is a function that returns the faults, so that its twin can run it against a planted defect and show that
//! it finds the defect. No test here asserts a time, a CPU share or resident memory: `tests/measure` does.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests are clients, not klad")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test that panics has said what is wrong")]
#![allow(clippy::format_push_string, clippy::format_collect, reason = "no test is short of allocations")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the harness shows what a failed test has said")]
#![cfg_attr(
    not(all(feature = "fjall", feature = "rocksdb")),
    allow(dead_code, unused_imports, reason = "for the tests that need a disk")
)]

mod support;

mod admin;
#[cfg(feature = "rocksdb")]
mod backup;
#[cfg(feature = "rocksdb")]
mod bad_data;
mod bad_input;
mod bench;
mod bench_compare;
mod bench_files;
mod bench_knee;
mod bench_network;
#[cfg(target_os = "linux")]
mod bench_page;
#[cfg(feature = "scripts")]
mod bench_script;
mod bench_usage;
#[cfg(all(feature = "fjall", feature = "rocksdb"))]
mod bulk_load;
#[cfg(feature = "cassandra")]
mod cassandra_rows;
#[cfg(feature = "rocksdb")]
mod check;
#[cfg(feature = "rocksdb")]
mod checkpoint;
#[cfg(feature = "cassandra")]
mod cluster_failures;
#[cfg(all(feature = "cassandra", feature = "fjall", feature = "rocksdb"))]
mod cluster_moves;
#[cfg(feature = "cassandra")]
mod cluster_replicas;
#[cfg(feature = "cassandra")]
mod cluster_security;
mod command_line;
mod command_line_tls;
#[cfg(feature = "rocksdb")]
mod commit_delay;
mod configuration;
mod connections;
mod console;
mod console_charts;
#[cfg(all(feature = "cassandra", feature = "rocksdb", target_os = "linux"))]
mod console_cluster;
#[cfg(all(feature = "rocksdb", target_os = "linux"))]
mod console_data;
#[cfg(all(feature = "rocksdb", target_os = "linux"))]
mod console_page;
#[cfg(all(feature = "rocksdb", target_os = "linux"))]
mod console_views;
mod contract;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
mod disk;
mod documents;
mod draining;
mod engine_model;
mod engines;
#[cfg(target_os = "linux")]
mod environments;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
mod execution;
mod exits;
mod exposure;
#[cfg(feature = "fjall")]
mod fjall_data;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod frame_pointers;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
mod held_sync;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
mod kill;
mod lab;
mod lab_report;
mod late;
mod lifecycle;
mod limits;
mod linearizable;
mod live;
mod logs;
mod manual;
mod metrics;
#[cfg(feature = "rocksdb")]
mod metrics_truth;
mod observed;
mod pipelines;
mod plain;
mod profile_command;
#[cfg(target_os = "linux")]
mod profile_http;
#[cfg(target_os = "linux")]
mod profile_kinds;
#[cfg(target_os = "linux")]
mod profile_live;
mod ranges;
#[cfg(feature = "rocksdb")]
mod removed_entries;
mod replicas;
#[cfg(all(feature = "rocksdb", feature = "posix-locks", target_os = "linux"))]
mod rocksdb_waits;
mod slow;
mod slow_clients;
#[cfg(feature = "rocksdb")]
mod stale_reads;
mod stops;
mod supervisor;
#[cfg(feature = "rocksdb")]
mod tables;
#[cfg(all(feature = "rocksdb", target_os = "linux"))]
mod threads;
mod tidy;
mod tls;
mod tls_files;
mod tokens;
#[cfg(target_os = "linux")]
mod top;
#[cfg(all(feature = "rocksdb", target_os = "linux"))]
mod top_figures;
mod v1_batch;
#[cfg(feature = "rocksdb")]
mod v1_changes;
mod v1_client;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
mod v1_client_data;
#[cfg(target_os = "linux")]
mod v1_clock;
mod v1_conditions;
mod v1_counters;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
mod v1_durability;
#[cfg(feature = "rocksdb")]
mod v1_events;
mod v1_expiry;
mod v1_isolation;
mod v1_keys;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
mod v1_kill;
mod v1_metadata;
mod v1_observed;
mod v1_openapi;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
mod v1_overload;
mod v1_points;
mod v1_proxies;
mod v1_range_removal;
mod v1_scan;
mod v1_tokens;
#[cfg(feature = "rocksdb")]
mod v1_watch;
#[cfg(feature = "rocksdb")]
mod worker_reads;
