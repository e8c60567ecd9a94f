//! Keeps a server under load while a test does something else.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::bencher::Bencher;
use super::metrics::Metrics;
use super::{Client, Over, Server, ServerBuilder, wait_until};

/// The number of clients.
const CLIENTS: u64 = 8;

/// A pause of each client of [`loaded`] that leaves most of the CPU time to a browser.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

/// The number of answered requests before the test continues.
const BEFORE: u64 = 200;

/// Runs `work` while clients write and read values. Each client pauses after a write and a read.
pub(crate) fn loaded<T>(server: &Server, pause: Duration, work: impl FnOnce() -> T) -> T {
    let (over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for client in 0..CLIENTS {
            let (over, answered) = (&over, &answered);
            scope.spawn(move || {
                let mut connection = server.client();
                let mut number = 0;
                while !over.load(Ordering::Relaxed) {
                    let target = format!("/v0/entity?id={client}-{}", number % 1_000);
                    assert_eq!(connection.put(&target, &[7; 1_024]).status, 201);
                    assert_eq!(connection.get(&target).status, 200);
                    number += 1;
                    answered.fetch_add(2, Ordering::Relaxed);
                    std::thread::sleep(pause);
                }
            });
        }
        wait_until("requests are answered", || answered.load(Ordering::Relaxed) >= BEFORE);
        work()
    })
}

/// Returns the profile at `path` under a load of PUTs at the maximum rate: a low rate would give only a few samples.
pub(crate) fn profile_under_load(server: &Server, path: &str) -> Vec<u8> {
    let options = "--workload put --keys 1000 --value-size 1KiB --closed --connections 16 --duration 1h";
    let before = Metrics::scrape(server).requests("put", "ok");
    let bench = Bencher::new(&format!("http://{}", server.address), options).start();
    wait_until("requests are answered", || Metrics::scrape(server).requests("put", "ok") >= before + BEFORE);
    let taken = AtomicBool::new(false);
    let answer = std::thread::scope(|scope| {
        let _over = Over(&taken);
        // Flushes keep RocksDB's threads busy, and cause waits for its locks.
        scope.spawn(|| {
            while cfg!(feature = "rocksdb") && !taken.load(Ordering::Relaxed) {
                Client::connect(server.admin).request("POST", "/compact", &[], None);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        server.admin(path)
    });
    // Kills it.
    drop(bench);
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.body
}

/// Starts a server with the strategy `pool`, whose threads wait for each other.
pub(crate) fn contended_server() -> Server {
    ServerBuilder::new(if cfg!(feature = "rocksdb") { "rocksdb/pool" } else { "memory/pool" })
        .arg("--pool-threads", "4")
        .start()
}

/// Starts a server with the default engine and strategy.
pub(crate) fn server() -> Server {
    ServerBuilder::new(if cfg!(feature = "rocksdb") { "rocksdb" } else { "memory" }).start()
}
