//! Starts servers, sends requests to them, and plants defects in them.

pub(crate) mod batches;
pub(crate) mod bencher;
pub(crate) mod cassandra;
pub(crate) mod client;
#[cfg(target_os = "linux")]
pub(crate) mod clock;
pub(crate) mod command;
pub(crate) mod conformance;
pub(crate) mod engine;
pub(crate) mod exports;
#[cfg(feature = "rocksdb")]
pub(crate) mod feeds;
pub(crate) mod history;
pub(crate) mod lab;
pub(crate) mod late;
pub(crate) mod load;
#[cfg(target_os = "linux")]
pub(crate) mod loaded;
pub(crate) mod metrics;
pub(crate) mod one_key;
#[cfg(target_os = "linux")]
pub(crate) mod pages;
pub(crate) mod planted;
pub(crate) mod planted_changes;
pub(crate) mod planted_replicas;
pub(crate) mod plants;
pub(crate) mod programs;
pub(crate) mod proxies;
pub(crate) mod queueing;
pub(crate) mod results;
pub(crate) mod rights;
pub(crate) mod scanning;
pub(crate) mod scrape;
pub(crate) mod scripted;
pub(crate) mod server;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
pub(crate) mod shim;
#[cfg(feature = "rocksdb")]
pub(crate) mod stores;
pub(crate) mod tls;
pub(crate) mod token_file;
#[cfg(target_os = "linux")]
pub(crate) mod tools;
#[cfg(target_os = "linux")]
pub(crate) mod webdriver;
pub(crate) mod wrk2;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(crate) use client::{Answer, Client};
pub(crate) use server::{Server, ServerBuilder};

/// The engines of this build, the default first.
pub(crate) const ENGINES: &[&str] = &[
    #[cfg(feature = "rocksdb")]
    "rocksdb",
    #[cfg(feature = "fjall")]
    "fjall",
    "memory",
];

/// The engines that keep data on a disk.
pub(crate) const DURABLE_ENGINES: &[&str] = &[
    #[cfg(feature = "rocksdb")]
    "rocksdb",
    #[cfg(feature = "fjall")]
    "fjall",
];

/// Each engine with each strategy, as `engine/strategy`. The engine alone stands for the default strategy.
pub(crate) const SETUPS: &[&str] = &[
    #[cfg(feature = "rocksdb")]
    "rocksdb",
    #[cfg(feature = "rocksdb")]
    "rocksdb/inline",
    #[cfg(feature = "rocksdb")]
    "rocksdb/pool",
    #[cfg(feature = "rocksdb")]
    "rocksdb/stealing",
    #[cfg(feature = "fjall")]
    "fjall",
    #[cfg(feature = "fjall")]
    "fjall/inline",
    #[cfg(feature = "fjall")]
    "fjall/pool",
    #[cfg(feature = "fjall")]
    "fjall/stealing",
    "memory",
    "memory/inline",
    "memory/pool",
    "memory/stealing",
    "late",
    "late/inline",
    "late/pool",
    "late/stealing",
];

/// The default engine, with answers that come late, out of order, and from another thread.
pub(crate) const LATE_SETUPS: &[&str] = &["late", "late/inline", "late/pool", "late/stealing"];

/// Whether data of this setup is lost when the process ends. `late` uses the default engine.
pub(crate) fn keeps_nothing(setup: &str) -> bool {
    setup.starts_with("memory") || (setup.starts_with("late") && DURABLE_ENGINES.is_empty())
}

/// The engines on a disk, with each strategy.
pub(crate) fn durable_setups() -> impl Iterator<Item = &'static str> {
    SETUPS.iter().copied().filter(|setup| !setup.starts_with("memory") && !setup.starts_with("late"))
}

/// The engines on a disk with the default strategy, and the default engine with each. Where behaviour depends on the
/// strategy, and neither the contract nor durability is at stake.
pub(crate) fn durable_strategies() -> impl Iterator<Item = &'static str> {
    durable_setups().filter(|setup| !setup.contains('/') || setup.starts_with(ENGINES[0]))
}

/// RocksDB with each strategy.
pub(crate) const ROCKSDB_SETUPS: &[&str] = &["rocksdb", "rocksdb/inline", "rocksdb/pool", "rocksdb/stealing"];

/// Maximum time of every wait in the tests. A wait that takes longer is a failure.
pub(crate) const PATIENCE: Duration = Duration::from_mins(5);

/// Returns the version of Linux: its features differ.
#[cfg(target_os = "linux")]
pub(crate) fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// Waits until `condition` holds.
///
/// # Panics
/// The condition does not hold within [`PATIENCE`].
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(2);
    while !condition() {
        assert!(Instant::now() < deadline, "timeout while waiting until {what}");
        std::thread::sleep(pause);
        // Each check costs CPU time, which what it waits for may need.
        pause = (pause * 2).min(Duration::from_millis(32));
    }
}

/// Sets its flag when dropped, also when the test fails. Scoped threads that run until the flag is set would
/// otherwise hang and hide the failure.
pub(crate) struct Over<'f>(pub(crate) &'f AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Returns a random generator and prints its seed. `KLAD_TEST_SEED` sets the seed.
pub(crate) fn random() -> fastrand::Rng {
    let seed = std::env::var("KLAD_TEST_SEED").ok().map_or_else(|| fastrand::u64(..), |text| text.parse().unwrap());
    println!("KLAD_TEST_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Percent-encodes every byte.
pub(crate) fn encode(key: &[u8]) -> String {
    key.iter().map(|byte| format!("%{byte:02X}")).collect()
}

/// Returns the resident memory of a process, bytes.
pub(crate) fn resident_bytes(process: u32) -> u64 {
    status_bytes(process, "VmRSS:")
}

/// Returns a number of bytes from `/proc/PID/status`.
pub(crate) fn status_bytes(process: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}
